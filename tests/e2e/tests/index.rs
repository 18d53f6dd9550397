//! The index of exports: kept up by events, made anew on request.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where")]

use std::thread::sleep;
use std::time::{Duration, Instant};

use cdkd_test_support::{LocalAws, Options};
use serde_json::{Value, json};

const INDEX: &str = "cdkd/_index/us-east-1/exports.json";

fn index(aws: &LocalAws) -> Option<Value> {
    let body = aws.api().get_object(aws.state_bucket(), INDEX).unwrap()?;
    Some(serde_json::from_slice(&body).unwrap())
}

/// Waits for events to have been handled.
#[track_caller]
fn until(aws: &LocalAws, what: &str, holds: impl Fn(&Value) -> bool) {
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(30) {
        if index(aws).is_some_and(|index| holds(&index)) {
            return;
        }
        sleep(Duration::from_millis(200));
    }
    panic!("{what}: {:?}", index(aws));
}

fn record(stack: &str, export: &str, value: &str) -> Vec<u8> {
    let mut outputs = serde_json::Map::new();
    outputs.insert(export.into(), json!(value));
    json!({
        "version": 9, "stackName": stack, "region": "us-east-1", "resources": {}, "outputs": outputs,
        "exportNames": [export], "lastModified": 1,
    })
    .to_string()
    .into_bytes()
}

/// Another tool writes a record, changes it and removes it: the index follows, and what the function itself writes
/// starts nothing (rule F4).
#[test]
fn f4_the_index_follows_the_records() {
    let aws = LocalAws::start(&Options::default()).unwrap();
    let (api, bucket) = (aws.api(), aws.state_bucket());
    let place = |stack: &str| format!("cdkd/{stack}/us-east-1/state.json");

    api.put_object(bucket, &place("Other"), &record("Other", "vpc", "vpc-1")).unwrap();
    until(&aws, "a new record", |index| index["exports"]["vpc"]["value"] == "vpc-1");
    assert_eq!(index(&aws).unwrap()["exports"]["vpc"]["producerStack"], "Other");

    api.put_object(bucket, &place("Parent~Child"), &record("Parent~Child", "child", "c")).unwrap();
    api.put_object(bucket, &place("Other"), &record("Other", "network", "vpc-2")).unwrap();
    until(&aws, "a changed record and a nested one", |index| {
        index["exports"]["network"]["value"] == "vpc-2"
            && index["exports"].get("vpc").is_none()
            && index["exports"]["child"]["producerStack"] == "Parent~Child"
    });

    api.delete_object(bucket, &place("Other")).unwrap();
    until(&aws, "a record that is gone", |index| index["exports"].get("network").is_none());

    // Lost, and corrupt: made anew on request, the same both times.
    let before = index(&aws).unwrap()["exports"].clone();
    api.delete_object(bucket, INDEX).unwrap();
    let answer = api.invoke("cdkd-rebuild-index", &json!({ "region": "us-east-1" })).unwrap();
    assert_eq!(answer, json!({"rebuilt": [{"region": "us-east-1", "exports": 1, "changed": true}]}));
    assert_eq!(index(&aws).unwrap()["exports"], before);
    api.put_object(bucket, INDEX, b"no index").unwrap();
    let answer = api.invoke("cdkd-rebuild-index", &json!({ "all": true })).unwrap();
    assert_eq!(answer["rebuilt"][0]["changed"], true);
    assert_eq!(index(&aws).unwrap()["exports"], before);
    let again = api.invoke("cdkd-rebuild-index", &json!({ "all": true })).unwrap();
    assert_eq!(again["rebuilt"][0]["changed"], false);

    // Of a newer tool: refused loudly, never written over (rule E11).
    let newer = br#"{"indexVersion":99,"region":"us-east-1","exports":{}}"#;
    api.put_object(bucket, INDEX, newer).unwrap();
    let refused = api.invoke("cdkd-rebuild-index", &json!({ "all": true })).unwrap_err();
    assert!(refused.to_string().contains("UnsupportedIndexVersion"), "{refused}");
    assert_eq!(api.get_object(bucket, INDEX).unwrap().unwrap(), newer);

    let nothing = api.invoke("cdkd-rebuild-index", &json!({})).unwrap_err();
    assert!(nothing.to_string().contains("InvalidInput"), "{nothing}");
}
