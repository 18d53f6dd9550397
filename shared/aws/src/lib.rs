//! The edges of cdkd: what the domain asks of AWS, with the errors it speaks of.
//!
//! Only this crate knows the SDK. Clients are built once per process from the environment ([`settings`]);
//! status codes become the domain's errors in one place per service.

pub mod asset_storage;
pub mod buckets;
pub mod cloud_control;
pub mod desk;
pub mod edge;
pub mod estate;
pub mod executions;
pub mod protocol;
pub mod references;
pub mod registry;
pub mod run;
pub mod settings;
pub mod stack;
pub mod store;

mod failure;

use std::rc::Rc;

/// The clients of one process.
pub struct Aws {
    pub store: store::Store,
    /// Of the region that cdkd is installed in.
    pub cloud_control: Rc<cloud_control::CloudControl>,
    pub executions: executions::Executions,
    /// What clients are made of that few functions need.
    config: aws_config::SdkConfig,
}
