//! `cdkd-bootstrap`: makes and describes the state bucket.
//!
//! `{region?, action?: "create" | "info"}` → `{stateBucket, region, created, settings}`. Idempotent: what is there
//! already is brought to the same settings.

use cdkd_aws::edge::Invocation;
use cdkd_aws::state_bucket::StateBucket;
use cdkd_core::name::Region;
use cdkd_core::{Code, Error, Result};
use serde::Deserialize;
use serde_json::{Value, json};

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase")]
struct Event {
    region: Option<String>,
    #[serde(default)]
    action: Action,
}

#[derive(Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
enum Action {
    #[default]
    Create,
    Info,
}

/// See the module.
pub async fn handle(event: Value, invocation: Invocation) -> Result<Value> {
    let event: Event = serde_json::from_value(event).map_err(|error| {
        Error::new(Code::InvalidInput, format!("the payload of bootstrap: {error}"))
            .hint("`action` is `create` or `info`")
    })?;
    let own = &invocation.settings.region;
    let region: Region = event.region.as_deref().map_or_else(|| Ok(own.clone()), str::parse)?;
    if region != *own {
        return Err(Error::new(Code::InvalidInput, format!("this cdkd works in {own}, not in {region}"))
            .hint("install cdkd in that region and start its `cdkd-bootstrap` there"));
    }
    let bucket = StateBucket::find(&invocation).await?;
    let created = match event.action {
        Action::Create => bucket.create().await?,
        Action::Info => false,
    };
    let settings = bucket.describe().await?;
    Ok(json!({
        "stateBucket": invocation.settings.state_bucket,
        "region": settings["region"],
        "created": created,
        "settings": settings,
    }))
}
