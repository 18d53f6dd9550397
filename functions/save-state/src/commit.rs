//! `publish` and `commit`: what a stack's successful part of a run leaves behind.

use std::collections::{BTreeMap, BTreeSet};

use cdkd_aws::edge::Invocation;
use cdkd_aws::run::{Basis, RunDocument, StackInputs, load_plan};
use cdkd_aws::stack::{Desk, Run, Session, StackRef, release_lock};
use cdkd_aws::store::Condition;
use cdkd_core::name::RecordKey;
use cdkd_core::plan::{Operation, Plan, Recorded, is_wanted_in};
use cdkd_core::references::exports::{self, Published};
use cdkd_core::references::handshake;
use cdkd_core::references::imports::{Reads, Save, settle};
use cdkd_core::state::Deploy;
use cdkd_core::state::tree::key_of;
use cdkd_core::template::{Known, Tree};
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
    let session = Session::enter(invocation, run, stack).await?;
    let published = async {
        let mut desk = session.record().await?;
        let inputs = document.inputs(invocation, &key).await?;
        let basis = Basis::new(invocation, plan, inputs, &stack_id(&desk, &session))?;
        let tree = basis.tree()?;
        set_outputs(&mut desk, &tree, &basis, Stage::Applied)?;
        remember(&mut desk, &session, &tree, &basis, false)?;
        let before = importable(&desk);
        if desk.save().await? && before != importable(&desk) {
            desk.index().await;
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
    let session = match Session::enter(invocation, &run, &stack).await {
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
    session.close().await?;
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
    let basis = Basis::new(invocation, plan, inputs, &stack_id(&desk, session))?;
    let (plan, tree) = (&basis.plan, basis.tree()?);
    let mut warnings = plan.warnings.clone();
    let set = set_outputs(&mut desk, &tree, &basis, stage)?;
    warnings.extend(set.warnings);
    for name in &basis.parameters.unmatched {
        warnings.push(format!(
            "parameter `{name}`: its AllowedPattern is not understood here and was not checked"
        ));
    }
    remember(&mut desk, session, &tree, &basis, true)?;
    let from = begun["version"].as_u64().unwrap_or(9);
    let before = importable(&desk);
    let changed = desk.save().await?;
    let migrated = from < cdkd_core::state::CURRENT_VERSION;
    if migrated && !changed {
        // Saved once at its next deploy even if nothing changes (DESIGN 3).
        desk.write().await?;
    }
    // Of a stack that exports, always: what `publish` could not tell the index is told again, or told of.
    let exports = !(before.is_empty() && importable(&desk).is_empty());
    if exports && (changed || migrated) {
        warnings.extend(desk.index().await);
    }
    for path in nested_before(&begun).filter(|path| desk.own().all(|(own, _)| own != *path)) {
        forget_templates(invocation, &key_of(key, path)).await?;
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
        keep_templates(invocation, &desk, &basis.inputs, "template.json").await?;
    }
    let mut row = row(session, outcome, plan);
    if migrated {
        row["migrated"] = json!(format!("{from}→{}", cdkd_core::state::CURRENT_VERSION));
    }
    Ok(json!({ "row": row, "warnings": warnings, "outputs": desk.record.outputs(), "steps": work }))
}

/// What others can import of the stack, and of those nested in it, as it stands in S3; by path, without what exports
/// nothing.
fn importable(desk: &Desk) -> BTreeMap<String, Map<String, Value>> {
    let all = desk.all_stored().into_iter().map(|(path, record)| (path, record.importable()));
    all.filter(|(_, exports)| !exports.is_empty()).collect()
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
    warnings.extend(desk.index().await);
    let begun = invocation.read_run(&run.stack_document(&session.key, "begun.json")).await?;
    for path in std::iter::once("").chain(nested_before(&begun)) {
        forget_templates(invocation, &key_of(&session.key, path)).await?;
    }
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

/// Evaluates the outputs and puts them on the records: each under its name and, if exported, under its export name.
fn set_outputs(desk: &mut Desk, tree: &Tree<'_>, basis: &Basis, stage: Stage) -> Result<Set> {
    let (plan, imported) = (&basis.plan, &basis.imported);
    desk.sync();
    let mut parts: BTreeMap<String, (Published, Reads)> = BTreeMap::new();
    {
        let known = Known { resources: &Recorded(&desk.record), imports: imported };
        for (path, _) in tree.stacks() {
            let published = exports::publish(&tree.outputs(path, known)?)?;
            let reads = imported.of(&tree.reads(path, Known::nothing())?);
            parts.insert(path.to_owned(), (published, reads));
        }
    }
    let wanted = |id: &str| is_wanted_in(tree, id);
    let left = !desk.record.pending_deletes().is_empty() || desk.record.rows().any(|(id, _)| !wanted(id));
    let hold: &[String] = if stage == Stage::Applied { &plan.held } else { &[] };
    let mut set = Set { warnings: Vec::new(), pending: left };
    let nothing = (Published::default(), Reads::default());
    let keys: BTreeMap<String, RecordKey> =
        desk.own().map(|(path, _)| (path.to_owned(), desk.key_of(path))).collect();
    for (path, record) in desk.own_mut() {
        // One that the template lacks and that is still there publishes nothing any more.
        let (published, reads) = parts.get(path).unwrap_or(&nothing);
        handshake::supersede(record, plan.replaced.iter().map(String::as_str));
        handshake::publish(record, published, hold.iter().map(String::as_str));
        if let Some(key) = keys.get(path) {
            record.migrate(key);
        }
        // As long as anything from before is left in the tree, it may be built on what any of its stacks imported.
        let rows: BTreeSet<String> = record.rows().map(|(id, _)| id.to_owned()).collect();
        let save = match stage {
            Stage::CleanedUp if !left => Save::Success { wanted: &rows },
            _ => Save::Midway,
        };
        settle(record, reads, save);
        if stage == Stage::CleanedUp && !left {
            handshake::forget_superseded(record);
        }
        set.pending |= record.importable().keys().any(|name| !published.export_names.contains(name));
        set.warnings.extend_from_slice(&published.warnings);
    }
    Ok(set)
}

fn stack_id(desk: &Desk, session: &Session) -> String {
    desk.record.deploy().map_or_else(|| session.stack_id.clone(), |deploy| deploy.stack_id)
}

/// What cdkd remembers until the next deploy.
fn remember(
    desk: &mut Desk,
    session: &Session,
    tree: &Tree<'_>,
    basis: &Basis,
    deployed: bool,
) -> Result<()> {
    let own_id = stack_id(desk, session);
    let mut deploys: BTreeMap<String, Deploy> = BTreeMap::new();
    {
        let known = Known { resources: &Recorded(&desk.record), imports: &basis.imported };
        for (path, stack) in tree.stacks() {
            let root = path.is_empty();
            let deploy = Deploy {
                stack_id: if root { own_id.clone() } else { stack.pseudo.stack_id.clone() },
                deployed,
                parameters: tree.parameters(path, known)?.stored(),
                tags: tree.tags(path, known)?,
                termination_protection: root && basis.inputs.termination_protection,
            };
            deploys.insert(path.to_owned(), deploy);
        }
    }
    for (path, record) in desk.own_mut() {
        if let Some(mut deploy) = deploys.remove(path) {
            deploy.deployed |= record.deploy().is_some_and(|before| before.deployed);
            record.set_deploy(&deploy);
        }
    }
    Ok(())
}

/// The paths of the nested stacks that were on record when the run began.
fn nested_before(begun: &Value) -> impl Iterator<Item = &str> {
    begun["nested"].as_object().into_iter().flatten().map(|(path, _)| path.as_str())
}

/// Keeps the templates of a stack, and of those nested in it, beside their records, intrinsics and tokens untouched.
pub(crate) async fn keep_templates(
    invocation: &Invocation,
    desk: &Desk,
    inputs: &StackInputs,
    name: &str,
) -> Result<()> {
    let template = |path: &str| match path {
        "" => Some(&inputs.template_document),
        path => inputs.nested_documents.get(path),
    };
    let kept = desk.own().filter_map(|(path, _)| Some((desk.key_of(path), template(path)?)));
    let writes = kept.map(|(key, document)| async move {
        let settings = &invocation.settings;
        let place = format!("{}{name}", key.templates(&settings.prefix));
        let body = serde_json::to_vec_pretty(document).unwrap_or_default();
        invocation.aws.store.put(&settings.state_bucket, &place, body, Condition::Always).await?;
        invocation.aws.store.purge(&settings.state_bucket, &place, true).await
    });
    futures::future::try_join_all(writes).await.map(drop)
}

/// Removes the templates of a stack that is gone.
async fn forget_templates(invocation: &Invocation, key: &RecordKey) -> Result<()> {
    let settings = &invocation.settings;
    invocation.aws.store.purge(&settings.state_bucket, &key.templates(&settings.prefix), false).await
}
