//! What a template's outputs publish, and what a deploy takes away of what was published before.
//!
//! Outputs and exports share one namespace, unlike in CloudFormation: each output is stored under its own name and, if
//! exported, under its export name in the same map (seed, "Export names share one namespace with output names").
//! [`listing`] alone decides which keys there are, so that a plan shows row by row what the deploy publishes (rule E3).

use std::collections::BTreeSet;

use indexmap::{IndexMap, IndexSet};
use serde_json::{Map, Value};

use crate::error::{Code, Error, Result};
use crate::plan::{Operation, Step};
use crate::state::{Record, Row, tree};
use crate::template::OutputValue;
use crate::value::{Node, same};

/// What a template publishes; values may not be known yet.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Listing {
    /// Each output, followed by its export name unless it is the same key or the alias is skipped.
    pub rows: IndexMap<String, Line>,
    /// One per alias that is skipped.
    pub warnings: Vec<String>,
}

/// What stands under a key of `outputs`.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// The output whose value it is.
    pub output: String,
    /// Whether the key is an export.
    pub export: bool,
    /// Always text; parts of it may be unknown.
    pub value: Node,
}

/// What a deploy publishes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Published {
    /// In stored form, each output under its name and, if exported, under its export name.
    pub outputs: Map<String, Value>,
    /// The keys that are exports.
    pub export_names: Vec<String>,
    pub warnings: Vec<String>,
}

/// Decides which keys the outputs publish.
///
/// - An alias that is the name of another output is skipped, whatever the order of the two; outputs whose condition is
///   false are not in `outputs` and reserve nothing (rule E2).
/// - An alias that holds a secret is skipped; a literal one is taken as it is spelled (rule E3).
/// - Of two equal aliases the later wins, value and source together (rule E36).
pub fn listing(outputs: &IndexMap<String, OutputValue>) -> Listing {
    let mut listing = Listing::default();
    for (name, output) in outputs {
        let line = |export| Line { output: name.clone(), export, value: output.value.clone() };
        listing.rows.insert(name.clone(), line(output.export_name.as_ref() == Some(name)));
        if let Some(masked) = &output.masked_export_name {
            listing.warnings.push(format!(
                "output `{name}` is not exported as `{masked}`: that name holds a secret, which would stay in \
                 plain text in records and the index; give it a name without one"
            ));
        }
        let Some(export) = output.export_name.as_ref().filter(|export| *export != name) else { continue };
        if outputs.contains_key(export) {
            listing.warnings.push(format!(
                "output `{name}` is not exported as `{export}`: output `{export}` has that name; rename one of them"
            ));
        } else {
            listing.rows.insert(export.clone(), line(true));
        }
    }
    listing
}

/// The stored form of what is published.
///
/// # Errors
/// `InternalError` for a value that is not known: everything is, once the resources are there.
pub fn publish(outputs: &IndexMap<String, OutputValue>) -> Result<Published> {
    let listing = listing(outputs);
    let mut published = Published { warnings: listing.warnings, ..Published::default() };
    for (key, line) in listing.rows {
        let value = line.value.stored().map_err(|reason| {
            let message = format!("output `{}` is not known after the deploy: {reason}", line.output);
            Error::new(Code::InternalError, message)
        })?;
        if line.export {
            published.export_names.push(key.clone());
        }
        published.outputs.insert(key, value);
    }
    Ok(published)
}

impl Listing {
    /// The names that are exported.
    pub fn export_names(&self) -> impl Iterator<Item = &str> {
        self.rows.iter().filter(|(_, line)| line.export).map(|(key, _)| key.as_str())
    }

    /// Whether the record says anything else, so that others could not read what is listed. A record below version 9
    /// does not say which outputs are exports, and serves all of them.
    pub fn differs(&self, record: &Record) -> bool {
        let outputs = record.outputs();
        let told = self.rows.len() == outputs.len()
            && self.rows.iter().all(|(key, line)| {
                let stored = line.value.stored().ok();
                outputs.get(key).is_some_and(|known| stored.is_some_and(|stored| same(&stored, known)))
            });
        let exported: BTreeSet<String> = record.export_names().into_iter().collect();
        let names = self.export_names().map(str::to_owned).collect();
        !told || (record.says_exports() && exported != names)
    }

    /// The logical ids that each key's value refers to, given those of the outputs
    /// ([`crate::template::Template::output_references`]).
    pub fn references(&self, outputs: &IndexMap<&str, BTreeSet<&str>>) -> References {
        let owned = |ids: &BTreeSet<&str>| ids.iter().map(|id| (*id).to_owned()).collect();
        References(
            self.rows
                .iter()
                .filter_map(|(key, line)| Some((key.clone(), owned(outputs.get(line.output.as_str())?))))
                .collect(),
        )
    }
}

/// The logical ids that the value under each key of `outputs` refers to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct References(IndexMap<String, BTreeSet<String>>);

impl References {
    /// Adds those of another template: what is on record came from the deployed one, which may refer to others than
    /// the one to be deployed.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        for (key, ids) in other.0 {
            self.0.entry(key).or_default().extend(ids);
        }
        self
    }

    /// Those of a nested stack, as the rows of its tree call them (see [`crate::state::tree`]).
    #[must_use]
    pub fn within(self, path: &str) -> Self {
        let inside =
            |ids: BTreeSet<String>| ids.iter().map(|logical_id| tree::id(path, logical_id)).collect();
        Self(self.0.into_iter().map(|(key, ids)| (key, inside(ids))).collect())
    }

    fn of(&self, key: &str) -> impl Iterator<Item = &String> {
        self.0.get(key).into_iter().flatten()
    }
}

/// What a plan replaces or deletes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Doomed {
    /// Rows whose resource goes.
    ids: BTreeSet<String>,
    /// What goes, with its logical id: those rows, and what waits for its delete.
    things: Vec<(String, Row)>,
}

impl Doomed {
    /// Of the steps of a plan over this record. What is retained stays, so that what names it stays true.
    pub fn of<'s>(steps: impl IntoIterator<Item = &'s Step>, record: &Record) -> Self {
        let mut doomed = Self::default();
        let gone = steps.into_iter().filter(|step| {
            let retained = step.operation == Operation::Replace
                && step
                    .before
                    .as_ref()
                    .is_some_and(|row| matches!(row.policy("updateReplacePolicy"), Some("Retain")));
            matches!(step.operation, Operation::Replace | Operation::Delete) && !retained
        });
        for step in gone {
            let Some(row) = &step.before else { continue };
            // A thing that waits for its delete has a logical id whose row may be another thing by now.
            if record.row(&step.logical_id).is_some_and(|current| current.is_same_thing(row)) {
                doomed.ids.insert(step.logical_id.clone());
            }
            doomed.things.push((step.logical_id.clone(), row.clone()));
        }
        doomed
    }

    /// Something that goes, if anything does.
    fn any(&self) -> Option<&str> {
        self.things.first().map(|(id, _)| id.as_str())
    }

    /// All rows of a record: of a destroy.
    pub fn all(record: &Record) -> Self {
        let rows: Vec<_> = record.rows().map(|(id, row)| (id.to_owned(), row)).collect();
        let ids = rows.iter().map(|(id, _)| id.clone()).collect();
        let pending = record.pending_deletes().into_iter().map(|pending| (pending.logical_id, pending.row));
        Self { ids, things: rows.into_iter().chain(pending).collect() }
    }

    /// The logical id of what goes and what a stored value names: by what its expression refers to, else by the
    /// physical ids and attributes on record, since the expression of another tool's deploy may not be known.
    fn named<'d>(
        &'d self,
        value: &Value,
        mut references: impl Iterator<Item = &'d String>,
    ) -> Option<&'d str> {
        if let Some(id) = references.find(|id| self.ids.contains(*id)) {
            return Some(id);
        }
        let text = value.as_str()?;
        self.things
            .iter()
            .find(|(_, row)| identities(row).iter().any(|identity| contains_name(text, identity)))
            .map(|(id, _)| id.as_str())
    }
}

/// The texts that name a resource: its physical id, the ids of its parts, and what of its attributes is told apart from
/// words that many resources share (`ACTIVE`, `PAY_PER_REQUEST`) and from plain numbers.
fn identities(row: &Row) -> Vec<String> {
    let mut found = vec![row.physical_id().to_owned()];
    found.extend(row.things().into_iter().map(|(_, identifier)| identifier));
    let telling = |text: &&str| {
        text.len() >= 8
            && text.chars().any(|c| c.is_ascii_alphabetic())
            && text.chars().any(|c| !c.is_ascii_alphabetic() && c != '_')
    };
    let attributes = row.attributes();
    found.extend(attributes.values().filter_map(Value::as_str).filter(telling).map(str::to_owned));
    found
}

/// Whether `text` holds `name` whole: not as a part of a longer name, as `jobs` is in `jobs-dead`.
fn contains_name(text: &str, name: &str) -> bool {
    let inside = |c: char| c.is_alphanumeric() || c == '-' || c == '_';
    !name.is_empty()
        && text.match_indices(name).any(|(start, _)| {
            let before = text.get(..start).and_then(|head| head.chars().next_back());
            let after = text.get(start + name.len()..).and_then(|tail| tail.chars().next());
            !before.is_some_and(inside) && !after.is_some_and(inside)
        })
}

/// What a deploy makes of the exports on record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Difference {
    /// Exported now and not before.
    pub added: Vec<String>,
    /// Exported before and now, with another value, or with one that is not known yet.
    pub changed: Vec<String>,
    /// What a consumer of before loses: the protocol applies, and a consumer outside the run refuses it.
    pub withdrawn: Vec<Withdrawal>,
    /// Outputs of a record below version 9, every one of which could be imported, that stay outputs but are no exports.
    /// They are scanned for, since a consumer would lose its name, but not taken out of the record: nothing that they
    /// name goes, and readers go on to see them (rule L8).
    pub demoted: Vec<Withdrawal>,
    /// Earlier values that consumers may still hold, while anything goes that they could name: scanned for. There is
    /// nothing to take out, since they are not served.
    pub lingering: Vec<Withdrawal>,
    /// Exported now without being the stack's own on record: to be claimed before anything is provisioned (rule E4).
    pub claims: Vec<String>,
}

/// An export that a deploy takes away.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Withdrawal {
    pub name: String,
    pub why: Why,
}

/// Why an export goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Why {
    /// It is not exported any more; an alias that is skipped now counts (rule E23).
    NotExported,
    /// Its value names a resource, of this logical id, that is replaced or deleted (rule E24).
    Names(String),
    /// A value that it had before names one, as far as is known.
    Named(String),
}

impl Difference {
    /// Adds that of another stack of the tree: what a scan looks for is looked for at once.
    pub fn extend(&mut self, other: &Self) {
        self.added.extend_from_slice(&other.added);
        self.changed.extend_from_slice(&other.changed);
        self.withdrawn.extend_from_slice(&other.withdrawn);
        self.demoted.extend_from_slice(&other.demoted);
        self.lingering.extend_from_slice(&other.lingering);
        self.claims.extend_from_slice(&other.claims);
    }

    /// What a consumer of before loses, whether or not it leaves the record now: what a scan looks for.
    pub fn lost(&self) -> Vec<Withdrawal> {
        self.withdrawn.iter().chain(&self.demoted).chain(&self.lingering).cloned().collect()
    }

    /// The names of what is withdrawn.
    pub fn withdrawn_names(&self) -> Vec<String> {
        self.withdrawn.iter().map(|withdrawal| withdrawal.name.clone()).collect()
    }

    pub fn is_empty(&self) -> bool {
        self.added.is_empty() && self.changed.is_empty() && self.withdrawn.is_empty()
    }
}

/// Compares what is on record with what will be published.
///
/// `references` are those of the deployed template and of the one to be deployed together; `doomed` is what the plan
/// replaces or deletes.
pub fn difference(before: &Record, now: &Listing, references: &References, doomed: &Doomed) -> Difference {
    let exported = before.importable();
    // Taken from a run that died while it withdrew: published anew if the template still has it.
    let owned: BTreeSet<String> =
        if before.says_exports() { before.export_names().into_iter().collect() } else { BTreeSet::new() };
    let names: IndexSet<&str> = now.export_names().collect();
    let mut difference = Difference::default();
    for name in &names {
        if !owned.contains(*name) {
            difference.claims.push((*name).to_owned());
        }
        if !exported.contains_key(*name) {
            difference.added.push((*name).to_owned());
        }
    }
    for (name, value) in &exported {
        let why = if !names.contains(name.as_str()) {
            let stays = !before.says_exports()
                && now.rows.contains_key(name)
                && doomed.named(value, references.of(name)).is_none();
            if stays {
                difference.demoted.push(Withdrawal { name: name.clone(), why: Why::NotExported });
                continue;
            }
            Why::NotExported
        } else if let Some(id) = doomed.named(value, references.of(name)) {
            Why::Names(id.to_owned())
        } else {
            let same = now
                .rows
                .get(name)
                .and_then(|line| line.value.stored().ok())
                .is_some_and(|stored| same(&stored, value));
            if !same {
                difference.changed.push(name.clone());
            }
            continue;
        };
        difference.withdrawn.push(Withdrawal { name: name.clone(), why });
    }
    if let Some(any) = doomed.any() {
        let withdrawn = difference.withdrawn_names();
        let left = before.superseded().into_iter().filter(|(name, _)| !withdrawn.contains(name));
        difference.lingering.extend(left.map(|(name, values)| {
            let mut values = values.as_array().into_iter().flatten();
            // The expression of an earlier template is not known any more: what is not found by name may be it as well.
            let id = values.find_map(|value| doomed.named(value, std::iter::empty())).unwrap_or(any);
            Withdrawal { name, why: Why::Named(id.to_owned()) }
        }));
    }
    difference
}

#[cfg(test)]
mod tests {
    use super::super::testing::{producer, record, record_of};
    use super::*;
    use crate::plan::{Engine, Phase, Recorded};
    use crate::state::PendingDelete;
    use crate::template::{self, NoImports, ParameterSources, Pseudo, Scope, Template};
    use serde_json::json;

    /// What the outputs of a template evaluate to, and what they refer to; resources are those on `record`.
    fn evaluated(record: &Record, outputs: &Value) -> Result<(IndexMap<String, OutputValue>, References)> {
        let document = json!({
            "Parameters": {
                "Empty": {"Type": "String", "Default": ""},
                "Secret": {"Type": "String", "NoEcho": true, "Default": "{{resolve:secretsmanager:db}}"},
            },
            "Conditions": {"Never": {"Fn::Equals": ["a", "b"]}},
            "Resources": {"Queue": {"Type": "AWS::SQS::Queue"}, "Topic": {"Type": "AWS::SNS::Topic"}},
            "Outputs": outputs,
        });
        let template = Template::parse(document.to_string().as_bytes(), "P")?;
        let pseudo = Pseudo { stack_name: "P".into(), region: "us-east-1".into(), ..Pseudo::default() };
        let parameters = template::bind(&template, &ParameterSources::default())?;
        let conditions = template::conditions(&template, &parameters, &pseudo)?;
        let scope = Scope {
            template: &template,
            pseudo: &pseudo,
            parameters: &parameters,
            conditions: &conditions,
            resources: &Recorded(record),
            imports: &NoImports,
        };
        let outputs = template::outputs(&scope)?;
        let references = listing(&outputs).references(&template.output_references(&conditions));
        Ok((outputs, references))
    }

    fn outputs(outputs: &Value) -> IndexMap<String, OutputValue> {
        evaluated(&record("P", json!({})), outputs).unwrap().0
    }

    #[test]
    fn e2_an_alias_that_is_the_name_of_another_output_is_skipped_in_either_order() {
        let a = json!({"Value": "{{resolve:secretsmanager:s1}}", "Export": {"Name": "B"}});
        let b = json!({"Value": "{{resolve:secretsmanager:s2}}"});
        let ab = publish(&outputs(&json!({"A": a, "B": b}))).unwrap();
        let ba = publish(&outputs(&json!({"B": b, "A": a}))).unwrap();
        for published in [&ab, &ba] {
            assert_eq!(published.outputs["A"], "{{resolve:secretsmanager:s1}}");
            assert_eq!(published.outputs["B"], "{{resolve:secretsmanager:s2}}");
            assert!(published.export_names.is_empty());
            assert_eq!(
                published.warnings,
                ["output `A` is not exported as `B`: output `B` has that name; rename one of them"]
            );
        }
        assert_eq!(ab.outputs, ba.outputs);

        let off = json!({"Value": "b", "Condition": "Never"});
        let published = publish(&outputs(&json!({"A": a, "B": off}))).unwrap();
        assert_eq!(published.outputs["B"], "{{resolve:secretsmanager:s1}}");
        assert_eq!((published.export_names, published.warnings), (vec!["B".to_owned()], vec![]));

        let own = json!({"A": {"Value": "a", "Export": {"Name": "A"}}});
        let published = publish(&outputs(&own)).unwrap();
        assert_eq!(published.outputs, json!({"A": "a"}).as_object().cloned().unwrap());
        assert_eq!((published.export_names, published.warnings), (vec!["A".to_owned()], vec![]));

        // Another's alias does not take the name of an output that exports under its own.
        let both = json!({"A": {"Value": "a", "Export": {"Name": "B"}}, "B": {"Value": "b", "Export": {"Name": "B"}}});
        let published = publish(&outputs(&both)).unwrap();
        assert_eq!((&published.outputs["B"], published.warnings.len()), (&json!("b"), 1));
        assert_eq!(published.export_names, ["B"]);
    }

    #[test]
    fn e3_names_with_secrets_are_skipped_and_masked_literal_ones_are_text() {
        let secret = json!({"O": {"Value": "v", "Export": {"Name": {"Fn::Sub": "pre-${Secret}"}}}});
        let published = publish(&outputs(&secret)).unwrap();
        assert_eq!(published.outputs.keys().collect::<Vec<_>>(), ["O"]);
        let [warning] = &published.warnings[..] else { panic!("one warning") };
        assert!(warning.contains("`pre-***`") && !warning.contains("resolve:"), "{warning}");

        let literal = json!({"O": {"Value": "v", "Export": {"Name": "{{resolve:ssm:/x}}"}}});
        let published = publish(&outputs(&literal)).unwrap();
        assert_eq!(published.export_names, ["{{resolve:ssm:/x}}"]);
        assert_eq!(published.outputs["{{resolve:ssm:/x}}"], "v");
    }

    #[test]
    fn e3_the_plan_shows_row_by_row_what_the_deploy_publishes() {
        let template = json!({
            "A": {"Value": {"Ref": "Queue"}, "Export": {"Name": "X"}},
            "B": {"Value": "b", "Export": {"Name": "A"}},
            "C": {"Value": "c", "Export": {"Name": "C"}},
            "D": {"Value": "d", "Export": {"Name": {"Ref": "Secret"}}},
        });
        let (planned, _) = evaluated(&record("P", json!({})), &template).unwrap();
        let queue = json!({"physicalId": "https://q", "resourceType": "AWS::SQS::Queue"});
        let (deployed, _) =
            evaluated(&record("P", json!({"resources": {"Queue": queue}})), &template).unwrap();
        let planned = listing(&planned);
        let deployed = publish(&deployed).unwrap();
        let rows: Vec<_> = planned
            .rows
            .iter()
            .map(|(key, line)| (key.as_str(), line.output.as_str(), line.export))
            .collect();
        assert_eq!(
            rows,
            [("A", "A", false), ("X", "A", true), ("B", "B", false), ("C", "C", true), ("D", "D", false)]
        );
        assert!(planned.rows["X"].value.unknown().is_some());
        assert_eq!(planned.rows.keys().collect::<Vec<_>>(), deployed.outputs.keys().collect::<Vec<_>>());
        assert_eq!(planned.export_names().collect::<Vec<_>>(), deployed.export_names);
        assert_eq!(planned.warnings, deployed.warnings);
        assert_eq!(deployed.outputs["X"], "https://q");
    }

    #[test]
    fn e7_an_output_whose_condition_is_false_is_withdrawn() {
        let never = json!({"O": {"Condition": "Never", "Value": {"Ref": "Gone"}, "Export": {"Name": "X"}}});
        let now = listing(&outputs(&never));
        assert_eq!(now, Listing::default());
        let found = difference(&producer("P", &["X"]), &now, &References::default(), &Doomed::default());
        assert_eq!(found.withdrawn, [Withdrawal { name: "X".into(), why: Why::NotExported }]);
    }

    #[test]
    fn e23_an_alias_that_is_skipped_now_is_a_withdrawal() {
        let table = [
            (
                "taken by an output",
                json!({
                    "O": {"Value": "v", "Export": {"Name": "X"}}, "X": {"Value": "plain"},
                }),
            ),
            ("holds a secret", json!({"O": {"Value": "v", "Export": {"Name": {"Fn::Sub": "X${Secret}"}}}})),
            (
                "condition false",
                json!({
                    "O": {"Condition": "Never", "Value": "v", "Export": {"Name": "X"}},
                }),
            ),
        ];
        for (why, template) in table {
            let now = listing(&outputs(&template));
            let before = producer("P", &["X"]);
            let found = difference(&before, &now, &References::default(), &Doomed::default());
            assert_eq!(found.withdrawn, [Withdrawal { name: "X".into(), why: Why::NotExported }], "{why}");
            assert_eq!((found.added.len(), found.claims.len()), (0, 0), "{why}");
        }
    }

    #[test]
    fn e31_an_empty_value_may_not_be_exported() {
        let empty = json!({"O": {"Value": {"Ref": "Empty"}, "Export": {"Name": "X"}}});
        let error = evaluated(&record("P", json!({})), &empty).unwrap_err();
        assert!(error.message().contains("an empty value may not be exported"), "{error}");
        let zero = json!({"O": {"Value": 0, "Export": {"Name": "X"}}});
        assert_eq!(publish(&outputs(&zero)).unwrap().outputs["X"], "0");
    }

    #[test]
    fn e36_of_two_equal_export_names_the_later_wins_value_and_source() {
        let template = json!({
            "A": {"Value": "{{resolve:secretsmanager:s1}}", "Export": {"Name": "X"}},
            "B": {"Value": "b", "Export": {"Name": "X"}},
        });
        let outputs = outputs(&template);
        let listing = listing(&outputs);
        assert_eq!((listing.rows["X"].output.as_str(), listing.warnings.len()), ("B", 0));
        let published = publish(&outputs).unwrap();
        assert_eq!(
            (&published.outputs["X"], published.export_names.as_slice()),
            (&json!("b"), &["X".into()][..])
        );
    }

    #[test]
    fn what_is_not_known_after_the_deploy_is_a_defect() {
        let error = publish(&outputs(&json!({"O": {"Value": {"Ref": "Queue"}}}))).unwrap_err();
        assert_eq!(error.code(), Code::InternalError);
    }

    #[test]
    fn what_is_added_changed_and_withdrawn() {
        let now = listing(&outputs(&json!({
            "Same": {"Value": "value-of-same", "Export": {"Name": "same"}},
            "Changed": {"Value": "new", "Export": {"Name": "changed"}},
            "Unknown": {"Value": {"Ref": "Queue"}, "Export": {"Name": "unknown"}},
            "Added": {"Value": "a", "Export": {"Name": "added"}},
            "Plain": {"Value": "p"},
            "Taken": {"Value": "t", "Export": {"Name": "Plain"}},
        })));
        let before = producer("P", &["same", "changed", "unknown", "dropped", "Plain"]);
        let found = difference(&before, &now, &References::default(), &Doomed::default());
        assert_eq!(found.added, ["added"]);
        assert_eq!(found.changed, ["changed", "unknown"]);
        assert_eq!(found.withdrawn_names(), ["dropped", "Plain"]);
        assert_eq!(found.claims, ["added"]);

        // A record below version 9 exported every output and owned no name.
        let old = record_of(8, "P", json!({"outputs": {"same": "value-of-same", "Plain": "p"}}));
        let found = difference(&old, &now, &References::default(), &Doomed::default());
        assert_eq!(found.withdrawn_names(), [] as [String; 0]);
        assert_eq!(found.demoted, [Withdrawal { name: "Plain".into(), why: Why::NotExported }]);
        assert_eq!(found.claims, ["same", "changed", "unknown", "added"]);
        // One that is no output any more goes like an export.
        let old = record_of(8, "P", json!({"outputs": {"Gone": "g"}}));
        let found = difference(&old, &now, &References::default(), &Doomed::default());
        assert_eq!((found.withdrawn_names(), found.demoted), (vec!["Gone".to_owned()], vec![]));

        // What a dead run withdrew is to be published, and claimed, anew.
        let half = record("P", json!({"withdrawing": {"same": "value-of-same"}}));
        let found = difference(&half, &now, &References::default(), &Doomed::default());
        assert!(found.added.contains(&"same".to_owned()) && found.claims.contains(&"same".to_owned()));
    }

    fn step(operation: Operation, logical_id: &str, row: &Row) -> Step {
        Step {
            id: logical_id.into(),
            stack: "P".into(),
            logical_id: logical_id.into(),
            phase: Phase::Apply,
            operation,
            type_name: row.resource_type().into(),
            engine: Engine::CloudControl,
            identifier: None,
            desired: Value::Null,
            before: Some(row.clone()),
            why: vec![],
            needs: vec![],
            weight: 1,
            policy: None,
            repoints: false,
        }
    }

    #[test]
    fn e24_an_export_whose_value_names_what_is_replaced_or_deleted_is_withdrawn() {
        let mut queue = Row::new("AWS::SQS::Queue", "https://sqs/jobs");
        queue.set_attributes(
            json!({"Arn": "arn:aws:sqs:r:a:jobs", "State": "ACTIVE"}).as_object().cloned().unwrap(),
        );
        let mut retained = queue.clone();
        retained.set_policy("updateReplacePolicy", Some("Retain"));
        let topic = Row::new("AWS::SNS::Topic", "arn:aws:sns:r:a:jobs");
        let exported = |value: &str, row: &Row| {
            let mut before = record("P", json!({"outputs": {"X": value}, "exportNames": ["X"]}));
            before.put_row("Queue", row.clone());
            before.put_row("Topic", topic.clone());
            before
        };
        let template = json!({"O": {"Value": {"Fn::Sub": "${Queue}!"}, "Export": {"Name": "X"}}});
        let literal = json!({"O": {"Value": "v", "Export": {"Name": "X"}}});
        let table = [
            // By what the expression refers to.
            ("v", &template, step(Operation::Replace, "Queue", &queue), Some("Queue")),
            ("v", &template, step(Operation::Delete, "Queue", &queue), Some("Queue")),
            ("v", &template, step(Operation::Update, "Queue", &queue), None),
            ("v", &template, step(Operation::Retain, "Queue", &queue), None),
            ("v", &template, step(Operation::Replace, "Queue", &retained), None),
            ("v", &template, step(Operation::Replace, "Topic", &topic), None),
            // By what is on record, where the expression says nothing of it.
            ("https://sqs/jobs", &literal, step(Operation::Delete, "Queue", &queue), Some("Queue")),
            ("<arn:aws:sqs:r:a:jobs/*>", &literal, step(Operation::Delete, "Queue", &queue), Some("Queue")),
            ("https://sqs/jobs-dead", &literal, step(Operation::Delete, "Queue", &queue), None),
            ("ACTIVE", &literal, step(Operation::Delete, "Queue", &queue), None),
        ];
        for (value, template, step, expected) in table {
            let before = exported(value, &queue);
            let (outputs, references) = evaluated(&before, template).unwrap();
            let what = format!("{value} {template} {:?}", step.operation);
            let doomed = Doomed::of([&step], &before);
            let found = difference(&before, &listing(&outputs), &references, &doomed);
            let why: Vec<_> = found.withdrawn.iter().map(|it| it.why.clone()).collect();
            let expected: Vec<_> = expected.map(|id| Why::Names(id.to_owned())).into_iter().collect();
            assert_eq!(why, expected, "{what}");
        }
    }

    #[test]
    fn e24_a_thing_that_waits_for_its_delete_dooms_its_own_name_alone() {
        let old = Row::new("AWS::SQS::Queue", "https://sqs/old");
        let new = Row::new("AWS::SQS::Queue", "https://sqs/new");
        let mut before = record(
            "P",
            json!({"outputs": {"New": "https://sqs/new", "Old": "https://sqs/old"}, "exportNames": ["New", "Old"]}),
        );
        before.put_row("Queue", new);
        before.add_pending_delete(&PendingDelete { logical_id: "Queue".into(), row: old.clone() });
        let template = json!({
            "A": {"Value": {"Ref": "Queue"}, "Export": {"Name": "New"}},
            "B": {"Value": "https://sqs/old", "Export": {"Name": "Old"}},
        });
        let (outputs, references) = evaluated(&before, &template).unwrap();
        let doomed = Doomed::of([&step(Operation::Delete, "Queue", &old)], &before);
        let found = difference(&before, &listing(&outputs), &references, &doomed);
        assert_eq!(found.withdrawn_names(), ["Old"]);
        let found = difference(&before, &listing(&outputs), &references, &Doomed::all(&before));
        assert_eq!(found.withdrawn_names(), ["New", "Old"]);
    }

    #[test]
    fn e24_an_earlier_value_that_some_may_hold_is_scanned_for_before_anything_goes() {
        let old = Row::new("AWS::SQS::Queue", "https://sqs/old");
        let mut before = record(
            "P",
            json!({
                "outputs": {"X": "https://sqs/new"}, "exportNames": ["X"],
                "superseded": {"X": ["older", "https://sqs/old"], "Gone": ["g"]},
            }),
        );
        before.put_row("Queue", Row::new("AWS::SQS::Queue", "https://sqs/new"));
        before.add_pending_delete(&PendingDelete { logical_id: "Queue".into(), row: old.clone() });
        let template = json!({"O": {"Value": {"Ref": "Queue"}, "Export": {"Name": "X"}}});
        let (outputs, references) = evaluated(&before, &template).unwrap();
        let of = |doomed: &Doomed| difference(&before, &listing(&outputs), &references, doomed);
        // Nothing goes: nobody loses anything.
        assert_eq!(of(&Doomed::default()).lost(), []);
        // The old one goes. The new value stays, and stays served.
        let found = of(&Doomed::of([&step(Operation::Delete, "Queue", &old)], &before));
        assert_eq!(found.withdrawn, []);
        // One that was not published under its name since is told as well, whatever it named.
        let named = |name: &str| Withdrawal { name: name.into(), why: Why::Named("Queue".into()) };
        assert_eq!(found.lost(), [named("X"), named("Gone")]);
        // The new one goes too: one reason is enough.
        let found = of(&Doomed::all(&before));
        assert_eq!((found.withdrawn_names(), found.lost().len()), (vec!["X".to_owned()], 2));
    }

    #[test]
    fn e37_e6_whether_others_could_read_what_is_listed() {
        let template = json!({
            "A": {"Value": "a", "Export": {"Name": "X"}},
            "B": {"Value": "b"},
        });
        let now = listing(&outputs(&template));
        let table = [
            (9, json!({"outputs": {"B": "b", "X": "a", "A": "a"}, "exportNames": ["X"]}), false),
            (9, json!({"outputs": {"A": "a", "X": "a", "B": "b"}}), true),
            (9, json!({"outputs": {"A": "a", "X": "a", "B": "old"}, "exportNames": ["X"]}), true),
            (9, json!({"outputs": {"A": "a", "X": "a", "B": "b", "C": "c"}, "exportNames": ["X"]}), true),
            (9, json!({"outputs": {"A": "a", "X": "a"}, "exportNames": ["X"]}), true),
            (9, json!({"outputs": {"A": "a", "B": "b"}, "withdrawing": {"X": "a"}}), true),
            (8, json!({"outputs": {"A": "a", "X": "a", "B": "b"}}), false),
        ];
        for (version, document, expected) in table {
            assert_eq!(now.differs(&record_of(version, "P", document.clone())), expected, "{document}");
        }
        let pending = listing(&outputs(&json!({"A": {"Value": {"Ref": "Queue"}}})));
        assert!(pending.differs(&record("P", json!({"outputs": {"A": "a"}}))));
    }

    #[test]
    fn e24_the_deployed_template_may_refer_to_others_than_the_next() {
        let before = record("P", json!({"outputs": {"X": "v"}, "exportNames": ["X"]}));
        let (_, deployed) =
            evaluated(&before, &json!({"O": {"Value": {"Ref": "Topic"}, "Export": {"Name": "X"}}})).unwrap();
        let (outputs, next) =
            evaluated(&before, &json!({"O": {"Value": "v", "Export": {"Name": "X"}}})).unwrap();
        let mut topic = before.clone();
        topic.put_row("Topic", Row::new("AWS::SNS::Topic", "arn:t"));
        let doomed = Doomed::all(&topic);
        let found = difference(&before, &listing(&outputs), &next.clone().and(deployed), &doomed);
        assert_eq!(found.withdrawn, [Withdrawal { name: "X".into(), why: Why::Names("Topic".into()) }]);
        assert!(difference(&before, &listing(&outputs), &next, &doomed).is_empty());
    }

    #[test]
    fn a_name_is_found_whole() {
        let table = [
            ("jobs", "jobs", true),
            ("arn:aws:s3:::jobs/*", "jobs", true),
            ("jobs.s3.amazonaws.com", "jobs", true),
            ("jobs-2", "jobs", false),
            ("myjobs", "jobs", false),
            ("my_jobs jobs", "jobs", true),
            ("jobs", "", false),
            ("jöbs", "j", false),
        ];
        for (text, name, expected) in table {
            assert_eq!(contains_name(text, name), expected, "{text} {name}");
        }
    }
}
