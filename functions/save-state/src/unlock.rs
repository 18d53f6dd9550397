//! `unlock`: a person breaks a lock whose holder is surely dead.

use cdkd_aws::edge::Invocation;
use cdkd_aws::stack::{StackRef, break_lock};
use cdkd_core::Result;
use serde_json::{Value, json};

pub(crate) async fn unlock(stack: &StackRef, invocation: &Invocation) -> Result<Value> {
    let broken = break_lock(invocation, &stack.key()?).await?;
    Ok(json!({ "unlocked": broken.is_some(), "holder": broken.and_then(|broken| broken.holder) }))
}
