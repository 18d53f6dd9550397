//! The machines against a small world, in every order of their requests.

use serde_json::json;

use super::fence::{Append, Close, Enter, FenceOff, Left, TakeOver};
use super::handshake::{Handshake, Part, Source, Takes};
use super::journal::Entry;
use super::lock::{Acquire, Hold, Release, Unlock};
use super::step::Machine;
use super::world::{Edit, Worker, World, holder, in_every_order, key, stay};
use crate::error::{Code, Result};
use crate::references::exports::{Published, Why, Withdrawal};
use crate::references::handshake::{GivenUp, claim, publish, withdraw, withdraw_all};
use crate::references::imports::{Reads, Save, settle};
use crate::references::testing::producer;
use crate::state::{Import, Record};

const NOW: i64 = 1_796_070_352_000;

fn world() -> World {
    World { now: NOW, ..World::default() }
}

fn nothing(_: &mut Record) {}

/// Runs a machine alone to its end.
fn run<M: Machine + Clone>(world: &mut World, machine: M) -> Result<M::Output>
where
    M::Output: Clone,
{
    let mut worker = Worker::new("P", world, machine, nothing);
    while worker.end.is_none() {
        worker.act(world);
    }
    worker.end.unwrap()
}

fn acquire(execution: &str) -> Acquire {
    Acquire::new(key("P"), holder(execution))
}

fn hold(execution: &str) -> Hold {
    Hold::new(key("P"), execution.into(), holder(execution).nonce)
}

fn append(execution: &str, number: u64) -> Append {
    let entries = vec![Entry::End { invocation: format!("of {execution}") }];
    Append::new(&stay("P", execution, NOW + 60_000), number, entries)
}

#[test]
fn l3_of_two_that_reach_for_a_lock_one_has_it() {
    let dead = || {
        let mut world = world();
        world.put_lock("P", "dead");
        world.ended.push("dead".into());
        world
    };
    for (world, over) in [(world(), false), (dead(), true)] {
        let one = Worker::new("P", &world, acquire("one"), nothing);
        let two = Worker::new("P", &world, acquire("two"), nothing);
        let orders = in_every_order(&world, &one, &two, &mut |world, one, two| {
            let (lock, _) = &world.locks[&key("P")];
            let ends = [("one", one.end.as_ref().unwrap()), ("two", two.end.as_ref().unwrap())];
            for (name, end) in ends {
                match end {
                    Ok(taken) => {
                        assert!(lock.is_of(name, &taken.nonce), "{lock:?}");
                        assert_eq!(taken.over, over);
                    }
                    Err(error) => assert_eq!(error.code(), Code::StackLocked),
                }
            }
            assert_eq!(ends.iter().filter(|(_, end)| end.is_ok()).count(), 1);
        });
        assert!(orders >= 6, "{orders}");
    }
}

#[test]
fn l1_a_run_finds_its_own_lock_again_and_gives_back_no_other() {
    let mut world = world();
    assert!(!run(&mut world, acquire("one")).unwrap().over);
    assert!(run(&mut world, acquire("one")).unwrap().over);
    let release = |execution: &str| Release::new(key("P"), execution.into(), holder(execution).nonce);
    run(&mut world, release("two")).unwrap();
    assert_eq!(world.locks.len(), 1);
    run(&mut world, release("one")).unwrap();
    assert_eq!(world.locks.len(), 0);
    // A second try of it, whose first answer was lost.
    run(&mut world, release("one")).unwrap();
    assert_eq!(run(&mut world, hold("one")).unwrap_err().code(), Code::LockLostError);
}

#[test]
fn l4_a_lock_is_renewed_while_its_run_lives() {
    let mut world = world();
    run(&mut world, acquire("one")).unwrap();
    let expires = |world: &World| world.locks[&key("P")].0.expires_at();
    let first = expires(&world);
    world.now += 5 * 60_000;
    run(&mut world, hold("one")).unwrap();
    assert_eq!(expires(&world), first);
    world.now += 6 * 60_000;
    run(&mut world, hold("one")).unwrap();
    assert_eq!(expires(&world), first + 11 * 60_000);
}

#[test]
fn l4_whoever_lost_the_lock_stores_nothing_that_the_next_does_not_see() {
    // An invocation of `old` has its fence stored and goes on writing while `new` takes over.
    let mut start = world();
    start.put_lock("P", "new");
    let fence = Entry::Fence {
        invocation: "of old".into(),
        execution: "old".into(),
        deadline: NOW + 1000,
        stack_id: "id".into(),
    };
    start.journals.entry(key("P")).or_default().insert(0, vec![fence]);
    let old = Worker::new("P", &start, append("old", 1), nothing);
    let new = Worker::new("P", &start, TakeOver::new(stay("P", "new", NOW + 60_000), true), nothing);
    let mut written = 0;
    in_every_order(&start, &old, &new, &mut |world, old, new| {
        let entered = new.end.as_ref().unwrap().as_ref().unwrap();
        match old.end.as_ref().unwrap() {
            Ok(()) => {
                written += 1;
                assert_eq!(entered.found.next, 2, "what was stored is read");
            }
            Err(error) => {
                assert_eq!(error.code(), Code::LockLostError);
                assert_eq!(entered.found.next, 1);
            }
        }
        // `old` may have been at work until its deadline: nothing was read before.
        assert!(entered.found.fences.is_empty() || world.now >= NOW + 2000);
    });
    assert!(written > 0);
}

#[test]
fn l11_a_fence_that_came_too_late_is_taken_away() {
    // `old` looks at its lock, then `new` takes over, ends, and clears the journal, before the fence of `old` is stored.
    let mut world = world();
    world.put_lock("P", "old");
    let mut old = Worker::new("P", &world, Enter::new(stay("P", "old", NOW + 60_000)), nothing);
    old.act(&mut world); // the lock
    old.act(&mut world); // the journal
    world.put_lock("P", "new");
    while old.end.is_none() {
        old.act(&mut world);
    }
    assert_eq!(old.end.unwrap().unwrap_err().code(), Code::LockLostError);
    assert!(world.journals[&key("P")].is_empty());
}

#[test]
fn l11_nothing_is_read_before_an_earlier_invocation_must_be_over() {
    let earlier = |world: &mut World, deadline: i64| {
        let fence = Entry::Fence {
            invocation: "earlier".into(),
            execution: "one".into(),
            deadline,
            stack_id: "id".into(),
        };
        world.journals.entry(key("P")).or_default().insert(0, vec![fence]);
    };
    let mut patient = world();
    patient.put_lock("P", "one");
    earlier(&mut patient, NOW + 3000);
    let entered = run(&mut patient, Enter::new(stay("P", "one", NOW + 60_000))).unwrap();
    assert_eq!((patient.now, entered.next), (NOW + 4000, 2));
    // Longer than the invocation lasts: its fence has its end, so that the next try does not wait for it.
    let mut busy = world();
    busy.put_lock("P", "one");
    earlier(&mut busy, NOW + 300_000);
    let error = run(&mut busy, Enter::new(stay("P", "one", NOW + 60_000))).unwrap_err();
    assert_eq!(error.code(), Code::EarlierInvocationAlive);
    assert_eq!(busy.journal("P").fences, [("earlier".to_owned(), NOW + 300_000)]);
}

#[test]
fn a_run_leaves_no_journal_and_no_lock_but_what_is_open() {
    let mut world = world();
    world.put_lock("P", "one");
    let entered = run(&mut world, Enter::new(stay("P", "one", NOW + 60_000))).unwrap();
    let mut open = world.clone();
    run(&mut world, Close::new(stay("P", "one", NOW + 60_000), Left::Nothing)).unwrap();
    assert!(world.locks.is_empty() && world.journals.is_empty());
    let entries = vec![Entry::End { invocation: stay("P", "one", 0).invocation }];
    let left = Left::Open { number: entered.next, entries };
    run(&mut open, Close::new(stay("P", "one", NOW + 60_000), left)).unwrap();
    assert!(open.locks.is_empty());
    assert_eq!((open.journal("P").next, open.journal("P").fences.len()), (2, 0));
}

#[test]
fn a_broken_lock_is_fenced_off_first() {
    let unlock = || Unlock::new(key("P"), "breaker".into(), NOW + 60_000);
    let mut world = world();
    assert_eq!(run(&mut world, unlock()).unwrap(), None);
    world.put_lock("P", "one");
    assert_eq!(run(&mut world, unlock()).unwrap_err().code(), Code::StackLocked);
    world.ended.push("one".into());
    let writer = Worker::new("P", &world, append("one", 0), nothing);
    let breaker = Worker::new("P", &world, unlock(), nothing);
    in_every_order(&world, &writer, &breaker, &mut |world, writer, breaker| {
        let broken = breaker.end.as_ref().unwrap().as_ref().unwrap().clone().unwrap();
        assert_eq!(broken.holder.as_deref(), Some("one"));
        assert!(world.locks.is_empty());
        // Whoever wrote before the fence was there had the lock; whoever comes behind it has lost.
        let stored = world.journals[&key("P")].len();
        assert_eq!(stored, if writer.end.as_ref().unwrap().is_ok() { 2 } else { 1 });
    });
    // Other tools write no journal: none is made.
    run(&mut world, FenceOff::new(key("Q"), "b".into(), NOW, false)).unwrap();
}

fn imports(record: &mut Record) {
    let import =
        Import { export_name: "X".into(), source_stack: "P".into(), source_region: "us-east-1".into() };
    let reads = Reads { imports: [import].into(), ..Reads::default() };
    settle(record, &reads, Save::Midway);
}

fn takes_x(record: &mut Record) {
    withdraw(record, ["X"]);
}

fn goes(record: &mut Record) {
    withdraw_all(record);
}

fn part(stack: &str, takes: Takes) -> Part {
    Part { key: key(stack), sources: Vec::new(), claims: Vec::new(), takes }
}

fn takes(lost: Vec<Withdrawal>) -> Takes {
    Takes::Some { lost, changed: Vec::new() }
}

/// The consumer has read `X` of `P` under the `ETag` that its record has.
fn consumer(world: &World) -> Handshake {
    let source = Source {
        key: key("P"),
        etag: Some(world.records[&key("P")].1.clone()),
        exports: vec![("X".into(), json!("value-of-X"))],
    };
    let part = Part { sources: vec![source], ..part("C", takes(Vec::new())) };
    Handshake::new(vec![part], [key("C")], GivenUp::new())
}

#[test]
fn e22_in_no_order_of_their_requests_do_both_pass() {
    let mut start = world();
    start.put_record("P", producer("P", &["X"]));
    let gone = Withdrawal { name: "X".into(), why: Why::NotExported };
    let sides: [(Takes, Edit); 2] = [(Takes::All, goes), (takes(vec![gone]), takes_x)];
    for (what, intent) in sides {
        let handshake = Handshake::new(vec![part("P", what)], [key("P")], GivenUp::new());
        let producing = Worker::new("P", &start, handshake, intent);
        let consuming = Worker::new("C", &start, consumer(&start), imports);
        let (mut imported, mut taken, mut neither) = (0, 0, 0);
        let orders = in_every_order(&start, &consuming, &producing, &mut |world, consuming, producing| {
            let ends = (consuming.end.as_ref().unwrap(), producing.end.as_ref().unwrap());
            match ends {
                (Ok(_), Ok(_)) => panic!("both passed"),
                (Ok(_), Err(error)) => {
                    imported += 1;
                    assert_eq!(error.code(), Code::StackHasActiveImportsError);
                    assert_eq!(world.record("P"), start.record("P"), "as it was found");
                }
                (Err(error), Ok(_)) => {
                    taken += 1;
                    assert_eq!(error.code(), Code::ProducerBeingDestroyedError);
                    // E28: the record that it made is gone again.
                    assert_eq!(world.record("C"), None);
                }
                (Err(_), Err(_)) => {
                    neither += 1;
                    assert_eq!((world.record("C"), world.record("P")), (None, start.record("P")));
                }
            }
        });
        assert!(imported > 0 && taken > 0 && neither > 0, "{orders}: {imported} {taken} {neither}");
    }
}

#[test]
fn e22_a_look_before_the_intent_would_let_both_pass() {
    // The same with the two halves of the consumer turned round: the test above would notice.
    let mut start = world();
    start.put_record("P", producer("P", &["X"]));
    let look_only = Worker::new("C", &start, consumer(&start), nothing);
    let handshake = Handshake::new(vec![part("P", Takes::All)], [key("P")], GivenUp::new());
    let producing = Worker::new("P", &start, handshake, goes);
    let mut both = 0;
    in_every_order(&start, &look_only, &producing, &mut |_, look_only, producing| {
        both += usize::from(matches!((&look_only.end, &producing.end), (Some(Ok(_)), Some(Ok(_)))));
    });
    assert!(both > 0);
}

#[test]
fn e25_a_producer_made_anew_between_the_two_looks_is_seen() {
    let mut world = world();
    world.put_record("P", producer("P", &["X"]));
    let mut consuming = Worker::new("C", &world, consumer(&world), imports);
    consuming.act(&mut world);
    let mut anew = producer("P", &["X"]);
    let outputs = json!({"X": "another"}).as_object().cloned().unwrap();
    publish(&mut anew, &Published { outputs, export_names: vec!["X".into()], warnings: vec![] }, []);
    world.put_record("P", anew);
    while consuming.end.is_none() {
        consuming.act(&mut world);
    }
    assert_eq!(consuming.end.unwrap().unwrap_err().code(), Code::ProducerBeingDestroyedError);
    // With the same value under another ETag it passes.
    world.put_record("P", producer("P", &["X"]));
    let mut consuming = Worker::new("C", &world, consumer(&world), imports);
    world.put_record("P", producer("P", &["X"]));
    while consuming.end.is_none() {
        consuming.act(&mut world);
    }
    assert!(consuming.end.unwrap().is_ok());
}

#[test]
fn e4_of_two_that_claim_a_name_at_most_one_has_it() {
    fn claims(record: &mut Record) {
        claim(record, ["N"]);
    }
    let start = world();
    let claiming = |stack: &str| {
        let part = Part { claims: vec![(key(stack), vec!["N".into()])], ..part(stack, takes(Vec::new())) };
        Worker::new(stack, &start, Handshake::new(vec![part], [key(stack)], GivenUp::new()), claims)
    };
    let (mut one, mut none) = (0, 0);
    in_every_order(&start, &claiming("A"), &claiming("B"), &mut |_, a, b| match [a, b]
        .iter()
        .filter(|worker| worker.end.as_ref().is_some_and(Result::is_ok))
        .count()
    {
        0 => none += 1,
        1 => one += 1,
        _ => panic!("both own it"),
    });
    assert!(one > 0 && none > 0);
}

#[test]
fn e27_consumers_that_go_with_their_producer_do_not_block() {
    let mut start = world();
    start.put_record("P", producer("P", &["X"]));
    let mut inside = Record::new(&key("C"));
    imports(&mut inside);
    start.put_record("C", inside);
    let handshake = |run: Vec<&str>| {
        Handshake::new(vec![part("P", Takes::All)], run.into_iter().map(key), GivenUp::new())
    };
    for (run, passes) in [(vec!["P"], false), (vec!["P", "C"], true)] {
        let mut world = start.clone();
        let mut worker = Worker::new("P", &world, handshake(run), goes);
        while worker.end.is_none() {
            worker.act(&mut world);
        }
        assert_eq!(worker.end.unwrap().is_ok(), passes);
    }
}
