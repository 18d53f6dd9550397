//! `cdkd-bootstrap`: makes, describes and removes the state bucket and the asset storage of a region. Nothing else makes
//! storage or a marker (rule A21).
//!
//! `{region?, action?: "create" | "info" | "destroy", assets?, assetBucket?, containerRepo?, force?, dryRun?,
//! includeStateBucket?}`; `docs/contracts.md` has the answers. Idempotent: what is there already stays, with what it lacks
//! added; the marker is written last, so that a run which died in between is taken up by the next.

mod destroy;
mod info;

use cdkd_aws::buckets::Bucket;
use cdkd_aws::edge::Invocation;
use cdkd_aws::registry::Repository;
use cdkd_core::assets::marker::{Marker, chosen};
use cdkd_core::assets::table::Storage;
use cdkd_core::name::Region;
use cdkd_core::{Code, Error, Result};
use serde::Deserialize;
use serde_json::{Value, json};

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Event {
    region: Option<String>,
    #[serde(default)]
    action: Action,
    assets: Option<bool>,
    asset_bucket: Option<String>,
    container_repo: Option<String>,
    #[serde(default)]
    force: bool,
    #[serde(default)]
    dry_run: bool,
    #[serde(default)]
    include_state_bucket: bool,
}

#[derive(Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
enum Action {
    #[default]
    Create,
    Info,
    Destroy,
}

/// See the module.
pub async fn handle(event: Value, invocation: Invocation) -> Result<Value> {
    let event: Event = serde_json::from_value(event).map_err(|error| {
        Error::new(Code::InvalidInput, format!("the payload of bootstrap: {error}"))
            .hint("`action` is `create`, `info` or `destroy`")
    })?;
    let region: Region =
        event.region.as_deref().map_or_else(|| Ok(invocation.settings.region.clone()), str::parse)?;
    if region.partition() != invocation.settings.region.partition() {
        return Err(Error::new(
            Code::InvalidInput,
            format!("{region} is of another partition than {}", invocation.settings.region),
        )
        .hint("install cdkd in that partition"));
    }
    match event.action {
        Action::Create => create(&event, &invocation, &region).await,
        Action::Info => info::info(&invocation).await,
        Action::Destroy => destroy::destroy(&event, &invocation, &region).await,
    }
}

async fn create(event: &Event, invocation: &Invocation, region: &Region) -> Result<Value> {
    let here = (&invocation.settings.account, region);
    let (bucket, repository) = (event.asset_bucket.as_deref(), event.container_repo.as_deref());
    // What is wrong with names by themselves is told before any call, and with the marker's before anything is made.
    chosen(None, bucket, repository, here)?;
    if event.assets == Some(false) && (event.asset_bucket.is_some() || event.container_repo.is_some()) {
        return Err(Error::new(
            Code::InvalidInput,
            "`assets` is false, but there is a name for asset storage",
        )
        .hint("leave out `assets`, or the names"));
    }
    let state = Bucket::of_state(invocation).await?;
    let has_state = state.exists().await?;
    let marker = if has_state { invocation.read_marker(region).await? } else { None };
    let storage = chosen(marker.as_ref(), bucket, repository, here)?;
    if event.dry_run {
        return foresee(event, invocation, region, &storage, (has_state, marker.is_some())).await;
    }
    let ensured = state.ensure(event.force).await?;
    let settings = state.describe().await?.unwrap_or_default();
    let mut answer = json!({
        "message": "",
        "stateBucket": invocation.settings.state_bucket,
        "region": settings["region"],
        "created": ensured.created,
        "configured": ensured.configured,
        "settings": settings,
    });
    if event.assets == Some(false) {
        let mode = if marker.is_some() { "stays on" } else { "is off" };
        answer["message"] = json!(format!(
            "Asset mode {mode} for {region}: the state bucket alone was looked after, as `assets: false` asks."
        ));
        return Ok(answer);
    }
    answer["assets"] = make(event, invocation, region, &storage, marker).await?;
    answer["message"] = json!(asset_mode_is_on(region, &storage));
    Ok(answer)
}

/// Makes bucket and repository, then the marker that says so.
async fn make(
    event: &Event,
    invocation: &Invocation,
    region: &Region,
    storage: &Storage,
    marker: Option<Marker>,
) -> Result<Value> {
    let bucket = Bucket::of_assets(invocation, &storage.bucket, region);
    let ensured = bucket.ensure(event.force).await?;
    let repository = Repository::new(invocation, &storage.repository, region);
    let made = repository.ensure(event.force).await?;
    let is_new = marker.is_none();
    if is_new {
        invocation
            .write_marker(region, &Marker::new(storage.clone(), cdkd_aws::settings::timestamp()))
            .await?;
    }
    Ok(json!({
        "region": region.as_str(),
        "assetBucket": storage.bucket,
        "containerRepo": storage.repository,
        "created": { "assetBucket": ensured.created, "containerRepo": made, "marker": is_new },
        "configured": ensured.configured,
    }))
}

/// What a create would do.
async fn foresee(
    event: &Event,
    invocation: &Invocation,
    region: &Region,
    storage: &Storage,
    (has_state, has_marker): (bool, bool),
) -> Result<Value> {
    let mut would = Vec::new();
    if !has_state {
        would.push(format!("make the state bucket {}", invocation.settings.state_bucket));
    }
    if event.assets != Some(false) {
        if !Bucket::of_assets(invocation, &storage.bucket, region).exists().await? {
            would.push(format!("make the asset bucket {}", storage.bucket));
        }
        if !Repository::new(invocation, &storage.repository, region).exists().await? {
            would.push(format!("make the repository {}", storage.repository));
        }
        if !has_marker {
            would.push(format!("switch asset mode on for {region}"));
        }
    }
    let message = match would.as_slice() {
        [] => "Nothing would be made: all is there.".to_owned(),
        all => format!("Nothing was done. A run would {}.", all.join(", ")),
    };
    Ok(json!({ "message": message, "dryRun": true, "would": would }))
}

fn asset_mode_is_on(region: &Region, storage: &Storage) -> String {
    format!(
        "Asset mode is on for {region}: the next deploy of each stack publishes its assets to {} and {}, and updates \
         every resource that refers to them, once and with the same content. Until then nothing changes.",
        storage.bucket, storage.repository
    )
}
