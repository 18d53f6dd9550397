//! What end-to-end tests share: one local AWS per test binary, assemblies made on the spot, and looks at what a run
//! left behind. The tests themselves are in `tests/`.
//!
//! Tests run side by side, each with a stack of its own name; one that counts requests asks to be [`World::alone`].

#![allow(
    clippy::unwrap_used,
    clippy::missing_panics_doc,
    reason = "what goes wrong in a test's helpers fails the test"
)]

mod app;
mod references;
mod run;
mod world;

pub use app::{App, Stack, webapp};
pub use references::{
    Gate, PARAMETER, PATIENCE, QUEUE, consumer, deploy_refused, destroy_refused, import, imported,
    index_follows, producer, producer_of, read, says, setting, untouched,
};
pub use run::Run;
pub use world::{Quiet, Ruled, World, world, world_of};
