//! Publishing: how much longer it takes than the calls that it cannot do without, and how much memory a large folder
//! takes.

use std::process::{Command, Stdio};

use cdkd_test_support::{ACCOUNT, Archive, LocalAws, Options, REGION, build_tool};
use serde_json::{Value, json};

use super::{Row, median};

/// Files of one run, and bytes of each.
const FILES: usize = 500;
const SIZE: usize = 100_000;
/// Publishing against as many bare calls of the same client.
const TIMES: f64 = 1.3;
/// Runs; the middle one counts. Odd.
const ROUNDS: usize = 5;
/// The large folder: files, bytes of each, and megabytes that may be resident meanwhile.
const LARGE_FILES: usize = 64;
const LARGE_SIZE: usize = 16 << 20;
const RESIDENT: f64 = 200.0;

/// Starts a local AWS and publishes in it, from a process of its own.
pub fn measure() -> Result<Vec<Row>, String> {
    let aws = LocalAws::start(&Options::default())?;
    let mut rows = many(&aws)?;
    rows.push(large(&aws)?);
    Ok(rows)
}

/// Many small files in a zip.
fn many(aws: &LocalAws) -> Result<Vec<Row>, String> {
    let mut archive = Archive::default().file("manifest.json", b"{}".to_vec());
    for number in 0..FILES {
        archive = archive.file(&format!("asset.{number}"), noise(number as u64, SIZE));
    }
    let assembly = aws.upload_zip(&archive.zip(1)?)?;
    let mut rounds = Vec::new();
    for round in 0..ROUNDS {
        let (assets, bare) = (format!("bench-assets-{round}"), format!("bench-bare-{round}"));
        aws.api().create_bucket(&assets)?;
        aws.api().create_bucket(&bare)?;
        let files: Vec<Value> =
            (0..FILES).map(|number| file(&format!("asset.{number}"), "file", &assets, number)).collect();
        let payload = payload(aws, &format!("many-{round}"), &assembly, &files)?;
        let bare = json!({"bucket": bare, "count": FILES, "size": SIZE});
        rounds.push(run(aws, &json!({"payload": payload, "bare": bare}))?);
    }
    let seconds = |name: &str| rounds.iter().filter_map(|round| round[name].as_f64()).collect::<Vec<_>>();
    let times = |one: &str, other: &str| {
        median(seconds(one).into_iter().zip(seconds(other)).map(|(one, other)| one / other).collect())
    };
    Ok(vec![
        Row::new("500 bare PUTs of 100 KB", median(seconds("puts")), "s"),
        Row::new("500 files of 100 KB, none there", median(seconds("none")), "s"),
        Row::new("none there / bare PUTs", times("none", "puts"), "times").below(TIMES),
        Row::new("500 bare HEADs", median(seconds("heads")), "s"),
        Row::new("500 files of 100 KB, all there", median(seconds("all")), "s"),
        Row::new("all there / bare HEADs", times("all", "heads"), "times").below(TIMES),
    ])
}

/// A folder of a gigabyte below a prefix.
#[expect(clippy::cast_precision_loss, reason = "sizes are far below 2^52")]
fn large(aws: &LocalAws) -> Result<Row, String> {
    let (api, prefix) = (aws.api(), "uploads/bench-large/");
    api.create_bucket("bench-large")?;
    for number in 0..LARGE_FILES {
        // Half of it compresses.
        let mut content = noise(number as u64, LARGE_SIZE / 2);
        content.resize(LARGE_SIZE, b'-');
        api.put_object(aws.runs_bucket(), &format!("{prefix}asset.large/{number}"), &content)?;
    }
    let assembly = format!("s3://{}/{prefix}", aws.runs_bucket());
    let payload = payload(aws, "large", &assembly, &[file("asset.large", "zip", "bench-large", 0)])?;
    let resident = run(aws, &json!({ "payload": payload }))?["resident"].as_f64().unwrap_or(f64::MAX);
    let published = api.get_object("bench-large", &key(0))?.map_or(0, |object| object.len());
    if published < LARGE_FILES * LARGE_SIZE / 2 {
        return Err(format!("an archive of {published} bytes cannot hold them all"));
    }
    let megabytes = (LARGE_FILES * LARGE_SIZE) as f64 / 1e6;
    Ok(Row::new(format!("a folder of {megabytes:.0} MB from a prefix: resident"), resident / 1e6, "MB")
        .below(RESIDENT))
}

fn key(number: usize) -> String {
    format!("{number:064x}")
}

fn file(path: &str, packaging: &str, bucket: &str, number: usize) -> Value {
    json!({
        "id": key(number), "name": path, "path": path, "packaging": packaging, "bucket": bucket, "key": key(number),
    })
}

/// Lays out what a run would, and returns what the function is invoked with.
fn payload(aws: &LocalAws, name: &str, assembly: &str, files: &[Value]) -> Result<Value, String> {
    let place = format!("runs/{name}/Bench/{REGION}/assets.json");
    let document = json!({"assembly": assembly, "files": files});
    aws.api().put_object(aws.runs_bucket(), &place, document.to_string().as_bytes())?;
    Ok(json!({
        "run": {"execution": name, "name": name, "operation": "deploy", "dryRun": false},
        "stack": {"stack": "Bench", "region": REGION},
    }))
}

/// Runs the function with this process's AWS as its own.
fn run(aws: &LocalAws, task: &Value) -> Result<Value, String> {
    let program = build_tool("publish-bench")?;
    let output = Command::new(&program)
        .arg(task.to_string())
        .env_clear()
        .env("AWS_ENDPOINT_URL", aws.api().endpoint())
        .env("AWS_ACCESS_KEY_ID", ACCOUNT)
        .env("AWS_SECRET_ACCESS_KEY", "test")
        .env("AWS_REGION", REGION)
        .env("CDKD_ACCOUNT", ACCOUNT)
        .env("CDKD_RUNS_BUCKET", aws.runs_bucket())
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("{}: {error}", program.display()))?;
    if !output.status.success() {
        return Err(format!("{} failed", program.display()));
    }
    serde_json::from_slice(&output.stdout).map_err(|error| format!("{}: {error}", program.display()))
}

/// Bytes that no compression makes shorter (Knuth's MMIX generator).
fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed;
    let words = std::iter::repeat_with(|| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let [a, b, c, d, ..] = state.to_be_bytes();
        [a, b, c, d]
    });
    words.flatten().take(len).collect()
}
