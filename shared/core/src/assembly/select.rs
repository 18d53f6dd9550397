//! Which stacks of an assembly a run deploys, and in which order (rules T14, E13).

use std::collections::{BTreeMap, BTreeSet};

use super::input::Parameters;
use super::order::{Needs, arrange};
use super::tree::{Assembly, Stack};
use crate::error::{Code, Error, Result, nearest};
use crate::name::{Account, RecordKey, Region, StackName};
use crate::template::Links;

/// What a run asks for.
#[derive(Clone, Debug)]
pub struct Request {
    /// Stack names, display names, artifact ids or globs ([`glob`]); empty for every stack of the account.
    pub stacks: Vec<String>,
    /// Leave the stacks out that the named ones depend on.
    pub exclusively: bool,
    /// The region of stacks that name none.
    pub region: Region,
    /// The account that cdkd is installed in.
    pub account: Account,
    /// The names of exports may depend on them.
    pub parameters: Parameters,
}

/// A stack that the run deploys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chosen {
    /// Index in [`Assembly::stacks`].
    pub index: usize,
    pub key: RecordKey,
    /// Not asked for: an other one depends on it.
    pub pulled_in: bool,
    /// Stacks of the run to be deployed before it; what follows through others is left out.
    pub needs: Vec<RecordKey>,
}

/// Selecting the stacks of a run: first by the manifests, then by what templates are found to import.
#[derive(Clone, Debug)]
pub struct Selecting {
    pub assembly: Assembly,
    request: Request,
    asked: BTreeSet<usize>,
    wanted: BTreeSet<usize>,
    /// Of the stacks whose templates have been read.
    links: BTreeMap<usize, Links>,
    pub notices: Vec<String>,
}

impl Selecting {
    /// Selects the stacks that are asked for, and those that they depend on by the manifests.
    ///
    /// Codes: `StackNotFound`, `WrongAccount` (a name fits stacks of other accounts alone), and those of
    /// [`pull_in`](Self::pull_in).
    pub fn start(assembly: Assembly, request: Request) -> Result<Self> {
        let mut notices = Vec::new();
        let asked = if request.stacks.is_empty() {
            every_stack(&assembly, &request, &mut notices)?
        } else {
            named(&assembly, &request, &mut notices)?
        };
        let wanted = asked.clone();
        let mut selecting = Self { assembly, request, asked, wanted, links: BTreeMap::new(), notices };
        selecting.follow_manifests();
        selecting.check()?;
        Ok(selecting)
    }

    /// The stacks selected so far, as indices in [`Assembly::stacks`].
    pub fn wanted(&self) -> impl Iterator<Item = usize> {
        self.wanted.iter().copied()
    }

    /// Whether the template of a stack has been read.
    pub fn knows(&self, index: usize) -> bool {
        self.links.contains_key(&index)
    }

    /// Takes what the template of a stack says.
    pub fn learn(&mut self, index: usize, links: Links) {
        self.links.insert(index, links);
    }

    /// The stack's record; `None` if its name or region is none.
    pub fn key(&self, index: usize) -> Option<RecordKey> {
        coordinates(self.assembly.stacks.get(index)?, &self.request).ok()
    }

    /// Stacks whose templates have not been read and that may export what a selected one imports. None, if all that is
    /// imported is exported by selected stacks: so it is for what CDK imports by itself.
    pub fn candidates(&self) -> Vec<usize> {
        if self.request.exclusively {
            return Vec::new();
        }
        let open = self.open_imports();
        let regions: BTreeSet<&Region> = open.iter().map(|(_, key, _)| &key.region).collect();
        let others = (0..self.assembly.stacks.len()).filter(|n| !self.wanted.contains(n) && !self.knows(*n));
        others.filter(|n| self.ours(*n).is_some_and(|key| regions.contains(&key.region))).collect()
    }

    /// Adds the stacks that export what selected ones import (rule E13), and those that they depend on. Whether any
    /// were added: then there are templates to be read, and to be followed again.
    ///
    /// Codes: `AmbiguousStack` (two of one name in one region), `InvalidAssembly` (a name or region that is none).
    pub fn pull_in(&mut self) -> Result<bool> {
        if self.request.exclusively {
            return Ok(false);
        }
        let mut exporters: BTreeMap<(Region, &str), Vec<usize>> = BTreeMap::new();
        for (&n, links) in self.links.iter().filter(|(n, _)| !self.wanted.contains(n)) {
            let Some(key) = self.ours(n) else { continue };
            for export in &links.exports {
                exporters.entry((key.region.clone(), export)).or_default().push(n);
            }
        }
        let mut found = BTreeSet::new();
        let mut notices = Vec::new();
        for (consumer, key, export) in self.open_imports() {
            let all = exporters.get(&(key.region, export)).cloned().unwrap_or_default();
            // Stages may each have a stack that exports the name: then it is the one of the consumer's own.
            let near: Vec<usize> =
                all.iter().copied().filter(|n| self.folder(*n) == self.folder(consumer)).collect();
            let by = self.label(consumer);
            match if near.is_empty() { &all } else { &near }.as_slice() {
                [] => {}
                [one] => {
                    found.insert(*one);
                    notices.push(format!(
                        "stack {} is included: {by} imports `{export}` from it",
                        self.label(*one)
                    ));
                }
                several => {
                    let labels: Vec<String> = several.iter().map(|n| self.label(*n)).collect();
                    notices.push(format!(
                        "{by} imports `{export}`, which {} export; none of them is included",
                        labels.join(" and ")
                    ));
                }
            }
        }
        let more = !found.is_empty();
        self.wanted.extend(found);
        for notice in notices {
            note(&mut self.notices, notice);
        }
        self.follow_manifests();
        self.check()?;
        Ok(more)
    }

    /// The stacks of the run in their order, level by level: each comes after those it depends on by the manifests,
    /// those whose exports it imports, and those whose outputs it reads.
    ///
    /// Codes: `CircularDependency`, `InvalidAssembly`.
    pub fn finish(&self) -> Result<Vec<Chosen>> {
        let order = arrange(&self.needs(), &self.wanted).map_err(|circle| {
            let names: Vec<String> = circle.iter().map(|n| self.label(*n)).collect();
            Error::new(
                Code::CircularDependency,
                format!("stacks depend on each other in a circle: {}", names.join(" → ")),
            )
            .hint(
                "remove one of these dependencies in the app: of the stacks themselves, an import of an export, or a \
                 read of an output",
            )
            .detail("circle", names)
        })?;
        let chosen = |index: &usize| {
            let stack = self.assembly.stacks.get(*index)?;
            let needs =
                order.needs.get(index).into_iter().flatten().filter_map(|need| self.key(*need)).collect();
            let pulled_in = !self.asked.contains(index);
            Some(coordinates(stack, &self.request).map(|key| Chosen { index: *index, key, pulled_in, needs }))
        };
        order.levels.iter().flatten().filter_map(chosen).collect()
    }

    /// What each stack has to wait for.
    fn needs(&self) -> Needs {
        let mut needs: Needs = self
            .assembly
            .stacks
            .iter()
            .enumerate()
            .map(|(n, stack)| (n, stack.dependencies.iter().copied().collect()))
            .collect();
        let keys: BTreeMap<usize, RecordKey> =
            self.wanted.iter().filter_map(|n| Some((*n, self.key(*n)?))).collect();
        let stacks: BTreeMap<&RecordKey, usize> = keys.iter().map(|(n, key)| (key, *n)).collect();
        let exporters = self.exporters(&keys);
        for (n, key) in &keys {
            let Some(links) = self.links.get(n) else { continue };
            let imported = links
                .imports
                .iter()
                .filter_map(|name| exporters.get(&(&key.region, name.as_str())))
                .flatten();
            let read = links.outputs.iter().filter_map(|source| stacks.get(source));
            // That a stack cannot wait for itself is for its own checks to say.
            needs.entry(*n).or_default().extend(imported.chain(read).filter(|need| *need != n));
        }
        needs
    }

    /// The selected stacks that export a name in a region.
    fn exporters<'a>(
        &'a self,
        keys: &'a BTreeMap<usize, RecordKey>,
    ) -> BTreeMap<(&'a Region, &'a str), Vec<usize>> {
        let mut exporters: BTreeMap<_, Vec<usize>> = BTreeMap::new();
        for (n, key) in keys {
            for export in self.links.get(n).into_iter().flat_map(|links| &links.exports) {
                exporters.entry((&key.region, export.as_str())).or_default().push(*n);
            }
        }
        exporters
    }

    /// Imports of selected stacks that no other selected stack exports: the stack, its record, the name.
    fn open_imports(&self) -> Vec<(usize, RecordKey, &str)> {
        let keys: BTreeMap<usize, RecordKey> =
            self.wanted.iter().filter_map(|n| Some((*n, self.key(*n)?))).collect();
        let exporters = self.exporters(&keys);
        let mut open = Vec::new();
        for (n, key) in &keys {
            for import in self.links.get(n).into_iter().flat_map(|links| &links.imports) {
                let by = exporters.get(&(&key.region, import.as_str()));
                if !by.is_some_and(|by| by.iter().any(|exporter| exporter != n)) {
                    open.push((*n, key.clone(), import.as_str()));
                }
            }
        }
        open
    }

    /// The record of a stack of this account.
    fn ours(&self, index: usize) -> Option<RecordKey> {
        let ours = foreign_account(&self.assembly, &self.request, index).is_none();
        self.key(index).filter(|_| ours)
    }

    fn folder(&self, index: usize) -> Option<&str> {
        self.assembly.stacks.get(index).map(|stack| stack.folder.as_str())
    }

    fn label(&self, index: usize) -> String {
        self.assembly.stacks.get(index).map(Stack::label).unwrap_or_default()
    }

    /// Adds what the selected stacks depend on by the manifests, as the CDK CLI does.
    fn follow_manifests(&mut self) {
        if self.request.exclusively {
            return;
        }
        let mut open: Vec<usize> = self.wanted().collect();
        while let Some(consumer) = open.pop() {
            let Some(by) = self.assembly.stacks.get(consumer) else { continue };
            for &producer in &by.dependencies {
                let Some(stack) = self.assembly.stacks.get(producer) else { continue };
                if self.wanted.contains(&producer) {
                    continue;
                }
                let (label, by) = (stack.label(), by.label());
                if let Some(account) = foreign_account(&self.assembly, &self.request, producer) {
                    let notice = format!(
                        "stack {label}, which {by} depends on, is left out: it belongs to account {account}"
                    );
                    note(&mut self.notices, notice);
                    continue;
                }
                note(&mut self.notices, format!("stack {label} is included: {by} depends on it"));
                self.wanted.insert(producer);
                open.push(producer);
            }
        }
    }

    fn check(&self) -> Result<()> {
        let mut records: BTreeMap<RecordKey, Vec<&Stack>> = BTreeMap::new();
        for stack in self.wanted.iter().filter_map(|n| self.assembly.stacks.get(*n)) {
            records.entry(coordinates(stack, &self.request)?).or_default().push(stack);
        }
        one_per_record(&records)
    }
}

/// Whether a pattern fits a text: `?` is one character but `/`, `*` any number of them, `**` any number with `/`.
/// All else is literal.
pub fn glob(pattern: &str, text: &str) -> bool {
    let (pattern, text): (Vec<char>, Vec<char>) = (pattern.chars().collect(), text.chars().collect());
    // reached[t]: the pattern so far fits the first t characters of the text.
    let mut reached = vec![false; text.len() + 1];
    if let Some(start) = reached.first_mut() {
        *start = true;
    }
    let mut at = 0;
    while let Some(&sign) = pattern.get(at) {
        let stars = pattern.iter().skip(at).take_while(|c| **c == '*').count();
        let mut next = Vec::with_capacity(reached.len());
        for (t, &here) in reached.iter().enumerate() {
            let before = t.checked_sub(1);
            let character = before.and_then(|b| text.get(b)).copied();
            let fits = if stars > 0 {
                let go_on = before.and_then(|b| next.get(b)).copied().unwrap_or(false);
                here || go_on && (stars > 1 || character != Some('/'))
            } else {
                let was = before.and_then(|b| reached.get(b)).copied().unwrap_or(false);
                was && character.is_some_and(|c| c == sign || sign == '?' && c != '/')
            };
            next.push(fits);
        }
        reached = next;
        at += stars.max(1);
    }
    reached.last().copied().unwrap_or(false)
}

/// The stacks that a name or glob fits. A name counts as stack name, else as display name, else as artifact id. A glob
/// with `/` is one for display names; one without fits stack names and ids too, so `*` is every stack at any depth.
pub fn matching(assembly: &Assembly, pattern: &str) -> Vec<usize> {
    let all = |fits: &dyn Fn(&Stack) -> bool| -> Vec<usize> {
        assembly.stacks.iter().enumerate().filter(|(_, stack)| fits(stack)).map(|(n, _)| n).collect()
    };
    let exact = [
        all(&|stack| stack.artifact.name == pattern),
        all(&|stack| stack.artifact.display_name == pattern),
        all(&|stack| stack.artifact.id == pattern),
    ];
    if let Some(found) = exact.into_iter().find(|found| !found.is_empty()) {
        return found;
    }
    if !pattern.contains(['*', '?']) {
        return Vec::new();
    }
    let path = pattern.contains('/');
    all(&|Stack { artifact, .. }| {
        glob(pattern, &artifact.display_name)
            || !path && (glob(pattern, &artifact.name) || glob(pattern, &artifact.id))
    })
}

/// That no stack of the assembly answers to a name, with the nearest one and the list.
pub fn not_found(assembly: &Assembly, pattern: &str) -> Error {
    let labels: Vec<String> = assembly.stacks.iter().map(Stack::label).collect();
    let names = assembly.stacks.iter().flat_map(|Stack { artifact, .. }| {
        [artifact.name.as_str(), artifact.display_name.as_str(), artifact.id.as_str()]
    });
    let listed = list(&labels);
    let hint = match nearest(pattern, names) {
        Some(near) => format!("did you mean `{near}`? The assembly has {listed}"),
        None => format!("the assembly has {listed}"),
    };
    let names: Vec<&str> =
        assembly.stacks.iter().take(SHOWN).map(|stack| stack.artifact.name.as_str()).collect();
    Error::new(Code::StackNotFound, format!("no stack of the assembly fits `{pattern}`"))
        .hint(hint)
        .detail("stack", pattern)
        .detail("stacks", names)
}

/// How many names a message lists.
const SHOWN: usize = 20;

fn list(labels: &[String]) -> String {
    let shown = labels.get(..SHOWN).unwrap_or(labels).join(", ");
    match labels.len().checked_sub(SHOWN) {
        Some(more) if more > 0 => format!("{shown} and {more} more"),
        _ => shown,
    }
}

fn every_stack(assembly: &Assembly, request: &Request, notices: &mut Vec<String>) -> Result<BTreeSet<usize>> {
    if assembly.stacks.is_empty() {
        return Err(Error::new(Code::StackNotFound, "the assembly has no stacks")
            .hint("upload the `cdk.out` of an app with a stack"));
    }
    let all: Vec<usize> = (0..assembly.stacks.len()).collect();
    of_this_account(assembly, request, &all, notices)
        .ok_or_else(|| wrong_account(assembly, request, &all, "every stack of the assembly"))
}

fn named(assembly: &Assembly, request: &Request, notices: &mut Vec<String>) -> Result<BTreeSet<usize>> {
    let mut chosen = BTreeSet::new();
    let mut errors = Vec::new();
    for pattern in &request.stacks {
        let found = matching(assembly, pattern);
        if found.is_empty() {
            errors.push(nested_stack(pattern).unwrap_or_else(|| not_found(assembly, pattern)));
        } else if let Some(ours) = of_this_account(assembly, request, &found, notices) {
            chosen.extend(ours);
        } else {
            errors.push(wrong_account(assembly, request, &found, &format!("stack `{pattern}`")));
        }
    }
    Error::all(errors)?;
    Ok(chosen)
}

/// The refusal of a nested stack by itself (rule E8).
fn nested_stack(pattern: &str) -> Option<Error> {
    let (parent, _) = pattern.split_once('~')?;
    Some(
        Error::new(Code::InvalidInput, format!("`{pattern}` is a nested stack of `{parent}`"))
            .hint(format!("deploy `{parent}`; its nested stacks go with it")),
    )
}

/// Those of `found` that live in the run's account, with a notice for each other; `None` if all are others'.
fn of_this_account(
    assembly: &Assembly,
    request: &Request,
    found: &[usize],
    notices: &mut Vec<String>,
) -> Option<BTreeSet<usize>> {
    let (ours, others): (Vec<usize>, Vec<usize>) =
        found.iter().partition(|n| foreign_account(assembly, request, **n).is_none());
    if ours.is_empty() {
        return None;
    }
    for n in others {
        if let (Some(stack), Some(account)) = (assembly.stacks.get(n), foreign_account(assembly, request, n))
        {
            note(notices, format!("stack {} is left out: it belongs to account {account}", stack.label()));
        }
    }
    Some(ours.into_iter().collect())
}

fn foreign_account<'a>(assembly: &'a Assembly, request: &Request, n: usize) -> Option<&'a str> {
    let account = assembly.stacks.get(n)?.artifact.environment.account.as_deref()?;
    (account != request.account.as_str()).then_some(account)
}

fn wrong_account(assembly: &Assembly, request: &Request, found: &[usize], what: &str) -> Error {
    let accounts: BTreeSet<&str> =
        found.iter().filter_map(|n| foreign_account(assembly, request, *n)).collect();
    let listed = accounts.iter().copied().collect::<Vec<_>>().join(", ");
    Error::new(
        Code::WrongAccount,
        format!("{what} belongs to account {listed}; this cdkd deploys to {}", request.account),
    )
    .hint("start the run in that account's cdkd, or synthesize with this account as `env.account`")
    .detail("accounts", accounts.into_iter().collect::<Vec<_>>())
}

fn note(notices: &mut Vec<String>, notice: String) {
    if !notices.contains(&notice) {
        notices.push(notice);
    }
}

fn coordinates(stack: &Stack, request: &Request) -> Result<RecordKey> {
    let of_the_assembly = |error: Error| {
        Error::new(Code::InvalidAssembly, format!("stack {}: {}", stack.label(), error.message()))
            .hint("correct the stack's name or `env.region` in the app")
    };
    // `~` is for the records of nested stacks.
    let name = stack.artifact.name.parse::<StackName>().map_err(of_the_assembly)?;
    if name.parent().is_some() {
        return Err(Error::new(
            Code::InvalidAssembly,
            format!("stack {}: a stack's name cannot have `~`", stack.label()),
        ));
    }
    let region = match &stack.artifact.environment.region {
        Some(region) => region.parse().map_err(of_the_assembly)?,
        None => request.region.clone(),
    };
    Ok(RecordKey::new(name, region))
}

fn one_per_record(records: &BTreeMap<RecordKey, Vec<&Stack>>) -> Result<()> {
    let Some((key, stacks)) = records.iter().find(|(_, stacks)| stacks.len() > 1) else {
        return Ok(());
    };
    let paths: Vec<&str> = stacks.iter().map(|stack| stack.artifact.display_name.as_str()).collect();
    let listed = paths.iter().map(|path| format!("`{path}`")).collect::<Vec<_>>().join(", ");
    Err(Error::new(
        Code::AmbiguousStack,
        format!("the assembly has several stacks `{}` in {}: {listed}", key.stack, key.region),
    )
    .hint("name one of them by its display name or artifact id")
    .detail("stack", key.stack.as_str())
    .detail("region", key.region.as_str())
    .detail("candidates", paths))
}

#[cfg(test)]
mod tests {
    use super::super::input::DeployInput;
    use super::super::source::{Source, open};
    use super::super::testing::{
        ACCOUNT, Documents, app, levels, linked, linked_app, manifest, request, stack, stack_in, stage,
    };
    use super::*;
    use serde_json::{Value, json};

    fn names(app: &Documents, stacks: &[&str]) -> Result<Vec<String>> {
        Ok(open(app, request(stacks))?.stacks.iter().map(|stack| stack.name.to_string()).collect())
    }

    fn named(mut artifact: Value, name: &str, display_name: &str) -> Value {
        artifact["properties"]["stackName"] = json!(name);
        artifact["displayName"] = json!(display_name);
        artifact
    }

    /// Top, and a stage in a stage: `Prod/Api` and `Prod/Inner/Db`.
    fn staged() -> Documents {
        let nested =
            |folder: &str| json!({"type": "cdk:cloud-assembly", "properties": {"directoryName": folder}});
        let root = app(&json!({"Top": stack(&[]), "assembly-Prod": nested("assembly-Prod")}));
        let prod = json!({
            "ProdApi": named(stack(&[]), "Prod-Api", "Prod/Api"),
            "assembly-Inner": nested("assembly-Inner"),
        });
        let inner = json!({"ProdInnerDb": named(stack(&[]), "Prod-Inner-Db", "Prod/Inner/Db")});
        stage(stage(root, "assembly-Prod", &prod), "assembly-Prod/assembly-Inner", &inner)
    }

    #[test]
    fn t14_globs() {
        let table = [
            ("*", "Web", true),
            ("*", "Prod/Web", false),
            ("**", "Prod/Web", true),
            ("Prod/*", "Prod/Web", true),
            ("Prod/*", "Prod/Inner/Web", false),
            ("Prod/**", "Prod/Inner/Web", true),
            ("W?b", "Web", true),
            ("W?b", "Wb", false),
            ("Prod?Web", "Prod/Web", false),
            ("*b*b", "bob", true),
            ("*b", "bob2", false),
            ("", "", true),
            ("**", "", true),
            ("[a]", "a", false),
            (&"*a".repeat(200), &"a".repeat(199), false),
        ];
        for (pattern, text, expected) in table {
            assert_eq!(glob(pattern, text), expected, "{pattern} {text}");
        }
    }

    #[test]
    fn t14_stacks_are_selected_by_name_display_name_id_or_glob_at_any_depth() {
        let app = staged();
        let all = ["Top", "Prod-Api", "Prod-Inner-Db"];
        let table: &[(&[&str], &[&str])] = &[
            (&[], &all),
            (&["*"], &all),
            (&["**"], &all),
            (&["Top"], &["Top"]),
            (&["Prod-Inner-Db"], &["Prod-Inner-Db"]),
            (&["Prod/Inner/Db"], &["Prod-Inner-Db"]),
            (&["ProdInnerDb"], &["Prod-Inner-Db"]),
            (&["Prod/*"], &["Prod-Api"]),
            (&["Prod/**"], &["Prod-Api", "Prod-Inner-Db"]),
            (&["Prod-*", "Prod/Api"], &["Prod-Api", "Prod-Inner-Db"]),
            (&["T?p"], &["Top"]),
        ];
        for (stacks, expected) in table {
            assert_eq!(names(&app, stacks).unwrap(), *expected, "{stacks:?}");
        }
    }

    #[test]
    fn t14_an_unknown_stack_is_refused_with_the_nearest_and_the_list() {
        let error = names(&staged(), &["Prod-Apu"]).unwrap_err();
        assert_eq!(error.code(), Code::StackNotFound);
        let hint = error.hint_text().unwrap();
        assert!(hint.contains("did you mean `Prod-Api`?"), "{hint}");
        assert!(hint.contains("`Prod-Inner-Db` (Prod/Inner/Db)"), "{hint}");
        // Two of them are told at once.
        let both = names(&staged(), &["Nope", "Top", "x*"]).unwrap_err();
        assert!(both.message().contains("and 1 more"), "{both}");
        assert_eq!(names(&app(&json!({})), &[]).unwrap_err().code(), Code::StackNotFound);
    }

    #[test]
    fn t14_stacks_of_other_accounts_are_left_out_or_refused() {
        let foreign = "aws://999999999999/eu-west-1";
        let app = app(&json!({
            "Ours": stack_in(&format!("aws://{ACCOUNT}/us-east-1"), &["Base"]),
            "Theirs": stack_in(foreign, &[]),
            "Base": stack_in(foreign, &[]),
        }));
        let selection = open(&app, request(&[])).unwrap();
        assert_eq!(selection.stacks.len(), 1);
        assert_eq!(selection.stacks[0].region.as_str(), "us-east-1");
        assert!(selection.notices[0].contains("`Theirs` is left out: it belongs to account 999999999999"));
        // A glob that fits ours too is no error; a dependency is told.
        let selection = open(&app, request(&["Ours"])).unwrap();
        assert!(selection.notices[0].contains("`Base`, which `Ours` depends on, is left out"));
        for stacks in [&["Theirs"][..], &["Th*"], &["Ours", "Theirs"]] {
            let error = names(&app, stacks).unwrap_err();
            assert_eq!(error.code(), Code::WrongAccount, "{stacks:?}");
            assert!(error.message().contains("999999999999"), "{error}");
        }
    }

    #[test]
    fn t14_one_name_twice_in_a_region_is_ambiguous() {
        let app = app(&json!({
            "A": named(stack(&[]), "Same", "One/Same"),
            "B": named(stack(&[]), "Same", "Two/Same"),
            "C": named(stack_in("aws://unknown-account/us-east-1", &[]), "Same", "Three/Same"),
        }));
        let error = names(&app, &["Same"]).unwrap_err();
        assert_eq!(error.code(), Code::AmbiguousStack);
        assert_eq!(error.details()["candidates"], json!(["One/Same", "Two/Same"]));
        assert_eq!(names(&app, &["One/Same", "C"]).unwrap(), ["Same", "Same"]);
    }

    #[test]
    fn producers_come_first_and_are_pulled_in() {
        let app = app(&json!({
            "Web": stack(&["Web.assets", "Api"]),
            "Api": stack(&["Db"]),
            "Other": stack(&[]),
            "Db": stack(&[]),
            "Web.assets": {"type": "cdk:asset-manifest", "properties": {"file": "Web.assets.json"}},
        }))
        .with("Web.assets.json", &json!({"version": "55.0.0"}));
        assert_eq!(names(&app, &[]).unwrap(), ["Other", "Db", "Api", "Web"]);
        let selection = open(&app, request(&["Api"])).unwrap();
        let [db, api] = &selection.stacks[..] else { panic!("{selection:?}") };
        assert!(db.pulled_in && !api.pulled_in);
        assert_eq!(api.dependencies, [db.key()]);
        assert_eq!(selection.notices, ["stack `Db` is included: `Api` depends on it"]);
        let exclusively = Request { exclusively: true, ..request(&["Api"]) };
        let selection = open(&app, exclusively).unwrap();
        assert_eq!(selection.stacks.len(), 1);
        assert_eq!((selection.stacks[0].dependencies.len(), selection.notices.len()), (0, 0));
    }

    fn ordered(stacks: &[&str], request: Request) -> String {
        levels(&open(&linked_app(stacks), request).unwrap())
    }

    #[test]
    fn e12_stacks_that_import_from_each_other_are_deployed_producers_first() {
        let table: &[(&[&str], &str)] = &[
            (&["C imports:b", "B imports:a exports:b", "A exports:a"], "A|B<A|C<B"),
            // The manifest says the same, and more.
            (&["C imports:b needs:B needs:A", "B imports:a exports:b needs:A", "A exports:a"], "A|B<A|C<B"),
            (&["C needs:B", "B imports:a", "A exports:a"], "A|B<A|C<B"),
            (&["C imports:a imports:b", "B exports:b", "A exports:a"], "B A|C<B,A"),
            (&["B imports:elsewhere", "A imports:own exports:own"], "B A"),
        ];
        for (stacks, expected) in table {
            assert_eq!(ordered(stacks, request(&[])), *expected, "{stacks:?}");
        }
    }

    #[test]
    fn e32_an_import_is_of_a_stack_in_the_same_region() {
        let table: &[(&[&str], &str)] = &[
            (&["C imports:a", "A@us-east-1 exports:a", "B exports:a"], "A B|C<B"),
            (&["C imports:a", "A@us-east-1 exports:a"], "C A"),
            (&["C@us-east-1 imports:a", "A@us-east-1 exports:a"], "A|C<A"),
        ];
        for (stacks, expected) in table {
            assert_eq!(ordered(stacks, request(&[])), *expected, "{stacks:?}");
        }
        let alone = ["C imports:a", "A@us-east-1 exports:a"];
        assert_eq!(ordered(&alone, request(&["C"])), "C");
    }

    #[test]
    fn e13_a_producer_of_an_import_is_pulled_in_and_one_whose_output_is_read_is_not() {
        let exclusively = |stacks: &[&str]| Request { exclusively: true, ..request(stacks) };
        let weak = ["C reads:P", "P"];
        let strong = ["C imports:p", "Other", "P exports:p"];
        let table: &[(&[&str], Request, &str)] = &[
            (&weak, request(&[]), "P|C<P"),
            (&weak, request(&["C"]), "C"),
            (&weak, request(&["C", "P"]), "P|C<P"),
            (&strong, request(&[]), "Other P|C<P"),
            (&strong, request(&["C"]), "P|C<P"),
            (&strong, exclusively(&["C"]), "C"),
            (&strong, exclusively(&["P", "C"]), "P|C<P"),
            // A dependency of the manifest pulls in, whatever the template says.
            (&["C reads:P needs:P", "P"], request(&["C"]), "P|C<P"),
            // In any region, with the region in any case.
            (&["C reads:P@US-EAST-1", "P", "P2", "Q reads:P"], request(&[]), "C P P2|Q<P"),
            (&["C reads:P@US-EAST-1", "P@us-east-1"], request(&[]), "P|C<P"),
            // What is pulled in pulls in.
            (
                &["C imports:b", "B imports:a exports:b needs:D", "D", "A exports:a"],
                request(&["C"]),
                "D A|B<D,A|C<B",
            ),
            (&["C needs:B", "B imports:a", "A exports:a reads:W", "W"], request(&["C"]), "A|B<A|C<B"),
        ];
        for (stacks, request, expected) in table {
            assert_eq!(ordered(stacks, request.clone()), *expected, "{stacks:?} {request:?}");
        }
        let selection = open(&linked_app(&strong), request(&["C"])).unwrap();
        assert_eq!(selection.notices, ["stack `P` is included: `C` imports `p` from it"]);
        assert!(selection.stacks[0].pulled_in && !selection.stacks[1].pulled_in);
    }

    #[test]
    fn the_parameters_of_the_run_and_the_manifest_are_in_names_of_exports() {
        let (documents, mut artifacts) =
            linked("", &["C imports:a-${Env}", "A exports:a-${Env}", "B exports:a-dev"]);
        artifacts["A"]["properties"]["parameters"] = json!({"Env": "prod"});
        let source = ["A", "C"].iter().fold(documents, |documents, id| {
            let path = format!("{id}.json");
            let mut template: Value =
                serde_json::from_slice(&Source::document(&documents, &path).unwrap().unwrap()).unwrap();
            template["Parameters"] = json!({"Env": {"Type": "String"}});
            documents.with(&path, &template)
        });
        let source = source.with("manifest.json", &manifest(&artifacts));
        // The record may know the parameter; nobody else does.
        assert_eq!(levels(&open(&source, request(&[])).unwrap()), "C A B");
        for (value, expected) in [("prod", "A B|C<A"), ("dev", "A B|C<B")] {
            let input = json!({"assembly": "s3://bucket/a.zip", "parameters": {"C": {"Env": value}}});
            let parameters = DeployInput::parse(&input).unwrap().parameters;
            let selection = open(&source, Request { parameters, ..request(&[]) }).unwrap();
            assert_eq!(levels(&selection), expected);
        }
    }

    #[test]
    fn of_several_stacks_that_export_a_name_that_of_the_own_stage_is_pulled_in_and_else_none() {
        let nested =
            |folder: &str| json!({"type": "cdk:cloud-assembly", "properties": {"directoryName": folder}});
        let root = app(&json!({"Top": stack(&[]), "One": nested("one"), "Two": nested("two")}));
        let source = ["one", "two"].iter().fold(root, |source, folder| {
            let (documents, mut artifacts) = linked(&format!("{folder}/"), &["C imports:p", "P exports:p"]);
            for id in ["C", "P"] {
                artifacts[id]["properties"]["stackName"] = json!(format!("{folder}-{id}"));
            }
            source.and(documents).with(&format!("{folder}/manifest.json"), &manifest(&artifacts))
        });
        assert_eq!(levels(&open(&source, request(&["two-C"])).unwrap()), "two-P|two-C<two-P");
        let several = ["C imports:p", "P exports:p", "Q exports:p"];
        let selection = open(&linked_app(&several), request(&["C"])).unwrap();
        assert_eq!(levels(&selection), "C");
        assert_eq!(
            selection.notices,
            ["`C` imports `p`, which `P` and `Q` export; none of them is included"]
        );
        assert_eq!(ordered(&several, request(&["C", "Q"])), "Q|C<Q");
    }

    #[test]
    fn a_stack_that_is_not_selected_refuses_nothing() {
        let source = linked_app(&["C imports:p", "P exports:p", "Broken exports:q", "Bad_Name exports:r"])
            .raw("Broken.json", b"{ no");
        assert_eq!(levels(&open(&source, request(&["C"])).unwrap()), "P|C<P");
        let (documents, artifacts) = linked("", &["C imports:p"]);
        let mut artifacts = artifacts;
        artifacts["Gone"] = stack(&[]);
        let source = documents.with("manifest.json", &manifest(&artifacts));
        assert_eq!(levels(&open(&source, request(&["C"])).unwrap()), "C");
    }

    #[test]
    fn t14_stacks_of_stages_are_ordered_also_across_stages() {
        let nested =
            |folder: &str| json!({"type": "cdk:cloud-assembly", "properties": {"directoryName": folder}});
        let (root, mut artifacts) = linked("", &["Top exports:vpc imports:api"]);
        artifacts["Prod"] = nested("prod");
        artifacts["Last"] = nested("last");
        artifacts["Last"]["dependencies"] = json!(["Prod"]);
        let (prod, mut inner) = linked("prod/", &["Api exports:api needs:Db", "Db imports:table"]);
        inner["Inner"] = nested("prod/inner");
        inner["Inner"]["properties"]["directoryName"] = json!("inner");
        let (innermost, tables) = linked("prod/inner/", &["Table exports:table"]);
        let (last, ends) = linked("last/", &["End reads:Top"]);
        let source = root
            .and(prod)
            .and(innermost)
            .and(last)
            .with("manifest.json", &manifest(&artifacts))
            .with("prod/manifest.json", &manifest(&inner))
            .with("prod/inner/manifest.json", &manifest(&tables))
            .with("last/manifest.json", &manifest(&ends));
        let all = "Table|Db<Table|Api<Db|Top<Api|End<Top";
        assert_eq!(levels(&open(&source, request(&[])).unwrap()), all);
        assert_eq!(levels(&open(&source, request(&["Top"])).unwrap()), "Table|Db<Table|Api<Db|Top<Api");
        // The stage stands for all that is in it.
        assert_eq!(levels(&open(&source, request(&["End"])).unwrap()), "Table|Db<Table|Api<Db|End<Api");
    }

    #[test]
    fn a_circle_through_templates_is_refused_by_name() {
        for stacks in [
            &["A imports:b exports:a", "B imports:a exports:b"][..],
            &["A needs:B exports:a", "B imports:a"],
            &["A reads:B", "B reads:A"],
        ] {
            let error = open(&linked_app(stacks), request(&[])).unwrap_err();
            assert_eq!(error.code(), Code::CircularDependency);
            assert!(error.message().contains("`A` → `B` → `A`"), "{error}");
            assert_eq!(error.details()["circle"], json!(["`A`", "`B`", "`A`"]));
        }
        // One alone is free of it.
        let exclusively = Request { exclusively: true, ..request(&["A"]) };
        assert_eq!(ordered(&["A imports:b exports:a", "B imports:a exports:b"], exclusively), "A");
    }

    #[test]
    fn an_order_through_a_stack_that_is_not_selected_stays() {
        let exclusively = Request { exclusively: true, ..request(&["A", "C"]) };
        assert_eq!(ordered(&["A needs:B", "B needs:C", "C"], exclusively), "C|A<C");
    }

    #[test]
    fn a_circle_of_stacks_is_refused_by_name() {
        let app = app(&json!({"A": stack(&["B"]), "B": stack(&["C"]), "C": stack(&["B"])}));
        let error = names(&app, &[]).unwrap_err();
        assert_eq!(error.code(), Code::CircularDependency);
        assert!(error.message().contains("`B` → `C` → `B`"), "{error}");
    }

    #[test]
    fn a_stage_stands_for_its_stacks() {
        let nested = json!({
            "type": "cdk:cloud-assembly",
            "properties": {"directoryName": "assembly-Prod"},
            "dependencies": ["First"],
        });
        let app = app(&json!({"Last": stack(&["Stage"]), "Stage": nested, "First": stack(&[])}));
        let app = stage(app, "assembly-Prod", &json!({"Api": stack(&[])}));
        assert_eq!(names(&app, &["Last"]).unwrap(), ["First", "Api", "Last"]);
    }

    #[test]
    fn names_and_regions_of_selected_stacks_have_to_be_right() {
        let app = app(&json!({
            "Good": stack(&[]),
            "Bad_Name": stack(&[]),
            "BadRegion": stack_in("aws://unknown-account/nowhere", &[]),
        }));
        assert_eq!(names(&app, &["Good"]).unwrap(), ["Good"]);
        for stacks in ["Bad_Name", "BadRegion"] {
            let error = names(&app, &[stacks]).unwrap_err();
            assert_eq!(error.code(), Code::InvalidAssembly);
            assert!(error.message().contains(stacks), "{error}");
        }
    }
}
