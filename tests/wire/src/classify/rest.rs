//! REST services other than S3: tables of method and path.

use hyper::Method;

use super::{Call, Protocol, decode};

/// Service, method, path without its version, operation. `{}` takes one segment, `{+}` at least one; the
/// first that is taken is the resource.
const ROUTES: &[(&str, &str, &str, &str)] = &[
    ("lambda", "POST", "functions", "CreateFunction"),
    ("lambda", "GET", "functions", "ListFunctions"),
    ("lambda", "GET", "functions/{}", "GetFunction"),
    ("lambda", "DELETE", "functions/{}", "DeleteFunction"),
    ("lambda", "POST", "functions/{}/invocations", "Invoke"),
    ("lambda", "POST", "functions/{}/invoke-async", "InvokeAsync"),
    ("lambda", "POST", "functions/{}/response-streaming-invocations", "InvokeWithResponseStream"),
    ("lambda", "PUT", "functions/{}/code", "UpdateFunctionCode"),
    ("lambda", "GET", "functions/{}/configuration", "GetFunctionConfiguration"),
    ("lambda", "PUT", "functions/{}/configuration", "UpdateFunctionConfiguration"),
    ("lambda", "GET", "functions/{}/versions", "ListVersionsByFunction"),
    ("lambda", "POST", "functions/{}/versions", "PublishVersion"),
    ("lambda", "GET", "functions/{}/aliases", "ListAliases"),
    ("lambda", "POST", "functions/{}/aliases", "CreateAlias"),
    ("lambda", "GET", "functions/{}/aliases/{}", "GetAlias"),
    ("lambda", "PUT", "functions/{}/aliases/{}", "UpdateAlias"),
    ("lambda", "DELETE", "functions/{}/aliases/{}", "DeleteAlias"),
    ("lambda", "GET", "functions/{}/policy", "GetPolicy"),
    ("lambda", "POST", "functions/{}/policy", "AddPermission"),
    ("lambda", "DELETE", "functions/{}/policy/{}", "RemovePermission"),
    ("lambda", "GET", "functions/{}/concurrency", "GetFunctionConcurrency"),
    ("lambda", "PUT", "functions/{}/concurrency", "PutFunctionConcurrency"),
    ("lambda", "DELETE", "functions/{}/concurrency", "DeleteFunctionConcurrency"),
    ("lambda", "GET", "functions/{}/url", "GetFunctionUrlConfig"),
    ("lambda", "POST", "functions/{}/url", "CreateFunctionUrlConfig"),
    ("lambda", "PUT", "functions/{}/url", "UpdateFunctionUrlConfig"),
    ("lambda", "DELETE", "functions/{}/url", "DeleteFunctionUrlConfig"),
    ("lambda", "GET", "functions/{}/event-invoke-config", "GetFunctionEventInvokeConfig"),
    ("lambda", "PUT", "functions/{}/event-invoke-config", "PutFunctionEventInvokeConfig"),
    ("lambda", "DELETE", "functions/{}/event-invoke-config", "DeleteFunctionEventInvokeConfig"),
    ("lambda", "GET", "event-source-mappings", "ListEventSourceMappings"),
    ("lambda", "POST", "event-source-mappings", "CreateEventSourceMapping"),
    ("lambda", "GET", "event-source-mappings/{}", "GetEventSourceMapping"),
    ("lambda", "PUT", "event-source-mappings/{}", "UpdateEventSourceMapping"),
    ("lambda", "DELETE", "event-source-mappings/{}", "DeleteEventSourceMapping"),
    ("lambda", "POST", "layers/{}/versions", "PublishLayerVersion"),
    ("lambda", "GET", "layers/{}/versions/{}", "GetLayerVersion"),
    ("lambda", "DELETE", "layers/{}/versions/{}", "DeleteLayerVersion"),
    ("lambda", "GET", "tags/{+}", "ListTags"),
    ("lambda", "POST", "tags/{+}", "TagResource"),
    ("lambda", "DELETE", "tags/{+}", "UntagResource"),
    ("scheduler", "GET", "schedules", "ListSchedules"),
    ("scheduler", "GET", "schedules/{}", "GetSchedule"),
    ("scheduler", "POST", "schedules/{}", "CreateSchedule"),
    ("scheduler", "PUT", "schedules/{}", "UpdateSchedule"),
    ("scheduler", "DELETE", "schedules/{}", "DeleteSchedule"),
    ("route53", "GET", "hostedzone/{}/rrset", "ListResourceRecordSets"),
    ("route53", "POST", "hostedzone/{}/rrset", "ChangeResourceRecordSets"),
    ("route53", "GET", "change/{}", "GetChange"),
];

/// Paths of the image registry under `/v2/`; the repository may have slashes.
const REGISTRY: &[(&str, &str, &str)] = &[
    ("GET", "{+}/manifests/{}", "GetManifest"),
    ("HEAD", "{+}/manifests/{}", "HeadManifest"),
    ("PUT", "{+}/manifests/{}", "PutManifest"),
    ("DELETE", "{+}/manifests/{}", "DeleteManifest"),
    ("POST", "{+}/blobs/uploads", "StartUpload"),
    ("GET", "{+}/blobs/uploads/{}", "GetUpload"),
    ("PATCH", "{+}/blobs/uploads/{}", "UploadChunk"),
    ("PUT", "{+}/blobs/uploads/{}", "CompleteUpload"),
    ("DELETE", "{+}/blobs/uploads/{}", "CancelUpload"),
    ("GET", "{+}/blobs/{}", "GetBlob"),
    ("HEAD", "{+}/blobs/{}", "HeadBlob"),
    ("GET", "{+}/tags/list", "ListTags"),
];

/// Classifies by the table; a path that it lacks is called by its method and first segment.
pub(super) fn classify(service: String, method: &Method, path: &str) -> Call {
    let mut segments: Vec<&str> = path.split('/').filter(|segment| !segment.is_empty()).collect();
    if segments.first().is_some_and(|first| is_version(first)) {
        segments.remove(0);
    }
    let route = ROUTES.iter().find_map(|&(of, verb, pattern, operation)| {
        let taken = if of == service && verb == method.as_str() { take(pattern, &segments) } else { None };
        taken.map(|resource| (operation, resource))
    });
    let (operation, resource) = match route {
        Some((operation, resource)) => (operation.to_owned(), resource),
        None => (format!("{method} /{}", segments.first().unwrap_or(&"")), decode(path)),
    };
    let protocol = match service.as_str() {
        "route53" | "cloudfront" => Protocol::Query,
        _ => Protocol::RestJson,
    };
    Call { protocol, service, operation, resource }
}

/// A call of the registry API, which has no AWS signature.
pub(super) fn registry(method: &Method, path: &str, query: &str) -> Option<Call> {
    let rest = path.strip_prefix("/v2/")?;
    let segments: Vec<&str> = rest.split('/').filter(|segment| !segment.is_empty()).collect();
    let (mut operation, resource) = if segments.is_empty() {
        ("Ping", String::new())
    } else {
        REGISTRY.iter().find_map(|&(verb, pattern, operation)| {
            let taken = if verb == method.as_str() { take(pattern, &segments) } else { None };
            taken.map(|_| (operation, segments.join("/")))
        })?
    };
    if operation == "StartUpload" && query.contains("mount=") {
        operation = "MountBlob";
    }
    let (service, operation) = ("registry".to_owned(), operation.to_owned());
    Some(Call { protocol: Protocol::Registry, service, operation, resource })
}

/// `2015-03-31`: the version that many REST paths begin with.
fn is_version(segment: &str) -> bool {
    segment.len() == 10 && segment.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-')
}

/// The first thing taken by a placeholder if the pattern fits all the segments.
fn take(pattern: &str, segments: &[&str]) -> Option<String> {
    let pattern: Vec<&str> = pattern.split('/').collect();
    let many = pattern.iter().position(|part| *part == "{+}");
    // A `{+}` takes all that the other parts leave.
    let extra = segments.len().checked_sub(pattern.len())?;
    if extra > 0 && many.is_none() {
        return None;
    }
    let mut taken = None;
    let mut rest = segments;
    for (at, part) in pattern.iter().enumerate() {
        let (these, after) = rest.split_at(if many == Some(at) { 1 + extra } else { 1 });
        rest = after;
        if part.starts_with('{') {
            taken.get_or_insert_with(|| decode(&these.join("/")));
        } else if these != [*part] {
            return None;
        }
    }
    Some(taken.unwrap_or_default())
}
