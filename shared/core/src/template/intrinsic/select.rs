//! `{"Fn::Select": [index, list]}`: one element of a list, counted from 0.
//!
//! Source: AWS CloudFormation User Guide, "`Fn::Select`".

use serde_json::Value;

use super::{Evaluate, Function};
use crate::error::Result;
use crate::template::Scope;
use crate::template::evaluate::{eval, kind};
use crate::template::path::Path;
use crate::template::survey::Survey;
use crate::value::Node;

pub(super) static FUNCTION: Function = Function {
    name: "Fn::Select",
    takes: "`[index, [value, …]]`",
    evaluate: Evaluate::Value(evaluate),
    survey,
};

fn evaluate(argument: &Value, scope: &Scope<'_>, at: &Path<'_>) -> Result<Node> {
    let [index, list] = FUNCTION.arguments(argument, at)?;
    let index = eval(index, scope, &at.index(0))?;
    let list = eval(list, scope, &at.index(1))?;
    if let Some(reason) = index.unknown() {
        return Ok(Node::Unknown(reason.clone()));
    }
    let number = match &index {
        Node::Number(number) => number.as_u64(),
        other => other.as_plain().and_then(|text| text.trim().parse().ok()),
    };
    let position = number
        .and_then(|number| usize::try_from(number).ok())
        .ok_or_else(|| FUNCTION.wrong("needs a whole number from 0 as its index", at))?;
    let mut items = match list {
        Node::List(items) => items,
        Node::Unknown(reason) => return Ok(Node::Unknown(reason)),
        other => return Err(FUNCTION.wrong(&format!("selects from a list, not {}", kind(&other)), at)),
    };
    match items.get(position) {
        Some(Node::Null) => Err(FUNCTION.wrong(&format!("selects element {position}, which is null"), at)),
        Some(_) => Ok(items.swap_remove(position)),
        None => {
            let elements =
                if items.len() == 1 { "1 element".to_owned() } else { format!("{} elements", items.len()) };
            Err(FUNCTION
                .wrong(&format!("selects element {position} of a list of {elements}, counted from 0"), at))
        }
    }
}

fn survey<'t>(argument: &'t Value, survey: &mut Survey<'t>, at: &Path<'_>) {
    match FUNCTION.arguments::<2>(argument, at) {
        Ok(arguments) => survey.items(arguments, at),
        Err(error) => survey.errors.push(error),
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::testing::sample;
    use serde_json::json;

    #[test]
    fn selections() {
        let stack = sample();
        let table = [
            (json!([1, ["a", "b"]]), Ok(json!("b"))),
            (json!(["0", ["a", "b"]]), Ok(json!("a"))),
            (json!([{"Ref": "Count"}, {"Ref": "Subnets"}]), Ok(json!("c"))),
            (json!([0, {"Fn::Split": [",", "x,y"]}]), Ok(json!("x"))),
            (json!([1, {"Fn::GetAtt": ["Topic", "List"]}]), Ok(json!("two"))),
            (json!([0, [{"Ref": "AWS::NoValue"}, "a"]]), Ok(json!("a"))),
            (json!([0, ["a", {"Ref": "NewBucket"}]]), Ok(json!("a"))),
            (json!([0, [{"k": 1}]]), Ok(json!({"k": 1}))),
            (json!([1, ["a", {"Ref": "NewBucket"}]]), Err("known after `NewBucket`")),
            (json!([7, {"Fn::GetAtt": "NewBucket.List2"}]), Err("known after `NewBucket.List2`")),
            (json!([{"Ref": "NewBucket"}, ["a"]]), Err("known after `NewBucket`")),
            (json!([2, ["a", "b"]]), Err("InvalidIntrinsic")),
            (json!([0, []]), Err("InvalidIntrinsic")),
            (json!([-1, ["a"]]), Err("InvalidIntrinsic")),
            (json!(["x", ["a"]]), Err("InvalidIntrinsic")),
            (json!([0.5, ["a"]]), Err("InvalidIntrinsic")),
            (json!([0, [null]]), Err("InvalidIntrinsic")),
            (json!([0, "a"]), Err("InvalidIntrinsic")),
            (json!([0, {"Ref": "Env"}]), Err("InvalidIntrinsic")),
            (json!([0]), Err("InvalidIntrinsic")),
        ];
        for (argument, expected) in table {
            let expression = json!({ "Fn::Select": argument });
            assert_eq!(stack.stored(&expression), expected.map_err(str::to_owned), "{expression}");
        }
        let error = stack.evaluate(&json!({"Fn::Select": [2, ["a"]]})).unwrap_err();
        assert_eq!(error.message(), "`Fn::Select` selects element 2 of a list of 1 element, counted from 0");
    }
}
