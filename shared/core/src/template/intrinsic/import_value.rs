//! `{"Fn::ImportValue": name}`: the value that another stack of the region exports under that name.
//!
//! The name may use parameters, pseudo parameters, mappings and functions of them, but no resource (rule E30).
//! Source: AWS CloudFormation User Guide, "`Fn::ImportValue`".

use serde_json::Value;

use super::{Evaluate, Function, call};
use crate::error::Result;
use crate::template::Scope;
use crate::template::path::Path;
use crate::template::reads::coordinate;
use crate::template::survey::{Site, Survey};
use crate::value::Node;

pub(in crate::template) static FUNCTION: Function = Function {
    name: "Fn::ImportValue",
    takes: "the name of an export",
    evaluate: Evaluate::Value(evaluate),
    survey,
};

fn evaluate(argument: &Value, scope: &Scope<'_>, at: &Path<'_>) -> Result<Node> {
    scope.imports.import(&export(argument, scope, at)?)
}

/// The name of the export.
pub(in crate::template) fn export(argument: &Value, scope: &Scope<'_>, at: &Path<'_>) -> Result<String> {
    formed(argument, at)?;
    coordinate(&FUNCTION, "the name of an export", argument, Site::Coordinate, scope, at)?
        .ok_or_else(|| FUNCTION.wrong("needs the name of an export, not `AWS::NoValue`", at))
}

/// A text, or a function that gives one.
fn formed(argument: &Value, at: &Path<'_>) -> Result<()> {
    if argument.is_string() || argument.as_object().and_then(call).is_some() {
        Ok(())
    } else {
        Err(FUNCTION.malformed(argument, at))
    }
}

fn survey<'t>(argument: &'t Value, survey: &mut Survey<'t>, at: &Path<'_>) {
    if !survey.read(&FUNCTION, argument, at) {
        return;
    }
    match formed(argument, at) {
        Ok(()) => survey.at_site(Site::Coordinate, |survey| survey.value(argument, at)),
        Err(error) => survey.errors.push(error),
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::testing::{Stack, sample};
    use crate::value::Node;
    use serde_json::{Value, json};

    #[test]
    fn imports() {
        let stack = sample();
        let table = [
            (json!("Vpc"), Ok(json!("export-Vpc"))),
            (json!("NewVpc"), Err("import of `NewVpc`")),
            (json!({"Ref": "Env"}), Ok(json!("export-dev"))),
            (json!({"Fn::Sub": "${AWS::StackName}:${Env}"}), Ok(json!("export-Web:dev"))),
            (json!({"Fn::Join": ["-", ["a", {"Ref": "Count"}]]}), Ok(json!("export-a-2"))),
            (json!({"Fn::FindInMap": ["Regions", {"Ref": "AWS::Region"}, "Size"]}), Ok(json!("export-3"))),
            (json!({"Fn::If": ["IsDev", "a", "b"]}), Ok(json!("export-a"))),
            (json!({"Fn::Select": [1, {"Ref": "Subnets"}]}), Ok(json!("export-b"))),
            (json!("Gone"), Err("UnresolvedReference")),
            (json!({"Ref": "Topic"}), Err("InvalidIntrinsic")),
            (json!({"Fn::GetAtt": "Topic.Arn"}), Err("InvalidIntrinsic")),
            (json!({"Fn::If": ["IsDev", "a", {"Ref": "Topic"}]}), Err("InvalidIntrinsic")),
            (json!({"Fn::ImportValue": "x"}), Err("InvalidIntrinsic")),
            (json!({"Ref": "Password"}), Err("InvalidIntrinsic")),
            (json!({"Ref": "Subnets"}), Err("InvalidIntrinsic")),
            (json!({"Ref": "AWS::NoValue"}), Err("InvalidIntrinsic")),
            (json!({"Ref": "Nope"}), Err("UnresolvedReference")),
            (json!("{{resolve:secretsmanager:x}}"), Err("UnsupportedIntrinsic")),
            (json!(""), Err("InvalidIntrinsic")),
            (json!(["x"]), Err("InvalidIntrinsic")),
            (json!({"Name": "x"}), Err("InvalidIntrinsic")),
            (json!(1), Err("InvalidIntrinsic")),
            (json!(null), Err("InvalidIntrinsic")),
        ];
        for (argument, expected) in table {
            let expression = json!({ "Fn::ImportValue": argument });
            assert_eq!(stack.stored(&expression), expected.map_err(str::to_owned), "{expression}");
        }
    }

    #[test]
    fn imports_inside_of_other_functions() {
        let stack = sample();
        let vpc = json!({"Fn::ImportValue": "Vpc"});
        let table = [
            (json!({"Fn::Join": ["/", ["a", vpc]]}), json!("a/export-Vpc")),
            (json!({"Fn::Sub": ["${V}!", {"V": vpc}]}), json!("export-Vpc!")),
            (json!({"Fn::Select": [1, {"Fn::Split": ["-", vpc]}]}), json!("Vpc")),
            (json!({"Fn::Select": [0, [vpc]]}), json!("export-Vpc")),
            (json!({"Fn::If": ["IsDev", vpc, {"Fn::ImportValue": "Gone"}]}), json!("export-Vpc")),
            (json!({"Fn::Base64": vpc}), json!("ZXhwb3J0LVZwYw==")),
            (json!({"Fn::GetAtt": ["Topic", vpc]}), json!("Topic.export-Vpc")),
            (json!({"Deep": [{"Ref": "AWS::NoValue"}, vpc]}), json!({"Deep": ["export-Vpc"]})),
        ];
        for (expression, expected) in table {
            assert_eq!(stack.stored(&expression), Ok(expected), "{expression}");
        }
    }

    #[test]
    fn e17_a_list_travels_as_one_text() {
        let stack = sample();
        let split = |import: &str| json!({"Fn::Split": ["||", {"Fn::ImportValue": import}]});
        // What a producer exports comes back as the list it was.
        for (items, import) in [(json!(["a", "b", "c"]), "Three"), (json!(["a"]), "One")] {
            let exported = json!({"Fn::Join": ["||", items]});
            assert_eq!(stack.stored(&exported), stack.stored(&json!({ "Fn::ImportValue": import })));
            assert_eq!(stack.stored(&split(import)), Ok(items));
        }
        // No element is an empty text, whose list has one empty text, as CloudFormation has it. It is read with
        // `Fn::GetStackOutput`: an empty value may not be exported (rule E31).
        assert_eq!(stack.stored(&json!({"Fn::Join": ["||", []]})), Ok(json!("")));
        assert_eq!(stack.stored(&split("None")), Ok(json!([""])));
        let again = |import: &str| json!({"Fn::Join": ["||", split(import)]});
        for (import, text) in [("Three", "a||b||c"), ("One", "a"), ("None", "")] {
            assert_eq!(stack.stored(&again(import)), Ok(json!(text)));
        }
        assert_eq!(stack.stored(&split("New")), Err("import of `New`".into()));
    }

    #[test]
    fn s15_a_value_is_what_its_caller_made_of_it() {
        let stack = sample();
        for (import, secrets) in [("Secret", 1), ("Token", 0)] {
            let node = stack.evaluate(&json!({ "Fn::ImportValue": import })).unwrap();
            assert_eq!(node.secrets().len(), secrets);
            assert_eq!(node.stored(), Ok(json!("{{resolve:ssm-secure:/p}}")));
            let joined =
                stack.evaluate(&json!({"Fn::Join": ["", ["x", {"Fn::ImportValue": import}]]})).unwrap();
            assert_eq!(joined.secrets().len(), secrets);
            assert!(matches!(joined, Node::Text(_)));
        }
    }

    #[test]
    fn check_takes_the_value_for_a_text_that_is_not_known_yet() {
        let check = |expression: &Value| {
            Stack::new(json!({"Resources": {"R": {"Properties": {"P": expression}}}})).check()
        };
        let import = json!({"Fn::ImportValue": "Gone"});
        assert_eq!(check(&import), Ok(()));
        assert_eq!(check(&json!({"Fn::Join": ["", ["a", import]]})), Ok(()));
        assert_eq!(check(&json!({"Fn::Select": [3, {"Fn::Split": ["||", import]}]})), Ok(()));
        for wrong in [json!({"Fn::Join": ["", import]}), json!({"Fn::Select": [0, import]})] {
            assert!(check(&wrong).unwrap_err().message().contains("a list, not a string"));
        }
    }

    #[test]
    fn a_secret_in_a_name_is_not_shown() {
        let error = sample().evaluate(&json!({"Fn::ImportValue": {"Fn::Sub": "x-${Password}"}})).unwrap_err();
        assert_eq!(error.message(), "`Fn::ImportValue` takes no secret as the name of an export");
        assert!(!error.cause().to_string().contains("resolve:"));
    }
}
