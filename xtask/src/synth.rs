//! `cargo xtask synth`: the sample apps' cloud assemblies, as the CDK command line tool would write them.
//!
//! Every folder of `tests/apps` with an `app.js` is an app. Its `variants.json`, if it has one, maps the name
//! of an output folder to the context keys that this variant sets; without it there is one, `cdk.out`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Map, Value, json};

/// Installs what `tests/apps/package-lock.json` pins and synthesizes every variant of every app.
///
/// The results are committed, so they have to come out the same on every machine: an assembly or a lock file
/// that names a place of this one is an error.
pub fn run() -> Result<(), String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().ok_or("xtask has no parent folder")?;
    let apps = root.join("tests/apps");
    execute(Command::new("npm").arg("ci").current_dir(&apps))?;
    // `tests/apps/.npmrc` tells npm to leave them out.
    if read(&apps.join("package-lock.json"))?.contains("\"resolved\"") {
        return Err("`tests/apps/package-lock.json` names the registry of this machine (`resolved`)".into());
    }
    for app in entries(&apps)? {
        if !app.join("app.js").is_file() {
            continue;
        }
        for (folder, context) in variants(&app)? {
            let output = app.join(folder);
            println!("{}", output.strip_prefix(root).unwrap_or(&output).display());
            synthesize(&app, &output, context)?;
            strip_traces(&output)?;
            refuse_mention(&output, &root.to_string_lossy())?;
        }
    }
    Ok(())
}

fn variants(app: &Path) -> Result<Map<String, Value>, String> {
    let path = app.join("variants.json");
    if !path.is_file() {
        return Ok(Map::from_iter([("cdk.out".into(), json!({}))]));
    }
    serde_json::from_str(&read(&path)?).map_err(|error| format!("{}: {error}", path.display()))
}

fn synthesize(app: &Path, output: &Path, variant: Value) -> Result<(), String> {
    if output.exists() {
        // Synthesis leaves the files of stacks that are gone.
        fs::remove_dir_all(output).map_err(|error| format!("{}: {error}", output.display()))?;
    }
    // The defaults of the CDK command line tool, but for stack traces, which hold paths.
    let mut context = json!({
        "aws:cdk:enable-path-metadata": true,
        "aws:cdk:enable-asset-metadata": true,
        "aws:cdk:version-reporting": true,
        "aws:cdk:disable-stack-trace": true,
    });
    if let (Some(context), Value::Object(variant)) = (context.as_object_mut(), variant) {
        context.extend(variant);
    }
    execute(
        Command::new("node")
            .arg("app.js")
            .current_dir(app)
            .env("CDK_OUTDIR", output)
            .env("CDK_CONTEXT_JSON", context.to_string())
            .env_remove("CDK_DEFAULT_ACCOUNT")
            .env_remove("CDK_DEFAULT_REGION"),
    )
}

/// Takes the stack traces out of the metadata files: they hold paths of this machine, and nothing turns them off.
fn strip_traces(folder: &Path) -> Result<(), String> {
    for path in entries(folder)? {
        if path.is_dir() {
            strip_traces(&path)?;
            continue;
        }
        if !path.to_string_lossy().ends_with(".metadata.json") {
            continue;
        }
        let mut metadata: Value =
            serde_json::from_str(&read(&path)?).map_err(|error| format!("{}: {error}", path.display()))?;
        for entries in metadata.as_object_mut().into_iter().flat_map(|all| all.values_mut()) {
            if let Some(entries) = entries.as_array_mut() {
                entries.retain(|entry| entry["type"] != "aws:cdk:creationStack");
                for entry in entries.iter_mut().filter_map(Value::as_object_mut) {
                    entry.remove("trace");
                }
            }
        }
        fs::write(&path, format!("{metadata:#}\n"))
            .map_err(|error| format!("{}: {error}", path.display()))?;
    }
    Ok(())
}

/// Refuses an assembly in which any file holds `text`.
fn refuse_mention(folder: &Path, text: &str) -> Result<(), String> {
    for path in entries(folder)? {
        if path.is_dir() {
            refuse_mention(&path, text)?;
        } else if fs::read(&path).is_ok_and(|bytes| String::from_utf8_lossy(&bytes).contains(text)) {
            return Err(format!("{} holds a path of this machine", path.display()));
        }
    }
    Ok(())
}

fn execute(command: &mut Command) -> Result<(), String> {
    let name = command.get_program().to_string_lossy().into_owned();
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("`{name}` ended with {status}")),
        Err(error) => Err(format!("`{name}` did not start: {error} (Node.js 20 or newer is needed)")),
    }
}

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

/// What is in a folder, sorted.
fn entries(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let listing = fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let mut paths: Vec<PathBuf> = listing.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.sort();
    Ok(paths)
}
