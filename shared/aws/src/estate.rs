//! All stacks under one prefix: their records, and the documents that are derived from them.

use std::time::Duration;

use cdkd_core::name::RecordKey;
use cdkd_core::state::Record;
use cdkd_core::state::lock::Lock;
use cdkd_core::{Code, Error, Result};
use futures::StreamExt as _;

use crate::edge::Invocation;
use crate::settings;
use crate::stack::Loaded;
use crate::store::{Condition, Written};

/// Reads in flight. S3 takes 5,500 a second per prefix; the rest is this side's memory.
const IN_FLIGHT: usize = 64;
/// Tries of a write of a derived document (seed, "Concurrency: optimistic locking").
const TRIES: u32 = 5;

/// What a listing of the prefix shows.
#[derive(Clone, Debug, Default)]
pub struct Estate {
    /// Records with their `ETag`s, in order of their keys.
    pub records: Vec<(RecordKey, String)>,
    /// Locks that someone holds.
    pub locks: Vec<RecordKey>,
}

impl Invocation {
    /// Lists the records and locks under the prefix. Keys that are neither are passed over.
    pub async fn estate(&self) -> Result<Estate> {
        let prefix = format!("{}/", self.settings.prefix);
        let mut estate = Estate::default();
        for object in self.aws.store.list(&self.settings.state_bucket, &prefix).await? {
            let Some(rest) = object.key.strip_prefix(&prefix) else { continue };
            let mut parts = rest.split('/');
            let (Some(stack), Some(region), Some(document), None) =
                (parts.next(), parts.next(), parts.next(), parts.next())
            else {
                continue;
            };
            let Ok(key) = RecordKey::parse(stack, region) else { continue };
            match document {
                "state.json" => estate.records.push((key, object.etag)),
                "lock.json" => estate.locks.push(key),
                _ => {}
            }
        }
        Ok(estate)
    }

    /// Reads records, many at a time, in the order of the keys. One that is gone by now is left out; one that cannot
    /// be read is an error beside its key, for the caller to judge.
    pub async fn read_records(&self, keys: Vec<RecordKey>) -> Vec<(RecordKey, Result<Record>)> {
        self.load_records(keys)
            .await
            .into_iter()
            .filter_map(|(key, read)| match read {
                Ok(None) => None,
                Ok(Some(loaded)) => Some((key, Ok(loaded.record))),
                Err(error) => Some((key, Err(error))),
            })
            .collect()
    }

    /// The same with what S3 says of each, and those that are gone.
    pub async fn load_records(&self, keys: Vec<RecordKey>) -> Vec<(RecordKey, Result<Option<Loaded>>)> {
        let reads = keys.into_iter().map(|key| async move {
            let read = self.read_record(&key).await;
            (key, read)
        });
        futures::stream::iter(reads).buffered(IN_FLIGHT).collect().await
    }

    /// Reads a lock; `None` when nobody holds it.
    pub async fn read_lock(&self, key: &RecordKey) -> Result<Option<Lock>> {
        let place = key.lock(&self.settings.prefix);
        let object = self.aws.store.get(&self.settings.state_bucket, &place).await?;
        object.map(|object| Lock::parse(&object.body, key)).transpose()
    }

    /// Changes a derived document: read, change, conditional write, again on a conflict, at most five times.
    ///
    /// `change` gets the document's bytes, `None` if there is none, and gives the new ones; `None` if nothing changes.
    ///
    /// # Errors
    /// Those of `change`; `StateConflict` when the tries are used up.
    pub async fn change_derived(
        &self,
        key: &str,
        mut change: impl AsyncFnMut(Option<&[u8]>) -> Result<Option<Vec<u8>>>,
    ) -> Result<bool> {
        let (store, bucket) = (&self.aws.store, &self.settings.state_bucket);
        for attempt in 0..TRIES {
            let found = store.get(bucket, key).await?;
            let Some(body) = change(found.as_ref().map(|object| object.body.as_slice())).await? else {
                return Ok(false);
            };
            let condition =
                found.as_ref().map_or(Condition::Absent, |object| Condition::Matches(&object.etag));
            if let Written::Yes(_) = store.put(bucket, key, body, condition).await? {
                // Superseded versions do not pile up (rule L10).
                store.purge(bucket, key, true).await?;
                return Ok(true);
            }
            tokio::time::sleep(settings::jitter(Duration::from_millis(50 << attempt))).await;
        }
        Err(Error::new(
            Code::StateConflict,
            format!("`{key}` is written faster than it can be brought up to date"),
        )
        .hint("it is derived from the records and mends itself with the next write"))
    }
}
