//! From the stored intent of a call to its stored outcome.

use serde_json::{Map, Value};

use super::verdict::{attributes, failed, unknown};
use super::{Call, Request, Slice, TRIES};
use crate::error::{Code, Error};
use crate::protocol::journal::{Change, Entry, Intent, Operation, Outcome, completed, remnant};
use crate::protocol::step::{
    Answer, Effect, Event, Machine, Next, Progress, Refused, Status, all, out_of_step,
};
use crate::schedule::backoff;
use crate::schema;
use crate::state::PendingDelete;

/// Tries of a question.
const QUESTIONS: u32 = 5;
/// The first wait for an outcome, milliseconds; each is half as long again as the one before, up to the last.
const FIRST_LOOK: u64 = 100;
const LAST_LOOK: u64 = 5000;
/// Kept for clocks when a request is looked for by its time (rule L9), milliseconds.
const CLOCKS: i64 = 60_000;

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

    fn not_answered(self, now: i64, refused: Box<Refused>, tries: u32) -> Next<Self> {
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
    fn polled(mut self, now: i64, mut asked: Asked, answer: Answer<Progress>) -> Next<Self> {
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
