//! `{"Fn::If": [condition, value if true, value if false]}`: one of two values.
//!
//! Only the branch that is taken is evaluated. Source: AWS CloudFormation User Guide, "Condition functions".

use serde_json::Value;

use super::{Evaluate, Function};
use crate::error::Result;
use crate::template::Scope;
use crate::template::evaluate::eval;
use crate::template::path::Path;
use crate::template::survey::{Site, Survey, unknown_condition};
use crate::value::Node;

pub(super) static FUNCTION: Function = Function {
    name: "Fn::If",
    takes: "`[condition, value if true, value if false]`",
    evaluate: Evaluate::Value(evaluate),
    survey,
};

fn arguments<'v>(argument: &'v Value, at: &Path<'_>) -> Result<(&'v str, [&'v Value; 2])> {
    match FUNCTION.arguments(argument, at)? {
        [Value::String(name), yes, no] => Ok((name, [yes, no])),
        _ => Err(FUNCTION.wrong("needs the name of a condition first", at)),
    }
}

fn evaluate(argument: &Value, scope: &Scope<'_>, at: &Path<'_>) -> Result<Node> {
    let (name, [yes, no]) = arguments(argument, at)?;
    match scope.conditions.get(name) {
        Some(true) => eval(yes, scope, &at.index(1)),
        Some(false) => eval(no, scope, &at.index(2)),
        None => Err(unknown_condition(scope.template, name, at)),
    }
}

fn survey<'t>(argument: &'t Value, survey: &mut Survey<'t>, at: &Path<'_>) {
    let (name, [yes, no]) = match arguments(argument, at) {
        Ok(arguments) => arguments,
        Err(error) => return survey.errors.push(error),
    };
    if survey.site() == Site::Condition {
        return survey.errors.push(FUNCTION.wrong("may not stand in the section `Conditions`", at));
    }
    if survey.site() == Site::Literal {
        return survey.errors.push(FUNCTION.wrong("may not stand where a literal is needed", at));
    }
    survey.condition_name(name, &at.index(0));
    let truth = survey.truth(name);
    survey.branch(truth == Some(true), |survey| survey.value(yes, &at.index(1)));
    survey.branch(truth == Some(false), |survey| survey.value(no, &at.index(2)));
}

#[cfg(test)]
mod tests {
    use super::super::super::testing::sample;
    use serde_json::json;

    #[test]
    fn branches() {
        let stack = sample();
        let table = [
            (json!(["IsDev", "a", {"Ref": "Off"}]), Ok(json!("a"))),
            (json!(["IsProd", {"Ref": "Off"}, ["b"]]), Ok(json!(["b"]))),
            (json!(["IsDev", {"Fn::If": ["IsProd", 1, 2]}, 3]), Ok(json!(2))),
            (json!(["IsDev", {"Ref": "Off"}, 1]), Err("UnresolvedReference")),
            (json!(["Nope", 1, 2]), Err("UnresolvedReference")),
            (json!([{"Condition": "IsDev"}, 1, 2]), Err("InvalidIntrinsic")),
            (json!(["IsDev", 1]), Err("InvalidIntrinsic")),
            (json!({}), Err("InvalidIntrinsic")),
        ];
        for (argument, expected) in table {
            let expression = json!({ "Fn::If": argument });
            assert_eq!(stack.stored(&expression), expected.map_err(str::to_owned), "{expression}");
        }
    }
}
