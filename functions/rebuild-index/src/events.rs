//! Which records an event is about.

use std::collections::BTreeMap;

use cdkd_core::name::RecordKey;
use serde_json::Value;

/// The records of a batch, each with the messages that name it. Events that are about something else are passed over:
/// they were handled by being read.
pub(crate) fn records(event: &Value, prefix: &str) -> BTreeMap<RecordKey, Vec<String>> {
    let mut found: BTreeMap<RecordKey, Vec<String>> = BTreeMap::new();
    let mut note = |message: &str, body: &Value| {
        for key in keys(body) {
            if let Some(record) = record(&key, prefix) {
                found.entry(record).or_default().push(message.to_owned());
            }
        }
    };
    match event["Records"].as_array() {
        // A batch of the queue; a body that is no JSON names nothing.
        Some(messages) if messages.iter().any(|message| message["body"].is_string()) => {
            for message in messages {
                let body = message["body"].as_str().and_then(|body| serde_json::from_str::<Value>(body).ok());
                if let Some(body) = body {
                    note(message["messageId"].as_str().unwrap_or_default(), &body);
                }
            }
        }
        _ => note("", event),
    }
    found
}

/// The object keys that an event names: plain from EventBridge, URL-encoded in a notification of S3 (rule F4).
fn keys(event: &Value) -> Vec<String> {
    if let Some(key) = event["detail"]["object"]["key"].as_str() {
        return vec![key.to_owned()];
    }
    let records = event["Records"].as_array().map(Vec::as_slice).unwrap_or_default();
    records.iter().filter_map(|record| record["s3"]["object"]["key"].as_str()).map(decoded).collect()
}

/// `{prefix}/{stack}/{region}/state.json`
fn record(key: &str, prefix: &str) -> Option<RecordKey> {
    let rest = key.strip_prefix(prefix)?.strip_prefix('/')?.strip_suffix("/state.json")?;
    let (stack, region) = rest.split_once('/')?;
    RecordKey::parse(stack, region).ok()
}

/// `My%7EChild+x` is `My~Child x`; what is no escape stays as it is.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let escape = (*first == b'%')
            .then(|| after.get(..2).and_then(|hex| std::str::from_utf8(hex).ok()))
            .flatten()
            .and_then(|hex| u8::from_str_radix(hex, 16).ok());
        if let Some(byte) = escape {
            bytes.push(byte);
            rest = after.get(2..).unwrap_or_default();
        } else {
            bytes.push(if *first == b'+' { b' ' } else { *first });
            rest = after;
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn names(event: &Value) -> Vec<String> {
        records(event, "cdkd")
            .into_iter()
            .map(|(key, messages)| format!("{key} {}", messages.join(",")))
            .collect()
    }

    #[test]
    fn f4_keys_are_encoded_in_notifications_and_plain_from_event_bridge() {
        let notification = |key: &str| json!({"Records": [{"s3": {"object": {"key": key}}}]});
        let bridge = |key: &str| json!({"detail-type": "Object Created", "detail": {"object": {"key": key}}});
        let plain = "cdkd/My~Child/us-east-1/state.json";
        for event in
            [notification("cdkd/My%7EChild/us-east-1/state.json"), notification(plain), bridge(plain)]
        {
            assert_eq!(names(&event), ["My~Child (us-east-1) "]);
        }
        let batch = json!({"Records": [
            {"messageId": "1", "body": bridge(plain).to_string()},
            {"messageId": "2", "body": notification("cdkd/A/us-east-1/state.json").to_string()},
            {"messageId": "3", "body": bridge(plain).to_string()},
            {"messageId": "4", "body": "no JSON"},
        ]});
        assert_eq!(names(&batch), ["A (us-east-1) 2", "My~Child (us-east-1) 1,3"]);
    }

    #[test]
    fn what_is_no_record_is_passed_over() {
        for key in [
            "cdkd/_index/us-east-1/exports.json",
            "cdkd/_index/us-east-1/state.json",
            "cdkd/A/us-east-1/lock.json",
            "cdkd/A/state.json",
            "other/A/us-east-1/state.json",
            "cdkd/A/b/us-east-1/state.json",
            "%",
            "%zz",
        ] {
            let event = json!({"Records": [{"s3": {"object": {"key": key}}}]});
            assert_eq!(names(&event), [] as [String; 0], "{key}");
        }
        for event in [json!({}), json!(null), json!({"Records": 5}), json!({"detail": []})] {
            assert_eq!(names(&event), [] as [String; 0]);
        }
    }
}
