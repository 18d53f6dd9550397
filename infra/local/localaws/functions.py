"""Lambda functions on ``provided.al2023``: fast warm invocations, and ends as AWS reports them.

A killed process ends its invocation at once with ``Runtime.ExitError``, an
invocation past its timeout is killed and ends with ``Sandbox.Timedout``, one
that runs while its function changes runs to its end, and a function sees the
environment that Lambda gives it, not the server's.
"""

from __future__ import annotations

import contextvars
import json
import os
import signal
import socketserver
from pathlib import Path
from typing import Any

#: Bytes that a synchronous response may have.
RESPONSE_LIMIT = 6_291_556
#: Seconds between looks at whether the process of a running invocation still lives.
LIVENESS_INTERVAL = 0.02

_LAMBDA_DEFAULTS = {
    "PATH": "/usr/local/bin:/usr/bin:/bin:/opt/bin",
    "LANG": "en_US.UTF-8",
    "TZ": ":UTC",
    "LAMBDA_RUNTIME_DIR": "/var/runtime",
    "AWS_LAMBDA_INITIALIZATION_TYPE": "on-demand",
}
#: Of the server's own environment, functions see these, and what FUNCTION_ENV_PASS names (comma-separated).
_PASSED = ("AWS_ENDPOINT_URL", "TMPDIR")

#: Whether workers are being dropped because their function changes.
_changing: contextvars.ContextVar[bool] = contextvars.ContextVar("changing", default=False)


def _exit_text(code: int | None) -> str:
    """The end of a process in the words of Lambda."""
    if code is None:
        return "exit status unknown"
    if code >= 0:
        return f"exit status {code}"
    try:
        return "signal: " + signal.strsignal(-code).lower().split(" (")[0]
    except (AttributeError, ValueError):
        return f"signal: {-code}"


def _failed(error_type: str, request_id: str, what: str, log: str, *, cold: bool) -> dict[str, Any]:
    message = f"RequestId: {request_id} Error: {what}"
    return {"status": "error", "error": message, "error_payload": {"errorType": error_type, "errorMessage": message},
            "cold_start": cold, "log": f"{log}\n{message}" if log else message}


def _execution_environment() -> type:
    """The worker class, derived from ministack's."""
    from ministack.core import lambda_runtime

    class ExecutionEnvironment(lambda_runtime.ProvidedWorker):
        _exit_code: int | None = None
        #: Dropped from its pool while it ran: to be killed when it is done.
        retired = False

        def _teardown(self) -> None:
            process = self._proc
            if process is not None:
                code = process.poll()
                if code is None:
                    process.kill()  # as Lambda does: no grace
                else:
                    self._exit_code = code
            super()._teardown()

        def invoke(self, event: Any, request_id: str, **options: Any) -> dict[str, Any]:
            self._exit_code = None
            timeout = f"Task timed out after {float(self.config.get('Timeout', 3)):.2f} seconds"
            try:
                result = super().invoke(event, request_id, **options)
            except lambda_runtime.ProvidedRuntimeError:
                raise
            except lambda_runtime.ProvidedInitTimeout as error:
                return _failed("Sandbox.Timedout", request_id, timeout, str(error), cold=True)
            except RuntimeError as error:
                return _failed("Runtime.ExitError", request_id,
                               f"Runtime exited with error: {_exit_text(self._exit_code)}", str(error), cold=True)
            failure = (result.get("error_payload") or {}) if result.get("status") == "error" else {}
            if not isinstance(failure, dict):
                return result
            if failure.get("errorMessage") == "Runtime exited before returning a response":
                return _failed("Runtime.ExitError", request_id,
                               f"Runtime exited with error: {_exit_text(self._exit_code)}",
                               result["log"], cold=result["cold_start"])
            if failure.get("errorType") == "Sandbox.Timedout":
                return _failed("Sandbox.Timedout", request_id, timeout, result["log"], cold=result["cold_start"])
            return result

    return ExecutionEnvironment


def _environment(made: dict[str, str], config: dict[str, Any]) -> dict[str, str]:
    """What ministack made, without what merely came from the server's own environment."""
    own = (config.get("Environment") or {}).get("Variables") or {}
    passed = {*_PASSED, *filter(None, os.environ.get("FUNCTION_ENV_PASS", "").split(","))}
    kept = {name: value for name, value in made.items()
            if name in own or name in passed or os.environ.get(name) != value or name.startswith("AWS_")
            and name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY",
                         "AWS_SESSION_TOKEN")}
    logging = config.get("LoggingConfig") or {}
    form = logging.get("LogFormat", "Text")
    name = config.get("FunctionName", "")
    added = {**_LAMBDA_DEFAULTS, "AWS_LAMBDA_LOG_FORMAT": form,
             "AWS_LAMBDA_LOG_GROUP_NAME": logging.get("LogGroup") or f"/aws/lambda/{name}"}
    if form == "JSON":
        added["AWS_LAMBDA_LOG_LEVEL"] = logging.get("ApplicationLogLevel", "INFO")
    return {**added, **kept}


def _write_log(directory: str, name: str, request_id: str, text: str) -> None:
    """Append an invocation's output to ``<directory>/<function>.log``."""
    try:
        Path(directory).mkdir(parents=True, exist_ok=True)
        with open(Path(directory) / f"{name}.log", "a", encoding="utf-8") as file:
            file.write(f"START RequestId: {request_id}\n{text}\nEND RequestId: {request_id}\n")
    except OSError:
        pass  # a log must never break an invocation


def _spare_running(lambda_runtime: Any, lambda_svc: Any) -> None:
    """A change of a function lets its running invocations end, on the code they began with."""
    kill, invalidate, release = (lambda_runtime.kill_workers, lambda_runtime.invalidate_worker,
                                 lambda_runtime.release_worker)

    def kill_workers(workers: Any) -> None:
        doomed = []
        for worker in workers:
            if _changing.get() and getattr(worker, "in_use", False) and hasattr(worker, "retired"):
                worker.retired = True
            else:
                doomed.append(worker)
        kill(doomed)

    def invalidate_worker(*arguments: Any, **options: Any) -> None:
        token = _changing.set(True)
        try:
            invalidate(*arguments, **options)
        finally:
            _changing.reset(token)

    def release_worker(worker: Any) -> None:
        release(worker)
        if getattr(worker, "retired", False):
            kill([worker])

    lambda_runtime.kill_workers = kill_workers
    for module in (lambda_runtime, lambda_svc):
        module.invalidate_worker, module.release_worker = invalidate_worker, release_worker


def install() -> None:
    from ministack.core import lambda_runtime
    from ministack.services import lambda_svc

    # Nagle's algorithm and delayed acknowledgements cost 40 ms an invocation; waiting for a log line 50 ms more.
    socketserver.StreamRequestHandler.disable_nagle_algorithm = True
    lambda_runtime.Worker._drain_stderr_bounded.__defaults__ = (0.002, 0.002, 0.25)
    lambda_runtime._PROVIDED_POLL = LIVENESS_INTERVAL
    lambda_runtime.ProvidedWorker = _execution_environment()
    _spare_running(lambda_runtime, lambda_svc)

    make_environment = lambda_svc._provided_worker_env

    def worker_environment(config: dict[str, Any], code_dir: str, port: int) -> dict[str, str]:
        return _environment(make_environment(config, code_dir, port), config)

    execute = lambda_svc._execute_function_provided_warm

    def execute_within_limits(function: dict[str, Any], event: Any, request_id: str) -> dict[str, Any]:
        result = execute(function, event, request_id)
        if not result.get("error") and len(json.dumps(result.get("body"))) > RESPONSE_LIMIT:
            return {"error": True, "log": result.get("log", ""), "body": {
                "errorType": "Function.ResponseSizeTooLarge",
                "errorMessage": f"Response payload size exceeded maximum allowed payload size "
                                f"({RESPONSE_LIMIT} bytes)."}}
        return result

    emit = lambda_svc._emit_lambda_logs

    def emit_logs(function: dict[str, Any], request_id: str, text: str, *rest: Any, **options: Any) -> None:
        directory = os.environ.get("FUNCTION_LOG_DIR")
        if directory and text:
            _write_log(directory, (function.get("config") or function).get("FunctionName", "unknown"),
                       request_id, text)
        emit(function, request_id, text, *rest, **options)

    lambda_svc._provided_worker_env = worker_environment
    lambda_svc._execute_function_provided_warm = execute_within_limits
    lambda_svc._emit_lambda_logs = emit_logs
