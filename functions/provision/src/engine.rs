//! What the steps of one invocation share, and the world that their calls are carried out in.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use cdkd_aws::cloud_control::CloudControl;
use cdkd_aws::protocol::{World, drive, unknown};
use cdkd_aws::settings;
use cdkd_aws::stack::Session;
use cdkd_core::protocol::call::{self, Call, Settle};
pub(crate) use cdkd_core::protocol::call::{End, Request};
use cdkd_core::protocol::journal::{Change, Entry, Intent, Open, Operation};
use cdkd_core::protocol::step::{Answer, Effect, Event, Progress};
use cdkd_core::schedule::Limiter;
use cdkd_core::state::Record;
use cdkd_core::value::Node;
use cdkd_core::{Code, Error, Result};

/// What the steps of one invocation share.
pub(crate) struct Engine {
    pub session: Session,
    /// Of the stack's region.
    cloud: Rc<CloudControl>,
    pub record: RefCell<Record>,
    pub limiter: RefCell<Limiter>,
    /// Calls that an earlier slice or run left open, each until its step takes it up.
    pub open: RefCell<Vec<Open>>,
    /// Kept at the end of the invocation for saving, milliseconds.
    pub margin: Duration,
    intents: Cell<u64>,
}

impl Engine {
    pub fn new(session: Session, record: Record, margin: Duration) -> Self {
        Self {
            cloud: session.invocation.aws.cloud_control.of(&session.key.region),
            record: RefCell::new(record),
            limiter: RefCell::default(),
            open: RefCell::new(session.found.open.clone()),
            intents: Cell::new(session.found.intents),
            session,
            margin,
        }
    }

    /// Whether the slice comes to its end: nothing new starts, what runs is left to the next one.
    pub fn is_late(&self) -> bool {
        self.session.invocation.left(self.margin) == Duration::ZERO
    }

    fn slice(&self) -> call::Slice {
        let kept = i64::try_from(self.margin.as_millis()).unwrap_or(i64::MAX);
        call::Slice {
            key: self.session.key.clone(),
            nonce: self.session.nonce.clone(),
            ends: self.session.invocation.deadline.saturating_sub(kept),
        }
    }

    /// Stores a change of the record that needs no call.
    pub async fn change(&self, changes: Vec<Change>) -> Result<()> {
        self.append(changes.into_iter().map(Entry::Change).collect()).await
    }

    /// Stores entries, then applies their changes to the record in memory.
    async fn append(&self, entries: Vec<Entry>) -> Result<()> {
        self.session.journal.append(entries.clone()).await?;
        let mut record = self.record.borrow_mut();
        for entry in &entries {
            if let Entry::Change(change) = entry {
                change.apply(&mut record);
            }
        }
        Ok(())
    }

    /// Settles the calls that an earlier slice or run left open for a logical id.
    pub async fn settle(&self, logical_id: &str) -> Result<End> {
        loop {
            let next = {
                let mut open = self.open.borrow_mut();
                let position = open.iter().position(|open| open.intent.logical_id == logical_id);
                position.map(|position| open.remove(position))
            };
            let Some(open) = next else { return Ok(End::Done) };
            if drive(self, Settle::new(self.slice(), open)).await? == End::Later {
                return Ok(End::Later);
            }
        }
    }

    /// Makes a call and sees it to its end.
    pub async fn call(&self, request: Request) -> Result<End> {
        drive(self, Call::new(self.slice(), request)).await
    }

    async fn send(&self, intent: &Intent) -> Result<Answer<Progress>> {
        let live = live(intent)?;
        let (type_name, token) = (&intent.type_name, &intent.client_token);
        let identifier = intent.identifier.as_deref().unwrap_or_default();
        Ok(match intent.operation {
            Operation::Create => self.cloud.create(type_name, &live, token).await,
            Operation::Update => self.cloud.update(type_name, identifier, &live, token).await,
            Operation::Delete => self.cloud.delete(type_name, identifier, token).await,
        })
    }
}

impl World for Engine {
    async fn carry_out(&self, effect: Effect) -> Result<Event> {
        Ok(match effect {
            Effect::Number => {
                self.intents.set(self.intents.get() + 1);
                Event::Number(self.intents.get())
            }
            Effect::Append(entries) => {
                self.append(entries).await?;
                Event::Done
            }
            Effect::Send(intent) => Event::Answer(self.send(&intent).await?),
            Effect::Poll { request_token } => Event::Answer(self.cloud.status(&request_token).await),
            Effect::FindDelete { type_name, identifier, since } => {
                Event::Found(self.cloud.delete_since(&type_name, &identifier, since).await)
            }
            Effect::ReadModel { type_name, identifier } => {
                Event::Model(self.cloud.read(&type_name, &identifier).await)
            }
            Effect::IsHeld(left) => {
                Event::Is(self.record.borrow().rows().any(|(_, row)| row.is_same_thing(&left.row)))
            }
            Effect::Pause { millis, jitter } => {
                let wait = Duration::from_millis(millis);
                let wait = if jitter { settings::jitter(wait) } else { wait };
                tokio::time::sleep(wait.min(self.session.invocation.left(self.margin))).await;
                Event::Done
            }
            Effect::Pace { throttled: true } => {
                self.limiter.borrow_mut().throttled();
                Event::Done
            }
            Effect::Pace { throttled: false } => {
                self.limiter.borrow_mut().succeeded();
                Event::Done
            }
            Effect::Warn { logical_id, identifier, error } => {
                tracing::warn!(
                    logical_id,
                    identifier,
                    error = error.message(),
                    "what a failed create left could not be deleted"
                );
                Event::Done
            }
            other => return Err(unknown(&other)),
        })
    }
}

/// The live form of a call's body: made here, in memory, for this call alone.
fn live(intent: &Intent) -> Result<String> {
    let node = Node::from_document(&intent.body)?;
    if let Some(secret) = node.secrets().first() {
        return Err(Error::new(
            Code::UnsupportedIntrinsic,
            format!("the dynamic reference `{}` cannot be resolved by this release", secret.token),
        ));
    }
    let value = node.stored().map_err(|reason| {
        Error::new(Code::InternalError, format!("a value of `{}` is not known: {reason}", intent.logical_id))
    })?;
    Ok(value.to_string())
}
