#!/usr/bin/env python3
"""Stands in for every function of cdkd: answers what the execution's script says, else what usually happens.

A script maps "function", "function action" or "function action Stack" to a list of answers, one per call; the last one
repeats. null leaves a field of the usual answer out; {"raise": [type, message]} fails the call. "users" in it maps a
stack to those whose records import from it. Beside the script, the input may give the run's "levels"; without them it
is about the stack Web alone. "publish" and "publishOnly" are what read-assembly answers.

The Runtime API is spoken here, because a managed runtime of the emulator has one error type for all failures.
"""

import json
import os
import tempfile
import urllib.request

WEB = {"stack": "Web", "region": "us-east-1", "needs": []}


def usual(function, action, event, run):
    levels = event.get("input", {}).get("levels", [[WEB]])
    if function == "read-assembly":
        given = event.get("input", {})
        return {"run": run, "levels": levels, "publish": given.get("publish", []),
                "publishOnly": given.get("publishOnly", False), "notices": ["read"], "warnings": []}
    if function == "publish-assets":
        return {"done": True, "published": 2, "skipped": 1, "left": 0}
    if function == "provision":
        return {"status": "done", "deletes": 0}
    if action in ("prepare", "publish", "release"):
        return {}
    if action == "begin":
        stacks = event.get("stacks") or [place(stack) for level in levels for stack in level]
        answer = {"run": run, "stacks": [{**stack, "nonce": f"nonce of {stack['stack']}"} for stack in stacks],
                  "recover": False}
        if "stacks" not in event:
            return {**answer, "levels": levels}
        users = run.get("script", {}).get("users", {})
        for stack in answer["stacks"]:
            stack["rank"] = rank(stack["stack"], users)
            stack["users"] = [f"{user}/{stack['region']}" for user in users.get(stack["stack"], [])]
        return answer
    if action == "commit":
        outcome = "destroyed" if run["operation"] == "destroy" else "deployed"
        counts = {"create": 12, "update": 3, "replace": 0, "delete": 1, "none": 84}
        if not event.get("cleaned", True):
            outcome = "deletesPending"
        return {"row": {**place(event["stack"]), "outcome": outcome, "counts": counts}}
    if action in ("abort", "finish") and event["error"]:
        cause = explain(**event["error"])
        rows = {"stacks": event["rows"]} if action == "finish" else {}
        cause = {**cause, "details": {**cause["details"], f"told by {action}": True, **rows}}
        return {"error": event["error"]["Error"], "cause": json.dumps(cause, separators=(",", ":")), "outcome": "rolledBack"}
    if action == "finish":
        return {"answer": {"outcome": run["operation"], "stacks": event["rows"]}}
    if run["dryRun"]:
        return {"answer": {"outcome": "planned", "stacks": event["stacks"]}}
    return {"outcome": "changes", "applies": 1, "deletes": 0, "held": False}


def rank(stack, users):
    return max((1 + rank(user, users) for user in users.get(stack, [])), default=0)


def explain(Error, Cause):
    """The documented cause in what Step Functions caught."""
    try:
        cause = json.loads(Cause)
        return json.loads(cause["errorMessage"]) if "errorMessage" in cause else cause
    except ValueError:
        return {"code": Error, "message": Cause, "hint": None, "details": {}}


def place(stack):
    return {"stack": stack["stack"], "region": stack["region"]}


class Failure(Exception):
    """A call that fails: type and message."""


def handle(function, event):
    action = event.get("action", "")
    run = event.get("run") or {
        "execution": event["execution"],
        "name": event["name"],
        "operation": "destroy" if action else "deploy",
        "dryRun": event["input"].get("dryRun", False),
        "script": event["input"].get("script", {}),
    }
    keys = [" ".join(filter(None, [function, action, stack])) for stack in (event.get("stack", {}).get("stack"), None)]
    key = next((key for key in keys if key in run.get("script", {})), None)
    answer = {}
    if key:
        answers = run["script"][key]
        answer = answers[min(earlier_calls(run["name"], keys[0]), len(answers) - 1)]
    if "raise" in answer:
        raise Failure(*answer["raise"])
    answer = {**usual(function, action, event, run), **answer}
    return {name: value for name, value in answer.items() if value is not None}


def earlier_calls(run, key):
    """Counts calls in a file, because stacks side by side are served by several processes."""
    with open(os.path.join(tempfile.gettempdir(), f"{run} {key}"), "ab") as calls:
        calls.write(b".")
        return calls.tell() - 1


def main():
    base = f"http://{os.environ['AWS_LAMBDA_RUNTIME_API']}/2018-06-01/runtime/invocation"
    function = os.environ["AWS_LAMBDA_FUNCTION_NAME"].removeprefix("stub-")
    while True:
        with urllib.request.urlopen(f"{base}/next") as response:
            call = response.headers["Lambda-Runtime-Aws-Request-Id"]
            event = json.load(response)
        try:
            end, answer = "response", handle(function, event)
        except Failure as failure:
            kind, message = failure.args
            end, answer = "error", {"errorType": kind, "errorMessage": message}
        urllib.request.urlopen(f"{base}/{call}/{end}", json.dumps(answer).encode()).close()


main()
