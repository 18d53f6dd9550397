//! `{"Fn::Sub": text}` or `{"Fn::Sub": [text, {name: value, …}]}`: a text with `${…}` replaced.
//!
//! `${Name}` is a variable of the map, else what `Ref` gives; `${Name.Attribute}` is what `Fn::GetAtt` gives;
//! `${!Name}` is the text `${Name}` (rule T1). Source: AWS CloudFormation User Guide, "`Fn::Sub`".

use serde_json::{Map, Value};

use super::{Evaluate, Function, get_att, ref_};
use crate::error::{Error, Result};
use crate::template::Scope;
use crate::template::evaluate::{kind, write};
use crate::template::path::Path;
use crate::template::sub::{Part, parts};
use crate::template::survey::Survey;
use crate::template::text::Writer;
use crate::value::Node;

pub(super) static FUNCTION: Function = Function {
    name: "Fn::Sub",
    takes: "a text, or `[text, {name: value, …}]`",
    evaluate: Evaluate::Text(evaluate),
    survey,
};

fn arguments<'v>(argument: &'v Value, at: &Path<'_>) -> Result<(&'v str, Option<&'v Map<String, Value>>)> {
    match argument {
        Value::String(text) => Ok((text, None)),
        other => match FUNCTION.arguments(other, at)? {
            [Value::String(text), Value::Object(variables)] => Ok((text, Some(variables))),
            _ => Err(FUNCTION.malformed(argument, at)),
        },
    }
}

fn evaluate(argument: &Value, scope: &Scope<'_>, at: &Path<'_>, writer: &mut Writer) -> Result<()> {
    let (text, variables) = arguments(argument, at)?;
    for part in parts(text) {
        match part {
            Part::Text(text) => writer.template(text),
            Part::Escaped(name) => {
                writer.template("${");
                writer.template(name);
                writer.template("}");
            }
            Part::Variable(name) => {
                if let Some(value) = variables.and_then(|variables| variables.get(name)) {
                    write(value, scope, &at.index(1).key(name), "", writer)?;
                    continue;
                }
                legal(name, at)?;
                let node = match attribute_of(name) {
                    Some((logical_id, attribute)) => get_att::attribute(logical_id, attribute, scope, at)?,
                    None => ref_::named(name, scope, at)?,
                };
                // `${AWS::NoValue}` is nothing.
                match node.scalar_text() {
                    Some(text) => writer.value(&text),
                    None if node == Node::NoValue => {}
                    None => {
                        let what = format!("needs strings, but `${{{name}}}` is {}", kind(&node));
                        return Err(FUNCTION.wrong(&what, at));
                    }
                }
            }
        }
    }
    Ok(())
}

fn attribute_of(name: &str) -> Option<(&str, &str)> {
    get_att::split(name).filter(|_| !name.starts_with("AWS::"))
}

fn legal(name: &str, at: &Path<'_>) -> Result<()> {
    if !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || "_.:".contains(c)) {
        return Ok(());
    }
    let error: Error = FUNCTION.wrong("has a `${…}` that is no name: letters, digits, `_`, `.` and `:`", at);
    Err(error.hint("write `${!…}` for text that is to stay"))
}

fn survey<'t>(argument: &'t Value, survey: &mut Survey<'t>, at: &Path<'_>) {
    let (text, variables) = match arguments(argument, at) {
        Ok(arguments) => arguments,
        Err(error) => return survey.errors.push(error),
    };
    survey.text(text, at);
    if let Some(variables) = variables {
        survey.map(variables, &at.index(1));
    }
    for part in parts(text) {
        let Part::Variable(name) = part else { continue };
        if variables.is_some_and(|variables| variables.contains_key(name)) {
            continue;
        }
        // The text around the variable is not repeated: it may hold what is not to be shown.
        let fragment = format!("${{{name}}}");
        match (legal(name, at), attribute_of(name)) {
            (Err(error), _) => survey.errors.push(error),
            (Ok(()), Some((logical_id, _))) => survey.resource(logical_id, &fragment, at),
            (Ok(()), None) => survey.named(name, &fragment, at),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::testing::sample;
    use serde_json::json;

    #[test]
    fn t1_an_escaped_name_is_text() {
        let stack = sample();
        let table = [
            ("${!Topic} ${Topic}", "${Topic} id-of-Topic"),
            ("${!Nobody.Arn}", "${Nobody.Arn}"),
            ("${!}", "${}"),
            ("$${Env}$", "$dev$"),
            ("${Env", "${Env"),
            ("a}${Env}}", "a}dev}"),
        ];
        for (text, expected) in table {
            assert_eq!(stack.stored(&json!({ "Fn::Sub": text })), Ok(json!(expected)), "{text}");
        }
    }

    #[test]
    fn t3_a_refused_attribute_surfaces() {
        for text in ["${Topic.Gone}", "a ${Nope} b", "${Off}", "${Off.Arn}", "${Env.Arn}", "${AWS::Nope}"] {
            let result = sample().stored(&json!({ "Fn::Sub": text }));
            assert_eq!(result, Err("UnresolvedReference".to_owned()), "{text}");
        }
    }

    #[test]
    fn substitutions() {
        let stack = sample();
        let table = [
            (json!("plain"), Ok(json!("plain"))),
            (json!("${AWS::Region}/${Count}/${Topic.Arn}"), Ok(json!("eu-west-1/2/Topic.Arn"))),
            (json!("${Topic.Endpoint.Port}"), Ok(json!("Topic.Endpoint.Port"))),
            (json!("[${AWS::NoValue}]"), Ok(json!("[]"))),
            (json!("${Password}"), Ok(json!("{{resolve:secretsmanager:db}}"))),
            (json!("x ${NewBucket.Arn}"), Err("known after `NewBucket.Arn`")),
            (json!(["${A}-${Env}", {"A": {"Fn::Join": ["", ["x", 1]]}}]), Ok(json!("x1-dev"))),
            (json!(["${Env}", {"Env": "map first"}]), Ok(json!("map first"))),
            (json!(["${A.B}", {"A.B": true}]), Ok(json!("true"))),
            (json!(["${A}", {"A": "${Env}"}]), Ok(json!("${Env}"))),
            (json!(["x", {}]), Ok(json!("x"))),
            (json!("${Subnets}"), Err("InvalidIntrinsic")),
            (json!("${AWS::NotificationARNs}"), Err("InvalidIntrinsic")),
            (json!(["${A}", {"A": ["x"]}]), Err("InvalidIntrinsic")),
            (json!("${}"), Err("InvalidIntrinsic")),
            (json!("${HOME:-x}"), Err("InvalidIntrinsic")),
            (json!("${ Env }"), Err("InvalidIntrinsic")),
            (json!(["x"]), Err("InvalidIntrinsic")),
            (json!([{"Ref": "Env"}, {}]), Err("InvalidIntrinsic")),
            (json!(["x", "y"]), Err("InvalidIntrinsic")),
            (json!(1), Err("InvalidIntrinsic")),
        ];
        for (argument, expected) in table {
            let expression = json!({ "Fn::Sub": argument });
            assert_eq!(stack.stored(&expression), expected.map_err(str::to_owned), "{expression}");
        }
    }
}
