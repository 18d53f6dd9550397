//! `{"Condition": name}`, inside conditions: whether the condition of that name holds.
//!
//! Everywhere else a map with the key `Condition` is a map (rule T5).
//! Source: AWS CloudFormation User Guide, "Condition functions".

use serde_json::Value;

use super::{Evaluate, Function};
use crate::error::Result;
use crate::template::conditions::Truth;
use crate::template::path::Path;
use crate::template::survey::Survey;

pub(super) static FUNCTION: Function = Function {
    name: "Condition",
    takes: "the name of a condition",
    evaluate: Evaluate::Condition(evaluate),
    survey,
};

fn evaluate(argument: &Value, truth: &mut Truth<'_>, at: &Path<'_>) -> Result<bool> {
    let name = argument.as_str().ok_or_else(|| FUNCTION.malformed(argument, at))?;
    truth.named(name, at)
}

fn survey<'t>(argument: &'t Value, survey: &mut Survey<'t>, at: &Path<'_>) {
    match argument.as_str() {
        Some(name) => survey.condition_name(name, at),
        None => survey.errors.push(FUNCTION.malformed(argument, at)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::testing::Stack;
    use serde_json::json;

    #[test]
    fn t5_a_condition_by_name() {
        let stack = Stack::new(json!({
            "Conditions": {"A": {"Condition": "B"}, "B": {"Fn::Equals": ["a", "a"]}},
            "Resources": {"R": {"Properties": {"Condition": "Nobody", "Deep": {"Condition": "Nobody"}}}},
        }));
        assert!(stack.conditions["A"]);
        assert_eq!(stack.check(), Ok(()), "a property called `Condition` is no condition");
    }
}
