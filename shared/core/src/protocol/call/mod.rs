//! One call to Cloud Control, from intent to outcome.
//!
//! No call leaves before its intent is stored; the request token is stored right after, the outcome with the changes of
//! the record last (DESIGN 8). A call that was not answered is repeated under its own token; one that failed is tried
//! anew under another (rules P1, P3, P7). [`Settle`] does the same with a call that a dead invocation left.

use serde_json::Value;

use self::carry::{Carried, Carry};
use self::verdict::{Again, again, note_mark, unknown};
use super::journal::{self, Change, Entry, Intent, Open, Operation, client_token};
use super::step::{Effect, Event, Machine, Next, all, inside, only, out_of_step};
use crate::error::Error;
use crate::name::RecordKey;
use crate::plan;
use crate::schedule::backoff;
use crate::schema;
use crate::value::Node;

mod carry;
#[cfg(test)]
mod tests;
mod verdict;

/// Tries of a call that AWS throttles or does not answer.
const TRIES: u32 = 12;
/// How long a role or policy of this run may take to be visible everywhere, milliseconds (rule P9).
const PROPAGATION: i64 = 120_000;
/// Between two tries while it does.
const PROPAGATES: u64 = 2000;

/// A call to be made.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    pub logical_id: String,
    pub operation: Operation,
    pub type_name: String,
    /// Which part of the row it is about; empty for a type that is not expanded.
    pub part: String,
    pub identifier: Option<String>,
    /// The desired state, or the patch. `Value::Null` for a delete.
    pub body: Value,
    /// What changes on record once it is done.
    pub then: Vec<Change>,
}

/// The invocation that calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slice {
    /// The stack under work: the root, if it is nested stacks as well.
    pub key: RecordKey,
    /// Of the run's lock.
    pub nonce: String,
    /// When nothing new starts any more, milliseconds since 1970.
    pub ends: i64,
}

/// How a call or step ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Done,
    /// The slice is over before it; the next one goes on.
    Later,
}

/// Makes a call and sees it to its end.
///
/// Fails with `ProvisioningFailed`; as the journal does; with what AWS does not let us ask.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    slice: Slice,
    request: Request,
    began: Option<i64>,
    tries: u32,
    doing: Calling,
}

#[derive(Clone, Debug, PartialEq)]
enum Calling {
    Starting,
    Numbering,
    Noting(Box<Intent>),
    Carrying(Box<Carry>),
    Pausing,
    Praising,
}

impl Call {
    pub fn new(slice: Slice, request: Request) -> Self {
        Self { slice, request, began: None, tries: 0, doing: Calling::Starting }
    }

    fn start(mut self, now: i64) -> Next<Self> {
        self.began.get_or_insert(now);
        if now >= self.slice.ends {
            return Next::End(Ok(End::Later));
        }
        self.doing = Calling::Numbering;
        Next::go(self, Effect::Number)
    }

    fn intent(&self, now: i64, attempt: u64) -> Intent {
        let request = &self.request;
        let Slice { nonce, key, .. } = &self.slice;
        let stack = key.stack.as_str();
        let token = client_token(nonce, stack, &request.logical_id, request.operation, attempt);
        let (mut body, mut then) = (request.body.clone(), request.then.clone());
        if request.operation == Operation::Create
            && let Some(schema) = schema::lookup(&request.type_name)
        {
            let mark = token.get(..16).unwrap_or(&token);
            note_mark(&mut then, mark);
            body = plan::mark(&schema, body, stack, &request.logical_id, mark);
        }
        Intent {
            id: format!("{attempt}"),
            logical_id: request.logical_id.clone(),
            operation: request.operation,
            type_name: request.type_name.clone(),
            part: request.part.clone(),
            identifier: request.identifier.clone(),
            body: Node::literal(&body).to_document(),
            then,
            client_token: token,
            at: now,
        }
    }

    fn carrying(mut self, now: i64, next: Next<Carry>) -> Next<Self> {
        match next {
            Next::Go(carry, effects) => {
                self.doing = Calling::Carrying(Box::new(carry));
                Next::Go(self, effects)
            }
            Next::End(Ok(Carried::Done)) => {
                self.doing = Calling::Praising;
                Next::go(self, Effect::Pace { throttled: false })
            }
            Next::End(Ok(Carried::NotSent)) => Next::End(Ok(End::Done)),
            Next::End(Ok(Carried::Later)) => Next::End(Ok(End::Later)),
            Next::End(Ok(Carried::Failed(error))) => self.again(now, error),
            Next::End(Err(error)) => Next::failed(error),
        }
    }

    /// Whether a call that failed is worth another.
    fn again(mut self, now: i64, error: Error) -> Next<Self> {
        self.tries += 1;
        let code = error.details().get("awsCode").and_then(Value::as_str).unwrap_or_default();
        let pause = |millis: u64| Effect::Pause { millis, jitter: true };
        let effects = match again(code, error.message()) {
            Again::Throttled if self.tries < TRIES => {
                vec![Effect::Pace { throttled: true }, pause(backoff(self.tries))]
            }
            Again::Busy if self.tries < TRIES => vec![pause(backoff(self.tries))],
            Again::Propagating if now - self.began.unwrap_or(now) < PROPAGATION => vec![pause(PROPAGATES)],
            _ => return Next::failed(error),
        };
        self.doing = Calling::Pausing;
        Next::Go(self, effects)
    }
}

impl Machine for Call {
    type Output = End;

    fn step(mut self, now: i64, events: Vec<Event>) -> Next<Self> {
        match self.doing.clone() {
            Calling::Starting => self.start(now),
            Calling::Carrying(carry) => self.carrying(now, carry.step(now, events)),
            Calling::Pausing => match all(events) {
                Ok(_) => self.start(now),
                Err(error) => Next::failed(error),
            },
            Calling::Numbering => match only(events) {
                Ok(Event::Number(attempt)) => {
                    let intent = self.intent(now, attempt);
                    self.doing = Calling::Noting(Box::new(intent.clone()));
                    Next::go(self, Effect::Append(vec![Entry::Intent(intent)]))
                }
                Ok(_) => Next::failed(out_of_step()),
                Err(error) => Next::failed(error),
            },
            Calling::Noting(intent) => match only(events) {
                Ok(Event::Done) => {
                    let carry = Carry::send(self.slice.clone(), *intent);
                    self.carrying(now, carry.step(now, Vec::new()))
                }
                Ok(_) => Next::failed(out_of_step()),
                Err(error) => Next::failed(error),
            },
            Calling::Praising => Next::End(only(events).map(|_| End::Done)),
        }
    }
}

/// Settles a call that an earlier slice or run left without an outcome (rules P1, P10). One that failed is settled: its
/// step tries anew.
///
/// Fails with `UnknownOutcome` if nothing tells any more what happened.
#[derive(Clone, Debug, PartialEq)]
pub struct Settle {
    slice: Slice,
    open: Open,
    carry: Option<Box<Carry>>,
}

impl Settle {
    pub fn new(slice: Slice, open: Open) -> Self {
        Self { slice, open, carry: None }
    }
}

impl Machine for Settle {
    type Output = End;

    fn step(self, now: i64, events: Vec<Event>) -> Next<Self> {
        let Self { slice, open, carry } = self;
        let carry = carry.map_or_else(
            || {
                let intent = open.intent.clone();
                Ok(match journal::settle(&open, now) {
                    journal::Settle::Poll { request_token } => {
                        Carry::follow(slice.clone(), intent, request_token, open.identifier.clone())
                    }
                    journal::Settle::SendAgain => Carry::send(slice.clone(), intent),
                    journal::Settle::LookFor => Carry::look_for(slice.clone(), intent),
                    journal::Settle::Unknown => return Err(unknown(&intent)),
                })
            },
            |carry| Ok(*carry),
        );
        let carry = match carry {
            Ok(carry) => carry,
            Err(error) => return Next::failed(error),
        };
        inside(
            carry.step(now, events),
            |carry| Self { slice, open, carry: Some(Box::new(carry)) },
            |end| {
                Next::End(end.map(|end| match end {
                    Carried::Later => End::Later,
                    Carried::Done | Carried::NotSent | Carried::Failed(_) => End::Done,
                }))
            },
        )
    }
}
