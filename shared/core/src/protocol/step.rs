//! The form in which the protocol is written: machines that decide, and a world that carries out.
//!
//! A machine is a value. [`Machine::step`] takes it and the answers to what it asked for last, and gives the next one
//! with what it asks for now, or its end. Nothing else happens in between: whoever carries the effects out may die after
//! any of them, may be told that one failed, and may let others act between two of them. The functions do so against
//! AWS; a model checker does so against a model of it, in every order.

use crate::error::{Code, Error, Result};
use crate::name::RecordKey;
use crate::protocol::journal::{Entry, Intent, Journal};
use crate::references::handshake::GivenUp;
use crate::references::scan::Scan;
use crate::state::lock::Lock;
use crate::state::{PendingDelete, Record};

use serde_json::Value;

/// One part of the protocol.
pub trait Machine: Sized {
    /// What it comes to.
    type Output;

    /// The next step. `now`: milliseconds since 1970. `events`: the answers to the effects of the last step, in their
    /// order; none for the first step.
    fn step(self, now: i64, events: Vec<Event>) -> Next<Self>;
}

/// What a step comes to.
#[derive(Clone, Debug, PartialEq)]
pub enum Next<M: Machine> {
    /// These are to be carried out, in any order or at once; then goes the machine on with all their answers.
    Go(M, Vec<Effect>),
    End(Result<M::Output>),
}

/// One request, or one wait. Where it says nothing else, it is about the stack under work.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// GET of a stack's lock. Answer: [`Event::Lock`].
    ReadLock(RecordKey),
    /// PUT `If-None-Match: *`. Answer: [`Event::Written`].
    CreateLock(Lock),
    /// PUT `If-Match`. Answer: [`Event::Written`].
    ReplaceLock { lock: Lock, etag: String },
    /// DELETE `If-Match`. Answer: [`Event::Written`].
    DeleteLock { etag: String },
    /// Removes the superseded versions of the lock (rule L10). Answer: [`Event::Done`].
    ForgetLocks,
    /// `DescribeExecution`. Answer: [`Event::Ended`].
    AskExecution(String),
    /// LIST and GETs of the journal, back to its last checkpoint. Answer: [`Event::Journal`].
    ReadJournal,
    /// LIST of the journal. Answer: [`Event::Last`].
    ListJournal,
    /// PUT `If-None-Match: *` of an object of the journal. Answer: [`Event::Written`].
    WriteJournal { number: u64, entries: Vec<Entry> },
    /// Removes one object of the journal. Answer: [`Event::Done`].
    RemoveEntry { number: u64 },
    /// Removes the journal for good. Answer: [`Event::Done`].
    RemoveJournal,
    /// Sleeps until a moment, milliseconds since 1970. Answer: [`Event::Done`].
    Wait { until: i64 },
    /// GET of the record (and of those of its nested stacks), with the changes of a journal on it. Answer:
    /// [`Event::Done`].
    ReadDesk(Box<Journal>),
    /// PUT `If-Match` of the `ETag` last read or written, even if it says the same: a write that an earlier holder has on
    /// its way then fails. Answer: [`Event::Done`].
    Rewrite,
    /// Brings the record of a stack of the run (and those of its nested stacks) to a [`Draft`] and saves what that changed,
    /// conditional as above.
    /// Answer: [`Event::Saved`].
    Save { key: RecordKey, draft: Draft },
    /// Brings the index of exports up to the record. Answer: [`Event::Done`]: the index is a hint.
    Index(RecordKey),
    /// GET of another stack's record, `If-None-Match` if an `ETag` is given. Answer: [`Event::Record`].
    ReadRecord { key: RecordKey, unless: Option<String> },
    /// Looks in the records of the region (LIST, then GETs) whether another stack owns one of the names
    /// ([`crate::references::handshake::conflicts`]). Answer: [`Event::Done`], or its refusal.
    CheckOwners { own: RecordKey, names: Vec<String>, given_up: GivenUp },
    /// Scan of the estate for consumers of a stack, or of some of its exports: LIST, then the locks, then the records. It
    /// is no single moment; but it sees all that was written before it began. Answer: [`Event::Scanned`].
    Scan { producer: RecordKey, exports: Option<Vec<String>> },
    /// Stores entries in the journal ([`super::fence::Append`]), then applies their changes to the record in memory.
    /// Answer: [`Event::Done`].
    Append(Vec<Entry>),
    /// Sends a call whose intent is stored. Answer: [`Event::Answer`].
    Send(Intent),
    /// Asks how far a request is. Answer: [`Event::Answer`].
    Poll { request_token: String },
    /// Looks for the delete of a resource among the requests since a moment. Answer: [`Event::Found`].
    FindDelete { type_name: String, identifier: String, since: i64 },
    /// Reads a resource. Answer: [`Event::Model`].
    ReadModel { type_name: String, identifier: String },
    /// Whether a row of the record holds this thing. Answer: [`Event::Is`].
    IsHeld(PendingDelete),
    /// Sleeps, milliseconds, but not past the end of the slice; `jitter`: for a random part of it. Answer: [`Event::Done`].
    Pause { millis: u64, jitter: bool },
    /// The number of the next intent, unique within the journal. Answer: [`Event::Number`].
    Number,
    /// Tells the log that something is left to the next run. Answer: [`Event::Done`].
    Warn { logical_id: String, identifier: String, error: Error },
    /// Tells the limiter that a call was throttled, or went through. Answer: [`Event::Done`].
    Pace { throttled: bool },
}

/// What a record is brought to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Draft {
    /// The intent stands in it: imports, claims, what is withdrawn.
    Intent,
    /// As the run found it: what it has written is taken back.
    Found,
}

/// The answer to an effect.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    Done,
    /// The lock that is there. One that cannot be read is there all the same.
    Lock(Option<FoundLock>),
    /// The `ETag` of what was written (empty for what was deleted); `None` if the condition did not hold.
    Written(Option<String>),
    /// Whether an execution has surely ended (rule L12).
    Ended(bool),
    Journal(Journal),
    /// The number of the last object, if there is one.
    Last(Option<u64>),
    /// `withdrawing`: exports are withdrawn in it.
    Saved {
        changed: bool,
        withdrawing: bool,
    },
    Record(Seen),
    Scanned(Scan),
    Answer(Answer<Progress>),
    Found(Answer<Option<Progress>>),
    /// `None`: there is no such resource.
    Model(Answer<Option<Value>>),
    Is(bool),
    Number(u64),
    /// It could not be carried out.
    Failed(Error),
}

/// A lock as read.
#[derive(Clone, Debug, PartialEq)]
pub struct FoundLock {
    pub lock: Result<Lock>,
    pub etag: String,
}

/// What a conditional GET of a record finds.
#[derive(Clone, Debug, PartialEq)]
pub enum Seen {
    /// 304.
    NotModified,
    /// 200.
    Now(Box<Record>),
    /// 404.
    Gone,
}

/// A request to Cloud Control as it stands.
#[derive(Clone, Debug, PartialEq)]
pub struct Progress {
    pub request_token: String,
    pub status: Status,
    /// Known as soon as Cloud Control knows it, also while in progress.
    pub identifier: Option<String>,
    /// The model, where the handler tells one.
    pub model: Option<Value>,
    /// When to ask again, milliseconds since 1970.
    pub retry_after: Option<i64>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Status {
    InProgress,
    Success,
    /// `code`: a `HandlerErrorCode` such as `AlreadyExists`.
    Failed {
        code: String,
        message: String,
    },
}

/// What Cloud Control answers.
pub type Answer<T> = std::result::Result<T, Box<Refused>>;

/// A call that was refused or not answered.
#[derive(Clone, Debug, PartialEq)]
pub struct Refused {
    pub code: String,
    pub message: String,
    pub throttled: bool,
    /// Nobody knows whether it took effect.
    pub unknown: bool,
    pub error: Error,
}

impl Refused {
    /// Whether the same question may be asked again.
    pub fn may_pass(&self) -> bool {
        self.throttled || self.unknown
    }
}

/// The one answer to the one effect of the last step.
///
/// # Errors
/// The failure, if it could not be carried out.
pub(crate) fn only(events: Vec<Event>) -> Result<Event> {
    let mut events = events.into_iter();
    match (events.next(), events.next()) {
        (Some(Event::Failed(error)), None) => Err(error),
        (Some(event), None) => Ok(event),
        _ => Err(out_of_step()),
    }
}

/// All answers.
///
/// # Errors
/// The first failure among them.
pub(crate) fn all(events: Vec<Event>) -> Result<Vec<Event>> {
    events
        .into_iter()
        .map(|event| if let Event::Failed(error) = event { Err(error) } else { Ok(event) })
        .collect()
}

/// An answer that is none to what was asked: a fault of whoever carries the effects out.
pub(crate) fn out_of_step() -> Error {
    Error::new(Code::InternalError, "a step of the protocol got an answer to another question")
        .hint("this is a fault of cdkd: nothing was called; start the execution again")
}

impl<M: Machine> Next<M> {
    /// One effect.
    pub(crate) fn go(machine: M, effect: Effect) -> Self {
        Next::Go(machine, vec![effect])
    }

    pub(crate) fn failed(error: Error) -> Self {
        Next::End(Err(error))
    }
}

/// Goes on with a machine inside another: `wrap` puts it back into its place, `then` takes its output.
pub(crate) fn inside<I: Machine, O: Machine>(
    next: Next<I>,
    wrap: impl FnOnce(I) -> O,
    then: impl FnOnce(Result<I::Output>) -> Next<O>,
) -> Next<O> {
    match next {
        Next::Go(inner, effects) => Next::Go(wrap(inner), effects),
        Next::End(output) => then(output),
    }
}
