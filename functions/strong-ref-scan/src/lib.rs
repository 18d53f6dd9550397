//! `cdkd-strong-ref-scan`: who imports from a stack, for people and pipelines that mean to take it away.
//!
//! It says what a destroy, or a deploy that drops exports, would say now, and changes nothing. Nothing is held by its
//! answer: the run itself scans again, behind its intent on record.

use cdkd_aws::edge::Invocation;
use cdkd_core::name::RecordKey;
use cdkd_core::references::picture;
use cdkd_core::references::scan::{Intent, refuse};
use cdkd_core::state::Record;
use cdkd_core::{Code, Error, Result};
use serde::Deserialize;
use serde_json::{Value, json};

/// Bytes of an answer. Lambda takes 6 MB of JSON, in which the answer is once more a part.
const LARGEST: usize = 5_000_000;

#[derive(Deserialize)]
#[serde(untagged)]
enum Event {
    Graph { action: Graph },
    Scan { stack: String, region: String, exports: Option<Vec<String>> },
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
enum Graph {
    Graph,
}

/// `{stack, region, exports?}` → `{consumers: [], warnings}`, or the refusal that names the consumers.
/// `{"action": "graph"}` → `{stacks, warnings}`, or `{answer}`, the key of that document in the runs bucket, if it is
/// larger than an answer may be.
pub async fn handle(event: Value, invocation: Invocation) -> Result<Value> {
    let event: Event = serde_json::from_value(event).map_err(|_| {
        Error::new(Code::InvalidInput, "the payload of strong-ref-scan names neither a stack nor an action").hint(
            "give `{\"stack\": \"Net\", \"region\": \"eu-west-1\"}`, with `exports` if only some of them are meant, \
             or `{\"action\": \"graph\"}`",
        )
    })?;
    match event {
        Event::Graph { action: Graph::Graph } => graph(&invocation).await,
        Event::Scan { stack, region, exports } => {
            scan(&RecordKey::parse(&stack, &region)?, exports.as_deref(), &invocation).await
        }
    }
}

async fn scan(producer: &RecordKey, exports: Option<&[String]>, invocation: &Invocation) -> Result<Value> {
    let found = invocation.scan_consumers(producer, exports).await?;
    refuse(producer, &found, exports.map_or(Intent::Destroy, |_| Intent::Withdraw(&[])))?;
    let documents = invocation.read_tree(producer, &[]).await?;
    let root = documents.merged();
    let records: Vec<&Record> = root.iter().chain(documents.nested().map(|(_, record)| record)).collect();
    let mut warnings = unknown(producer, exports, &records);
    warnings.extend(found.warning(producer));
    Ok(json!({ "consumers": [], "warnings": warnings }))
}

/// What was asked about and is not there: a misspelt name has no consumers either.
fn unknown(producer: &RecordKey, exports: Option<&[String]>, records: &[&Record]) -> Vec<String> {
    if records.is_empty() {
        return vec![format!("{producer} is not on record")];
    }
    let known = |name: &String| {
        let has = |record: &&Record| {
            record.importable().contains_key(name) || record.withdrawing().contains_key(name)
        };
        records.iter().any(has)
    };
    let missing = exports.into_iter().flatten().filter(|name| !known(name));
    missing.map(|name| format!("{producer} has no export `{name}` on record")).collect()
}

async fn graph(invocation: &Invocation) -> Result<Value> {
    let keys = invocation.estate().await?.records.into_iter().map(|(key, _)| key).collect();
    let records = invocation.read_records(keys).await;
    let picture = picture::of(records.iter().map(|(key, record)| (key, record.as_ref())))?;
    if picture.to_string().len() <= LARGEST {
        return Ok(picture);
    }
    let key = format!("answers/strong-ref-scan/{}.json", invocation.request_id);
    invocation.write_run(&key, &picture).await?;
    Ok(json!({ "answer": key, "bucket": invocation.settings.runs_bucket }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payloads() {
        let read = |text: &str| serde_json::from_str::<Event>(text);
        assert!(matches!(read(r#"{"action":"graph","more":1}"#), Ok(Event::Graph { .. })));
        assert!(matches!(
            read(r#"{"stack":"A","region":"us-east-1"}"#),
            Ok(Event::Scan { exports: None, .. })
        ));
        assert!(matches!(
            read(r#"{"stack":"A","region":"us-east-1","exports":[]}"#),
            Ok(Event::Scan { exports: Some(_), .. })
        ));
        for bad in ["{}", "5", r#"{"action":"unlock"}"#, r#"{"stack":"A"}"#] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_misspelt_name_is_told() {
        let key = RecordKey::parse("P", "us-east-1").unwrap();
        let body = r#"{"version":9,"stackName":"P","region":"us-east-1","outputs":{"X":"x","Y":"y"},"exportNames":["X"]}"#;
        let record = Record::parse(body.as_bytes(), &key).unwrap();
        let names: Vec<String> = ["X", "Y", "Z"].map(str::to_owned).into();
        assert_eq!(
            unknown(&key, Some(&names), &[&record]),
            ["P (us-east-1) has no export `Y` on record", "P (us-east-1) has no export `Z` on record"]
        );
        assert_eq!(unknown(&key, None, &[&record]), [""; 0]);
        assert_eq!(unknown(&key, None, &[]), ["P (us-east-1) is not on record"]);
    }
}
