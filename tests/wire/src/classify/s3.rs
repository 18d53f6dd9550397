//! The operations of S3, by method, path, query and one header.

use hyper::Method;
use hyper::http::request::Parts;

use super::{Call, Protocol, decode};

/// Subresources of a bucket: the key in the query, and what the operations are called after `Get`, `Put`
/// and `Delete`.
const BUCKET_PARTS: &[(&str, &str)] = &[
    ("accelerate", "BucketAccelerateConfiguration"),
    ("acl", "BucketAcl"),
    ("analytics", "BucketAnalyticsConfiguration"),
    ("cors", "BucketCors"),
    ("encryption", "BucketEncryption"),
    ("intelligent-tiering", "BucketIntelligentTieringConfiguration"),
    ("inventory", "BucketInventoryConfiguration"),
    ("lifecycle", "BucketLifecycleConfiguration"),
    ("location", "BucketLocation"),
    ("logging", "BucketLogging"),
    ("metrics", "BucketMetricsConfiguration"),
    ("notification", "BucketNotificationConfiguration"),
    ("object-lock", "ObjectLockConfiguration"),
    ("ownershipControls", "BucketOwnershipControls"),
    ("policy", "BucketPolicy"),
    ("policyStatus", "BucketPolicyStatus"),
    ("publicAccessBlock", "PublicAccessBlock"),
    ("replication", "BucketReplication"),
    ("requestPayment", "BucketRequestPayment"),
    ("tagging", "BucketTagging"),
    ("versioning", "BucketVersioning"),
    ("website", "BucketWebsite"),
];

/// Subresources of an object, likewise.
const OBJECT_PARTS: &[(&str, &str)] = &[
    ("acl", "ObjectAcl"),
    ("attributes", "ObjectAttributes"),
    ("legal-hold", "ObjectLegalHold"),
    ("retention", "ObjectRetention"),
    ("tagging", "ObjectTagging"),
    ("torrent", "ObjectTorrent"),
];

/// Whether a host name is one of S3, with or without a bucket in front.
pub(super) fn is_host(host: &str) -> bool {
    host.starts_with("s3.") || host.starts_with("s3-") || bucket_of_host(host).is_some()
}

/// The bucket of a virtual-hosted request.
fn bucket_of_host(host: &str) -> Option<&str> {
    let at = host.find(".s3.").or_else(|| host.find(".s3-"))?;
    Some(&host[..at])
}

pub(super) fn classify(head: &Parts, host: &str) -> Call {
    let path = head.uri.path().trim_start_matches('/');
    let (bucket, key) = match bucket_of_host(host) {
        Some(bucket) => (bucket, path),
        None => path.split_once('/').unwrap_or((path, "")),
    };
    let pairs: Vec<(&str, &str)> = head
        .uri
        .query()
        .unwrap_or_default()
        .split('&')
        .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
        .collect();
    let has = |key: &str| pairs.iter().any(|(name, _)| *name == key);
    let copies = head.headers.contains_key("x-amz-copy-source");

    let operation = match (bucket.is_empty(), key.is_empty()) {
        (true, _) => "ListBuckets".to_owned(),
        (_, true) => on_bucket(&head.method, has),
        (_, false) => on_object(&head.method, has, copies),
    };
    // Of a listing, what it lists.
    let prefix = pairs.iter().find(|(name, _)| *name == "prefix").map(|(_, prefix)| *prefix);
    let key = if key.is_empty() { prefix.unwrap_or_default() } else { key };
    let resource = if key.is_empty() { bucket.to_owned() } else { format!("{bucket}/{}", decode(key)) };
    Call { protocol: Protocol::S3, service: "s3".to_owned(), operation, resource }
}

fn on_bucket(method: &Method, has: impl Fn(&str) -> bool) -> String {
    let fixed = match *method {
        Method::HEAD => "HeadBucket",
        Method::POST if has("delete") => "DeleteObjects",
        Method::POST => "PostObject",
        Method::GET if has("list-type") => "ListObjectsV2",
        Method::GET if has("versions") => "ListObjectVersions",
        Method::GET if has("uploads") => "ListMultipartUploads",
        Method::GET if has("session") => "CreateSession",
        // The one whose name for DELETE differs from the others.
        Method::DELETE if has("lifecycle") => "DeleteBucketLifecycle",
        _ => match part(BUCKET_PARTS, method, &has) {
            Some(operation) => return operation,
            None if *method == Method::GET => "ListObjects",
            None if *method == Method::PUT => "CreateBucket",
            None if *method == Method::DELETE => "DeleteBucket",
            None => method.as_str(),
        },
    };
    fixed.to_owned()
}

fn on_object(method: &Method, has: impl Fn(&str) -> bool, copies: bool) -> String {
    let fixed = match *method {
        Method::HEAD => "HeadObject",
        Method::POST if has("uploads") => "CreateMultipartUpload",
        Method::POST if has("uploadId") => "CompleteMultipartUpload",
        Method::POST if has("restore") => "RestoreObject",
        Method::POST if has("select") => "SelectObjectContent",
        Method::PUT if has("partNumber") && copies => "UploadPartCopy",
        Method::PUT if has("partNumber") => "UploadPart",
        Method::GET if has("uploadId") => "ListParts",
        Method::DELETE if has("uploadId") => "AbortMultipartUpload",
        _ => match part(OBJECT_PARTS, method, &has) {
            Some(operation) => return operation,
            None if *method == Method::GET => "GetObject",
            None if *method == Method::PUT && copies => "CopyObject",
            None if *method == Method::PUT => "PutObject",
            None if *method == Method::DELETE => "DeleteObject",
            None => method.as_str(),
        },
    };
    fixed.to_owned()
}

fn part(parts: &[(&str, &str)], method: &Method, has: &impl Fn(&str) -> bool) -> Option<String> {
    let verb = match *method {
        Method::GET => "Get",
        Method::PUT => "Put",
        Method::DELETE => "Delete",
        _ => return None,
    };
    parts.iter().find(|(key, _)| has(key)).map(|(_, noun)| format!("{verb}{noun}"))
}
