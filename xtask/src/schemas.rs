//! `cargo xtask schemas`: the table of resource types, from the public resource schemas.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use cdkd_core::schema::TypeSchema;
use serde_json::Value;

/// Writes `shared/core/src/schema/types.txt` from the schemas that come with cfn-lint, whose version
/// `infra/local/requirements.txt` pins; the environment with it is made if it is not there.
pub fn run() -> Result<(), String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().ok_or("xtask has no parent folder")?;
    let environment = root.join("target/venv");
    if !environment.exists() {
        execute(Command::new("python3").args(["-m", "venv"]).arg(&environment))?;
        let requirements = root.join("infra/local/requirements.txt");
        execute(Command::new(environment.join("bin/pip")).args(["install", "-q", "-r"]).arg(requirements))?;
    }
    let packages = site_packages(&environment)?;
    let version = cfn_lint_version(&packages)?;
    let schemas = packages.join("cfnlint/data/schemas");
    let stamp = read_json(&schemas.join("version.json"))?;
    let date = stamp.get("schema_date").and_then(Value::as_str).unwrap_or("unknown");

    let mut types: Vec<TypeSchema> = Vec::new();
    for path in entries(&schemas.join("resources"))? {
        if path.extension().is_none_or(|extension| extension != "json") {
            continue;
        }
        let mut document = read_json(&path)?;
        close(&mut document)?;
        let schema = TypeSchema::from_schema_alone(&document)
            .ok_or_else(|| format!("{} is no resource schema", path.display()))?;
        // Macros of the SAM transform, no resource types.
        if !schema.type_name.starts_with("AWS::Serverless::") {
            types.push(schema);
        }
    }
    types.sort_by(|a, b| a.type_name.cmp(&b.type_name));

    let mut table = format!(
        "# CloudFormation resource types, made by `cargo xtask schemas`; do not edit.\n\
         # Source: the resource schemas in cfn-lint {version} (data of {date}), cfnlint/data/schemas/resources.\n\
         # Copyright Amazon.com, Inc. or its affiliates. SPDX-License-Identifier: MIT-0\n"
    );
    for schema in &types {
        let line = schema.to_string();
        // The table's grammar has no escapes.
        if TypeSchema::parse_line(&line).as_ref() != Some(schema) {
            return Err(format!("{} does not survive a line of the table: {line}", schema.type_name));
        }
        table.push_str(&line);
        table.push('\n');
    }
    let path = root.join("shared/core/src/schema/types.txt");
    fs::write(&path, &table).map_err(|error| format!("{}: {error}", path.display()))?;

    let count = |holds: fn(&TypeSchema) -> bool| types.iter().filter(|schema| holds(schema)).count();
    println!(
        "{} types, {} provisionable, {} of these immutable, {} with an optional name of known form; {} KB",
        types.len(),
        count(TypeSchema::provisionable),
        count(|schema| schema.provisionable() && !schema.mutable()),
        count(|schema| schema.name.is_some()),
        table.len() / 1000,
    );
    Ok(())
}

/// Types of properties that cfn-lint leaves open though the service takes text only.
const TEXTS: [(&str, &str); 1] = [(
    "AWS::Lambda::Function",
    "/definitions/Environment/properties/Variables/patternProperties/[a-zA-Z][a-zA-Z0-9_]+/type",
)];

/// Sets what [`TEXTS`] says.
fn close(document: &mut Value) -> Result<(), String> {
    for (type_name, pointer) in TEXTS {
        if document.get("typeName").and_then(Value::as_str) == Some(type_name) {
            let kind =
                document.pointer_mut(pointer).ok_or_else(|| format!("{type_name} has no {pointer}"))?;
            *kind = "string".into();
        }
    }
    Ok(())
}

fn site_packages(environment: &Path) -> Result<PathBuf, String> {
    entries(&environment.join("lib"))?
        .into_iter()
        .map(|python| python.join("site-packages"))
        .find(|packages| packages.join("cfnlint").is_dir())
        .ok_or_else(|| format!("cfn-lint is not installed in {}", environment.display()))
}

/// From the name of the folder of its metadata: `cfn_lint-1.58.0.dist-info`.
fn cfn_lint_version(packages: &Path) -> Result<String, String> {
    entries(packages)?
        .iter()
        .filter_map(|path| path.file_name()?.to_str()?.strip_prefix("cfn_lint-")?.strip_suffix(".dist-info"))
        .map(str::to_owned)
        .next()
        .ok_or_else(|| "cfn-lint's version is not known".to_owned())
}

fn read_json(path: &Path) -> Result<Value, String> {
    let text = fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
    serde_json::from_slice(&text).map_err(|error| format!("{}: {error}", path.display()))
}

fn execute(command: &mut Command) -> Result<(), String> {
    let name = command.get_program().to_string_lossy().into_owned();
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("`{name}` ended with {status}")),
        Err(error) => Err(format!("`{name}` did not start: {error}")),
    }
}

fn entries(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let listing = fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    Ok(listing.filter_map(|entry| Some(entry.ok()?.path())).collect())
}
