//! The domain of cdkd: names, values, assemblies, templates, records, plans and the protocol between runs.
//!
//! Everything here is a plain function of its arguments. No AWS SDK, no async, no clock, no randomness, no
//! environment, no printing: `clippy.toml` refuses them. Time comes in as milliseconds since 1970, random bytes and
//! documents as values; effects go out as values for the edges to carry out.

pub mod assembly;
pub mod assets;
pub mod error;
pub mod name;
pub mod plan;
pub mod protocol;
pub mod references;
pub mod schedule;
pub mod schema;
pub mod secrets;
pub mod state;
pub mod template;
pub mod value;

pub use error::{Code, Error, Kind, Place, Result};
