//! What links a template to those of other stacks, as far as it can be told before the run has looked at any record.

use std::collections::BTreeSet;

use indexmap::IndexMap;
use serde_json::Value;

use super::check::NotYet;
use super::outputs::export_text;
use super::reads::{Wanted, calls};
use super::{Bound, NoImports, ParameterSources, Pseudo, Scope, Template, bind, conditions, holds};
use crate::error::Place;
use crate::name::RecordKey;
use crate::value::{Node, Reason};

/// What a stack gives to others and takes from them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Links {
    /// The names it exports, in its own region.
    pub exports: BTreeSet<String>,
    /// The names it imports, from its own region (rule E32).
    pub imports: BTreeSet<String>,
    /// The stacks of its own account whose outputs it reads by `Fn::GetStackOutput`.
    pub outputs: BTreeSet<RecordKey>,
}

/// The links of a template, as exact as `sources` allows.
///
/// The record may know parameters that nobody else gives. A name that depends on one of them is left out, and what
/// exists under a condition that depends on one counts both ways: an order too many does less harm than one too few.
/// What is wrong with the template is for [`super::check()`] to say; here it makes no link.
pub fn links(template: &Template, sources: &ParameterSources, pseudo: &Pseudo) -> Links {
    let bound = bind(template, &known(template, sources)).unwrap_or_default();
    let mut links = Links::default();
    if let Ok(decided) = conditions(template, &bound, pseudo) {
        links.add(template, &bound, &decided, pseudo);
    } else {
        for truth in [true, false] {
            let all: IndexMap<String, bool> =
                template.conditions.keys().map(|name| (name.clone(), truth)).collect();
            links.add(template, &bound, &all, pseudo);
        }
    }
    links
}

/// The sources, with what nobody gives as unknown.
fn known(template: &Template, sources: &ParameterSources) -> ParameterSources {
    let mut sources = sources.clone();
    for (name, parameter) in &template.parameters {
        let given =
            [&sources.run, &sources.manifest, &sources.previous].iter().any(|all| all.contains_key(name));
        if !given && parameter.default.is_none() {
            let unknown = Node::Unknown(Reason::Other(format!("parameter `{name}`")));
            sources.passed.entry(name.clone()).or_insert(unknown);
        }
    }
    sources
}

impl Links {
    fn add(
        &mut self,
        template: &Template,
        bound: &Bound,
        conditions: &IndexMap<String, bool>,
        pseudo: &Pseudo,
    ) {
        let scope = Scope {
            template,
            pseudo,
            parameters: bound,
            conditions,
            resources: &NotYet,
            imports: &NoImports,
        };
        for call in calls(template, conditions) {
            match call.wanted(&scope, &mut Vec::new()) {
                Some(Wanted::Export(name)) => {
                    self.imports.insert(name);
                }
                Some(Wanted::Output(read)) => {
                    self.outputs.insert(read.source);
                }
                None => {}
            }
        }
        let named = |name: &str, expression: &Value| {
            let text = export_text(name, expression, &scope, &Place::default()).ok()?;
            text.as_plain().map(str::to_owned)
        };
        for (name, output) in &template.outputs {
            if holds(output.condition.as_deref(), conditions) {
                self.exports
                    .extend(output.export_name.as_ref().and_then(|expression| named(name, expression)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{pseudo, template};
    use super::*;
    use serde_json::json;

    /// Exports, imports and outputs, each sorted, of a stack that is given `Given: "g"`.
    fn told(document: Value) -> [String; 3] {
        let mut document = document;
        document["Parameters"] = json!({
            "Env": {"Type": "String", "Default": "dev"},
            "Given": {"Type": "String"},
            "Missing": {"Type": "String"},
            "MissingList": {"Type": "CommaDelimitedList"},
            "Password": {"Type": "String", "NoEcho": true},
        });
        let sources =
            ParameterSources { run: [("Given".to_owned(), json!("g"))].into(), ..Default::default() };
        let Links { exports, imports, outputs } = links(&template(document), &sources, &pseudo());
        let join = |names: BTreeSet<String>| names.into_iter().collect::<Vec<_>>().join(" ");
        [join(exports), join(imports), join(outputs.iter().map(ToString::to_string).collect())]
    }

    fn importing(argument: &Value) -> Value {
        json!({"Resources": {"R": {"Properties": {"P": {"Fn::ImportValue": argument}}}}})
    }

    #[test]
    fn names_are_evaluated_as_far_as_their_parameters_are_known() {
        let table = [
            (json!("X"), "X"),
            (json!({"Fn::Sub": "${Env}-${Given}-${AWS::Region}"}), "dev-g-eu-west-1"),
            (json!({"Fn::Sub": "${Missing}-x"}), ""),
            (json!({"Ref": "Password"}), ""),
            (json!({"Fn::Select": [0, {"Ref": "MissingList"}]}), ""),
            (json!({"Ref": "R"}), ""),
            (json!({"Ref": "Nothing"}), ""),
            (json!(1), ""),
        ];
        for (argument, expected) in table {
            assert_eq!(told(importing(&argument)), ["", expected, ""], "{argument}");
            let output = json!({"Outputs": {"O": {"Value": "v", "Export": {"Name": argument}}}});
            let expected = if argument == json!(1) { "1" } else { expected };
            assert_eq!(told(output), [expected, "", ""], "{argument}");
        }
        let read =
            |argument: Value| told(json!({"Outputs": {"O": {"Value": {"Fn::GetStackOutput": argument}}}}));
        let net = json!({"StackName": "Net", "OutputName": "Vpc"});
        assert_eq!(read(net), ["", "", "Net (eu-west-1)"]);
        let abroad =
            json!({"StackName": {"Fn::Sub": "Net-${Env}"}, "OutputName": "Vpc", "Region": "US-EAST-1"});
        assert_eq!(read(abroad), ["", "", "Net-dev (us-east-1)"]);
        // One that cannot be told hides no other.
        let mut both = importing(&json!("X"));
        both["Resources"]["R"]["Properties"]["Q"] = json!({"Fn::ImportValue": {"Ref": "Missing"}});
        assert_eq!(told(both), ["", "X", ""]);
    }

    #[test]
    fn what_does_not_exist_makes_no_link_and_what_may_exist_does() {
        let under = |condition: Value| {
            told(json!({
                "Conditions": {"Is": condition},
                "Resources": {
                    "A": {"Properties": {"P": {"Fn::If": ["Is", {"Fn::ImportValue": "yes"}, {"Fn::ImportValue": "no"}]}}},
                    "B": {"Condition": "Is", "Properties": {"P": {"Fn::ImportValue": "in"}}},
                },
                "Outputs": {"O": {"Condition": "Is", "Value": "v", "Export": {"Name": "out"}}},
            }))
        };
        assert_eq!(under(json!({"Fn::Equals": [{"Ref": "Env"}, "dev"]})), ["out", "in yes", ""]);
        assert_eq!(under(json!({"Fn::Equals": [{"Ref": "Env"}, "prod"]})), ["", "no", ""]);
        assert_eq!(under(json!({"Fn::Equals": [{"Ref": "Missing"}, "prod"]})), ["out", "in no yes", ""]);
    }
}
