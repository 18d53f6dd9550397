"""Step Functions: the histories, limits and refusals of the real service.

The states themselves are evaluated by ministack; this module walks the
machine, writes the events, handles Retry and Catch, and ends executions.
"""

from __future__ import annotations

import contextvars
import copy
import functools
import json
import re
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

from ministack import app
from ministack.core import iam_evaluator, lambda_runtime
from ministack.core.responses import error_response_json, get_account_id, get_region, json_response, now_iso
from ministack.services import iam
from ministack.services import stepfunctions as sf

from statelint.config import Config
from statelint.linter import Linter
from statelint.problem import ProblemType

from . import admin
from .provisioners import trusts

Execution = dict[str, Any]
Context = dict[str, Any]
State = dict[str, Any]

#: Iterations of an inline Map that run at once when nothing else is said.
INLINE_MAP_CONCURRENCY = 40
#: What statelint takes for wrong and the service does not.
_NO_PROBLEM = re.compile(r'is "\{%.*%\}" but should be (an? )?\w+$|^Field "(Label|InputType)" not allowed', re.DOTALL)
_LAMBDA_INVOKE = "arn:aws:states:::lambda:invoke"
_NESTED = "arn:aws:states:::states:startExecution"
_NESTED_SYNC = "arn:aws:states:::states:startExecution.sync"

_events_lock = threading.Lock()
#: Set when the server stops: no branch may hold it up.
_stopping = threading.Event()
_current: contextvars.ContextVar[Execution | None] = contextvars.ContextVar("current_execution", default=None)
_cancelled: contextvars.ContextVar[tuple[threading.Event, ...]] = contextvars.ContextVar("cancelled", default=())
_previous: contextvars.ContextVar[int] = contextvars.ContextVar("previous_event", default=0)

Failure = sf._ExecutionError


class Stopped(Exception):
    """The execution, or the Map or Parallel state around this branch, has ended."""


class HistoryFull(Exception):
    """The execution has as many events as it may have."""


# -- events and limits -------------------------------------------------------

def add_event(execution: Execution, kind: str, details: dict[str, Any] | None = None) -> dict[str, Any]:
    with _events_lock:
        events = execution["events"]
        ending = kind.startswith("Execution") and kind != "ExecutionStarted"
        if not ending:
            if execution.get("status", "RUNNING") != "RUNNING":
                raise Stopped
            if len(events) >= admin.settings.history_limit - 1:
                raise HistoryFull
        event = {"id": len(events) + 1, "type": kind, "timestamp": now_iso(), "previousEventId": _previous.get(),
                 **(details or {})}
        events.append(event)
    _previous.set(event["id"])
    return event


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _within_limit(value: Any, what: str) -> str:
    """The JSON text of a value that may pass between states."""
    text = _text(value)
    if len(text.encode("utf-8", "surrogatepass")) > admin.settings.state_data_limit:
        raise Failure("States.DataLimitExceeded", f"The state/task '{what}' returned a result with a size exceeding "
                      "the maximum number of bytes service limit.")
    return text


def _check_running(execution: Execution) -> None:
    """Raise when the execution, the one that started it as a Map run, or the branch has ended."""
    around = _current.get() or execution
    if (_stopping.is_set() or execution["status"] != "RUNNING" or around["status"] != "RUNNING"
            or any(event.is_set() for event in _cancelled.get())):
        raise Stopped


def _sleep(seconds: float) -> None:
    """Wait, but no longer than the execution runs."""
    execution = _current.get()
    end = time.monotonic() + seconds * sf._SFN_WAIT_SCALE
    while (rest := end - time.monotonic()) > 0:
        if execution is not None:
            _check_running(execution)
        time.sleep(min(rest, 0.05))


def _error_matches(names: list[str], error: str) -> bool:
    """Whether a Retry or Catch covers an error; some are covered by no wildcard, one by nothing."""
    if error == "States.Runtime":
        return False
    if error in names:
        return True
    if error == "States.DataLimitExceeded":
        return False
    return "States.ALL" in names or ("States.TaskFailed" in names and error != "States.Timeout")


# -- the walk ----------------------------------------------------------------

def run_states(states: dict[str, State], start: str | None, value: Any, execution: Execution, ctx: Context) -> Any:
    """Run from a state to the end of its machine or branch; the output of the last state."""
    name = start
    while name is not None:
        _check_running(execution)
        state = states.get(name)
        if state is None:
            raise Failure("States.Runtime", f"State '{name}' not found in definition")
        value, name = _run_state(name, state, value, execution, ctx)
    return value


def _run_state(name: str, state: State, value: Any, execution: Execution, ctx: Context) -> tuple[Any, str | None]:
    kind = state.get("Type", "")
    ctx["State"] = {"Name": name, "EnteredTime": now_iso(), "RetryCount": 0}
    add_event(execution, f"{kind}StateEntered",
              {"stateEnteredEventDetails": {"name": name, "input": _within_limit(value, name)}})
    if kind == "Fail":
        raise Failure(*sf._fail_state_error(state, value, ctx))
    output, following = _RUNNERS[kind](state, value, execution, ctx)
    add_event(execution, f"{kind}StateExited",
              {"stateExitedEventDetails": {"name": name, "output": _within_limit(output, name)}})
    return output, following


def _jsonata(state: State, ctx: Context) -> bool:
    return sf._state_query_language(state, ctx) == "JSONata"


def _succeed(state: State, value: Any, execution: Execution, ctx: Context) -> tuple[Any, None]:
    if _jsonata(state, ctx):
        return sf._apply_jsonata_output(state, value, ctx, default=value), None
    return sf._apply_output_path(state, sf._apply_input_path(state, value, ctx), ctx), None


def _choice(state: State, value: Any, execution: Execution, ctx: Context) -> tuple[Any, str | None]:
    output, following = sf._execute_choice(state, value, ctx)
    # ministack gives the input on where no rule matched; a JSONata state may say otherwise.
    if (_jsonata(state, ctx) and "Output" in state and following == state.get("Default") and not any(
            sf._evaluate_jsonata_choice_rule(rule, value, ctx) for rule in state.get("Choices", []))):
        output = sf._apply_jsonata_output(state, value, ctx, default=value)
    return output, following


def _handled(state: State, value: Any, ctx: Context,
             attempt: Callable[[], tuple[Any, str | None]]) -> tuple[Any, str | None]:
    """Run an attempt under the Retry and Catch of its state."""
    entered, counts = ctx["State"], {}
    while True:
        ctx["State"] = {**entered, "RetryCount": sum(counts.values())}
        try:
            return attempt()
        except Failure as error:
            retrier, index = sf._find_matching_retrier(state.get("Retry", []), error.error, counts)
            if retrier is not None:
                done = counts.get(index, 0)
                pause = retrier.get("IntervalSeconds", 1) * retrier.get("BackoffRate", 2.0) ** done
                _sleep(min(pause, retrier.get("MaxDelaySeconds", pause)))
                counts[index] = done + 1
                continue
            catcher = sf._find_matching_catcher(state.get("Catch", []), error.error)
            if catcher is None:
                raise
            caught = {"Error": error.error, "Cause": error.cause}
            return sf._apply_catcher(catcher, value, ctx, sf._state_query_language(state, ctx), caught), \
                catcher["Next"]


def _finished(state: State, value: Any, result: Any, ctx: Context) -> tuple[Any, str | None]:
    """The output of a state that has a result, and where it leads."""
    if _jsonata(state, ctx):
        output = sf._apply_jsonata_output(state, value, ctx, result=result, default=result)
        _within_limit(output, ctx["State"]["Name"])
        sf._apply_state_assign(state, value, ctx, result=result)
    else:
        output = sf._apply_result_path(state, value, sf._apply_result_selector(state, result))
        output = sf._apply_output_path(state, output, ctx)
        _within_limit(output, ctx["State"]["Name"])
    return output, sf._next_or_end(state)


def _arguments(state: State, value: Any, ctx: Context) -> Any:
    if _jsonata(state, ctx):
        return sf._apply_jsonata_arguments(state, value, ctx)
    return sf._apply_parameters(state, sf._apply_input_path(state, value, ctx), ctx)


# -- Task --------------------------------------------------------------------

def _task(state: State, value: Any, execution: Execution, ctx: Context) -> tuple[Any, str | None]:
    if sf._sfn_mock_config:
        return _ministack_task(state, value, execution, ctx)
    if ".waitForTaskToken" in state["Resource"]:
        ctx["Task"] = {"Token": str(uuid.uuid4())}

    def attempt() -> tuple[Any, str | None]:
        arguments = _arguments(state, value, ctx)
        _within_limit(arguments, ctx["State"]["Name"])
        result = _call(state, arguments, value, execution, ctx)
        _check_running(execution)
        return _finished(state, value, result, ctx)

    return _handled(state, value, ctx, attempt)


def _call(state: State, arguments: Any, value: Any, execution: Execution, ctx: Context) -> Any:
    """Call what a task names, with the events around it."""
    resource = state["Resource"]
    direct = ":function:" in resource
    if direct:
        prefix, key = "LambdaFunction", "lambdaFunction"
        about: dict[str, Any] = {}
        add_event(execution, "LambdaFunctionScheduled", {"lambdaFunctionScheduledEventDetails": {
            "resource": resource, "input": _text(arguments)}})
        add_event(execution, "LambdaFunctionStarted")
    else:
        prefix, key = "Task", "task"
        service, _, action = resource.removeprefix("arn:aws:states:::").rpartition(":")
        about = {"resourceType": service, "resource": action}
        add_event(execution, "TaskScheduled", {"taskScheduledEventDetails": {
            **about, "region": get_region(), "parameters": _text(arguments)}})
        add_event(execution, "TaskStarted", {"taskStartedEventDetails": about})
    try:
        result = _invoke(state, resource, arguments, value, execution, ctx)
        output = _within_limit(result, resource)
    except Failure as error:
        ending = "TimedOut" if error.error == "States.Timeout" else "Failed"
        add_event(execution, prefix + ending, {f"{key}{ending}EventDetails": {
            **about, "error": error.error, "cause": error.cause}})
        raise
    add_event(execution, f"{prefix}Succeeded", {f"{key}SucceededEventDetails": {**about, "output": output}})
    return result


def _invoke(state: State, resource: str, arguments: Any, value: Any, execution: Execution, ctx: Context) -> Any:
    if ".waitForTaskToken" in resource:
        return sf._invoke_with_callback(resource, arguments, ctx["Task"]["Token"], state)
    timeout = _seconds(state, value, ctx)
    if timeout is None or ":activity:" in resource:
        return sf._invoke_resource(resource, arguments)
    return sf._invoke_resource_with_timeout(resource, arguments, timeout)


def _seconds(state: State, value: Any, ctx: Context) -> float | None:
    if "TimeoutSecondsPath" in state:
        return sf._resolve_path_or_ctx(state["TimeoutSecondsPath"], value, ctx)
    if "TimeoutSeconds" not in state:
        return None
    if _jsonata(state, ctx):
        return sf._jsonata_state_field(state, "TimeoutSeconds", "number", value, ctx)
    return state["TimeoutSeconds"]


def _invoke_resource(original: Callable[[str, Any], Any], resource: str, arguments: Any) -> Any:
    if resource == _LAMBDA_INVOKE:
        name = arguments.get("FunctionName", "") if isinstance(arguments, dict) else ""
        reference = sf._resolve_lambda_function_ref(name, optimized=True)
        _require_right("lambda:InvokeFunction", _function_arn(reference), "Lambda.AWSLambdaException")
        payload = sf._call_lambda(reference, arguments.get("Payload", {}))
        request = str(uuid.uuid4())
        headers = {"x-amzn-RequestId": [request], "Content-Type": ["application/json"],
                   "X-Amz-Executed-Version": ["$LATEST"], "Connection": ["keep-alive"]}
        return {"ExecutedVersion": "$LATEST", "Payload": payload,
                "SdkHttpMetadata": {"AllHttpHeaders": headers, "HttpStatusCode": 200},
                "SdkResponseMetadata": {"RequestId": request}, "StatusCode": 200}
    if resource.startswith(_NESTED_SYNC):
        return _nested(resource, arguments)
    if ":function:" in resource:
        _require_right("lambda:InvokeFunction", resource, "Lambda.AWSLambdaException")
    elif resource.startswith(_NESTED):
        _require_right("states:StartExecution", arguments.get("StateMachineArn", ""),
                       "StepFunctions.AccessDeniedException")
    return original(resource, arguments)


def _function_arn(reference: str) -> str:
    if reference.startswith("arn:"):
        return reference
    return f"arn:aws:lambda:{get_region()}:{get_account_id()}:function:{reference}"


def _require_right(action: str, resource: str, error: str) -> None:
    """Fail the task when the role of the machine does not allow what it does."""
    execution = _current.get()
    machine = sf._state_machines.get(execution["stateMachineArn"]) if execution else None
    if machine is None or not app.AUTH:
        return
    account, name = get_account_id(), machine["roleArn"].rsplit("/", 1)[-1]
    principal = f"arn:aws:sts::{account}:assumed-role/{name}/{execution['name'][:64]}"
    decision = iam_evaluator.evaluate(
        iam_evaluator.EvalContext(principal_arn=principal, principal_type="AssumedRole", principal_account=account,
                                  action=action, resource_arn=resource, region=get_region()),
        iam_evaluator._gather_role_policies(name, account),
        *iam_evaluator._permissions_boundary(iam._roles, name, account)).decision
    if decision != "Allow":
        raise Failure(error, f"User: {principal} is not authorized to perform: {action} on resource: {resource} "
                      f"because no identity-based policy allows the {action} action")


def _call_lambda(original: Callable[[Any, Any], Any], reference: Any, event: Any) -> Any:
    try:
        return original(reference, event)
    except Failure as error:
        if error.error == "Lambda.Unknown" and "TooManyRequestsException" in str(error.cause):
            raise Failure("Lambda.TooManyRequestsException", error.cause) from None
        raise


def _nested(resource: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Run another machine to its end; it is stopped with its parent."""
    _require_right("states:StartExecution", arguments.get("StateMachineArn", ""),
                   "StepFunctions.AccessDeniedException")
    status, _, body = sf._start_execution(sf._nested_start_execution_request(arguments))
    answer = json.loads(body)
    if status >= 400:
        raise Failure(f"StepFunctions.{answer.get('__type', '').split('#')[-1]}Exception", answer.get("message", ""))
    child, parent = sf._executions[answer["executionArn"]], _current.get()
    while child["status"] == "RUNNING":
        try:
            if parent is not None:
                _check_running(parent)
        except Stopped:
            sf._stop_execution({"executionArn": child["executionArn"]})
            raise
        time.sleep(0.01)
    described = {"ExecutionArn": child["executionArn"], "Input": child["input"], "InputDetails": {"Included": True},
                 "Name": child["name"], "StartDate": sf._iso_to_epoch_ms(child["startDate"]),
                 "StateMachineArn": child["stateMachineArn"], "Status": child["status"],
                 "StopDate": sf._iso_to_epoch_ms(child["stopDate"])}
    if child["status"] != "SUCCEEDED":
        raise Failure("States.TaskFailed", _text({**described, "Error": child.get("error"),
                                                  "Cause": child.get("cause")}))
    output = child["output"]
    return {**described, "OutputDetails": {"Included": True},
            "Output": json.loads(output) if resource.endswith(":2") else output}


# -- Map and Parallel --------------------------------------------------------

def _branch_context(ctx: Context, **more: Any) -> Context:
    """A branch sees the variables around it; what it assigns stays inside."""
    return {**ctx, "variables": dict(ctx.get("variables", {})), "State": dict(ctx["State"]), **more}


def _run_branches(jobs: list[Callable[[], Any]], workers: int) -> list[Any]:
    """Run branches side by side. The first failure stops the others and is raised."""
    results: list[Any] = [None] * len(jobs)
    failures: list[Exception] = []
    cancelled = threading.Event()
    token = _cancelled.set((*_cancelled.get(), cancelled))

    def run(position: int, job: Callable[[], Any]) -> None:
        if cancelled.is_set():
            return
        try:
            results[position] = job()
        except Exception as error:
            if not (isinstance(error, Stopped) and cancelled.is_set()):
                failures.append(error)
            cancelled.set()

    try:
        with ThreadPoolExecutor(max_workers=max(1, min(workers, len(jobs)))) as pool:
            wait([pool.submit(contextvars.copy_context().run, run, position, job)
                  for position, job in enumerate(jobs)])
    finally:
        _cancelled.reset(token)
    if failures:
        raise failures[0]
    return results


def _parallel(state: State, value: Any, execution: Execution, ctx: Context) -> tuple[Any, str | None]:
    def attempt() -> tuple[Any, str | None]:
        arguments = _arguments(state, value, ctx)
        add_event(execution, "ParallelStateStarted")
        jobs = [functools.partial(run_states, branch["States"], branch["StartAt"], copy.deepcopy(arguments),
                                  execution, _branch_context(ctx)) for branch in state["Branches"]]
        results = _outcome(execution, "ParallelState", lambda: _run_branches(jobs, len(jobs)))
        return _finished(state, value, results, ctx)

    return _handled(state, value, ctx, attempt)


def _outcome(execution: Execution, kind: str, run: Callable[[], Any]) -> Any:
    try:
        result = run()
    except Failure:
        add_event(execution, f"{kind}Failed")
        raise
    add_event(execution, f"{kind}Succeeded")
    return result


def _map(state: State, value: Any, execution: Execution, ctx: Context) -> tuple[Any, str | None]:
    processor = state.get("ItemProcessor") or state["Iterator"]

    def attempt() -> tuple[Any, str | None]:
        effective = value if _jsonata(state, ctx) else sf._apply_input_path(state, value, ctx)
        if (processor.get("ProcessorConfig") or {}).get("Mode") == "DISTRIBUTED":
            add_event(execution, "MapStateStarted")
            return _outcome(execution, "MapState", lambda: sf._run_distributed_map(
                state, value, effective, processor, execution, ctx))
        items = _items(state, value, effective, ctx)
        add_event(execution, "MapStateStarted", {"mapStateStartedEventDetails": {"length": len(items)}})
        workers = state.get("MaxConcurrency", 0)
        if _jsonata(state, ctx) and "MaxConcurrency" in state:
            workers = sf._jsonata_state_field(state, "MaxConcurrency", "number", value, ctx)
        jobs = [functools.partial(_iteration, state, processor, position, item, value, effective, execution, ctx)
                for position, item in enumerate(items)]
        results = _outcome(execution, "MapState", lambda: _run_branches(
            jobs, min(int(workers) or INLINE_MAP_CONCURRENCY, INLINE_MAP_CONCURRENCY)))
        return _finished(state, value, results, ctx)

    return _handled(state, value, ctx, attempt)


def _items(state: State, value: Any, effective: Any, ctx: Context) -> list[Any]:
    if not _jsonata(state, ctx):
        items = sf._resolve_path_or_ctx(state.get("ItemsPath", "$"), effective, ctx)
    elif "Items" in state:
        items = sf._jsonata_state_field(state, "Items", "array", value, ctx)
    else:
        items = value
    if not isinstance(items, list):
        raise Failure("States.Runtime", f"Reference path must point to array in Map state {ctx['State']['Name']}.")
    return items


def _iteration(state: State, processor: dict[str, Any], position: int, item: Any, value: Any, effective: Any,
               execution: Execution, ctx: Context) -> Any:
    name = ctx["State"]["Name"]
    inner = _branch_context(ctx, Map={"Item": {"Index": position, "Value": item}})
    details = {"name": name, "index": position}
    add_event(execution, "MapIterationStarted", {"mapIterationStartedEventDetails": details})
    try:
        selector = state.get("ItemSelector") or state.get("Parameters")
        if selector and _jsonata(state, ctx):
            item = sf._apply_jsonata_template(selector, value, inner)
        elif selector:
            item = sf._resolve_params_obj(selector, effective, inner)
        result = run_states(processor["States"], processor["StartAt"], copy.deepcopy(item), execution, inner)
    except Failure:
        add_event(execution, "MapIterationFailed", {"mapIterationFailedEventDetails": details})
        raise
    add_event(execution, "MapIterationSucceeded", {"mapIterationSucceededEventDetails": details})
    return result


_RUNNERS: dict[str, Callable[[State, Any, Execution, Context], tuple[Any, str | None]]] = {
    "Pass": lambda state, value, execution, ctx: sf._execute_pass(state, value, ctx),
    "Wait": lambda state, value, execution, ctx: sf._execute_wait(state, value, ctx),
    "Choice": _choice, "Succeed": _succeed, "Task": _task, "Parallel": _parallel, "Map": _map,
}


# -- executions --------------------------------------------------------------

def run_execution(arn: str) -> None:
    """Run an execution from its start to its end, in the thread of the caller."""
    execution = sf._executions.get(arn)
    if not execution:
        return
    _current.set(execution)
    execution["events"][0].setdefault("previousEventId", 0)
    _previous.set(1)
    machine = sf._state_machines.get(execution["stateMachineArn"])
    if not machine:
        return fail(execution, "StateMachineDeleted", "State machine no longer exists")
    definition = json.loads(execution.pop("_definition", None) or machine["definition"])
    value = json.loads(execution["input"])
    ctx: Context = {
        "QueryLanguage": definition.get("QueryLanguage", "JSONPath"),
        "Execution": {"Id": arn, "Input": value, "Name": execution["name"], "RoleArn": machine["roleArn"],
                      "StartTime": execution["startDate"], "RedriveCount": 0},
        "StateMachine": {"Id": execution["stateMachineArn"], "Name": machine["name"]},
        "variables": {},
    }
    timer = _watch(execution, definition.get("TimeoutSeconds"))
    try:
        output = _text(run_states(definition["States"], definition["StartAt"], value, execution, ctx))
        end(execution, "SUCCEEDED", {"executionSucceededEventDetails": {"output": output}}, output=output)
    except Stopped:
        pass  # whoever stopped it has said so
    except HistoryFull:
        fail(execution, "States.Runtime",
             f"The execution reached the maximum number of history events ({admin.settings.history_limit}).")
    except Failure as error:
        fail(execution, error.error, error.cause)
    except Exception as error:
        sf.logger.exception("Unexpected error in execution %s", arn)
        fail(execution, "States.Runtime", str(error))
    finally:
        if timer is not None:
            timer.cancel()


def _watch(execution: Execution, seconds: float | None) -> threading.Timer | None:
    if seconds is None:
        return None
    timer = threading.Timer(seconds * sf._SFN_WAIT_SCALE, contextvars.copy_context().run,
                            (end, execution, "TIMED_OUT", {"executionTimedOutEventDetails": {}}))
    timer.daemon = True
    timer.start()
    return timer


_END_EVENTS = {"SUCCEEDED": "ExecutionSucceeded", "FAILED": "ExecutionFailed", "TIMED_OUT": "ExecutionTimedOut"}


def end(execution: Execution, status: str, details: dict[str, Any], **fields: Any) -> None:
    """End an execution that still runs; the first end counts."""
    with _events_lock:
        if execution["status"] != "RUNNING":
            return
        execution.update(status=status, stopDate=now_iso(), **fields)
    add_event(execution, _END_EVENTS[status], details)
    sf._emit_execution_status_event(execution)


def fail(execution: Execution, error: str, cause: str) -> None:
    end(execution, "FAILED", {"executionFailedEventDetails": {"error": error, "cause": cause}},
        error=error, cause=cause)


def _start_execution(original: Callable[[dict[str, Any]], Any], data: dict[str, Any]) -> Any:
    text = data.get("input", "{}")
    if len(text.encode()) > admin.settings.state_data_limit:
        return error_response_json("ValidationException", "1 validation error detected: Value at 'input' failed to "
                                   "satisfy constraint: Member must have length less than or equal to "
                                   f"{admin.settings.state_data_limit}", 400)
    try:
        json.loads(text)
    except ValueError:
        return error_response_json("InvalidExecutionInput", "Invalid State Machine Execution Input", 400)
    name = data.get("name")
    if name is not None and not 1 <= len(name) <= 80:
        return error_response_json("InvalidName", f"Invalid Name: '{name}'", 400)
    machine_arn = sf._resolve_state_machine_arn(data.get("stateMachineArn", "").split("#")[0])
    if name and machine_arn:
        machine = sf._state_machines[machine_arn]
        arn = f"arn:aws:states:{get_region()}:{get_account_id()}:execution:{machine['name']}:{name}"
        existing = sf._executions.get(arn)
        if existing and existing["status"] == "RUNNING" and existing["input"] == text:
            return json_response({"executionArn": arn, "startDate": existing["startDate"]})
    return original(data)


# -- definitions -------------------------------------------------------------

def definition_problem(text: Any) -> str | None:
    """Why a definition is refused: it is wrong, or it uses what the local AWS would pass over in silence."""
    try:
        definition = json.loads(text)
    except (TypeError, ValueError) as error:
        return f"INVALID_JSON_DESCRIPTION: {error}"
    if not isinstance(definition, dict):
        return "INVALID_JSON_DESCRIPTION: the definition is not an object"
    if len(text.encode()) > 1_048_576:
        return "SCHEMA_VALIDATION_FAILED: the definition is longer than 1 MiB"
    # The service takes 2 for 2.0 as well, and expressions where statelint still wants literals.
    config = Config(ignored_problem_types={ProblemType.FLOAT, ProblemType.URI})
    problems = [one for one in Linter.validate(definition, config) if not _NO_PROBLEM.search(one)]
    if problems:
        return "SCHEMA_VALIDATION_FAILED: " + "; ".join(problems)
    if re.search(r"\{%(?:(?!%\}).)*\$eval\s*\(", text, re.DOTALL):
        return "INVALID_JSONATA_EXPRESSION: the function $eval is not supported"
    return sf._validate_definition_jsonata(text) or _unserved(definition, definition.get("QueryLanguage", "JSONPath"))


def _unserved(machine: dict[str, Any], language: str) -> str | None:
    for name, state in machine["States"].items():
        spoken = state.get("QueryLanguage", language)
        inner = [state[key] for key in ("ItemProcessor", "Iterator") if key in state] + state.get("Branches", [])
        distributed = any((one.get("ProcessorConfig") or {}).get("Mode") == "DISTRIBUTED" for one in inner)
        missing = [field for field in ("Credentials", *(("Assign",) if spoken == "JSONPath" else ()),
                                       *(("ItemBatcher", "ResultWriter") if distributed else ())) if field in state]
        if distributed and spoken == "JSONata":
            missing.append("a distributed Map in JSONata")
        if missing:
            return f"NOT_SERVED_LOCALLY: the local AWS would ignore {', '.join(missing)} of state '{name}'"
        for one in inner:
            problem = _unserved(one, language)
            if problem:
                return problem
    return None


def _refusing(original: Callable[[dict[str, Any]], Any], data: dict[str, Any]) -> Any:
    problem = definition_problem(data.get("definition")) if "definition" in data else None
    if problem:
        return error_response_json("InvalidDefinition", f"Invalid State Machine Definition: '{problem}'", 400)
    role = data.get("roleArn")
    if app.AUTH and role is not None and not trusts(iam._roles.get(role.rsplit("/", 1)[-1]), "states."):
        return error_response_json("AccessDeniedException", _UNTRUSTED, 400)
    return original(data)


def _validate_definition(data: dict[str, Any]) -> Any:
    problem = definition_problem(data.get("definition"))
    code, _, message = (problem or "").partition(": ")
    return json_response({"result": "FAIL" if problem else "OK", "truncated": False, "diagnostics": [
        {"severity": "ERROR", "code": code, "message": message}] if problem else []})


_UNTRUSTED = ("Neither the global service principal states.amazonaws.com, nor the regional one is authorized to "
              "assume the provided role.")


def _guard_provisioner() -> None:
    from ministack.services.cloudformation import provisioners

    handlers = provisioners._RESOURCE_HANDLERS["AWS::StepFunctions::StateMachine"]
    create, update = handlers["create"], handlers["update"]

    def check(properties: dict[str, Any]) -> None:
        problem = definition_problem(provisioners._sfn_definition(properties))
        if problem:
            raise ValueError(f"Invalid State Machine Definition: '{problem}'")
        if app.AUTH and not trusts(iam._roles.get(properties["RoleArn"].rsplit("/", 1)[-1]), "states."):
            raise ValueError(_UNTRUSTED)

    def checked_create(logical_id: str, properties: dict[str, Any], stack: str) -> Any:
        check(properties)
        return create(logical_id, properties, stack)

    def checked_update(physical_id: str, old: dict[str, Any], new: dict[str, Any], stack: str, *rest: Any) -> Any:
        check(new)
        return update(physical_id, old, new, stack, *rest)

    handlers["create"], handlers["update"] = checked_create, checked_update


def _wrap(name: str, wrapper: Callable[..., Any]) -> None:
    setattr(sf, name, functools.partial(wrapper, getattr(sf, name)))


def _stop_with_server() -> None:
    original = app._handle_lifespan

    async def handle_lifespan(*arguments: Any) -> None:
        try:
            await original(*arguments)
        finally:
            _stopping.set()
            lambda_runtime.reset()  # running invocations end with their processes

    app._handle_lifespan = handle_lifespan


_ministack_task = sf._execute_task


def install() -> None:
    sf._add_event, sf._error_matches, sf._scaled_sleep = add_event, _error_matches, _sleep
    sf._run_execution, sf._run_sub_machine, sf._fail_execution = run_execution, run_states, fail
    sf._validate_state_machine_definition = _validate_definition
    _wrap("_invoke_resource", _invoke_resource)
    _wrap("_call_lambda", _call_lambda)
    _wrap("_start_execution", _start_execution)
    _wrap("_create_state_machine", _refusing)
    _wrap("_update_state_machine", _refusing)
    _guard_provisioner()
    _stop_with_server()
