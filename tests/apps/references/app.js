// Stacks that refer to each other: a producer and its consumer, a chain that exports again, and a weak reader.
//
// With the context key `changed`, it is the same application one commit later: the consumer no longer imports, and the
// producer no longer exports (the pair of a "deadly embrace", aws-cdk issue 7602).

const cdk = require("aws-cdk-lib");
const { CfnOutput, Fn, Token } = cdk;
const sqs = require("aws-cdk-lib/aws-sqs");
const ssm = require("aws-cdk-lib/aws-ssm");

const app = new cdk.App();
const changed = Boolean(app.node.tryGetContext("changed"));

const producer = new cdk.Stack(app, "Producer");
const jobs = new sqs.Queue(producer, "Jobs");
if (!changed) {
  new CfnOutput(producer, "JobsArn", { value: jobs.queueArn, exportName: "producer-jobs-arn" });
}
new CfnOutput(producer, "JobsName", { value: jobs.queueName });

const consumer = new cdk.Stack(app, "Consumer");
new ssm.StringParameter(consumer, "Setting", {
  stringValue: changed ? "no longer imported" : `jobs at ${Fn.importValue("producer-jobs-arn")}`,
});

// A, B imports from A and exports again, C imports from B.
const first = new cdk.Stack(app, "ChainA");
new CfnOutput(first, "Out", { value: new sqs.Queue(first, "Queue").queueName, exportName: "chain-a" });
const second = new cdk.Stack(app, "ChainB");
const link = new ssm.StringParameter(second, "Link", { stringValue: Fn.importValue("chain-a") });
new CfnOutput(second, "Out", { value: link.parameterName, exportName: "chain-b" });
const third = new cdk.Stack(app, "ChainC");
new ssm.StringParameter(third, "Link", { stringValue: Fn.importValue("chain-b") });

// Reads an output without protecting it.
const reader = new cdk.Stack(app, "WeakReader");
new ssm.StringParameter(reader, "Seen", {
  stringValue: Token.asString({ "Fn::GetStackOutput": { StackName: "Producer", OutputName: "JobsName" } }),
});
