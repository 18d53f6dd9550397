//! From template and record to steps.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};

use indexmap::IndexMap;
use serde_json::{Map, Value};

use super::recorded::{attribute, pending, reference};
use super::{
    Engine, Operation, Phase, Plan, Step, Verdict, changed, dependencies_first, fixed_identity, judge,
    nested, weights, with_stack_tags,
};
use crate::assets::table::Table;
use crate::error::{Code, Error, Place, Result};
use crate::name::RecordKey;
use crate::schema::{self, TypeSchema};
use crate::state::tree::{NESTED, is_inside, key_of, parts};
use crate::state::{Record, Row};
use crate::template::{self, Bound, Imports, Known, Pseudo, Resource, Resources, Root, Template, Tree};
use crate::value::Node;

/// All that a plan is made from.
pub struct Inputs<'a> {
    pub key: &'a RecordKey,
    pub template: &'a Template,
    pub parameters: &'a Bound,
    pub conditions: &'a IndexMap<String, bool>,
    pub pseudo: &'a Pseudo,
    pub record: &'a Record,
    /// The stack's tags.
    pub tags: &'a Map<String, Value>,
    /// What the stack reads of others.
    pub imports: &'a dyn Imports,
    /// Where its assets went.
    pub assets: &'a Table,
}

/// What a step will leave of its resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Stays,
    /// It is or may be updated: attributes that are no part of its identity may change.
    MayChange,
    /// It is created or replaced: nothing of it is known.
    New,
}

/// The resources as a run will leave them.
pub struct Foreseen<'a> {
    record: &'a Record,
    fates: RefCell<HashMap<String, Fate>>,
    /// Whether the evaluation met an attribute that may change.
    pub(super) met_change: Cell<bool>,
}

impl<'a> Foreseen<'a> {
    pub(super) fn nothing(record: &'a Record) -> Self {
        Self { record, fates: RefCell::default(), met_change: Cell::new(false) }
    }

    /// As the plan says.
    pub fn new(record: &'a Record, plan: &Plan) -> Self {
        let this = Self::nothing(record);
        for step in &plan.applies {
            this.note(&step.logical_id, step.operation);
        }
        this
    }

    fn note(&self, logical_id: &str, operation: Operation) {
        let fate = match operation {
            Operation::Create | Operation::Replace => Fate::New,
            Operation::Update | Operation::Check => Fate::MayChange,
            _ => Fate::Stays,
        };
        self.fates.borrow_mut().insert(logical_id.to_owned(), fate);
    }

    fn fate(&self, logical_id: &str) -> Fate {
        self.fates.borrow().get(logical_id).copied().unwrap_or(Fate::Stays)
    }
}

impl Resources for Foreseen<'_> {
    fn reference(&self, logical_id: &str) -> Node {
        match self.record.row(logical_id) {
            Some(row) if self.fate(logical_id) != Fate::New => reference(&row),
            _ => pending(logical_id, None),
        }
    }

    fn attribute(&self, logical_id: &str, name: &str) -> Result<Node> {
        match (self.record.row(logical_id), self.fate(logical_id)) {
            (None, _) | (_, Fate::New) => Ok(pending(logical_id, Some(name))),
            (Some(row), Fate::Stays) => attribute(logical_id, &row, name),
            (Some(row), Fate::MayChange) => {
                if !is_identity(name) {
                    self.met_change.set(true);
                }
                attribute(logical_id, &row, name)
            }
        }
    }
}

/// Attributes that an update in place never changes.
fn is_identity(attribute: &str) -> bool {
    attribute.ends_with("Arn") || attribute.ends_with("Id")
}

/// Makes the plan of a stack: pure, the same bytes for the same inputs.
///
/// # Errors
/// As [`build_tree`].
pub fn build(inputs: &Inputs<'_>) -> Result<Plan> {
    let nested = IndexMap::new();
    let tree = Tree::new(Root {
        key: inputs.key,
        template: inputs.template,
        nested: &nested,
        pseudo: inputs.pseudo,
        parameters: inputs.parameters,
        conditions: inputs.conditions,
        tags: inputs.tags,
        assets: inputs.assets,
    });
    build_tree(&tree, inputs.record, inputs.imports)
}

/// Makes the plan of a stack with those nested in it: one graph, one list of steps. `record` is that of the whole tree.
///
/// # Errors
/// All at once: types that cannot be provisioned, replacements of resources with a fixed name (P11), and whatever
/// an expression raises.
pub fn build_tree(tree: &Tree<'_>, record: &Record, imports: &dyn Imports) -> Result<Plan> {
    let own = tree.dependencies()?;
    let needs = nested::graph(tree, &own);
    let order = dependencies_first(&needs)?;
    let weights = weights(&needs, &order);
    let foresight = Foreseen::nothing(record);
    let planner = Planner { tree, record, foresight: &foresight, imports };
    let key = &tree.stack("")?.key;
    let mut applies: Vec<Step> = Vec::new();
    let mut unchanged = 0;
    let mut errors = Vec::new();
    for id in &order {
        let Some((stack, resource)) = tree.resource(id) else { continue };
        if resource.type_name == METADATA {
            continue;
        }
        let own = own.get(id).map(Vec::as_slice).unwrap_or_default();
        let step = if tree.stack(id).is_ok() {
            planner.nested(id, resource, own, applies.iter().any(|step| is_inside(&step.id, id)))
        } else {
            planner.step(id, resource, own)
        };
        match step {
            Ok(Some(mut step)) => {
                step.weight = weights.get(id).copied().unwrap_or(1);
                step.needs = needs.get(id).cloned().unwrap_or_default();
                foresight.note(id, step.operation);
                applies.push(step);
            }
            Ok(None) => unchanged += 1,
            Err(error) => errors.push(error.place(&place(&stack.key, parts(id).1))),
        }
    }
    Error::all(errors)?;

    // A step waits for steps only: what stays as it is has long been there.
    let ids: HashSet<String> = applies.iter().map(|step| step.id.clone()).collect();
    for step in &mut applies {
        step.needs.retain(|need| ids.contains(need));
    }
    let deletes = deletes_but(key, record, |id| is_wanted_in(tree, id), &[])?;
    let mut plan = Plan {
        key: key.clone(),
        parameters: tree.parameters("", Known { resources: &foresight, imports })?.to_document(),
        nested: nested::stack_ids(tree),
        applies,
        deletes,
        unchanged,
        imports: Value::Null,
        publishes: false,
        held: Vec::new(),
        replaced: Vec::new(),
        warnings: Vec::new(),
    };
    plan.warnings.extend(plan.repointed());
    Ok(plan)
}

/// What a step is made from.
pub(super) struct Planner<'p> {
    pub tree: &'p Tree<'p>,
    pub record: &'p Record,
    pub foresight: &'p Foreseen<'p>,
    pub imports: &'p dyn Imports,
}

/// Whether a row of this id stays, in a stack or in one nested in it.
pub fn is_wanted_in(tree: &Tree<'_>, id: &str) -> bool {
    tree.resource(id).is_some_and(|(stack, _)| is_wanted(stack.template, &stack.conditions, parts(id).1))
}

/// Whether a row of this logical id stays: the template has the resource and its condition holds (rule T6).
pub fn is_wanted(template: &Template, conditions: &IndexMap<String, bool>, logical_id: &str) -> bool {
    template.resources.get(logical_id).is_some_and(|resource| {
        resource.type_name != METADATA
            && resource.condition.as_ref().is_none_or(|name| conditions.get(name).copied().unwrap_or(false))
    })
}

/// Nothing to deploy; not on record either.
const METADATA: &str = "AWS::CDK::Metadata";

fn place(key: &RecordKey, logical_id: &str) -> Place {
    Place::stack(key.stack.as_str()).at(logical_id)
}

impl Planner<'_> {
    pub fn known(&self) -> Known<'_> {
        Known { resources: self.foresight, imports: self.imports }
    }

    /// The step of a resource; `own`: what it needs in its own stack.
    fn step(&self, id: &str, resource: &Resource, own: &[String]) -> Result<Option<Step>> {
        let (engine, schema) = engine(&resource.type_name)?;
        self.foresight.met_change.set(false);
        let desired = self.tree.properties(id, self.known())?;
        if let Some(secret) = desired.secrets().first() {
            return Err(Error::new(
                Code::UnsupportedIntrinsic,
                format!("the dynamic reference `{}` cannot be resolved by this release", secret.token),
            )
            .hint("deploy this stack with CloudFormation until a later release resolves secrets"));
        }
        let met_change = self.foresight.met_change.get();
        let tags = self.tree.tags(parts(id).0, self.known())?;
        let mut desired = with_stack_tags(&schema, desired.preview(), &tags);
        schema::coerce(&schema, &mut desired);
        let row = self.record.row(id);

        let repoints = row.as_ref().is_some_and(|row| {
            let moved = self.tree.assets().repoint(&row.properties());
            moved.is_some_and(|moved| verdict(engine, &schema, &moved, &desired) == Verdict::Same)
        });
        let (operation, why) = match &row {
            None => (Operation::Create, Vec::new()),
            Some(row) if row.resource_type() != resource.type_name => {
                nested::check_type(row, resource)?;
                (Operation::Replace, vec!["Type".to_owned()])
            }
            Some(row) => match verdict(engine, &schema, &row.properties(), &desired) {
                Verdict::Update { changed } => (Operation::Update, changed),
                Verdict::Replace { because } => {
                    check_identity(&schema, row, &desired, &because)?;
                    (Operation::Replace, because)
                }
                Verdict::Same if met_change => (Operation::Check, Vec::new()),
                Verdict::Same if differs_on_record(row, resource, own) => (Operation::Note, Vec::new()),
                Verdict::Same => return Ok(None),
            },
        };
        let step = self.step_of(id, resource, (engine, operation, why), desired, row)?;
        Ok(Some(Step { repoints, ..step }))
    }

    /// `how`: by what, what and why. Needs and weight are the graph's.
    pub fn step_of(
        &self,
        id: &str,
        resource: &Resource,
        (engine, operation, why): (Engine, Operation, Vec<String>),
        desired: Value,
        row: Option<Row>,
    ) -> Result<Step> {
        Ok(Step {
            id: id.to_owned(),
            stack: self.tree.stack(parts(id).0)?.key.stack.to_string(),
            logical_id: id.to_owned(),
            phase: Phase::Apply,
            operation,
            type_name: resource.type_name.clone(),
            engine,
            identifier: row.as_ref().map(|row| row.physical_id().to_owned()),
            policy: Some(deletion_policy(
                resource.deletion_policy.map(template::DeletionPolicy::name),
                &resource.type_name,
                &desired,
            )),
            desired,
            before: row,
            why,
            needs: Vec::new(),
            weight: 1,
            repoints: false,
        })
    }
}

/// What carries a type out, and its schema (of an expanded type only the tags matter, and it has none).
///
/// # Errors
/// `UnsupportedResourceType`, naming the type.
pub fn engine(type_name: &str) -> Result<(Engine, TypeSchema)> {
    let known = schema::lookup(type_name);
    if schema::is_expanded(type_name) {
        return Ok((
            Engine::Expansion,
            TypeSchema { type_name: type_name.to_owned(), ..TypeSchema::default() },
        ));
    }
    match known {
        Some(schema) if type_name == NESTED => Ok((Engine::Nested, schema)),
        Some(schema) if schema.provisionable() => Ok((Engine::CloudControl, schema)),
        _ => {
            let hint = if type_name.starts_with("Custom::")
                || type_name == "AWS::CloudFormation::CustomResource"
            {
                "custom resources come with a later release; deploy this stack with CloudFormation until then"
            } else if known.is_some() {
                "Cloud Control has no handlers for it; deploy this stack with CloudFormation until a later release carries it"
            } else {
                "no such type is known; check its spelling"
            };
            Err(Error::new(
                Code::UnsupportedResourceType,
                format!("cdkd cannot provision the type {type_name}"),
            )
            .hint(hint)
            .detail("type", type_name))
        }
    }
}

/// Refuses types that cannot be provisioned, all at once; what a false condition leaves out may have any.
///
/// # Errors
/// `UnsupportedResourceType`, naming types and resources.
pub fn check_types(key: &RecordKey, template: &Template, conditions: &IndexMap<String, bool>) -> Result<()> {
    let wanted =
        template.resources.iter().filter(|(logical_id, _)| is_wanted(template, conditions, logical_id));
    let errors = wanted.filter_map(|(logical_id, resource)| {
        engine(&resource.type_name).err().map(|error| error.place(&place(key, logical_id)))
    });
    Error::all(errors.collect())
}

/// Compares by the type's schema; an expanded resource changes in place, part by part.
pub fn verdict(engine: Engine, schema: &TypeSchema, before: &Value, desired: &Value) -> Verdict {
    match engine {
        Engine::CloudControl => judge(schema, before, desired),
        Engine::Expansion => in_place(changed(before, desired)),
        Engine::Nested => in_place(changed(&nested::compared(before), &nested::compared(desired))),
    }
}

fn in_place(changed: Vec<String>) -> Verdict {
    if changed.is_empty() { Verdict::Same } else { Verdict::Update { changed } }
}

/// Refuses a replacement whose fixed name does not change (P11).
pub fn check_identity(schema: &TypeSchema, row: &Row, desired: &Value, because: &[String]) -> Result<()> {
    let fixed = fixed_identity(schema, &row.properties(), desired);
    if fixed.is_empty() {
        return Ok(());
    }
    Err(Error::new(
        Code::CustomNamedResourceReplacement,
        format!(
            "a change of {} replaces this {}, but its {} is fixed, so the new one cannot exist beside the old one",
            because.join(", "),
            schema.type_name,
            fixed.join(" and "),
        ),
    )
    .hint(format!("change {} as well, or take it out of the template so that cdkd names the resource", fixed.join(" or ")))
    .detail("type", schema.type_name.as_str())
    .detail("because", because.to_vec())
    .detail("fixed", fixed))
}

/// Whether dependencies or policies on record are not the template's.
pub fn differs_on_record(row: &Row, resource: &Resource, needs: &[String]) -> bool {
    let policy = |policy: Option<template::DeletionPolicy>| policy.map(template::DeletionPolicy::name);
    row.dependencies() != needs
        || row.policy("deletionPolicy") != policy(resource.deletion_policy)
        || row.policy("updateReplacePolicy") != policy(resource.update_replace_policy)
}

/// The effective policy: the template's, else CloudFormation's default for the type (P12).
pub fn deletion_policy(given: Option<&str>, type_name: &str, properties: &Value) -> String {
    let default = || match schema::default_deletion_policy(type_name, properties) {
        schema::DefaultDeletion::Snapshot => "Snapshot",
        schema::DefaultDeletion::Delete => "Delete",
    };
    given.unwrap_or_else(default).to_owned()
}

/// Deletes of rows that are not `wanted` any more and of what waits for its delete, dependents first.
pub fn deletes(key: &RecordKey, record: &Record, wanted: impl Fn(&str) -> bool) -> Result<Vec<Step>> {
    deletes_but(key, record, wanted, &[])
}

/// The same, with logical ids to retain, of nested stacks too, whatever their policy.
pub(super) fn deletes_but(
    key: &RecordKey,
    record: &Record,
    wanted: impl Fn(&str) -> bool,
    retain: &[String],
) -> Result<Vec<Step>> {
    let mut gone: IndexMap<String, (String, Row)> = record
        .rows()
        .filter(|(logical_id, _)| !wanted(logical_id))
        .map(|(logical_id, row)| (logical_id.to_owned(), (logical_id.to_owned(), row)))
        .collect();
    for (number, pending) in record.pending_deletes().into_iter().enumerate() {
        // A thing that a row holds again is in use (rules P8, P11).
        if record.rows().any(|(_, row)| row.is_same_thing(&pending.row)) {
            continue;
        }
        gone.insert(format!("{}#{number}", pending.logical_id), (pending.logical_id, pending.row));
    }
    let is_kept = |logical_id: &str| retain.iter().any(|kept| kept == parts(logical_id).1);
    let stays = |id: &str, row: &Row| is_kept(id) || !is_deleted(row);
    nested::keep_retained(&mut gone, stays);
    let needs = nested::before_delete(record, &gone);
    // A circle on record must not make a stack undeletable: then the order of record is used backwards.
    let order = dependencies_first(&needs).unwrap_or_else(|_| needs.keys().cloned().collect());
    let weights = weights(&needs, &order);
    let mut steps = Vec::new();
    for id in order.iter().rev() {
        let Some((logical_id, row)) = gone.get(id) else { continue };
        let kept = is_kept(logical_id);
        let policy = if kept { "Retain".to_owned() } else { policy_of(row) };
        let operation = if kept || !is_deleted(row) { Operation::Retain } else { Operation::Delete };
        let (engine, _) =
            engine(row.resource_type()).map_err(|error| error.place(&place(key, logical_id)))?;
        steps.push(Step {
            id: id.clone(),
            stack: key_of(key, parts(logical_id).0).stack.to_string(),
            logical_id: logical_id.clone(),
            phase: Phase::CleanUp,
            operation,
            type_name: row.resource_type().to_owned(),
            engine,
            identifier: Some(row.physical_id().to_owned()),
            desired: Value::Null,
            before: Some(row.clone()),
            why: Vec::new(),
            repoints: false,
            // Dependents go first.
            needs: needs
                .iter()
                .filter(|(_, list)| list.contains(id))
                .map(|(other, _)| other.clone())
                .collect(),
            weight: weights.get(id).copied().unwrap_or(1),
            policy: Some(policy),
        });
    }
    Ok(steps)
}

/// The effective deletion policy of a row.
fn policy_of(row: &Row) -> String {
    deletion_policy(row.policy("deletionPolicy"), row.resource_type(), &row.properties())
}

fn is_deleted(row: &Row) -> bool {
    matches!(policy_of(row).as_str(), "Delete" | "RetainExceptOnCreate")
}

/// The plan of a destroy: every row but those to retain, and all that waits for its delete.
pub fn destroy(key: &RecordKey, record: &Record, retain: &[String]) -> Result<Plan> {
    let deletes = deletes_but(key, record, |_| false, retain)?;
    Ok(Plan {
        key: key.clone(),
        parameters: Bound::default().to_document(),
        nested: IndexMap::new(),
        applies: Vec::new(),
        deletes,
        unchanged: 0,
        imports: Value::Null,
        publishes: false,
        held: Vec::new(),
        replaced: Vec::new(),
        warnings: Vec::new(),
    })
}
