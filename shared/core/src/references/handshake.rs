//! The handshake of producer and consumer: each writes its intent into its own record, then looks at the other's. S3 is
//! strongly consistent, so one of the two always sees the other (DESIGN 6).
//!
//! Equality of the value, not of the name alone, is what the second look must find: a producer may be destroyed and made
//! again between the two looks (rule E25).

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::exports::Published;
use super::{abridged, quoted};
use crate::error::{Code, Error, Result};
use crate::name::{RecordKey, StackName};
use crate::state::Record;
use crate::state::lock::Lock;
use crate::value::same;

/// Takes exports out of what is published and keeps their values aside, before a scan for their consumers. Answers the
/// names that were exported.
///
/// Of a record below version 9 every output can be imported, so every output can be withdrawn.
pub fn withdraw<'n>(record: &mut Record, names: impl IntoIterator<Item = &'n str>) -> Vec<String> {
    let importable = record.importable();
    let mut outputs = record.outputs();
    let mut exports = record.export_names();
    let mut withdrawing = record.withdrawing();
    let mut moved = Vec::new();
    for name in names {
        if !importable.contains_key(name) {
            continue;
        }
        if let Some(value) = outputs.shift_remove(name) {
            withdrawing.insert(name.to_owned(), value);
            exports.retain(|known| known != name);
            moved.push(name.to_owned());
        }
    }
    if !moved.is_empty() {
        record.set_published(outputs);
        record.set_export_names(&exports);
        record.set_withdrawing(withdrawing);
    }
    moved
}

/// The same with all that can be imported: of a destroy.
pub fn withdraw_all(record: &mut Record) -> Vec<String> {
    let names = record.importable();
    withdraw(record, names.keys().map(String::as_str))
}

/// Moves back what was withdrawn. Answers the names.
///
/// What has been published under the name meanwhile is newer and stays.
pub fn take_back(record: &mut Record) -> Vec<String> {
    take_back_but(record, &[])
}

/// Moves back what this run withdrew: after a refused scan, or a rollback before any delete. Answers the names.
///
/// `earlier` is what the run found withdrawn: of an earlier run that may have deleted what those values name. It stays
/// until a deploy publishes it anew (rule E26).
pub fn take_back_but(record: &mut Record, earlier: &[String]) -> Vec<String> {
    let (left, back): (Map<String, Value>, Map<String, Value>) =
        record.withdrawing().into_iter().partition(|(name, _)| earlier.contains(name));
    if back.is_empty() {
        return Vec::new();
    }
    let mut outputs = record.outputs();
    let mut exports = record.export_names();
    let names: Vec<String> = back.keys().cloned().collect();
    for (name, value) in back {
        outputs.entry(name.clone()).or_insert(value);
        if record.says_exports() && !exports.contains(&name) {
            exports.push(name);
        }
    }
    record.set_published(outputs);
    record.set_export_names(&exports);
    record.set_withdrawing(left);
    names
}

/// The same of a run that was refused before its first call. What says the same as in `found` is put in its order, so
/// that the record is as the run found it (rule E28).
pub fn undo(record: &mut Record, found: Option<&Record>, earlier: &[String]) {
    take_back_but(record, earlier);
    unclaim(record);
    let Some(found) = found else { return };
    let set = |record: &Record| record.export_names().into_iter().collect::<BTreeSet<_>>();
    if set(record) == set(found) {
        record.set_export_names(&found.export_names());
    }
    if record.outputs() == found.outputs() {
        record.set_published(found.outputs());
    }
}

/// Remembers values that consumers of the same run hold until they are deployed themselves, of exports that this run
/// withdrew and is about to publish anew: what they name waits for its delete, and if the run does not come to that the
/// next one has to know (rule E24).
pub fn supersede<'n>(record: &mut Record, names: impl IntoIterator<Item = &'n str>) {
    let withdrawing = record.withdrawing();
    let mut superseded = record.superseded();
    for name in names {
        if let Some(value) = withdrawing.get(name) {
            remember(&mut superseded, name, value);
        }
    }
    record.set_superseded(superseded);
}

fn remember(superseded: &mut Map<String, Value>, name: &str, value: &Value) {
    let list = superseded.entry(name.to_owned()).or_insert_with(|| Value::Array(Vec::new()));
    if let Value::Array(list) = list
        && !list.contains(value)
    {
        list.push(value.clone());
    }
}

/// Forgets them once nothing that they could name is left to delete.
pub fn forget_superseded(record: &mut Record) {
    record.set_superseded(Map::new());
}

/// Makes outputs and exports visible. Claims have become exports and are dropped, and what was withdrawn is published
/// anew or gone.
///
/// `hold` are exports that are taken away only in the clean-up: they stay as they are until then. One whose key is
/// taken by an output now, or that an earlier run withdrew, is not served any more; its value is remembered.
pub fn publish<'n>(record: &mut Record, published: &Published, hold: impl IntoIterator<Item = &'n str>) {
    let (before, withdrawn) = (record.importable(), record.withdrawing());
    let recorded = record.export_names();
    let mut outputs = published.outputs.clone();
    let mut exports = published.export_names.clone();
    let mut superseded = record.superseded();
    for name in hold.into_iter().filter(|name| !published.export_names.iter().any(|export| export == name)) {
        match (before.get(name), withdrawn.get(name)) {
            (Some(value), _) if !published.outputs.contains_key(name) => {
                outputs.insert(name.to_owned(), value.clone());
                exports.push(name.to_owned());
            }
            (Some(value), _) | (None, Some(value)) => remember(&mut superseded, name, value),
            (None, None) => {}
        }
    }
    // The same names in another order are the same (rule E6).
    let set = |names: &[String]| names.iter().cloned().collect::<BTreeSet<_>>();
    if set(&recorded) != set(&exports) {
        record.set_export_names(&exports);
    }
    record.set_published(outputs);
    record.set_withdrawing(Map::new());
    record.set_superseded(superseded);
    record.set_claims(&[]);
}

/// Writes names that a run is about to export, before it looks at the records of others.
pub fn claim<'n>(record: &mut Record, names: impl IntoIterator<Item = &'n str>) {
    let mut claims = record.claims();
    for name in names {
        if !claims.iter().any(|claim| claim == name) {
            claims.push(name.to_owned());
        }
    }
    record.set_claims(&claims);
}

/// Drops the claims of a run that ends without publishing.
pub fn unclaim(record: &mut Record) {
    record.set_claims(&[]);
}

/// Exports that stacks of this run give up, so that others of it may take the name (rule E29).
pub type GivenUp = BTreeSet<(RecordKey, String)>;

/// Looks whether another stack of the region owns one of the names: exports or claims it, or withdraws it in a run that
/// may still be refused.
///
/// # Errors
/// `ExportNameTakenError` naming every name with its owner (rule E4).
pub fn conflicts<'r>(
    own: &RecordKey,
    names: &[String],
    given_up: &GivenUp,
    records: impl IntoIterator<Item = (&'r RecordKey, &'r Record)>,
) -> Result<()> {
    let mut taken: Vec<(String, &RecordKey, bool)> = Vec::new();
    for (key, record) in records {
        if key == own || key.region != own.region {
            continue;
        }
        let owned = record.owned_names();
        let exports = record.export_names();
        for name in names {
            if owned.contains(name) && !given_up.contains(&(key.clone(), name.clone())) {
                let claimed = !exports.contains(name) && record.claims().contains(name);
                taken.push((name.clone(), key, claimed));
            }
        }
    }
    taken.sort();
    let Some((_, owner, claimed)) = taken.first() else { return Ok(()) };
    let hint = if *claimed {
        format!("a run of `{}` is about to export it; rename one of the two exports", owner.stack)
    } else {
        format!(
            "rename one of the two exports, or remove that of `{}` in a deploy first; both in one run works too",
            owner.stack
        )
    };
    let list: Vec<String> = taken
        .iter()
        .map(|(name, key, claimed)| {
            let verb = if *claimed { "is claimed" } else { "is exported" };
            format!("`{name}` {verb} by {key}")
        })
        .collect();
    Err(Error::new(
        Code::ExportNameTakenError,
        format!("{own} cannot export what another stack of the region has: {}", abridged(&list, 20, "; ")),
    )
    .hint(hint)
    .detail("names", taken.iter().map(|(name, ..)| name.as_str()).collect::<Vec<_>>())
    .detail("owner", owner.stack.as_str())
    .detail("region", owner.region.as_str()))
}

/// What a consumer finds at its second look at a producer's record, asked for with `If-None-Match` of the `ETag` that
/// the value came from.
#[derive(Clone, Copy, Debug)]
pub enum Producer<'r> {
    /// 304.
    NotModified,
    /// 200.
    Now(&'r Record),
    /// 404.
    Gone,
}

/// The consumer's second look, after its import is on record and before the value's first use.
///
/// # Errors
/// `ProducerBeingDestroyedError` unless the export is still there with the same stored value (rules E22, E25).
pub fn look(key: &RecordKey, name: &str, value: &Value, producer: Producer<'_>) -> Result<()> {
    let what = match producer {
        Producer::NotModified => return Ok(()),
        Producer::Gone => "the stack has been destroyed".to_owned(),
        Producer::Now(record) => match record.export(name) {
            Some(now) if same(&now, value) => return Ok(()),
            Some(_) => "its value has changed since it was read".to_owned(),
            None if record.withdrawing().contains_key(name) => {
                "a run is taking it away, or a destroy has failed half way".to_owned()
            }
            None => "the stack does not export it any more".to_owned(),
        },
    };
    Err(being_destroyed(key, &[name], &what))
}

/// The lock that covers a record: nested stacks are worked on under that of their root.
pub fn lock_of(key: &RecordKey) -> RecordKey {
    let mut root = key.clone();
    while let Some(parent) = root.stack.parent() {
        root.stack = parent;
    }
    root
}

/// Looks at the producer's lock ([`lock_of`] its record), *before* its record: another tool writes no intent there, and
/// seen in this order it cannot slip through between the two. A lock that has expired still counts: its holder may be at
/// work.
///
/// # Errors
/// `ProducerBeingDestroyedError` while a tool that is not this one destroys the producer.
pub fn look_at_lock(key: &RecordKey, names: &[&str], lock: Option<&Lock>) -> Result<()> {
    let Some(lock) = lock else { return Ok(()) };
    if lock.execution().is_some() || lock.operation() != Some("destroy") {
        return Ok(());
    }
    Err(being_destroyed(key, names, &format!("`{}` is destroying the stack", lock.owner())))
}

fn being_destroyed(key: &RecordKey, names: &[&str], what: &str) -> Error {
    Error::new(
        Code::ProducerBeingDestroyedError,
        format!("{} of {key} cannot be imported: {what}", quoted(names.iter().copied())),
    )
    .hint("nothing was built on it; start the execution again once no run of that stack is under way")
    .detail("producer", key.stack.as_str())
    .detail("producerRegion", key.region.as_str())
    .detail("exports", names)
}

/// Whether `stack` is `root` or nested in it, at any depth.
pub(super) fn is_within(stack: &str, root: &StackName) -> bool {
    stack.strip_prefix(root.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('~'))
}

#[cfg(test)]
mod tests {
    use super::super::imports::{self, Reads, Save};
    use super::super::testing::{consumer, key, producer, record, record_of};
    use super::super::{resolve, scan};
    use super::*;
    use crate::state::lock::HOLDS_FOR;
    use serde_json::json;

    fn published(outputs: Value, exports: &[&str]) -> Published {
        let Value::Object(outputs) = outputs else { panic!("an object") };
        let export_names = exports.iter().map(|name| (*name).to_owned()).collect();
        Published { outputs, export_names, warnings: vec![] }
    }

    #[test]
    fn what_is_withdrawn_is_kept_aside_and_taken_back() {
        let before = producer("P", &["X", "Y"]);
        let mut record = before.clone();
        assert_eq!(withdraw(&mut record, ["X", "Nope"]), ["X"]);
        assert_eq!(record.outputs(), *json!({"Y": "value-of-Y"}).as_object().unwrap());
        assert_eq!(record.export_names(), ["Y"]);
        assert_eq!(record.withdrawing(), *json!({"X": "value-of-X"}).as_object().unwrap());
        // A run that takes a dead one over withdraws again: nothing is lost.
        assert!(withdraw(&mut record, ["X"]).is_empty());
        assert_eq!(withdraw_all(&mut record), ["Y"]);
        assert_eq!(record.withdrawing().len(), 2);
        assert_eq!(take_back(&mut record), ["X", "Y"]);
        assert!(record.says_the_same(&before));
        assert!(take_back(&mut record).is_empty());
    }

    #[test]
    fn of_a_record_below_version_9_every_output_is_withdrawn() {
        let before = record_of(8, "P", json!({"outputs": {"A": 0, "B": "b"}}));
        let mut record = before.clone();
        assert_eq!(withdraw_all(&mut record), ["A", "B"]);
        assert!(record.importable().is_empty());
        take_back(&mut record);
        assert!(record.says_the_same(&before));
    }

    #[test]
    fn e26_what_an_earlier_run_withdrew_is_not_taken_back_by_one_that_is_refused() {
        let mut found = producer("P", &["X", "Y", "Z"]);
        withdraw(&mut found, ["Z"]);
        let mut record = found.clone();
        claim(&mut record, ["New"]);
        withdraw_all(&mut record);
        undo(&mut record, Some(&found), &["Z".to_owned()]);
        assert_eq!(record, found);
        // Whatever the order in which they went: the record is as it was.
        let before = producer("P", &["X", "Y"]);
        let mut record = before.clone();
        withdraw(&mut record, ["X"]);
        undo(&mut record, Some(&before), &[]);
        assert_eq!(record, before);
        assert_eq!(record.export_names(), ["X", "Y"]);
    }

    #[test]
    fn what_was_published_meanwhile_is_not_taken_back() {
        let mut record = producer("P", &["X"]);
        withdraw_all(&mut record);
        record.set_published(json!({"X": "new"}).as_object().cloned().unwrap());
        take_back(&mut record);
        assert_eq!(record.export("X"), Some(json!("new")));
    }

    #[test]
    fn e26_a_later_deploy_restores_what_a_failed_destroy_withdrew() {
        let mut record = producer("P", &["X", "Gone"]);
        claim(&mut record, ["Z", "Z"]);
        assert_eq!(record.claims(), ["Z"]);
        withdraw_all(&mut record);
        assert_eq!(record.export("X"), None);
        publish(&mut record, &published(json!({"O": "v", "X": "v"}), &["X"]), []);
        assert_eq!(record.export("X"), Some(json!("v")));
        assert!(record.withdrawing().is_empty() && record.claims().is_empty());
        assert_eq!(record.owned_names(), ["X"]);
    }

    #[test]
    fn old_and_new_exports_are_both_there_until_the_clean_up() {
        let mut record = producer("P", &["Old", "Taken", "Kept"]);
        let now = published(json!({"New": 1, "Kept": "new", "Taken": "plain"}), &["New", "Kept"]);
        publish(&mut record, &now, ["Old", "Taken", "Kept", "Nope"]);
        assert_eq!(
            record.importable(),
            *json!({"New": 1, "Kept": "new", "Old": "value-of-Old"}).as_object().unwrap()
        );
        // E23: its key is an output's now, so it cannot be served; whoever imported it may hold its value.
        assert_eq!(record.superseded(), *json!({"Taken": ["value-of-Taken"]}).as_object().unwrap());
        // A second try, and the commit of a clean-up that is put off, leave it so.
        let same = record.clone();
        publish(&mut record, &now, ["Old", "Taken", "Kept", "Nope"]);
        assert!(record.says_the_same(&same));
        // The clean-up: out of the record before the scan, and back if that refuses.
        assert_eq!(withdraw(&mut record, ["Old", "Taken"]), ["Old"]);
        assert_eq!(take_back(&mut record), ["Old"]);
        assert!(record.says_the_same(&same));
        withdraw(&mut record, ["Old"]);
        publish(&mut record, &now, []);
        forget_superseded(&mut record);
        assert_eq!(record.export_names(), ["New", "Kept"]);
        assert!(record.withdrawing().is_empty() && record.superseded().is_empty());
    }

    #[test]
    fn e24_a_value_that_consumers_of_the_run_hold_is_remembered() {
        let mut record = producer("P", &["X", "Y"]);
        let now = published(json!({"X": "new", "Y": "new"}), &["X", "Y"]);
        withdraw(&mut record, ["X", "Y"]);
        supersede(&mut record, ["X"]);
        publish(&mut record, &now, []);
        // A second try finds nothing withdrawn: the new value is not taken for an old one.
        supersede(&mut record, ["X"]);
        publish(&mut record, &now, []);
        assert_eq!(record.export("X"), Some(json!("new")));
        assert_eq!(record.superseded(), *json!({"X": ["value-of-X"]}).as_object().unwrap());
        // The next run that replaces it: both are remembered, also if it is refused.
        withdraw(&mut record, ["X"]);
        assert_eq!(record.export("X"), None);
        supersede(&mut record, ["X"]);
        assert_eq!(record.superseded()["X"], json!(["value-of-X", "new"]));
    }

    #[test]
    fn e26_what_is_held_is_not_served_again_if_an_earlier_run_withdrew_it() {
        let mut record = producer("P", &["X"]);
        withdraw(&mut record, ["X"]);
        publish(&mut record, &published(json!({}), &[]), ["X"]);
        assert_eq!(record.export("X"), None);
        assert_eq!(record.superseded(), *json!({"X": ["value-of-X"]}).as_object().unwrap());
    }

    #[test]
    fn e6_the_same_exports_in_another_order_are_the_same() {
        let mut record = producer("P", &["X", "Y"]);
        let before = record.clone();
        publish(&mut record, &published(json!({"Y": "value-of-Y", "X": "value-of-X"}), &["Y", "X"]), []);
        assert!(record.says_the_same(&before));
    }

    #[test]
    fn e4_a_name_has_one_owner_in_a_region() {
        let names = ["X".to_owned(), "Free".to_owned()];
        let claimed = {
            let mut record = producer("P1", &[]);
            claim(&mut record, ["X"]);
            record
        };
        let withdrawn = {
            let mut record = producer("P1", &["X"]);
            withdraw_all(&mut record);
            record
        };
        let far = RecordKey::parse("P1", "eu-west-1").unwrap();
        let gives_up: GivenUp = [(key("P1"), "X".to_owned())].into();
        let none = GivenUp::new();
        let table = [
            (key("P1"), producer("P1", &["X"]), &none, Some("`X` is exported by P1 (us-east-1)")),
            (key("P1"), claimed, &none, Some("`X` is claimed by P1 (us-east-1)")),
            (key("P1"), withdrawn, &none, Some("`X` is exported by P1 (us-east-1)")),
            (key("P1"), producer("P1", &["Y"]), &none, None),
            (key("P1"), record("P1", json!({"outputs": {"X": "plain"}})), &none, None),
            (key("P1"), record_of(8, "P1", json!({"outputs": {"X": "v8"}})), &none, None),
            (far, producer("P1", &["X"]), &none, None),
            (key("P2"), producer("P2", &["X"]), &none, None),
            // E29: it gives the name up in this very run.
            (key("P1"), producer("P1", &["X"]), &gives_up, None),
        ];
        for (owner, record, given_up, expected) in table {
            let result = conflicts(&key("P2"), &names, given_up, [(&owner, &record)]);
            match expected {
                None => assert_eq!(result, Ok(())),
                Some(part) => {
                    let error = result.unwrap_err();
                    assert_eq!(error.code(), Code::ExportNameTakenError);
                    assert!(error.message().contains(part) && !error.message().contains("Free"), "{error}");
                    assert_eq!(error.details()["owner"], "P1");
                }
            }
        }
    }

    #[test]
    fn e22_e25_what_the_second_look_accepts() {
        let value = json!("value-of-X");
        let there = producer("P", &["X", "Y"]);
        let mut withdrawing = there.clone();
        withdraw(&mut withdrawing, ["X"]);
        let changed = record("P", json!({"outputs": {"X": "other"}, "exportNames": ["X"]}));
        let plain = record("P", json!({"outputs": {"X": "value-of-X"}}));
        let old = record_of(8, "P", json!({"outputs": {"X": "value-of-X"}}));
        let table = [
            (Producer::NotModified, None),
            (Producer::Now(&there), None),
            (Producer::Now(&old), None),
            (Producer::Gone, Some("has been destroyed")),
            (Producer::Now(&withdrawing), Some("is taking it away")),
            (Producer::Now(&changed), Some("has changed")),
            (Producer::Now(&plain), Some("does not export it any more")),
        ];
        for (producer, expected) in table {
            match (look(&key("P"), "X", &value, producer), expected) {
                (result, None) => assert_eq!(result, Ok(())),
                (Ok(()), Some(part)) => panic!("{part}"),
                (Err(error), Some(part)) => {
                    assert_eq!(error.code(), Code::ProducerBeingDestroyedError);
                    assert!(error.message().contains(part), "{error}");
                }
            }
        }
    }

    #[test]
    fn a_destroy_of_another_tool_is_seen_by_its_lock() {
        let lock = |operation: &str, execution: &str| {
            let body = format!(
                r#"{{"owner":"ann@host:12","timestamp":1,"expiresAt":{HOLDS_FOR},"operation":"{operation}"{execution}}}"#
            );
            Lock::parse(body.as_bytes(), &key("P")).unwrap()
        };
        assert!(look_at_lock(&key("P"), &["X"], None).is_ok());
        assert!(look_at_lock(&key("P"), &["X"], Some(&lock("deploy", ""))).is_ok());
        assert!(look_at_lock(&key("P"), &["X"], Some(&lock("destroy", r#","execution":"arn""#))).is_ok());
        let error = look_at_lock(&key("P"), &["X", "Y"], Some(&lock("destroy", ""))).unwrap_err();
        assert_eq!(error.code(), Code::ProducerBeingDestroyedError);
        assert!(
            error.message().contains("`X`, `Y` of P (us-east-1)") && error.message().contains("ann@host:12")
        );
        assert_eq!(lock_of(&key("P~C~G")), key("P"));
        assert_eq!(lock_of(&key("P")), key("P"));
    }

    #[test]
    fn a_tree_is_told_by_its_separator() {
        let root = "P".parse().unwrap();
        for (stack, expected) in [("P", true), ("P~C", true), ("P~C~G", true), ("P2", false), ("Q~P", false)]
        {
            assert_eq!(is_within(stack, &root), expected, "{stack}");
        }
    }

    /// A producer and a consumer, each at a step of its run.
    #[derive(Clone)]
    struct World {
        producer: Option<Record>,
        consumer: Record,
        /// Values whose resource is there.
        alive: BTreeSet<String>,
        /// What the consumer is built on.
        uses: Option<String>,
        producer_at: usize,
        consumer_at: usize,
        /// What the consumer read, and the record it came from.
        read: Option<(Value, Record)>,
    }

    const END: usize = usize::MAX;

    impl World {
        /// Withdraw, scan, delete, forget; then, if `again`, make it anew: with the name, but another value.
        fn producer_steps(&mut self, again: bool) {
            let p = key("P");
            self.producer_at = match (self.producer_at, self.producer.as_mut()) {
                (0, Some(record)) => {
                    withdraw_all(record);
                    1
                }
                (1, Some(record)) => {
                    let c = key("C");
                    let scan =
                        scan::consumers(&p, None, [(&c, Ok(&self.consumer)), (&p, Ok(&*record))]).unwrap();
                    if scan::refuse(&p, &scan, scan::Intent::Destroy).is_err() {
                        take_back(record);
                        END
                    } else {
                        2
                    }
                }
                (2, _) => {
                    self.alive.remove("v1");
                    3
                }
                (3, _) => {
                    self.producer = None;
                    if again { 4 } else { END }
                }
                (4, _) => {
                    let mut record = Record::new(&p);
                    self.alive.insert("v2".into());
                    publish(&mut record, &published(json!({"X": "v2"}), &["X"]), []);
                    self.producer = Some(record);
                    END
                }
                _ => END,
            };
        }

        /// Read, record, look again, build.
        fn consumer_steps(&mut self) {
            let (p, c) = (key("P"), key("C"));
            self.consumer_at = match (self.consumer_at, self.read.clone()) {
                (0, _) => {
                    let mut resolver = resolve::Resolver::new(&c, ["X"], None, GivenUp::new());
                    let records = self.producer.iter().map(|record| (&p, Ok(record)));
                    resolver.scan(records).unwrap();
                    self.read = resolver
                        .found("X")
                        .and_then(|found| Some((found.value.clone(), self.producer.clone()?)));
                    if self.read.is_some() { 1 } else { END }
                }
                (1, Some(_)) => {
                    let import = crate::state::Import {
                        export_name: "X".into(),
                        source_stack: "P".into(),
                        source_region: "us-east-1".into(),
                    };
                    let now = Reads { imports: [import].into(), ..Reads::default() };
                    imports::settle(&mut self.consumer, &now, Save::Midway);
                    2
                }
                (2, Some((value, from))) => {
                    let producer = match &self.producer {
                        Some(now) if *now == from => Producer::NotModified,
                        Some(now) => Producer::Now(now),
                        None => Producer::Gone,
                    };
                    if look(&p, "X", &value, producer).is_ok() { 3 } else { END }
                }
                (3, Some((value, _))) => {
                    self.uses = value.as_str().map(str::to_owned);
                    END
                }
                _ => END,
            };
        }
    }

    /// All orders of the steps; answers in how many ends (the producer was destroyed, the consumer was built).
    fn explore(world: &World, again: bool, ends: &mut BTreeSet<(bool, bool)>) {
        if let Some(value) = &world.uses {
            assert!(world.alive.contains(value), "a live consumer lost {value}");
        }
        if world.producer_at == END && world.consumer_at == END {
            ends.insert((!world.alive.contains("v1"), world.uses.is_some()));
            return;
        }
        if world.producer_at != END {
            let mut next = world.clone();
            next.producer_steps(again);
            explore(&next, again, ends);
        }
        if world.consumer_at != END {
            let mut next = world.clone();
            next.consumer_steps();
            explore(&next, again, ends);
        }
    }

    #[test]
    fn e22_in_no_order_of_steps_does_a_consumer_lose_its_producer() {
        for again in [false, true] {
            let world = World {
                producer: Some(record("P", json!({"outputs": {"X": "v1"}, "exportNames": ["X"]}))),
                consumer: consumer("C", &[]),
                alive: ["v1".to_owned()].into(),
                uses: None,
                producer_at: 0,
                consumer_at: 0,
                read: None,
            };
            let mut ends = BTreeSet::new();
            explore(&world, again, &mut ends);
            // One of the two gets through, or neither does. Both only where the consumer came to the producer made anew.
            assert_eq!(ends.contains(&(true, true)), again, "{ends:?}");
            for end in [(true, false), (false, true), (false, false)] {
                assert!(ends.contains(&end), "{end:?} {ends:?}");
            }
        }
    }

    /// A deploy of a producer that gives an export up and of the consumer that stops importing it, and a consumer of
    /// another run that comes meanwhile.
    #[derive(Clone)]
    struct Embrace {
        producer: Record,
        within: Record,
        outside: Record,
        alive: bool,
        /// Who is built on the value.
        uses: [bool; 2],
        run_at: usize,
        outside_at: usize,
        read: Option<Record>,
    }

    impl Embrace {
        /// Publish and hold; the consumer moves, or fails; withdraw; scan; delete.
        fn run_steps(&mut self, fails: bool) {
            let (p, i, o) = (key("P"), key("I"), key("O"));
            self.run_at = match self.run_at {
                0 => {
                    publish(&mut self.producer, &published(json!({}), &[]), ["X"]);
                    1
                }
                1 => {
                    if !fails {
                        self.uses[0] = false;
                        let wanted = BTreeSet::new();
                        imports::settle(
                            &mut self.within,
                            &Reads::default(),
                            Save::Success { wanted: &wanted },
                        );
                    }
                    2
                }
                2 => {
                    withdraw(&mut self.producer, ["X"]);
                    3
                }
                3 => {
                    let records = [(&i, Ok(&self.within)), (&o, Ok(&self.outside)), (&p, Ok(&self.producer))];
                    let found = scan::consumers(&p, Some(&["X".to_owned()]), records).unwrap();
                    if scan::refuse(&p, &found, scan::Intent::Withdraw(&[])).is_err() {
                        take_back(&mut self.producer);
                        END
                    } else {
                        4
                    }
                }
                4 => {
                    self.alive = false;
                    publish(&mut self.producer, &published(json!({}), &[]), []);
                    END
                }
                _ => END,
            };
        }

        /// Read, record, look again, build.
        fn outside_steps(&mut self) {
            let p = key("P");
            self.outside_at = match (self.outside_at, self.read.clone()) {
                (0, _) if self.producer.export("X").is_some() => {
                    self.read = Some(self.producer.clone());
                    1
                }
                (1, _) => {
                    let import = crate::state::Import {
                        export_name: "X".into(),
                        source_stack: "P".into(),
                        source_region: "us-east-1".into(),
                    };
                    let now = Reads { imports: [import].into(), ..Reads::default() };
                    imports::settle(&mut self.outside, &now, Save::Midway);
                    2
                }
                (2, Some(from)) => {
                    let producer = if self.producer == from {
                        Producer::NotModified
                    } else {
                        Producer::Now(&self.producer)
                    };
                    if look(&p, "X", &json!("value-of-X"), producer).is_ok() { 3 } else { END }
                }
                (3, _) => {
                    self.uses[1] = true;
                    END
                }
                _ => END,
            };
        }

        /// All orders of the steps; answers in how many ends (the value is gone, the other consumer was built).
        fn explore(&self, fails: bool, ends: &mut BTreeSet<(bool, bool)>) {
            assert!(self.alive || self.uses == [false, false], "a live consumer lost its value");
            if self.run_at == END && self.outside_at == END {
                // What is refused is exported as before.
                assert_eq!(self.producer.export("X").is_some(), self.alive);
                ends.insert((!self.alive, self.uses[1]));
                return;
            }
            if self.run_at != END {
                let mut next = self.clone();
                next.run_steps(fails);
                next.explore(fails, ends);
            }
            if self.outside_at != END {
                let mut next = self.clone();
                next.outside_steps();
                next.explore(fails, ends);
            }
        }
    }

    #[test]
    fn e15_e22_in_no_order_of_steps_does_what_is_held_go_under_a_consumer() {
        for fails in [false, true] {
            let world = Embrace {
                producer: producer("P", &["X"]),
                within: consumer("I", &[("X", "P")]),
                outside: consumer("O", &[]),
                alive: true,
                uses: [true, false],
                run_at: 0,
                outside_at: 0,
                read: None,
            };
            let mut ends = BTreeSet::new();
            world.explore(fails, &mut ends);
            // Never gone and built on; gone at all only if the consumer of the run has moved.
            let expected: BTreeSet<_> = [(true, false), (false, true), (false, false)]
                .into_iter()
                .filter(|(gone, _)| !(*gone && fails))
                .collect();
            assert_eq!(ends, expected, "{fails}");
        }
    }
}
