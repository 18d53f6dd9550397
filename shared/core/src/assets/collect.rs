//! Which files a run publishes, and where to (rule A6): the list that a stack's part of a run lays out.
//!
//! A list is complete for its stack, also where another stack of the run has the same asset: stacks run side by side, and
//! none may start before what it refers to is there. What is in it once is told by the destination, not by the asset's
//! id: two stacks may have one asset in two buckets.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::skip::is_content_addressed;
use crate::assembly::asset_manifest::{AssetManifest, FileSource, ImageSource, Packaging};
use crate::error::{Code, Error, Place, Result};

/// `assets.json` of a stack: what is to be published before its resources are touched.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Files {
    /// `s3://…`, as the run's input names it.
    pub assembly: String,
    pub files: Vec<File>,
}

/// A file or folder of the assembly, and the object that it becomes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct File {
    /// The asset's id.
    pub id: String,
    /// What people call it: its display name, else its path.
    pub name: String,
    /// Canonical path in the assembly.
    pub path: String,
    pub packaging: Packaging,
    pub bucket: String,
    pub key: String,
    /// The account of the role that CDK would publish as, if the manifest names one: cdkd publishes as itself, and says
    /// so where that is denied (rule A31).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role_account: Option<String>,
}

/// Where a stack's file assets go: bucket and key of one, placeholders filled in.
pub type Address = (String, String);

/// The files that a stack needs published.
///
/// `templates`: canonical paths of templates, the stack's own and those of its nested stacks, which are read from the
/// assembly and not published. `address`: the destination's bucket and key as this run has them, given what the manifest
/// says and the region that it says it for, if any.
///
/// `UnsupportedAsset`: an image, or a file that a command would make. `InvalidAssembly`: one object is to be two things.
pub fn collect(
    stack: &str,
    manifests: &[AssetManifest],
    templates: &BTreeSet<String>,
    address: impl Fn(&str, &str, Option<&str>) -> Result<Address>,
) -> Result<Vec<File>> {
    let (mut files, mut errors) = (Vec::new(), Vec::new());
    for manifest in manifests {
        for (id, image) in &manifest.images {
            let folder = match &image.source {
                ImageSource::Build(build) => Some(build.folder.as_str()),
                ImageSource::Executable(_) => None,
            };
            let name = image.display_name.as_deref().or(folder).unwrap_or(id);
            errors.push(
                Error::new(Code::UnsupportedAsset, format!("the image `{name}` cannot be published: this release publishes files alone"))
                    .hint("push the image yourself and refer to it by repository and tag, with `ContainerImage.fromEcrRepository` or `DockerImageCode.fromEcr`")
                    .detail("asset", name),
            );
        }
        for (id, file) in &manifest.files {
            let (path, packaging) = match &file.source {
                FileSource::Path { path, .. } if templates.contains(path) => continue,
                FileSource::Path { path, packaging } => (path, *packaging),
                FileSource::Executable(_) => {
                    let name = file.display_name.as_deref().unwrap_or(id);
                    errors.push(
                        Error::new(Code::UnsupportedAsset, format!("the file `{name}` is made by a command while it is published, which cdkd does not run"))
                            .hint("have the app write the file during synthesis, so that it is in `cdk.out`")
                            .detail("asset", name),
                    );
                    continue;
                }
            };
            for to in file.destinations.values() {
                let (bucket, key) = address(&to.bucket, &to.key, to.access.region.as_deref())?;
                files.push(File {
                    id: id.clone(),
                    name: file.display_name.clone().unwrap_or_else(|| path.clone()),
                    path: path.clone(),
                    packaging,
                    bucket,
                    key,
                    role_account: to.access.role.as_deref().and_then(account_of).map(str::to_owned),
                });
            }
        }
    }
    let place = Place::stack(stack);
    Error::all(errors).and_then(|()| merge(files)).map_err(|error| error.place(&place))
}

/// Leaves one of those that become the same object. Several runs' worth of stacks may be merged.
///
/// `InvalidAssembly`: they differ, and the key is not made of the content, which would tell that they do not.
pub fn merge(files: impl IntoIterator<Item = File>) -> Result<Vec<File>> {
    let mut kept: Vec<File> = Vec::new();
    let mut places: BTreeMap<(String, String), usize> = BTreeMap::new();
    for file in files {
        let earlier = places.entry((file.bucket.clone(), file.key.clone())).or_insert(kept.len());
        match kept.get(*earlier) {
            None => kept.push(file),
            Some(same) if (&same.path, same.packaging) == (&file.path, file.packaging) => {}
            Some(_) if is_content_addressed(&file.key) => {}
            Some(other) => {
                return Err(Error::new(
                    Code::InvalidAssembly,
                    format!(
                        "`{}` and `{}` are both to be published as `{}` in bucket `{}`",
                        other.name, file.name, file.key, file.bucket
                    ),
                )
                .hint("give one of them another object key, or none, so that CDK makes one of the content"));
            }
        }
    }
    Ok(kept)
}

/// The account in the ARN of a role, which may be a placeholder.
fn account_of(role: &str) -> Option<&str> {
    role.split(':')
        .nth(4)
        .filter(|account| account.len() == 12 && account.bytes().all(|c| c.is_ascii_digit()))
}

/// What to say when S3 denies a call on a destination: which permission is missing, where, and why that may be
/// (rule A31).
///
/// `permission`: such as `s3:PutObject`. `said`: what S3 said; it may name another one, such as that of the bucket's key.
/// `account`: that of cdkd.
pub fn denied(file: &File, permission: &str, said: &str, account: &str) -> Error {
    let permission = said
        .split_once("not authorized to perform: ")
        .and_then(|(_, rest)| rest.split_whitespace().next())
        .map_or(permission, |told| told.trim_end_matches('.'));
    let bucket = file.bucket.as_str();
    let foreign = accounts_in(bucket)
        .find(|it| *it != account)
        .or_else(|| file.role_account.as_deref().filter(|it| *it != account));
    let (why, hint) = match foreign {
        Some(other) => (
            format!(
                "; the destination is of account {other}, and cdkd publishes with its own role in account {account} alone"
            ),
            format!(
                "deploy the stack with a cdkd installed in account {other}, or let the app's synthesizer publish to a bucket of account {account}"
            ),
        ),
        None => (
            String::new(),
            format!(
                "check that bucket `{bucket}` belongs to account {account}, and that neither its policy nor the organization's takes `{permission}` from the role of `cdkd-publish-assets`"
            ),
        ),
    };
    Error::new(
        Code::AccessDenied,
        format!(
            "asset `{}` could not be published as `{}` to bucket `{bucket}`: `{permission}` is denied{why}",
            file.name, file.key
        ),
    )
    .hint(hint)
    .detail("permission", permission)
    .detail("bucket", bucket)
    .detail("asset", file.name.as_str())
}

/// Account ids in a bucket's name.
fn accounts_in(bucket: &str) -> impl Iterator<Item = &str> {
    bucket.split(['-', '.']).filter(|part| part.len() == 12 && part.bytes().all(|c| c.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    const HASH: &str = "5f70bf18a086007016e948b04aed3b82103a36bea41755b6cddfaf10ace3c6ef";

    fn manifest(files: &Value) -> AssetManifest {
        let document = json!({"version": "55.0.0", "files": files});
        AssetManifest::parse(document.to_string().as_bytes(), "S.assets.json").unwrap()
    }

    fn asset(path: &str, destinations: &[(&str, &str)]) -> Value {
        let to: serde_json::Map<String, Value> = destinations
            .iter()
            .enumerate()
            .map(|(n, (bucket, key))| (format!("d{n}"), json!({"bucketName": bucket, "objectKey": key})))
            .collect();
        json!({"source": {"path": path, "packaging": "zip"}, "destinations": to})
    }

    /// What is published, as `path>bucket/key`.
    fn published(manifests: &[Value], templates: &[&str]) -> Result<String> {
        let manifests: Vec<AssetManifest> = manifests.iter().map(manifest).collect();
        let templates = templates.iter().map(|it| (*it).to_owned()).collect();
        let address = |bucket: &str, key: &str, region: Option<&str>| {
            Ok((bucket.replace("${AWS::Region}", region.unwrap_or("here")), key.to_owned()))
        };
        let files = collect("S", &manifests, &templates, address)?;
        let shown: Vec<String> =
            files.iter().map(|file| format!("{}>{}/{}", file.path, file.bucket, file.key)).collect();
        Ok(shown.join(" "))
    }

    #[test]
    fn a6_what_is_published_is_told_by_its_destination() {
        let far = json!({"source": {"path": "f"}, "destinations": {
            "d": {"bucketName": "b-${AWS::Region}", "objectKey": "k", "region": "far"},
        }});
        let table: &[(&[Value], &[&str], &str)] = &[
            (&[json!({})], &[], ""),
            (&[json!({"i": asset("a", &[("b", "k")])})], &[], "a>b/k"),
            // Every destination of an asset.
            (&[json!({"i": asset("a", &[("b", "k"), ("c", "k")])})], &[], "a>b/k a>c/k"),
            // One id, other buckets or prefixes: both.
            (
                &[json!({"i": asset("a", &[("b", "k")])}), json!({"i": asset("a", &[("c", "k")])})],
                &[],
                "a>b/k a>c/k",
            ),
            (
                &[json!({"i": asset("a", &[("b", "k")])}), json!({"i": asset("a", &[("b", "p/k")])})],
                &[],
                "a>b/k a>b/p/k",
            ),
            // Other ids, one object: once.
            (&[json!({"i": asset("a", &[("b", "k")]), "j": asset("a", &[("b", "k")])})], &[], "a>b/k"),
            (
                &[json!({"i": asset("a", &[("b", HASH)]), "j": asset("other/a", &[("b", HASH)])})],
                &[],
                &format!("a>b/{HASH}"),
            ),
            // Templates are read from the assembly.
            (
                &[json!({"t": asset("S.template.json", &[("b", "t")]), "i": asset("a", &[("b", "k")])})],
                &["S.template.json", "SChild.nested.template.json"],
                "a>b/k",
            ),
            // Another region's destination, as written.
            (&[json!({"i": far})], &[], "f>b-far/k"),
        ];
        for (manifests, templates, expected) in table {
            assert_eq!(published(manifests, templates).as_deref(), Ok(*expected), "{manifests:?}");
        }
    }

    #[test]
    fn a32_templates_are_not_published_at_any_depth() {
        let files = json!({
            "t": asset("S.template.json", &[("b", "t")]),
            "n": asset("SChild1.nested.template.json", &[("b", "n")]),
            "g": asset("SChild1Grandchild2.nested.template.json", &[("b", "g")]),
            // One that an app publishes for itself is a file like others.
            "o": asset("asset.o.template.json", &[("b", "o")]),
        });
        let templates =
            ["S.template.json", "SChild1.nested.template.json", "SChild1Grandchild2.nested.template.json"];
        assert_eq!(published(&[files], &templates).as_deref(), Ok("asset.o.template.json>b/o"));
    }

    #[test]
    fn a10_nothing_is_made_of_an_assets_id() {
        // The id is of the compact JSON, the key of what CDK says.
        let manifests = [manifest(&json!({"an id": asset("a", &[("b", &format!("{HASH}.json"))])}))];
        let address = |bucket: &str, key: &str, _: Option<&str>| Ok((bucket.to_owned(), key.to_owned()));
        let files = collect("S", &manifests, &BTreeSet::new(), address).unwrap();
        assert_eq!((files[0].id.as_str(), files[0].key.as_str()), ("an id", &*format!("{HASH}.json")));
        assert!(is_content_addressed(&files[0].key));
    }

    #[test]
    fn what_cannot_be_published_is_named_with_the_remedy() {
        let command =
            json!({"displayName": "Site/Index", "source": {"executable": ["make"]}, "destinations": {}});
        let two = json!({"i": asset("a", &[("b", "latest.zip")]), "j": asset("c", &[("b", "latest.zip")])});
        let table = [
            (json!({"e": command}), Code::UnsupportedAsset, "`Site/Index`", "during synthesis"),
            (two, Code::InvalidAssembly, "`a` and `c`", "another object key"),
        ];
        for (files, code, named, remedy) in table {
            let error = published(&[files], &[]).unwrap_err();
            assert_eq!(error.code(), code);
            assert!(error.message().contains(named), "{error}");
            assert!(error.hint_text().unwrap().contains(remedy), "{error:?}");
            assert_eq!(error.where_().unwrap().stack.as_deref(), Some("S"));
        }
        let document = json!({"version": "55.0.0", "dockerImages": {"i": {
            "displayName": "Api/Image", "source": {"directory": "image"}, "destinations": {},
        }}});
        let images = AssetManifest::parse(document.to_string().as_bytes(), "S.assets.json").unwrap();
        let error = collect("S", &[images], &BTreeSet::new(), |_, _, _| unreachable!()).unwrap_err();
        assert_eq!(error.code(), Code::UnsupportedAsset);
        assert!(error.message().contains("`Api/Image`"), "{error}");
        assert!(error.hint_text().unwrap().contains("fromEcrRepository"));
    }

    #[test]
    fn a31_a_denial_names_the_permission_and_why() {
        let file = |bucket: &str, role: Option<&str>| File {
            id: "i".into(),
            name: "Fn/Code".into(),
            path: "a".into(),
            packaging: Packaging::Zip,
            bucket: bucket.into(),
            key: "k".into(),
            role_account: role.and_then(account_of).map(str::to_owned),
        };
        let role = "arn:aws:iam::999999999999:role/cdk-hnb659fds-file-publishing-role-999999999999-eu-west-1";
        let kms = "User: arn:aws:sts::1:assumed-role/x is not authorized to perform: kms:GenerateDataKey on resource: r";
        let own = "111111111111";
        let table = [
            (
                file("cdk-q-assets-111111111111-eu-west-1", None),
                "Access Denied",
                "s3:PutObject",
                "belongs to account 111111111111",
            ),
            (
                file("cdk-q-assets-999999999999-eu-west-1", None),
                "",
                "s3:PutObject",
                "installed in account 999999999999",
            ),
            (file("theirs", Some(role)), "", "s3:PutObject", "installed in account 999999999999"),
            (
                file("ours", Some("arn:${AWS::Partition}:iam::${AWS::AccountId}:role/r")),
                "",
                "s3:PutObject",
                "`ours`",
            ),
            (file("ours", None), kms, "kms:GenerateDataKey", "kms:GenerateDataKey"),
        ];
        for (file, said, permission, hint) in table {
            let error = denied(&file, "s3:PutObject", said, own);
            assert_eq!(error.code(), Code::AccessDenied);
            assert!(
                error.message().contains(permission) && error.message().contains(&file.bucket),
                "{error}"
            );
            assert!(error.message().contains("`Fn/Code`"), "{error}");
            assert!(error.hint_text().unwrap().contains(hint), "{error:?}");
            assert_eq!(error.details()["permission"], permission);
        }
    }

    #[test]
    fn a_list_goes_into_a_document_and_comes_back() {
        let manifests = [manifest(&json!({"i": asset("a", &[("b", "k")])}))];
        let address = |bucket: &str, key: &str, _: Option<&str>| Ok((bucket.to_owned(), key.to_owned()));
        let files = collect("S", &manifests, &BTreeSet::new(), address).unwrap();
        let list = Files { assembly: "s3://uploads/a.zip".into(), files };
        let document = serde_json::to_value(&list).unwrap();
        assert_eq!(
            document,
            json!({"assembly": "s3://uploads/a.zip", "files": [
                {"id": "i", "name": "a", "path": "a", "packaging": "zip", "bucket": "b", "key": "k"},
            ]})
        );
        assert_eq!(serde_json::from_value::<Files>(document).unwrap(), list);
    }
}
