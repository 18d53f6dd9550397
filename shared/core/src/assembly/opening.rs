//! Opening an assembly, step by step: which documents to read next, and what comes of them.
//!
//! Manifests come first, down to the innermost stage; then the templates, asset manifests and metadata of the stacks
//! that are asked for and of those they depend on. Only where these import what none of them exports, the templates of
//! the other stacks of that region too: one may export it, and is selected then.

use std::collections::BTreeSet;

use indexmap::IndexMap;

use super::asset_manifest::AssetManifest;
use super::limits::{MAX_DOCUMENTS, MAX_MANIFESTS, MAX_NESTED};
use super::manifest::{ArtifactKind, Manifest, TemplateFacts};
use super::metadata::{Level, Metadata};
use super::nested::{NestedTemplate, places};
use super::path::{folder, resolve};
use super::select::{Chosen, Request, Selecting};
use super::selection::{SHOWN, SelectedStack, Selection, count, pseudo, sources};
use super::tree::{Assembly, Stack};
use crate::error::{Code, Error, Place, Result};
use crate::state::tree::{id, key_of};
use crate::template::{Links, ParameterSources, Template, links};

/// An assembly that is being opened.
///
/// As long as [`need`](Self::need) gives paths, fetch these documents (all at once, if that is faster) and
/// [`supply`](Self::supply) each; then [`finish`](Self::finish). The first error ends it.
#[derive(Debug)]
pub struct Opening {
    request: Request,
    /// By canonical path.
    needed: IndexMap<String, Need>,
    manifests: IndexMap<String, Manifest>,
    selecting: Option<Selecting>,
    documents: IndexMap<String, Vec<u8>>,
    /// Templates that the assembly lacks, of stacks that were not selected so far.
    absent: BTreeSet<String>,
    /// Bytes supplied so far.
    read: u64,
}

/// What a document is needed for.
#[derive(Clone, Debug)]
enum Need {
    /// The manifest of a folder.
    Manifest(String),
    /// A document of the stack with this label.
    Document(String),
    /// The template of a stack that is not selected, but may be.
    Candidate,
}

impl Opening {
    /// An assembly of which nothing has been read.
    pub fn new(request: Request) -> Self {
        Self {
            request,
            needed: IndexMap::from([("manifest.json".to_owned(), Need::Manifest(String::new()))]),
            manifests: IndexMap::new(),
            selecting: None,
            documents: IndexMap::new(),
            absent: BTreeSet::new(),
            read: 0,
        }
    }

    /// Canonical paths of the documents to supply next, each once; empty when all have been.
    pub fn need(&self) -> Vec<String> {
        self.needed.keys().cloned().collect()
    }

    /// Takes a document that was needed; `None`: the assembly does not have it.
    ///
    /// Codes: those of [`Manifest::parse`] and [`Selecting::start`], `InvalidAssembly` for a missing document, `MissingContext`,
    /// `AssemblyTooLarge`.
    pub fn supply(&mut self, path: &str, document: Option<Vec<u8>>) -> Result<()> {
        let Some(need) = self.needed.shift_remove(path) else {
            return Err(Error::new(Code::InternalError, format!("`{path}` was supplied, but is not needed")));
        };
        let bytes = match (document, &need) {
            (Some(bytes), _) => bytes,
            (None, Need::Candidate) => {
                self.absent.insert(path.to_owned());
                return self.proceed();
            }
            (None, Need::Manifest(folder)) => return Err(no_manifest(folder).detail("path", path)),
            (None, Need::Document(stack)) => return Err(no_document(path, stack)),
        };
        self.read = self.read.saturating_add(bytes.len() as u64);
        if self.read > MAX_DOCUMENTS {
            return Err(Error::new(
                Code::AssemblyTooLarge,
                format!("the documents of the selected stacks have more than {MAX_DOCUMENTS} bytes"),
            )
            .hint("deploy fewer stacks in one run"));
        }
        match need {
            Need::Manifest(folder) => self.manifest(folder, &bytes)?,
            Need::Document(_) | Need::Candidate => {
                self.documents.insert(path.to_owned(), bytes);
            }
        }
        self.proceed()
    }

    /// The selected stacks.
    ///
    /// Codes: `CircularDependency`, `AssemblyHasErrors`, `InvalidTemplate` (a template that is no JSON object),
    /// `InvalidAssembly` and `UnsupportedAssemblyVersion` for asset manifests and metadata.
    pub fn finish(self) -> Result<Selection> {
        let (Some(selecting), true) = (&self.selecting, self.needed.is_empty()) else {
            return Err(Error::new(Code::InternalError, "the assembly has not been read to its end"));
        };
        let mut selection = Selection { notices: selecting.notices.clone(), ..Selection::default() };
        let mut refused = Vec::new();
        for chosen in selecting.finish()? {
            let Some(stack) = selecting.assembly.stacks.get(chosen.index) else { continue };
            let metadata = self.metadata(stack)?;
            for note in &metadata.annotations {
                let text = format!("{} (stack {}): {}", note.construct, stack.label(), note.text);
                match note.level {
                    Level::Warning => selection.warnings.push(text),
                    Level::Error => refused.push(text),
                }
            }
            let place = Place::stack(chosen.key.stack.as_str());
            let stack = self.stack(stack, chosen, metadata).map_err(|error| error.place(&place))?;
            selection.stacks.push(stack);
        }
        has_errors(&refused)?;
        Ok(selection)
    }

    fn manifest(&mut self, folder: String, bytes: &[u8]) -> Result<()> {
        let manifest = Manifest::parse(bytes, &folder)?;
        for (id, artifact) in &manifest.artifacts {
            let ArtifactKind::Assembly { folder: inner, .. } = &artifact.kind else { continue };
            let path = resolve(inner, "manifest.json")?;
            if self.manifests.contains_key(inner) || *inner == folder || self.needed.contains_key(&path) {
                return Err(Error::new(
                    Code::InvalidAssembly,
                    format!("artifact `{id}` brings in the folder `{inner}`, which has been read already"),
                ));
            }
            self.needed.insert(path, Need::Manifest(inner.clone()));
        }
        self.manifests.insert(folder, manifest);
        if self.manifests.len() + self.needed.len() > MAX_MANIFESTS {
            return Err(Error::new(
                Code::AssemblyTooLarge,
                format!("the assembly has more than {MAX_MANIFESTS} nested assemblies"),
            ));
        }
        Ok(())
    }

    /// Once all that was needed is there: says what is needed next, if anything is.
    fn proceed(&mut self) -> Result<()> {
        if !self.needed.is_empty() {
            return Ok(());
        }
        let mut selecting = match self.selecting.take() {
            Some(selecting) => selecting,
            None => Selecting::start(Assembly::link(&self.manifests)?, self.request.clone())?,
        };
        loop {
            self.need_of_selected(&selecting)?;
            if !self.needed.is_empty() {
                break;
            }
            let selected: Vec<usize> = selecting.wanted().collect();
            self.learn(&mut selecting, &selected);
            let candidates = selecting.candidates();
            self.need_of_candidates(&selecting, &candidates);
            if !self.needed.is_empty() {
                break;
            }
            self.learn(&mut selecting, &candidates);
            if !selecting.pull_in()? {
                break;
            }
        }
        self.selecting = Some(selecting);
        Ok(())
    }

    fn need_of_selected(&mut self, selecting: &Selecting) -> Result<()> {
        let stacks: Vec<&Stack> =
            selecting.wanted().filter_map(|n| selecting.assembly.stacks.get(n)).collect();
        no_missing_context(&stacks)?;
        for stack in stacks {
            let paths = [&stack.artifact.template]
                .into_iter()
                .chain(&stack.asset_manifests)
                .chain(&stack.artifact.metadata_file);
            for path in paths.filter(|path| !self.documents.contains_key(*path)) {
                self.needed.insert(path.clone(), Need::Document(stack.label()));
            }
            for path in self.nested(stack)?.1 {
                self.needed.insert(path, Need::Document(stack.label()));
            }
        }
        Ok(())
    }

    /// The templates of the stacks nested in one, by the way to them, and those that are to be read yet.
    fn nested(&self, stack: &Stack) -> Result<(IndexMap<String, NestedTemplate>, BTreeSet<String>)> {
        let (mut found, mut missing) = (IndexMap::new(), BTreeSet::new());
        // What is wrong with an asset manifest is told in the end.
        let manifests: Vec<AssetManifest> = stack
            .asset_manifests
            .iter()
            .filter_map(|path| AssetManifest::parse(self.documents.get(path)?, path).ok())
            .collect();
        let root = &stack.artifact.template;
        let all_read = stack.asset_manifests.iter().all(|path| self.documents.contains_key(path));
        let Some(template) = self.documents.get(root).filter(|_| all_read) else {
            return Ok((found, missing));
        };
        let mut open = vec![(String::new(), template.as_slice())];
        while let Some((path, template)) = open.pop() {
            for (logical_id, file) in places(template, folder(root), &manifests)? {
                if found.len() >= MAX_NESTED {
                    return Err(Error::new(
                        Code::AssemblyTooLarge,
                        format!("stack {} has more than {MAX_NESTED} nested stacks", stack.label()),
                    )
                    .hint("a template that nests itself, through however many, has no end"));
                }
                let path = id(&path, &logical_id);
                match self.documents.get(&file) {
                    Some(template) => {
                        found.insert(path.clone(), NestedTemplate { file, template: template.clone() });
                        open.push((path, template));
                    }
                    None => {
                        missing.insert(file);
                    }
                }
            }
        }
        Ok((found, missing))
    }

    fn need_of_candidates(&mut self, selecting: &Selecting, candidates: &[usize]) {
        for stack in candidates.iter().filter_map(|n| selecting.assembly.stacks.get(*n)) {
            let path = &stack.artifact.template;
            if !self.documents.contains_key(path) && !self.absent.contains(path) {
                self.needed.insert(path.clone(), Need::Candidate);
            }
        }
    }

    fn learn(&self, selecting: &mut Selecting, stacks: &[usize]) {
        for &index in stacks {
            if !selecting.knows(index) {
                selecting.learn(index, self.links(selecting, index).unwrap_or_default());
            }
        }
    }

    /// What the template of a stack says; `None` if there is none that can be read: of a selected stack that is told
    /// later, and nobody else's is of concern.
    fn links(&self, selecting: &Selecting, index: usize) -> Option<Links> {
        let artifact = &selecting.assembly.stacks.get(index)?.artifact;
        let key = selecting.key(index)?;
        let template = Template::parse(self.documents.get(&artifact.template)?, key.stack.as_str()).ok()?;
        let sources = sources(self.request.parameters.of(artifact.names()), artifact.parameters.clone());
        let pseudo = pseudo(&key, &self.request.account, &artifact.notification_arns);
        let mut all = links(&template, &sources, &pseudo);
        // Of a stack that is not selected its nested ones are not read.
        let (nested, _) = self.nested(selecting.assembly.stacks.get(index)?).ok()?;
        for (path, nested) in nested {
            let key = key_of(&key, &path);
            let Ok(template) = Template::parse(&nested.template, key.stack.as_str()) else { continue };
            let more = links(&template, &ParameterSources::default(), &pseudo);
            all.exports.extend(more.exports);
            all.imports.extend(more.imports);
            all.outputs.extend(more.outputs);
        }
        Some(all)
    }

    fn document(&self, path: &str) -> Result<&[u8]> {
        self.documents
            .get(path)
            .map(Vec::as_slice)
            .ok_or_else(|| Error::new(Code::InternalError, format!("`{path}` was not kept")))
    }

    fn metadata(&self, stack: &Stack) -> Result<Metadata> {
        let mut metadata = stack.artifact.metadata.clone();
        if let Some(path) = &stack.artifact.metadata_file {
            metadata.merge(Metadata::parse(self.document(path)?, path)?);
        }
        Ok(metadata)
    }

    fn stack(&self, stack: &Stack, chosen: Chosen, metadata: Metadata) -> Result<SelectedStack> {
        let artifact = stack.artifact.clone();
        let (nested, _) = self.nested(stack)?;
        let template = self.document(&artifact.template)?.to_vec();
        let facts = TemplateFacts::read(&template, &artifact.template)?;
        let asset_manifests = stack
            .asset_manifests
            .iter()
            .map(|path| AssetManifest::parse(self.document(path)?, path))
            .collect::<Result<_>>()?;
        let mut tags = artifact.tags;
        for (key, value) in metadata.stack_tags {
            tags.entry(key).or_insert(value);
        }
        Ok(SelectedStack {
            id: artifact.id,
            name: chosen.key.stack,
            display_name: artifact.display_name,
            account: self.request.account.clone(),
            region: chosen.key.region,
            pulled_in: chosen.pulled_in,
            template_path: artifact.template,
            template,
            facts,
            nested,
            parameters: artifact.parameters,
            tags,
            termination_protection: artifact.termination_protection,
            notification_arns: artifact.notification_arns,
            template_url: artifact.template_url,
            dependencies: chosen.needs,
            asset_manifests,
            legacy_assets: metadata.legacy_assets,
        })
    }
}

fn no_manifest(folder: &str) -> Error {
    if folder.is_empty() {
        return Error::new(Code::InvalidAssembly, "there is no `manifest.json` at the root of the assembly")
            .hint("upload the whole content of `cdk.out`, as `cdk synth` wrote it");
    }
    Error::new(Code::InvalidAssembly, format!("the nested assembly `{folder}` has no `manifest.json`"))
        .hint("upload the whole content of `cdk.out`, its folders included")
}

fn no_document(path: &str, stack: &str) -> Error {
    Error::new(Code::InvalidAssembly, format!("the assembly lacks `{path}`, which stack {stack} names"))
        .hint("upload the whole content of `cdk.out`")
        .detail("path", path)
}

fn no_missing_context(stacks: &[&Stack]) -> Result<()> {
    let keys: BTreeSet<&str> =
        stacks.iter().flat_map(|stack| &stack.missing).map(|missing| missing.key.as_str()).collect();
    if keys.is_empty() {
        return Ok(());
    }
    let shown: Vec<&str> = keys.iter().copied().take(SHOWN).collect();
    let listed = shown.iter().map(|key| format!("`{key}`")).collect::<Vec<_>>().join(", ");
    Err(Error::new(
        Code::MissingContext,
        format!("the assembly was synthesized without {}: {listed}", count(keys.len(), "context value")),
    )
    .hint("run `cdk synth` once where it can look them up, commit `cdk.context.json`, synthesize and upload again")
    .detail("keys", shown))
}

fn has_errors(errors: &[String]) -> Result<()> {
    let Some(first) = errors.first() else { return Ok(()) };
    let more = if errors.len() > 1 { format!(" (and {} more)", errors.len() - 1) } else { String::new() };
    let shown: Vec<&str> = errors.iter().map(String::as_str).take(SHOWN).collect();
    Err(Error::new(
        Code::AssemblyHasErrors,
        format!("the app reported errors during synthesis: {first}{more}"),
    )
    .hint("correct what these constructs complain about, or deploy other stacks of the assembly")
    .detail("errors", shown))
}

#[cfg(test)]
mod tests {
    use super::super::source::{ZipBytes, open};
    use super::super::testing::{
        Documents, app, linked_app, manifest, own_template, request, stack, stage, template, with_assets,
    };
    use super::*;
    use serde_json::{Value, json};

    /// What is read at once, round by round.
    fn rounds(source: &Documents, request: Request) -> (Vec<String>, Opening) {
        let mut opening = Opening::new(request);
        let mut rounds = Vec::new();
        while !opening.need().is_empty() {
            rounds.push(opening.need().join(" "));
            for path in opening.need() {
                opening
                    .supply(&path, super::super::source::Source::document(source, &path).unwrap())
                    .unwrap();
            }
        }
        (rounds, opening)
    }

    #[test]
    fn e13_other_templates_are_read_only_where_one_may_export_what_is_imported() {
        let app = linked_app(&[
            "Web imports:api imports:elsewhere",
            "Api exports:api imports:db",
            "Db exports:db needs:Base",
            "Base",
            "Abroad@us-east-1 exports:elsewhere",
            "Alone",
            "Far@us-east-1 imports:elsewhere",
        ]);
        let table: &[(&[&str], &[&str])] = &[
            // All at once.
            (&[], &["Web.json Api.json Db.json Base.json Abroad.json Alone.json Far.json"]),
            (&["Alone"], &["Alone.json"]),
            (&["Db"], &["Db.json Base.json"]),
            // Both imports of Api and Db are known by then; those of a region are read, and none twice.
            (&["Web"], &["Web.json", "Api.json Db.json Base.json Alone.json"]),
            (&["Far"], &["Far.json", "Abroad.json"]),
            // What is selected exports all that is imported.
            (&["Far", "Abroad"], &["Abroad.json Far.json"]),
        ];
        for (stacks, expected) in table {
            let (rounds, opening) = rounds(&app, request(stacks));
            assert_eq!(rounds.iter().skip(1).collect::<Vec<_>>(), *expected, "{stacks:?}");
            assert!(opening.finish().is_ok());
        }
        let exclusively = Request { exclusively: true, ..request(&["Web"]) };
        assert_eq!(rounds(&app, exclusively).0, ["manifest.json", "Web.json"]);
    }

    #[test]
    fn only_what_is_needed_is_read_stage_by_stage() {
        let nested = json!({"type": "cdk:cloud-assembly", "properties": {"directoryName": "assembly-P"}});
        let source =
            stage(app(&json!({"A": stack(&[]), "P": nested})), "assembly-P", &json!({"B": stack(&[])}));
        let (rounds, opening) = rounds(&source, request(&["B"]));
        assert_eq!(rounds, ["manifest.json", "assembly-P/manifest.json", "assembly-P/t.json"]);
        let selection = opening.finish().unwrap();
        assert_eq!(selection.stacks[0].template_path, "assembly-P/t.json");
        assert_eq!(selection.stacks[0].template, template().to_string().into_bytes());
        assert_eq!(selection.stacks[0].region.as_str(), "eu-west-1");
    }

    #[test]
    fn a_zip_with_a_top_folder_gives_what_the_prefix_gives() {
        let source = with_assets(&json!({"t": own_template()}), &json!({}));
        let expected = open(&source, request(&[])).unwrap();
        for top in ["", "cdk.out/"] {
            let bytes = source.zip(top);
            assert_eq!(open(&ZipBytes::new(&bytes).unwrap(), request(&[])).unwrap(), expected);
        }
    }

    #[test]
    fn missing_documents_are_named() {
        let nested = json!({"type": "cdk:cloud-assembly", "properties": {"directoryName": "assembly-P"}});
        let table = [
            (Documents::default(), "`manifest.json`"),
            (app(&json!({"P": nested})), "`assembly-P`"),
            (Documents::default().with("manifest.json", &manifest(&json!({"S": stack(&[])}))), "`t.json`"),
            (app(&json!({"S": stack(&["Nope"])})), "`Nope`"),
            (Documents::default().raw("manifest.json", b"PK"), "`manifest.json` is not JSON"),
        ];
        for (source, named) in table {
            let error = open(&source, request(&[])).unwrap_err();
            assert_eq!(error.code(), Code::InvalidAssembly, "{named}");
            assert!(error.message().contains(named), "{error}");
            assert!(error.hint_text().is_some() || named == "`Nope`", "{error}");
        }
        let empty = app(&json!({"S": stack(&[])})).raw("t.json", b"");
        let error = open(&empty, request(&[])).unwrap_err();
        assert_eq!(error.code(), Code::InvalidTemplate);
        assert_eq!(error.where_().unwrap().stack.as_deref(), Some("S"));
    }

    #[test]
    fn a_stage_that_brings_itself_in_is_refused() {
        let nested =
            |folder: &str| json!({"type": "cdk:cloud-assembly", "properties": {"directoryName": folder}});
        for source in [
            app(&json!({"P": nested(".")})),
            app(&json!({"P": nested("p"), "Q": nested("./p")})),
            stage(app(&json!({"P": nested("p")})), "p", &json!({"Q": nested("..")})),
            stage(app(&json!({"P": nested("p")})), "p", &json!({"Q": nested("../p")})),
        ] {
            assert_eq!(open(&source, request(&[])).unwrap_err().code(), Code::InvalidAssembly);
        }
    }

    #[test]
    fn t14_missing_context_of_a_selected_stack_is_refused_by_key() {
        let nested = json!({"type": "cdk:cloud-assembly", "properties": {"directoryName": "p"}});
        let mut inner = manifest(&json!({"B": stack(&[])}));
        inner["missing"] = json!([{"key": "vpc-provider:x", "provider": "vpc-provider", "props": {}}]);
        let source = app(&json!({"A": stack(&[]), "P": nested}))
            .with("p/manifest.json", &inner)
            .with("p/t.json", &template());
        assert!(open(&source, request(&["A"])).is_ok());
        let error = open(&source, request(&["B"])).unwrap_err();
        assert_eq!(error.code(), Code::MissingContext);
        assert!(error.message().contains("1 context value: `vpc-provider:x`"), "{error}");
        assert!(error.hint_text().unwrap().contains("cdk.context.json"));
    }

    #[test]
    fn t14_context_that_only_a_manifest_without_stacks_misses_concerns_every_stack() {
        let nested = json!({"type": "cdk:cloud-assembly", "properties": {"directoryName": "p"}});
        let mut outer = manifest(&json!({"P": nested}));
        outer["missing"] = json!([{"key": "k", "provider": "ssm", "props": {}}]);
        let inner = manifest(&json!({"B": stack(&[])}));
        let source = Documents::default().with("manifest.json", &outer).with("p/manifest.json", &inner);
        assert_eq!(open(&source, request(&[])).unwrap_err().code(), Code::MissingContext);
        // A stage that has it owns it: the other stages are free of it.
        let other = json!({"type": "cdk:cloud-assembly", "properties": {"directoryName": "q"}});
        outer["artifacts"]["Q"] = other;
        let mut missing = manifest(&json!({"C": stack(&[])}));
        missing["missing"] = outer["missing"].clone();
        let source = source
            .with("manifest.json", &outer)
            .with("p/t.json", &template())
            .with("q/manifest.json", &missing)
            .with("q/t.json", &template());
        assert!(open(&source, request(&["B"])).is_ok());
        assert_eq!(open(&source, request(&["C"])).unwrap_err().code(), Code::MissingContext);
    }

    #[test]
    fn t14_error_annotations_of_selected_stacks_refuse_and_warnings_are_passed_on() {
        let mut bad = stack(&[]);
        bad["metadata"] = json!({"/Bad/X": [{"type": "aws:cdk:error", "data": "no encryption"}]});
        let mut wary = stack(&[]);
        wary["additionalMetadataFile"] = json!("m.json");
        let source = app(&json!({"Bad": bad, "Wary": wary})).with(
            "m.json",
            &json!({
                "/Wary": [{"type": "aws:cdk:stack-tags", "data": [{"key": "team", "value": "a"}]}],
                "/Wary/Y": [{"type": "aws:cdk:warning", "data": "old runtime"}],
            }),
        );
        let selection = open(&source, request(&["Wary"])).unwrap();
        assert_eq!(selection.warnings, ["/Wary/Y (stack `Wary`): old runtime"]);
        assert_eq!(selection.stacks[0].tags["team"], "a");
        let error = open(&source, request(&[])).unwrap_err();
        assert_eq!(error.code(), Code::AssemblyHasErrors);
        assert!(error.message().contains("/Bad/X (stack `Bad`): no encryption"), "{error}");
    }

    #[test]
    fn an_opening_is_used_in_its_order() {
        assert_eq!(Opening::new(request(&[])).finish().unwrap_err().code(), Code::InternalError);
        let mut opening = Opening::new(request(&[]));
        assert_eq!(opening.supply("other.json", None).unwrap_err().code(), Code::InternalError);
    }

    #[test]
    fn documents_of_one_run_have_a_limit_together() {
        let artifacts: serde_json::Map<String, Value> = (0..25)
            .map(|n| {
                let mut artifact = stack(&[]);
                artifact["properties"]["templateFile"] = json!(format!("{n}.json"));
                (format!("S{n}"), artifact)
            })
            .collect();
        let mut source = app(&Value::Object(artifacts));
        let large = vec![b' '; 9 << 20];
        for n in 0..25 {
            source = source.raw(&format!("{n}.json"), &large);
        }
        assert_eq!(open(&source, request(&[])).unwrap_err().code(), Code::AssemblyTooLarge);
    }

    #[test]
    fn a32_templates_of_nested_stacks_are_read_at_any_depth_and_are_no_assets() {
        let nested =
            |file: &str| json!({"Type": "AWS::CloudFormation::Stack", "Metadata": {"aws:asset:path": file}});
        let file = |path: &str| json!({"source": {"path": path, "packaging": "file"}, "destinations": {}});
        let files = json!({"t": file("t.json"), "c": file("c.json"), "g": file("g.json")});
        let source = with_assets(&files, &json!({}))
            .with("t.json", &json!({"Resources": {"C": nested("c.json"), "D": nested("c.json")}}))
            .with("c.json", &json!({"Resources": {"G": nested("g.json")}}))
            .with("g.json", &template());
        let (rounds, opening) = rounds(&source, request(&[]));
        assert_eq!(rounds, ["manifest.json", "t.json S.assets.json", "c.json", "g.json"]);
        let selection = opening.finish().unwrap();
        let [stack] = &selection.stacks[..] else { panic!("one stack") };
        let mut paths: Vec<&str> = stack.nested.keys().map(String::as_str).collect();
        paths.sort_unstable();
        assert_eq!(paths, ["C", "C~G", "D", "D~G"]);
        assert_eq!(stack.nested["D~G"].file, "g.json");
        assert_eq!(stack.template_paths(), ["c.json", "g.json", "t.json"].map(str::to_owned).into());
        let templates = stack.nested_templates().unwrap();
        assert_eq!(templates["C"].nested["G"].template.stack, "S~C~G");

        let endless = with_assets(&json!({}), &json!({}))
            .with("t.json", &json!({"Resources": {"C": nested("t.json")}}));
        let error = open(&endless, request(&[])).unwrap_err();
        assert_eq!(error.code(), Code::AssemblyTooLarge);
        let lacking = with_assets(&json!({}), &json!({}))
            .with("t.json", &json!({"Resources": {"C": nested("x.json")}}));
        let error = open(&lacking, request(&[])).unwrap_err();
        assert_eq!(error.code(), Code::InvalidAssembly);
        assert!(error.message().contains("x.json"), "{error}");
    }
}
