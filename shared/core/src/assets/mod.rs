//! Assets: which files a run publishes, what is in them, and when an object that is there already will do.
//!
//! No function here reads or writes anything: [`collect`] makes the lists that runs lay out, [`tree`] finds the files of
//! a folder, [`archive`] writes what stands around their bytes in a zip, [`spans`] says what to fetch at once, [`skip`]
//! decides.

pub mod archive;
pub mod collect;
pub mod marker;
mod matching;
pub mod mode;
pub mod rewrite;
pub mod skip;
pub mod spans;
pub mod table;
#[cfg(test)]
pub(crate) mod testing;
pub mod tree;
