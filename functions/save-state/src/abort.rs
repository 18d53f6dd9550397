//! `abort` and `release`: a run failed, or its part in a stack. What is true stays on record, the lock goes, and
//! the execution learns what it fails with.

use cdkd_aws::edge::Invocation;
use cdkd_aws::run::RunDocument;
use cdkd_aws::stack::{Desk, Run, Session, StackRef, release_lock};
use cdkd_core::name::RecordKey;
use cdkd_core::protocol::ending::{self, Left, Part};
use cdkd_core::protocol::journal::Change;
use cdkd_core::references::handshake;
use cdkd_core::state::lock::Lock;
use cdkd_core::state::{Deploy, tree};
use cdkd_core::{Code, Error, Kind, Result};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::commit::{done, keep_templates};
use crate::each;
use crate::finish::{Ending, ended};

/// With `stack` it is about that one alone, else about all.
#[derive(Deserialize)]
pub(crate) struct Event {
    run: Run,
    stack: Option<StackRef>,
    #[serde(default)]
    stacks: Vec<StackRef>,
    error: Failure,
}

/// What Step Functions caught.
#[derive(Deserialize)]
pub(crate) struct Failure {
    #[serde(rename = "Error", default)]
    error: String,
    #[serde(rename = "Cause", default)]
    cause: String,
}

#[derive(Deserialize)]
pub(crate) struct Release {
    run: Run,
    stacks: Vec<StackRef>,
}

/// What of a stack is brought on record before its lock goes.
#[derive(Clone, Copy)]
pub(crate) enum Keep {
    /// What its journal says alone: it was not started.
    Journal,
    /// And no claims of this run.
    Truth,
    /// And how the attempt left it, the template beside it.
    Attempt(Left),
}

pub(crate) async fn abort(event: Event, invocation: &Invocation) -> Result<Value> {
    let error = explain(&event.error);
    if let Some(stack) = &event.stack {
        return abort_one(invocation, &event.run, &stack.key()?, error).await;
    }
    let document = document(invocation, &event.run).await?;
    let keys = match &document {
        // The `begin` of a destroy that failed told nobody which stacks it had found.
        Some(document) if event.stacks.is_empty() => document.stacks()?,
        _ => keys(&event.stacks)?,
    };
    let rows = abort_all(invocation, &event.run, document.as_ref(), &keys, &error, &error.cause()).await?;
    let cause = ending::cause(&error, &rows, ending::CAUSE);
    Ok(json!({ "error": error.code().name(), "cause": cause }))
}

/// Ends the run's part in one stack; the others go on.
async fn abort_one(invocation: &Invocation, run: &Run, key: &RecordKey, mut error: Error) -> Result<Value> {
    if error.cause()["details"]["stack"].is_null() {
        error = error.detail("stack", key.stack.as_str()).detail("region", key.region.as_str());
    }
    let left = Left::by(&error);
    let outcome = if let Some(ended) = ended(invocation, run, key).await? {
        // A commit that was stored and not told, or an earlier try of this: it is as it says.
        put_down(invocation, run, key, Keep::Truth).await?;
        ended["row"]["outcome"].as_str().unwrap_or(left.name()).to_owned()
    } else {
        put_down(invocation, run, key, Keep::Attempt(left)).await?;
        let document = json!({
            "execution": run.execution,
            "row": ending::row(key, left.name()),
            "warnings": planned(invocation, run, key).await?.map_or(json!([]), |plan| plan["warnings"].clone()),
            "steps": done(invocation, run, &named(key)).await?,
            "error": error.cause(),
        });
        invocation.write_run(&run.stack_document(key, "ended.json"), &document).await?;
        left.name().to_owned()
    };
    let cause = ending::cause(&error, &[], ending::CAUSE);
    Ok(json!({ "error": error.code().name(), "cause": cause, "outcome": outcome }))
}

/// Ends the run in all of its stacks, whichever of them it still holds, and writes its result. Answers the rows.
pub(crate) async fn abort_all(
    invocation: &Invocation,
    run: &Run,
    document: Option<&RunDocument>,
    keys: &[RecordKey],
    error: &Error,
    cause: &Value,
) -> Result<Vec<Value>> {
    // Neither asks for locks: a retry finds those gone that its first try put down.
    let found = each(keys, |key| look(invocation, run, key)).await;
    let (parts, endings): (Vec<Part>, Vec<Option<Value>>) =
        found.into_iter().collect::<Result<Vec<_>>>()?.into_iter().unzip();
    let rows = ending::rows(&parts, error);
    let left = Left::by(error);
    let work: Vec<(&RecordKey, Keep)> = parts
        .iter()
        .zip(&rows)
        .map(|(part, row)| {
            let keep = match row["outcome"].as_str() {
                Some(outcome) if part.ended.is_some() || outcome == "notStarted" => Keep::Truth,
                Some(outcome) if outcome == left.name() => Keep::Attempt(left),
                _ => Keep::Attempt(Left::Failed),
            };
            (&part.key, keep)
        })
        .collect();
    all_of(each(&work, |(key, keep)| put_down(invocation, run, key, *keep)).await)?;
    if !rows.is_empty() {
        let ending = Ending { run, document, rows: &rows, ended: &endings };
        ending.write(invocation, None, Some(cause)).await?;
    }
    Ok(rows)
}

/// How far the run came in a stack, and how its part there ended if it did.
async fn look(invocation: &Invocation, run: &Run, key: &RecordKey) -> Result<(Part, Option<Value>)> {
    let ended = ended(invocation, run, key).await?;
    let started = ended.is_some() || planned(invocation, run, key).await?.is_some();
    let row = ended.as_ref().map(|ended| ended["row"].clone());
    Ok((Part { key: key.clone(), ended: row, started }, ended))
}

/// The plan of this execution for a stack, once there is one.
async fn planned(invocation: &Invocation, run: &Run, key: &RecordKey) -> Result<Option<Value>> {
    crate::finish::own(invocation, run, &run.stack_document(key, "plan.json")).await
}

/// The document of the run, if this execution has laid it out.
pub(crate) async fn document(invocation: &Invocation, run: &Run) -> Result<Option<RunDocument>> {
    match RunDocument::load(invocation, run).await {
        Ok(document) => Ok(Some(document).filter(|document| document.is_of(run))),
        Err(error) if error.code() == Code::InvalidState => Ok(None),
        Err(error) => Err(error),
    }
}

/// Unlocks stacks that were not started.
pub(crate) async fn release(event: &Release, invocation: &Invocation) -> Result<Value> {
    let keys = keys(&event.stacks)?;
    all_of(each(&keys, |key| put_down(invocation, &event.run, key, Keep::Journal)).await)?;
    Ok(json!({}))
}

/// The first error, one that may pass before one that does not: then the whole is tried again.
pub(crate) fn all_of(outcomes: Vec<Result<()>>) -> Result<()> {
    let mut errors: Vec<Error> = outcomes.into_iter().filter_map(Result::err).collect();
    errors.sort_by_key(|error| error.kind() != Kind::Retryable);
    errors.into_iter().next().map_or(Ok(()), Err)
}

fn keys(stacks: &[StackRef]) -> Result<Vec<RecordKey>> {
    stacks.iter().map(StackRef::key).collect()
}

fn named(key: &RecordKey) -> StackRef {
    StackRef { stack: key.stack.to_string(), region: key.region.to_string(), nonce: None }
}

/// Puts the stack down: the journal's changes onto the record, and the lock away. A journal with open requests stays
/// for the next run to settle.
///
/// After a rollback what the run withdrew is exported again (nothing was deleted yet); after any other failure it stays
/// withdrawn until a deploy publishes it anew (rule E26).
pub(crate) async fn put_down(invocation: &Invocation, run: &Run, key: &RecordKey, keep: Keep) -> Result<()> {
    let Some(nonce) = held_by(invocation, run, key).await? else {
        // Nothing is held, or not any more: then what an earlier try left of the lock goes.
        return release_lock(invocation, key, &run.execution, "").await;
    };
    let held = StackRef { nonce: Some(nonce), ..named(key) };
    let session = match Session::enter(invocation, run, &held).await {
        Ok(session) => session,
        Err(error) if error.code() == Code::LockLostError => return Ok(()),
        Err(error) => return Err(error),
    };
    let kept = save(invocation, run, &session, keep).await;
    session.closing(kept).await?;
    session.close().await
}

/// Puts on record what is true.
async fn save(invocation: &Invocation, run: &Run, session: &Session, keep: Keep) -> Result<()> {
    let left = match keep {
        Keep::Journal if session.found.changes.is_empty() => return Ok(()),
        Keep::Journal => {
            session.record().await?.save().await?;
            return Ok(());
        }
        Keep::Truth => None,
        Keep::Attempt(left) => Some(left),
    };
    let mut desk = session.record().await?;
    // A nested stack that the run began and in which nothing came to be leaves nothing.
    let busy =
        |path: &str| session.found.open.iter().any(|open| tree::is_inside(&open.intent.logical_id, path));
    let changes =
        tree::hollow(&desk.record, busy).into_iter().map(|logical_id| Change::Remove { logical_id });
    session.change(&mut desk, changes.collect()).await?;
    let mut taken_back = false;
    let earlier = match left {
        Some(Left::RolledBack) => Some(invocation.found_withdrawn(run, &session.key).await?),
        _ => None,
    };
    for (path, record) in desk.own_mut() {
        handshake::unclaim(record);
        if let Some(earlier) = &earlier {
            taken_back |= !handshake::take_back_but(record, earlier.of(path)).is_empty();
        }
    }
    if taken_back {
        desk.index().await;
    }
    if left == Some(Left::DeletesPending)
        && let Some(deploy) = desk.record.deploy()
    {
        desk.record.set_deploy(&Deploy { deployed: true, ..deploy });
    }
    if !desk.record.was_deployed() && desk.record.is_empty() {
        // A first deploy that was rolled back to nothing leaves no record (rule E28).
        return desk.delete().await;
    }
    desk.save().await?;
    match left {
        Some(left) if run.operation == "deploy" => keep_attempt(invocation, run, session, &desk, left).await,
        _ => Ok(()),
    }
}

/// Keeps the template of a deploy that failed beside the record; it is the deployed one if only deletes are left.
async fn keep_attempt(
    invocation: &Invocation,
    run: &Run,
    session: &Session,
    desk: &Desk,
    left: Left,
) -> Result<()> {
    let name = if left == Left::DeletesPending { "template.json" } else { "attempted.json" };
    if desk.stored("").is_some()
        && let Ok(document) = RunDocument::load(invocation, run).await
        && let Ok(inputs) = document.inputs(invocation, &session.key).await
    {
        keep_templates(invocation, desk, &inputs, name).await?;
    }
    Ok(())
}

/// The nonce under which the run holds the lock, if it does.
pub(crate) async fn held_by(invocation: &Invocation, run: &Run, key: &RecordKey) -> Result<Option<String>> {
    let place = key.lock(&invocation.settings.prefix);
    let Some(object) = invocation.aws.store.get(&invocation.settings.state_bucket, &place).await? else {
        return Ok(None);
    };
    let lock = Lock::parse(&object.body, key)?;
    Ok((lock.execution() == Some(run.execution.as_str()))
        .then(|| lock.nonce().unwrap_or_default().to_owned()))
}

/// The documented error in what Step Functions caught.
pub(crate) fn explain(failure: &Failure) -> Error {
    let cause: Value = serde_json::from_str(&failure.cause).unwrap_or_default();
    if cause["code"].is_string() {
        return Error::from_cause(&cause);
    }
    let message = cause["errorMessage"].as_str().unwrap_or(&failure.cause);
    let inner: Value = serde_json::from_str(message).unwrap_or_default();
    if inner["code"].is_string() {
        return Error::from_cause(&inner);
    }
    Error::new(Code::InternalError, format!("a step of the run failed with {}", failure.error))
        .hint("what was done is on record: start the execution again. The log of the function says more")
        .detail("error", failure.error.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn explain(error: &str, cause: &str) -> Error {
        super::explain(&Failure { error: error.into(), cause: cause.into() })
    }

    #[test]
    fn causes_of_functions_services_and_our_own_steps() {
        let own = Error::new(Code::StackLocked, "m").hint("h").detail("stack", "A").cause().to_string();
        let lambda = json!({ "errorType": "StackLocked", "errorMessage": own }).to_string();
        for cause in [own.as_str(), lambda.as_str()] {
            let error = explain("StackLocked", cause);
            assert_eq!(
                (error.code(), error.message(), error.hint_text()),
                (Code::StackLocked, "m", Some("h"))
            );
            assert_eq!(error.details()["stack"], "A");
        }
        for cause in ["", "no JSON", r#"{"errorType":"Runtime.ExitError","errorMessage":"signal: killed"}"#] {
            let error = explain("Runtime.ExitError", cause);
            assert_eq!(error.code(), Code::InternalError);
            assert!(error.message().contains("Runtime.ExitError"), "{error}");
        }
    }
}
