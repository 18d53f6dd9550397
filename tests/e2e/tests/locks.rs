//! Locks: whose they are, when they are free, and what goes when their holder is gone.

#![allow(clippy::unwrap_used, reason = "what goes wrong in a test's own helpers fails the test")]

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use cdkd_e2e::{Stack, World, world_of};
use cdkd_test_support::{Json, Options};
use cdkd_wire::{Rule, When};
use serde_json::{Value, json};

/// Seconds that a function may take: what is waited for behind one that died.
const TIME_LIMIT: u32 = 8;
const HALF_AN_HOUR: u64 = 1_800_000;

fn world() -> Arc<World> {
    world_of(Options::default().time_limit(TIME_LIMIT))
}

fn parameter(name: &str, value: &str) -> Stack {
    let properties = json!({ "Type": "String", "Value": value });
    Stack::with(name, &json!({ "P": { "Type": "AWS::SSM::Parameter", "Properties": properties } }))
}

fn lock_key(stack: &str) -> String {
    format!("cdkd/{stack}/us-east-1/lock.json")
}

/// Locks a stack for an execution, or for another tool, until half an hour from now.
fn lock(world: &World, stack: &str, execution: Option<&str>, nonce: &str) -> Vec<u8> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis();
    let now = u64::try_from(now).unwrap();
    let mut lock = json!({
        "owner": "someone", "timestamp": now, "expiresAt": now + HALF_AN_HOUR, "operation": "deploy",
    });
    if let Some(execution) = execution {
        lock["execution"] = json!(execution);
        lock["nonce"] = json!(nonce);
    }
    let body = lock.to_string().into_bytes();
    world.aws.api().put_object(world.aws.state_bucket(), &lock_key(stack), &body).unwrap();
    body
}

/// An execution that has failed.
fn ended(world: &World) -> String {
    world.run("cdkd-deploy", &json!({ "assembly": "s3://cdkd-there-is-no-such-bucket/a.zip" })).execution
}

#[test]
fn l5_the_lock_of_an_ended_execution_is_taken_over_at_once() {
    let world = world();
    let _turn = world.among_others();
    let dead = ended(&world);
    lock(&world, "DeadLock", Some(&dead), "n");
    world.deploy(parameter("DeadLock", "1"));
    world.check_put_down("DeadLock");
    lock(&world, "DeadLock", Some(&dead), "n");
    world.destroy("DeadLock");
    world.check_not_on_record("DeadLock");
}

#[test]
fn l10_old_versions_of_locks_journals_and_the_index_do_not_pile_up() {
    let world = world();
    let _turn = world.among_others();
    for value in ["1", "2", "3"] {
        let mut template =
            json!({ "Outputs": { "O": { "Value": value, "Export": { "Name": "piled-up" } } } });
        let properties = json!({ "Type": "String", "Value": value });
        template["Resources"] = json!({ "P": { "Type": "AWS::SSM::Parameter", "Properties": properties } });
        world.deploy(Stack::new("PiledUp", &template));
        world.check_put_down("PiledUp");
    }
    world.destroy("PiledUp");
    world.check_put_down("PiledUp");
    let index = "cdkd/_index/us-east-1/exports.json";
    let (api, began) = (world.aws.api(), Instant::now());
    loop {
        // Events of other tests may be writing it just now.
        let versions = api.list_versions(world.aws.state_bucket(), index).unwrap();
        if versions.len() == 1 && versions.iter().all(|version| version.latest && !version.deleted) {
            break;
        }
        assert!(began.elapsed() < Duration::from_mins(1), "{versions:?}");
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// Another run has the stack now, or this one has been redriven after it: no step of it touches anything any more, and
/// what is under way stops at its next step.
#[test]
fn l14_a_step_that_finds_the_lock_not_its_own_stops_before_any_call() {
    let world = world();
    let _alone = world.alone();
    let api = world.aws.api();
    world.deploy(parameter("Overtaken", "1"));
    let other = ended(&world);
    let update = Rule::on("cloudcontrol", "UpdateResource").resource("Overtaken");
    let gate = world.aws.wire().hold(update, When::Before);
    let input = json!({ "assembly": world.upload(&parameter("Overtaken", "2").into()) });
    let mine = api.start_execution("cdkd-deploy", &input).unwrap();
    gate.wait_until_held(Duration::from_mins(1)).unwrap();
    let nonce = world.aws.lock("Overtaken").unwrap().unwrap()["nonce"].clone();
    let run = json!({
        "execution": mine, "name": mine.rsplit(':').next().unwrap(), "operation": "deploy", "dryRun": false,
    });
    let stack = json!({ "stack": "Overtaken", "region": "us-east-1", "nonce": nonce });
    let steps = [
        ("cdkd-save-state", "publish"),
        ("cdkd-save-state", "commit"),
        ("cdkd-provision", "recover"),
        ("cdkd-provision", "apply"),
        ("cdkd-provision", "cleanUp"),
    ];
    let before = world.record("Overtaken");
    let mut held = Vec::new();
    for (execution, nonce) in [(mine.as_str(), "n2"), (other.as_str(), "n")] {
        held = lock(&world, "Overtaken", Some(execution), nonce);
        for (function, action) in steps {
            let payload = json!({ "action": action, "run": run, "stack": stack });
            let mark = world.mark();
            let error = api.invoke(function, &payload).unwrap_err();
            assert_eq!(error.code(), Some("LockLostError"), "{function} {action}: {error}");
            assert_eq!(world.cloud_control(mark), 0, "{function} {action}");
            assert_eq!(world.writes(mark, "Overtaken"), [""; 0], "{function} {action}");
        }
    }
    assert_eq!(world.record("Overtaken"), before);
    let rule = gate.rule();
    gate.release();
    let outcome = api.wait(&mine).unwrap();
    world.aws.wire().remove_rule(rule);
    assert_eq!(outcome.error.as_deref(), Some("LockLostError"), "{outcome}");
    // The end of the run leaves the other one's lock alone.
    let now = api.get_object(world.aws.state_bucket(), &lock_key("Overtaken")).unwrap();
    assert_eq!(now, Some(held));
    world.deploy(parameter("Overtaken", "3"));
    world.destroy("Overtaken");
    world.check_not_on_record("Overtaken");
}

#[test]
fn f3_the_same_deploy_event_twice_starts_one_run_and_a_later_redo_is_another() {
    let world = world();
    let _turn = world.among_others();
    let api = world.aws.api();
    let gate = world.aws.wire().hold(Rule::on("cloudcontrol", "CreateResource").body("Twice"), When::Before);
    let input = json!({ "assembly": world.upload(&parameter("Twice", "1").into()) });
    let first = api.start_named_execution("cdkd-deploy", "build-17", &input).unwrap();
    gate.wait_until_held(Duration::from_mins(1)).unwrap();
    assert_eq!(api.start_named_execution("cdkd-deploy", "build-17", &input).unwrap(), first);
    let rule = gate.rule();
    gate.release();
    assert!(api.wait(&first).unwrap().succeeded());
    world.aws.wire().remove_rule(rule);
    // As late as can be: it has ended.
    let late = api.start_named_execution("cdkd-deploy", "build-17", &input).unwrap_err();
    assert_eq!(late.code(), Some("ExecutionAlreadyExists"), "{late}");
    let redo = api.start_named_execution("cdkd-deploy", "build-17-again", &input).unwrap();
    let redo = api.wait(&redo).unwrap();
    assert_eq!(redo.output.as_ref().unwrap()["outcome"], "unchanged", "{redo}");
    world.destroy("Twice");
}

/// The event of an execution's end is lost; the schedule's finds what it left.
#[test]
fn f7_what_no_catch_saw_leaves_no_lock_beyond_the_next_sweep() {
    let world = world();
    let _alone = world.alone();
    let api = world.aws.api();
    let rule = json!({ "Name": "cdkd-sweep-schedule" });
    let found = api.json(Json::Events, "DescribeRule", &rule).unwrap();
    assert_eq!(
        (&found["ScheduleExpression"], &found["State"]),
        (&json!("rate(15 minutes)"), &json!("ENABLED"))
    );
    let targets =
        api.json(Json::Events, "ListTargetsByRule", &json!({ "Rule": "cdkd-sweep-schedule" })).unwrap();
    let sweep: Value = serde_json::from_str(targets["Targets"][0]["Input"].as_str().unwrap()).unwrap();
    let told = |enabled: bool| {
        let operation = if enabled { "EnableRule" } else { "DisableRule" };
        api.json(Json::Events, operation, &json!({ "Name": "cdkd-sweep" })).unwrap();
    };

    // A run is stopped in the middle of its work, and nobody is told.
    told(false);
    let gate = world.aws.wire().hold(Rule::on("cloudcontrol", "CreateResource").body("Swept"), When::After);
    let input = json!({ "assembly": world.upload(&parameter("Swept", "1").into()) });
    let stopped = api.start_execution("cdkd-deploy", &input).unwrap();
    gate.wait_until_held(Duration::from_mins(1)).unwrap();
    // What runs, another tool's, and that of an execution that is none of ours are left alone.
    let untouched = api.invoke("cdkd-save-state", &sweep).unwrap();
    assert_eq!(untouched["swept"], 0, "{untouched}");
    api.stop_execution(&stopped).unwrap();
    assert_eq!(api.wait(&stopped).unwrap().status, "ABORTED");
    let rule = gate.rule();
    gate.release();
    world.aws.wire().remove_rule(rule);
    let tool = lock(&world, "OfATool", None, "");
    let strange = "arn:aws:states:us-east-1:123456789012:execution:another-machine:e";
    let others = lock(&world, "OfAnother", Some(strange), "n");
    // One of a run whose documents are gone.
    lock(&world, "OfLongAgo", Some(&ended(&world)), "n");
    // And one that cannot be read keeps nobody else's.
    api.put_object(world.aws.state_bucket(), &lock_key("Broken"), b"{").unwrap();

    let began = Instant::now();
    let swept = loop {
        match api.invoke("cdkd-save-state", &sweep) {
            Ok(swept) => break swept,
            // The schedule comes again.
            Err(error) => {
                assert_eq!(error.code(), Some("EarlierInvocationAlive"), "{error}");
                assert!(began.elapsed() < Duration::from_mins(1), "{error}");
            }
        }
    };
    told(true);
    assert!(swept["swept"].as_u64().is_some_and(|swept| swept >= 1), "{swept}");
    let left = |stack: &str| api.get_object(world.aws.state_bucket(), &lock_key(stack)).unwrap();
    assert_eq!((left("Swept"), left("OfLongAgo")), (None, None));
    assert_eq!((left("OfATool"), left("OfAnother")), (Some(tool), Some(others)));
    assert_eq!(left("Broken").as_deref(), Some(b"{".as_slice()));
    for stack in ["OfATool", "OfAnother", "Broken"] {
        api.delete_object(world.aws.state_bucket(), &lock_key(stack)).unwrap();
    }

    // What was made is not lost, and not made twice.
    world.deploy(parameter("Swept", "1"));
    world.destroy("Swept");
    world.check_not_on_record("Swept");
}
