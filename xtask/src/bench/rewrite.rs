//! Rewrite and audit of asset references: how much of a template a second, and how much memory.

use std::process::Command;

use cdkd_test_support::workspace;
use serde_json::Value;

use super::Row;

/// Runs in processes of their own; the best counts, since other work on the machine only slows them.
const RUNS: usize = 5;

/// Builds the program with the profile of the functions and runs it.
pub fn measure() -> Result<Vec<Row>, String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut build = Command::new(cargo);
    build.args(["build", "--release", "--package", "cdkd-rewrite-bench"]).current_dir(workspace::root());
    workspace::run(&mut build)?;
    let speeds = (0..RUNS).map(|_| run("speed")).collect::<Result<Vec<_>, String>>()?;
    let best = |name: &str| speeds.iter().filter_map(|run| run[name].as_f64()).fold(0.0, f64::max);
    let ratio = |run: &Value| run["one"].as_f64().unwrap_or(0.0) / run["five"].as_f64().unwrap_or(1.0);
    let memory = run("memory")?;
    let times = memory["resident"].as_f64().unwrap_or(f64::MAX) / memory["bytes"].as_f64().unwrap_or(1.0);
    let megabytes = memory["bytes"].as_f64().unwrap_or_default() / 1e6;
    Ok(vec![
        Row::new("rewrite + audit of 10 MB, no hits", best("none"), "GB/s").above(3.0),
        Row::new("1 % hits", best("some"), "GB/s").above(2.0),
        Row::new("100 % hits", best("all"), "GB/s").above(1.2),
        Row::new("1 % hits, a fifth in Fn::Sub and Fn::Join", best("functions"), "GB/s"),
        Row::new("one qualifier / five", super::median(speeds.iter().map(ratio).collect()), "times")
            .below(1.1),
        Row::new(format!("parse to write of {megabytes:.0} MB: resident / size"), times, "times").below(5.0),
    ])
}

fn run(what: &str) -> Result<Value, String> {
    let program = workspace::target().join("release/rewrite-bench");
    let output = Command::new(&program)
        .arg(what)
        .output()
        .map_err(|error| format!("{}: {error}", program.display()))?;
    if !output.status.success() {
        return Err(format!("{} failed: {}", program.display(), String::from_utf8_lossy(&output.stderr)));
    }
    serde_json::from_slice(&output.stdout).map_err(|error| format!("{}: {error}", program.display()))
}
