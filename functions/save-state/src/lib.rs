//! `cdkd-save-state`: the beginning and the ends of a run, and of its part in each stack.
//!
//! | action | does |
//! |---|---|
//! | `begin` | lock, fence, load, migrate: all stacks or none |
//! | `publish` | the apply of a stack is done: its outputs become visible |
//! | `commit` | record, template and unlock of a stack |
//! | `abort` | keeps what is true of a stack, or of all, unlocks, says what the execution fails with |
//! | `release` | unlocks stacks that were not started |
//! | `finish` | the result, and the answer of the execution |
//! | `unlock` | a person breaks a lock |
//! | `sweep` | an execution ended without an end of its own, or any did: their locks go |

mod abort;
mod begin;
mod commit;
mod finish;
mod sweep;
mod unlock;

use cdkd_aws::edge::Invocation;
use cdkd_aws::stack::{Run, StackRef};
use cdkd_core::{Code, Error, Result};
use futures::StreamExt as _;
use serde::Deserialize;
use serde_json::Value;

/// Stacks at work at once: each reads and writes a handful of documents.
const AT_ONCE: usize = 16;

#[derive(Deserialize)]
#[serde(tag = "action", rename_all = "camelCase")]
enum Event {
    Begin(begin::Event),
    Publish(OnStack),
    Commit(commit::Event),
    Abort(abort::Event),
    Release(abort::Release),
    Finish(finish::Event),
    Unlock(StackRef),
    Sweep(sweep::Event),
}

#[derive(Deserialize)]
struct OnStack {
    run: Run,
    stack: StackRef,
}

/// See `docs/contracts.md` for payloads and answers.
pub async fn handle(event: Value, invocation: Invocation) -> Result<Value> {
    let event: Event = serde_json::from_value(event).map_err(|error| {
        Error::new(Code::InvalidInput, format!("the payload of save-state: {error}"))
            .hint("`action` is one of begin, publish, commit, abort, release, finish, unlock, sweep")
    })?;
    match event {
        Event::Begin(event) => begin::begin(event, &invocation).await,
        Event::Publish(on) => commit::publish(&invocation, &on.run, &on.stack).await,
        Event::Commit(event) => Box::pin(commit::commit(event, &invocation)).await,
        Event::Abort(event) => abort::abort(event, &invocation).await,
        Event::Release(event) => abort::release(&event, &invocation).await,
        Event::Finish(event) => finish::finish(event, &invocation).await,
        Event::Unlock(stack) => unlock::unlock(&stack, &invocation).await,
        Event::Sweep(event) => sweep::sweep(event, &invocation).await,
    }
}

/// Does the same with each, several at a time, and answers in their order. Each comes to its end, whatever becomes of
/// the others.
async fn each<'a, T, F: Future>(items: &'a [T], work: impl FnMut(&'a T) -> F) -> Vec<F::Output> {
    futures::stream::iter(items.iter().map(work)).buffered(AT_ONCE).collect().await
}
