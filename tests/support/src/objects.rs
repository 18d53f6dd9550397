//! Objects in S3.

use http::Method;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use crate::api::Api;
use crate::error::{Result, optional};
use crate::xml::Xml;

/// What stays as it is in the path of an object.
const PATH: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~').remove(b'/');
/// The same in a query.
const QUERY: &AsciiSet = &PATH.add(b'/');

/// A version of an object, or a marker of its deletion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectVersion {
    pub key: String,
    pub version: String,
    pub latest: bool,
    /// A delete marker has no content.
    pub deleted: bool,
}

impl Api {
    /// Makes a bucket; that it is there already is no error.
    pub fn create_bucket(&self, bucket: &str) -> Result<()> {
        let body = if self.region() == "us-east-1" {
            String::new()
        } else {
            format!(
                "<CreateBucketConfiguration><LocationConstraint>{}</LocationConstraint></CreateBucketConfiguration>",
                self.region()
            )
        };
        let made = self.rest_ok("s3", Method::PUT, &format!("/{bucket}"), &[], body.as_bytes());
        optional(made, &["BucketAlreadyOwnedByYou"]).map(drop)
    }

    /// Deletes a bucket, which has to be empty.
    pub fn delete_bucket(&self, bucket: &str) -> Result<()> {
        self.rest_ok("s3", Method::DELETE, &format!("/{bucket}"), &[], &[]).map(drop)
    }

    /// Stores an object and returns its version, where the bucket has versions.
    pub fn put_object(&self, bucket: &str, key: &str, body: &[u8]) -> Result<Option<String>> {
        let response = self.rest_ok("s3", Method::PUT, &path(bucket, key), &[], body)?;
        Ok(response.header("x-amz-version-id").map(str::to_owned))
    }

    /// Copies an object inside a bucket.
    pub fn copy_object(&self, bucket: &str, from: &str, to: &str) -> Result<()> {
        let source = [("x-amz-copy-source", path(bucket, from))];
        self.rest_ok("s3", Method::PUT, &path(bucket, to), &source, &[]).map(drop)
    }

    /// An object, if it is there.
    pub fn get_object(&self, bucket: &str, key: &str) -> Result<Option<Vec<u8>>> {
        let answer = self.rest_ok("s3", Method::GET, &path(bucket, key), &[], &[]);
        Ok(optional(answer, &["NoSuchKey", "NoSuchBucket"])?.map(|response| response.body.to_vec()))
    }

    /// A version of an object, if it is there and no delete marker.
    pub fn get_object_version(&self, bucket: &str, key: &str, version: &str) -> Result<Option<Vec<u8>>> {
        let path = format!("{}?versionId={}", path(bucket, key), utf8_percent_encode(version, QUERY));
        let answer = self.rest_ok("s3", Method::GET, &path, &[], &[]);
        let absent = &["NoSuchKey", "NoSuchVersion", "NoSuchBucket", "MethodNotAllowed"];
        Ok(optional(answer, absent)?.map(|response| response.body.to_vec()))
    }

    /// The entity tag of an object, if it is there.
    pub fn object_etag(&self, bucket: &str, key: &str) -> Result<Option<String>> {
        let answer = self.rest_ok("s3", Method::HEAD, &path(bucket, key), &[], &[]);
        Ok(optional(answer, &["NotFound"])?.and_then(|response| Some(response.header("etag")?.to_owned())))
    }

    /// Deletes an object; in a bucket with versions that leaves a marker.
    pub fn delete_object(&self, bucket: &str, key: &str) -> Result<()> {
        self.rest_ok("s3", Method::DELETE, &path(bucket, key), &[], &[]).map(drop)
    }

    /// Deletes one version of an object for good.
    pub fn delete_object_version(&self, bucket: &str, key: &str, version: &str) -> Result<()> {
        let path = format!("{}?versionId={}", path(bucket, key), utf8_percent_encode(version, QUERY));
        self.rest_ok("s3", Method::DELETE, &path, &[], &[]).map(drop)
    }

    /// The keys that begin with a prefix, in order.
    pub fn list_objects(&self, bucket: &str, prefix: &str) -> Result<Vec<String>> {
        let mut keys = Vec::new();
        let mut token = None;
        loop {
            let mut path = format!("/{bucket}?list-type=2&prefix={}", utf8_percent_encode(prefix, QUERY));
            if let Some(token) = &token {
                path = format!("/{bucket}?continuation-token={token}&list-type=2&prefix={}", encode(prefix));
            }
            let page = self.rest_ok("s3", Method::GET, &path, &[], &[])?;
            let page = Xml::parse(&page.text())?;
            keys.extend(page.all("Contents/Key").into_iter().map(|key| key.text.clone()));
            match page.get("NextContinuationToken") {
                Some(next) if !next.is_empty() => token = Some(encode(next)),
                _ => return Ok(keys),
            }
        }
    }

    /// All versions and delete markers of the keys that begin with a prefix.
    pub fn list_versions(&self, bucket: &str, prefix: &str) -> Result<Vec<ObjectVersion>> {
        let mut versions = Vec::new();
        let mut start = String::new();
        loop {
            let path = format!("/{bucket}?{start}prefix={}&versions=", encode(prefix));
            let page = self.rest_ok("s3", Method::GET, &path, &[], &[])?;
            let page = Xml::parse(&page.text())?;
            for (name, deleted) in [("Version", false), ("DeleteMarker", true)] {
                versions.extend(page.all(name).into_iter().map(|it| ObjectVersion {
                    key: it.get("Key").unwrap_or_default().to_owned(),
                    version: it.get("VersionId").unwrap_or_default().to_owned(),
                    latest: it.get("IsLatest") == Some("true"),
                    deleted,
                }));
            }
            if page.get("IsTruncated") != Some("true") {
                return Ok(versions);
            }
            let next = |name: &str| encode(page.get(name).unwrap_or_default());
            start = format!(
                "key-marker={}&version-id-marker={}&",
                next("NextKeyMarker"),
                next("NextVersionIdMarker")
            );
        }
    }
}

fn path(bucket: &str, key: &str) -> String {
    format!("/{bucket}/{}", utf8_percent_encode(key, PATH))
}

fn encode(text: &str) -> String {
    utf8_percent_encode(text, QUERY).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_keep_their_slashes_and_nothing_else() {
        assert_eq!(
            path("b", "cdkd/My~Child/us-east-1/a b+c.json"),
            "/b/cdkd/My~Child/us-east-1/a%20b%2Bc.json"
        );
        assert_eq!(encode("a/b"), "a%2Fb");
    }
}
