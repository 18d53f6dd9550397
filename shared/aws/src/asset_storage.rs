//! The asset storage of a region: what its marker names, and whether that is there.

use cdkd_core::assets::marker::{self, Marker};
use cdkd_core::assets::table::Storage;
use cdkd_core::name::Region;
use cdkd_core::{Code, Error, Result};

use crate::buckets::Bucket;
use crate::edge::Invocation;
use crate::registry::Repository;
use crate::store::{Condition, Written};

impl Invocation {
    /// Reads the marker of a region; `None` if it has none, and so no storage of cdkd's own.
    ///
    /// # Errors
    /// `InvalidBootstrapMarker`; `BucketUnavailable` without a state bucket.
    pub async fn read_marker(&self, region: &Region) -> Result<Option<Marker>> {
        let found = self.aws.store.get(&self.settings.state_bucket, &marker::key(region)).await?;
        found.map(|object| Marker::parse(&object.body, region)).transpose()
    }

    /// Writes the marker of a region that has none.
    ///
    /// # Errors
    /// `StateConflict` if another run has written one with other names since.
    pub async fn write_marker(&self, region: &Region, marker: &Marker) -> Result<()> {
        let key = marker::key(region);
        let bytes = marker.to_bytes();
        let written = self.aws.store.put(&self.settings.state_bucket, &key, bytes, Condition::Absent).await?;
        if matches!(written, Written::Yes(_))
            || self.read_marker(region).await?.is_some_and(|other| other.storage == marker.storage)
        {
            return Ok(());
        }
        Err(Error::new(Code::StateConflict, format!("another run has written the marker of {region}"))
            .hint("start `cdkd-bootstrap` again without names: it finds what is there"))
    }

    /// Whether what a marker names is there and ours (rules A14, A24). Never a reason to fall back silently.
    ///
    /// # Errors
    /// `AssetStorageMissing`, `BucketUnavailable` (another account's).
    pub async fn check_storage(&self, region: &Region, storage: &Storage) -> Result<()> {
        let bucket = Bucket::of_assets(self, &storage.bucket, region);
        let repository = Repository::new(self, &storage.repository, region);
        let (has_bucket, has_repository) = futures::try_join!(bucket.exists(), repository.exists())?;
        let gone: Vec<String> = [
            (!has_bucket).then(|| format!("bucket `{}`", storage.bucket)),
            (!has_repository).then(|| format!("repository `{}`", storage.repository)),
        ]
        .into_iter()
        .flatten()
        .collect();
        if gone.is_empty() {
            return Ok(());
        }
        Err(Error::new(
            Code::AssetStorageMissing,
            format!("assets of {region} go to {}, which is gone", gone.join(" and ")),
        )
        .hint(format!(
            "start `cdkd-bootstrap` with {{\"region\": \"{region}\"}}: it makes the storage anew under its names, and the \
             next deploy publishes all assets again"
        ))
        .detail("region", region.as_str())
        .detail("missing", gone))
    }
}
