//! A stack and the stacks nested in it as one record, and back.
//!
//! Each nested stack has a document of its own, as the cdkd command line tool has it: `Parent~LogicalId`. A run works on
//! all of them under one lock and one journal, so in memory their rows stand in the record of the root, under ids that
//! say the way to them: `Child~Queue`, `Child~Grand~Queue`. Logical ids are alphanumeric, so `~` tells them apart. What
//! a document says beside rows and pending deletes (outputs, exports, imports) stays with it.
//!
//! A *path* is such an id of a nested stack, `Child~Grand`; that of the root is empty.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::{Deploy, PendingDelete, Record, Row};
use crate::name::RecordKey;

/// The type of a row behind which there is a nested stack.
pub const NESTED: &str = "AWS::CloudFormation::Stack";

/// The id of a resource of the stack at a path.
pub fn id(path: &str, logical_id: &str) -> String {
    if path.is_empty() { logical_id.to_owned() } else { format!("{path}~{logical_id}") }
}

/// An id as the path of its stack and the logical id there.
pub fn parts(id: &str) -> (&str, &str) {
    id.rsplit_once('~').unwrap_or(("", id))
}

/// The nested stacks that an id is in, outermost first: `A` and `A~B` of `A~B~Queue`.
pub fn ancestors(id: &str) -> impl DoubleEndedIterator<Item = &str> {
    let ends: Vec<usize> = id.match_indices('~').map(|(at, _)| at).collect();
    ends.into_iter().filter_map(|end| id.get(..end))
}

/// Whether an id is in the nested stack at `path`, at any depth.
pub fn is_inside(id: &str, path: &str) -> bool {
    id.strip_prefix(path).is_some_and(|rest| rest.starts_with('~'))
}

/// The key of the record of the stack at a path.
pub fn key_of(root: &RecordKey, path: &str) -> RecordKey {
    let mut key = root.clone();
    for logical_id in path.split('~').filter(|part| !part.is_empty()) {
        key.stack = key.stack.nested(logical_id);
    }
    key
}

/// The path of a record nested in a root; `None` for the root itself and for others.
pub fn path_of<'k>(root: &RecordKey, key: &'k RecordKey) -> Option<&'k str> {
    (key.region == root.region)
        .then(|| key.stack.as_str().strip_prefix(root.stack.as_str())?.strip_prefix('~'))
        .flatten()
}

/// The paths of the nested stacks that rows lead to, parents before children.
pub fn paths(record: &Record) -> Vec<String> {
    let nested = |id: &str| record.row(id).is_some_and(|row| row.resource_type() == NESTED);
    let mut paths: Vec<String> = record
        .rows()
        .filter(|(id, row)| row.resource_type() == NESTED && ancestors(id).all(nested))
        .map(|(id, _)| id.to_owned())
        .collect();
    paths.sort_by_key(|path| path.matches('~').count());
    paths
}

/// Puts the rows and pending deletes of nested stacks, by path, onto the record of their root. Documents that no row
/// leads to are passed over: of a nested stack that was retained.
pub fn merge(mut record: Record, nested: &BTreeMap<String, Record>) -> Record {
    let mut waiting = paths(&record);
    while !waiting.is_empty() {
        let mut next = Vec::new();
        for path in waiting {
            let Some(child) = nested.get(&path) else { continue };
            for (logical_id, row) in child.rows() {
                let id = id(&path, logical_id);
                if row.resource_type() == NESTED {
                    next.push(id.clone());
                }
                record.put_row(&id, prefixed(row, &path));
            }
            for PendingDelete { logical_id, row } in child.pending_deletes() {
                record.add_pending_delete(&PendingDelete {
                    logical_id: id(&path, &logical_id),
                    row: prefixed(row, &path),
                });
            }
        }
        waiting = next;
    }
    record
}

/// The record of the stack at a path: `own` with the rows and pending deletes of `merged` that are its, under their
/// logical ids.
pub fn extract(merged: &Record, path: &str, mut own: Record) -> Record {
    let mut rows = Map::new();
    for (id, row) in merged.rows() {
        let (at, logical_id) = parts(id);
        if at == path {
            rows.insert(logical_id.to_owned(), stripped(row, path).to_value());
        }
    }
    own.set("resources", Value::Object(rows));
    let waiting: Vec<PendingDelete> = merged
        .pending_deletes()
        .into_iter()
        .filter_map(|pending| {
            let (at, logical_id) = parts(&pending.logical_id);
            (at == path).then(|| PendingDelete {
                logical_id: logical_id.to_owned(),
                row: stripped(pending.row, path),
            })
        })
        .collect();
    // What says the same stays as it is written.
    if waiting != own.pending_deletes() {
        own.set_pending_deletes(&waiting);
    }
    own
}

/// Takes out what no row leads to: the rows of a nested stack that was retained stay with its own document.
pub fn prune(record: &mut Record) {
    let reachable = paths(record);
    let lost = |id: &str| ancestors(id).any(|path| !reachable.iter().any(|known| known == path));
    let rows: Vec<String> = record.rows().map(|(id, _)| id.to_owned()).filter(|id| lost(id)).collect();
    for id in rows {
        record.remove_row(&id);
    }
    for pending in record.pending_deletes() {
        if lost(&pending.logical_id) {
            record.remove_pending_delete(&pending);
        }
    }
}

/// The row of a nested stack whose content a run is about to make: it stands on record first, so that what is made is
/// found whatever becomes of the run. It says nothing yet but which stack it is.
pub fn unfinished(stack_id: &str) -> Row {
    let mut row = Row::new(NESTED, stack_id);
    row.set_own(UNFINISHED, json!(true));
    row
}

pub fn is_unfinished(row: &Row) -> bool {
    row.resource_type() == NESTED && row.own(UNFINISHED).is_some()
}

const UNFINISHED: &str = "unfinished";

/// The rows of nested stacks, by path, that are not on record yet: they go there before anything is made in them.
pub fn missing<'n>(
    record: &Record,
    nested: impl IntoIterator<Item = (&'n String, &'n String)>,
) -> Vec<(String, Row)> {
    let absent = nested.into_iter().filter(|(path, _)| record.row(path).is_none());
    absent.map(|(path, stack_id)| (path.clone(), unfinished(stack_id))).collect()
}

/// The nested stacks that a run began and in which nothing is, innermost first: their rows can go. `busy`: whether
/// something in that stack may be under way.
pub fn hollow(record: &Record, busy: impl Fn(&str) -> bool) -> Vec<String> {
    let mut hollow: Vec<String> = Vec::new();
    for path in paths(record).into_iter().rev() {
        let row = record.row(&path);
        let filled = record.rows().any(|(id, _)| is_inside(id, &path) && !hollow.iter().any(|it| it == id))
            || record.pending_deletes().iter().any(|pending| is_inside(&pending.logical_id, &path));
        if row.is_some_and(|row| is_unfinished(&row)) && !filled && !busy(&path) {
            hollow.push(path);
        }
    }
    hollow
}

/// A new record for the nested stack at a path. `stack_id`: the physical id of its row.
pub fn new_record(root: &RecordKey, path: &str, stack_id: &str) -> Record {
    let (parent, logical_id) = parts(path);
    let parent = key_of(root, parent);
    let mut record = Record::new(&key_of(root, path));
    record.set("parentStack", json!(parent.stack.as_str()));
    record.set("parentLogicalId", json!(logical_id));
    record.set("parentRegion", json!(parent.region.as_str()));
    record.set_deploy(&Deploy { stack_id: stack_id.to_owned(), ..Deploy::default() });
    record
}

fn prefixed(mut row: Row, path: &str) -> Row {
    let dependencies: Vec<String> = row.dependencies().iter().map(|needed| id(path, needed)).collect();
    if !dependencies.is_empty() {
        row.set_dependencies(&dependencies);
    }
    row
}

/// What a document says of dependencies are logical ids of its own.
fn stripped(mut row: Row, path: &str) -> Row {
    let all = row.dependencies();
    let own: Vec<String> = all
        .iter()
        .map(|needed| parts(needed))
        .filter(|(at, _)| *at == path)
        .map(|(_, logical_id)| logical_id.to_owned())
        .collect();
    if own != all {
        row.set_dependencies(&own);
    }
    row
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(stack: &str) -> RecordKey {
        RecordKey::parse(stack, "us-east-1").unwrap()
    }

    fn record(stack: &str, fields: &Value) -> Record {
        let mut document = json!({"version": 9, "stackName": stack, "region": "us-east-1"});
        for (name, value) in fields.as_object().unwrap() {
            document[name] = value.clone();
        }
        Record::parse(document.to_string().as_bytes(), &key(stack)).unwrap()
    }

    fn queue(dependencies: &[&str]) -> Value {
        json!({"physicalId": "q", "resourceType": "AWS::SQS::Queue", "properties": {}, "dependencies": dependencies})
    }

    fn stack(physical_id: &str) -> Value {
        json!({"physicalId": physical_id, "resourceType": NESTED, "properties": {}})
    }

    /// `P` with `Child`, which has `Grand`.
    fn tree() -> (Record, BTreeMap<String, Record>) {
        let root = record(
            "P",
            &json!({
                "resources": {"Before": queue(&[]), "Child": stack("arn:c"), "After": queue(&["Child", "Before"])},
                "outputs": {"O": "o"},
            }),
        );
        let child = record(
            "P~Child",
            &json!({
                "resources": {"Grand": stack("arn:g"), "Queue": queue(&["Grand"])},
                "outputs": {"C": "c"}, "exportNames": ["C"], "parentStack": "P", "theirs": 1,
                "pendingDeletes": [{
                    "logicalId": "Queue", "physicalId": "old", "resourceType": "AWS::SQS::Queue",
                    "dependencies": ["Grand"],
                }],
            }),
        );
        let grand = record("P~Child~Grand", &json!({"resources": {"Topic": queue(&[])}, "outputs": {}}));
        (root, BTreeMap::from([("Child".into(), child), ("Child~Grand".into(), grand)]))
    }

    #[test]
    fn rows_of_nested_stacks_stand_under_the_way_to_them_and_go_back_to_their_documents() {
        let (root, nested) = tree();
        let merged = merge(root.clone(), &nested);
        let rows: Vec<String> =
            merged.rows().map(|(id, row)| format!("{id}: {}", row.dependencies().join(" "))).collect();
        assert_eq!(
            rows,
            [
                "Before: ",
                "Child: ",
                "After: Child Before",
                "Child~Grand: ",
                "Child~Queue: Child~Grand",
                "Child~Grand~Topic: ",
            ]
        );
        assert_eq!(merged.pending_deletes()[0].logical_id, "Child~Queue");
        assert_eq!(merged.pending_deletes()[0].row.dependencies(), ["Child~Grand"]);
        assert_eq!(paths(&merged), ["Child", "Child~Grand"]);
        assert_eq!(merged.outputs(), root.outputs());
        // Twice the same is the same.
        assert_eq!(merge(merged.clone(), &nested), merged);

        assert!(extract(&merged, "", merged.clone()).says_the_same(&root));
        for (path, own) in &nested {
            assert!(extract(&merged, path, own.clone()).says_the_same(own), "{path}");
        }
    }

    #[test]
    fn a_stack_without_nested_ones_is_its_record() {
        let root = record("P", &json!({"resources": {"A": queue(&[]), "B": queue(&["A"])}, "outputs": {}}));
        let merged = merge(root.clone(), &BTreeMap::new());
        assert_eq!(merged, root);
        assert_eq!(extract(&merged, "", merged.clone()), root);
    }

    #[test]
    fn what_a_run_adds_for_its_order_is_in_no_document() {
        let (root, nested) = tree();
        let mut merged = merge(root, &nested);
        let mut row = merged.row("Child~Queue").unwrap();
        row.set_dependencies(&["Child~Grand".into(), "Before".into(), "Child".into()]);
        merged.put_row("Child~Queue", row);
        let child = extract(&merged, "Child", nested["Child"].clone());
        assert_eq!(child.row("Queue").unwrap().dependencies(), ["Grand"]);
    }

    #[test]
    fn a_document_that_no_row_leads_to_is_passed_over() {
        let (mut root, nested) = tree();
        root.remove_row("Child");
        let merged = merge(root, &nested);
        assert_eq!(merged.len(), 2);
        // The row left while those behind it were in memory: they are the retained stack's.
        let (root, nested) = tree();
        let mut left = merge(root, &nested);
        left.remove_row("Child");
        prune(&mut left);
        assert!(left.says_the_same(&merged));
        let (root, nested) = tree();
        let all = merge(root, &nested);
        let mut same = all.clone();
        prune(&mut same);
        assert_eq!(same, all);
    }

    #[test]
    fn a_new_record_names_its_parent() {
        let record = new_record(&key("P"), "Child~Grand", "arn:g");
        assert_eq!(
            serde_json::from_slice::<Value>(&record.to_bytes()).unwrap(),
            json!({
                "version": 9, "stackName": "P~Child~Grand", "region": "us-east-1", "resources": {}, "outputs": {},
                "parentStack": "P~Child", "parentLogicalId": "Grand", "parentRegion": "us-east-1",
                "deploy": {"stackId": "arn:g", "deployed": false},
            })
        );
    }

    #[test]
    fn a_nested_stack_stands_on_record_before_what_is_in_it() {
        let (root, nested) = tree();
        let mut record = merge(root, &nested);
        let ids: BTreeMap<String, String> = [("Child", "arn:c"), ("New", "arn:n"), ("New~Inner", "arn:i")]
            .map(|(p, i)| (p.into(), i.into()))
            .into();
        let rows = missing(&record, &ids);
        assert_eq!(rows.iter().map(|(path, _)| path.as_str()).collect::<Vec<_>>(), ["New", "New~Inner"]);
        for (path, row) in rows {
            assert!(is_unfinished(&row));
            record.put_row(&path, row);
        }
        assert_eq!(hollow(&record, |_| false), ["New~Inner", "New"]);
        assert!(hollow(&record, |path| path == "New~Inner").is_empty(), "its parent is not hollow then");
        record.put_row("New~Queue", Row::new("AWS::SQS::Queue", "q"));
        assert_eq!(hollow(&record, |_| false), ["New~Inner"]);
    }

    #[test]
    fn ids_and_paths() {
        assert_eq!(ancestors("A~B~Queue").collect::<Vec<_>>(), ["A", "A~B"]);
        assert_eq!(ancestors("Queue").count(), 0);
        assert_eq!((parts("A~B~Queue"), parts("Queue")), (("A~B", "Queue"), ("", "Queue")));
        assert!(
            is_inside("A~B", "A")
                && is_inside("A~B~C", "A")
                && !is_inside("A", "A")
                && !is_inside("AB~C", "A")
        );
        assert_eq!(key_of(&key("P"), "A~B"), key("P~A~B"));
        assert_eq!(key_of(&key("P"), ""), key("P"));
        assert_eq!(path_of(&key("P"), &key("P~A~B")), Some("A~B"));
        assert_eq!(path_of(&key("P"), &key("P")), None);
        assert_eq!(path_of(&key("P"), &key("Pa~B")), None);
    }
}
