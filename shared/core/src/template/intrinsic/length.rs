//! `{"Fn::Length": list}`: how many elements a list has.
//!
//! Source: AWS CloudFormation User Guide, "`Fn::Length`" (language extensions).

use serde_json::Value;

use super::{Evaluate, Function};
use crate::error::Result;
use crate::template::Scope;
use crate::template::evaluate::{eval, kind};
use crate::template::path::Path;
use crate::template::survey::Survey;
use crate::value::Node;

pub(super) static FUNCTION: Function =
    Function { name: "Fn::Length", takes: "a list", evaluate: Evaluate::Value(evaluate), survey };

fn evaluate(argument: &Value, scope: &Scope<'_>, at: &Path<'_>) -> Result<Node> {
    match eval(argument, scope, at)? {
        // What an element is does not matter, only that it is there.
        Node::List(items) => Ok(Node::Number(items.len().into())),
        Node::Unknown(reason) => Ok(Node::Unknown(reason)),
        other => Err(FUNCTION.wrong(&format!("counts the elements of a list, not of {}", kind(&other)), at)),
    }
}

fn survey<'t>(argument: &'t Value, survey: &mut Survey<'t>, at: &Path<'_>) {
    survey.value(argument, at);
}

#[cfg(test)]
mod tests {
    use super::super::super::testing::sample;
    use serde_json::json;

    #[test]
    fn lengths() {
        let stack = sample();
        let table = [
            (json!(["a", "b"]), Ok(json!(2))),
            (json!([]), Ok(json!(0))),
            (json!({"Ref": "Subnets"}), Ok(json!(3))),
            (json!({"Fn::Split": [",", "a,b,c,d"]}), Ok(json!(4))),
            (json!([{"Ref": "AWS::NoValue"}, "a"]), Ok(json!(1))),
            (json!(["a", {"Ref": "NewBucket"}]), Ok(json!(2))),
            (json!([{"k": 1}]), Ok(json!(1))),
            (json!({"Fn::GetAtt": "NewBucket.List2"}), Err("known after `NewBucket.List2`")),
            (json!("abc"), Err("InvalidIntrinsic")),
            (json!({"Ref": "Env"}), Err("InvalidIntrinsic")),
            (json!({"k": 1}), Err("InvalidIntrinsic")),
        ];
        for (argument, expected) in table {
            let expression = json!({ "Fn::Length": argument });
            assert_eq!(stack.stored(&expression), expected.map_err(str::to_owned), "{expression}");
        }
    }
}
