//! What the wire knows: counts, the log, rules in force, gates of holds. All of it under one lock, so that a
//! request is counted, logged and matched at one point in time.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tokio::sync::{OnceCell, watch};

use crate::caller::Caller;
use crate::classify::{Call, canonical_service};
use crate::rule::{Action, Rule, When};

/// How many requests the log keeps; the oldest go first.
pub const LOG_LIMIT: usize = 10_000;

/// The caller of a connection, once it is found.
pub(crate) type CallerCell = Arc<OnceCell<Option<Caller>>>;

/// Names a rule in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RuleId(pub u64);

/// A rule in force and what it has done.
#[derive(Clone, Debug, Serialize)]
pub struct RuleState {
    /// Its name.
    pub id: RuleId,
    /// The rule.
    pub rule: Rule,
    /// How many requests matched since it was set.
    pub matched: u64,
    /// On how many of them it acted.
    pub fired: u64,
}

/// Requests by service and operation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// All of them.
    pub total: u64,
    /// Service, operation, number.
    pub services: BTreeMap<String, BTreeMap<String, u64>>,
}

impl Counts {
    /// The number of calls of one operation. The service may go by any of its names.
    pub fn get(&self, service: &str, operation: &str) -> u64 {
        self.operations(service).and_then(|operations| operations.get(operation)).copied().unwrap_or(0)
    }

    /// The number of calls of one service.
    pub fn service(&self, service: &str) -> u64 {
        self.operations(service).map_or(0, |operations| operations.values().sum())
    }

    fn operations(&self, service: &str) -> Option<&BTreeMap<String, u64>> {
        self.services.get(canonical_service(service))
    }
}

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Outcome {
    /// Under way, or held.
    Open,
    /// The emulator's answer went back.
    Forwarded,
    /// A rule answered.
    Answered,
    /// A rule closed the connection.
    Dropped,
    /// A rule killed the caller.
    Killed,
    /// A rule would have killed the caller, which is not the emulator's or could not be found.
    KillRefused,
    /// The emulator did not answer.
    Failed,
}

/// One line of the log.
#[derive(Clone, Debug, Serialize)]
pub struct Entry {
    /// Counts from 1 and does not start again at a reset.
    pub seq: u64,
    /// When the request was there, in microseconds since the wire started.
    pub at_us: u64,
    /// How long until it was answered or given up.
    pub took_us: Option<u64>,
    /// The service, by its canonical name.
    pub service: String,
    /// The operation.
    pub operation: String,
    /// What it is about: `bucket/key` or `bucket/prefix`, type and identifier, an ARN, a name; or nothing.
    pub resource: String,
    /// What became of it.
    pub outcome: Outcome,
    /// The HTTP status that the emulator or a rule answered, even if the caller did not get it.
    pub status: Option<u16>,
    /// Bytes of the request's body so far.
    pub request_bytes: u64,
    /// Bytes of the answer's body so far.
    pub response_bytes: u64,
    /// The calling process, if it was found before it closed the connection.
    pub pid: Option<u32>,
    /// The Lambda function that it was started as.
    pub function: Option<String>,
    /// The rules that acted on it.
    pub rules: Vec<RuleId>,
    /// Why it failed or a kill was refused.
    pub note: Option<String>,
}

/// A request that waits at a gate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Held {
    /// The gate.
    pub id: String,
    /// The request's number in the log.
    pub seq: u64,
    /// Whether it has been forwarded yet.
    pub when: When,
}

/// Which way a body goes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Direction {
    Request,
    Response,
}

/// A request in the log while its entry still changes.
#[derive(Debug)]
pub(crate) struct Record {
    pub(crate) seq: u64,
    at: Instant,
    caller: CallerCell,
    entry: Mutex<Entry>,
}

impl Record {
    pub(crate) fn add_bytes(&self, direction: Direction, bytes: usize) {
        let mut entry = lock(&self.entry);
        match direction {
            Direction::Request => entry.request_bytes += bytes as u64,
            Direction::Response => entry.response_bytes += bytes as u64,
        }
    }

    pub(crate) fn set_status(&self, status: u16) {
        lock(&self.entry).status = Some(status);
    }

    pub(crate) fn finish(&self, outcome: Outcome, note: Option<String>) {
        let mut entry = lock(&self.entry);
        entry.outcome = outcome;
        entry.note = note;
        entry.took_us = Some(micros(self.at.elapsed()));
    }

    fn entry(&self) -> Entry {
        let mut entry = lock(&self.entry).clone();
        if let Some(Some(caller)) = self.caller.get() {
            entry.pid = Some(caller.pid);
            entry.function.clone_from(&caller.function);
        }
        entry
    }
}

/// What a rule does to the request at hand.
#[derive(Debug)]
pub(crate) struct Effect {
    pub(crate) when: When,
    pub(crate) action: Action,
    /// Of a hold: turns true when the gate opens.
    pub(crate) gate: Option<watch::Receiver<bool>>,
}

#[derive(Debug)]
pub(crate) struct Ledger {
    started: Instant,
    book: Mutex<Book>,
    /// Signalled when a request is counted or held.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Book {
    seq: u64,
    rule_ids: u64,
    counts: Counts,
    log: VecDeque<Arc<Record>>,
    rules: Vec<RuleState>,
    gates: BTreeMap<String, watch::Sender<bool>>,
    held: Vec<Held>,
}

impl Ledger {
    pub(crate) fn new() -> Self {
        Self { started: Instant::now(), book: Mutex::default(), changed: Condvar::new() }
    }

    /// Counts and logs a request and finds what the rules do to it, in the order in which they were set.
    pub(crate) fn admit(
        &self,
        call: &Call,
        body: &[u8],
        function: Option<&str>,
        caller: CallerCell,
    ) -> (Arc<Record>, Vec<Effect>) {
        let at = Instant::now();
        let mut book = lock(&self.book);
        let book = &mut *book;
        book.seq += 1;
        book.counts.total += 1;
        let operations = book.counts.services.entry(call.service.clone()).or_default();
        *operations.entry(call.operation.clone()).or_default() += 1;

        let mut effects = Vec::new();
        let mut fired = Vec::new();
        for state in &mut book.rules {
            let matches = &state.rule.matches;
            if !(matches.fits_call(call) && matches.fits_body(body) && matches.fits_function(function)) {
                continue;
            }
            state.matched += 1;
            if !matches.acts_on(state.matched) {
                continue;
            }
            state.fired += 1;
            fired.push(state.id);
            let gate = match &state.rule.action {
                Action::Hold { id } => book.gates.get(id).map(watch::Sender::subscribe),
                _ => None,
            };
            effects.push(Effect { when: state.rule.when, action: state.rule.action.clone(), gate });
        }

        let entry = Entry {
            seq: book.seq,
            at_us: micros(at.duration_since(self.started)),
            took_us: None,
            service: call.service.clone(),
            operation: call.operation.clone(),
            resource: call.resource.clone(),
            outcome: Outcome::Open,
            status: None,
            request_bytes: 0,
            response_bytes: 0,
            pid: None,
            function: None,
            rules: fired,
            note: None,
        };
        let record = Arc::new(Record { seq: book.seq, at, caller, entry: Mutex::new(entry) });
        if book.log.len() == LOG_LIMIT {
            book.log.pop_front();
        }
        book.log.push_back(Arc::clone(&record));
        self.changed.notify_all();
        (record, effects)
    }

    /// Whether a rule that may fit looks into the body, and whether it asks for the function.
    pub(crate) fn rules_need(&self, call: &Call) -> (bool, bool) {
        let book = lock(&self.book);
        let fitting = book.rules.iter().map(|it| &it.rule.matches).filter(|it| it.fits_call(call));
        fitting.fold((false, false), |(body, function), it| {
            (body || it.body.is_some(), function || it.function.is_some())
        })
    }

    pub(crate) fn add_rule(&self, mut rule: Rule) -> RuleId {
        let mut book = lock(&self.book);
        book.rule_ids += 1;
        let id = RuleId(book.rule_ids);
        if let Action::Hold { id: gate } = &mut rule.action {
            if gate.is_empty() {
                *gate = gate_of(id);
            }
            // A gate that was opened stays open for the rules that had it; a new rule gets a closed one.
            if book.gates.get(gate).is_none_or(|gate| *gate.borrow()) {
                book.gates.insert(gate.clone(), watch::Sender::new(false));
            }
        }
        book.rules.push(RuleState { id, rule, matched: 0, fired: 0 });
        id
    }

    /// Removes one rule or all, opening the gates that no rule has any longer.
    pub(crate) fn remove_rules(&self, id: Option<RuleId>) -> usize {
        let mut book = lock(&self.book);
        let before = book.rules.len();
        book.rules.retain(|state| id.is_some_and(|id| id != state.id));
        let Book { rules, gates, .. } = &mut *book;
        gates.retain(|name, gate| {
            let used = rules.iter().any(|it| matches!(&it.rule.action, Action::Hold { id } if id == name));
            if !used {
                gate.send_replace(true);
            }
            used
        });
        before - book.rules.len()
    }

    pub(crate) fn rules(&self) -> Vec<RuleState> {
        lock(&self.book).rules.clone()
    }

    /// Opens a gate; returns how many requests waited, or nothing if there is no such gate.
    pub(crate) fn release(&self, gate: &str) -> Option<usize> {
        let book = lock(&self.book);
        book.gates.get(gate)?.send_replace(true);
        Some(book.held.iter().filter(|held| held.id == gate).count())
    }

    pub(crate) fn held(&self) -> Vec<Held> {
        lock(&self.book).held.clone()
    }

    /// Waits at a gate.
    pub(crate) async fn hold(&self, held: Held, mut gate: watch::Receiver<bool>) {
        lock(&self.book).held.push(held.clone());
        self.changed.notify_all();
        // An error means that the gate is gone, which is as good as open.
        // What it returns locks the gate, and `release` locks the gate under the book: not to be kept.
        let _open = gate.wait_for(|open| *open).await.is_ok();
        lock(&self.book).held.retain(|other| *other != held);
    }

    pub(crate) fn counts(&self) -> Counts {
        lock(&self.book).counts.clone()
    }

    pub(crate) fn reset(&self) {
        let mut book = lock(&self.book);
        book.counts = Counts::default();
        book.log.clear();
    }

    pub(crate) fn log(&self, since: u64) -> Vec<Entry> {
        let records: Vec<_> =
            lock(&self.book).log.iter().filter(|record| record.seq > since).cloned().collect();
        records.iter().map(|record| record.entry()).collect()
    }

    /// Blocks until a request waits at the gate.
    pub(crate) fn wait_until_held(&self, gate: &str, timeout: Duration) -> io::Result<Held> {
        self.wait(timeout, |book| book.held.iter().find(|held| held.id == gate).cloned())
            .ok_or_else(|| timed_out(format!("nothing was held at `{gate}` within {timeout:?}")))
    }

    /// Blocks until an operation was called that often.
    pub(crate) fn wait_for(
        &self,
        service: &str,
        operation: &str,
        count: u64,
        timeout: Duration,
    ) -> io::Result<()> {
        self.wait(timeout, |book| (book.counts.get(service, operation) >= count).then_some(()))
            .ok_or_else(|| timed_out(format!("{service} {operation}: not {count} calls within {timeout:?}")))
    }

    fn wait<T>(&self, timeout: Duration, found: impl Fn(&Book) -> Option<T>) -> Option<T> {
        let book = lock(&self.book);
        let waited = self.changed.wait_timeout_while(book, timeout, |book| found(book).is_none());
        let (book, _) = waited.unwrap_or_else(PoisonError::into_inner);
        found(&book)
    }
}

/// The gate of a hold that names none.
pub(crate) fn gate_of(rule: RuleId) -> String {
    format!("rule-{}", rule.0)
}

fn timed_out(message: String) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, message)
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// A panic under the lock leaves counters, which are as good as before.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
