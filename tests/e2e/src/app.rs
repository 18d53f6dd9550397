//! Cloud assemblies made on the spot.

use std::fs;
use std::path::Path;

use cdkd_test_support::{Archive, workspace};
use serde_json::{Map, Value, json};

/// A stack of an assembly.
#[derive(Clone, Debug)]
pub struct Stack {
    name: String,
    template: Vec<u8>,
    environment: String,
    dependencies: Vec<String>,
    properties: Map<String, Value>,
}

impl Stack {
    /// A stack for any account and region.
    pub fn new(name: &str, template: &Value) -> Self {
        Self::of_text(name, &template.to_string())
    }

    /// The same with resources alone.
    pub fn with(name: &str, resources: &Value) -> Self {
        Self::new(name, &json!({ "Resources": resources }))
    }

    /// The same with any text as its template.
    pub fn of_text(name: &str, template: &str) -> Self {
        Self {
            name: name.to_owned(),
            template: template.as_bytes().to_vec(),
            environment: "aws://unknown-account/unknown-region".to_owned(),
            dependencies: Vec::new(),
            properties: Map::new(),
        }
    }

    /// `aws://account/region`
    #[must_use]
    pub fn environment(mut self, environment: &str) -> Self {
        environment.clone_into(&mut self.environment);
        self
    }

    /// Declares in the manifest that it depends on others.
    #[must_use]
    pub fn after(mut self, stacks: &[&str]) -> Self {
        self.dependencies.extend(stacks.iter().map(|&stack| stack.to_owned()));
        self
    }

    /// A property of its artifact in the manifest: `tags`, `terminationProtection`, ….
    #[must_use]
    pub fn property(mut self, name: &str, value: Value) -> Self {
        self.properties.insert(name.to_owned(), value);
        self
    }
}

/// A cloud assembly.
#[derive(Clone, Debug)]
pub struct App {
    manifest: Value,
    files: Vec<(String, Vec<u8>)>,
}

impl Default for App {
    fn default() -> Self {
        Self { manifest: json!({ "version": "36.0.0", "artifacts": {} }), files: Vec::new() }
    }
}

impl From<Stack> for App {
    fn from(stack: Stack) -> Self {
        Self::default().stack(stack)
    }
}

impl<const N: usize> From<[Stack; N]> for App {
    fn from(stacks: [Stack; N]) -> Self {
        stacks.into_iter().collect()
    }
}

impl FromIterator<Stack> for App {
    fn from_iter<I: IntoIterator<Item = Stack>>(stacks: I) -> Self {
        stacks.into_iter().fold(Self::default(), Self::stack)
    }
}

impl App {
    /// Adds a stack.
    #[must_use]
    pub fn stack(mut self, stack: Stack) -> Self {
        let file = format!("{}.template.json", stack.name);
        let mut properties = stack.properties;
        properties.insert("templateFile".to_owned(), json!(file));
        self.manifest["artifacts"][&stack.name] = json!({
            "type": "aws:cloudformation:stack",
            "environment": stack.environment,
            "dependencies": stack.dependencies,
            "properties": properties,
        });
        self.files.push((file, stack.template));
        self
    }

    /// Gives a stack file assets, by id: `{source, destinations}`.
    #[must_use]
    pub fn assets(self, stack: &str, files: &Value) -> Self {
        self.asset_manifest(stack, &json!({ "version": "36.0.0", "files": files }))
    }

    /// Gives a stack an asset manifest.
    #[must_use]
    pub fn asset_manifest(mut self, stack: &str, manifest: &Value) -> Self {
        let (id, file) = (format!("{stack}.assets"), format!("{stack}.assets.json"));
        self.manifest["artifacts"][&id] =
            json!({ "type": "cdk:asset-manifest", "properties": { "file": file } });
        if let Some(dependencies) = self.manifest["artifacts"][stack]["dependencies"].as_array_mut() {
            dependencies.push(json!(id));
        }
        self.file(&file, manifest.to_string().as_bytes())
    }

    /// Changes the manifest.
    #[must_use]
    pub fn manifest(mut self, change: impl FnOnce(&mut Value)) -> Self {
        change(&mut self.manifest);
        self
    }

    /// Adds a file of any content.
    #[must_use]
    pub fn file(mut self, name: &str, content: &[u8]) -> Self {
        self.files.push((name.to_owned(), content.to_vec()));
        self
    }

    /// Everything but the manifest, and the manifest, by name.
    pub fn files(&self) -> Vec<(String, Vec<u8>)> {
        let mut files = self.files.clone();
        files.push(("manifest.json".to_owned(), self.manifest.to_string().into_bytes()));
        files
    }

    /// As an upload.
    pub fn zip(&self) -> Vec<u8> {
        let archive =
            self.files().into_iter().fold(Archive::default(), |archive, (name, it)| archive.file(&name, it));
        archive.zip(6).unwrap()
    }
}

/// The sample application, one of its stacks renamed so that tests do not meet. `folder`: `cdk.out` or
/// `cdk.out.changed`; `change` may edit the template.
pub fn webapp(folder: &str, artifact: &str, name: &str, change: impl FnOnce(&mut Value)) -> App {
    let root = workspace::root().join("tests/apps/webapp").join(folder);
    let read = |path: &Path| -> Value { serde_json::from_slice(&fs::read(path).unwrap()).unwrap() };
    let mut manifest = read(&root.join("manifest.json"));
    manifest["artifacts"][artifact]["properties"]["stackName"] = json!(name);
    let mut files: Vec<(String, Vec<u8>)> = Vec::new();
    for entry in fs::read_dir(&root).unwrap() {
        let path = entry.unwrap().path();
        let file = path.file_name().unwrap().to_str().unwrap().to_owned();
        if file != "manifest.json" {
            files.push((file, fs::read(&path).unwrap()));
        }
    }
    let place = format!("{artifact}.template.json");
    let template = files.iter_mut().find(|(file, _)| *file == place).unwrap();
    let mut document: Value = serde_json::from_slice(&template.1).unwrap();
    change(&mut document);
    template.1 = document.to_string().into_bytes();
    App { manifest, files }
}
