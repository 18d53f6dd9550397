//! The handshake between the stacks of a run and all others (DESIGN 6): the intent is written into the own record, then
//! one looks at the others'. A refusal leaves every record as it was found (rules E4, E18, E22, E24, E25, E27, E28).

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::step::{Draft, Effect, Event, Machine, Next, Seen, all, out_of_step};
use crate::error::{Error, Kind, Result};
use crate::name::RecordKey;
use crate::references::exports::{Why, Withdrawal};
use crate::references::handshake::{GivenUp, Producer, lock_of, look, look_at_lock};
use crate::references::run::refuse_destroy;
use crate::references::scan::{self, Consumer, Scan};

/// What a stack of the run is about to do to others.
#[derive(Clone, Debug, PartialEq)]
pub struct Part {
    pub key: RecordKey,
    /// Where its imports come from.
    pub sources: Vec<Source>,
    /// Names that it, or a stack nested in it, will export for the first time.
    pub claims: Vec<(RecordKey, Vec<String>)>,
    pub takes: Takes,
}

/// A producer whose exports are imported.
#[derive(Clone, Debug, PartialEq)]
pub struct Source {
    pub key: RecordKey,
    /// Of the record that the values came from; `None` if it is to be read whole.
    pub etag: Option<String>,
    /// Names with the values as they were read.
    pub exports: Vec<(String, Value)>,
}

/// What it takes away from its consumers.
#[derive(Clone, Debug, PartialEq)]
pub enum Takes {
    /// All: it is destroyed.
    All,
    Some {
        /// What consumers lose: any outside of the run refuses.
        lost: Vec<Withdrawal>,
        /// What gets another value while that which the old one names stays: consumers are told of (rule E18).
        changed: Vec<String>,
    },
}

/// What the look at others has found for a stack.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Looked {
    pub warnings: Vec<String>,
    /// Exports whose earlier values stacks of the run hold until they are deployed themselves.
    pub replaced: Vec<String>,
}

/// The handshake of stacks that are destroyed together, or of one that is deployed. Comes to what was found for each, in
/// their order.
#[derive(Clone, Debug, PartialEq)]
pub struct Handshake {
    parts: Vec<Part>,
    /// The stacks of the run: consumers among them go with it, or get what is new.
    inside: BTreeSet<RecordKey>,
    given_up: GivenUp,
    /// Where the intent stands.
    written: Vec<RecordKey>,
    doing: Doing,
}

#[derive(Clone, Debug, PartialEq)]
enum Doing {
    Starting,
    Writing,
    Indexing,
    LookingAtLocks,
    LookingAtRecords,
    LookingAtOwners,
    Scanning(Vec<(usize, Asked)>),
    TakingBack(Error),
    IndexingBack(Error),
}

/// What a scan was for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    All,
    Lost,
    Changed,
}

impl Handshake {
    pub fn new(parts: Vec<Part>, inside: impl IntoIterator<Item = RecordKey>, given_up: GivenUp) -> Self {
        let inside = inside.into_iter().collect();
        Self { parts, inside, given_up, written: Vec::new(), doing: Doing::Starting }
    }

    fn on(mut self, doing: Doing, effects: Vec<Effect>, now: i64) -> Next<Self> {
        self.doing = doing;
        if effects.is_empty() {
            return self.step(now, Vec::new());
        }
        Next::Go(self, effects)
    }

    fn write(self, now: i64) -> Next<Self> {
        let save = |part: &Part| Effect::Save { key: part.key.clone(), draft: Draft::Intent };
        let effects = self.parts.iter().map(save).collect();
        self.on(Doing::Writing, effects, now)
    }

    /// What was withdrawn goes out of the index before the scan, so that nobody is sent to a value that goes.
    fn index(mut self, events: &[Event], now: i64) -> Next<Self> {
        let mut effects = Vec::new();
        for (part, event) in self.parts.iter().zip(events) {
            match event {
                Event::Saved { changed, withdrawing } => {
                    self.written.push(part.key.clone());
                    if *changed && *withdrawing {
                        effects.push(Effect::Index(part.key.clone()));
                    }
                }
                Event::Failed(_) => {}
                _ => return Next::failed(out_of_step()),
            }
        }
        if let Err(error) = worst(events) {
            return self.take_back(error, now);
        }
        self.on(Doing::Indexing, effects, now)
    }

    fn sources(&self) -> impl Iterator<Item = &Source> {
        self.parts.iter().flat_map(|part| &part.sources)
    }

    /// Each producer's lock, before its record: another tool writes no intent there.
    fn look_at_locks(self, now: i64) -> Next<Self> {
        let effects = self.sources().map(|source| Effect::ReadLock(lock_of(&source.key))).collect();
        self.on(Doing::LookingAtLocks, effects, now)
    }

    fn locks_seen(&self, events: Vec<Event>) -> Result<()> {
        for (source, event) in self.sources().zip(all(events)?) {
            let Event::Lock(found) = event else { return Err(out_of_step()) };
            let lock = found.map(|found| found.lock).transpose()?;
            let names: Vec<&str> = source.exports.iter().map(|(name, _)| name.as_str()).collect();
            look_at_lock(&source.key, &names, lock.as_ref())?;
        }
        Ok(())
    }

    fn look_at_records(self, now: i64) -> Next<Self> {
        let read =
            |source: &Source| Effect::ReadRecord { key: source.key.clone(), unless: source.etag.clone() };
        let effects = self.sources().map(read).collect();
        self.on(Doing::LookingAtRecords, effects, now)
    }

    fn records_seen(&self, events: Vec<Event>) -> Result<()> {
        for (source, event) in self.sources().zip(all(events)?) {
            let Event::Record(seen) = event else { return Err(out_of_step()) };
            let producer = match &seen {
                Seen::NotModified => Producer::NotModified,
                Seen::Now(record) => Producer::Now(record),
                Seen::Gone => Producer::Gone,
            };
            for (name, value) in &source.exports {
                look(&source.key, name, value, producer)?;
            }
        }
        Ok(())
    }

    fn look_at_owners(self, now: i64) -> Next<Self> {
        let claims = self.parts.iter().flat_map(|part| &part.claims).filter(|(_, names)| !names.is_empty());
        let look = |(own, names): &(RecordKey, Vec<String>)| Effect::CheckOwners {
            own: own.clone(),
            names: names.clone(),
            given_up: self.given_up.clone(),
        };
        let effects = claims.map(look).collect();
        self.on(Doing::LookingAtOwners, effects, now)
    }

    fn scan(self, now: i64) -> Next<Self> {
        let (mut asked, mut effects) = (Vec::new(), Vec::new());
        for (at, part) in self.parts.iter().enumerate() {
            let mut ask = |what: Asked, exports: Option<Vec<String>>| {
                asked.push((at, what));
                effects.push(Effect::Scan { producer: part.key.clone(), exports });
            };
            match &part.takes {
                Takes::All => ask(Asked::All, None),
                Takes::Some { lost, changed } => {
                    if !lost.is_empty() {
                        ask(Asked::Lost, Some(lost.iter().map(|lost| lost.name.clone()).collect()));
                    }
                    if !changed.is_empty() {
                        ask(Asked::Changed, Some(changed.clone()));
                    }
                }
            }
        }
        self.on(Doing::Scanning(asked), effects, now)
    }

    fn scanned(&self, asked: &[(usize, Asked)], events: Vec<Event>) -> Result<Vec<Looked>> {
        let mut looked = vec![Looked::default(); self.parts.len()];
        let mut destroyed: BTreeMap<RecordKey, Scan> = BTreeMap::new();
        for ((at, what), event) in asked.iter().zip(all(events)?) {
            let (Event::Scanned(found), Some(part), Some(told)) =
                (event, self.parts.get(*at), looked.get_mut(*at))
            else {
                return Err(out_of_step());
            };
            match (what, &part.takes) {
                (Asked::Lost, Takes::Some { lost, .. }) => {
                    told.warnings.extend(found.warning(&part.key));
                    told.replaced = self.lose(&part.key, lost, found)?;
                }
                (Asked::Changed, _) => {
                    let found = found.without(|consumer| self.is_inside(consumer));
                    told.warnings.extend(found.consumers.iter().map(|consumer| {
                        format!(
                            "the value of export `{}` changes; {} holds the old one until it is deployed again",
                            consumer.export, consumer.key
                        )
                    }));
                }
                _ => {
                    told.warnings.extend(found.warning(&part.key));
                    destroyed.insert(part.key.clone(), found.without(|consumer| self.is_inside(consumer)));
                }
            }
        }
        refuse_destroy(&destroyed)?;
        Ok(looked)
    }

    /// Refuses if a consumer loses something. A stack of the run may import what gets a new value: the old one stays until
    /// it has got it; those names are answered. What goes for good and is imported within the run is held until the
    /// clean-up and not part of this.
    fn lose(&self, key: &RecordKey, lost: &[Withdrawal], found: Scan) -> Result<Vec<String>> {
        let gone: BTreeSet<&str> = lost
            .iter()
            .filter(|withdrawal| withdrawal.why == Why::NotExported)
            .map(|withdrawal| withdrawal.name.as_str())
            .collect();
        let passes =
            |consumer: &Consumer| self.is_inside(consumer) && !gone.contains(consumer.export.as_str());
        let new_value =
            |name: &String| lost.iter().any(|lost| lost.name == *name && lost.why != Why::NotExported);
        let replaced = found.exports_within(passes).into_iter().filter(new_value).collect();
        scan::refuse(key, &found.without(passes), scan::Intent::Withdraw(lost))?;
        Ok(replaced)
    }

    fn is_inside(&self, consumer: &Consumer) -> bool {
        self.inside.contains(&lock_of(&consumer.key))
    }

    /// Every record as it was found; whatever was written is taken back, whatever became of the rest. A destroy that may pass
    /// is tried again as a whole and finds its intent there.
    fn take_back(self, error: Error, now: i64) -> Next<Self> {
        if error.kind() == Kind::Retryable && self.parts.iter().all(|part| part.takes == Takes::All) {
            return Next::failed(error);
        }
        let save = |key: &RecordKey| Effect::Save { key: key.clone(), draft: Draft::Found };
        let effects = self.written.iter().map(save).collect();
        self.on(Doing::TakingBack(error), effects, now)
    }

    fn index_back(self, error: Error, events: &[Event], now: i64) -> Next<Self> {
        if let Err(failed) = worst(events) {
            return Next::failed(failed);
        }
        let effects = self.written.iter().cloned().map(Effect::Index).collect();
        self.on(Doing::IndexingBack(error), effects, now)
    }
}

/// The failure that may pass by itself, since then the whole is tried again; else the first.
fn worst(events: &[Event]) -> Result<()> {
    let failures = || {
        events.iter().filter_map(|event| if let Event::Failed(error) = event { Some(error) } else { None })
    };
    let passing = failures().find(|error| error.kind() == Kind::Retryable);
    passing.or_else(|| failures().next()).map_or(Ok(()), |error| Err(error.clone()))
}

impl Machine for Handshake {
    type Output = Vec<Looked>;

    fn step(self, now: i64, events: Vec<Event>) -> Next<Self> {
        let seen = match self.doing.clone() {
            Doing::Starting => return self.write(now),
            Doing::Writing => return self.index(&events, now),
            Doing::Indexing => return self.look_at_locks(now),
            Doing::LookingAtLocks => match self.locks_seen(events) {
                Ok(()) => return self.look_at_records(now),
                Err(error) => error,
            },
            Doing::LookingAtRecords => match self.records_seen(events) {
                Ok(()) => return self.look_at_owners(now),
                Err(error) => error,
            },
            Doing::LookingAtOwners => match all(events) {
                Ok(_) => return self.scan(now),
                Err(error) => error,
            },
            Doing::Scanning(asked) => match self.scanned(&asked, events) {
                Ok(looked) => return Next::End(Ok(looked)),
                Err(error) => error,
            },
            Doing::TakingBack(error) => return self.index_back(error, &events, now),
            Doing::IndexingBack(error) => return Next::failed(error),
        };
        self.take_back(seen, now)
    }
}
