"""CloudFormation: a template of the kinds of resources that an installation has, and events through them."""

from __future__ import annotations

import json
import unittest
from typing import Any

import support

server: support.Server

TRUST = json.loads(support.TRUST)
ALL = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*"}]}
MACHINE = {"QueryLanguage": "JSONata", "StartAt": "A", "States": {"A": {
    "Type": "Task", "Resource": "arn:aws:states:::lambda:invoke", "End": True,
    "Arguments": {"FunctionName": "${Function}", "Payload":
                  "{% $merge([{'say': 'from the machine', 'bare': true}, $states.input]) %}"}}}}
RESOURCES: dict[str, Any] = {
    "Role": {"Type": "AWS::IAM::Role", "Properties": {
        "AssumeRolePolicyDocument": TRUST, "Policies": [{"PolicyName": "all", "PolicyDocument": ALL}]}},
    "Extra": {"Type": "AWS::IAM::Policy", "Properties": {
        "PolicyName": "extra", "PolicyDocument": ALL, "Roles": [{"Ref": "Role"}]}},
    "Function": {"Type": "AWS::Lambda::Function", "Properties": {
        "Runtime": "provided.al2023", "Handler": "deploy", "Role": {"Fn::GetAtt": ["Role", "Arn"]}, "Timeout": 10,
        "MemorySize": 512, "Architectures": ["x86_64"], "ReservedConcurrentExecutions": 5,
        "Environment": {"Variables": {"BUCKET": {"Ref": "Bucket"}}},
        "LoggingConfig": {"LogFormat": "JSON", "ApplicationLogLevel": "DEBUG"},
        "Code": {"S3Bucket": {"Ref": "ArtifactBucket"}, "S3Key": {"Fn::Sub": "${ArtifactPrefix}function.zip"}}}},
    "Logs": {"Type": "AWS::Logs::LogGroup", "Properties": {
        "LogGroupName": {"Fn::Sub": "/aws/lambda/${Function}"}, "RetentionInDays": 30}},
    "Retries": {"Type": "AWS::Lambda::EventInvokeConfig", "Properties": {
        "FunctionName": {"Ref": "Function"}, "Qualifier": "$LATEST", "MaximumRetryAttempts": 0}},
    "Bucket": {"Type": "AWS::S3::Bucket", "DeletionPolicy": "Retain", "Properties": {
        "VersioningConfiguration": {"Status": "Enabled"},
        "BucketEncryption": {"ServerSideEncryptionConfiguration": [
            {"ServerSideEncryptionByDefault": {"SSEAlgorithm": "AES256"}}]},
        "PublicAccessBlockConfiguration": {name: True for name in (
            "BlockPublicAcls", "BlockPublicPolicy", "IgnorePublicAcls", "RestrictPublicBuckets")},
        "LifecycleConfiguration": {"Rules": [{"Status": "Enabled", "ExpirationInDays": 30}]},
        "NotificationConfiguration": {"EventBridgeConfiguration": {"EventBridgeEnabled": True}},
        "Tags": [{"Key": "part", "Value": "state"}]}},
    "BucketPolicy": {"Type": "AWS::S3::BucketPolicy", "Properties": {"Bucket": {"Ref": "Bucket"}, "PolicyDocument": {
        "Version": "2012-10-17", "Statement": [{
            "Effect": "Deny", "Principal": "*", "Action": "s3:DeleteBucket",
            "Resource": {"Fn::GetAtt": ["Bucket", "Arn"]}}]}}},
    "Queue": {"Type": "AWS::SQS::Queue", "Properties": {
        "VisibilityTimeout": 60, "RedrivePolicy": {
            "deadLetterTargetArn": {"Fn::GetAtt": ["Dead", "Arn"]}, "maxReceiveCount": 3}}},
    "Dead": {"Type": "AWS::SQS::Queue"},
    "QueuePolicy": {"Type": "AWS::SQS::QueuePolicy", "Properties": {"Queues": [{"Ref": "Queue"}], "PolicyDocument": {
        "Version": "2012-10-17", "Statement": [{
            "Effect": "Allow", "Principal": {"Service": "events.amazonaws.com"}, "Action": "sqs:SendMessage",
            "Resource": {"Fn::GetAtt": ["Queue", "Arn"]}}]}}},
    "OnObject": {"Type": "AWS::Events::Rule", "Properties": {
        "EventPattern": {"source": ["aws.s3"], "detail-type": ["Object Created"], "detail": {
            "bucket": {"name": [{"Ref": "Bucket"}]}, "object": {"key": [{"wildcard": "in/*.json"}]}}},
        "Targets": [{"Id": "queue", "Arn": {"Fn::GetAtt": ["Queue", "Arn"]}}]}},
    "Mapping": {"Type": "AWS::Lambda::EventSourceMapping", "Properties": {
        "EventSourceArn": {"Fn::GetAtt": ["Queue", "Arn"]}, "FunctionName": {"Ref": "Function"}, "BatchSize": 10,
        "FunctionResponseTypes": ["ReportBatchItemFailures"]}},
    "Machine": {"Type": "AWS::StepFunctions::StateMachine", "Properties": {
        "RoleArn": {"Fn::GetAtt": ["Role", "Arn"]}, "DefinitionString": json.dumps(MACHINE),
        "DefinitionSubstitutions": {"Function": {"Fn::GetAtt": ["Function", "Arn"]}},
        "LoggingConfiguration": {"Level": "OFF"}}},
    "OnEnd": {"Type": "AWS::Events::Rule", "Properties": {
        "EventPattern": {"source": ["aws.states"], "detail-type": ["Step Functions Execution Status Change"],
                         "detail": {"stateMachineArn": [{"Ref": "Machine"}], "status": ["FAILED", "ABORTED"]}},
        "Targets": [{"Id": "function", "Arn": {"Fn::GetAtt": ["Function", "Arn"]}, "InputTransformer": {
            "InputPathsMap": {"arn": "$.detail.executionArn", "status": "$.detail.status"},
            "InputTemplate": '{"say": "ended <status>", "arn": "<arn>"}'}}]}},
    "Sweep": {"Type": "AWS::Events::Rule", "Properties": {
        "ScheduleExpression": "rate(1 hour)",
        "Targets": [{"Id": "function", "Arn": {"Fn::GetAtt": ["Function", "Arn"]}, "Input": '{"say": "sweep"}'}]}},
    "MayInvoke": {"Type": "AWS::Lambda::Permission", "Properties": {
        "FunctionName": {"Ref": "Function"}, "Action": "lambda:InvokeFunction", "Principal": "events.amazonaws.com",
        "SourceArn": {"Fn::GetAtt": ["OnEnd", "Arn"]}}},
    "Parameter": {"Type": "AWS::SSM::Parameter", "Properties": {
        "Name": "/local/version", "Type": "String", "Value": "1"}},
    "Sometimes": {"Type": "AWS::SNS::Topic", "Condition": "Never"},
}
TEMPLATE = {
    "Parameters": {"ArtifactBucket": {"Type": "String"}, "ArtifactPrefix": {"Type": "String", "Default": ""}},
    "Conditions": {"Never": {"Fn::Equals": [{"Ref": "ArtifactPrefix"}, "never"]}}, "Resources": RESOURCES,
    "Outputs": {name: {"Value": {"Ref": name}} for name in ("Function", "Bucket", "Queue", "Machine")}}


def setUpModule() -> None:
    global server
    server = support.Server()


def tearDownModule() -> None:
    server.remove()


class Types(unittest.TestCase):
    def test_described_from_the_schemas(self) -> None:
        api = server.client("cloudformation")
        for name, kind in (("AWS::S3::Bucket", "FULLY_MUTABLE"), ("AWS::Lambda::Permission", "IMMUTABLE"),
                           ("AWS::IAM::Policy", "NON_PROVISIONABLE")):
            answer = api.describe_type(Type="RESOURCE", TypeName=name)
            self.assertEqual((answer["TypeName"], answer["ProvisioningType"]), (name, kind))
            self.assertEqual(json.loads(answer["Schema"])["typeName"], name)
        with self.assertRaises(api.exceptions.TypeNotFoundException):
            api.describe_type(Type="RESOURCE", TypeName="AWS::No::Such")


class Installation(unittest.TestCase):
    def deploy(self, template: dict[str, Any], name: str = "install") -> tuple[str, dict[str, str]]:
        cloudformation = server.client("cloudformation")
        cloudformation.create_stack(StackName=name, TemplateBody=json.dumps(template),
                                    Capabilities=["CAPABILITY_NAMED_IAM"], Parameters=[
                                        {"ParameterKey": "ArtifactBucket", "ParameterValue": "artifacts"},
                                        {"ParameterKey": "ArtifactPrefix", "ParameterValue": "v1/"}])

        def done() -> Any:
            stack = cloudformation.describe_stacks(StackName=name)["Stacks"][0]
            return None if stack["StackStatus"].endswith("IN_PROGRESS") else stack

        stack = support.wait_for(done)
        if stack["StackStatus"] != "CREATE_COMPLETE":
            self.reasons = [event.get("ResourceStatusReason", "") for event in
                            cloudformation.describe_stack_events(StackName=name)["StackEvents"]]
        return stack["StackStatus"], {one["OutputKey"]: one["OutputValue"] for one in stack.get("Outputs", [])}

    def logged(self, group: str, text: str) -> str:
        """All that a function has logged, as soon as the text is in it."""
        logs = server.client("logs")

        def found() -> str:
            events = logs.filter_log_events(logGroupName=group)["events"]
            everything = "\n".join(event["message"] for event in events)
            return everything if text in everything else ""

        return support.wait_for(found, 15)

    def test_installation(self) -> None:
        s3 = server.client("s3")
        s3.create_bucket(Bucket="artifacts")
        s3.put_object(Bucket="artifacts", Key="v1/function.zip", Body=support.bootstrap_zip())
        status, outputs = self.deploy(TEMPLATE)
        self.assertEqual(status, "CREATE_COMPLETE", getattr(self, "reasons", None))
        group = f"/aws/lambda/{outputs['Function']}"

        seen = json.load(server.client("lambda").invoke(FunctionName=outputs["Function"])["Payload"])["env"]
        self.assertEqual((seen["_HANDLER"], seen["BUCKET"]), ("deploy", outputs["Bucket"]))
        self.assertEqual((seen["AWS_LAMBDA_LOG_FORMAT"], seen["AWS_LAMBDA_LOG_LEVEL"]), ("JSON", "DEBUG"))
        self.assertEqual(server.client("lambda").get_function_concurrency(
            FunctionName=outputs["Function"])["ReservedConcurrentExecutions"], 5)

        states = server.client("stepfunctions")
        states.start_execution(stateMachineArn=outputs["Machine"])
        self.logged(group, "from the machine")
        self.assertEqual(s3.get_bucket_versioning(Bucket=outputs["Bucket"])["Status"], "Enabled")
        self.assertEqual(s3.get_bucket_encryption(Bucket=outputs["Bucket"])["ServerSideEncryptionConfiguration"][
            "Rules"][0]["ApplyServerSideEncryptionByDefault"]["SSEAlgorithm"], "AES256")

        # An object, by EventBridge and a queue, reaches the function.
        s3.put_object(Bucket=outputs["Bucket"], Key="out/b.json", Body=b"{}")
        s3.put_object(Bucket=outputs["Bucket"], Key="in/a.json", Body=b"{}")
        text = self.logged(group, "in/a.json")
        self.assertNotIn("out/b.json", text)

        # So does the end of a stopped execution.
        arn = states.start_execution(stateMachineArn=outputs["Machine"], input='{"sleep": 5}')["executionArn"]
        states.stop_execution(executionArn=arn)
        self.logged(group, "ended ABORTED")

    def test_bad_machine_fails_the_stack(self) -> None:
        bad = {"StartAt": "A", "States": {"A": {"Type": "Pass", "Next": "B"}}}
        status, _ = self.deploy({"Parameters": TEMPLATE["Parameters"], "Resources": {
            "Role": RESOURCES["Role"], "Machine": {"Type": "AWS::StepFunctions::StateMachine", "Properties": {
                "RoleArn": {"Fn::GetAtt": ["Role", "Arn"]}, "Definition": bad}}}}, "bad")
        self.assertIn("ROLLBACK", status)
        self.assertTrue(any("Invalid State Machine Definition" in reason for reason in self.reasons), self.reasons)
