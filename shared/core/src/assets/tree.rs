//! The files of an assembly as a tree, links followed.
//!
//! An asset's archive holds files alone: a link is what it leads to, as `cdk-assets` has it, be it a file or a folder
//! with everything in it. A link may lead to anywhere in the assembly, but not out of it.

use std::collections::BTreeMap;

use crate::assembly::limits::MAX_ENTRIES;
use crate::assembly::path::{folder, link_target};
use crate::error::{Code, Error, Result};

/// How many links may lead to one file: Linux follows 40.
const MAX_LINKS: usize = 40;

/// What lies at a path.
#[derive(Clone, Debug)]
enum Node<T> {
    File(T),
    /// The content of a symbolic link.
    Link(Vec<u8>),
}

/// The files and links of an assembly by their canonical paths.
#[derive(Clone, Debug)]
pub struct Tree<T> {
    nodes: BTreeMap<String, Node<T>>,
}

/// What a path leads to.
#[derive(Debug, PartialEq, Eq)]
pub enum Found<'a, T> {
    File(&'a T),
    /// Its path once links are followed.
    Folder(String),
    Nothing,
}

impl<T> Default for Tree<T> {
    fn default() -> Self {
        Self { nodes: BTreeMap::new() }
    }
}

impl<T> Tree<T> {
    /// Adds a file; `path` is canonical.
    pub fn file(&mut self, path: String, file: T) {
        self.nodes.insert(path, Node::File(file));
    }

    /// Adds a symbolic link; `content` is what it says.
    pub fn link(&mut self, path: String, content: Vec<u8>) {
        self.nodes.insert(path, Node::Link(content));
    }

    /// How many files and links there are.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// What lies at a canonical path; links on the way and at its end are followed.
    ///
    /// `UnsafeAssemblyPath`: a link leaves the assembly. `InvalidAssembly`: links lead in a circle.
    pub fn find(&self, path: &str) -> Result<Found<'_, T>> {
        let mut links = 0;
        // What is resolved already, and what is still ahead.
        let (mut at, mut ahead) = (String::new(), path.to_owned());
        loop {
            let (segment, rest) = ahead.split_once('/').unwrap_or((ahead.as_str(), ""));
            if segment.is_empty() {
                return Ok(if at.is_empty() || self.is_folder(&at) {
                    Found::Folder(at)
                } else {
                    Found::Nothing
                });
            }
            let here = if at.is_empty() { segment.to_owned() } else { format!("{at}/{segment}") };
            match self.nodes.get(&here) {
                Some(Node::File(file)) if rest.is_empty() => return Ok(Found::File(file)),
                Some(Node::File(_)) => return Ok(Found::Nothing),
                Some(Node::Link(content)) => {
                    links += 1;
                    if links > MAX_LINKS {
                        return Err(circle(path));
                    }
                    let target = link_target(&here, content)?;
                    ahead = [target.as_str(), rest]
                        .into_iter()
                        .filter(|it| !it.is_empty())
                        .collect::<Vec<_>>()
                        .join("/");
                    at = String::new();
                }
                None => (at, ahead) = (here, rest.to_owned()),
            }
        }
    }

    /// All files below a folder (canonical, links followed, as [`Found::Folder`] gives it) by their names in it, sorted
    /// bytewise, links followed.
    ///
    /// `InvalidAssembly`: a link leads to nothing, or into a folder that it lies in. `UnsafeAssemblyPath`: one leaves the
    /// assembly. `AssemblyTooLarge`: links multiply the files beyond what an assembly may have.
    pub fn files_below(&self, folder: &str) -> Result<Vec<(String, &T)>> {
        let mut found = BTreeMap::new();
        self.walk(folder, "", &mut vec![folder.to_owned()], &mut found)?;
        Ok(found.into_iter().collect())
    }

    fn walk<'a>(
        &'a self,
        folder: &str,
        name: &str,
        around: &mut Vec<String>,
        found: &mut BTreeMap<String, &'a T>,
    ) -> Result<()> {
        let below = if folder.is_empty() { String::new() } else { format!("{folder}/") };
        for (path, node) in self.nodes.range(below.clone()..).take_while(|(path, _)| path.starts_with(&below))
        {
            let name = format!("{name}{}", path.get(below.len()..).unwrap_or_default());
            match node {
                Node::File(file) => insert(found, name, file)?,
                Node::Link(_) => match self.find(path)? {
                    Found::File(file) => insert(found, name, file)?,
                    Found::Nothing => {
                        return Err(Error::new(
                            Code::InvalidAssembly,
                            format!("the link `{path}` in the assembly leads to nothing"),
                        )
                        .hint("remove it, or synthesize again so that what it leads to is in `cdk.out`")
                        .detail("path", path.as_str()));
                    }
                    Found::Folder(target) => {
                        // Back into a folder on the way here, or around one: the walk would never end.
                        let returns = around.iter().any(|it| within(it, &target)) || within(path, &target);
                        if returns || around.len() > MAX_LINKS {
                            return Err(circle(path));
                        }
                        around.push(target.clone());
                        self.walk(&target, &format!("{name}/"), around, found)?;
                        around.pop();
                    }
                },
            }
        }
        Ok(())
    }

    fn is_folder(&self, path: &str) -> bool {
        let below = format!("{path}/");
        self.nodes.range(below.clone()..).next().is_some_and(|(path, _)| path.starts_with(&below))
    }
}

fn insert<'a, T>(found: &mut BTreeMap<String, &'a T>, name: String, file: &'a T) -> Result<()> {
    found.insert(name, file);
    if found.len() as u64 > MAX_ENTRIES {
        return Err(Error::new(
            Code::AssemblyTooLarge,
            format!("an asset has more than {MAX_ENTRIES} files, those behind links counted"),
        )
        .hint("leave out of the asset what does not belong there, such as links to whole packages"));
    }
    Ok(())
}

/// Whether a path is the folder itself or lies below it.
fn within(path: &str, folder: &str) -> bool {
    folder.is_empty()
        || path.strip_prefix(folder).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

fn circle(path: &str) -> Error {
    Error::new(
        Code::InvalidAssembly,
        format!("the link `{path}` in the assembly leads back to itself or to what it lies in"),
    )
    .hint("remove it from the asset: a file system follows it for ever")
    .detail("path", path)
    .detail("folder", folder(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Files by their paths; `a -> b` is a link.
    fn tree(lines: &[&'static str]) -> Tree<&'static str> {
        let mut tree = Tree::default();
        for line in lines {
            match line.split_once(" -> ") {
                Some((path, target)) => tree.link(path.to_owned(), target.as_bytes().to_vec()),
                None => tree.file((*line).to_owned(), *line),
            }
        }
        tree
    }

    fn files(lines: &[&'static str], folder: &str) -> Result<String> {
        let tree = tree(lines);
        let files = tree.files_below(folder)?;
        let shown = |(name, file): &(String, &&str)| {
            let plain = format!("{folder}/{name}");
            if plain == **file { name.clone() } else { format!("{name}={file}") }
        };
        Ok(files.iter().map(shown).collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn a_folder_has_files_alone_and_links_are_what_they_lead_to() {
        let table: &[(&[&str], &str)] = &[
            (&["x/b", "x/a", "x/a/c", "xx/d", "w"], "a a/c b"),
            (&["x/a.b", "x/a/b", "x/A"], "A a.b a/b"),
            (&["x/a", "x/l -> a"], "a l=x/a"),
            (&["x/d/a", "x/l -> d"], "d/a l/a=x/d/a"),
            (&["x/d/a", "x/l -> d/../d/a"], "d/a l=x/d/a"),
            (&["x/a", "x/l -> m", "x/m -> a"], "a l=x/a m=x/a"),
            // Out of the asset, inside of the assembly.
            (&["x/l -> ../y/a", "y/a", "x/m -> ../y"], "l=y/a m/a=y/a"),
            // Through a link.
            (&["x/l -> d/sub/a", "x/d -> ../y", "y/sub/a"], "d/sub/a=y/sub/a l=y/sub/a"),
            (&["x/l -> ../y", "y/m -> z/a", "y/z/a"], "l/m=y/z/a l/z/a=y/z/a"),
        ];
        for (lines, expected) in table {
            assert_eq!(files(lines, "x").as_deref(), Ok(*expected), "{lines:?}");
        }
    }

    #[test]
    fn links_that_lead_nowhere_out_or_round_are_refused() {
        let table: &[(&[&str], Code)] = &[
            (&["x/l -> none"], Code::InvalidAssembly),
            (&["x/a", "x/l -> a/b"], Code::InvalidAssembly),
            (&["x/l -> ../../etc/passwd"], Code::UnsafeAssemblyPath),
            (&["x/l -> /etc/passwd"], Code::UnsafeAssemblyPath),
            (&["x/l -> l"], Code::InvalidAssembly),
            (&["x/l -> m", "x/m -> l"], Code::InvalidAssembly),
            (&["x/a", "x/l -> ."], Code::InvalidAssembly),
            (&["x/d/a", "x/d/l -> .."], Code::InvalidAssembly),
            (&["x/a", "x/l -> ../y", "y/b", "y/m -> ../x"], Code::InvalidAssembly),
            (&["x/l -> ..", "y/b"], Code::InvalidAssembly),
        ];
        for (lines, code) in table {
            let error = files(lines, "x").unwrap_err();
            assert_eq!(error.code(), *code, "{lines:?}");
            assert!(error.message().contains("/l`") || error.message().contains("/m`"), "{error}");
            assert!(error.hint_text().is_some());
        }
    }

    #[test]
    fn links_do_not_multiply_without_bound() {
        // 10 folders of 10 links, each to the next: 10^10 files.
        let mut tree = Tree::default();
        for folder in 0..10 {
            for link in 0..10 {
                tree.link(format!("x/{folder}/{link}"), format!("../../y/{}", folder + 1).into_bytes());
                tree.link(format!("y/{folder}/{link}"), format!("../../y/{}", folder + 1).into_bytes());
            }
        }
        tree.file("y/10/a".to_owned(), "");
        assert_eq!(tree.files_below("x").unwrap_err().code(), Code::AssemblyTooLarge);
    }

    #[test]
    fn what_lies_at_a_path() {
        let tree = tree(&["a/b/c", "l -> a", "m -> l/b/c"]);
        let folder = |path: &str| Found::Folder(path.to_owned());
        let table = [
            ("a/b/c", Found::File(&"a/b/c")),
            ("a/b", folder("a/b")),
            ("l", folder("a")),
            ("l/b", folder("a/b")),
            ("l/b/c", Found::File(&"a/b/c")),
            ("m", Found::File(&"a/b/c")),
            ("", folder("")),
            ("a/b/c/d", Found::Nothing),
            ("a/x", Found::Nothing),
        ];
        for (path, expected) in table {
            assert_eq!(tree.find(path).unwrap(), expected, "{path}");
        }
    }
}
