//! The end of a region's asset storage, and of the state bucket (rule A18): refused while a record refers to it, or may.
//!
//! The marker goes last: until all it names is gone, a run that died can be started again.

use std::time::Duration;

use cdkd_aws::buckets::Bucket;
use cdkd_aws::edge::Invocation;
use cdkd_aws::registry::Repository;
use cdkd_core::assets::marker;
use cdkd_core::assets::table::Storage;
use cdkd_core::name::Region;
use cdkd_core::{Code, Error, Result};
use futures::stream::{self, StreamExt as _};
use serde_json::{Value, json};

use crate::Event;
use crate::info::opted_in;

/// Kept of the time limit for the way out.
const MARGIN: Duration = Duration::from_secs(10);
/// Records read at once.
const IN_FLIGHT: usize = 32;
/// How many records a refusal names.
const SHOWN: usize = 20;

pub(crate) async fn destroy(event: &Event, invocation: &Invocation, region: &Region) -> Result<Value> {
    let state = Bucket::of_state(invocation).await?;
    if !state.exists().await? {
        return Ok(json!({ "message": "Nothing to destroy: there is no state bucket.", "done": true }));
    }
    let marker = invocation.read_marker(region).await?;
    let storage = marker.as_ref().map(|marker| &marker.storage);
    refuse_if_used(invocation, region, storage, event.include_state_bucket).await?;
    let mut would = Vec::new();
    if let Some(storage) = storage {
        would.push(format!("the asset bucket {} with all it holds", storage.bucket));
        would.push(format!("the repository {} with its images", storage.repository));
        would.push(format!("the marker of {region}"));
    }
    if event.include_state_bucket {
        would.push(format!("the state bucket {} with all versions", invocation.settings.state_bucket));
    }
    if event.dry_run || would.is_empty() {
        let message = match would.as_slice() {
            [] => format!("Nothing to destroy: {region} has no asset storage of cdkd's own."),
            all => format!("Nothing was done. A run would delete {}.", all.join(", ")),
        };
        return Ok(
            json!({ "message": message, "done": would.is_empty(), "dryRun": event.dry_run, "would": would }),
        );
    }
    let go_on = || !invocation.left(MARGIN).is_zero();
    let not_yet = || {
        Ok(
            json!({ "message": "Not done yet: start it again with the same payload.", "done": false, "would": would }),
        )
    };
    if let Some(storage) = storage {
        let bucket = Bucket::of_assets(invocation, &storage.bucket, region);
        if bucket.exists().await? {
            if !bucket.empty(go_on).await? {
                return not_yet();
            }
            bucket.delete().await?;
        }
        Repository::new(invocation, &storage.repository, region).delete().await?;
        invocation.aws.store.purge(&invocation.settings.state_bucket, &marker::key(region), false).await?;
    }
    if event.include_state_bucket {
        if !state.empty(go_on).await? {
            return not_yet();
        }
        state.delete().await?;
    }
    Ok(json!({ "message": format!("Deleted: {}.", would.join(", ")), "done": true, "deleted": would }))
}

/// Refuses while anything may need what is to go: a record that names the storage, one that cannot be read, a run at work.
/// For the state bucket, any record and any other region's storage.
async fn refuse_if_used(
    invocation: &Invocation,
    region: &Region,
    storage: Option<&Storage>,
    all: bool,
) -> Result<()> {
    let bucket = &invocation.settings.state_bucket;
    let refuse = |what: String, names: Vec<String>, hint: &str| {
        Err(Error::new(Code::AssetStorageInUse, what)
            .hint(hint)
            .detail("region", region.as_str())
            .detail("by", names))
    };
    // Records of every prefix: two estates may share the bucket, and the storage.
    let listed = invocation.aws.store.list(bucket, "").await?;
    let of = |name: &str| -> Vec<String> {
        let keys = listed.iter().map(|object| object.key.as_str());
        keys.filter(|key| key.ends_with(name)).map(str::to_owned).collect()
    };
    let locks = of("/lock.json");
    if !locks.is_empty() {
        let shown = locks.iter().take(SHOWN).cloned().collect::<Vec<_>>();
        return refuse(
            format!("a run is at work, or died and left its lock: {}", shown.join(", ")),
            shown,
            "wait for it, or start it again so that it ends",
        );
    }
    let records = of("/state.json");
    if all && !records.is_empty() {
        let shown = records.iter().take(SHOWN).cloned().collect::<Vec<_>>();
        return refuse(
            format!("{} records are in the state bucket: {}", records.len(), shown.join(", ")),
            shown,
            "destroy these stacks first, with `cdkd-destroy`",
        );
    }
    if all {
        let others = opted_in(invocation).await?.into_iter().filter(|it| it != region);
        let others: Vec<String> = others.map(|it| it.to_string()).collect();
        if !others.is_empty() {
            return refuse(
                format!("other regions have asset storage: {}", others.join(", ")),
                others,
                "destroy the storage of each region first",
            );
        }
    }
    let Some(storage) = storage else { return Ok(()) };
    let reads = records.iter().map(|key| async move { (key, invocation.aws.store.get(bucket, key).await) });
    let mut reads = stream::iter(reads).buffered(IN_FLIGHT);
    let mut users = Vec::new();
    while let Some((key, object)) = reads.next().await {
        let Some(object) = object? else { continue };
        let text = String::from_utf8_lossy(&object.body);
        let is_record = serde_json::from_str::<Value>(&text).is_ok_and(|record| record.is_object());
        if !is_record || text.contains(&storage.bucket) || text.contains(&storage.repository) {
            users.push(key.clone());
        }
    }
    if users.is_empty() {
        return Ok(());
    }
    let shown = users.iter().take(SHOWN).cloned().collect::<Vec<_>>();
    refuse(
        format!(
            "{} records refer to the asset storage of {region}, or cannot be read: {}",
            users.len(),
            shown.join(", ")
        ),
        shown,
        "destroy these stacks, or deploy them with `\"options\": {\"useCdkBootstrapAssets\": true}`, which moves them to the \
         storage of `cdk bootstrap`",
    )
}
