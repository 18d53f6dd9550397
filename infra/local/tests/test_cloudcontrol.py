"""Cloud Control: real resources, and every rule of the schemas."""

from __future__ import annotations

import io
import json
import os
import time
import unittest
import zipfile
from typing import Any

from botocore.exceptions import ClientError

import support

server: support.Server


def setUpModule() -> None:
    global server
    server = support.Server()


def tearDownModule() -> None:
    server.remove()


def archive(name: str, text: str) -> bytes:
    """A zip with one file."""
    body = io.BytesIO()
    with zipfile.ZipFile(body, "w") as file:
        file.writestr(name, text)
    return body.getvalue()


class Case(unittest.TestCase):
    def setUp(self) -> None:
        self.api = server.client("cloudcontrol")
        server.admin("faults", method="DELETE")
        server.admin("settings", method="DELETE")

    def create(self, type_name: str, state: Any, **options: Any) -> dict[str, Any]:
        answer = self.api.create_resource(TypeName=type_name, DesiredState=json.dumps(state), **options)
        return self.finish(answer)

    def update(self, type_name: str, identifier: str, *operations: dict[str, Any], **options: Any) -> dict[str, Any]:
        answer = self.api.update_resource(TypeName=type_name, Identifier=identifier,
                                          PatchDocument=json.dumps(operations), **options)
        return self.finish(answer)

    def delete(self, type_name: str, identifier: str) -> dict[str, Any]:
        return self.finish(self.api.delete_resource(TypeName=type_name, Identifier=identifier))

    def finish(self, answer: dict[str, Any]) -> dict[str, Any]:
        token = answer["ProgressEvent"]["RequestToken"]

        def ended() -> Any:
            event = self.api.get_resource_request_status(RequestToken=token)["ProgressEvent"]
            return event if event["OperationStatus"] in ("SUCCESS", "FAILED") else None

        return support.wait_for(ended)

    def read(self, type_name: str, identifier: str) -> dict[str, Any]:
        answer = self.api.get_resource(TypeName=type_name, Identifier=identifier)
        return json.loads(answer["ResourceDescription"]["Properties"])

    def made(self, type_name: str, state: Any) -> str:
        event = self.create(type_name, state)
        self.assertEqual(event["OperationStatus"], "SUCCESS", event)
        return event["Identifier"]

    def refused(self, event: dict[str, Any], code: str, text: str = "") -> None:
        self.assertEqual((event["OperationStatus"], event.get("ErrorCode")), ("FAILED", code), event)
        self.assertIn(text, event["StatusMessage"])

    def raises(self, name: str, call: Any, *arguments: Any, **options: Any) -> str:
        with self.assertRaises(ClientError) as caught:
            call(*arguments, **options)
        self.assertEqual(caught.exception.response["Error"]["Code"], name, caught.exception.response)
        return caught.exception.response["Error"]["Message"]


class Progress(Case):
    def test_operation_is_in_progress_first(self) -> None:
        answer = self.api.create_resource(TypeName="AWS::SNS::Topic", DesiredState='{"TopicName": "slow"}')
        event = answer["ProgressEvent"]
        self.assertEqual((event["OperationStatus"], event["Operation"]), ("IN_PROGRESS", "CREATE"))
        self.assertIn("RetryAfter", event)
        self.assertNotIn("ResourceModel", event)
        event = self.finish(answer)
        self.assertEqual(event["OperationStatus"], "SUCCESS")
        self.assertEqual(event["Identifier"], f"arn:aws:sns:us-east-1:{support.ACCOUNT}:slow")
        self.assertEqual(json.loads(event["ResourceModel"])["TopicName"], "slow")

    def test_late_poll_still_finds_the_resource(self) -> None:
        answer = self.api.create_resource(TypeName="AWS::Logs::LogGroup", DesiredState='{"LogGroupName": "late"}')
        time.sleep(0.3)
        self.assertEqual(self.finish(answer)["Identifier"], "late")
        self.assertEqual(self.read("AWS::Logs::LogGroup", "late")["LogGroupClass"], "STANDARD")

    def test_client_token_replays_and_conflicts(self) -> None:
        options = {"TypeName": "AWS::SQS::Queue", "ClientToken": "once"}
        first = self.api.create_resource(DesiredState='{"QueueName": "token"}', **options)
        again = self.api.create_resource(DesiredState='{"QueueName": "token"}', **options)
        self.assertEqual(first["ProgressEvent"]["RequestToken"], again["ProgressEvent"]["RequestToken"])
        self.finish(first)
        late = self.api.create_resource(DesiredState='{"QueueName": "token"}', **options)
        self.assertEqual(late["ProgressEvent"]["OperationStatus"], "SUCCESS")
        self.raises("ClientTokenConflictException", self.api.create_resource,
                    DesiredState='{"QueueName": "other"}', **options)

    def test_one_operation_at_a_time(self) -> None:
        identifier = self.made("AWS::SSM::Parameter", {"Name": "busy", "Type": "String", "Value": "1"})
        server.admin("faults", {"mode": "delay", "delay": 0.5, "operation": "UPDATE"})
        patch = json.dumps([{"op": "replace", "path": "/Value", "value": "2"}])
        options = {"TypeName": "AWS::SSM::Parameter", "Identifier": identifier}
        answer = self.api.update_resource(PatchDocument=patch, **options)
        self.raises("ConcurrentOperationException", self.api.update_resource, PatchDocument=patch, **options)
        self.raises("ConcurrentOperationException", self.api.delete_resource, **options)
        self.assertEqual(self.finish(answer)["OperationStatus"], "SUCCESS")

    def test_unknown_and_unsupported_types(self) -> None:
        self.raises("TypeNotFoundException", self.create, "AWS::No::Such", {})
        self.raises("ValidationException", self.create, "Custom::Thing", {})
        for name in ("AWS::IAM::Policy", "AWS::SQS::QueuePolicy", "AWS::SNS::TopicPolicy"):
            self.raises("UnsupportedActionException", self.create, name, {})
        self.raises("UnsupportedActionException", self.update, "AWS::Lambda::Permission", "f|s",
                    {"op": "remove", "path": "/Principal"})
        self.raises("RequestTokenNotFoundException", self.api.get_resource_request_status, RequestToken="none")

    def test_missing_resources(self) -> None:
        self.raises("ResourceNotFoundException", self.read, "AWS::S3::Bucket", "nowhere-at-all")
        self.refused(self.delete("AWS::S3::Bucket", "nowhere-at-all"), "NotFound")
        self.refused(self.update("AWS::S3::Bucket", "nowhere-at-all", {"op": "add", "path": "/Tags", "value": []}),
                     "NotFound")

    def test_unassumable_role_is_refused(self) -> None:
        self.raises("ValidationException", self.create, "AWS::SNS::Topic", {},
                    RoleArn=f"arn:aws:iam::{support.ACCOUNT}:role/nobody")


class Models(Case):
    def test_model_is_validated(self) -> None:
        queue = "AWS::SQS::Queue"
        self.refused(self.create(queue, {"QueueNam": "x"}), "InvalidRequest", "extraneous key [QueueNam]")
        self.refused(self.create("AWS::SSM::Parameter", {"Name": "x"}), "InvalidRequest",
                     "required key [Value] not found")
        self.refused(self.create(queue, {"DelaySeconds": "5"}), "InvalidRequest", "expected type: Integer")
        self.refused(self.create(queue, {"Arn": "arn:x"}), "InvalidRequest", "/properties/Arn")
        self.refused(self.create("AWS::S3::Bucket", {"VersioningConfiguration": {"Status": "Maybe"}}),
                     "InvalidRequest", "#/VersioningConfiguration/Status")

    def test_refusals_may_answer_the_call(self) -> None:
        server.admin("settings", {"cloud_control_refusals": "call"})
        self.raises("ValidationException", self.create, "AWS::SQS::Queue", {"QueueNam": "x"})

    def test_existing_names_are_refused(self) -> None:
        for type_name, state in (
                ("AWS::SQS::Queue", {"QueueName": "twice"}), ("AWS::SNS::Topic", {"TopicName": "twice"}),
                ("AWS::S3::Bucket", {"BucketName": "twice-bucket"}), ("AWS::Logs::LogGroup", {"LogGroupName": "twice"}),
                ("AWS::SSM::Parameter", {"Name": "twice", "Type": "String", "Value": "v"}),
                ("AWS::IAM::Role", {"RoleName": "twice", "AssumeRolePolicyDocument": json.loads(support.TRUST)}),
                ("AWS::Events::Rule", {"Name": "twice", "ScheduleExpression": "rate(1 day)"})):
            with self.subTest(type_name):
                self.made(type_name, state)
                self.refused(self.create(type_name, state), "AlreadyExists")

    def test_bucket_of_another_account_is_taken(self) -> None:
        server.client("s3", "999999999999").create_bucket(Bucket="taken-elsewhere")
        self.refused(self.create("AWS::S3::Bucket", {"BucketName": "taken-elsewhere"}), "AlreadyExists")

    def test_fixed_properties_are_not_updatable(self) -> None:
        url = self.made("AWS::SQS::Queue", {"QueueName": "fixed"})
        self.refused(self.update("AWS::SQS::Queue", url, {"op": "replace", "path": "/QueueName", "value": "b"}),
                     "NotUpdatable", "/properties/QueueName")
        self.refused(self.update("AWS::SQS::Queue", url, {"op": "replace", "path": "/Arn", "value": "b"}),
                     "InvalidRequest", "/properties/Arn")

    def test_conditionally_fixed_property_on_demand(self) -> None:
        table = self.made("AWS::DynamoDB::Table", {
            "TableName": "conditional", "BillingMode": "PAY_PER_REQUEST",
            "KeySchema": [{"AttributeName": "a", "KeyType": "HASH"}],
            "AttributeDefinitions": [{"AttributeName": "a", "AttributeType": "S"}]})
        server.admin("faults", {"type": "AWS::DynamoDB::Table", "mode": "conditionalCreateOnly"})
        patch = {"op": "replace", "path": "/KeySchema/0/AttributeName", "value": "b"}
        self.refused(self.update("AWS::DynamoDB::Table", table, patch), "NotUpdatable", "KeySchema")
        tag = {"op": "add", "path": "/Tags", "value": [{"Key": "k", "Value": "v"}]}
        self.assertEqual(self.update("AWS::DynamoDB::Table", table, tag)["OperationStatus"], "SUCCESS")

    def test_write_only_property_is_hidden_and_lost(self) -> None:
        name = self.made("AWS::SSM::Parameter", {"Name": "/w/o", "Type": "String", "Value": "1",
                                                 "Description": "kept?"})
        self.assertNotIn("Description", self.read("AWS::SSM::Parameter", name))
        ssm = server.client("ssm")

        def description() -> str:
            found = ssm.describe_parameters(ParameterFilters=[{"Key": "Name", "Values": [name]}])["Parameters"]
            return found[0].get("Description", "")

        self.assertEqual(description(), "kept?")
        value = {"op": "replace", "path": "/Value", "value": "2"}
        again = {"op": "add", "path": "/Description", "value": "kept?"}
        self.update("AWS::SSM::Parameter", name, value, again)
        self.assertEqual(description(), "kept?")
        self.update("AWS::SSM::Parameter", name, {**value, "value": "3"})
        self.assertEqual(description(), "")
        self.assertEqual(ssm.get_parameter(Name=name)["Parameter"]["Value"], "3")

    def test_patch_is_strict(self) -> None:
        url = self.made("AWS::SQS::Queue", {"QueueName": "strict"})
        for operation in ({"op": "replace", "path": "/RedrivePolicy", "value": {}},
                          {"op": "remove", "path": "/Tags"}, {"op": "add", "path": "/No/Such", "value": 1},
                          {"op": "test", "path": "/QueueName", "value": "x"}, {"op": "what", "path": "/QueueName"}):
            with self.subTest(operation):
                self.raises("ValidationException", self.update, "AWS::SQS::Queue", url, operation)
        event = self.update("AWS::SQS::Queue", url, {"op": "replace", "path": "/DelaySeconds", "value": 7})
        self.assertEqual(json.loads(event["ResourceModel"])["DelaySeconds"], 7)
        attributes = server.client("sqs").get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
        self.assertEqual(attributes["DelaySeconds"], "7")


class LiveThings(Case):
    def test_drift_is_seen(self) -> None:
        url = self.made("AWS::SQS::Queue", {"QueueName": "drift"})
        server.client("sqs").set_queue_attributes(QueueUrl=url, Attributes={"VisibilityTimeout": "99"})
        self.assertEqual(self.read("AWS::SQS::Queue", url)["VisibilityTimeout"], 99)
        bucket = self.made("AWS::S3::Bucket", {"BucketName": "drift-bucket", "Tags": [{"Key": "a", "Value": "1"}]})
        s3 = server.client("s3")
        self.assertEqual(s3.get_bucket_tagging(Bucket=bucket)["TagSet"], [{"Key": "a", "Value": "1"}])
        s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
        model = self.read("AWS::S3::Bucket", bucket)
        self.assertEqual(model["VersioningConfiguration"], {"Status": "Enabled"})
        self.assertEqual(model["Arn"], "arn:aws:s3:::drift-bucket")
        name = self.made("AWS::SSM::Parameter", {"Name": "drift", "Type": "String", "Value": "1"})
        server.client("ssm").put_parameter(Name=name, Value="9", Overwrite=True)
        self.assertEqual(self.read("AWS::SSM::Parameter", name)["Value"], "9")
        group = self.made("AWS::Logs::LogGroup", {"LogGroupName": "drift"})
        server.client("logs").put_retention_policy(logGroupName=group, retentionInDays=7)
        self.assertEqual(self.read("AWS::Logs::LogGroup", group)["RetentionInDays"], 7)

    def test_deleted_elsewhere_is_not_found(self) -> None:
        arn = self.made("AWS::SNS::Topic", {"TopicName": "gone"})
        server.client("sns").delete_topic(TopicArn=arn)
        self.raises("ResourceNotFoundException", self.read, "AWS::SNS::Topic", arn)
        self.refused(self.delete("AWS::SNS::Topic", arn), "NotFound")

    def test_made_elsewhere_can_be_managed(self) -> None:
        server.client("sqs").create_queue(QueueName="foreign")
        url = server.client("sqs").get_queue_url(QueueName="foreign")["QueueUrl"]
        self.assertEqual(self.read("AWS::SQS::Queue", url)["QueueName"], "foreign")
        self.assertIn(url, [one["Identifier"] for one in self.api.list_resources(
            TypeName="AWS::SQS::Queue")["ResourceDescriptions"]])
        self.assertEqual(self.delete("AWS::SQS::Queue", url)["OperationStatus"], "SUCCESS")

    def test_topic_and_subscription(self) -> None:
        topic = self.made("AWS::SNS::Topic", {"TopicName": "news", "DisplayName": "News"})
        queue = self.made("AWS::SQS::Queue", {"QueueName": "news"})
        arn = self.read("AWS::SQS::Queue", queue)["Arn"]
        state = {"TopicArn": topic, "Protocol": "sqs", "Endpoint": arn, "FilterPolicy": {"k": ["v"]}}
        subscription = self.made("AWS::SNS::Subscription", state)
        self.assertTrue(subscription.startswith(topic + ":"))
        self.assertEqual(self.read("AWS::SNS::Subscription", subscription),
                         {**state, "Arn": subscription, "FilterPolicyScope": "MessageAttributes"})
        self.refused(self.create("AWS::SNS::Subscription", {**state, "TopicArn": topic + "x"}), "NotFound")
        self.refused(self.update("AWS::SNS::Subscription", subscription,
                                 {"op": "replace", "path": "/Protocol", "value": "lambda"}), "NotUpdatable")

    def test_table(self) -> None:
        name = self.made("AWS::DynamoDB::Table", {
            "KeySchema": [{"AttributeName": "a", "KeyType": "HASH"}],
            "AttributeDefinitions": [{"AttributeName": "a", "AttributeType": "S"}], "BillingMode": "PAY_PER_REQUEST"})
        model = self.read("AWS::DynamoDB::Table", name)
        self.assertEqual(model["Arn"], f"arn:aws:dynamodb:us-east-1:{support.ACCOUNT}:table/{name}")
        server.client("dynamodb").update_table(TableName=name, DeletionProtectionEnabled=True)
        self.assertTrue(self.read("AWS::DynamoDB::Table", name)["DeletionProtectionEnabled"])

    def test_function(self) -> None:
        role = server.role("cc-function")
        server.client("s3").create_bucket(Bucket="cc-code")
        server.client("s3").put_object(Bucket="cc-code", Key="f.zip", Body=support.bootstrap_zip())
        state = {"FunctionName": "cc", "Role": role, "Runtime": "provided.al2023", "Handler": "bootstrap",
                 "Code": {"S3Bucket": "cc-code", "S3Key": "f.zip"}, "ReservedConcurrentExecutions": 4}
        self.refused(self.create("AWS::Lambda::Function", {**state, "Role": role + "x"}), "InvalidRequest", "assumed")
        self.refused(self.create("AWS::Lambda::Function", {**state, "Code": {"S3Bucket": "cc-code", "S3Key": "x"}}),
                     "InvalidRequest", "NoSuchKey")
        name = self.made("AWS::Lambda::Function", state)
        model = self.read("AWS::Lambda::Function", name)
        self.assertEqual((model["Code"], model["Timeout"], model["ReservedConcurrentExecutions"]), ({}, 3, 4))
        event = self.update("AWS::Lambda::Function", name, {"op": "replace", "path": "/Timeout", "value": 9})
        self.assertEqual(event["OperationStatus"], "SUCCESS", event)
        answer = server.client("lambda").invoke(FunctionName=name, Payload=b'{"bare": true}')
        self.assertEqual(json.load(answer["Payload"]), {"bare": True})
        process = json.load(server.client("lambda").invoke(FunctionName=name)["Payload"])["pid"]
        self.assertEqual(self.delete("AWS::Lambda::Function", name)["OperationStatus"], "SUCCESS")
        with self.assertRaises(ProcessLookupError):
            os.kill(process, 0)

    def test_layer(self) -> None:
        s3 = server.client("s3")
        s3.create_bucket(Bucket="cc-layers")
        s3.put_object(Bucket="cc-layers", Key="l.zip", Body=support.bootstrap_zip())
        state = {"LayerName": "cc-layer", "Content": {"S3Bucket": "cc-layers", "S3Key": "l.zip"}}
        for missing in ({"S3Bucket": "cc-layers", "S3Key": "x"}, {"S3Bucket": "cc-no-bucket", "S3Key": "l.zip"}):
            self.refused(self.create("AWS::Lambda::LayerVersion", {**state, "Content": missing}),
                         "InvalidRequest", "GetObject")
        first = self.made("AWS::Lambda::LayerVersion", state)
        self.assertTrue(first.endswith(":layer:cc-layer:1"), first)
        self.raises("UnsupportedActionException", self.api.update_resource, TypeName="AWS::Lambda::LayerVersion",
                    Identifier=first, PatchDocument="[]")
        self.assertTrue(self.made("AWS::Lambda::LayerVersion", state).endswith(":layer:cc-layer:2"))
        self.assertNotIn("Content", self.read("AWS::Lambda::LayerVersion", first))

    def test_code_in_another_bucket(self) -> None:
        s3, role = server.client("s3"), server.role("cc-moved")
        for bucket in ("cc-one", "cc-two"):
            s3.create_bucket(Bucket=bucket)
            s3.put_object(Bucket=bucket, Key="f.zip", Body=archive("index.py", (
                f"import words\ndef handler(event, context):\n    return ['{bucket}', words.SAID]\n")))
        s3.put_object(Bucket="cc-one", Key="l.zip", Body=archive("python/words.py", "SAID = 'layer'\n"))
        layer = self.made("AWS::Lambda::LayerVersion", {"Content": {"S3Bucket": "cc-one", "S3Key": "l.zip"}})
        name = self.made("AWS::Lambda::Function", {
            "Role": role, "Runtime": "python3.12", "Handler": "index.handler", "Layers": [layer],
            "Code": {"S3Bucket": "cc-one", "S3Key": "f.zip"}})
        for bucket in ("cc-one", "cc-two"):
            event = self.update("AWS::Lambda::Function", name, {
                "op": "add", "path": "/Code", "value": {"S3Bucket": bucket, "S3Key": "f.zip"}})
            self.assertEqual(event["OperationStatus"], "SUCCESS", event)
            answer = server.client("lambda").invoke(FunctionName=name)
            self.assertEqual(json.load(answer["Payload"]), [bucket, "layer"])

    def test_state_machine_from_s3(self) -> None:
        s3, role = server.client("s3"), server.role("cc-flow")
        s3.create_bucket(Bucket="cc-flows")
        s3.put_object(Bucket="cc-flows", Key="f.json", Body=json.dumps({
            "StartAt": "A", "States": {"A": {"Type": "Pass", "Result": "${Said}", "End": True}}}))
        state = {"RoleArn": role, "DefinitionSubstitutions": {"Said": "substituted"},
                 "DefinitionS3Location": {"Bucket": "cc-flows", "Key": "f.json"}}
        missing = self.create("AWS::StepFunctions::StateMachine", {
            **state, "DefinitionS3Location": {"Bucket": "cc-flows", "Key": "x"}})
        self.assertEqual(missing["OperationStatus"], "FAILED", missing)
        arn = self.made("AWS::StepFunctions::StateMachine", state)
        definition = server.client("stepfunctions").describe_state_machine(stateMachineArn=arn)["definition"]
        self.assertEqual(json.loads(definition)["States"]["A"]["Result"], "substituted")

    def test_role_and_inline_policies(self) -> None:
        iam = server.client("iam")
        role = self.made("AWS::IAM::Role", {
            "RoleName": "inline", "AssumeRolePolicyDocument": json.loads(support.TRUST)})
        iam.create_user(UserName="inline")
        iam.create_group(GroupName="inline")
        document = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}]}
        for kind in ("Role", "User", "Group"):
            type_name = f"AWS::IAM::{kind}Policy"
            state = {f"{kind}Name": "inline", "PolicyName": "p", "PolicyDocument": document}
            identifier = self.made(type_name, state)
            self.assertEqual(identifier, "p|inline")
            self.assertEqual(self.read(type_name, identifier), state)
            stored = getattr(iam, f"get_{kind.lower()}_policy")(PolicyName="p", **{f"{kind}Name": "inline"})
            self.assertEqual(stored["PolicyDocument"], document)
            self.refused(self.create(type_name, {**state, f"{kind}Name": "nobody"}), "NotFound")
            self.refused(self.create(type_name, state), "AlreadyExists")
        model = self.read("AWS::IAM::Role", role)
        self.assertEqual(model["Policies"], [{"PolicyName": "p", "PolicyDocument": document}])
        self.assertTrue(model["RoleId"].startswith("AROA"))
        self.assertEqual(self.delete("AWS::IAM::RolePolicy", "p|inline")["OperationStatus"], "SUCCESS")
        self.assertNotIn("Policies", self.read("AWS::IAM::Role", role))

    def test_queue_and_topic_inline_policies(self) -> None:
        document = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Principal": "*", "Action": "sqs:*"}]}
        url = self.made("AWS::SQS::Queue", {"QueueName": "policy"})
        self.made("AWS::SQS::QueueInlinePolicy", {"Queue": url, "PolicyDocument": document})
        attributes = server.client("sqs").get_queue_attributes(QueueUrl=url, AttributeNames=["Policy"])["Attributes"]
        self.assertEqual(json.loads(attributes["Policy"]), document)
        self.delete("AWS::SQS::QueueInlinePolicy", url)
        self.raises("ResourceNotFoundException", self.read, "AWS::SQS::QueueInlinePolicy", url)
        arn = self.made("AWS::SNS::Topic", {"TopicName": "policy"})
        self.raises("ResourceNotFoundException", self.read, "AWS::SNS::TopicInlinePolicy", arn)
        self.assertEqual(self.made("AWS::SNS::TopicInlinePolicy", {"TopicArn": arn, "PolicyDocument": document}), arn)
        stored = server.client("sns").get_topic_attributes(TopicArn=arn)["Attributes"]["Policy"]
        self.assertEqual(json.loads(stored), document)

    def test_bucket_with_objects_cannot_go(self) -> None:
        bucket = self.made("AWS::S3::Bucket", {"BucketName": "full-bucket"})
        s3 = server.client("s3")
        s3.put_object(Bucket=bucket, Key="k", Body=b"")
        self.refused(self.delete("AWS::S3::Bucket", bucket), "GeneralServiceException", "not empty")
        s3.delete_object(Bucket=bucket, Key="k")
        self.assertEqual(self.delete("AWS::S3::Bucket", bucket)["OperationStatus"], "SUCCESS")

    def test_compound_identifiers_and_types_without_live_reader(self) -> None:
        role = server.role("cc-permission")
        server.function("permitted", role)
        identifier = self.made("AWS::Lambda::Permission", {
            "FunctionName": "permitted", "Action": "lambda:InvokeFunction", "Principal": "events.amazonaws.com"})
        self.assertRegex(identifier, r"^permitted\|.+")
        policy = json.loads(server.client("lambda").get_policy(FunctionName="permitted")["Policy"])
        self.assertEqual(policy["Statement"][0]["Sid"], identifier.split("|")[1])
        rule = self.made("AWS::Events::Rule", {"Name": "compound", "ScheduleExpression": "rate(1 day)"})
        self.assertTrue(rule.startswith("arn:aws:events:"), rule)

    def test_identifiers_that_provisioners_spell_otherwise(self) -> None:
        vpc = self.made("AWS::EC2::VPC", {"CidrBlock": "10.0.0.0/16"})
        gateway = self.made("AWS::EC2::InternetGateway", {})
        self.assertEqual(self.made("AWS::EC2::VPCGatewayAttachment", {
            "VpcId": vpc, "InternetGatewayId": gateway}), f"IGW|{vpc}")
        table = self.made("AWS::EC2::RouteTable", {"VpcId": vpc})
        self.assertEqual(self.made("AWS::EC2::Route", {
            "RouteTableId": table, "DestinationCidrBlock": "0.0.0.0/0", "GatewayId": gateway}), f"{table}|0.0.0.0/0")
        server.role("profiled")
        self.assertEqual(self.made("AWS::IAM::InstanceProfile", {
            "InstanceProfileName": "profile", "Roles": ["profiled"]}), "profile")

    def test_type_without_a_service_keeps_its_model(self) -> None:
        state = {"ApplicationName": "generic"}
        identifier = self.made("AWS::CodeDeploy::Application", state)
        self.assertEqual(self.read("AWS::CodeDeploy::Application", identifier), state)
        server.admin("settings", {"generic_types": False})
        self.raises("UnsupportedActionException", self.create, "AWS::CodeDeploy::Application", {})


class Faults(Case):
    def test_failed_event_without_and_with_the_work_done(self) -> None:
        rule = {"type": "AWS::SNS::Topic", "operation": "CREATE", "match": "victim", "mode": "event",
                "error": {"HandlerErrorCode": "Throttling", "StatusMessage": "Rate exceeded"}}
        server.admin("faults", [rule, {**rule, "after": True}])
        self.refused(self.create("AWS::SNS::Topic", {"TopicName": "victim"}), "Throttling", "Rate exceeded")
        self.raises("ResourceNotFoundException", self.read, "AWS::SNS::Topic",
                    f"arn:aws:sns:us-east-1:{support.ACCOUNT}:victim")
        event = self.create("AWS::SNS::Topic", {"TopicName": "victim"})
        self.refused(event, "Throttling")
        self.assertEqual(self.read("AWS::SNS::Topic", event["Identifier"])["TopicName"], "victim")
        self.made("AWS::SNS::Topic", {"TopicName": "not-a-victi"})
        self.assertEqual([one["hits"] for one in server.admin("faults", method="GET")["faults"]], [1, 1])

    def test_refused_call_without_and_with_the_work_done(self) -> None:
        rule = {"operation": "CREATE", "mode": "call", "error": {"HandlerErrorCode": "Throttling"}}
        server.admin("faults", rule)
        self.raises("ThrottlingException", self.create, "AWS::SQS::Queue", {"QueueName": "called"})
        server.admin("faults", {**rule, "after": True,
                                "error": {"name": "ServiceInternalErrorException", "status": 500}})
        self.raises("ServiceInternalErrorException", self.create, "AWS::SQS::Queue", {"QueueName": "called"},
                    ClientToken="lost")
        replayed = self.create("AWS::SQS::Queue", {"QueueName": "called"}, ClientToken="lost")
        self.assertEqual(replayed["OperationStatus"], "SUCCESS")
        server.admin("faults", {"operation": "STATUS", "mode": "call"})
        self.raises("ThrottlingException", self.create, "AWS::SQS::Queue", {"QueueName": "polled"})

    def test_wrong_rule_is_refused(self) -> None:
        for rule in ({"mode": "what"}, {"operation": "WHAT"}, {"unknown": 1}, {"operation": "READ", "mode": "event"}):
            with self.assertRaises(OSError):
                server.admin("faults", rule)
