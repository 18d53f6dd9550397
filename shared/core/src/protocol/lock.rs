//! Taking, holding, giving back and breaking the lock of a stack (rules L3, L4, L5, L6, L10, L12).
//!
//! Every write is conditional on the `ETag` of what was decided about; who loses looks again.

use super::fence::FenceOff;
use super::step::{Effect, Event, FoundLock, Machine, Next, only, out_of_step};
use crate::error::{Code, Error};
use crate::name::RecordKey;
use crate::state::lock::{Decision, Holder, Lock, decide};

/// Looks at a lock that changes hands, at most.
const LOOKS: u32 = 8;

/// A lock that was taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taken {
    pub nonce: String,
    /// Another invocation may have worked under this lock or the one before it.
    pub over: bool,
}

/// Takes the lock of a stack, or finds it taken by this run already.
///
/// Fails with `StackLocked`, with holder, operation, times and the way out.
#[derive(Clone, Debug, PartialEq)]
pub struct Acquire {
    key: RecordKey,
    holder: Holder,
    looks: u32,
    asked: Option<(String, bool)>,
    doing: Acquiring,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Acquiring {
    Starting,
    Looking,
    Creating,
    TakingOver,
    Asking(String),
}

impl Acquire {
    pub fn new(key: RecordKey, holder: Holder) -> Self {
        Self { key, holder, looks: 0, asked: None, doing: Acquiring::Starting }
    }

    fn look(mut self) -> Next<Self> {
        if self.looks == LOOKS {
            let error = Error::new(
                Code::StackLocked,
                format!("the lock of {} changes hands faster than it can be taken", self.key),
            );
            return Next::failed(error.hint("start the execution again once the other runs are done"));
        }
        self.looks += 1;
        self.doing = Acquiring::Looking;
        let look = Effect::ReadLock(self.key.clone());
        Next::go(self, look)
    }

    fn taken(self, over: bool) -> Next<Self> {
        Next::End(Ok(Taken { nonce: self.holder.nonce, over }))
    }

    fn decide(mut self, now: i64, found: Option<FoundLock>) -> Next<Self> {
        let (lock, etag) = match found {
            Some(FoundLock { lock: Ok(lock), etag }) => (Some(lock), etag),
            Some(FoundLock { lock: Err(error), .. }) => return Next::failed(error),
            None => (None, String::new()),
        };
        let asked = self.asked.as_ref().map(|(of, ended)| (of.as_str(), *ended));
        let fresh = Lock::new(&self.holder, now);
        let effect = match decide(lock.as_ref(), &self.holder, &self.key, now, asked) {
            Decision::Create => {
                self.doing = Acquiring::Creating;
                Effect::CreateLock(fresh)
            }
            Decision::Ours { nonce } => return Next::End(Ok(Taken { nonce, over: true })),
            Decision::Ask { execution } => {
                self.doing = Acquiring::Asking(execution.clone());
                Effect::AskExecution(execution)
            }
            Decision::TakeOver => {
                self.doing = Acquiring::TakingOver;
                Effect::ReplaceLock { lock: fresh, etag }
            }
            Decision::Refuse(error) => return Next::failed(error),
        };
        Next::go(self, effect)
    }
}

impl Machine for Acquire {
    type Output = Taken;

    fn step(mut self, now: i64, events: Vec<Event>) -> Next<Self> {
        if self.doing == Acquiring::Starting {
            return self.look();
        }
        let event = match only(events) {
            Ok(event) => event,
            Err(error) => return Next::failed(error),
        };
        match (self.doing.clone(), event) {
            (Acquiring::Looking, Event::Lock(found)) => self.decide(now, found),
            (Acquiring::Creating, Event::Written(Some(_))) => self.taken(false),
            (Acquiring::TakingOver, Event::Written(Some(_))) => self.taken(true),
            (Acquiring::Creating | Acquiring::TakingOver, Event::Written(None)) => self.look(),
            (Acquiring::Asking(execution), Event::Ended(ended)) => {
                self.asked = Some((execution, ended));
                self.look()
            }
            _ => Next::failed(out_of_step()),
        }
    }
}

/// Finds the run and its nonce in the lock, and renews the lock once a third of its life has passed.
///
/// Fails with `LockLostError` if it is another's, or nobody's.
#[derive(Clone, Debug, PartialEq)]
pub struct Hold {
    key: RecordKey,
    execution: String,
    nonce: String,
    doing: Holding,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holding {
    Starting,
    Looking,
    Renewing,
    Forgetting,
}

impl Hold {
    pub fn new(key: RecordKey, execution: String, nonce: String) -> Self {
        Self { key, execution, nonce, doing: Holding::Starting }
    }

    fn on(mut self, doing: Holding, effect: Effect) -> Next<Self> {
        self.doing = doing;
        Next::go(self, effect)
    }

    fn lost(&self, holder: &str) -> Next<Self> {
        let error = Error::new(
            Code::LockLostError,
            format!("this run no longer holds the lock of {}; {holder}", self.key),
        );
        Next::failed(
            error
                .hint(
                    "another run took over; this one stopped before any call. Start a new execution if it is needed",
                )
                .detail("stack", self.key.stack.as_str())
                .detail("region", self.key.region.as_str()),
        )
    }
}

impl Machine for Hold {
    type Output = ();

    fn step(self, now: i64, events: Vec<Event>) -> Next<Self> {
        if self.doing == Holding::Starting {
            let look = Effect::ReadLock(self.key.clone());
            return self.on(Holding::Looking, look);
        }
        let event = match only(events) {
            Ok(event) => event,
            Err(error) => return Next::failed(error),
        };
        match (self.doing, event) {
            (Holding::Looking, Event::Lock(None)) => self.lost("nobody does"),
            (Holding::Looking, Event::Lock(Some(FoundLock { lock: Err(error), .. }))) => Next::failed(error),
            (Holding::Looking, Event::Lock(Some(FoundLock { lock: Ok(lock), etag }))) => {
                if !lock.is_of(&self.execution, &self.nonce) {
                    return self
                        .lost(&format!("`{}` does", lock.execution().unwrap_or_else(|| lock.owner())));
                }
                if !lock.wants_renewal(now) {
                    return Next::End(Ok(()));
                }
                self.on(Holding::Renewing, Effect::ReplaceLock { lock: lock.renewed(now), etag })
            }
            (Holding::Renewing, Event::Written(Some(_))) => self.on(Holding::Forgetting, Effect::ForgetLocks),
            (Holding::Renewing, Event::Written(None)) => self.lost("it changed hands while it was renewed"),
            (Holding::Forgetting, Event::Done) => Next::End(Ok(())),
            _ => Next::failed(out_of_step()),
        }
    }
}

/// Releases a lock if it is still held by this run under this nonce, and removes what it superseded.
#[derive(Clone, Debug, PartialEq)]
pub struct Release {
    key: RecordKey,
    execution: String,
    nonce: String,
    doing: Releasing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Releasing {
    Starting,
    Looking,
    Deleting,
    Forgetting,
}

impl Release {
    pub fn new(key: RecordKey, execution: String, nonce: String) -> Self {
        Self { key, execution, nonce, doing: Releasing::Starting }
    }

    fn on(mut self, doing: Releasing, effect: Effect) -> Next<Self> {
        self.doing = doing;
        Next::go(self, effect)
    }
}

impl Machine for Release {
    type Output = ();

    fn step(self, _now: i64, events: Vec<Event>) -> Next<Self> {
        if self.doing == Releasing::Starting {
            let look = Effect::ReadLock(self.key.clone());
            return self.on(Releasing::Looking, look);
        }
        let event = match only(events) {
            Ok(event) => event,
            Err(error) => return Next::failed(error),
        };
        match (self.doing, event) {
            (Releasing::Looking, Event::Lock(Some(FoundLock { lock: Ok(lock), etag })))
                if lock.is_of(&self.execution, &self.nonce) =>
            {
                self.on(Releasing::Deleting, Effect::DeleteLock { etag })
            }
            (Releasing::Looking, Event::Lock(Some(_))) | (Releasing::Deleting, Event::Written(None)) => {
                Next::End(Ok(()))
            }
            // An earlier try of this may have died before what follows.
            (Releasing::Looking, Event::Lock(None)) | (Releasing::Deleting, Event::Written(Some(_))) => {
                self.on(Releasing::Forgetting, Effect::ForgetLocks)
            }
            (Releasing::Forgetting, Event::Done) => Next::End(Ok(())),
            _ => Next::failed(out_of_step()),
        }
    }
}

/// A lock that was broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken {
    /// `None` if it could not be read.
    pub holder: Option<String>,
}

/// A person breaks a lock whose holder is surely dead. Comes to `None` if there was none.
///
/// Fails with `StackLocked` while the holder's execution runs.
#[derive(Clone, Debug, PartialEq)]
pub struct Unlock {
    key: RecordKey,
    /// Of the fence: who breaks, and until when that invocation may last.
    invocation: String,
    deadline: i64,
    found: Option<FoundLock>,
    doing: Unlocking,
}

#[derive(Clone, Debug, PartialEq)]
enum Unlocking {
    Starting,
    Looking,
    Asking,
    Fencing(FenceOff),
    Deleting,
    Forgetting,
}

impl Unlock {
    pub fn new(key: RecordKey, invocation: String, deadline: i64) -> Self {
        Self { key, invocation, deadline, found: None, doing: Unlocking::Starting }
    }

    /// The lock, if it is there and can be read. One that cannot is broken all the same: that is what this is for.
    fn lock(&self) -> Option<&Lock> {
        self.found.as_ref()?.lock.as_ref().ok()
    }

    fn broken(&self) -> Broken {
        let holder = self.lock().map(|lock| lock.execution().unwrap_or_else(|| lock.owner()).to_owned());
        Broken { holder }
    }

    /// A writer that takes the lock for its own still loses at its next entry (DESIGN 8).
    fn fence(self, now: i64) -> Next<Self> {
        let ours = self.lock().is_some_and(|lock| lock.execution().is_some());
        let fence = FenceOff::new(self.key.clone(), self.invocation.clone(), self.deadline, ours);
        self.fencing(fence.step(now, Vec::new()))
    }

    fn fencing(mut self, next: Next<FenceOff>) -> Next<Self> {
        let etag = self.found.as_ref().map(|found| found.etag.clone()).unwrap_or_default();
        match next {
            Next::Go(fence, effects) => {
                self.doing = Unlocking::Fencing(fence);
                Next::Go(self, effects)
            }
            Next::End(Ok(())) => self.on(Unlocking::Deleting, Effect::DeleteLock { etag }),
            Next::End(Err(error)) => Next::failed(error),
        }
    }

    fn on(mut self, doing: Unlocking, effect: Effect) -> Next<Self> {
        self.doing = doing;
        Next::go(self, effect)
    }
}

impl Machine for Unlock {
    type Output = Option<Broken>;

    fn step(mut self, now: i64, events: Vec<Event>) -> Next<Self> {
        if self.doing == Unlocking::Starting {
            let look = Effect::ReadLock(self.key.clone());
            return self.on(Unlocking::Looking, look);
        }
        if let Unlocking::Fencing(fence) = self.doing.clone() {
            return self.fencing(fence.step(now, events));
        }
        let event = match only(events) {
            Ok(event) => event,
            Err(error) => return Next::failed(error),
        };
        match (self.doing.clone(), event) {
            (Unlocking::Looking, Event::Lock(None)) => Next::End(Ok(None)),
            (Unlocking::Looking, Event::Lock(Some(found))) => {
                self.found = Some(found);
                match self.lock().and_then(Lock::execution).map(str::to_owned) {
                    Some(execution) => self.on(Unlocking::Asking, Effect::AskExecution(execution)),
                    None => self.fence(now),
                }
            }
            (Unlocking::Asking, Event::Ended(true)) => self.fence(now),
            (Unlocking::Asking, Event::Ended(false)) => match self.lock() {
                Some(lock) => Next::failed(
                    lock.refusal(&self.key).hint("its execution still runs: stop it first (`StopExecution`)"),
                ),
                None => Next::failed(out_of_step()),
            },
            (Unlocking::Deleting, Event::Written(Some(_))) => {
                self.on(Unlocking::Forgetting, Effect::ForgetLocks)
            }
            (Unlocking::Deleting, Event::Written(None)) => {
                let error = Error::new(
                    Code::StateConflict,
                    format!("the lock of {} changed hands just now", self.key),
                );
                Next::failed(error.hint("look who holds it now, and try again"))
            }
            (Unlocking::Forgetting, Event::Done) => Next::End(Ok(Some(self.broken()))),
            _ => Next::failed(out_of_step()),
        }
    }
}
