//! `{"Fn::Base64": text}`: the text in Base64.
//!
//! Source: AWS CloudFormation User Guide, "`Fn::Base64`".

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use super::{Evaluate, Function};
use crate::error::{Code, Error, Result};
use crate::template::Scope;
use crate::template::evaluate::{eval, kind};
use crate::template::path::Path;
use crate::template::survey::Survey;
use crate::value::Node;

pub(super) static FUNCTION: Function =
    Function { name: "Fn::Base64", takes: "a text", evaluate: Evaluate::Value(evaluate), survey };

fn evaluate(argument: &Value, scope: &Scope<'_>, at: &Path<'_>) -> Result<Node> {
    let node = eval(argument, scope, at)?;
    let Some(text) = node.scalar_text() else {
        return Err(FUNCTION.wrong(&format!("encodes a string, not {}", kind(&node)), at));
    };
    if let Some(reason) = text.unknown() {
        return Ok(Node::Unknown(reason.clone()));
    }
    match text.as_plain() {
        Some(plain) => Ok(Node::text(STANDARD.encode(plain))),
        // Encoded, a token could no longer be told from its neighbours, and the secret would rest as it is.
        None => Err(Error::new(
            Code::UnsupportedIntrinsic,
            "`Fn::Base64` of a text that holds a secret is not supported by this release",
        )
        .hint("let the program read the secret itself when it starts")
        .detail("fragment", FUNCTION.name)
        .place(&at.place())),
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
    fn encodings() {
        let stack = sample();
        let table = [
            (json!("ä?>"), Ok(json!("w6Q/Pg=="))),
            (json!(""), Ok(json!(""))),
            (json!({"Fn::Sub": "${Env}"}), Ok(json!("ZGV2"))),
            (json!(1), Ok(json!("MQ=="))),
            (json!({"Fn::Sub": "x ${NewBucket}"}), Err("known after `NewBucket`")),
            (json!({"Ref": "Password"}), Err("UnsupportedIntrinsic")),
            (json!({"Ref": "Subnets"}), Err("InvalidIntrinsic")),
            (json!(["a"]), Err("InvalidIntrinsic")),
        ];
        for (argument, expected) in table {
            let expression = json!({ "Fn::Base64": argument });
            assert_eq!(stack.stored(&expression), expected.map_err(str::to_owned), "{expression}");
        }
    }
}
