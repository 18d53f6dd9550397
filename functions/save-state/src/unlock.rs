//! `unlock`: a person breaks a lock whose holder is surely dead.

use cdkd_aws::edge::Invocation;
use cdkd_aws::executions::Life;
use cdkd_aws::stack::{StackRef, fence_off};
use cdkd_core::state::lock::Lock;
use cdkd_core::{Code, Error, Result};
use serde_json::{Value, json};

pub(crate) async fn unlock(stack: &StackRef, invocation: &Invocation) -> Result<Value> {
    let key = stack.key()?;
    let store = &invocation.aws.store;
    let (bucket, place) = (&invocation.settings.state_bucket, key.lock(&invocation.settings.prefix));
    let Some(object) = store.get(bucket, &place).await? else {
        return Ok(json!({ "unlocked": false, "holder": null }));
    };
    // A lock that cannot be read is broken all the same: that is what this is for.
    let lock = Lock::parse(&object.body, &key).ok();
    if let Some(lock) = &lock
        && let Some(execution) = lock.execution()
        && invocation.aws.executions.life(execution).await? == Life::MayRun
    {
        return Err(lock.refusal(&key).hint("its execution still runs: stop it first (`StopExecution`)"));
    }
    // A writer that takes the lock for its own still loses at its next entry (DESIGN 8).
    fence_off(invocation, &key, lock.as_ref().is_some_and(|lock| lock.execution().is_some())).await?;
    if !store.delete_matching(bucket, &place, &object.etag).await? {
        return Err(Error::new(Code::StateConflict, format!("the lock of {key} changed hands just now"))
            .hint("look who holds it now, and try again"));
    }
    store.purge(bucket, &place, true).await?;
    let holder = lock.map(|lock| lock.execution().unwrap_or_else(|| lock.owner()).to_owned());
    Ok(json!({ "unlocked": true, "holder": holder }))
}
