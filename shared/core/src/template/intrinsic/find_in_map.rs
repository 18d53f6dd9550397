//! `{"Fn::FindInMap": [mapping, first key, second key]}`: a value of the section `Mappings`.
//!
//! Each of the three may be a function. Source: AWS CloudFormation User Guide, "`Fn::FindInMap`".

use serde_json::Value;

use super::{Evaluate, Function, UNTIL_LATER};
use crate::error::{Code, Error, Result};
use crate::template::evaluate::eval;
use crate::template::path::Path;
use crate::template::survey::Survey;
use crate::template::{Scope, mappings};
use crate::value::{Node, Text};

pub(super) static FUNCTION: Function = Function {
    name: "Fn::FindInMap",
    takes: "`[mapping, first key, second key]`",
    evaluate: Evaluate::Value(evaluate),
    survey,
};

fn arguments<'v>(argument: &'v Value, at: &Path<'_>) -> Result<&'v [Value; 3]> {
    if argument.as_array().is_some_and(|items| items.len() == 4) {
        let message = "`Fn::FindInMap` with a default value is not supported by this release";
        return Err(Error::new(Code::UnsupportedIntrinsic, message)
            .hint(UNTIL_LATER)
            .detail("fragment", FUNCTION.name)
            .place(&at.place()));
    }
    FUNCTION.arguments(argument, at)
}

fn evaluate(argument: &Value, scope: &Scope<'_>, at: &Path<'_>) -> Result<Node> {
    let mut keys: [String; 3] = Default::default();
    for (index, (key, expression)) in keys.iter_mut().zip(arguments(argument, at)?).enumerate() {
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
    let value = mappings::find(scope.template, map, top, second, at)?;
    // Values of mappings are constants: only their form is looked at.
    eval(value, scope, at)
}

fn survey<'t>(argument: &'t Value, survey: &mut Survey<'t>, at: &Path<'_>) {
    match arguments(argument, at) {
        Ok(arguments) => survey.items(arguments, at),
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
            (json!(["Regions", "dev", "Amy", {"DefaultValue": "x"}]), Err("UnsupportedIntrinsic")),
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
