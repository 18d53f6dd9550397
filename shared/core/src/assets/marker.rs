//! The marker of a region: that its assets go to storage of cdkd's own, and what that is called.
//!
//! Source: `seeds/asset-storage.txt`, sections 3 to 5; naming rules: Amazon S3 User Guide, "General purpose bucket naming
//! rules"; Amazon ECR API Reference, `CreateRepository`.

use serde_json::{Map, Value, json};

use super::table::Storage;
use crate::error::{Code, Error, Result};
use crate::name::{Account, Region};

/// The newest form of the storage that this cdkd knows.
const SUPPORTED: u64 = 1;

/// Where the marker of a region lies in the state bucket; beside the records, never among them.
pub fn key(region: &Region) -> String {
    format!("{PREFIX}{region}.json")
}

/// Where all markers lie.
pub const PREFIX: &str = "cdkd-bootstrap/";

/// The region whose marker lies at a key.
pub fn region_of(key: &str) -> Option<Region> {
    key.strip_prefix(PREFIX)?.strip_suffix(".json")?.parse().ok()
}

/// A marker. Fields that it does not know it keeps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Marker {
    pub storage: Storage,
    /// ISO 8601.
    pub created_at: String,
    fields: Map<String, Value>,
}

impl Marker {
    pub fn new(storage: Storage, created_at: String) -> Self {
        Self { storage, created_at, fields: Map::new() }
    }

    /// Reads a marker. One that says too little, or more than is understood, is never taken for absent (rule A24).
    ///
    /// # Errors
    /// `InvalidBootstrapMarker`.
    pub fn parse(bytes: &[u8], region: &Region) -> Result<Self> {
        let wrong = |what: &str| {
            Error::new(
                Code::InvalidBootstrapMarker,
                format!("the marker of {region} in the state bucket {what}"),
            )
            .detail("region", region.as_str())
            .detail("key", key(region))
        };
        let again = format!(
            "restore an earlier version of the object, or delete it and start `cdkd-bootstrap` with {{\"region\": \
             \"{region}\"}} and the names that it had"
        );
        let document: Value =
            serde_json::from_slice(bytes).map_err(|_| wrong("is not JSON").hint(again.as_str()))?;
        let fields = document.as_object().ok_or_else(|| wrong("is no JSON object").hint(again.as_str()))?;
        match fields.get("assetSupportVersion").map(Value::as_u64) {
            Some(Some(version)) if version <= SUPPORTED => {}
            Some(Some(version)) => {
                return Err(wrong(&format!(
                    "has version {version} of asset support, and this cdkd knows {SUPPORTED}"
                ))
                .hint("upgrade cdkd"));
            }
            _ => return Err(wrong("has no `assetSupportVersion`").hint(again)),
        }
        let text = |name: &str| {
            let found = fields.get(name).and_then(Value::as_str).filter(|text| !text.is_empty());
            found.map(str::to_owned).ok_or_else(|| wrong(&format!("has no `{name}`")).hint(again.as_str()))
        };
        let storage = Storage { bucket: text("assetBucket")?, repository: text("containerRepo")? };
        check_names(&storage)
            .map_err(|error| wrong(&format!("is wrong: {}", error.message())).hint(again.as_str()))?;
        let created_at = fields.get("createdAt").and_then(Value::as_str).unwrap_or_default().to_owned();
        Ok(Self { storage, created_at, fields: fields.clone() })
    }

    /// The marker as it is written: JSON, indented with two spaces.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut fields = self.fields.clone();
        for (name, value) in [
            ("assetBucket", json!(self.storage.bucket)),
            ("containerRepo", json!(self.storage.repository)),
            ("assetSupportVersion", json!(SUPPORTED)),
            ("createdAt", json!(self.created_at)),
        ] {
            fields.insert(name.to_owned(), value);
        }
        serde_json::to_vec_pretty(&fields).unwrap_or_default()
    }
}

/// The storage that a region gets: that of its marker, else as asked for, else by the convention.
///
/// # Errors
/// `InvalidInput` for a name that AWS does not take, and for one that is not the marker's: assets of deployed stacks lie
/// under that.
pub fn chosen(
    marker: Option<&Marker>,
    bucket: Option<&str>,
    repository: Option<&str>,
    (account, region): (&Account, &Region),
) -> Result<Storage> {
    let known = marker.map(|marker| &marker.storage);
    let choose = |field: &str, asked: Option<&str>, known: Option<&str>, default: String| {
        match (asked, known) {
        (Some(asked), Some(known)) if asked != known => Err(Error::new(
            Code::InvalidInput,
            format!("`{field}` is `{asked}`, but assets of {region} are in `{known}`"),
        )
        .hint(format!(
            "leave `{field}` out; to move to another one, destroy the storage of the region first with {{\"action\": \
             \"destroy\", \"region\": \"{region}\"}}"
        ))),
        (_, Some(known)) => Ok(known.to_owned()),
        (Some(asked), None) => Ok(asked.to_owned()),
        (None, None) => Ok(default),
    }
    };
    let storage = Storage {
        bucket: choose(
            "assetBucket",
            bucket,
            known.map(|it| it.bucket.as_str()),
            format!("cdkd-assets-{account}-{region}"),
        )?,
        repository: choose(
            "containerRepo",
            repository,
            known.map(|it| it.repository.as_str()),
            format!("cdkd-container-assets-{account}-{region}"),
        )?,
    };
    check_names(&storage)?;
    Ok(storage)
}

/// Refuses names that AWS would not take, before anything is called.
fn check_names(storage: &Storage) -> Result<()> {
    let mut errors = Vec::new();
    if !is_bucket(&storage.bucket) {
        errors.push(
            Error::new(Code::InvalidInput, format!("`{}` is no name of a bucket", storage.bucket))
                .hint("3 to 63 lower-case letters, digits, `-` and `.`; a letter or digit at both ends"),
        );
    }
    if !is_repository(&storage.repository) {
        errors.push(
            Error::new(Code::InvalidInput, format!("`{}` is no name of a repository", storage.repository))
                .hint(
                    "2 to 256 lower-case letters and digits, with single `-`, `_`, `.` and `/` between them",
                ),
        );
    }
    Error::all(errors)
}

fn is_bucket(name: &str) -> bool {
    let fits = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit();
    let bytes = name.as_bytes();
    let is_address = name.split('.').count() == 4 && name.split('.').all(|part| part.parse::<u8>().is_ok());
    (3..=63).contains(&bytes.len())
        && bytes.iter().all(|c| fits(*c) || *c == b'-' || *c == b'.')
        && bytes.first().is_some_and(|c| fits(*c))
        && bytes.last().is_some_and(|c| fits(*c))
        && !name.contains("..")
        && !is_address
        && !["xn--", "sthree-", "amzn-s3-demo-"].iter().any(|prefix| name.starts_with(prefix))
        && !["-s3alias", "--ol-s3", ".mrap", "--x-s3", "--table-s3"]
            .iter()
            .any(|suffix| name.ends_with(suffix))
}

fn is_repository(name: &str) -> bool {
    let word = |word: &str| {
        let mut last = b'-';
        for c in word.bytes() {
            let is_separator = matches!(c, b'-' | b'_' | b'.');
            if !(c.is_ascii_lowercase() || c.is_ascii_digit() || is_separator) {
                return false;
            }
            if is_separator && matches!(last, b'-' | b'_' | b'.') {
                return false;
            }
            last = c;
        }
        !matches!(last, b'-' | b'_' | b'.')
    };
    (2..=256).contains(&name.len()) && name.split('/').all(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region() -> Region {
        "eu-west-1".parse().unwrap()
    }

    fn marker() -> Value {
        json!({
            "assetBucket": "cdkd-assets-123456789012-eu-west-1",
            "containerRepo": "cdkd-container-assets-123456789012-eu-west-1",
            "assetSupportVersion": 1,
            "createdAt": "2026-12-01T00:00:00Z",
            "later": {"kept": true},
        })
    }

    #[test]
    fn a24_a_marker_is_understood_or_refused_and_never_passed_over() {
        let parsed = Marker::parse(marker().to_string().as_bytes(), &region()).unwrap();
        assert_eq!(parsed.storage.bucket, "cdkd-assets-123456789012-eu-west-1");
        assert_eq!(serde_json::from_slice::<Value>(&parsed.to_bytes()).unwrap(), marker());
        let with = |field: &str, value: Value| {
            let mut marker = marker();
            marker[field] = value;
            marker.to_string()
        };
        let table = [
            ("app".to_owned(), "is not JSON"),
            (String::new(), "is not JSON"),
            ("[]".to_owned(), "is no JSON object"),
            (with("assetSupportVersion", json!(2)), "version 2 of asset support"),
            (with("assetSupportVersion", Value::Null), "no `assetSupportVersion`"),
            (with("assetSupportVersion", json!("1")), "no `assetSupportVersion`"),
            (with("assetBucket", Value::Null), "no `assetBucket`"),
            (with("assetBucket", json!("")), "no `assetBucket`"),
            (with("assetBucket", json!("No")), "no name of a bucket"),
            (with("containerRepo", json!(5)), "no `containerRepo`"),
        ];
        for (text, says) in table {
            let error = Marker::parse(text.as_bytes(), &region()).unwrap_err();
            assert_eq!(error.code(), Code::InvalidBootstrapMarker, "{text}");
            assert!(error.message().contains(says) && error.message().contains("eu-west-1"), "{error}");
            assert!(error.hint_text().is_some(), "{error}");
        }
    }

    #[test]
    fn a15_the_key_is_that_of_the_region() {
        assert_eq!(key(&"EU-WEST-1".parse().unwrap()), "cdkd-bootstrap/eu-west-1.json");
        assert_eq!(region_of("cdkd-bootstrap/eu-west-1.json"), Some(region()));
        assert_eq!(region_of("cdkd-bootstrap/other"), None);
    }

    #[test]
    fn a25_names_are_the_markers_else_as_asked_else_by_convention() {
        let account: Account = "123456789012".parse().unwrap();
        let here = (&account, &region());
        let names = |marker: Option<&Marker>, bucket, repository| {
            chosen(marker, bucket, repository, here).map(|it| format!("{} {}", it.bucket, it.repository))
        };
        let convention = "cdkd-assets-123456789012-eu-west-1 cdkd-container-assets-123456789012-eu-west-1";
        assert_eq!(names(None, None, None).unwrap(), convention);
        assert_eq!(names(None, Some("mine"), Some("my/images")).unwrap(), "mine my/images");
        let storage = Storage { bucket: "mine".into(), repository: "my/images".into() };
        let known = Marker::new(storage, String::new());
        assert_eq!(names(Some(&known), None, None).unwrap(), "mine my/images");
        assert_eq!(names(Some(&known), Some("mine"), None).unwrap(), "mine my/images");
        for (bucket, repository) in [(Some("other"), None), (None, Some("other"))] {
            let error = names(Some(&known), bucket, repository).unwrap_err();
            assert_eq!(error.code(), Code::InvalidInput);
            assert!(error.message().contains("`other`"), "{error}");
        }
    }

    #[test]
    fn a14_names_are_checked_before_any_call() {
        let long = "a".repeat(64);
        let table = [
            ("abc", true),
            ("a.b-c.1", true),
            ("ab", false),
            (long.as_str(), false),
            ("Abc", false),
            ("-abc", false),
            ("abc-", false),
            ("a..b", false),
            ("a_b", false),
            ("1.2.3.4", false),
            ("xn--abc", false),
            ("abc-s3alias", false),
        ];
        for (name, fits) in table {
            assert_eq!(is_bucket(name), fits, "{name}");
        }
        let table = [
            ("ab", true),
            ("a/b_c/d.e-f", true),
            ("a", false),
            ("Ab", false),
            ("a//b", false),
            ("a--b", false),
            ("/a", false),
            ("a/", false),
            ("a_", false),
            ("a b", false),
        ];
        for (name, fits) in table {
            assert_eq!(is_repository(name), fits, "{name}");
        }
    }
}
