//! The emulator of AWS as a process: started on loopback, with a folder and an environment of its own.

use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use http::Method;

use crate::api::Api;
use crate::error::{Error, Result};
use crate::process::Process;
use crate::{ACCOUNT, REGION, workspace};

/// How to start it.
#[derive(Debug)]
pub struct EmulatorOptions {
    /// The port to listen on.
    pub port: u16,
    /// Where its data and its log go; emptied first.
    pub folder: PathBuf,
    /// What functions take for AWS; another address than the emulator's own puts something between.
    pub endpoint: String,
}

/// A running emulator. It goes on when this is dropped; [`Emulator::stop`] ends it.
#[derive(Debug)]
pub struct Emulator {
    child: Child,
    process: Process,
    folder: PathBuf,
}

impl Emulator {
    /// Starts the launcher and waits until it is healthy.
    pub fn start(options: &EmulatorOptions) -> Result<Self> {
        let python = workspace::python()?;
        let folder = &options.folder;
        if folder.exists() {
            fs::remove_dir_all(folder).map_err(Error::at(folder))?;
        }
        for name in ["tmp", "state", "s3", "home"] {
            let path = folder.join(name);
            fs::create_dir_all(&path).map_err(Error::at(&path))?;
        }
        let log_path = folder.join("emulator.log");
        let log = fs::File::create(&log_path).map_err(Error::at(&log_path))?;
        let errors = log.try_clone().map_err(Error::at(&log_path))?;
        let mut command = Command::new(python);
        command
            .arg(workspace::root().join("infra/local/launcher.py"))
            .current_dir(folder)
            // Functions inherit the emulator's environment: nothing of the caller's belongs there.
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", folder.join("home"))
            .env("LANG", "C.UTF-8")
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .env("PYTHONUNBUFFERED", "1")
            .env("TMPDIR", folder.join("tmp"))
            .env("STATE_DIR", folder.join("state"))
            .env("S3_DATA_DIR", folder.join("s3"))
            .env("BIND_HOST", Ipv4Addr::LOCALHOST.to_string())
            .env("GATEWAY_PORT", options.port.to_string())
            .env("AWS_ENDPOINT_URL", &options.endpoint)
            .env("MINISTACK_ACCOUNT_ID", ACCOUNT)
            .env("MINISTACK_REGION", REGION)
            .env("AUTH", "true")
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(errors)
            // A Ctrl-C in the terminal is not meant for it, and its group is what has to be gone in the end.
            .process_group(0);
        let child = command.spawn().map_err(|error| Error::other(format!("the launcher: {error}")))?;
        let process = Process::of(child.id());
        let mut emulator =
            Self { process: process.ok_or_else(|| too_early(&log_path))?, child, folder: folder.clone() };
        match emulator.await_health(options.port, &log_path) {
            Ok(()) => Ok(emulator),
            Err(error) => {
                emulator.stop()?;
                Err(error)
            }
        }
    }

    fn await_health(&mut self, port: u16, log: &Path) -> Result<()> {
        let api = Api::new(port)?;
        let deadline = Instant::now() + Duration::from_mins(1);
        loop {
            if self.child.try_wait().is_ok_and(|ended| ended.is_some()) {
                return Err(too_early(log));
            }
            let healthy = api.plain(Method::GET, "/_ministack/health", &[]);
            if healthy.is_ok_and(|answer| answer.status.is_success()) {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(Error::other(format!(
                    "the local AWS is not healthy after a minute; see {}",
                    log.display()
                )));
            }
            sleep(Duration::from_millis(50));
        }
    }

    /// The process, to be kept for a later [`Process::stop`].
    pub fn process(&self) -> Process {
        self.process
    }

    /// Where its data and its log are.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Ends the emulator and the functions that it runs.
    pub fn stop(&mut self) -> Result<()> {
        self.process.stop()?;
        self.child.wait().map_err(|error| Error::other(format!("the launcher: {error}"))).map(drop)
    }
}

fn too_early(log: &Path) -> Error {
    let text = fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    let last = lines[lines.len().saturating_sub(20)..].join("\n");
    Error::other(format!("the local AWS ended as it started; the end of {}:\n{last}", log.display()))
}

/// A port of this machine that nobody listens on just now.
pub fn free_port() -> Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
    let address = listener.and_then(|listener| listener.local_addr());
    address.map(|address| address.port()).map_err(|error| Error::other(format!("no free port: {error}")))
}
