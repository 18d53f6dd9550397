//! `{"Fn::And": [condition, …]}`: whether all conditions hold.
//!
//! Two to ten conditions. Source: AWS CloudFormation User Guide, "Condition functions".

use serde_json::Value;

use super::{Evaluate, Function};
use crate::error::Result;
use crate::template::conditions::Truth;
use crate::template::path::Path;
use crate::template::survey::Survey;

pub(super) static FUNCTION: Function = Function {
    name: "Fn::And",
    takes: "2 to 10 conditions",
    evaluate: Evaluate::Condition(evaluate),
    survey,
};

/// Two to ten conditions; also of `Fn::Or`.
pub(super) fn several<'v>(function: &Function, argument: &'v Value, at: &Path<'_>) -> Result<&'v [Value]> {
    argument
        .as_array()
        .map(Vec::as_slice)
        .filter(|items| (2..=10).contains(&items.len()))
        .ok_or_else(|| function.malformed(argument, at))
}

/// Looks at each of several conditions.
pub(super) fn survey_several<'t>(
    function: &Function,
    argument: &'t Value,
    survey: &mut Survey<'t>,
    at: &Path<'_>,
) {
    match several(function, argument, at) {
        Ok(items) => {
            for (index, item) in items.iter().enumerate() {
                survey.condition(item, &at.index(index));
            }
        }
        Err(error) => survey.errors.push(error),
    }
}

fn evaluate(argument: &Value, truth: &mut Truth<'_>, at: &Path<'_>) -> Result<bool> {
    // Each is decided, so that what is wrong with one does not depend on the others.
    let mut all = true;
    for (index, item) in several(&FUNCTION, argument, at)?.iter().enumerate() {
        all &= truth.decide(item, &at.index(index))?;
    }
    Ok(all)
}

fn survey<'t>(argument: &'t Value, survey: &mut Survey<'t>, at: &Path<'_>) {
    survey_several(&FUNCTION, argument, survey, at);
}

#[cfg(test)]
mod tests {
    use super::super::super::testing::Stack;
    use serde_json::json;

    #[test]
    fn conjunctions() {
        let (yes, no) = (json!({"Fn::Equals": ["a", "a"]}), json!({"Fn::Equals": ["a", "b"]}));
        for (argument, expected) in [
            (json!([yes, yes]), true),
            (json!([yes, no]), false),
            (json!([yes, {"Fn::And": [yes, yes, yes]}]), true),
        ] {
            let stack = Stack::new(json!({"Conditions": {"C": {"Fn::And": argument}}}));
            assert_eq!(stack.conditions["C"], expected, "{argument}");
        }
    }
}
