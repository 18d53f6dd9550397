// A stage: its stacks lie in an assembly nested in the application's, and one refers to the other's queue, for which CDK
// makes export, import and dependency by itself. Another stack, bound to another region, reads an output of the stage
// without protecting it.
//
// With the context key `changed`, it is the same application one commit later: the service looks at a queue of its own.
// Then CDK leaves out export, import and dependency, so nothing says any more which of the two has to go first (the
// "deadly embrace", aws-cdk issue 7602).

const cdk = require("aws-cdk-lib");
const { CfnOutput, Fn } = cdk;
const sqs = require("aws-cdk-lib/aws-sqs");
const ssm = require("aws-cdk-lib/aws-ssm");

const app = new cdk.App();
const changed = Boolean(app.node.tryGetContext("changed"));

const stage = new cdk.Stage(app, "Beta");
const data = new cdk.Stack(stage, "Data");
const jobs = new sqs.Queue(data, "Jobs");
new CfnOutput(data, "JobsName", { value: jobs.queueName });
const service = new cdk.Stack(stage, "Service");
const watched = changed ? new sqs.Queue(service, "Own") : jobs;
new ssm.StringParameter(service, "Watched", { stringValue: watched.queueArn });

const abroad = new cdk.Stack(app, "Abroad", { env: { account: "123456789012", region: "eu-west-1" } });
new ssm.StringParameter(abroad, "Seen", {
  stringValue: Fn.getStackOutput("Beta-Data", "JobsName", "us-east-1"),
});
