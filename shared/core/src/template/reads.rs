//! What a template reads from other stacks: exports by `Fn::ImportValue`, outputs by `Fn::GetStackOutput`.
//!
//! Evaluation fetches nothing: [`reads`] names what a deploy is going to need, its caller reads that, and hands it to
//! evaluation as [`Imports`].

use std::fmt;

use indexmap::IndexMap;
use serde_json::Value;

use super::check::NotYet;
use super::evaluate::{eval, kind};
use super::graph::survey_properties;
use super::intrinsic::{Function, get_stack_output, import_value};
use super::path::Path;
use super::survey::{Site, Survey};
use super::{Bound, Pseudo, Scope, Template, holds};
use crate::error::{Code, Error, Place, Result};
use crate::name::RecordKey;
use crate::value::{Node, Piece, Reason, Text};

/// An output of another stack, as `Fn::GetStackOutput` names it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct OutputRead {
    /// The stack that publishes it, never the one that reads (rule G2).
    pub source: RecordKey,
    pub output: String,
}

impl fmt::Display for OutputRead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "output `{}` of {}", self.output, self.source)
    }
}

/// What other stacks publish; callers implement it over the records that they have read.
///
/// A value is taken as it is given: only the caller knows whether text of the form `{{resolve:…}}` is a secret of its
/// producer or just text (rules S6, S15).
pub trait Imports {
    /// The value of an export of the stack's own region (rule E32).
    fn import(&self, export: &str) -> Result<Node>;

    /// The value of an output.
    fn output(&self, read: &OutputRead) -> Result<Node>;
}

/// Where nothing can be read from other stacks: every read is refused.
pub struct NoImports;

impl Imports for NoImports {
    fn import(&self, export: &str) -> Result<Node> {
        Err(refused(import_value::FUNCTION.name, &format!("export `{export}`")))
    }

    fn output(&self, read: &OutputRead) -> Result<Node> {
        Err(refused(get_stack_output::FUNCTION.name, &read.to_string()))
    }
}

fn refused(function: &str, what: &str) -> Error {
    Error::new(Code::UnsupportedIntrinsic, format!("`{function}` cannot read the {what} here"))
}

/// Before anything is read every value is unknown. That it is text is known: outputs are strings (rules T10, E17).
pub(super) struct Unread;

impl Imports for Unread {
    fn import(&self, export: &str) -> Result<Node> {
        Ok(unknown(format!("import of `{export}`")))
    }

    fn output(&self, read: &OutputRead) -> Result<Node> {
        Ok(unknown(read.to_string()))
    }
}

fn unknown(reason: String) -> Node {
    let mut text = Text::default();
    text.push(Piece::Unknown(Reason::Other(reason)));
    Node::Text(text)
}

/// All that a deploy of a template reads from other stacks, each with the places that read it; in template order,
/// resources first.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reads {
    /// By name; all of the stack's own region.
    pub exports: IndexMap<String, Vec<Place>>,
    pub outputs: IndexMap<OutputRead, Vec<Place>>,
}

impl Reads {
    pub fn is_empty(&self) -> bool {
        self.exports.is_empty() && self.outputs.is_empty()
    }

    /// Adds those of another template.
    pub fn extend(&mut self, other: Self) {
        for (name, places) in other.exports {
            self.exports.entry(name).or_default().extend(places);
        }
        for (read, places) in other.outputs {
            self.outputs.entry(read).or_default().extend(places);
        }
    }

    fn add(&mut self, wanted: Wanted, place: Place) {
        let places = match wanted {
            Wanted::Export(name) => self.exports.entry(name).or_default(),
            Wanted::Output(read) => self.outputs.entry(read).or_default(),
        };
        places.push(place);
    }
}

/// Lists what a deploy reads from other stacks: in the properties of resources and the values of outputs that exist,
/// through the branches that are taken. It is more than evaluation asks for only where an `Fn::Sub` declares a variable
/// that it does not use.
///
/// # Errors
/// All at once, for arguments of the reads alone; the rest is for [`super::check()`] to say.
/// [`Code::InvalidIntrinsic`] for an argument that cannot be, that holds a secret, or that is not known before the
/// deploy (rule E30); [`Code::UnsupportedIntrinsic`] for a read through a role.
pub fn reads(
    template: &Template,
    bound: &Bound,
    conditions: &IndexMap<String, bool>,
    pseudo: &Pseudo,
) -> Result<Reads> {
    let scope =
        Scope { template, pseudo, parameters: bound, conditions, resources: &NotYet, imports: &NoImports };
    let mut found = Reads::default();
    let mut errors = Vec::new();
    for call in calls(template, conditions) {
        if let Some(wanted) = call.wanted(&scope, &mut errors) {
            found.add(wanted, call.place);
        }
    }
    Error::all(errors)?;
    Ok(found)
}

/// The calls that read from other stacks, in what exists and through the branches that are taken.
pub(super) fn calls<'t>(template: &'t Template, conditions: &'t IndexMap<String, bool>) -> Vec<Read<'t>> {
    let mut calls = Vec::new();
    for (logical_id, resource) in template.active(conditions) {
        let place = template.properties_place(logical_id);
        let mut survey = Survey::new(template, conditions, Site::Value);
        survey_properties(&mut survey, resource, &Path::Root(&place));
        calls.append(&mut survey.reads);
    }
    let root = Place::stack(template.stack.as_str()).down("Outputs");
    for (name, output) in &template.outputs {
        if holds(output.condition.as_deref(), conditions) {
            let mut survey = Survey::new(template, conditions, Site::Value);
            survey.value(&output.value, &Path::Root(&root).key(name).key("Value"));
            calls.append(&mut survey.reads);
        }
    }
    calls
}

/// A call that reads from another stack, as a survey finds it.
pub(super) struct Read<'t> {
    function: &'static Function,
    argument: &'t Value,
    place: Place,
}

/// What a [`Read`] asks for.
pub(super) enum Wanted {
    Export(String),
    Output(OutputRead),
}

impl<'t> Read<'t> {
    pub fn new(function: &'static Function, argument: &'t Value, at: &Path<'_>) -> Self {
        Self { function, argument, place: at.place() }
    }

    /// Adds what is wrong with the values of the arguments.
    pub fn check(&self, scope: &Scope<'_>, errors: &mut Vec<Error>) {
        self.wanted(scope, errors);
    }

    /// What it asks for; `None` if its arguments are wrong, which is added.
    pub fn wanted(&self, scope: &Scope<'_>, errors: &mut Vec<Error>) -> Option<Wanted> {
        let at = Path::Root(&self.place);
        if self.function.name == import_value::FUNCTION.name {
            match import_value::export(self.argument, scope, &at) {
                Ok(name) => Some(Wanted::Export(name)),
                Err(error) => {
                    errors.push(error);
                    None
                }
            }
        } else {
            get_stack_output::output(self.argument, scope, &at, errors).map(Wanted::Output)
        }
    }
}

/// An argument that says what to read: `what`, in words. `None` for `AWS::NoValue`.
///
/// It sees neither resources nor other stacks, even those that are on record: what a stack reads is known before
/// anything is deployed (rule E30), and the same in every run of it.
pub(super) fn coordinate(
    function: &Function,
    what: &str,
    expression: &Value,
    site: Site,
    scope: &Scope<'_>,
    at: &Path<'_>,
) -> Result<Option<String>> {
    let mut survey = Survey::new(scope.template, scope.conditions, site);
    survey.value(expression, at);
    Error::all(survey.errors)?;
    let scope = Scope { resources: &NotYet, imports: &NoImports, ..*scope };
    let node = eval(expression, &scope, at)?;
    if node == Node::NoValue {
        return Ok(None);
    }
    let Some(text) = node.scalar_text() else {
        return Err(function.wrong(&format!("needs a string as {what}, not {}", kind(&node)), at));
    };
    // Neither reason nor token is shown: both may tell more of a secret than an error should.
    if text.unknown().is_some() {
        return Err(function.wrong(&format!("needs {what} to be known before the deploy"), at));
    }
    match text.as_plain() {
        None => Err(function.wrong(&format!("takes no secret as {what}"), at)),
        Some("") => Err(function.wrong(&format!("has an empty text as {what}"), at)),
        Some(plain) => Ok(Some(plain.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::Stack;
    use super::*;
    use serde_json::json;

    fn read(stack: &Stack) -> Result<Reads> {
        reads(&stack.template, &stack.bound, &stack.conditions, &stack.pseudo)
    }

    fn paths(places: &[Place]) -> Vec<String> {
        places.iter().map(|place| place.path.join(".")).collect()
    }

    #[test]
    fn what_a_deploy_evaluates_is_listed_with_its_places() {
        let import = |name: &str| json!({ "Fn::ImportValue": name });
        let stack = Stack::new(json!({
            "Parameters": {"Env": {"Type": "String", "Default": "dev"}},
            "Mappings": {"Names": {"dev": {"Vpc": "net-vpc"}}},
            "Conditions": {"Yes": {"Fn::Equals": ["a", "a"]}, "No": {"Fn::Equals": ["a", "b"]}},
            "Resources": {
                "A": {"DependsOn": "B", "Metadata": {"M": import("in-metadata")}, "Properties": {
                    "P": [{"Fn::Join": ["-", ["x", import("Vpc")]]}],
                    "Q": {"Fn::If": ["Yes", {"Fn::Sub": ["${V}", {"V": import("Sub")}]}, import("not-taken")]},
                    "R": {"Fn::If": ["No", import("not-taken"), import("Vpc")]},
                    "S": {"Fn::Select": [0, {"Fn::Split": ["||", import("List")]}]},
                    "T": {"Fn::GetStackOutput": {"StackName": "Net", "OutputName": {"Fn::Sub": "Vpc${Env}"}}},
                    "U": {"Fn::ImportValue": {"Fn::FindInMap": ["Names", {"Ref": "Env"}, "Vpc"]}},
                    "V": {"Fn::ImportValue": {"Fn::Join": [":", [{"Ref": "AWS::StackName"}, {"Ref": "Env"}]]}},
                    "W": {"Fn::ImportValue": {"Fn::If": ["No", "x", "if"]}},
                }},
                "B": {}, "Off": {"Condition": "No", "Properties": {"P": import("off")}},
            },
            "Outputs": {
                "O": {"Value": {"Fn::Base64": import("Vpc")}},
                "P": {"Value": {"Fn::GetStackOutput": {
                    "StackName": "Net", "OutputName": "Vpcdev", "Region": "EU-WEST-1",
                }}},
                "Q": {"Condition": "No", "Value": import("off")},
            },
        }));
        assert_eq!(stack.check(), Ok(()));
        let found = read(&stack).unwrap();
        assert_eq!(
            found.exports.keys().collect::<Vec<_>>(),
            ["Vpc", "Sub", "List", "net-vpc", "Web:dev", "if"]
        );
        assert_eq!(
            paths(&found.exports["Vpc"]),
            [
                "Resources.A.Properties.P.0.Fn::Join.1.1.Fn::ImportValue",
                "Resources.A.Properties.R.Fn::If.2.Fn::ImportValue",
                "Outputs.O.Value.Fn::Base64.Fn::ImportValue",
            ]
        );
        assert_eq!(found.exports["Vpc"][0].logical_id.as_deref(), Some("A"));
        // A15, G2: the own region, absent or in upper case, is one.
        let [(output, places)] = found.outputs.iter().collect::<Vec<_>>()[..] else { panic!("one output") };
        assert_eq!(output.to_string(), "output `Vpcdev` of Net (eu-west-1)");
        assert_eq!(places.len(), 2);
        // Imports make no dependency inside the stack.
        let needs = super::super::dependencies(&stack.template, &stack.conditions).unwrap();
        assert_eq!(needs["A"], ["B"]);
        assert!(read(&Stack::new(json!({}))).unwrap().is_empty());
    }

    #[test]
    fn e30_what_depends_on_a_resource_is_refused_with_its_place() {
        let stack = Stack::new(json!({
            "Resources": {"Topic": {}, "R": {"Properties": {
                "P": {"Fn::ImportValue": {"Fn::Sub": "x-${Topic.TopicName}"}},
                "Q": {"Fn::ImportValue": {"Ref": "Topic"}},
                "R": {"Fn::GetStackOutput": {"StackName": {"Ref": "Topic"}, "OutputName": {"Fn::GetAtt": "Topic.X"}}},
            }}},
        }));
        for error in [read(&stack).unwrap_err(), stack.check().unwrap_err()] {
            let all = error.details()["errors"].as_array().unwrap();
            let at: Vec<_> = all.iter().map(|error| error["details"]["path"].as_str().unwrap()).collect();
            assert_eq!(
                at,
                [
                    "Resources.R.Properties.P.Fn::ImportValue.Fn::Sub",
                    "Resources.R.Properties.Q.Fn::ImportValue.Ref",
                    "Resources.R.Properties.R.Fn::GetStackOutput.StackName.Ref",
                    "Resources.R.Properties.R.Fn::GetStackOutput.OutputName.Fn::GetAtt",
                ]
            );
            for error in all {
                assert_eq!(error["code"], "InvalidIntrinsic");
                assert!(error["message"].as_str().unwrap().contains("`Topic`"), "{error}");
            }
        }
    }

    #[test]
    fn what_is_read_stands_neither_in_conditions_nor_in_names_of_exports() {
        for read in [
            json!({"Fn::ImportValue": "X"}),
            json!({"Fn::GetStackOutput": {"StackName": "P", "OutputName": "O"}}),
            json!({"Fn::ImportValue": {"Fn::ImportValue": "X"}}),
        ] {
            let stack = Stack::new(json!({"Outputs": {"O": {"Value": "v", "Export": {"Name": {"Fn::Sub": [
                "${V}", {"V": read},
            ]}}}}}));
            assert_eq!(stack.check().unwrap_err().code(), Code::InvalidIntrinsic);
        }
    }

    #[test]
    fn where_nothing_can_be_read_it_is_refused_by_name() {
        let read = OutputRead { source: RecordKey::parse("Net", "eu-west-1").unwrap(), output: "Vpc".into() };
        let errors = [NoImports.import("X").unwrap_err(), NoImports.output(&read).unwrap_err()];
        let messages = errors.each_ref().map(Error::message);
        assert_eq!(
            messages,
            [
                "`Fn::ImportValue` cannot read the export `X` here",
                "`Fn::GetStackOutput` cannot read the output `Vpc` of Net (eu-west-1) here",
            ]
        );
    }
}
