//! A stack under work: its record, lock and journal in S3.
//!
//! A [`Session`] is one invocation's stay under the run's lock: [`Session::enter`] finds the run in the lock, stores a
//! fence and waits until no earlier invocation can still be at work; [`Session::leave`] stores the end. Every write
//! of the record chains on the ETag of the one before; every journal object is created with `If-None-Match: *`. Who
//! loses either race stops before the next call (DESIGN 8, rules L4, L8, L11).

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use cdkd_core::name::RecordKey;
use cdkd_core::protocol::fence::{Append, Close, Enter, Entered, Left, Stay, TakeOver};
use cdkd_core::protocol::journal::{self, Change, Entry, Journal};
use cdkd_core::protocol::lock::{Acquire, Broken, Release, Unlock};
use cdkd_core::protocol::step::{Effect, Event};
use cdkd_core::state::lock::Holder;
use cdkd_core::state::{Deploy, Record};
use cdkd_core::{Code, Error, Result};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::Mutex;

pub use cdkd_core::protocol::lock::Taken;

pub use crate::desk::Desk;
use crate::edge::Invocation;
use crate::protocol::{LockAndJournal, World, drive};
use crate::settings;
use crate::store::{Condition, Written};

/// Kept of an invocation's time for its own work when it waits for others, milliseconds.
const KEPT: i64 = 2000;

/// Which run a function works for.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Run {
    /// ARN of the execution.
    pub execution: String,
    /// Its name, under which the run's documents lie.
    pub name: String,
    /// `deploy` or `destroy`.
    pub operation: String,
    #[serde(default)]
    pub dry_run: bool,
}

/// Which stack a function works on, and the nonce of the run's lock on it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct StackRef {
    pub stack: String,
    pub region: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nonce: Option<String>,
}

impl StackRef {
    pub fn key(&self) -> Result<RecordKey> {
        RecordKey::parse(&self.stack, &self.region)
    }
}

impl Run {
    /// The key of one of the run's documents in the runs bucket.
    pub fn document(&self, name: &str) -> String {
        format!("runs/{}/{name}", self.name)
    }

    /// The key of a document about one of the run's stacks.
    pub fn stack_document(&self, key: &RecordKey, name: &str) -> String {
        format!("runs/{}/{}/{}/{name}", self.name, key.stack, key.region)
    }
}

impl Invocation {
    /// Reads a JSON document of the runs bucket.
    pub async fn read_run(&self, key: &str) -> Result<Value> {
        let object = self.aws.store.get(&self.settings.runs_bucket, key).await?.ok_or_else(|| {
            Error::new(Code::InvalidState, format!("the run's document `{key}` is missing"))
                .hint("runs are kept for 14 days: start a new execution")
        })?;
        serde_json::from_slice(&object.body)
            .map_err(|_| Error::new(Code::InvalidState, format!("the run's document `{key}` is not JSON")))
    }

    /// Writes a JSON document of the runs bucket.
    pub async fn write_run(&self, key: &str, document: &Value) -> Result<()> {
        let body = serde_json::to_vec_pretty(document).unwrap_or_default();
        self.aws.store.put(&self.settings.runs_bucket, key, body, Condition::Always).await?;
        Ok(())
    }

    /// Writes a JSON document of the runs bucket unless it is there; then that one is returned.
    pub async fn write_run_once(&self, key: &str, document: &Value) -> Result<Option<Value>> {
        let body = serde_json::to_vec_pretty(document).unwrap_or_default();
        match self.aws.store.put(&self.settings.runs_bucket, key, body, Condition::Absent).await? {
            Written::Yes(_) => Ok(None),
            Written::Lost | Written::Gone => self.read_run(key).await.map(Some),
        }
    }

    /// Whether anything is known of a stack: its record, or the journal of a run that died before it saved one.
    pub async fn knows(&self, key: &RecordKey) -> Result<bool> {
        let settings = &self.settings;
        let journal = key.journal(&settings.prefix);
        Ok(self.read_record(key).await?.is_some()
            || !self.aws.store.list(&settings.state_bucket, &journal).await?.is_empty())
    }

    /// Reads a stack's record with its ETag; looks where version 1 lived if there is none.
    pub async fn read_record(&self, key: &RecordKey) -> Result<Option<Loaded>> {
        let settings = &self.settings;
        let place = key.state(&settings.prefix);
        if let Some(object) = self.aws.store.get(&settings.state_bucket, &place).await? {
            let record = Record::parse(&object.body, key)?;
            return Ok(Some(Loaded { record, etag: Some(object.etag), legacy: None }));
        }
        let place = key.legacy_state(&settings.prefix);
        if let Some(object) = self.aws.store.get(&settings.state_bucket, &place).await? {
            let record = Record::parse(&object.body, key)?;
            // It counts only where its body names the asked region (DESIGN 3).
            if record.region().is_some_and(|region| region == key.region) {
                return Ok(Some(Loaded { record, etag: None, legacy: Some(object.etag) }));
            }
        }
        Ok(None)
    }
}

/// A record as read.
#[derive(Clone, Debug)]
pub struct Loaded {
    pub record: Record,
    /// `None` for one that lives where version 1 did.
    pub etag: Option<String>,
    /// ETag of the object at the place of version 1; the next write moves it.
    pub legacy: Option<String>,
}

/// Takes the lock of a stack: see [`Acquire`].
pub async fn take_lock(invocation: &Invocation, key: &RecordKey, holder: &Holder) -> Result<Taken> {
    drive(&LockAndJournal { invocation, key }, Acquire::new(key.clone(), holder.clone())).await
}

/// Releases a lock if it is still held by this run under this nonce: see [`Release`].
pub async fn release_lock(
    invocation: &Invocation,
    key: &RecordKey,
    execution: &str,
    nonce: &str,
) -> Result<()> {
    drive(
        &LockAndJournal { invocation, key },
        Release::new(key.clone(), execution.to_owned(), nonce.to_owned()),
    )
    .await
}

/// Breaks the lock of a holder that is surely dead: see [`Unlock`].
pub async fn break_lock(invocation: &Invocation, key: &RecordKey) -> Result<Option<Broken>> {
    let unlock = Unlock::new(key.clone(), settings::nonce()?, invocation.deadline);
    drive(&LockAndJournal { invocation, key }, unlock).await
}

/// One invocation's stay under the lock.
pub struct Session {
    pub invocation: Invocation,
    pub key: RecordKey,
    pub run: Run,
    pub nonce: String,
    /// The journal as it was found.
    pub found: Journal,
    pub journal: Rc<Writer>,
    /// `AWS::StackId`.
    pub stack_id: String,
    stay: Stay,
}

impl Session {
    /// Checks that the run holds the lock, renews it, stores a fence and waits for earlier invocations.
    ///
    /// # Errors
    /// `LockLostError` before any call; `EarlierInvocationAlive` if the wait is longer than this invocation.
    pub async fn enter(invocation: &Invocation, run: &Run, stack: &StackRef) -> Result<Self> {
        let stay = stay(invocation, run, stack.key()?, stack.nonce.clone().unwrap_or_default(), "")?;
        let ground = LockAndJournal { invocation, key: &stay.key };
        let entered = drive(&ground, Enter::new(stay.clone())).await?;
        Ok(Self::new(invocation, run, stay, entered))
    }

    /// The first stay of a run that has just taken the lock, with the records as its work begins: see [`TakeOver`].
    pub async fn take_over(
        invocation: &Invocation,
        run: &Run,
        key: RecordKey,
        taken: &Taken,
        stack_id: &str,
    ) -> Result<(Self, Desk)> {
        let stay = stay(invocation, run, key, taken.nonce.clone(), stack_id)?;
        let opening = Opening {
            ground: LockAndJournal { invocation, key: &stay.key },
            stack_id,
            desk: Mutex::default(),
        };
        let entered = drive(&opening, TakeOver::new(stay.clone(), taken.over)).await?;
        let (desk, _) = opening.desk.into_inner().ok_or_else(|| {
            Error::new(Code::InternalError, format!("the record of {} was not read", stay.key))
        })?;
        Ok((Self::new(invocation, run, stay, entered), desk))
    }

    fn new(invocation: &Invocation, run: &Run, stay: Stay, entered: Entered) -> Self {
        let Entered { found, now, next } = entered;
        Self {
            invocation: invocation.clone(),
            key: stay.key.clone(),
            run: run.clone(),
            nonce: stay.nonce.clone(),
            stack_id: found.stack_id.clone().unwrap_or_else(|| stay.stack_id.clone()),
            journal: Rc::new(Writer {
                invocation: invocation.clone(),
                stay: stay.clone(),
                next: Cell::new(next),
                queue: RefCell::default(),
                state: RefCell::new(now),
                queued: Cell::new(0),
                written: Cell::new(0),
                broken: RefCell::new(None),
                gate: Mutex::new(()),
            }),
            found,
            stay,
        }
    }

    /// The record, with those of nested stacks, and the journal's changes on it.
    pub async fn record(&self) -> Result<Desk> {
        Desk::open(&self.invocation, &self.key, &self.found.changes).await
    }

    /// Changes rows: in the journal first, then on the table.
    pub async fn change(&self, desk: &mut Desk, changes: Vec<Change>) -> Result<()> {
        self.journal.append(changes.iter().cloned().map(Entry::Change).collect()).await?;
        for change in &changes {
            change.apply(&mut desk.record);
        }
        Ok(())
    }

    fn end(&self) -> Entry {
        Entry::End { invocation: self.stay.invocation.clone() }
    }

    /// Stores the end of this invocation's work, and whether all of it is on record: then the next one need not
    /// read what came before.
    pub async fn leave(&self, saved: bool) -> Result<()> {
        let mut entries = vec![self.end()];
        if saved {
            entries.push(self.journal.state.borrow().checkpoint());
        }
        self.journal.append(entries).await
    }

    /// Ends the stay with what came of it. After a failure its end is stored as well: nothing of it is under way, and
    /// without that the next invocation would wait until its deadline.
    pub async fn closing<T>(&self, outcome: Result<T>) -> Result<T> {
        if outcome.is_err() {
            // Who lost the journal cannot store it any more, and need not.
            let _stored = self.journal.append(vec![self.end()]).await;
        }
        outcome
    }

    /// Ends the run's part in the stack, with all of it on record: the journal goes, but for what is open in it, and then
    /// the lock. See [`Close`].
    pub async fn close(&self) -> Result<()> {
        let state = self.journal.state.borrow().clone();
        let left = if state.open.is_empty() {
            Left::Nothing
        } else {
            Left::Open { number: self.journal.next.get(), entries: vec![self.end(), state.checkpoint()] }
        };
        let ground = LockAndJournal { invocation: &self.invocation, key: &self.key };
        drive(&ground, Close::new(self.stay.clone(), left)).await
    }

    /// Ends the stay of an invocation that has done nothing: a journal that was made by it goes.
    pub async fn retreat(&self) -> Result<()> {
        if self.found.next > 0 {
            return self.leave(false).await;
        }
        let settings = &self.invocation.settings;
        let journal = self.key.journal(&settings.prefix);
        self.invocation.aws.store.purge(&settings.state_bucket, &journal, false).await
    }
}

fn stay(invocation: &Invocation, run: &Run, key: RecordKey, nonce: String, stack_id: &str) -> Result<Stay> {
    Ok(Stay {
        key,
        execution: run.execution.clone(),
        nonce,
        invocation: settings::nonce()?,
        deadline: invocation.deadline,
        patience: invocation.deadline - KEPT,
        stack_id: stack_id.to_owned(),
    })
}

/// The world of a [`TakeOver`]: lock, journal and the records.
struct Opening<'a> {
    ground: LockAndJournal<'a>,
    /// For a stack that has none yet.
    stack_id: &'a str,
    /// With the stack's id as the journal has it.
    desk: Mutex<Option<(Desk, String)>>,
}

impl World for Opening<'_> {
    async fn carry_out(&self, effect: Effect) -> Result<Event> {
        let LockAndJournal { invocation, key } = self.ground;
        match (effect, &mut *self.desk.lock().await) {
            (Effect::ReadDesk(journal), desk) => {
                let stack_id = journal.stack_id.as_deref().unwrap_or(self.stack_id).to_owned();
                *desk = Some((Desk::open(invocation, key, &journal.changes).await?, stack_id));
            }
            (Effect::Rewrite, Some((desk, stack_id))) => {
                if desk.stored("").is_none() && !desk.record.is_empty() && desk.record.deploy().is_none() {
                    // A first deploy died before its first save: what its journal knows is not another tool's.
                    desk.record.set_deploy(&Deploy { stack_id: stack_id.clone(), ..Deploy::default() });
                }
                if !desk.save().await? {
                    desk.bump().await?;
                }
            }
            (effect, _) => return self.ground.carry_out(effect).await,
        }
        Ok(Event::Done)
    }
}

/// Reads the whole journal of a stack.
pub async fn read_journal(invocation: &Invocation, key: &RecordKey) -> Result<Journal> {
    let settings = &invocation.settings;
    let folder = key.journal(&settings.prefix);
    let listed = invocation.aws.store.list(&settings.state_bucket, &folder).await?;
    let numbers: Vec<u64> =
        listed.iter().filter_map(|object| journal::number(&folder, &object.key)).collect();
    // Backwards to the last checkpoint, more at a time the further it is. Mostly it is in the last object, where the
    // invocation before has ended.
    let mut bodies: Vec<(u64, Vec<u8>)> = Vec::new();
    let mut rest = numbers.as_slice();
    let mut many = 2;
    while !rest.is_empty() && !bodies.iter().any(|(_, body)| journal::has_checkpoint(body)) {
        let (before, last) = rest.split_at(rest.len().saturating_sub(many));
        let reads = last.iter().map(|number| {
            let folder = &folder;
            async move {
                let place = journal::key(folder, *number);
                let object = invocation.aws.store.get(&settings.state_bucket, &place).await?;
                Ok::<_, Error>(object.map(|object| (*number, object.body)))
            }
        });
        let read = futures::future::try_join_all(reads).await?;
        bodies = read.into_iter().flatten().chain(bodies).collect();
        rest = before;
        many = 64.min(many * 8);
    }
    journal::read(&bodies)
}

/// The journal's writer: entries that come in while an object is on its way go together into the next.
pub struct Writer {
    invocation: Invocation,
    stay: Stay,
    next: Cell<u64>,
    queue: RefCell<Vec<Entry>>,
    /// What the journal says with all that was stored.
    state: RefCell<Journal>,
    queued: Cell<u64>,
    written: Cell<u64>,
    broken: RefCell<Option<Error>>,
    gate: Mutex<()>,
}

impl Writer {
    /// Stores entries; returns once they are stored.
    ///
    /// # Errors
    /// `LockLostError`, or `EarlierInvocationAlive` if the lock is this run's own still, if another invocation wrote:
    /// nothing more may be called. After an error the writer refuses.
    pub async fn append(&self, entries: Vec<Entry>) -> Result<()> {
        if entries.is_empty() {
            return Ok(());
        }
        self.queued.set(self.queued.get() + entries.len() as u64);
        self.queue.borrow_mut().extend(entries);
        let ticket = self.queued.get();
        let _turn = self.gate.lock().await;
        if let Some(error) = self.broken.borrow().clone() {
            return Err(error);
        }
        if self.written.get() >= ticket {
            return Ok(());
        }
        let batch = std::mem::take(&mut *self.queue.borrow_mut());
        let up_to = self.queued.get();
        let append = Append::new(&self.stay, self.next.get(), batch.clone());
        let ground = LockAndJournal { invocation: &self.invocation, key: &self.stay.key };
        let Err(error) = drive(&ground, append).await else {
            self.next.set(self.next.get() + 1);
            self.written.set(up_to);
            let mut state = self.state.borrow_mut();
            for entry in batch {
                state.take(entry);
            }
            return Ok(());
        };
        *self.broken.borrow_mut() = Some(error.clone());
        Err(error)
    }
}
