//! What a step does: the template decides again with what is known now, then calls are made until the resource is
//! as it says.

use cdkd_aws::references::Imported;
use cdkd_core::error::Place;
use cdkd_core::name::LogicalId;
use cdkd_core::plan::{self, Engine as Carrier, Recorded, Verdict};
use cdkd_core::protocol::journal::{Change, Operation};
use cdkd_core::schema::{self, NameSeed, Part, TypeSchema};
use cdkd_core::state::tree::{NESTED, is_unfinished, parts};
use cdkd_core::state::{PendingDelete, Row};
use cdkd_core::template::{DeletionPolicy, Known, Resource, Stack, Tree};
use cdkd_core::value::{Node, Reason};
use cdkd_core::{Code, Error, Result};
use indexmap::IndexMap;
use serde_json::{Map, Value};

use crate::engine::{End, Engine, Request};

/// What the templates of the stack, and of those nested in it, are evaluated with.
pub(crate) struct Deploy<'d> {
    pub tree: &'d Tree<'d>,
    /// Of every resource, by id, inside its own stack.
    pub needs: IndexMap<String, Vec<String>>,
    /// `AWS::StackId` of each nested stack, by path.
    pub nested: &'d IndexMap<String, String>,
    pub imports: &'d Imported,
}

/// What a resource is to be.
struct Target<'a> {
    /// With the way to it, if it is in a nested stack.
    logical_id: &'a str,
    type_name: &'a str,
    carrier: Carrier,
    schema: TypeSchema,
    /// Stored form, tags of the stack included, names and marks of ours not.
    desired: Value,
    dependencies: Vec<String>,
    deletion_policy: Option<&'static str>,
    update_replace_policy: Option<&'static str>,
}

impl Deploy<'_> {
    /// Brings one resource to what the template says.
    pub async fn apply(&self, engine: &Engine, logical_id: &str) -> Result<(End, &'static str)> {
        if engine.settle(logical_id).await? == End::Later {
            return Ok((End::Later, "wait"));
        }
        let (stack, resource) = self.tree.resource(logical_id).ok_or_else(|| {
            Error::new(
                Code::InternalError,
                format!("the plan has a step for `{logical_id}`, the template does not"),
            )
        })?;
        if self.tree.stack(logical_id).is_ok() {
            return self.nested(engine, logical_id, resource).await;
        }
        let target = self.target(engine, logical_id, stack, resource)?;
        let row = engine.record.borrow().row(logical_id);
        match row {
            None => Ok((create(engine, stack, &target, None).await?, "create")),
            Some(row) if row.resource_type() != target.type_name => {
                Ok((create(engine, stack, &target, Some(&row)).await?, "replace"))
            }
            Some(row) => {
                let verdict =
                    plan::verdict(target.carrier, &target.schema, &row.properties(), &target.desired);
                self.change(engine, &target, (stack, resource), &row, verdict).await
            }
        }
    }

    async fn change(
        &self,
        engine: &Engine,
        target: &Target<'_>,
        (stack, resource): (&Stack<'_>, &Resource),
        row: &Row,
        verdict: Verdict,
    ) -> Result<(End, &'static str)> {
        match verdict {
            Verdict::Same if plan::differs_on_record(row, resource, &target.dependencies) => {
                let put = Change::Put { logical_id: target.logical_id.to_owned(), row: target.row(row) };
                engine.change(vec![put]).await?;
                Ok((End::Done, "note"))
            }
            Verdict::Same => Ok((End::Done, "same")),
            Verdict::Update { .. } => match update(engine, target, row).await {
                Err(error) if not_updatable(&error) => {
                    // Only the service knew (conditionalCreateOnly): it takes a new one.
                    plan::check_identity(&target.schema, row, &target.desired, &[]).map_err(|_| error)?;
                    Ok((replace(engine, stack, target, row).await?, "replace"))
                }
                other => Ok((other?, "update")),
            },
            Verdict::Replace { because } => {
                plan::check_identity(&target.schema, row, &target.desired, &because)?;
                Ok((replace(engine, stack, target, row).await?, "replace"))
            }
        }
    }

    /// The row of a nested stack, once what is in it is as its template says: what it was given, and its outputs.
    async fn nested(&self, engine: &Engine, path: &str, resource: &Resource) -> Result<(End, &'static str)> {
        let stack_id = self.nested.get(path).ok_or_else(|| {
            Error::new(Code::InternalError, format!("the plan has no id for the nested stack `{path}`"))
        })?;
        let before = engine.record.borrow().row(path).filter(|row| !is_unfinished(row));
        let mut row = before.clone().unwrap_or_else(|| Row::new(NESTED, stack_id));
        {
            let record = engine.record.borrow();
            let known = Known { resources: &Recorded(&record), imports: self.imports };
            let place = Place::stack(engine.session.key.stack.as_str()).at(path);
            let stored = |node: Node| node.stored().map_err(|reason| not_known(&reason).place(&place));
            let desired = stored(self.tree.properties(path, known)?)?;
            if desired != row.properties() {
                row.set_properties(desired);
            }
            let outputs = self.tree.attributes(path, known)?;
            let outputs = outputs.into_iter().map(|(name, value)| Ok((name, stored(value)?)));
            row.set_attributes(outputs.collect::<Result<_>>()?);
        }
        row.set_dependencies(self.needs.get(path).map(Vec::as_slice).unwrap_or_default());
        row.set_policy("deletionPolicy", resource.deletion_policy.map(DeletionPolicy::name));
        row.set_policy("updateReplacePolicy", resource.update_replace_policy.map(DeletionPolicy::name));
        if before.as_ref() == Some(&row) {
            return Ok((End::Done, "same"));
        }
        engine.change(vec![Change::Put { logical_id: path.to_owned(), row }]).await?;
        Ok((End::Done, if before.is_some() { "update" } else { "create" }))
    }

    fn target<'a>(
        &self,
        engine: &Engine,
        logical_id: &'a str,
        stack: &Stack<'_>,
        resource: &'a Resource,
    ) -> Result<Target<'a>> {
        let (carrier, schema) = plan::engine(&resource.type_name)?;
        let record = engine.record.borrow();
        let known = Known { resources: &Recorded(&record), imports: self.imports };
        let (path, own) = parts(logical_id);
        let place = Place::stack(stack.key.stack.as_str()).at(own);
        let desired = self.tree.properties(logical_id, known)?;
        let desired = desired.stored().map_err(|reason| not_known(&reason).place(&place))?;
        let tags = self.tree.tags(path, known)?;
        let mut desired = plan::with_stack_tags(&schema, desired, &tags);
        schema::coerce(&schema, &mut desired);
        Ok(Target {
            logical_id,
            type_name: &resource.type_name,
            carrier,
            schema,
            desired,
            dependencies: self.needs.get(logical_id).cloned().unwrap_or_default(),
            deletion_policy: resource.deletion_policy.map(DeletionPolicy::name),
            update_replace_policy: resource.update_replace_policy.map(DeletionPolicy::name),
        })
    }
}

impl Target<'_> {
    /// The row with what the record knows beside the properties.
    fn row(&self, before: &Row) -> Row {
        let mut row = before.clone();
        row.set_dependencies(&self.dependencies);
        row.set_policy("deletionPolicy", self.deletion_policy);
        row.set_policy("updateReplacePolicy", self.update_replace_policy);
        row
    }

    /// The row as it will be with the desired properties.
    fn after(&self, before: &Row) -> Row {
        let mut row = self.row(before);
        row.set_properties(self.desired.clone());
        row.set_text("provisionedBy", "cc-api");
        row
    }
}

fn not_known(reason: &Reason) -> Error {
    Error::new(Code::InternalError, format!("a property is still not known when its turn comes: {reason}"))
}

fn not_updatable(error: &Error) -> bool {
    error.details().get("awsCode").and_then(Value::as_str) == Some("NotUpdatable")
}

/// By what a row is called to Cloud Control. Rows of another tool's own code hold CloudFormation's physical id.
pub(crate) fn identifiers(row: &Row) -> Vec<(String, String)> {
    if row.own("parts").is_none()
        && let Some(parts) = schema::expand(row.resource_type(), &row.properties())
    {
        return parts
            .into_iter()
            .filter_map(|part| Some((part.type_name.to_owned(), part.identifier?)))
            .collect();
    }
    if row.text("provisionedBy") == Some("sdk")
        && let Some(schema) = schema::lookup(row.resource_type())
        && let Some(identifier) = schema::identifier(&schema, &row.model())
    {
        return vec![(row.resource_type().to_owned(), identifier)];
    }
    row.things()
}

/// Makes a resource; of an expanded type, its parts. `old`: what it takes the place of, to be deleted in the clean-up.
async fn create(engine: &Engine, stack: &Stack<'_>, target: &Target<'_>, old: Option<&Row>) -> Result<End> {
    let generation = generation(engine, target, old);
    let logical_id: LogicalId = parts(target.logical_id).1.parse()?;
    let settings = &engine.session.invocation.settings;
    let seed = NameSeed {
        account: &settings.account,
        region: &stack.key.region,
        stack: &stack.key.stack,
        stack_id: &stack.pseudo.stack_id,
        logical_id: &logical_id,
        generation,
    };
    let mut row = target.after(&Row::new(target.type_name, ""));
    row.set_own("generation", generation.into());
    let later = old.and_then(|old| waits_for_delete(target, old));
    if target.carrier == Carrier::Expansion {
        let physical_id =
            schema::expanded_reference(target.type_name, &seed, &target.desired).unwrap_or_default();
        row.set_physical_id(&physical_id);
        row.set_own("parts", Value::Array(Vec::new()));
        let mut changes = vec![Change::Put { logical_id: target.logical_id.to_owned(), row: pristine(&row) }];
        changes.extend(later.map(Change::Later));
        engine.change(changes).await?;
        return update(engine, target, &pristine(&row)).await;
    }
    let mut body = target.desired.clone();
    if let Some((property, name)) = schema::physical_name(&target.schema, &seed, &target.desired)
        && let Some(properties) = body.as_object_mut()
    {
        properties.insert(property, Value::String(name));
    }
    let mut then = vec![Change::Put { logical_id: target.logical_id.to_owned(), row }];
    then.extend(later.map(Change::Later));
    engine
        .call(Request {
            logical_id: target.logical_id.to_owned(),
            operation: Operation::Create,
            type_name: target.type_name.to_owned(),
            part: String::new(),
            identifier: None,
            body,
            then,
        })
        .await
}

/// An expanded row before its parts are there: until all are, its properties are none, so that a run that dies in
/// between finds it unfinished.
fn pristine(row: &Row) -> Row {
    let mut row = row.clone();
    row.set_properties(Value::Object(Map::new()));
    row
}

/// 0 for the first; one more than what it replaces, or than what still waits for its delete.
fn generation(engine: &Engine, target: &Target<'_>, old: Option<&Row>) -> u64 {
    let pending = engine.record.borrow().pending_deletes();
    let waiting = pending.iter().filter(|pending| pending.logical_id == target.logical_id).map(|p| &p.row);
    waiting.chain(old).map(|row| row.generation() + 1).max().unwrap_or(0)
}

/// What a replacement leaves to be deleted, by the policy for replacements.
fn waits_for_delete(target: &Target<'_>, old: &Row) -> Option<PendingDelete> {
    let policy = plan::deletion_policy(
        target.update_replace_policy.or(old.policy("updateReplacePolicy")),
        old.resource_type(),
        &old.properties(),
    );
    (policy == "Delete").then(|| PendingDelete { logical_id: target.logical_id.to_owned(), row: old.clone() })
}

/// Replaces a resource: create now, delete in the clean-up; or, where two cannot exist side by side, delete first.
async fn replace(engine: &Engine, stack: &Stack<'_>, target: &Target<'_>, old: &Row) -> Result<End> {
    if !target.schema.delete_then_create {
        return create(engine, stack, target, Some(old)).await;
    }
    let remove = vec![Change::Remove { logical_id: target.logical_id.to_owned() }];
    if delete_things(engine, target.logical_id, old, remove).await? == End::Later {
        return Ok(End::Later);
    }
    create(engine, stack, target, None).await
}

/// Changes a resource in place.
async fn update(engine: &Engine, target: &Target<'_>, row: &Row) -> Result<End> {
    if target.carrier == Carrier::Expansion {
        return update_parts(engine, target, row).await;
    }
    let mut before = row.properties();
    schema::coerce(&target.schema, &mut before);
    let mut patch = plan::patch(&target.schema, &before, &target.desired);
    let after = target.after(row);
    if patch.is_empty() {
        engine.change(vec![Change::Put { logical_id: target.logical_id.to_owned(), row: after }]).await?;
        return Ok(End::Done);
    }
    keep_marks(engine, target, row, &mut patch);
    let identifier = identifiers(row).into_iter().next().map(|(_, identifier)| identifier);
    engine
        .call(Request {
            logical_id: target.logical_id.to_owned(),
            operation: Operation::Update,
            type_name: target.type_name.to_owned(),
            part: String::new(),
            identifier,
            body: Value::Array(patch),
            then: vec![Change::Put { logical_id: target.logical_id.to_owned(), row: after }],
        })
        .await
}

/// A patch of the tags keeps the marks of the create, by which the resource is found.
fn keep_marks(engine: &Engine, target: &Target<'_>, row: &Row, patch: &mut [Value]) {
    let Some(tagging) = &target.schema.tagging else { return };
    let pointer = format!("/{}", tagging.property.top());
    for operation in patch.iter_mut().filter(|operation| operation["path"] == pointer.as_str()) {
        let mut properties = Map::new();
        properties.insert(tagging.property.top().to_owned(), operation["value"].clone());
        let token = row.own("token").and_then(Value::as_str).unwrap_or("-");
        let stack = engine.session.key.stack.as_str();
        let marked = plan::mark(&target.schema, Value::Object(properties), stack, target.logical_id, token);
        operation["value"] = marked[tagging.property.top()].clone();
    }
}

/// Brings the parts of an expanded resource to what they are to be: make and change first, delete last. The row's
/// properties change with the last call, so that a run that dies in between does it again.
async fn update_parts(engine: &Engine, target: &Target<'_>, row: &Row) -> Result<End> {
    let wanted = schema::expand(target.type_name, &target.desired).unwrap_or_default();
    let before = schema::expand(target.type_name, &row.properties()).unwrap_or_default();
    let there = identifiers(row);
    let put = |row: Row| vec![Change::Put { logical_id: target.logical_id.to_owned(), row }];
    let now = || engine.record.borrow().row(target.logical_id).unwrap_or_else(|| row.clone());
    for part in &wanted {
        let known = there.iter().any(|(type_name, identifier)| {
            type_name == part.type_name && Some(identifier) == part.identifier.as_ref()
        });
        let call = if known {
            let Some(call) = update_part(target, part, &before, now()) else { continue };
            call
        } else {
            part_call(target, part, Operation::Create, part.desired.clone(), put(now()))
        };
        if engine.call(call).await? == End::Later {
            return Ok(End::Later);
        }
    }
    for (type_name, identifier) in &there {
        let kept = wanted
            .iter()
            .any(|part| part.type_name == type_name && part.identifier.as_ref() == Some(identifier));
        if kept {
            continue;
        }
        let mut without = now();
        without.remove_part(identifier, type_name);
        let end = delete_one(engine, target.logical_id, type_name, identifier, put(without)).await?;
        if end == End::Later {
            return Ok(End::Later);
        }
    }
    let mut after = target.after(&now());
    if let Some(physical_id) = policy_name(target) {
        after.set_physical_id(&physical_id);
    }
    engine.change(put(after)).await?;
    Ok(End::Done)
}

/// `Ref` of an `AWS::IAM::Policy` is its name, which may change in place here.
fn policy_name(target: &Target<'_>) -> Option<String> {
    (target.type_name == "AWS::IAM::Policy")
        .then(|| target.desired.get("PolicyName").and_then(Value::as_str).map(str::to_owned))
        .flatten()
}

fn update_part(target: &Target<'_>, part: &Part, before: &[Part], row: Row) -> Option<Request> {
    let schema = schema::lookup(part.type_name)?;
    let nothing = Value::Object(Map::new());
    let old = before.iter().find(|old| old.key == part.key).map_or(&nothing, |old| &old.desired);
    let patch: Vec<Value> = plan::patch(&schema, old, &part.desired)
        .into_iter()
        // What names a part is the same, or it would be another one.
        .filter(|operation| {
            !schema.create_only.iter().any(|fixed| operation["path"] == format!("/{}", fixed.top()))
        })
        .collect();
    if patch.is_empty() {
        return None;
    }
    let then = vec![Change::Put { logical_id: target.logical_id.to_owned(), row }];
    Some(part_call(target, part, Operation::Update, Value::Array(patch), then))
}

fn part_call(
    target: &Target<'_>,
    part: &Part,
    operation: Operation,
    body: Value,
    then: Vec<Change>,
) -> Request {
    Request {
        logical_id: target.logical_id.to_owned(),
        operation,
        type_name: part.type_name.to_owned(),
        part: part.key.clone(),
        identifier: if operation == Operation::Create { None } else { part.identifier.clone() },
        body,
        then,
    }
}

/// Deletes all that a row stands for; the changes `then` take place with the last.
pub(crate) async fn delete_things(
    engine: &Engine,
    logical_id: &str,
    row: &Row,
    then: Vec<Change>,
) -> Result<End> {
    if row.resource_type() == NESTED {
        engine.change(then).await?;
        return Ok(End::Done);
    }
    let mut things = identifiers(row);
    let Some(last) = things.pop() else {
        engine.change(then).await?;
        return Ok(End::Done);
    };
    let on_record =
        |row: &Row| engine.record.borrow().row(logical_id).is_some_and(|known| known.is_same_thing(row));
    for (type_name, identifier) in things {
        let then = if on_record(row) {
            let mut without = engine.record.borrow().row(logical_id).unwrap_or_else(|| row.clone());
            without.remove_part(&identifier, &type_name);
            vec![Change::Put { logical_id: logical_id.to_owned(), row: without }]
        } else {
            Vec::new()
        };
        if delete_one(engine, logical_id, &type_name, &identifier, then).await? == End::Later {
            return Ok(End::Later);
        }
    }
    delete_one(engine, logical_id, &last.0, &last.1, then).await
}

async fn delete_one(
    engine: &Engine,
    logical_id: &str,
    type_name: &str,
    identifier: &str,
    then: Vec<Change>,
) -> Result<End> {
    engine
        .call(Request {
            logical_id: logical_id.to_owned(),
            operation: Operation::Delete,
            type_name: type_name.to_owned(),
            part: String::new(),
            identifier: Some(identifier.to_owned()),
            body: Value::Null,
            then,
        })
        .await
}

/// Brings a resource back to the row it had before a failed run.
pub(crate) async fn restore(engine: &Engine, logical_id: &str, before: &Row) -> Result<End> {
    if before.resource_type() == NESTED {
        // What is in it has been brought back by now, and so its outputs are what they were.
        engine.change(vec![Change::Put { logical_id: logical_id.to_owned(), row: before.clone() }]).await?;
        return Ok(End::Done);
    }
    let (carrier, schema) = plan::engine(before.resource_type())?;
    let target = Target {
        logical_id,
        type_name: before.resource_type(),
        carrier,
        schema,
        desired: before.properties(),
        dependencies: before.dependencies(),
        deletion_policy: policy(before, "deletionPolicy"),
        update_replace_policy: policy(before, "updateReplacePolicy"),
    };
    let Some(now) = engine.record.borrow().row(logical_id) else { return Ok(End::Done) };
    if update(engine, &target, &now).await? == End::Later {
        return Ok(End::Later);
    }
    // Attributes are those of now, all else is as it was.
    let attributes = engine.record.borrow().row(logical_id).map(|row| row.attributes()).unwrap_or_default();
    let mut row = before.clone();
    row.set_attributes(attributes);
    engine.change(vec![Change::Put { logical_id: logical_id.to_owned(), row }]).await?;
    Ok(End::Done)
}

fn policy(row: &Row, field: &str) -> Option<&'static str> {
    row.policy(field).and_then(DeletionPolicy::parse).map(DeletionPolicy::name)
}
