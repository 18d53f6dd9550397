// A web application's back end without code of its own: a bucket, a table, queues, a topic and what holds them
// together. It has no file assets, so that it deploys where no asset storage exists.
//
// Between them, its two stacks hold every intrinsic function that CDK apps use within one stack. `WebApp` is
// environment-agnostic (its region is a token), `WebAppEast` is bound to an account and a region.
//
// With the context key `changed`, it is the same application one commit later:
//   - an update: `Jobs` gets a longer visibility timeout,
//   - a removal: the parameter `Greeting` is gone,
//   - a replacement: `Audit` becomes a FIFO queue (`FifoQueue` is create-only), and what refers to it follows.

const cdk = require("aws-cdk-lib");
const { Aws, CfnCondition, CfnMapping, CfnOutput, CfnParameter, Duration, Fn, RemovalPolicy, Tags, Token } = cdk;
const dynamodb = require("aws-cdk-lib/aws-dynamodb");
const iam = require("aws-cdk-lib/aws-iam");
const logs = require("aws-cdk-lib/aws-logs");
const s3 = require("aws-cdk-lib/aws-s3");
const sns = require("aws-cdk-lib/aws-sns");
const subscriptions = require("aws-cdk-lib/aws-sns-subscriptions");
const sqs = require("aws-cdk-lib/aws-sqs");
const ssm = require("aws-cdk-lib/aws-ssm");

class WebApp extends cdk.Stack {
  constructor(scope, id, props) {
    super(scope, id, props);
    const changed = Boolean(this.node.tryGetContext("changed"));

    const stage = new CfnParameter(this, "Stage", {
      description: "Which of the environments this is",
      default: "dev",
      allowedValues: ["dev", "beta", "prod"],
    });
    const receiveCount = new CfnParameter(this, "MaxReceiveCount", { type: "Number", default: 3, minValue: 1 });
    const origins = new CfnParameter(this, "Origins", {
      type: "CommaDelimitedList",
      default: "https://example.com,https://www.example.com",
    });

    const retention = new CfnMapping(this, "Retention", {
      mapping: { dev: { days: 7 }, beta: { days: 30 }, prod: { days: 365 } },
    });

    const isProd = new CfnCondition(this, "IsProd", { expression: Fn.conditionEquals(stage, "prod") });
    const isShared = new CfnCondition(this, "IsShared", {
      expression: Fn.conditionOr(isProd, Fn.conditionEquals(stage, "beta")),
    });
    const isPrivate = new CfnCondition(this, "IsPrivate", { expression: Fn.conditionNot(isShared) });
    const isProdInEast = new CfnCondition(this, "IsProdInEast", {
      expression: Fn.conditionAnd(isProd, Fn.conditionEquals(Aws.REGION, "us-east-1")),
    });

    const uploads = new s3.Bucket(this, "Uploads", {
      removalPolicy: RemovalPolicy.DESTROY,
      versioned: true,
      cors: [{ allowedMethods: [s3.HttpMethods.PUT], allowedOrigins: origins.valueAsList }],
    });

    const deadLetters = new sqs.Queue(this, "DeadLetters", { retentionPeriod: Duration.days(14) });
    const jobs = new sqs.Queue(this, "Jobs", {
      visibilityTimeout: Duration.seconds(changed ? 120 : 60),
      deadLetterQueue: { queue: deadLetters, maxReceiveCount: receiveCount.valueAsNumber },
    });
    jobs.addToResourcePolicy(
      new iam.PolicyStatement({
        sid: "UploadsMayNotify",
        principals: [new iam.ServicePrincipal("s3.amazonaws.com")],
        actions: ["sqs:SendMessage"],
        resources: [jobs.queueArn],
        conditions: { ArnLike: { "aws:SourceArn": uploads.bucketArn } },
      }),
    );

    const audit = new sqs.Queue(this, "Audit", changed ? { fifo: true, contentBasedDeduplication: true } : {});

    const sessions = new dynamodb.Table(this, "Sessions", {
      partitionKey: { name: "user", type: dynamodb.AttributeType.STRING },
      sortKey: { name: "started", type: dynamodb.AttributeType.NUMBER },
      billingMode: dynamodb.BillingMode.PAY_PER_REQUEST,
      timeToLiveAttribute: "expires",
      removalPolicy: RemovalPolicy.DESTROY,
    });

    const events = new sns.Topic(this, "Events", {
      displayName: Token.asString(
        Fn.conditionIf(isProd.logicalId, "Web application", Fn.sub("Web application (${Stage})")),
      ),
    });
    events.addSubscription(new subscriptions.SqsSubscription(jobs, { rawMessageDelivery: true }));

    const pages = new sns.Topic(this, "Pages");
    pages.node.defaultChild.cfnOptions.condition = isProdInEast;

    const requests = new logs.LogGroup(this, "Requests", {
      retention: Token.asNumber(retention.findInMap(stage.valueAsString, "days")),
      removalPolicy: RemovalPolicy.DESTROY,
    });

    const worker = new iam.Role(this, "Worker", {
      assumedBy: new iam.ServicePrincipal("ec2.amazonaws.com"),
      description: Fn.sub("Works off ${Queue} for ${AWS::StackName}", { Queue: jobs.queueName }),
    });
    uploads.grantRead(worker);
    jobs.grantConsumeMessages(worker);
    audit.grantSendMessages(worker);
    sessions.grantReadWriteData(worker);
    events.grantPublish(worker);
    requests.grantWrite(worker);

    const settings = new ssm.StringParameter(this, "Settings", {
      description: "What a worker reads when it starts",
      stringValue: Fn.base64(
        Fn.sub("queue=${Jobs}\ntable=${Table}\nregion=${AWS::Region}\nliteral=${!Jobs}\n", {
          Jobs: jobs.queueUrl,
          Table: sessions.tableName,
        }),
      ),
    });
    settings.grantRead(worker);

    const allowed = new ssm.StringListParameter(this, "AllowedOrigins", { stringListValue: origins.valueAsList });
    // No origin is announced before the bucket admits it.
    allowed.node.addDependency(uploads);

    if (!changed) {
      new ssm.StringParameter(this, "Greeting", { stringValue: "hello" });
    }

    const debug = new ssm.StringParameter(this, "Debug", { stringValue: Fn.join("/", [this.stackName, "debug"]) });
    debug.node.defaultChild.cfnOptions.condition = isPrivate;

    new CfnOutput(this, "JobsUrl", { value: jobs.queueUrl });
    new CfnOutput(this, "JobsArn", { value: jobs.queueArn, exportName: `${this.stackName}-JobsArn` });
    new CfnOutput(this, "JobsName", { value: Fn.select(5, Fn.split(":", jobs.queueArn)) });
    new CfnOutput(this, "AuditName", { value: audit.queueName });
    new CfnOutput(this, "FirstOrigin", { value: Fn.select(0, origins.valueAsList) });
    const pagesArn = new CfnOutput(this, "PagesArn", { value: pages.topicArn });
    pagesArn.condition = isProdInEast;
  }
}

const app = new cdk.App();
new WebApp(app, "WebApp", { description: "The sample application, for any account and region" });
new WebApp(app, "WebAppEast", {
  description: "The sample application, bound to one account and region",
  env: { account: "123456789012", region: "us-east-1" },
});
Tags.of(app).add("application", "webapp");
Tags.of(app).add("cost-center", "1234");
