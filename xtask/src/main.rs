//! `cargo xtask`: everything that is done to the project, from one command.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command line tool talks to its terminal")]

use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod bench;
#[cfg(test)]
mod corpus;
mod demo;
mod local;
mod package;
mod schemas;
mod synth;
mod test;
#[cfg(test)]
mod tidy;

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Work on cdkd")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// The life of a stack on a local AWS: deploy, change, destroy, each step shown and checked
    Demo,
    /// Runs every test and every check of the files beside the code
    Test,
    /// A local AWS with cdkd installed in it
    #[command(subcommand)]
    Local(local::Arguments),
    /// Makes what an account needs to install cdkd: archives, definitions, template
    Package(package::Arguments),
    /// Synthesizes the sample apps under `tests/apps` again (needs Node.js; the results are committed)
    Synth,
    /// Makes the table of resource types again from the public resource schemas
    Schemas,
    /// Measures, and compares with bounds
    Bench(bench::Arguments),
}

fn main() -> ExitCode {
    let outcome = match Arguments::parse().command {
        Command::Demo => demo::run(),
        Command::Test => test::run(),
        Command::Local(arguments) => local::run(&arguments),
        Command::Package(arguments) => package::run(&arguments),
        Command::Synth => synth::run(),
        Command::Schemas => schemas::run(),
        Command::Bench(arguments) => bench::run(&arguments),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("error: {message}");
            ExitCode::FAILURE
        }
    }
}
