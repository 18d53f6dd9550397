//! `cdkd-bootstrap`: asset storage of a region is made, described and removed, and nothing else makes any.

#![allow(clippy::unwrap_used, reason = "what goes wrong in a test's own helpers fails the test")]

use cdkd_e2e::{App, Stack, World, world};
use cdkd_test_support::{ACCOUNT, Error, Json, Options};
use cdkd_wire::Rule;
use serde_json::{Value, json};

fn bootstrap(world: &World, payload: &Value) -> Value {
    world.aws.api().invoke("cdkd-bootstrap", payload).unwrap()
}

/// The code of a refusal, and its cause.
#[track_caller]
fn refused(world: &World, payload: &Value, code: &str) -> Value {
    match world.aws.api().invoke("cdkd-bootstrap", payload) {
        Err(Error::Function { kind, message, .. }) => {
            assert_eq!(kind, code, "{message}");
            serde_json::from_str(&message).unwrap()
        }
        other => panic!("not refused: {other:?}"),
    }
}

fn names(region: &str) -> (String, String) {
    (format!("cdkd-assets-{ACCOUNT}-{region}"), format!("cdkd-container-assets-{ACCOUNT}-{region}"))
}

fn marker(world: &World, region: &str) -> Option<Value> {
    let key = format!("cdkd-bootstrap/{region}.json");
    let body = world.aws.api().get_object(world.aws.state_bucket(), &key).unwrap();
    body.map(|body| serde_json::from_slice(&body).unwrap())
}

/// What S3 says of a bucket, asked by someone else than cdkd.
fn setting(world: &World, region: &str, bucket: &str, name: &str) -> String {
    world.aws.api().in_region(region).bucket_setting(bucket, name).unwrap().unwrap_or_default()
}

fn hits(world: &World, mark: u64, operations: &[&str]) -> Vec<String> {
    let calls = world.since(mark).into_iter();
    calls
        .filter(|it| it.function.as_deref() == Some("cdkd-bootstrap"))
        .filter(|it| operations.iter().any(|verb| it.operation.starts_with(verb)))
        .map(|it| it.operation)
        .collect()
}

#[test]
fn a21_storage_is_made_with_its_settings_and_the_marker_last() {
    let world = world();
    let _alone = world.alone();
    let (bucket, repository) = names("eu-west-1");
    let foreseen = bootstrap(&world, &json!({"region": "EU-WEST-1", "dryRun": true}));
    assert_eq!(foreseen["would"].as_array().unwrap().len(), 3, "{foreseen}");
    assert_eq!(marker(&world, "eu-west-1"), None);

    let mark = world.mark();
    let made = bootstrap(&world, &json!({"region": "EU-WEST-1"}));
    assert!(
        made["message"].as_str().unwrap().starts_with("Asset mode is on for eu-west-1: the next deploy"),
        "{made}"
    );
    assert_eq!(
        made["assets"]["created"],
        json!({"assetBucket": true, "containerRepo": true, "marker": true})
    );
    let writes = hits(&world, mark, &["Put", "Create"]);
    assert_eq!(
        writes.last().map(String::as_str),
        Some("PutObject"),
        "the marker is written last: {writes:?}"
    );

    let said = marker(&world, "eu-west-1").unwrap();
    assert_eq!((&said["assetBucket"], &said["containerRepo"]), (&json!(bucket), &json!(repository)));
    assert_eq!(said["assetSupportVersion"], 1);
    let created = said["createdAt"].as_str().unwrap();
    assert!(created.len() >= 20 && created.ends_with('Z') && created.as_bytes()[10] == b'T', "{created}");

    let far = world.aws.api().in_region("eu-west-1");
    assert!(!far.bucket_is_versioned(&bucket).unwrap());
    assert!(setting(&world, "eu-west-1", &bucket, "encryption").contains("AES256"));
    assert!(setting(&world, "eu-west-1", &bucket, "encryption").contains("<BucketKeyEnabled>true"));
    assert_eq!(setting(&world, "eu-west-1", &bucket, "publicAccessBlock").matches(">true<").count(), 4);
    let policy = setting(&world, "eu-west-1", &bucket, "policy");
    assert!(
        policy.contains("DenyExternalAccounts") && policy.contains(&format!("arn:aws:s3:::{bucket}/*")),
        "{policy}"
    );
    assert_eq!(setting(&world, "eu-west-1", &bucket, "lifecycle"), "");

    // Again: nothing is made, nothing set; with `force` all is set anew.
    let mark = world.mark();
    let again = bootstrap(&world, &json!({"region": "eu-west-1"}));
    assert_eq!(
        again["assets"]["created"],
        json!({"assetBucket": false, "containerRepo": false, "marker": false})
    );
    assert_eq!(
        (&again["configured"], &again["assets"]["configured"]),
        (&json!(false), &json!(false)),
        "{again}"
    );
    assert_eq!(hits(&world, mark, &["Put", "Create"]), [""; 0]);
    far.rest("s3", http::Method::DELETE, &format!("/{bucket}?policy"), &[], &[]).unwrap();
    let mended = bootstrap(&world, &json!({"region": "eu-west-1"}));
    assert_eq!(mended["assets"]["configured"], true, "what is missing is added, as after a death");
    assert!(setting(&world, "eu-west-1", &bucket, "policy").contains("DenyExternalAccounts"));
    let own = r#"{"Version": "2012-10-17", "Statement": []}"#;
    far.rest("s3", http::Method::PUT, &format!("/{bucket}?policy"), &[], own.as_bytes()).unwrap();
    bootstrap(&world, &json!({"region": "eu-west-1"}));
    assert!(
        !setting(&world, "eu-west-1", &bucket, "policy").contains("DenyExternalAccounts"),
        "what is set stays"
    );
    bootstrap(&world, &json!({"region": "eu-west-1", "force": true}));
    assert!(setting(&world, "eu-west-1", &bucket, "policy").contains("DenyExternalAccounts"));
}

#[test]
fn a25_names_are_kept_and_storage_that_is_gone_is_made_anew() {
    let world = world();
    let _here = world.among_others();
    let asked = json!({"region": "eu-west-2", "assetBucket": "my-own-assets", "containerRepo": "my/images"});
    for (wrong, says) in [
        (json!({"region": "eu-west-2", "assetBucket": "No"}), "no name of a bucket"),
        (json!({"region": "eu-west-2", "containerRepo": "No"}), "no name of a repository"),
        (
            json!({"region": "eu-west-2", "assets": false, "assetBucket": "my-own-assets"}),
            "`assets` is false",
        ),
        (json!({"region": "eu-west-2", "forse": true}), "unknown field `forse`"),
        (json!({"region": "cn-north-1"}), "partition"),
        (json!({"action": "remove"}), "payload of bootstrap"),
    ] {
        let cause = refused(&world, &wrong, "InvalidInput");
        assert!(cause["message"].as_str().unwrap().contains(says), "{cause}");
    }
    bootstrap(&world, &asked);
    assert_eq!(marker(&world, "eu-west-2").unwrap()["assetBucket"], "my-own-assets");
    let other =
        refused(&world, &json!({"region": "eu-west-2", "assetBucket": "another-one"}), "InvalidInput");
    assert!(other["message"].as_str().unwrap().contains("my-own-assets"), "{other}");

    let far = world.aws.api().in_region("eu-west-2");
    far.delete_bucket("my-own-assets").unwrap();
    let again = bootstrap(&world, &json!({"region": "eu-west-2"}));
    assert_eq!(
        again["assets"]["created"],
        json!({"assetBucket": true, "containerRepo": false, "marker": false})
    );
    assert_eq!(again["assets"]["assetBucket"], "my-own-assets");

    // `assets: false` looks after the state bucket alone.
    let before = marker(&world, "eu-west-2");
    let state = bootstrap(&world, &json!({"region": "eu-west-2", "assets": false}));
    assert!(state["message"].as_str().unwrap().starts_with("Asset mode stays on"), "{state}");
    let none = bootstrap(&world, &json!({"region": "eu-south-1", "assets": false}));
    assert!(none["message"].as_str().unwrap().starts_with("Asset mode is off"), "{none}");
    assert_eq!((marker(&world, "eu-west-2"), marker(&world, "eu-south-1")), (before, None));
}

#[test]
fn a14_a_name_that_another_account_owns_is_never_adopted() {
    let world = world();
    let _here = world.among_others();
    let (bucket, _) = names("ap-east-1");
    world.aws.api().in_region("ap-east-1").of_account("999999999999").create_bucket(&bucket).unwrap();
    let cause = refused(&world, &json!({"region": "ap-east-1"}), "BucketUnavailable");
    assert!(cause["message"].as_str().unwrap().contains(&bucket), "{cause}");
    assert_eq!(marker(&world, "ap-east-1"), None);
    // A race for the name: it was free when it was looked at.
    let (racing, _) = names("ap-east-2");
    let taken = Rule::on("s3", "CreateBucket").resource(&racing).answer(409, "BucketAlreadyExists", "taken");
    let _rule = world.rule(taken);
    let cause = refused(&world, &json!({"region": "ap-east-2"}), "BucketUnavailable");
    assert!(cause["message"].as_str().unwrap().contains("belongs to another account"), "{cause}");
    assert_eq!(marker(&world, "ap-east-2"), None);
}

#[test]
fn the_estate_is_described() {
    let world = world();
    let _here = world.among_others();
    world.deploy(Stack::with(
        "Told",
        &json!({"P": {"Type": "AWS::SSM::Parameter", "Properties": {"Type": "String", "Value": "v"}}}),
    ));
    bootstrap(&world, &json!({"region": "me-south-1"}));
    let (bucket, _) = names("me-south-1");
    let row = |told: &Value| {
        let rows = told["assets"].as_array().unwrap();
        rows.iter().find(|row| row["region"] == "me-south-1").cloned().unwrap()
    };
    let told = bootstrap(&world, &json!({"action": "info"}));
    assert_eq!(told["settings"]["versioning"], "Enabled", "{told}");
    assert!(told["stacks"].as_u64().unwrap() >= 1 && told["versions"]["9"].as_u64().unwrap() >= 1, "{told}");
    assert_eq!(
        (&row(&told)["assetBucketExists"], &row(&told)["containerRepoExists"]),
        (&json!(true), &json!(true))
    );
    world.aws.api().in_region("me-south-1").delete_bucket(&bucket).unwrap();
    assert_eq!(row(&bootstrap(&world, &json!({"action": "info"})))["assetBucketExists"], false);
    let place = "cdkd-bootstrap/me-south-1.json";
    world.aws.api().put_object(world.aws.state_bucket(), place, b"{}").unwrap();
    let told = bootstrap(&world, &json!({"action": "info"}));
    assert_eq!(row(&told)["error"]["code"], "InvalidBootstrapMarker", "{told}");
    world.aws.api().delete_object(world.aws.state_bucket(), place).unwrap();
    world.destroy("Told");
}

#[test]
fn a18_storage_goes_in_the_safe_order_and_not_while_a_record_needs_it() {
    let world = world();
    let _alone = world.alone();
    let region = "us-east-2";
    let (bucket, repository) = names(region);
    let none = bootstrap(&world, &json!({"action": "destroy", "region": region}));
    assert_eq!(none["done"], true, "{none}");
    bootstrap(&world, &json!({"region": region, "assetBucket": bucket, "containerRepo": repository}));
    let user = json!({"P": {"Type": "AWS::SSM::Parameter", "Properties": {"Type": "String", "Value": format!("s3://{bucket}/k")}}});
    let app = || App::from(Stack::with("User", &user).environment(&format!("aws://{ACCOUNT}/{region}")));
    world.deploy(app());
    let gone = json!({"action": "destroy", "region": region});
    let cause = refused(&world, &gone, "AssetStorageInUse");
    assert!(cause["message"].as_str().unwrap().contains("cdkd/User/us-east-2/state.json"), "{cause}");
    let (api, state) = (world.aws.api(), world.aws.state_bucket());
    world.run("cdkd-destroy", &json!({"stacks": ["User"], "region": region}));

    // A record that does not parse may say anything, and a run that holds a lock may write one.
    for (key, body) in [("cdkd/Odd/us-east-2/state.json", "{"), ("cdkd/Odd/us-east-2/lock.json", "{}")] {
        api.put_object(state, key, body.as_bytes()).unwrap();
        let cause = refused(&world, &gone, "AssetStorageInUse");
        assert!(cause["message"].as_str().unwrap().contains(key), "{cause}");
        for version in api.list_versions(state, key).unwrap() {
            api.delete_object_version(state, key, &version.version).unwrap();
        }
    }
    let far = api.in_region(region);
    for n in 0..3 {
        far.put_object(&bucket, &format!("k{n}"), b"content").unwrap();
    }
    let foreseen = bootstrap(&world, &json!({"action": "destroy", "region": region, "dryRun": true}));
    assert_eq!(foreseen["would"].as_array().unwrap().len(), 3, "{foreseen}");
    assert!(far.bucket_exists(&bucket).unwrap());
    let mark = world.mark();
    let done = bootstrap(&world, &gone);
    assert_eq!(done["done"], true, "{done}");
    let order = hits(&world, mark, &["Delete"]);
    let steps: Vec<&str> = order.iter().map(String::as_str).collect();
    assert_eq!(steps[..3], ["DeleteObjects", "DeleteBucket", "DeleteRepository"], "{steps:?}");
    assert!(
        steps[3..].iter().all(|it| it.starts_with("DeleteObject")) && steps.len() > 3,
        "the marker goes last: {steps:?}"
    );
    assert!(!far.bucket_exists(&bucket).unwrap());
    assert_eq!(marker(&world, region), None);
    assert_eq!(bootstrap(&world, &gone)["done"], true);

    // The state bucket goes only when nothing is left that it could tell of.
    bootstrap(&world, &json!({"region": "us-west-2"}));
    let all = json!({"action": "destroy", "region": region, "includeStateBucket": true});
    let cause = refused(&world, &all, "AssetStorageInUse");
    assert!(cause["message"].as_str().unwrap().contains("other regions have asset storage"), "{cause}");
}

#[test]
fn a18_an_estate_without_records_goes_whole_and_can_be_made_again() {
    let world = World::start(Options::default());
    let state = world.aws.state_bucket();
    bootstrap(&world, &json!({}));
    let parameter =
        json!({"P": {"Type": "AWS::SSM::Parameter", "Properties": {"Type": "String", "Value": "v"}}});
    world.deploy(Stack::with("Last", &parameter));
    let all = json!({"action": "destroy", "includeStateBucket": true});
    let cause = refused(&world, &all, "AssetStorageInUse");
    assert!(cause["message"].as_str().unwrap().contains("cdkd/Last/us-east-1/state.json"), "{cause}");
    world.destroy("Last");
    let done = bootstrap(&world, &all);
    assert_eq!(done["done"], true, "{done}");
    assert!(!world.aws.api().bucket_exists(state).unwrap());
    assert!(!world.aws.api().bucket_exists(&names("us-east-1").0).unwrap());

    // Publishing alone needs no estate: then assets go where the assembly says.
    let cdk = format!("cdk-hnb659fds-assets-{ACCOUNT}-us-east-1");
    world.aws.api().create_bucket(&cdk).unwrap();
    let to = json!({"bucketName": "cdk-hnb659fds-assets-${AWS::AccountId}-${AWS::Region}", "objectKey": "data.json"});
    let files =
        json!({"a": {"source": {"path": "data.json", "packaging": "file"}, "destinations": {"d": to}}});
    let app = App::from(Stack::with("Alone", &parameter)).assets("Alone", &files).file("data.json", b"{}");
    let run = world.deploy_with(app, json!({"options": {"publishOnly": true}}));
    assert_eq!(world.aws.api().list_objects(&cdk, "").unwrap(), ["data.json"]);
    assert!(run.answer()["notices"].to_string().contains("cdk gc"), "{}", run.answer());

    let again = bootstrap(&world, &json!({}));
    assert_eq!(
        (&again["created"], &again["settings"]["versioning"]),
        (&json!(true), &json!("Enabled")),
        "{again}"
    );
    assert_eq!(again["settings"]["eventBridge"], true, "{again}");

    // Someone has replaced the notifications: EventBridge is switched on again, and theirs stay, also without `force`.
    let theirs = "<NotificationConfiguration><QueueConfiguration><Id>theirs</Id>\
        <Queue>arn:aws:sqs:us-east-1:123456789012:theirs</Queue><Event>s3:ObjectRemoved:*</Event>\
        </QueueConfiguration></NotificationConfiguration>";
    let from_s3 = json!({"Version": "2012-10-17", "Statement": [{
        "Effect": "Allow", "Principal": {"Service": "s3.amazonaws.com"}, "Action": "sqs:SendMessage",
        "Resource": format!("arn:aws:sqs:us-east-1:{ACCOUNT}:theirs"),
    }]});
    let queue = json!({"QueueName": "theirs", "Attributes": {"Policy": from_s3.to_string()}});
    world.aws.api().json(Json::Sqs, "CreateQueue", &queue).unwrap();
    let path = format!("/{state}?notification");
    let answer = world.aws.api().rest("s3", http::Method::PUT, &path, &[], theirs.as_bytes()).unwrap();
    assert!(answer.status.is_success(), "{}", answer.text());
    let told = bootstrap(&world, &json!({"assets": false}));
    assert_eq!((&told["created"], &told["settings"]["eventBridge"]), (&json!(false), &json!(true)), "{told}");
    let notifications = setting(&world, "us-east-1", state, "notification");
    assert!(notifications.contains("theirs") && notifications.contains("EventBridge"), "{notifications}");
    world.deploy(Stack::with("First", &parameter));
    world.destroy("First");
}
