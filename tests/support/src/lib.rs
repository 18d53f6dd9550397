//! The local AWS with cdkd installed in it, for end-to-end tests, the demo and `cargo xtask local`.
//!
//! * [`LocalAws`] starts the emulator (behind the wire, if asked), installs cdkd in it the way an account gets
//!   it, and stops everything when it is dropped.
//! * [`Api`] calls AWS without the SDK: [`Api::start_execution`], [`Api::wait`], objects, and one reader for
//!   each type of resource that the sample apps have.
//! * [`Package`] is what an account needs: archives of functions, definitions, template.
//!
//! ```no_run
//! use cdkd_test_support::{LocalAws, Options};
//! use serde_json::json;
//!
//! # fn main() -> cdkd_test_support::Result<()> {
//! let aws = LocalAws::start(&Options::default())?;
//! let assembly = aws.upload_assembly_zip("tests/apps/webapp/cdk.out")?;
//! let outcome = aws.deploy(&json!({"assembly": assembly, "stacks": ["WebApp"]}))?;
//! assert_eq!(outcome.status, "SUCCEEDED", "{outcome}");
//! # Ok(())
//! # }
//! ```
//!
//! Everything here blocks; none of it belongs in async code.

mod api;
mod archive;
mod emulator;
mod error;
mod executions;
mod install;
mod local;
mod look;
mod objects;
mod package;
mod process;
pub mod workspace;
mod xml;

pub use api::{Api, Json, Query, Response};
pub use archive::Archive;
pub use emulator::{Emulator, EmulatorOptions, free_port};
pub use error::{Error, Result};
pub use executions::Outcome;
pub use install::{Installation, Parameters};
pub use local::{LocalAws, Options};
pub use look::{Role, Subscription};
pub use objects::ObjectVersion;
pub use package::{FUNCTIONS, Package, build_tool};
pub use process::Process;
pub use xml::Xml;

/// The account of the local AWS. As an access key it makes its bearer that account's root.
pub const ACCOUNT: &str = "123456789012";
/// The region of the local AWS.
pub const REGION: &str = "us-east-1";
