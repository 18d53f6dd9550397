//! `*.assets.json`: files and images that templates refer to, and where they are to be published.

use indexmap::IndexMap;
use serde::{Deserialize, Serialize};

use super::fields::{Fields, json};
use super::manifest::check_version;
use super::path::{folder, resolve};
use crate::error::{Code, Result};

/// One asset manifest. Assets by id (a content hash, as CDK writes it), in the manifest's order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AssetManifest {
    /// Where it lies, canonical.
    pub path: String,
    pub files: IndexMap<String, FileAsset>,
    pub images: IndexMap<String, ImageAsset>,
}

/// A file or folder to be copied to a bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileAsset {
    pub display_name: Option<String>,
    pub source: FileSource,
    /// By destination id, such as `current_account-current_region`.
    pub destinations: IndexMap<String, FileDestination>,
}

/// Where a file asset comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FileSource {
    /// A file or folder of the assembly, canonical.
    Path { path: String, packaging: Packaging },
    /// A command that makes the file on the publishing machine.
    Executable(Vec<String>),
}

/// How a file asset is uploaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Packaging {
    /// As it is.
    File,
    /// As a zip of the folder.
    Zip,
}

/// Where a file goes. Texts may hold `${AWS::AccountId}`, `${AWS::Region}` and `${AWS::Partition}`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileDestination {
    pub bucket: String,
    pub key: String,
    pub access: Access,
}

/// An image to be built or copied to a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageAsset {
    pub display_name: Option<String>,
    pub source: ImageSource,
    /// By destination id.
    pub destinations: IndexMap<String, ImageDestination>,
}

/// How an image is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ImageSource {
    /// `docker build` in a folder of the assembly.
    Build(Box<ImageBuild>),
    /// A command that makes the image on the publishing machine and prints its tag.
    Executable(Vec<String>),
}

/// The arguments of a `docker build`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImageBuild {
    /// Folder of the build, canonical.
    pub folder: String,
    /// Relative to the folder; `Dockerfile` when absent.
    pub file: Option<String>,
    pub target: Option<String>,
    pub args: IndexMap<String, String>,
    pub contexts: IndexMap<String, String>,
    pub ssh: Option<String>,
    pub secrets: IndexMap<String, String>,
    pub network: Option<String>,
    pub platform: Option<String>,
    pub outputs: Vec<String>,
    pub cache_from: Vec<ImageCache>,
    pub cache_to: Option<ImageCache>,
    pub cache_disabled: bool,
}

/// A cache of `docker build`: `type=…,key=value,…`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageCache {
    pub kind: String,
    pub params: IndexMap<String, String>,
}

/// Where an image goes. Texts may hold the same placeholders as those of files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageDestination {
    pub repository: String,
    pub tag: String,
    pub access: Access,
}

/// As whom, and in which region, a destination is written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// `None`: the region of the stack.
    pub region: Option<String>,
    /// A role of CDK's bootstrap.
    pub role: Option<String>,
    pub external_id: Option<String>,
}

impl AssetManifest {
    /// Parses an asset manifest.
    ///
    /// `path`: where it lies, canonical; the paths in it are relative to that folder. Codes: `InvalidAssembly`,
    /// `UnsupportedAssemblyVersion`, `UnsafeAssemblyPath`.
    pub fn parse(bytes: &[u8], path: &str) -> Result<Self> {
        let document = format!("the asset manifest `{path}`");
        let value = json(bytes, Code::InvalidAssembly, &document)?;
        let fields = Fields::root(&value, Code::InvalidAssembly, &document)?;
        check_version(&fields, &document)?;
        let folder = folder(path);
        Ok(Self {
            path: path.to_owned(),
            files: collect(&fields, "files", |asset| file(asset, folder))?,
            images: collect(&fields, "dockerImages", |asset| image(asset, folder))?,
        })
    }
}

impl FileAsset {
    /// Its path in the assembly, canonical, if it comes from there.
    pub fn path(&self) -> Option<&str> {
        match &self.source {
            FileSource::Path { path, .. } => Some(path),
            FileSource::Executable(_) => None,
        }
    }
}

fn collect<T>(
    fields: &Fields<'_>,
    key: &str,
    read: impl Fn(&Fields<'_>) -> Result<T>,
) -> Result<IndexMap<String, T>> {
    fields.objects(key)?.iter().map(|(id, item)| Ok(((*id).to_owned(), read(item)?))).collect()
}

fn source<'a>(asset: &Fields<'a>) -> Result<Fields<'a>> {
    asset.object("source")?.ok_or_else(|| asset.wrong("source", "an object"))
}

fn file(asset: &Fields<'_>, folder: &str) -> Result<FileAsset> {
    let source = source(asset)?;
    let packaging = match source.text("packaging")? {
        None | Some("file") => Packaging::File,
        Some("zip") => Packaging::Zip,
        Some(_) => return Err(source.wrong("packaging", "`file` or `zip`")),
    };
    let source = match executable(&source)? {
        Some(command) => FileSource::Executable(command),
        None => FileSource::Path { path: resolve(folder, source.required_text("path")?)?, packaging },
    };
    let destinations = collect(asset, "destinations", |to| {
        Ok(FileDestination {
            bucket: to.required_text("bucketName")?.to_owned(),
            key: to.required_text("objectKey")?.to_owned(),
            access: access(to)?,
        })
    })?;
    Ok(FileAsset { display_name: asset.owned_text("displayName")?, source, destinations })
}

fn image(asset: &Fields<'_>, folder: &str) -> Result<ImageAsset> {
    let source = source(asset)?;
    let source = match executable(&source)? {
        Some(command) => ImageSource::Executable(command),
        None => ImageSource::Build(Box::new(ImageBuild {
            folder: resolve(folder, source.required_text("directory")?)?,
            file: source.owned_text("dockerFile")?,
            target: source.owned_text("dockerBuildTarget")?,
            args: source.text_map("dockerBuildArgs")?,
            contexts: source.text_map("dockerBuildContexts")?,
            ssh: source.owned_text("dockerBuildSsh")?,
            secrets: source.text_map("dockerBuildSecrets")?,
            network: source.owned_text("networkMode")?,
            platform: source.owned_text("platform")?,
            outputs: source.texts("dockerOutputs")?,
            cache_from: source.object_list("cacheFrom")?.iter().map(cache).collect::<Result<_>>()?,
            cache_to: source.object("cacheTo")?.as_ref().map(cache).transpose()?,
            cache_disabled: source.flag("cacheDisabled")?.unwrap_or(false),
        })),
    };
    let destinations = collect(asset, "destinations", |to| {
        Ok(ImageDestination {
            repository: to.required_text("repositoryName")?.to_owned(),
            tag: to.required_text("imageTag")?.to_owned(),
            access: access(to)?,
        })
    })?;
    Ok(ImageAsset { display_name: asset.owned_text("displayName")?, source, destinations })
}

fn executable(source: &Fields<'_>) -> Result<Option<Vec<String>>> {
    Ok(Some(source.texts("executable")?).filter(|command| !command.is_empty()))
}

fn cache(fields: &Fields<'_>) -> Result<ImageCache> {
    Ok(ImageCache { kind: fields.required_text("type")?.to_owned(), params: fields.text_map("params")? })
}

fn access(to: &Fields<'_>) -> Result<Access> {
    Ok(Access {
        region: to.owned_text("region")?,
        role: to.owned_text("assumeRoleArn")?,
        external_id: to.owned_text("assumeRoleExternalId")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Code;
    use serde_json::json;

    fn parse(value: &serde_json::Value) -> Result<AssetManifest> {
        AssetManifest::parse(value.to_string().as_bytes(), "assembly-Stage/S.assets.json")
    }

    #[test]
    fn everything_that_an_asset_can_say() {
        let to = json!({
            "bucketName": "b-${AWS::AccountId}", "objectKey": "k.zip", "region": "eu-west-1",
            "assumeRoleArn": "arn", "assumeRoleExternalId": "x",
        });
        let manifest = parse(&json!({
            "version": "54.0.0",
            "files": {
                "t": {"source": {"path": "S.template.json", "packaging": "file"}, "destinations": {"here": to}},
                "z": {"displayName": "Code", "source": {"path": "../asset.1", "packaging": "zip"}, "destinations": {}},
                "e": {"source": {"executable": ["make", "it"]}, "destinations": {}},
            },
            "dockerImages": {
                "i": {
                    "source": {
                        "directory": "../asset.2", "dockerFile": "F", "dockerBuildTarget": "t",
                        "dockerBuildArgs": {"A": "1"}, "platform": "linux/arm64", "networkMode": "host",
                        "cacheFrom": [{"type": "registry", "params": {"ref": "r"}}], "cacheDisabled": true,
                    },
                    "destinations": {"here": {"repositoryName": "r", "imageTag": "v"}},
                },
            },
            "later": 1,
        }))
        .unwrap();
        let zip = FileSource::Path { path: "asset.1".into(), packaging: Packaging::Zip };
        assert_eq!(manifest.files["z"].source, zip);
        assert_eq!(manifest.files["e"].source, FileSource::Executable(vec!["make".into(), "it".into()]));
        let destination = &manifest.files["t"].destinations["here"];
        assert_eq!((destination.key.as_str(), destination.access.role.as_deref()), ("k.zip", Some("arn")));
        let ImageSource::Build(build) = &manifest.images["i"].source else { panic!() };
        assert_eq!((build.folder.as_str(), build.platform.as_deref()), ("asset.2", Some("linux/arm64")));
        assert_eq!(build.cache_from[0].params["ref"], "r");
    }

    #[test]
    fn f5_an_asset_manifest_of_another_form_names_the_field() {
        let file =
            |source: serde_json::Value| json!({"version": "1.0.0", "files": {"f": {"source": source}}});
        let table = [
            (json!({}), Code::InvalidAssembly, "`version`"),
            (json!({"version": "99.0.0"}), Code::UnsupportedAssemblyVersion, "99.0.0"),
            (json!({"version": "1.0.0", "files": {"f": {}}}), Code::InvalidAssembly, "`files.f.source`"),
            (file(json!({})), Code::InvalidAssembly, "`files.f.source.path`"),
            (
                file(json!({"path": "a", "packaging": "tar"})),
                Code::InvalidAssembly,
                "`files.f.source.packaging`",
            ),
            (file(json!({"path": "../../a"})), Code::UnsafeAssemblyPath, "../../a"),
        ];
        for (manifest, code, named) in table {
            let error = parse(&manifest).unwrap_err();
            assert_eq!(error.code(), code, "{manifest}");
            assert!(error.message().contains(named), "{error}");
        }
    }
}
