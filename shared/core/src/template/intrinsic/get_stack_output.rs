//! `{"Fn::GetStackOutput": {"StackName": …, "OutputName": …, "Region": …, "RoleArn": …}}`: an output of another stack.
//!
//! `Region` is the own one if it is absent. Arguments may use what the name of an import may; `RoleArn` has to be
//! literal once pseudo parameters are put in, as CDK writes it (rule G1). A read through a role is refused by this
//! release. Source: AWS CloudFormation Template Reference Guide, "`Fn::GetStackOutput`" (rule G11).

use serde_json::Value;

use super::{Evaluate, Function};
use crate::error::{Code, Error, Result, nearest};
use crate::name::{RecordKey, Region, RoleArn, StackName};
use crate::template::path::Path;
use crate::template::reads::coordinate;
use crate::template::survey::{Site, Survey};
use crate::template::{OutputRead, Scope};
use crate::value::Node;

pub(in crate::template) static FUNCTION: Function = Function {
    name: "Fn::GetStackOutput",
    takes: "`{StackName, OutputName}`, with `Region` and `RoleArn` if need be",
    evaluate: Evaluate::Value(evaluate),
    survey,
};

const ARGUMENTS: [&str; 4] = ["StackName", "OutputName", "Region", "RoleArn"];
const REQUIRED: [&str; 2] = ["StackName", "OutputName"];

/// Where an argument stands: what it may refer to.
fn site(argument: &str) -> Site {
    if argument == "RoleArn" { Site::Literal } else { Site::Coordinate }
}

fn evaluate(argument: &Value, scope: &Scope<'_>, at: &Path<'_>) -> Result<Node> {
    let mut errors = Vec::new();
    let read = output(argument, scope, at, &mut errors);
    Error::all(errors)?;
    scope.imports.output(&read.ok_or_else(|| FUNCTION.malformed(argument, at))?)
}

/// The output that is read; `None` if anything is wrong with the arguments.
pub(in crate::template) fn output(
    argument: &Value,
    scope: &Scope<'_>,
    at: &Path<'_>,
    errors: &mut Vec<Error>,
) -> Option<OutputRead> {
    let before = errors.len();
    formed(argument, at, errors);
    if errors.len() > before {
        return None;
    }
    let stack = text("StackName", argument, scope, at, errors)
        .and_then(|text| parsed::<StackName>("StackName", &text, &at.key("StackName"), errors));
    let output = text("OutputName", argument, scope, at, errors);
    let region = region(argument, scope, at, errors);
    let role = text("RoleArn", argument, scope, at, errors)
        .and_then(|text| parsed::<RoleArn>("RoleArn", &text, &at.key("RoleArn"), errors));
    if let Some(role) = role {
        errors.push(through(&role, scope, &at.key("RoleArn")));
    }
    let read = OutputRead { source: RecordKey::new(stack?, region?), output: output? };
    // A stack is known by its record, which for a nested one is not what `AWS::StackName` says.
    if read.source.stack.as_str() == scope.template.stack
        && read.source.region.as_str().eq_ignore_ascii_case(&scope.pseudo.region)
    {
        let what = format!("reads the {read}, which is the stack itself");
        errors.push(FUNCTION.wrong(&what, at).hint("use the value of that output in its place"));
    }
    (errors.len() == before).then_some(read)
}

/// The text of an argument. `None` if it is absent or `AWS::NoValue`, which are the same, or if it is wrong.
fn text(
    name: &str,
    argument: &Value,
    scope: &Scope<'_>,
    at: &Path<'_>,
    errors: &mut Vec<Error>,
) -> Option<String> {
    let expression = argument.get(name)?;
    let here = at.key(name);
    match coordinate(&FUNCTION, &format!("its `{name}`"), expression, site(name), scope, &here) {
        Ok(None) if REQUIRED.contains(&name) => {
            errors.push(lacks(name, at));
            None
        }
        Ok(text) => text,
        Err(error) => {
            errors.push(error);
            None
        }
    }
}

fn parsed<T: std::str::FromStr<Err = Error>>(
    name: &str,
    text: &str,
    at: &Path<'_>,
    errors: &mut Vec<Error>,
) -> Option<T> {
    let wrong = |error: Error| FUNCTION.wrong(&format!("has a wrong `{name}`: {}", error.message()), at);
    text.parse().map_err(|error| errors.push(wrong(error))).ok()
}

fn region(argument: &Value, scope: &Scope<'_>, at: &Path<'_>, errors: &mut Vec<Error>) -> Option<Region> {
    let before = errors.len();
    let given = text("Region", argument, scope, at, errors);
    if errors.len() > before {
        return None;
    }
    let at = at.key("Region");
    let region: Region = parsed("Region", given.as_deref().unwrap_or(&scope.pseudo.region), &at, errors)?;
    let (theirs, ours) = (region.partition().name, scope.pseudo.partition.as_str());
    if theirs == ours {
        return Some(region);
    }
    errors.push(across(theirs, ours, &at));
    None
}

/// The error for a read through a role: there are none yet, and never any across partitions (rule G11).
fn through(role: &RoleArn, scope: &Scope<'_>, at: &Path<'_>) -> Error {
    if role.partition() != scope.pseudo.partition {
        return across(role.partition(), &scope.pseudo.partition, at);
    }
    let message = format!(
        "`{}` with a `RoleArn`, a read from another account, is not supported by this release; it comes with a \
         later one",
        FUNCTION.name
    );
    Error::new(Code::UnsupportedIntrinsic, message)
        .hint("give the value as a parameter of the run")
        .detail("fragment", FUNCTION.name)
        .place(&at.place())
}

fn across(theirs: &str, ours: &str, at: &Path<'_>) -> Error {
    FUNCTION.wrong(&format!("cannot read from partition `{theirs}` in partition `{ours}`"), at)
}

fn lacks(name: &str, at: &Path<'_>) -> Error {
    FUNCTION.wrong(&format!("lacks its `{name}`"), at)
}

/// Reports an argument that is none, or missing ones.
fn formed(argument: &Value, at: &Path<'_>, errors: &mut Vec<Error>) {
    let Value::Object(map) = argument else { return errors.push(FUNCTION.malformed(argument, at)) };
    errors.extend(REQUIRED.into_iter().filter(|name| !map.contains_key(*name)).map(|name| lacks(name, at)));
    for key in map.keys().filter(|key| !ARGUMENTS.contains(&key.as_str())) {
        let error = FUNCTION.wrong(&format!("has no argument `{key}`"), at);
        errors.push(match nearest(key, ARGUMENTS) {
            Some(near) => error.hint(format!("did you mean `{near}`?")),
            None => error,
        });
    }
}

fn survey<'t>(argument: &'t Value, survey: &mut Survey<'t>, at: &Path<'_>) {
    if !survey.read(&FUNCTION, argument, at) {
        return;
    }
    formed(argument, at, &mut survey.errors);
    for name in ARGUMENTS {
        if let Some(expression) = argument.get(name) {
            survey.at_site(site(name), |survey| survey.value(expression, &at.key(name)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::testing::{Stack, sample};
    use super::*;
    use serde_json::json;

    /// A read of `Net`, `Vpc` with more arguments.
    fn read(more: &Value) -> Value {
        let mut arguments = json!({"StackName": "Net", "OutputName": "Vpc"});
        for (name, value) in more.as_object().unwrap() {
            arguments[name] = value.clone();
        }
        json!({ "Fn::GetStackOutput": arguments })
    }

    #[test]
    fn g2_intrinsics_in_every_argument() {
        let stack = sample();
        let none = json!({"Ref": "AWS::NoValue"});
        let table = [
            (json!({}), Ok("Net/eu-west-1/Vpc")),
            (json!({"StackName": {"Fn::Sub": "Net-${Env}"}}), Ok("Net-dev/eu-west-1/Vpc")),
            (json!({"StackName": "Parent~Child"}), Ok("Parent~Child/eu-west-1/Vpc")),
            (json!({"OutputName": {"Fn::Join": ["", ["Vpc", {"Ref": "Count"}]]}}), Ok("Net/eu-west-1/Vpc2")),
            (json!({"OutputName": {"Fn::If": ["IsProd", "P", "D"]}}), Ok("Net/eu-west-1/D")),
            (json!({"Region": "US-EAST-1"}), Ok("Net/us-east-1/Vpc")),
            (json!({"Region": {"Ref": "AWS::Region"}}), Ok("Net/eu-west-1/Vpc")),
            (json!({ "Region": none }), Ok("Net/eu-west-1/Vpc")),
            (json!({ "RoleArn": none }), Ok("Net/eu-west-1/Vpc")),
            (json!({"StackName": "Web", "Region": "us-east-1"}), Ok("Web/us-east-1/Vpc")),
            (json!({"OutputName": "NewVpc"}), Err("output `NewVpc` of Net (eu-west-1)")),
            (json!({"OutputName": "Gone"}), Err("UnresolvedReference")),
            (json!({"Region": "cn-north-1"}), Err("InvalidIntrinsic")),
            (json!({"Region": "nowhere"}), Err("InvalidIntrinsic")),
            (json!({"Region": ""}), Err("InvalidIntrinsic")),
            (json!({"StackName": "1"}), Err("InvalidIntrinsic")),
            (json!({ "StackName": none }), Err("InvalidIntrinsic")),
            (json!({"StackName": {"Ref": "Topic"}}), Err("InvalidIntrinsic")),
            (json!({"Region": {"Fn::GetAtt": "Topic.Arn"}}), Err("InvalidIntrinsic")),
            (json!({"OutputName": {"Ref": "Password"}}), Err("InvalidIntrinsic")),
            (json!({"OutputName": {"Fn::ImportValue": "X"}}), Err("InvalidIntrinsic")),
            (json!({"OutputName": ["x"]}), Err("InvalidIntrinsic")),
            (json!({"OutputName": null}), Err("InvalidIntrinsic")),
            (json!({"RegionName": "us-east-1"}), Err("InvalidIntrinsic")),
        ];
        for (more, expected) in table {
            let expected = expected.map(|text| json!(text)).map_err(str::to_owned);
            assert_eq!(stack.stored(&read(&more)), expected, "{more}");
        }
        for argument in
            [json!("Net"), json!(["Net", "Vpc"]), json!({}), json!({"StackName": "Net"}), json!(null)]
        {
            let result = stack.stored(&json!({ "Fn::GetStackOutput": argument }));
            assert_eq!(result, Err("InvalidIntrinsic".to_owned()));
        }
    }

    #[test]
    fn g2_reads_inside_of_other_functions() {
        let stack = sample();
        let vpc = read(&json!({}));
        let table = [
            (json!({"Fn::Join": [".", ["a", vpc]]}), json!("a.Net/eu-west-1/Vpc")),
            (json!({"Fn::Sub": ["${V}!", {"V": vpc}]}), json!("Net/eu-west-1/Vpc!")),
            (json!({"Fn::Split": ["/", vpc]}), json!(["Net", "eu-west-1", "Vpc"])),
            (json!({"Fn::Select": [0, {"Fn::Split": ["/", vpc]}]}), json!("Net")),
        ];
        for (expression, expected) in table {
            assert_eq!(stack.stored(&expression), Ok(expected), "{expression}");
        }
    }

    #[test]
    fn g2_the_own_stack_is_refused_as_a_self_reference() {
        for more in [
            json!({"StackName": "Web"}),
            json!({"StackName": {"Ref": "AWS::StackName"}, "Region": "EU-WEST-1"}),
        ] {
            let error = sample().evaluate(&read(&more)).unwrap_err();
            assert_eq!(error.code(), Code::InvalidIntrinsic);
            let message =
                "`Fn::GetStackOutput` reads the output `Vpc` of Web (eu-west-1), which is the stack itself";
            assert_eq!(error.message(), message);
        }
    }

    #[test]
    fn g1_a_role_is_literal_once_pseudo_parameters_are_put_in() {
        let arn =
            |middle: Value| json!({"Fn::Join": ["", ["arn:", middle, ":iam::111122223333:role/reader"]]});
        let later = "is not supported by this release";
        let table = [
            (json!("arn:aws:iam::111122223333:role/reader"), Code::UnsupportedIntrinsic, later),
            (arn(json!({"Ref": "AWS::Partition"})), Code::UnsupportedIntrinsic, later),
            (
                json!({"Fn::Sub": "arn:${AWS::Partition}:iam::${AWS::AccountId}:role/reader"}),
                Code::UnsupportedIntrinsic,
                later,
            ),
            (arn(json!({"Ref": "Env"})), Code::InvalidIntrinsic, "parameter `Env`"),
            (json!({"Fn::Sub": "${Env}"}), Code::InvalidIntrinsic, "parameter `Env`"),
            (arn(json!({"Ref": "Topic"})), Code::InvalidIntrinsic, "resource: `Topic`"),
            (json!({"Fn::GetAtt": "Topic.Arn"}), Code::InvalidIntrinsic, "resource: `Topic`"),
            (json!({"Fn::If": ["IsDev", "a", "b"]}), Code::InvalidIntrinsic, "literal"),
            (json!("arn:aws-cn:iam::111122223333:role/reader"), Code::InvalidIntrinsic, "partition `aws-cn`"),
        ];
        for (role, code, message) in table {
            let mut stack = sample();
            let expression = read(&json!({ "RoleArn": role }));
            let error = stack.evaluate(&expression).unwrap_err();
            assert_eq!(error.code(), code, "{error}");
            assert!(error.message().contains(message), "{error}");
            stack.template.resources["Queue"].properties = json!({ "P": expression });
            assert_eq!(stack.check().unwrap_err().code(), code);
        }
    }

    #[test]
    fn g9_a_role_of_another_form_is_refused_up_front() {
        for role in
            ["arn:aws:iam::111122223333:user/me", "arn:aws:iam::11112222333:role/x", "arn:aws:s3:::b", "x"]
        {
            let error = sample().evaluate(&read(&json!({ "RoleArn": role }))).unwrap_err();
            assert_eq!(error.code(), Code::InvalidIntrinsic);
            assert!(error.message().contains("`RoleArn`") && error.message().contains(role), "{error}");
        }
    }

    #[test]
    fn all_that_is_wrong_is_said_at_once() {
        let messages = |arguments: Value| -> Vec<String> {
            let stack = Stack::new(json!({"Resources": {
                "R": {"Properties": {"P": {"Fn::GetStackOutput": arguments}}},
            }}));
            let error = stack.check().unwrap_err();
            let message =
                |error: &Value| error["message"].as_str().unwrap().split(" (").next().unwrap().to_owned();
            error.details()["errors"].as_array().unwrap().iter().map(message).collect()
        };
        assert_eq!(
            messages(json!({"StackNam": "Net", "Region": {"Ref": "Nope"}})),
            [
                "`Fn::GetStackOutput` lacks its `StackName`",
                "`Fn::GetStackOutput` lacks its `OutputName`",
                "`Fn::GetStackOutput` has no argument `StackNam`",
                "`Nope` is neither a resource nor a parameter of the template",
            ]
        );
        assert_eq!(
            messages(json!({"StackName": "-", "OutputName": "", "Region": "x", "RoleArn": "y"})),
            [
                "`Fn::GetStackOutput` has a wrong `StackName`: `-` is no stack name",
                "`Fn::GetStackOutput` has an empty text as its `OutputName`",
                "`Fn::GetStackOutput` has a wrong `Region`: `x` is no region",
                "`Fn::GetStackOutput` has a wrong `RoleArn`: `y` is no ARN of a role",
            ]
        );
    }
}
