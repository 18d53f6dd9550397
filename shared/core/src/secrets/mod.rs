//! Secrets: how a template spells one.

pub mod token;
