//! The stacks of one run among each other: who uses whom *on record*, and the order that follows from it. A deploy cleans
//! up in it, a destroy goes by it: consumers first.
//!
//! What a template says is another matter: its order is that of the assembly.

use std::collections::{BTreeMap, BTreeSet};

use super::abridged;
use super::handshake::lock_of;
use super::scan::{self, Intent, Scan};
use crate::error::{Code, Error, Result};
use crate::name::RecordKey;
use crate::state::{Import, OutputRead, Record};

/// What tells a stack apart in a run: `name/region`.
pub fn id(key: &RecordKey) -> String {
    format!("{}/{}", key.stack, key.region)
}

/// Which reads of others count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reads {
    /// `imports`: they protect their producer.
    Strong,
    /// `outputReads` too, where they do not contradict the strong ones.
    All,
}

/// A stack of a level, and those of the run that it uses.
pub type Needs<'u> = (&'u RecordKey, Vec<&'u RecordKey>);

/// Which stacks of a run use which. Never in a circle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Uses {
    /// In order of their keys.
    stacks: Vec<RecordKey>,
    /// Of each, those that it uses.
    producers: Vec<BTreeSet<usize>>,
    /// Of each, those that use it.
    users: Vec<BTreeSet<usize>>,
    /// Of each, those that it uses through however many.
    reach: Vec<BTreeSet<usize>>,
    /// 0 for those that nobody uses, else one more than the highest of its users.
    ranks: Vec<usize>,
}

impl Uses {
    /// Reads it off the records of the stacks and of those nested in them, which count as their root. Other records do
    /// not count, nor do records that cannot say what they import (rule E35) and entries that cannot be read: what
    /// protects a producer is the scan.
    ///
    /// Only a foreign hand can write a circle. Then what comes later in the order of the keys is passed over.
    pub fn on_record<'r>(
        stacks: impl IntoIterator<Item = RecordKey>,
        records: impl IntoIterator<Item = (&'r RecordKey, &'r Record)>,
        reads: Reads,
    ) -> Self {
        let stacks: BTreeSet<RecordKey> = stacks.into_iter().collect();
        let stacks: Vec<RecordKey> = stacks.into_iter().collect();
        let place = |key: &RecordKey| stacks.binary_search(&lock_of(key)).ok();
        let source = |stack: &str, region: &str| place(&RecordKey::parse(stack, region).ok()?);
        let (mut strong, mut weak) = (BTreeSet::new(), BTreeSet::new());
        for (key, record) in records {
            let Some(user) = place(key) else { continue };
            let imports = record.reads::<Import>().unwrap_or_default();
            strong.extend(
                imports
                    .iter()
                    .filter_map(|import| Some((user, source(&import.source_stack, &import.source_region)?))),
            );
            if reads == Reads::All {
                let outputs = record.reads::<OutputRead>().unwrap_or_default();
                weak.extend(
                    outputs
                        .iter()
                        .filter_map(|read| Some((user, source(&read.source_stack, &read.source_region)?))),
                );
            }
        }
        let empty = vec![BTreeSet::new(); stacks.len()];
        let mut uses =
            Self { producers: empty.clone(), users: empty.clone(), reach: empty, ranks: Vec::new(), stacks };
        for (user, producer) in strong.into_iter().chain(weak) {
            if !uses.reaches(producer, user) {
                uses.add(user, producer);
            }
        }
        uses.ranks = uses.rank();
        uses
    }

    /// The stacks of the run that use this one, and its rank.
    pub fn of(&self, key: &RecordKey) -> (Vec<&RecordKey>, usize) {
        let Ok(at) = self.stacks.binary_search(key) else { return (Vec::new(), 0) };
        (self.named(self.users.get(at)), self.ranks.get(at).copied().unwrap_or_default())
    }

    /// Consumers first: each level holds the stacks of its rank, in order of their keys, with those that they use. What
    /// follows through others is left out.
    pub fn levels(&self) -> Vec<Vec<Needs<'_>>> {
        let mut levels: Vec<Vec<Needs<'_>>> = Vec::new();
        for (at, key) in self.stacks.iter().enumerate() {
            let rank = self.ranks.get(at).copied().unwrap_or_default();
            while levels.len() <= rank {
                levels.push(Vec::new());
            }
            if let Some(level) = levels.get_mut(rank) {
                level.push((key, self.named(Some(&self.direct(at)))));
            }
        }
        levels
    }

    fn named(&self, places: Option<&BTreeSet<usize>>) -> Vec<&RecordKey> {
        places.into_iter().flatten().filter_map(|at| self.stacks.get(*at)).collect()
    }

    /// What a stack uses, without what one of those uses in turn.
    fn direct(&self, at: usize) -> BTreeSet<usize> {
        let Some(all) = self.producers.get(at) else { return BTreeSet::new() };
        let indirect = |it: usize| all.iter().any(|other| *other != it && self.reaches(*other, it));
        all.iter().copied().filter(|it| !indirect(*it)).collect()
    }

    /// Whether a stack is the other one, or uses it through however many.
    fn reaches(&self, from: usize, to: usize) -> bool {
        from == to || self.reach.get(from).is_some_and(|reach| reach.contains(&to))
    }

    fn add(&mut self, user: usize, producer: usize) {
        insert(&mut self.producers, user, producer);
        insert(&mut self.users, producer, user);
        if self.reaches(user, producer) {
            return;
        }
        let mut below = self.reach.get(producer).cloned().unwrap_or_default();
        below.insert(producer);
        for (at, reach) in self.reach.iter_mut().enumerate() {
            if at == user || reach.contains(&user) {
                reach.extend(&below);
            }
        }
    }

    fn rank(&self) -> Vec<usize> {
        let mut ranks = vec![0; self.stacks.len()];
        let mut waits: Vec<usize> = self.users.iter().map(BTreeSet::len).collect();
        let mut ready: Vec<usize> =
            waits.iter().enumerate().filter(|(_, count)| **count == 0).map(|(at, _)| at).collect();
        while let Some(at) = ready.pop() {
            let below = ranks.get(at).copied().unwrap_or_default() + 1;
            for producer in self.producers.get(at).into_iter().flatten() {
                if let Some(rank) = ranks.get_mut(*producer) {
                    *rank = below.max(*rank);
                }
                if let Some(left) = waits.get_mut(*producer) {
                    *left -= 1;
                    if *left == 0 {
                        ready.push(*producer);
                    }
                }
            }
        }
        ranks
    }
}

fn insert(sets: &mut [BTreeSet<usize>], at: usize, value: usize) {
    if let Some(set) = sets.get_mut(at) {
        set.insert(value);
    }
}

/// The refusal of a destroy of several stacks: every consumer of any of them that is not destroyed with them, in one
/// error.
///
/// # Errors
/// `StackHasActiveImportsError` if a scan found consumers (rule E34).
pub fn refuse_destroy(scans: &BTreeMap<RecordKey, Scan>) -> Result<()> {
    let in_use: Vec<(&RecordKey, &Scan)> =
        scans.iter().filter(|(_, scan)| !scan.consumers.is_empty()).collect();
    let Some((first, _)) = in_use.first() else { return Ok(()) };
    let mut all = Scan::default();
    all.consumers.extend(in_use.iter().flat_map(|(_, scan)| scan.consumers.iter().cloned()));
    all.consumers.sort();
    let Err(error) = scan::refuse(first, &all, Intent::Destroy) else { return Ok(()) };
    if in_use.len() == 1 {
        return Err(error);
    }
    let producers: Vec<String> = in_use.iter().map(|(key, _)| key.to_string()).collect();
    let consumers: BTreeSet<String> = in_use
        .iter()
        .flat_map(|(producer, scan)| {
            scan.consumers.iter().map(move |it| format!("{} imports `{}` of {producer}", it.key, it.export))
        })
        .collect();
    let consumers: Vec<String> = consumers.into_iter().collect();
    let message = format!(
        "{} cannot be destroyed while others import from them: {}",
        abridged(&producers, 20, ", "),
        abridged(&consumers, 50, "; ")
    );
    let mut whole = Error::new(Code::StackHasActiveImportsError, message);
    if let Some(hint) = error.hint_text() {
        whole = whole.hint(hint);
    }
    for (name, value) in error.details() {
        whole = whole.detail(name, value.clone());
    }
    Err(whole)
}

#[cfg(test)]
mod tests {
    use super::super::testing::{consumer, key, producer, record, record_of};
    use super::*;
    use serde_json::json;

    /// `A>B` is a record of A that imports from B, `A~>B` one that reads an output of it.
    fn uses(stacks: &str, records: &str, reads: Reads) -> Uses {
        let stacks: Vec<RecordKey> = stacks.split(' ').map(key).collect();
        let mut found: BTreeMap<&str, (Vec<&str>, Vec<&str>)> = BTreeMap::new();
        for edge in records.split(' ').filter(|edge| !edge.is_empty()) {
            if let Some((from, to)) = edge.split_once("~>") {
                found.entry(from).or_default().1.push(to);
            } else {
                let (from, to) = edge.split_once('>').unwrap();
                found.entry(from).or_default().0.push(to);
            }
        }
        let of = |field: &str, sources: &[&str]| -> Vec<serde_json::Value> {
            sources
                .iter()
                .map(|it| json!({field: "X", "sourceStack": it, "sourceRegion": "US-east-1"}))
                .collect()
        };
        let records: Vec<(RecordKey, Record)> = found
            .iter()
            .map(|(stack, (strong, weak))| {
                let fields =
                    json!({"imports": of("exportName", strong), "outputReads": of("outputName", weak)});
                (key(stack), record(stack, fields))
            })
            .collect();
        Uses::on_record(stacks, records.iter().map(|(key, record)| (key, record)), reads)
    }

    fn names(keys: &[&RecordKey]) -> String {
        keys.iter().map(|key| key.stack.as_str()).collect::<Vec<_>>().join(",")
    }

    fn levels(uses: &Uses) -> String {
        let level = |level: &Vec<Needs<'_>>| {
            let stacks: Vec<String> =
                level.iter().map(|(key, needs)| format!("{}[{}]", key.stack, names(needs))).collect();
            stacks.join(" ")
        };
        uses.levels().iter().map(level).collect::<Vec<_>>().join(" | ")
    }

    #[test]
    fn users_and_ranks_of_the_records() {
        let table = [
            ("A B", "", "A:0[] B:0[]"),
            ("A B", "B>A", "A:1[B] B:0[]"),
            ("A B C", "B>A C>A C>B", "A:2[B,C] B:1[C] C:0[]"),
            // The same import twice, one of a stack of no run, one of itself.
            ("A B", "B>A B>A B>X X>A A>A", "A:1[B] B:0[]"),
            // What is nested counts as its root, whichever side it is on.
            ("A B", "B~C>A~D A~D>A~E", "A:1[B] B:0[]"),
            ("A B C D", "B>A C>A D>B D>C", "A:2[B,C] B:1[D] C:1[D] D:0[]"),
            // A circle is broken at what comes last.
            ("A B", "A>B B>A", "A:0[] B:1[A]"),
            ("A B C", "A>B B>C C>A", "A:0[] B:1[A] C:2[B]"),
            ("A B", "B~>A", "A:0[] B:0[]"),
        ];
        for (stacks, records, expected) in table {
            let run = uses(stacks, records, Reads::Strong);
            let told: Vec<String> = stacks
                .split(' ')
                .map(|stack| {
                    let (users, rank) = run.of(&key(stack));
                    format!("{stack}:{rank}[{}]", names(&users))
                })
                .collect();
            assert_eq!(told.join(" "), expected, "{stacks} {records}");
        }
        assert_eq!(uses("A", "", Reads::Strong).of(&key("Other")), (vec![], 0));
    }

    #[test]
    fn e34_consumers_go_first_and_needs_leave_out_what_follows() {
        let table = [
            ("A B", "", "A[] B[]"),
            ("A B", "B>A", "B[A] | A[]"),
            ("A B C", "B>A C>A C>B", "C[B] | B[A] | A[]"),
            ("A B C D", "B>A C>A D>B D>C D>A", "D[B,C] | B[A] C[A] | A[]"),
            // Far from each other in the levels, and nothing between that says so.
            ("A B C D", "B>A C>B D>A", "C[B] D[A] | B[A] | A[]"),
            // Weak reads order too, but never against a strong one.
            ("A B", "B~>A", "B[A] | A[]"),
            ("A B", "A~>B B>A", "B[A] | A[]"),
            ("A B", "A~>B B~>A", "A[B] | B[]"),
        ];
        for (stacks, records, expected) in table {
            assert_eq!(levels(&uses(stacks, records, Reads::All)), expected, "{stacks} {records}");
        }
    }

    #[test]
    fn e35_a_record_that_cannot_say_what_it_imports_uses_nobody() {
        let records = [
            (key("A"), producer("A", &["X"])),
            (key("B"), record_of(3, "B", json!({}))),
            (key("C"), record("C", json!({"imports": [{"exportName": "X"}]}))),
        ];
        let stacks = records.iter().map(|(key, _)| key.clone());
        let uses = Uses::on_record(stacks, records.iter().map(|(key, it)| (key, it)), Reads::All);
        assert_eq!(levels(&uses), "A[] B[] C[]");
    }

    #[test]
    fn stacks_of_two_regions_are_two() {
        let abroad = RecordKey::parse("A", "eu-west-1").unwrap();
        let reads = json!({"outputReads": [
            {"outputName": "X", "sourceStack": "A", "sourceRegion": "eu-west-1"}
        ]});
        let own = record("A", reads);
        let stacks = [abroad.clone(), key("A")];
        let uses = Uses::on_record(stacks, [(&key("A"), &own)], Reads::All);
        assert_eq!(uses.of(&abroad), (vec![&key("A")], 1));
        assert_eq!(id(&abroad), "A/eu-west-1");
    }

    #[test]
    fn a_hundred_stacks_are_no_work() {
        let stacks: Vec<String> = (100..200).map(|at| format!("S{at}")).collect();
        let edges: Vec<String> =
            (100..200).flat_map(|at| (100..at).map(move |of| format!("S{at}>S{of}"))).collect();
        let uses = uses(&stacks.join(" "), &edges.join(" "), Reads::All);
        assert_eq!(uses.of(&key("S100")).1, 99);
        assert!(uses.levels().iter().all(|level| level.len() == 1 && level[0].1.len() <= 1));
    }

    #[test]
    fn e34_one_refusal_names_the_consumers_of_every_stack() {
        let records = [
            (key("A"), producer("A", &["X"])),
            (key("B"), producer("B", &["Y"])),
            (key("Web"), consumer("Web", &[("X", "A"), ("Y", "B")])),
            (key("Jobs"), consumer("Jobs", &[("Y", "B")])),
        ];
        let of = |stacks: &[&str]| -> BTreeMap<RecordKey, Scan> {
            let scan = |stack: &&str| {
                let all = records.iter().map(|(key, record)| (key, Ok(record)));
                (key(stack), scan::consumers(&key(stack), None, all).unwrap())
            };
            stacks.iter().map(scan).collect()
        };
        assert_eq!(refuse_destroy(&of(&["Web", "Jobs"])), Ok(()));
        let one = of(&["A", "Jobs"]);
        assert_eq!(refuse_destroy(&one), scan::refuse(&key("A"), &one[&key("A")], Intent::Destroy));
        let error = refuse_destroy(&of(&["B", "A"])).unwrap_err();
        insta::assert_snapshot!(error, @r#"
        StackHasActiveImportsError: A (us-east-1), B (us-east-1) cannot be destroyed while others import from them: Jobs (us-east-1) imports `Y` of B (us-east-1); Web (us-east-1) imports `X` of A (us-east-1); Web (us-east-1) imports `Y` of B (us-east-1)
        hint: either destroy the consumers first: `cdkd-destroy` with {"stacks": ["Jobs", "Web"], "region": "us-east-1"}; or remove their `Fn::ImportValue`, deploy them with `cdkd-deploy`, and start this execution again. There is no way to force it; `Fn::GetStackOutput` reads without protecting
        "#);
        assert_eq!((&error.details()["stack"], &error.details()["count"]), (&json!("A"), &json!(3)));
    }
}
