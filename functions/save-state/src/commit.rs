//! `publish` and `commit`: what a stack's successful part of a run leaves behind.

use std::collections::BTreeSet;

use cdkd_aws::edge::Invocation;
use cdkd_aws::references::Imported;
use cdkd_aws::run::{RunDocument, StackInputs, load_plan};
use cdkd_aws::stack::{Desk, Run, Session, StackRef, release_lock};
use cdkd_aws::store::Condition;
use cdkd_core::plan::{Operation, Plan, Recorded};
use cdkd_core::references::imports::{Save, settle};
use cdkd_core::references::{exports, handshake};
use cdkd_core::state::{Deploy, Record};
use cdkd_core::template::{self, Bound, Scope};
use cdkd_core::{Code, Error, Result};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::finish::ended;

#[derive(Deserialize)]
pub(crate) struct Event {
    run: Run,
    stack: StackRef,
    /// Whether the clean-up has taken place, or there was none to do.
    #[serde(default = "yes")]
    cleaned: bool,
}

fn yes() -> bool {
    true
}

/// How far the run is in a stack.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Applied: what is held stays, what goes is still there.
    Applied,
    /// At its end.
    CleanedUp,
}

/// The apply is done: old and new outputs become visible before anything is deleted.
pub(crate) async fn publish(invocation: &Invocation, run: &Run, stack: &StackRef) -> Result<Value> {
    let key = stack.key()?;
    let document = RunDocument::load(invocation, run).await?;
    let plan = load_plan(invocation, run, &key).await?;
    let session = Session::enter(invocation, run, stack, "").await?;
    let published = async {
        let mut desk = session.record().await?;
        let inputs = document.inputs(invocation, &key).await?;
        set_outputs(invocation, &mut desk, &session, &inputs, &plan, Stage::Applied)?;
        remember(&mut desk, &session, &inputs, &Bound::from_document(&plan.parameters)?, false);
        let before = importable(&desk);
        if desk.save().await? && before != desk.record.importable() {
            invocation.index_stack(&key, Some(&desk.record)).await;
        }
        session.leave(true).await?;
        Ok(json!({}))
    }
    .await;
    session.closing(published).await
}

/// The end of a stack's part: record, template, unlock. Answers its row.
pub(crate) async fn commit(event: Event, invocation: &Invocation) -> Result<Value> {
    let Event { run, stack, cleaned } = event;
    let key = stack.key()?;
    let session = match Session::enter(invocation, &run, &stack, "").await {
        Ok(session) => session,
        Err(error) if error.code() == Code::LockLostError => {
            // The answer of a commit that had come to its end, or nearly, was lost.
            let Some(ended) = ended(invocation, &run, &key).await? else { return Err(error) };
            release_lock(invocation, &key, &run.execution, stack.nonce.as_deref().unwrap_or_default())
                .await?;
            return Ok(json!({ "row": ended["row"] }));
        }
        Err(error) => return Err(error),
    };
    let outcome = async {
        if let Some(ended) = ended(invocation, &run, &key).await? {
            return Ok(ended);
        }
        let mut document = if run.operation == "destroy" {
            destroyed(invocation, &run, &stack, &session).await?
        } else {
            let stage = if cleaned { Stage::CleanedUp } else { Stage::Applied };
            deployed(invocation, &run, &stack, &session, stage).await?
        };
        document["execution"] = json!(run.execution);
        invocation.write_run(&run.stack_document(&key, "ended.json"), &document).await?;
        Ok(document)
    }
    .await;
    let document = session.closing(outcome).await?;
    session.clear_journal().await?;
    release_lock(invocation, &key, &run.execution, &session.nonce).await?;
    Ok(json!({ "row": document["row"] }))
}

async fn deployed(
    invocation: &Invocation,
    run: &Run,
    stack: &StackRef,
    session: &Session,
    stage: Stage,
) -> Result<Value> {
    let key = &session.key;
    let document = RunDocument::load(invocation, run).await?;
    let plan = load_plan(invocation, run, key).await?;
    let inputs = document.inputs(invocation, key).await?;
    let begun = invocation.read_run(&run.stack_document(key, "begun.json")).await?;
    let work = done(invocation, run, stack).await?;
    let mut desk = session.record().await?;
    let mut warnings = plan.warnings.clone();
    let set = set_outputs(invocation, &mut desk, session, &inputs, &plan, stage)?;
    warnings.extend(set.warnings);
    let parameters = Bound::from_document(&plan.parameters)?;
    for name in &parameters.unmatched {
        warnings.push(format!(
            "parameter `{name}`: its AllowedPattern is not understood here and was not checked"
        ));
    }
    remember(&mut desk, session, &inputs, &parameters, true);
    let from = begun["version"].as_u64().unwrap_or(9);
    let before = importable(&desk);
    let changed = desk.save().await?;
    let migrated = from < cdkd_core::state::CURRENT_VERSION;
    if migrated && !changed {
        // Saved once at its next deploy even if nothing changes (DESIGN 3).
        desk.write().await?;
    }
    // Of a stack that exports, always: what `publish` could not tell the index is told again, or told of.
    let exports = !(before.is_empty() && desk.record.importable().is_empty());
    if exports && (changed || migrated) {
        warnings.extend(invocation.index_stack(key, Some(&desk.record)).await);
    }
    let worked = work.iter().any(|step| step["operation"] != "note");
    let other = plan.publishes || plan.steps().any(|step| step.operation != Operation::Check);
    let deployed = worked || other || (changed && !migrated);
    let outcome = match stage {
        Stage::Applied if set.pending => "deletesPending",
        _ if deployed => "deployed",
        _ => "unchanged",
    };
    if deployed {
        keep_template(invocation, session, &inputs.template_document, "template.json").await?;
    }
    let mut row = row(session, outcome, &plan);
    if migrated {
        row["migrated"] = json!(format!("{from}→{}", cdkd_core::state::CURRENT_VERSION));
    }
    Ok(json!({ "row": row, "warnings": warnings, "outputs": desk.record.outputs(), "steps": work }))
}

/// What others can import of the stack as it stands in S3.
fn importable(desk: &Desk) -> Map<String, Value> {
    desk.stored.as_ref().map(Record::importable).unwrap_or_default()
}

async fn destroyed(invocation: &Invocation, run: &Run, stack: &StackRef, session: &Session) -> Result<Value> {
    let plan = load_plan(invocation, run, &session.key).await?;
    let work = done(invocation, run, stack).await?;
    let mut desk = session.record().await?;
    if !desk.record.is_empty() {
        desk.save().await?;
        return Err(Error::new(
            Code::ProvisioningFailed,
            format!("{} resources of {} are still on record", desk.record.len(), session.key),
        )
        .hint("start the execution again"));
    }
    desk.delete().await?;
    let mut warnings = plan.warnings.clone();
    warnings.extend(invocation.index_stack(&session.key, None).await);
    let settings = &invocation.settings;
    invocation
        .aws
        .store
        .purge(&settings.state_bucket, &session.key.templates(&settings.prefix), false)
        .await?;
    Ok(json!({ "row": row(session, "destroyed", &plan), "warnings": warnings, "steps": work }))
}

fn row(session: &Session, outcome: &str, plan: &Plan) -> Value {
    json!({
        "stack": session.key.stack.as_str(),
        "region": session.key.region.as_str(),
        "outcome": outcome,
        "counts": plan.counts(),
    })
}

/// What `provision` did, step by step.
pub(crate) async fn done(invocation: &Invocation, run: &Run, stack: &StackRef) -> Result<Vec<Value>> {
    let folder = run.stack_document(&stack.key()?, "done/");
    let listed = invocation.aws.store.list(&invocation.settings.runs_bucket, &folder).await?;
    let mut steps = Vec::new();
    for object in listed {
        let document = invocation.read_run(&object.key).await?;
        if document["execution"] == run.execution.as_str() {
            steps.extend(document["steps"].as_array().cloned().unwrap_or_default());
        }
    }
    Ok(steps)
}

/// What [`set_outputs`] found.
struct Set {
    warnings: Vec<String>,
    /// Whether resources or exports are left that the template no longer has.
    pending: bool,
}

/// Evaluates the outputs and puts them on the record: each under its name and, if exported, under its export name.
fn set_outputs(
    invocation: &Invocation,
    desk: &mut Desk,
    session: &Session,
    inputs: &StackInputs,
    plan: &Plan,
    stage: Stage,
) -> Result<Set> {
    let stack_id = stack_id(desk, session);
    let pseudo = inputs.pseudo(invocation, &session.key, &stack_id);
    let parameters = Bound::from_document(&plan.parameters)?;
    let conditions = template::conditions(&inputs.template, &parameters, &pseudo)?;
    let imported = Imported::from_document(&plan.imports)?;
    let published = {
        let resources = Recorded(&desk.record);
        let scope = Scope {
            template: &inputs.template,
            pseudo: &pseudo,
            parameters: &parameters,
            conditions: &conditions,
            resources: &resources,
            imports: &imported,
        };
        exports::publish(&template::outputs(&scope)?)?
    };
    let record = &mut desk.record;
    let hold: &[String] = if stage == Stage::Applied { &plan.held } else { &[] };
    handshake::supersede(record, plan.replaced.iter().map(String::as_str));
    handshake::publish(record, &published, hold.iter().map(String::as_str));
    record.migrate(&session.key);
    let wanted: BTreeSet<String> = inputs
        .template
        .resources
        .keys()
        .filter(|id| cdkd_core::plan::is_wanted(&inputs.template, &conditions, id))
        .cloned()
        .collect();
    let save = match stage {
        Stage::Applied => Save::Midway,
        Stage::CleanedUp => Save::Success { wanted: &wanted },
    };
    settle(record, &imported.reads(), save);
    let left = !record.pending_deletes().is_empty() || record.rows().any(|(id, _)| !wanted.contains(id));
    if stage == Stage::CleanedUp && !left {
        handshake::forget_superseded(record);
    }
    let given_up = record.importable().keys().any(|name| !published.export_names.contains(name));
    Ok(Set { warnings: published.warnings, pending: left || given_up })
}

fn stack_id(desk: &Desk, session: &Session) -> String {
    desk.record.deploy().map_or_else(|| session.stack_id.clone(), |deploy| deploy.stack_id)
}

/// What cdkd remembers until the next deploy.
fn remember(desk: &mut Desk, session: &Session, inputs: &StackInputs, parameters: &Bound, deployed: bool) {
    let before = desk.record.deploy().unwrap_or_default();
    desk.record.set_deploy(&Deploy {
        stack_id: stack_id(desk, session),
        deployed: deployed || before.deployed,
        parameters: parameters.stored(),
        tags: inputs.tags.clone(),
        termination_protection: inputs.termination_protection,
    });
}

/// Keeps the template beside the record, intrinsics and tokens untouched.
pub(crate) async fn keep_template(
    invocation: &Invocation,
    session: &Session,
    template: &Value,
    name: &str,
) -> Result<()> {
    let settings = &invocation.settings;
    let place = format!("{}{name}", session.key.templates(&settings.prefix));
    let body = serde_json::to_vec_pretty(template).unwrap_or_default();
    invocation.aws.store.put(&settings.state_bucket, &place, body, Condition::Always).await?;
    invocation.aws.store.purge(&settings.state_bucket, &place, true).await
}
