//! The inputs of the state machines `cdkd-deploy` and `cdkd-destroy` (DESIGN 5).
//!
//! Unknown fields pass; `null` is as good as absent; what has a wrong form is refused as `InvalidInput`, naming the
//! field and the form it should have, never the value.

use std::fmt;

use indexmap::IndexMap;
use serde_json::Value;

use super::fields::{Fields, scalar_text};
use super::selection::Selection;
use crate::error::{Code, Error, Result, nearest};
use crate::name::{LogicalId, Region, StackName};

/// Input of `cdkd-deploy`.
#[derive(Clone, Debug, PartialEq)]
pub struct DeployInput {
    pub assembly: Location,
    /// Names, display names, artifact ids or globs; empty for every stack of the account.
    pub stacks: Vec<String>,
    /// For stacks that name no region.
    pub region: Option<Region>,
    pub parameters: Parameters,
    pub options: Options,
}

/// Where an assembly was uploaded to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Location {
    /// `s3://bucket/key.zip`
    Zip { bucket: String, key: String },
    /// `s3://bucket/prefix/`: the prefix ends with `/`, or is empty for the whole bucket.
    Prefix { bucket: String, prefix: String },
}

/// Options of a deploy.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "they are independent switches of the input")]
pub struct Options {
    /// Plan only.
    pub dry_run: bool,
    /// Publish assets only.
    pub publish_only: bool,
    /// Roll a failed stack back; the default.
    pub rollback: bool,
    /// Read exports of stacks that AWS itself deployed where no record has them; the default.
    pub cfn_fallback: bool,
    /// Leave assets in the buckets of CDK's bootstrap; `None`: as the app says (see [`crate::assets::mode`]).
    pub use_cdk_bootstrap_assets: Option<bool>,
    /// Leave out stacks that the named ones depend on.
    pub exclusively: bool,
    pub on_export_change: OnExportChange,
    /// Seconds to wait for another run's lock.
    pub lock_wait_seconds: u32,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            dry_run: false,
            publish_only: false,
            rollback: true,
            cfn_fallback: true,
            use_cdk_bootstrap_assets: None,
            exclusively: false,
            on_export_change: OnExportChange::Warn,
            lock_wait_seconds: 0,
        }
    }
}

/// What to do when the value of an imported export changes while what the old one names stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnExportChange {
    Warn,
    Refuse,
}

/// Parameters of a run: stack → parameter → value. Its `Debug` shows names alone: a value may be a secret.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Parameters(IndexMap<String, IndexMap<String, String>>);

/// Input of `cdkd-destroy`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DestroyInput {
    /// At least one.
    pub stacks: Vec<StackName>,
    pub region: Option<Region>,
    /// Resources to leave in AWS, in whichever of the stacks has them.
    pub retain: Vec<LogicalId>,
}

const DEPLOY: &str = "the input of `cdkd-deploy`";
const DESTROY: &str = "the input of `cdkd-destroy`";

impl DeployInput {
    /// Parses an execution's input.
    pub fn parse(input: &Value) -> Result<Self> {
        let fields = Fields::root(input, Code::InvalidInput, DEPLOY)?;
        let assembly = fields
            .text("assembly")?
            .and_then(Location::parse)
            .ok_or_else(|| fields.wrong("assembly", "`s3://bucket/key.zip` or `s3://bucket/prefix/`"))?;
        Ok(Self {
            assembly,
            stacks: patterns(&fields)?,
            region: region(&fields)?,
            parameters: Parameters::read(&fields)?,
            options: fields.object("options")?.as_ref().map(options).transpose()?.unwrap_or_default(),
        })
    }
}

impl Location {
    /// Parses an address. `None`: not of the two forms.
    pub fn parse(text: &str) -> Option<Self> {
        let (bucket, key) = text.strip_prefix("s3://")?.split_once('/')?;
        let fits = (3..=63).contains(&bucket.len())
            && bucket.bytes().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-' || c == b'.');
        if !fits {
            return None;
        }
        let bucket = bucket.to_owned();
        if key.is_empty() || key.ends_with('/') {
            Some(Self::Prefix { bucket, prefix: key.to_owned() })
        } else if key.to_ascii_lowercase().ends_with(".zip") {
            Some(Self::Zip { bucket, key: key.to_owned() })
        } else {
            None
        }
    }

    pub fn bucket(&self) -> &str {
        match self {
            Self::Zip { bucket, .. } | Self::Prefix { bucket, .. } => bucket,
        }
    }

    /// The key of the object that holds the document at a canonical path: the zip itself, or one below the prefix.
    pub fn key_of(&self, path: &str) -> String {
        match self {
            Self::Zip { key, .. } => key.clone(),
            Self::Prefix { prefix, .. } => format!("{prefix}{path}"),
        }
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Zip { bucket, key: path } | Self::Prefix { bucket, prefix: path } => {
                write!(f, "s3://{bucket}/{path}")
            }
        }
    }
}

impl Parameters {
    /// Reads the field `parameters`: `{"Stack": {"Name": "value"}}`, or `{"Stack:Name": "value"}` as the CDK CLI
    /// spells it.
    fn read(fields: &Fields<'_>) -> Result<Self> {
        let mut all: IndexMap<String, IndexMap<String, String>> = IndexMap::new();
        let Some(parameters) = fields.object("parameters")? else { return Ok(Self::default()) };
        for (key, value) in parameters.iter() {
            if let Value::Object(_) = value {
                all.entry(key.to_owned()).or_default().extend(parameters.text_map(key)?);
                continue;
            }
            let (Some((stack, name)), Some(value)) = (key.split_once(':'), scalar_text(value)) else {
                return Err(
                    parameters.wrong(key, "an object of strings: `{\"Stack\": {\"Name\": \"value\"}}`")
                );
            };
            all.entry(stack.to_owned()).or_default().insert(name.to_owned(), value);
        }
        Ok(Self(all))
    }

    /// The parameters that the run gives a stack, by any of its names: stack name, display name or artifact id.
    pub fn of(&self, names: [&str; 3]) -> IndexMap<String, String> {
        let given =
            self.0.iter().filter(|(key, _)| names.contains(&key.as_str())).flat_map(|(_, values)| values);
        given.map(|(name, value)| (name.clone(), value.clone())).collect()
    }

    /// Refuses parameters for a stack that the run does not deploy (`UnknownParameter`).
    pub fn check(&self, selection: &Selection) -> Result<()> {
        let unknown = self
            .0
            .keys()
            .find(|key| !selection.stacks.iter().any(|stack| stack.names().contains(&key.as_str())));
        let Some(key) = unknown else { return Ok(()) };
        let error = Error::new(
            Code::UnknownParameter,
            format!("the input has parameters for stack `{key}`, which this run does not deploy"),
        )
        .detail("stack", key.as_str());
        let names = selection.stacks.iter().map(|stack| stack.name.as_str());
        Err(match nearest(key, names) {
            Some(near) => error.hint(format!("did you mean `{near}`?")),
            None => error.hint("remove them, or select the stack in `stacks`"),
        })
    }
}

impl fmt::Debug for Parameters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map()
            .entries(self.0.iter().map(|(stack, values)| (stack, values.keys().collect::<Vec<_>>())))
            .finish()
    }
}

impl DestroyInput {
    /// Parses an execution's input.
    pub fn parse(input: &Value) -> Result<Self> {
        let fields = Fields::root(input, Code::InvalidInput, DESTROY)?;
        let expected = "a list of stack names, at least one";
        let stacks = patterns(&fields)?
            .iter()
            .map(|name| name.parse::<StackName>().map_err(|_| fields.wrong("stacks", expected)))
            .collect::<Result<Vec<_>>>()?;
        if stacks.is_empty() {
            return Err(fields.wrong("stacks", expected).hint("destroy has no default: name each stack"));
        }
        let retain = fields
            .texts("retain")?
            .iter()
            .map(|id| id.parse().map_err(|_| fields.wrong("retain", "a list of logical ids")))
            .collect::<Result<_>>()?;
        Ok(Self { stacks, region: region(&fields)?, retain })
    }
}

fn patterns(fields: &Fields<'_>) -> Result<Vec<String>> {
    let stacks = fields.texts("stacks")?;
    if stacks.iter().any(String::is_empty) {
        return Err(fields.wrong("stacks", "a list of strings that are not empty"));
    }
    Ok(stacks)
}

fn region(fields: &Fields<'_>) -> Result<Option<Region>> {
    let wrong = |_| fields.wrong("region", "a region such as `eu-west-1`");
    fields.text("region")?.map(|text| text.parse().map_err(wrong)).transpose()
}

fn options(fields: &Fields<'_>) -> Result<Options> {
    let default = Options::default();
    let flag = |key: &str, otherwise: bool| Ok::<_, Error>(fields.flag(key)?.unwrap_or(otherwise));
    let (dry_run, publish_only) =
        (flag("dryRun", default.dry_run)?, flag("publishOnly", default.publish_only)?);
    if dry_run && publish_only {
        return Err(Error::new(
            Code::InvalidInput,
            format!(
                "{DEPLOY} has both `options.dryRun` and `options.publishOnly`: a dry run publishes nothing"
            ),
        )
        .hint("leave one of them out"));
    }
    Ok(Options {
        dry_run,
        publish_only,
        rollback: flag("rollback", default.rollback)?,
        cfn_fallback: flag("cfnFallback", default.cfn_fallback)?,
        use_cdk_bootstrap_assets: fields.flag("useCdkBootstrapAssets")?,
        exclusively: flag("exclusively", default.exclusively)?,
        on_export_change: match fields.text("onExportChange")? {
            None => default.on_export_change,
            Some("warn") => OnExportChange::Warn,
            Some("refuse") => OnExportChange::Refuse,
            Some(_) => return Err(fields.wrong("onExportChange", "`warn` or `refuse`")),
        },
        lock_wait_seconds: fields.count("lockWaitSeconds")?.unwrap_or(default.lock_wait_seconds),
    })
}

#[cfg(test)]
mod tests {
    use super::super::source::open;
    use super::super::testing::{app, request, stack};
    use super::*;
    use serde_json::json;

    #[test]
    fn f5_the_smallest_deploy_has_the_documented_defaults() {
        let input = DeployInput::parse(&json!({"assembly": "s3://bucket/app.zip", "later": {}})).unwrap();
        assert_eq!(input.assembly, Location::Zip { bucket: "bucket".into(), key: "app.zip".into() });
        assert_eq!(input.options, Options::default());
        assert!(input.options.rollback && input.options.cfn_fallback && !input.options.dry_run);
        assert_eq!((input.stacks.len(), input.region), (0, None));
        let nulls =
            json!({"assembly": "s3://bucket/app.zip", "stacks": null, "region": null, "options": null});
        assert_eq!(DeployInput::parse(&nulls).unwrap().options, Options::default());
    }

    #[test]
    fn f5_a_deploy_with_everything() {
        let input = DeployInput::parse(&json!({
            "assembly": "s3://bucket/apps/web/", "stacks": ["Web", "Prod/*"], "region": "EU-WEST-1",
            "parameters": {"Web": {"Size": 2, "On": true}, "Web:Name": "n", "Api:P": "v"},
            "options": {"dryRun": true, "rollback": false, "cfnFallback": false,
                "useCdkBootstrapAssets": true, "exclusively": true, "onExportChange": "refuse", "lockWaitSeconds": 60},
        }))
        .unwrap();
        assert_eq!(input.assembly.to_string(), "s3://bucket/apps/web/");
        assert_eq!(input.assembly.key_of("manifest.json"), "apps/web/manifest.json");
        assert_eq!(input.region.unwrap().as_str(), "eu-west-1");
        let web = &input.parameters.0["Web"];
        assert_eq!((web["Size"].as_str(), web["On"].as_str(), web["Name"].as_str()), ("2", "true", "n"));
        assert_eq!(input.parameters.0["Api"]["P"], "v");
        let options = input.options;
        assert!(options.dry_run && !options.publish_only && !options.rollback && !options.cfn_fallback);
        assert_eq!(options.use_cdk_bootstrap_assets, Some(true));
        assert!(options.exclusively);
        assert_eq!((options.on_export_change, options.lock_wait_seconds), (OnExportChange::Refuse, 60));
    }

    #[test]
    fn locations() {
        let table = [
            ("s3://bucket/a/b.zip", true),
            ("s3://bucket/a.ZIP", true),
            ("s3://bucket/a/", true),
            ("s3://bucket/", true),
            ("s3://bucket", false),
            ("s3://bucket/a", false),
            ("s3:///a.zip", false),
            ("s3://Bucket/a.zip", false),
            ("https://bucket/a.zip", false),
        ];
        for (text, ok) in table {
            assert_eq!(Location::parse(text).is_some(), ok, "{text}");
            assert!(Location::parse(text).is_none_or(|location| location.to_string() == text));
        }
    }

    #[test]
    fn f5_a_wrong_field_is_named_with_its_form_and_without_its_value() {
        let deploy = |field: &str, value: Value| {
            let mut input = json!({"assembly": "s3://bucket/a.zip"});
            input[field] = value;
            DeployInput::parse(&input)
        };
        let table = [
            (DeployInput::parse(&json!("hunter2")), "no JSON object"),
            (DeployInput::parse(&json!({})), "`assembly`"),
            (deploy("assembly", json!("hunter2")), "`assembly`"),
            (deploy("stacks", json!("hunter2")), "`stacks`"),
            (deploy("stacks", json!([""])), "`stacks`"),
            (deploy("region", json!("hunter2")), "`region`"),
            (deploy("parameters", json!(["hunter2"])), "`parameters`"),
            (deploy("parameters", json!({"P": "hunter2"})), "`parameters.P`"),
            (deploy("parameters", json!({"S": {"P": ["hunter2"]}})), "`parameters.S`"),
            (deploy("options", json!(1)), "`options`"),
            (deploy("options", json!({"dryRun": "hunter2"})), "`options.dryRun`"),
            (deploy("options", json!({"onExportChange": "hunter2"})), "`options.onExportChange`"),
            (deploy("options", json!({"lockWaitSeconds": -1})), "`options.lockWaitSeconds`"),
            (deploy("options", json!({"dryRun": true, "publishOnly": true})), "`options.publishOnly`"),
        ];
        for (result, named) in table {
            let error = result.unwrap_err();
            assert_eq!(error.code(), Code::InvalidInput, "{named}");
            assert!(error.message().contains(named), "{error}");
            assert!(!error.cause().to_string().contains("hunter2"), "{error}");
        }
    }

    #[test]
    fn f5_destroy_names_its_stacks() {
        let input =
            DestroyInput::parse(&json!({"stacks": ["A", "P~C"], "retain": ["Bucket"], "later": 1})).unwrap();
        assert_eq!((input.stacks.len(), input.retain[0].as_str(), input.region), (2, "Bucket", None));
        let table = [
            (json!({}), "`stacks`"),
            (json!({"stacks": []}), "`stacks`"),
            (json!({"stacks": ["A*"]}), "`stacks`"),
            (json!({"stacks": ["A"], "retain": ["a-b"]}), "`retain`"),
            (json!({"stacks": ["A"], "region": 1}), "`region`"),
        ];
        for (input, named) in table {
            let error = DestroyInput::parse(&input).unwrap_err();
            assert_eq!(error.code(), Code::InvalidInput);
            assert!(error.message().contains(named), "{error}");
        }
    }

    #[test]
    fn parameters_reach_their_stack_and_no_log() {
        let parse = |parameters: Value| {
            DeployInput::parse(&json!({"assembly": "s3://bucket/a.zip", "parameters": parameters}))
                .unwrap()
                .parameters
        };
        let mut web = stack(&[]);
        web["properties"]["stackName"] = json!("Web");
        web["displayName"] = json!("Prod/Web");
        let selection = open(&app(&json!({"ProdWeb": web})), request(&[])).unwrap();
        for key in ["Web", "Prod/Web", "ProdWeb"] {
            let parameters = parse(json!({key: {"P": "hunter2"}}));
            assert_eq!(parameters.of(selection.stacks[0].names())["P"], "hunter2");
            assert_eq!(parameters.check(&selection), Ok(()));
            assert!(!format!("{parameters:?}").contains("hunter2"));
        }
        let error = parse(json!({"Wep": {"P": "v"}})).check(&selection).unwrap_err();
        assert_eq!(error.code(), Code::UnknownParameter);
        assert_eq!(error.hint_text(), Some("did you mean `Web`?"));
    }
}
