//! `manifest.json`: the artifacts of one assembly.

use indexmap::IndexMap;
use serde_json::Value;

use super::fields::{Fields, json};
use super::metadata::Metadata;
use super::path::resolve;
use crate::error::{Code, Error, Result};

/// The newest schema of cloud assemblies that is understood: the major version in `manifest.json` and `*.assets.json`.
/// It is the schema that aws-cdk-lib 2.276.0 writes. Each addition to the schema raises it, and a tool that does not
/// know an addition may deploy something else than the app says, so newer ones are refused, as the CDK CLI does.
pub const MAX_SCHEMA: u64 = 55;

/// One `manifest.json`.
#[derive(Clone, Debug, PartialEq)]
pub struct Manifest {
    /// The schema's version as written, such as `55.0.0`.
    pub version: String,
    /// Artifacts by id, in the manifest's order.
    pub artifacts: IndexMap<String, Artifact>,
    /// Context values that synthesis did without.
    pub missing: Vec<MissingContext>,
}

/// A context value that synthesis did without, using a placeholder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissingContext {
    /// The key in `cdk.context.json`.
    pub key: String,
    /// What looks it up, such as `vpc-provider`.
    pub provider: String,
}

/// An artifact, and the artifacts of the same manifest that have to be there before it.
#[derive(Clone, Debug, PartialEq)]
pub struct Artifact {
    pub dependencies: Vec<String>,
    pub kind: ArtifactKind,
}

/// What an artifact is.
#[derive(Clone, Debug, PartialEq)]
pub enum ArtifactKind {
    /// `aws:cloudformation:stack`
    Stack(Box<StackArtifact>),
    /// `cdk:asset-manifest`
    AssetManifest {
        /// Path of the asset manifest, canonical.
        file: String,
    },
    /// `cdk:cloud-assembly`: a stage.
    Assembly {
        /// Folder with a manifest of its own, canonical.
        folder: String,
        display_name: Option<String>,
    },
    /// `cdk:tree` and what else is of no concern to a deploy.
    Other(String),
}

/// An artifact `aws:cloudformation:stack`. Paths are canonical: relative to the root of the outermost assembly.
#[derive(Clone, Debug, PartialEq)]
pub struct StackArtifact {
    /// Id of the artifact, unique within its manifest.
    pub id: String,
    /// The stack's name; the id when the manifest has none.
    pub name: String,
    /// The construct's path, such as `Stage/Stack`; the id when the manifest has none.
    pub display_name: String,
    pub environment: Environment,
    /// Path of the template.
    pub template: String,
    pub parameters: IndexMap<String, String>,
    pub tags: IndexMap<String, String>,
    pub termination_protection: bool,
    pub notification_arns: Vec<String>,
    /// Where CDK's own deploy would upload the template (`stackTemplateAssetObjectUrl`), with placeholders.
    pub template_url: Option<String>,
    pub validate_on_synth: bool,
    pub metadata: Metadata,
    /// Path of a file with more metadata.
    pub metadata_file: Option<String>,
}

impl StackArtifact {
    /// The names that an input may call it by: stack name, display name and artifact id.
    pub fn names(&self) -> [&str; 3] {
        [&self.name, &self.display_name, &self.id]
    }
}

/// Where a stack lives; `None` is "wherever the deploy runs". Texts as written: only those of selected stacks need
/// to be right.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Environment {
    pub account: Option<String>,
    pub region: Option<String>,
}

impl Environment {
    /// Parses `aws://account/region`, where `unknown-account` and `unknown-region` stand for none.
    pub fn parse(text: &str) -> Option<Self> {
        let (account, region) = text.strip_prefix("aws://")?.split_once('/')?;
        if account.is_empty() || region.is_empty() || region.contains('/') {
            return None;
        }
        Some(Self {
            account: (account != "unknown-account").then(|| account.to_owned()),
            region: (region != "unknown-region").then(|| region.to_owned()),
        })
    }
}

impl Manifest {
    /// Parses a manifest.
    ///
    /// `folder`: the canonical folder it lies in, empty for the root. Codes: `InvalidAssembly` (not JSON, a field of
    /// the wrong form), `UnsupportedAssemblyVersion`, `UnsafeAssemblyPath`.
    pub fn parse(bytes: &[u8], folder: &str) -> Result<Self> {
        let path = resolve(folder, "manifest.json")?;
        let document = format!("the manifest `{path}`");
        let value = json(bytes, Code::InvalidAssembly, &document)?;
        let fields = Fields::root(&value, Code::InvalidAssembly, &document)?;
        let version = check_version(&fields, &document)?;
        let mut artifacts = IndexMap::new();
        for (id, artifact) in fields.objects("artifacts")? {
            artifacts.insert(id.to_owned(), self::artifact(id, &artifact, folder)?);
        }
        let missing = fields
            .object_list("missing")?
            .iter()
            .map(|item| {
                Ok(MissingContext {
                    key: item.required_text("key")?.to_owned(),
                    provider: item.owned_text("provider")?.unwrap_or_default(),
                })
            })
            .collect::<Result<_>>()?;
        Ok(Self { version, artifacts, missing })
    }

    /// The stacks, in the manifest's order.
    pub fn stacks(&self) -> impl Iterator<Item = &StackArtifact> {
        self.artifacts.values().filter_map(|artifact| match &artifact.kind {
            ArtifactKind::Stack(stack) => Some(&**stack),
            _ => None,
        })
    }
}

/// Checks the field `version` of a manifest or an asset manifest; gives it as written.
pub(super) fn check_version(fields: &Fields<'_>, document: &str) -> Result<String> {
    let version = fields.required_text("version")?;
    let major = version
        .split('.')
        .next()
        .filter(|digits| !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()))
        .ok_or_else(|| fields.wrong("version", "a version such as `55.0.0`"))?;
    // Digits too many for a number are a newer version still.
    if major.parse::<u64>().unwrap_or(u64::MAX) > MAX_SCHEMA {
        return Err(Error::new(
            Code::UnsupportedAssemblyVersion,
            format!(
                "{document} has schema version {version}; this cdkd understands versions up to {MAX_SCHEMA}"
            ),
        )
        .hint("upgrade cdkd, or synthesize with the older aws-cdk-lib that it knows")
        .detail("version", version)
        .detail("supported", MAX_SCHEMA));
    }
    Ok(version.to_owned())
}

fn artifact(id: &str, fields: &Fields<'_>, folder: &str) -> Result<Artifact> {
    let kind = match (fields.required_text("type")?, fields.object("properties")?) {
        ("aws:cloudformation:stack", Some(properties)) => {
            ArtifactKind::Stack(Box::new(stack(id, fields, &properties, folder)?))
        }
        ("cdk:asset-manifest", Some(properties)) => {
            ArtifactKind::AssetManifest { file: resolve(folder, properties.required_text("file")?)? }
        }
        ("cdk:cloud-assembly", Some(properties)) => ArtifactKind::Assembly {
            folder: resolve(folder, properties.required_text("directoryName")?)?,
            display_name: properties.owned_text("displayName")?,
        },
        ("aws:cloudformation:stack" | "cdk:asset-manifest" | "cdk:cloud-assembly", None) => {
            return Err(fields.wrong("properties", "an object"));
        }
        (other, _) => ArtifactKind::Other(other.to_owned()),
    };
    Ok(Artifact { dependencies: fields.texts("dependencies")?, kind })
}

fn stack(id: &str, fields: &Fields<'_>, properties: &Fields<'_>, folder: &str) -> Result<StackArtifact> {
    let expected = "`aws://account/region`";
    let environment = fields.text("environment")?.ok_or_else(|| fields.wrong("environment", expected))?;
    let environment = Environment::parse(environment).ok_or_else(|| fields.wrong("environment", expected))?;
    let metadata = fields.object("metadata")?.map(|metadata| Metadata::read(&metadata)).unwrap_or_default();
    let inside = |path: Option<&str>| path.map(|path| resolve(folder, path)).transpose();
    Ok(StackArtifact {
        id: id.to_owned(),
        name: properties.text("stackName")?.unwrap_or(id).to_owned(),
        display_name: fields.text("displayName")?.unwrap_or(id).to_owned(),
        environment,
        template: resolve(folder, properties.required_text("templateFile")?)?,
        parameters: properties.text_map("parameters")?,
        tags: properties.text_map("tags")?,
        termination_protection: properties.flag("terminationProtection")?.unwrap_or(false),
        notification_arns: properties.texts("notificationArns")?,
        template_url: properties.owned_text("stackTemplateAssetObjectUrl")?,
        validate_on_synth: properties.flag("validateOnSynth")?.unwrap_or(false),
        metadata,
        metadata_file: inside(fields.text("additionalMetadataFile")?)?,
    })
}

/// What a glance at a template tells, before it is parsed as one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TemplateFacts {
    /// Rule T16: a stack without resources is not deployed.
    pub has_resources: bool,
    /// Parameters through which the legacy synthesizer passes assets (rule A12).
    pub legacy_asset_parameters: Vec<String>,
}

impl TemplateFacts {
    /// Reads a template. `path` names it in the error (`InvalidTemplate`: not JSON, no object).
    pub fn read(bytes: &[u8], path: &str) -> Result<Self> {
        let document = format!("the template `{path}`");
        let value = json(bytes, Code::InvalidTemplate, &document)?;
        let fields = Fields::root(&value, Code::InvalidTemplate, &document)?;
        let section = |key: &str| fields.get(key).and_then(Value::as_object);
        Ok(Self {
            // What has a wrong form is not nothing: the template's parser tells what is wrong with it.
            has_resources: fields.get("Resources").is_some_and(|resources| {
                !resources.is_null() && resources.as_object().is_none_or(|resources| !resources.is_empty())
            }),
            legacy_asset_parameters: section("Parameters")
                .into_iter()
                .flat_map(serde_json::Map::keys)
                .filter(|name| name.starts_with("AssetParameters"))
                .cloned()
                .collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{app, manifest as manifest_of, stack};
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn parse(manifest: &Value) -> Result<Manifest> {
        Manifest::parse(manifest.to_string().as_bytes(), "")
    }

    #[test]
    fn environments() {
        let table = [
            ("aws://unknown-account/unknown-region", Some((None, None))),
            ("aws://123456789012/eu-west-1", Some((Some("123456789012"), Some("eu-west-1")))),
            ("aws://unknown-account/us-east-1", Some((None, Some("us-east-1")))),
            ("awsx://1/us-east-1", None),
            ("aws://1", None),
            ("aws:///us-east-1", None),
            ("aws://1/us-east-1/x", None),
        ];
        for (text, expected) in table {
            let parsed = Environment::parse(text);
            let parsed = parsed.as_ref().map(|e| (e.account.as_deref(), e.region.as_deref()));
            assert_eq!(parsed, expected, "{text}");
        }
    }

    #[test]
    fn a_stack_with_everything() {
        let manifest = json!({
            "version": "36.0.0",
            "artifacts": {
                "Id": {
                    "type": "aws:cloudformation:stack",
                    "environment": "aws://123456789012/eu-west-1",
                    "displayName": "Stage/Stack",
                    "additionalMetadataFile": "Id.metadata.json",
                    "dependencies": ["Tree"],
                    "metadata": {"/Stage/Stack": [{"type": "aws:cdk:warning", "data": "hm"}]},
                    "properties": {
                        "templateFile": "Id.template.json",
                        "stackName": "Stack",
                        "parameters": {"P": "v", "N": 1},
                        "tags": {"team": "a"},
                        "terminationProtection": true,
                        "notificationArns": ["arn:aws:sns:eu-west-1:123456789012:t"],
                        "stackTemplateAssetObjectUrl": "s3://b/k",
                        "validateOnSynth": true,
                        "assumeRoleArn": "arn:…",
                        "madeUpLater": {},
                    },
                },
                "Tree": {"type": "cdk:tree", "properties": {"file": "tree.json"}},
            },
            "missing": [{"key": "vpc", "provider": "vpc-provider", "props": {}}],
            "runtime": {},
        });
        let manifest = Manifest::parse(manifest.to_string().as_bytes(), "assembly-Stage").unwrap();
        let stack = manifest.stacks().next().unwrap();
        assert_eq!((stack.id.as_str(), stack.name.as_str()), ("Id", "Stack"));
        assert_eq!(stack.display_name, "Stage/Stack");
        assert_eq!(stack.template, "assembly-Stage/Id.template.json");
        assert_eq!(stack.metadata_file.as_deref(), Some("assembly-Stage/Id.metadata.json"));
        assert_eq!(stack.parameters["N"], "1");
        assert_eq!(stack.tags["team"], "a");
        assert!(stack.termination_protection && stack.validate_on_synth);
        assert_eq!(stack.notification_arns.len(), 1);
        assert_eq!(stack.template_url.as_deref(), Some("s3://b/k"));
        assert_eq!(stack.metadata.annotations.len(), 1);
        assert_eq!(manifest.artifacts["Id"].dependencies, ["Tree"]);
        assert_eq!(manifest.artifacts["Tree"].kind, ArtifactKind::Other("cdk:tree".into()));
        assert_eq!(manifest.missing, [MissingContext { key: "vpc".into(), provider: "vpc-provider".into() }]);
    }

    #[test]
    fn versions() {
        for version in ["0.36.0", "1.16.0", "36.3.0", "53.0.0", "55.0.0", "55.9.9", "55"] {
            assert!(parse(&json!({"version": version})).is_ok(), "{version}");
        }
        for version in ["56.0.0", "99999.0.0", "99999999999999999999999.0.0"] {
            let error = parse(&json!({"version": version})).unwrap_err();
            assert_eq!(error.code(), Code::UnsupportedAssemblyVersion);
            assert!(error.message().contains(version) && error.message().contains("up to 55"), "{error}");
            assert!(error.hint_text().unwrap().contains("upgrade cdkd"));
        }
        // The version is looked at first: what a newer manifest holds may have another form.
        let newer = json!({"version": "56.0.0", "artifacts": []});
        assert_eq!(parse(&newer).unwrap_err().code(), Code::UnsupportedAssemblyVersion);
    }

    #[test]
    fn f5_a_manifest_of_another_form_names_the_field() {
        let with = |pointer: &str, value: Value| {
            let mut manifest = manifest_of(&json!({"S": stack(&[])}));
            *manifest.pointer_mut(pointer).unwrap() = value;
            manifest
        };
        let table = [
            (json!([]), "no JSON object"),
            (json!({}), "`version`"),
            (with("/version", json!(1)), "`version`"),
            (with("/version", json!("x.1")), "`version`"),
            (with("/artifacts", json!([])), "`artifacts`"),
            (with("/artifacts/S", json!("x")), "`artifacts.S`"),
            (with("/artifacts/S/type", json!(null)), "`artifacts.S.type`"),
            (with("/artifacts/S/environment", json!("awsx://1/2")), "`artifacts.S.environment`"),
            (with("/artifacts/S/properties", json!(null)), "`artifacts.S.properties`"),
            (
                with("/artifacts/S/properties/templateFile", json!("")),
                "`artifacts.S.properties.templateFile`",
            ),
            (with("/artifacts/S/dependencies", json!(["a", 1])), "`artifacts.S.dependencies`"),
            (json!({"version": "1.0.0", "missing": [{}]}), "`missing.0.key`"),
        ];
        for (manifest, named) in table {
            let error = parse(&manifest).unwrap_err();
            assert_eq!(error.code(), Code::InvalidAssembly, "{manifest}");
            assert!(error.message().contains(named), "{error}");
            assert!(error.message().contains("`manifest.json`"), "{error}");
        }
        let error = Manifest::parse(b"{\"version\": \"secret", "").unwrap_err();
        assert_eq!(error.code(), Code::InvalidAssembly);
        assert!(!error.to_string().contains("secret"), "{error}");
    }

    #[test]
    fn paths_of_a_manifest_stay_in_the_assembly() {
        for path in ["../t.json", "/t.json", "a\\b"] {
            let mut artifact = stack(&[]);
            artifact["properties"]["templateFile"] = json!(path);
            let error = parse(&manifest_of(&json!({"S": artifact}))).unwrap_err();
            assert_eq!(error.code(), Code::UnsafeAssemblyPath, "{path}");
        }
    }

    #[test]
    fn t16_facts_of_templates() {
        let table = [
            (json!({"Resources": {"A": {}}}), true, 0),
            (json!({"Resources": {}}), false, 0),
            (json!({"Outputs": {}}), false, 0),
            (json!({"Resources": null}), false, 0),
            (json!({"Resources": []}), true, 0),
            (json!({"Resources": {"A": {}}, "Parameters": {"AssetParametersab12": {}, "P": {}}}), true, 1),
        ];
        for (template, has_resources, legacy) in table {
            let facts = TemplateFacts::read(template.to_string().as_bytes(), "t.json").unwrap();
            assert_eq!((facts.has_resources, facts.legacy_asset_parameters.len()), (has_resources, legacy));
        }
        for bytes in [&b""[..], b"Resources: {}", b"[]"] {
            assert_eq!(TemplateFacts::read(bytes, "t.json").unwrap_err().code(), Code::InvalidTemplate);
        }
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i32>().prop_map(Value::from),
            "[a-z./:*~\\\\-]{0,12}".prop_map(Value::from),
            Just(json!("manifest.json")),
            Just(json!("S")),
        ];
        leaf.prop_recursive(3, 12, 3, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
                proptest::collection::btree_map("(type|key|data|[a-z]{1,3})", inner, 0..3)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn random_bytes_do_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Manifest::parse(&bytes, "");
            let _ = TemplateFacts::read(&bytes, "");
        }

        /// Any value in any place gives an assembly or an error.
        #[test]
        fn random_fields_do_not_panic(field in 0usize..9, value in any_json()) {
            let mut artifact = stack(&["S2"]);
            let stage = json!({"type": "cdk:cloud-assembly", "properties": {"directoryName": value.clone()}});
            match field {
                0 => artifact["environment"] = value,
                1 => artifact["properties"]["templateFile"] = value,
                2 => artifact["properties"]["stackName"] = value,
                3 => artifact["dependencies"] = value,
                4 => artifact["metadata"] = value,
                5 => artifact["additionalMetadataFile"] = value,
                6 => artifact["properties"]["tags"] = value,
                7 => artifact["displayName"] = value,
                _ => artifact = stage,
            }
            let app = app(&json!({"S": artifact, "S2": stack(&[])}));
            let _ = super::super::source::open(&app, super::super::testing::request(&[]));
        }
    }
}
