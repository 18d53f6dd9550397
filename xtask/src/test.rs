//! `cargo xtask test`: everything that can be checked on one machine with Rust and Python 3.

use std::process::Command;
use std::time::Instant;

use cdkd_test_support::workspace;

/// Runs all checks, also after one has failed, and says which ran and how they ended.
pub fn run() -> Result<(), String> {
    let python = workspace::python()?;
    let tool = |name: &str| Command::new(workspace::python_tool(name));
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());

    let mut cargo_test = Command::new(cargo);
    cargo_test.args(["test", "--workspace", "--no-fail-fast"]);
    let mut launcher = Command::new(python);
    launcher.args(["-m", "unittest", "discover", "-s", "infra/local/tests"]);
    let mut template = tool("cfn-lint");
    template.arg("infra/template.yaml");
    let mut machines = tool("statelint");
    machines.args(["statemachine/deploy.asl.json", "statemachine/destroy.asl.json"]);

    let checks = [
        ("template", template),
        ("state machines", machines),
        ("the local AWS", launcher),
        ("Rust", cargo_test),
    ];
    let mut report = Vec::new();
    let mut failed = 0;
    for (name, mut command) in checks {
        println!("== {name}");
        let start = Instant::now();
        let status = command.current_dir(workspace::root()).status();
        let status = status.map_err(|error| format!("{}: {error}", command.get_program().display()))?;
        failed += usize::from(!status.success());
        let word = if status.success() { "ok" } else { "FAILED" };
        report.push(format!("{word:8}{name:16}{:7.1} s", start.elapsed().as_secs_f32()));
    }
    println!("\n{}", report.join("\n"));
    if failed > 0 { Err(format!("{failed} of {} checks failed", report.len())) } else { Ok(()) }
}
