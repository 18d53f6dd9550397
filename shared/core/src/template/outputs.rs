//! The section `Outputs`: what a stack publishes (rules T10, E7, E31).

use std::collections::BTreeSet;

use indexmap::IndexMap;
use serde_json::Value;

use super::evaluate::{eval, kind};
use super::path::Path;
use super::survey::{Site, Survey};
use super::{Output, Scope, Template, holds};
use crate::error::{Code, Error, Place, Result};
use crate::value::{Node, Piece, Text};

/// An output as it is published.
#[derive(Clone, Debug, PartialEq)]
pub struct OutputValue {
    /// Always [`Node::Text`]; parts of it may be unknown.
    pub value: Node,
    /// The name it is exported under. A name that holds a secret is none (rule E3); a literal name that is spelled
    /// like a token is that text.
    pub export_name: Option<String>,
    /// An export name that holds a secret, with `***` in its place: it is skipped, and a warning tells.
    pub masked_export_name: Option<String>,
}

/// The outputs whose condition holds, in template order. Numbers and booleans are text.
///
/// # Errors
/// All at once: [`Code::InvalidTemplate`] for a value that is no text, an exported value that is empty, or an export
/// name that is empty or not known before the deploy; and what evaluation refuses.
pub fn outputs(scope: &Scope<'_>) -> Result<IndexMap<String, OutputValue>> {
    let mut published = IndexMap::new();
    let mut errors = Vec::new();
    let root = Place::stack(scope.template.stack.as_str()).down("Outputs");
    for (name, output) in &scope.template.outputs {
        if !holds(output.condition.as_deref(), scope.conditions) {
            continue;
        }
        match publish(name, output, scope, &root.down(name.as_str())) {
            Ok(value) => {
                published.insert(name.clone(), value);
            }
            Err(error) => errors.push(error),
        }
    }
    Error::all(errors)?;
    Ok(published)
}

/// One output, at its place.
pub(super) fn publish(name: &str, output: &Output, scope: &Scope<'_>, place: &Place) -> Result<OutputValue> {
    let refuse = |message: String| Error::new(Code::InvalidTemplate, message).place(place);
    let root = Path::Root(place);
    let node = eval(&output.value, scope, &root.key("Value"))?;
    let value = node.scalar_text().ok_or_else(|| {
        refuse(format!("the value of output `{name}` must be a string, not {}", kind(&node)))
    })?;
    let mut masked_export_name = None;
    let export_name = match &output.export_name {
        None => None,
        Some(_) if value == Text::default() => {
            return Err(refuse(format!("output `{name}` is empty; an empty value may not be exported")));
        }
        Some(expression) => {
            let text = export_text(name, expression, scope, place)?;
            if text.as_plain().is_none() {
                masked_export_name = Some(masked(&text));
            }
            text.as_plain().map(str::to_owned)
        }
    };
    if export_name.as_deref() == Some("") {
        return Err(refuse(format!("the export name of output `{name}` is empty")));
    }
    Ok(OutputValue { value: Node::Text(value), export_name, masked_export_name })
}

/// The text of an export name, which is known; a literal one holds no secret, however it is spelled.
pub(super) fn export_text(name: &str, expression: &Value, scope: &Scope<'_>, place: &Place) -> Result<Text> {
    if let Value::String(literal) = expression {
        let mut text = Text::default();
        text.push(Piece::Plain(literal.clone()));
        return Ok(text);
    }
    let refuse = |message: String| Error::new(Code::InvalidTemplate, message).place(place);
    let node = eval(expression, scope, &Path::Root(place).key("Export").key("Name"))?;
    let text = node.scalar_text().ok_or_else(|| {
        refuse(format!("the export name of output `{name}` must be a string, not {}", kind(&node)))
    })?;
    match text.unknown() {
        None => Ok(text),
        Some(reason) => Err(refuse(format!(
            "the export name of output `{name}` must be known before the deploy; it is {reason}"
        ))),
    }
}

/// A text with `***` for each secret: not even the token is shown, which may tell how the secret is named.
fn masked(text: &Text) -> String {
    let parts = text.pieces().iter().map(|piece| match piece {
        Piece::Plain(plain) => plain.as_str(),
        Piece::Secret(_) | Piece::Unknown(_) => "***",
    });
    parts.collect()
}

impl Template {
    /// The logical ids that the value of each output refers to through taken branches, by the name of the output; of
    /// the outputs whose condition holds.
    ///
    /// It decides whether an export names a resource that goes (rule E24).
    pub fn output_references<'t>(
        &'t self,
        conditions: &'t IndexMap<String, bool>,
    ) -> IndexMap<&'t str, BTreeSet<&'t str>> {
        let place = Place::default();
        let root = Path::Root(&place);
        self.outputs
            .iter()
            .filter(|(_, output)| holds(output.condition.as_deref(), conditions))
            .map(|(name, output)| {
                let mut survey = Survey::new(self, conditions, Site::Value);
                survey.value(&output.value, &root);
                (name.as_str(), survey.references.into_iter().collect())
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::Stack;
    use super::*;
    use serde_json::json;

    fn stack(output: &Value) -> Stack {
        Stack::new(json!({
            "Parameters": {
                "Empty": {"Type": "String", "Default": ""},
                "List": {"Type": "CommaDelimitedList", "Default": "a,b"},
                "Password": {"Type": "String", "NoEcho": true, "Default": "{{resolve:secretsmanager:db}}"},
            },
            "Conditions": {"Never": {"Fn::Equals": ["a", "b"]}},
            "Resources": {"Topic": {}, "NewQueue": {}},
            "Outputs": {"O": output},
        }))
    }

    fn published(output: &Value) -> Result<IndexMap<String, OutputValue>> {
        outputs(&stack(output).scope())
    }

    #[test]
    fn t10_numbers_and_booleans_become_strings() {
        let table = [
            (json!({"Value": 1.5}), json!("1.5")),
            (json!({"Value": true}), json!("true")),
            (json!({"Value": {"Ref": "Topic"}}), json!("id-of-Topic")),
            (json!({"Value": ""}), json!("")),
        ];
        for (output, expected) in table {
            assert_eq!(published(&output).unwrap()["O"].value.stored().unwrap(), expected);
        }
    }

    #[test]
    fn e17_a_value_that_is_no_string_is_refused() {
        for value in [
            json!(["a"]),
            json!({"a": 1}),
            json!({"Ref": "List"}),
            json!(null),
            json!({"Ref": "AWS::NoValue"}),
        ] {
            let error = published(&json!({ "Value": value })).unwrap_err();
            assert_eq!(error.code(), Code::InvalidTemplate);
            assert!(error.message().contains("must be a string"), "{error}");
        }
    }

    #[test]
    fn e7_an_output_whose_condition_is_false_is_neither_resolved_nor_exported() {
        let output = json!({"Condition": "Never", "Value": {"Ref": "Gone"}, "Export": {"Name": "X"}});
        let stack = stack(&output);
        assert_eq!(stack.check(), Ok(()));
        assert!(outputs(&stack.scope()).unwrap().is_empty());
    }

    #[test]
    fn e31_an_empty_value_may_not_be_exported() {
        let error = published(&json!({"Value": {"Ref": "Empty"}, "Export": {"Name": "X"}})).unwrap_err();
        assert_eq!(error.code(), Code::InvalidTemplate);
        assert_eq!(error.message(), "output `O` is empty; an empty value may not be exported");
        assert!(published(&json!({"Value": 0, "Export": {"Name": "X"}})).is_ok());
        assert!(
            published(&json!({"Value": {"Ref": "NewQueue"}, "Export": {"Name": "X"}})).is_ok(),
            "not known yet"
        );
    }

    #[test]
    fn e3_an_export_name_that_holds_a_secret_is_none_and_masked() {
        let output = json!({"Value": "v", "Export": {"Name": {"Fn::Sub": "pre-${Password}-post"}}});
        let published = published(&output).unwrap();
        assert_eq!(published["O"].export_name, None);
        assert_eq!(published["O"].masked_export_name.as_deref(), Some("pre-***-post"));
    }

    #[test]
    fn e24_what_the_value_of_an_output_refers_to() {
        let table = [
            (json!({"Ref": "Topic"}), "Topic"),
            (json!({"Fn::Sub": "${Topic}/${NewQueue.Arn}/${AWS::Region}/${Empty}"}), "NewQueue Topic"),
            (json!({"Fn::If": ["Never", {"Ref": "Topic"}, {"Ref": "NewQueue"}]}), "NewQueue"),
            (json!("Topic"), ""),
        ];
        for (value, expected) in table {
            let stack = stack(&json!({ "Value": value }));
            let found = stack.template.output_references(&stack.conditions);
            assert_eq!(found["O"].iter().copied().collect::<Vec<_>>().join(" "), expected, "{value}");
        }
        let off = stack(&json!({"Condition": "Never", "Value": {"Ref": "Topic"}}));
        assert!(off.template.output_references(&off.conditions).is_empty());
    }

    #[test]
    fn export_names() {
        let table = [
            (json!("X"), Ok(Some("X"))),
            (json!({"Fn::Sub": "${AWS::StackName}:Topic"}), Ok(Some("Web:Topic"))),
            (json!({"Fn::Join": ["-", ["a", 1]]}), Ok(Some("a-1"))),
            (json!("{{resolve:ssm:/x}}"), Ok(Some("{{resolve:ssm:/x}}"))),
            (json!({"Ref": "Password"}), Ok(None)),
            (json!({"Ref": "Empty"}), Err("the export name of output `O` is empty")),
            (json!({"Ref": "List"}), Err("the export name of output `O` must be a string, not a list")),
            (
                json!({"Ref": "NewQueue"}),
                Err(
                    "the export name of output `O` must be known before the deploy; it is known after `NewQueue`",
                ),
            ),
        ];
        for (name, expected) in table {
            let result = published(&json!({"Value": "v", "Export": {"Name": name}}));
            match expected {
                Ok(expected) => assert_eq!(result.unwrap()["O"].export_name.as_deref(), expected),
                Err(message) => assert_eq!(result.unwrap_err().message(), message),
            }
        }
    }
}
