//! The routes through the state machines, with a stub in the place of every function.

#![allow(clippy::unwrap_used, reason = "what goes wrong in a test's own helpers fails the test")]

use std::collections::{BTreeMap, HashMap};

use cdkd_test_support::{Api, Archive, Json, LocalAws, Options, Outcome, Query, Result};
use http::Method;
use serde_json::{Value, json};

const ROLE: &str = "arn:aws:iam::123456789012:role/stub";

/// Both machines on a local AWS of their own.
struct Machines {
    aws: LocalAws,
}

impl Machines {
    fn start() -> Result<Self> {
        let aws = LocalAws::start(&Options { bare: true, ..Options::default() })?;
        let api = aws.api();
        // Retries wait a hundredth of their time.
        let faster = json!({"stepfunctions._SFN_WAIT_SCALE": 0.01}).to_string();
        api.plain(Method::POST, "/_ministack/config", faster.as_bytes())?;
        let services = json!({"Service": ["states.amazonaws.com", "lambda.amazonaws.com"]});
        let trust = json!({"Version": "2012-10-17", "Statement": [
            {"Effect": "Allow", "Principal": services, "Action": "sts:AssumeRole"}
        ]});
        let rights = json!({"Version": "2012-10-17", "Statement": [
            {"Effect": "Allow", "Action": "lambda:InvokeFunction", "Resource": "*"}
        ]});
        let (trust, rights) = (trust.to_string(), rights.to_string());
        api.query(Query::Iam, "CreateRole", &[("RoleName", "stub"), ("AssumeRolePolicyDocument", &trust)])?;
        let policy = [("RoleName", "stub"), ("PolicyName", "invoke"), ("PolicyDocument", &rights)];
        api.query(Query::Iam, "PutRolePolicy", &policy)?;
        for (name, definition) in [
            ("deploy", include_str!("../../../statemachine/deploy.asl.json")),
            ("destroy", include_str!("../../../statemachine/destroy.asl.json")),
        ] {
            let definition = [
                ("ReadAssembly", "read-assembly"),
                ("PublishAssets", "publish-assets"),
                ("SaveState", "save-state"),
                ("Resolve", "resolve"),
                ("Provision", "provision"),
            ]
            .into_iter()
            .fold(definition.to_owned(), |text, (placeholder, function)| {
                text.replace(&format!("${{{placeholder}Function}}"), &format!("stub-{function}"))
            });
            let request = json!({"name": format!("cdkd-{name}"), "definition": definition, "roleArn": ROLE});
            api.json(Json::StepFunctions, "CreateStateMachine", &request)?;
        }
        let code = Archive::default().executable("bootstrap", include_bytes!("stub.py").to_vec()).zip(6)?;
        for function in ["read-assembly", "publish-assets", "save-state", "resolve", "provision"] {
            create_function(api, &format!("stub-{function}"), &code)?;
        }
        Ok(Self { aws })
    }

    /// Runs a machine to its end.
    #[track_caller]
    fn run(&self, machine: &str, input: &Value) -> Run {
        let api = self.aws.api();
        let execution = api.start_execution(machine, input).unwrap();
        let outcome = api.wait(&execution).unwrap();
        Run { outcome, history: api.history(&execution).unwrap() }
    }

    /// Runs a machine and compares its route; returns how it ended.
    #[track_caller]
    fn check(&self, machine: &str, input: &Value, route: &str) -> Run {
        let run = self.run(machine, input);
        assert_eq!(run.route(), route, "{}", run.outcome);
        run
    }
}

/// An execution that has ended.
struct Run {
    outcome: Outcome,
    history: Vec<Value>,
}

impl Run {
    /// The states that were entered, in order; behind a Map state what its iterations entered, each under its stack.
    fn route(&self) -> String {
        // Where each event belongs: the iterations around it, outermost first.
        let mut places: HashMap<u64, Option<u64>> = HashMap::from([(0, None)]);
        let mut routes: BTreeMap<Option<u64>, Vec<String>> = BTreeMap::new();
        let mut order: BTreeMap<(u64, u64), u64> = BTreeMap::new();
        let mut maps: HashMap<String, u64> = HashMap::new();
        for event in &self.history {
            let id = event["id"].as_u64().unwrap();
            let mut place = places[&event["previousEventId"].as_u64().unwrap()];
            if let Some(name) = event["stateEnteredEventDetails"]["name"].as_str() {
                let route = routes.entry(place).or_default();
                if place.is_some() && route.is_empty() {
                    let input: Value =
                        serde_json::from_str(event["stateEnteredEventDetails"]["input"].as_str().unwrap())
                            .unwrap();
                    route.push(format!("{}:", input["ref"]["stack"].as_str().unwrap()));
                }
                route.push(name.to_owned());
                if event["type"] == "MapStateEntered" {
                    maps.insert(name.to_owned(), id);
                }
            }
            if event["type"] == "MapIterationStarted" {
                let details = &event["mapIterationStartedEventDetails"];
                let map = maps[details["name"].as_str().unwrap()];
                order.insert((map, details["index"].as_u64().unwrap()), id);
                place = Some(id);
            }
            places.insert(id, place);
        }
        let mut route = Vec::new();
        let mut entered = self.history.iter().filter(|event| {
            event["stateEnteredEventDetails"].is_object() && places[&event["id"].as_u64().unwrap()].is_none()
        });
        for name in routes.remove(&None).unwrap() {
            let id = entered.next().unwrap()["id"].as_u64().unwrap();
            let iterations: Vec<String> = order
                .range((id, 0)..(id + 1, 0))
                .map(|(_, iteration)| routes[&Some(*iteration)].join(", ").replacen(":,", ":", 1))
                .collect();
            route.push(if iterations.is_empty() {
                name
            } else {
                format!("{name} [{}]", iterations.join("; "))
            });
        }
        route.join(", ")
    }

    /// The payloads of the calls of a function with an action, in order.
    fn payloads(&self, function: &str, action: &str) -> Vec<Value> {
        let parameters = self.history.iter().filter_map(|event| {
            let text = event["taskScheduledEventDetails"]["parameters"].as_str()?;
            serde_json::from_str::<Value>(text).ok()
        });
        parameters
            .filter(|it| {
                it["FunctionName"] == format!("stub-{function}") && it["Payload"]["action"] == action
            })
            .map(|mut it| it["Payload"].take())
            .collect()
    }

    fn payload(&self, function: &str, action: &str) -> Value {
        let mut payloads = self.payloads(function, action);
        assert_eq!(payloads.len(), 1, "{function} {action}");
        payloads.remove(0)
    }

    /// The largest input or output of a state or a function, in bytes, and whose it is.
    fn largest_payload(&self) -> (usize, String) {
        let mut largest = (0, String::new());
        // The history does not show what the iterations of a Map give together.
        let mut together = 0;
        for event in &self.history {
            if event["type"] == "MapStateStarted" {
                together = 0;
            }
            if event["type"] == "MapIterationSucceeded" {
                let last = usize::try_from(event["previousEventId"].as_u64().unwrap()).unwrap();
                let output = &self.history[last - 1]["stateExitedEventDetails"]["output"];
                together += output.as_str().unwrap().len() + 1;
            }
            let details = event.as_object().unwrap().values().filter_map(Value::as_object);
            let texts = details.flat_map(|details| {
                ["input", "output", "parameters"].into_iter().filter_map(|field| details.get(field)?.as_str())
            });
            let bytes = texts.map(str::len).chain([together]).max().unwrap();
            if bytes > largest.0 {
                largest = (bytes, format!("event {}, {}", event["id"], event["type"].as_str().unwrap()));
            }
        }
        largest
    }

    /// Outcome of each stack, as `save-state` learns it in the end.
    fn outcomes(&self) -> String {
        let rows = self.payload("save-state", "finish")["rows"].take();
        let rows = rows.as_array().unwrap().iter();
        rows.map(|row| format!("{} {}", row["stack"].as_str().unwrap(), row["outcome"].as_str().unwrap()))
            .collect::<Vec<_>>()
            .join(", ")
    }
}

fn create_function(api: &Api, name: &str, code: &[u8]) -> Result<()> {
    use base64::Engine as _;
    let request = json!({
        "FunctionName": name,
        "Runtime": "provided.al2023",
        "Handler": "stub",
        "Role": ROLE,
        "Timeout": 10,
        "Code": {"ZipFile": base64::prelude::BASE64_STANDARD.encode(code)},
    });
    let body = request.to_string();
    let answer = api.rest("lambda", Method::POST, "/2015-03-31/functions", &[], body.as_bytes())?;
    assert!(answer.status.is_success(), "{}", answer.text());
    Ok(())
}

/// Levels of stacks, each with the names of what it needs: `"Db; Web Db, Jobs Db"`.
fn levels(text: &str) -> Value {
    let stack = |text: &str| {
        let mut words = text.split_whitespace();
        let name = words.next().unwrap();
        let needs: Vec<_> = words.map(|need| format!("{need}/us-east-1")).collect();
        json!({"stack": name, "region": "us-east-1", "needs": needs})
    };
    text.split(';').map(|level| level.split(',').map(stack).collect::<Value>()).collect()
}

/// As a function of cdkd fails.
fn failure(code: &str) -> Value {
    let cause = json!({"code": code, "message": "m", "hint": null, "details": {"stack": "Web"}});
    json!({"raise": [code, cause.to_string()]})
}

/// As `provision` says that it failed.
fn failed(message: &str) -> Value {
    let cause =
        json!({"code": "ProvisioningFailed", "message": message, "hint": "h", "details": {"logicalId": "L"}});
    json!({"status": "failed", "deletes": 0, "error": {"Error": "ProvisioningFailed", "Cause": cause.to_string()}})
}

fn locked(stack: &str) -> Value {
    json!({"stack": stack, "region": "us-east-1", "nonce": format!("nonce of {stack}")})
}

const HEAD: &str = "Read assembly, Anything to deploy?, Lock stacks, Did an earlier run die?, Prepare";
const APPLY: &str = "Resolve, Anything to change?, Apply, Applied?, Publish, Does the run still use it?";
const AT_ONCE: &str = "Clean up at once, Cleaned up at once?, Commit at once";
const CLEAN_UP: &str = "May it be cleaned up?, Clean up, Cleaned up?, Commit";
const HOLD_BACK: &str = "May it be cleaned up?, Commit";
const NEXT: &str = "Another level?";
const NEXT_UP: &str = "Another level to clean up?";
const GOOD: &str = "Finish, Did every stack succeed?, Deployed";
const BAD: &str = "Finish, Did every stack succeed?, Deploy failed";

/// A stack that is through at the end of its own apply, without deletes.
fn committed() -> String {
    format!("{APPLY}, Commit at once")
}

/// The same with deletes.
fn cleaned() -> String {
    format!("{APPLY}, {AT_ONCE}")
}

/// A stack whose deletes wait.
fn held() -> String {
    format!("{APPLY}, Applied")
}

/// The route of a deploy of `Web` alone.
fn alone(states: &str) -> String {
    format!("{HEAD}, Deploy level [Web: {states}], {NEXT}, {GOOD}")
}

#[test]
fn deploys_of_one_stack() {
    let machines = Machines::start().unwrap();
    let deploy =
        |script: Value, route: &str| machines.check("cdkd-deploy", &json!({"script": script}), route);

    // Creates and updates only.
    let run = deploy(json!({}), &alone(&committed()));
    let output = run.outcome.output.as_ref().unwrap();
    assert_eq!((&output["outcome"], &output["stacks"][0]["outcome"]), (&json!("deploy"), &json!("deployed")));
    assert_eq!(
        run.payload("save-state", "begin")["stacks"],
        json!([{"stack": "Web", "region": "us-east-1"}])
    );
    assert_eq!(run.payload("resolve", "prepare")["stacks"], json!([locked("Web")]));
    assert_eq!(run.payload("provision", "apply")["stack"], locked("Web"));
    let commit = run.payload("save-state", "commit");
    assert_eq!((&commit["stack"], &commit["cleaned"]), (&locked("Web"), &json!(true)));
    assert_eq!(run.payload("save-state", "finish")["error"], Value::Null);
    assert!(run.history.len() <= 100, "{} events", run.history.len());

    // In slices, with deletes that are known only after replacements were made.
    deploy(
        json!({"provision apply": [{"status": "more"}, {"status": "more"}, {"status": "done", "deletes": 1}],
               "provision cleanUp": [{"status": "more"}, {"status": "done"}]}),
        &alone(
            "Resolve, Anything to change?, Apply, Applied?, Apply, Applied?, Apply, Applied?, Publish, \
             Does the run still use it?, Clean up at once, Cleaned up at once?, Clean up at once, \
             Cleaned up at once?, Commit at once",
        ),
    );

    // Nothing but deletes; nothing but outputs; nothing at all.
    let publish = "Resolve, Anything to change?, Publish, Does the run still use it?";
    let published = format!("{publish}, Commit at once");
    deploy(json!({"resolve": [{"applies": 0, "deletes": 2}]}), &alone(&format!("{publish}, {AT_ONCE}")));
    deploy(json!({"resolve": [{"applies": 0}]}), &alone(&published));
    deploy(
        json!({"resolve": [{"outcome": "unchanged", "applies": 0}]}),
        &alone("Resolve, Anything to change?, Does the run still use it?, Commit at once"),
    );

    // An earlier run died; this one waits for its last invocation, then brings its calls to an end.
    let recovering = HEAD.replace(
        "Prepare",
        "Recover stacks [Web: Recover, Recovered?, Recover, Recovered?, Stack recovered], Did all recover?, Prepare",
    );
    let run = deploy(
        json!({"save-state begin": [{"recover": true}],
               "provision recover": [failure("EarlierInvocationAlive"), {"status": "more"}, {"status": "done"}]}),
        &alone(&committed()).replace(HEAD, &recovering),
    );
    assert_eq!(run.payloads("provision", "recover")[0]["stack"], locked("Web"));

    // What may pass is retried, and given up in the end.
    deploy(
        json!({"resolve": [failure("Throttled"), failure("ServiceUnavailable"), {"applies": 0}]}),
        &alone(&published),
    );
    let not_applied = |states: &str| {
        format!("{HEAD}, Deploy level [Web: {states}, Abort apply, Apply failed], {NEXT}, {BAD}")
    };
    let run = deploy(json!({"resolve": [failure("Throttled")]}), &not_applied("Resolve"));
    assert_eq!(run.outcome.error.as_deref(), Some("Throttled"));

    // A function that says it failed: the error is told in full.
    let long = "it failed ".repeat(1_000);
    let run = deploy(
        json!({"provision apply": [{"status": "more"}, failed(&long)]}),
        &not_applied("Resolve, Anything to change?, Apply, Applied?, Apply, Applied?"),
    );
    assert_eq!(run.outcome.error.as_deref(), Some("ProvisioningFailed"));
    let cause = run.outcome.cause_json();
    assert_eq!((cause["message"].as_str(), cause["hint"].as_str()), (Some(&*long), Some("h")));
    let details = &cause["details"];
    assert_eq!((&details["logicalId"], &details["told by abort"]), (&json!("L"), &json!(true)));
    assert_eq!(details["stacks"][0]["outcome"], "rolledBack");
    assert_eq!(run.payload("save-state", "abort")["stack"], locked("Web"));

    // Abort fails as well: the first error is the one that is told.
    let run = deploy(
        json!({"resolve": [failure("MissingParameter")], "save-state abort": [failure("InternalError")]}),
        &not_applied("Resolve"),
    );
    assert_eq!(run.outcome.error.as_deref(), Some("MissingParameter"));
    assert_eq!(run.outcome.cause_json()["code"], "MissingParameter");
    assert_eq!(run.outcomes(), "Web failed");

    // Clean-up fails, commit fails.
    let not_cleaned = |states: &str| {
        format!(
            "{HEAD}, Deploy level [Web: {APPLY}, {states}, Abort clean-up at once, Clean-up at once failed], {NEXT}, \
             {BAD}"
        )
    };
    let run = deploy(
        json!({"resolve": [{"deletes": 1}], "provision apply": [{"deletes": 1}], "provision cleanUp": [failed("m")]}),
        &not_cleaned("Clean up at once, Cleaned up at once?"),
    );
    assert_eq!(run.outcome.error.as_deref(), Some("ProvisioningFailed"));
    let commit = "Commit at once";
    let run = deploy(json!({"save-state commit": [failure("StateConflict")]}), &not_cleaned(commit));
    assert_eq!(run.outcome.error.as_deref(), Some("StateConflict"));
    // An answer that lacks what it has to have is a failure like any other.
    let run = deploy(json!({"save-state commit": [{"row": null}]}), &not_cleaned(commit));
    assert_eq!(run.outcome.error.as_deref(), Some("States.QueryEvaluationError"));

    // The result cannot be written, after a success and after a failure.
    let route = alone(&committed()).replace(GOOD, "Finish, Explain error, Deploy failed");
    let run = deploy(json!({"save-state finish": [failure("AccessDenied")]}), &route);
    assert_eq!(run.outcome.error.as_deref(), Some("AccessDenied"));
    let run = deploy(
        json!({"resolve": [failure("MissingParameter")], "save-state finish": [failure("AccessDenied")]}),
        &not_applied("Resolve").replace(BAD, "Finish, Explain error, Deploy failed"),
    );
    assert_eq!(run.outcome.error.as_deref(), Some("MissingParameter"));
}

#[test]
fn deploys_that_end_early() {
    let machines = Machines::start().unwrap();
    let deploy = |input: Value, route: &str| machines.check("cdkd-deploy", &input, route);

    // No stack to deploy; a dry run, without a lock.
    let run = deploy(json!({"levels": []}), "Read assembly, Anything to deploy?, Nothing to deploy");
    let nothing =
        json!({"outcome": "unchanged", "stacks": [], "notices": ["read"], "warnings": [], "result": null});
    assert_eq!(run.outcome.output, Some(nothing));
    let run = deploy(
        json!({"dryRun": true, "levels": levels("Db; Web Db")}),
        "Read assembly, Anything to deploy?, Plan",
    );
    let stacks = json!([{"stack": "Db", "region": "us-east-1"}, {"stack": "Web", "region": "us-east-1"}]);
    assert_eq!(run.outcome.output, Some(json!({"outcome": "planned", "stacks": stacks})));

    // Assets, before the lock: again until all are there, then nothing else if nothing else is asked for.
    let web = json!([{"stack": "Web", "region": "us-east-1"}]);
    let again =
        json!([{"done": false, "published": 1, "skipped": 3, "left": 2}, {"published": 2, "skipped": 4}]);
    let run = deploy(
        json!({"publish": web, "publishOnly": true, "script": {"publish-assets": again}}),
        "Read assembly, Anything to deploy?, Publish assets, All published?, Publish assets, All published?, \
         Published assets",
    );
    let answer = run.outcome.output.unwrap();
    assert_eq!(
        (&answer["outcome"], &answer["counts"]),
        (&json!("published"), &json!({"published": 3, "skipped": 3}))
    );
    deploy(json!({"publishOnly": true}), "Read assembly, Anything to deploy?, Published assets");
    let run = deploy(
        json!({"publish": web, "script": {"publish-assets": [failure("AccessDenied")]}}),
        "Read assembly, Anything to deploy?, Publish assets, Explain error, Deploy failed",
    );
    assert_eq!(run.outcome.error.as_deref(), Some("AccessDenied"));

    // Refused before the lock: our cause, unwrapped. What is not ours is put into that form.
    let refused = |answer: Value| {
        let input = json!({"script": {"read-assembly": [answer]}});
        deploy(input, "Read assembly, Explain error, Deploy failed").outcome
    };
    let outcome = refused(failure("InvalidAssembly"));
    assert_eq!(outcome.error.as_deref(), Some("InvalidAssembly"));
    assert_eq!(outcome.cause_json()["details"]["stack"], "Web");
    let outcome = refused(json!({"raise": ["Odd", "it broke \"here\""]}));
    let cause = json!({"code": "Odd", "message": "it broke \"here\"", "hint": null, "details": {}});
    assert_eq!((outcome.error.as_deref(), outcome.cause_json()), (Some("Odd"), cause));
    let outcome = refused(json!({"run": null}));
    assert_eq!(outcome.error.as_deref(), Some("States.QueryEvaluationError"));
    assert_eq!(outcome.cause_json()["code"], "States.QueryEvaluationError");

    // All or none: a lock, a preparation, an earlier run's calls.
    let two = levels("Db; Web Db");
    let run = deploy(
        json!({"levels": two, "script": {"save-state begin": [failure("StackLocked")]}}),
        "Read assembly, Anything to deploy?, Lock stacks, Abort all, Deploy failed",
    );
    assert_eq!(run.outcome.error.as_deref(), Some("StackLocked"));
    let abort = run.payload("save-state", "abort");
    assert_eq!((&abort["stacks"], &abort["error"]["Error"]), (&stacks, &json!("StackLocked")));
    let run = deploy(
        json!({"levels": two, "script": {"resolve prepare": [failure("StackHasActiveImportsError")]}}),
        &format!("{HEAD}, Abort all, Deploy failed"),
    );
    assert_eq!(run.outcome.error.as_deref(), Some("StackHasActiveImportsError"));
    assert_eq!(run.outcome.cause_json()["details"]["told by abort"], true);
    assert_eq!(run.payload("save-state", "abort")["stacks"], json!([locked("Db"), locked("Web")]));
    let run = deploy(
        json!({"levels": two, "script": {"save-state begin": [{"recover": true}],
               "provision recover Db": [failed("m")]}}),
        "Read assembly, Anything to deploy?, Lock stacks, Did an earlier run die?, Recover stacks \
         [Db: Recover, Recovered?, Stack not recovered; Web: Recover, Recovered?, Stack recovered], \
         Did all recover?, Abort all, Deploy failed",
    );
    assert_eq!(run.outcome.error.as_deref(), Some("ProvisioningFailed"));
    let run = deploy(
        json!({"script": {"resolve prepare": [failure("StackHasActiveImportsError")],
               "save-state abort": [failure("InternalError")]}}),
        &format!("{HEAD}, Abort all, Explain error, Deploy failed"),
    );
    assert_eq!(run.outcome.error.as_deref(), Some("StackHasActiveImportsError"));

    // What no Catch inside a level sees ends the whole run, with every lock put down.
    let run = deploy(
        json!({"levels": two, "script": {"provision apply": [{"status": null}]}}),
        &format!(
            "{HEAD}, Deploy level [Db: Resolve, Anything to change?, Apply, Applied?], Abort all, Deploy failed"
        ),
    );
    assert_eq!(run.outcome.error.as_deref(), Some("States.NoChoiceMatched"));
    assert_eq!(run.payload("save-state", "abort")["stacks"], json!([locked("Db"), locked("Web")]));
}

#[test]
fn deploys_of_several_stacks() {
    let machines = Machines::start().unwrap();
    let deploy = |levels_: &str, script: Value, route: &str| {
        machines.check("cdkd-deploy", &json!({"levels": levels(levels_), "script": script}), route)
    };
    let (committed, cleaned, held) = (committed(), cleaned(), held());

    // Producers first, each through at the end of its apply.
    let run = deploy(
        "Db; Web Db, Jobs Db",
        json!({"provision apply Db": [{"deletes": 1}], "provision apply Jobs": [{"deletes": 2}]}),
        &format!(
            "{HEAD}, Deploy level [Db: {cleaned}], {NEXT}, Deploy level [Web: {committed}; Jobs: {cleaned}], {NEXT}, \
             {GOOD}"
        ),
    );
    assert_eq!(run.outcomes(), "Db deployed, Web deployed, Jobs deployed");
    assert!(run.payloads("save-state", "release").is_empty());
    assert_eq!(run.payload("resolve", "prepare")["stacks"], json!(["Db", "Web", "Jobs"].map(locked)));

    // What others of the run use goes when they are through, in the order of the records: turned round here.
    let holding = json!([{"held": true}]);
    let run = deploy(
        "Db; Web Db; Edge Web",
        json!({"users": {"Web": ["Db"], "Edge": ["Web"]}, "resolve Web": holding, "resolve Edge": holding}),
        &format!(
            "{HEAD}, Deploy level [Db: {committed}], {NEXT}, Deploy level [Web: {held}], {NEXT}, \
             Deploy level [Edge: {held}], {NEXT}, Clean up level [Web: {CLEAN_UP}], {NEXT_UP}, \
             Clean up level [Edge: {CLEAN_UP}], {NEXT_UP}, {GOOD}"
        ),
    );
    assert_eq!(run.outcomes(), "Db deployed, Web deployed, Edge deployed");
    let commit = run.payloads("save-state", "commit");
    assert_eq!(commit.iter().map(|it| &it["cleaned"]).collect::<Vec<_>>(), [true, true, true]);

    // The producer fails: its consumer is not started, nor is the consumer's; the third stack is deployed.
    let failing = "Resolve, Anything to change?, Apply, Applied?, Abort apply, Apply failed";
    let run = deploy(
        "Db, Mail; Web Db, Jobs Mail; Edge Web Jobs",
        json!({"provision apply Db": [failed("m")], "resolve Mail": [{"deletes": 1}],
               "provision apply Mail": [{"deletes": 1}], "resolve Jobs": holding, "users": {"Jobs": ["Edge"]}}),
        &format!(
            "{HEAD}, Deploy level [Db: {failing}; Mail: {cleaned}], {NEXT}, Deploy level [Jobs: {held}], {NEXT}, \
             Deploy level, {NEXT}, Clean up level [Jobs: {HOLD_BACK}], {NEXT_UP}, Release, {BAD}"
        ),
    );
    assert_eq!(run.outcome.status, "FAILED");
    assert_eq!(run.outcome.error.as_deref(), Some("ProvisioningFailed"));
    // What a stack that was not started still imports is held back.
    assert_eq!(
        run.outcomes(),
        "Db rolledBack, Mail deployed, Web notStarted, Jobs deletesPending, Edge notStarted"
    );
    assert_eq!(run.outcome.cause_json()["details"]["stacks"].as_array().unwrap().len(), 5);
    assert_eq!(run.payload("save-state", "release")["stacks"], json!([locked("Web"), locked("Edge")]));
    assert_eq!(run.payload("save-state", "abort")["stack"], locked("Db"));

    // Clean-up of a consumer fails: what it may still use stays, through all that is between; others go on.
    let run = deploy(
        "Db, Mail; Web Db, Jobs Mail",
        json!({"users": {"Mail": ["Jobs"], "Db": ["Web"], "Net": ["Db"]}, "resolve Db": holding,
               "resolve Mail": holding, "provision apply Web": [{"deletes": 1}],
               "provision cleanUp Web": [failed("m")], "save-state abort Web": [{"outcome": "deletesPending"}]}),
        &format!(
            "{HEAD}, Deploy level [Db: {held}; Mail: {held}], {NEXT}, Deploy level [Web: {APPLY}, Clean up at once, \
             Cleaned up at once?, Abort clean-up at once, Clean-up at once failed; Jobs: {committed}], \
             {NEXT}, Clean up level [Db: {HOLD_BACK}; Mail: {CLEAN_UP}], {NEXT_UP}, {BAD}"
        ),
    );
    assert_eq!(run.outcomes(), "Db deletesPending, Mail deployed, Web deletesPending, Jobs deployed");
    let commits = run.payloads("save-state", "commit");
    let cleaned_of =
        |stack: &str| &commits.iter().find(|it| it["stack"] == locked(stack)).unwrap()["cleaned"];
    assert_eq!((cleaned_of("Db"), cleaned_of("Mail")), (&json!(false), &json!(true)));

    // Two that are held, one behind the other; the first cannot be cleaned up: nor can the second.
    let run = deploy(
        "Net; Db Net; Web Db",
        json!({"users": {"Net": ["Db"], "Db": ["Web"]}, "resolve Net": holding, "resolve Db": holding,
               "provision cleanUp Db": [failed("m")], "save-state abort Db": [{"outcome": "deletesPending"}]}),
        &format!(
            "{HEAD}, Deploy level [Net: {held}], {NEXT}, Deploy level [Db: {held}], {NEXT}, \
             Deploy level [Web: {committed}], {NEXT}, Clean up level [Db: May it be cleaned up?, Clean up, Cleaned up?, \
             Abort clean-up, Clean-up failed], {NEXT_UP}, Clean up level [Net: {HOLD_BACK}], {NEXT_UP}, {BAD}"
        ),
    );
    assert_eq!(run.outcomes(), "Net deletesPending, Db deletesPending, Web deployed");

    // Two fail, in two levels: the first error is told. That locks could not be released changes nothing.
    let run = deploy(
        "Db, Mail; Web Db, Jobs Mail",
        json!({"provision apply Db": [failed("first")], "provision apply Jobs": [failed("second")],
               "save-state release": [failure("InternalError")]}),
        &format!(
            "{HEAD}, Deploy level [Db: {failing}; Mail: {committed}], {NEXT}, Deploy level [Jobs: {failing}], {NEXT}, \
             Release, {BAD}"
        ),
    );
    assert_eq!(run.outcome.cause_json()["message"], "first");
    assert_eq!(run.outcomes(), "Db rolledBack, Mail deployed, Web notStarted, Jobs rolledBack");

    // One name in two regions is two stacks.
    let two = json!([
        [{"stack": "Web", "region": "us-east-1", "needs": []}],
        [{"stack": "Web", "region": "eu-west-1", "needs": ["Web/us-east-1"]}],
    ]);
    let run = machines.run("cdkd-deploy", &json!({"levels": two}));
    assert!(run.outcome.succeeded(), "{}", run.outcome);
    let rows = run.payload("save-state", "finish")["rows"].take();
    let regions: Vec<_> =
        rows.as_array().unwrap().iter().map(|row| row["region"].as_str().unwrap()).collect();
    assert_eq!(regions, ["us-east-1", "eu-west-1"]);
}

#[test]
fn destroys() {
    let machines = Machines::start().unwrap();
    let destroy = |levels_: &str, script: Value, route: &str| {
        machines.check("cdkd-destroy", &json!({"levels": levels(levels_), "script": script}), route)
    };
    let head = "Lock stacks, Did an earlier run die?, Prepare";
    let gone = "Resolve, Clean up, Cleaned up?, Commit";
    let good = "Finish, Did every stack succeed?, Destroyed";
    let bad = "Finish, Did every stack succeed?, Destroy failed";

    let run = destroy(
        "Web",
        json!({"provision cleanUp": [{"status": "more"}, {"status": "done"}]}),
        &format!(
            "{head}, Destroy level [Web: Resolve, Clean up, Cleaned up?, Clean up, Cleaned up?, Commit], {NEXT}, {good}"
        ),
    );
    assert_eq!(run.outcome.output.as_ref().unwrap()["stacks"][0]["outcome"], "destroyed");
    assert_eq!(run.payload("save-state", "commit")["stack"], locked("Web"));
    destroy(
        "Web",
        json!({"save-state begin": [{"recover": true}]}),
        &format!(
            "Lock stacks, Did an earlier run die?, Recover stacks [Web: Recover, Recovered?, Stack recovered], \
             Did all recover?, Prepare, Destroy level [Web: {gone}], {NEXT}, {good}"
        ),
    );

    // A chain, consumers first.
    let run = destroy(
        "Edge Web; Web Db; Db",
        json!({}),
        &format!(
            "{head}, Destroy level [Edge: {gone}], {NEXT}, Destroy level [Web: {gone}], {NEXT}, \
             Destroy level [Db: {gone}], {NEXT}, {good}"
        ),
    );
    assert_eq!(run.outcomes(), "Edge destroyed, Web destroyed, Db destroyed");

    // The consumer fails: its producer, and what that one needs, is not started; others go.
    let run = destroy(
        "Web Db, Jobs Mail; Db Net, Mail; Net",
        json!({"provision cleanUp Web": [failed("m")]}),
        &format!(
            "{head}, Destroy level [Web: Resolve, Clean up, Cleaned up?, Abort stack, Stack failed; Jobs: {gone}], \
             {NEXT}, Destroy level [Mail: {gone}], {NEXT}, Destroy level, {NEXT}, Release, {bad}"
        ),
    );
    assert_eq!(
        run.outcomes(),
        "Web rolledBack, Jobs destroyed, Db notStarted, Mail destroyed, Net notStarted"
    );
    assert_eq!(run.payload("save-state", "release")["stacks"], json!([locked("Db"), locked("Net")]));
    assert_eq!(run.outcome.error.as_deref(), Some("ProvisioningFailed"));

    // Refused: a lock, a consumer outside the run.
    let run = destroy(
        "Web",
        json!({"save-state begin": [failure("StackNotFound")]}),
        "Lock stacks, Abort all, Destroy failed",
    );
    let abort = run.payload("save-state", "abort");
    assert_eq!((&abort["run"]["operation"], &abort["stacks"]), (&json!("destroy"), &json!([])));
    assert_eq!(run.outcome.error.as_deref(), Some("StackNotFound"));
    let run = destroy(
        "Web Db; Db",
        json!({"resolve prepare": [failure("StackHasActiveImportsError")]}),
        &format!("{head}, Abort all, Destroy failed"),
    );
    assert_eq!(run.payload("save-state", "abort")["stacks"], json!([locked("Web"), locked("Db")]));
}

/// Rules F1 and F2, with room for the slices of long runs.
#[test]
fn a_hundred_stacks() {
    let machines = Machines::start().unwrap();
    // Names as long as stages and modules make them; every stack needs all ten of the level before.
    let name = |level: usize, index: usize| {
        format!("Company-Production-Stage-Module{level:02}-Service{index:02}-Stack")
    };
    let id = |name: &str| format!("{name}/ap-southeast-1");
    let ten: Value = (0..10)
        .map(|level: usize| {
            (0..10)
                .map(|index| {
                    let needs: Vec<_> = match level.checked_sub(1) {
                        Some(before) => (0..10).map(|index| id(&name(before, index))).collect(),
                        None => Vec::new(),
                    };
                    json!({"stack": name(level, index), "region": "ap-southeast-1", "needs": needs})
                })
                .collect::<Value>()
        })
        .collect();
    let one: Value = [(0..100)
        .map(|index| json!({"stack": name(0, index), "region": "ap-southeast-1", "needs": []}))
        .collect::<Value>()]
    .into_iter()
    .collect();
    let chain: Value = (0..100)
        .map(|index: usize| {
            let needs: Vec<_> = index.checked_sub(1).map(|before| id(&name(before, 0))).into_iter().collect();
            json!([{"stack": name(index, 0), "region": "ap-southeast-1", "needs": needs}])
        })
        .collect();
    let consumers_first: Value = ten.as_array().unwrap().iter().rev().cloned().collect();
    let check = |machine: &str, what: &str, levels: &Value, script: Value, per_stack: usize| {
        let start = std::time::Instant::now();
        let run = machines.run(machine, &json!({"levels": levels, "script": script}));
        let (bytes, whose) = run.largest_payload();
        println!(
            "{what}: {}, {} events, {bytes} bytes ({whose}), {:.1} s",
            run.outcome.status,
            run.history.len(),
            start.elapsed().as_secs_f32()
        );
        assert!(bytes < 200_000, "{what}: {bytes} bytes: {whose}");
        assert!(run.history.len() <= per_stack * 100, "{what}: {} events", run.history.len());
        run
    };
    let deploys = "cdkd-deploy";
    let unchanged = json!({"resolve": [{"outcome": "unchanged", "applies": 0}]});
    let run = check(deploys, "unchanged", &ten, unchanged, 40);
    assert!(run.outcome.succeeded(), "{}", run.outcome);
    let changed = json!({"provision apply": [{"deletes": 1}]});
    let run = check(deploys, "changed, in a chain", &chain, changed, 60);
    assert!(run.outcome.succeeded(), "{}", run.outcome);
    assert_eq!(run.outcome.output.unwrap()["stacks"].as_array().unwrap().len(), 100);
    let run = check("cdkd-destroy", "destroyed", &consumers_first, json!({}), 60);
    assert!(run.outcome.succeeded(), "{}", run.outcome);
    // Every stack fails, with much to say.
    let all_fail = json!({"provision apply": [failed(&"it failed ".repeat(300))]});
    let run = check(deploys, "failed", &one, all_fail, 60);
    assert_eq!(run.outcome.error.as_deref(), Some("ProvisioningFailed"));
    assert_eq!(run.outcome.cause_json()["details"]["stacks"].as_array().unwrap().len(), 100);
    assert!(run.outcome.cause.unwrap().len() <= 32_768);
}
