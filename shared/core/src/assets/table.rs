//! Where the assets of a stack go: the names of the storage that its manifest says, and of the storage they are published
//! in. Publishing, rewrite and audit go by this one table, so they cannot diverge.
//!
//! Redirected is what `cdk gc` may clear: destinations shaped as `cdk bootstrap` makes them by default, of this account and
//! region, with any qualifier. Whatever a user chose stays as the assembly says.
//!
//! Source: `seeds/asset-storage.txt`, sections 6 to 8; `seeds/tables.md`, "8 Which destinations are redirected".

use std::collections::BTreeSet;
use std::ops::Range;
use std::rc::Rc;
use std::sync::OnceLock;

use memchr::memmem::Finder;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::matching::{Decision, Edge, Sight, decide};
use crate::assembly::asset_manifest::AssetManifest;
use crate::error::{Code, Error, Place};
use crate::name::{Account, Region};

/// The storage of a region, as its marker says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Storage {
    pub bucket: String,
    pub repository: String,
}

/// Where a stack is deployed.
#[derive(Clone, Copy, Debug)]
pub struct Here<'a> {
    pub account: &'a Account,
    pub region: &'a Region,
}

/// What assets are kept in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Kind {
    Bucket,
    Repository,
}

/// A name of the assembly, and the one that takes its place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Redirection {
    pub kind: Kind,
    /// As it is once the placeholders are filled in.
    pub from: String,
    pub to: String,
}

/// The table of one stack and those nested in it, which share its manifest.
///
/// As a document it holds what the audit needs: names, and what was left on purpose.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Table {
    redirections: Vec<Redirection>,
    /// Texts that name a source and are meant: an object or image that is no asset of the assembly.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    left: BTreeSet<String>,
    /// Object keys and image tags of the manifest. `None` where they are not at hand.
    #[serde(skip)]
    keys: Option<Keys>,
    #[serde(skip)]
    place: Option<Filled>,
    #[serde(skip)]
    needle: OnceLock<Option<Box<Finder<'static>>>>,
}

/// Object keys and image tags of assets, shared by the tables of a run.
pub type Keys = Rc<BTreeSet<String>>;

/// The keys of all assets of these manifests.
pub fn keys<'m>(manifests: impl IntoIterator<Item = &'m AssetManifest>, here: Here<'_>) -> Keys {
    let place = Filled::of(here);
    let keys = manifests.into_iter().flat_map(|manifest| {
        let files = manifest.files.values().flat_map(|it| it.destinations.values().map(|to| &to.key));
        let images = manifest.images.values().flat_map(|it| it.destinations.values().map(|to| &to.tag));
        files.chain(images)
    });
    Rc::new(keys.map(|key| place.fill(key)).collect())
}

/// What fills in the placeholders of a manifest.
#[derive(Clone, Debug)]
struct Filled {
    account: String,
    region: Region,
}

impl Filled {
    fn of(here: Here<'_>) -> Self {
        Self { account: here.account.to_string(), region: here.region.clone() }
    }

    fn fill(&self, text: &str) -> String {
        if !text.contains("${") {
            return text.to_owned();
        }
        text.replace("${AWS::AccountId}", &self.account)
            .replace("${AWS::Region}", self.region.as_str())
            .replace("${AWS::Partition}", self.region.partition().name)
    }
}

/// A value that still names a source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Keys and indices on the way to it.
    pub path: Vec<String>,
    from: String,
    to: String,
}

impl Finding {
    /// What to tell of it. `place`: that of the audited value.
    pub fn error(&self, place: Place) -> Error {
        let place = self.path.iter().fold(place, |place, segment| place.down(segment.as_str()));
        let path = place.path.join(".");
        Error::new(
            Code::UnrewrittenAssetReference,
            format!("the value still names `{}`, whose assets are in `{}`", self.from, self.to),
        )
        .hint(
            "write the reference as one text, `Fn::Sub` or `Fn::Join`, or take it from the asset; where the storage of \
             `cdk bootstrap` is meant, deploy with `\"options\": {\"useCdkBootstrapAssets\": true}`",
        )
        .place(&place)
        .detail("path", path)
    }
}

impl Table {
    /// The table of a stack. Without `storage` it is empty, and everything stays as the assembly says.
    ///
    /// `manifests`: those of the stack; `keys`: of all assets of the run that it may refer to.
    pub fn new(manifests: &[AssetManifest], keys: &Keys, here: Here<'_>, storage: Option<&Storage>) -> Self {
        let place = Filled::of(here);
        let mut redirections: Vec<Redirection> = Vec::new();
        if let Some(storage) = storage {
            for (kind, from) in exposed(manifests, &place) {
                let to = match kind {
                    Kind::Bucket => &storage.bucket,
                    Kind::Repository => &storage.repository,
                };
                if redirections.iter().all(|known| (known.kind, &known.from) != (kind, &from)) {
                    redirections.push(Redirection { kind, from, to: to.clone() });
                }
            }
        }
        Self { redirections, keys: Some(Rc::clone(keys)), place: Some(place), ..Self::default() }
    }

    /// Whether any asset of a stack is destined for what `cdk bootstrap` makes by default.
    pub fn is_needed(manifests: &[AssetManifest], here: Here<'_>) -> bool {
        exposed(manifests, &Filled::of(here)).next().is_some()
    }

    /// Whether nothing is redirected.
    pub fn is_empty(&self) -> bool {
        self.redirections.is_empty()
    }

    /// Bucket and key of a file's destination as this run has them; the key is never another one (rule A9).
    ///
    /// `region`: that of the destination, if the manifest says one.
    pub fn address(&self, bucket: &str, key: &str, region: Option<&str>) -> (String, String) {
        let fill = |text: &str| self.place.as_ref().map_or_else(|| text.to_owned(), |place| place.fill(text));
        let bucket = fill(bucket);
        let here = self.place.as_ref().is_none_or(|place| is_here(place, region));
        let redirected = self
            .redirections
            .iter()
            .find(|known| here && known.kind == Kind::Bucket && known.from == bucket)
            .map(|known| known.to.clone());
        (redirected.unwrap_or(bucket), fill(key))
    }

    pub(super) fn sight(&self) -> Sight<'_> {
        Sight { keys: self.keys.as_deref(), left: &self.left }
    }

    /// From now on every key may be an asset's.
    #[cfg(test)]
    pub(super) fn forget_keys(&mut self) {
        self.keys = None;
    }

    pub(super) fn leave(&mut self, text: String) {
        self.left.insert(text);
    }

    /// Whether bytes hold what every name of the table ends with: all names are of one account and region.
    pub(super) fn may_name(&self, bytes: &[u8]) -> bool {
        self.needle().is_some_and(|needle| needle.find(bytes).is_some())
    }

    /// The first place at or behind `from` where a name of the table may end, as the start of what all end with.
    pub(super) fn needle(&self) -> Option<&Finder<'static>> {
        self.needle
            .get_or_init(|| {
                let first = self.redirections.first()?;
                let at = first.from.rfind("assets-")?;
                Some(Box::new(Finder::new(first.from.get(at..)?.as_bytes()).into_owned()))
            })
            .as_deref()
    }

    /// Where values that are final still name what assets were redirected from; what was left on purpose is none of it
    /// (rule A27).
    pub fn audit(&self, value: &Value) -> Vec<Finding> {
        let mut audit = Audit { table: self, path: Vec::new(), found: Vec::new() };
        if let Some(needle) = self.needle() {
            audit.look(needle, value);
        }
        audit.found
    }

    /// Where a text names sources, in order, and what is to be done about each.
    pub(super) fn occurrences<'t, 'x>(
        &'t self,
        text: &'x str,
        before: &'x Edge<'x>,
        after: &'x Edge<'x>,
    ) -> impl Iterator<Item = (Range<usize>, Decision<'t>)> {
        let needle = self.needle();
        let ends = needle.into_iter().flat_map(move |needle| {
            let len = needle.needle().len();
            needle.find_iter(text.as_bytes()).map(move |at| at + len)
        });
        // One name may end with another: the longest is meant, and the boundary before it decides.
        ends.flat_map(move |end| self.redirections.iter().map(move |known| (end, known))).filter_map(
            move |(end, known)| {
                let start = end.checked_sub(known.from.len())?;
                if text.as_bytes().get(start..end)? != known.from.as_bytes() {
                    return None;
                }
                match decide(&self.sight(), known, (before, text, after), start..end) {
                    Decision::Other => None,
                    decision => Some((start..end, decision)),
                }
            },
        )
    }

    /// Values of the last deploy with the names that they would have now; `None` if none of them was a source.
    pub fn repoint(&self, value: &Value) -> Option<Value> {
        if self.is_empty() {
            return None;
        }
        match value {
            Value::String(text) => {
                let mut text = text.clone();
                let moved = self.redirect(&mut text, &Edge::END, &Edge::END, |_| ());
                (!moved.is_empty()).then_some(Value::String(text))
            }
            Value::Array(items) => {
                let moved: Vec<Option<Value>> = items.iter().map(|item| self.repoint(item)).collect();
                moved.iter().any(Option::is_some).then(|| {
                    let pairs = moved.into_iter().zip(items);
                    pairs.map(|(moved, item)| moved.unwrap_or_else(|| item.clone())).collect()
                })
            }
            Value::Object(fields) => {
                let mut moved = fields.clone();
                let mut any = false;
                for (key, field) in fields {
                    if let Some(value) = self.repoint(field) {
                        any = true;
                        moved.insert(key.clone(), value);
                    }
                }
                any.then_some(Value::Object(moved))
            }
            _ => None,
        }
    }

    /// Redirects the sources that a text names; answers where they stood, and how long what took their place is. `leave` is
    /// told of what stays.
    pub(super) fn redirect(
        &self,
        text: &mut String,
        before: &Edge<'_>,
        after: &Edge<'_>,
        mut leave: impl FnMut(String),
    ) -> Vec<(Range<usize>, usize)> {
        let mut found = Vec::new();
        for (range, decision) in self.occurrences(text, before, after) {
            match decision {
                Decision::Redirect(known) => found.push((range, known)),
                Decision::Leave(reference) => leave(reference),
                Decision::Other => {}
            }
        }
        // In place, from the end: as a rule the new name is the shorter one.
        for (range, known) in found.iter().rev() {
            text.replace_range(range.clone(), &known.to);
        }
        found.into_iter().map(|(range, known)| (range, known.to.len())).collect()
    }
}

struct Audit<'v> {
    table: &'v Table,
    path: Vec<Segment<'v>>,
    found: Vec<Finding>,
}

enum Segment<'v> {
    Key(&'v str),
    Index(usize),
}

impl<'v> Audit<'v> {
    fn look(&mut self, needle: &Finder<'_>, value: &'v Value) {
        match value {
            Value::String(text) if needle.find(text.as_bytes()).is_some() => self.hit(text),
            Value::Array(items) => {
                for (n, item) in items.iter().enumerate() {
                    self.path.push(Segment::Index(n));
                    self.look(needle, item);
                    self.path.pop();
                }
            }
            Value::Object(fields) => {
                for (key, field) in fields {
                    self.path.push(Segment::Key(key));
                    self.look(needle, field);
                    self.path.pop();
                }
            }
            _ => {}
        }
    }

    /// A text that may name a source.
    #[cold]
    fn hit(&mut self, text: &str) {
        for (_, decision) in self.table.occurrences(text, &Edge::END, &Edge::END) {
            let Decision::Redirect(known) = decision else { continue };
            let path = self.path.iter().map(|segment| match segment {
                Segment::Key(key) => (*key).to_owned(),
                Segment::Index(index) => index.to_string(),
            });
            self.found.push(Finding { path: path.collect(), from: known.from.clone(), to: known.to.clone() });
        }
    }
}

/// The names of destinations that are redirected, placeholders filled in.
fn exposed<'m>(
    manifests: &'m [AssetManifest],
    place: &'m Filled,
) -> impl Iterator<Item = (Kind, String)> + use<'m> {
    let names = manifests.iter().flat_map(|manifest| {
        let files = manifest.files.values().flat_map(|file| file.destinations.values());
        let files = files.map(|to| (Kind::Bucket, to.bucket.as_str(), to.access.region.as_deref()));
        let images = manifest.images.values().flat_map(|image| image.destinations.values());
        files.chain(images.map(|to| (Kind::Repository, to.repository.as_str(), to.access.region.as_deref())))
    });
    names.filter_map(|(kind, name, region)| {
        let name = place.fill(name);
        (is_here(place, region) && is_default(kind, &name, place)).then_some((kind, name))
    })
}

/// Whether a destination is of the stack's own region; names of regions are so whatever their case (rule A15).
fn is_here(place: &Filled, region: Option<&str>) -> bool {
    region.is_none_or(|region| place.fill(region).eq_ignore_ascii_case(place.region.as_str()))
}

/// `cdk-<qualifier>-assets-<account>-<region>`, `cdk-<qualifier>-container-assets-<account>-<region>` of this account and
/// region; a qualifier has 1 to 10 of `[a-z0-9_-]` (rule A11).
fn is_default(kind: Kind, name: &str, place: &Filled) -> bool {
    let tail = match kind {
        Kind::Bucket => "-assets",
        Kind::Repository => "-container-assets",
    };
    let qualifier = name
        .strip_prefix("cdk-")
        .and_then(|rest| rest.strip_suffix(place.region.as_str()))
        .and_then(|rest| rest.strip_suffix('-'))
        .and_then(|rest| rest.strip_suffix(place.account.as_str()))
        .and_then(|rest| rest.strip_suffix('-'))
        .and_then(|rest| rest.strip_suffix(tail));
    qualifier.is_some_and(|it| {
        (1..=10).contains(&it.len())
            && it.bytes().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'_' || c == b'-')
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::assets::testing::{here, manifest, storage, table};
    use serde_json::json;

    fn addresses(bucket: &str, region: Option<&str>) -> String {
        let mut destination = json!({"bucketName": bucket, "objectKey": "pre/fix/k.zip"});
        if let Some(region) = region {
            destination["region"] = json!(region);
        }
        let manifest = manifest(&json!({"a": {"source": {"path": "a"}, "destinations": {"d": destination}}}));
        let place = here();
        let table = Table::new(
            std::slice::from_ref(&manifest),
            &keys([&manifest], place.here()),
            place.here(),
            Some(&storage()),
        );
        let (bucket, key) = table.address(bucket, "pre/fix/k.zip", region);
        assert_eq!(key, "pre/fix/k.zip");
        assert_eq!(table.is_empty(), bucket != storage().bucket, "{bucket}");
        bucket
    }

    #[test]
    fn a11_a15_only_what_cdk_bootstrap_makes_here_by_default_is_redirected() {
        let ours = "cdkd-assets-123456789012-eu-west-1";
        let table = [
            // Default qualifier, custom ones, with `-` and `_`, at most ten characters.
            ("cdk-hnb659fds-assets-${AWS::AccountId}-${AWS::Region}", None, ours),
            ("cdk-hnb659fds-assets-123456789012-${AWS::Region}", None, ours),
            ("cdk-hnb659fds-assets-${AWS::AccountId}-eu-west-1", None, ours),
            ("cdk-hnb659fds-assets-123456789012-eu-west-1", None, ours),
            ("cdk-adhoc-v1-assets-${AWS::AccountId}-${AWS::Region}", None, ours),
            ("cdk-a_b-c-assets-${AWS::AccountId}-${AWS::Region}", None, ours),
            ("cdk-x-assets-${AWS::AccountId}-${AWS::Region}", None, ours),
            ("cdk-0123456789-assets-${AWS::AccountId}-${AWS::Region}", None, ours),
            ("cdk-0123456789a-assets-1-r", None, "cdk-0123456789a-assets-1-r"),
            ("cdk--assets-123456789012-eu-west-1", None, "cdk--assets-123456789012-eu-west-1"),
            ("cdk-Abc-assets-123456789012-eu-west-1", None, "cdk-Abc-assets-123456789012-eu-west-1"),
            // The region written out, in any case.
            ("cdk-hnb659fds-assets-${AWS::AccountId}-${AWS::Region}", Some("EU-WEST-1"), ours),
            ("cdk-hnb659fds-assets-${AWS::AccountId}-${AWS::Region}", Some("${AWS::Region}"), ours),
            // Another region, another account.
            (
                "cdk-hnb659fds-assets-${AWS::AccountId}-us-east-1",
                Some("us-east-1"),
                "cdk-hnb659fds-assets-123456789012-us-east-1",
            ),
            (
                "cdk-hnb659fds-assets-${AWS::AccountId}-${AWS::Region}",
                Some("us-east-1"),
                "cdk-hnb659fds-assets-123456789012-eu-west-1",
            ),
            (
                "cdk-hnb659fds-assets-999999999999-${AWS::Region}",
                None,
                "cdk-hnb659fds-assets-999999999999-eu-west-1",
            ),
            // What a user chose; AppStaging.
            ("my-assets", None, "my-assets"),
            ("my-${AWS::Partition}-assets", None, "my-aws-assets"),
            ("cdk-myapp-staging-123456789012-eu-west-1", None, "cdk-myapp-staging-123456789012-eu-west-1"),
            (
                "cdk-hnb659fds-assets-123456789012-eu-west-1-backup",
                None,
                "cdk-hnb659fds-assets-123456789012-eu-west-1-backup",
            ),
        ];
        for (bucket, region, expected) in table {
            assert_eq!(addresses(bucket, region), expected, "{bucket} {region:?}");
        }
    }

    #[test]
    fn a11_what_each_synthesizer_of_cdk_writes() {
        let ours = storage().bucket;
        let table = [
            // DefaultStackSynthesizer, CliCredentialsStackSynthesizer: the same bucket, with and without a role.
            (
                json!({"bucketName": "cdk-hnb659fds-assets-${AWS::AccountId}-${AWS::Region}", "objectKey": "k",
                "assumeRoleArn": "arn:${AWS::Partition}:iam::${AWS::AccountId}:role/cdk-hnb659fds-file-publishing-role"}),
                Some(ours.as_str()),
            ),
            (
                json!({"bucketName": "cdk-hnb659fds-assets-${AWS::AccountId}-${AWS::Region}", "objectKey": "k"}),
                Some(ours.as_str()),
            ),
            // The role of another account says nothing about whose bucket it is (A31).
            (
                json!({"bucketName": "cdk-hnb659fds-assets-${AWS::AccountId}-${AWS::Region}", "objectKey": "k",
                "assumeRoleArn": "arn:aws:iam::999999999999:role/x"}),
                Some(ours.as_str()),
            ),
            // `bucketPrefix` moves the key alone (A9).
            (
                json!({"bucketName": "cdk-hnb659fds-assets-${AWS::AccountId}-${AWS::Region}", "objectKey": "team/k"}),
                Some(ours.as_str()),
            ),
            // AppStagingSynthesizer, `fileAssetsBucketName`, another account by environment.
            (
                json!({"bucketName": "cdk-app-staging-${AWS::AccountId}-${AWS::Region}", "objectKey": "deploy-time/k"}),
                None,
            ),
            (json!({"bucketName": "team-assets", "objectKey": "k"}), None),
            (json!({"bucketName": "cdk-hnb659fds-assets-999999999999-eu-west-1", "objectKey": "k"}), None),
        ];
        let place = here();
        for (destination, expected) in table {
            let manifest =
                manifest(&json!({"a": {"source": {"path": "a"}, "destinations": {"d": destination}}}));
            let table = Table::new(
                std::slice::from_ref(&manifest),
                &keys([&manifest], place.here()),
                place.here(),
                Some(&storage()),
            );
            let to = &manifest.files["a"].destinations["d"];
            let (bucket, key) = table.address(&to.bucket, &to.key, to.access.region.as_deref());
            assert_eq!((bucket == ours, key), (expected.is_some(), to.key.clone()), "{destination}");
        }
        // BootstraplessSynthesizer has no asset manifest.
        assert!(Table::new(&[], &Keys::default(), place.here(), Some(&storage())).is_empty());
    }

    #[test]
    fn a11_every_partition_has_its_own_hosts() {
        let account: Account = "123456789012".parse().unwrap();
        for region in [
            "us-east-1",
            "cn-north-1",
            "us-gov-west-1",
            "us-iso-east-1",
            "us-isob-east-1",
            "eu-isoe-west-1",
            "us-isof-south-1",
            "eusc-de-east-1",
        ] {
            let region: Region = region.parse().unwrap();
            let (partition, suffix) = (region.partition().name, region.partition().url_suffix);
            let destination = json!({"bucketName": "cdk-hnb659fds-assets-${AWS::AccountId}-${AWS::Region}", "objectKey": "k.zip"});
            let manifest =
                manifest(&json!({"a": {"source": {"path": "a"}, "destinations": {"d": destination}}}));
            let here = Here { account: &account, region: &region };
            let table =
                Table::new(std::slice::from_ref(&manifest), &keys([&manifest], here), here, Some(&storage()));
            let from = format!("cdk-hnb659fds-assets-123456789012-{region}");
            for form in [
                format!("https://{{}}.s3.{region}.{suffix}/k.zip"),
                format!("https://{{}}.s3-{region}.{suffix}/k.zip"),
                format!("https://s3.{region}.{suffix}/{{}}/k.zip"),
                format!("arn:{partition}:s3:::{{}}/k.zip"),
                "s3://{}/k.zip".to_owned(),
            ] {
                let moved = table.repoint(&json!(form.replace("{}", &from)));
                assert_eq!(moved, Some(json!(form.replace("{}", &storage().bucket))), "{form}");
            }
        }
    }

    #[test]
    fn a22_without_storage_of_its_own_nothing_is_redirected() {
        let bucket = "cdk-hnb659fds-assets-${AWS::AccountId}-${AWS::Region}";
        let manifest = manifest(&json!({
            "a": {"source": {"path": "a"}, "destinations": {"d": {"bucketName": bucket, "objectKey": "k"}}},
        }));
        let place = here();
        let table =
            Table::new(std::slice::from_ref(&manifest), &keys([&manifest], place.here()), place.here(), None);
        assert!(table.is_empty());
        let address = table.address(bucket, "k", None);
        assert_eq!(address, ("cdk-hnb659fds-assets-123456789012-eu-west-1".to_owned(), "k".to_owned()));
        let named = json!({"Bucket": address.0});
        assert_eq!(table.audit(&named), []);
        assert_eq!(table.repoint(&named), None);
    }

    #[test]
    fn a27_the_audit_finds_what_still_names_a_source_and_nothing_that_was_left_on_purpose() {
        let bucket = "cdk-hnb659fds-assets-123456789012-eu-west-1";
        let mut table = table();
        table.leave(format!("{bucket}/latest/x.json"));
        let table: Table = serde_json::from_value(json!(table)).unwrap();
        let value = json!({
            "Code": {"S3Bucket": bucket, "S3Key": "k"},
            "List": ["a", format!("s3://{bucket}/k.zip"), {"Deep": format!("arn:aws:s3:::{bucket}/*")}],
            "Other": format!("{bucket}-backup"),
            "Mine": format!("my-{bucket}"),
            "Dotted": format!("{bucket}.backup"),
            "Left": format!("s3://{bucket}/latest/x.json"),
            "LeftUrl": format!("https://{bucket}.s3.eu-west-1.amazonaws.com/latest/x.json?a=b"),
            "NotLeft": format!("s3://{bucket}/latest/x.json.bak"),
            "Image": "123456789012.dkr.ecr.eu-west-1.amazonaws.com/cdk-hnb659fds-container-assets-123456789012-eu-west-1:t",
        });
        let found: Vec<String> = table.audit(&value).iter().map(|it| it.path.join(".")).collect();
        assert_eq!(found, ["Code.S3Bucket", "List.1", "List.2.Deep", "NotLeft", "Image"]);
        let error = table.audit(&value)[1].error(Place::stack("Web").at("Fn").down("Resources").down("Fn"));
        assert_eq!(error.code(), Code::UnrewrittenAssetReference);
        assert_eq!(error.details()["path"], "Resources.Fn.List.1");
        assert!(error.message().contains(bucket), "{error}");
    }

    #[test]
    fn a29_values_of_the_last_deploy_are_told_from_those_that_the_app_changed() {
        let table = table();
        let before = json!({"Content": {"S3Bucket": "cdk-hnb659fds-assets-123456789012-eu-west-1", "S3Key": "k"}, "Size": 1});
        let moved =
            json!({"Content": {"S3Bucket": "cdkd-assets-123456789012-eu-west-1", "S3Key": "k"}, "Size": 1});
        assert_eq!(table.repoint(&before), Some(moved.clone()));
        assert_eq!(table.repoint(&moved), None);
        assert_eq!(table.repoint(&json!(["a", 1, null])), None);
    }
}
