//! One invocation's way into a stack and out of it: fence, wait, take-over, journal writes, end (DESIGN 8).
//!
//! A writer that loses the race for a number of the journal makes no further call. Whoever enters stores a fence, waits
//! until no earlier invocation can still be at work, and only then reads the record (rules L4, L8, L11).

use super::journal::{Entry, Journal};
use super::lock::{Hold, Release};
use super::step::{Effect, Event, Machine, Next, inside, only, out_of_step};
use crate::error::{Code, Error};
use crate::name::RecordKey;
use crate::state::lock::instant;

/// Tries to write the next object of a journal that others write too.
const TRIES: u32 = 8;

/// Kept after a deadline for clocks and for calls on their way (rule L9), milliseconds.
const CLOCKS: i64 = 1000;

/// An invocation under a run's lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stay {
    pub key: RecordKey,
    /// ARN of the execution.
    pub execution: String,
    /// Of the run's lock.
    pub nonce: String,
    /// Its own random id.
    pub invocation: String,
    /// When Lambda has surely ended it, milliseconds since 1970.
    pub deadline: i64,
    /// Until when it can wait for others and still work, milliseconds since 1970.
    pub patience: i64,
    /// `AWS::StackId` if the stack has none yet; empty from whoever does not know.
    pub stack_id: String,
}

/// What an invocation finds when it is in.
#[derive(Clone, Debug, PartialEq)]
pub struct Entered {
    /// The journal as it was found, without the own fence.
    pub found: Journal,
    /// The same with the own fence.
    pub now: Journal,
    /// The number of the next object.
    pub next: u64,
}

/// Enters a stack: holds the lock (unless it was taken just now), stores a fence, waits for earlier invocations.
///
/// Fails with `LockLostError`, or with `EarlierInvocationAlive` if the wait is longer than this invocation may last.
#[derive(Clone, Debug, PartialEq)]
pub struct Enter {
    stay: Stay,
    tries: u32,
    doing: Entering,
}

#[derive(Clone, Debug, PartialEq)]
enum Entering {
    Starting {
        hold: bool,
    },
    Holding(Hold),
    Reading,
    Fencing(Journal),
    Waiting(Entered),
    HoldingOn(Entered, Hold),
    /// The fence came too late, or is not needed any more.
    Leaving(Error),
}

impl Enter {
    pub fn new(stay: Stay) -> Self {
        Self { stay, tries: 0, doing: Entering::Starting { hold: true } }
    }

    /// For the invocation that has just taken the lock.
    pub fn with_lock(stay: Stay) -> Self {
        Self { stay, tries: 0, doing: Entering::Starting { hold: false } }
    }

    fn on(mut self, doing: Entering, effect: Effect) -> Next<Self> {
        self.doing = doing;
        Next::go(self, effect)
    }

    fn read(mut self) -> Next<Self> {
        if self.tries == TRIES {
            let error = Error::new(
                Code::EarlierInvocationAlive,
                format!("an earlier invocation keeps writing the journal of {}", self.stay.key),
            );
            return Next::failed(error.hint("the state machine tries again"));
        }
        self.tries += 1;
        self.on(Entering::Reading, Effect::ReadJournal)
    }

    fn fence(self, journal: Journal) -> Next<Self> {
        let fence = self.stay.fence(&journal);
        let write = Effect::WriteJournal { number: journal.next, entries: vec![fence] };
        self.on(Entering::Fencing(journal), write)
    }

    fn fenced(self, now: i64, found: Journal) -> Next<Self> {
        let next = found.next + 1;
        // The fence counts too: the first one holds the stack's id, which a checkpoint has to keep.
        let mut with_fence = found.clone();
        with_fence.take(self.stay.fence(&found));
        let busy = found.busy_until(&self.stay.invocation);
        let entered = Entered { found, now: with_fence, next };
        let Some(deadline) = busy else { return self.hold_on(now, entered) };
        if deadline + CLOCKS > self.stay.patience.max(now) {
            // Ours is given back, so that the next try does not wait for it as well.
            let alive = self.stay.alive(deadline);
            return self.give_back(alive, next);
        }
        self.on(Entering::Waiting(entered), Effect::Wait { until: deadline + CLOCKS })
    }

    /// Stores the end of what has not begun. That it is lost to a writer who goes on means that the next try waits anyway.
    fn give_back(self, error: Error, number: u64) -> Next<Self> {
        let entries = vec![Entry::End { invocation: self.stay.invocation.clone() }];
        self.on(Entering::Leaving(error), Effect::WriteJournal { number, entries })
    }

    /// Looks at the lock behind the fence: until that was stored, others may have taken over and been through, with a
    /// journal that is empty again. Whoever comes now finds the fence.
    fn hold_on(self, now: i64, entered: Entered) -> Next<Self> {
        let hold = self.stay.hold();
        self.holding_on(hold.step(now, Vec::new()), entered)
    }

    fn holding_on(mut self, next: Next<Hold>, entered: Entered) -> Next<Self> {
        match next {
            Next::Go(hold, effects) => {
                self.doing = Entering::HoldingOn(entered, hold);
                Next::Go(self, effects)
            }
            Next::End(Ok(())) => Next::End(Ok(entered)),
            // Nobody else would remove it before the next run of the stack.
            Next::End(Err(lost)) if lost.code() == Code::LockLostError => {
                self.on(Entering::Leaving(lost), Effect::RemoveEntry { number: entered.found.next })
            }
            Next::End(Err(error)) => self.give_back(error, entered.next),
        }
    }

    fn holding(mut self, next: Next<Hold>) -> Next<Self> {
        match next {
            Next::Go(hold, effects) => {
                self.doing = Entering::Holding(hold);
                Next::Go(self, effects)
            }
            Next::End(Ok(())) => self.read(),
            Next::End(Err(error)) => Next::failed(error),
        }
    }
}

impl Stay {
    fn hold(&self) -> Hold {
        Hold::new(self.key.clone(), self.execution.clone(), self.nonce.clone())
    }

    fn fence(&self, journal: &Journal) -> Entry {
        Entry::Fence {
            invocation: self.invocation.clone(),
            execution: self.execution.clone(),
            deadline: self.deadline,
            stack_id: journal.stack_id.clone().unwrap_or_else(|| self.stack_id.clone()),
        }
    }

    /// The refusal of an invocation that would wait for another longer than it lasts.
    fn alive(&self, deadline: i64) -> Error {
        Error::new(
            Code::EarlierInvocationAlive,
            format!("an earlier invocation may work on {} until {}", self.key, instant(deadline)),
        )
        .hint("the state machine tries again; a function's time limit bounds the wait")
        .detail("until", deadline)
    }
}

impl Machine for Enter {
    type Output = Entered;

    fn step(self, now: i64, events: Vec<Event>) -> Next<Self> {
        let doing = self.doing.clone();
        match doing {
            Entering::Starting { hold: true } => {
                let hold = self.stay.hold();
                return self.holding(hold.step(now, Vec::new()));
            }
            Entering::Starting { hold: false } => return self.read(),
            Entering::Holding(hold) => return self.holding(hold.step(now, events)),
            Entering::HoldingOn(entered, hold) => return self.holding_on(hold.step(now, events), entered),
            _ => {}
        }
        if let Entering::Leaving(error) = doing {
            // Whether or not that went through.
            return Next::failed(error);
        }
        let event = match only(events) {
            Ok(event) => event,
            Err(error) => return Next::failed(error),
        };
        match (doing, event) {
            (Entering::Reading, Event::Journal(journal)) => self.fence(journal),
            (Entering::Fencing(found), Event::Written(Some(_))) => self.fenced(now, found),
            // An invocation that is still at work wrote first: read what it wrote, fence behind it. Not if it is another
            // run's by now, which such a fence would hold up.
            (Entering::Fencing(_), Event::Written(None)) => {
                let hold = self.stay.hold();
                self.holding(hold.step(now, Vec::new()))
            }
            (Entering::Waiting(entered), Event::Done) => self.hold_on(now, entered),
            _ => Next::failed(out_of_step()),
        }
    }
}

/// Stores entries under a number of the journal.
///
/// Fails with `LockLostError`, or with `EarlierInvocationAlive` if the lock is the run's own still, if another invocation
/// wrote that number: nothing more may be called.
#[derive(Clone, Debug, PartialEq)]
pub struct Append {
    key: RecordKey,
    hold: Hold,
    number: u64,
    entries: Vec<Entry>,
    doing: Appending,
}

#[derive(Clone, Debug, PartialEq)]
enum Appending {
    Starting,
    Writing,
    Looking(Hold),
}

impl Append {
    pub fn new(stay: &Stay, number: u64, entries: Vec<Entry>) -> Self {
        Self { key: stay.key.clone(), hold: stay.hold(), number, entries, doing: Appending::Starting }
    }

    fn looking(self, next: Next<Hold>) -> Next<Self> {
        let key = self.key.clone();
        inside(
            next,
            |hold| Self { doing: Appending::Looking(hold), ..self },
            |held| {
                // A later invocation of this run; or a former holder, which looked at the lock just before it changed
                // hands and will look again. The next try fences anew and waits for it.
                Next::failed(held.err().unwrap_or_else(|| {
                    Error::new(
                        Code::EarlierInvocationAlive,
                        format!("another invocation wrote the journal of {key}"),
                    )
                    .hint("the state machine tries again")
                }))
            },
        )
    }
}

impl Machine for Append {
    type Output = ();

    fn step(mut self, now: i64, events: Vec<Event>) -> Next<Self> {
        match self.doing.clone() {
            Appending::Starting => {
                self.doing = Appending::Writing;
                let write = Effect::WriteJournal { number: self.number, entries: self.entries.clone() };
                Next::go(self, write)
            }
            Appending::Looking(hold) => self.looking(hold.step(now, events)),
            Appending::Writing => match only(events) {
                Ok(Event::Written(Some(_))) => Next::End(Ok(())),
                Ok(Event::Written(None)) => {
                    let hold = self.hold.clone();
                    self.looking(hold.step(now, Vec::new()))
                }
                Ok(_) => Next::failed(out_of_step()),
                Err(error) => Next::failed(error),
            },
        }
    }
}

/// Stores a fence, and its end, behind a stack's journal, for whoever breaks its lock: what an invocation under that lock
/// would write next is taken. A journal that cannot be read is fenced off all the same. One that is not there is made
/// only if `ours`: other tools write none.
///
/// Fails with `StateConflict` if the journal grows faster.
#[derive(Clone, Debug, PartialEq)]
pub struct FenceOff {
    key: RecordKey,
    entries: Vec<Entry>,
    ours: bool,
    tries: u32,
    doing: FencingOff,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FencingOff {
    Starting,
    Listing,
    Writing,
}

impl FenceOff {
    pub fn new(key: RecordKey, invocation: String, deadline: i64, ours: bool) -> Self {
        let entries = vec![
            Entry::Fence {
                invocation: invocation.clone(),
                execution: String::new(),
                deadline,
                stack_id: String::new(),
            },
            // Nothing else is done under it: the next run does not wait for it.
            Entry::End { invocation },
        ];
        Self { key, entries, ours, tries: 0, doing: FencingOff::Starting }
    }

    fn list(mut self) -> Next<Self> {
        if self.tries == TRIES {
            let error = Error::new(
                Code::StateConflict,
                format!("the journal of {} is written faster than it can be fenced off", self.key),
            );
            return Next::failed(error.hint("its run is alive: stop its execution, and try again"));
        }
        self.tries += 1;
        self.doing = FencingOff::Listing;
        Next::go(self, Effect::ListJournal)
    }
}

impl Machine for FenceOff {
    type Output = ();

    fn step(mut self, _now: i64, events: Vec<Event>) -> Next<Self> {
        if self.doing == FencingOff::Starting {
            return self.list();
        }
        let event = match only(events) {
            Ok(event) => event,
            Err(error) => return Next::failed(error),
        };
        match (self.doing, event) {
            (FencingOff::Listing, Event::Last(None)) if !self.ours => Next::End(Ok(())),
            (FencingOff::Listing, Event::Last(last)) => {
                self.doing = FencingOff::Writing;
                let number = last.map_or(0, |last| last + 1);
                let write = Effect::WriteJournal { number, entries: self.entries.clone() };
                Next::go(self, write)
            }
            (FencingOff::Writing, Event::Written(Some(_))) => Next::End(Ok(())),
            (FencingOff::Writing, Event::Written(None)) => self.list(),
            _ => Next::failed(out_of_step()),
        }
    }
}

/// The first invocation of a run in a stack: enters under the lock that was just taken, reads the record (rule L7), and
/// if anyone worked there before brings onto it what the journal says. It is written even if it says the same: whoever
/// worked there before finds its `ETag` gone.
///
/// Fails as [`Enter`] does; with `StateConflict` if another writer does not keep to the lock.
#[derive(Clone, Debug, PartialEq)]
pub struct TakeOver {
    /// Another invocation may have worked under this lock or the one before it.
    over: bool,
    invocation: String,
    doing: TakingOver,
}

#[derive(Clone, Debug, PartialEq)]
enum TakingOver {
    Entering(Box<Enter>),
    Reading(Entered),
    Rewriting(Entered),
    Retreating(Error),
}

impl TakeOver {
    pub fn new(stay: Stay, over: bool) -> Self {
        let invocation = stay.invocation.clone();
        Self { over, invocation, doing: TakingOver::Entering(Box::new(Enter::with_lock(stay))) }
    }

    fn on(mut self, doing: TakingOver, effect: Effect) -> Next<Self> {
        self.doing = doing;
        Next::go(self, effect)
    }

    fn entering(mut self, next: Next<Enter>) -> Next<Self> {
        match next {
            Next::Go(enter, effects) => {
                self.doing = TakingOver::Entering(Box::new(enter));
                Next::Go(self, effects)
            }
            Next::End(Ok(entered)) => {
                let read = Effect::ReadDesk(Box::new(entered.found.clone()));
                self.on(TakingOver::Reading(entered), read)
            }
            Next::End(Err(error)) => Next::failed(error),
        }
    }

    /// Nobody waits for what has done nothing: a journal that was made here goes, another gets an end.
    fn retreat(self, entered: &Entered, error: Error) -> Next<Self> {
        let leave = if entered.found.next == 0 {
            Effect::RemoveJournal
        } else {
            let entries = vec![Entry::End { invocation: self.invocation.clone() }];
            Effect::WriteJournal { number: entered.next, entries }
        };
        self.on(TakingOver::Retreating(error), leave)
    }
}

impl Machine for TakeOver {
    type Output = Entered;

    fn step(self, now: i64, events: Vec<Event>) -> Next<Self> {
        match self.doing.clone() {
            TakingOver::Entering(enter) => self.entering(enter.step(now, events)),
            TakingOver::Reading(entered) => match only(events) {
                Ok(Event::Done) if self.over || entered.found.next > 0 => {
                    self.on(TakingOver::Rewriting(entered), Effect::Rewrite)
                }
                Ok(Event::Done) => Next::End(Ok(entered)),
                Ok(_) => Next::failed(out_of_step()),
                Err(error) => self.retreat(&entered, error),
            },
            TakingOver::Rewriting(entered) => match only(events) {
                Ok(Event::Done) => Next::End(Ok(entered)),
                Ok(_) => Next::failed(out_of_step()),
                Err(error) => self.retreat(&entered, error),
            },
            TakingOver::Retreating(error) => Next::failed(error),
        }
    }
}

/// A run leaves a stack for good: what counts is on record. The journal goes before the lock, so that whoever takes the
/// lock next finds nothing to settle; one with open requests stays for the next run, closed by the end of this
/// invocation's work.
#[derive(Clone, Debug, PartialEq)]
pub struct Close {
    stay: Stay,
    journal: Left,
    doing: Closing,
}

/// What becomes of the journal.
#[derive(Clone, Debug, PartialEq)]
pub enum Left {
    Nothing,
    /// The next object's number, and what it holds.
    Open {
        number: u64,
        entries: Vec<Entry>,
    },
}

#[derive(Clone, Debug, PartialEq)]
enum Closing {
    Starting,
    Removing,
    Appending(Append),
    Releasing(Release),
}

impl Close {
    pub fn new(stay: Stay, journal: Left) -> Self {
        Self { stay, journal, doing: Closing::Starting }
    }

    fn release(self, now: i64) -> Next<Self> {
        let Stay { key, execution, nonce, .. } = self.stay.clone();
        self.releasing(Release::new(key, execution, nonce).step(now, Vec::new()))
    }

    fn releasing(mut self, next: Next<Release>) -> Next<Self> {
        inside(
            next,
            |release| {
                self.doing = Closing::Releasing(release);
                self
            },
            Next::End,
        )
    }

    fn appending(mut self, now: i64, next: Next<Append>) -> Next<Self> {
        match next {
            Next::Go(append, effects) => {
                self.doing = Closing::Appending(append);
                Next::Go(self, effects)
            }
            Next::End(Ok(())) => self.release(now),
            Next::End(Err(error)) => Next::failed(error),
        }
    }
}

impl Machine for Close {
    type Output = ();

    fn step(mut self, now: i64, events: Vec<Event>) -> Next<Self> {
        match self.doing.clone() {
            Closing::Starting => match self.journal.clone() {
                Left::Nothing => {
                    self.doing = Closing::Removing;
                    Next::go(self, Effect::RemoveJournal)
                }
                Left::Open { number, entries } => {
                    let append = Append::new(&self.stay, number, entries);
                    self.appending(now, append.step(now, Vec::new()))
                }
            },
            Closing::Removing => match only(events) {
                Ok(Event::Done) => self.release(now),
                Ok(_) => Next::failed(out_of_step()),
                Err(error) => Next::failed(error),
            },
            Closing::Appending(append) => self.appending(now, append.step(now, events)),
            Closing::Releasing(release) => self.releasing(release.step(now, events)),
        }
    }
}
