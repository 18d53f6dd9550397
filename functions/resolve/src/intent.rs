//! The intent of a deploy towards other stacks stands in its own record before it looks at theirs (DESIGN 6).
//!
//! A consumer records what it imports, then looks a second time; a producer withdraws what it takes away, then scans. S3
//! is strongly consistent, so one of the two always sees the other. A refusal leaves the record as it was found.

use std::collections::{BTreeMap, BTreeSet};

use cdkd_aws::edge::Invocation;
use cdkd_aws::references::{Imported, View};
use cdkd_aws::stack::{Desk, Run, Session, StackRef};
use cdkd_core::Result;
use cdkd_core::name::RecordKey;
use cdkd_core::protocol::journal::{Change, Entry};
use cdkd_core::references::exports::{Difference, Why};
use cdkd_core::references::handshake::{self, GivenUp, lock_of};
use cdkd_core::references::imports::{Fate, Reads, Save, settle};
use cdkd_core::references::scan::{self, Consumer, Intent as Scanned};
use cdkd_core::state::tree::{self, key_of, parts};
use cdkd_core::state::{Deploy, Record};
use indexmap::IndexMap;

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

/// What a look at others has found.
#[derive(Default)]
pub(crate) struct Looked {
    pub warnings: Vec<String>,
    /// Exports whose earlier values stacks of the run hold until they are deployed themselves.
    pub replaced: Vec<String>,
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
        let session = Session::enter(invocation, run, stack, "").await?;
        let done = async {
            let mut desk = session.record().await?;
            let found = desk.all_stored();
            self.write(&session, &mut desk).await?;
            let looked = self.look(invocation, &session.key).await;
            if looked.is_err() {
                undo(invocation, run, &session, &mut desk, &found).await?;
            }
            session.leave(true).await?;
            looked
        }
        .await;
        session.closing(done).await
    }

    async fn write(&self, session: &Session, desk: &mut Desk) -> Result<()> {
        // What they import stands in records of their own, so they are there first: in the journal before any record.
        let begun = tree::missing(&desk.record, self.nested);
        change(session, desk, begun.into_iter().map(|(logical_id, row)| Change::Put { logical_id, row }))
            .await?;
        let new = desk.stored("").is_none() && desk.record.deploy().is_none();
        desk.sync();
        for (path, record) in desk.own_mut() {
            let Some(part) = self.parts.get(path) else { continue };
            settle(record, &part.reads, Save::Midway);
            handshake::claim(record, part.difference.claims.iter().map(String::as_str));
            let names = part.difference.withdrawn_names();
            handshake::withdraw(record, names.iter().map(String::as_str));
        }
        if new {
            // Made by this run: it leaves no record if it comes to nothing (rule E28).
            desk.record.set_deploy(&Deploy { stack_id: session.stack_id.clone(), ..Deploy::default() });
        }
        if desk.save().await? && desk.own().any(|(_, record)| !record.withdrawing().is_empty()) {
            // Out of the index before the scan, so that nobody is sent to a value that goes.
            desk.index().await;
        }
        Ok(())
    }

    /// The second look of a consumer, and the scans of a producer.
    async fn look(&self, invocation: &Invocation, key: &RecordKey) -> Result<Looked> {
        let difference = self.difference();
        let view = View::new(invocation);
        invocation.look_again(self.imported).await?;
        for (path, part) in self.parts {
            view.check_claims(&key_of(key, path), &part.difference.claims, self.given_up).await?;
        }
        let mut looked = Looked::default();
        let inside = |consumer: &Consumer| is_inside(self.stacks, consumer);
        let lost = difference.lost();
        if !lost.is_empty() {
            let names: Vec<String> = lost.iter().map(|withdrawal| withdrawal.name.clone()).collect();
            let found = view.consumers(key, Some(&names)).await?;
            looked.warnings.extend(found.warning(key));
            // A stack of the run may import what gets a new value: the old one stays until it has got it. What goes for
            // good and is imported within the run is held, so nobody is left who could.
            let gone: BTreeSet<&str> = difference
                .withdrawn
                .iter()
                .filter(|withdrawal| withdrawal.why == Why::NotExported)
                .map(|withdrawal| withdrawal.name.as_str())
                .collect();
            let passes = |consumer: &Consumer| inside(consumer) && !gone.contains(consumer.export.as_str());
            let new_value =
                |name: &String| lost.iter().any(|lost| lost.name == *name && lost.why != Why::NotExported);
            looked.replaced.extend(found.exports_within(passes).into_iter().filter(new_value));
            scan::refuse(key, &found.without(passes), Scanned::Withdraw(&lost))?;
        }
        if !difference.changed.is_empty() {
            // It passes: what the old value names stays. The answer names who still holds it (rule E18).
            let found = view.consumers(key, Some(&difference.changed)).await?.without(inside);
            looked.warnings.extend(found.consumers.iter().map(|consumer| {
                format!(
                    "the value of export `{}` changes; {} holds the old one until it is deployed again",
                    consumer.export, consumer.key
                )
            }));
        }
        Ok(looked)
    }
}

/// Whether a consumer is a stack of the run or nested in one: it is deployed, or goes, with it.
pub(crate) fn is_inside(stacks: &[RecordKey], consumer: &Consumer) -> bool {
    stacks.contains(&lock_of(&consumer.key))
}

/// Changes rows, in the journal first.
async fn change(session: &Session, desk: &mut Desk, changes: impl Iterator<Item = Change>) -> Result<()> {
    let changes: Vec<Change> = changes.collect();
    session.journal.append(changes.iter().cloned().map(Entry::Change).collect()).await?;
    for change in &changes {
        change.apply(&mut desk.record);
    }
    Ok(())
}

/// A run that was refused before its first call leaves the records as it `found` them, by path (rule E28).
pub(crate) async fn undo(
    invocation: &Invocation,
    run: &Run,
    session: &Session,
    desk: &mut Desk,
    found: &BTreeMap<String, Record>,
) -> Result<()> {
    let was_there = |path: &str| {
        let (parent, logical_id) = parts(path);
        found.get(parent).is_some_and(|record| record.row(logical_id).is_some())
    };
    let begun = tree::hollow(&desk.record, |path| was_there(path));
    change(session, desk, begun.into_iter().map(|logical_id| Change::Remove { logical_id })).await?;
    let earlier = invocation.found_withdrawn(run, &session.key).await?;
    let mut fate = Fate::Save;
    for (path, record) in desk.own_mut() {
        let found = found.get(path);
        handshake::undo(record, found, earlier.of(path));
        let own = settle(record, &Reads::default(), Save::Undone { found });
        if path.is_empty() {
            fate = own;
        }
    }
    match fate {
        Fate::Delete => desk.delete().await?,
        Fate::Save => {
            desk.save().await?;
        }
    }
    if !found.is_empty() {
        desk.index().await;
    }
    Ok(())
}
