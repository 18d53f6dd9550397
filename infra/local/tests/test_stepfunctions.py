"""Step Functions: histories, limits, refusals, JSONata, and the ends of executions."""

from __future__ import annotations

import json
import time
import unittest
from typing import Any

from botocore.exceptions import ClientError

import support

server: support.Server
role: str
function: str


def setUpModule() -> None:
    global server, role, function
    server = support.Server()
    role = server.role("machines")
    function = server.function("worker", role, timeout=2)


def tearDownModule() -> None:
    server.remove()


def machine(states: dict[str, Any], language: str = "JSONata", **more: Any) -> dict[str, Any]:
    return {"QueryLanguage": language, **branch(states), **more}


def branch(states: dict[str, Any]) -> dict[str, Any]:
    return {"StartAt": next(iter(states)), "States": states}


class Case(unittest.TestCase):
    def setUp(self) -> None:
        self.api = server.client("stepfunctions")
        server.admin("settings", method="DELETE")

    def machine(self, definition: dict[str, Any], name: str = "") -> str:
        name = name or self.id().rsplit(".", 1)[-1] + str(time.monotonic_ns())[-9:]
        return self.api.create_state_machine(name=name, definition=json.dumps(definition),
                                             roleArn=role)["stateMachineArn"]

    def start(self, definition: dict[str, Any], value: Any = None, **options: Any) -> str:
        return self.api.start_execution(stateMachineArn=self.machine(definition), input=json.dumps(value or {}),
                                        **options)["executionArn"]

    def end(self, arn: str) -> dict[str, Any]:
        def ended() -> Any:
            found = self.api.describe_execution(executionArn=arn)
            return found if found["status"] != "RUNNING" else None

        return support.wait_for(ended, 40)

    def run_machine(self, states: dict[str, Any], value: Any = None, language: str = "JSONata", **more: Any) -> Any:
        found = self.end(self.start(machine(states, language, **more), value))
        return json.loads(found["output"]) if found["status"] == "SUCCEEDED" else (found["error"], found["cause"])

    def events(self, arn: str) -> list[dict[str, Any]]:
        events, options = [], {"executionArn": arn, "maxResults": 1000}
        while True:
            page = self.api.get_execution_history(**options)
            events += page["events"]
            if "nextToken" not in page:
                return events
            options["nextToken"] = page["nextToken"]

    def invoke(self, **more: Any) -> dict[str, Any]:
        return {"Type": "Task", "Resource": "arn:aws:states:::lambda:invoke",
                "Arguments": {"FunctionName": function, "Payload": "{% $states.input %}"}, **more}

    def raises(self, name: str, call: Any, /, **options: Any) -> str:
        with self.assertRaises(ClientError) as caught:
            call(**options)
        self.assertEqual(caught.exception.response["Error"]["Code"], name)
        return caught.exception.response["Error"]["Message"]


class Definitions(Case):
    def test_bad_definitions_are_refused(self) -> None:
        good = {"Type": "Pass", "End": True}
        bad = {
            "dangling": machine({"A": {"Type": "Pass", "Next": "B"}}),
            "no start": {"States": {"A": good}},
            "wrong start": {"StartAt": "B", "States": {"A": good}},
            "unknown type": machine({"A": {"Type": "What", "End": True}}),
            "no end": machine({"A": {"Type": "Pass"}}),
            "expression": machine({"A": {"Type": "Pass", "Output": "{% $states.input. %}", "End": True}}),
            "eval": machine({"A": {"Type": "Pass", "Output": "{% $eval('1') %}", "End": True}}),
            "in a map": machine({"A": {"Type": "Map", "Items": "{% [1] %}", "End": True, "ItemProcessor": {
                "StartAt": "B", "States": {"B": {"Type": "Pass", "Next": "C"}}}}}),
            "catch": machine({"A": self.invoke(End=True, Catch=[{"ErrorEquals": ["X"], "Next": "Z"}])}),
            "unserved": machine({"A": {"Type": "Pass", "End": True, "Assign": {"x": 1}}}, "JSONPath"),
        }
        for name, definition in bad.items():
            with self.subTest(name):
                self.raises("InvalidDefinition", self.api.create_state_machine, name="bad",
                            definition=json.dumps(definition), roleArn=role)
        self.raises("InvalidDefinition", self.api.create_state_machine, name="bad", definition="{", roleArn=role)
        fine = machine({"A": {"Type": "Map", "Items": [1], "MaxConcurrency": "{% 2 %}", "End": True,
                              "ItemProcessor": branch({"X": self.invoke(End=True, TimeoutSeconds="{% 5 %}", Retry=[
                                  {"ErrorEquals": ["States.ALL"], "BackoffRate": 2, "MaxDelaySeconds": 5,
                                   "JitterStrategy": "FULL"}])})}})
        self.assertEqual(self.api.validate_state_machine_definition(definition=json.dumps(fine))["diagnostics"], [])
        answer = self.api.validate_state_machine_definition(definition=json.dumps(bad["dangling"]))
        self.assertEqual(answer["result"], "FAIL")
        self.assertEqual(self.api.validate_state_machine_definition(
            definition=json.dumps(machine({"A": good})))["result"], "OK")


class Starting(Case):
    def test_same_name_and_input_while_running(self) -> None:
        arn = self.machine(machine({"A": {"Type": "Wait", "Seconds": 5, "End": True}}))
        first = self.api.start_execution(stateMachineArn=arn, name="n", input='{"a":1}')
        again = self.api.start_execution(stateMachineArn=arn, name="n", input='{"a":1}')
        self.assertEqual(first["executionArn"], again["executionArn"])
        self.assertEqual(first["startDate"], again["startDate"])
        self.raises("ExecutionAlreadyExists", self.api.start_execution, stateMachineArn=arn, name="n", input="{}")
        self.api.stop_execution(executionArn=first["executionArn"])
        self.raises("ExecutionAlreadyExists", self.api.start_execution, stateMachineArn=arn, name="n",
                    input='{"a":1}')

    def test_input_is_checked(self) -> None:
        arn = self.machine(machine({"A": {"Type": "Pass", "End": True}}))
        self.raises("InvalidExecutionInput", self.api.start_execution, stateMachineArn=arn, input="{")
        self.raises("ValidationException", self.api.start_execution, stateMachineArn=arn,
                    input=json.dumps("x" * 262_144))

    def test_start_is_quick(self) -> None:
        start = time.monotonic()
        self.run_machine({"A": {"Type": "Pass", "End": True}})
        self.assertLess(time.monotonic() - start, 0.5)


class Histories(Case):
    def test_five_events_a_task(self) -> None:
        arn = self.start(machine({"A": self.invoke(End=True)}))
        self.assertEqual(self.end(arn)["status"], "SUCCEEDED")
        events = self.events(arn)
        self.assertEqual([event["type"] for event in events], [
            "ExecutionStarted", "TaskStateEntered", "TaskScheduled", "TaskStarted", "TaskSucceeded",
            "TaskStateExited", "ExecutionSucceeded"])
        self.assertEqual([event["previousEventId"] for event in events], [0, 1, 2, 3, 4, 5, 6])
        direct = {"Type": "Task", "Resource": function, "End": True}
        arn = self.start(machine({"A": direct}))
        self.end(arn)
        self.assertEqual([event["type"] for event in self.events(arn)][2:5], [
            "LambdaFunctionScheduled", "LambdaFunctionStarted", "LambdaFunctionSucceeded"])

    def test_events_inside_map_and_parallel(self) -> None:
        def inner(name: str) -> dict[str, Any]:
            return {"StartAt": name, "States": {name: self.invoke(End=True)}}

        arn = self.start(machine({
            "A": {"Type": "Map", "Items": [{"n": 1}, {"n": 2}], "ItemProcessor": inner("B"), "Output": {},
                  "Next": "P"},
            "P": {"Type": "Parallel", "Branches": [inner("C"), inner("D")], "End": True}}))
        self.assertEqual(self.end(arn)["status"], "SUCCEEDED")
        # Map: 4 around, 2 an iteration; Parallel: 4 around; 5 a task; 2 for the execution.
        self.assertEqual(len(self.events(arn)), 2 + 4 + 2 * (2 + 5) + 4 + 2 * 5)

    def test_limit_of_events(self) -> None:
        self.assertEqual(server.admin("settings", method="GET")["history_limit"], 25_000)
        server.admin("settings", {"history_limit": 300})
        arn = self.start(machine({"A": {"Type": "Map", "Items": "{% [1..100] %}", "End": True, "Catch": [
            {"ErrorEquals": ["States.ALL"], "Next": "B"}], "ItemProcessor": branch(
                {"X": {"Type": "Pass", "End": True}})}, "B": {"Type": "Succeed"}}))
        found = self.end(arn)
        self.assertEqual(found["status"], "FAILED")
        self.assertIn("maximum number of history events (300)", found["cause"])
        self.assertEqual(len(self.events(arn)), 300)

    def test_limit_of_data(self) -> None:
        large = "{% $join($map([1..27000], function($n) { '0123456789' })) %}"
        error, cause = self.run_machine({"A": {"Type": "Pass", "Output": large, "End": True}})
        self.assertEqual(error, "States.DataLimitExceeded")
        self.assertIn("exceeding the maximum number of bytes", cause)
        self.assertEqual(self.run_machine({"A": self.invoke(
            End=True, Catch=[{"ErrorEquals": ["States.ALL"], "Next": "B"}]), "B": {"Type": "Succeed"}},
            {"size": 270_000})[0], "States.DataLimitExceeded")


class Errors(Case):
    def test_error_names_and_causes(self) -> None:
        for event, name, text in (({"error": "MyError"}, "MyError", "asked to fail"),
                                  ({"kill": True}, "Runtime.ExitError", "signal: killed"),
                                  ({"sleep": 9}, "Sandbox.Timedout", "Task timed out after 2.00 seconds")):
            with self.subTest(name):
                caught = self.run_machine({
                    "A": self.invoke(End=True, Catch=[{"ErrorEquals": [name], "Next": "B",
                                                       "Output": "{% $states.errorOutput %}"}]),
                    "B": {"Type": "Succeed"}}, event)
                self.assertEqual(caught["Error"], name)
                cause = json.loads(caught["Cause"])
                self.assertEqual(cause["errorType"], name)
                self.assertIn(text, cause["errorMessage"])

    def test_retry_then_catch(self) -> None:
        retry = [{"ErrorEquals": ["Never"], "MaxAttempts": 9},
                 {"ErrorEquals": ["MyError"], "MaxAttempts": 2, "IntervalSeconds": 1, "BackoffRate": 1}]
        server_config = b'{"stepfunctions._SFN_WAIT_SCALE": 0.05}'
        self.configure(server_config)
        self.addCleanup(self.configure, b'{"stepfunctions._SFN_WAIT_SCALE": 1}')
        arn = self.start(machine({
            "A": self.invoke(Retry=retry, End=True, Catch=[
                {"ErrorEquals": ["States.ALL"], "Next": "B", "Assign": {"seen": "{% $states.errorOutput.Error %}"}}]),
            "B": {"Type": "Fail", "Error": "{% $seen & '2' %}",
                  "Cause": "{% 'because of ' & $states.input.Error %}"}}), {"error": "MyError"})
        found = self.end(arn)
        self.assertEqual((found["status"], found["error"], found["cause"]),
                         ("FAILED", "MyError2", "because of MyError"))
        self.assertEqual(sum(event["type"] == "TaskFailed" for event in self.events(arn)), 3)

    def configure(self, body: bytes) -> None:
        import urllib.request

        urllib.request.urlopen(f"{server.url}/_ministack/config", body, timeout=5).close()

    def test_throttled_function(self) -> None:
        name = server.function("narrow", role).rsplit(":", 1)[-1]
        server.client("lambda").put_function_concurrency(FunctionName=name, ReservedConcurrentExecutions=1)
        caught = {"ErrorEquals": ["Lambda.TooManyRequestsException"], "Next": "C", "Output": "throttled"}
        state = self.invoke(Next="C", Catch=[caught], Output="called")
        state["Arguments"] = {"FunctionName": name, "Payload": {"sleep": 1}}
        result = self.run_machine({"A": {"Type": "Map", "Items": [1, 2], "End": True, "ItemProcessor": branch(
            {"B": state, "C": {"Type": "Succeed"}})}})
        self.assertEqual(sorted(result), ["called", "throttled"])

    def test_missing_function(self) -> None:
        state = self.invoke(End=True)
        state["Arguments"]["FunctionName"] = "nobody"
        self.assertEqual(self.run_machine({"A": state})[0], "Lambda.ResourceNotFoundException")

    def test_rights_of_the_machine(self) -> None:
        iam = server.client("iam")
        weak = iam.create_role(RoleName="weak", AssumeRolePolicyDocument=support.TRUST)["Role"]["Arn"]
        definition = json.dumps(machine({"A": self.invoke(End=True)}))
        arn = self.api.create_state_machine(name="weak", roleArn=weak, definition=definition)["stateMachineArn"]
        found = self.end(self.api.start_execution(stateMachineArn=arn)["executionArn"])
        self.assertEqual(found["error"], "Lambda.AWSLambdaException")
        self.assertIn("not authorized to perform: lambda:InvokeFunction", found["cause"])
        iam.put_role_policy(RoleName="weak", PolicyName="p", PolicyDocument=json.dumps({
            "Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "lambda:InvokeFunction",
                                                    "Resource": [function, function + ":*"]}]}))
        found = self.end(self.api.start_execution(stateMachineArn=arn)["executionArn"])
        self.assertEqual(found["status"], "SUCCEEDED")
        iam.create_role(RoleName="stranger", AssumeRolePolicyDocument=support.TRUST.replace("states.", "other."))
        self.raises("AccessDeniedException", self.api.create_state_machine, name="stranger", definition=definition,
                    roleArn=weak.replace("weak", "stranger"))

    def test_failure_in_a_map_stops_it(self) -> None:
        error, _ = self.run_machine({"A": {"Type": "Map", "Items": [{"error": "One"}, {"sleep": 1}], "End": True,
                                           "ItemProcessor": branch({"X": self.invoke(Next="Y"),
                                                                     "Y": {"Type": "Wait", "Seconds": 60,
                                                                           "End": True}})}})
        self.assertEqual(error, "One")


class JsonataStates(Case):
    def test_states_in_jsonata(self) -> None:
        result = self.run_machine({
            "Assign": {"Type": "Pass", "Assign": {"base": "{% $states.input.base %}", "list": [1, 2, 3], "nil": None},
                       "Output": {"n": "{% $states.input.base * 2 %}", "fixed": True}, "Next": "Choose"},
            "Choose": {"Type": "Choice", "Default": "Bad", "Choices": [
                {"Condition": "{% $states.input.n > 100 %}", "Next": "Bad"},
                {"Condition": "{% $base = 21 and $states.input.fixed %}", "Next": "Each",
                 "Assign": {"chosen": "{% $states.input.n %}"}}]},
            "Each": {"Type": "Map", "Items": "{% $list %}", "MaxConcurrency": 2,
                     "ItemSelector": {"item": "{% $states.context.Map.Item.Value %}",
                                      "index": "{% $states.context.Map.Item.Index %}", "base": "{% $base %}"},
                     "ItemProcessor": branch({"Inner": {
                         "Type": "Pass", "Assign": {"base": 0},
                         "Output": "{% $states.input.item + $states.input.index + $base %}", "End": True}}),
                     "Assign": {"sum": "{% $sum($states.result) %}"},
                     "Output": {"all": "{% $states.result %}"}, "Next": "Both"},
            "Both": {"Type": "Parallel", "Arguments": {"given": "{% $sum %}"}, "Branches": [
                branch({"L": {"Type": "Pass", "Output": "{% $states.input.given %}", "End": True}}),
                branch({"R": {"Type": "Succeed", "Output": "{% $base %}"}})],
                "Output": {"both": "{% $states.result %}", "all": "{% $states.input.all %}"}, "Next": "Call"},
            "Call": {**self.invoke(), "Arguments": {"FunctionName": function, "Payload": {
                "bare": True, "list": "{% $states.input.all %}"}},
                "Assign": {"version": "{% $states.result.ExecutedVersion %}"},
                "Output": "{% $merge([$states.input, {'echo': $states.result.Payload.list}]) %}", "Next": "Pause"},
            "Pause": {"Type": "Wait", "Seconds": "{% 0 %}", "Next": "Done"},
            "Done": {"Type": "Succeed", "Output": {
                "result": "{% $states.input %}", "chosen": "{% $chosen %}", "version": "{% $version %}",
                "nil": "{% $nil %}", "name": "{% $states.context.Execution.Name != '' %}"}},
            "Bad": {"Type": "Fail"},
        }, {"base": 21})
        self.assertEqual(result, {
            "result": {"both": [72, 21], "all": [22, 24, 26], "echo": [22, 24, 26]}, "chosen": 42,
            "version": "$LATEST", "nil": None, "name": True})

    def test_default_branch_may_shape_its_output(self) -> None:
        self.assertEqual(self.run_machine({
            "A": {"Type": "Choice", "Choices": [{"Condition": "{% false %}", "Next": "B"}], "Default": "B",
                  "Output": {"fell": "through"}}, "B": {"Type": "Succeed"}}), {"fell": "through"})

    def test_undefined_result_fails(self) -> None:
        error, _ = self.run_machine({"A": {"Type": "Pass", "Output": "{% $states.input.none %}", "End": True}})
        self.assertEqual(error, "States.QueryEvaluationError")
        error, _ = self.run_machine({"A": {"Type": "Map", "Items": "{% $states.input.one %}", "End": True,
                                           "ItemProcessor": branch({"X": {"Type": "Pass", "End": True}})}},
                                    {"one": 1})
        self.assertEqual(error, "States.QueryEvaluationError")

    def test_jsonpath_still_works(self) -> None:
        result = self.run_machine({
            "A": {"Type": "Map", "ItemsPath": "$.list", "ResultPath": "$.out", "Next": "B",
                  "ItemSelector": {"v.$": "$$.Map.Item.Value"},
                  "ItemProcessor": {"StartAt": "X", "States": {"X": {"Type": "Pass", "End": True}}}},
            "B": {"Type": "Task", "Resource": "arn:aws:states:::lambda:invoke", "End": True, "Parameters": {
                "FunctionName": function, "Payload": {"bare": True, "got.$": "$.out"}}, "OutputPath": "$.Payload.got"},
        }, {"list": [1, 2]}, "JSONPath")
        self.assertEqual(result, [{"v": 1}, {"v": 2}])


    def test_distributed_map(self) -> None:
        states = {"A": {"Type": "Map", "ItemsPath": "$.list", "MaxConcurrency": 2, "Label": "Each", "End": True,
                        "ItemProcessor": {
                            "ProcessorConfig": {"Mode": "DISTRIBUTED", "ExecutionType": "STANDARD"},
                            **branch({"X": {"Type": "Wait", "SecondsPath": "$.wait", "End": True}})}}}
        self.assertEqual(self.run_machine(states, {"list": [{"wait": 0}, {"wait": 0}]}, "JSONPath"),
                         [{"wait": 0}, {"wait": 0}])
        arn = self.start(machine(states, "JSONPath"), {"list": [{"wait": 60}, {"wait": 60}, {"wait": 60}]})
        run = support.wait_for(lambda: self.api.list_map_runs(executionArn=arn)["mapRuns"])[0]["mapRunArn"]
        self.api.stop_execution(executionArn=arn)
        support.wait_for(lambda: not self.api.list_executions(mapRunArn=run, statusFilter="RUNNING")["executions"])
        self.assertEqual(self.api.describe_execution(executionArn=arn)["status"], "ABORTED")

    def test_state_alone(self) -> None:
        state = {"Type": "Pass", "QueryLanguage": "JSONata", "Output": "{% $states.input.a + 1 %}", "End": True}
        answer = self.api.test_state(definition=json.dumps(state), roleArn=role, input='{"a": 1}')
        self.assertEqual((answer["status"], answer["output"]), ("SUCCEEDED", "2"))


class Ends(Case):
    def test_stop(self) -> None:
        inner = branch({"W": {"Type": "Wait", "Seconds": 60, "Next": "X"}, "X": {"Type": "Pass", "End": True}})
        for name, states in {"wait": inner["States"], "map": {"A": {
                "Type": "Map", "Items": [1, 2], "End": True, "ItemProcessor": inner}}}.items():
            with self.subTest(name):
                arn = self.start(machine(states))
                time.sleep(0.3)
                self.api.stop_execution(executionArn=arn, error="Why", cause="test")
                found = self.api.describe_execution(executionArn=arn)
                self.assertEqual((found["status"], found["error"], found["cause"]), ("ABORTED", "Why", "test"))
                count = len(self.events(arn))
                time.sleep(0.4)
                self.assertEqual(self.api.describe_execution(executionArn=arn)["status"], "ABORTED")
                events = self.events(arn)
                self.assertEqual((len(events), events[-1]["type"]), (count, "ExecutionAborted"))

    def test_stop_during_a_function(self) -> None:
        arn = self.start(machine({"A": self.invoke(Next="B"), "B": {"Type": "Pass", "End": True}}), {"sleep": 1})
        time.sleep(0.3)
        self.api.stop_execution(executionArn=arn)
        time.sleep(1.2)
        self.assertEqual(self.api.describe_execution(executionArn=arn)["status"], "ABORTED")
        self.assertNotIn("TaskSucceeded", [event["type"] for event in self.events(arn)])

    def test_timeouts(self) -> None:
        arn = self.start(machine({"A": {"Type": "Wait", "Seconds": 60, "End": True}}, TimeoutSeconds=1))
        self.assertEqual(self.end(arn)["status"], "TIMED_OUT")
        self.assertEqual(self.events(arn)[-1]["type"], "ExecutionTimedOut")
        error, _ = self.run_machine({"A": self.invoke(TimeoutSeconds=1, End=True)}, {"sleep": 1.5})
        self.assertEqual(error, "States.Timeout")

    def test_nested_machine(self) -> None:
        child = self.machine(machine({"C": {"Type": "Choice", "Default": "F", "Choices": [
            {"Condition": "{% $states.input.ok %}", "Next": "S"}]},
            "S": {"Type": "Succeed", "Output": {"child": True}}, "F": {"Type": "Fail", "Error": "Inner"}}))
        state = {"Type": "Task", "Resource": "arn:aws:states:::states:startExecution.sync:2", "End": True,
                 "Arguments": {"StateMachineArn": child, "Input": "{% $states.input %}"},
                 "Output": "{% $states.result.Output %}"}
        self.assertEqual(self.run_machine({"A": state}, {"ok": True}), {"child": True})
        error, cause = self.run_machine({"A": state}, {"ok": False})
        self.assertEqual((error, json.loads(cause)["Error"]), ("States.TaskFailed", "Inner"))
