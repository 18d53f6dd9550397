//! Cloud assemblies: what `cdk synth` writes to `cdk.out`, from a zip or a prefix in S3 to selected stacks in order.
//!
//! No function here does IO. [`Opening`] says which documents it needs, the caller fetches them, by [`zip`] ranges or
//! as objects, and supplies them; in the end it gives a [`Selection`]. Source of the formats: the JSON schemas of the
//! npm package `@aws-cdk/cloud-assembly-schema`.

pub mod asset_manifest;
mod fields;
pub mod input;
pub mod limits;
pub mod manifest;
pub mod metadata;
mod nested;
pub mod opening;
mod order;
pub mod path;
pub mod select;
pub mod selection;
pub mod source;
pub mod tree;
pub mod zip;

#[cfg(test)]
mod testing;

pub use nested::NestedTemplate;
pub use opening::Opening;
pub use select::Request;
pub use selection::{SelectedStack, Selection};
