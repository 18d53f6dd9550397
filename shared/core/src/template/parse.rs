//! From bytes to a [`Template`]: form only, no names. All errors of the document are told at once.
//!
//! Source: AWS CloudFormation User Guide, "CloudFormation template sections" and "Resource attribute reference".

use indexmap::IndexMap;
use serde_json::{Map, Value};

use super::intrinsic::UNTIL_LATER;
use super::parameters::Parameter;
use super::{DeletionPolicy, Output, Resource, Template};
use crate::error::{Code, Error, Place, Result, nearest};

const SECTIONS: &[&str] = &[
    "AWSTemplateFormatVersion",
    "Description",
    "Metadata",
    "Parameters",
    "Rules",
    "Mappings",
    "Conditions",
    "Transform",
    "Resources",
    "Outputs",
    "Hooks",
];

const RESOURCE_ATTRIBUTES: &[&str] = &[
    "Type",
    "Properties",
    "DependsOn",
    "Condition",
    "DeletionPolicy",
    "UpdateReplacePolicy",
    "Metadata",
    "UpdatePolicy",
    "CreationPolicy",
];

const OUTPUT_ATTRIBUTES: &[&str] = &["Value", "Export", "Condition", "Description"];

impl Template {
    /// Reads a template document: JSON, in UTF-8.
    ///
    /// # Errors
    /// [`Code::InvalidTemplate`] with `line` and `column` if it is no JSON, with a path if a section does not have
    /// the documented form; [`Code::UnsupportedIntrinsic`] for macros in places where a name has to stand.
    pub fn parse(bytes: &[u8], stack: &str) -> Result<Template> {
        let root = Place::stack(stack);
        let document = document(bytes).map_err(|error| error.place(&root))?;
        let mut reader = Reader { errors: Vec::new() };
        let mut template = Template { stack: stack.to_owned(), ..Template::default() };
        for (section, value) in document {
            let at = root.down(section.as_str());
            match section.as_str() {
                "AWSTemplateFormatVersion" => {
                    if value != "2010-09-09" {
                        reader.wrong("`AWSTemplateFormatVersion` must be \"2010-09-09\"", &at);
                    }
                }
                "Description" => template.description = reader.string(value, &at),
                "Metadata" => template.metadata = reader.object(value, &at).unwrap_or_default().into(),
                "Rules" => template.rules = reader.object(value, &at).unwrap_or_default().into(),
                "Transform" => template.transform = reader.transform(value, &at),
                "Parameters" => {
                    template.parameters = reader.entries(value, &at, Reader::parameter);
                }
                "Mappings" => template.mappings = reader.entries(value, &at, Reader::mapping),
                "Conditions" => {
                    template.conditions = reader.entries(value, &at, |_, value, _| Some(value));
                }
                "Resources" => template.resources = reader.entries(value, &at, Reader::resource),
                "Outputs" => template.outputs = reader.entries(value, &at, Reader::output),
                "Hooks" => reader.unsupported("the section `Hooks`", &at),
                other if other.starts_with("Fn::") => reader.unsupported(&format!("`{other}`"), &at),
                other => reader.unknown_key(other, "section of a template", SECTIONS, &at),
            }
        }
        Error::all(reader.errors)?;
        Ok(template)
    }
}

/// The outermost object.
fn document(bytes: &[u8]) -> Result<Map<String, Value>> {
    let bytes = bytes.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(bytes);
    if bytes.iter().all(u8::is_ascii_whitespace) {
        return Err(Error::new(Code::InvalidTemplate, "the template is empty"));
    }
    match serde_json::from_slice(bytes) {
        Ok(Value::Object(document)) => Ok(document),
        Ok(other) => {
            Err(Error::new(Code::InvalidTemplate, format!("a template is an object, not {}", kind(&other))))
        }
        Err(error) => {
            let (line, column) = (error.line(), error.column());
            let reason = if error.is_eof() { "it ends too early" } else { "a syntax error" };
            Err(Error::new(
                Code::InvalidTemplate,
                format!("the template is not JSON: {reason} at line {line}, column {column}"),
            )
            .hint("cdkd reads templates as CDK writes them, in JSON; YAML is not read")
            .detail("line", line)
            .detail("column", column))
        }
    }
}

/// What a value is, with its article.
pub(super) fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

/// Takes a document apart and collects what is wrong with it; a part that is wrong is left out.
pub(super) struct Reader {
    pub errors: Vec<Error>,
}

impl Reader {
    pub fn wrong(&mut self, message: impl Into<String>, at: &Place) {
        self.errors.push(Error::new(Code::InvalidTemplate, message).place(at));
    }

    pub fn unsupported(&mut self, what: &str, at: &Place) {
        let message = format!("{what} is not supported by this release");
        self.errors.push(Error::new(Code::UnsupportedIntrinsic, message).hint(UNTIL_LATER).place(at));
    }

    fn must_be(&mut self, expected: &str, found: &Value, at: &Place) {
        let name = at.path.last().map_or("the template", String::as_str);
        self.wrong(format!("`{name}` must be {expected}, not {}", kind(found)), at);
    }

    pub fn unknown_key(&mut self, key: &str, what: &str, known: &[&str], at: &Place) {
        let mut error = Error::new(Code::InvalidTemplate, format!("`{key}` is no {what}")).place(at);
        if let Some(near) = nearest(key, known.iter().copied()) {
            error = error.hint(format!("did you mean `{near}`?"));
        }
        self.errors.push(error);
    }

    pub fn string(&mut self, value: Value, at: &Place) -> Option<String> {
        match value {
            Value::String(text) => Some(text),
            other => {
                self.must_be("a string", &other, at);
                None
            }
        }
    }

    pub fn object(&mut self, value: Value, at: &Place) -> Option<Map<String, Value>> {
        match value {
            Value::Object(map) => Some(map),
            other => {
                self.must_be("an object", &other, at);
                None
            }
        }
    }

    /// A section of named entries.
    fn entries<T>(
        &mut self,
        value: Value,
        at: &Place,
        read: impl Fn(&mut Self, Value, &Place) -> Option<T>,
    ) -> IndexMap<String, T> {
        let mut entries = IndexMap::new();
        for (name, value) in self.object(value, at).unwrap_or_default() {
            let at = at.down(name.as_str());
            if name.starts_with("Fn::") {
                self.unsupported(&format!("`{name}`"), &at);
                continue;
            }
            if name.is_empty() || name.len() > 255 || !name.chars().all(|c| c.is_ascii_alphanumeric()) {
                let message = format!("the name `{name}` must be letters and digits, at most 255 of them");
                self.wrong(message, &at);
                continue;
            }
            if let Some(entry) = read(self, value, &at) {
                entries.insert(name, entry);
            }
        }
        entries
    }

    fn parameter(&mut self, value: Value, at: &Place) -> Option<Parameter> {
        let declaration = self.object(value, at)?;
        Parameter::read(declaration, self, at)
    }

    fn mapping(&mut self, value: Value, at: &Place) -> Option<IndexMap<String, Map<String, Value>>> {
        fn scalar(value: &Value) -> bool {
            matches!(value, Value::String(_) | Value::Number(_) | Value::Bool(_))
        }
        let mut mapping = IndexMap::new();
        for (top, row) in self.object(value, at)? {
            let at = at.down(top.as_str());
            if top.starts_with("Fn::") {
                self.unsupported(&format!("`{top}` in a mapping"), &at);
                continue;
            }
            let Some(row) = self.object(row, &at) else { continue };
            for (second, value) in &row {
                if !(scalar(value) || value.as_array().is_some_and(|items| items.iter().all(scalar))) {
                    self.must_be("a string, a number, a boolean or a list of them", value, &at.down(second));
                }
            }
            mapping.insert(top, row);
        }
        Some(mapping)
    }

    fn transform(&mut self, value: Value, at: &Place) -> Vec<String> {
        match value {
            Value::String(name) => vec![name],
            Value::Array(items) => items
                .into_iter()
                .enumerate()
                .flat_map(|(i, v)| self.transform(v, &at.down(i.to_string())))
                .collect(),
            Value::Object(mut map) => {
                if let Some(Value::String(name)) = map.remove("Name") {
                    return vec![name];
                }
                self.wrong("a macro needs a `Name`", at);
                Vec::new()
            }
            other => {
                self.must_be("a string, a list or an object", &other, at);
                Vec::new()
            }
        }
    }

    fn resource(&mut self, value: Value, at: &Place) -> Option<Resource> {
        let logical_id = at.path.last().cloned().unwrap_or_default();
        let at = &at.clone().at(logical_id.as_str());
        let mut resource = Resource { properties: Map::new().into(), ..Resource::default() };
        for (key, value) in self.object(value, at)? {
            let at = &at.down(key.as_str());
            match key.as_str() {
                "Type" => resource.type_name = self.string(value, at).unwrap_or_default(),
                "Properties" => {
                    if let Some(name) =
                        value.as_object().and_then(|map| map.keys().find(|k| k.starts_with("Fn::")))
                    {
                        self.unsupported(&format!("`{name}` around all properties of a resource"), at);
                    }
                    resource.properties = self.object(value, at).unwrap_or_default().into();
                }
                "DependsOn" => resource.depends_on = self.depends_on(value, at),
                "Condition" => resource.condition = self.string(value, at),
                "DeletionPolicy" => resource.deletion_policy = self.policy(&value, at),
                "UpdateReplacePolicy" => {
                    resource.update_replace_policy = self.policy(&value, at);
                    if resource.update_replace_policy == Some(DeletionPolicy::RetainExceptOnCreate) {
                        self.wrong("`UpdateReplacePolicy` cannot be `RetainExceptOnCreate`", at);
                    }
                }
                "Metadata" => resource.metadata = self.object(value, at).unwrap_or_default().into(),
                "UpdatePolicy" => resource.update_policy = self.object(value, at).unwrap_or_default().into(),
                "CreationPolicy" => {
                    resource.creation_policy = self.object(value, at).unwrap_or_default().into();
                }
                other if other.starts_with("Fn::") => self.unsupported(&format!("`{other}`"), at),
                other => self.unknown_key(other, "attribute of a resource", RESOURCE_ATTRIBUTES, at),
            }
        }
        if resource.type_name.is_empty() {
            self.wrong(format!("resource `{logical_id}` has no `Type`"), at);
        }
        Some(resource)
    }

    fn depends_on(&mut self, value: Value, at: &Place) -> Vec<String> {
        match value {
            Value::String(name) => vec![name],
            Value::Array(items) => items
                .into_iter()
                .enumerate()
                .filter_map(|(i, v)| self.string(v, &at.down(i.to_string())))
                .collect(),
            other => {
                self.must_be("a logical id or a list of them", &other, at);
                Vec::new()
            }
        }
    }

    fn policy(&mut self, value: &Value, at: &Place) -> Option<DeletionPolicy> {
        if value.is_object() {
            self.unsupported("a policy that is computed by a function", at);
            return None;
        }
        let policy = value.as_str().and_then(DeletionPolicy::parse);
        if policy.is_none() {
            let known = DeletionPolicy::ALL.map(|policy| format!("`{}`", policy.name())).join(", ");
            let found = value.as_str().map_or_else(|| kind(value).to_owned(), |name| format!("`{name}`"));
            self.wrong(format!("a policy is one of {known}, not {found}"), at);
        }
        policy
    }

    fn output(&mut self, value: Value, at: &Place) -> Option<Output> {
        let mut output = Output::default();
        let mut has_value = false;
        for (key, value) in self.object(value, at)? {
            let at = &at.down(key.as_str());
            match key.as_str() {
                "Value" => {
                    has_value = true;
                    output.value = value;
                }
                "Export" => {
                    let mut export = self.object(value, at)?;
                    output.export_name = export.remove("Name");
                    if output.export_name.is_none() || !export.is_empty() {
                        self.wrong("`Export` has a `Name` and nothing else", at);
                    }
                }
                "Condition" => output.condition = self.string(value, at),
                "Description" => output.description = self.string(value, at),
                other => self.unknown_key(other, "attribute of an output", OUTPUT_ATTRIBUTES, at),
            }
        }
        if !has_value {
            self.wrong("an output needs a `Value`", at);
        }
        Some(output)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn every_section_is_read() {
        let document = json!({
            "AWSTemplateFormatVersion": "2010-09-09",
            "Description": "a stack",
            "Metadata": {"A": 1},
            "Parameters": {"P": {"Type": "String"}},
            "Rules": {"R": {"Assertions": [{"Assert": {"Fn::Contains": [["1"], {"Ref": "P"}]}}]}},
            "Mappings": {"M": {"k": {"a": "x", "b": ["y"], "c": true}}},
            "Conditions": {"C": {"Fn::Equals": ["a", "b"]}},
            "Transform": ["AWS::LanguageExtensions", {"Name": "AWS::Include"}],
            "Resources": {"R": {
                "Type": "AWS::SNS::Topic", "Properties": {"Ref": "x"}, "DependsOn": "S", "Condition": "C",
                "DeletionPolicy": "RetainExceptOnCreate", "UpdateReplacePolicy": "Snapshot", "Metadata": {"m": 1},
                "UpdatePolicy": {}, "CreationPolicy": {},
            }, "S": {"Type": "Custom::S", "DependsOn": ["A", "B"]}},
            "Outputs": {"O": {"Value": null, "Export": {"Name": {"Fn::Sub": "x"}}, "Condition": "C", "Description": "d"}},
        });
        let template = Template::parse(document.to_string().as_bytes(), "Web").unwrap();
        assert_eq!(template.transform, ["AWS::LanguageExtensions", "AWS::Include"]);
        let resource = &template.resources["R"];
        assert_eq!(resource.depends_on, ["S"]);
        assert_eq!(resource.deletion_policy, Some(DeletionPolicy::RetainExceptOnCreate));
        assert_eq!(resource.update_replace_policy, Some(DeletionPolicy::Snapshot));
        assert_eq!(resource.properties, json!({"Ref": "x"}));
        assert_eq!(template.resources["S"].depends_on, ["A", "B"]);
        assert_eq!(template.outputs["O"].export_name, Some(json!({"Fn::Sub": "x"})));
        assert_eq!(template.stack, "Web");
    }

    #[test]
    fn a_document_that_is_no_template() {
        let table = [
            ("", "the template is empty"),
            (" \n", "the template is empty"),
            ("[]", "a template is an object, not a list"),
            ("null", "a template is an object, not null"),
            ("{", "the template is not JSON: it ends too early at line 1, column 1"),
            ("Resources:\n  A:", "the template is not JSON: a syntax error at line 1, column 1"),
            ("{\n  \"A\": x}", "the template is not JSON: a syntax error at line 2, column 8"),
        ];
        for (text, message) in table {
            let error = Template::parse(text.as_bytes(), "Web").unwrap_err();
            assert_eq!((error.code(), error.message()), (Code::InvalidTemplate, message), "{text}");
        }
        let error = Template::parse(b"{\n  \"A\": x}", "Web").unwrap_err();
        assert_eq!((&error.details()["line"], &error.details()["column"]), (&json!(2), &json!(8)));
    }

    #[test]
    fn every_malformed_section_is_an_error_with_its_path() {
        let table = [
            (json!({"Resource": {}}), "`Resource` is no section of a template", "Resource"),
            (json!({"Resources": []}), "`Resources` must be an object, not a list", "Resources"),
            (json!({"Resources": {"A": 1}}), "`A` must be an object, not a number", "Resources.A"),
            (json!({"Resources": {"A": {}}}), "resource `A` has no `Type`", "Resources.A"),
            (
                json!({"Resources": {"A": {"Type": "T", "Propertys": {}}}}),
                "`Propertys` is no attribute of a resource",
                "Resources.A.Propertys",
            ),
            (
                json!({"Resources": {"A": {"Type": "T", "DependsOn": [1]}}}),
                "`0` must be a string, not a number",
                "Resources.A.DependsOn.0",
            ),
            (
                json!({"Resources": {"A": {"Type": "T", "DeletionPolicy": "Keep"}}}),
                "a policy is one of `Delete`, `Retain`, `RetainExceptOnCreate`, `Snapshot`, not `Keep`",
                "Resources.A.DeletionPolicy",
            ),
            (
                json!({"Resources": {"A-b": {"Type": "T"}}}),
                "the name `A-b` must be letters and digits, at most 255 of them",
                "Resources.A-b",
            ),
            (json!({"Outputs": {"O": {}}}), "an output needs a `Value`", "Outputs.O"),
            (
                json!({"Outputs": {"O": {"Value": 1, "Export": {}}}}),
                "`Export` has a `Name` and nothing else",
                "Outputs.O.Export",
            ),
            (
                json!({"Mappings": {"M": {"a": {"b": null}}}}),
                "`b` must be a string, a number, a boolean or a list of them, not null",
                "Mappings.M.a.b",
            ),
            (json!({"Parameters": {"P": {}}}), "parameter `P` has no `Type`", "Parameters.P"),
            (
                json!({"AWSTemplateFormatVersion": "2012"}),
                "`AWSTemplateFormatVersion` must be \"2010-09-09\"",
                "AWSTemplateFormatVersion",
            ),
        ];
        for (document, message, path) in table {
            let error = Template::parse(document.to_string().as_bytes(), "Web").unwrap_err();
            assert_eq!((error.code(), error.message()), (Code::InvalidTemplate, message), "{document}");
            assert_eq!(error.where_().unwrap().path.join("."), path);
        }
    }

    #[test]
    fn macros_where_names_have_to_stand_are_refused_by_name() {
        for (document, name) in [
            (json!({"Resources": {"Fn::ForEach::Topics": []}}), "Fn::ForEach::Topics"),
            (json!({"Fn::Transform": {"Name": "AWS::Include"}}), "Fn::Transform"),
            (json!({"Mappings": {"Fn::Transform": {}}}), "Fn::Transform"),
            (json!({"Hooks": {}}), "Hooks"),
            (
                json!({"Parameters": {"P": {"Type": "String", "Default": {"Fn::ImportValue": "x"}}}}),
                "Fn::ImportValue",
            ),
            (json!({"Resources": {"A": {"Type": "T", "DeletionPolicy": {"Fn::If": []}}}}), "a policy"),
        ] {
            let error = Template::parse(document.to_string().as_bytes(), "Web").unwrap_err();
            assert_eq!(error.code(), Code::UnsupportedIntrinsic);
            assert!(error.message().contains(name), "{error}");
        }
    }

    #[test]
    fn all_errors_at_once() {
        let document = json!({"Resource": {}, "Outputs": {"O": {}}});
        let error = Template::parse(document.to_string().as_bytes(), "Web").unwrap_err();
        assert_eq!(error.details()["errors"].as_array().unwrap().len(), 2);
        assert_eq!(error.hint_text(), Some("did you mean `Resources`?"));
    }
}
