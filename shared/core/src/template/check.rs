//! Everything that can be known wrong with a template before anything is touched.

use indexmap::IndexMap;

use super::evaluate::probe;
use super::graph::{Graph, survey_properties};
use super::intrinsic::UNTIL_LATER;
use super::outputs::publish;
use super::path::Path;
use super::reads::Unread;
use super::survey::{Site, Survey, unknown_condition, unknown_name};
use super::{Bound, Pseudo, Resource, Resources, Scope, Source, Template, holds};
use crate::error::{Code, Error, Place, Result};
use crate::value::{Node, Reason};

/// Checks a whole template: macros, functions, their arguments, names, circles, outputs and export names. What
/// depends on parameters and pseudo parameters alone is evaluated, so that a missing key of a mapping is found here.
///
/// # Errors
/// All errors of the template at once, each with its stack, logical id and path, and in `details.fragment` what the
/// template says there: [`Code::UnsupportedIntrinsic`], [`Code::InvalidIntrinsic`], [`Code::UnresolvedReference`],
/// [`Code::InvalidTemplate`], [`Code::CircularDependency`].
pub fn check(
    template: &Template,
    bound: &Bound,
    conditions: &IndexMap<String, bool>,
    pseudo: &Pseudo,
) -> Result<()> {
    let root = Place::stack(template.stack.as_str());
    let scope =
        Scope { template, pseudo, parameters: bound, conditions, resources: &NotYet, imports: &Unread };
    let mut errors = macros(template, &root);
    errors.extend(secrets(bound, &root));
    errors.extend(mappings(&scope, &root));
    let mut graph = Graph::default();
    for (logical_id, resource) in &template.resources {
        errors.extend(check_resource(logical_id, resource, &scope, &mut graph));
    }
    errors.extend(check_outputs(&scope, &root));
    errors.extend(graph.circle(template));
    Error::all(errors)
}

fn macros(template: &Template, root: &Place) -> Vec<Error> {
    let place = root.down("Transform");
    template
        .transform
        .iter()
        // Its functions are evaluated here as any other.
        .filter(|name| *name != "AWS::LanguageExtensions")
        .map(|name| {
            let message = format!("the macro `{name}` is not supported by this release");
            Error::new(Code::UnsupportedIntrinsic, message)
                .hint(UNTIL_LATER)
                .detail("fragment", name.as_str())
                .place(&place)
        })
        .collect()
}

/// Dynamic references may come in as values of `NoEcho` parameters only; a parent's secret passes as it is.
fn secrets<'b>(bound: &'b Bound, root: &Place) -> impl Iterator<Item = Error> + use<'b> {
    let place = root.down("Parameters");
    bound.values.iter().filter_map(move |(name, value)| {
        let passed = bound.sources.get(name) == Some(&Source::Passed);
        // A text that is not passed can only be unknown because of a reference to `ssm`.
        let refers = value.unknown().is_some() || !value.secrets().is_empty();
        (refers && !passed && !bound.no_echo.contains(name)).then(|| {
            let message = format!(
                "the value of parameter `{name}` is a dynamic reference; this release takes one only for a \
                 parameter that is declared `NoEcho`"
            );
            Error::new(Code::UnsupportedIntrinsic, message).place(&place.down(name.as_str()))
        })
    })
}

/// Mappings hold constants, so all that can be wrong with their form is a dynamic reference.
fn mappings(scope: &Scope<'_>, root: &Place) -> Vec<Error> {
    let place = root.down("Mappings");
    let here = Path::Root(&place);
    let mut survey = Survey::new(scope.template, scope.conditions, Site::Value);
    for (name, mapping) in &scope.template.mappings {
        let here = here.key(name);
        for (top, row) in mapping {
            survey.map(row, &here.key(top));
        }
    }
    survey.errors
}

fn check_resource<'t>(
    logical_id: &'t str,
    resource: &'t Resource,
    scope: &Scope<'t>,
    graph: &mut Graph<'t>,
) -> Vec<Error> {
    let template = scope.template;
    let place =
        Place { path: vec!["Resources".into(), logical_id.into()], ..template.properties_place(logical_id) };
    let here = Path::Root(&place);
    let exists = holds(resource.condition.as_deref(), scope.conditions);
    let mut survey = Survey::new(template, scope.conditions, Site::Value);
    if let Some(condition) = &resource.condition
        && !template.conditions.contains_key(condition)
    {
        survey.errors.push(unknown_condition(template, condition, &here.key("Condition")));
    }
    for target in &resource.depends_on {
        if !template.resources.contains_key(target) {
            let error = unknown_name(template, target, &here.key("DependsOn"));
            survey.errors.push(error.detail("fragment", target.as_str()));
        }
    }
    let here = here.key("Properties");
    survey.branch(exists, |survey| survey_properties(survey, resource, &here));
    if exists {
        graph.add(template, scope.conditions, logical_id, &survey.references);
    }
    let mut errors = survey.errors;
    // Only what is well formed can be evaluated without saying the same twice.
    if errors.is_empty() {
        survey.reads.iter().for_each(|read| read.check(scope, &mut errors));
    }
    if errors.is_empty()
        && exists
        && let Some(properties) = resource.properties.as_object()
    {
        for (key, value) in properties {
            probe(value, scope, &here.key(key), &mut errors);
        }
    }
    errors
}

fn check_outputs(scope: &Scope<'_>, root: &Place) -> Vec<Error> {
    let template = scope.template;
    let place = root.down("Outputs");
    let outputs = Path::Root(&place);
    let mut errors = Vec::new();
    for (name, output) in &template.outputs {
        let here = outputs.key(name);
        if let Some(condition) = &output.condition
            && !template.conditions.contains_key(condition)
        {
            errors.push(unknown_condition(template, condition, &here.key("Condition")));
        }
        if !holds(output.condition.as_deref(), scope.conditions) {
            continue;
        }
        let mut survey = Survey::new(template, scope.conditions, Site::Value);
        survey.value(&output.value, &here.key("Value"));
        let mut found = survey.errors;
        if found.is_empty() {
            survey.reads.iter().for_each(|read| read.check(scope, &mut found));
        }
        // A literal name is taken as it is, even one that is spelled like a token (rule E3).
        if let Some(name) = output.export_name.as_ref().filter(|name| !name.is_string()) {
            let mut survey = Survey::new(template, scope.conditions, Site::ExportName);
            survey.value(name, &here.key("Export").key("Name"));
            found.append(&mut survey.errors);
        }
        if found.is_empty() {
            found.extend(publish(name, output, scope, &place.down(name.as_str())).err());
        }
        errors.append(&mut found);
    }
    errors
}

/// Before a deploy every resource is unknown.
pub(super) struct NotYet;

impl Resources for NotYet {
    fn reference(&self, logical_id: &str) -> Node {
        Node::Unknown(Reason::Pending { logical_id: logical_id.to_owned(), attribute: None })
    }

    fn attribute(&self, logical_id: &str, name: &str) -> Result<Node> {
        Ok(Node::Unknown(Reason::Pending {
            logical_id: logical_id.to_owned(),
            attribute: Some(name.to_owned()),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Stack, pseudo, template};
    use super::super::{ParameterSources, bind};
    use super::*;
    use serde_json::{Value, json};

    /// The errors of a stack around a property with this value: code, path below `Properties`, fragment, hint.
    fn errors(expression: &Value) -> Vec<(String, String, String)> {
        let stack = Stack::new(json!({
            "Parameters": {"Env": {"Type": "String", "Default": "dev"}},
            "Mappings": {"Sizes": {"dev": {"Cpu": 1}}},
            "Conditions": {"IsProd": {"Fn::Equals": [{"Ref": "Env"}, "prod"]}},
            "Resources": {
                "Topic": {}, "Off": {"Condition": "IsProd"},
                "R": {"Properties": {"P": expression}},
            },
        }));
        let Err(error) = stack.check() else { return Vec::new() };
        let cause = error.cause();
        let causes = match cause["details"]["errors"].as_array() {
            Some(causes) => causes.clone(),
            None => vec![cause],
        };
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        for cause in &causes {
            assert_eq!(cause["details"]["stack"], "Web");
            assert_eq!(cause["details"]["logicalId"], "R");
            assert!(text(&cause["details"]["path"]).starts_with("Resources.R.Properties.P"), "{cause}");
            assert!(!text(&cause["details"]["fragment"]).is_empty(), "{cause}");
        }
        causes.iter().map(|c| (text(&c["code"]), text(&c["details"]["fragment"]), text(&c["hint"]))).collect()
    }

    #[test]
    fn t8_functions_and_macros_that_are_not_evaluated_are_refused_by_name() {
        for name in ["Fn::GetAZs", "Fn::Transform", "Fn::ForEach::Loop", "Fn::Contains", "Fn::Whatever"] {
            let found = errors(&json!([{ name: ["x"] }]));
            assert_eq!((found[0].0.as_str(), found[0].1.as_str()), ("UnsupportedIntrinsic", name));
        }
        assert_eq!(errors(&json!({"Fn::Joim": []}))[0].2, "did you mean `Fn::Join`?");
        assert_eq!(Stack::new(json!({ "Transform": "AWS::LanguageExtensions" })).check(), Ok(()));
        for transform in
            [json!("AWS::Include"), json!(["AWS::LanguageExtensions", "AWS::Serverless-2016-10-31"])]
        {
            let stack = Stack::new(json!({ "Transform": transform }));
            let error = stack.check().unwrap_err();
            assert_eq!(error.code(), Code::UnsupportedIntrinsic);
            assert!(error.message().contains("`AWS::"), "{error}");
        }
    }

    #[test]
    fn names_are_checked_everywhere() {
        let table = [
            (json!({"Ref": "Topicc"}), "UnresolvedReference", "Topicc", "did you mean `Topic`?"),
            (
                json!({"Ref": "AWS::Regin"}),
                "UnresolvedReference",
                "AWS::Regin",
                "did you mean `AWS::Region`?",
            ),
            (
                json!({"Fn::GetAtt": "Topicc.Arn"}),
                "UnresolvedReference",
                "Topicc.Arn",
                "did you mean `Topic`?",
            ),
            (
                json!({"Fn::Sub": "x${Topicc.Arn}"}),
                "UnresolvedReference",
                "${Topicc.Arn}",
                "did you mean `Topic`?",
            ),
            (json!({"Fn::If": ["IsPrd", 1, 2]}), "UnresolvedReference", "IsPrd", "did you mean `IsProd`?"),
            // The other branch is checked too, for names that are nowhere.
            (
                json!({"Fn::If": ["IsProd", {"Ref": "Topicc"}, 2]}),
                "UnresolvedReference",
                "Topicc",
                "did you mean `Topic`?",
            ),
        ];
        for (expression, code, fragment, hint) in table {
            let found = errors(&json!({ "Deep": [expression] }));
            assert_eq!(found, [(code.into(), fragment.into(), hint.into())], "{expression}");
        }
    }

    #[test]
    fn a_resource_that_does_not_exist_may_not_be_used() {
        let code = |expression: Value| errors(&expression).first().map(|error| error.0.clone());
        for taken in [
            json!({"Ref": "Off"}),
            json!({"Fn::GetAtt": "Off.Arn"}),
            json!({"Fn::Sub": "${Off}"}),
            json!({"Fn::If": ["IsProd", 1, {"Ref": "Off"}]}),
        ] {
            assert_eq!(code(taken), Some("UnresolvedReference".into()));
        }
        assert_eq!(code(json!({"Fn::If": ["IsProd", {"Ref": "Off"}, 1]})), None);
    }

    #[test]
    fn what_evaluates_without_resources_is_evaluated() {
        for (expression, code) in [
            (json!({"Fn::FindInMap": ["Sizes", {"Ref": "AWS::Region"}, "Cpu"]}), "UnresolvedReference"),
            (json!({"Fn::Select": [1, ["a"]]}), "InvalidIntrinsic"),
            (json!({"Fn::Join": ["", [["a"]]]}), "InvalidIntrinsic"),
        ] {
            assert_eq!(errors(&expression)[0].0, code);
        }
        assert_eq!(errors(&json!({"Fn::Select": [9, {"Fn::Split": [",", {"Ref": "Topic"}]}]})), []);
    }

    #[test]
    fn t3_a_refused_get_att_in_a_sub_is_found() {
        assert_eq!(errors(&json!({"Fn::Sub": "a ${Nope.Arn}"}))[0].1, "${Nope.Arn}");
    }

    #[test]
    fn dynamic_references_are_refused_but_for_noecho_parameters() {
        for expression in [
            json!("{{resolve:ssm:/x}}"),
            json!({"Fn::Sub": "{{resolve:secretsmanager:${Topic}}}"}),
            json!({"Fn::Join": ["", ["{{resolve:ssm-secure:", {"Ref": "Topic"}, "}}"]]}),
        ] {
            assert_eq!(errors(&expression)[0].0, "UnsupportedIntrinsic", "{expression}");
        }
        assert_eq!(errors(&json!("{{resolve:ssm}}")), [], "no token");
        let stack = Stack::new(json!({"Mappings": {"M": {"a": {"b": ["{{resolve:ssm:/x}}"]}}}}));
        let error = stack.check().unwrap_err();
        assert_eq!(error.where_().unwrap().path.join("."), "Mappings.M.a.b.0");
        for (no_echo, ok) in [(true, true), (false, false)] {
            let stack = Stack::new(json!({"Parameters": {
                "P": {"Type": "String", "NoEcho": no_echo, "Default": "{{resolve:ssm:/x}}"},
            }}));
            assert_eq!(stack.check().is_ok(), ok);
        }
    }

    #[test]
    fn a13_a_parameter_that_only_rules_use_is_no_error() {
        let document = |properties: Value| {
            json!({
                "Parameters": {"BootstrapVersion": {
                    "Type": "AWS::SSM::Parameter::Value<String>", "Default": "/cdk-bootstrap/hnb659fds/version",
                }},
                "Rules": {"CheckBootstrapVersion": {"Assertions": [{
                    "Assert": {"Fn::Not": [{"Fn::Contains": [["1", "2"], {"Ref": "BootstrapVersion"}]}]},
                }]}},
                "Resources": {"R": {"Properties": properties}},
            })
        };
        assert_eq!(Stack::new(document(json!({}))).check(), Ok(()));
        for use_ in [json!({"Ref": "BootstrapVersion"}), json!({"Fn::Sub": "${BootstrapVersion}"})] {
            let error = Stack::new(document(json!({ "P": use_ }))).check().unwrap_err();
            assert_eq!(error.code(), Code::UnsupportedIntrinsic);
            assert!(error.message().contains("AWS::SSM::Parameter::Value<String>"), "{error}");
        }
    }

    #[test]
    fn e30_an_export_name_may_not_depend_on_a_resource() {
        for name in [json!({"Ref": "Topic"}), json!({"Fn::Sub": "x-${Topic.TopicName}"})] {
            let stack = Stack::new(json!({
                "Resources": {"Topic": {}},
                "Outputs": {"O": {"Value": "v", "Export": {"Name": name}}},
            }));
            let error = stack.check().unwrap_err();
            assert_eq!(error.code(), Code::InvalidTemplate);
            assert!(
                error
                    .where_()
                    .unwrap()
                    .path
                    .starts_with(&["Outputs", "O", "Export", "Name"].map(String::from))
            );
        }
    }

    #[test]
    fn all_errors_of_a_template_at_once() {
        let template = template(json!({
            "Transform": "AWS::Include",
            "Resources": {
                "A": {"Condition": "Nope", "DependsOn": "Nobody"},
                "B": {"DependsOn": "C", "Properties": {"X": {"Fn::GetAZs": []}, "Y": {"Ref": 1}}},
                "C": {"DependsOn": "B"},
            },
            "Outputs": {"O": {"Value": {"Ref": "Z"}}, "P": {"Value": []}, "Q": {"Condition": "Nope", "Value": 1}},
        }));
        let bound = bind(&template, &ParameterSources::default()).unwrap();
        let error = check(&template, &bound, &IndexMap::new(), &pseudo()).unwrap_err();
        let codes: Vec<_> = error.details()["errors"]
            .as_array()
            .unwrap()
            .iter()
            .map(|e| e["code"].as_str().unwrap())
            .collect();
        assert_eq!(
            codes,
            [
                "UnsupportedIntrinsic",
                "UnresolvedReference",
                "UnresolvedReference",
                "UnsupportedIntrinsic",
                "InvalidIntrinsic",
                "UnresolvedReference",
                "InvalidTemplate",
                "UnresolvedReference",
                "CircularDependency",
            ]
        );
    }

    #[test]
    fn a_secret_in_a_template_never_reaches_an_error() {
        let table = [
            json!({"Fn::Sub": "postgres://admin:hunter2@${Nope}/x"}),
            json!({"Fn::Join": ["hunter2"]}),
            json!({"Fn::Join": [["hunter2"], ["hunter2"]]}),
            json!({"Fn::Select": ["hunter2", ["hunter2"]]}),
            json!({"Fn::Split": ["", "hunter2"]}),
            json!({"Fn::Base64": ["hunter2"]}),
        ];
        for expression in table {
            let stack = Stack::new(json!({"Resources": {"R": {"Properties": {"P": expression}}}}));
            let cause = stack.check().unwrap_err().cause().to_string();
            assert!(!cause.contains("hunter2"), "{cause}");
        }
    }
}
