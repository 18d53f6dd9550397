//! What expressions are to the one who looks for text in them: which functions give text, and of what it is made.

use std::borrow::Cow;

use serde_json::{Map, Value, json};

use super::Constants;
use crate::template::sub::{Part, parts};

/// What a function's arguments are to the one who looks for text.
pub(super) enum Shape {
    /// Text, as far as it is constant.
    Folds,
    /// One of the values is what stands there: they have the neighbours of the whole.
    Chooses,
    /// Names of exports, of other stacks' outputs and of attributes: none of them is a bucket's.
    Names,
    /// Anything else.
    Other,
}

pub(super) fn shape(function: &str) -> Shape {
    match function {
        "Ref" | "Fn::Join" | "Fn::Sub" | "Fn::FindInMap" => Shape::Folds,
        "Fn::If" | "Fn::Select" => Shape::Chooses,
        "Fn::GetAtt" | "Fn::ImportValue" | "Fn::GetStackOutput" | "Condition" | "Fn::Transform" => {
            Shape::Names
        }
        _ => Shape::Other,
    }
}

/// The function of an expression and its argument.
pub(super) fn function(fields: &Map<String, Value>) -> Option<(&str, &Value)> {
    let mut fields = fields.iter();
    match (fields.next(), fields.next()) {
        (Some((name, argument)), None)
            // In a policy, `Condition` is an object of its own.
            if name == "Ref" || name == "Condition" && argument.is_string() || name.starts_with("Fn::") =>
        {
            Some((name, argument))
        }
        _ => None,
    }
}

/// A part of what an expression comes to.
pub(super) enum Bit<'b> {
    /// Constant for the deploy.
    Text(Cow<'b, str>),
    /// A parameter's value: constant as far as anyone can tell before the stack is locked.
    Parameter { name: &'b str, value: &'b str },
    /// `${name}` of a `Fn::Sub` that is not constant.
    Variable(&'b str),
    /// An expression that is not constant.
    Part(&'b Value),
}

/// What constant text is made from.
#[derive(Clone, Copy)]
pub(super) struct Fold<'f> {
    pub constants: &'f Constants,
    pub mappings: Option<&'f Value>,
}

impl<'f> Fold<'f> {
    /// Whether an expression is text and parts in a known order.
    pub fn folds(self, value: &Value) -> bool {
        match value.as_object().and_then(function) {
            Some(("Fn::Join", argument)) => join(argument).is_some_and(|it| !is_loose(it)),
            Some(("Fn::Sub", argument)) => sub(argument).is_some(),
            _ => self.constant(value).is_some(),
        }
    }

    /// Shows an expression bit by bit, in order.
    pub fn each(self, value: &Value, see: &mut dyn FnMut(Bit<'_>)) {
        let call = value.as_object().and_then(function);
        if let Some(("Ref", Value::String(name))) = call
            && let Some(bit) = self.named(name)
        {
            return see(bit);
        }
        if let Some(text) = scalar(value).or_else(|| self.constant(value)) {
            return see(Bit::Text(text));
        }
        if let Some(("Fn::Join", argument)) = call
            && let Some((delimiter, items)) = join(argument).filter(|it| !is_loose(*it))
        {
            for (n, item) in items.iter().enumerate() {
                if n > 0 {
                    see(Bit::Text(delimiter.into()));
                }
                self.each(item, see);
            }
        } else if let Some(("Fn::Sub", argument)) = call
            && let Some((text, variables)) = sub(argument)
        {
            for part in parts(text) {
                match part {
                    Part::Text(text) => see(Bit::Text(text.into())),
                    Part::Escaped(name) => see(Bit::Text(format!("${{{name}}}").into())),
                    Part::Variable(name) => match variables.and_then(|it| it.get(name)) {
                        Some(value) => self.each(value, see),
                        None => see(self.named(name).unwrap_or(Bit::Variable(name))),
                    },
                }
            }
        } else {
            see(Bit::Part(value));
        }
    }

    /// What a name stands for that is constant.
    fn named<'n>(self, name: &'n str) -> Option<Bit<'n>>
    where
        'f: 'n,
    {
        let value = self.constants.get(name)?;
        Some(if name.starts_with("AWS::") { Bit::Text(value.into()) } else { Bit::Parameter { name, value } })
    }

    /// The value of a `Ref` or `Fn::FindInMap` that is constant.
    fn constant(self, value: &Value) -> Option<Cow<'f, str>> {
        let (name, argument) = function(value.as_object()?)?;
        match name {
            "Ref" => self.constants.get(argument.as_str()?).map(Cow::Borrowed),
            "Fn::FindInMap" => {
                let [map, top, second] = argument.as_array()?.as_slice() else { return None };
                let key = |value: &Value| -> Option<String> {
                    value.as_str().map(str::to_owned).or_else(|| self.constant(value).map(Cow::into_owned))
                };
                scalar(self.mappings?.get(key(map)?)?.get(key(top)?)?.get(key(second)?)?)
            }
            _ => None,
        }
    }
}

/// Whether there is more to look at in an expression that is not constant.
pub(super) fn has_texts(value: &Value) -> bool {
    match value {
        Value::Array(_) => true,
        Value::Object(fields) => match function(fields) {
            Some((name, argument)) => {
                let names = matches!(shape(name), Shape::Names) || name == "Fn::FindInMap";
                !names && !argument.is_string()
            }
            None => true,
        },
        _ => false,
    }
}

fn scalar(value: &Value) -> Option<Cow<'_, str>> {
    match value {
        Value::String(text) => Some(text.as_str().into()),
        Value::Number(number) => Some(number.to_string().into()),
        Value::Bool(flag) => Some(flag.to_string().into()),
        _ => None,
    }
}

/// Delimiter and items of a `Fn::Join` whose items are written out.
pub(super) fn join(argument: &Value) -> Option<(&str, &[Value])> {
    match argument.as_array()?.as_slice() {
        [Value::String(delimiter), Value::Array(items)] => Some((delimiter, items)),
        _ => None,
    }
}

/// Whether values may be left out with their delimiter: `AWS::NoValue`, by itself or as what a function chooses.
pub(super) fn is_loose((delimiter, items): (&str, &[Value])) -> bool {
    !delimiter.is_empty() && items.iter().any(chooses)
}

/// Whether a value may be `AWS::NoValue`.
pub(super) fn chooses(item: &Value) -> bool {
    match item.as_object().and_then(function) {
        Some(("Ref", argument)) => argument == "AWS::NoValue",
        Some((name, _)) => matches!(shape(name), Shape::Chooses),
        None => false,
    }
}

/// Delimiter and items of a `Fn::Join` that [`is_loose`].
pub(super) fn loose_join(fields: &mut Map<String, Value>) -> Option<(String, &mut Vec<Value>)> {
    let is_one = function(fields)
        .is_some_and(|(name, argument)| name == "Fn::Join" && join(argument).is_some_and(is_loose));
    if !is_one {
        return None;
    }
    match fields.values_mut().next()?.as_array_mut()?.as_mut_slice() {
        [Value::String(delimiter), Value::Array(items)] => Some((delimiter.clone(), items)),
        _ => None,
    }
}

/// Text and variables of a `Fn::Sub`.
fn sub(argument: &Value) -> Option<(&str, Option<&Map<String, Value>>)> {
    match argument {
        Value::String(text) => Some((text, None)),
        Value::Array(list) => match list.as_slice() {
            [Value::String(text)] => Some((text, None)),
            [Value::String(text), Value::Object(variables)] => Some((text, Some(variables))),
            _ => None,
        },
        _ => None,
    }
}

/// What `${name}` of a `Fn::Sub` stands for.
pub(super) fn variable(name: &str) -> Value {
    match name.split_once('.') {
        Some((resource, attribute)) => json!({ "Fn::GetAtt": [resource, attribute] }),
        None => json!({ "Ref": name }),
    }
}
