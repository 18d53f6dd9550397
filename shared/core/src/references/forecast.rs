//! What the stacks of a deploy will make of each other's exports, before any of them is applied.
//!
//! A plan of the whole run needs it: a name may move from one stack to another (rule E29), one may go that nobody
//! provides any more, and what an earlier stack is going to publish may be known only after its deploy (rule E37).

use std::collections::{BTreeMap, BTreeSet};

use super::abridged;
use super::exports::{Line, Listing};
use super::handshake::{GivenUp, is_within};
use super::resolve::Found;
use crate::error::{Code, Error, Result, nearest};
use crate::name::RecordKey;
use crate::state::Record;

/// The stacks of a deploy, in the order in which they are planned.
#[derive(Clone, Debug, Default)]
pub struct Forecast {
    stacks: Vec<Member>,
}

#[derive(Clone, Debug)]
struct Member {
    key: RecordKey,
    /// What it will export.
    names: BTreeSet<String>,
    given_up: BTreeSet<String>,
    plan: Planned,
}

#[derive(Clone, Debug)]
enum Planned {
    NotYet,
    Listing(Listing),
    /// It cannot be planned: nothing is said of what builds on it.
    Failed,
}

/// What a stack of the run will publish.
#[derive(Clone, Debug, PartialEq)]
pub enum Ahead {
    Value(Found),
    /// Known after the deploy of that stack.
    After(RecordKey),
}

impl Forecast {
    /// Adds a stack. `before` is its record, with all that a dead run withdrew taken back.
    pub fn add<'n>(
        &mut self,
        key: &RecordKey,
        before: Option<&Record>,
        names: impl IntoIterator<Item = &'n str>,
    ) {
        let names: BTreeSet<String> = names.into_iter().map(str::to_owned).collect();
        let exported: BTreeSet<String> = before
            .map(|record| record.importable().into_iter().map(|(name, _)| name).collect())
            .unwrap_or_default();
        let given_up = exported.difference(&names).cloned().collect();
        self.stacks.push(Member { key: key.clone(), names, given_up, plan: Planned::NotYet });
    }

    /// Notes what a stack will publish.
    pub fn plan(&mut self, key: &RecordKey, listing: &Listing) {
        if let Some(member) = self.stacks.iter_mut().find(|member| member.key == *key) {
            member.plan = Planned::Listing(listing.clone());
        }
    }

    /// Notes that a stack, with those nested in it, cannot be planned.
    pub fn fail(&mut self, root: &RecordKey) {
        for member in &mut self.stacks {
            if member.key.region == root.region && is_within(member.key.stack.as_str(), &root.stack) {
                member.plan = Planned::Failed;
            }
        }
    }

    /// Exports that stacks of the run take away.
    pub fn given_up(&self) -> GivenUp {
        let of = |member: &Member| {
            let key = member.key.clone();
            member.given_up.clone().into_iter().map(move |name| (key.clone(), name))
        };
        self.stacks.iter().flat_map(of).collect()
    }

    /// Whether a record is that of a stack of the run, or of one nested in it.
    pub fn has(&self, key: &RecordKey) -> bool {
        self.stacks
            .iter()
            .any(|member| member.key.region == key.region && is_within(key.stack.as_str(), &member.key.stack))
    }

    /// Looks whether two stacks of the run will export one name in one region.
    ///
    /// # Errors
    /// `ExportNameTakenError` naming every name with its stacks (rule E4).
    pub fn check(&self) -> Result<()> {
        let mut owners: BTreeMap<(&str, &str), Vec<&RecordKey>> = BTreeMap::new();
        for member in &self.stacks {
            for name in &member.names {
                owners.entry((member.key.region.as_str(), name)).or_default().push(&member.key);
            }
        }
        owners.retain(|_, stacks| stacks.len() > 1);
        let Some(((region, _), stacks)) = owners.first_key_value() else { return Ok(()) };
        let list: Vec<String> = owners
            .iter()
            .map(|((_, name), stacks)| {
                let stacks: Vec<String> = stacks.iter().map(ToString::to_string).collect();
                format!("`{name}` by {}", stacks.join(" and "))
            })
            .collect();
        let owner = stacks.first().map(|key| key.stack.as_str()).unwrap_or_default();
        Err(Error::new(
            Code::ExportNameTakenError,
            format!("several stacks of the run export one name: {}", abridged(&list, 20, "; ")),
        )
        .hint("an export has one owner in a region; rename all but one of each")
        .detail("names", owners.keys().map(|(_, name)| *name).collect::<Vec<_>>())
        .detail("owner", owner)
        .detail("region", *region))
    }

    /// What an export will be that a stack planned before provides. `None`: it is on record, if anywhere.
    pub fn export(&self, own: &RecordKey, name: &str) -> Option<Ahead> {
        let member = self.stacks.iter().find(|member| {
            member.key != *own && member.key.region == own.region && member.names.contains(name)
        })?;
        match &member.plan {
            Planned::NotYet => None,
            Planned::Failed => Some(Ahead::After(member.key.clone())),
            Planned::Listing(listing) => {
                listing.rows.get(name).filter(|line| line.export).map(|line| ahead(&member.key, line))
            }
        }
    }

    /// The same of an output that a stack reads by `Fn::GetStackOutput` in its own account. `None`: the record says.
    ///
    /// # Errors
    /// `OutputNotFound` if the run takes that output away, naming those that will be there.
    pub fn output(&self, own: &RecordKey, source: &RecordKey, name: &str) -> Result<Option<Ahead>> {
        let Some(member) = self.stacks.iter().find(|member| member.key == *source && source != own) else {
            return Ok(None);
        };
        let listing = match &member.plan {
            Planned::NotYet => return Ok(None),
            Planned::Failed => return Ok(Some(Ahead::After(member.key.clone()))),
            Planned::Listing(listing) => listing,
        };
        if let Some(line) = listing.rows.get(name) {
            return Ok(Some(ahead(&member.key, line)));
        }
        let names: Vec<String> = listing.rows.keys().map(|name| format!("`{name}`")).collect();
        let has = if names.is_empty() { "none".to_owned() } else { abridged(&names, 50, ", ") };
        let error = Error::new(
            Code::OutputNotFound,
            format!("{source} has no output `{name}` once this run has deployed it: it will have {has}"),
        )
        .detail("stack", source.stack.as_str())
        .detail("region", source.region.as_str())
        .detail("output", name);
        Err(match nearest(name, listing.rows.keys().map(String::as_str)) {
            Some(near) => error.hint(format!("did you mean `{near}`?")),
            None => error,
        })
    }
}

fn ahead(key: &RecordKey, line: &Line) -> Ahead {
    match line.value.stored() {
        Ok(value) => Ahead::Value(Found { producer: key.clone(), value, patch: false }),
        Err(_) => Ahead::After(key.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{key, producer, record_of};
    use super::*;
    use crate::value::{Node, Reason};
    use serde_json::json;

    /// Rows `name=value`, exported unless the name starts with a small letter; `?` is not known yet.
    fn listing(rows: &[&str]) -> Listing {
        let mut listing = Listing::default();
        for row in rows {
            let (name, value) = row.split_once('=').unwrap();
            let value = match value {
                "?" => Node::Unknown(Reason::Other("later".into())),
                value => Node::text(value),
            };
            let export = name.starts_with(char::is_uppercase);
            listing.rows.insert(name.into(), Line { output: name.into(), export, value });
        }
        listing
    }

    fn forecast(stacks: &[(&str, &[&str], &[&str])]) -> Forecast {
        let mut forecast = Forecast::default();
        for (stack, before, rows) in stacks {
            let (record, now) = (producer(stack, before), listing(rows));
            forecast.add(&key(stack), Some(&record), now.export_names());
        }
        forecast
    }

    #[test]
    fn e29_what_the_run_gives_up_and_who_has_it_then() {
        let mut run = forecast(&[("P1", &["X", "Y"], &["Y=y"]), ("P2", &[], &["X=x"])]);
        assert_eq!(run.given_up(), [(key("P1"), "X".to_owned())].into());
        assert_eq!(run.check(), Ok(()));
        // Not planned yet: what is on record counts.
        assert_eq!(run.export(&key("C"), "X"), None);
        run.plan(&key("P2"), &listing(&["X=x"]));
        let value = Found { producer: key("P2"), value: json!("x"), patch: false };
        assert_eq!(run.export(&key("C"), "X"), Some(Ahead::Value(value)));
        // A swap is two moves.
        let swap = forecast(&[("P1", &["X"], &["Y=y"]), ("P2", &["Y"], &["X=x"])]);
        assert_eq!((swap.check(), swap.given_up().len()), (Ok(()), 2));
        // A record below version 9 serves every output; a new stack gives nothing up.
        let mut old = Forecast::default();
        old.add(&key("P"), Some(&record_of(8, "P", json!({"outputs": {"A": 1, "B": 2}}))), ["B"]);
        old.add(&key("N"), None, ["A"]);
        assert_eq!(old.given_up(), [(key("P"), "A".to_owned())].into());
    }

    #[test]
    fn e4_two_stacks_of_one_run_do_not_export_one_name() {
        let run =
            forecast(&[("P1", &["X"], &["X=1", "Y=1"]), ("P2", &[], &["X=2", "Y=2"]), ("P3", &[], &["x=3"])]);
        let error = run.check().unwrap_err();
        assert_eq!(error.code(), Code::ExportNameTakenError);
        assert_eq!(
            error.message(),
            "several stacks of the run export one name: `X` by P1 (us-east-1) and P2 (us-east-1); \
             `Y` by P1 (us-east-1) and P2 (us-east-1)"
        );
        assert_eq!(error.details()["names"], json!(["X", "Y"]));
        let mut regions = forecast(&[("P1", &[], &["X=1"])]);
        regions.add(&RecordKey::parse("P1", "eu-west-1").unwrap(), None, ["X"]);
        assert_eq!(regions.check(), Ok(()));
    }

    #[test]
    fn e37_what_is_not_known_yet_is_known_after_the_deploy() {
        let rows = ["X=?", "o=v", "p=?"];
        let mut run = forecast(&[("P", &["X"], &rows), ("C", &[], &[])]);
        run.plan(&key("P"), &listing(&rows));
        let c = key("C");
        assert_eq!(run.export(&c, "X"), Some(Ahead::After(key("P"))));
        // An output is no export; a stack does not import from itself, nor across regions (rule E32).
        assert_eq!(run.export(&c, "o"), None);
        assert_eq!(run.export(&key("P"), "X"), None);
        let far = RecordKey::parse("C", "eu-west-1").unwrap();
        assert_eq!(run.export(&far, "X"), None);
        // What cannot be planned says nothing of those who build on it.
        run.fail(&key("P"));
        assert_eq!(run.export(&c, "X"), Some(Ahead::After(key("P"))));
        assert_eq!(run.output(&c, &key("P"), "Nope").unwrap(), Some(Ahead::After(key("P"))));
    }

    #[test]
    fn g2_outputs_of_stacks_of_the_run_are_read_ahead_from_any_region() {
        let rows = ["X=?", "o=v"];
        let mut run = forecast(&[("P", &["X", "Old"], &rows)]);
        let far = RecordKey::parse("C", "eu-west-1").unwrap();
        assert_eq!(run.output(&far, &key("P"), "o").unwrap(), None);
        run.plan(&key("P"), &listing(&rows));
        let value = Found { producer: key("P"), value: json!("v"), patch: false };
        assert_eq!(run.output(&far, &key("P"), "o").unwrap(), Some(Ahead::Value(value)));
        assert_eq!(run.output(&far, &key("P"), "X").unwrap(), Some(Ahead::After(key("P"))));
        assert_eq!(run.output(&far, &key("Q"), "o").unwrap(), None);
        assert_eq!(run.output(&key("P"), &key("P"), "o").unwrap(), None);
        // What is on record and goes in this run is not read.
        let error = run.output(&far, &key("P"), "Old").unwrap_err();
        assert_eq!(error.code(), Code::OutputNotFound);
        assert!(error.message().ends_with("it will have `X`, `o`"), "{error}");
    }

    #[test]
    fn e15_stacks_of_the_run_and_those_nested_in_them() {
        let run = forecast(&[("P", &[], &[])]);
        let far = RecordKey::parse("P", "eu-west-1").unwrap();
        for (key, expected) in [(key("P"), true), (key("P~C"), true), (key("P2"), false), (far, false)] {
            assert_eq!(run.has(&key), expected, "{key}");
        }
    }
}
