"""Lambda functions: speed, ends, deadlines, parallel invocations, environment and logs."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
import unittest
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import support

server: support.Server


def setUpModule() -> None:
    global server
    server = support.Server()
    role = server.role("functions")
    server.function("plain", role, Environment={"Variables": {"OWN": "yes"}})
    server.function("short", role, timeout=1)


def tearDownModule() -> None:
    server.remove()


class Functions(unittest.TestCase):
    def setUp(self) -> None:
        self.api = server.client("lambda")

    def invoke(self, event: dict[str, Any], name: str = "plain") -> tuple[Any, str | None]:
        answer = self.api.invoke(FunctionName=name, Payload=json.dumps(event))
        return json.load(answer["Payload"]), answer.get("FunctionError")

    def test_warm_invocation_is_fast(self) -> None:
        self.invoke({})
        times = []
        for _ in range(20):
            start = time.perf_counter()
            self.invoke({"bare": True})
            times.append(time.perf_counter() - start)
        self.assertLess(sorted(times)[5], 0.04, times)

    def test_killed_function(self) -> None:
        before, _ = self.invoke({})
        start = time.monotonic()
        body, kind = self.invoke({"kill": True})
        self.assertLess(time.monotonic() - start, 1)
        self.assertEqual((kind, body["errorType"]), ("Unhandled", "Runtime.ExitError"))
        self.assertRegex(body["errorMessage"],
                         r"^RequestId: [-0-9a-f]{36} Error: Runtime exited with error: signal: killed$")
        after, kind = self.invoke({})
        self.assertIsNone(kind)
        self.assertNotEqual(before["pid"], after["pid"])

    def test_killed_from_outside(self) -> None:
        process = self.invoke({})[0]["pid"]
        timer = threading.Timer(0.2, os.kill, (process, signal.SIGKILL))
        timer.start()
        body, _ = self.invoke({"sleep": 3})
        timer.join()
        self.assertIn("signal: killed", body["errorMessage"])

    def test_exit_status(self) -> None:
        body, _ = self.invoke({"exit": 3})
        self.assertTrue(body["errorMessage"].endswith("Error: Runtime exited with error: exit status 3"), body)

    def test_timeout(self) -> None:
        process = self.invoke({}, "short")[0]["pid"]
        start = time.monotonic()
        body, kind = self.invoke({"sleep": 30}, "short")
        self.assertLess(time.monotonic() - start, 2.5)
        self.assertEqual((kind, body["errorType"]), ("Unhandled", "Sandbox.Timedout"))
        self.assertTrue(body["errorMessage"].endswith("Error: Task timed out after 1.00 seconds"), body)
        with self.assertRaises(ProcessLookupError):
            os.kill(process, 0)
        self.assertIsNone(self.invoke({}, "short")[1])

    def test_deadline(self) -> None:
        self.invoke({}, "short")
        left = self.invoke({}, "short")[0]["left"]
        self.assertTrue(0.5 < left <= 1, left)

    def test_error_of_the_handler_keeps_the_process(self) -> None:
        before, _ = self.invoke({})
        body, kind = self.invoke({"error": "MyError"})
        self.assertEqual((body, kind), ({"errorType": "MyError", "errorMessage": "asked to fail"}, "Unhandled"))
        self.assertEqual(self.invoke({})[0]["pid"], before["pid"])

    def test_parallel_invocations(self) -> None:
        start = time.monotonic()
        with ThreadPoolExecutor(6) as pool:
            pids = {body["pid"] for body, _ in pool.map(lambda _: self.invoke({"sleep": 1}), range(6))}
        self.assertEqual(len(pids), 6)
        self.assertLess(time.monotonic() - start, 4)

    def test_update_lets_the_running_invocation_end(self) -> None:
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(self.invoke, {"sleep": 1})
            time.sleep(0.4)
            self.api.update_function_code(FunctionName="plain", ZipFile=support.bootstrap_zip())
            after = self.invoke({})[0]["pid"]
            body, kind = running.result()
        self.assertIsNone(kind, body)
        self.assertNotEqual(body["pid"], after)

        def gone() -> bool:
            try:
                os.kill(body["pid"], 0)
            except ProcessLookupError:
                return True
            return False

        support.wait_for(gone)

    def test_response_limit(self) -> None:
        body, _ = self.invoke({"size": 6_300_000})
        self.assertEqual(body["errorType"], "Function.ResponseSizeTooLarge")

    def test_environment(self) -> None:
        seen = self.invoke({})[0]["env"]
        self.assertEqual((seen["OWN"], seen["_HANDLER"], seen["AWS_REGION"]), ("yes", "bootstrap", "us-east-1"))
        self.assertEqual(seen["AWS_ENDPOINT_URL"], server.url)
        self.assertEqual(seen["AWS_LAMBDA_FUNCTION_NAME"], "plain")
        self.assertTrue(seen["AWS_ACCESS_KEY_ID"].startswith("ASIA"))
        for name in ("HOST_SECRET", "HOME", "GATEWAY_PORT", "AUTH"):
            self.assertNotIn(name, seen)

    def test_logs(self) -> None:
        self.invoke({"say": "a line to find"})
        self.invoke({"say": "last words", "kill": True})
        logs = server.client("logs")
        events = logs.filter_log_events(logGroupName="/aws/lambda/plain")["events"]
        text = "\n".join(event["message"] for event in events)
        for line in ("a line to find", "last words", "Runtime exited with error: signal: killed"):
            self.assertIn(line, text)
        self.assertIn("a line to find", (server.directory / "logs" / "plain.log").read_text())
