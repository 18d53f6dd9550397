//! An assembly with its nested assemblies, as one list of stacks.

use indexmap::IndexMap;

use super::manifest::{ArtifactKind, Manifest, MissingContext, StackArtifact};
use crate::error::{Code, Error, Result, nearest};

/// The stacks of an assembly at any depth, linked to each other.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Assembly {
    /// In the order of the manifests, a nested assembly's at the place of its artifact.
    pub stacks: Vec<Stack>,
}

/// A stack and what hangs on it.
#[derive(Clone, Debug, PartialEq)]
pub struct Stack {
    pub artifact: StackArtifact,
    /// Folder of the manifest it comes from, canonical, empty for the root.
    pub folder: String,
    /// Paths of its asset manifests.
    pub asset_manifests: Vec<String>,
    /// Indices in [`Assembly::stacks`] of the stacks to deploy before it, without repetition.
    pub dependencies: Vec<usize>,
    /// What synthesis did without. A manifest does not say which of its stacks asked, so it concerns all of them, and
    /// a stage's misses, which the manifests around it repeat, concern the stacks there too. What only manifests
    /// without stacks list concerns every stack.
    pub missing: Vec<MissingContext>,
}

impl Stack {
    /// The name for messages: `name`, with the construct's path if that differs.
    pub fn label(&self) -> String {
        let StackArtifact { name, display_name, .. } = &self.artifact;
        if name == display_name { format!("`{name}`") } else { format!("`{name}` ({display_name})") }
    }
}

impl Assembly {
    /// Links manifests, by folder with the root's (`""`) among them; each nested assembly's has to be there.
    ///
    /// `InvalidAssembly`: a dependency on an artifact that the manifest lacks, or two artifacts for one folder.
    pub fn link(manifests: &IndexMap<String, Manifest>) -> Result<Self> {
        let mut linking = Linking { manifests, stacks: Vec::new(), below: IndexMap::new() };
        linking.collect()?;
        let mut assembly =
            Assembly { stacks: linking.stacks.iter().map(|found| found.stack.clone()).collect() };
        for (n, found) in linking.stacks.iter().enumerate() {
            let mut dependencies = linking.depends(&found.stack.folder, &found.needs)?;
            // A stage's own dependencies hold for all that is in it.
            let mut folder = found.stack.folder.as_str();
            while let Some(stage) = linking.below.get(folder).and_then(|below| below.stage.as_ref()) {
                dependencies.extend(linking.depends(&stage.folder, stage.needs)?);
                folder = &stage.folder;
            }
            if let Some(stack) = assembly.stacks.get_mut(n) {
                for dependency in dependencies {
                    if !stack.dependencies.contains(&dependency) {
                        stack.dependencies.push(dependency);
                    }
                }
            }
        }
        Ok(assembly)
    }
}

struct Linking<'a> {
    manifests: &'a IndexMap<String, Manifest>,
    stacks: Vec<Found>,
    below: IndexMap<&'a str, Below<'a>>,
}

struct Found {
    stack: Stack,
    needs: Vec<String>,
}

/// What lies in a folder: its stacks, by artifact id and of its stages too, and the artifact that brought it in.
#[derive(Default)]
struct Below<'a> {
    ids: IndexMap<&'a str, usize>,
    stage: Option<Stage<'a>>,
}

struct Stage<'a> {
    folder: String,
    needs: &'a [String],
}

impl Linking<'_> {
    /// Walks the manifests in order, without recursion: their depth is the user's.
    fn collect(&mut self) -> Result<()> {
        let Some((root, manifest)) = self.manifests.get_key_value("") else { return Ok(()) };
        self.below.insert(root, Below::default());
        let ownerless = ownerless(self.manifests);
        let mut walks = vec![(root.as_str(), manifest, manifest.artifacts.iter())];
        while let Some((folder, manifest, artifacts)) = walks.last_mut() {
            let (folder, manifest) = (*folder, *manifest);
            let Some((id, artifact)) = artifacts.next() else {
                walks.pop();
                continue;
            };
            match &artifact.kind {
                ArtifactKind::Stack(stack) => {
                    let stack = Stack {
                        artifact: (**stack).clone(),
                        folder: folder.to_owned(),
                        asset_manifests: asset_manifests(manifest, &artifact.dependencies),
                        dependencies: Vec::new(),
                        missing: manifest.missing.iter().chain(&ownerless).cloned().collect(),
                    };
                    self.below.entry(folder).or_default().ids.insert(id, self.stacks.len());
                    self.stacks.push(Found { stack, needs: artifact.dependencies.clone() });
                }
                ArtifactKind::Assembly { folder: inner, .. } => {
                    let (inner, nested) = self.manifests.get_key_value(inner).ok_or_else(|| {
                        Error::new(
                            Code::InvalidAssembly,
                            format!("the nested assembly `{inner}` has no manifest"),
                        )
                    })?;
                    let stage = Stage { folder: folder.to_owned(), needs: &artifact.dependencies };
                    let below = Below { stage: Some(stage), ..Below::default() };
                    if self.below.insert(inner, below).is_some() {
                        return Err(Error::new(
                            Code::InvalidAssembly,
                            format!(
                                "artifact `{id}` brings in the folder `{inner}`, which another one did before"
                            ),
                        ));
                    }
                    walks.push((inner, nested, nested.artifacts.iter()));
                }
                ArtifactKind::AssetManifest { .. } | ArtifactKind::Other(_) => {}
            }
        }
        Ok(())
    }

    /// The stacks that the artifacts `needs` of the manifest in `folder` stand for.
    fn depends(&self, folder: &str, needs: &[String]) -> Result<Vec<usize>> {
        let Some(manifest) = self.manifests.get(folder) else { return Ok(Vec::new()) };
        let mut found = Vec::new();
        for id in needs {
            match manifest.artifacts.get(id).map(|artifact| &artifact.kind) {
                Some(ArtifactKind::Stack(_)) => {
                    found.extend(self.below.get(folder).and_then(|below| below.ids.get(id.as_str())));
                }
                Some(ArtifactKind::Assembly { folder: inner, .. }) => found.extend(self.all_in(inner)),
                Some(ArtifactKind::AssetManifest { .. } | ArtifactKind::Other(_)) => {}
                None => {
                    let ids = manifest.artifacts.keys().map(String::as_str);
                    let mut error = Error::new(
                        Code::InvalidAssembly,
                        format!("an artifact depends on `{id}`, which its manifest does not have"),
                    )
                    .detail("artifact", id.as_str())
                    .detail("folder", folder);
                    if let Some(near) = nearest(id, ids) {
                        error = error.hint(format!("did you mean `{near}`?"));
                    }
                    return Err(error);
                }
            }
        }
        Ok(found)
    }

    /// The stacks in a folder and in the stages brought in from there.
    fn all_in(&self, folder: &str) -> Vec<usize> {
        let mut found = Vec::new();
        let mut open = vec![folder];
        while let Some(folder) = open.pop() {
            found.extend(self.below.get(folder).into_iter().flat_map(|below| below.ids.values().copied()));
            open.extend(self.below.iter().filter_map(|(inner, below)| {
                below.stage.as_ref().filter(|stage| stage.folder == folder).map(|_| *inner)
            }));
        }
        found.sort_unstable();
        found
    }
}

fn asset_manifests(manifest: &Manifest, needs: &[String]) -> Vec<String> {
    needs
        .iter()
        .filter_map(|id| match &manifest.artifacts.get(id)?.kind {
            ArtifactKind::AssetManifest { file } => Some(file.clone()),
            _ => None,
        })
        .collect()
}

/// Missing context that no manifest with stacks lists.
fn ownerless(manifests: &IndexMap<String, Manifest>) -> Vec<MissingContext> {
    let (with, without): (Vec<&Manifest>, Vec<&Manifest>) =
        manifests.values().partition(|manifest| manifest.stacks().next().is_some());
    let owned = |missing: &MissingContext| with.iter().any(|manifest| manifest.missing.contains(missing));
    without.iter().flat_map(|manifest| &manifest.missing).filter(|missing| !owned(missing)).cloned().collect()
}
