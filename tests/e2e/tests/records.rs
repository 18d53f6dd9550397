//! Records that another tool or an earlier version wrote: taken over, moved, or left alone.

#![allow(clippy::unwrap_used, reason = "what goes wrong in a test's own helpers fails the test")]

use cdkd_e2e::{Stack, World, world};
use cdkd_test_support::Json;
use serde_json::{Value, json};

/// Makes a queue as someone else would, and returns its URL and ARN.
fn make_queue(world: &World, name: &str, timeout: u32) -> (String, String) {
    let request = json!({ "QueueName": name, "Attributes": { "VisibilityTimeout": timeout.to_string() } });
    let answer = world.aws.api().json(Json::Sqs, "CreateQueue", &request).unwrap();
    let url = answer["QueueUrl"].as_str().unwrap().to_owned();
    let arn = world.aws.api().queue(&url).unwrap().unwrap()["QueueArn"].as_str().unwrap().to_owned();
    (url, arn)
}

/// A record as the command line tool writes it, with fields that nobody here knows. Without outputs: any of them may
/// have been an export, and taking those over is a matter between producer and consumers.
fn record_of_the_tool(stack: &str, url: &str, arn: &str) -> Value {
    json!({
        "version": 8,
        "region": "us-east-1",
        "stackName": stack,
        "resources": { "Q63C6E3AB": {
            "physicalId": url,
            "resourceType": "AWS::SQS::Queue",
            "properties": { "VisibilityTimeout": 30 },
            "attributes": { "Arn": arn, "QueueUrl": url },
            "deletionPolicy": "Delete",
            "updateReplacePolicy": "Delete",
            "provisionedBy": "sdk",
            "observedProperties": { "VisibilityTimeout": 30, "DelaySeconds": 0 },
            "futureField": [1.10],
        } },
        "outputs": {},
        "imports": [null, { "exportName": "Vpc", "sourceStack": "Net", "sourceRegion": "us-east-1" }],
        "unknown": { "kept": null },
        "lastModified": 1_796_061_936_107_u64,
    })
}

fn stack(name: &str, timeout: u32) -> Stack {
    Stack::new(
        name,
        &json!({
            "Resources": { "Q63C6E3AB": {
                "Type": "AWS::SQS::Queue",
                "Properties": { "VisibilityTimeout": timeout },
                "UpdateReplacePolicy": "Delete",
                "DeletionPolicy": "Delete",
            } },
        }),
    )
}

fn plant(world: &World, key: &str, body: &[u8]) {
    world.aws.api().put_object(world.aws.state_bucket(), key, body).unwrap();
}

fn record_writes(world: &World, mark: u64, stack: &str) -> usize {
    world.writes(mark, &format!("{stack}/us-east-1/state.json")).len()
}

#[test]
fn a_record_of_the_command_line_tool_is_taken_over_saved_once_and_goes_on() {
    let world = world();
    let _alone = world.alone();
    let (url, arn) = make_queue(&world, "made-by-the-tool", 30);
    let planted = record_of_the_tool("Producer", &url, &arn);
    plant(&world, "cdkd/Producer/us-east-1/state.json", &serde_json::to_vec_pretty(&planted).unwrap());

    let mark = world.mark();
    let run = world.deploy(stack("Producer", 30));
    assert_eq!(run.word(), "unchanged", "{}", run.outcome);
    assert_eq!(run.answer()["stacks"][0]["migrated"], "8→9");
    assert_eq!(world.cloud_control(mark), 0);
    assert_eq!(record_writes(&world, mark, "Producer"), 1, "saved once");
    let record = world.record("Producer");
    assert_eq!(record["version"], 9);
    for field in ["resources", "outputs", "unknown"] {
        assert_eq!(record[field], planted[field], "{field} is kept");
    }
    assert!(record.get("imports").is_none(), "nothing imports any more: {record}");
    let keys: Vec<&str> = record.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(keys[..4], ["version", "region", "stackName", "resources"], "the order of keys is kept");
    assert_eq!(keys.last(), Some(&"lastModified"));
    assert_eq!(record["resources"]["Q63C6E3AB"]["futureField"].to_string(), "[1.1]");
    world.check_put_down("Producer");

    let mark = world.mark();
    let run = world.deploy(stack("Producer", 30));
    assert_eq!((run.word().as_str(), run.answer()["stacks"][0].get("migrated")), ("unchanged", None));
    assert_eq!((record_writes(&world, mark, "Producer"), world.cloud_control(mark)), (0, 0));

    let mark = world.mark();
    let run = world.deploy(stack("Producer", 45));
    assert_eq!(run.word(), "deployed");
    let calls = world.mutations(mark);
    assert_eq!(calls.len(), 1, "{calls:#?}");
    assert!(calls[0].starts_with("UpdateResource AWS::SQS::Queue"), "{calls:#?}");
    assert_eq!(world.aws.api().queue(&url).unwrap().unwrap()["VisibilityTimeout"], "45");
    let row = world.row("Producer", "Q63C6E3AB");
    assert_eq!((&row["physicalId"], &row["provisionedBy"]), (&json!(url), &json!("cc-api")));
    assert_eq!(row["futureField"].to_string(), "[1.1]", "unknown fields of a row are kept");
    assert!(row.get("observedProperties").is_none(), "they belonged to the properties before");
    world.destroy("Producer");
    assert_eq!(world.aws.api().queue(&url).unwrap(), None);
    world.check_not_on_record("Producer");
}

#[test]
fn a_record_below_nine_that_changes_is_saved_as_nine_and_says_so() {
    let world = world();
    let _alone = world.alone();
    let (url, arn) = make_queue(&world, "changes-at-once", 30);
    let planted = record_of_the_tool("ChangesAtOnce", &url, &arn);
    plant(&world, "cdkd/ChangesAtOnce/us-east-1/state.json", planted.to_string().as_bytes());
    let run = world.deploy(stack("ChangesAtOnce", 31));
    assert_eq!((run.word().as_str(), &run.answer()["stacks"][0]["migrated"]), ("deployed", &json!("8→9")));
    assert_eq!(world.record("ChangesAtOnce")["version"], 9);
    world.destroy("ChangesAtOnce");
}

#[test]
fn a_record_of_version_one_is_moved_by_the_next_write() {
    let world = world();
    let _alone = world.alone();
    let (url, arn) = make_queue(&world, "of-version-one", 30);
    let planted = json!({
        "version": 1, "stackName": "Old", "region": "us-east-1",
        "resources": { "Q63C6E3AB": {
            "physicalId": url, "resourceType": "AWS::SQS::Queue",
            "properties": { "VisibilityTimeout": 30 }, "attributes": { "Arn": arn },
        } },
        "outputs": {}, "lastModified": 1_700_000_000_000_u64,
    });
    plant(&world, "cdkd/Old/state.json", planted.to_string().as_bytes());
    let mark = world.mark();
    let run = world.deploy(stack("Old", 30));
    assert_eq!(run.answer()["stacks"][0]["migrated"], "1→9");
    assert_eq!(world.cloud_control(mark), 0, "the queue is known");
    let (api, bucket) = (world.aws.api(), world.aws.state_bucket());
    assert_eq!(api.get_object(bucket, "cdkd/Old/state.json").unwrap(), None, "moved");
    assert_eq!(world.record("Old")["resources"]["Q63C6E3AB"]["physicalId"], url.as_str());
    assert_eq!(world.deploy(stack("Old", 30)).word(), "unchanged");

    // Destroyed where it lies, if nothing moved it before.
    let (url, _) = make_queue(&world, "of-version-one-too", 30);
    let mut planted = planted;
    planted["stackName"] = json!("Older");
    planted["resources"]["Q63C6E3AB"]["physicalId"] = json!(url);
    plant(&world, "cdkd/Older/state.json", planted.to_string().as_bytes());
    world.destroy("Older");
    assert_eq!(api.get_object(bucket, "cdkd/Older/state.json").unwrap(), None);
    assert_eq!(api.queue(&url).unwrap(), None);
    world.check_not_on_record("Older");
    world.destroy("Old");
}

#[test]
fn a_record_of_version_one_of_another_region_is_left_alone() {
    let world = world();
    let _turn = world.among_others();
    let planted = json!({
        "version": 1, "stackName": "Elsewhere", "region": "eu-west-1", "outputs": {}, "lastModified": 1,
        "resources": { "Q63C6E3AB": { "physicalId": "q", "resourceType": "AWS::SQS::Queue", "properties": {} } },
    });
    plant(&world, "cdkd/Elsewhere/state.json", planted.to_string().as_bytes());
    let run = world.deploy(stack("Elsewhere", 30));
    assert_eq!(run.answer()["stacks"][0]["counts"]["create"], 1);
    let kept =
        world.aws.api().get_object(world.aws.state_bucket(), "cdkd/Elsewhere/state.json").unwrap().unwrap();
    assert_eq!(kept, planted.to_string().into_bytes());
    world.destroy("Elsewhere");
}

#[test]
fn a_record_that_cannot_be_used_refuses_and_stays_as_it_is() {
    let world = world();
    let _alone = world.alone();
    let api = world.aws.api();
    let newer = json!({ "version": 10, "stackName": "Unusable", "region": "us-east-1", "resources": {}, "outputs": {} });
    for (body, code, says) in [
        (newer.to_string(), "UnsupportedStateVersion", "version 10"),
        ("{ \"version\": 8, \"resou".to_owned(), "InvalidState", "not JSON"),
        (json!({ "version": 8, "resources": { "A": {} } }).to_string(), "InvalidState", "`A`"),
    ] {
        plant(&world, "cdkd/Unusable/us-east-1/state.json", body.as_bytes());
        let etag =
            || api.object_etag(world.aws.state_bucket(), "cdkd/Unusable/us-east-1/state.json").unwrap();
        let (before, mark) = (etag(), world.mark());
        for (machine, run) in [
            ("deploy", world.try_deploy(stack("Unusable", 30))),
            ("destroy", world.run("cdkd-destroy", &json!({ "stacks": ["Unusable"] }))),
            ("plan", world.deploy_with(stack("Unusable", 30), json!({ "options": { "dryRun": true } }))),
        ] {
            let cause = run.refused(code);
            let message = cause["message"].as_str().unwrap();
            assert!(message.contains("Unusable") && message.contains(says), "{machine}: {cause}");
            assert!(cause["hint"].is_string(), "{cause}");
        }
        assert_eq!(etag(), before, "untouched");
        let kept =
            api.get_object(world.aws.state_bucket(), "cdkd/Unusable/us-east-1/state.json").unwrap().unwrap();
        assert_eq!(kept, body.as_bytes());
        assert_eq!(record_writes(&world, mark, "Unusable"), 0);
        assert_eq!(world.cloud_control(mark), 0);
        world.check_put_down("Unusable");
    }
    // Every scan for consumers would fail closed on it (rule E21).
    api.delete_object(world.aws.state_bucket(), "cdkd/Unusable/us-east-1/state.json").unwrap();
}

#[test]
fn l8_one_put_replaces_a_record_and_readers_see_the_last_good_outputs() {
    let world = world();
    let _turn = world.among_others();
    let stack = |value: &str| {
        Stack::new(
            "Readers",
            &json!({
                "Resources": { "P": { "Type": "AWS::SSM::Parameter", "Properties": { "Type": "String", "Value": value } } },
                "Outputs": { "Value": { "Value": { "Fn::GetAtt": ["P", "Value"] } } },
            }),
        )
    };
    world.deploy(stack("one"));
    let mark = world.mark();
    let gate = world.aws.wire().hold(
        cdkd_wire::Rule::on("s3", "PutObject").resource("*/Readers/us-east-1/state.json"),
        cdkd_wire::When::Before,
    );
    let assembly = world.upload(&stack("two").into());
    let execution = world.aws.api().start_execution("cdkd-deploy", &json!({ "assembly": assembly })).unwrap();
    gate.wait_until_held(std::time::Duration::from_mins(1)).unwrap();
    assert_eq!(world.record("Readers")["outputs"]["Value"], "one", "readers see the last good outputs");
    gate.release();
    let rule = gate.rule();
    assert!(world.aws.api().wait(&execution).unwrap().succeeded());
    world.aws.wire().remove_rule(rule);
    assert_eq!(world.record("Readers")["outputs"]["Value"], "two");
    let deleted = world.writes(mark, "Readers/us-east-1/state.json");
    assert!(deleted.iter().all(|write| write.starts_with("PutObject")), "{deleted:?}");
    world.destroy("Readers");
}

#[test]
fn l13_two_writes_of_one_run_have_two_nonces() {
    let world = world();
    let _turn = world.among_others();
    let stack = |value: &str| {
        Stack::with(
            "Nonces",
            &json!({
                "P": { "Type": "AWS::SSM::Parameter", "Properties": { "Type": "String", "Value": value } },
            }),
        )
    };
    world.deploy(stack("one"));
    world.deploy(stack("two"));
    let bucket = world.aws.state_bucket();
    let versions = world.aws.api().list_versions(bucket, "cdkd/Nonces/us-east-1/state.json").unwrap();
    assert!(versions.len() >= 3, "{versions:?}");
    let mut nonces = std::collections::BTreeSet::new();
    for version in &versions {
        let path = format!("/{bucket}/{}?versionId={}", version.key, version.version);
        let answer = world.aws.api().rest("s3", http::Method::HEAD, &path, &[], &[]).unwrap();
        nonces.insert(answer.header("x-amz-meta-cdkd-write").unwrap().to_owned());
    }
    assert_eq!(nonces.len(), versions.len());
    world.destroy("Nonces");
}
