//! Documents at rest: the record of a stack, its migration, and the lock beside it.

pub mod lock;
mod record;
mod references;
pub mod tree;

pub use record::{CURRENT_VERSION, Deploy, PendingDelete, Record, Row};
pub use references::{CfnImport, Entry, Import, OutputRead};
