//! A stack with assets in what `cdk bootstrap` makes, for tests.

use serde_json::{Value, json};

use super::table::{Here, Storage, Table, keys};
use crate::assembly::asset_manifest::AssetManifest;
use crate::name::{Account, Region};

/// The bucket of the assembly, and the one of cdkd.
pub(crate) const FROM: &str = "cdk-hnb659fds-assets-123456789012-eu-west-1";
pub(crate) const TO: &str = "cdkd-assets-123456789012-eu-west-1";

pub(crate) struct Place {
    account: Account,
    region: Region,
}

impl Place {
    pub fn here(&self) -> Here<'_> {
        Here { account: &self.account, region: &self.region }
    }
}

pub(crate) fn here() -> Place {
    Place { account: "123456789012".parse().unwrap(), region: "eu-west-1".parse().unwrap() }
}

pub(crate) fn storage() -> Storage {
    Storage { bucket: TO.into(), repository: "cdkd-container-assets-123456789012-eu-west-1".into() }
}

pub(crate) fn manifest(files: &Value) -> AssetManifest {
    let image = json!({"source": {"directory": "i"}, "destinations": {"d": {
        "repositoryName": "cdk-hnb659fds-container-assets-${AWS::AccountId}-${AWS::Region}", "imageTag": "tag",
    }}});
    let images = if files["images"].is_null() { json!({}) } else { json!({"i": image}) };
    let mut files = files.clone();
    files.as_object_mut().unwrap().remove("images");
    let document = json!({"version": "36.0.0", "files": files, "dockerImages": images});
    AssetManifest::parse(document.to_string().as_bytes(), "S.assets.json").unwrap()
}

/// The table of a stack whose assets have the keys `k`, `k.zip` and `pre/fix/k.json`, and an image with the tag `tag`.
pub(crate) fn table() -> Table {
    let bucket = "cdk-hnb659fds-assets-${AWS::AccountId}-${AWS::Region}";
    let file = |key: &str| json!({"source": {"path": "a"}, "destinations": {"d": {"bucketName": bucket, "objectKey": key}}});
    let files = json!({"a": file("k"), "b": file("k.zip"), "c": file("pre/fix/k.json"), "images": true});
    let manifest = manifest(&files);
    let place = here();
    let keys = keys([&manifest], place.here());
    Table::new(std::slice::from_ref(&manifest), &keys, place.here(), Some(&storage()))
}
