//! One call to Cloud Control, from intent to outcome.
//!
//! No call leaves before its intent is stored; the request token is stored right after, the outcome with the changes of
//! the record last (DESIGN 8). A call that was not answered is repeated under its own token; one that failed is tried
//! anew under another (rules P1, P3, P7). [`Settle`] does the same with a call that a dead invocation left.

use serde_json::{Map, Value, json};

use super::journal::{
    self, Change, Entry, Intent, Open, Operation, Outcome, client_token, completed, remnant,
};
use super::step::{Effect, Event, Machine, Next, Progress, Refused, Status, all, inside, only, out_of_step};
use crate::error::{Code, Error};
use crate::name::RecordKey;
use crate::plan;
use crate::schedule::backoff;
use crate::schema::{self, TypeSchema};
use crate::state::PendingDelete;
use crate::state::tree::{key_of, parts};
use crate::value::Node;

/// Tries of a call that AWS throttles or does not answer.
const TRIES: u32 = 12;
/// Tries of a question.
const QUESTIONS: u32 = 5;
/// How long a role or policy of this run may take to be visible everywhere, milliseconds (rule P9).
const PROPAGATION: i64 = 120_000;
/// Between two tries while it does.
const PROPAGATES: u64 = 2000;
/// The first wait for an outcome, milliseconds; each is half as long again as the one before, up to the last.
const FIRST_LOOK: u64 = 100;
const LAST_LOOK: u64 = 5000;
/// Kept for clocks when a request is looked for by its time (rule L9), milliseconds.
const CLOCKS: i64 = 60_000;

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

/// What became of a call whose intent is stored.
#[derive(Clone, Debug, PartialEq)]
pub enum Carried {
    Done,
    Later,
    /// It did not leave, and is planned anew.
    NotSent,
    /// It failed, and the journal says so.
    Failed(Error),
}

/// Carries a call from its stored intent to its stored outcome.
#[derive(Clone, Debug, PartialEq)]
pub struct Carry {
    slice: Slice,
    intent: Intent,
    doing: Carrying,
}

#[derive(Clone, Debug, PartialEq)]
enum Carrying {
    Send,
    Follow(Asked),
    Find,
    /// Under its one token, again and again until it is answered.
    Sending {
        tries: u32,
    },
    PausingToSend {
        tries: u32,
    },
    Noting(Asked),
    Pausing(Asked),
    Polling(Asked),
    Reading {
        identifier: String,
        tries: u32,
    },
    PausingToRead {
        identifier: String,
        tries: u32,
    },
    Finding {
        tries: u32,
    },
    PausingToFind {
        tries: u32,
    },
    Seeing {
        tries: u32,
    },
    PausingToSee {
        tries: u32,
    },
    Judging {
        failure: Failure,
        left: PendingDelete,
    },
    Failing {
        failure: Failure,
        left: Option<PendingDelete>,
    },
    Clearing {
        error: Error,
        identifier: String,
        call: Box<Call>,
    },
    Warning(Error),
    Ending(Carried),
}

/// A request that Cloud Control has taken.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Asked {
    request_token: String,
    identifier: Option<String>,
    wait: u64,
    /// Questions in a row that were not answered.
    silent: u32,
}

#[derive(Clone, Debug, PartialEq)]
struct Failure {
    identifier: String,
    code: String,
    message: String,
}

impl Carry {
    /// Sends it, for the first time or again under its own token.
    pub fn send(slice: Slice, intent: Intent) -> Self {
        Self { slice, intent, doing: Carrying::Send }
    }

    /// Cloud Control took it.
    pub fn follow(slice: Slice, intent: Intent, request_token: String, identifier: Option<String>) -> Self {
        let asked = Asked { request_token, identifier, wait: FIRST_LOOK, silent: 0 };
        Self { slice, intent, doing: Carrying::Follow(asked) }
    }

    /// A delete was intended, and nothing says whether it left: if Cloud Control took it, it is seen to its end.
    pub fn look_for(slice: Slice, intent: Intent) -> Self {
        Self { slice, intent, doing: Carrying::Find }
    }

    fn on(mut self, doing: Carrying, effect: Effect) -> Next<Self> {
        self.doing = doing;
        Next::go(self, effect)
    }

    fn is_late(&self, now: i64) -> bool {
        now >= self.slice.ends
    }

    fn own_identifier(&self) -> String {
        self.intent.identifier.clone().unwrap_or_default()
    }

    fn try_to_send(self, tries: u32) -> Next<Self> {
        let send = Effect::Send(self.intent.clone());
        self.on(Carrying::Sending { tries }, send)
    }

    fn not_answered(self, now: i64, refused: Refused, tries: u32) -> Next<Self> {
        if !refused.unknown || refused.throttled {
            return self.refused(&refused);
        }
        let tries = tries + 1;
        if self.is_late(now) {
            return Next::End(Ok(Carried::Later));
        }
        if tries >= TRIES {
            return Next::failed(refused.error);
        }
        self.on(Carrying::PausingToSend { tries }, Effect::Pause { millis: backoff(tries), jitter: true })
    }

    /// The call was answered with a refusal.
    fn refused(self, refused: &Refused) -> Next<Self> {
        if self.intent.operation == Operation::Delete && refused.code == "ResourceNotFoundException" {
            let identifier = self.own_identifier();
            return self.done(&identifier, None);
        }
        let failure = Failure {
            identifier: String::new(),
            code: refused.code.clone(),
            message: refused.message.clone(),
        };
        self.fail(failure, None)
    }

    /// Cloud Control took the call.
    fn accepted(self, progress: Progress) -> Next<Self> {
        if progress.status != Status::InProgress {
            return self.finished(progress);
        }
        let accepted = Entry::Accepted {
            id: self.intent.id.clone(),
            request_token: progress.request_token.clone(),
            identifier: progress.identifier.clone(),
        };
        let asked = Asked {
            request_token: progress.request_token,
            identifier: progress.identifier,
            wait: FIRST_LOOK,
            silent: 0,
        };
        self.on(Carrying::Noting(asked), Effect::Append(vec![accepted]))
    }

    fn pause(self, asked: Asked) -> Next<Self> {
        let pause = Effect::Pause { millis: asked.wait, jitter: false };
        self.on(Carrying::Pausing(asked), pause)
    }

    /// A failed question is asked again, nothing is sent again (rule P1).
    fn polled(
        mut self,
        now: i64,
        mut asked: Asked,
        answer: std::result::Result<Progress, Refused>,
    ) -> Next<Self> {
        match answer {
            Ok(mut progress) => {
                asked.silent = 0;
                asked.identifier = progress.identifier.take().or(asked.identifier);
                progress.identifier.clone_from(&asked.identifier);
                if progress.status != Status::InProgress {
                    return self.finished(progress);
                }
                let hint = progress.retry_after.map_or(0, |at| at - now).clamp(0, 30_000);
                asked.wait = (asked.wait * 3 / 2).min(LAST_LOOK).max(u64::try_from(hint).unwrap_or(0));
                self.pause(asked)
            }
            Err(refused) if refused.may_pass() => {
                asked.silent += 1;
                asked.wait = backoff(asked.silent);
                let mut effects = vec![Effect::Pause { millis: asked.wait, jitter: true }];
                if refused.throttled {
                    effects.push(Effect::Pace { throttled: true });
                }
                self.doing = Carrying::Pausing(asked);
                Next::Go(self, effects)
            }
            Err(refused) if refused.code == "RequestTokenNotFoundException" => {
                // Forgotten after seven days. A delete is planned anew: what is gone then counts as deleted.
                match self.intent.operation {
                    Operation::Delete => self.not_sent(),
                    Operation::Create | Operation::Update => Next::failed(unknown(&self.intent)),
                }
            }
            Err(refused) => Next::failed(refused.error),
        }
    }

    /// The request has come to its end.
    fn finished(self, progress: Progress) -> Next<Self> {
        let identifier = progress.identifier.unwrap_or_else(|| self.own_identifier());
        let deleting = self.intent.operation == Operation::Delete;
        match progress.status {
            // What is not there is deleted (rule P4).
            Status::Failed { code, .. } if deleting && code == "NotFound" => self.done(&identifier, None),
            Status::Failed { code, message } => {
                let left = remnant(&self.intent, &identifier, &code);
                let failure = Failure { identifier, code, message };
                match left {
                    // A thing that a row holds is no remnant (rule P11).
                    Some(left) => {
                        let ask = Effect::IsHeld(left.clone());
                        self.on(Carrying::Judging { failure, left }, ask)
                    }
                    None => self.fail(failure, None),
                }
            }
            _ if deleting || !self.intent.part.is_empty() => self.done(&identifier, None),
            _ => self.look_at_attributes(identifier, progress.model),
        }
    }

    /// What `Fn::GetAtt` may ask for later: what AWS set, and what names the resource.
    fn look_at_attributes(self, identifier: String, model: Option<Value>) -> Next<Self> {
        let Some(schema) = schema::lookup(&self.intent.type_name) else {
            return self.done(&identifier, Some(&Map::new()));
        };
        let complete = |model: &Value| schema.read_only.iter().all(|path| model.get(path.top()).is_some());
        match model {
            Some(model) if complete(&model) => self.done(&identifier, Some(&attributes(&schema, &model))),
            _ => self.read(identifier, 0),
        }
    }

    fn read(self, identifier: String, tries: u32) -> Next<Self> {
        let read =
            Effect::ReadModel { type_name: self.intent.type_name.clone(), identifier: identifier.clone() };
        self.on(Carrying::Reading { identifier, tries }, read)
    }

    fn find(self, tries: u32) -> Next<Self> {
        let find = Effect::FindDelete {
            type_name: self.intent.type_name.clone(),
            identifier: self.own_identifier(),
            since: self.intent.at - CLOCKS,
        };
        self.on(Carrying::Finding { tries }, find)
    }

    fn see(self, tries: u32) -> Next<Self> {
        let read =
            Effect::ReadModel { type_name: self.intent.type_name.clone(), identifier: self.own_identifier() };
        self.on(Carrying::Seeing { tries }, read)
    }

    /// The pause before a question that was not answered is asked again, if that makes sense: with the number of that try.
    fn ask_again(&self, now: i64, refused: &Refused, tries: u32) -> Option<(u32, Effect)> {
        if !refused.may_pass() || tries >= QUESTIONS || self.is_late(now) {
            return None;
        }
        let tries = tries + 1;
        Some((tries, Effect::Pause { millis: backoff(tries), jitter: true }))
    }

    fn done(self, identifier: &str, attributes: Option<&Map<String, Value>>) -> Next<Self> {
        let changes = completed(&self.intent, identifier, attributes);
        let outcome = Outcome::Done { identifier: identifier.to_owned() };
        self.end(Carried::Done, outcome, changes)
    }

    fn not_sent(self) -> Next<Self> {
        let outcome = Outcome::Failed { code: "NotSent".to_owned(), message: String::new() };
        self.end(Carried::NotSent, outcome, Vec::new())
    }

    fn end(self, carried: Carried, outcome: Outcome, changes: Vec<Change>) -> Next<Self> {
        let entries = self.outcome(outcome, changes);
        self.on(Carrying::Ending(carried), Effect::Append(entries))
    }

    fn outcome(&self, outcome: Outcome, changes: Vec<Change>) -> Vec<Entry> {
        let mut entries = vec![Entry::Outcome { id: self.intent.id.clone(), outcome }];
        entries.extend(changes.into_iter().map(Entry::Change));
        entries
    }

    fn fail(self, failure: Failure, left: Option<PendingDelete>) -> Next<Self> {
        let outcome = Outcome::Failed { code: failure.code.clone(), message: failure.message.clone() };
        let entries = self.outcome(outcome, left.iter().cloned().map(Change::Later).collect());
        self.on(Carrying::Failing { failure, left }, Effect::Append(entries))
    }

    /// A create failed after making the thing: it is deleted again (rule P2). The first error is the one reported; what
    /// cannot be deleted now is on record, for the next run to delete.
    fn failed(self, now: i64, failure: Failure, left: Option<PendingDelete>) -> Next<Self> {
        let error = failed(&self.slice.key, &self.intent, &failure.code, &failure.message);
        let Some(left) = left else { return Next::End(Ok(Carried::Failed(error))) };
        let request = Request {
            logical_id: self.intent.logical_id.clone(),
            operation: Operation::Delete,
            type_name: self.intent.type_name.clone(),
            part: self.intent.part.clone(),
            identifier: Some(failure.identifier.clone()),
            body: Value::Null,
            then: vec![Change::Forget(left)],
        };
        let call = Call::new(self.slice.clone(), request);
        self.clearing(error, failure.identifier, call.step(now, Vec::new()))
    }

    fn clearing(mut self, error: Error, identifier: String, next: Next<Call>) -> Next<Self> {
        match next {
            Next::Go(call, effects) => {
                self.doing = Carrying::Clearing { error, identifier, call: Box::new(call) };
                Next::Go(self, effects)
            }
            Next::End(Ok(_)) => Next::End(Ok(Carried::Failed(error))),
            Next::End(Err(lost)) if lost.code() == Code::LockLostError => Next::failed(lost),
            Next::End(Err(left)) => {
                let warn =
                    Effect::Warn { logical_id: self.intent.logical_id.clone(), identifier, error: left };
                self.on(Carrying::Warning(error), warn)
            }
        }
    }
}

impl Machine for Carry {
    type Output = Carried;

    fn step(self, now: i64, events: Vec<Event>) -> Next<Self> {
        let doing = self.doing.clone();
        match doing {
            Carrying::Send => return self.try_to_send(0),
            Carrying::Follow(asked) => return self.pause(asked),
            Carrying::Find => return self.find(0),
            Carrying::Clearing { error, identifier, call } => {
                return self.clearing(error, identifier, call.step(now, events));
            }
            _ => {}
        }
        let event = match all(events) {
            // Of a pause and what goes with it, one answer stands for all.
            Ok(mut events) => events.pop().unwrap_or(Event::Done),
            Err(error) => return Next::failed(error),
        };
        match (doing, event) {
            (Carrying::Sending { .. }, Event::Answer(Ok(progress))) => self.accepted(progress),
            (Carrying::Sending { tries }, Event::Answer(Err(refused))) => {
                self.not_answered(now, refused, tries)
            }
            (Carrying::PausingToSend { tries }, Event::Done) => self.try_to_send(tries),
            (Carrying::Noting(asked), Event::Done) => self.pause(asked),
            (Carrying::Pausing(_), Event::Done) if self.is_late(now) => Next::End(Ok(Carried::Later)),
            (Carrying::Pausing(asked), Event::Done) => {
                let poll = Effect::Poll { request_token: asked.request_token.clone() };
                self.on(Carrying::Polling(asked), poll)
            }
            (Carrying::Polling(asked), Event::Answer(answer)) => self.polled(now, asked, answer),
            (Carrying::Reading { identifier, .. }, Event::Model(Ok(model))) => {
                let kept = schema::lookup(&self.intent.type_name)
                    .map(|schema| attributes(&schema, &model.unwrap_or_default()));
                self.done(&identifier, kept.as_ref())
            }
            (Carrying::Reading { identifier, tries }, Event::Model(Err(refused))) => {
                match self.ask_again(now, &refused, tries) {
                    Some((tries, pause)) => self.on(Carrying::PausingToRead { identifier, tries }, pause),
                    None => Next::failed(refused.error),
                }
            }
            (Carrying::PausingToRead { identifier, tries }, Event::Done) => self.read(identifier, tries),
            (Carrying::Finding { .. }, Event::Found(Ok(Some(progress))))
                if progress.status == Status::InProgress =>
            {
                self.accepted(progress)
            }
            // One that has ended may have been of a namesake before this one: only the resource itself can tell.
            (Carrying::Finding { .. }, Event::Found(Ok(_))) => self.see(0),
            (Carrying::Finding { tries }, Event::Found(Err(refused))) => {
                match self.ask_again(now, &refused, tries) {
                    Some((tries, pause)) => self.on(Carrying::PausingToFind { tries }, pause),
                    None => Next::failed(refused.error),
                }
            }
            (Carrying::PausingToFind { tries }, Event::Done) => self.find(tries),
            (Carrying::Seeing { .. }, Event::Model(Ok(None))) => {
                let identifier = self.own_identifier();
                self.done(&identifier, None)
            }
            (Carrying::Seeing { .. }, Event::Model(Ok(Some(_)))) => self.not_sent(),
            (Carrying::Seeing { tries }, Event::Model(Err(refused))) => {
                match self.ask_again(now, &refused, tries) {
                    Some((tries, pause)) => self.on(Carrying::PausingToSee { tries }, pause),
                    None if refused.may_pass() => Next::failed(refused.error),
                    None => self.not_sent(),
                }
            }
            (Carrying::PausingToSee { tries }, Event::Done) => self.see(tries),
            (Carrying::Judging { failure, left }, Event::Is(held)) => {
                self.fail(failure, (!held).then_some(left))
            }
            (Carrying::Failing { failure, left }, Event::Done) => self.failed(now, failure, left),
            (Carrying::Warning(error), Event::Done) => Next::End(Ok(Carried::Failed(error))),
            (Carrying::Ending(carried), Event::Done) => Next::End(Ok(carried)),
            _ => Next::failed(out_of_step()),
        }
    }
}

/// The row remembers the mark of its create: an update of the tags sends it again.
fn note_mark(then: &mut [Change], mark: &str) {
    for change in then {
        if let Change::Put { row, .. } = change {
            row.set_own("token", json!(mark));
        }
    }
}

/// The attributes that are kept of a model: what AWS set and what names the resource. Minted secrets are masked.
fn attributes(schema: &TypeSchema, model: &Value) -> Map<String, Value> {
    let mut kept = Map::new();
    let names = schema
        .read_only
        .iter()
        .chain(&schema.primary_identifier)
        .chain(schema.additional_identifiers.iter().flatten())
        .map(schema::PropertyPath::top);
    let own = schema.name.iter().map(|rule| rule.property.as_str());
    for name in names.chain(own) {
        let hidden = schema.is_write_only(&schema::PropertyPath::new([name]));
        if let Some(value) = model.get(name).filter(|_| !hidden) {
            kept.entry(name.to_owned()).or_insert_with(|| value.clone());
        }
    }
    for name in schema::minted_secrets(&schema.type_name) {
        if let Some(value) = kept.get_mut(*name) {
            *value = json!("***");
        }
    }
    kept
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Again {
    Throttled,
    /// Another operation on the resource is in progress.
    Busy,
    /// A role or policy of this run is not visible everywhere yet.
    Propagating,
    No,
}

/// Whether a call that failed is worth another, by the code of the call or of the event.
fn again(code: &str, message: &str) -> Again {
    match code {
        "Throttling" | "ThrottlingException" | "TooManyRequestsException" | "RequestLimitExceeded" => {
            Again::Throttled
        }
        "ConcurrentOperationException"
        | "ConcurrentModificationException"
        | "NetworkFailure"
        | "ServiceInternalError"
        | "InternalFailure"
        | "HandlerInternalFailureException" => Again::Busy,
        _ if [
            "cannot be assumed",
            "Invalid principal in policy",
            "is not authorized to perform: sts:AssumeRole",
        ]
        .iter()
        .any(|sign| message.contains(sign)) =>
        {
            Again::Propagating
        }
        _ => Again::No,
    }
}

fn failed(key: &RecordKey, intent: &Intent, code: &str, message: &str) -> Error {
    let hint = match code {
        "AlreadyExists" => "something of that name exists that this stack did not make: rename one of them",
        "AccessDenied" | "UnauthorizedTaggingOperation" | "AccessDeniedException" => {
            "give the role `cdkd-exec` the permission (parameter `ExecPolicies` of the installation)"
        }
        "InvalidRequest" | "ValidationException" => "correct the property that the message names",
        "ServiceLimitExceeded" => "raise the quota, or delete what is not needed",
        _ => "the message is of the service; correct the cause and start the execution again",
    };
    let (path, logical_id) = parts(&intent.logical_id);
    // A nested stack is named by its record (rule E8).
    let nested = (!path.is_empty()).then(|| key_of(key, path).stack);
    let of = nested.as_ref().map(|stack| format!(" of nested stack `{stack}`")).unwrap_or_default();
    let error = Error::new(
        Code::ProvisioningFailed,
        format!(
            "could not {} `{logical_id}`{of} ({}): {code}: {message}",
            intent.operation.name(),
            intent.type_name
        ),
    )
    .hint(hint)
    .detail("logicalId", logical_id)
    .detail("type", intent.type_name.as_str())
    .detail("operation", intent.operation.name())
    .detail("awsCode", code);
    match nested {
        Some(stack) => error.detail("nestedStack", stack.as_str()),
        None => error,
    }
}

fn unknown(intent: &Intent) -> Error {
    Error::new(
        Code::UnknownOutcome,
        format!(
            "an earlier run meant to {} `{}` ({}), and nothing tells any more whether that happened",
            intent.operation.name(),
            intent.logical_id,
            intent.type_name
        ),
    )
    .hint("look for the resource by its tag `cdkd:logical-id`; delete it or bring it under its name, then remove the journal of the stack")
    .detail("logicalId", intent.logical_id.as_str())
    .detail("type", intent.type_name.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Result;
    use crate::state::Row;

    const NOW: i64 = 1_796_070_352_000;

    fn slice() -> Slice {
        let key = RecordKey::parse("Web", "us-east-1").unwrap();
        Slice { key, nonce: "n".into(), ends: NOW + 60_000 }
    }

    fn request(operation: Operation) -> Request {
        let row = Row::new("AWS::SQS::Queue", "");
        let (body, then) = match operation {
            Operation::Create => (json!({}), vec![Change::Put { logical_id: "Queue".into(), row }]),
            Operation::Update => (json!([]), vec![Change::Put { logical_id: "Queue".into(), row }]),
            Operation::Delete => (Value::Null, vec![Change::Remove { logical_id: "Queue".into() }]),
        };
        Request {
            logical_id: "Queue".into(),
            operation,
            type_name: "AWS::SQS::Queue".into(),
            part: String::new(),
            identifier: (operation != Operation::Create).then(|| "url".to_owned()),
            body,
            then,
        }
    }

    fn progress(status: Status, identifier: Option<&str>) -> Event {
        Event::Answer(Ok(Progress {
            request_token: "token".into(),
            status,
            identifier: identifier.map(str::to_owned),
            model: None,
            retry_after: None,
        }))
    }

    fn event_failed(code: &str) -> Status {
        Status::Failed { code: code.into(), message: "no".into() }
    }

    fn refused(code: &str, unknown: bool) -> Refused {
        let throttled = code == "Throttling";
        let error = Error::new(Code::ServiceUnavailable, code);
        Refused { code: code.into(), message: "no".into(), throttled, unknown, error }
    }

    /// Runs a machine; what it sends and asks is answered from the script, everything else as it should be. Answers the
    /// names of its effects with what tells them apart.
    fn play<M: Machine>(machine: M, script: Vec<Event>) -> (Vec<String>, Result<M::Output>) {
        let mut script = script.into_iter();
        let (mut said, mut numbers) = (Vec::new(), 0);
        let mut now = NOW;
        let mut next = machine.step(now, Vec::new());
        loop {
            let (machine, effects) = match next {
                Next::Go(machine, effects) => (machine, effects),
                Next::End(end) => {
                    assert_eq!(script.next(), None, "all of the script is played");
                    return (said, end);
                }
            };
            let mut events = Vec::new();
            for effect in effects {
                let (name, event) = match effect {
                    Effect::Number => {
                        numbers += 1;
                        (String::new(), Event::Number(numbers))
                    }
                    Effect::Append(entries) => {
                        let name = entries.iter().map(entry).collect::<Vec<_>>().join("+");
                        (name, Event::Done)
                    }
                    Effect::Pace { throttled } => {
                        ((if throttled { "slower" } else { "" }).to_owned(), Event::Done)
                    }
                    Effect::Pause { millis, .. } => {
                        now += i64::try_from(millis).unwrap();
                        (String::new(), Event::Done)
                    }
                    Effect::Send(intent) => {
                        let token = &intent.client_token[..4];
                        (format!("send {} {token}", intent.operation.name()), script.next().unwrap())
                    }
                    Effect::Poll { request_token } => {
                        (format!("poll {request_token}"), script.next().unwrap())
                    }
                    Effect::ReadModel { identifier, .. } => {
                        (format!("read {identifier}"), script.next().unwrap())
                    }
                    Effect::FindDelete { identifier, .. } => {
                        (format!("find {identifier}"), script.next().unwrap())
                    }
                    Effect::IsHeld(_) => ("held?".to_owned(), script.next().unwrap()),
                    Effect::Warn { identifier, .. } => (format!("warn {identifier}"), Event::Done),
                    other => panic!("no effect of a call: {other:?}"),
                };
                if !name.is_empty() {
                    said.push(name);
                }
                events.push(event);
            }
            next = machine.step(now, events);
        }
    }

    fn entry(entry: &Entry) -> String {
        match entry {
            Entry::Intent(intent) => format!("intent {}", intent.id),
            Entry::Accepted { .. } => "accepted".into(),
            Entry::Outcome { outcome: Outcome::Done { identifier }, .. } => format!("done {identifier}"),
            Entry::Outcome { outcome: Outcome::Failed { code, .. }, .. } => format!("failed {code}"),
            Entry::Change(Change::Put { row, .. }) => format!("put {}", row.physical_id()),
            Entry::Change(Change::Remove { .. }) => "remove".into(),
            Entry::Change(Change::Later(_)) => "later".into(),
            Entry::Change(Change::Forget(_)) => "forget".into(),
            other => format!("{other:?}"),
        }
    }

    fn call(operation: Operation, script: Vec<Event>) -> (Vec<String>, Result<End>) {
        let (mut said, end) = play(Call::new(slice(), request(operation)), script);
        // Which token it is does not matter, but whether it is another one.
        let mut tokens: Vec<String> = Vec::new();
        for name in &mut said {
            if let Some((call, token)) = name.clone().strip_prefix("send ").and_then(|it| it.split_once(' '))
            {
                let known = tokens.iter().position(|it| it == token);
                let at = known.unwrap_or_else(|| {
                    tokens.push(token.to_owned());
                    tokens.len() - 1
                });
                *name = format!("{call} under token {at}");
            }
        }
        (said, end)
    }

    #[test]
    fn p1_no_call_leaves_before_its_intent_and_its_token_follows_at_once() {
        let model = json!({"Arn": "a", "QueueUrl": "url"});
        let script = vec![
            progress(Status::InProgress, None),
            progress(Status::InProgress, Some("url")),
            Event::Answer(Err(refused("Throttling", false))),
            progress(Status::Success, None),
            Event::Model(Err(refused("Throttling", false))),
            Event::Model(Ok(Some(model))),
        ];
        let (said, end) = call(Operation::Create, script);
        assert_eq!(end, Ok(End::Done));
        assert_eq!(
            said,
            [
                "intent 1",
                "create under token 0",
                "accepted",
                "poll token",
                "poll token",
                "slower",
                "poll token",
                "read url",
                "read url",
                "done url+put url",
            ]
        );
    }

    #[test]
    fn p1_what_was_not_answered_is_sent_again_under_its_own_token() {
        let script = vec![
            Event::Answer(Err(refused("", true))),
            Event::Answer(Err(refused("", true))),
            progress(Status::Success, None),
        ];
        let (said, end) = call(Operation::Delete, script);
        assert_eq!(end, Ok(End::Done));
        assert_eq!(
            said,
            [
                "intent 1",
                "delete under token 0",
                "delete under token 0",
                "delete under token 0",
                "done url+remove"
            ]
        );
    }

    #[test]
    fn p3_p7_what_failed_is_tried_anew_under_another_token() {
        let script = vec![
            progress(event_failed("Throttling"), None),
            Event::Answer(Err(refused("ConcurrentOperationException", false))),
            progress(Status::Success, None),
        ];
        let (said, end) = call(Operation::Delete, script);
        assert_eq!(end, Ok(End::Done));
        assert_eq!(
            said,
            [
                "intent 1",
                "delete under token 0",
                "failed Throttling",
                "slower",
                "intent 2",
                "delete under token 1",
                "failed ConcurrentOperationException",
                "intent 3",
                "delete under token 2",
                "done url+remove"
            ]
        );
    }

    #[test]
    fn p2_p11_what_a_failed_create_left_is_deleted_unless_a_row_holds_it() {
        let failing = |held: bool, script: Vec<Event>| {
            let mut all = vec![progress(event_failed("InternalFailure2"), Some("url")), Event::Is(held)];
            all.extend(script);
            let (said, end) = call(Operation::Create, all);
            let error = end.unwrap_err();
            assert_eq!(error.code(), Code::ProvisioningFailed);
            assert_eq!(error.details()["awsCode"], "InternalFailure2", "the first error");
            said.split_off_from("held?")
        };
        assert_eq!(failing(true, vec![]), ["held?", "failed InternalFailure2"]);
        assert_eq!(
            failing(false, vec![progress(Status::Success, None)]),
            ["held?", "failed InternalFailure2+later", "intent 2", "delete under token 1", "done url+forget"]
        );
        // What cannot be deleted now waits on record for the next run.
        assert_eq!(
            failing(false, vec![progress(event_failed("AccessDenied"), None)]),
            [
                "held?",
                "failed InternalFailure2+later",
                "intent 2",
                "delete under token 1",
                "failed AccessDenied",
                "warn url"
            ]
        );
    }

    trait SplitOffFrom {
        fn split_off_from(self, name: &str) -> Vec<String>;
    }

    impl SplitOffFrom for Vec<String> {
        fn split_off_from(mut self, name: &str) -> Vec<String> {
            let at = self.iter().position(|it| it == name).unwrap();
            self.split_off(at)
        }
    }

    #[test]
    fn p4_what_is_not_there_is_deleted() {
        for script in [
            vec![progress(event_failed("NotFound"), None)],
            vec![Event::Answer(Err(refused("ResourceNotFoundException", false)))],
        ] {
            let (said, end) = call(Operation::Delete, script);
            assert_eq!((said.last().unwrap().as_str(), end), ("done url+remove", Ok(End::Done)));
        }
    }

    #[test]
    fn nothing_starts_when_the_slice_is_over_and_what_runs_is_left() {
        let over = Slice { ends: NOW, ..slice() };
        let (said, end) = play(Call::new(over, request(Operation::Delete)), vec![]);
        assert_eq!((said.len(), end), (0, Ok(End::Later)));
        let soon = Slice { ends: NOW + 50, ..slice() };
        let script = vec![progress(Status::InProgress, None)];
        let (said, end) = play(Call::new(soon, request(Operation::Delete)), script);
        assert_eq!((said.last().unwrap().as_str(), end), ("accepted", Ok(End::Later)));
    }

    #[test]
    fn l4_whoever_lost_the_journal_calls_no_more() {
        let lost = || Event::Failed(Error::new(Code::LockLostError, "lost"));
        let Next::Go(call, _) = Call::new(slice(), request(Operation::Delete)).step(NOW, vec![]) else {
            panic!("asks for a number")
        };
        let Next::Go(call, effects) = call.step(NOW, vec![Event::Number(1)]) else { panic!("stores") };
        assert!(matches!(effects.as_slice(), [Effect::Append(_)]));
        let Next::End(Err(error)) = call.step(NOW, vec![lost()]) else { panic!("ends") };
        assert_eq!(error.code(), Code::LockLostError);
    }

    #[test]
    fn p1_p10_what_a_dead_invocation_left_is_settled() {
        let settled = |operation: Operation, token: Option<&str>, at: i64, script: Vec<Event>| {
            let Next::Go(call, _) = Call::new(slice(), request(operation)).step(NOW, vec![]) else {
                panic!("asks for a number")
            };
            let Next::Go(_, effects) = call.step(at, vec![Event::Number(7)]) else { panic!("stores") };
            let Some(Effect::Append(entries)) = effects.into_iter().next() else { panic!("stores") };
            let Some(Entry::Intent(intent)) = entries.into_iter().next() else { panic!("an intent") };
            let open = Open { intent, request_token: token.map(str::to_owned), identifier: None };
            play(Settle::new(slice(), open), script)
        };
        let gone = || refused("RequestTokenNotFoundException", false);
        let running = || match progress(Status::InProgress, Some("url")) {
            Event::Answer(Ok(progress)) => Event::Found(Ok(Some(progress))),
            other => other,
        };
        let there = || Event::Model(Ok(Some(json!({}))));
        let done = || progress(Status::Success, None);
        let table = [
            ("polled", Operation::Delete, Some("t"), vec![done()], "done url+remove"),
            ("failed", Operation::Delete, Some("t"), vec![progress(event_failed("X"), None)], "failed X"),
            ("forgotten", Operation::Delete, Some("t"), vec![Event::Answer(Err(gone()))], "failed NotSent"),
            (
                "sent again",
                Operation::Update,
                None,
                vec![Event::Answer(Err(refused("X", false)))],
                "failed X",
            ),
            ("followed", Operation::Delete, None, vec![running(), done()], "done url+remove"),
            (
                "gone",
                Operation::Delete,
                None,
                vec![Event::Found(Ok(None)), Event::Model(Ok(None))],
                "done url+remove",
            ),
            ("there", Operation::Delete, None, vec![Event::Found(Ok(None)), there()], "failed NotSent"),
        ];
        for (name, operation, token, script, last) in table {
            let (said, end) = settled(operation, token, NOW, script);
            assert_eq!((said.last().map(String::as_str), end), (Some(last), Ok(End::Done)), "{name}");
        }
        let (said, end) = settled(Operation::Create, None, NOW - 36 * 60 * 60 * 1000, vec![]);
        assert_eq!((said.len(), end.unwrap_err().code()), (0, Code::UnknownOutcome));
        let (_, end) = settled(Operation::Update, Some("t"), NOW, vec![Event::Answer(Err(gone()))]);
        assert_eq!(end.unwrap_err().code(), Code::UnknownOutcome);
    }
}
