//! `begin`: lock, fence, load, migrate. All stacks of the run or none.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use cdkd_aws::edge::Invocation;
use cdkd_aws::estate::Estate;
use cdkd_aws::run::{RunDocument, new_stack_id};
use cdkd_aws::settings;
use cdkd_aws::stack::{Run, Session, StackRef, Taken, release_lock, take_lock};
use cdkd_core::assembly::input::DestroyInput;
use cdkd_core::error::nearest;
use cdkd_core::name::{LogicalId, RecordKey, Region, StackName};
use cdkd_core::protocol::journal::{Change, Journal};
use cdkd_core::references::handshake::lock_of;
use cdkd_core::references::run::{self, Reads, Uses};
use cdkd_core::references::scan;
use cdkd_core::state::Record;
use cdkd_core::state::lock::Holder;
use cdkd_core::state::tree::NESTED;
use cdkd_core::{Code, Error, Result};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::each;

#[derive(Deserialize)]
#[serde(untagged)]
pub(crate) enum Event {
    Deploy { run: Run, stacks: Vec<StackRef> },
    Destroy { execution: String, name: String, input: Value },
}

pub(crate) async fn begin(event: Event, invocation: &Invocation) -> Result<Value> {
    match event {
        Event::Deploy { run, stacks } => {
            let document = RunDocument::load(invocation, &run).await?;
            let keys = stacks.iter().map(StackRef::key).collect::<Result<Vec<_>>>()?;
            let begun = begin_all(invocation, &run, keys, document.lock_wait()).await?;
            let order = uses(invocation, &begun).await;
            let stacks: Vec<Value> = begun
                .iter()
                .map(|one| {
                    let (users, rank) = order.of(&one.key);
                    let users: Vec<String> = users.into_iter().map(run::id).collect();
                    let mut stack = one.answer();
                    stack["rank"] = json!(rank);
                    stack["users"] = json!(users);
                    stack
                })
                .collect();
            Ok(json!({ "run": run, "stacks": stacks, "recover": begun.iter().any(|one| one.recover) }))
        }
        Event::Destroy { execution, name, input } => {
            let run = Run { execution, name, operation: "destroy".to_owned(), dry_run: false };
            let (keys, levels) = lay_out(invocation, &run, &input).await?;
            let begun = begin_all(invocation, &run, keys, 0).await?;
            let stacks: Vec<Value> = begun.iter().map(Begun::answer).collect();
            let recover = begun.iter().any(|one| one.recover);
            Ok(json!({ "run": run, "stacks": stacks, "levels": levels, "recover": recover }))
        }
    }
}

/// A stack that is locked and loaded.
struct Begun {
    key: RecordKey,
    nonce: String,
    /// An earlier run left requests without an outcome.
    recover: bool,
    record: Record,
}

impl Begun {
    fn answer(&self) -> Value {
        json!({ "stack": self.key.stack.as_str(), "region": self.key.region.as_str(), "nonce": self.nonce })
    }
}

/// Locks all, then loads all; what was taken is given back if anything fails.
async fn begin_all(
    invocation: &Invocation,
    run: &Run,
    mut keys: Vec<RecordKey>,
    wait: u64,
) -> Result<Vec<Begun>> {
    keys.sort();
    keys.dedup();
    let until = settings::now() + i64::try_from(wait.saturating_mul(1000)).unwrap_or(i64::MAX);
    let held = lock_all(invocation, run, keys, until).await?;
    // Each goes to its end, whatever becomes of the others: one that stops half way would be waited for.
    let loads = each(&held, |(key, taken)| load(invocation, run, key, taken)).await;
    let (mut begun, mut alive, mut failed) = (Vec::new(), None, None);
    for load in loads {
        match load {
            Ok(one) => begun.push(one),
            Err(error) if error.code() == Code::EarlierInvocationAlive => alive = alive.or(Some(error)),
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    if let Some(error) = failed {
        // What the journal said is on record by now.
        let settled: Vec<&Begun> = begun.iter().filter(|one| !one.recover).collect();
        let _cleared = each(&settled, |one| clear(invocation, &one.key)).await;
        give_back(invocation, run, &held).await;
        return Err(error);
    }
    match alive {
        // A retry of this very begin finds its locks again.
        Some(error) => Err(error),
        None => Ok(begun),
    }
}

/// Takes all locks or none.
///
/// Mostly they are free, so all are tried at once. If any is not, what was taken is given back, and they are taken in the
/// order of their keys: then of two runs one gets on, neither waits for the other, and the refusal names the first.
async fn lock_all(
    invocation: &Invocation,
    run: &Run,
    keys: Vec<RecordKey>,
    until: i64,
) -> Result<Vec<(RecordKey, Taken)>> {
    if keys.len() > 1 {
        let tried = each(&keys, |key| lock(invocation, run, key, 0)).await;
        let held: Vec<(RecordKey, Taken)> =
            keys.iter().zip(tried).filter_map(|(key, tried)| Some((key.clone(), tried.ok()?))).collect();
        if held.len() == keys.len() {
            return Ok(held);
        }
        give_back(invocation, run, &held).await;
    }
    let mut held = Vec::new();
    for key in keys {
        match lock(invocation, run, &key, until).await {
            Ok(taken) => held.push((key, taken)),
            Err(error) => {
                give_back(invocation, run, &held).await;
                return Err(error);
            }
        }
    }
    Ok(held)
}

/// Releases what was taken. What stays locked by a failure here is found by `abort`, which looks at every lock of the
/// run.
async fn give_back(invocation: &Invocation, run: &Run, held: &[(RecordKey, Taken)]) {
    let _released =
        each(held, |(key, taken)| release_lock(invocation, key, &run.execution, &taken.nonce)).await;
}

/// Removes a journal that nobody needs any more.
async fn clear(invocation: &Invocation, key: &RecordKey) -> Result<()> {
    let settings = &invocation.settings;
    invocation.aws.store.purge(&settings.state_bucket, &key.journal(&settings.prefix), false).await
}

/// Takes the lock; waits for another run's as long as the input asks for and this invocation lasts.
async fn lock(invocation: &Invocation, run: &Run, key: &RecordKey, until: i64) -> Result<Taken> {
    let holder = Holder {
        execution: run.execution.clone(),
        operation: run.operation.clone(),
        nonce: settings::nonce()?,
    };
    loop {
        match take_lock(invocation, key, &holder).await {
            Err(error)
                if error.code() == Code::StackLocked
                    && settings::now() < until
                    && invocation.left(Duration::from_secs(10)) > Duration::ZERO =>
            {
                tokio::time::sleep(settings::jitter(Duration::from_secs(2))).await;
            }
            other => return other,
        }
    }
}

/// Fences, reads the record under the lock (rule L7) and brings what an earlier run's journal says onto it.
async fn load(invocation: &Invocation, run: &Run, key: &RecordKey, taken: &Taken) -> Result<Begun> {
    let fresh_id = new_stack_id(invocation, key)?;
    let (session, desk) = Session::take_over(invocation, run, key.clone(), taken, &fresh_id).await?;
    let stack_id = desk.record.deploy().map_or_else(|| session.stack_id.clone(), |deploy| deploy.stack_id);
    let withdrawing = |record: &Record| json!(record.withdrawing().keys().collect::<Vec<_>>());
    let nested: Map<String, Value> = desk
        .own()
        .filter(|(path, _)| !path.is_empty())
        .map(|(path, record)| (path.to_owned(), json!({ "withdrawing": withdrawing(record) })))
        .collect();
    let begun = json!({
        "stackId": stack_id,
        "onRecord": desk.stored("").is_some(),
        "version": desk.stored("").map(Record::version),
        "withdrawing": withdrawing(&desk.record),
        "nested": nested,
    });
    if let Err(error) = invocation.write_run(&run.stack_document(key, "begun.json"), &begun).await {
        session.retreat().await?;
        return Err(error);
    }
    session.leave(true).await?;
    Ok(Begun {
        key: key.clone(),
        nonce: session.nonce.clone(),
        recover: !session.found.open.is_empty(),
        record: desk.record,
    })
}

/// Who uses whom by the records of the run, those of nested stacks among them. It orders the clean-up, and no more: a
/// nested record that cannot be read uses nobody, and the scan before a delete refuses.
async fn uses(invocation: &Invocation, begun: &[Begun]) -> Uses {
    let keys = begun.iter().map(|one| one.key.clone());
    if begun.len() < 2 {
        return Uses::on_record(keys, [], Reads::Strong);
    }
    let parents: Vec<&RecordKey> = begun
        .iter()
        .filter(|one| one.record.rows().any(|(_, row)| row.resource_type() == NESTED))
        .map(|one| &one.key)
        .collect();
    let nested = each(&parents, |key| invocation.nested_on_record(key)).await.into_iter().flatten().flatten();
    let nested = invocation.read_records(nested.collect()).await;
    let own = begun.iter().map(|one| (&one.key, &one.record));
    let nested = nested.iter().filter_map(|(key, record)| Some((key, record.as_ref().ok()?)));
    Uses::on_record(keys, own.chain(nested), Reads::Strong)
}

/// Finds the stacks that a destroy names, refuses what consumers outside of it forbid (rule E34), and lays out the run:
/// its stacks, and their levels as they are answered. Nothing is locked or changed so far.
async fn lay_out(invocation: &Invocation, run: &Run, input: &Value) -> Result<(Vec<RecordKey>, Value)> {
    // A retry goes on with what the first try found, whose locks it may hold: what an earlier run still deleted meanwhile
    // is no reason to leave that behind.
    if let Ok(document) = invocation.read_run(&run.document("run.json")).await
        && document["run"]["execution"] == run.execution.as_str()
        && document["levels"].is_array()
    {
        return Ok((RunDocument::load(invocation, run).await?.stacks()?, document["levels"].clone()));
    }
    let input = DestroyInput::parse(input)?;
    let estate = invocation.estate().await?;
    let (keys, gone) = find_all(invocation, &estate, &input).await?;
    let records = read_estate(invocation, &estate, &keys).await;
    check_retain(invocation, &keys, &records, &input.retain).await?;
    refuse(invocation, &estate, &keys, &records).await?;

    let readable = records.iter().filter_map(|(key, record)| Some((key, record.as_ref().ok()?)));
    let uses = Uses::on_record(keys.iter().cloned(), readable, Reads::All);
    let levels: Vec<Vec<Value>> = uses
        .levels()
        .into_iter()
        .map(|level| {
            let stack = |(key, needs): (&RecordKey, Vec<&RecordKey>)| {
                let needs: Vec<String> = needs.into_iter().map(run::id).collect();
                json!({ "stack": key.stack.as_str(), "region": key.region.as_str(), "needs": needs })
            };
            level.into_iter().map(stack).collect()
        })
        .collect();
    let stacks: Vec<Value> = levels
        .iter()
        .flatten()
        .map(|stack| json!({ "stack": stack["stack"], "region": stack["region"] }))
        .collect();
    let retain: Vec<&str> = input.retain.iter().map(LogicalId::as_str).collect();
    let document = json!({
        "run": run, "retain": retain, "stacks": stacks, "levels": levels, "notices": gone, "warnings": [],
    });
    invocation.write_run(&run.document("run.json"), &document).await?;
    Ok((keys, json!(levels)))
}

/// The stacks that a destroy names, each once, and notices about those that an earlier one has destroyed: of a destroy
/// that ended half way, the same input is right again. All that is wrong with their names is told at once.
async fn find_all(
    invocation: &Invocation,
    estate: &Estate,
    input: &DestroyInput,
) -> Result<(Vec<RecordKey>, Vec<String>)> {
    let names: Vec<&StackName> = input.stacks.iter().collect::<BTreeSet<_>>().into_iter().collect();
    let found = each(&names, |name| find(invocation, estate, name, input.region.as_ref())).await;
    let (mut keys, mut missing, mut errors) = (Vec::new(), Vec::new(), Vec::new());
    for (name, one) in names.into_iter().zip(found) {
        match one {
            Ok(key) => keys.push(key),
            Err(error) if error.code() == Code::StackNotFound => missing.push((name, error)),
            Err(error) => errors.push(error),
        }
    }
    let mut gone = Vec::new();
    for (name, error) in missing {
        // Where nothing is left to destroy, the name may be the wrong one all the same.
        if !keys.is_empty() && was_destroyed(invocation, name, input.region.as_ref()).await? {
            gone.push(format!("stack `{name}` is not on record any more: it was destroyed before"));
        } else {
            errors.push(error);
        }
    }
    // What may pass if it is tried again goes before what does not.
    errors.sort_by_key(|error| error.kind() != cdkd_core::Kind::Retryable);
    Error::all(errors)?;
    Ok((keys, gone))
}

/// Whether a stack was on record once, by what versioning keeps of its record: a name that was mistyped never was.
async fn was_destroyed(invocation: &Invocation, name: &StackName, asked: Option<&Region>) -> Result<bool> {
    let settings = &invocation.settings;
    let folder = match asked {
        Some(region) => RecordKey::new(name.clone(), region.clone()).state(&settings.prefix),
        None => format!("{}/{name}/", settings.prefix),
    };
    let deleted = invocation.aws.store.list_deleted(&settings.state_bucket, &folder).await?;
    Ok(deleted.iter().any(|key| key.ends_with("/state.json")))
}

/// The region in which the stack is on record (rule E34: two are ambiguous).
async fn find(
    invocation: &Invocation,
    estate: &Estate,
    name: &StackName,
    asked: Option<&Region>,
) -> Result<RecordKey> {
    if let Some(parent) = name.parent() {
        return Err(Error::new(Code::InvalidInput, format!("`{name}` is a nested stack of `{parent}`"))
            .hint(format!("destroy `{parent}`; its nested stacks go with it")));
    }
    let mut regions: Vec<Region> = estate
        .records
        .iter()
        .filter(|(key, _)| key.stack == *name)
        .map(|(key, _)| key.region.clone())
        .collect();
    // Where version 1 lived, and where a first deploy died before it saved a record: what it made is in its journal.
    let own = asked.unwrap_or(&invocation.settings.region);
    if !regions.contains(own) && invocation.knows(&RecordKey::new(name.clone(), own.clone())).await? {
        regions.push(own.clone());
    }
    if let Some(region) = asked {
        regions.retain(|known| known == region);
    }
    match regions.as_slice() {
        [region] => Ok(RecordKey::new(name.clone(), region.clone())),
        [] => Err(not_found(estate, name, asked)),
        several => {
            let names: Vec<&str> = several.iter().map(Region::as_str).collect();
            Err(Error::new(
                Code::AmbiguousStack,
                format!("stack `{name}` is deployed in {}", names.join(" and ")),
            )
            .hint("say which with `region`")
            .detail("regions", names))
        }
    }
}

fn not_found(estate: &Estate, name: &StackName, region: Option<&Region>) -> Error {
    let place = region.map_or_else(String::new, |region| format!(" in {region}"));
    let error = Error::new(Code::StackNotFound, format!("stack `{name}` is not on record{place}"));
    if let Some((elsewhere, _)) = estate.records.iter().find(|(key, _)| key.stack == *name) {
        return error.hint(format!("it is deployed in {}", elsewhere.region));
    }
    let names = estate.records.iter().map(|(key, _)| key.stack.as_str());
    match nearest(name.as_str(), names) {
        Some(near) => error.hint(format!("did you mean `{near}`?")),
        None => error.hint("`stacks` takes the names of deployed stacks"),
    }
}

/// Every record of the estate, and those of the run that lie where version 1 did.
async fn read_estate(
    invocation: &Invocation,
    estate: &Estate,
    keys: &[RecordKey],
) -> BTreeMap<RecordKey, Result<Record>> {
    let listed = estate.records.iter().map(|(key, _)| key.clone());
    let all: BTreeSet<RecordKey> = listed.chain(keys.iter().cloned()).collect();
    invocation.read_records(all.into_iter().collect()).await.into_iter().collect()
}

/// Refuses what consumers outside of the run forbid. It is looked at again under the locks; but here nothing has been
/// touched yet.
async fn refuse(
    invocation: &Invocation,
    estate: &Estate,
    keys: &[RecordKey],
    records: &BTreeMap<RecordKey, Result<Record>>,
) -> Result<()> {
    let inside = |key: &RecordKey| keys.contains(&lock_of(key));
    for key in keys {
        if let Some(Err(error)) = records.get(key) {
            return Err(error.clone());
        }
    }
    if let Some(first) = keys.first() {
        // A stack of the run that someone has locked is told by the lock itself.
        let outside: Vec<&RecordKey> = estate.locks.iter().filter(|key| !inside(key)).collect();
        let locks = each(&outside, |key| invocation.read_lock(key)).await;
        let held: Vec<_> = outside
            .into_iter()
            .zip(&locks)
            .filter_map(|(key, lock)| Some((key, lock.as_ref().map(Option::as_ref).transpose()?)))
            .collect();
        scan::look_at_locks(first, held, settings::now())?;
    }
    let mut scans = BTreeMap::new();
    for key in keys {
        let mut found =
            scan::consumers(key, None, records.iter().map(|(key, record)| (key, record.as_ref())))?;
        found.consumers.retain(|consumer| !inside(&consumer.key));
        scans.insert(key.clone(), found);
    }
    run::refuse_destroy(&scans)
}

/// What is to be kept has to be there: a name that was mistyped would lose what it stands for.
async fn check_retain(
    invocation: &Invocation,
    keys: &[RecordKey],
    records: &BTreeMap<RecordKey, Result<Record>>,
    retain: &[LogicalId],
) -> Result<()> {
    if retain.is_empty() {
        return Ok(());
    }
    let mut known = BTreeSet::new();
    for (key, record) in records {
        if let Ok(record) = record
            && keys.contains(&lock_of(key))
        {
            known.extend(record.rows().map(|(id, _)| id.to_owned()));
            known.extend(record.pending_deletes().into_iter().map(|pending| pending.logical_id));
        }
    }
    // What a run that died has made may be in its journal alone.
    for journal in each(keys, |key| cdkd_aws::stack::read_journal(invocation, key)).await {
        known.extend(logical_ids(&journal?));
    }
    let errors = retain.iter().filter(|id| !known.contains(id.as_str())).map(|id| {
        let error = Error::new(
            Code::InvalidInput,
            format!("`retain` names `{id}`, which no stack of the run has on record"),
        );
        match nearest(id.as_str(), known.iter().map(String::as_str)) {
            Some(near) => error.hint(format!("did you mean `{near}`?")),
            None => error.hint("`retain` takes logical ids of the stacks that are destroyed"),
        }
    });
    Error::all(errors.collect())
}

/// The logical ids that a journal speaks of.
fn logical_ids(journal: &Journal) -> Vec<String> {
    let open = journal.open.iter().map(|open| open.intent.logical_id.clone());
    let changed = journal.changes.iter().map(|change| match change {
        Change::Put { logical_id, .. } | Change::Remove { logical_id } => logical_id.clone(),
        Change::Later(pending) | Change::Forget(pending) => pending.logical_id.clone(),
    });
    open.chain(changed).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_on_record_is_told_with_what_may_be_meant() {
        let key = |stack: &str, region: &str| (RecordKey::parse(stack, region).unwrap(), String::new());
        let estate = Estate {
            records: vec![key("Frontend", "us-east-1"), key("Only", "eu-west-1")],
            ..Estate::default()
        };
        let region: Region = "us-east-1".parse().unwrap();
        let table = [
            ("Frontendd", None, "did you mean `Frontend`?"),
            ("Only", Some(&region), "it is deployed in eu-west-1"),
            ("Zzz", None, "`stacks` takes the names of deployed stacks"),
        ];
        for (name, region, hint) in table {
            let error = not_found(&estate, &name.parse().unwrap(), region);
            assert_eq!((error.code(), error.hint_text()), (Code::StackNotFound, Some(hint)));
        }
    }

    #[test]
    fn a_journal_speaks_of_what_a_dead_run_made() {
        let pending = |id: &str| cdkd_core::state::PendingDelete {
            logical_id: id.to_owned(),
            row: cdkd_core::state::Row::new("T", "p"),
        };
        let journal = Journal {
            changes: vec![
                Change::Put { logical_id: "A".into(), row: cdkd_core::state::Row::new("T", "p") },
                Change::Remove { logical_id: "B".into() },
                Change::Later(pending("C")),
                Change::Forget(pending("D")),
            ],
            ..Journal::default()
        };
        assert_eq!(logical_ids(&journal), ["A", "B", "C", "D"]);
    }
}
