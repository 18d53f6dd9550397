//! `{"Fn::GetAtt": [logical id, attribute]}` or `{"Fn::GetAtt": "LogicalId.Attribute"}`: an attribute of a resource.
//!
//! The text is split at its first dot; the attribute in a list may be an expression.
//! Source: AWS CloudFormation User Guide, "`Fn::GetAtt`".

use serde_json::Value;

use super::ref_::existing;
use super::{Evaluate, Function};
use crate::error::Result;
use crate::template::Scope;
use crate::template::evaluate::eval;
use crate::template::path::Path;
use crate::template::survey::Survey;
use crate::value::Node;

pub(super) static FUNCTION: Function = Function {
    name: "Fn::GetAtt",
    takes: "`[logical id, attribute]` or `\"LogicalId.Attribute\"`",
    evaluate: Evaluate::Value(evaluate),
    survey,
};

/// The logical id and the attribute, both not empty.
fn target<'v>(argument: &'v Value, at: &Path<'_>) -> Result<(&'v str, Attribute<'v>)> {
    let target = match argument {
        Value::String(text) => split(text).map(|(logical_id, name)| (logical_id, Attribute::Name(name))),
        Value::Array(items) => match items.as_slice() {
            [Value::String(logical_id), Value::String(name)] if !name.is_empty() => {
                Some((logical_id.as_str(), Attribute::Name(name)))
            }
            [Value::String(logical_id), expression @ Value::Object(_)] => {
                Some((logical_id.as_str(), Attribute::Expression(expression)))
            }
            _ => None,
        },
        _ => None,
    };
    target.filter(|(logical_id, _)| !logical_id.is_empty()).ok_or_else(|| FUNCTION.malformed(argument, at))
}

enum Attribute<'v> {
    Name(&'v str),
    Expression(&'v Value),
}

/// `LogicalId.Attribute`, split at the first dot.
pub(super) fn split(text: &str) -> Option<(&str, &str)> {
    text.split_once('.').filter(|(logical_id, name)| !logical_id.is_empty() && !name.is_empty())
}

fn evaluate(argument: &Value, scope: &Scope<'_>, at: &Path<'_>) -> Result<Node> {
    let (logical_id, name) = target(argument, at)?;
    let expression = match name {
        Attribute::Name(name) => return attribute(logical_id, name, scope, at),
        Attribute::Expression(expression) => eval(expression, scope, &at.index(1))?,
    };
    if let Some(reason) = expression.unknown() {
        return Ok(Node::Unknown(reason.clone()));
    }
    match expression.as_plain().filter(|name| !name.is_empty()) {
        Some(name) => attribute(logical_id, name, scope, at),
        None => Err(FUNCTION.malformed(argument, at)),
    }
}

/// An attribute of a resource; also in `Fn::Sub`.
pub(super) fn attribute(logical_id: &str, name: &str, scope: &Scope<'_>, at: &Path<'_>) -> Result<Node> {
    existing(logical_id, scope, at)?;
    scope.resources.attribute(logical_id, name)
}

fn survey<'t>(argument: &'t Value, survey: &mut Survey<'t>, at: &Path<'_>) {
    match target(argument, at) {
        Err(error) => survey.errors.push(error),
        Ok((logical_id, Attribute::Name(name))) => {
            survey.resource(logical_id, &format!("{logical_id}.{name}"), at);
        }
        Ok((logical_id, Attribute::Expression(expression))) => {
            survey.resource(logical_id, logical_id, at);
            survey.value(expression, &at.index(1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::testing::sample;
    use serde_json::json;

    #[test]
    fn attributes() {
        let stack = sample();
        let table = [
            (json!("Topic.Arn"), Ok(json!("Topic.Arn"))),
            (json!("Topic.Endpoint.Port"), Ok(json!("Topic.Endpoint.Port"))),
            (json!(["Topic", "Endpoint.Port"]), Ok(json!("Topic.Endpoint.Port"))),
            (json!(["Topic", {"Ref": "Env"}]), Ok(json!("Topic.dev"))),
            (json!(["Topic", "List"]), Ok(json!(["one", "two"]))),
            (json!(["NewBucket", "Arn"]), Err("known after `NewBucket.Arn`")),
            (json!(["Topic", {"Ref": "NewBucket"}]), Err("known after `NewBucket`")),
            (json!(["Topic", {"Fn::Sub": "${NewBucket}"}]), Err("known after `NewBucket`")),
            (json!(["Topic", {"Ref": "Subnets"}]), Err("InvalidIntrinsic")),
            (json!(["Topic", "Gone"]), Err("UnresolvedReference")),
            (json!("Off.Arn"), Err("UnresolvedReference")),
            (json!("Env.Arn"), Err("UnresolvedReference")),
            (json!("Topic"), Err("InvalidIntrinsic")),
            (json!("Topic."), Err("InvalidIntrinsic")),
            (json!(".Arn"), Err("InvalidIntrinsic")),
            (json!(["Topic"]), Err("InvalidIntrinsic")),
            (json!(["Topic", "A", "B"]), Err("InvalidIntrinsic")),
            (json!([{"Ref": "Env"}, "Arn"]), Err("InvalidIntrinsic")),
            (json!(1), Err("InvalidIntrinsic")),
        ];
        for (argument, expected) in table {
            let expression = json!({ "Fn::GetAtt": argument });
            assert_eq!(stack.stored(&expression), expected.map_err(str::to_owned), "{expression}");
        }
    }
}
