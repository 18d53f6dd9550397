//! Templates of nested stacks: where they lie in an assembly (rule A32). They are never fetched from their URL.

use indexmap::IndexMap;
use serde_json::Value;

use super::asset_manifest::AssetManifest;
use super::path::resolve;
use crate::error::Result;
use crate::state::tree::NESTED;

/// The template of a nested stack, as it lies in the assembly.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NestedTemplate {
    /// Its path in the assembly, canonical.
    pub file: String,
    pub template: Vec<u8>,
}

/// The templates of the stacks nested directly in a template, by logical id: by `aws:asset:path`, as the CDK writes it,
/// else by the key under which an asset manifest publishes it. One that neither tells is left out.
///
/// `folder`: that of the stack's own template. Code: `UnsafeAssemblyPath`.
pub(super) fn places(
    template: &[u8],
    folder: &str,
    manifests: &[AssetManifest],
) -> Result<IndexMap<String, String>> {
    let mut places = IndexMap::new();
    // What is wrong with the template is told by whoever parses it.
    let Ok(template) = serde_json::from_slice::<Value>(template) else { return Ok(places) };
    for (logical_id, resource) in template["Resources"].as_object().into_iter().flatten() {
        if resource["Type"] != NESTED {
            continue;
        }
        let file = match resource["Metadata"]["aws:asset:path"].as_str() {
            Some(path) => Some(resolve(folder, path)?),
            None => published_as(&resource["Properties"]["TemplateURL"], manifests),
        };
        if let Some(file) = file {
            places.insert(logical_id.clone(), file);
        }
    }
    Ok(places)
}

/// The file whose key in its bucket ends the address.
fn published_as(url: &Value, manifests: &[AssetManifest]) -> Option<String> {
    let mut texts = Vec::new();
    collect(url, &mut texts);
    let ends = |key: &str| {
        texts.iter().any(|text| text.strip_suffix(key).is_some_and(|before| before.ends_with('/')))
    };
    manifests
        .iter()
        .flat_map(|manifest| manifest.files.values())
        .find(|file| file.destinations.values().any(|destination| ends(&destination.key)))
        .and_then(|file| file.path())
        .map(str::to_owned)
}

fn collect<'v>(value: &'v Value, texts: &mut Vec<&'v str>) {
    match value {
        Value::String(text) => texts.push(text),
        Value::Array(items) => items.iter().for_each(|item| collect(item, texts)),
        Value::Object(fields) => fields.values().for_each(|item| collect(item, texts)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Code;
    use serde_json::json;

    fn place(resource: &Value, folder: &str) -> Result<Option<String>> {
        let manifest = json!({"version": "36.0.0", "files": {"t": {
            "source": {"path": "C.nested.template.json", "packaging": "file"},
            "destinations": {"here": {"bucketName": "b", "objectKey": "pre/abc.json"}},
        }}});
        let path = format!("{folder}/S.assets.json");
        let path = path.trim_start_matches('/');
        let manifest = AssetManifest::parse(manifest.to_string().as_bytes(), path).unwrap();
        let mut resource = resource.clone();
        resource["Type"] = json!(NESTED);
        let template = json!({"Resources": {"C": resource, "Q": {"Type": "AWS::SQS::Queue"}}});
        Ok(places(template.to_string().as_bytes(), folder, &[manifest])?.shift_remove("C"))
    }

    #[test]
    fn a32_found_by_path_else_by_its_key_and_never_fetched() {
        let url = |url: Value| json!({"Properties": {"TemplateURL": url}});
        let join = json!({"Fn::Join": ["", ["https://s3.", {"Ref": "AWS::URLSuffix"}, "/b/pre/abc.json"]]});
        let mut both = url(join.clone());
        both["Metadata"] = json!({"aws:asset:path": "../X.json"});
        let table = [
            (both, "assembly-A", Some("X.json")),
            (url(join.clone()), "", Some("C.nested.template.json")),
            (url(join), "assembly-A", Some("assembly-A/C.nested.template.json")),
            (
                url(json!({"Fn::Sub": "https://${AWS::Region}/b/pre/abc.json"})),
                "",
                Some("C.nested.template.json"),
            ),
            (url(json!("https://elsewhere/b/other-pre/abc.json")), "", None),
            (url(json!("https://elsewhere/template.json")), "", None),
            (json!({}), "", None),
        ];
        for (resource, folder, expected) in table {
            assert_eq!(place(&resource, folder).unwrap().as_deref(), expected, "{resource} in `{folder}`");
        }
        let outside = json!({"Metadata": {"aws:asset:path": "../../etc/x"}});
        assert_eq!(place(&outside, "a").unwrap_err().code(), Code::UnsafeAssemblyPath);
    }
}
