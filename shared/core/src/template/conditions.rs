//! The section `Conditions`, in whatever order it is declared (rule T5).

use indexmap::IndexMap;
use serde_json::Value;

use super::intrinsic;
use super::path::Path;
use super::survey::{Site, Survey, unknown_condition};
use super::{Bound, NoImports, Pseudo, Resources, Scope, Template};
use crate::error::{Code, Error, Place, Result};
use crate::value::{Node, Reason};

/// Decides every condition, in template order.
///
/// # Errors
/// What is wrong with their form, all at once; else the first of [`Code::CircularDependency`], naming the circle,
/// [`Code::UnresolvedReference`] for a condition on something that is not known before the deploy, and what
/// evaluation refuses.
pub fn conditions(template: &Template, bound: &Bound, pseudo: &Pseudo) -> Result<IndexMap<String, bool>> {
    let undecided = IndexMap::new();
    let root = Place::stack(template.stack.as_str()).down("Conditions");
    let root = Path::Root(&root);
    let mut survey = Survey::new(template, &undecided, Site::Condition);
    for (name, expression) in &template.conditions {
        survey.condition(expression, &root.key(name));
    }
    Error::all(survey.errors)?;
    let scope = Scope {
        template,
        pseudo,
        parameters: bound,
        conditions: &undecided,
        resources: &NoResources,
        imports: &NoImports,
    };
    let mut truth = Truth { scope, decided: IndexMap::new(), open: Vec::new() };
    let mut decided = IndexMap::with_capacity(template.conditions.len());
    for name in template.conditions.keys() {
        decided.insert(name.clone(), truth.named(name, &root.key(name))?);
    }
    Ok(decided)
}

/// The state of deciding conditions: each is decided once, when first asked for.
pub(super) struct Truth<'a> {
    pub scope: Scope<'a>,
    decided: IndexMap<&'a str, bool>,
    /// The conditions that wait for each other, outermost first.
    open: Vec<&'a str>,
}

impl<'a> Truth<'a> {
    /// The truth of the condition with that name.
    pub fn named(&mut self, name: &str, at: &Path<'_>) -> Result<bool> {
        if let Some(truth) = self.decided.get(name) {
            return Ok(*truth);
        }
        let template: &'a Template = self.scope.template;
        let Some((name, expression)) = template.conditions.get_key_value(name) else {
            return Err(unknown_condition(template, name, at));
        };
        if let Some(start) = self.open.iter().position(|open| open == name) {
            let circle: Vec<&str> = self.open.iter().skip(start).copied().chain([name.as_str()]).collect();
            let message = format!("conditions depend on each other in a circle: {}", circle.join(" → "));
            return Err(Error::new(Code::CircularDependency, message)
                .detail("circle", circle)
                .place(&at.place()));
        }
        self.open.push(name);
        let root = Place::stack(template.stack.as_str()).down("Conditions");
        let truth = self.decide(expression, &Path::Root(&root).key(name))?;
        self.open.pop();
        self.decided.insert(name, truth);
        Ok(truth)
    }

    /// The truth of a condition function.
    pub fn decide(&mut self, expression: &Value, at: &Path<'_>) -> Result<bool> {
        match intrinsic::condition_call(expression) {
            Some((function, argument)) => match &function.evaluate {
                intrinsic::Evaluate::Condition(decide) => decide(argument, self, &at.key(function.name)),
                _ => Err(intrinsic::no_condition(expression, at)),
            },
            None => Err(intrinsic::no_condition(expression, at)),
        }
    }
}

/// Conditions are decided before there are resources.
struct NoResources;

impl NoResources {
    fn unknown(logical_id: &str) -> Node {
        Node::Unknown(Reason::Pending { logical_id: logical_id.to_owned(), attribute: None })
    }
}

impl Resources for NoResources {
    fn reference(&self, logical_id: &str) -> Node {
        Self::unknown(logical_id)
    }

    fn attribute(&self, logical_id: &str, _name: &str) -> Result<Node> {
        Ok(Self::unknown(logical_id))
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{pseudo, template};
    use super::super::{ParameterSources, bind};
    use super::*;
    use serde_json::json;

    fn decided(conditions_: &Value) -> Result<Vec<(String, bool)>> {
        let template = template(json!({
            "Parameters": {
                "Env": {"Type": "String", "Default": "dev"},
                "Secret": {"Type": "String", "NoEcho": true, "Default": ""},
                "List": {"Type": "CommaDelimitedList", "Default": "a,b"},
            },
            "Mappings": {"M": {"dev": {"on": true}}},
            "Resources": {"Topic": {}},
            "Conditions": conditions_,
        }));
        let bound = bind(&template, &ParameterSources::default()).unwrap();
        Ok(conditions(&template, &bound, &pseudo())?.into_iter().collect())
    }

    #[test]
    fn t5_conditions_in_any_declaration_order() {
        let truths = decided(&json!({
            "Both": {"Fn::And": [{"Condition": "Dev"}, {"Condition": "West"}]},
            "Other": {"Fn::Not": [{"Condition": "Both"}]},
            "Dev": {"Fn::Equals": [{"Ref": "Env"}, "dev"]},
            "West": {"Fn::Equals": [{"Ref": "AWS::Region"}, "eu-west-1"]},
            "Mapped": {"Fn::Equals": [{"Fn::FindInMap": ["M", {"Ref": "Env"}, "on"]}, "true"]},
            "Alias": {"Condition": "Other"},
        }))
        .unwrap();
        let expected = [
            ("Both", true),
            ("Other", false),
            ("Dev", true),
            ("West", true),
            ("Mapped", true),
            ("Alias", false),
        ];
        assert_eq!(truths, expected.map(|(name, truth)| (name.to_owned(), truth)));
    }

    #[test]
    fn t5_circular_and_unknown_conditions_are_named() {
        let error = decided(&json!({
            "A": {"Fn::Not": [{"Condition": "B"}]},
            "B": {"Fn::Or": [{"Condition": "C"}, {"Fn::Equals": ["a", "b"]}]},
            "C": {"Condition": "B"},
        }))
        .unwrap_err();
        assert_eq!(error.code(), Code::CircularDependency);
        assert_eq!(error.message(), "conditions depend on each other in a circle: B → C → B");
        let error =
            decided(&json!({"IsProd": {"Condition": "A"}, "B": {"Condition": "IsPord"}})).unwrap_err();
        assert_eq!(error.code(), Code::UnresolvedReference);
        assert_eq!(error.details()["errors"].as_array().unwrap().len(), 2);
        assert_eq!(error.details()["errors"][1]["hint"], "did you mean `IsProd`?");
    }

    #[test]
    fn what_is_no_condition_is_refused() {
        let table = [
            (json!("yes"), Code::InvalidIntrinsic),
            (json!(true), Code::InvalidIntrinsic),
            (json!({"Ref": "Env"}), Code::InvalidIntrinsic),
            (json!({"Fn::Equals": ["a"]}), Code::InvalidIntrinsic),
            (json!({"Fn::Equals": [{"Ref": "List"}, "a"]}), Code::InvalidIntrinsic),
            (json!({"Fn::And": [{"Fn::Equals": ["a", "a"]}]}), Code::InvalidIntrinsic),
            (json!({"Fn::Not": {"Fn::Equals": ["a", "a"]}}), Code::InvalidIntrinsic),
            (json!({"Fn::Equals": [{"Ref": "Topic"}, "a"]}), Code::InvalidIntrinsic),
            (json!({"Fn::Equals": [{"Fn::If": ["C", "a", "b"]}, "a"]}), Code::InvalidIntrinsic),
            (json!({"Fn::Equals": [{"Ref": "Nope"}, "a"]}), Code::UnresolvedReference),
            (json!({"Fn::Contains": [["a"], "a"]}), Code::UnsupportedIntrinsic),
            (json!({"Fn::Equals": [{"Fn::ImportValue": "x"}, "a"]}), Code::InvalidIntrinsic),
            (json!({"Fn::Equals": [{"Fn::GetStackOutput": {}}, "a"]}), Code::InvalidIntrinsic),
            (json!({"Fn::ImportValue": "x"}), Code::InvalidIntrinsic),
        ];
        for (expression, code) in table {
            let error = decided(&json!({ "C": expression })).unwrap_err();
            assert_eq!(error.code(), code, "{expression} {error}");
            assert!(error.where_().unwrap().path.starts_with(&["Conditions".into(), "C".into()]));
        }
    }
}
