//! `{"Fn::Not": [condition]}`: whether the condition does not hold.
//!
//! Source: AWS CloudFormation User Guide, "Condition functions".

use serde_json::Value;

use super::{Evaluate, Function};
use crate::error::Result;
use crate::template::conditions::Truth;
use crate::template::path::Path;
use crate::template::survey::Survey;

pub(super) static FUNCTION: Function =
    Function { name: "Fn::Not", takes: "`[condition]`", evaluate: Evaluate::Condition(evaluate), survey };

fn evaluate(argument: &Value, truth: &mut Truth<'_>, at: &Path<'_>) -> Result<bool> {
    let [condition] = FUNCTION.arguments(argument, at)?;
    Ok(!truth.decide(condition, &at.index(0))?)
}

fn survey<'t>(argument: &'t Value, survey: &mut Survey<'t>, at: &Path<'_>) {
    match FUNCTION.arguments::<1>(argument, at) {
        Ok([condition]) => survey.condition(condition, &at.index(0)),
        Err(error) => survey.errors.push(error),
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::testing::Stack;
    use serde_json::json;

    #[test]
    fn negations() {
        let stack = Stack::new(json!({"Conditions": {
            "No": {"Fn::Not": [{"Fn::Equals": ["a", "a"]}]},
            "Yes": {"Fn::Not": [{"Fn::Not": [{"Fn::Equals": ["a", "a"]}]}]},
        }}));
        assert_eq!((stack.conditions["No"], stack.conditions["Yes"]), (false, true));
    }
}
