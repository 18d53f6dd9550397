//! `cdkd-strong-ref-scan`, and a state bucket that lies in another region.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where")]

use std::collections::BTreeMap;

use cdkd_e2e::{App, Stack};
use cdkd_test_support::{Error, LocalAws, Options, Package};
use http::Method;
use serde_json::{Map, Value, json};

/// A record in us-east-1 that exports these names and imports `(export, stack)`.
fn put(aws: &LocalAws, stack: &str, exports: &[&str], imports: &[(&str, &str)]) {
    let outputs: Map<String, Value> =
        exports.iter().map(|name| ((*name).to_owned(), json!(format!("value-{name}")))).collect();
    let imports: Vec<Value> = imports
        .iter()
        .map(|(name, source)| json!({"exportName": name, "sourceStack": source, "sourceRegion": "us-east-1"}))
        .collect();
    let record = json!({
        "version": 9, "stackName": stack, "region": "us-east-1", "resources": {}, "outputs": outputs,
        "exportNames": exports, "imports": imports, "lastModified": 1,
    });
    put_text(aws, stack, &record.to_string());
}

fn put_text(aws: &LocalAws, stack: &str, text: &str) {
    let key = format!("cdkd/{stack}/us-east-1/state.json");
    aws.api().put_object(aws.state_bucket(), &key, text.as_bytes()).unwrap();
}

/// The answer; or the code of the failure and its cause.
fn ask(aws: &LocalAws, payload: &Value) -> Result<Value, (String, Value)> {
    match aws.api().invoke("cdkd-strong-ref-scan", payload) {
        Ok(answer) => Ok(answer),
        Err(Error::Function { kind, message, .. }) => Err((kind, serde_json::from_str(&message).unwrap())),
        Err(error) => panic!("{error}"),
    }
}

/// Who imports, whether anyone may know, and the picture of it all (rules E21, E35).
#[test]
fn e21_who_imports_is_told_or_refused_and_never_guessed() {
    let aws = LocalAws::start(&Options::default()).unwrap();
    put(&aws, "Net", &["Vpc", "Zone"], &[]);
    put(&aws, "Web", &[], &[("Vpc", "Net")]);
    put_text(
        &aws,
        "Reader",
        &json!({
            "version": 9, "stackName": "Reader", "region": "us-east-1", "resources": {},
            "outputReads": [{"sourceStack": "Net", "sourceRegion": "us-east-1", "outputName": "Plain"}],
        })
        .to_string(),
    );

    let none = json!({"consumers": [], "warnings": []});
    assert_eq!(ask(&aws, &json!({"stack": "Web", "region": "us-east-1"})).unwrap(), none);
    let zone = json!({"stack": "Net", "region": "us-east-1", "exports": ["Zone"]});
    assert_eq!(ask(&aws, &zone).unwrap(), none);
    for payload in [
        json!({"stack": "Net", "region": "US-EAST-1"}),
        json!({"stack": "Net", "region": "us-east-1", "exports": ["Zone", "Vpc"]}),
    ] {
        let (code, cause) = ask(&aws, &payload).unwrap_err();
        assert_eq!(code, "StackHasActiveImportsError");
        assert!(cause["message"].as_str().unwrap().contains("Web (us-east-1) imports `Vpc`"), "{cause}");
        let consumers = json!([{"stack": "Web", "region": "us-east-1", "export": "Vpc"}]);
        assert_eq!(cause["details"]["consumers"], consumers);
    }
    let misspelt = ask(&aws, &json!({"stack": "Nett", "region": "us-east-1"})).unwrap();
    assert_eq!(misspelt["warnings"], json!(["Nett (us-east-1) is not on record"]));
    assert_eq!(ask(&aws, &json!({"stack": "Net"})).unwrap_err().0, "InvalidInput");

    let picture = ask(&aws, &json!({"action": "graph"})).unwrap();
    let expected = json!({"stacks": [
        {"stack": "Net", "region": "us-east-1", "imports": [], "outputReads": [], "exports": ["Vpc", "Zone"]},
        {"stack": "Reader", "region": "us-east-1", "imports": [], "exports": [],
         "outputReads": [{"output": "Plain", "stack": "Net", "region": "us-east-1"}]},
        {"stack": "Web", "region": "us-east-1", "outputReads": [], "exports": [],
         "imports": [{"export": "Vpc", "stack": "Net", "region": "us-east-1"}]},
    ], "warnings": []});
    assert_eq!(picture, expected);

    put_text(&aws, "Old", r#"{"version":3,"stackName":"Old","region":"us-east-1","resources":{}}"#);
    let old = ask(&aws, &json!({"stack": "Web", "region": "us-east-1"})).unwrap();
    assert!(old["warnings"][0].as_str().unwrap().contains("Old (us-east-1)"), "{old}");

    // More than Lambda takes: by way of the runs bucket.
    let names: Vec<String> = (0..80_000).map(|number| format!("an-export-with-a-name-{number}")).collect();
    let many: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "Elsewhere")).collect();
    put(&aws, "Many", &[], &many);
    let answer = ask(&aws, &json!({"action": "graph"})).unwrap();
    let key = answer["answer"].as_str().unwrap();
    assert!(key.starts_with("answers/strong-ref-scan/"), "{answer}");
    assert_eq!(answer["bucket"], aws.runs_bucket());
    let body = aws.api().get_object(aws.runs_bucket(), key).unwrap().unwrap();
    let whole: Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(whole["stacks"][0]["imports"].as_array().unwrap().len(), 80_000);

    // Another tool at work may be about to import; a broken record may hide an import.
    let lock = json!({"owner": "ann@host:1", "timestamp": 1, "expiresAt": 99_999_999_999_999_u64, "operation": "deploy"});
    let place = "cdkd/Reader/us-east-1/lock.json";
    aws.api().put_object(aws.state_bucket(), place, lock.to_string().as_bytes()).unwrap();
    let (code, cause) = ask(&aws, &json!({"stack": "Web", "region": "us-east-1"})).unwrap_err();
    assert_eq!(code, "StrongReferenceScanIncomplete", "{cause}");
    aws.api().delete_object(aws.state_bucket(), place).unwrap();
    put_text(&aws, "Reader", "{");
    for payload in [json!({"stack": "Web", "region": "us-east-1"}), json!({"action": "graph"})] {
        let (code, cause) = ask(&aws, &payload).unwrap_err();
        assert_eq!(
            (code.as_str(), &cause["details"]["stack"]),
            ("StrongReferenceScanIncomplete", &json!("Reader"))
        );
    }
}

/// The state bucket lies in eu-west-1 and cdkd works in us-east-1: records, locks, journals, templates and the index
/// work, and each process asks once where the bucket is. The local AWS answers a request that is signed for another
/// region than the bucket's with 301, as S3 does.
#[test]
fn e9_a_state_bucket_of_another_region() {
    const BUCKET: &str = "records-of-europe";
    let options = Options { bare: true, ..Options::default() }.wire().parameter("StateBucket", BUCKET);
    let aws = LocalAws::start(&options).unwrap();
    let (home, there) = (aws.api(), aws.api().in_region("eu-west-1"));
    there.create_bucket(BUCKET).unwrap();
    let installed = home.install(&Package::local().unwrap(), &options.parameters()).unwrap();
    assert_eq!(installed.bootstrap["region"], "eu-west-1", "{}", installed.bootstrap);
    assert_eq!(installed.bootstrap["created"], false);
    let wrong = home.rest("s3", Method::GET, &format!("/{BUCKET}/any"), &[], &[]).unwrap();
    assert_eq!(wrong.status, 301, "the local AWS takes signatures of any region");

    let runs = installed.runs_bucket();
    let run =
        |machine: &str, input: &Value| home.wait(&home.start_execution(machine, input).unwrap()).unwrap();
    let deploy = |name: &str, template: &Value| {
        let key = format!("uploads/{name}.zip");
        home.put_object(runs, &key, &App::from(Stack::new(name, template)).zip()).unwrap();
        let outcome = run("cdkd-deploy", &json!({ "assembly": format!("s3://{runs}/{key}") }));
        assert_eq!(outcome.status, "SUCCEEDED", "{outcome}");
    };
    let queue = json!({ "Q": { "Type": "AWS::SQS::Queue" } });
    let arn = json!({ "Fn::GetAtt": ["Q", "Arn"] });
    deploy(
        "Far",
        &json!({ "Resources": queue, "Outputs": { "O": { "Value": arn, "Export": { "Name": "far" } } } }),
    );
    let value = json!({ "Type": "String", "Value": { "Fn::ImportValue": "far" } });
    deploy("Near", &json!({ "Resources": { "P": { "Type": "AWS::SSM::Parameter", "Properties": value } } }));

    let document = |key: &str| -> Value {
        let body = there.get_object(BUCKET, key).unwrap();
        body.map_or(Value::Null, |body| serde_json::from_slice(&body).unwrap())
    };
    let record = document("cdkd/Near/us-east-1/state.json");
    assert_eq!(record["imports"][0]["sourceStack"], "Far", "{record}");
    let index = "cdkd/_index/us-east-1/exports.json";
    assert_eq!(document(index)["exports"]["far"]["producerStack"], "Far");
    there.delete_object(BUCKET, index).unwrap();
    let rebuilt = home.invoke("cdkd-rebuild-index", &json!({ "all": true })).unwrap();
    assert_eq!(rebuilt["rebuilt"], json!([{"region": "us-east-1", "exports": 1, "changed": true}]));

    let refused = ask(&aws, &json!({"stack": "Far", "region": "us-east-1"})).unwrap_err();
    assert_eq!(refused.0, "StackHasActiveImportsError");
    let refused = run("cdkd-destroy", &json!({ "stacks": ["Far"] }));
    assert_eq!(refused.error.as_deref(), Some("StackHasActiveImportsError"), "{refused}");
    for stack in ["Near", "Far"] {
        let outcome = run("cdkd-destroy", &json!({ "stacks": [stack] }));
        assert_eq!(outcome.status, "SUCCEEDED", "{outcome}");
    }
    assert_eq!(document(index)["exports"], json!({}));
    let left = there.list_objects(BUCKET, "").unwrap();
    assert_eq!(left, [index], "locks, journals, templates and records are gone");

    let mut asked: BTreeMap<u32, usize> = BTreeMap::new();
    let mut used = 0;
    for entry in aws.wire().log(0) {
        let bucket = entry.resource.split('/').next().unwrap_or_default();
        if entry.service != "s3" || bucket != BUCKET {
            continue;
        }
        assert!(!matches!(entry.status, Some(301 | 307 | 400)), "{entry:?}");
        if entry.operation == "GetBucketLocation" && entry.function.as_deref() != Some("cdkd-bootstrap") {
            *asked.entry(entry.pid.unwrap()).or_default() += 1;
        }
        used += 1;
    }
    assert!(used > 50, "{used} requests of the state bucket passed the wire");
    assert!(asked.values().all(|times| *times == 1), "look-ups by process: {asked:?}");
}
