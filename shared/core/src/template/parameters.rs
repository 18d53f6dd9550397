//! Declarations of parameters, and what a declaration asks of a value (rule T9).
//!
//! Source: AWS CloudFormation User Guide, "Parameters".

use regex_lite::Regex;
use serde_json::{Map, Value};

use super::intrinsic;
use super::parse::{Reader, kind};
use crate::error::{Place, nearest};

const ATTRIBUTES: &[&str] = &[
    "Type",
    "Default",
    "NoEcho",
    "AllowedValues",
    "AllowedPattern",
    "MinLength",
    "MaxLength",
    "MinValue",
    "MaxValue",
    "ConstraintDescription",
    "Description",
];

/// Types whose values are strings, alone or in `List<…>`.
const STRINGS: &[&str] = &[
    "String",
    "AWS::EC2::AvailabilityZone::Name",
    "AWS::EC2::Image::Id",
    "AWS::EC2::Instance::Id",
    "AWS::EC2::KeyPair::KeyName",
    "AWS::EC2::SecurityGroup::GroupName",
    "AWS::EC2::SecurityGroup::Id",
    "AWS::EC2::Subnet::Id",
    "AWS::EC2::VPC::Id",
    "AWS::EC2::Volume::Id",
    "AWS::Route53::HostedZone::Id",
    "AWS::SSM::Parameter::Name",
];

/// What values of a parameter look like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ParameterType {
    /// `String` and the AWS-specific types.
    #[default]
    String,
    /// `Number`: checked as one, but a string wherever it is used.
    Number,
    /// `CommaDelimitedList` and `List<…>` of AWS-specific types: strings.
    List,
    /// `List<Number>`
    NumberList,
    /// `AWS::SSM::Parameter::Value<…>`: the value names a parameter to be fetched.
    Fetched,
}

impl ParameterType {
    pub fn parse(name: &str) -> Option<Self> {
        let inner = |prefix: &str| name.strip_prefix(prefix)?.strip_suffix('>');
        Some(match name {
            "Number" => Self::Number,
            "CommaDelimitedList" => Self::List,
            "List<Number>" => Self::NumberList,
            _ if STRINGS.contains(&name) => Self::String,
            _ if inner("List<").is_some_and(|inner| STRINGS.contains(&inner)) => Self::List,
            _ if inner("AWS::SSM::Parameter::Value<").is_some() => Self::Fetched,
            _ => return None,
        })
    }

    pub const fn is_list(self) -> bool {
        matches!(self, Self::List | Self::NumberList)
    }

    const fn is_number(self) -> bool {
        matches!(self, Self::Number | Self::NumberList)
    }
}

/// A parameter as a template declares it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Parameter {
    pub kind: ParameterType,
    pub type_name: String,
    /// As text; a list is separated by commas.
    pub default: Option<String>,
    pub no_echo: bool,
    pub allowed_values: Option<Vec<String>>,
    /// A Java regular expression; the whole value has to match.
    pub allowed_pattern: Option<String>,
    /// In characters.
    pub min_length: Option<u64>,
    pub max_length: Option<u64>,
    pub min_value: Option<f64>,
    pub max_value: Option<f64>,
    pub constraint_description: Option<String>,
    pub description: Option<String>,
}

impl Parameter {
    /// Whether its value names a parameter to be fetched.
    pub fn is_fetched(&self) -> bool {
        self.kind == ParameterType::Fetched
    }

    /// Reads a declaration; `None` only after an error.
    pub(super) fn read(
        declaration: Map<String, Value>,
        reader: &mut Reader,
        at: &Place,
    ) -> Option<Parameter> {
        let name = at.path.last().map(String::as_str).unwrap_or_default();
        let mut parameter = Parameter::default();
        for (key, value) in declaration {
            let at = &at.down(key.as_str());
            match key.as_str() {
                "Type" => parameter.type_name = reader.string(value, at)?,
                "Default" => parameter.default = scalar(&value, reader, at),
                "NoEcho" => match value {
                    Value::Bool(flag) => parameter.no_echo = flag,
                    Value::String(text) if text.eq_ignore_ascii_case("true") => parameter.no_echo = true,
                    Value::String(text) if text.eq_ignore_ascii_case("false") => {}
                    // Doubt keeps the secret.
                    _ => {
                        parameter.no_echo = true;
                        reader.wrong("`NoEcho` must be true or false", at);
                    }
                },
                "AllowedValues" => match value {
                    Value::Array(items) => {
                        let texts = items.iter().filter_map(|item| scalar(item, reader, at));
                        parameter.allowed_values = Some(texts.collect());
                    }
                    other => {
                        reader.wrong(format!("`AllowedValues` must be a list, not {}", kind(&other)), at);
                    }
                },
                "AllowedPattern" => parameter.allowed_pattern = reader.string(value, at),
                "MinLength" => parameter.min_length = number(&value, reader, at),
                "MaxLength" => parameter.max_length = number(&value, reader, at),
                "MinValue" => parameter.min_value = number(&value, reader, at),
                "MaxValue" => parameter.max_value = number(&value, reader, at),
                "ConstraintDescription" => parameter.constraint_description = reader.string(value, at),
                "Description" => parameter.description = reader.string(value, at),
                other => reader.unknown_key(other, "attribute of a parameter", ATTRIBUTES, at),
            }
        }
        if parameter.type_name.is_empty() {
            reader.wrong(format!("parameter `{name}` has no `Type`"), at);
        } else if let Some(kind) = ParameterType::parse(&parameter.type_name) {
            parameter.kind = kind;
        } else {
            let known = STRINGS.iter().copied().chain(["Number", "List<Number>", "CommaDelimitedList"]);
            let near = nearest(&parameter.type_name, known).map(|near| format!("; did you mean `{near}`?"));
            let message =
                format!("`{}` is no type of a parameter{}", parameter.type_name, near.unwrap_or_default());
            reader.wrong(message, at);
        }
        Some(parameter)
    }

    /// What one value (or one element of a list) breaks, in words that do not repeat the value.
    pub(super) fn broken_by(&self, value: &str) -> Option<String> {
        if self.kind.is_number() {
            let Some(number) = value.trim().parse::<f64>().ok().filter(|number| number.is_finite()) else {
                return Some("must be a number".to_owned());
            };
            if let Some(min) = self.min_value.filter(|min| number < *min) {
                return Some(format!("must be at least {min}"));
            }
            if let Some(max) = self.max_value.filter(|max| number > *max) {
                return Some(format!("must be at most {max}"));
            }
        }
        let length = value.chars().count() as u64;
        if let Some(min) = self.min_length.filter(|min| length < *min) {
            return Some(format!("must be at least {min} characters long"));
        }
        if let Some(max) = self.max_length.filter(|max| length > *max) {
            return Some(format!("must be at most {max} characters long"));
        }
        if let Some(allowed) = &self.allowed_values
            && !allowed.iter().any(|allowed| allowed == value)
        {
            // What may be said of a password is not said.
            let list = allowed.iter().map(|value| format!("`{value}`")).collect::<Vec<_>>().join(", ");
            return Some(if self.no_echo {
                "must be one of the allowed values".to_owned()
            } else {
                format!("must be one of {list}")
            });
        }
        if let Some(pattern) = &self.allowed_pattern
            && self.pattern().is_some_and(|regex| !regex.is_match(value))
        {
            return Some(format!("must match the pattern `{pattern}`"));
        }
        None
    }

    /// The pattern, made to match the whole value; `None` if there is none or it uses constructs of Java that are
    /// not understood here (look-around, back references, Unicode classes).
    pub(super) fn pattern(&self) -> Option<Regex> {
        let pattern = self.allowed_pattern.as_deref()?;
        Regex::new(&format!(r"\A(?:{pattern})\z")).ok()
    }
}

fn scalar(value: &Value, reader: &mut Reader, at: &Place) -> Option<String> {
    let text = scalar_text(value);
    if let Some(call) = value.as_object().and_then(intrinsic::call) {
        reader.unsupported(&format!("`{}` in the declaration of a parameter", call.name), at);
    } else if text.is_none() {
        reader.wrong(format!("a value of a parameter must be a string, not {}", kind(value)), at);
    }
    text
}

/// Strings, numbers and booleans as the text they are.
pub(super) fn scalar_text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(flag) => Some(flag.to_string()),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}

/// A number, written as one or as a string.
fn number<T: std::str::FromStr>(value: &Value, reader: &mut Reader, at: &Place) -> Option<T> {
    let number = scalar_text(value).and_then(|text| text.parse().ok());
    if number.is_none() {
        reader.wrong(format!("`{}` must be a number", at.path.last().map_or("", String::as_str)), at);
    }
    number
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn parameter(declaration: &Value) -> Parameter {
        let mut reader = Reader { errors: Vec::new() };
        let declaration = declaration.as_object().unwrap().clone();
        let parameter = Parameter::read(declaration, &mut reader, &Place::stack("Web").down("P")).unwrap();
        assert_eq!(reader.errors, []);
        parameter
    }

    #[test]
    fn types() {
        let table = [
            ("String", Some(ParameterType::String)),
            ("Number", Some(ParameterType::Number)),
            ("CommaDelimitedList", Some(ParameterType::List)),
            ("List<Number>", Some(ParameterType::NumberList)),
            ("AWS::EC2::VPC::Id", Some(ParameterType::String)),
            ("List<AWS::EC2::Subnet::Id>", Some(ParameterType::List)),
            ("AWS::SSM::Parameter::Value<List<String>>", Some(ParameterType::Fetched)),
            ("AWS::SSM::Parameter::Name", Some(ParameterType::String)),
            ("List<AWS::EC2::Nothing>", None),
            ("string", None),
        ];
        for (name, expected) in table {
            assert_eq!(ParameterType::parse(name), expected, "{name}");
        }
    }

    #[test]
    fn t9_constraints() {
        let table = [
            (json!({"Type": "Number"}), "1.5", None),
            (json!({"Type": "Number"}), "x", Some("must be a number")),
            (json!({"Type": "Number"}), "inf", Some("must be a number")),
            (json!({"Type": "Number", "MinValue": 2}), "1", Some("must be at least 2")),
            (json!({"Type": "Number", "MaxValue": "2"}), "3", Some("must be at most 2")),
            (json!({"Type": "String", "MinLength": "2"}), "ä", Some("must be at least 2 characters long")),
            (json!({"Type": "String", "MaxLength": 2}), "äöü", Some("must be at most 2 characters long")),
            (json!({"Type": "String", "AllowedValues": ["a", 1]}), "1", None),
            (json!({"Type": "String", "AllowedValues": ["a", 1]}), "2", Some("must be one of `a`, `1`")),
            (json!({"Type": "String", "AllowedPattern": "[a-z]+|x"}), "abc", None),
            (
                json!({"Type": "String", "AllowedPattern": "[a-z]+|x"}),
                "abc1",
                Some("must match the pattern `[a-z]+|x`"),
            ),
            (json!({"Type": "String", "AllowedPattern": "(?=x)y"}), "abc", None),
            (
                json!({"Type": "String", "NoEcho": "true", "AllowedValues": ["hunter2"]}),
                "x",
                Some("must be one of the allowed values"),
            ),
        ];
        for (declaration, value, expected) in table {
            assert_eq!(
                parameter(&declaration).broken_by(value).as_deref(),
                expected,
                "{declaration} {value}"
            );
        }
    }
}
