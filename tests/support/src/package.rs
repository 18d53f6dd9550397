//! What an account needs to install cdkd: the functions' archives, the definitions and the template.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::archive::Archive;
use crate::error::{Error, Result};
use crate::workspace;

/// The functions, by the names of their crates; `cdkd-{name}` in AWS.
pub const FUNCTIONS: [&str; 8] = [
    "bootstrap",
    "provision",
    "publish-assets",
    "read-assembly",
    "rebuild-index",
    "resolve",
    "save-state",
    "strong-ref-scan",
];

/// The state machines, by the names of their definitions; `cdkd-{name}` in AWS.
const MACHINES: [&str; 2] = ["deploy", "destroy"];

/// The newest GLIBC that `provided.al2023` has.
const GLIBC: (u32, u32) = (2, 34);

/// Files by name, the template apart. Functions that share an archive share its bytes.
#[derive(Clone, Debug)]
pub struct Package {
    pub files: BTreeMap<String, Arc<[u8]>>,
    pub template: String,
}

impl Package {
    /// For the local AWS: one binary, built with the profile of tests, that is every function.
    pub fn local() -> Result<Self> {
        let content = without_symbols(&build_tool("cdkd-local")?)?;
        let archive: Arc<[u8]> = Archive::default().executable("bootstrap", content).zip(1)?.into();
        Self::of(FUNCTIONS.map(|name| (name, Arc::clone(&archive))))
    }

    /// For an account: one small binary each; `target` is the triple of the architecture, the host's if none.
    pub fn release(target: Option<&str>) -> Result<Self> {
        let mut arguments = vec!["--release"];
        arguments.extend(FUNCTIONS.iter().flat_map(|name| ["--package", name, "--bin", name]));
        arguments.extend(target.iter().flat_map(|triple| ["--target", triple]));
        let built = build(&arguments)?;
        let mut archives = Vec::new();
        for name in FUNCTIONS {
            let binary = built.get(name).ok_or_else(|| Error::other(format!("cargo built no `{name}`")))?;
            let content = fs::read(binary).map_err(Error::at(binary))?;
            if let Some((major, minor)) = newest_glibc(&content).filter(|found| *found > GLIBC) {
                let (most, more) = GLIBC;
                return Err(Error::other(format!(
                    "`{name}` needs GLIBC_{major}.{minor}, the runtime has {most}.{more}: build on an older system"
                )));
            }
            archives.push((name, Archive::default().executable("bootstrap", content).zip(9)?.into()));
        }
        Self::of(archives)
    }

    fn of(archives: impl IntoIterator<Item = (&'static str, Arc<[u8]>)>) -> Result<Self> {
        let mut files: BTreeMap<String, Arc<[u8]>> =
            archives.into_iter().map(|(name, archive)| (format!("cdkd-{name}.zip"), archive)).collect();
        for name in MACHINES {
            let path = workspace::root().join(format!("statemachine/{name}.asl.json"));
            files.insert(format!("{name}.asl.json"), fs::read(&path).map_err(Error::at(&path))?.into());
        }
        let path = workspace::root().join("infra/template.yaml");
        Ok(Self { files, template: fs::read_to_string(&path).map_err(Error::at(&path))? })
    }

    /// A name for exactly these contents.
    pub fn fingerprint(&self) -> String {
        let mut hash = Sha256::new();
        let mut last: Option<(&Arc<[u8]>, _)> = None;
        for (name, content) in &self.files {
            // Shared bytes are hashed once: without optimization that is what takes time here.
            let digest = match last {
                Some((earlier, digest)) if Arc::ptr_eq(earlier, content) => digest,
                _ => Sha256::digest(content),
            };
            hash.update(name);
            hash.update(digest);
            last = Some((content, digest));
        }
        hash.update(&self.template);
        workspace::hex(&hash.finalize()[..8])
    }

    /// Writes everything into a folder.
    pub fn write(&self, folder: &Path) -> Result<()> {
        fs::create_dir_all(folder).map_err(Error::at(folder))?;
        let template = ("template.yaml", self.template.as_bytes());
        for (name, content) in self.files.iter().map(|(name, it)| (name.as_str(), &**it)).chain([template]) {
            let path = folder.join(name);
            fs::write(&path, content).map_err(Error::at(&path))?;
        }
        Ok(())
    }
}

/// Builds a program of this workspace and returns where it is.
pub fn build_tool(name: &str) -> Result<PathBuf> {
    // Features are chosen for the workspace as a whole, as in tests: otherwise the SDK would be built twice.
    let built = build(&["--workspace", "--bin", name])?;
    built.get(name).cloned().ok_or_else(|| Error::other(format!("cargo built no `{name}`")))
}

/// Builds with cargo and returns the executables by name.
fn build(arguments: &[&str]) -> Result<BTreeMap<String, PathBuf>> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["build", "--quiet", "--message-format=json-render-diagnostics"])
        .args(arguments)
        .current_dir(workspace::root())
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| Error::other(format!("cargo: {error}")))?;
    if !output.status.success() {
        return Err(Error::other(format!("`cargo build {}` failed", arguments.join(" "))));
    }
    let lines = String::from_utf8_lossy(&output.stdout).into_owned();
    let executable = |line: &str| {
        let message: Value = serde_json::from_str(line).ok()?;
        Some((message["target"]["name"].as_str()?.to_owned(), message["executable"].as_str()?.into()))
    };
    Ok(lines.lines().filter_map(executable).collect())
}

/// The binary without its symbols, where `strip` is at hand: a sixth of the bytes to pack and to unpack.
fn without_symbols(binary: &Path) -> Result<Vec<u8>> {
    static NUMBER: AtomicUsize = AtomicUsize::new(0);
    // A name of its own: another test may be packing the same binary.
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let stripped = binary.with_extension(format!("stripped-{}-{number}", std::process::id()));
    let done = Command::new("strip").arg("-o").arg(&stripped).arg(binary).stderr(Stdio::null()).status();
    let path = if done.is_ok_and(|status| status.success()) { &stripped } else { binary };
    let content = fs::read(path).map_err(Error::at(path));
    // There is none if there is no `strip`.
    let _ = fs::remove_file(&stripped);
    content
}

/// The newest version of GLIBC that a binary names.
fn newest_glibc(binary: &[u8]) -> Option<(u32, u32)> {
    const MARK: &[u8] = b"GLIBC_";
    let versions = binary.windows(MARK.len()).enumerate().filter(|(_, window)| *window == MARK);
    let versions = versions.filter_map(|(at, _)| {
        let rest = &binary[at + MARK.len()..];
        let end = rest.iter().position(|byte| !byte.is_ascii_digit() && *byte != b'.')?;
        let mut numbers = std::str::from_utf8(&rest[..end]).ok()?.split('.').map(str::parse);
        Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
    });
    versions.max()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_function_is_packed() {
        let folder = workspace::root().join("functions");
        let mut found: Vec<String> = fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| name != "local")
            .collect();
        found.sort();
        assert_eq!(found, FUNCTIONS);
    }

    #[test]
    fn the_newest_glibc_is_compared_by_number() {
        assert_eq!(newest_glibc(b"\0GLIBC_2.9\0GLIBC_2.34\0GLIBC_2.2.5\0GLIBC_PRIVATE\0"), Some((2, 34)));
        assert_eq!(newest_glibc(b"static"), None);
    }
}
