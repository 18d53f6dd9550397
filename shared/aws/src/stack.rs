//! A stack under work: its record, lock and journal in S3.
//!
//! A [`Session`] is one invocation's stay under the run's lock: [`Session::enter`] finds the run in the lock, stores a
//! fence and waits until no earlier invocation can still be at work; [`Session::leave`] stores the end. Every write
//! of the record chains on the ETag of the one before; every journal object is created with `If-None-Match: *`. Who
//! loses either race stops before the next call (DESIGN 8, rules L4, L8, L11).

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use cdkd_core::name::RecordKey;
use cdkd_core::protocol::journal::{self, Entry, Journal};
use cdkd_core::state::Record;
use cdkd_core::state::lock::{Decision, Holder, Lock, decide};
use cdkd_core::{Code, Error, Result};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::Mutex;

pub use crate::desk::Desk;
use crate::edge::Invocation;
use crate::executions::Life;
use crate::settings;
use crate::store::{Condition, Written};

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

/// Takes the lock of a stack, or finds it taken by this run already.
///
/// # Errors
/// `StackLocked` with holder, operation, times and the way out.
pub async fn take_lock(invocation: &Invocation, key: &RecordKey, holder: &Holder) -> Result<Taken> {
    let store = &invocation.aws.store;
    let (bucket, place) = (&invocation.settings.state_bucket, key.lock(&invocation.settings.prefix));
    let mut asked: Option<(String, bool)> = None;
    // Each round is a new look; rounds end because others' locks come and go.
    for _ in 0..8 {
        let found = store.get(bucket, &place).await?;
        let lock = found.as_ref().map(|object| Lock::parse(&object.body, key)).transpose()?;
        let now = settings::now();
        let fresh = Lock::new(holder, now).to_bytes();
        match decide(lock.as_ref(), holder, key, now, asked.as_ref().map(|(of, ended)| (of.as_str(), *ended)))
        {
            Decision::Create => {
                if let Written::Yes(_) = store.put(bucket, &place, fresh, Condition::Absent).await? {
                    return Ok(Taken { nonce: holder.nonce.clone(), over: false });
                }
            }
            Decision::Ours { nonce } => return Ok(Taken { nonce, over: true }),
            Decision::Ask { execution } => {
                let ended = invocation.aws.executions.life(&execution).await? == Life::Ended;
                asked = Some((execution, ended));
            }
            Decision::TakeOver => {
                let etag = found.map(|object| object.etag).unwrap_or_default();
                if let Written::Yes(_) = store.put(bucket, &place, fresh, Condition::Matches(&etag)).await? {
                    return Ok(Taken { nonce: holder.nonce.clone(), over: true });
                }
            }
            Decision::Refuse(error) => return Err(error),
        }
    }
    Err(Error::new(Code::StackLocked, format!("the lock of {key} changes hands faster than it can be taken"))
        .hint("start the execution again once the other runs are done"))
}

/// A lock that was taken.
#[derive(Clone, Debug)]
pub struct Taken {
    pub nonce: String,
    /// Another invocation may have worked under this lock or the one before it.
    pub over: bool,
}

/// Releases a lock if it is still held by this run under this nonce, and removes what it superseded (L3, L10).
pub async fn release_lock(
    invocation: &Invocation,
    key: &RecordKey,
    execution: &str,
    nonce: &str,
) -> Result<()> {
    let store = &invocation.aws.store;
    let (bucket, place) = (&invocation.settings.state_bucket, key.lock(&invocation.settings.prefix));
    let released = match store.get(bucket, &place).await? {
        Some(object) => {
            Lock::parse(&object.body, key).is_ok_and(|lock| lock.is_of(execution, nonce))
                && store.delete_matching(bucket, &place, &object.etag).await?
        }
        // An earlier try of this may have died before what follows.
        None => true,
    };
    if released {
        store.purge(bucket, &place, true).await?;
    }
    Ok(())
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
    id: String,
}

impl Session {
    /// Checks that the run holds the lock, renews it, stores a fence and waits for earlier invocations.
    ///
    /// # Errors
    /// `LockLostError` before any call; `EarlierInvocationAlive` if the wait is longer than this invocation.
    pub async fn enter(invocation: &Invocation, run: &Run, stack: &StackRef, stack_id: &str) -> Result<Self> {
        let key = stack.key()?;
        let nonce = stack.nonce.clone().unwrap_or_default();
        hold_lock(invocation, &key, &run.execution, &nonce).await?;
        Self::fence(invocation, run, key, nonce, stack_id).await
    }

    /// As [`Session::enter`], for the invocation that has just taken the lock.
    pub async fn fence(
        invocation: &Invocation,
        run: &Run,
        key: RecordKey,
        nonce: String,
        stack_id: &str,
    ) -> Result<Self> {
        let id = settings::nonce()?;
        let (found, writer) = fence(invocation, &key, run, nonce.clone(), &id, stack_id).await?;
        let stack_id = found.stack_id.clone().unwrap_or_else(|| stack_id.to_owned());
        let session = Self {
            invocation: invocation.clone(),
            key,
            run: run.clone(),
            nonce,
            found,
            journal: Rc::new(writer),
            stack_id,
            id,
        };
        wait_for_earlier(&session).await?;
        // The lock is still to be its own (DESIGN 8), the wait being the least reason: until the fence was stored, others
        // may have taken over and been through, with a journal that is empty again. Whoever comes now finds the fence.
        match session.hold().await {
            Ok(()) => Ok(session),
            Err(error) if error.code() == Code::LockLostError => {
                session.remove_fence().await;
                Err(error)
            }
            Err(error) => session.closing(Err(error)).await,
        }
    }

    /// Removes the fence of an invocation that came too late: nobody else would before the next run of the stack. One
    /// that stays does no harm, since it is waited for no longer than until its deadline.
    async fn remove_fence(&self) {
        let settings = &self.invocation.settings;
        let place = journal::key(&self.key.journal(&settings.prefix), self.found.next);
        let _removed = self.invocation.aws.store.purge(&settings.state_bucket, &place, false).await;
    }

    /// The record, with those of nested stacks, and the journal's changes on it.
    pub async fn record(&self) -> Result<Desk> {
        Desk::open(&self.invocation, &self.key, &self.found.changes).await
    }

    /// Checks once more that the lock is this run's own.
    pub async fn hold(&self) -> Result<()> {
        hold_lock(&self.invocation, &self.key, &self.run.execution, &self.nonce).await
    }

    /// Stores the end of this invocation's work, and whether all of it is on record: then the next one need not
    /// read what came before.
    pub async fn leave(&self, saved: bool) -> Result<()> {
        let mut entries = vec![Entry::End { invocation: self.id.clone() }];
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
            let _stored = self.journal.append(vec![Entry::End { invocation: self.id.clone() }]).await;
        }
        outcome
    }

    /// Removes the journal for good: everything in it is on record.
    pub async fn clear_journal(&self) -> Result<()> {
        let settings = &self.invocation.settings;
        self.invocation
            .aws
            .store
            .purge(&settings.state_bucket, &self.key.journal(&settings.prefix), false)
            .await
    }
}

/// Finds the run and its nonce in the lock, and renews the lock once a third of its life has passed.
async fn hold_lock(invocation: &Invocation, key: &RecordKey, execution: &str, nonce: &str) -> Result<()> {
    let lost = |holder: &str| {
        Error::new(Code::LockLostError, format!("this run no longer holds the lock of {key}; {holder}"))
            .hint("another run took over; this one stopped before any call. Start a new execution if it is needed")
            .detail("stack", key.stack.as_str())
            .detail("region", key.region.as_str())
    };
    let store = &invocation.aws.store;
    let (bucket, place) = (&invocation.settings.state_bucket, key.lock(&invocation.settings.prefix));
    let Some(object) = store.get(bucket, &place).await? else { return Err(lost("nobody does")) };
    let lock = Lock::parse(&object.body, key)?;
    if !lock.is_of(execution, nonce) {
        return Err(lost(&format!("`{}` does", lock.execution().unwrap_or_else(|| lock.owner()))));
    }
    let now = settings::now();
    if lock.wants_renewal(now) {
        let renewed = lock.renewed(now).to_bytes();
        if !matches!(
            store.put(bucket, &place, renewed, Condition::Matches(&object.etag)).await?,
            Written::Yes(_)
        ) {
            return Err(lost("it changed hands while it was renewed"));
        }
        store.purge(bucket, &place, true).await?;
    }
    Ok(())
}

/// Reads the journal and stores a fence behind it.
async fn fence(
    invocation: &Invocation,
    key: &RecordKey,
    run: &Run,
    nonce: String,
    id: &str,
    stack_id: &str,
) -> Result<(Journal, Writer)> {
    let folder = key.journal(&invocation.settings.prefix);
    for _ in 0..8 {
        let journal = read_journal(invocation, key).await?;
        let fence = Entry::Fence {
            invocation: id.to_owned(),
            execution: run.execution.clone(),
            deadline: invocation.deadline,
            stack_id: journal.stack_id.clone().unwrap_or_else(|| stack_id.to_owned()),
        };
        let place = journal::key(&folder, journal.next);
        let written = invocation
            .aws
            .store
            .put(
                &invocation.settings.state_bucket,
                &place,
                journal::to_bytes(std::slice::from_ref(&fence)),
                Condition::Absent,
            )
            .await?;
        if let Written::Yes(_) = written {
            let next = journal.next + 1;
            // The fence counts too: the first one holds the stack's id, which the checkpoint has to keep.
            let mut state = journal.clone();
            state.take(fence);
            let writer =
                Writer::new(invocation.clone(), key.clone(), run.execution.clone(), nonce, next, state);
            return Ok((journal, writer));
        }
        // An invocation that is still at work wrote first: read what it wrote, fence behind it. Not if it is another
        // run's by now, which such a fence would hold up.
        hold_lock(invocation, key, &run.execution, &nonce).await?;
    }
    Err(Error::new(
        Code::EarlierInvocationAlive,
        format!("an earlier invocation keeps writing the journal of {key}"),
    )
    .hint("the state machine tries again"))
}

/// Stores a fence, and its end, behind a stack's journal, for whoever breaks its lock: what an invocation under that lock
/// would write next is taken. A journal that cannot be read is fenced off all the same. One that is not there is made only
/// if `ours`: other tools write none.
pub async fn fence_off(invocation: &Invocation, key: &RecordKey, ours: bool) -> Result<()> {
    let settings = &invocation.settings;
    let folder = key.journal(&settings.prefix);
    let id = settings::nonce()?;
    let entries = [
        Entry::Fence {
            invocation: id.clone(),
            execution: String::new(),
            deadline: invocation.deadline,
            stack_id: String::new(),
        },
        // Nothing else is done under it: the next run does not wait for it.
        Entry::End { invocation: id },
    ];
    for _ in 0..8 {
        let listed = invocation.aws.store.list(&settings.state_bucket, &folder).await?;
        let last = listed.iter().filter_map(|object| journal::number(&folder, &object.key)).max();
        if last.is_none() && !ours {
            return Ok(());
        }
        let place = journal::key(&folder, last.map_or(0, |last| last + 1));
        let body = journal::to_bytes(&entries);
        let written =
            invocation.aws.store.put(&settings.state_bucket, &place, body, Condition::Absent).await?;
        if let Written::Yes(_) = written {
            return Ok(());
        }
    }
    Err(Error::new(
        Code::StateConflict,
        format!("the journal of {key} is written faster than it can be fenced off"),
    )
    .hint("its run is alive: stop its execution, and try again"))
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

/// Waits until no earlier invocation can still be at work. It is fenced, so it cannot tell its end any more: its
/// deadline says when Lambda has surely ended it.
async fn wait_for_earlier(session: &Session) -> Result<()> {
    let (invocation, key) = (&session.invocation, &session.key);
    let Some(deadline) = session.found.busy_until(&session.id) else { return Ok(()) };
    // A second is kept for clocks and for calls on their way (L9).
    let wait = Duration::from_millis(u64::try_from(deadline + 1000 - settings::now()).unwrap_or(0));
    if wait <= invocation.left(Duration::from_secs(2)) {
        tokio::time::sleep(wait).await;
        return Ok(());
    }
    // Ours is given back, so that the next try does not wait for it as well.
    session.leave(false).await?;
    let until = cdkd_core::state::lock::instant(deadline);
    Err(Error::new(
        Code::EarlierInvocationAlive,
        format!("an earlier invocation may work on {key} until {until}"),
    )
    .hint("the state machine tries again; a function's time limit bounds the wait")
    .detail("until", deadline))
}

/// The journal's writer: entries that come in while an object is on its way go together into the next.
pub struct Writer {
    invocation: Invocation,
    key: RecordKey,
    execution: String,
    nonce: String,
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
    fn new(
        invocation: Invocation,
        key: RecordKey,
        execution: String,
        nonce: String,
        next: u64,
        state: Journal,
    ) -> Self {
        Self {
            state: RefCell::new(state),
            invocation,
            key,
            execution,
            nonce,
            next: Cell::new(next),
            queue: RefCell::default(),
            queued: Cell::new(0),
            written: Cell::new(0),
            broken: RefCell::new(None),
            gate: Mutex::new(()),
        }
    }

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
        let place = journal::key(&self.key.journal(&self.invocation.settings.prefix), self.next.get());
        let bucket = &self.invocation.settings.state_bucket;
        let written =
            self.invocation.aws.store.put(bucket, &place, journal::to_bytes(&batch), Condition::Absent).await;
        let error = match written {
            Ok(Written::Yes(_)) => {
                self.next.set(self.next.get() + 1);
                self.written.set(up_to);
                let mut state = self.state.borrow_mut();
                for entry in batch {
                    state.take(entry);
                }
                return Ok(());
            }
            Ok(Written::Lost | Written::Gone) => {
                match hold_lock(&self.invocation, &self.key, &self.execution, &self.nonce).await {
                    // A later invocation of this run; or a former holder, which looked at the lock just before it
                    // changed hands and will look again. The next try fences anew and waits for it.
                    Ok(()) => Error::new(
                        Code::EarlierInvocationAlive,
                        format!("another invocation wrote the journal of {}", self.key),
                    )
                    .hint("the state machine tries again"),
                    Err(error) => error,
                }
            }
            Err(error) => error,
        };
        *self.broken.borrow_mut() = Some(error.clone());
        Err(error)
    }
}
