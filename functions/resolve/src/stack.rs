//! The plan of one stack, made in memory.

use cdkd_aws::edge::Invocation;
use cdkd_aws::references::Imported;
use cdkd_aws::run::{RunDocument, StackInputs, placeholder_stack_id};
use cdkd_aws::stack::{Run, read_journal};
use cdkd_core::Result;
use cdkd_core::name::RecordKey;
use cdkd_core::plan::{self, Inputs, Plan};
use cdkd_core::references::exports::{self, Difference, Doomed, Listing};
use cdkd_core::references::handshake;
use cdkd_core::state::Record;
use cdkd_core::template::{self, Bound, Imports, OutputRead, Pseudo, Reads, Resources, Scope, Template};
use cdkd_core::value::{Node, Piece, Reason, Text};
use indexmap::IndexMap;
use serde_json::{Map, Value, json};

/// A stack with all that its plan is made from but what it reads of others.
pub(crate) struct Stack {
    pub key: RecordKey,
    pub reads: Reads,
    /// As the run found it; a new one if the stack is not on record.
    pub record: Record,
    on_record: bool,
    inputs: StackInputs,
    pseudo: Pseudo,
    parameters: Bound,
    conditions: IndexMap<String, bool>,
    deployed: Option<Template>,
}

/// A plan with what it makes of the stack's references.
pub(crate) struct Planned {
    pub plan: Plan,
    pub listing: Listing,
    pub difference: Difference,
    pub imported: Imported,
}

impl Stack {
    pub async fn load(
        invocation: &Invocation,
        run: &Run,
        key: &RecordKey,
        document: &RunDocument,
    ) -> Result<Self> {
        let (inputs, record, deployed) = futures::try_join!(
            Box::pin(document.inputs(invocation, key)),
            Box::pin(record(invocation, run, key)),
            Box::pin(deployed_template(invocation, key)),
        )?;
        let on_record = record.is_some();
        let record = record.unwrap_or_else(|| Record::new(key));
        let stack_id = match record.deploy() {
            Some(deploy) => deploy.stack_id,
            // A dry run of a new stack makes no id: it would be another one at the deploy.
            None if run.dry_run => placeholder_stack_id(invocation, key),
            None => {
                let begun = invocation.read_run(&run.stack_document(key, "begun.json")).await?;
                begun["stackId"].as_str().unwrap_or_default().to_owned()
            }
        };
        let pseudo = inputs.pseudo(invocation, key, &stack_id);
        let parameters = inputs.bind(&record)?;
        let conditions = template::conditions(&inputs.template, &parameters, &pseudo)?;
        template::check(&inputs.template, &parameters, &conditions, &pseudo)?;
        let reads = template::reads(&inputs.template, &parameters, &conditions, &pseudo)?;
        Ok(Self {
            key: key.clone(),
            reads,
            record,
            on_record,
            inputs,
            pseudo,
            parameters,
            conditions,
            deployed,
        })
    }

    /// The record without what a run that died was taking away: that counts as exported still and is decided anew.
    pub fn before(&self) -> Option<Record> {
        self.on_record.then(|| {
            let mut before = self.record.clone();
            handshake::take_back(&mut before);
            before
        })
    }

    /// The names that the stack will export, which nothing that is still to be deployed decides (rule E30).
    pub fn names(&self) -> Result<Vec<String>> {
        let listing = exports::listing(&template::outputs(&self.scope(&Unknown, &Unknown))?);
        Ok(listing.export_names().map(str::to_owned).collect())
    }

    fn scope<'s>(&'s self, resources: &'s dyn Resources, imports: &'s dyn Imports) -> Scope<'s> {
        Scope {
            template: &self.inputs.template,
            pseudo: &self.pseudo,
            parameters: &self.parameters,
            conditions: &self.conditions,
            resources,
            imports,
        }
    }

    pub fn plan(&self, imported: Imported) -> Result<Planned> {
        let mut plan = plan::build(&Inputs {
            key: &self.key,
            template: &self.inputs.template,
            parameters: &self.parameters,
            conditions: &self.conditions,
            pseudo: &self.pseudo,
            record: &self.record,
            tags: &self.inputs.tags,
            imports: &imported,
        })?;
        plan.imports = imported.to_document();
        // Outputs are evaluated now, so that one that cannot be published refuses before anything is touched.
        let foreseen = plan::Foreseen::new(&self.record, &plan);
        let listing = exports::listing(&template::outputs(&self.scope(&foreseen, &imported))?);
        plan.publishes = listing.differs(&self.record);
        let mut references = listing.references(&self.inputs.template.output_references(&self.conditions));
        if let Some(deployed) = &self.deployed {
            references = references.and(listing.references(&deployed.output_references(&self.conditions)));
        }
        let before = self.before().unwrap_or_else(|| self.record.clone());
        let doomed = Doomed::of(plan.steps(), &self.record);
        let difference = exports::difference(&before, &listing, &references, &doomed);
        Ok(Planned { plan, listing, difference, imported })
    }
}

impl Planned {
    /// The plan as a document of the runs bucket, with what the deploy will publish, row by row (rule E3).
    pub fn to_document(&self, run: &Run) -> Value {
        let shown: Map<String, Value> = self
            .listing
            .rows
            .iter()
            .map(|(key, line)| {
                let row =
                    json!({ "value": line.value.preview(), "output": line.output, "export": line.export });
                (key.clone(), row)
            })
            .collect();
        document(&self.plan, run, Value::Object(shown))
    }
}

pub(crate) fn document(plan: &Plan, run: &Run, outputs: Value) -> Value {
    let mut file = plan.to_document();
    file["outputs"] = outputs;
    file["execution"] = json!(run.execution);
    file
}

/// The record as the next steps will find it: the journal of an earlier run lies on it until the next save.
pub(crate) async fn record(invocation: &Invocation, run: &Run, key: &RecordKey) -> Result<Option<Record>> {
    let mut record = invocation.read_record(key).await?.map(|loaded| loaded.record);
    if !run.dry_run {
        for change in read_journal(invocation, key).await?.changes {
            change.apply(record.get_or_insert_with(|| Record::new(key)));
        }
    }
    Ok(record)
}

/// The template of the last deploy, as it is kept beside the record.
async fn deployed_template(invocation: &Invocation, key: &RecordKey) -> Result<Option<Template>> {
    let settings = &invocation.settings;
    let place = format!("{}template.json", key.templates(&settings.prefix));
    let object = invocation.aws.store.get(&settings.state_bucket, &place).await?;
    // One that is not understood any more tells nothing; physical ids and attributes on record still do.
    Ok(object.and_then(|object| Template::parse(&object.body, key.stack.as_str()).ok()))
}

/// Before anything is looked up: no resource and no other stack is known.
struct Unknown;

fn unknown() -> Reason {
    Reason::Other("known after the deploy".to_owned())
}

fn text() -> Node {
    let mut text = Text::default();
    text.push(Piece::Unknown(unknown()));
    Node::Text(text)
}

impl Resources for Unknown {
    fn reference(&self, _: &str) -> Node {
        text()
    }

    fn attribute(&self, _: &str, _: &str) -> Result<Node> {
        Ok(Node::Unknown(unknown()))
    }
}

impl Imports for Unknown {
    fn import(&self, _: &str) -> Result<Node> {
        Ok(text())
    }

    fn output(&self, _: &OutputRead) -> Result<Node> {
        Ok(text())
    }
}
