//! The functions of the template language: one file each, and one row in [`FUNCTIONS`].

mod and;
mod base64;
mod cidr;
mod condition;
mod equals;
mod find_in_map;
mod get_att;
pub(super) mod get_stack_output;
mod if_;
pub(super) mod import_value;
mod join;
mod length;
mod not;
mod or;
mod ref_;
mod select;
mod split;
mod sub;
mod to_json_string;

use serde_json::{Map, Value};

use super::Scope;
use super::conditions::Truth;
use super::parse::kind;
use super::path::Path;
use super::survey::Survey;
use super::text::Writer;
use crate::error::{Code, Error, Result, nearest};
use crate::value::Node;

/// A function: how to evaluate it, and how to look at it without doing so.
pub(super) struct Function {
    /// The key that calls it.
    pub name: &'static str,
    /// What it takes, for errors.
    pub takes: &'static str,
    pub evaluate: Evaluate,
    /// Reports malformed arguments and names, and walks the arguments.
    pub survey: for<'t> fn(&'t Value, &mut Survey<'t>, &Path<'_>),
}

pub(super) enum Evaluate {
    /// Gives a value.
    Value(fn(&Value, &Scope<'_>, &Path<'_>) -> Result<Node>),
    /// Gives text, written part by part so that a token may span parts.
    Text(fn(&Value, &Scope<'_>, &Path<'_>, &mut Writer) -> Result<()>),
    /// Decides a condition; has no meaning elsewhere.
    Condition(fn(&Value, &mut Truth<'_>, &Path<'_>) -> Result<bool>),
}

static FUNCTIONS: &[&Function] = &[
    &ref_::FUNCTION,
    &get_att::FUNCTION,
    &join::FUNCTION,
    &sub::FUNCTION,
    &if_::FUNCTION,
    &select::FUNCTION,
    &split::FUNCTION,
    &find_in_map::FUNCTION,
    &import_value::FUNCTION,
    &get_stack_output::FUNCTION,
    &base64::FUNCTION,
    &cidr::FUNCTION,
    &length::FUNCTION,
    &to_json_string::FUNCTION,
    &equals::FUNCTION,
    &and::FUNCTION,
    &or::FUNCTION,
    &not::FUNCTION,
    &condition::FUNCTION,
];

/// The function of that name.
pub(super) fn find(name: &str) -> Option<&'static Function> {
    FUNCTIONS.iter().copied().find(|function| function.name == name)
}

/// A function's name and argument as they stand in a template.
pub(super) struct Call<'a> {
    pub name: &'a str,
    pub argument: &'a Value,
}

/// A map with exactly one key `Ref` or `Fn::…` calls a function (rule T5).
pub(super) fn call(map: &Map<String, Value>) -> Option<Call<'_>> {
    let mut entries = map.iter();
    let (name, argument) = entries.next()?;
    let calls = entries.next().is_none() && (name == ref_::FUNCTION.name || name.starts_with("Fn::"));
    calls.then_some(Call { name, argument })
}

/// A call of a condition function; `Condition` is one only here.
pub(super) fn condition_call(expression: &Value) -> Option<(&'static Function, &Value)> {
    let map = expression.as_object().filter(|map| map.len() == 1)?;
    let (name, argument) = map.iter().next()?;
    let function = find(name).filter(|function| matches!(function.evaluate, Evaluate::Condition(_)))?;
    Some((function, argument))
}

impl Function {
    /// The error for arguments of another form.
    fn malformed(&self, argument: &Value, at: &Path<'_>) -> Error {
        let found = match argument {
            Value::Array(items) => format!("a list of {}", items.len()),
            other => kind(other).to_owned(),
        };
        self.wrong(&format!("takes {}, not {found}", self.takes), at)
    }

    /// The error for arguments that cannot be; `what` follows the function's name.
    pub(super) fn wrong(&self, what: &str, at: &Path<'_>) -> Error {
        Error::new(Code::InvalidIntrinsic, format!("`{}` {what}", self.name))
            .detail("fragment", self.name)
            .place(&at.place())
    }

    /// The arguments, if there are exactly that many.
    fn arguments<'v, const N: usize>(&self, argument: &'v Value, at: &Path<'_>) -> Result<&'v [Value; N]> {
        argument
            .as_array()
            .and_then(|items| <&[Value; N]>::try_from(items.as_slice()).ok())
            .ok_or_else(|| self.malformed(argument, at))
    }
}

/// Adds to an error what it lacks of where it is: its place, and the innermost function as its fragment.
pub(super) fn locate(error: Error, name: &str, at: &Path<'_>) -> Error {
    let error = error.place(&at.place());
    if error.details().contains_key("fragment") { error } else { error.detail("fragment", name) }
}

/// The error for a condition function outside of conditions.
pub(super) fn only_in_conditions(name: &str, at: &Path<'_>) -> Error {
    Error::new(Code::InvalidIntrinsic, format!("`{name}` may stand only in the section `Conditions`"))
        .hint("declare a condition with it, and name that in an `Fn::If`")
        .detail("fragment", name)
        .place(&at.place())
}

/// The error for something in the section `Conditions` that decides nothing.
pub(super) fn no_condition(expression: &Value, at: &Path<'_>) -> Error {
    match expression.as_object().and_then(call) {
        Some(Call { name, .. }) if find(name).is_none() => unsupported(name, &at.key(name)),
        Some(Call { name, .. }) => Error::new(Code::InvalidIntrinsic, format!("`{name}` is no condition"))
            .hint("compare it with `Fn::Equals`")
            .detail("fragment", name)
            .place(&at.place()),
        None => Error::new(
            Code::InvalidIntrinsic,
            format!(
                "a condition is one of `Fn::Equals`, `Fn::And`, `Fn::Or`, `Fn::Not`, `Condition`, not {}",
                kind(expression)
            ),
        )
        .place(&at.place()),
    }
}

/// Functions that CloudFormation has and this release does not evaluate.
const LATER: &[&str] = &[
    "Fn::Contains",
    "Fn::EachMemberEquals",
    "Fn::EachMemberIn",
    "Fn::GetAZs",
    "Fn::RefAll",
    "Fn::Transform",
    "Fn::ValueOf",
    "Fn::ValueOfAll",
];

/// What to do about a part of the template language that this release lacks.
pub(crate) const UNTIL_LATER: &str =
    "deploy this stack with CloudFormation until a later release evaluates it";

/// The error for a function that is not evaluated (rule T8).
pub(super) fn unsupported(name: &str, at: &Path<'_>) -> Error {
    let known = LATER.contains(&name) || name.starts_with("Fn::ForEach::");
    let message = if known {
        format!("`{name}` is not supported by this release")
    } else {
        format!("`{name}` is no function of CloudFormation")
    };
    let error = Error::new(Code::UnsupportedIntrinsic, message).detail("fragment", name).place(&at.place());
    match nearest(name, FUNCTIONS.iter().map(|function| function.name)).filter(|_| !known) {
        Some(near) => error.hint(format!("did you mean `{near}`?")),
        None if known => error.hint(UNTIL_LATER),
        None => error.hint("correct its name; a function of a macro needs CloudFormation"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_what_comes_later_is_not_here() {
        for (index, function) in FUNCTIONS.iter().enumerate() {
            assert!(FUNCTIONS.iter().skip(index + 1).all(|other| other.name != function.name));
            assert!(!LATER.contains(&function.name));
        }
    }
}
