//! What constructs said during synthesis: the metadata of a stack's artifact.

use serde_json::Value;

use super::fields::{Fields, json};
use crate::error::{Code, Result};

/// A message that a construct left with `Annotations.of(…)`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Annotation {
    pub level: Level,
    /// Path of the construct, such as `/Stack/Bucket`.
    pub construct: String,
    pub text: String,
}

/// How much an annotation weighs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    Warning,
    Error,
}

/// The part of a stack's metadata that a deploy needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Metadata {
    pub annotations: Vec<Annotation>,
    /// Tags as CDK 1 wrote them, before they became a property of the artifact: key, value.
    pub stack_tags: Vec<(String, String)>,
    /// Constructs with an asset of the legacy synthesizer, which wrote no asset manifest.
    pub legacy_assets: Vec<String>,
}

impl Metadata {
    /// Parses the file named by an artifact's `additionalMetadataFile`: the construct's path → its entries.
    pub fn parse(bytes: &[u8], path: &str) -> Result<Self> {
        let document = format!("the metadata file `{path}`");
        let value = json(bytes, Code::InvalidAssembly, &document)?;
        Ok(Self::read(&Fields::root(&value, Code::InvalidAssembly, &document)?))
    }

    /// Reads `{construct: [{type, data}]}`. Entries of other forms are other programs' business and pass.
    pub(super) fn read(fields: &Fields<'_>) -> Self {
        let mut metadata = Self::default();
        for (construct, entries) in fields.iter() {
            for entry in entries.as_array().into_iter().flatten() {
                let (kind, data) = (entry.get("type").and_then(Value::as_str), entry.get("data"));
                match kind.unwrap_or_default() {
                    "aws:cdk:error" => metadata.annotate(Level::Error, construct, data),
                    "aws:cdk:warning" => metadata.annotate(Level::Warning, construct, data),
                    "aws:cdk:stack-tags" => {
                        metadata
                            .stack_tags
                            .extend(data.and_then(Value::as_array).into_iter().flatten().filter_map(tag));
                    }
                    "aws:cdk:asset" => metadata.legacy_assets.push(construct.to_owned()),
                    _ => {}
                }
            }
        }
        metadata
    }

    /// Adds what another document says about the same stack.
    pub fn merge(&mut self, other: Self) {
        for annotation in other.annotations {
            if !self.annotations.contains(&annotation) {
                self.annotations.push(annotation);
            }
        }
        self.stack_tags.extend(other.stack_tags);
        self.legacy_assets.extend(other.legacy_assets);
    }

    fn annotate(&mut self, level: Level, construct: &str, data: Option<&Value>) {
        let text = match data {
            Some(Value::String(text)) => text.clone(),
            Some(other) => other.to_string(),
            None => String::new(),
        };
        self.annotations.push(Annotation { level, construct: construct.to_owned(), text });
    }
}

/// CDK wrote both `key` and `Key`, depending on its version.
fn tag(item: &Value) -> Option<(String, String)> {
    let part = |lower: &str, upper: &str| item.get(lower).or_else(|| item.get(upper)).and_then(Value::as_str);
    Some((part("key", "Key")?.to_owned(), part("value", "Value")?.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn entries_that_matter_are_kept_and_others_pass() {
        let file = json!({
            "/S": [
                {"type": "aws:cdk:stack-tags", "data": [{"Key": "a", "Value": "1"}, {"key": "b", "value": "2"}, 7]},
                {"type": "aws:cdk:logicalId", "data": "X"},
            ],
            "/S/A": [{"type": "aws:cdk:error", "data": "no"}, {"type": "aws:cdk:warning", "data": {"why": 1}}],
            "/S/B": [{"type": "aws:cdk:asset", "data": {}}, {"data": 1}, 3],
            "/S/C": "odd",
        });
        let metadata = Metadata::parse(file.to_string().as_bytes(), "S.metadata.json").unwrap();
        assert_eq!(metadata.stack_tags, [("a".into(), "1".into()), ("b".into(), "2".into())]);
        assert_eq!(metadata.legacy_assets, ["/S/B"]);
        let texts: Vec<_> =
            metadata.annotations.iter().map(|note| (note.level, note.text.as_str())).collect();
        assert_eq!(texts, [(Level::Error, "no"), (Level::Warning, "{\"why\":1}")]);
    }

    #[test]
    fn f5_a_metadata_file_that_does_not_parse_is_named() {
        let error = Metadata::parse(b"{", "S.metadata.json").unwrap_err();
        assert_eq!(error.code(), Code::InvalidAssembly);
        assert!(error.message().contains("`S.metadata.json`"), "{error}");
    }
}
