//! A consumer and a producer at work at the same time: the wire orders their requests (rules E22, E25, E26).

#![allow(clippy::unwrap_used, reason = "what goes wrong in a test's own helpers fails the test")]

use std::time::{Duration, Instant};

use cdkd_e2e::{App, Gate, PATIENCE, World, consumer, destroy_refused, producer, producer_of, says, world};
use cdkd_wire::{Rule, RuleBuilder, When};
use serde_json::json;

/// A run of two that race.
struct Racer<'a> {
    world: &'a World,
    execution: String,
}

impl<'a> Racer<'a> {
    fn deploy(world: &'a World, app: impl Into<App>) -> Self {
        let input = json!({ "assembly": world.upload(&app.into()) });
        Self { world, execution: world.aws.api().start_execution("cdkd-deploy", &input).unwrap() }
    }

    fn destroy(world: &'a World, stack: &str) -> Self {
        let input = json!({ "stacks": [stack] });
        Self { world, execution: world.aws.api().start_execution("cdkd-destroy", &input).unwrap() }
    }

    /// The error it ended with, nothing for success.
    fn end(&self) -> Option<String> {
        let outcome = self.world.aws.api().wait(&self.execution).unwrap();
        if outcome.succeeded() {
            return None;
        }
        assert_eq!(outcome.status, "FAILED", "{outcome}");
        Some(outcome.error.clone().unwrap_or_default())
    }
}

/// Never both; and a consumer that lives has a producer that lives.
#[track_caller]
fn check_race(world: &World, producer: &str, url: &str, consumer: &str) {
    let alive = world.aws.record(consumer).unwrap().is_some();
    let source = world.aws.record(producer).unwrap().is_some();
    assert_eq!(source, world.queue_lives(url), "{producer}: record and queue");
    assert!(!alive || source, "{consumer} lives on a producer that is gone");
    for stack in [producer, consumer] {
        world.check_put_down(stack);
    }
    if source {
        let record = world.record(producer);
        assert!(record.get("withdrawing").is_none(), "{record:#}");
        assert!(!record["exportNames"].as_array().unwrap().is_empty(), "{record:#}");
    }
    if alive {
        let cause = world.try_destroy(&[producer]).refused("StackHasActiveImportsError");
        says(&cause, &[consumer]);
        world.destroy(consumer);
    } else {
        world.check_not_on_record(consumer);
    }
    if source {
        world.destroy(producer);
    }
    world.check_not_on_record(producer);
}

fn record_write(stack: &str) -> RuleBuilder {
    Rule::on("s3", "PutObject").resource(&format!("*/cdkd/{stack}/us-east-1/state.json"))
}

/// The listing of the estate, for which a producer that withdraws looks through.
fn scan() -> RuleBuilder {
    Rule::on("s3", "ListObjectsV2").resource("*/cdkd/").function("cdkd-resolve")
}

#[test]
fn e22_a_producer_that_goes_between_the_two_looks_of_a_consumer() {
    let world = world();
    let _alone = world.alone();
    // The consumer has read the value, and says so only when the producer is gone.
    world.deploy(producer("RaceA", &["race-a"]));
    let url = world.physical_id("RaceA", "Q");
    let gate = Gate::new(&world, record_write("RaceAUser"), When::Before);
    let racer = Racer::deploy(&world, consumer("RaceAUser", &["race-a"]));
    gate.wait();
    world.destroy("RaceA");
    drop(gate);
    assert_eq!(racer.end().as_deref(), Some("ProducerBeingDestroyedError"));
    check_race(&world, "RaceA", &url, "RaceAUser");
}

#[test]
fn e22_a_consumer_that_is_on_record_before_the_scan() {
    let world = world();
    let _alone = world.alone();
    world.deploy(producer("RaceB", &["race-b"]));
    let url = world.physical_id("RaceB", "Q");
    let gate = Gate::new(&world, record_write("RaceBUser"), When::After);
    let racer = Racer::deploy(&world, consumer("RaceBUser", &["race-b"]));
    gate.wait();
    let cause = destroy_refused(&world, "RaceB", &["race-b"], "StackHasActiveImportsError");
    says(&cause, &["RaceBUser (us-east-1)"]);
    drop(gate);
    // It sees the producer as it was, or the refused destroy that put its exports back: no other end is safe and useful.
    assert_eq!(racer.end(), None);
    check_race(&world, "RaceB", &url, "RaceBUser");
}

#[test]
fn e22_a_consumer_that_comes_while_a_producer_scans() {
    let world = world();
    let _alone = world.alone();
    world.deploy(producer("RaceC", &["race-c"]));
    let url = world.physical_id("RaceC", "Q");
    let gate = Gate::new(&world, scan(), When::Before);
    let racer = Racer::destroy(&world, "RaceC");
    gate.wait();
    let record = world.record("RaceC");
    assert!(record["withdrawing"]["race-c"].is_string(), "{record:#}");
    assert_eq!(world.indexed("race-c"), None, "nobody is sent to a value that goes");
    let cause = world.try_deploy(consumer("RaceCUser", &["race-c"])).outcome.cause_json();
    says(&cause, &["race-c"]);
    world.check_not_on_record("RaceCUser");
    drop(gate);
    assert_eq!(racer.end(), None);
    check_race(&world, "RaceC", &url, "RaceCUser");
}

#[test]
fn e22_both_have_written_before_either_looks() {
    let world = world();
    let _alone = world.alone();
    for (number, consumer_first) in [(1, true), (2, false)] {
        let (stack, user, export) =
            (format!("RaceD{number}"), format!("RaceDUser{number}"), format!("race-d-{number}"));
        world.deploy(producer(&stack, &[&export]));
        let url = world.physical_id(&stack, "Q");
        // Past the first look for consumers, which refuses at once.
        let withdrawn = Gate::new(&world, record_write(&stack), When::Before);
        let source_run = Racer::destroy(&world, &stack);
        withdrawn.wait();
        let written = Gate::new(&world, record_write(&user), When::After);
        let user_run = Racer::deploy(&world, consumer(&user, &[&export]));
        written.wait();
        let scanned = Gate::new(&world, scan(), When::Before);
        drop(withdrawn);
        scanned.wait();
        let (imported, gone) = if consumer_first {
            drop(written);
            let imported = user_run.end();
            drop(scanned);
            (imported, source_run.end())
        } else {
            drop(scanned);
            let gone = source_run.end();
            drop(written);
            (user_run.end(), gone)
        };
        assert!(imported.is_some() || gone.is_some(), "both succeeded");
        if consumer_first {
            assert_eq!((imported.as_deref(), gone), (Some("ProducerBeingDestroyedError"), None));
        } else {
            assert_eq!((imported, gone.as_deref()), (None, Some("StackHasActiveImportsError")));
        }
        check_race(&world, &stack, &url, &user);
    }
}

#[test]
fn e25_a_producer_made_anew_between_the_two_looks() {
    let world = world();
    let _alone = world.alone();
    let named = |name: &str| producer_of("RaceE", &["race-e"], &json!({ "QueueName": name }), &json!({}));
    world.deploy(named("race-e-one"));
    let gate = Gate::new(&world, record_write("RaceEUser"), When::Before);
    let racer = Racer::deploy(&world, consumer("RaceEUser", &["race-e"]));
    gate.wait();
    world.destroy("RaceE");
    world.deploy(named("race-e-two"));
    let url = world.physical_id("RaceE", "Q");
    drop(gate);
    assert_eq!(racer.end().as_deref(), Some("ProducerBeingDestroyedError"));
    check_race(&world, "RaceE", &url, "RaceEUser");
}

#[test]
fn e26_a_deploy_publishes_anew_what_a_stopped_destroy_withdrew() {
    let world = world();
    let _alone = world.alone();
    world.deploy(producer("Stopped", &["stopped-x"]));
    let before = world.indexed("stopped-x");
    let gate = Gate::new(&world, scan(), When::Before);
    let racer = Racer::destroy(&world, "Stopped");
    gate.wait();
    world.aws.api().stop_execution(&racer.execution).unwrap();
    drop(gate);
    let began = Instant::now();
    while world.aws.lock("Stopped").unwrap().is_some() {
        assert!(began.elapsed() < PATIENCE, "the lock of a stopped run stays");
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(world.record("Stopped")["withdrawing"]["stopped-x"].is_string());
    let run = world.try_deploy(consumer("StoppedUser", &["stopped-x"]));
    assert_eq!(run.outcome.status, "FAILED", "{}", run.outcome);
    world.check_not_on_record("StoppedUser");
    let mark = world.mark();
    world.deploy(producer("Stopped", &["stopped-x"]));
    assert_eq!(world.mutations(mark), [""; 0]);
    assert!(world.record("Stopped").get("withdrawing").is_none());
    assert_eq!(world.indexed("stopped-x"), before);
    world.deploy(consumer("StoppedUser", &["stopped-x"]));
    world.destroy("StoppedUser");
    world.destroy("Stopped");
    world.check_not_on_record("Stopped");
}
