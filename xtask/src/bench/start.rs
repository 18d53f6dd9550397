//! What a function costs before it works: bytes to load, time and memory until it asks for its first event; and what
//! `provision` holds in memory after a deploy.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use cdkd_test_support::{ACCOUNT, Archive, FUNCTIONS, LocalAws, Options, Package, REGION};
use serde_json::json;

use super::{Row, median};

/// Starts of each function; odd or even, the middle one of the sorted times counts.
const STARTS: usize = 20;
/// What the figures have to stay below: milliseconds, megabytes of the binary, megabytes resident.
const START: f64 = 15.0;
const BINARY: f64 = 10.0;
const RESIDENT: f64 = 40.0;
/// How long a function may take to ask for its first event before the bench gives up.
const PATIENCE: Duration = Duration::from_secs(10);

/// Builds the release package, or finds it built, and measures it.
pub fn measure() -> Result<Vec<Row>, String> {
    let package = Package::release(None)?;
    let mut rows = Vec::new();
    for name in FUNCTIONS {
        let binary = cargo_target().join("release").join(name);
        let bytes = fs::metadata(&binary).map_err(|error| format!("{}: {error}", binary.display()))?.len();
        let size = Row::new(format!("{name}: binary"), megabytes(bytes), "MB");
        rows.push(if name == "provision" { size.below(BINARY) } else { size });
        let zip = package.files.get(&format!("cdkd-{name}.zip")).map_or(0, |zip| zip.len() as u64);
        rows.push(Row::new(format!("{name}: zip"), megabytes(zip), "MB"));
        let starts = (0..STARTS).map(|_| start(&binary)).collect::<Result<Vec<_>, _>>()?;
        let times = starts.iter().map(|start| start.time.as_secs_f64() * 1000.0).collect();
        rows.push(Row::new(format!("{name}: start to first poll"), median(times), "ms").below(START));
        let memory = starts.iter().map(|start| megabytes(start.resident)).collect();
        rows.push(Row::new(format!("{name}: resident at first poll"), median(memory), "MB"));
    }
    let memory = after_a_deploy(&package)?;
    rows.push(Row::new("provision: resident after a deploy", megabytes(memory), "MB").below(RESIDENT));
    Ok(rows)
}

/// One start of a function.
struct Start {
    time: Duration,
    /// Bytes resident when it asked for its first event.
    resident: u64,
}

/// Starts a function with this process in the role of Lambda, until it asks for an event.
fn start(binary: &Path) -> Result<Start, String> {
    let failed = |error: std::io::Error| format!("{}: {error}", binary.display());
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    let mut command = Command::new(binary);
    command
        .env_clear()
        .env("AWS_LAMBDA_RUNTIME_API", address.to_string())
        .env("AWS_LAMBDA_FUNCTION_NAME", "bench")
        .env("AWS_LAMBDA_FUNCTION_MEMORY_SIZE", "512")
        .env("AWS_LAMBDA_FUNCTION_VERSION", "$LATEST")
        .env("AWS_LAMBDA_LOG_STREAM_NAME", "bench")
        .env("AWS_LAMBDA_LOG_GROUP_NAME", "bench")
        .env("AWS_REGION", REGION)
        .env("AWS_ACCESS_KEY_ID", "bench")
        .env("AWS_SECRET_ACCESS_KEY", "bench")
        .env("CDKD_ACCOUNT", ACCOUNT)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let began = Instant::now();
    let mut child = command.spawn().map_err(failed)?;
    // Its connection stays open meanwhile: without Lambda it would end.
    let measured = first_poll(&listener, began)
        .and_then(|(time, _connection)| Ok(Start { time, resident: resident(child.id())? }));
    end(&mut child)?;
    measured.map_err(|error| format!("{}: {error}", binary.display()))
}

/// The time from `began` to the first request for an event, and the connection that waits for the answer.
fn first_poll(listener: &TcpListener, began: Instant) -> Result<(Duration, TcpStream), String> {
    let (stream, _) = loop {
        match listener.accept() {
            Ok(accepted) => break accepted,
            Err(_) if began.elapsed() < PATIENCE => std::thread::sleep(Duration::from_micros(50)),
            Err(error) => return Err(format!("did not ask for an event: {error}")),
        }
    };
    stream.set_nonblocking(false).map_err(|error| error.to_string())?;
    stream.set_read_timeout(Some(PATIENCE)).map_err(|error| error.to_string())?;
    let mut line = String::new();
    BufReader::new(&stream).read_line(&mut line).map_err(|error| error.to_string())?;
    let time = began.elapsed();
    if line.starts_with("GET ") && line.contains("/invocation/next") {
        Ok((time, stream))
    } else {
        Err(format!("its first request is `{}`", line.trim_end()))
    }
}

fn end(child: &mut Child) -> Result<(), String> {
    child.kill().and_then(|()| child.wait()).map(drop).map_err(|error| error.to_string())
}

/// Deploys the sample application with these very binaries and returns the bytes that `provision` holds afterwards.
fn after_a_deploy(package: &Package) -> Result<u64, String> {
    let options = Options { bare: true, ..Options::default() };
    let aws = LocalAws::start(&options)?;
    let api = aws.api();
    let installation = api.install(package, &options.parameters())?;
    let assembly =
        Archive::of_folder(&cdkd_test_support::workspace::root().join("tests/apps/webapp/cdk.out"))?
            .zip(6)?;
    api.put_object(installation.runs_bucket(), "uploads/webapp.zip", &assembly)?;
    let assembly = format!("s3://{}/uploads/webapp.zip", installation.runs_bucket());
    let outcome = aws.deploy(&json!({"assembly": assembly, "stacks": ["WebApp"]}))?;
    if !outcome.succeeded() {
        return Err(outcome.to_string());
    }
    let provision = processes_of("cdkd-provision", aws.folder());
    let sizes = provision.into_iter().map(resident).collect::<Result<Vec<_>, _>>()?;
    sizes
        .into_iter()
        .max()
        .ok_or_else(|| "no process of `cdkd-provision` is left after the deploy".to_owned())
}

/// Processes of a function that the local AWS with its data in this folder runs.
fn processes_of(function: &str, folder: &Path) -> Vec<u32> {
    let name = format!("AWS_LAMBDA_FUNCTION_NAME={function}");
    let folder = folder.as_os_str().as_encoded_bytes();
    let pids = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid| {
        // Gone, or someone else's.
        let Ok(environment) = fs::read(format!("/proc/{pid}/environ")) else { return false };
        let has = |text: &[u8]| environment.split(|byte| *byte == 0).any(|variable| variable == text);
        has(name.as_bytes()) && environment.windows(folder.len()).any(|window| window == folder)
    })
    .collect()
}

/// The resident memory of a process, in bytes.
fn resident(pid: u32) -> Result<u64, String> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))
        .map_err(|error| format!("process {pid}: {error}"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kilobytes.map(|kilobytes| kilobytes * 1024).ok_or_else(|| format!("process {pid} has no resident memory"))
}

/// Where cargo puts what it builds.
fn cargo_target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(cdkd_test_support::workspace::target, PathBuf::from)
}

#[expect(clippy::cast_precision_loss, reason = "sizes are far below 2^52")]
fn megabytes(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}
