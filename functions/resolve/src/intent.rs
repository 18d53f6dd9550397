//! The intent of a deploy towards other stacks stands in its own record before it looks at theirs (DESIGN 6).
//!
//! A consumer records what it imports, then looks a second time; a producer withdraws what it takes away, then scans. S3
//! is strongly consistent, so one of the two always sees the other. A refusal leaves the record as it was found.

use std::collections::BTreeMap;

use cdkd_aws::edge::Invocation;
use cdkd_aws::protocol::{World, drive};
use cdkd_aws::references::{Imported, Lookout, View};
use cdkd_aws::stack::{Desk, Run, Session, StackRef};
use cdkd_core::name::RecordKey;
use cdkd_core::protocol::handshake::{self, Handshake, Looked, Takes};
use cdkd_core::protocol::journal::Change;
use cdkd_core::protocol::step::{Draft, Effect, Event};
use cdkd_core::references::exports::Difference;
use cdkd_core::references::handshake::{self as rules, GivenUp, lock_of};
use cdkd_core::references::imports::{Fate, Reads, Save, settle};
use cdkd_core::references::scan::{self, Consumer, Intent as Scanned};
use cdkd_core::state::tree::{self, key_of, parts};
use cdkd_core::state::{Deploy, Record};
use cdkd_core::{Code, Error, Result};
use indexmap::IndexMap;
use tokio::sync::Mutex;

use crate::stack::{Part, together};

/// What a deploy imports, and what it makes of the stack's exports.
pub(crate) struct Intent<'a> {
    pub imported: &'a Imported,
    /// By path, of the stack and those nested in it; without what is held until the clean-up.
    pub parts: &'a IndexMap<String, Part>,
    /// `AWS::StackId` of each nested stack, by path.
    pub nested: &'a IndexMap<String, String>,
    pub given_up: &'a GivenUp,
    /// The stacks of the run.
    pub stacks: &'a [RecordKey],
}

impl Intent<'_> {
    fn difference(&self) -> Difference {
        together(self.parts.values())
    }

    /// A look before anything is written, for a run that was not prepared as a whole: what is refused by those who are on
    /// record by now is refused without a trace.
    pub async fn look_ahead(&self, invocation: &Invocation, key: &RecordKey) -> Result<()> {
        let lost = self.difference().lost();
        if lost.is_empty() {
            return Ok(());
        }
        let names: Vec<String> = lost.iter().map(|withdrawal| withdrawal.name.clone()).collect();
        let found = View::new(invocation).consumers(key, Some(&names)).await?;
        scan::refuse(key, &found, Scanned::Withdraw(&lost))
    }

    /// Writes the intent, looks, and takes it back if that refuses.
    pub async fn carry_out(&self, invocation: &Invocation, run: &Run, stack: &StackRef) -> Result<Looked> {
        let session = Session::enter(invocation, run, stack).await?;
        let key = session.key.clone();
        let difference = self.difference();
        let part = handshake::Part {
            key: key.clone(),
            sources: self.imported.sources(),
            claims: self
                .parts
                .iter()
                .map(|(path, part)| (key_of(&key, path), part.difference.claims.clone()))
                .collect(),
            takes: Takes::Some { lost: difference.lost(), changed: difference.changed },
        };
        let done = async {
            let hall = Hall::new(invocation, run, vec![Side::open(&session, Some(self)).await?]);
            let handshake = Handshake::new(vec![part], self.stacks.iter().cloned(), self.given_up.clone());
            let looked = drive(&hall, handshake).await;
            session.leave(true).await?;
            looked
        }
        .await;
        let looked = session.closing(done).await?;
        Ok(looked.into_iter().next().unwrap_or_default())
    }

    async fn write(&self, session: &Session, desk: &mut Desk) -> Result<()> {
        // What they import stands in records of their own, so they are there first: in the journal before any record.
        let begun = tree::missing(&desk.record, self.nested);
        let begun = begun.into_iter().map(|(logical_id, row)| Change::Put { logical_id, row });
        session.change(desk, begun.collect()).await?;
        let new = desk.stored("").is_none() && desk.record.deploy().is_none();
        desk.sync();
        for (path, record) in desk.own_mut() {
            let Some(part) = self.parts.get(path) else { continue };
            settle(record, &part.reads, Save::Midway);
            rules::claim(record, part.difference.claims.iter().map(String::as_str));
            let names = part.difference.withdrawn_names();
            rules::withdraw(record, names.iter().map(String::as_str));
        }
        if new {
            // Made by this run: it leaves no record if it comes to nothing (rule E28).
            desk.record.set_deploy(&Deploy { stack_id: session.stack_id.clone(), ..Deploy::default() });
        }
        Ok(())
    }
}

/// A stack of the run in a handshake.
pub(crate) struct Side<'a> {
    session: &'a Session,
    desk: Mutex<Desk>,
    /// Its records as the run found them, by path.
    found: BTreeMap<String, Record>,
    /// `None` if it is destroyed.
    intent: Option<&'a Intent<'a>>,
}

impl<'a> Side<'a> {
    pub async fn open(session: &'a Session, intent: Option<&'a Intent<'a>>) -> Result<Self> {
        let desk = session.record().await?;
        Ok(Self { session, found: desk.all_stored(), desk: Mutex::new(desk), intent })
    }

    async fn write(&self) -> Result<Event> {
        let mut desk = self.desk.lock().await;
        match self.intent {
            Some(intent) => intent.write(self.session, &mut desk).await?,
            None => {
                for (_, record) in desk.own_mut() {
                    rules::withdraw_all(record);
                }
            }
        }
        let changed = desk.save().await?;
        let withdrawing = desk.own().any(|(_, record)| !record.withdrawing().is_empty());
        Ok(Event::Saved { changed, withdrawing })
    }

    async fn index(&self) {
        // A stack that the run has made is in no index.
        if !self.found.is_empty() {
            self.desk.lock().await.index().await;
        }
    }
}

/// The world of a handshake: the stacks of the run that have a part in it, and all others.
pub(crate) struct Hall<'a> {
    invocation: &'a Invocation,
    run: &'a Run,
    sides: Vec<Side<'a>>,
    others: Lookout<'a>,
}

impl<'a> Hall<'a> {
    pub fn new(invocation: &'a Invocation, run: &'a Run, sides: Vec<Side<'a>>) -> Self {
        Self { invocation, run, sides, others: Lookout::new(invocation) }
    }

    fn side(&self, key: &RecordKey) -> Result<&Side<'a>> {
        self.sides
            .iter()
            .find(|side| side.session.key == *key)
            .ok_or_else(|| Error::new(Code::InternalError, format!("{key} has no part in the handshake")))
    }
}

impl World for Hall<'_> {
    async fn carry_out(&self, effect: Effect) -> Result<Event> {
        match effect {
            Effect::Save { key, draft: Draft::Intent } => self.side(&key)?.write().await,
            Effect::Save { key, draft: Draft::Found } => {
                undo(self.invocation, self.run, self.side(&key)?).await
            }
            Effect::Index(key) => {
                self.side(&key)?.index().await;
                Ok(Event::Done)
            }
            other => self.others.carry_out(other).await,
        }
    }
}

/// Whether a consumer is a stack of the run or nested in one: it is deployed, or goes, with it.
pub(crate) fn is_inside(stacks: &[RecordKey], consumer: &Consumer) -> bool {
    stacks.contains(&lock_of(&consumer.key))
}

/// A run that was refused before its first call leaves the records as it found them (rule E28).
async fn undo(invocation: &Invocation, run: &Run, side: &Side<'_>) -> Result<Event> {
    let Side { session, found, .. } = side;
    let mut desk = side.desk.lock().await;
    let was_there = |path: &str| {
        let (parent, logical_id) = parts(path);
        found.get(parent).is_some_and(|record| record.row(logical_id).is_some())
    };
    let begun = tree::hollow(&desk.record, |path| was_there(path));
    let begun = begun.into_iter().map(|logical_id| Change::Remove { logical_id });
    session.change(&mut desk, begun.collect()).await?;
    let earlier = invocation.found_withdrawn(run, &session.key).await?;
    let mut fate = Fate::Save;
    for (path, record) in desk.own_mut() {
        let found = found.get(path);
        rules::undo(record, found, earlier.of(path));
        let own = settle(record, &Reads::default(), Save::Undone { found });
        if path.is_empty() {
            fate = own;
        }
    }
    let changed = match fate {
        Fate::Delete => {
            desk.delete().await?;
            true
        }
        Fate::Save => desk.save().await?,
    };
    Ok(Event::Saved { changed, withdrawing: false })
}
