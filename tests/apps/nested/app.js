// A stack with a nested one, which has another: values go down as parameters and come up as outputs.
//
// With the context key `changed`, the nested stack alone is another; with `without`, it is gone.

const cdk = require("aws-cdk-lib");
const iam = require("aws-cdk-lib/aws-iam");
const sns = require("aws-cdk-lib/aws-sns");
const sqs = require("aws-cdk-lib/aws-sqs");
const ssm = require("aws-cdk-lib/aws-ssm");

const app = new cdk.App();
const changed = Boolean(app.node.tryGetContext("changed"));
const without = Boolean(app.node.tryGetContext("without"));

const parent = new cdk.Stack(app, "Nested", { tags: { application: "nested" } });
const events = new sns.Topic(parent, "Events", { displayName: "Events of all" });
let summary = "nothing is nested";
if (!without) {
  // A policy in the nested stack refers to the topic of the one around it.
  const child = new cdk.NestedStack(parent, "Child");
  const jobs = new sqs.Queue(child, "Jobs", { visibilityTimeout: cdk.Duration.seconds(changed ? 60 : 30) });
  jobs.addToResourcePolicy(
    new iam.PolicyStatement({
      sid: "EventsMaySend",
      actions: ["sqs:SendMessage"],
      principals: [new iam.ServicePrincipal("sns.amazonaws.com")],
      resources: [jobs.queueArn],
      conditions: { ArnEquals: { "aws:SourceArn": events.topicArn } },
    }),
  );
  // The innermost reads of both.
  const grandchild = new cdk.NestedStack(child, "Grandchild");
  const place = new ssm.StringParameter(grandchild, "Place", {
    stringValue: `${events.topicName} to ${jobs.queueName}`,
  });
  new cdk.CfnOutput(child, "JobsArn", { value: jobs.queueArn, exportName: "nested-jobs-arn" });
  summary = `jobs in ${jobs.queueUrl}, their place in ${place.parameterName}`;
}
new ssm.StringParameter(parent, "Summary", { stringValue: summary });
new cdk.CfnOutput(parent, "EventsArn", { value: events.topicArn });
