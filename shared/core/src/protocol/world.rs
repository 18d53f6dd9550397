//! A small world for the machines, in memory: what a stack's documents say, and whoever works on them. Tests let each
//! act one request at a time, in every order.

use std::collections::BTreeMap;

use super::fence::Stay;
use super::journal::{self, Entry, Journal};
use super::step::{Draft, Effect, Event, FoundLock, Machine, Next, Seen};
use crate::error::{Code, Error, Result};
use crate::name::RecordKey;
use crate::references::handshake::conflicts;
use crate::references::scan;
use crate::state::Record;
use crate::state::lock::{Holder, Lock};

/// What stands in the state bucket.
#[derive(Clone, Debug, Default)]
pub struct World {
    pub now: i64,
    pub etags: u64,
    pub locks: BTreeMap<RecordKey, (Lock, String)>,
    pub journals: BTreeMap<RecordKey, BTreeMap<u64, Vec<Entry>>>,
    pub records: BTreeMap<RecordKey, (Record, String)>,
    /// Executions that have ended.
    pub ended: Vec<String>,
}

/// How a worker changes a record on its desk.
pub type Edit = fn(&mut Record);

/// What of a scan was listed and is still to be read, and what was read.
#[derive(Clone, Debug)]
struct Reading {
    listed: Vec<RecordKey>,
    read: Vec<(RecordKey, Record)>,
}

/// Someone at work on a stack: a machine, and the record on its desk.
#[derive(Clone, Debug)]
pub struct Worker<M: Machine> {
    pub key: RecordKey,
    /// Writes the intent.
    pub intent: Edit,
    found: Option<Record>,
    etag: Option<String>,
    machine: Option<M>,
    asked: Vec<Effect>,
    answers: Vec<Event>,
    /// A scan under way.
    scan: Option<Reading>,
    pub end: Option<Result<M::Output>>,
}

pub fn key(stack: &str) -> RecordKey {
    RecordKey::parse(stack, "us-east-1").unwrap()
}

pub fn holder(execution: &str) -> Holder {
    Holder { execution: execution.into(), operation: "deploy".into(), nonce: format!("nonce of {execution}") }
}

/// An invocation of an execution, patient for ten seconds.
pub fn stay(stack: &str, execution: &str, deadline: i64) -> Stay {
    Stay {
        key: key(stack),
        execution: execution.into(),
        nonce: holder(execution).nonce,
        invocation: format!("invocation of {execution}"),
        deadline,
        patience: deadline - 2000,
        stack_id: "id".into(),
    }
}

impl World {
    fn etag(&mut self) -> String {
        self.etags += 1;
        format!("\"{}\"", self.etags)
    }

    pub fn put_record(&mut self, stack: &str, record: Record) {
        let etag = self.etag();
        self.records.insert(key(stack), (record, etag));
    }

    pub fn put_lock(&mut self, stack: &str, execution: &str) {
        let etag = self.etag();
        self.locks.insert(key(stack), (Lock::new(&holder(execution), self.now), etag));
    }

    pub fn record(&self, stack: &str) -> Option<&Record> {
        self.records.get(&key(stack)).map(|(record, _)| record)
    }

    pub fn journal(&self, stack: &str) -> Journal {
        let objects = self.journals.get(&key(stack)).into_iter().flatten();
        let bodies: Vec<(u64, Vec<u8>)> =
            objects.map(|(number, entries)| (*number, journal::to_bytes(entries))).collect();
        journal::read(&bodies).unwrap()
    }
}

impl<M: Machine> Worker<M>
where
    M::Output: Clone,
{
    pub fn new(stack: &str, world: &World, machine: M, intent: Edit) -> Self {
        let found = world.records.get(&key(stack)).cloned();
        let mut worker = Self {
            key: key(stack),
            intent,
            etag: found.as_ref().map(|(_, etag)| etag.clone()),
            found: found.map(|(record, _)| record),
            machine: None,
            asked: Vec::new(),
            answers: Vec::new(),
            scan: None,
            end: None,
        };
        worker.take(machine.step(world.now, Vec::new()));
        worker
    }

    fn take(&mut self, next: Next<M>) {
        match next {
            Next::Go(machine, effects) => {
                assert!(!effects.is_empty(), "a machine that asks for nothing never goes on");
                self.machine = Some(machine);
                self.asked = effects;
            }
            Next::End(output) => self.end = Some(output),
        }
    }

    /// Carries out the next request; once all are answered the machine goes on.
    pub fn act(&mut self, world: &mut World) {
        let Some(effect) = self.asked.get(self.answers.len()).cloned() else { return };
        let Some(event) = self.carry_out(world, effect) else { return };
        self.answers.push(event);
        if self.answers.len() == self.asked.len()
            && let Some(machine) = self.machine.take()
        {
            let answers = std::mem::take(&mut self.answers);
            self.asked.clear();
            self.take(machine.step(world.now, answers));
        }
    }

    fn save(&mut self, world: &mut World, record: Option<Record>) -> Event {
        if world.records.get(&self.key).map(|(_, etag)| etag) != self.etag.as_ref() {
            return Event::Failed(Error::new(Code::StateConflict, "the record changed"));
        }
        self.etag = record.as_ref().map(|_| world.etag());
        match (record, &self.etag) {
            (Some(record), Some(etag)) => world.records.insert(self.key.clone(), (record, etag.clone())),
            _ => world.records.remove(&self.key),
        };
        Event::Done
    }

    /// `None` while it is not done.
    fn carry_out(&mut self, world: &mut World, effect: Effect) -> Option<Event> {
        Some(match effect {
            Effect::ReadLock(key) => Event::Lock(
                world
                    .locks
                    .get(&key)
                    .map(|(lock, etag)| FoundLock { lock: Ok(lock.clone()), etag: etag.clone() }),
            ),
            Effect::CreateLock(lock) => Event::Written(if world.locks.contains_key(&self.key) {
                None
            } else {
                let etag = world.etag();
                world.locks.insert(self.key.clone(), (lock, etag.clone()));
                Some(etag)
            }),
            Effect::ReplaceLock { lock, etag } => {
                let same = world.locks.get(&self.key).is_some_and(|(_, now)| *now == etag);
                Event::Written(same.then(|| {
                    let etag = world.etag();
                    world.locks.insert(self.key.clone(), (lock, etag.clone()));
                    etag
                }))
            }
            Effect::DeleteLock { etag } => {
                let same = world.locks.get(&self.key).is_some_and(|(_, now)| *now == etag);
                if same {
                    world.locks.remove(&self.key);
                }
                Event::Written(same.then(String::new))
            }
            Effect::AskExecution(execution) => Event::Ended(world.ended.contains(&execution)),
            Effect::ReadJournal => Event::Journal(world.journal(self.key.stack.as_str())),
            Effect::ListJournal => {
                let journal = world.journals.get(&self.key);
                Event::Last(journal.and_then(|journal| journal.keys().next_back().copied()))
            }
            Effect::WriteJournal { number, entries } => {
                let journal = world.journals.entry(self.key.clone()).or_default();
                let free = !journal.contains_key(&number);
                if free {
                    journal.insert(number, entries);
                }
                Event::Written(free.then(String::new))
            }
            Effect::RemoveEntry { number } => {
                world.journals.entry(self.key.clone()).or_default().remove(&number);
                Event::Done
            }
            Effect::RemoveJournal => {
                world.journals.remove(&self.key);
                Event::Done
            }
            Effect::Wait { until } => {
                world.now = world.now.max(until);
                Event::Done
            }
            Effect::ReadDesk(_) => {
                let found = world.records.get(&self.key).cloned();
                self.etag = found.as_ref().map(|(_, etag)| etag.clone());
                self.found = found.map(|(record, _)| record);
                Event::Done
            }
            Effect::Rewrite => {
                let record = self.found.clone();
                self.save(world, record)
            }
            Effect::Save { draft, .. } => {
                let mut record = self.found.clone().unwrap_or_else(|| Record::new(&self.key));
                let draft = match draft {
                    Draft::Intent => {
                        (self.intent)(&mut record);
                        Some(record)
                    }
                    Draft::Found => self.found.clone(),
                };
                let withdrawing = draft.as_ref().is_some_and(|record| !record.withdrawing().is_empty());
                match self.save(world, draft) {
                    Event::Done => Event::Saved { changed: true, withdrawing },
                    failed => failed,
                }
            }
            Effect::ReadRecord { key, unless } => Event::Record(match world.records.get(&key) {
                None => Seen::Gone,
                Some((_, etag)) if Some(etag) == unless.as_ref() => Seen::NotModified,
                Some((record, _)) => Seen::Now(Box::new(record.clone())),
            }),
            Effect::CheckOwners { own, names, given_up } => {
                let records = world.records.iter().map(|(key, (record, _))| (key, record));
                conflicts(&own, &names, &given_up, records).map_or_else(Event::Failed, |()| Event::Done)
            }
            // Request by request: what changes in between is seen or not, as in S3.
            Effect::Scan { producer, exports } => {
                let Some(Reading { listed, read }) = &mut self.scan else {
                    let listed = world.records.keys().cloned().collect();
                    self.scan = Some(Reading { listed, read: Vec::new() });
                    return None;
                };
                if let Some(key) = listed.pop() {
                    read.extend(world.records.get(&key).map(|(record, _)| (key, record.clone())));
                    return None;
                }
                let found = scan::consumers(
                    &producer,
                    exports.as_deref(),
                    read.iter().map(|(key, it)| (key, Ok(it))),
                );
                self.scan = None;
                match found {
                    Ok(found) => Event::Scanned(found),
                    Err(error) => Event::Failed(error),
                }
            }
            Effect::Index(_) | Effect::ForgetLocks => Event::Done,
            other => panic!("not of this world: {other:?}"),
        })
    }
}

/// Lets two work in every order of their requests, to the end of both; looks at each end.
pub fn in_every_order<A, B>(
    world: &World,
    a: &Worker<A>,
    b: &Worker<B>,
    look: &mut impl FnMut(&World, &Worker<A>, &Worker<B>),
) -> usize
where
    A: Machine + Clone,
    B: Machine + Clone,
    A::Output: Clone,
    B::Output: Clone,
{
    if a.end.is_some() && b.end.is_some() {
        look(world, a, b);
        return 1;
    }
    let mut orders = 0;
    if a.end.is_none() {
        let (mut world, mut a) = (world.clone(), a.clone());
        a.act(&mut world);
        orders += in_every_order(&world, &a, b, look);
    }
    if b.end.is_none() {
        let (mut world, mut b) = (world.clone(), b.clone());
        b.act(&mut world);
        orders += in_every_order(&world, a, &b, look);
    }
    orders
}
