//! The intent of a deploy towards other stacks stands in its own record before it looks at theirs (DESIGN 6).
//!
//! A consumer records what it imports, then looks a second time; a producer withdraws what it takes away, then scans. S3
//! is strongly consistent, so one of the two always sees the other. A refusal leaves the record as it was found.

use std::collections::BTreeSet;

use cdkd_aws::edge::Invocation;
use cdkd_aws::references::{Imported, View};
use cdkd_aws::stack::{Desk, Run, Session, StackRef};
use cdkd_core::Result;
use cdkd_core::name::RecordKey;
use cdkd_core::references::exports::{Difference, Why};
use cdkd_core::references::handshake::{self, GivenUp, lock_of};
use cdkd_core::references::imports::{Fate, Reads, Save, settle};
use cdkd_core::references::scan::{self, Consumer, Intent as Scanned};
use cdkd_core::state::{Deploy, Record};

/// What a deploy imports, and what it makes of the stack's exports.
pub(crate) struct Intent<'a> {
    pub imported: &'a Imported,
    /// Without what is held until the clean-up.
    pub difference: Difference,
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
    /// Whether there is nothing to write and nothing to look at: what the stack imports is on record, and nothing of it
    /// changes.
    pub fn is_idle(&self, record: &Record, changes: bool) -> bool {
        let recorded = Reads::of(record).unwrap_or_default();
        let reads = self.imported.reads();
        let known = reads.imports.is_subset(&recorded.imports)
            && reads.output_reads.is_subset(&recorded.output_reads);
        let difference = &self.difference;
        let quiet =
            difference.claims.is_empty() && difference.lost().is_empty() && difference.changed.is_empty();
        known && quiet && (!changes || self.imported.is_empty())
    }

    /// A look before anything is written, for a run that was not prepared as a whole: what is refused by those who are on
    /// record by now is refused without a trace.
    pub async fn look_ahead(&self, invocation: &Invocation, key: &RecordKey) -> Result<()> {
        let lost = self.difference.lost();
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
            let found = desk.stored.clone();
            self.write(&session, &mut desk).await?;
            let looked = self.look(invocation, &session.key).await;
            if looked.is_err() {
                undo(invocation, run, &session, &mut desk, found.as_ref()).await?;
            }
            session.leave(true).await?;
            looked
        }
        .await;
        session.closing(done).await
    }

    async fn write(&self, session: &Session, desk: &mut Desk) -> Result<()> {
        let record = &mut desk.record;
        settle(record, &self.imported.reads(), Save::Midway);
        handshake::claim(record, self.difference.claims.iter().map(String::as_str));
        let names = self.difference.withdrawn_names();
        handshake::withdraw(record, names.iter().map(String::as_str));
        if desk.stored.is_none() && record.deploy().is_none() {
            // Made by this run: it leaves no record if it comes to nothing (rule E28).
            record.set_deploy(&Deploy { stack_id: session.stack_id.clone(), ..Deploy::default() });
        }
        if desk.save().await? && !desk.record.withdrawing().is_empty() {
            // Out of the index before the scan, so that nobody is sent to a value that goes.
            session.invocation.index_stack(&session.key, Some(&desk.record)).await;
        }
        Ok(())
    }

    /// The second look of a consumer, and the scans of a producer.
    async fn look(&self, invocation: &Invocation, key: &RecordKey) -> Result<Looked> {
        let difference = &self.difference;
        let view = View::new(invocation);
        invocation.look_again(self.imported).await?;
        view.check_claims(key, &difference.claims, self.given_up).await?;
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

/// A run that was refused before its first call leaves the record as it found it (rule E28).
pub(crate) async fn undo(
    invocation: &Invocation,
    run: &Run,
    session: &Session,
    desk: &mut Desk,
    found: Option<&Record>,
) -> Result<()> {
    let earlier = invocation.found_withdrawn(run, &session.key).await?;
    handshake::undo(&mut desk.record, found, &earlier);
    match settle(&mut desk.record, &Reads::default(), Save::Undone { found }) {
        Fate::Delete => desk.delete().await?,
        Fate::Save => {
            desk.save().await?;
        }
    }
    if found.is_some() {
        invocation.index_stack(&session.key, Some(&desk.record)).await;
    }
    Ok(())
}
