//! What a request is: service, operation, resource and protocol, read from its head and, for the protocols
//! that keep the operation or the resource there, from the first bytes of its body.

mod rest;
mod s3;

use std::borrow::Cow;

use hyper::Method;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use hyper::http::HeaderMap;
use hyper::http::request::Parts;
use percent_encoding::percent_decode_str;
use serde::de::{DeserializeSeed, IgnoredAny, MapAccess, Visitor};

/// How a request and its errors are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    /// S3: REST with XML errors that have no envelope.
    S3,
    /// JSON 1.0 and 1.1: the operation in `X-Amz-Target`. `query_mode` asks for the query error code too.
    Json { query_mode: bool },
    /// Query: a form whose `Action` is the operation. Its XML errors are those of the other REST-XML services.
    Query,
    /// The query protocol of EC2, with errors of its own.
    Ec2,
    /// REST with JSON errors, the code in `X-Amzn-ErrorType`.
    RestJson,
    /// Smithy RPC v2 with CBOR bodies.
    RpcCbor,
    /// The registry API of container images.
    Registry,
}

/// A classified request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Call {
    pub(crate) protocol: Protocol,
    pub(crate) service: String,
    pub(crate) operation: String,
    pub(crate) resource: String,
}

impl Call {
    /// Classifies by the head alone.
    pub(crate) fn from_head(head: &Parts) -> Self {
        let headers = &head.headers;
        let path = head.uri.path();
        let query = head.uri.query().unwrap_or_default();
        let service = signed_service(headers, query).map(|name| canonical_service(&name).to_owned());

        if let Some((named, operation)) = smithy_rpc(path) {
            let protocol = match text(headers, "smithy-protocol") {
                Some("rpc-v2-json") => Protocol::Json { query_mode: false },
                _ => Protocol::RpcCbor,
            };
            let service = service.unwrap_or_else(|| target_service(named));
            return Self::new(protocol, service, operation);
        }
        if let Some((prefix, operation)) = text(headers, "x-amz-target").and_then(|it| it.rsplit_once('.')) {
            let query_mode = headers.contains_key("x-amzn-query-mode");
            let service = service.unwrap_or_else(|| target_service(prefix));
            return Self::new(Protocol::Json { query_mode }, service, operation);
        }
        // Without a scope: a host name of S3, or a URL presigned with the old signature, which only S3 knows.
        let looks_like_s3 = || s3::is_host(host(headers)) || query.contains("AWSAccessKeyId=");
        if service.as_deref() == Some("s3") || (service.is_none() && looks_like_s3()) {
            return s3::classify(head, host(headers));
        }
        let form = text(headers, CONTENT_TYPE.as_str()).is_some_and(|it| it.starts_with(FORM));
        if (head.method == Method::POST && form) || form_value(query.as_bytes(), "Action").is_some() {
            let service = service.unwrap_or_else(|| UNSIGNED.to_owned());
            let protocol = if service == "ec2" { Protocol::Ec2 } else { Protocol::Query };
            let mut call = Self::new(protocol, service, "");
            call.read_form(query.as_bytes());
            return call;
        }
        match service {
            Some(service) => rest::classify(service, &head.method, path),
            None => rest::registry(&head.method, path, query)
                .unwrap_or_else(|| rest::classify(UNSIGNED.to_owned(), &head.method, path)),
        }
    }

    fn new(protocol: Protocol, service: String, operation: &str) -> Self {
        Self { protocol, service, operation: operation.to_owned(), resource: String::new() }
    }

    /// Whether the first bytes of the body say more.
    pub(crate) fn wants_body(&self) -> bool {
        matches!(self.protocol, Protocol::Json { .. } | Protocol::Query | Protocol::Ec2)
    }

    /// Completes what [`from_head`](Self::from_head) found with the first bytes of the body.
    pub(crate) fn read_body(&mut self, body: &[u8]) {
        match self.protocol {
            Protocol::Json { .. } => self.read_json(body),
            Protocol::Query | Protocol::Ec2 => self.read_form(body),
            _ => {}
        }
    }

    fn read_json(&mut self, body: &[u8]) {
        let fields = top_level_strings(body);
        let value = |key: &str| fields.iter().find(|(name, _)| name == key).map(|(_, value)| value.as_str());
        self.resource = self.pick_resource(|key| value(key).map(Cow::Borrowed));
    }

    fn read_form(&mut self, form: &[u8]) {
        if let Some(action) = form_value(form, "Action") {
            self.operation = action.into_owned();
            self.resource = self.pick_resource(|key| form_value(form, key));
        }
    }

    /// The value of the first field that names the resource; of Cloud Control every such field.
    fn pick_resource<'a>(&self, value: impl Fn(&str) -> Option<Cow<'a, str>>) -> String {
        match self.service.as_str() {
            "cloudcontrol" => {
                let found: Vec<_> =
                    ["TypeName", "Identifier", "RequestToken"].into_iter().filter_map(value).collect();
                found.join(" ")
            }
            _ => RESOURCE_FIELDS.iter().copied().find_map(value).map(Cow::into_owned).unwrap_or_default(),
        }
    }
}

/// The service of a request that carries no signature and is recognised by nothing else.
pub(crate) const UNSIGNED: &str = "unsigned";

const FORM: &str = "application/x-www-form-urlencoded";

/// Fields that name what a call is about, the most telling first.
const RESOURCE_FIELDS: &[&str] = &[
    "executionArn",
    "stateMachineArn",
    "mapRunArn",
    "taskToken",
    "SecretId",
    "StackName",
    "FunctionName",
    "TableName",
    "QueueUrl",
    "TopicArn",
    "RoleArn",
    "RoleName",
    "PolicySourceArn",
    "repositoryName",
    "projectName",
    "logGroupName",
    "KeyId",
    "Rule",
    "Name",
    "name",
    "TypeName",
];

/// One name for a service that has several: signing name, SDK name, command line name.
pub(crate) fn canonical_service(name: &str) -> &str {
    match name {
        "cloudcontrolapi" => "cloudcontrol",
        "states" | "sfn" => "stepfunctions",
        "eventbridge" => "events",
        "monitoring" => "cloudwatch",
        "tagging" => "resourcegroupstaggingapi",
        "s3express" => "s3",
        name => name,
    }
}

/// The service in the credential scope, of the header or of a presigned URL.
fn signed_service(headers: &HeaderMap, query: &str) -> Option<String> {
    let credential = match text(headers, AUTHORIZATION.as_str()) {
        Some(value) => Cow::Borrowed(value.split_once("Credential=")?.1.split([',', ' ']).next()?),
        None => form_value(query.as_bytes(), "X-Amz-Credential")?,
    };
    // From the end: SigV4A has no region in its scope.
    let scope = credential.strip_suffix("/aws4_request")?;
    scope.rsplit_once('/').map(|(_, service)| service.to_owned())
}

/// The service of an unsigned call by the prefix of its target.
fn target_service(prefix: &str) -> String {
    let known = [
        ("CloudApiService", "cloudcontrol"),
        ("AWSStepFunctions", "stepfunctions"),
        ("AmazonEC2ContainerRegistry", "ecr"),
        ("AmazonSSM", "ssm"),
        ("AWSEvents", "events"),
        ("CodeBuild", "codebuild"),
        ("AmazonSQS", "sqs"),
        ("Logs", "logs"),
    ];
    let known = known.into_iter().find(|(start, _)| prefix.starts_with(start)).map(|(_, service)| service);
    known.map_or_else(|| prefix.to_ascii_lowercase(), str::to_owned)
}

/// `/service/X/operation/Y`, at the end of the path.
fn smithy_rpc(path: &str) -> Option<(&str, &str)> {
    let (rest, operation) = path.rsplit_once("/operation/")?;
    let (_, service) = rest.rsplit_once("/service/").filter(|(_, service)| !service.contains('/'))?;
    Some((service, operation)).filter(|_| !operation.contains('/'))
}

fn host(headers: &HeaderMap) -> &str {
    text(headers, HOST.as_str()).unwrap_or_default()
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

fn decode(text: &str) -> String {
    percent_decode_str(text).decode_utf8_lossy().into_owned()
}

fn form_value<'a>(form: &'a [u8], key: &str) -> Option<Cow<'a, str>> {
    form_urlencoded::parse(form).find(|(name, _)| name == key).map(|(_, value)| value)
}

/// The string fields of a JSON object, as far as its text goes: `json` may be cut off anywhere.
fn top_level_strings(json: &[u8]) -> Vec<(String, String)> {
    let mut fields = Vec::new();
    let mut parser = serde_json::Deserializer::from_slice(json);
    // The error of a text that is cut off says nothing new; what was read before it stays.
    let _cut_off = Fields(&mut fields).deserialize(&mut parser);
    fields
}

struct Fields<'a>(&'a mut Vec<(String, String)>);

impl<'de> DeserializeSeed<'de> for Fields<'_> {
    type Value = ();

    fn deserialize<D: serde::Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Fields<'_> {
    type Value = ();

    fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<String>()? {
            if RESOURCE_FIELDS.contains(&key.as_str()) || matches!(&*key, "Identifier" | "RequestToken") {
                if let serde_json::Value::String(value) = map.next_value()? {
                    self.0.push((key, value));
                }
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
