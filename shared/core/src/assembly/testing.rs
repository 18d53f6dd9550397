//! Archives and assemblies for tests.

use std::collections::BTreeMap;
use std::io::Write;

use rawzip::path::EntryPath;
use rawzip::{CompressionMethod, ZipArchiveWriter};
use serde_json::{Value, json};

use super::input::Parameters;
use super::select::Request;
use super::selection::{SelectedStack, Selection};
use super::source::Source;
use crate::error::Result;

pub const ACCOUNT: &str = "123456789012";

/// A file to be packed.
pub struct File<'a> {
    pub path: &'a [u8],
    pub content: &'a [u8],
    pub deflate: bool,
    /// Unix mode.
    pub mode: u32,
}

impl<'a> File<'a> {
    pub fn new(path: &'a str, content: &'a [u8]) -> Self {
        Self { path: path.as_bytes(), content, deflate: true, mode: 0o100_644 }
    }

    pub fn stored(self) -> Self {
        Self { deflate: false, ..self }
    }

    pub fn link(path: &'a str, target: &'a str) -> Self {
        Self { mode: 0o120_777, ..Self::new(path, target.as_bytes()).stored() }
    }
}

/// Packs files, whatever their paths say.
pub fn zip(files: &[File<'_>]) -> Vec<u8> {
    let mut archive = ZipArchiveWriter::new(Vec::new());
    for file in files {
        let method = if file.deflate { CompressionMethod::DEFLATE } else { CompressionMethod::STORE };
        let (mut entry, config) = archive
            .new_file(EntryPath::verbatim(file.path))
            .compression_method(method)
            .unix_permissions(file.mode)
            .start()
            .unwrap();
        let output = if file.deflate {
            let encoder = flate2::write::DeflateEncoder::new(&mut entry, flate2::Compression::default());
            let mut writer = config.wrap(encoder);
            writer.write_all(file.content).unwrap();
            let (encoder, output) = writer.finish().unwrap();
            encoder.finish().unwrap();
            output
        } else {
            let mut writer = config.wrap(&mut entry);
            writer.write_all(file.content).unwrap();
            writer.finish().unwrap().1
        };
        entry.finish(output).unwrap();
    }
    archive.finish().unwrap()
}

/// An archive whose directory says that its first file has `size` bytes.
pub fn with_stated_size(mut zip: Vec<u8>, size: u32) -> Vec<u8> {
    let record = zip.windows(4).position(|bytes| bytes == b"PK\x01\x02").unwrap();
    zip[record + 24..record + 28].copy_from_slice(&size.to_le_bytes());
    zip
}

/// An assembly in memory.
#[derive(Clone, Default)]
pub struct Documents(BTreeMap<String, Vec<u8>>);

impl Documents {
    pub fn with(mut self, path: &str, document: &Value) -> Self {
        self.0.insert(path.to_owned(), document.to_string().into_bytes());
        self
    }

    pub fn raw(mut self, path: &str, bytes: &[u8]) -> Self {
        self.0.insert(path.to_owned(), bytes.to_vec());
        self
    }

    pub fn and(mut self, other: Self) -> Self {
        self.0.extend(other.0);
        self
    }

    pub fn zip(&self, top: &str) -> Vec<u8> {
        let paths: Vec<String> = self.0.keys().map(|path| format!("{top}{path}")).collect();
        let files: Vec<File<'_>> =
            paths.iter().zip(self.0.values()).map(|(path, content)| File::new(path, content)).collect();
        zip(&files)
    }
}

impl Source for Documents {
    fn document(&self, path: &str) -> Result<Option<Vec<u8>>> {
        Ok(self.0.get(path).cloned())
    }
}

pub fn template() -> Value {
    json!({"Resources": {"Topic": {"Type": "AWS::SNS::Topic"}}})
}

/// A stack's artifact with the template `t.json`.
pub fn stack(dependencies: &[&str]) -> Value {
    stack_in("aws://unknown-account/unknown-region", dependencies)
}

pub fn stack_in(environment: &str, dependencies: &[&str]) -> Value {
    json!({
        "type": "aws:cloudformation:stack",
        "environment": environment,
        "properties": {"templateFile": "t.json"},
        "dependencies": dependencies,
    })
}

pub fn manifest(artifacts: &Value) -> Value {
    json!({"version": "55.0.0", "artifacts": artifacts})
}

/// An assembly of one manifest, whose stacks share a template.
pub fn app(artifacts: &Value) -> Documents {
    Documents::default().with("manifest.json", &manifest(artifacts)).with("t.json", &template())
}

/// A stage in the folder `inner` of stacks that share a template.
pub fn stage(outer: Documents, folder: &str, artifacts: &Value) -> Documents {
    outer
        .with(&format!("{folder}/manifest.json"), &manifest(artifacts))
        .with(&format!("{folder}/t.json"), &template())
}

pub fn request(stacks: &[&str]) -> Request {
    Request {
        stacks: stacks.iter().map(|stack| (*stack).to_owned()).collect(),
        exclusively: false,
        region: "eu-west-1".parse().unwrap(),
        account: ACCOUNT.parse().unwrap(),
        parameters: Parameters::default(),
    }
}

/// One stack with an asset manifest of the given files and images.
pub fn with_assets(files: &Value, images: &Value) -> Documents {
    app(&json!({
        "S": stack(&["S.assets"]),
        "S.assets": {"type": "cdk:asset-manifest", "properties": {"file": "S.assets.json"}},
    }))
    .with("S.assets.json", &json!({"version": "55.0.0", "files": files, "dockerImages": images}))
}

pub fn own_template() -> Value {
    json!({"source": {"path": "t.json", "packaging": "file"}, "destinations": {}})
}

/// Stacks with a template each, below `folder` (empty or with `/` at its end), and their artifacts.
///
/// A stack is written as its id, `@region` if it is bound to one, and words: `needs:Id` (by the manifest),
/// `exports:name`, `imports:name`, `reads:Stack` or `reads:Stack@region` (an output of it), `empty`.
pub fn linked(folder: &str, stacks: &[&str]) -> (Documents, Value) {
    let mut documents = Documents::default();
    let mut artifacts = json!({});
    for stack in stacks {
        let mut words = stack.split_whitespace();
        let (id, region) = split(words.next().unwrap());
        let mut artifact =
            stack_in(&format!("aws://unknown-account/{}", region.unwrap_or("unknown-region")), &[]);
        artifact["properties"]["templateFile"] = json!(format!("{id}.json"));
        let mut document = template();
        let mut taken = Vec::new();
        for (n, word) in words.enumerate() {
            match word.split_once(':').unwrap_or((word, "")) {
                ("needs", need) => artifact["dependencies"].as_array_mut().unwrap().push(json!(need)),
                ("exports", name) => {
                    document["Outputs"][format!("O{n}")] =
                        json!({"Value": "v", "Export": {"Name": {"Fn::Sub": name}}});
                }
                ("imports", name) => taken.push(json!({"Fn::ImportValue": {"Fn::Sub": name}})),
                ("reads", source) => {
                    let (stack, region) = split(source);
                    let mut read = json!({"StackName": stack, "OutputName": "O"});
                    if let Some(region) = region {
                        read["Region"] = json!(region);
                    }
                    taken.push(json!({"Fn::GetStackOutput": read}));
                }
                ("empty", _) => document["Resources"] = json!({}),
                _ => panic!("{word}"),
            }
        }
        if document["Resources"]["Topic"].is_object() {
            document["Resources"]["Topic"]["Properties"] = json!({ "Tags": taken });
        }
        documents = documents.with(&format!("{folder}{id}.json"), &document);
        artifacts[id] = artifact;
    }
    (documents, artifacts)
}

/// An assembly of one manifest with stacks as [`linked`] takes them.
pub fn linked_app(stacks: &[&str]) -> Documents {
    let (documents, artifacts) = linked("", stacks);
    documents.with("manifest.json", &manifest(&artifacts))
}

fn split(text: &str) -> (&str, Option<&str>) {
    text.split_once('@').map_or((text, None), |(name, region)| (name, Some(region)))
}

/// The levels of a selection, such as `A|B<A C<A`.
pub fn levels(selection: &Selection) -> String {
    let stack = |stack: &&SelectedStack| {
        let needs: Vec<&str> = stack.dependencies.iter().map(|key| key.stack.as_str()).collect();
        if needs.is_empty() { stack.name.to_string() } else { format!("{}<{}", stack.name, needs.join(",")) }
    };
    let level = |level: &Vec<&SelectedStack>| level.iter().map(stack).collect::<Vec<_>>().join(" ");
    selection.levels().iter().map(level).collect::<Vec<_>>().join("|")
}
