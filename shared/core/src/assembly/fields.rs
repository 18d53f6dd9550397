//! Typed reading of JSON documents that people and other programs wrote (rule F5): unknown fields pass, a field of the
//! wrong type is named with the form it should have. Values are never repeated: they may be secrets.

use indexmap::IndexMap;
use serde_json::{Map, Value};

use super::limits::MAX_DOCUMENT;
use crate::error::{Code, Error, Result};

/// An object of a document, with its place in it. `null` is as good as absent, as a state machine writes it.
#[derive(Clone, Debug)]
pub(super) struct Fields<'a> {
    map: &'a Map<String, Value>,
    code: Code,
    /// The document, for messages: ``the manifest `manifest.json` ``.
    document: &'a str,
    /// Keys from the document's root to this object, joined by dots; empty for the root.
    at: String,
}

impl<'a> Fields<'a> {
    /// The root of a document, which has to be an object.
    pub fn root(value: &'a Value, code: Code, document: &'a str) -> Result<Self> {
        match value {
            Value::Object(map) => Ok(Self { map, code, document, at: String::new() }),
            _ => Err(Error::new(code, format!("{document} is no JSON object"))),
        }
    }

    /// The error that the field `key` is not of the form `expected`.
    pub fn wrong(&self, key: &str, expected: &str) -> Error {
        let field = self.name(key);
        Error::new(self.code, format!("field `{field}` of {} has to be {expected}", self.document))
            .detail("field", field)
            .detail("expected", expected)
    }

    pub fn text(&self, key: &str) -> Result<Option<&'a str>> {
        self.field(key, "a string", Value::as_str)
    }

    pub fn required_text(&self, key: &str) -> Result<&'a str> {
        match self.text(key)? {
            Some(text) if !text.is_empty() => Ok(text),
            _ => Err(self.wrong(key, "a string that is not empty")),
        }
    }

    pub fn owned_text(&self, key: &str) -> Result<Option<String>> {
        Ok(self.text(key)?.map(str::to_owned))
    }

    pub fn flag(&self, key: &str) -> Result<Option<bool>> {
        self.field(key, "true or false", Value::as_bool)
    }

    pub fn count(&self, key: &str) -> Result<Option<u32>> {
        self.field(key, "a whole number that is not negative", |value| value.as_u64()?.try_into().ok())
    }

    /// A list of strings; empty when absent.
    pub fn texts(&self, key: &str) -> Result<Vec<String>> {
        let list = |value: &'a Value| {
            value.as_array()?.iter().map(|item| item.as_str().map(str::to_owned)).collect::<Option<Vec<_>>>()
        };
        Ok(self.field(key, "a list of strings", list)?.unwrap_or_default())
    }

    /// A map of strings, in the document's order; empty when absent. Numbers and booleans are taken as their text, as
    /// AWS takes them.
    pub fn text_map(&self, key: &str) -> Result<IndexMap<String, String>> {
        let map = |value: &'a Value| {
            value.as_object()?.iter().map(|(key, item)| Some((key.clone(), scalar_text(item)?))).collect()
        };
        Ok(self.field(key, "a map of strings", map)?.unwrap_or_default())
    }

    /// An object.
    pub fn object(&self, key: &str) -> Result<Option<Fields<'a>>> {
        Ok(self.field(key, "an object", Value::as_object)?.map(|map| self.below(key, map)))
    }

    /// A map of objects, in the document's order; empty when absent.
    pub fn objects(&self, key: &str) -> Result<Vec<(&'a str, Fields<'a>)>> {
        let Some(outer) = self.object(key)? else { return Ok(Vec::new()) };
        outer
            .map
            .keys()
            .filter_map(|name| outer.object(name).transpose().map(|inner| Ok((name.as_str(), inner?))))
            .collect()
    }

    /// A list of objects; empty when absent.
    pub fn object_list(&self, key: &str) -> Result<Vec<Fields<'a>>> {
        let Some(items) = self.field(key, "a list of objects", Value::as_array)? else {
            return Ok(Vec::new());
        };
        items
            .iter()
            .enumerate()
            .map(|(n, item)| match item {
                Value::Object(map) => Ok(self.below(&format!("{key}.{n}"), map)),
                _ => Err(self.wrong(key, "a list of objects")),
            })
            .collect()
    }

    /// The fields as they are; `null` is absent.
    pub fn iter(&self) -> impl Iterator<Item = (&'a str, &'a Value)> + use<'a> {
        self.map.iter().filter(|(_, value)| !value.is_null()).map(|(key, value)| (key.as_str(), value))
    }

    pub fn get(&self, key: &str) -> Option<&'a Value> {
        self.map.get(key).filter(|value| !value.is_null())
    }

    fn field<T>(
        &self,
        key: &str,
        expected: &str,
        read: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>> {
        match self.get(key) {
            None => Ok(None),
            Some(value) => read(value).map(Some).ok_or_else(|| self.wrong(key, expected)),
        }
    }

    fn below(&self, key: &str, map: &'a Map<String, Value>) -> Fields<'a> {
        Fields { map, code: self.code, document: self.document, at: self.name(key) }
    }

    fn name(&self, key: &str) -> String {
        if self.at.is_empty() { key.to_owned() } else { format!("{}.{key}", self.at) }
    }
}

/// A string, number or boolean as text.
pub(super) fn scalar_text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(flag) => Some(flag.to_string()),
        _ => None,
    }
}

/// Parses a document of the assembly. `document` names it in errors of the given code.
pub(super) fn json(bytes: &[u8], code: Code, document: &str) -> Result<Value> {
    if bytes.len() as u64 > MAX_DOCUMENT {
        return Err(Error::new(
            Code::AssemblyTooLarge,
            format!("{document} has {} bytes; a document may have {MAX_DOCUMENT}", bytes.len()),
        ));
    }
    serde_json::from_slice(bytes).map_err(|error| {
        // The parser's own message may quote the document.
        Error::new(code, format!("{document} is not JSON (line {}, column {})", error.line(), error.column()))
            .hint("run `cdk synth` again and upload the whole `cdk.out`")
    })
}
