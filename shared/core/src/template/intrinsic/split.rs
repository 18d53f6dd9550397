//! `{"Fn::Split": [delimiter, text]}`: the list of what stands between delimiters.
//!
//! A secret is never cut: only its neighbours are. Source: AWS CloudFormation User Guide, "`Fn::Split`".

use serde_json::Value;

use super::{Evaluate, Function};
use crate::error::Result;
use crate::template::Scope;
use crate::template::evaluate::{eval, kind};
use crate::template::path::Path;
use crate::template::survey::Survey;
use crate::value::{Node, Piece, Text};

pub(super) static FUNCTION: Function =
    Function { name: "Fn::Split", takes: "`[delimiter, text]`", evaluate: Evaluate::Value(evaluate), survey };

fn arguments<'v>(argument: &'v Value, at: &Path<'_>) -> Result<(&'v str, &'v Value)> {
    match FUNCTION.arguments(argument, at)? {
        [Value::String(delimiter), text] if !delimiter.is_empty() => Ok((delimiter, text)),
        _ => Err(FUNCTION.wrong("needs a literal string that is not empty as its delimiter", at)),
    }
}

fn evaluate(argument: &Value, scope: &Scope<'_>, at: &Path<'_>) -> Result<Node> {
    let (delimiter, expression) = arguments(argument, at)?;
    let node = eval(expression, scope, &at.index(1))?;
    if let Some(reason) = node.unknown() {
        return Ok(Node::Unknown(reason.clone()));
    }
    let Some(text) = node.scalar_text() else {
        return Err(FUNCTION.wrong(&format!("splits a string, not {}", kind(&node)), at));
    };
    let mut parts = Vec::new();
    let mut current = Text::default();
    for piece in text.pieces() {
        match piece {
            Piece::Plain(plain) => {
                for (index, part) in plain.split(delimiter).enumerate() {
                    if index > 0 {
                        parts.push(Node::Text(std::mem::take(&mut current)));
                    }
                    current.push(Piece::Plain(part.to_owned()));
                }
            }
            other => current.push(other.clone()),
        }
    }
    parts.push(Node::Text(current));
    Ok(Node::List(parts))
}

fn survey<'t>(argument: &'t Value, survey: &mut Survey<'t>, at: &Path<'_>) {
    match arguments(argument, at) {
        Ok((_, text)) => survey.value(text, &at.index(1)),
        Err(error) => survey.errors.push(error),
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::testing::sample;
    use serde_json::json;

    #[test]
    fn splits() {
        let stack = sample();
        let secret = "{{resolve:secretsmanager:db}}";
        let table = [
            (json!([",", "a,b"]), Ok(json!(["a", "b"]))),
            (json!(["||", "a||b|c||"]), Ok(json!(["a", "b|c", ""]))),
            (json!([",", ""]), Ok(json!([""]))),
            (json!([".", 1.5]), Ok(json!(["1", "5"]))),
            (json!(["-", {"Ref": "AWS::Region"}]), Ok(json!(["eu", "west", "1"]))),
            (json!([":", {"Fn::Sub": "u:${Password}@h:1"}]), Ok(json!(["u", format!("{secret}@h"), "1"]))),
            (json!([":", {"Ref": "Password"}]), Ok(json!([secret]))),
            (json!([":", {"Fn::GetAtt": "NewBucket.Arn"}]), Err("known after `NewBucket.Arn`")),
            (json!([":", {"Fn::Sub": "a:${NewBucket}"}]), Err("known after `NewBucket`")),
            (json!([",", {"Ref": "Subnets"}]), Err("InvalidIntrinsic")),
            (json!(["", "a"]), Err("InvalidIntrinsic")),
            (json!([1, "a"]), Err("InvalidIntrinsic")),
            (json!([","]), Err("InvalidIntrinsic")),
            (json!("a,b"), Err("InvalidIntrinsic")),
        ];
        for (argument, expected) in table {
            let expression = json!({ "Fn::Split": argument });
            assert_eq!(stack.stored(&expression), expected.map_err(str::to_owned), "{expression}");
        }
    }

    #[test]
    fn e17_joined_and_split_a_list_comes_back() {
        let stack = sample();
        for list in [json!(["a", "b"]), json!(["a"])] {
            let expression = json!({"Fn::Split": ["||", {"Fn::Join": ["||", list]}]});
            assert_eq!(stack.stored(&expression), Ok(list));
        }
        let none = json!({"Fn::Split": ["||", {"Fn::Join": ["||", []]}]});
        assert_eq!(stack.stored(&none), Ok(json!([""])), "as CloudFormation has it");
    }
}
