//! `cargo xtask package`: what an account needs, in a folder.

use std::path::PathBuf;

use cdkd_test_support::{Package, workspace};
use clap::Args;

#[derive(Args)]
pub struct Arguments {
    /// One small binary per function, for an account (the default)
    #[arg(long, conflicts_with = "local")]
    release: bool,
    /// One quickly built binary that is every function, as the local AWS gets it
    #[arg(long)]
    local: bool,
    /// Triple of the architecture to build for, such as aarch64-unknown-linux-gnu; this machine's if left out
    #[arg(long, value_name = "TRIPLE", conflicts_with = "local")]
    target: Option<String>,
    /// Folder to write to
    #[arg(long, value_name = "DIR", default_value = "target/package")]
    out: PathBuf,
}

/// Builds, packs, writes, and prints a table of sizes.
pub fn run(arguments: &Arguments) -> Result<(), String> {
    let package =
        if arguments.local { Package::local()? } else { Package::release(arguments.target.as_deref())? };
    let out = workspace::root().join(&arguments.out);
    package.write(&out)?;
    for (name, content) in &package.files {
        println!("{name:24}{:>10} KB", content.len().div_ceil(1000));
    }
    println!("{:24}{:>10} KB", "template.yaml", package.template.len().div_ceil(1000));
    println!("\n{}; fingerprint {}", out.display(), package.fingerprint());
    Ok(())
}
