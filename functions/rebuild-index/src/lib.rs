//! `cdkd-rebuild-index`: brings the index of exports up to the records.
//!
//! Writes and deletes of `state.json` reach it through EventBridge and a queue. An event is a hint: the record is read
//! as it is now, so events may come twice, late, in any order, or for this product's own writes (rule F4). A batch is
//! folded: one read and one write of each region's index. On request, `{"region": …}` or `{"all": true}`, the index is
//! made anew.

mod events;

use std::collections::{BTreeMap, BTreeSet};

use cdkd_aws::edge::Invocation;
use cdkd_core::name::{RecordKey, Region};
use cdkd_core::references::index::Index;
use cdkd_core::{Code, Error, Result};
use serde_json::{Value, json};

/// A batch → `{batchItemFailures}`; a request → `{rebuilt: [{region, exports, changed}]}`.
pub async fn handle(event: Value, invocation: Invocation) -> Result<Value> {
    if event.get("Records").is_some() || event.get("detail").is_some() {
        return follow(&event, &invocation).await;
    }
    let region = event["region"].as_str().map(str::parse::<Region>).transpose()?;
    if region.is_none() && event["all"] != true {
        return Err(Error::new(Code::InvalidInput, "the payload of rebuild-index names nothing to rebuild")
            .hint("give `{\"region\": \"eu-west-1\"}` or `{\"all\": true}`"));
    }
    rebuild(region.as_ref(), &invocation).await
}

/// Brings the index up to the records that the events name. Messages whose record or index could not be read are told,
/// so that the queue delivers them again.
async fn follow(event: &Value, invocation: &Invocation) -> Result<Value> {
    let named = events::records(event, &invocation.settings.prefix);
    let mut failed: BTreeSet<String> = BTreeSet::new();
    let mut first = None;
    let mut by_region: BTreeMap<Region, Vec<RecordKey>> = BTreeMap::new();
    for key in named.keys() {
        by_region.entry(key.region.clone()).or_default().push(key.clone());
    }
    for (region, keys) in by_region {
        let mut unread = BTreeMap::new();
        let changed = invocation
            .change_index(&region, async |index| {
                unread.clear();
                let mut gone: BTreeSet<&RecordKey> = keys.iter().collect();
                for (key, record) in invocation.read_records(keys.clone()).await {
                    gone.remove(&key);
                    match record {
                        Ok(record) => index.update_for_stack(&key, &record, None),
                        // What it exports is not known: its entries stay as they are.
                        Err(error) => {
                            unread.insert(key, error);
                        }
                    }
                }
                for key in gone {
                    index.remove_for_stack(key);
                }
                Ok(())
            })
            .await;
        let again: Vec<&RecordKey> =
            if changed.is_err() { keys.iter().collect() } else { unread.keys().collect() };
        failed.extend(again.into_iter().filter_map(|key| named.get(key)).flatten().cloned());
        first = first.or(unread.into_values().next()).or(changed.err());
    }
    let failures: Vec<Value> =
        failed.iter().filter(|id| !id.is_empty()).map(|id| json!({ "itemIdentifier": id })).collect();
    match first {
        // An event that came without the queue has nobody to tell it from others.
        Some(error) if failures.is_empty() => Err(error),
        _ => Ok(json!({ "batchItemFailures": failures })),
    }
}

/// Makes the index of a region anew, or of every region that has records.
async fn rebuild(region: Option<&Region>, invocation: &Invocation) -> Result<Value> {
    let regions: BTreeSet<Region> = match region {
        Some(region) => BTreeSet::from([region.clone()]),
        None => invocation.estate().await?.records.into_iter().map(|(key, _)| key.region).collect(),
    };
    let mut rebuilt = Vec::new();
    for region in regions {
        let mut exports = 0;
        let changed = invocation
            .change_index(&region, async |index| {
                let keys = invocation.estate().await?.records.into_iter().map(|(key, _)| key);
                let keys = keys.filter(|key| key.region == region).collect();
                let mut records = Vec::new();
                for (key, record) in invocation.read_records(keys).await {
                    // An index made without it would lack its exports: whoever trusts the index would go on to scan,
                    // and fail there.
                    records.push((key, record?));
                }
                *index = Index::rebuild(&region, records.iter().map(|(key, record)| (key, record, None)));
                exports = index.names().count();
                Ok(())
            })
            .await?;
        rebuilt.push(json!({ "region": region.as_str(), "exports": exports, "changed": changed }));
    }
    Ok(json!({ "rebuilt": rebuilt }))
}
