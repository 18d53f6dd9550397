//! What a run laid out in the runs bucket for its later steps.

use cdkd_core::assets::table::Table;
use cdkd_core::name::RecordKey;
use cdkd_core::plan::Plan;
use cdkd_core::state::Record;
use cdkd_core::state::tree::key_of;
use cdkd_core::template::{self, Bound, Nested, ParameterSources, Pseudo, Root, Template, Tree, nest};
use cdkd_core::{Code, Error, Result};
use futures::{StreamExt as _, TryStreamExt as _};
use indexmap::IndexMap;
use serde::Deserialize as _;
use serde_json::{Map, Value};

use crate::edge::Invocation;
use crate::references::Imported;
use crate::stack::Run;

/// Templates that are read at once.
const IN_FLIGHT: usize = 32;

/// `run.json`: the options of the run and what the assembly says of its stacks.
pub struct RunDocument {
    document: Value,
}

/// One stack of a run: its template, and what it is evaluated with.
pub struct StackInputs {
    pub template: Template,
    /// As laid out, for the copy that is kept beside the record.
    pub template_document: Value,
    /// Those of the nested stacks, by the way to them.
    pub nested_documents: IndexMap<String, Value>,
    nested: IndexMap<String, Nested>,
    pub tags: Map<String, Value>,
    pub termination_protection: bool,
    pub notification_arns: Vec<String>,
    /// Where its assets went.
    pub assets: Table,
    parameters: Value,
}

impl RunDocument {
    pub async fn load(invocation: &Invocation, run: &Run) -> Result<Self> {
        Ok(Self { document: invocation.read_run(&run.document("run.json")).await? })
    }

    /// Whether it was laid out by this very execution: one of the other state machine may have had the same name.
    pub fn is_of(&self, run: &Run) -> bool {
        self.document["run"]["execution"] == run.execution.as_str()
    }

    /// Whether a failed apply is rolled back.
    pub fn rollback(&self) -> bool {
        self.document["rollback"].as_bool().unwrap_or(true)
    }

    /// How long a `begin` waits for another run's lock, seconds.
    pub fn lock_wait(&self) -> u64 {
        self.document["lockWaitSeconds"].as_u64().unwrap_or(0)
    }

    /// Logical ids that a destroy keeps.
    pub fn retain(&self) -> Vec<String> {
        strings(&self.document["retain"])
    }

    pub fn notices(&self) -> Vec<String> {
        strings(&self.document["notices"])
    }

    pub fn warnings(&self) -> Vec<String> {
        strings(&self.document["warnings"])
    }

    /// The stacks of the run.
    pub fn stacks(&self) -> Result<Vec<RecordKey>> {
        let list = self.document["stacks"].as_array().map(Vec::as_slice).unwrap_or_default();
        list.iter()
            .map(|stack| {
                RecordKey::parse(
                    stack["stack"].as_str().unwrap_or_default(),
                    stack["region"].as_str().unwrap_or_default(),
                )
            })
            .collect()
    }

    fn run_name(&self) -> String {
        self.document["run"]["name"].as_str().unwrap_or_default().to_owned()
    }

    /// Reads the template of one of the run's stacks, and those of the stacks nested in it.
    pub async fn inputs(&self, invocation: &Invocation, key: &RecordKey) -> Result<StackInputs> {
        let missing =
            || Error::new(Code::InvalidState, format!("the run's document says nothing of the stack {key}"));
        let list = self.document["stacks"].as_array().ok_or_else(missing)?;
        let entry = list
            .iter()
            .find(|stack| {
                stack["stack"].as_str() == Some(key.stack.as_str())
                    && stack["region"].as_str() == Some(key.region.as_str())
            })
            .ok_or_else(missing)?;
        let paths = strings(&entry["nested"]);
        let reads = paths.iter().map(|path| async move {
            invocation.read_run(&template_place(&self.run_name(), &key_of(key, path))).await
        });
        let (template_document, nested) = futures::try_join!(
            invocation.read_run(entry["template"].as_str().ok_or_else(missing)?),
            futures::stream::iter(reads).buffered(IN_FLIGHT).try_collect::<Vec<Value>>(),
        )?;
        let parse = |document: &Value, key: &RecordKey| {
            Template::parse(&serde_json::to_vec(document).unwrap_or_default(), key.stack.as_str())
        };
        let template = parse(&template_document, key)?;
        let nested_documents: IndexMap<String, Value> = paths.into_iter().zip(nested).collect();
        let templates = nested_documents
            .iter()
            .map(|(path, document)| Ok((path.clone(), parse(document, &key_of(key, path))?)))
            .collect::<Result<Vec<_>>>()?;
        Ok(StackInputs {
            template,
            template_document,
            nested: nest(templates),
            nested_documents,
            tags: entry["tags"].as_object().cloned().unwrap_or_default(),
            termination_protection: entry["terminationProtection"].as_bool().unwrap_or(false),
            notification_arns: strings(&entry["notificationArns"]),
            assets: entry.get("assets").map_or_else(|| Ok(Table::default()), table)?,
            parameters: entry["parameters"].clone(),
        })
    }
}

fn table(document: &Value) -> Result<Table> {
    Table::deserialize(document).map_err(|error| {
        Error::new(
            Code::InvalidState,
            format!("what the run's document says of assets has another form: {error}"),
        )
    })
}

/// Where the template of a stack, or of a nested one, lies in the runs bucket.
pub fn template_place(run: &str, key: &RecordKey) -> String {
    format!("runs/{run}/templates/{}/{}.json", key.region, key.stack)
}

/// What the templates of a stack, and of those nested in it, are evaluated with.
pub struct Ground<'g> {
    pub key: &'g RecordKey,
    pub inputs: &'g StackInputs,
    pub pseudo: &'g Pseudo,
    pub parameters: &'g Bound,
    pub conditions: &'g IndexMap<String, bool>,
}

impl<'g> Ground<'g> {
    /// The stacks of the tree; `stack_id` gives `AWS::StackId` of the nested one at a path.
    ///
    /// # Errors
    /// As [`Tree::open`].
    pub fn tree(&self, stack_id: impl Fn(&str) -> String) -> Result<Tree<'g>> {
        let root = Root {
            key: self.key,
            template: &self.inputs.template,
            nested: &self.inputs.nested,
            pseudo: self.pseudo,
            parameters: self.parameters,
            conditions: self.conditions,
            tags: &self.inputs.tags,
            assets: &self.inputs.assets,
        };
        Tree::unread(root, stack_id)
    }
}

/// A plan, with what the templates of its stack are evaluated with when it is carried out.
pub struct Basis {
    pub plan: Plan,
    pub inputs: StackInputs,
    pub parameters: Bound,
    pub imported: Imported,
    pseudo: Pseudo,
    conditions: IndexMap<String, bool>,
}

impl Basis {
    /// `stack_id`: `AWS::StackId`.
    pub fn new(invocation: &Invocation, plan: Plan, inputs: StackInputs, stack_id: &str) -> Result<Self> {
        let pseudo = inputs.pseudo(invocation, &plan.key, stack_id);
        let parameters = Bound::from_document(&plan.parameters)?;
        let conditions = template::conditions(&inputs.template, &parameters, &pseudo)?;
        let imported = Imported::from_document(&plan.imports)?;
        Ok(Self { plan, inputs, parameters, imported, pseudo, conditions })
    }

    /// The stack with those nested in it, whose ids are those of the plan.
    pub fn tree(&self) -> Result<Tree<'_>> {
        let ground = Ground {
            key: &self.plan.key,
            inputs: &self.inputs,
            pseudo: &self.pseudo,
            parameters: &self.parameters,
            conditions: &self.conditions,
        };
        ground.tree(|path| self.plan.nested.get(path).cloned().unwrap_or_default())
    }
}

impl StackInputs {
    /// Binds the parameters: run, manifest, record, default (rule T15).
    pub fn bind(&self, record: &Record) -> Result<Bound> {
        let map = |value: &Value| -> IndexMap<String, Value> {
            value
                .as_object()
                .into_iter()
                .flatten()
                .map(|(name, value)| (name.clone(), value.clone()))
                .collect()
        };
        let previous = record.deploy().map(|deploy| Value::Object(deploy.parameters)).unwrap_or_default();
        template::bind(
            &self.template,
            &ParameterSources {
                run: map(&self.parameters["run"]),
                manifest: map(&self.parameters["manifest"]),
                previous: map(&previous),
                ..ParameterSources::default()
            },
        )
    }

    /// The pseudo parameters of the stack.
    pub fn pseudo(&self, invocation: &Invocation, key: &RecordKey, stack_id: &str) -> Pseudo {
        let partition = key.region.partition();
        Pseudo {
            account: invocation.settings.account.to_string(),
            region: key.region.to_string(),
            partition: partition.name.to_owned(),
            url_suffix: partition.url_suffix.to_owned(),
            stack_name: key.stack.to_string(),
            stack_id: stack_id.to_owned(),
            notification_arns: self.notification_arns.clone(),
        }
    }
}

/// Reads the plan that `resolve` laid out.
pub async fn load_plan(invocation: &Invocation, run: &Run, key: &RecordKey) -> Result<Plan> {
    Plan::from_document(&invocation.read_run(&run.stack_document(key, "plan.json")).await?)
}

/// `AWS::StackId`: the form of CloudFormation's, with a random UUID (rule T11).
pub fn new_stack_id(invocation: &Invocation, key: &RecordKey) -> Result<String> {
    let mut bytes = crate::settings::random()?;
    // Version 4, variant 1 (RFC 9562).
    bytes[6] = (bytes[6] & 0x0f) | 0x40;
    bytes[8] = (bytes[8] & 0x3f) | 0x80;
    Ok(stack_id(invocation, key, &bytes))
}

/// What stands for the id of a stack that has none yet, in checks and dry runs: of the right form, since templates take
/// it apart.
pub fn placeholder_stack_id(invocation: &Invocation, key: &RecordKey) -> String {
    stack_id(invocation, key, &[0; 16])
}

fn stack_id(invocation: &Invocation, key: &RecordKey, bytes: &[u8; 16]) -> String {
    let hex: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let group = |range: std::ops::Range<usize>| hex.get(range).map(<[String]>::concat).unwrap_or_default();
    format!(
        "arn:{}:cloudformation:{}:{}:stack/{}/{}-{}-{}-{}-{}",
        key.region.partition().name,
        key.region,
        invocation.settings.account,
        key.stack.as_str().replace('~', "-"),
        group(0..4),
        group(4..6),
        group(6..8),
        group(8..10),
        group(10..16),
    )
}

fn strings(list: &Value) -> Vec<String> {
    list.as_array().into_iter().flatten().filter_map(|item| item.as_str().map(str::to_owned)).collect()
}
