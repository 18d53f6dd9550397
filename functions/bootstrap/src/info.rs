//! What there is: the state bucket, the records in it, and the regions with asset storage of their own.

use std::collections::BTreeMap;

use cdkd_aws::buckets::Bucket;
use cdkd_aws::edge::Invocation;
use cdkd_aws::registry::Repository;
use cdkd_core::Result;
use cdkd_core::assets::marker::{self, Marker};
use cdkd_core::name::Region;
use cdkd_core::{Code, Error};
use futures::stream::{self, StreamExt as _};
use serde_json::{Value, json};

/// Reads in flight.
const IN_FLIGHT: usize = 64;
/// How many records that cannot be read an answer names.
const SHOWN: usize = 20;

pub(crate) async fn info(invocation: &Invocation) -> Result<Value> {
    let settings = &invocation.settings;
    let state = Bucket::of_state(invocation).await?;
    let Some(described) = state.describe().await? else {
        return Err(Error::new(
            Code::BucketUnavailable,
            format!("the state bucket `{}` does not exist", settings.state_bucket),
        )
        .hint("start this function with `{}`: it makes the bucket, and asset storage for the region")
        .detail("bucket", settings.state_bucket.as_str()));
    };
    let records = invocation.estate().await?.records;
    let reads = records.iter().map(|(key, _)| async move {
        let object = invocation.aws.store.get(&settings.state_bucket, &key.state(&settings.prefix)).await;
        (key, object)
    });
    let mut reads = stream::iter(reads).buffer_unordered(IN_FLIGHT);
    let (mut versions, mut unreadable): (BTreeMap<String, u64>, Vec<String>) = Default::default();
    while let Some((key, object)) = reads.next().await {
        let Some(object) = object? else { continue };
        match serde_json::from_slice::<Value>(&object.body) {
            // The first version had no number.
            Ok(Value::Object(record)) => {
                let version = record.get("version").and_then(Value::as_u64).unwrap_or(1);
                *versions.entry(version.to_string()).or_default() += 1;
            }
            _ => unreadable.push(key.to_string()),
        }
    }
    unreadable.sort();
    unreadable.truncate(SHOWN);
    let regions = regions(invocation).await?;
    Ok(json!({
        "message": message(&regions),
        "stateBucket": settings.state_bucket,
        "prefix": settings.prefix,
        "region": described["region"],
        "created": false,
        "settings": described,
        "stacks": records.iter().filter(|(key, _)| key.stack.parent().is_none()).count(),
        "records": records.len(),
        "versions": versions,
        "unreadable": unreadable,
        "assets": regions,
    }))
}

fn message(regions: &[Value]) -> String {
    let names: Vec<&str> = regions.iter().filter_map(|it| it["region"].as_str()).collect();
    match names.as_slice() {
        [] => "Asset mode is on in no region: assets go where the assembly says.".to_owned(),
        names => format!("Asset mode is on for {}.", names.join(", ")),
    }
}

/// The regions with a marker: `{region, assetBucket, containerRepo, createdAt, assetBucketExists, containerRepoExists}`, or
/// `{region, error}`.
async fn regions(invocation: &Invocation) -> Result<Vec<Value>> {
    let mut regions = Vec::new();
    for region in opted_in(invocation).await? {
        let row = match invocation.read_marker(&region).await {
            Ok(Some(marker)) => match look(invocation, &region, &marker).await {
                Ok(row) => row,
                Err(error) => json!({ "region": region.as_str(), "error": error.cause() }),
            },
            Ok(None) => continue,
            Err(error) => json!({ "region": region.as_str(), "error": error.cause() }),
        };
        regions.push(row);
    }
    Ok(regions)
}

/// The regions that have a marker, whatever it says.
pub(crate) async fn opted_in(invocation: &Invocation) -> Result<Vec<Region>> {
    let listed = invocation.aws.store.list(&invocation.settings.state_bucket, marker::PREFIX).await?;
    Ok(listed.iter().filter_map(|object| marker::region_of(&object.key)).collect())
}

async fn look(invocation: &Invocation, region: &Region, marker: &Marker) -> Result<Value> {
    let storage = &marker.storage;
    let bucket = Bucket::of_assets(invocation, &storage.bucket, region);
    let repository = Repository::new(invocation, &storage.repository, region);
    let (has_bucket, has_repository) = futures::try_join!(bucket.exists(), repository.exists())?;
    Ok(json!({
        "region": region.as_str(),
        "assetBucket": storage.bucket,
        "containerRepo": storage.repository,
        "createdAt": marker.created_at,
        "assetBucketExists": has_bucket,
        "containerRepoExists": has_repository,
    }))
}
