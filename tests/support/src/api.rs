//! A signed client for the protocols that AWS speaks: JSON, query and REST.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use aws_credential_types::Credentials;
use aws_sigv4::http_request::{
    PayloadChecksumKind, PercentEncodingMode, SignableBody, SignableRequest, SigningSettings,
    UriPathNormalizationMode, sign,
};
use aws_sigv4::sign::v4;
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::runtime::Runtime;

use crate::error::{Error, Result};
use crate::xml::Xml;
use crate::{ACCOUNT, REGION};

/// Longer than any call takes, invocations of functions included.
const PATIENCE: Duration = Duration::from_mins(15);

/// Services of the JSON protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Json {
    CloudControl,
    DynamoDb,
    Events,
    Logs,
    Sqs,
    Ssm,
    StepFunctions,
}

impl Json {
    /// Name in signatures, prefix of the target header, version of the protocol.
    const fn protocol(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::CloudControl => ("cloudcontrolapi", "CloudApiService", "1.0"),
            Self::DynamoDb => ("dynamodb", "DynamoDB_20120810", "1.0"),
            Self::Events => ("events", "AWSEvents", "1.1"),
            Self::Logs => ("logs", "Logs_20140328", "1.1"),
            Self::Sqs => ("sqs", "AmazonSQS", "1.0"),
            Self::Ssm => ("ssm", "AmazonSSM", "1.1"),
            Self::StepFunctions => ("states", "AWSStepFunctions", "1.0"),
        }
    }
}

/// Services of the query protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Query {
    CloudFormation,
    Iam,
    Sns,
    Sts,
}

impl Query {
    /// Name in signatures and version of the API.
    const fn protocol(self) -> (&'static str, &'static str) {
        match self {
            Self::CloudFormation => ("cloudformation", "2010-05-15"),
            Self::Iam => ("iam", "2010-05-08"),
            Self::Sns => ("sns", "2010-03-31"),
            Self::Sts => ("sts", "2011-06-15"),
        }
    }
}

/// An answer over HTTP.
#[derive(Debug)]
pub struct Response {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Response {
    /// A header as text.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// The body as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    fn refused(&self, operation: &str) -> Option<Error> {
        if !self.status.is_client_error() && !self.status.is_server_error() {
            return None;
        }
        let text = self.text();
        let (code, message) = explain(&text);
        Some(Error::Service {
            operation: operation.to_owned(),
            status: self.status.as_u16(),
            // A HEAD request has no body to say more.
            code: code
                .unwrap_or_else(|| self.status.canonical_reason().unwrap_or("Unknown").replace(' ', "")),
            message: message.unwrap_or(text),
        })
    }
}

/// Code and message of an error in JSON or XML.
fn explain(text: &str) -> (Option<String>, Option<String>) {
    if let Ok(json) = serde_json::from_str::<Value>(text) {
        let first = |names: [&str; 3]| names.iter().find_map(|name| json[*name].as_str()).map(str::to_owned);
        // `namespace#Code` in JSON 1.0.
        let code =
            first(["__type", "code", "Code"]).map(|it| it.rsplit('#').next().unwrap_or(&it).to_owned());
        return (code, first(["message", "Message", "errorMessage"]));
    }
    let Ok(xml) = Xml::parse(text) else { return (None, None) };
    let get = |name: &str| xml.get(&format!("Error/{name}")).or_else(|| xml.get(name)).map(str::to_owned);
    (get("Code"), get("Message"))
}

/// A client of the local AWS; clones share their runtime.
#[derive(Clone, Debug)]
pub struct Api {
    address: SocketAddr,
    account: String,
    region: String,
    runtime: Arc<Runtime>,
}

impl Api {
    /// The root of [`ACCOUNT`] in [`REGION`], at a port of this machine.
    pub fn new(port: u16) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        Ok(Self {
            address: (Ipv4Addr::LOCALHOST, port).into(),
            account: ACCOUNT.to_owned(),
            region: REGION.to_owned(),
            runtime: Arc::new(runtime.map_err(|error| Error::other(format!("no runtime: {error}")))?),
        })
    }

    /// The same as the root of another account: twelve digits.
    #[must_use]
    pub fn of_account(&self, account: &str) -> Self {
        Self { account: account.to_owned(), ..self.clone() }
    }

    /// The same in another region.
    #[must_use]
    pub fn in_region(&self, region: &str) -> Self {
        Self { region: region.to_owned(), ..self.clone() }
    }

    /// `http://127.0.0.1:port`
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn account(&self) -> &str {
        &self.account
    }

    pub fn region(&self) -> &str {
        &self.region
    }

    /// Calls an operation of the JSON protocol.
    pub fn json(&self, service: Json, operation: &str, input: &Value) -> Result<Value> {
        let (name, target, version) = service.protocol();
        let headers = [
            ("content-type", format!("application/x-amz-json-{version}")),
            ("x-amz-target", format!("{target}.{operation}")),
        ];
        let response = self.rest(name, Method::POST, "/", &headers, input.to_string().as_bytes())?;
        if let Some(error) = response.refused(operation) {
            return Err(error);
        }
        if response.body.is_empty() {
            return Ok(Value::Null);
        }
        parse(operation, &response.body)
    }

    /// Calls an operation of the query protocol; the answer is what is inside `{operation}Result`.
    pub fn query(&self, service: Query, operation: &str, parameters: &[(&str, &str)]) -> Result<Xml> {
        let (name, version) = service.protocol();
        let body = form_urlencoded::Serializer::new(String::new())
            .extend_pairs([("Action", operation), ("Version", version)])
            .extend_pairs(parameters)
            .finish();
        let headers = [("content-type", "application/x-www-form-urlencoded".to_owned())];
        let response = self.rest(name, Method::POST, "/", &headers, body.as_bytes())?;
        if let Some(error) = response.refused(operation) {
            return Err(error);
        }
        let answer = Xml::parse(&response.text())?;
        let result = answer.children.iter().find(|child| child.name == format!("{operation}Result")).cloned();
        Ok(result.unwrap_or(answer))
    }

    /// Sends a signed request of a REST service as it is; whatever the answer's status, it is an answer.
    pub fn rest(
        &self,
        service: &str,
        method: Method,
        path_and_query: &str,
        headers: &[(&str, String)],
        body: &[u8],
    ) -> Result<Response> {
        let context = format!("{method} {path_and_query}");
        let failed = |error: &dyn std::fmt::Display| Error::other(format!("{context}: {error}"));
        let host = self.address.to_string();
        let mut request = Request::builder()
            .method(method)
            .uri(format!("http://{host}{path_and_query}"))
            .header("host", &host);
        for (name, value) in headers {
            request = request.header(*name, value);
        }
        let mut request =
            request.body(Full::new(Bytes::copy_from_slice(body))).map_err(|error| failed(&error))?;
        self.sign(service, &mut request, body).map_err(|error| failed(&error))?;
        // In origin form, as servers want it.
        *request.uri_mut() = path_and_query.parse().map_err(|error| failed(&error))?;
        self.runtime.block_on(exchange(self.address, request)).map_err(|error| failed(&error))
    }

    /// The same, with an answer of an error's status as an error.
    pub(crate) fn rest_ok(
        &self,
        service: &str,
        method: Method,
        path_and_query: &str,
        headers: &[(&str, String)],
        body: &[u8],
    ) -> Result<Response> {
        let operation = format!("{method} {path_and_query}");
        let response = self.rest(service, method, path_and_query, headers, body)?;
        match response.refused(&operation) {
            Some(error) => Err(error),
            None => Ok(response),
        }
    }

    fn sign(
        &self,
        service: &str,
        request: &mut Request<Full<Bytes>>,
        body: &[u8],
    ) -> std::result::Result<(), Box<dyn std::error::Error>> {
        let identity = Credentials::new(&self.account, "test", None, None, "local").into();
        let mut settings = SigningSettings::default();
        let mut payload = SignableBody::Bytes(body);
        if service == "s3" {
            // Objects are large, and nothing is between here and there that could change them.
            payload = SignableBody::UnsignedPayload;
            settings.payload_checksum_kind = PayloadChecksumKind::XAmzSha256;
            settings.percent_encoding_mode = PercentEncodingMode::Single;
            settings.uri_path_normalization_mode = UriPathNormalizationMode::Disabled;
        }
        let parameters = v4::SigningParams::builder()
            .identity(&identity)
            .region(&self.region)
            .name(service)
            .time(SystemTime::now())
            .settings(settings)
            .build()?
            .into();
        let headers: Vec<(String, String)> = request
            .headers()
            .iter()
            .map(|(name, value)| Ok((name.to_string(), value.to_str()?.to_owned())))
            .collect::<std::result::Result<_, http::header::ToStrError>>()?;
        let uri = request.uri().to_string();
        let signable = SignableRequest::new(
            request.method().as_str(),
            &uri,
            headers.iter().map(|(name, value)| (name.as_str(), value.as_str())),
            payload,
        )?;
        let (instructions, _) = sign(signable, &parameters)?.into_parts();
        instructions.apply_to_request_http1x(request);
        Ok(())
    }

    /// Sends a request that needs no signature: health and settings of the emulator.
    pub fn plain(&self, method: Method, path: &str, body: &[u8]) -> Result<Response> {
        let failed = |error: &dyn std::fmt::Display| Error::other(format!("{path}: {error}"));
        let request = Request::builder().method(method).uri(path).header("host", self.address.to_string());
        let request =
            request.body(Full::new(Bytes::copy_from_slice(body))).map_err(|error| failed(&error))?;
        self.runtime.block_on(exchange(self.address, request)).map_err(|error| failed(&error))
    }

    /// Invokes a function and waits for its answer.
    pub fn invoke(&self, function: &str, payload: &Value) -> Result<Value> {
        let path = format!("/2015-03-31/functions/{function}/invocations");
        let response = self.rest_ok("lambda", Method::POST, &path, &[], payload.to_string().as_bytes())?;
        let answer = parse(function, &response.body)?;
        if response.header("x-amz-function-error").is_some() {
            return Err(Error::Function {
                name: function.to_owned(),
                kind: answer["errorType"].as_str().unwrap_or("Unknown").to_owned(),
                message: answer["errorMessage"].as_str().unwrap_or_default().to_owned(),
            });
        }
        Ok(answer)
    }
}

fn parse(what: &str, body: &[u8]) -> Result<Value> {
    serde_json::from_slice(body).map_err(|error| {
        Error::other(format!("{what}: the answer is not JSON ({error}): {}", String::from_utf8_lossy(body)))
    })
}

/// One request on a connection of its own: on loopback that costs less than keeping track of them.
async fn exchange(
    address: SocketAddr,
    request: Request<Full<Bytes>>,
) -> std::result::Result<Response, Box<dyn std::error::Error>> {
    let work = async {
        let stream = tokio::net::TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        let connection = tokio::spawn(connection);
        let (head, body) = sender.send_request(request).await?.into_parts();
        let body = body.collect().await?.to_bytes();
        connection.abort();
        Ok(Response { status: head.status, headers: head.headers, body })
    };
    tokio::time::timeout(PATIENCE, work).await?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_of_errors_in_every_protocol() {
        for (text, code, message) in [
            (r#"{"__type":"com.amazon#ExecutionDoesNotExist","message":"m"}"#, "ExecutionDoesNotExist", "m"),
            (r#"{"Code":"ResourceNotFound","Message":"m"}"#, "ResourceNotFound", "m"),
            ("<Error><Code>NoSuchKey</Code><Message>m</Message></Error>", "NoSuchKey", "m"),
            ("<R><Error><Code>NoSuchEntity</Code><Message>m</Message></Error></R>", "NoSuchEntity", "m"),
        ] {
            assert_eq!(explain(text), (Some(code.to_owned()), Some(message.to_owned())), "{text}");
        }
    }
}
