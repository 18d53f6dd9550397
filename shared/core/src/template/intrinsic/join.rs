//! `{"Fn::Join": [delimiter, [value, …]]}`: values joined to one text.
//!
//! The values may be a function that gives a list. Source: AWS CloudFormation User Guide, "`Fn::Join`".

use serde_json::Value;

use super::{Evaluate, Function, call};
use crate::error::Result;
use crate::template::Scope;
use crate::template::evaluate::{eval, kind, scalar, write};
use crate::template::path::Path;
use crate::template::survey::Survey;
use crate::template::text::Writer;
use crate::value::{Node, Piece, Text};

pub(super) static FUNCTION: Function = Function {
    name: "Fn::Join",
    takes: "`[delimiter, [value, …]]`",
    evaluate: Evaluate::Text(evaluate),
    survey,
};

/// A literal delimiter, and a list or a function.
fn arguments<'v>(argument: &'v Value, at: &Path<'_>) -> Result<(&'v str, &'v Value)> {
    let [delimiter, values] = FUNCTION.arguments(argument, at)?;
    match delimiter.as_str() {
        Some(delimiter) if values.is_array() || values.as_object().and_then(call).is_some() => {
            Ok((delimiter, values))
        }
        Some(_) => Err(FUNCTION.malformed(argument, at)),
        None => Err(FUNCTION.wrong("needs a literal string as its delimiter", at)),
    }
}

fn evaluate(argument: &Value, scope: &Scope<'_>, at: &Path<'_>, writer: &mut Writer) -> Result<()> {
    let (delimiter, values) = arguments(argument, at)?;
    let at = &at.index(1);
    let mut before = "";
    if let Value::Array(items) = values {
        for (index, item) in items.iter().enumerate() {
            if write(item, scope, &at.index(index), before, writer)? {
                before = delimiter;
            }
        }
        return Ok(());
    }
    match eval(values, scope, at)? {
        Node::List(items) => {
            for item in items.iter().filter(|item| **item != Node::NoValue) {
                writer.template(before);
                writer.value(&scalar(item, at)?);
                before = delimiter;
            }
        }
        Node::NoValue => {}
        Node::Unknown(reason) => {
            let mut unknown = Text::default();
            unknown.push(Piece::Unknown(reason));
            writer.value(&unknown);
        }
        other => return Err(FUNCTION.wrong(&format!("joins a list, not {}", kind(&other)), at)),
    }
    Ok(())
}

fn survey<'t>(argument: &'t Value, survey: &mut Survey<'t>, at: &Path<'_>) {
    match arguments(argument, at) {
        Ok((_, values)) => survey.value(values, &at.index(1)),
        Err(error) => survey.errors.push(error),
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::testing::sample;
    use crate::value::Piece;
    use serde_json::json;

    #[test]
    fn joins() {
        let stack = sample();
        let none = json!({"Ref": "AWS::NoValue"});
        let table = [
            (json!(["-", ["a", "b"]]), Ok(json!("a-b"))),
            (json!(["", []]), Ok(json!(""))),
            (json!([",", ["a", 1, true, {"Ref": "Count"}]]), Ok(json!("a,1,true,2"))),
            (json!([",", [none, "a", none, "b", none]]), Ok(json!("a,b"))),
            (json!([",", [{"Fn::If": ["IsProd", "x", none]}, "a"]]), Ok(json!("a"))),
            (json!([",", {"Ref": "Subnets"}]), Ok(json!("a,b,c"))),
            (json!([",", {"Ref": "AWS::NotificationARNs"}]), Ok(json!("arn:1,arn:2"))),
            (json!([",", {"Fn::GetAtt": ["Topic", "List"]}]), Ok(json!("one,two"))),
            (json!([",", {"Fn::Split": ["|", "a|b"]}]), Ok(json!("a,b"))),
            (json!([",", {"Fn::FindInMap": ["Regions", {"Ref": "AWS::Region"}, "Zones"]}]), Ok(json!("a,b"))),
            (json!(["-", ["a", {"Fn::Join": ["+", ["b", {"Ref": "Topic"}]]}]]), Ok(json!("a-b+id-of-Topic"))),
            (json!(["-", ["a", {"Ref": "NewBucket"}]]), Err("known after `NewBucket`")),
            (json!(["-", {"Fn::Split": [",", {"Ref": "NewBucket"}]}]), Err("known after `NewBucket`")),
            (json!(["-", ["a", {"Ref": "Subnets"}]]), Err("InvalidIntrinsic")),
            (json!(["-", ["a", null]]), Err("InvalidIntrinsic")),
            (json!(["-", ["a", ["b"]]]), Err("InvalidIntrinsic")),
            (json!(["-", {"Ref": "Env"}]), Err("InvalidIntrinsic")),
            (json!(["-", "a"]), Err("InvalidIntrinsic")),
            (json!([{"Ref": "Env"}, ["a"]]), Err("InvalidIntrinsic")),
            (json!(["-"]), Err("InvalidIntrinsic")),
            (json!("-"), Err("InvalidIntrinsic")),
            (json!(["-", [{"Ref": "Off"}]]), Err("UnresolvedReference")),
        ];
        for (argument, expected) in table {
            let expression = json!({ "Fn::Join": argument });
            assert_eq!(stack.stored(&expression), expected.map_err(str::to_owned), "{expression}");
        }
    }

    #[test]
    fn known_parts_stay_beside_unknown_ones() {
        let expression = json!({"Fn::Join": ["/", ["arn", {"Ref": "NewBucket"}, {"Ref": "Password"}, "x"]]});
        let crate::value::Node::Text(text) = sample().evaluate(&expression).unwrap() else { panic!("text") };
        let shapes: Vec<_> = text
            .pieces()
            .iter()
            .map(|piece| match piece {
                Piece::Plain(text) => text.clone(),
                Piece::Secret(secret) => secret.token.clone(),
                Piece::Unknown(reason) => reason.to_string(),
            })
            .collect();
        assert_eq!(shapes, ["arn/", "known after `NewBucket`", "/", "{{resolve:secretsmanager:db}}", "/x"]);
    }
}
