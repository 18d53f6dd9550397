//! The local AWS with cdkd installed in it, for as long as a test needs it.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use cdkd_wire::Wire;
use serde_json::Value;

use crate::api::Api;
use crate::archive::{Archive, files_under};
use crate::emulator::{Emulator, EmulatorOptions, free_port};
use crate::error::{Error, Result};
use crate::executions::Outcome;
use crate::install::{Installation, Parameters};
use crate::package::Package;
use crate::process::Process;
use crate::{ACCOUNT, REGION, workspace};

/// How to start it; the default is a free port, no wire, and the template's own parameters.
#[derive(Debug, Default)]
pub struct Options {
    /// The port of the emulator; any that is free if none.
    pub port: Option<u16>,
    /// Whether the functions' calls pass the wire.
    pub wire: bool,
    /// Seconds that a function may take; the template's if none.
    pub time_limit: Option<u32>,
    /// Other parameters of the template.
    pub parameters: Parameters,
    /// Whether to leave cdkd out: an empty account.
    pub bare: bool,
}

impl Options {
    /// The functions' calls pass the wire.
    #[must_use]
    pub fn wire(mut self) -> Self {
        self.wire = true;
        self
    }

    /// Seconds that a function may take: what recovery from a dead run waits for.
    #[must_use]
    pub fn time_limit(mut self, seconds: u32) -> Self {
        self.time_limit = Some(seconds);
        self
    }

    /// A parameter of the template.
    #[must_use]
    pub fn parameter(mut self, name: &str, value: &str) -> Self {
        self.parameters.insert(name.to_owned(), value.to_owned());
        self
    }

    /// The template's parameters that follow from these options.
    pub fn parameters(&self) -> Parameters {
        let mut parameters = self.parameters.clone();
        parameters.insert("Architecture".to_owned(), architecture().to_owned());
        if let Some(seconds) = self.time_limit {
            parameters.insert("FunctionTimeLimit".to_owned(), seconds.to_string());
            parameters.insert("ShortTimeLimit".to_owned(), seconds.min(60).to_string());
        }
        parameters
    }
}

/// This machine's, in Lambda's words.
fn architecture() -> &'static str {
    if cfg!(target_arch = "aarch64") { "arm64" } else { "x86_64" }
}

/// A running local AWS. It stops when it is dropped.
#[derive(Debug)]
pub struct LocalAws {
    emulator: Emulator,
    wire: Option<Wire>,
    api: Api,
    installation: Option<Installation>,
}

impl LocalAws {
    /// Starts the emulator, behind the wire if asked, and installs cdkd.
    pub fn start(options: &Options) -> Result<Self> {
        end_orphans();
        let port = options.port.map_or_else(free_port, Ok)?;
        let address = (Ipv4Addr::LOCALHOST, port).into();
        let wire = if options.wire {
            let wire = Wire::start(0, address, None);
            Some(wire.map_err(|error| Error::other(format!("the wire: {error}")))?)
        } else {
            None
        };
        let endpoint = wire.as_ref().map_or_else(|| format!("http://{address}"), Wire::url);
        let emulator = Emulator::start(&EmulatorOptions { port, folder: own_folder(), endpoint })?;
        own(&emulator)?;
        if let Some(wire) = &wire {
            wire.set_emulator_pid(emulator.process().pid);
        }
        // Dropped if the installation fails, and the emulator with it.
        let mut aws = Self { emulator, wire, api: Api::new(port)?, installation: None };
        if !options.bare {
            aws.installation = Some(aws.api.install(&Package::local()?, &options.parameters())?);
        }
        Ok(aws)
    }

    /// A client that goes to the emulator, past the wire: tests do not count themselves.
    pub fn api(&self) -> &Api {
        &self.api
    }

    /// The wire.
    ///
    /// # Panics
    ///
    /// Where the options had none.
    #[track_caller]
    pub fn wire(&self) -> &Wire {
        match &self.wire {
            Some(wire) => wire,
            None => panic!("started without the wire"),
        }
    }

    /// What the installation made.
    ///
    /// # Panics
    ///
    /// In a bare account.
    #[track_caller]
    pub fn installation(&self) -> &Installation {
        match &self.installation {
            Some(installation) => installation,
            None => panic!("started without cdkd"),
        }
    }

    /// Where the records of stacks live.
    #[track_caller]
    pub fn state_bucket(&self) -> &str {
        self.installation().state_bucket()
    }

    /// Where uploads and the results of runs live.
    #[track_caller]
    pub fn runs_bucket(&self) -> &str {
        self.installation().runs_bucket()
    }

    pub fn account(&self) -> &str {
        self.api.account()
    }

    pub fn region(&self) -> &str {
        self.api.region()
    }

    /// Where the emulator keeps its data and its log.
    pub fn folder(&self) -> &Path {
        self.emulator.folder()
    }

    /// Uploads a cloud assembly as a zip and returns its address; relative paths are the workspace's.
    pub fn upload_assembly_zip(&self, assembly: impl AsRef<Path>) -> Result<String> {
        let zip = Archive::of_folder(&workspace::root().join(assembly))?.zip(6)?;
        self.upload_zip(&zip)
    }

    /// Uploads any bytes as if they were a zipped assembly and returns their address.
    pub fn upload_zip(&self, zip: &[u8]) -> Result<String> {
        let key = format!("uploads/{}.zip", unique());
        self.api.put_object(self.runs_bucket(), &key, zip)?;
        Ok(format!("s3://{}/{key}", self.runs_bucket()))
    }

    /// Uploads a cloud assembly file by file and returns the address of its prefix.
    pub fn upload_prefix(&self, assembly: impl AsRef<Path>) -> Result<String> {
        let prefix = format!("uploads/{}/", unique());
        for (name, content) in files_under(&workspace::root().join(assembly))? {
            self.api.put_object(self.runs_bucket(), &format!("{prefix}{name}"), &content)?;
        }
        Ok(format!("s3://{}/{prefix}", self.runs_bucket()))
    }

    /// Deploys and waits.
    pub fn deploy(&self, input: &Value) -> Result<Outcome> {
        self.api.wait(&self.api.start_execution("cdkd-deploy", input)?)
    }

    /// Destroys and waits.
    pub fn destroy(&self, input: &Value) -> Result<Outcome> {
        self.api.wait(&self.api.start_execution("cdkd-destroy", input)?)
    }

    /// The record of a stack in this region, if there is one.
    pub fn record(&self, stack: &str) -> Result<Option<Value>> {
        self.document(self.state_bucket(), &format!("cdkd/{stack}/{REGION}/state.json"))
    }

    /// The lock of a stack in this region, if there is one.
    pub fn lock(&self, stack: &str) -> Result<Option<Value>> {
        self.document(self.state_bucket(), &format!("cdkd/{stack}/{REGION}/lock.json"))
    }

    /// The result document that the answer of an execution names.
    pub fn result(&self, answer: &Value) -> Result<Option<Value>> {
        self.document(self.runs_bucket(), answer["result"].as_str().unwrap_or_default())
    }

    fn document(&self, bucket: &str, key: &str) -> Result<Option<Value>> {
        let Some(body) = self.api.get_object(bucket, key)? else { return Ok(None) };
        let parsed = serde_json::from_slice(&body);
        parsed.map(Some).map_err(|error| Error::other(format!("{key} is not JSON: {error}")))
    }
}

impl Drop for LocalAws {
    fn drop(&mut self) {
        // Its data are only of use to someone who looks for the reason of a failure.
        if self.emulator.stop().is_ok() && !std::thread::panicking() {
            let _ = std::fs::remove_dir_all(self.emulator.folder());
        }
    }
}

/// A folder of this process for one emulator.
fn own_folder() -> PathBuf {
    workspace::target().join("local").join(format!("test-{}", unique()))
}

/// In the folder of an emulator: it and the process that it runs for.
const OWNER: &str = "owner.json";

/// Leaves word of an emulator for [`end_orphans`].
fn own(emulator: &Emulator) -> Result<()> {
    let path = emulator.folder().join(OWNER);
    let owner = serde_json::json!([Process::of(std::process::id()), emulator.process()]);
    std::fs::write(&path, owner.to_string()).map_err(Error::at(&path))
}

/// Ends the emulators of processes that were killed, and removes what they left.
fn end_orphans() {
    let folders = std::fs::read_dir(workspace::target().join("local")).into_iter().flatten().flatten();
    for folder in folders.map(|entry| entry.path()) {
        let Ok(text) = std::fs::read(folder.join(OWNER)) else { continue };
        let Ok([owner, emulator]) = serde_json::from_slice::<[Process; 2]>(&text) else { continue };
        // Another process may be doing the same.
        if !owner.is_alive() && emulator.stop().is_ok() {
            let _ = std::fs::remove_dir_all(folder);
        }
    }
}

/// A name that no other call in this target folder has at the same time.
fn unique() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    format!("{ACCOUNT}-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}
