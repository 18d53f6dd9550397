//! The control interface under `/_wire/`, for the shell and for tests in other languages.

use hyper::body::{Bytes, Incoming};
use hyper::header::{CONNECTION, CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use percent_encoding::percent_decode_str;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::ledger::{RuleId, lock};
use crate::proxy::Shared;
use crate::relay::Relay;
use crate::rule::Rule;

/// No bucket is called so: names of buckets begin with a letter or digit.
pub(crate) const PREFIX: &str = "/_wire/";

/// What `PUT /_wire/emulator` sets; what is absent stays.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Emulator {
    pid: Option<u32>,
    upstream: Option<std::net::SocketAddr>,
}

/// Why a control request is refused.
struct Refusal(StatusCode, String);

/// Answers a control request; true if the wire is to stop after it.
pub(crate) async fn handle(shared: &Shared, request: Request<Incoming>) -> (Response<Relay>, bool) {
    let (head, body) = request.into_parts();
    let path = head.uri.path().strip_prefix(PREFIX).unwrap_or_default();
    let parts: Vec<&str> = path.split('/').collect();
    let stops = head.method == Method::POST && path == "shutdown";
    let result = match (head.method.as_str(), parts.as_slice()) {
        ("GET", ["health"]) => Ok(json!({
            "upstream": lock(&shared.upstream).to_string(),
            "pid": *lock(&shared.emulator_pid),
        })),
        ("GET", ["rules"]) => to_json(&shared.ledger.rules()),
        ("POST", ["rules"]) => {
            read::<Rule>(body).await.map(|rule| json!({"id": shared.ledger.add_rule(rule)}))
        }
        ("DELETE", ["rules"]) => Ok(json!({"removed": shared.ledger.remove_rules(None)})),
        ("DELETE", ["rules", id]) => {
            match id.parse().map(|id| shared.ledger.remove_rules(Some(RuleId(id)))) {
                Ok(removed) if removed > 0 => Ok(json!({"removed": removed})),
                _ => Err(Refusal(StatusCode::NOT_FOUND, format!("no rule {id}"))),
            }
        }
        ("POST", ["release", id]) => {
            let id = percent_decode_str(id).decode_utf8_lossy();
            let released = shared.ledger.release(&id).map(|released| json!({"released": released}));
            released.ok_or_else(|| Refusal(StatusCode::NOT_FOUND, format!("no hold {id}")))
        }
        ("GET", ["held"]) => to_json(&shared.ledger.held()),
        ("GET", ["counts"]) => to_json(&shared.ledger.counts()),
        ("GET", ["log"]) => {
            let query = head.uri.query().unwrap_or_default().as_bytes();
            let since = form_urlencoded::parse(query).find(|(key, _)| key == "since");
            to_json(&shared.ledger.log(since.and_then(|(_, value)| value.parse().ok()).unwrap_or(0)))
        }
        ("POST", ["reset"]) => {
            shared.ledger.reset();
            Ok(json!({}))
        }
        ("PUT", ["emulator"]) => read::<Emulator>(body).await.map(|emulator| {
            if let Some(pid) = emulator.pid {
                *lock(&shared.emulator_pid) = Some(pid);
            }
            if let Some(upstream) = emulator.upstream {
                *lock(&shared.upstream) = upstream;
            }
            json!({})
        }),
        ("POST", ["shutdown"]) => Ok(json!({})),
        _ => Err(Refusal(StatusCode::NOT_FOUND, format!("nothing at {} {path}", head.method))),
    };
    let (status, value) = match result {
        Ok(value) => (StatusCode::OK, value),
        Err(Refusal(status, message)) => (status, json!({"error": message})),
    };
    let mut response = Response::new(Relay::full(Bytes::from(value.to_string() + "\n")));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if stops {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    (response, stops)
}

async fn read<T: DeserializeOwned>(body: Incoming) -> Result<T, Refusal> {
    let refuse = |error: String| Refusal(StatusCode::BAD_REQUEST, error);
    let mut body = Relay::new(body);
    body.peek().await.map_err(|error| refuse(error.to_string()))?;
    serde_json::from_slice(&body.peeked()).map_err(|error| refuse(error.to_string()))
}

fn to_json<T: Serialize>(value: &T) -> Result<Value, Refusal> {
    serde_json::to_value(value).map_err(|error| Refusal(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))
}
