"""The launcher: what it refuses, where it listens, who may call."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import unittest
import urllib.error
from pathlib import Path

from botocore.exceptions import ClientError

import support


class Refusals(unittest.TestCase):
    def launch(self, code: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, "-c", code], cwd=support.LOCAL, text=True, capture_output=True,
                              timeout=20, env={**os.environ, **environment})

    def test_another_version(self) -> None:
        ended = self.launch("import importlib.metadata as m; m.version = lambda _: '1.5.34'; import launcher; "
                            "launcher.main()")
        self.assertEqual(ended.returncode, 1)
        self.assertIn("does not start on 1.5.34", ended.stderr)

    def test_another_address(self) -> None:
        ended = self.launch("import launcher; launcher.main()", BIND_HOST="0.0.0.0")
        self.assertEqual(ended.returncode, 1)
        self.assertIn("127.0.0.1 only", ended.stderr)


class Running(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls.server = support.Server()
        cls.addClassCleanup(cls.server.remove)

    def listening(self) -> set[str]:
        """The addresses on which the server's process listens."""
        sockets = set()
        for link in Path(f"/proc/{self.server.process.pid}/fd").iterdir():
            try:
                target = os.readlink(link)
            except FileNotFoundError:  # closed since it was listed
                continue
            if target.startswith("socket:["):
                sockets.add(target[8:-1])
        found = set()
        for table in ("tcp", "tcp6"):
            for line in Path(f"/proc/{self.server.process.pid}/net/{table}").read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == "0A" and fields[9] in sockets:
                    found.add(fields[1].split(":")[0])
        return found

    @unittest.skipUnless(Path("/proc/self/net/tcp").exists(), "needs /proc")
    def test_listens_on_loopback_only(self) -> None:
        self.server.function("one", self.server.role("listen"))
        self.server.client("lambda").invoke(FunctionName="one", Payload=b"{}")
        self.assertEqual(self.listening(), {"0100007F"})

    def test_rights_are_enforced(self) -> None:
        iam = self.server.client("iam")
        iam.create_user(UserName="weak")
        key = iam.create_access_key(UserName="weak")["AccessKey"]
        weak = {"aws_access_key_id": key["AccessKeyId"], "aws_secret_access_key": key["SecretAccessKey"]}
        for service, call, options in (("s3", "list_buckets", {}), ("stepfunctions", "list_state_machines", {}), (
                "cloudcontrol", "list_resources", {"TypeName": "AWS::S3::Bucket"})):
            with self.subTest(service), self.assertRaises(ClientError) as caught:
                getattr(self.server.client(service, **weak), call)(**options)
            self.assertIn("AccessDenied", caught.exception.response["Error"]["Code"])

    def test_stops_at_once_whatever_runs(self) -> None:
        server = support.Server()
        self.addCleanup(server.remove)
        function = server.function("held", role := server.role("held"), timeout=60)
        process = json.load(server.client("lambda").invoke(FunctionName="held")["Payload"])["pid"]
        inner = {"W": {"Type": "Choice", "Default": "S", "Choices": [
            {"Condition": "{% $states.input = 1 %}", "Next": "L"}]}, "S": {"Type": "Wait", "Seconds": 60, "End": True},
            "L": {"Type": "Task", "Resource": "arn:aws:states:::lambda:invoke", "End": True,
                  "Arguments": {"FunctionName": function, "Payload": {"sleep": 60}}}}
        states = server.client("stepfunctions")
        arn = states.create_state_machine(name="held", roleArn=role, definition=json.dumps({
            "QueryLanguage": "JSONata", "StartAt": "M", "States": {"M": {
                "Type": "Map", "Items": [1, 2], "End": True,
                "ItemProcessor": {"StartAt": "W", "States": inner}}}}))["stateMachineArn"]
        states.start_execution(stateMachineArn=arn)
        time.sleep(0.5)
        start = time.monotonic()
        server.stop()
        self.assertLess(time.monotonic() - start, 5)
        with self.assertRaises(ProcessLookupError):
            os.kill(process, 0)

    def test_settings_are_checked_and_reset(self) -> None:
        self.assertEqual(self.server.admin("settings", {"cloud_control_delay": 1})["cloud_control_delay"], 1.0)
        for wrong in ({"nothing": 1}, {"history_limit": "many"}, {"cloud_control_refusals": "maybe"}):
            with self.subTest(wrong), self.assertRaises(urllib.error.HTTPError):
                self.server.admin("settings", wrong)
        self.assertEqual(self.server.admin("settings", method="DELETE")["cloud_control_delay"], 0.05)

    def test_state_may_outlive_the_server(self) -> None:
        server = support.Server(PERSIST_STATE="1", S3_PERSIST="1")
        self.addCleanup(server.remove)
        request = {"TypeName": "AWS::Events::Rule", "ClientToken": "before",
                   "DesiredState": '{"Name": "kept", "ScheduleExpression": "rate(1 day)"}'}
        event = server.client("cloudcontrol").create_resource(**request)["ProgressEvent"]
        server.client("s3").create_bucket(Bucket="kept")
        server.client("s3").put_object(Bucket="kept", Key="k", Body=b"v")
        server.stop()
        server.start()
        again = server.client("cloudcontrol").create_resource(**request)["ProgressEvent"]
        self.assertEqual(again["RequestToken"], event["RequestToken"])
        self.assertEqual(again["OperationStatus"], "SUCCESS")
        server.client("cloudcontrol").get_resource(TypeName="AWS::Events::Rule", Identifier=again["Identifier"])
        self.assertEqual(server.client("s3").get_object(Bucket="kept", Key="k")["Body"].read(), b"v")
