//! Locks: whose they are, when they are free, and what goes when their holder is gone.

#![allow(clippy::unwrap_used, reason = "what goes wrong in a test's own helpers fails the test")]

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use cdkd_e2e::{PATIENCE, Stack, World, world_of};
use cdkd_test_support::{Json, Options};
use cdkd_wire::{Entry, Rule, RuleBuilder, When};
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

fn now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis();
    u64::try_from(now).unwrap()
}

/// The latest deadline in the journal of a stack.
fn deadline(world: &World, stack: &str) -> u64 {
    let (api, bucket) = (world.aws.api(), world.aws.state_bucket());
    let bodies = api.list_objects(bucket, &format!("cdkd-journal/cdkd/{stack}/")).unwrap();
    let bodies = bodies.iter().filter_map(|key| api.get_object(bucket, key).unwrap());
    let deadlines = bodies.flat_map(|body| {
        let document: Value = serde_json::from_slice(&body).unwrap();
        let entries = document["entries"].as_array().cloned().unwrap_or_default();
        entries.into_iter().filter_map(|entry| entry["deadline"].as_u64())
    });
    deadlines.max().unwrap()
}

fn held_in(world: &World, stack: &str) -> Option<String> {
    let name = world.physical_id(stack, "P");
    let value = world.aws.api().parameter(&name).unwrap();
    value.and_then(|it| it["Value"].as_str().map(str::to_owned))
}

/// The request of this number, once it has been answered.
fn answered(world: &World, seq: u64) -> Entry {
    let began = Instant::now();
    loop {
        let entry = world.since(seq - 1).into_iter().next().unwrap();
        if entry.took_us.is_some() {
            return entry;
        }
        assert!(began.elapsed() < PATIENCE, "{entry:?}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// The function of a stopped execution may be at work still. Whoever takes over waits until
/// Lambda has surely ended it, and reads the record only then.
#[test]
fn l11_nothing_is_read_before_a_stopped_ones_function_has_met_its_deadline() {
    let world = world();
    let _alone = world.alone();
    let _quiet = world.quiet();
    let api = world.aws.api();
    world.deploy(parameter("Outlived", "one"));
    let update = Rule::on("cloudcontrol", "UpdateResource").resource("Outlived-").nth(1);
    let gate = world.aws.wire().hold(update, When::Before);
    let first = world.start_deploy(parameter("Outlived", "two"), json!({}));
    let seq = gate.wait_until_held(PATIENCE).unwrap().seq;
    // It came no later than this: the wire's clock by ours.
    let (by_then, held) = (now(), world.since(seq - 1).remove(0));
    let deadline = deadline(&world, "Outlived");
    assert!(by_then < deadline, "held at {by_then}, deadline {deadline}");
    api.stop_execution(&first).unwrap();
    let second = world.start_deploy(parameter("Outlived", "three"), json!({}));
    // The request is never let go: nothing waits for that.
    let outcome = api.wait(&second).unwrap();
    assert!(outcome.succeeded(), "{outcome}");
    assert_eq!(held_in(&world, "Outlived").as_deref(), Some("three"));
    let log = world.since(seq);
    let looks: Vec<&Entry> = log
        .iter()
        .filter(|it| it.function.as_deref() != Some("cdkd-read-assembly"))
        .filter(|it| {
            it.resource.ends_with("/cdkd/Outlived/us-east-1/state.json")
                || it.resource.contains("Outlived-P-")
        })
        .collect();
    assert!(looks.len() > 3, "{looks:#?}");
    for look in looks {
        let at = by_then + (look.at_us - held.at_us) / 1000;
        assert!(at >= deadline, "{} ms before the deadline: {look:#?}", deadline - at);
    }
    // What comes even later is known under its token.
    gate.release();
    answered(&world, seq);
    world.aws.wire().remove_rule(gate.rule());
    assert_eq!(held_in(&world, "Outlived").as_deref(), Some("three"));
    world.check_put_down("Outlived");
    world.destroy("Outlived");
    world.check_not_on_record("Outlived");
}

/// Whatever a stopped execution's function is about to write or call: when another run has taken over, it has no effect.
#[test]
fn l11_what_a_stopped_ones_function_does_late_has_no_effect() {
    let world = world();
    let _alone = world.alone();
    // A sweep would begin a new journal, and what is late would fall upon other numbers of it.
    let _quiet = world.quiet();
    let object = |operation: &str, place: &str, function: &str| {
        Rule::on("s3", operation).resource(place).function(function)
    };
    let journal =
        |stack: &str| object("PutObject", &format!("/cdkd-journal/cdkd/{stack}/"), "cdkd-provision");
    let document = |operation: &str, stack: &str, name: &str, function: &str| {
        object(operation, &format!("/cdkd/{stack}/us-east-1/{name}"), function)
    };
    // The stack, what of it is late, and what S3 says to it; a call is answered as it was the first time.
    let table: Vec<(&str, RuleBuilder, u16)> = vec![
        ("LateFence", journal("LateFence").nth(1), 412),
        ("LateIntent", journal("LateIntent").nth(2), 412),
        ("LateOutcome", journal("LateOutcome").nth(4), 412),
        ("LateCall", Rule::on("cloudcontrol", "UpdateResource").resource("LateCall-").nth(1), 200),
        ("LateSlice", document("PutObject", "LateSlice", "state.json", "cdkd-provision").nth(1), 412),
        ("LateCommit", document("PutObject", "LateCommit", "state.json", "cdkd-save-state").nth(1), 412),
        ("LateUnlock", document("DeleteObject", "LateUnlock", "lock.json", "cdkd-save-state").nth(1), 412),
    ];
    std::thread::scope(|scope| {
        for (stack, requests, status) in table {
            let world = &world;
            scope.spawn(move || late(world, stack, requests, status));
        }
    });
}

/// A function has found itself in the lock and read the journal; then others take over and come to their end, which
/// removes the journal. Its fence is stored, and it finds that it came too late.
#[test]
fn l11_a_fence_in_a_journal_that_is_over_lets_nothing_through() {
    let world = world();
    let _alone = world.alone();
    let _quiet = world.quiet();
    let (api, bucket, stack) = (world.aws.api(), world.aws.state_bucket(), "Overdue");
    let journal = format!("cdkd-journal/cdkd/{stack}/");
    let other = ended(&world);
    world.deploy(parameter(stack, "one"));
    let fence =
        Rule::on("s3", "PutObject").resource(&format!("/{journal}")).function("cdkd-provision").nth(1);
    let gate = world.aws.wire().hold(fence, When::Before);
    let first = world.start_deploy(parameter(stack, "two"), json!({}));
    let seq = gate.wait_until_held(PATIENCE).unwrap().seq;
    let began = Instant::now();
    api.stop_execution(&first).unwrap();
    for version in api.list_versions(bucket, &journal).unwrap() {
        api.delete_object_version(bucket, &version.key, &version.version).unwrap();
    }
    let foreign = lock(&world, stack, Some(&other), "n");
    let (before, mark) = (world.record(stack), world.mark());
    gate.release();
    assert_eq!(answered(&world, seq).status, Some(200));
    let alive = began.elapsed() < Duration::from_secs(u64::from(TIME_LIMIT) / 2);
    // The function removes its fence; one that Lambda has ended does not.
    while alive && !api.list_versions(bucket, &journal).unwrap().is_empty() {
        assert!(began.elapsed() < PATIENCE, "{:#?}", world.since(seq));
        std::thread::sleep(Duration::from_millis(100));
    }
    while began.elapsed() < Duration::from_secs(u64::from(TIME_LIMIT) + 1) {
        std::thread::sleep(Duration::from_millis(100));
    }
    world.aws.wire().remove_rule(gate.rule());
    assert_eq!(world.mutations(mark), [""; 0]);
    assert_eq!(world.record(stack), before);
    assert_eq!(api.get_object(bucket, &lock_key(stack)).unwrap(), Some(foreign));
    world.deploy(parameter(stack, "three"));
    assert_eq!(held_in(&world, stack).as_deref(), Some("three"));
    world.check_put_down(stack);
    world.destroy(stack);
    world.check_not_on_record(stack);
}

fn late(world: &World, stack: &str, requests: RuleBuilder, status: u16) {
    let (api, wire) = (world.aws.api(), world.aws.wire());
    let app = |value: &str| {
        let properties = json!({ "Type": "String", "Value": value });
        let resources = json!({ "P": { "Type": "AWS::SSM::Parameter", "Properties": properties } });
        Stack::new(stack, &json!({ "Resources": resources, "Outputs": { "Out": { "Value": value } } }))
    };
    world.deploy(app("one"));
    let late = wire.hold(requests, When::Before);
    let first = world.start_deploy(app("two"), json!({}));
    let seq = late.wait_until_held(PATIENCE).unwrap().seq;
    api.stop_execution(&first).unwrap();
    let update =
        Rule::on("cloudcontrol", "UpdateResource").resource(&format!("{stack}-")).body("three").nth(1);
    let next = wire.hold(update, When::Before);
    let second = world.start_deploy(app("three"), json!({}));
    // It has taken over, settled what it found, and is about to go on.
    next.wait_until_held(PATIENCE).unwrap();
    let bucket = world.aws.state_bucket();
    let picture = || {
        let journal = api.list_objects(bucket, &format!("cdkd-journal/cdkd/{stack}/")).unwrap();
        let record = api.get_object(bucket, &format!("cdkd/{stack}/us-east-1/state.json")).unwrap();
        let lock = api.get_object(bucket, &lock_key(stack)).unwrap();
        (journal, record, lock, held_in(world, stack))
    };
    let before = picture();
    assert!(before.2.is_some(), "{stack}: not locked");
    let calls = Rule::on("cloudcontrol", "UpdateResource").resource(&format!("{stack}-")).body("two");
    let calls = world.rule(calls.delay_before(Duration::ZERO));
    late.release();
    let entry = answered(world, seq);
    assert_eq!(entry.status, Some(status), "{stack}: {entry:#?}");
    assert_eq!(picture(), before, "{stack}");
    next.release();
    let outcome = api.wait(&second).unwrap();
    assert!(outcome.succeeded(), "{stack}: {outcome}");
    wire.remove_rule(late.rule());
    wire.remove_rule(next.rule());
    assert_eq!(calls.fired(), 0, "{stack}: what was late has gone on");
    assert_eq!(held_in(world, stack).as_deref(), Some("three"), "{stack}");
    world.check_put_down(stack);
    world.destroy(stack);
    world.check_not_on_record(stack);
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
