//! Error answers in the form that each protocol has for them.

use hyper::body::Bytes;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Response, StatusCode};
use serde_json::json;

use crate::classify::Protocol;
use crate::relay::Relay;
use crate::rule::Answer;

/// Writes an error answer. `content_type` is the request's, which the JSON protocols answer with.
pub(crate) fn write(
    answer: &Answer,
    protocol: Protocol,
    content_type: Option<&HeaderValue>,
    request_id: &str,
) -> Response<Relay> {
    let Answer { status, code, message } = answer;
    let (xml_code, xml_message) = (escape_xml(code), escape_xml(message));
    // Whose fault it is, which the query protocols and Lambda spell out.
    let (sender, user) = if *status < 500 { ("Sender", "User") } else { ("Receiver", "Service") };

    let (form, body) = match protocol {
        Protocol::S3 => (
            "application/xml",
            format!(
                "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error><Code>{xml_code}</Code>\
                 <Message>{xml_message}</Message><RequestId>{request_id}</RequestId></Error>"
            )
            .into_bytes(),
        ),
        Protocol::Query => (
            "text/xml",
            format!(
                "<ErrorResponse><Error><Type>{sender}</Type><Code>{xml_code}</Code>\
                 <Message>{xml_message}</Message></Error><RequestId>{request_id}</RequestId></ErrorResponse>"
            )
            .into_bytes(),
        ),
        Protocol::Ec2 => (
            "text/xml",
            format!(
                "<Response><Errors><Error><Code>{xml_code}</Code><Message>{xml_message}</Message></Error>\
                 </Errors><RequestID>{request_id}</RequestID></Response>"
            )
            .into_bytes(),
        ),
        Protocol::Json { .. } => (
            "application/x-amz-json-1.0",
            json!({"__type": code, "message": message}).to_string().into_bytes(),
        ),
        Protocol::RestJson => {
            ("application/json", json!({"Type": user, "message": message}).to_string().into_bytes())
        }
        Protocol::RpcCbor => ("application/cbor", cbor(&[("__type", code), ("message", message)])),
        Protocol::Registry => {
            let errors = json!({"errors": [{"code": code, "message": message}]});
            ("application/json", errors.to_string().into_bytes())
        }
    };

    let length = body.len();
    let mut response = Response::new(Relay::full(Bytes::from(body)));
    // A status that HTTP does not allow is a mistake in the rule; the caller sees a server error.
    *response.status_mut() = StatusCode::from_u16(*status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let headers = response.headers_mut();
    let mut set = |name: &'static str, value: &str| {
        if let Ok(value) = HeaderValue::from_str(value) {
            headers.insert(name, value);
        }
    };
    set("content-type", form);
    set("content-length", &length.to_string());
    match protocol {
        Protocol::S3 => set("x-amz-request-id", request_id),
        _ => set("x-amzn-requestid", request_id),
    }
    match protocol {
        Protocol::RestJson => set("x-amzn-errortype", code),
        Protocol::RpcCbor => set("smithy-protocol", "rpc-v2-cbor"),
        Protocol::Json { query_mode: true } => set("x-amzn-query-error", &format!("{code};{sender}")),
        _ => {}
    }
    if let (Protocol::Json { .. }, Some(content_type)) = (protocol, content_type) {
        headers.insert(CONTENT_TYPE, content_type.clone());
    }
    response
}

fn escape_xml(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// A CBOR map of text to text.
fn cbor(fields: &[(&str, &str)]) -> Vec<u8> {
    const TEXT: u8 = 0x60;
    const MAP: u8 = 0xa0;
    let mut out = Vec::new();
    cbor_head(&mut out, MAP, fields.len());
    for text in fields.iter().flat_map(|(key, value)| [key, value]) {
        cbor_head(&mut out, TEXT, text.len());
        out.extend_from_slice(text.as_bytes());
    }
    out
}

/// Major type and length, in the shortest form up to 65,535.
fn cbor_head(out: &mut Vec<u8>, major: u8, length: usize) {
    let [.., high, low] = length.to_be_bytes();
    match length {
        0..24 => out.push(major | low),
        24..256 => out.extend([major | 0x18, low]),
        _ => out.extend([major | 0x19, high, low]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cbor_maps() {
        assert_eq!(cbor(&[("a", "b")]), [0xa1, 0x61, b'a', 0x61, b'b']);
        let long = "x".repeat(300);
        let out = cbor(&[("k", &long)]);
        assert_eq!(out[..6], [0xa1, 0x61, b'k', 0x79, 0x01, 0x2c]);
        assert_eq!(out.len(), 6 + 300);
        assert_eq!(cbor(&[("k", &long[..30])])[3..5], [0x78, 30]);
    }
}
