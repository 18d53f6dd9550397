//! `cargo xtask local`: a local AWS with cdkd in it that stays up until it is told to go down.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use cdkd_test_support::{Api, Emulator, EmulatorOptions, Options, Package, Process, free_port, workspace};
use clap::{Args, Subcommand};
use serde_json::{Value, json};

#[derive(Subcommand)]
pub enum Arguments {
    /// Starts it, or brings what is installed in it up to the working tree
    Up(Up),
    /// Says whether it is up
    Status,
    /// Ends it; its log stays until the next start
    Down,
}

#[derive(Args)]
pub struct Up {
    /// Port to listen on; one that is free if left out
    #[arg(long)]
    port: Option<u16>,
    /// Seconds that one invocation of a function may take; if left out, as installed, at first the template's default
    #[arg(long, value_name = "SECONDS")]
    time_limit: Option<u32>,
    /// Puts the wire between the functions and AWS: it counts, delays, drops and answers (`/_wire/`)
    #[arg(long)]
    wire: bool,
}

/// Everything prints JSON: people read it, scripts parse it.
pub fn run(arguments: &Arguments) -> Result<(), String> {
    let answer = match arguments {
        Arguments::Up(options) => up(options)?,
        Arguments::Status => status()?,
        Arguments::Down => down()?,
    };
    println!("{answer:#}");
    Ok(())
}

/// What is running, as `target/local/local.json` keeps it.
struct Running {
    emulator: Process,
    wire: Option<Process>,
    /// What `up` printed.
    shown: Value,
}

impl Running {
    fn file() -> PathBuf {
        workspace::target().join("local/local.json")
    }

    /// What an earlier `up` left, if it still runs. A file whose emulator is gone is removed, its wire ended.
    fn find() -> Result<Option<Self>, String> {
        let Ok(text) = fs::read_to_string(Self::file()) else { return Ok(None) };
        let found = serde_json::from_str::<Value>(&text).ok().and_then(|mut document| {
            let emulator = serde_json::from_value(document["emulator"].take()).ok()?;
            let wire = serde_json::from_value(document["wire"].take()).ok()?;
            Some(Self { emulator, wire, shown: document["shown"].take() })
        });
        match found {
            Some(running) if running.emulator.is_alive() => Ok(Some(running)),
            Some(stale) => {
                stale.stop()?;
                Ok(None)
            }
            None => Ok(None),
        }
    }

    fn keep(&self) -> Result<(), String> {
        let document = json!({"emulator": self.emulator, "wire": self.wire, "shown": self.shown});
        fs::write(Self::file(), format!("{document:#}\n")).map_err(|error| error.to_string())
    }

    /// Ends all of it and forgets it.
    fn stop(&self) -> Result<(), String> {
        self.emulator.stop()?;
        if let Some(wire) = self.wire {
            wire.stop()?;
        }
        fs::remove_file(Self::file()).map_err(|error| error.to_string())
    }
}

fn up(options: &Up) -> Result<Value, String> {
    // Before anything is started: what does not build cannot be installed.
    let package = Package::local()?;
    let _lock = workspace::lock("local")?;
    let mut running = match Running::find()? {
        Some(running) => {
            let port = running.shown["port"].as_u64();
            if options.port.is_some_and(|wanted| port != Some(wanted.into())) {
                return Err(format!(
                    "the local AWS is up on port {}; `cargo xtask local down` first",
                    json!(port)
                ));
            }
            if options.wire && running.wire.is_none() {
                return Err("the local AWS is up without the wire; `cargo xtask local down` first".to_owned());
            }
            running
        }
        None => start(options)?,
    };
    let port = running.shown["port"].as_u64().and_then(|port| u16::try_from(port).ok());
    let api = Api::new(port.ok_or("target/local/local.json names no port")?)?;
    let parameters = Options { time_limit: options.time_limit, ..Options::default() }.parameters();
    let installation = match api.install(&package, &parameters) {
        Ok(installation) => installation,
        Err(error) => {
            return Err(format!("{error}\nthe local AWS stays up; its log: {}", folder().display()));
        }
    };
    running.shown["stateBucket"] = installation.state_bucket().into();
    running.shown["runsBucket"] = installation.runs_bucket().into();
    running.keep()?;
    let mut answer = running.shown;
    answer["updated"] = installation.changed.into();
    Ok(answer)
}

fn start(options: &Up) -> Result<Running, String> {
    let port = options.port.map_or_else(free_port, Ok)?;
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let wire = if options.wire { Some(start_wire(address)?) } else { None };
    let endpoint = wire.as_ref().map_or_else(|| format!("http://{address}"), |(_, url)| url.clone());
    let started = Emulator::start(&EmulatorOptions { port, folder: folder(), endpoint });
    let emulator = match (started, &wire) {
        (Ok(emulator), _) => emulator.process(),
        (Err(error), None) => return Err(error.into()),
        (Err(error), Some((wire, _))) => {
            wire.stop()?;
            return Err(error.into());
        }
    };
    let mut shown = json!({
        "endpoint": format!("http://{address}"),
        "port": port,
        "account": cdkd_test_support::ACCOUNT,
        "region": cdkd_test_support::REGION,
        "pid": emulator.pid,
        "log": folder().join("emulator.log"),
    });
    if let Some((_, url)) = &wire {
        shown["wire"] = url.as_str().into();
    }
    let running = Running { emulator, wire: wire.as_ref().map(|(process, _)| *process), shown };
    // As soon as there is something to end.
    running.keep()?;
    if let Some((_, url)) = wire {
        let port = url.rsplit(':').next().and_then(|port| port.parse().ok()).ok_or("the wire has no port")?;
        let pid = json!({"pid": emulator.pid}).to_string();
        let answer = Api::new(port)?.plain(http::Method::PUT, "/_wire/emulator", pid.as_bytes())?;
        if !answer.status.is_success() {
            return Err(format!("the wire: {}", answer.text()));
        }
    }
    Ok(running)
}

/// Starts the wire as a process of its own and returns it with its URL.
fn start_wire(upstream: SocketAddr) -> Result<(Process, String), String> {
    let binary = cdkd_test_support::build_tool("cdkd-wire")?;
    let port = free_port()?;
    let log = workspace::target().join("local/wire.log");
    fs::create_dir_all(workspace::target().join("local")).map_err(|error| error.to_string())?;
    let log = fs::File::create(&log).map_err(|error| format!("{}: {error}", log.display()))?;
    let errors = log.try_clone().map_err(|error| error.to_string())?;
    let child = Command::new(binary)
        .args(["--port", &port.to_string(), "--upstream", &upstream.to_string()])
        .stdin(Stdio::null())
        .stdout(log)
        .stderr(errors)
        .process_group(0)
        .spawn()
        .map_err(|error| format!("the wire: {error}"))?;
    let process = Process::of(child.id()).ok_or("the wire ended as it started; see target/local/wire.log")?;
    Ok((process, format!("http://{}", SocketAddr::from((Ipv4Addr::LOCALHOST, port)))))
}

fn status() -> Result<Value, String> {
    let Some(running) = Running::find()? else { return Ok(json!({"up": false})) };
    let mut answer = running.shown;
    answer["up"] = true.into();
    Ok(answer)
}

fn down() -> Result<Value, String> {
    let _lock = workspace::lock("local")?;
    let Some(running) = Running::find()? else { return Ok(json!({"stopped": false})) };
    running.stop()?;
    Ok(json!({"stopped": true}))
}

/// Data and log of the emulator.
fn folder() -> PathBuf {
    workspace::target().join("local/aws")
}
