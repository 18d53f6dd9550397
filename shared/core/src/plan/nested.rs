//! Nested stacks in a plan: where their steps stand in the one graph, and what their own row says.
//!
//! Everything in a nested stack waits for what its parent passes to it; its own step comes last of it and writes what
//! its outputs are; what reads those waits for that step. Deletes go the other way, and the row goes last: while
//! anything of a nested stack is on record, its parent says so (rule E8).

use std::fmt::Write as _;

use indexmap::IndexMap;
use serde_json::{Map, Value};
use sha2::{Digest as _, Sha256};

use super::build::{Planner, differs_on_record};
use super::{Engine, Operation, Step, changed};
use crate::error::{Code, Error, Result};
use crate::name::{Account, RecordKey};
use crate::state::tree::{NESTED, ancestors, is_inside, is_unfinished, parts};
use crate::state::{Record, Row};
use crate::template::{Resource, Tree};

/// What each resource of a tree needs before it, from what it needs in its own stack.
pub(super) fn graph(tree: &Tree<'_>, own: &IndexMap<String, Vec<String>>) -> IndexMap<String, Vec<String>> {
    own.iter()
        .map(|(id, needs)| {
            let mut needs = needs.clone();
            for path in ancestors(id) {
                needs.extend(own.get(path).into_iter().flatten().cloned());
            }
            if tree.stack(id).is_ok() {
                needs.extend(own.keys().filter(|other| parts(other).0 == id).cloned());
            }
            (id.clone(), needs)
        })
        .collect()
}

/// `AWS::StackId` of the nested stacks, by path.
pub(super) fn stack_ids(tree: &Tree<'_>) -> IndexMap<String, String> {
    tree.stacks()
        .filter(|(path, _)| !path.is_empty())
        .map(|(path, stack)| (path.to_owned(), stack.pseudo.stack_id.clone()))
        .collect()
}

/// Refuses that a nested stack takes the place of a resource or the other way round: one of the two is many.
pub(super) fn check_type(row: &Row, resource: &Resource) -> Result<()> {
    if (row.resource_type() == NESTED) == (resource.type_name == NESTED) {
        return Ok(());
    }
    Err(Error::new(
        Code::UnsupportedResourceType,
        format!(
            "a resource of type {} cannot take the place of a {}",
            resource.type_name,
            row.resource_type()
        ),
    )
    .hint("give the new one another logical id")
    .detail("type", resource.type_name.as_str()))
}

/// The properties of a nested stack that are compared. Its template is compared by its resources: where a copy of it
/// lies says nothing.
pub(super) fn compared(properties: &Value) -> Value {
    let mut properties = properties.clone();
    if let Some(properties) = properties.as_object_mut() {
        properties.shift_remove("TemplateURL");
    }
    properties
}

impl Planner<'_> {
    /// The step of a nested stack's own row. `inside`: there are steps for what is in it.
    pub fn nested(
        &self,
        id: &str,
        resource: &Resource,
        own: &[String],
        inside: bool,
    ) -> Result<Option<Step>> {
        self.foresight.met_change.set(false);
        let desired = self.tree.properties(id, self.known())?.preview();
        let outputs = self.tree.attributes(id, self.known())?;
        let known: Option<Map<String, Value>> =
            outputs.into_iter().map(|(name, value)| Some((name, value.stored().ok()?))).collect();
        let may_change = inside || known.is_none() || self.foresight.met_change.get();
        // One that a run began and did not come to its end with is still to be made.
        let row = self.record.row(id).filter(|row| !is_unfinished(row));
        let (operation, why) = match &row {
            None => (Operation::Create, Vec::new()),
            Some(row) => {
                check_type(row, resource)?;
                let mut why = changed(&compared(&row.properties()), &compared(&desired));
                if known.is_some_and(|known| known != row.attributes()) {
                    why.push("Outputs".to_owned());
                }
                match why.is_empty() {
                    false => (Operation::Update, why),
                    true if may_change => (Operation::Check, why),
                    true if differs_on_record(row, resource, own) => (Operation::Note, why),
                    true => return Ok(None),
                }
            }
        };
        self.step_of(id, resource, (Engine::Nested, operation, why), desired, row).map(Some)
    }
}

/// Takes what is in a nested stack that stays out of what is gone: it keeps its own record.
pub(super) fn keep_retained(gone: &mut IndexMap<String, (String, Row)>, stays: impl Fn(&str, &Row) -> bool) {
    let kept: Vec<String> = gone
        .iter()
        .filter(|(id, (_, row))| row.resource_type() == NESTED && stays(id, row))
        .map(|(id, _)| id.clone())
        .collect();
    gone.retain(|_, (id, _)| !kept.iter().any(|path| is_inside(id, path)));
}

/// For each of what is gone, what it is deleted before: what it was built on. Of a nested stack, everything in it goes
/// before its row; what was built on the nested stack goes before all of it, and all of it before what it was built on.
pub(super) fn before_delete(
    record: &Record,
    gone: &IndexMap<String, (String, Row)>,
) -> IndexMap<String, Vec<String>> {
    let whole = |id: String, list: &mut Vec<String>| {
        list.extend(gone.iter().filter(|(_, (inner, _))| is_inside(inner, &id)).map(|(id, _)| id.clone()));
        list.push(id);
    };
    gone.iter()
        .map(|(id, (logical_id, row))| {
            let mut list = Vec::new();
            for need in row.dependencies() {
                whole(need, &mut list);
            }
            for path in ancestors(logical_id) {
                list.push(path.to_owned());
                let needs = record.row(path).map(|row| row.dependencies()).unwrap_or_default();
                for need in needs {
                    whole(need, &mut list);
                }
            }
            (id.clone(), list)
        })
        .collect()
}

/// The ids of the steps that are undone before that of `id`: those that are built on it. Of a nested stack everything in
/// it is undone before its row.
pub fn undone_before(steps: &[Step], id: &str) -> Vec<String> {
    let built_on = |step: &Step, id: &str| step.needs.iter().any(|need| need == id);
    steps
        .iter()
        .filter(|step| {
            let other = step.id.as_str();
            is_inside(other, id)
                || (built_on(step, id) && !is_inside(id, other))
                || ancestors(id).any(|path| built_on(step, path) && !is_inside(path, other))
        })
        .map(|step| step.id.clone())
        .collect()
}

/// `AWS::StackId` of a nested stack that is new: of the form that CloudFormation's have, the same whenever a run is
/// asked. `seed` is what no other run has: its execution. Nested stacks that are made anew get new names with it.
pub fn new_stack_id(key: &RecordKey, account: &Account, parent_stack_id: &str, seed: &str) -> String {
    let mut hash = Sha256::new();
    for part in [parent_stack_id, key.stack.as_str(), seed] {
        hash.update(part.as_bytes());
        hash.update([0]);
    }
    let mut digits = String::with_capacity(64);
    for byte in hash.finalize() {
        let _ = write!(digits, "{byte:02x}");
    }
    // The form of a UUID of version 8, whose digits are free (RFC 9562).
    let group = |from: usize, to: usize| digits.get(from..to).unwrap_or_default();
    format!(
        "arn:{}:cloudformation:{}:{account}:stack/{}/{}-{}-8{}-8{}-{}",
        key.region.partition().name,
        key.region,
        key.stack.as_str().replace('~', "-"),
        group(0, 8),
        group(8, 12),
        group(12, 15),
        group(15, 18),
        group(18, 30),
    )
}

#[cfg(test)]
mod tests {
    use super::super::build::{build_tree, deletes_but};
    use super::super::{Plan, Recorded};
    use super::*;
    use crate::assets::table::Table;
    use crate::state::PendingDelete;
    use crate::template::{Bound, Known, Nested, NoImports, Pseudo, Root, Template};
    use serde_json::json;

    fn key() -> RecordKey {
        RecordKey::parse("Web", "us-east-1").unwrap()
    }

    fn parsed(document: &Value) -> Template {
        Template::parse(document.to_string().as_bytes(), "Web").unwrap()
    }

    /// `Before` → Child { Queue → Grand { Topic } → Last } → `After`; `Other` by itself.
    struct Case {
        root: Value,
        child: Value,
        grand: Value,
        record: Record,
    }

    fn nested_stack(parameters: &Value) -> Value {
        json!({"Type": NESTED, "Properties": {"TemplateURL": "https://one", "Parameters": parameters}})
    }

    impl Case {
        fn new() -> Self {
            let queue = |properties: Value| json!({"Type": "AWS::SQS::Queue", "Properties": properties});
            let topic = |name: Value| json!({"Type": "AWS::SNS::Topic", "Properties": {"DisplayName": name}});
            Self {
                root: json!({"Resources": {
                    "After": topic(json!({"Fn::GetAtt": ["Child", "Outputs.Name"]})),
                    "Child": nested_stack(&json!({"Name": {"Fn::GetAtt": ["Before", "QueueName"]}})),
                    "Before": queue(json!({})),
                    "Other": queue(json!({})),
                }}),
                child: json!({
                    "Parameters": {"Name": {"Type": "String"}},
                    "Resources": {
                        "Queue": queue(json!({})),
                        "Grand": nested_stack(&json!({"Arn": {"Fn::GetAtt": ["Queue", "Arn"]}})),
                        "Last": topic(json!({"Fn::GetAtt": ["Grand", "Outputs.Arn"]})),
                    },
                    "Outputs": {"Name": {"Value": {"Fn::Sub": "${Name}-${Queue.QueueName}"}}},
                }),
                grand: json!({
                    "Parameters": {"Arn": {"Type": "String"}},
                    "Resources": {"Topic": topic(json!({"Ref": "Arn"}))},
                    "Outputs": {"Arn": {"Value": {"Ref": "Topic"}}},
                }),
                record: Record::new(&key()),
            }
        }

        fn with<T>(&self, work: impl FnOnce(&Tree<'_>) -> T) -> T {
            let grand = Nested { template: parsed(&self.grand), nested: IndexMap::new() };
            let child =
                Nested { template: parsed(&self.child), nested: IndexMap::from([("Grand".into(), grand)]) };
            let nested = IndexMap::from([("Child".to_owned(), child)]);
            let template = parsed(&self.root);
            let (parameters, conditions, tags) = (Bound::default(), IndexMap::new(), Map::new());
            let assets = Table::default();
            let pseudo = Pseudo { stack_name: "Web".into(), stack_id: "arn:web".into(), ..Pseudo::default() };
            let root = Root {
                key: &key(),
                template: &template,
                nested: &nested,
                pseudo: &pseudo,
                parameters: &parameters,
                conditions: &conditions,
                tags: &tags,
                assets: &assets,
            };
            work(&Tree::whole(root, &NoImports, |path| format!("arn:{path}")).unwrap())
        }

        fn plan(&self) -> Result<Plan> {
            self.with(|tree| build_tree(tree, &self.record, &NoImports))
        }

        fn steps(&self) -> Vec<String> {
            let plan = self.plan().unwrap();
            plan.steps()
                .map(|step| {
                    let why = if step.why.is_empty() {
                        String::new()
                    } else {
                        format!(" ({})", step.why.join(", "))
                    };
                    format!("{} {}{why}", step.operation.name(), step.id)
                })
                .collect()
        }

        /// The record as a deploy of this leaves it.
        fn deployed(mut self) -> Self {
            let plan = self.plan().unwrap();
            for step in &plan.applies {
                let last = parts(&step.id).1.to_lowercase();
                let mut row = Row::new(&step.type_name, &format!("arn:{}", step.id));
                let attributes = json!({"Arn": format!("arn:{last}"), "QueueName": last});
                row.set_attributes(attributes.as_object().cloned().unwrap_or_default());
                self.record.put_row(&step.id, row);
            }
            for step in &plan.applies {
                let mut row = self.record.row(&step.id).unwrap();
                let (desired, attributes, own) = self.with(|tree| {
                    let recorded = Recorded(&self.record);
                    let known = Known { resources: &recorded, imports: &NoImports };
                    let attributes =
                        (step.engine == Engine::Nested).then(|| tree.attributes(&step.id, known).unwrap());
                    let own = tree.dependencies().unwrap()[&step.id].clone();
                    (tree.properties(&step.id, known).unwrap().stored().unwrap(), attributes, own)
                });
                row.set_properties(desired);
                row.set_dependencies(&own);
                if let Some(attributes) = attributes {
                    row.set_attributes(
                        attributes.into_iter().map(|(k, v)| (k, v.stored().unwrap())).collect(),
                    );
                }
                self.record.put_row(&step.id, row);
            }
            self
        }
    }

    #[test]
    fn one_graph_over_the_whole_tree() {
        let plan = Case::new().plan().unwrap();
        let steps: Vec<_> =
            plan.applies.iter().map(|step| format!("{}: {}", step.id, step.needs.join(" "))).collect();
        assert_eq!(
            steps,
            [
                "Before: ",
                "Other: ",
                "Child~Queue: Before",
                "Child~Grand~Topic: Before Child~Queue",
                "Child~Grand: Child~Queue Before Child~Grand~Topic",
                "Child~Last: Child~Grand Before",
                "Child: Before Child~Queue Child~Grand Child~Last",
                "After: Child",
            ]
        );
        assert_eq!(
            plan.nested,
            IndexMap::from([
                ("Child".to_owned(), "arn:Child".to_owned()),
                ("Child~Grand".to_owned(), "arn:Child~Grand".to_owned()),
            ])
        );
        let child = plan.applies.iter().find(|step| step.id == "Child~Queue").unwrap();
        assert_eq!(child.stack, "Web~Child");
        assert_eq!(Plan::from_document(&plan.to_document()).unwrap(), plan);
    }

    #[test]
    fn what_changes_reaches_those_who_read_it_and_no_others() {
        let none: [&str; 0] = [];
        let mut case = Case::new().deployed();
        assert_eq!(case.steps(), none);
        // Where the copy of the template lies says nothing.
        case.root["Resources"]["Child"]["Properties"]["TemplateURL"] = json!("https://two");
        assert_eq!(case.steps(), none);
        // In the grandchild alone: nothing outside reads what may change.
        case.grand["Resources"]["Topic"]["Properties"]["FifoTopic"] = json!(false);
        case.grand["Outputs"]["Arn"]["Value"] = json!("fixed");
        assert_eq!(
            case.steps(),
            [
                "replace Child~Grand~Topic (FifoTopic)",
                "update Child~Grand (Outputs)",
                "update Child~Last (DisplayName)",
                "check Child",
            ]
        );
        let mut case = Case::new().deployed();
        case.root["Resources"]["Before"]["Properties"]["FifoQueue"] = json!(true);
        let steps = case.steps();
        assert_eq!(steps[0], "replace Before (FifoQueue)");
        assert!(steps.contains(&"update Child (Parameters)".to_owned()), "{steps:?}");
        assert!(steps.contains(&"update After (DisplayName)".to_owned()), "{steps:?}");
    }

    #[test]
    fn a_nested_stack_that_is_gone_goes_from_the_inside() {
        let mut case = Case::new().deployed();
        case.root["Resources"] = json!({"Before": {"Type": "AWS::SQS::Queue", "Properties": {}}});
        let plan = case.plan().unwrap();
        let ids: Vec<&str> = plan.deletes.iter().map(|step| step.id.as_str()).collect();
        let at = |id: &str| ids.iter().position(|known| *known == id).unwrap();
        for (first, then) in [
            ("After", "Child~Queue"),
            ("After", "Child~Grand~Topic"),
            ("Child~Last", "Child~Grand~Topic"),
            ("Child~Grand~Topic", "Child~Grand"),
            ("Child~Grand", "Child~Queue"),
            ("Child~Queue", "Child"),
        ] {
            assert!(at(first) < at(then), "{first} before {then}: {ids:?}");
        }
        let needs = |id: &str| plan.deletes[at(id)].needs.clone();
        let inside = ["Child~Queue", "Child~Grand", "Child~Last", "Child~Grand~Topic"];
        assert!(
            inside.iter().all(|id| needs("Child").contains(&(*id).to_owned())),
            "e8: {:?}",
            needs("Child")
        );
        assert!(needs("Child~Queue").contains(&"After".to_owned()));
        assert_eq!(plan.deletes[at("Child~Grand~Topic")].stack, "Web~Child~Grand");

        // All of a nested stack goes before what its parent built it on.
        let mut case = Case::new().deployed();
        case.root["Resources"] = json!({});
        let plan = case.plan().unwrap();
        assert_eq!(
            plan.deletes
                .iter()
                .filter(|step| step.id == "Before")
                .map(|step| step.needs.len())
                .sum::<usize>(),
            5
        );
    }

    #[test]
    fn a_retained_nested_stack_leaves_alone_its_own_record() {
        let case = Case::new().deployed();
        let ids = |retain: &[&str], record: &Record| -> Vec<String> {
            let retain: Vec<String> = retain.iter().map(|id| (*id).to_owned()).collect();
            let steps = deletes_but(&key(), record, |_| false, &retain).unwrap();
            steps.iter().map(|step| format!("{} {}", step.operation.name(), step.id)).collect()
        };
        let all = ids(&[], &case.record);
        assert_eq!(all.len(), 8);
        let kept = ids(&["Child"], &case.record);
        assert!(
            kept.contains(&"retain Child".to_owned()) && !kept.iter().any(|id| id.contains('~')),
            "{kept:?}"
        );
        let mut record = case.record.clone();
        let mut row = record.row("Child~Grand").unwrap();
        row.set_policy("deletionPolicy", Some("Retain"));
        record.put_row("Child~Grand", row);
        let kept = ids(&[], &record);
        assert!(kept.contains(&"retain Child~Grand".to_owned()), "{kept:?}");
        assert!(!kept.iter().any(|id| id.ends_with("Topic")), "{kept:?}");
        // What waits for its delete in a nested stack goes before the row too.
        record.add_pending_delete(&PendingDelete {
            logical_id: "Child~Queue".into(),
            row: Row::new("AWS::SQS::Queue", "old"),
        });
        assert!(ids(&[], &record).contains(&"delete Child~Queue#0".to_owned()));
    }

    #[test]
    fn undoing_goes_from_the_outside_in_and_the_row_last() {
        let plan = Case::new().plan().unwrap();
        let before = |id: &str| undone_before(&plan.applies, id);
        let table = [
            ("After", ""),
            ("Child", "Child~Queue Child~Grand~Topic Child~Grand Child~Last After"),
            ("Child~Last", "After"),
            ("Child~Grand", "Child~Grand~Topic Child~Last After"),
            ("Child~Grand~Topic", "Child~Last After"),
            ("Child~Queue", "Child~Grand~Topic Child~Grand After"),
            ("Before", "Child~Queue Child~Grand~Topic Child~Grand Child~Last Child"),
        ];
        for (id, expected) in table {
            assert_eq!(before(id).join(" "), expected, "{id}");
        }
    }

    #[test]
    fn a_nested_stack_takes_no_other_things_place() {
        let mut case = Case::new().deployed();
        case.record.put_row("Child", Row::new("AWS::SQS::Queue", "q"));
        assert_eq!(case.plan().unwrap_err().code(), Code::UnsupportedResourceType);
        let mut case = Case::new().deployed();
        case.root["Resources"]["Child"] = json!({"Type": "AWS::SQS::Queue"});
        case.root["Resources"]["After"]["Properties"] = json!({});
        let error = case.plan().unwrap_err();
        assert_eq!(error.code(), Code::UnsupportedResourceType);
        assert_eq!(error.hint_text(), Some("give the new one another logical id"));
    }

    #[test]
    fn t11_a_nested_stack_has_an_id_of_its_own() {
        let account = "123456789012".parse().unwrap();
        let child = RecordKey::parse("Web~Child", "us-east-1").unwrap();
        let id = |seed: &str| new_stack_id(&child, &account, "arn:web", seed);
        let one = id("run");
        assert_eq!(one, id("run"));
        assert_ne!(one, id("another"));
        let uuid =
            one.strip_prefix("arn:aws:cloudformation:us-east-1:123456789012:stack/Web-Child/").unwrap();
        let lengths: Vec<usize> = uuid.split('-').map(str::len).collect();
        assert_eq!(lengths, [8, 4, 4, 4, 12]);
        assert!(uuid.chars().all(|c| c == '-' || c.is_ascii_hexdigit()));
    }
}
