//! Where the value of an import or of a weak read comes from (seed, "Resolver flow").
//!
//! The caller does the reading: a [`Resolver`] tells which records it needs, is given them, and ends with values. A hit
//! in the index counts only if its producer's record still says so (rule E19); a miss is looked for in the records of
//! the consumer's region.

use std::collections::{BTreeMap, BTreeSet};

use indexmap::IndexMap;
use serde_json::Value;

use super::handshake::GivenUp;
use super::index::{Index, precedence};
use super::quoted;
use crate::error::{Code, Error, Result, nearest};
use crate::name::RecordKey;
use crate::secrets::token;
use crate::state::{Import, Record};
use crate::value::{Node, Piece, Secret};

/// An export that was found, or an output.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    pub producer: RecordKey,
    /// As the producer's record has it, in stored form.
    pub value: Value,
    /// Whether the index does not say so and is to be patched.
    pub patch: bool,
}

impl Found {
    /// The entry of `imports` that protects it.
    pub fn import(&self, name: &str) -> Import {
        Import {
            export_name: name.to_owned(),
            source_stack: self.producer.stack.to_string(),
            source_region: self.producer.region.to_string(),
        }
    }

    /// The value for a consumer: what the producer published as a token is a secret again, of the producer's region
    /// (rules S6, G5); a value that other tools stored as no text stays what it is.
    pub fn node(&self) -> Node {
        node(&self.value, &self.producer)
    }
}

/// A stored value of a producer's outputs.
pub fn node(value: &Value, producer: &RecordKey) -> Node {
    let Some(text) = value.as_str() else { return Node::literal(value) };
    Node::Text(token::pieces_with(text, |token| {
        // A plain parameter's token was replaced by its value before it was stored, so what is left is a secret.
        let region = Some(producer.region.to_string());
        Some(Piece::Secret(Secret { region, ..token.secret() }))
    }))
}

/// Resolves the exports that a stack imports.
#[derive(Clone, Debug)]
pub struct Resolver {
    own: RecordKey,
    given_up: GivenUp,
    names: IndexMap<String, State>,
    /// What the region's records export, once they have been looked through.
    exported: BTreeSet<String>,
    /// Whether the stack itself exports a name that it imports.
    own_names: BTreeSet<String>,
}

#[derive(Clone, Debug, PartialEq)]
enum State {
    /// The index names a producer, whose record is to be read.
    Hit {
        producer: RecordKey,
        value: Value,
    },
    /// The records of the region are to be looked through.
    Miss,
    Found(Found),
    /// No record of the region exports it.
    Absent,
}

impl Resolver {
    /// `given_up` are exports that stacks of this run take away: another stack of it may export the name (rule E29).
    pub fn new<'n>(
        own: &RecordKey,
        names: impl IntoIterator<Item = &'n str>,
        index: Option<&Index>,
        given_up: GivenUp,
    ) -> Self {
        let hit = |name: &str| {
            let entry = index?.lookup(name)?;
            // A stack does not import from itself, and only from its own region (rule E32).
            let served = entry.producer != *own
                && entry.producer.region == own.region
                && !given_up.contains(&(entry.producer.clone(), name.to_owned()));
            served.then_some(State::Hit { producer: entry.producer, value: entry.value })
        };
        let names =
            names.into_iter().map(|name| (name.to_owned(), hit(name).unwrap_or(State::Miss))).collect();
        Self { own: own.clone(), given_up, names, exported: BTreeSet::new(), own_names: BTreeSet::new() }
    }

    /// The records to read, all at once: one per distinct producer.
    pub fn producers(&self) -> BTreeSet<RecordKey> {
        self.names
            .values()
            .filter_map(
                |state| if let State::Hit { producer, .. } = state { Some(producer.clone()) } else { None },
            )
            .collect()
    }

    /// Verifies the hits on a producer by its record; `None`: there is none. What its record does not confirm is a miss.
    ///
    /// So is a hit on a record below version 9, which owns no name: a stack that does own it comes first (rule E1).
    pub fn verify(&mut self, key: &RecordKey, record: Option<&Record>) {
        for (name, state) in &mut self.names {
            let State::Hit { producer, value } = state else { continue };
            if producer != key {
                continue;
            }
            let now = record.filter(|record| record.says_exports()).and_then(|record| record.export(name));
            *state = match now {
                Some(now) => State::Found(Found { producer: key.clone(), patch: now != *value, value: now }),
                None => State::Miss,
            };
        }
    }

    /// The names that the records of the region have to be looked through for. A hit whose producer could not be asked
    /// is one of them.
    pub fn misses(&self) -> Vec<&str> {
        self.names
            .iter()
            .filter(|(_, state)| matches!(state, State::Hit { .. } | State::Miss))
            .map(|(name, _)| name.as_str())
            .collect()
    }

    /// Looks for the misses in the records of an estate.
    ///
    /// # Errors
    /// `ExportScanIncomplete` naming a record of the region that cannot be read: it may be the one, so nothing else is
    /// asked instead.
    pub fn scan<'r>(
        &mut self,
        records: impl IntoIterator<Item = (&'r RecordKey, Result<&'r Record, &'r Error>)>,
    ) -> Result<()> {
        let misses: BTreeSet<String> = self.misses().into_iter().map(str::to_owned).collect();
        if misses.is_empty() {
            return Ok(());
        }
        let mut found: BTreeMap<String, ((bool, &RecordKey), Value)> = BTreeMap::new();
        for (key, record) in records {
            if key.region != self.own.region {
                continue;
            }
            let record = record.map_err(|error| self.incomplete(key, &misses, error))?;
            for (name, value) in record.importable() {
                if *key == self.own {
                    self.own_names.insert(name);
                    continue;
                }
                if self.given_up.contains(&(key.clone(), name.clone())) {
                    continue;
                }
                let rank = precedence(key, record);
                if misses.contains(&name) && found.get(&name).is_none_or(|(best, _)| rank < *best) {
                    found.insert(name.clone(), (rank, value));
                }
                self.exported.insert(name);
            }
        }
        for name in misses {
            let state = match found.remove(&name) {
                Some(((_, key), value)) => State::Found(Found { producer: key.clone(), value, patch: true }),
                None => State::Absent,
            };
            self.names.insert(name, state);
        }
        Ok(())
    }

    fn incomplete(&self, key: &RecordKey, names: &BTreeSet<String>, error: &Error) -> Error {
        let names = quoted(names.iter().map(String::as_str));
        Error::new(
            Code::ExportScanIncomplete,
            format!("whether {key} exports {names} for {} cannot be told: {}", self.own, error.message()),
        )
        .hint("repair the record, from an earlier version of the object if need be, and start the execution again")
        .detail("stack", key.stack.as_str())
        .detail("region", key.region.as_str())
    }

    pub fn found(&self, name: &str) -> Option<&Found> {
        if let State::Found(found) = self.names.get(name)? { Some(found) } else { None }
    }

    /// All that was found, by name.
    pub fn all_found(&self) -> impl Iterator<Item = (&str, &Found)> {
        self.names.iter().filter_map(|(name, state)| {
            if let State::Found(found) = state { Some((name.as_str(), found)) } else { None }
        })
    }

    /// The names that no record of the region exports: CloudFormation may be asked for them.
    pub fn absent(&self) -> Vec<&str> {
        self.names
            .iter()
            .filter(|(_, state)| **state == State::Absent)
            .map(|(name, _)| name.as_str())
            .collect()
    }

    /// The error for a name that nothing exports, with the nearest name that something does.
    pub fn not_found(&self, name: &str) -> Error {
        let own = &self.own;
        let error = Error::new(
            Code::ExportNotFound,
            format!("no stack of {} exports `{name}`, which {} imports", own.region, own.stack),
        )
        .detail("export", name)
        .detail("region", own.region.as_str());
        if self.own_names.contains(name) {
            return error.hint(format!(
                "`{}` exports it itself; use `Ref` or `Fn::GetAtt` inside a stack",
                own.stack
            ));
        }
        let gives_up = |(key, given): &&(RecordKey, String)| given == name && key.region == own.region;
        if let Some((key, _)) = self.given_up.iter().find(gives_up) {
            return Error::new(
                Code::ExportNotFound,
                format!(
                    "{} imports `{name}`, which {key} no longer exports once this run has deployed it",
                    own.stack
                ),
            )
            .detail("export", name)
            .detail("region", own.region.as_str())
            .hint(format!("keep the export in `{}`, or remove the import in the same execution", key.stack));
        }
        match nearest(name, self.exported.iter().map(String::as_str)) {
            Some(near) => error.hint(format!("did you mean `{near}`?")),
            None => error.hint(
                "deploy the stack that exports it first, or in the same execution; `Fn::GetStackOutput` reads from \
                 another region",
            ),
        }
    }
}

/// The value of an output that a stack reads by `Fn::GetStackOutput` in its own account. `Ok(None)`: the source has no
/// record, and CloudFormation may be asked.
///
/// # Errors
/// - `InvalidIntrinsic` for a read of the stack's own (rule G2);
/// - `OutputNotFound` if the record has no such output, naming those it has: CloudFormation is not asked (rule E33).
pub fn output(
    own: &RecordKey,
    source: &RecordKey,
    name: &str,
    record: Option<&Record>,
) -> Result<Option<Found>> {
    if own == source {
        return Err(Error::new(
            Code::InvalidIntrinsic,
            format!("`Fn::GetStackOutput` reads output `{name}` of {own}, the stack it stands in"),
        )
        .hint("use `Ref` or `Fn::GetAtt` inside a stack"));
    }
    let Some(record) = record else { return Ok(None) };
    let mut outputs = record.outputs();
    let withdrawing = record.withdrawing();
    outputs.retain(|name, _| !withdrawing.contains_key(name));
    if let Some(value) = outputs.shift_remove(name) {
        return Ok(Some(Found { producer: source.clone(), value, patch: false }));
    }
    let why = if withdrawing.contains_key(name) {
        "a run is taking it away, or a destroy has failed half way".to_owned()
    } else if outputs.is_empty() {
        "it has none".to_owned()
    } else {
        let names: Vec<String> = outputs.keys().map(|name| format!("`{name}`")).collect();
        format!("it has {}", super::abridged(&names, 50, ", "))
    };
    let error = Error::new(Code::OutputNotFound, format!("{source} has no output `{name}`: {why}"))
        .detail("stack", source.stack.as_str())
        .detail("region", source.region.as_str())
        .detail("output", name);
    Err(match nearest(name, outputs.keys().map(String::as_str)) {
        Some(near) => error.hint(format!("did you mean `{near}`?")),
        None => error,
    })
}

/// The error for a weak read of a stack that is neither on record nor known to CloudFormation.
pub fn no_such_stack(source: &RecordKey, name: &str) -> Error {
    Error::new(Code::OutputNotFound, format!("there is no stack {source} to read output `{name}` of"))
        .hint("deploy that stack first, or in the same execution")
        .detail("stack", source.stack.as_str())
        .detail("region", source.region.as_str())
        .detail("output", name)
}

#[cfg(test)]
mod tests {
    use super::super::handshake::withdraw;
    use super::super::index::Entry;
    use super::super::testing::{key, producer, record, record_of};
    use super::*;
    use serde_json::json;

    fn index(entries: &[(&str, &str, Value)]) -> Index {
        let mut index = Index::new(&key("C").region);
        for (name, stack, value) in entries {
            index.patch(name, &Entry { value: value.clone(), producer: key(stack), etag: None });
        }
        index
    }

    fn resolver(names: &[&str], index: &Index) -> Resolver {
        Resolver::new(&key("C"), names.iter().copied(), Some(index), GivenUp::new())
    }

    fn scan(resolver: &mut Resolver, records: &[(RecordKey, Record)]) -> Result<()> {
        resolver.scan(records.iter().map(|(key, record)| (key, Ok(record))))
    }

    #[test]
    fn one_read_per_distinct_producer_answers_all_hits() {
        let index = index(&[
            ("X", "P", json!("value-of-X")),
            ("Y", "P", json!("value-of-Y")),
            ("Z", "Q", json!("value-of-Z")),
        ]);
        let mut resolver = resolver(&["X", "Y", "Z"], &index);
        assert_eq!(resolver.producers(), [key("P"), key("Q")].into());
        resolver.verify(&key("P"), Some(&producer("P", &["X", "Y"])));
        resolver.verify(&key("Q"), Some(&producer("Q", &["Z"])));
        assert!(resolver.misses().is_empty() && resolver.producers().is_empty());
        assert_eq!(resolver.all_found().filter(|(_, found)| found.patch).count(), 0);
        assert_eq!(
            resolver.found("Z").unwrap().import("Z"),
            Import { export_name: "Z".into(), source_stack: "Q".into(), source_region: "us-east-1".into() }
        );
    }

    #[test]
    fn e19_a_stale_entry_is_never_served() {
        let old = index(&[("X", "P", json!("old"))]);
        // Its value is old: the record's counts, and the index is patched.
        let mut stale = resolver(&["X"], &old);
        stale.verify(&key("P"), Some(&producer("P", &["X"])));
        let found = stale.found("X").unwrap();
        assert_eq!((&found.value, found.patch), (&json!("value-of-X"), true));

        // Its producer is gone, or no longer exports it, or withdraws it: somebody else may export it.
        let mut withdrawing = producer("P", &["X"]);
        withdraw(&mut withdrawing, ["X"]);
        for now in [None, Some(producer("P", &["Y"])), Some(withdrawing)] {
            let mut resolver = resolver(&["X"], &old);
            resolver.verify(&key("P"), now.as_ref());
            assert_eq!(resolver.misses(), ["X"]);
            let mut records = vec![(key("Q"), producer("Q", &["X"]))];
            records.extend(now.map(|now| (key("P"), now)));
            let mut elsewhere = resolver.clone();
            scan(&mut elsewhere, &records).unwrap();
            let found = elsewhere.found("X").unwrap();
            assert_eq!((&found.producer, found.patch), (&key("Q"), true));
            scan(&mut resolver, &records[1..]).unwrap();
            assert_eq!((resolver.found("X"), resolver.absent()), (None, vec!["X"]));
        }
    }

    #[test]
    fn e1_an_export_comes_before_a_plain_output_of_an_older_record() {
        let plain = json!({"outputs": {"VpcId": "plain"}});
        let exported = record("Zod", json!({"outputs": {"VpcId": "exported"}, "exportNames": ["VpcId"]}));
        let v8 = record_of(8, "Stg", plain.clone());
        for entries in [&[][..], &[("VpcId", "Stg", json!("plain"))]] {
            let mut resolver = resolver(&["VpcId"], &index(entries));
            resolver.verify(&key("Stg"), Some(&v8));
            let mut alone = resolver.clone();
            scan(&mut resolver, &[(key("Stg"), v8.clone()), (key("Zod"), exported.clone())]).unwrap();
            assert_eq!(resolver.found("VpcId").unwrap().value, "exported");
            scan(&mut alone, &[(key("Stg"), v8.clone())]).unwrap();
            assert_eq!(alone.found("VpcId").unwrap().value, "plain");
        }
        // From version 9 on a plain output is no export.
        let mut resolver = resolver(&["VpcId"], &index(&[]));
        scan(&mut resolver, &[(key("Stg"), record("Stg", plain))]).unwrap();
        assert_eq!(resolver.absent(), ["VpcId"]);
    }

    #[test]
    fn e29_an_export_that_moves_within_the_run_is_its_new_owners() {
        let index = index(&[("X", "P1", json!("value-of-X"))]);
        let given_up: GivenUp = [(key("P1"), "X".to_owned())].into();
        let mut resolver = Resolver::new(&key("C"), ["X"], Some(&index), given_up);
        assert!(resolver.producers().is_empty());
        scan(&mut resolver, &[(key("P1"), producer("P1", &["X"])), (key("P2"), producer("P2", &["X"]))])
            .unwrap();
        assert_eq!(resolver.found("X").unwrap().producer, key("P2"));
    }

    #[test]
    fn e29_an_export_that_the_run_takes_away_and_nobody_provides_is_told() {
        let given_up: GivenUp = [(key("P1"), "X".to_owned())].into();
        let mut resolver = Resolver::new(&key("C"), ["X"], None, given_up);
        scan(&mut resolver, &[(key("P1"), producer("P1", &["X"]))]).unwrap();
        let error = resolver.not_found(resolver.absent()[0]);
        assert_eq!(error.code(), Code::ExportNotFound);
        assert_eq!(
            error.message(),
            "C imports `X`, which P1 (us-east-1) no longer exports once this run has deployed it"
        );
    }

    #[test]
    fn e31_presence_counts_not_truth() {
        for value in [json!(0), json!(false), json!("")] {
            let falsy = record("P", json!({"outputs": {"X": value}, "exportNames": ["X"]}));
            let mut by_index = resolver(&["X"], &index(&[("X", "P", value.clone())]));
            by_index.verify(&key("P"), Some(&falsy));
            let mut by_scan = resolver(&["X"], &index(&[]));
            scan(&mut by_scan, &[(key("P"), falsy.clone())]).unwrap();
            let read = output(&key("C"), &key("P"), "X", Some(&falsy)).unwrap().unwrap();
            for found in [by_index.found("X").unwrap(), by_scan.found("X").unwrap(), &read] {
                assert_eq!(found.value, value);
            }
        }
    }

    #[test]
    fn e32_only_records_of_the_consumers_region_serve() {
        let far = RecordKey::parse("P", "eu-west-1").unwrap();
        let mut resolver = resolver(&["X"], &index(&[]));
        let broken = Record::parse(b"{", &far).unwrap_err();
        let good = producer("P", &["X"]);
        resolver.scan([(&far, Ok(&good)), (&far, Err(&broken))]).unwrap();
        assert_eq!(resolver.absent(), ["X"]);
    }

    #[test]
    fn a_stack_does_not_import_from_itself() {
        let own = index(&[("X", "C", json!("value-of-X"))]);
        let mut resolver = resolver(&["X"], &own);
        assert_eq!(resolver.misses(), ["X"]);
        scan(&mut resolver, &[(key("C"), producer("C", &["X"]))]).unwrap();
        assert!(resolver.not_found("X").hint_text().unwrap().contains("exports it itself"));
    }

    #[test]
    fn an_unreadable_record_stops_the_search() {
        let mut resolver = resolver(&["X"], &index(&[]));
        let (p, q) = (key("P"), key("Q"));
        let broken = Record::parse(b"{", &q).unwrap_err();
        let good = producer("P", &["X"]);
        // Also when another record has the name: the broken one may own it.
        let error = resolver.scan([(&p, Ok(&good)), (&q, Err(&broken))]).unwrap_err();
        assert_eq!(error.code(), Code::ExportScanIncomplete);
        assert!(error.message().contains("whether Q (us-east-1) exports `X`"), "{error}");
        // Nothing is searched where nothing is missing.
        let mut none = Resolver::new(&key("C"), [], None, GivenUp::new());
        assert_eq!(none.scan([(&q, Err(&broken))]), Ok(()));
    }

    #[test]
    fn what_is_not_found_is_told_with_the_nearest_name() {
        let mut resolver = resolver(&["Net-VpcID", "Queue"], &index(&[]));
        scan(&mut resolver, &[(key("P"), producer("P", &["Net-VpcId"]))]).unwrap();
        let error = resolver.not_found("Net-VpcID");
        assert_eq!(error.code(), Code::ExportNotFound);
        assert_eq!(error.message(), "no stack of us-east-1 exports `Net-VpcID`, which C imports");
        assert_eq!(error.hint_text(), Some("did you mean `Net-VpcId`?"));
        assert!(
            resolver.not_found("Queue").hint_text().unwrap().contains("deploy the stack that exports it")
        );
    }

    #[test]
    fn s6_a_token_is_a_secret_again_of_the_producers_region() {
        let far = RecordKey::parse("P", "eu-west-1").unwrap();
        let value = json!("pw={{resolve:secretsmanager:s}}");
        let found = Found { producer: far, value: value.clone(), patch: false };
        let node = found.node();
        let [secret] = node.secrets()[..] else { panic!("one secret") };
        assert_eq!(secret.region.as_deref(), Some("eu-west-1"));
        assert_eq!(node.stored().unwrap(), value);
        assert_eq!(super::node(&json!(0), &key("P")), Node::literal(&json!(0)));
    }

    #[test]
    fn e33_a_record_that_lacks_the_output_names_those_it_has() {
        let (own, source) = (key("C"), key("P"));
        let has = record("P", json!({"outputs": {"VpcId": "v", "Zone": "z"}, "withdrawing": {"Gone": 1}}));
        assert_eq!(output(&own, &source, "VpcId", Some(&has)).unwrap().unwrap().value, "v");
        let table = [
            ("VpcID", &has, "P (us-east-1) has no output `VpcID`: it has `VpcId`, `Zone`"),
            (
                "Gone",
                &has,
                "P (us-east-1) has no output `Gone`: a run is taking it away, or a destroy has failed half way",
            ),
            ("X", &producer("P", &[]), "P (us-east-1) has no output `X`: it has none"),
        ];
        for (name, record, message) in table {
            let error = output(&own, &source, name, Some(record)).unwrap_err();
            assert_eq!((error.code(), error.message()), (Code::OutputNotFound, message));
        }
        // Without a record CloudFormation may be asked.
        assert_eq!(output(&own, &source, "X", None), Ok(None));
        assert_eq!(no_such_stack(&source, "X").code(), Code::OutputNotFound);
    }

    #[test]
    fn g2_a_read_of_the_own_stack_is_refused() {
        let error = output(&key("C"), &key("C"), "X", Some(&producer("C", &["X"]))).unwrap_err();
        assert_eq!(error.code(), Code::InvalidIntrinsic);
        let far = RecordKey::parse("C", "eu-west-1").unwrap();
        assert!(output(&key("C"), &far, "X", Some(&producer("C", &["X"]))).unwrap().is_some());
    }
}
