//! `{"Fn::Or": [condition, …]}`: whether one of the conditions holds.
//!
//! Two to ten conditions. Source: AWS CloudFormation User Guide, "Condition functions".

use serde_json::Value;

use super::and::{several, survey_several};
use super::{Evaluate, Function};
use crate::error::Result;
use crate::template::conditions::Truth;
use crate::template::path::Path;
use crate::template::survey::Survey;

pub(super) static FUNCTION: Function =
    Function { name: "Fn::Or", takes: "2 to 10 conditions", evaluate: Evaluate::Condition(evaluate), survey };

fn evaluate(argument: &Value, truth: &mut Truth<'_>, at: &Path<'_>) -> Result<bool> {
    let mut any = false;
    for (index, item) in several(&FUNCTION, argument, at)?.iter().enumerate() {
        any |= truth.decide(item, &at.index(index))?;
    }
    Ok(any)
}

fn survey<'t>(argument: &'t Value, survey: &mut Survey<'t>, at: &Path<'_>) {
    survey_several(&FUNCTION, argument, survey, at);
}

#[cfg(test)]
mod tests {
    use super::super::super::testing::Stack;
    use serde_json::json;

    #[test]
    fn disjunctions() {
        let (yes, no) = (json!({"Fn::Equals": ["a", "a"]}), json!({"Fn::Equals": ["a", "b"]}));
        for (argument, expected) in [
            (json!([no, no]), false),
            (json!([no, yes]), true),
            (json!([no, {"Fn::Or": [no, {"Condition": "Yes"}]}]), true),
        ] {
            let stack = Stack::new(json!({"Conditions": {"C": {"Fn::Or": argument}, "Yes": yes}}));
            assert_eq!(stack.conditions["C"], expected, "{argument}");
        }
    }
}
