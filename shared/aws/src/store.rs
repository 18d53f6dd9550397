//! Documents in S3, with conditional writes.
//!
//! Every call passes `ExpectedBucketOwner`. Every conditional write carries a fresh nonce in the object's metadata,
//! so that a 412 which answers the SDK's own repetition of a write is told from another writer's (rules L1, L13);
//! a 409 is repeated, a 412 is a conflict, a 404 on `If-Match` is "gone" (rule L2).

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use aws_config::SdkConfig;
use aws_sdk_s3::Client;
use aws_sdk_s3::config::{Builder, Region};
use aws_sdk_s3::operation::list_object_versions::ListObjectVersionsOutput;
use aws_sdk_s3::primitives::ByteStream;
use aws_sdk_s3::types::{BucketLocationConstraint, Delete, ObjectIdentifier};
use cdkd_core::{Code, Error, Result};
use tokio::sync::OnceCell;

use crate::failure::Failure;
use crate::settings::{self, Settings};

pub mod objects;

const NONCE: &str = "cdkd-write";
/// Tries of a write that S3 answers with 409 `ConditionalRequestConflict`.
const CONFLICT_TRIES: u32 = 6;

/// S3, for one account, in the region of each bucket.
pub struct Store {
    config: SdkConfig,
    home: Client,
    account: String,
    /// One look-up for each bucket, kept once it succeeded (rule E9).
    clients: RefCell<BTreeMap<String, Rc<OnceCell<Client>>>>,
}

/// An object as read.
#[derive(Clone, Debug)]
pub struct Object {
    pub body: Vec<u8>,
    pub etag: String,
    /// Milliseconds since 1970, by S3's clock, whole seconds.
    pub last_modified: i64,
    /// The nonce of the write that made it, if cdkd did.
    pub nonce: Option<String>,
}

/// A row of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    pub key: String,
    pub etag: String,
    /// Bytes.
    pub size: u64,
}

impl From<aws_sdk_s3::types::Object> for Listed {
    fn from(object: aws_sdk_s3::types::Object) -> Self {
        Self {
            key: object.key.unwrap_or_default(),
            etag: object.e_tag.unwrap_or_default(),
            size: object.size.and_then(|size| u64::try_from(size).ok()).unwrap_or(0),
        }
    }
}

/// What a conditional read finds.
#[derive(Clone, Debug)]
pub enum Changed {
    /// 304: it is as it was.
    No,
    /// 200: its body now.
    Now(Vec<u8>),
    /// 404
    Gone,
}

/// On what condition a write takes place.
#[derive(Clone, Copy, Debug)]
pub enum Condition<'a> {
    /// `If-None-Match: *`
    Absent,
    /// `If-Match`
    Matches(&'a str),
    Always,
}

/// What became of a conditional write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Written {
    /// It took place; the new ETag.
    Yes(String),
    /// 412: another writer was first.
    Lost,
    /// 404: the object that it was to replace is gone.
    Gone,
}

impl Store {
    pub fn new(config: &SdkConfig, settings: &Settings) -> Self {
        let home = Client::new(config);
        // The runs bucket is made where the functions are.
        let known = (settings.runs_bucket.clone(), Rc::new(OnceCell::new_with(Some(home.clone()))));
        Self {
            config: config.clone(),
            home,
            account: settings.account.to_string(),
            clients: RefCell::new(BTreeMap::from([known])),
        }
    }

    /// A client of the bucket's own region; S3 answers a request that is signed for another one with 301.
    ///
    /// A bucket that is not there, or whose place nobody tells, gets the client of this region: what is wrong with it is
    /// for the call to say.
    pub(crate) async fn client(&self, bucket: &str) -> Result<Client> {
        let known = self.clients.borrow_mut().entry(bucket.to_owned()).or_default().clone();
        match known.get_or_try_init(|| self.locate(bucket)).await {
            Ok(client) => Ok(client.clone()),
            Err(failure) if failure.unknown() || failure.throttled() => {
                Err(failure.into_error(&format!("find the region of bucket `{bucket}`")))
            }
            Err(_) => Ok(self.home.clone()),
        }
    }

    /// A client of a region, for a bucket that may not be there.
    pub(crate) fn client_in(&self, region: &cdkd_core::name::Region) -> Client {
        if self.config.region().is_some_and(|own| own.as_ref() == region.as_str()) {
            return self.home.clone();
        }
        Client::from_conf(Builder::from(&self.config).region(Region::new(region.to_string())).build())
    }

    async fn locate(&self, bucket: &str) -> std::result::Result<Client, Failure> {
        // With the bucket in the path: a host name of its own would be that of another region.
        let asking = Client::from_conf(Builder::from(&self.config).force_path_style(true).build());
        let answer =
            asking.get_bucket_location().bucket(bucket).expected_bucket_owner(&self.account).send().await;
        let region = match answer {
            Ok(answer) => {
                region_of(answer.location_constraint.as_ref().map(BucketLocationConstraint::as_str))
            }
            Err(error) => {
                let told = error.raw_response().and_then(|raw| raw.headers().get("x-amz-bucket-region"));
                told.map(str::to_owned).ok_or_else(|| Failure::of(&error))?
            }
        };
        if self.config.region().is_some_and(|own| own.as_ref() == region) {
            return Ok(self.home.clone());
        }
        Ok(Client::from_conf(Builder::from(&self.config).region(Region::new(region)).build()))
    }

    /// Reads an object; `None` when there is none.
    pub async fn get(&self, bucket: &str, key: &str) -> Result<Option<Object>> {
        let s3 = self.client(bucket).await?;
        let answer =
            s3.get_object().bucket(bucket).key(key).expected_bucket_owner(&self.account).send().await;
        let answer = match answer {
            Ok(answer) => answer,
            Err(error) => {
                let failure = Failure::of(&error);
                if failure.status == Some(404) && failure.code != "NoSuchBucket" {
                    return Ok(None);
                }
                return Err(bucket_error(failure, &format!("read `{key}` of bucket `{bucket}`"), bucket));
            }
        };
        let etag = answer.e_tag.clone().unwrap_or_default();
        let last_modified = answer.last_modified.map_or(0, |time| time.secs() * 1000);
        let nonce = answer.metadata.as_ref().and_then(|metadata| metadata.get(NONCE).cloned());
        let body = answer.body.collect().await.map_err(|error| {
            Error::new(
                Code::ServiceUnavailable,
                format!("could not read `{key}` of bucket `{bucket}`: {error}"),
            )
        })?;
        Ok(Some(Object { body: body.to_vec(), etag, last_modified, nonce }))
    }

    /// Reads an object unless it still has this `ETag`.
    pub async fn get_if_changed(&self, bucket: &str, key: &str, etag: &str) -> Result<Changed> {
        let s3 = self.client(bucket).await?;
        let answer = s3
            .get_object()
            .bucket(bucket)
            .key(key)
            .if_none_match(etag)
            .expected_bucket_owner(&self.account)
            .send()
            .await;
        match answer {
            Ok(answer) => {
                let body = answer.body.collect().await.map_err(|error| {
                    Error::new(
                        Code::ServiceUnavailable,
                        format!("could not read `{key}` of bucket `{bucket}`: {error}"),
                    )
                })?;
                Ok(Changed::Now(body.to_vec()))
            }
            Err(error) => {
                let failure = Failure::of(&error);
                match failure.status {
                    Some(304) => Ok(Changed::No),
                    Some(404) if failure.code != "NoSuchBucket" => Ok(Changed::Gone),
                    _ => Err(bucket_error(failure, &format!("read `{key}` of bucket `{bucket}`"), bucket)),
                }
            }
        }
    }

    /// Reads a range of an object: `length` bytes from `offset`, fewer at its end.
    pub async fn range(&self, bucket: &str, key: &str, offset: u64, length: u64) -> Result<Option<Vec<u8>>> {
        let s3 = self.client(bucket).await?;
        if length == 0 {
            return Ok(Some(Vec::new()));
        }
        let range = format!("bytes={offset}-{}", offset.saturating_add(length - 1));
        let answer = s3
            .get_object()
            .bucket(bucket)
            .key(key)
            .range(range)
            .expected_bucket_owner(&self.account)
            .send()
            .await;
        match answer {
            Ok(answer) => {
                let body = answer.body.collect().await.map_err(|error| {
                    Error::new(
                        Code::ServiceUnavailable,
                        format!("could not read `{key}` of bucket `{bucket}`: {error}"),
                    )
                })?;
                Ok(Some(body.to_vec()))
            }
            Err(error) => {
                let failure = Failure::of(&error);
                if failure.status == Some(404) && failure.code != "NoSuchBucket" {
                    return Ok(None);
                }
                Err(bucket_error(failure, &format!("read `{key}` of bucket `{bucket}`"), bucket))
            }
        }
    }

    /// Reads a range of an object that has to be the one with this `ETag`: `length` bytes from `offset`, fewer at its
    /// end. `None`: it is gone or another one.
    pub async fn range_of(
        &self,
        (bucket, key, etag): (&str, &str, &str),
        offset: u64,
        length: u64,
    ) -> Result<Option<Vec<u8>>> {
        if length == 0 {
            return Ok(Some(Vec::new()));
        }
        let s3 = self.client(bucket).await?;
        let answer = s3
            .get_object()
            .bucket(bucket)
            .key(key)
            .if_match(etag)
            .range(format!("bytes={offset}-{}", offset.saturating_add(length - 1)))
            .expected_bucket_owner(&self.account)
            .send()
            .await;
        let unread = |failure| bucket_error(failure, &format!("read `{key}` of bucket `{bucket}`"), bucket);
        let mut answer = match answer {
            Ok(answer) => answer,
            Err(error) => {
                let failure = Failure::of(&error);
                if matches!(failure.status, Some(404 | 412 | 416)) && failure.code != "NoSuchBucket" {
                    return Ok(None);
                }
                return Err(unread(failure));
            }
        };
        // Collecting would hold it twice.
        let mut bytes = Vec::with_capacity(usize::try_from(length).unwrap_or(0));
        while let Some(piece) = answer.body.next().await {
            let piece = piece.map_err(|error| {
                Error::new(
                    Code::ServiceUnavailable,
                    format!("could not read `{key}` of bucket `{bucket}`: {error}"),
                )
            })?;
            bytes.extend_from_slice(&piece);
        }
        Ok(Some(bytes))
    }

    /// The size of an object in bytes; `None` when there is none.
    pub async fn size(&self, bucket: &str, key: &str) -> Result<Option<u64>> {
        Ok(self.find(bucket, key).await?.map(|object| object.size))
    }

    /// Size and `ETag` of an object; `None` when there is none.
    pub async fn find(&self, bucket: &str, key: &str) -> Result<Option<Listed>> {
        let s3 = self.client(bucket).await?;
        let answer =
            s3.head_object().bucket(bucket).key(key).expected_bucket_owner(&self.account).send().await;
        match answer {
            Ok(answer) => Ok(Some(Listed {
                key: key.to_owned(),
                etag: answer.e_tag.unwrap_or_default(),
                size: answer.content_length.and_then(|size| u64::try_from(size).ok()).unwrap_or(0),
            })),
            Err(error) => {
                let failure = Failure::of(&error);
                if failure.status == Some(404) {
                    return Ok(None);
                }
                Err(bucket_error(failure, &format!("look at `{key}` of bucket `{bucket}`"), bucket))
            }
        }
    }

    /// Writes a document on a condition.
    pub async fn put(
        &self,
        bucket: &str,
        key: &str,
        body: Vec<u8>,
        condition: Condition<'_>,
    ) -> Result<Written> {
        let s3 = self.client(bucket).await?;
        let nonce = settings::nonce()?;
        let mut tries = 0;
        loop {
            tries += 1;
            let request = s3
                .put_object()
                .bucket(bucket)
                .key(key)
                .expected_bucket_owner(&self.account)
                .content_type("application/json")
                .metadata(NONCE, &nonce)
                .body(ByteStream::from(body.clone()));
            let request = match condition {
                Condition::Absent => request.if_none_match("*"),
                Condition::Matches(etag) => request.if_match(etag),
                Condition::Always => request,
            };
            let failure = match request.send().await {
                Ok(answer) => return Ok(Written::Yes(answer.e_tag.unwrap_or_default())),
                Err(error) => Failure::of(&error),
            };
            match failure.status {
                Some(409) if failure.code == "ConditionalRequestConflict" && tries < CONFLICT_TRIES => {
                    // Undecided: another request on this key was in flight. It may have been ours.
                    if let Some(etag) = self.written_by(bucket, key, &nonce).await? {
                        return Ok(Written::Yes(etag));
                    }
                    tokio::time::sleep(settings::jitter(Duration::from_millis(40 << tries))).await;
                }
                Some(412) => {
                    return Ok(match self.written_by(bucket, key, &nonce).await? {
                        Some(etag) => Written::Yes(etag),
                        None => Written::Lost,
                    });
                }
                Some(404) if matches!(condition, Condition::Matches(_)) && failure.code != "NoSuchBucket" => {
                    return Ok(Written::Gone);
                }
                _ => {
                    return Err(bucket_error(
                        failure,
                        &format!("write `{key}` of bucket `{bucket}`"),
                        bucket,
                    ));
                }
            }
        }
    }

    /// The ETag of the object, if it is the write with this nonce.
    async fn written_by(&self, bucket: &str, key: &str, nonce: &str) -> Result<Option<String>> {
        let object = self.get(bucket, key).await?;
        Ok(object.filter(|object| object.nonce.as_deref() == Some(nonce)).map(|object| object.etag))
    }

    /// Deletes an object if it still has this ETag; `false` when it has another or is gone.
    pub async fn delete_matching(&self, bucket: &str, key: &str, etag: &str) -> Result<bool> {
        let s3 = self.client(bucket).await?;
        let mut tries = 0;
        loop {
            tries += 1;
            let answer = s3
                .delete_object()
                .bucket(bucket)
                .key(key)
                .if_match(etag)
                .expected_bucket_owner(&self.account)
                .send()
                .await;
            let failure = match answer {
                Ok(_) => return Ok(true),
                Err(error) => Failure::of(&error),
            };
            match failure.status {
                Some(409) if tries < CONFLICT_TRIES => {
                    tokio::time::sleep(settings::jitter(Duration::from_millis(40 << tries))).await;
                }
                Some(412 | 404) if failure.code != "NoSuchBucket" => return Ok(false),
                _ => {
                    return Err(bucket_error(
                        failure,
                        &format!("delete `{key}` of bucket `{bucket}`"),
                        bucket,
                    ));
                }
            }
        }
    }

    /// All objects below a prefix, in order of their keys.
    pub async fn list(&self, bucket: &str, prefix: &str) -> Result<Vec<Listed>> {
        let s3 = self.client(bucket).await?;
        let mut found = Vec::new();
        let mut token = None;
        loop {
            let answer = s3
                .list_objects_v2()
                .bucket(bucket)
                .prefix(prefix)
                .set_continuation_token(token)
                .expected_bucket_owner(&self.account)
                .send()
                .await
                .map_err(|error| {
                    bucket_error(
                        Failure::of(&error),
                        &format!("list `{prefix}` of bucket `{bucket}`"),
                        bucket,
                    )
                })?;
            for object in answer.contents.unwrap_or_default() {
                found.push(Listed::from(object));
            }
            token = answer.next_continuation_token;
            if token.is_none() {
                return Ok(found);
            }
        }
    }

    /// A page of the versions below a prefix, behind the markers (key, version id) of the one before.
    async fn list_versions(
        &self,
        bucket: &str,
        prefix: &str,
        (key_marker, version_marker): (Option<String>, Option<String>),
    ) -> Result<ListObjectVersionsOutput> {
        self.client(bucket)
            .await?
            .list_object_versions()
            .bucket(bucket)
            .prefix(prefix)
            .set_key_marker(key_marker)
            .set_version_id_marker(version_marker)
            .expected_bucket_owner(&self.account)
            .send()
            .await
            .map_err(|error| {
                bucket_error(Failure::of(&error), &format!("list versions of `{prefix}`"), bucket)
            })
    }

    /// The keys below a prefix at which an object was and is deleted, as far as the bucket keeps versions.
    pub async fn list_deleted(&self, bucket: &str, prefix: &str) -> Result<Vec<String>> {
        let mut markers = (None, None);
        let mut found = Vec::new();
        loop {
            let page = self.list_versions(bucket, prefix, markers).await?;
            let deleted = page.delete_markers.unwrap_or_default().into_iter();
            found.extend(deleted.filter(|marker| marker.is_latest == Some(true)).filter_map(|it| it.key));
            if page.is_truncated != Some(true) {
                return Ok(found);
            }
            markers = (page.next_key_marker, page.next_version_id_marker);
        }
    }

    /// Removes every version below a prefix for good: superseded documents do not pile up (rule L10). `keep_current`
    /// leaves the current version of each key.
    pub async fn purge(&self, bucket: &str, prefix: &str, keep_current: bool) -> Result<()> {
        let mut markers = (None, None);
        loop {
            let page = self.list_versions(bucket, prefix, markers).await?;
            let versions = page.versions.unwrap_or_default().into_iter().filter_map(|version| {
                let kept = keep_current && version.is_latest == Some(true);
                (!kept).then_some((version.key, version.version_id))
            });
            let deleted = page.delete_markers.unwrap_or_default().into_iter().map(|m| (m.key, m.version_id));
            let doomed: Vec<_> = versions.chain(deleted).collect();
            self.delete_versions(bucket, prefix, doomed).await?;
            if page.is_truncated != Some(true) {
                return Ok(());
            }
            markers = (page.next_key_marker, page.next_version_id_marker);
        }
    }

    /// Deletes up to 1,000 versions, one page of a listing.
    async fn delete_versions(
        &self,
        bucket: &str,
        prefix: &str,
        doomed: Vec<(Option<String>, Option<String>)>,
    ) -> Result<()> {
        let s3 = self.client(bucket).await?;
        let mut objects = Vec::new();
        for (key, version) in doomed {
            let object = ObjectIdentifier::builder().key(key.unwrap_or_default()).set_version_id(version);
            objects.push(object.build().map_err(|error| {
                Error::new(Code::InternalError, format!("a listing without keys: {error}"))
            })?);
        }
        if objects.is_empty() {
            return Ok(());
        }
        let batch = Delete::builder().set_objects(Some(objects)).quiet(true).build().map_err(|error| {
            Error::new(Code::InternalError, format!("a batch of deletes that S3 does not take: {error}"))
        })?;
        let answer = s3
            .delete_objects()
            .bucket(bucket)
            .delete(batch)
            .expected_bucket_owner(&self.account)
            .send()
            .await
            .map_err(|error| {
                bucket_error(Failure::of(&error), &format!("delete versions of `{prefix}`"), bucket)
            })?;
        match answer.errors.unwrap_or_default().first() {
            None => Ok(()),
            Some(error) => Err(Error::new(
                Code::AccessDenied,
                format!(
                    "could not delete a version of `{}`: {}",
                    error.key.as_deref().unwrap_or_default(),
                    error.message.as_deref().unwrap_or_default()
                ),
            )),
        }
    }
}

/// The region that a location constraint means: none is us-east-1, and `EU` is what eu-west-1 was called first.
fn region_of(constraint: Option<&str>) -> String {
    match constraint {
        None | Some("") => "us-east-1",
        Some("EU") => "eu-west-1",
        Some(region) => region,
    }
    .to_owned()
}

fn bucket_error(failure: Failure, doing: &str, bucket: &str) -> Error {
    if failure.code == "NoSuchBucket" || (failure.status == Some(404) && failure.code.is_empty()) {
        return Error::new(Code::BucketUnavailable, format!("could not {doing}: the bucket does not exist"))
            .hint("start the function `cdkd-bootstrap` for this region, or correct the bucket's name")
            .detail("bucket", bucket);
    }
    if failure.status == Some(403) {
        return Error::new(Code::BucketUnavailable, format!("could not {doing}: S3 denied access"))
            .hint("the bucket may belong to another account, or the function's role lacks the permission")
            .detail("bucket", bucket);
    }
    failure.into_error(doing)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn e9_where_a_bucket_is() {
        let table = [
            (None, "us-east-1"),
            (Some(""), "us-east-1"),
            (Some("EU"), "eu-west-1"),
            (Some("eu-west-1"), "eu-west-1"),
            (Some("ap-south-1"), "ap-south-1"),
        ];
        for (constraint, region) in table {
            assert_eq!(region_of(constraint), region);
        }
    }
}
