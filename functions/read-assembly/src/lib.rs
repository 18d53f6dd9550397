//! `cdkd-read-assembly`: opens the assembly, validates it, selects the stacks, orders them and lays out the run.
//!
//! Everything that can be known wrong about the input is told here, before anything is touched. What later steps need
//! lies in the runs bucket under `runs/{name}/`: `run.json` and the templates.

mod assets;

use std::borrow::Cow;

use cdkd_aws::edge::Invocation;
use cdkd_aws::run::template_place;
use cdkd_aws::stack::Run;
use cdkd_core::assembly::input::{DeployInput, Location};
use cdkd_core::assembly::source::assembly_not_found;
use cdkd_core::assembly::zip::{TAIL, ZipIndex, inflate, locate_end, read_directory};
use cdkd_core::assembly::{Opening, Request, SelectedStack, Selection};
use cdkd_core::assets::collect::Files;
use cdkd_core::assets::mode::CDK_JSON;
use cdkd_core::assets::table::Table;
use cdkd_core::name::RecordKey;
use cdkd_core::plan;
use cdkd_core::state::tree::key_of;
use cdkd_core::template::{self, Known, ParameterSources, Root, Template, Tree};
use cdkd_core::{Code, Error, Result};
use futures::stream::{self, StreamExt, TryStreamExt};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use assets::{Assets, Folding, Storages};

/// How many requests are under way at once.
const IN_FLIGHT: usize = 32;

#[derive(Deserialize)]
struct Event {
    execution: String,
    name: String,
    input: Value,
}

/// `{execution, name, input}` → `{run, levels: [[{stack, region, needs: [id]}]], publish: [{stack, region}], publishOnly,
/// notices, warnings}`
pub async fn handle(event: Value, invocation: Invocation) -> Result<Value> {
    let event: Event = serde_json::from_value(event)
        .map_err(|error| Error::new(Code::InvalidInput, format!("the payload of read-assembly: {error}")))?;
    let input = DeployInput::parse(&event.input)?;
    let request = Request {
        stacks: input.stacks.clone(),
        exclusively: input.options.exclusively,
        region: input.region.clone().unwrap_or_else(|| invocation.settings.region.clone()),
        account: invocation.settings.account.clone(),
        parameters: input.parameters.clone(),
    };
    let source = Source::open(&invocation, &input.assembly).await?;
    let mut selection = source.select(request).await?;
    input.parameters.check(&selection)?;
    let publish_only = input.options.publish_only;
    if !publish_only {
        skip_empty(&invocation, &mut selection).await?;
    }
    let option = input.options.use_cdk_bootstrap_assets;
    let cdk_json = source.document(CDK_JSON);
    let storages = Storages::read(&invocation, &selection, option, publish_only, cdk_json).await?;

    let run = Run {
        execution: event.execution,
        name: event.name,
        operation: "deploy".to_owned(),
        dry_run: input.options.dry_run,
    };
    let stacks = check(&invocation, &selection, &input, &storages).await?;
    let publishing = stacks.iter().filter(|it| !it.assets.files.is_empty()).map(|it| it.stack);
    let told = Told {
        notices: selection.notices.iter().cloned().chain(storages.notices(publishing.clone())).collect(),
        warnings: stacks
            .iter()
            .flat_map(|it| it.templates.warnings.iter())
            .chain(&selection.warnings)
            .cloned()
            .collect(),
    };
    lay_out(&invocation, &run, &input, &selection, &stacks, &told).await?;
    // The first 20 of each: the rest is in `run.json` (rule F8).
    let first = |list: &[String]| list.iter().take(20).cloned().collect::<Vec<_>>();
    Ok(json!({
        "run": run,
        "levels": levels(&selection),
        "publish": if run.dry_run { json!([]) } else { publishing.map(reference).collect() },
        "publishOnly": publish_only,
        "notices": first(&told.notices),
        "warnings": first(&told.warnings),
    }))
}

/// `[[{stack, region, needs: [id]}]]`, producers first.
fn levels(selection: &Selection) -> Value {
    let id = |key: &RecordKey| format!("{}/{}", key.stack, key.region);
    let stack = |stack: &SelectedStack| {
        let needs: Vec<String> = stack.dependencies.iter().map(id).collect();
        json!({ "stack": stack.name.as_str(), "region": stack.region.as_str(), "needs": needs })
    };
    let levels = selection.levels();
    levels.iter().map(|level| level.iter().copied().map(stack).collect::<Value>()).collect()
}

fn reference(stack: &SelectedStack) -> Value {
    json!({ "stack": stack.name.as_str(), "region": stack.region.as_str() })
}

/// What the user is told of a run before it begins.
struct Told {
    notices: Vec<String>,
    warnings: Vec<String>,
}

/// A stack as it is laid out.
struct LaidOut<'s> {
    stack: &'s SelectedStack,
    assets: Assets,
    templates: Templates,
}

/// The templates of a stack: its own under the empty path, and those of its nested stacks.
#[derive(Default)]
struct Templates {
    documents: Vec<(String, Value)>,
    /// What of them is left as it is, though it looks like an asset's address.
    warnings: Vec<String>,
}

/// Writes `run.json`, the templates, and the lists of what is to be published.
async fn lay_out(
    invocation: &Invocation,
    run: &Run,
    input: &DeployInput,
    selection: &Selection,
    stacks: &[LaidOut<'_>],
    told: &Told,
) -> Result<()> {
    let place = |stack: &SelectedStack, path: &str| template_place(&run.name, &key_of(&stack.key(), path));
    let templates = stacks.iter().flat_map(|LaidOut { stack, templates, .. }| {
        templates.documents.iter().map(move |(path, template)| (place(stack, path), Cow::Borrowed(template)))
    });
    let lists = stacks.iter().filter(|it| !it.assets.files.is_empty() && !run.dry_run).map(|it| {
        let files = Files { assembly: input.assembly.to_string(), files: it.assets.files.clone() };
        (run.stack_document(&it.stack.key(), "assets.json"), Cow::Owned(json!(files)))
    });
    let writes = templates
        .chain(lists)
        .map(|(place, document)| async move { invocation.write_run(&place, &document).await });
    stream::iter(writes).buffer_unordered(IN_FLIGHT).try_collect::<()>().await?;
    let stack = |LaidOut { stack, assets, .. }: &LaidOut<'_>| {
        let mut entry = json!({
            "stack": stack.name.as_str(),
            "region": stack.region.as_str(),
            "template": place(stack, ""),
            "nested": stack.nested.keys().collect::<Vec<_>>(),
            "parameters": { "run": input.parameters.of(stack.names()), "manifest": stack.parameters },
            "tags": stack.tags,
            "terminationProtection": stack.termination_protection,
            "notificationArns": stack.notification_arns,
        });
        if !assets.table.is_empty() {
            entry["assets"] = json!(assets.table);
        }
        entry
    };
    let document = json!({
        "run": run,
        "rollback": input.options.rollback,
        "lockWaitSeconds": input.options.lock_wait_seconds,
        "stacks": stacks.iter().map(stack).collect::<Vec<_>>(),
        "levels": levels(selection),
        "notices": told.notices,
        "warnings": told.warnings,
    });
    invocation.write_run(&run.document("run.json"), &document).await
}

/// Leaves out stacks without resources (rule T16); one that is on record is refused with the way to destroy it.
async fn skip_empty(invocation: &Invocation, selection: &mut Selection) -> Result<()> {
    for stack in &selection.stacks {
        let Some(notice) = stack.skipped() else { continue };
        if invocation.read_record(&stack.key()).await?.is_some() {
            return Err(Error::new(
                Code::InvalidTemplate,
                format!("the template of stack `{}` has no resources, but the stack is deployed", stack.name),
            )
            .hint(format!("to remove it, start `cdkd-destroy` with {{\"stacks\": [\"{}\"]}}", stack.name)));
        }
        selection.notices.push(notice);
    }
    selection.leave_out(|stack| stack.skipped().is_some())
}

/// Checks all stacks, and gives them as they are to be laid out: nothing is written before all are known to be right.
async fn check<'s>(
    invocation: &Invocation,
    selection: &'s Selection,
    input: &DeployInput,
    storages: &Storages,
) -> Result<Vec<LaidOut<'s>>> {
    let (mut stacks, mut errors) = (Vec::new(), Vec::new());
    for stack in &selection.stacks {
        match check_stack(invocation, stack, input, storages).await {
            Ok(laid_out) => stacks.push(laid_out),
            Err(error) => errors.push(error),
        }
    }
    Error::all(errors)?;
    Ok(stacks)
}

async fn check_stack<'s>(
    invocation: &Invocation,
    stack: &'s SelectedStack,
    input: &DeployInput,
    storages: &Storages,
) -> Result<LaidOut<'s>> {
    let mut assets = storages.of(stack)?;
    let templates = if input.options.publish_only {
        Templates::default()
    } else {
        let mut sources = stack.sources(&input.parameters);
        let template = Template::parse(&stack.template, stack.name.as_str())?;
        if !assets.table.is_empty() && may_be_recorded(&template, &sources) {
            let record = invocation.read_record(&stack.key()).await?;
            let deploy = record.and_then(|loaded| loaded.record.deploy());
            sources.previous = deploy.map(|it| it.parameters.into_iter().collect()).unwrap_or_default();
        }
        check_template(stack, &template, &sources, &mut assets.table)?
    };
    Ok(LaidOut { stack, assets, templates })
}

/// Whether a parameter may get its value from the record: references are folded with it.
fn may_be_recorded(template: &Template, sources: &ParameterSources) -> bool {
    template.parameters.iter().any(|(name, parameter)| {
        !parameter.no_echo
            && !parameter.is_fetched()
            && !sources.run.contains_key(name)
            && !sources.manifest.contains_key(name)
    })
}

/// Checks what can be checked without the record, and gives the template as it is to be laid out. A secret in plain
/// text is refused before it is written anywhere (rule S17).
fn check_template(
    stack: &SelectedStack,
    template: &Template,
    sources: &ParameterSources,
    table: &mut Table,
) -> Result<Templates> {
    let nested = stack.nested_templates()?;
    let mut constants = Folding::new(stack);
    match template::bind(template, sources) {
        Ok(parameters) => {
            let pseudo = stack.pseudo();
            let conditions = template::conditions(template, &parameters, &pseudo)?;
            let root = Root {
                key: &stack.key(),
                template,
                nested: &nested,
                pseudo: &pseudo,
                parameters: &parameters,
                conditions: &conditions,
                tags: &Map::new(),
                assets: &Table::default(),
            };
            let tree = Tree::unread(root, |path| {
                pseudo.stack_id.replace(
                    &format!("/{}/", stack.name),
                    &format!("/{}-{}/", stack.name, path.replace('~', "-")),
                )
            })?;
            tree.check(Known::nothing())?;
            let types = tree.stacks().map(|(_, it)| plan::check_types(&it.key, it.template, &it.conditions));
            Error::all(types.filter_map(Result::err).collect())?;
            constants.learn(&tree)?;
        }
        // The record may know the value.
        Err(error) if only_missing(&error) => {}
        Err(error) => return Err(error),
    }
    let nested = stack.nested.iter().map(|(path, nested)| (path.clone(), &nested.template));
    let mut templates = Templates::default();
    for (path, bytes) in std::iter::once((String::new(), &stack.template)).chain(nested) {
        let name = key_of(&stack.key(), &path).stack;
        let mut document = serde_json::from_slice(bytes).map_err(|_| {
            Error::new(Code::InvalidTemplate, format!("the template of stack `{name}` is not JSON"))
        })?;
        templates.warnings.extend(constants.rewrite(table, &path, &mut document));
        templates.documents.push((path, document));
    }
    Ok(templates)
}

fn only_missing(error: &Error) -> bool {
    let missing = Code::MissingParameter.name();
    error.code() == Code::MissingParameter
        && error
            .details()
            .get("errors")
            .and_then(Value::as_array)
            .is_none_or(|all| all.iter().all(|one| one["code"] == missing))
}

/// An assembly in S3.
struct Source<'a> {
    invocation: &'a Invocation,
    location: &'a Location,
    /// The directory of a zip.
    index: Option<ZipIndex>,
}

impl<'a> Source<'a> {
    async fn open(invocation: &'a Invocation, location: &'a Location) -> Result<Self> {
        let Location::Zip { bucket, key } = location else {
            return Ok(Self { invocation, location, index: None });
        };
        let store = &invocation.aws.store;
        let missing = || assembly_not_found(&location.to_string());
        let size = store
            .size(bucket, key)
            .await
            .map_err(|error| unreadable(location, error))?
            .ok_or_else(missing)?;
        let offset = size.saturating_sub(TAIL);
        let mut tail = store.range(bucket, key, offset, TAIL.min(size)).await?.ok_or_else(missing)?;
        let directory = locate_end(&tail, size)?;
        if !directory.within(tail.len() as u64) {
            tail = store.range(bucket, key, directory.offset, directory.len).await?.ok_or_else(missing)?;
        }
        Ok(Self { invocation, location, index: Some(read_directory(&tail, size)?) })
    }

    async fn select(&self, request: Request) -> Result<Selection> {
        let mut opening = Opening::new(request);
        let mut first = true;
        loop {
            let needed = opening.need();
            if needed.is_empty() {
                return opening.finish();
            }
            let reads = needed.iter().map(|path| self.document(path));
            let documents: Vec<_> = stream::iter(reads).buffered(IN_FLIGHT).try_collect().await?;
            for (path, document) in needed.iter().zip(documents) {
                // Nothing at all below a prefix is a wrong address rather than an assembly without manifest.
                if first && document.is_none() && self.is_nothing().await? {
                    return Err(assembly_not_found(&self.location.to_string()));
                }
                opening.supply(path, document)?;
            }
            first = false;
        }
    }

    async fn document(&self, path: &str) -> Result<Option<Vec<u8>>> {
        let store = &self.invocation.aws.store;
        match (self.location, &self.index) {
            (Location::Zip { bucket, key }, Some(index)) => {
                let Some(entry) = index.document(path)? else { return Ok(None) };
                let (offset, length) = index.entry_range(entry);
                let bytes = store.range(bucket, key, offset, length).await?;
                bytes.map(|bytes| inflate(entry, &bytes)).transpose()
            }
            (Location::Prefix { bucket, prefix }, _) => {
                let place = format!("{prefix}{path}");
                let object =
                    store.get(bucket, &place).await.map_err(|error| unreadable(self.location, error))?;
                Ok(object.map(|object| object.body))
            }
            (Location::Zip { .. }, None) => Ok(None),
        }
    }

    async fn is_nothing(&self) -> Result<bool> {
        let Location::Prefix { bucket, prefix } = self.location else { return Ok(false) };
        Ok(self.invocation.aws.store.list(bucket, prefix).await?.is_empty())
    }
}

/// No bucket, or no right to read it: for the user both are a wrong address.
fn unreadable(location: &Location, error: Error) -> Error {
    if matches!(error.code(), Code::BucketUnavailable | Code::AccessDenied) {
        let why = error.message().to_owned();
        return assembly_not_found(&location.to_string()).detail("why", why);
    }
    error
}
