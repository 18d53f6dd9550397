//! `{"Fn::FindInMap": [mapping, first key, second key]}`: a value of the section `Mappings`.
//!
//! Each of the three may be a function. A fourth, `{"DefaultValue": value}`, is what it gives where the mapping has none.
//! Source: AWS CloudFormation User Guide, "`Fn::FindInMap`", "`Fn::FindInMap` enhancements" (rule T8).

use serde_json::Value;

use super::{Evaluate, Function};
use crate::error::Result;
use crate::template::evaluate::eval;
use crate::template::path::Path;
use crate::template::survey::Survey;
use crate::template::{Scope, mappings};
use crate::value::{Node, Text};

/// The key of the fourth argument.
const DEFAULT: &str = "DefaultValue";

pub(super) static FUNCTION: Function = Function {
    name: "Fn::FindInMap",
    takes: "`[mapping, first key, second key]`, and `{\"DefaultValue\": value}` if it is wanted",
    evaluate: Evaluate::Value(evaluate),
    survey,
};

/// The three keys, and the value of `{"DefaultValue": value}` (language extensions).
fn arguments<'v>(argument: &'v Value, at: &Path<'_>) -> Result<(&'v [Value], Option<&'v Value>)> {
    match argument.as_array().map(Vec::as_slice) {
        Some([keys @ .., Value::Object(last)])
            if keys.len() == 3 && last.len() == 1 && last.contains_key(DEFAULT) =>
        {
            Ok((keys, last.get(DEFAULT)))
        }
        Some(keys) if keys.len() == 3 => Ok((keys, None)),
        _ => Err(FUNCTION.malformed(argument, at)),
    }
}

fn evaluate(argument: &Value, scope: &Scope<'_>, at: &Path<'_>) -> Result<Node> {
    let (expressions, default) = arguments(argument, at)?;
    let mut keys: [String; 3] = Default::default();
    for (index, (key, expression)) in keys.iter_mut().zip(expressions).enumerate() {
        let at = at.index(index);
        let node = eval(expression, scope, &at)?;
        if let Some(reason) = node.unknown() {
            return Ok(Node::Unknown(reason.clone()));
        }
        *key = node
            .scalar_text()
            .as_ref()
            .and_then(Text::as_plain)
            .map(str::to_owned)
            .ok_or_else(|| FUNCTION.wrong("needs strings as its keys", &at))?;
    }
    let [map, top, second] = &keys;
    match (mappings::find(scope.template, map, top, second, at), default) {
        // Values of mappings are constants: only their form is looked at.
        (Ok(value), _) => eval(value, scope, at),
        (Err(_), Some(default)) => eval(default, scope, &at.index(3)),
        (Err(error), None) => Err(error),
    }
}

fn survey<'t>(argument: &'t Value, survey: &mut Survey<'t>, at: &Path<'_>) {
    match arguments(argument, at) {
        Ok((keys, default)) => {
            survey.items(keys, at);
            if let Some(default) = default {
                survey.value(default, &at.index(3));
            }
        }
        Err(error) => survey.errors.push(error),
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::testing::sample;
    use serde_json::json;

    #[test]
    fn lookups() {
        let stack = sample();
        let table = [
            (json!(["Regions", "eu-west-1", "Ami"]), Ok(json!("ami-1"))),
            (json!(["Regions", {"Ref": "AWS::Region"}, "Zones"]), Ok(json!(["a", "b"]))),
            (json!(["Regions", {"Ref": "AWS::Region"}, "Size"]), Ok(json!(3))),
            (json!(["Regions", {"Fn::Sub": "${Env}"}, "Ami"]), Ok(json!("ami-2"))),
            (json!(["Regions", {"Ref": "NewBucket"}, "Ami"]), Err("known after `NewBucket`")),
            (json!(["Region", "dev", "Ami"]), Err("UnresolvedReference")),
            (json!(["Regions", "prod", "Ami"]), Err("UnresolvedReference")),
            (json!(["Regions", "dev", "Amy"]), Err("UnresolvedReference")),
            (json!(["Regions", {"Ref": "Subnets"}, "Ami"]), Err("InvalidIntrinsic")),
            (json!(["Regions", {"Ref": "Password"}, "Ami"]), Err("InvalidIntrinsic")),
            (json!(["Regions", "dev"]), Err("InvalidIntrinsic")),
            (json!(["Regions", "dev", "Amy", {"DefaultValue": "x"}]), Ok(json!("x"))),
            (json!(["Regions", "dev", "Ami", {"DefaultValue": "x"}]), Ok(json!("ami-2"))),
            (json!(["None", "dev", "Ami", {"DefaultValue": ["l"]}]), Ok(json!(["l"]))),
            (json!(["Regions", "dev", "Amy", {"DefaultValue": {"Ref": "Env"}}]), Ok(json!("dev"))),
            (
                json!(["Regions", "dev", "Amy", {"DefaultValue": {"Ref": "NewBucket"}}]),
                Err("known after `NewBucket`"),
            ),
            (json!(["Regions", "dev", "Amy", {"Default": "x"}]), Err("InvalidIntrinsic")),
            (json!(["Regions", "dev", "Amy", "x"]), Err("InvalidIntrinsic")),
        ];
        for (argument, expected) in table {
            let expression = json!({ "Fn::FindInMap": argument });
            assert_eq!(stack.stored(&expression), expected.map_err(str::to_owned), "{expression}");
        }
        let error = stack.evaluate(&json!({"Fn::FindInMap": ["Regions", "dev", "Amy"]})).unwrap_err();
        assert_eq!(error.message(), "mapping `Regions` has no key `Amy` under `dev`");
        assert_eq!(error.hint_text(), Some("did you mean `Ami`?"));
    }
}
