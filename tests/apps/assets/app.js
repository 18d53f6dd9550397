// A consumer with code: a function and its layer from folders, a file that it is told of by URL, a state machine whose
// definition lies in S3, and a nested stack with a function of its own. What it says comes from a producer's export.

const path = require("path");
const cdk = require("aws-cdk-lib");
const { CfnOutput, Fn } = cdk;
const lambda = require("aws-cdk-lib/aws-lambda");
const sfn = require("aws-cdk-lib/aws-stepfunctions");
const ssm = require("aws-cdk-lib/aws-ssm");
const { Asset } = require("aws-cdk-lib/aws-s3-assets");

const app = new cdk.App();
const changed = Boolean(app.node.tryGetContext("changed"));
const here = (name) => path.join(__dirname, name);

const producer = new cdk.Stack(app, "Phrases");
const phrase = new ssm.StringParameter(producer, "Phrase", { stringValue: "good morning" });
new CfnOutput(producer, "Greeting", { value: phrase.stringValue, exportName: "phrases-greeting" });

const consumer = new cdk.Stack(app, "Greeter");
const layer = new lambda.LayerVersion(consumer, "Words", {
  code: lambda.Code.fromAsset(here("layer")),
  compatibleRuntimes: [lambda.Runtime.PYTHON_3_12],
});
const data = new Asset(consumer, "Data", { path: here("data.json") });
const greet = new lambda.Function(consumer, "Greet", {
  runtime: lambda.Runtime.PYTHON_3_12,
  handler: "index.handler",
  code: lambda.Code.fromAsset(here("function")),
  layers: [layer],
  environment: {
    GREETING: Fn.importValue("phrases-greeting"),
    DATA_URL: data.s3ObjectUrl,
    ...(changed ? { PUNCTUATION: "!" } : {}),
  },
});
data.grantRead(greet);

const flow = new sfn.StateMachine(consumer, "Flow", {
  definitionBody: sfn.DefinitionBody.fromFile(here("flow.asl.json")),
});

class Inner extends cdk.NestedStack {
  constructor(scope, id) {
    super(scope, id);
    this.echo = new lambda.Function(this, "Echo", {
      runtime: lambda.Runtime.PYTHON_3_12,
      handler: "echo.handler",
      code: lambda.Code.fromAsset(here("inner")),
    });
  }
}
const inner = new Inner(consumer, "Inner");

new CfnOutput(consumer, "Function", { value: greet.functionName });
new CfnOutput(consumer, "InnerFunction", { value: inner.echo.functionName });
new CfnOutput(consumer, "DataUrl", { value: data.s3ObjectUrl });
new CfnOutput(consumer, "FlowArn", { value: flow.stateMachineArn });
