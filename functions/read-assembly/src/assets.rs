//! Where the assets of a run are: whose storage each region uses, what of each stack is published there, and the templates
//! with their references to it.

use std::collections::{BTreeMap, BTreeSet};

use cdkd_aws::edge::Invocation;
use cdkd_core::assembly::{SelectedStack, Selection};
use cdkd_core::assets::collect::{File, collect};
use cdkd_core::assets::mode::{exposed, opted_out};
use cdkd_core::assets::rewrite::Constants;
use cdkd_core::assets::table::{Here, Keys, Storage, Table, keys};
use cdkd_core::name::Region;
use cdkd_core::state::tree::key_of;
use cdkd_core::template::{Known, Tree};
use cdkd_core::value::Node;
use cdkd_core::{Code, Error, Result};
use futures::future::try_join_all;
use serde_json::Value;

/// The storage of each region of a run; decided once, by the marker that `cdkd-bootstrap` writes (rule A23).
#[derive(Default)]
pub(crate) struct Storages {
    /// `None`: assets go where the assembly says.
    regions: BTreeMap<Region, Option<Storage>>,
    /// Of all assets of the run, as they are in each region with storage of its own.
    keys: BTreeMap<Region, Keys>,
    /// The app stays with the storage of `cdk bootstrap`, and knows why.
    opted_out: bool,
}

/// What a stack's assets come to.
pub(crate) struct Assets {
    pub table: Table,
    pub files: Vec<File>,
}

impl Storages {
    /// Reads the markers of the regions whose stacks have assets in what `cdk bootstrap` made, and looks whether what they
    /// name is there.
    ///
    /// `option`: that of the run; `cdk_json`: reads the file at the root of the upload. `publish_only`: an estate without a
    /// state bucket has no markers.
    pub async fn read(
        invocation: &Invocation,
        selection: &Selection,
        option: Option<bool>,
        publish_only: bool,
        cdk_json: impl Future<Output = Result<Option<Vec<u8>>>>,
    ) -> Result<Self> {
        let exposed = |stack: &&SelectedStack| Table::is_needed(&stack.asset_manifests, here(stack));
        let stacks = selection.stacks.iter().filter(exposed);
        let exposed: BTreeSet<Region> = stacks.map(|stack| stack.region.clone()).collect();
        if exposed.is_empty() {
            return Ok(Self::default());
        }
        let file = if option.is_none() { cdk_json.await? } else { None };
        if opted_out(option, file.as_deref())? {
            return Ok(Self { opted_out: true, ..Self::default() });
        }
        let read = |region: Region| async move {
            let marker = match invocation.read_marker(&region).await {
                Err(error) if publish_only && error.code() == Code::BucketUnavailable => None,
                other => other?,
            };
            let storage = marker.map(|marker| marker.storage);
            if let Some(storage) = &storage {
                invocation.check_storage(&region, storage).await?;
            }
            Ok::<_, Error>((region, storage))
        };
        let regions: BTreeMap<_, _> =
            try_join_all(exposed.into_iter().map(read)).await?.into_iter().collect();
        let account = &invocation.settings.account;
        let all = || selection.stacks.iter().flat_map(|stack| &stack.asset_manifests);
        let own = regions.iter().filter(|(_, storage)| storage.is_some());
        let keys = own.map(|(region, _)| (region.clone(), keys(all(), Here { account, region }))).collect();
        Ok(Self { regions, keys, opted_out: false })
    }

    /// What the assets of a stack come to.
    ///
    /// # Errors
    /// `UnsupportedAsset`, `InvalidAssembly`.
    pub fn of(&self, stack: &SelectedStack) -> Result<Assets> {
        stack.check_synthesizer()?;
        let storage = self.regions.get(&stack.region).and_then(Option::as_ref);
        let keys = self.keys.get(&stack.region).cloned().unwrap_or_default();
        let table = Table::new(&stack.asset_manifests, &keys, here(stack), storage);
        let address = |bucket: &str, key: &str, region: Option<&str>| Ok(table.address(bucket, key, region));
        let files = collect(stack.name.as_str(), &stack.asset_manifests, &stack.template_paths(), address)?;
        Ok(Assets { table, files })
    }

    /// A notice for each region whose assets `cdk gc` may delete, given the stacks that publish any (rule A22).
    pub fn notices<'s>(&self, publishing: impl Iterator<Item = &'s SelectedStack>) -> Vec<String> {
        let regions: BTreeSet<&Region> = publishing.map(|stack| &stack.region).collect();
        let legacy = |region: &&Region| !self.opted_out && matches!(self.regions.get(*region), Some(None));
        regions.into_iter().filter(legacy).map(exposed).collect()
    }
}

fn here(stack: &SelectedStack) -> Here<'_> {
    Here { account: &stack.account, region: &stack.region }
}

/// What references are folded with: what is constant for the deploy in each stack of a tree.
pub(crate) struct Folding<'s> {
    stack: &'s SelectedStack,
    /// Values of parameters by the path of the stack that declares them. Never of a secret, nor of what only the deploy
    /// will know.
    parameters: BTreeMap<String, BTreeMap<String, String>>,
}

impl<'s> Folding<'s> {
    pub fn new(stack: &'s SelectedStack) -> Self {
        Self { stack, parameters: BTreeMap::new() }
    }

    /// Takes the parameters of a tree, as far as they are known before anything is read.
    pub fn learn(&mut self, tree: &Tree<'_>) -> Result<()> {
        for (path, _) in tree.stacks() {
            let bound = tree.parameters(path, Known::nothing())?;
            let plain = |(name, value): (&String, &Node)| {
                let text = value.as_plain().filter(|_| !bound.no_echo.contains(name))?;
                Some((name.clone(), text.to_owned()))
            };
            self.parameters.insert(path.to_owned(), bound.values.iter().filter_map(plain).collect());
        }
        Ok(())
    }

    /// Redirects the references of the template at a path; answers warnings.
    pub fn rewrite(&self, table: &mut Table, path: &str, template: &mut Value) -> Vec<String> {
        let mut values = self.parameters.get(path).cloned().unwrap_or_default();
        let pseudo = self.stack.pseudo();
        // Not the stack's id: it is made when the deploy begins.
        for (name, value) in [
            ("AWS::AccountId", pseudo.account),
            ("AWS::Region", pseudo.region),
            ("AWS::Partition", pseudo.partition),
            ("AWS::URLSuffix", pseudo.url_suffix),
            ("AWS::StackName", key_of(&self.stack.key(), path).stack.as_str().replace('~', "-")),
        ] {
            values.insert(name.to_owned(), value);
        }
        let rewritten = table.rewrite(template, &Constants { values });
        let left = rewritten.left.into_iter().map(|(id, reference)| {
            format!(
                "`{id}` of stack `{}` refers to `{reference}`, which is no asset of the assembly: it stays as it is",
                key_of(&self.stack.key(), path).stack
            )
        });
        left.collect()
    }
}
