//! Stacks as a run deploys them: what an [`Opening`](super::Opening) gives.

use std::collections::{BTreeMap, BTreeSet};

use indexmap::IndexMap;
use serde_json::Value;

use super::asset_manifest::AssetManifest;
use super::input::Parameters;
use super::manifest::TemplateFacts;
use super::nested::NestedTemplate;
use super::order::{Needs, arrange};
use crate::error::{Code, Error, Place, Result};
use crate::name::{Account, RecordKey, Region, StackName};
use crate::state::tree::key_of;
use crate::template::{Nested, ParameterSources, Pseudo, Template, nest};

/// The stacks of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Selection {
    /// In the order of [`levels`](Self::levels): producers first.
    pub stacks: Vec<SelectedStack>,
    /// What was done in a way that may surprise: stacks that were left out or included.
    pub notices: Vec<String>,
    /// Warnings that constructs left during synthesis.
    pub warnings: Vec<String>,
}

/// A stack to be deployed, with its documents. Paths are canonical.
#[derive(Clone, Debug, PartialEq)]
pub struct SelectedStack {
    /// Artifact id.
    pub id: String,
    pub name: StackName,
    /// Path of its construct.
    pub display_name: String,
    pub account: Account,
    pub region: Region,
    /// Not asked for: another one depends on it.
    pub pulled_in: bool,
    pub template_path: String,
    /// The template as it lies in the assembly: JSON, an object.
    pub template: Vec<u8>,
    pub facts: TemplateFacts,
    /// The templates of its nested stacks, by the way to them (see [`crate::state::tree`]), parents before children.
    pub nested: IndexMap<String, NestedTemplate>,
    /// Parameters of the manifest; those of the run go before them (rule T15).
    pub parameters: IndexMap<String, String>,
    pub tags: IndexMap<String, String>,
    pub termination_protection: bool,
    pub notification_arns: Vec<String>,
    /// Where CDK's own deploy would upload the template, with placeholders.
    pub template_url: Option<String>,
    /// Stacks of this selection to be deployed before it; what follows through others is left out.
    pub dependencies: Vec<RecordKey>,
    pub asset_manifests: Vec<AssetManifest>,
    /// Constructs with assets of the legacy synthesizer.
    pub legacy_assets: Vec<String>,
}

impl Selection {
    /// The stacks in levels: each stands one level above the highest of those it depends on. Those of one level have no
    /// order between them.
    pub fn levels(&self) -> Vec<Vec<&SelectedStack>> {
        let mut depths: BTreeMap<RecordKey, usize> = BTreeMap::new();
        let mut levels: Vec<Vec<&SelectedStack>> = Vec::new();
        for stack in &self.stacks {
            let below = stack.dependencies.iter().filter_map(|key| depths.get(key));
            let depth = below.max().map_or(0, |depth| depth + 1);
            depths.insert(stack.key(), depth);
            match levels.get_mut(depth) {
                Some(level) => level.push(stack),
                None => levels.push(vec![stack]),
            }
        }
        levels
    }

    /// Leaves stacks out. What depends on one of them depends on what that depends on.
    ///
    /// `InternalError`: never, since what is left out makes no circle.
    pub fn leave_out(&mut self, out: impl Fn(&SelectedStack) -> bool) -> Result<()> {
        let places: BTreeMap<RecordKey, usize> =
            self.stacks.iter().enumerate().map(|(n, stack)| (stack.key(), n)).collect();
        let of = |stack: &SelectedStack| {
            stack.dependencies.iter().filter_map(|key| places.get(key)).copied().collect()
        };
        let needs: Needs = self.stacks.iter().map(of).enumerate().collect();
        let kept: BTreeSet<usize> =
            self.stacks.iter().enumerate().filter(|(_, stack)| !out(stack)).map(|(n, _)| n).collect();
        let order = arrange(&needs, &kept)
            .map_err(|_| Error::new(Code::InternalError, "the stacks of the run have no order"))?;
        let keys: Vec<RecordKey> = self.stacks.iter().map(SelectedStack::key).collect();
        let mut stacks: BTreeMap<usize, SelectedStack> =
            std::mem::take(&mut self.stacks).into_iter().enumerate().collect();
        for n in order.levels.iter().flatten() {
            let Some(mut stack) = stacks.remove(n) else { continue };
            let needs = order.needs.get(n).into_iter().flatten();
            stack.dependencies = needs.filter_map(|need| keys.get(*need).cloned()).collect();
            self.stacks.push(stack);
        }
        Ok(())
    }
}

/// Where the values of a stack's parameters come from, its record aside.
pub(super) fn sources(run: IndexMap<String, String>, manifest: IndexMap<String, String>) -> ParameterSources {
    let text =
        |map: IndexMap<String, String>| map.into_iter().map(|(name, value)| (name, Value::String(value)));
    ParameterSources {
        run: text(run).collect(),
        manifest: text(manifest).collect(),
        ..ParameterSources::default()
    }
}

/// The pseudo parameters of a stack as far as they are known before its record is. In the place of its id stands one of
/// the right form, since templates take it apart.
pub(super) fn pseudo(key: &RecordKey, account: &Account, notification_arns: &[String]) -> Pseudo {
    let partition = key.region.partition();
    Pseudo {
        account: account.to_string(),
        region: key.region.to_string(),
        partition: partition.name.to_owned(),
        url_suffix: partition.url_suffix.to_owned(),
        stack_name: key.stack.to_string(),
        stack_id: format!(
            "arn:{}:cloudformation:{}:{account}:stack/{}/00000000-0000-0000-0000-000000000000",
            partition.name, key.region, key.stack
        ),
        notification_arns: notification_arns.to_vec(),
    }
}

impl SelectedStack {
    /// The names that an input may call it by: stack name, display name and artifact id.
    pub fn names(&self) -> [&str; 3] {
        [self.name.as_str(), &self.display_name, &self.id]
    }

    /// Where the values of its parameters come from, its record aside. `run`: the parameters of the run's input.
    pub fn sources(&self, run: &Parameters) -> ParameterSources {
        sources(run.of(self.names()), self.parameters.clone())
    }

    /// The pseudo parameters as far as they are known before the record is. In the place of the stack's id stands one
    /// of the right form.
    pub fn pseudo(&self) -> Pseudo {
        pseudo(&self.key(), &self.account, &self.notification_arns)
    }

    /// The record it is deployed under.
    pub fn key(&self) -> RecordKey {
        RecordKey::new(self.name.clone(), self.region.clone())
    }

    /// The notice that it is skipped, if it has no resources (rule T16). A stack that is on record is refused instead;
    /// that is the caller's to know.
    pub fn skipped(&self) -> Option<String> {
        (!self.facts.has_resources).then(|| format!("stack `{}` has no resources and is skipped", self.name))
    }

    /// The templates of its nested stacks, parsed.
    ///
    /// # Errors
    /// As [`Template::parse`], of all at once.
    pub fn nested_templates(&self) -> Result<IndexMap<String, Nested>> {
        let (mut templates, mut errors) = (Vec::new(), Vec::new());
        for (path, nested) in &self.nested {
            match Template::parse(&nested.template, key_of(&self.key(), path).stack.as_str()) {
                Ok(template) => templates.push((path.clone(), template)),
                Err(error) => errors.push(error),
            }
        }
        Error::all(errors)?;
        Ok(nest(templates))
    }

    /// Its template and those of its nested stacks, canonical paths: they are read from the assembly, and not published.
    pub fn template_paths(&self) -> BTreeSet<String> {
        let nested = self.nested.values().map(|nested| nested.file.clone());
        nested.chain([self.template_path.clone()]).collect()
    }

    /// Refuses assets of the legacy synthesizer (`UnsupportedAsset`, rule A12).
    pub fn check_synthesizer(&self) -> Result<()> {
        let legacy = self.facts.legacy_asset_parameters.iter().chain(&self.legacy_assets);
        let legacy: Vec<&str> = legacy.map(String::as_str).take(SHOWN).collect();
        if !self.asset_manifests.is_empty() || legacy.is_empty() {
            return Ok(());
        }
        Err(Error::new(
            Code::UnsupportedAsset,
            "the stack has assets of the legacy synthesizer, which passes them in parameters `AssetParameters…` \
             instead of an asset manifest",
        )
        .hint(
            "synthesize with `DefaultStackSynthesizer`: remove `LegacyStackSynthesizer` and the context value \
             `aws-cdk:newStyleStackSynthesis: false` from the app",
        )
        .place(&Place::stack(self.name.as_str()))
        .detail("assets", legacy))
    }
}

/// How many things a message lists.
pub(super) const SHOWN: usize = 20;

pub(super) fn count(n: usize, thing: &str) -> String {
    if n == 1 { format!("1 {thing}") } else { format!("{n} {thing}s") }
}

#[cfg(test)]
mod tests {
    use super::super::source::open;
    use super::super::testing::{app, levels, linked_app, request, stack};
    use super::*;
    use serde_json::json;

    #[test]
    fn t16_a_stack_without_resources_is_skipped_with_a_notice() {
        let source = app(&json!({"S": stack(&[])})).with("t.json", &json!({"Outputs": {}}));
        let selection = open(&source, request(&[])).unwrap();
        assert_eq!(selection.stacks[0].skipped().unwrap(), "stack `S` has no resources and is skipped");
        assert_eq!(open(&app(&json!({"S": stack(&[])})), request(&[])).unwrap().stacks[0].skipped(), None);
    }

    #[test]
    fn t16_an_order_through_a_skipped_stack_stays() {
        let table: &[(&[&str], &str, &str)] = &[
            (&["A needs:B", "B needs:C empty", "C"], "C|B<C|A<B", "C|A<C"),
            (&["A needs:B needs:D", "B needs:C empty", "C", "D needs:C"], "C|B<C D<C|A<B,D", "C|D<C|A<D"),
            (&["A needs:B", "B needs:C empty", "C empty"], "C|B<C|A<B", "A"),
            (&["A empty"], "A", ""),
        ];
        for (stacks, before, after) in table {
            let mut selection = open(&linked_app(stacks), request(&[])).unwrap();
            assert_eq!(levels(&selection), *before);
            selection.leave_out(|stack| stack.skipped().is_some()).unwrap();
            assert_eq!(levels(&selection), *after, "{stacks:?}");
        }
    }

    #[test]
    fn a_hundred_stacks_stay_small() {
        let chain: Vec<String> = (0..100).map(|n| format!("S{n} imports:e{} exports:e{n}", n + 1)).collect();
        let layers: Vec<String> = (0..100)
            .map(|n| {
                let imports = (0..n / 10 * 10).map(|need| format!("imports:e{need}")).collect::<Vec<_>>();
                format!("S{n} exports:e{n} {}", imports.join(" "))
            })
            .collect();
        for (stacks, depth, most) in [(chain, 100, 1), (layers, 10, 10)] {
            let stacks: Vec<&str> = stacks.iter().map(String::as_str).collect();
            let selection = open(&linked_app(&stacks), request(&[])).unwrap();
            assert_eq!((selection.stacks.len(), selection.levels().len()), (100, depth));
            assert_eq!(selection.stacks.iter().map(|stack| stack.dependencies.len()).max(), Some(most));
        }
    }

    #[test]
    fn a12_the_legacy_synthesizer_is_refused_by_name() {
        let parameters = json!({
            "Resources": {"A": {}},
            "Parameters": {"AssetParameters12S3Bucket34": {"Type": "String"}},
        });
        let mut annotated = stack(&[]);
        annotated["metadata"] = json!({"/S/Code": [{"type": "aws:cdk:asset", "data": {}}]});
        for source in
            [app(&json!({"S": stack(&[])})).with("t.json", &parameters), app(&json!({"S": annotated}))]
        {
            let error = open(&source, request(&[])).unwrap().stacks[0].check_synthesizer().unwrap_err();
            assert_eq!(error.code(), Code::UnsupportedAsset);
            assert!(error.message().contains("legacy synthesizer"), "{error}");
            assert!(error.hint_text().unwrap().contains("DefaultStackSynthesizer"));
        }
    }
}
