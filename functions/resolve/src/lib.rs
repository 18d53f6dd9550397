//! `cdkd-resolve`: parameters, conditions, references, and the difference from what is on record: the plan.
//!
//! | payload | does |
//! |---|---|
//! | `{action: "prepare", run, stacks}` | plans the whole run, and refuses what others forbid before anything is touched |
//! | `{run, stack}` | plans one stack; what it is about to do to its references stands in its record before it looks at others |
//! | `{run, stacks}` in a dry run | the plans of all stacks |
//!
//! The plan lies in the runs bucket as `plan.json` (stored form: it holds no secret) and is read by `provision`.

mod intent;
mod prepare;
mod stack;

use cdkd_aws::edge::Invocation;
use cdkd_aws::references::View;
use cdkd_aws::run::RunDocument;
use cdkd_aws::stack::{Run, StackRef};
use cdkd_core::name::RecordKey;
use cdkd_core::plan::{self, Plan};
use cdkd_core::references::forecast::Forecast;
use cdkd_core::state::Record;
use cdkd_core::{Code, Error, Result};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::intent::Intent;
use crate::prepare::{Outlook, Prepared};
use crate::stack::{Stack, document, on_record};

/// Items of a list that an answer tells; the result has all (rule F8).
const TOLD: usize = 20;

#[derive(Deserialize)]
#[serde(untagged)]
enum Event {
    Prepare { action: Action, run: Run, stacks: Vec<StackRef> },
    One { run: Run, stack: StackRef },
    DryRun { run: Run, stacks: Vec<StackRef> },
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
enum Action {
    Prepare,
}

/// See `docs/contracts.md` for payloads and answers.
pub async fn handle(event: Value, invocation: Invocation) -> Result<Value> {
    let event: Event = serde_json::from_value(event).map_err(|error| {
        Error::new(Code::InvalidInput, format!("the payload of resolve: {error}"))
            .hint("it has `run` and `stack` or `stacks`; `action`, if there is one, is prepare")
    })?;
    match event {
        Event::Prepare { action: Action::Prepare, run, stacks } => {
            if run.operation == "destroy" {
                prepare::destroy(&invocation, &run, &stacks).await?;
            } else {
                prepare::deploy(&invocation, &run, &stacks).await?;
            }
            Ok(json!({}))
        }
        Event::One { run, stack } if run.operation == "destroy" => destroy(&invocation, &run, &stack).await,
        Event::One { run, stack } => Box::pin(deploy(&invocation, &run, &stack)).await,
        Event::DryRun { run, stacks } => dry_run(&invocation, &run, &stacks).await,
    }
}

async fn destroy(invocation: &Invocation, run: &Run, stack: &StackRef) -> Result<Value> {
    let key = stack.key()?;
    let (of_run, prepared, record) = futures::try_join!(
        RunDocument::load(invocation, run),
        Prepared::load(invocation, run),
        Box::pin(on_record(invocation, run, &key)),
    )?;
    let mut plan = plan::destroy(&key, &record.root.unwrap_or_else(|| Record::new(&key)), &of_run.retain())?;
    plan.warnings.extend(prepared.of(&key).warnings);
    let file = document(&plan, run, Value::Null);
    write(invocation, run, plan, file).await
}

async fn deploy(invocation: &Invocation, run: &Run, stack: &StackRef) -> Result<Value> {
    let key = stack.key()?;
    let (of_run, prepared) =
        futures::try_join!(RunDocument::load(invocation, run), Prepared::load(invocation, run))?;
    let loaded = Stack::load(invocation, run, &key, &of_run).await?;
    // What other stacks of the run publish is on record by now, or they come later.
    let view = View::new(invocation);
    let imported = view.import(&key, &loaded.reads, &Forecast::default(), &prepared.given_up).await?;
    let mut planned = loaded.plan(imported)?;
    let of_stack = prepared.of(&key);
    let mut given_up = planned.given_up(&key);
    given_up.extend(prepared.given_up.iter().cloned());
    for part in planned.parts.values_mut() {
        part.difference.withdrawn.retain(|withdrawal| !of_stack.held.contains(&withdrawal.name));
    }
    planned.plan.held = of_stack.held;
    planned.plan.warnings.extend(of_stack.warnings);
    let stacks = of_run.stacks()?;
    if !loaded.is_idle(&planned, changes(&planned.plan)) {
        let intent = Intent {
            imported: &planned.imported,
            parts: &planned.parts,
            nested: &planned.plan.nested,
            given_up: &given_up,
            stacks: &stacks,
        };
        if stacks.len() == 1 {
            intent.look_ahead(invocation, &key).await?;
        }
        let looked = intent.carry_out(invocation, run, stack).await?;
        planned.plan.warnings.extend(looked.warnings);
        planned.plan.replaced = looked.replaced;
    }
    let file = planned.to_document(run);
    write(invocation, run, planned.plan, file).await
}

fn changes(plan: &Plan) -> bool {
    !(plan.applies.is_empty() && plan.deletes.is_empty())
}

/// Lays the plan out, and answers `{outcome, applies, deletes, held}`.
async fn write(invocation: &Invocation, run: &Run, mut plan: Plan, file: Value) -> Result<Value> {
    let place = run.stack_document(&plan.key, "plan.json");
    if let Some(earlier) = invocation.write_run_once(&place, &file).await? {
        if earlier["execution"] == file["execution"] {
            // The first plan of a run is its plan: one that comes late was made of what the run has changed already,
            // and a rollback goes back to what the plan calls before.
            plan = Plan::from_document(&earlier)?;
        } else {
            // An execution of the other state machine that had the same name.
            invocation.write_run(&place, &file).await?;
        }
    }
    let outcome = if changes(&plan) || plan.publishes { "changes" } else { "unchanged" };
    Ok(json!({
        "outcome": outcome,
        "applies": plan.applies.len(),
        "deletes": plan.deletes.len(),
        "held": !(plan.held.is_empty() && plan.replaced.is_empty()),
    }))
}

/// `{answer}`: the plans of all stacks, each as if those before it were deployed. Nothing is locked or recorded.
async fn dry_run(invocation: &Invocation, run: &Run, stacks: &[StackRef]) -> Result<Value> {
    let of_run = RunDocument::load(invocation, run).await?;
    let keys = stacks.iter().map(StackRef::key).collect::<Result<Vec<RecordKey>>>()?;
    let mut outlook = Outlook::new(invocation, run, &of_run, keys).await?;
    outlook.warn().await;
    let (mut rows, mut plans, mut warnings) = (Vec::new(), Vec::new(), of_run.warnings());
    for (stack, planned) in &outlook.stacks {
        let file = planned.to_document(run);
        invocation.write_run(&run.stack_document(&stack.key, "plan.json"), &file).await?;
        rows.push(json!({
            "stack": stack.key.stack.as_str(),
            "region": stack.key.region.as_str(),
            "outcome": "planned",
            "counts": planned.plan.counts(),
        }));
        warnings.extend(planned.plan.warnings.iter().cloned());
        plans.push(file);
    }
    let result = run.document("result.json");
    let told = |list: &[String]| list.iter().take(TOLD).cloned().collect::<Vec<_>>();
    let notices = of_run.notices();
    let answer = json!({
        "outcome": "planned",
        "stacks": rows,
        "notices": told(&notices),
        "warnings": told(&warnings),
        "result": result,
    });
    let mut whole = Map::new();
    whole.insert("run".into(), json!(run));
    whole.insert("answer".into(), answer.clone());
    whole.insert("outcome".into(), json!("planned"));
    whole.insert("stacks".into(), json!(rows));
    whole.insert("notices".into(), json!(notices));
    whole.insert("warnings".into(), json!(warnings));
    whole.insert("plans".into(), json!(plans));
    invocation.write_run(&result, &Value::Object(whole)).await?;
    Ok(json!({ "answer": answer }))
}
