//! `cdkd-provision`: carries a plan out in slices, undoes it when it fails, and deletes.
//!
//! | action | does |
//! |---|---|
//! | `recover` | settles the calls that a dead run left open |
//! | `apply` | creates, updates and replaces; on failure undoes what this run did |
//! | `cleanUp` | deletes what is gone from the template, and what replacements left |
//!
//! Each invocation is a slice: it works until it is done or near its time limit; then it answers `more` and is
//! invoked again. What it has done is in the journal at every moment, so it may die at any.

mod apply;
mod engine;
mod release;
mod slice;
mod undo;

use std::time::Duration;

use cdkd_aws::edge::Invocation;
use cdkd_aws::run::{Basis, RunDocument, load_plan};
use cdkd_aws::settings;
use cdkd_aws::stack::{Desk, Run, Session, StackRef};
use cdkd_core::plan::{self, Plan, Step};
use cdkd_core::protocol::journal::{Change, Entry};
use cdkd_core::state::tree;
use cdkd_core::state::{self, Record};
use cdkd_core::{Code, Error, Kind, Result};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::apply::Deploy;
use crate::engine::{End, Engine};
use crate::release::release;
use crate::slice::Slice;

/// How a deploy is left whose clean-up failed.
const DELETES_PENDING: &str = "deletesPending";

#[derive(Deserialize)]
struct Event {
    action: Action,
    run: Run,
    stack: StackRef,
}

#[derive(Clone, Copy, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
enum Action {
    Recover,
    Apply,
    CleanUp,
}

/// `{action, run, stack}` → `{status: "more" | "done" | "failed", deletes, error?}`
pub async fn handle(event: Value, invocation: Invocation) -> Result<Value> {
    let event: Event = serde_json::from_value(event).map_err(|error| {
        Error::new(Code::InvalidInput, format!("the payload of provision: {error}"))
            .hint("`action` is one of recover, apply, cleanUp")
    })?;
    // A fifth of the time, at least a second and a half, is kept for saving and the way out.
    let limit = Duration::from_millis(u64::try_from(invocation.deadline - settings::now()).unwrap_or(0));
    let margin = (limit / 5).clamp(Duration::from_millis(1500), Duration::from_secs(15));
    let session = Session::enter(&invocation, &event.run, &event.stack).await?;
    let mut desk = match session.record().await {
        Ok(desk) => desk,
        Err(error) => return session.closing(Err(error)).await,
    };
    let engine = Engine::new(session, desk.record.clone(), margin);
    let slice = Slice::default();
    let outcome = work(&engine, &slice, &event, &mut desk).await;

    // Whatever happened: what is true goes on record, and the invocation says that it is over.
    let saved = async {
        desk.record = engine.record.borrow().clone();
        desk.save().await?;
        let steps = slice.steps();
        if !steps.is_empty() {
            let name = format!("done/{}-{}.json", settings::now(), invocation.request_id);
            let place = event.run.stack_document(&engine.session.key, &name);
            let done = json!({ "execution": event.run.execution, "steps": steps });
            invocation.write_run(&place, &done).await?;
        }
        engine.session.leave(true).await
    }
    .await;
    let saved = engine.session.closing(saved).await;
    match (outcome, saved) {
        (Ok(answer), Ok(())) => Ok(answer),
        (Err(error), _) | (Ok(_), Err(error)) => Err(error),
    }
}

async fn work(engine: &Engine, slice: &Slice, event: &Event, desk: &mut Desk) -> Result<Value> {
    match event.action {
        Action::Recover => recover(engine, slice).await,
        Action::Apply => apply(engine, slice, event).await,
        Action::CleanUp if event.run.operation == "destroy" => destroy(engine, slice, event).await,
        Action::CleanUp => match clean_up(engine, slice, event, desk).await {
            // The stack is deployed: what was to be deleted stays on record for the next run.
            Err(error) if error.code() == Code::LockLostError => Err(error),
            Err(error) if error.kind() == Kind::Retryable => Err(error.detail("outcome", DELETES_PENDING)),
            Err(error) => Ok(failure(&error.cause(), DELETES_PENDING)),
            done => done,
        },
    }
}

fn answer(status: &str, deletes: usize) -> Value {
    json!({ "status": status, "deletes": deletes })
}

async fn recover(engine: &Engine, slice: &Slice) -> Result<Value> {
    let mut ids: Vec<String> =
        engine.open.borrow().iter().map(|open| open.intent.logical_id.clone()).collect();
    ids.dedup();
    let steps = ids.into_iter().map(|id| (id, Vec::new(), 1));
    let end = slice.run(engine, steps, |id| async move { Ok((engine.settle(&id).await?, "settle")) }).await?;
    Ok(answer(if end == End::Done { "done" } else { "more" }, 0))
}

async fn apply(engine: &Engine, slice: &Slice, event: &Event) -> Result<Value> {
    let invocation = &engine.session.invocation;
    let key = &engine.session.key;
    let document = RunDocument::load(invocation, &event.run).await?;
    let plan = load_plan(invocation, &event.run, key).await?;
    let basis = basis(engine, &document, plan).await?;
    let (plan, tree) = (&basis.plan, basis.tree()?);
    let needs = tree.dependencies()?;
    let deploy = Deploy { tree: &tree, needs, nested: &plan.nested, imports: &basis.imported };
    let mut failed = engine
        .session
        .found
        .undo
        .clone()
        .filter(|(execution, _)| *execution == event.run.execution)
        .map(|(_, cause)| cause);
    if failed.is_none() {
        // Nested stacks stand on record before anything is made in them.
        let begun = tree::missing(&engine.record.borrow(), &plan.nested);
        let begun = begun.into_iter().map(|(logical_id, row)| Change::Put { logical_id, row });
        engine.change(begun.collect()).await?;
        let steps =
            plan.applies.iter().map(|step| (step.logical_id.clone(), step.needs.clone(), step.weight));
        let deploy = &deploy;
        match slice.run(engine, steps, |id| async move { deploy.apply(engine, &id).await }).await {
            Ok(End::Done) => {
                let record = engine.record.borrow();
                let wanted = |id: &str| plan::is_wanted_in(&tree, id);
                return Ok(answer("done", plan::deletes(key, &record, wanted)?.len()));
            }
            Ok(End::Later) => return Ok(answer("more", 0)),
            // Not this run's to undo any more, or not known what happened: the next run settles it.
            Err(error) if matches!(error.code(), Code::LockLostError | Code::InternalError) => {
                return Err(error);
            }
            Err(error) => {
                let cause = error.cause();
                if !document.rollback() {
                    return Ok(failure(&cause, "failed"));
                }
                let entry = Entry::Undo { execution: event.run.execution.clone(), cause: cause.clone() };
                engine.session.journal.append(vec![entry]).await?;
                failed = Some(cause);
            }
        }
    }
    let cause = failed.unwrap_or_default();
    match undo::undo(engine, slice, plan).await {
        Ok(End::Done) => Ok(failure(&cause, "rolledBack")),
        Ok(End::Later) => Ok(answer("more", 0)),
        Err(error) if matches!(error.code(), Code::LockLostError | Code::InternalError) => Err(error),
        Err(error) => {
            // The first error is the one reported; what could not be undone is on record as it is.
            let mut cause = cause;
            cause["details"]["rollback"] = error.cause();
            Ok(failure(&cause, "failed"))
        }
    }
}

/// What the execution fails with: the first error, and how the stack was left.
fn failure(cause: &Value, outcome: &str) -> Value {
    let mut cause = cause.clone();
    if !cause["details"].is_object() {
        cause["details"] = json!({});
    }
    cause["details"]["outcome"] = json!(outcome);
    json!({
        "status": "failed",
        "deletes": 0,
        "error": { "Error": cause["code"], "Cause": cause.to_string() },
    })
}

/// What the plan is carried out with. The stack's id is on record from here on.
async fn basis(engine: &Engine, document: &RunDocument, plan: Plan) -> Result<Basis> {
    let Session { invocation, key, .. } = &engine.session;
    let inputs = document.inputs(invocation, key).await?;
    let known = engine.record.borrow().deploy().map(|deploy| deploy.stack_id);
    let stack_id = known.as_ref().unwrap_or(&engine.session.stack_id).clone();
    if known.is_none() {
        let mut record = engine.record.borrow_mut();
        // One that has resources is another tool's: it was deployed.
        let deployed = !record.is_empty();
        let deploy = state::Deploy { stack_id: stack_id.clone(), deployed, ..Default::default() };
        record.set_deploy(&deploy);
    }
    Basis::new(invocation, plan, inputs, &stack_id)
}

async fn destroy(engine: &Engine, slice: &Slice, event: &Event) -> Result<Value> {
    let key = &engine.session.key;
    let record: Record = engine.record.borrow().clone();
    let document = RunDocument::load(&engine.session.invocation, &event.run).await?;
    delete_all(engine, slice, &plan::destroy(key, &record, &document.retain())?.deletes).await
}

async fn clean_up(engine: &Engine, slice: &Slice, event: &Event, desk: &mut Desk) -> Result<Value> {
    let (invocation, key) = (&engine.session.invocation, &engine.session.key);
    let document = RunDocument::load(invocation, &event.run).await?;
    let plan = load_plan(invocation, &event.run, key).await?;
    if !plan.held.is_empty() {
        release(engine, &event.run, &plan.held, desk).await?;
    }
    let basis = basis(engine, &document, plan).await?;
    let tree = basis.tree()?;
    let record: Record = engine.record.borrow().clone();
    let deletes = plan::deletes(key, &record, |id| plan::is_wanted_in(&tree, id))?;
    delete_all(engine, slice, &deletes).await
}

async fn delete_all(engine: &Engine, slice: &Slice, deletes: &[Step]) -> Result<Value> {
    let steps = deletes.iter().map(|step| (step.id.clone(), step.needs.clone(), step.weight));
    let end = slice
        .run(engine, steps, |id| async move {
            match deletes.iter().find(|step| step.id == id) {
                Some(step) => undo::delete(engine, step).await,
                None => Ok((End::Done, "same")),
            }
        })
        .await?;
    Ok(answer(if end == End::Done { "done" } else { "more" }, deletes.len()))
}
