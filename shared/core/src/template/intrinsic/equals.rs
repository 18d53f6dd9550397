//! `{"Fn::Equals": [left, right]}`: whether two values are the same text.
//!
//! Secrets are compared as their tokens. Source: AWS CloudFormation User Guide, "Condition functions".

use serde_json::Value;

use super::{Evaluate, Function};
use crate::error::{Code, Error, Result};
use crate::template::conditions::Truth;
use crate::template::evaluate::{eval, scalar};
use crate::template::path::Path;
use crate::template::survey::Survey;

pub(super) static FUNCTION: Function = Function {
    name: "Fn::Equals",
    takes: "`[left, right]`",
    evaluate: Evaluate::Condition(evaluate),
    survey,
};

fn evaluate(argument: &Value, truth: &mut Truth<'_>, at: &Path<'_>) -> Result<bool> {
    let [left, right] = FUNCTION.arguments(argument, at)?;
    let side = |expression: &Value, index: usize| {
        let at = at.index(index);
        let text = scalar(&eval(expression, &truth.scope, &at)?, &at)?;
        match text.unknown() {
            None => Ok(text),
            Some(reason) => {
                let message = format!("a condition must be known before the deploy; this value is {reason}");
                Err(Error::new(Code::UnresolvedReference, message).place(&at.place()))
            }
        }
    };
    Ok(side(left, 0)?.stored() == side(right, 1)?.stored())
}

fn survey<'t>(argument: &'t Value, survey: &mut Survey<'t>, at: &Path<'_>) {
    match FUNCTION.arguments::<2>(argument, at) {
        Ok(arguments) => survey.items(arguments, at),
        Err(error) => survey.errors.push(error),
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::testing::Stack;
    use serde_json::json;

    #[test]
    fn comparisons() {
        let table = [
            (json!(["a", "a"]), true),
            (json!(["a", "A"]), false),
            (json!([true, "true"]), true),
            (json!([1, "1"]), true),
            (json!([{"Ref": "Password"}, ""]), false),
            (json!([{"Fn::Select": [0, {"Fn::Split": ["-", {"Ref": "AWS::Region"}]}]}, "eu"]), true),
        ];
        for (argument, expected) in table {
            let stack = Stack::new(json!({
                "Parameters": {"Password": {"Type": "String", "NoEcho": true, "Default": "{{resolve:ssm:/p}}"}},
                "Conditions": {"C": {"Fn::Equals": argument}},
            }));
            assert_eq!(stack.conditions["C"], expected, "{argument}");
        }
    }
}
