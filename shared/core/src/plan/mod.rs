//! What a run will do: steps in the order of their dependencies, from the difference of template and record.

mod build;
mod diff;
mod nested;
mod order;
mod recorded;
mod tags;
#[cfg(test)]
mod tests;

pub use build::{
    Foreseen, Inputs, build, build_tree, check_identity, check_types, deletes, deletion_policy, destroy,
    differs_on_record, engine, is_wanted, is_wanted_in, verdict,
};
pub use diff::{Verdict, changed, fixed_identity, judge, patch};
pub use nested::{new_stack_id, undone_before};
pub use order::{dependencies_first, weights};
pub use recorded::Recorded;
pub use tags::{mark, with_stack_tags};

use indexmap::IndexMap;
use serde_json::{Value, json};

use crate::error::{Code, Error, Result};
use crate::name::RecordKey;
use crate::state::{PendingDelete, Row};

/// How many resources a warning names.
const TOLD: usize = 10;

/// What a step does to its resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    Create,
    Update,
    /// Create the new one now, delete the old one in the clean-up.
    Replace,
    /// Nothing is known to change; something it is built on may.
    Check,
    /// Only the record changes: dependencies or policies.
    Note,
    Delete,
    /// It leaves the record; the resource stays.
    Retain,
}

impl Operation {
    const ALL: [Self; 7] =
        [Self::Create, Self::Update, Self::Replace, Self::Check, Self::Note, Self::Delete, Self::Retain];

    pub fn name(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Update => "update",
            Self::Replace => "replace",
            Self::Check => "check",
            Self::Note => "note",
            Self::Delete => "delete",
            Self::Retain => "retain",
        }
    }
}

/// When a step takes place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    Apply,
    CleanUp,
}

/// What carries a step out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    CloudControl,
    /// Cloud Control, part by part.
    Expansion,
    /// No call: a nested stack is its resources, which have steps of their own.
    Nested,
}

impl Engine {
    const ALL: [Self; 3] = [Self::CloudControl, Self::Expansion, Self::Nested];

    fn name(self) -> &'static str {
        match self {
            Self::CloudControl => "cloudControl",
            Self::Expansion => "expansion",
            Self::Nested => "nested",
        }
    }
}

/// One unit of plan, schedule, journal and rollback.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// Unique in its plan: the logical id, or `LogicalId#n` for one of the things that wait for their delete.
    pub id: String,
    /// The stack or nested stack that it belongs to.
    pub stack: String,
    /// With the way to it, if it is in a nested stack: `Child~Queue`.
    pub logical_id: String,
    pub phase: Phase,
    pub operation: Operation,
    pub type_name: String,
    pub engine: Engine,
    /// The physical id on record.
    pub identifier: Option<String>,
    /// The properties to be, with marks where something is not known yet; stored form otherwise.
    pub desired: Value,
    /// The row as it was.
    pub before: Option<Row>,
    /// Property paths that differ; of a replacement, those that force it.
    pub why: Vec<String>,
    /// Ids of steps that come first.
    pub needs: Vec<String>,
    /// The longest chain of resources that wait for this one: the critical path goes first.
    pub weight: u64,
    /// The effective deletion policy.
    pub policy: Option<String>,
    /// It changes only because assets that it refers to moved to another storage (rule A29).
    pub repoints: bool,
}

/// The plan of one stack.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    pub key: RecordKey,
    /// Bound parameters in document form.
    pub parameters: Value,
    /// `AWS::StackId` of each nested stack, by its path.
    pub nested: IndexMap<String, String>,
    /// Creates, updates, replacements, checks and notes, dependencies first.
    pub applies: Vec<Step>,
    /// Deletes, dependents first.
    pub deletes: Vec<Step>,
    /// Resources that stay as they are.
    pub unchanged: usize,
    /// What the stack reads of others, with the values, as its reader wrote it.
    pub imports: Value,
    /// Whether outputs or exports are to be published, so that others can read them.
    pub publishes: bool,
    /// Exports that stay until the clean-up, since stacks of the run import them that are deployed later.
    pub held: Vec<String>,
    /// Exports that get a new value while stacks of the run hold one that names what is to be deleted.
    pub replaced: Vec<String>,
    pub warnings: Vec<String>,
}

impl Plan {
    /// Counts by operation, for answers: `{create, update, …, unchanged}`, zeros left out.
    pub fn counts(&self) -> Value {
        let mut counts = serde_json::Map::new();
        for operation in Operation::ALL {
            let count = self.steps().filter(|step| step.operation == operation).count();
            if count > 0 {
                counts.insert(operation.name().into(), json!(count));
            }
        }
        counts.insert("unchanged".into(), json!(self.unchanged));
        Value::Object(counts)
    }

    pub fn steps(&self) -> impl Iterator<Item = &Step> {
        self.applies.iter().chain(&self.deletes)
    }

    /// What changes only because assets moved to another storage, apart from what the app changed (rule A29).
    fn repointed(&self) -> Option<String> {
        let of = |operation: Operation| {
            let steps = self.applies.iter().filter(move |step| step.repoints && step.operation == operation);
            steps.map(|step| format!("`{}`", step.id)).collect::<Vec<_>>()
        };
        let told = |list: Vec<String>, how: &str| {
            let (shown, more) = list.split_at(list.len().min(TOLD));
            let more = if more.is_empty() { String::new() } else { format!(" and {} more", more.len()) };
            (!shown.is_empty()).then(|| format!("{how}: {}{more}", shown.join(", ")))
        };
        let parts = [told(of(Operation::Update), "updated"), told(of(Operation::Replace), "replaced")];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        (!parts.is_empty()).then(|| {
            format!(
                "resources of {} change only because their assets are in another storage than at the last deploy; {}",
                self.key,
                parts.join("; ")
            )
        })
    }

    /// The plan as a document of the runs bucket.
    pub fn to_document(&self) -> Value {
        json!({
            "stack": self.key.stack.as_str(),
            "region": self.key.region.as_str(),
            "parameters": self.parameters,
            "nested": self.nested,
            "applies": self.applies.iter().map(Step::to_document).collect::<Vec<_>>(),
            "deletes": self.deletes.iter().map(Step::to_document).collect::<Vec<_>>(),
            "unchanged": self.unchanged,
            "imports": self.imports,
            "publishes": self.publishes,
            "held": self.held,
            "replaced": self.replaced,
            "counts": self.counts(),
            "warnings": self.warnings,
        })
    }

    /// Reads [`Plan::to_document`] back.
    pub fn from_document(document: &Value) -> Result<Self> {
        let bad = || Error::new(Code::InvalidState, "the plan of the run does not have the documented form");
        let text = |field: &str| document[field].as_str().ok_or_else(bad);
        let steps = |field: &str| -> Result<Vec<Step>> {
            let list = document[field].as_array().ok_or_else(bad)?;
            list.iter().map(|step| Step::from_document(step).ok_or_else(bad)).collect()
        };
        Ok(Self {
            key: RecordKey::parse(text("stack")?, text("region")?)?,
            parameters: document["parameters"].clone(),
            nested: document["nested"]
                .as_object()
                .into_iter()
                .flatten()
                .filter_map(|(path, id)| Some((path.clone(), id.as_str()?.to_owned())))
                .collect(),
            applies: steps("applies")?,
            deletes: steps("deletes")?,
            imports: document["imports"].clone(),
            publishes: document["publishes"].as_bool().unwrap_or(false),
            held: strings(&document["held"]),
            replaced: strings(&document["replaced"]),
            unchanged: document["unchanged"]
                .as_u64()
                .and_then(|n| usize::try_from(n).ok())
                .ok_or_else(bad)?,
            warnings: strings(&document["warnings"]),
        })
    }
}

impl Step {
    fn to_document(&self) -> Value {
        json!({
            "id": self.id,
            "stack": self.stack,
            "logicalId": self.logical_id,
            "phase": match self.phase { Phase::Apply => "apply", Phase::CleanUp => "cleanUp" },
            "operation": self.operation.name(),
            "type": self.type_name,
            "engine": self.engine.name(),
            "identifier": self.identifier,
            "desired": self.desired,
            "before": self.before.as_ref().map(Row::to_value),
            "why": self.why,
            "needs": self.needs,
            "weight": self.weight,
            "policy": self.policy,
            "repoints": self.repoints,
        })
    }

    fn from_document(document: &Value) -> Option<Self> {
        let text = |field: &str| document[field].as_str().map(str::to_owned);
        let (operation, engine) = (text("operation")?, text("engine")?);
        Some(Self {
            id: text("id")?,
            stack: text("stack")?,
            logical_id: text("logicalId")?,
            phase: if text("phase")? == "apply" { Phase::Apply } else { Phase::CleanUp },
            operation: Operation::ALL.into_iter().find(|known| known.name() == operation)?,
            type_name: text("type")?,
            engine: Engine::ALL.into_iter().find(|known| known.name() == engine)?,
            identifier: text("identifier"),
            desired: document["desired"].clone(),
            before: Row::from_value(&document["before"]),
            why: strings(&document["why"]),
            needs: strings(&document["needs"]),
            weight: document["weight"].as_u64()?,
            policy: text("policy"),
            repoints: document["repoints"].as_bool().unwrap_or(false),
        })
    }

    /// What a delete step deletes.
    pub fn pending(&self) -> Option<PendingDelete> {
        Some(PendingDelete { logical_id: self.logical_id.clone(), row: self.before.clone()? })
    }
}

fn strings(list: &Value) -> Vec<String> {
    list.as_array().into_iter().flatten().filter_map(|item| item.as_str().map(str::to_owned)).collect()
}
