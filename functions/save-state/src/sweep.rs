//! `sweep`: an execution that ended without an end of its own (stopped, timed out, failed where no Catch sees it) leaves
//! locks behind; they are put down (rule F7).
//!
//! An event of Step Functions names one execution. The schedule names none: it looks at every lock of the estate, for
//! what no event told of.

use std::collections::BTreeMap;

use cdkd_aws::edge::Invocation;
use cdkd_aws::stack::Run;
use cdkd_core::name::RecordKey;
use cdkd_core::{Code, Error, Result};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::abort::{Keep, abort_all, all_of, document, held_by, put_down};
use crate::each;

#[derive(Deserialize)]
pub(crate) struct Event {
    execution: Option<String>,
    status: Option<String>,
}

pub(crate) async fn sweep(event: Event, invocation: &Invocation) -> Result<Value> {
    let Some(execution) = event.execution else { return sweep_estate(invocation).await };
    let status = event.status.ok_or_else(|| {
        Error::new(
            Code::InvalidInput,
            "the payload of save-state: a sweep after an execution names its `status`",
        )
    })?;
    let swept = sweep_run(invocation, &run_of(&execution), &status).await?;
    Ok(json!({ "swept": swept, "status": status }))
}

/// Looks at all locks, and puts down those whose execution has ended. One that cannot be put down now holds up no other.
async fn sweep_estate(invocation: &Invocation) -> Result<Value> {
    let keys = invocation.estate().await?.locks;
    let locks = each(&keys, |key| invocation.read_lock(key)).await;
    let mut errors = Vec::new();
    let mut held: BTreeMap<String, Vec<RecordKey>> = BTreeMap::new();
    for (key, lock) in keys.into_iter().zip(locks) {
        match lock {
            Ok(lock) => {
                let execution = lock.as_ref().and_then(|lock| lock.execution());
                if let Some(execution) =
                    execution.filter(|it| is_ours(it, invocation.settings.account.as_str()))
                {
                    held.entry(execution.to_owned()).or_default().push(key);
                }
            }
            // Nobody knows whose it is: it is for a person to break.
            Err(error) if error.code() == Code::InvalidState => {}
            Err(error) => errors.push(error),
        }
    }
    let held: Vec<(String, Vec<RecordKey>)> = held.into_iter().collect();
    let mut swept = 0;
    for outcome in each(&held, |(execution, keys)| sweep_dead(invocation, execution, keys)).await {
        match outcome {
            Ok(stacks) => swept += stacks,
            Err(error) => errors.push(error),
        }
    }
    all_of(errors.into_iter().map(Err).collect())?;
    Ok(json!({ "swept": swept }))
}

/// Puts down the stacks that an execution holds if it has ended; answers how many.
async fn sweep_dead(invocation: &Invocation, execution: &str, keys: &[RecordKey]) -> Result<usize> {
    let Some(status) = invocation.aws.executions.ended(execution).await? else { return Ok(0) };
    let run = run_of(execution);
    if status != "SUCCEEDED" {
        sweep_run(invocation, &run, &status).await?;
    }
    // And what the run's document does not name, if it is there at all.
    all_of(each(keys, |key| put_down(invocation, &run, key, Keep::Truth)).await)?;
    Ok(keys.len())
}

/// Puts down the stacks of an execution's document that it has left locked; answers how many.
async fn sweep_run(invocation: &Invocation, run: &Run, status: &str) -> Result<usize> {
    // An execution that ended before it laid out a run held nothing.
    let Some(document) = document(invocation, run).await? else { return Ok(0) };
    let keys = document.stacks()?;
    let held = each(&keys, |key| held_by(invocation, run, key)).await;
    let held = held.into_iter().collect::<Result<Vec<_>>>()?.into_iter().flatten().count();
    if held > 0 && has_result(invocation, run).await? {
        // It told how it ended, and could not unlock; that is not told anew.
        all_of(each(&keys, |key| put_down(invocation, run, key, Keep::Truth)).await)?;
    } else if held > 0 {
        let error = Error::new(Code::InternalError, format!("the execution ended {status} before its time"))
            .hint("what was done is on record: start the execution again");
        // No code of ours ended it.
        let mut cause = error.cause();
        cause["code"] = json!(status);
        abort_all(invocation, run, Some(&document), &keys, &error, &cause).await?;
    }
    Ok(held)
}

/// Whether this very execution has written its result.
async fn has_result(invocation: &Invocation, run: &Run) -> Result<bool> {
    let place = run.document("result.json");
    let object = invocation.aws.store.get(&invocation.settings.runs_bucket, &place).await?;
    let result: Option<Value> = object.and_then(|object| serde_json::from_slice(&object.body).ok());
    Ok(result.is_some_and(|result| result["run"]["execution"] == run.execution.as_str()))
}

fn run_of(execution: &str) -> Run {
    let name = execution.rsplit(':').next().unwrap_or_default();
    let operation = if execution.contains(":cdkd-destroy:") { "destroy" } else { "deploy" };
    Run {
        execution: execution.to_owned(),
        name: name.to_owned(),
        operation: operation.to_owned(),
        dry_run: false,
    }
}

/// Whether an ARN is that of an execution of this product in this account, whatever the region.
fn is_ours(execution: &str, account: &str) -> bool {
    match execution.split(':').collect::<Vec<_>>().as_slice() {
        ["arn", _, "states", _, owner, "execution", "cdkd-deploy" | "cdkd-destroy", _] => *owner == account,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f7_executions_of_this_product_are_told_by_their_arn() {
        let arn = |account: &str, machine: &str| {
            format!("arn:aws:states:eu-west-1:{account}:execution:{machine}:e")
        };
        let table = [
            (arn("123456789012", "cdkd-deploy"), true),
            (arn("123456789012", "cdkd-destroy"), true),
            (arn("123456789012", "cdkd-deploy-2"), false),
            (arn("111122223333", "cdkd-deploy"), false),
            ("arn:aws:states:eu-west-1:123456789012:express:cdkd-deploy:e:1".to_owned(), false),
            ("ann@host:12".to_owned(), false),
            (String::new(), false),
        ];
        for (execution, ours) in table {
            assert_eq!(is_ours(&execution, "123456789012"), ours, "{execution}");
        }
        let run = run_of(&arn("123456789012", "cdkd-destroy"));
        assert_eq!((run.name.as_str(), run.operation.as_str()), ("e", "destroy"));
    }
}
