//! Places in this workspace, and the private Python environment of the local AWS.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use sha2::{Digest as _, Sha256};

use crate::error::{Error, Result};

/// The root of the workspace.
pub fn root() -> &'static Path {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    package.ancestors().nth(2).unwrap_or(package)
}

/// Where everything goes that is not in the repository. Not cargo's own setting: what lives here is not cargo's.
pub fn target() -> PathBuf {
    root().join("target")
}

/// A program of the private Python environment.
pub fn python_tool(name: &str) -> PathBuf {
    target().join("venv/bin").join(name)
}

/// Makes the private Python environment, or brings it up to `infra/local/requirements.txt`; returns its Python.
pub fn python() -> Result<PathBuf> {
    let venv = target().join("venv");
    let requirements = root().join("infra/local/requirements.txt");
    let wanted = fs::read(&requirements).map_err(Error::at(&requirements))?;
    let wanted = hex(&Sha256::digest(wanted));
    let python = python_tool("python");
    // Tests run side by side.
    let _lock = lock("venv")?;
    let stamp = venv.join(".requirements");
    if python.exists() && fs::read_to_string(&stamp).is_ok_and(|found| found == wanted) {
        return Ok(python);
    }
    if !python.exists() {
        run(Command::new("python3").args(["-m", "venv"]).arg(&venv))?;
    }
    run(Command::new(&python)
        .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--requirement"])
        .arg(&requirements))?;
    fs::write(&stamp, wanted).map_err(Error::at(&stamp))?;
    Ok(python)
}

/// Waits until no other process of this workspace holds a lock of this name; held until the file is dropped.
pub fn lock(name: &str) -> Result<fs::File> {
    fs::create_dir_all(target()).map_err(Error::at(&target()))?;
    let path = target().join(format!("{name}.lock"));
    let file = fs::File::create(&path).map_err(Error::at(&path))?;
    file.lock().map_err(Error::at(&path))?;
    Ok(file)
}

/// Runs a program to its end; its output goes where this process's errors go.
pub fn run(command: &mut Command) -> Result<()> {
    let shown = format!("{command:?}");
    let status = command.stdin(Stdio::null()).stdout(std::io::stderr()).status();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(Error::other(format!("{shown}: {status}"))),
        Err(error) => Err(Error::other(format!("{shown}: {error}"))),
    }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}
