//! `{"Ref": name}`: a parameter, a pseudo parameter, or what a resource is referred to as.
//!
//! Source: AWS CloudFormation User Guide, "Ref" and "Pseudo parameters reference" (rule T11).

use serde_json::Value;

use super::{Evaluate, Function};
use crate::error::Result;
use crate::template::path::Path;
use crate::template::survey::{Survey, does_not_exist, fetched, unknown_name};
use crate::template::{Scope, holds};
use crate::value::Node;

pub(super) static FUNCTION: Function =
    Function { name: "Ref", takes: "a name", evaluate: Evaluate::Value(evaluate), survey };

fn evaluate(argument: &Value, scope: &Scope<'_>, at: &Path<'_>) -> Result<Node> {
    let name = argument.as_str().ok_or_else(|| FUNCTION.malformed(argument, at))?;
    named(name, scope, at)
}

/// What a name stands for; also in `Fn::Sub`.
pub(super) fn named(name: &str, scope: &Scope<'_>, at: &Path<'_>) -> Result<Node> {
    if let Some(value) = scope.parameters.values.get(name) {
        return Ok(value.clone());
    }
    if let Some(parameter) = scope.template.parameters.get(name) {
        return Err(fetched(name, &parameter.type_name, at));
    }
    if let Some(value) = scope.pseudo.get(name) {
        return Ok(value);
    }
    existing(name, scope, at)?;
    Ok(scope.resources.reference(name))
}

/// Refuses the name of a resource that the template lacks, or that does not exist in this deploy.
pub(super) fn existing(logical_id: &str, scope: &Scope<'_>, at: &Path<'_>) -> Result<()> {
    match scope.template.resources.get(logical_id) {
        None => Err(unknown_name(scope.template, logical_id, at)),
        Some(resource) if holds(resource.condition.as_deref(), scope.conditions) => Ok(()),
        Some(resource) => Err(does_not_exist(logical_id, resource.condition.as_deref(), at)),
    }
}

fn survey<'t>(argument: &'t Value, survey: &mut Survey<'t>, at: &Path<'_>) {
    match argument.as_str() {
        Some(name) => survey.named(name, name, at),
        None => survey.errors.push(FUNCTION.malformed(argument, at)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::testing::sample;
    use serde_json::json;

    #[test]
    fn references() {
        let stack = sample();
        let table = [
            (json!({"Ref": "Env"}), Ok(json!("dev"))),
            (json!({"Ref": "Count"}), Ok(json!("2"))),
            (json!({"Ref": "Subnets"}), Ok(json!(["a", "b", "c"]))),
            (json!({"Ref": "Password"}), Ok(json!("{{resolve:secretsmanager:db}}"))),
            (json!({"Ref": "Topic"}), Ok(json!("id-of-Topic"))),
            (json!({"Ref": "NewBucket"}), Err("known after `NewBucket`")),
            (json!({"Ref": "Off"}), Err("UnresolvedReference")),
            (json!({"Ref": "Nope"}), Err("UnresolvedReference")),
            (json!({"Ref": "AWS::Nope"}), Err("UnresolvedReference")),
            (json!({"Ref": ["Topic"]}), Err("InvalidIntrinsic")),
        ];
        for (expression, expected) in table {
            assert_eq!(stack.stored(&expression), expected.map_err(str::to_owned), "{expression}");
        }
    }

    #[test]
    fn t11_pseudo_parameters() {
        let stack = sample();
        let table = [
            ("AWS::AccountId", json!("123456789012")),
            ("AWS::NoValue", json!(null)),
            ("AWS::NotificationARNs", json!(["arn:1", "arn:2"])),
            ("AWS::Partition", json!("aws")),
            ("AWS::Region", json!("eu-west-1")),
            ("AWS::StackId", json!("arn:aws:cloudformation:eu-west-1:123456789012:stack/Web/0")),
            ("AWS::StackName", json!("Web")),
            ("AWS::URLSuffix", json!("amazonaws.com")),
        ];
        for (name, expected) in table {
            assert_eq!(stack.stored(&json!({ "Ref": name })), Ok(expected));
        }
    }
}
