//! Objects of any size: what assets are read from and published as.
//!
//! S3 shows an object whole or not at all: a write is seen once its last byte is there and its checksum is right, one in
//! parts once it is completed (rule A7). Nothing here holds more than a part.

use aws_sdk_s3::Client;
use aws_sdk_s3::primitives::ByteStream;
use aws_sdk_s3::types::{
    ChecksumAlgorithm, ChecksumMode, CompletedMultipartUpload, CompletedPart, MetadataDirective,
    TaggingDirective,
};
use cdkd_core::assets::skip::{Found, are_abandoned};
use cdkd_core::{Code, Error};

use super::{Listed, Store, bucket_error};
use crate::failure::Failure;
use crate::settings;

/// In the metadata of an object: what it was made of, where its size does not tell.
const SOURCE: &str = "cdkd-source";

/// A call on an object that failed, for the caller to say what it means.
#[derive(Debug)]
pub enum Refusal {
    /// S3 denied it: the permission that the call takes, and what S3 said, which may be nothing.
    Denied {
        permission: &'static str,
        said: String,
    },
    NoBucket,
    Other(Error),
}

/// What an object is to be beside its bytes.
#[derive(Clone, Debug, Default)]
pub struct Kind {
    pub content_type: String,
    /// What it is made of, to be found by [`Store::look`].
    pub source: Option<String>,
}

/// An object that is written in parts. It has to be [completed](Parts::complete) or [given up](Parts::give_up).
pub struct Parts {
    s3: Client,
    account: String,
    bucket: String,
    key: String,
    upload: String,
}

/// A part that has arrived.
pub struct Part(CompletedPart);

impl Store {
    /// One page of a listing, up to 1,000 objects behind `after` in order of their keys, and whether there are more.
    pub async fn page(&self, bucket: &str, after: &str) -> Result<(Vec<Listed>, bool), Refusal> {
        let s3 = self.client(bucket).await.map_err(Refusal::Other)?;
        let answer = s3
            .list_objects_v2()
            .bucket(bucket)
            .set_start_after((!after.is_empty()).then(|| after.to_owned()))
            .expected_bucket_owner(&self.account)
            .send()
            .await
            .map_err(|error| refusal(Failure::of(&error), "s3:ListBucket", "list", bucket, after))?;
        let more = answer.is_truncated == Some(true);
        Ok((answer.contents.unwrap_or_default().into_iter().map(Listed::from).collect(), more))
    }

    /// What is known of an object without reading it; `None` when there is none.
    pub async fn look(&self, bucket: &str, key: &str) -> Result<Option<Found>, Refusal> {
        let s3 = self.client(bucket).await.map_err(Refusal::Other)?;
        let answer = s3
            .head_object()
            .bucket(bucket)
            .key(key)
            .checksum_mode(ChecksumMode::Enabled)
            .expected_bucket_owner(&self.account)
            .send()
            .await;
        match answer {
            Ok(answer) => Ok(Some(Found {
                size: answer.content_length.and_then(|size| u64::try_from(size).ok()).unwrap_or(0),
                crc32: answer.checksum_crc32.as_deref().and_then(crc32),
                source: answer.metadata.as_ref().and_then(|metadata| metadata.get(SOURCE).cloned()),
            })),
            Err(error) => {
                let failure = Failure::of(&error);
                // Without a body nothing tells a missing bucket from a missing object; the write will.
                if failure.status == Some(404) {
                    return Ok(None);
                }
                Err(refusal(failure, "s3:GetObject", "look at", bucket, key))
            }
        }
    }

    /// Writes an object in one request; S3 checks what arrives against a checksum.
    pub async fn write(&self, bucket: &str, key: &str, kind: &Kind, body: Vec<u8>) -> Result<(), Refusal> {
        let s3 = self.client(bucket).await.map_err(Refusal::Other)?;
        s3.put_object()
            .bucket(bucket)
            .key(key)
            .content_type(&kind.content_type)
            .set_metadata(kind.metadata())
            .checksum_algorithm(ChecksumAlgorithm::Crc32)
            .expected_bucket_owner(&self.account)
            .body(ByteStream::from(body))
            .send()
            .await
            .map(drop)
            .map_err(|error| refusal(Failure::of(&error), "s3:PutObject", "write", bucket, key))
    }

    /// Copies an object of up to 5 GB inside S3, if it is still the one with this `ETag`.
    pub async fn copy(
        &self,
        (from, from_key, etag): (&str, &str, &str),
        (bucket, key): (&str, &str),
        kind: &Kind,
    ) -> Result<(), Refusal> {
        let s3 = self.client(bucket).await.map_err(Refusal::Other)?;
        s3.copy_object()
            .copy_source(format!("{from}/{}", encoded(from_key)))
            .copy_source_if_match(etag)
            .expected_source_bucket_owner(&self.account)
            .bucket(bucket)
            .key(key)
            .content_type(&kind.content_type)
            .set_metadata(kind.metadata())
            .metadata_directive(MetadataDirective::Replace)
            // Tags are the uploader's business, and reading them takes a permission.
            .tagging_directive(TaggingDirective::Replace)
            .checksum_algorithm(ChecksumAlgorithm::Crc32)
            .expected_bucket_owner(&self.account)
            .send()
            .await
            .map(drop)
            .map_err(|error| refusal(Failure::of(&error), "s3:PutObject", "write", bucket, key))
    }

    /// Begins an object in parts. What is never completed is no object.
    pub async fn parts(&self, bucket: &str, key: &str, kind: &Kind) -> Result<Parts, Refusal> {
        let s3 = self.client(bucket).await.map_err(Refusal::Other)?;
        self.sweep(&s3, bucket, key).await;
        let answer = s3
            .create_multipart_upload()
            .bucket(bucket)
            .key(key)
            .content_type(&kind.content_type)
            .set_metadata(kind.metadata())
            .checksum_algorithm(ChecksumAlgorithm::Crc32)
            .expected_bucket_owner(&self.account)
            .send()
            .await
            .map_err(|error| refusal(Failure::of(&error), "s3:PutObject", "write", bucket, key))?;
        Ok(Parts {
            s3,
            account: self.account.clone(),
            bucket: bucket.to_owned(),
            key: key.to_owned(),
            upload: answer.upload_id.unwrap_or_default(),
        })
    }
}

impl Store {
    /// Removes parts of this object that a publisher left when it died: they cost, and asset buckets have no rule that
    /// removes them. That this fails changes nothing for what is to be written.
    async fn sweep(&self, s3: &Client, bucket: &str, key: &str) {
        let listing = s3
            .list_multipart_uploads()
            .bucket(bucket)
            .prefix(key)
            .expected_bucket_owner(&self.account)
            .send()
            .await;
        let Ok(listing) = listing else { return };
        let now = settings::now();
        for upload in listing.uploads.unwrap_or_default() {
            let began = upload.initiated.and_then(|time| time.to_millis().ok()).unwrap_or(now);
            let (Some(found), Some(id)) = (upload.key, upload.upload_id) else { continue };
            if found == key && are_abandoned(began, now) {
                let parts = Parts {
                    s3: s3.clone(),
                    account: self.account.clone(),
                    bucket: bucket.to_owned(),
                    key: found,
                    upload: id,
                };
                parts.give_up().await;
            }
        }
    }
}

impl Kind {
    fn metadata(&self) -> Option<std::collections::HashMap<String, String>> {
        let source = self.source.clone()?;
        Some(std::iter::once((SOURCE.to_owned(), source)).collect())
    }
}

impl Parts {
    /// Writes a part, counted from 1; of at least 5 MB unless it is the last. Parts may be on their way side by side.
    pub fn part(
        &self,
        number: i32,
        body: Vec<u8>,
    ) -> impl Future<Output = Result<Part, Refusal>> + Send + use<> {
        let request = self
            .s3
            .upload_part()
            .bucket(&self.bucket)
            .key(&self.key)
            .upload_id(&self.upload)
            .part_number(number)
            .checksum_algorithm(ChecksumAlgorithm::Crc32)
            .expected_bucket_owner(&self.account)
            .body(ByteStream::from(body));
        let (bucket, key) = (self.bucket.clone(), self.key.clone());
        async move {
            let answer = request
                .send()
                .await
                .map_err(|error| refusal(Failure::of(&error), "s3:PutObject", "write", &bucket, &key))?;
            Ok(Part(
                CompletedPart::builder()
                    .part_number(number)
                    .set_e_tag(answer.e_tag)
                    .set_checksum_crc32(answer.checksum_crc32)
                    .build(),
            ))
        }
    }

    /// Makes the parts, in whatever order they arrived, the object.
    pub async fn complete(&self, parts: Vec<Part>) -> Result<(), Refusal> {
        let mut parts: Vec<CompletedPart> = parts.into_iter().map(|part| part.0).collect();
        parts.sort_by_key(|part| part.part_number);
        self.s3
            .complete_multipart_upload()
            .bucket(&self.bucket)
            .key(&self.key)
            .upload_id(&self.upload)
            .expected_bucket_owner(&self.account)
            .multipart_upload(CompletedMultipartUpload::builder().set_parts(Some(parts)).build())
            .send()
            .await
            .map(drop)
            .map_err(|error| refusal(Failure::of(&error), "s3:PutObject", "write", &self.bucket, &self.key))
    }

    /// Removes the parts. That this fails changes nothing for the reader, and what went wrong before is what to tell.
    pub async fn give_up(&self) {
        let gone = self
            .s3
            .abort_multipart_upload()
            .bucket(&self.bucket)
            .key(&self.key)
            .upload_id(&self.upload)
            .expected_bucket_owner(&self.account)
            .send()
            .await;
        if let Err(error) = gone {
            let failure = Failure::of(&error);
            tracing::warn!(
                bucket = self.bucket,
                key = self.key,
                code = failure.code,
                "parts of an object that was given up are still there"
            );
        }
    }
}

fn refusal(failure: Failure, permission: &'static str, verb: &str, bucket: &str, key: &str) -> Refusal {
    if failure.status == Some(403) {
        return Refusal::Denied { permission, said: failure.message };
    }
    if failure.code == "NoSuchBucket" {
        return Refusal::NoBucket;
    }
    if failure.status == Some(412) {
        return Refusal::Other(
            Error::new(Code::InvalidAssembly, "the assembly was changed while its assets were published")
                .hint("upload each assembly under a key or prefix of its own"),
        );
    }
    Refusal::Other(bucket_error(failure, &format!("{verb} `{key}` of bucket `{bucket}`"), bucket))
}

/// A CRC-32 as S3 tells it; that of an object in parts is one of parts, `…-n`, and says nothing of the whole.
fn crc32(text: &str) -> Option<u32> {
    use base64::Engine as _;
    let bytes = base64::engine::general_purpose::STANDARD.decode(text).ok()?;
    Some(u32::from_be_bytes(bytes.try_into().ok()?))
}

/// A key in the header that names a copy's source: percent-encoded, but for what RFC 3986 leaves and the slash.
fn encoded(key: &str) -> String {
    use std::fmt::Write as _;
    key.bytes().fold(String::with_capacity(key.len()), |mut text, byte| {
        if byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte) {
            text.push(char::from(byte));
        } else {
            let _ = write!(text, "%{byte:02X}");
        }
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a7_checksums_of_whole_objects_alone_are_compared() {
        let table = [
            ("y/Q5Jg==", Some(0xcbf4_3926)),
            ("AAAAAA==", Some(0)),
            ("y/Q5Jg==-3", None),
            ("AAAAAAA=", None),
            ("", None),
        ];
        for (text, expected) in table {
            assert_eq!(crc32(text), expected, "{text}");
        }
    }

    #[test]
    fn keys_of_sources_are_encoded() {
        assert_eq!(encoded("a/b c+ü?.json"), "a/b%20c%2B%C3%BC%3F.json");
    }
}
