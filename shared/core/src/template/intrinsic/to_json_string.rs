//! `{"Fn::ToJsonString": object or list}`: its JSON as a text, in the order of the template, without white space.
//!
//! Source: AWS CloudFormation User Guide, "`Fn::ToJsonString`" (language extensions).

use serde_json::Value;

use super::{Evaluate, Function};
use crate::error::Result;
use crate::template::Scope;
use crate::template::evaluate::{eval, kind};
use crate::template::path::Path;
use crate::template::survey::Survey;
use crate::value::{Node, Piece, Text};

pub(super) static FUNCTION: Function = Function {
    name: "Fn::ToJsonString",
    takes: "an object or a list",
    evaluate: Evaluate::Value(evaluate),
    survey,
};

fn evaluate(argument: &Value, scope: &Scope<'_>, at: &Path<'_>) -> Result<Node> {
    let node = eval(argument, scope, at)?;
    match &node {
        Node::Unknown(reason) => Ok(Node::Unknown(reason.clone())),
        Node::List(_) | Node::Map(_) => {
            let mut text = Text::default();
            write(&node, &mut text);
            Ok(Node::Text(text))
        }
        other => {
            Err(FUNCTION.wrong(&format!("makes JSON of an object or a list, not of {}", kind(other)), at))
        }
    }
}

/// Appends JSON. A part that is not known yet stays one, and a secret stays its token, as CloudFormation leaves a dynamic
/// reference in the text.
fn write(node: &Node, out: &mut Text) {
    let plain = |out: &mut Text, text: String| out.push(Piece::Plain(text));
    match node {
        Node::Null | Node::NoValue => plain(out, "null".to_owned()),
        Node::Bool(flag) => plain(out, flag.to_string()),
        Node::Number(number) => plain(out, number.to_string()),
        Node::Unknown(reason) => out.push(Piece::Unknown(reason.clone())),
        Node::Text(text) => {
            plain(out, "\"".to_owned());
            for piece in text.pieces() {
                match piece {
                    Piece::Plain(text) => plain(out, escaped(text)),
                    other => out.push(other.clone()),
                }
            }
            plain(out, "\"".to_owned());
        }
        Node::List(items) => {
            let items = items.iter().filter(|item| **item != Node::NoValue);
            write_all(out, ('[', ']'), items, write);
        }
        Node::Map(map) => {
            let fields = map.iter().filter(|(_, item)| **item != Node::NoValue);
            write_all(out, ('{', '}'), fields, |(key, item), out| {
                plain(out, format!("\"{}\":", escaped(key)));
                write(item, out);
            });
        }
    }
}

fn write_all<T>(
    out: &mut Text,
    (open, close): (char, char),
    items: impl Iterator<Item = T>,
    mut one: impl FnMut(T, &mut Text),
) {
    out.push(Piece::Plain(open.to_string()));
    for (index, item) in items.enumerate() {
        if index > 0 {
            out.push(Piece::Plain(",".to_owned()));
        }
        one(item, out);
    }
    out.push(Piece::Plain(close.to_string()));
}

/// What stands between the quotes of a JSON string.
fn escaped(text: &str) -> String {
    let quoted = Value::String(text.to_owned()).to_string();
    quoted.get(1..quoted.len() - 1).unwrap_or_default().to_owned()
}

fn survey<'t>(argument: &'t Value, survey: &mut Survey<'t>, at: &Path<'_>) {
    survey.value(argument, at);
}

#[cfg(test)]
mod tests {
    use super::super::super::testing::sample;
    use serde_json::json;

    #[test]
    fn texts() {
        let stack = sample();
        let table = [
            (json!({"b": 1, "a": [true, null, "x"]}), Ok(r#"{"b":1,"a":[true,null,"x"]}"#)),
            (json!([]), Ok("[]")),
            (json!({}), Ok("{}")),
            (json!({"k\"": "a\"b\\\n"}), Ok(r#"{"k\"":"a\"b\\\n"}"#)),
            (
                json!({"env": {"Ref": "Env"}, "s": {"Fn::Sub": "${Env}-x"}}),
                Ok(r#"{"env":"dev","s":"dev-x"}"#),
            ),
            (json!({"gone": {"Ref": "AWS::NoValue"}, "l": [{"Ref": "AWS::NoValue"}, 1]}), Ok(r#"{"l":[1]}"#)),
            (json!({"Ref": "Subnets"}), Ok(r#"["a","b","c"]"#)),
            (json!({"n": {"Ref": "NewBucket"}}), Err("known after `NewBucket`")),
            (json!("text"), Err("InvalidIntrinsic")),
            (json!({"Ref": "Env"}), Err("InvalidIntrinsic")),
            (json!(3), Err("InvalidIntrinsic")),
        ];
        for (argument, expected) in table {
            let expression = json!({ "Fn::ToJsonString": argument });
            let expected = expected.map(|text| json!(text)).map_err(str::to_owned);
            assert_eq!(stack.stored(&expression), expected, "{expression}");
        }
    }
}
