//! The plan of one stack, with those nested in it, made in memory.

use std::collections::BTreeMap;

use cdkd_aws::edge::Invocation;
use cdkd_aws::references::Imported;
use cdkd_aws::run::{Ground, RunDocument, StackInputs, placeholder_stack_id};
use cdkd_aws::stack::{Run, read_journal};
use cdkd_core::name::{Account, RecordKey};
use cdkd_core::plan::{self, Plan};
use cdkd_core::references::exports::{self, Difference, Doomed, Listing, References, Why};
use cdkd_core::references::handshake::{self, GivenUp};
use cdkd_core::references::imports;
use cdkd_core::state::Record;
use cdkd_core::state::tree::{NESTED, id, key_of, path_of};
use cdkd_core::template::{
    self, Bound, Imports, Known, OutputRead, Pseudo, Reads, Resources, Template, Tree,
};
use cdkd_core::value::{Node, Piece, Reason, Text};
use cdkd_core::{Code, Error, Result};
use indexmap::IndexMap;
use serde_json::{Map, Value, json};

/// A stack with all that its plan is made from but what it reads of others.
pub(crate) struct Stack {
    pub key: RecordKey,
    /// Of the whole tree.
    pub reads: Reads,
    /// By the path of the stack that reads.
    own_reads: IndexMap<String, Reads>,
    /// As the run found it, with the rows of nested stacks; a new one if the stack is not on record.
    pub record: Record,
    /// The records of nested stacks, by path.
    nested: BTreeMap<String, Record>,
    on_record: bool,
    inputs: StackInputs,
    pseudo: Pseudo,
    parameters: Bound,
    conditions: IndexMap<String, bool>,
    /// The templates of the last deploy, by path.
    deployed: BTreeMap<String, Template>,
    account: Account,
    /// What the ids of new nested stacks are made of.
    seed: String,
}

/// A plan with what it makes of the references of the stack and of those nested in it.
pub(crate) struct Planned {
    pub plan: Plan,
    /// By path: of the stacks of the template, and of those on record that it lacks.
    pub parts: IndexMap<String, Part>,
    pub imported: Imported,
}

/// What a plan makes of the references of one stack of the tree.
#[derive(Clone, Default)]
pub(crate) struct Part {
    pub listing: Listing,
    pub difference: Difference,
    /// What its record is to say of what it reads.
    pub reads: imports::Reads,
}

/// A stack of a tree, its record as it was, and the names that it will export.
pub(crate) type Named = (RecordKey, Option<Record>, Vec<String>);

/// What is on record of a stack.
#[derive(Default)]
pub(crate) struct OnRecord {
    /// With the rows of nested stacks; `None` if it is not on record.
    pub root: Option<Record>,
    /// By path.
    pub nested: BTreeMap<String, Record>,
}

impl Stack {
    pub async fn load(
        invocation: &Invocation,
        run: &Run,
        key: &RecordKey,
        document: &RunDocument,
    ) -> Result<Self> {
        let (inputs, found) = futures::try_join!(
            Box::pin(document.inputs(invocation, key)),
            Box::pin(on_record(invocation, run, key)),
        )?;
        let OnRecord { root, nested } = found;
        let deployed = deployed_templates(invocation, key, &nested).await?;
        let on_record = root.is_some();
        let record = root.unwrap_or_else(|| Record::new(key));
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
        let mut stack = Self {
            key: key.clone(),
            reads: Reads::default(),
            own_reads: IndexMap::new(),
            record,
            nested,
            on_record,
            inputs,
            pseudo,
            parameters,
            conditions,
            deployed,
            account: invocation.settings.account.clone(),
            seed: run.execution.clone(),
        };
        let (own_reads, new) = {
            let tree = stack.tree()?;
            tree.check(Known::nothing())?;
            let read = |(path, _): (&str, &template::Stack<'_>)| {
                Ok((path.to_owned(), tree.reads(path, Known::nothing())?))
            };
            let own_reads = tree.stacks().map(read).collect::<Result<IndexMap<_, _>>>()?;
            let new = tree.stacks().filter(|(path, _)| !path.is_empty() && stack.record.row(path).is_none());
            (own_reads, new.map(|(path, _)| path.to_owned()).collect::<Vec<_>>())
        };
        for reads in own_reads.values() {
            stack.reads.extend(reads.clone());
        }
        stack.own_reads = own_reads;
        not_retained(invocation, key, &new).await?;
        Ok(stack)
    }

    /// The stack with those nested in it.
    fn tree(&self) -> Result<Tree<'_>> {
        let ground = Ground {
            key: &self.key,
            inputs: &self.inputs,
            pseudo: &self.pseudo,
            parameters: &self.parameters,
            conditions: &self.conditions,
        };
        ground.tree(|path| {
            if let Some(row) = self.record.row(path).filter(|row| row.resource_type() == NESTED) {
                return row.physical_id().to_owned();
            }
            plan::new_stack_id(&key_of(&self.key, path), &self.account, &self.pseudo.stack_id, &self.seed)
        })
    }

    /// The record at a path, if there is one.
    fn own(&self, path: &str) -> Option<&Record> {
        if path.is_empty() { self.on_record.then_some(&self.record) } else { self.nested.get(path) }
    }

    /// The same without what a run that died was taking away: that counts as exported still and is decided anew.
    fn before(&self, path: &str) -> Option<Record> {
        self.own(path).map(|own| {
            let mut before = own.clone();
            handshake::take_back(&mut before);
            before
        })
    }

    /// Of each stack of the tree, and of those on record that the template lacks: its record as it was, and the names
    /// that it will export, which nothing that is still to be deployed decides (rule E30).
    pub fn names(&self) -> Result<Vec<Named>> {
        let tree = self.tree()?;
        let known = Known { resources: &Unknown, imports: &Unknown };
        let mut names = Vec::new();
        for (path, _) in tree.stacks() {
            let listing = exports::listing(&tree.outputs(path, known)?);
            let exported = listing.export_names().map(str::to_owned).collect();
            names.push((key_of(&self.key, path), self.before(path), exported));
        }
        for path in self.nested.keys().filter(|path| tree.stack(path).is_err()) {
            names.push((key_of(&self.key, path), self.before(path), Vec::new()));
        }
        Ok(names)
    }

    pub fn plan(&self, imported: Imported) -> Result<Planned> {
        let tree = self.tree()?;
        let mut plan = plan::build_tree(&tree, &self.record, &imported)?;
        plan.imports = imported.to_document();
        let doomed = Doomed::of(plan.steps(), &self.record);
        let mut parts = IndexMap::new();
        {
            // Outputs are evaluated now, so that one that cannot be published refuses before anything is touched.
            let foreseen = plan::Foreseen::new(&self.record, &plan);
            let known = Known { resources: &foreseen, imports: &imported };
            for (path, stack) in tree.stacks() {
                let listing = exports::listing(&tree.outputs(path, known)?);
                let of = |template: &Template| {
                    listing.references(&template.output_references(&stack.conditions)).within(path)
                };
                let references = of(stack.template);
                let references = match self.deployed.get(path) {
                    Some(deployed) => references.and(of(deployed)),
                    None => references,
                };
                let before = self.before(path).unwrap_or_else(|| Record::new(&key_of(&self.key, path)));
                let difference = exports::difference(&before, &listing, &references, &doomed);
                let reads = self.own_reads.get(path).map(|reads| imported.of(reads)).unwrap_or_default();
                parts.insert(path.to_owned(), Part { listing, difference, reads });
            }
        }
        plan.publishes = parts.iter().any(|(path, part)| match self.own(path) {
            Some(own) => part.listing.differs(own),
            None => part.listing.differs(&Record::new(&key_of(&self.key, path))),
        });
        for path in self.nested.keys().filter(|path| tree.stack(path).is_err()) {
            let Some(before) = self.before(path) else { continue };
            let nothing = Listing::default();
            let difference = exports::difference(&before, &nothing, &References::default(), &doomed);
            parts.insert(path.clone(), Part { difference, ..Part::default() });
        }
        Ok(Planned { plan, parts, imported })
    }

    /// Whether there is nothing to write and nothing to look at: what the stacks import is on record, and nothing of it
    /// changes.
    pub fn is_idle(&self, planned: &Planned, changes: bool) -> bool {
        let known = |path: &str, part: &Part| {
            let recorded = self.own(path).and_then(|own| imports::Reads::of(own).ok()).unwrap_or_default();
            part.reads.imports.is_subset(&recorded.imports)
                && part.reads.output_reads.is_subset(&recorded.output_reads)
        };
        let quiet = |part: &Part| {
            let difference = &part.difference;
            difference.claims.is_empty() && difference.lost().is_empty() && difference.changed.is_empty()
        };
        planned.parts.iter().all(|(path, part)| known(path, part) && quiet(part))
            && (!changes || planned.imported.is_empty())
    }
}

impl Planned {
    /// What the deploy makes of the exports of the whole tree.
    pub fn difference(&self) -> Difference {
        together(self.parts.values())
    }

    /// Exports that a stack of the tree gives up: another of it may take the name (rule E29).
    pub fn given_up(&self, key: &RecordKey) -> GivenUp {
        let of = |(path, part): (&String, &Part)| {
            let key = key_of(key, path);
            let gone = part.difference.withdrawn.iter().filter(|gone| gone.why == Why::NotExported);
            gone.map(|gone| (key.clone(), gone.name.clone())).collect::<Vec<_>>()
        };
        self.parts.iter().flat_map(of).collect()
    }

    /// The plan as a document of the runs bucket, with what the deploy will publish, row by row (rule E3).
    pub fn to_document(&self, run: &Run) -> Value {
        let shown: Map<String, Value> = self
            .parts
            .iter()
            .flat_map(|(path, part)| part.listing.rows.iter().map(move |(key, line)| (id(path, key), line)))
            .map(|(key, line)| {
                let row =
                    json!({ "value": line.value.preview(), "output": line.output, "export": line.export });
                (key, row)
            })
            .collect();
        document(&self.plan, run, Value::Object(shown))
    }
}

pub(crate) fn together<'p>(parts: impl IntoIterator<Item = &'p Part>) -> Difference {
    let mut all = Difference::default();
    for part in parts {
        all.extend(&part.difference);
    }
    all
}

pub(crate) fn document(plan: &Plan, run: &Run, outputs: Value) -> Value {
    let mut file = plan.to_document();
    file["outputs"] = outputs;
    file["execution"] = json!(run.execution);
    file
}

/// What the next steps will find: the journal of an earlier run lies on it until the next save.
pub(crate) async fn on_record(invocation: &Invocation, run: &Run, key: &RecordKey) -> Result<OnRecord> {
    let changes = if run.dry_run { Vec::new() } else { read_journal(invocation, key).await?.changes };
    let documents = invocation.read_tree(key, &changes).await?;
    let mut root = documents.merged();
    for change in changes {
        change.apply(root.get_or_insert_with(|| Record::new(key)));
    }
    let nested = documents.nested().map(|(path, record)| (path.to_owned(), record.clone())).collect();
    Ok(OnRecord { root, nested })
}

/// Refuses a nested stack in the place of one that was retained: that one's record, with all that it has, is there.
async fn not_retained(invocation: &Invocation, key: &RecordKey, new: &[String]) -> Result<()> {
    if new.is_empty() {
        return Ok(());
    }
    let there = invocation.nested_on_record(key).await?;
    let taken = there
        .iter()
        .filter(|record| path_of(key, record).is_some_and(|path| new.iter().any(|it| it == path)));
    let errors = taken.map(|record| {
        Error::new(
            Code::InvalidTemplate,
            format!("the record of {record} is there, of a nested stack of that name that was retained"),
        )
        .hint("give the nested stack another logical id; what was retained stays as it is")
        .detail("stack", key.stack.as_str())
    });
    Error::all(errors.collect())
}

/// The templates of the last deploy, as they are kept beside the records.
async fn deployed_templates(
    invocation: &Invocation,
    key: &RecordKey,
    nested: &BTreeMap<String, Record>,
) -> Result<BTreeMap<String, Template>> {
    let settings = &invocation.settings;
    let paths = std::iter::once("").chain(nested.keys().map(String::as_str));
    let reads = paths.map(|path| async move {
        let key = key_of(key, path);
        let place = format!("{}template.json", key.templates(&settings.prefix));
        let object = invocation.aws.store.get(&settings.state_bucket, &place).await?;
        // One that is not understood any more tells nothing; physical ids and attributes on record still do.
        let template = object.and_then(|object| Template::parse(&object.body, key.stack.as_str()).ok());
        Ok::<_, Error>(template.map(|template| (path.to_owned(), template)))
    });
    Ok(futures::future::try_join_all(reads).await?.into_iter().flatten().collect())
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
