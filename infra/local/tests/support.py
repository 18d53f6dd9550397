"""One local AWS per test module: started on a free port in a directory of its own, stopped at the end."""

from __future__ import annotations

import functools
import io
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
import zipfile
from pathlib import Path
from typing import Any

import botocore.config
import botocore.session

LOCAL = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(LOCAL))

ACCOUNT, REGION = "123456789012", "us-east-1"
TRUST = json.dumps({"Version": "2012-10-17", "Statement": [
    {"Effect": "Allow", "Principal": {"Service": ["lambda.amazonaws.com", "states.amazonaws.com"]},
     "Action": "sts:AssumeRole"}]})

#: A function on the Runtime API. What it does is in its event.
BOOTSTRAP = """#!{python}
import http.client, json, os, signal, sys, time
connection = http.client.HTTPConnection(os.environ["AWS_LAMBDA_RUNTIME_API"])
while True:
    connection.request("GET", "/2018-06-01/runtime/invocation/next")
    answer = connection.getresponse()
    event = json.loads(answer.read())
    request = answer.headers["Lambda-Runtime-Aws-Request-Id"]
    left = int(answer.headers["Lambda-Runtime-Deadline-Ms"]) / 1000 - time.time()
    if event.get("say"):
        print(event["say"], flush=True)
    if "Records" in event:
        print(json.dumps(event["Records"]), flush=True)
    if event.get("kill"):
        os.kill(os.getpid(), signal.SIGKILL)
    if event.get("exit") is not None:
        sys.exit(event["exit"])
    time.sleep(event.get("sleep", 0))
    kind, body = "response", {{"event": event, "pid": os.getpid(), "left": left, "env": dict(os.environ)}}
    if "size" in event:
        body = "x" * event["size"]
    if event.get("bare"):
        body = event
    if "error" in event:
        kind, body = "error", {{"errorType": event["error"], "errorMessage": "asked to fail"}}
    connection.request("POST", f"/2018-06-01/runtime/invocation/{{request}}/{{kind}}", json.dumps(body))
    connection.getresponse().read()
"""


_session = botocore.session.get_session()


class Server:
    """A running local AWS."""

    def __init__(self, **environment: str) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="local-aws-"))
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        for name in ("tmp", "state", "s3"):
            (self.directory / name).mkdir()
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "GATEWAY_"))}
        self.environment = {
            **inherited, "GATEWAY_PORT": str(self.port), "TMPDIR": str(self.directory / "tmp"),
            "STATE_DIR": str(self.directory / "state"), "S3_DATA_DIR": str(self.directory / "s3"),
            "LOG_LEVEL": "WARNING", "FUNCTION_LOG_DIR": str(self.directory / "logs"), "CC_DELAY": "0.05",
            "HOST_SECRET": "not for functions", **environment}
        self.start()

    def start(self) -> None:
        self.log = open(self.directory / "log", "ab")
        self.process = subprocess.Popen([sys.executable, str(LOCAL / "launcher.py")], env=self.environment,
                                        stdout=self.log, stderr=subprocess.STDOUT)
        self._await_health()

    def _await_health(self) -> None:
        until = time.monotonic() + 20
        while time.monotonic() < until and self.process.poll() is None:
            try:
                urllib.request.urlopen(f"{self.url}/_ministack/health", timeout=1).close()
                return
            except OSError:
                time.sleep(0.05)
        text = (self.directory / "log").read_text()
        self.remove()
        raise RuntimeError(f"The local AWS did not start:\n{text}")

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(15)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.log.close()

    def remove(self) -> None:
        self.stop()
        shutil.rmtree(self.directory, ignore_errors=True)

    @functools.cache
    def client(self, service: str, account: str = ACCOUNT, **options: str) -> Any:
        settings = botocore.config.Config(retries={"total_max_attempts": 1}, inject_host_prefix=False,
                                          s3={"addressing_style": "path"}, max_pool_connections=30)
        credentials = {"aws_access_key_id": account, "aws_secret_access_key": "test", **options}
        return _session.create_client(
            service, region_name=REGION, endpoint_url=self.url, config=settings, **credentials)

    def admin(self, path: str, body: Any = None, method: str = "POST") -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}/_local/{path}", data, method=method)
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.load(answer)

    def role(self, name: str) -> str:
        iam = self.client("iam")
        arn = iam.create_role(RoleName=name, AssumeRolePolicyDocument=TRUST)["Role"]["Arn"]
        iam.put_role_policy(RoleName=name, PolicyName="all", PolicyDocument=json.dumps({
            "Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*"}]}))
        return arn

    def function(self, name: str, role: str, timeout: int = 5, **options: Any) -> str:
        return self.client("lambda").create_function(
            FunctionName=name, Runtime="provided.al2023", Handler="bootstrap", Role=role, Timeout=timeout,
            Code={"ZipFile": bootstrap_zip()}, **options)["FunctionArn"]


def bootstrap_zip() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        info = zipfile.ZipInfo("bootstrap")
        info.external_attr = 0o755 << 16
        archive.writestr(info, BOOTSTRAP.format(python=sys.executable))
    return buffer.getvalue()


def wait_for(condition: Any, seconds: float = 10) -> Any:
    """The first true value of a condition."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        value = condition()
        if value:
            return value
        time.sleep(0.02)
    raise AssertionError("The condition did not come true in time")
