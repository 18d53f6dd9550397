//! The sample application, from nothing to nothing: what is there, what is on record, and what a run costs.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking; what a run costs is told"
)]

use std::collections::{BTreeMap, BTreeSet};

use cdkd_e2e::{App, Run, Stack, World, webapp, world};
use cdkd_test_support::{Json, Query};
use serde_json::{Value, json};

const JOBS: &str = "JobsDF1CC2D4";
const DEAD_LETTERS: &str = "DeadLettersBBF8BAAB";
const AUDIT: &str = "Audit3D8ADE0A";
const POLICY: &str = "WorkerDefaultPolicyD9676315";

fn attribute(row: &Value, name: &str) -> String {
    row["attributes"][name].as_str().unwrap_or_default().to_owned()
}

fn queue_tags(world: &World, url: &str) -> BTreeMap<String, String> {
    let answer = world.aws.api().json(Json::Sqs, "ListQueueTags", &json!({ "QueueUrl": url })).unwrap();
    let tags = answer["Tags"].as_object().unwrap();
    tags.iter().map(|(key, value)| (key.clone(), value.as_str().unwrap().to_owned())).collect()
}

/// T12 and DESIGN 8: the stack's tags, and the marks by which a lost create is found.
#[track_caller]
fn check_tags(tags: &BTreeMap<String, String>, stack: &str, logical_id: &str) {
    for (key, value) in [
        ("application", "webapp"),
        ("cost-center", "1234"),
        ("cdkd:stack", stack),
        ("cdkd:logical-id", logical_id),
    ] {
        assert_eq!(tags.get(key).map(String::as_str), Some(value), "{logical_id}: {tags:?}");
    }
    assert!(tags.get("cdkd:token").is_some_and(|token| token.len() >= 16), "{logical_id}: {tags:?}");
}

/// Every resource of the app, as the services themselves show it.
fn check_resources(world: &World, stack: &str) {
    let api = world.aws.api();
    let id = |logical_id: &str| world.physical_id(stack, logical_id);

    let bucket = id("Uploads4F6EB0FD");
    assert!(api.bucket_exists(&bucket).unwrap() && api.bucket_is_versioned(&bucket).unwrap());
    let cors = api.bucket_setting(&bucket, "cors").unwrap().unwrap();
    assert!(cors.contains("https://www.example.com") && cors.contains("PUT"), "{cors}");
    check_tags(&api.bucket_tags(&bucket).unwrap(), stack, "Uploads4F6EB0FD");

    let dead = api.queue(&id(DEAD_LETTERS)).unwrap().unwrap();
    assert_eq!(dead["MessageRetentionPeriod"], "1209600");
    let jobs = api.queue(&id(JOBS)).unwrap().unwrap();
    assert_eq!(jobs["VisibilityTimeout"], "60");
    let redrive: Value = serde_json::from_str(jobs["RedrivePolicy"].as_str().unwrap()).unwrap();
    assert_eq!(redrive["deadLetterTargetArn"], dead["QueueArn"]);
    assert_eq!(redrive["maxReceiveCount"].to_string().trim_matches('"'), "3");
    check_tags(&queue_tags(world, &id(JOBS)), stack, JOBS);

    let topic = id("EventsD32975C2");
    assert_eq!(api.topic(&topic).unwrap().unwrap()["DisplayName"], "Web application (dev)");
    let subscriptions = api.subscriptions(&topic).unwrap();
    assert_eq!(subscriptions.len(), 1);
    assert_eq!(subscriptions[0].endpoint, jobs["QueueArn"].as_str().unwrap());
    assert_eq!(subscriptions[0].attributes["RawMessageDelivery"], "true");

    // Expansion: the policies are really there.
    let policy: Value = serde_json::from_str(jobs["Policy"].as_str().unwrap()).unwrap();
    assert_eq!(policy["Statement"][0]["Sid"], "UploadsMayNotify");
    assert_eq!(policy["Statement"][1]["Condition"]["ArnEquals"]["aws:SourceArn"], topic.as_str());
    let role = api.role(&id("Worker11F36D0F")).unwrap().unwrap();
    let audit = api.queue(&id(AUDIT)).unwrap().unwrap();
    assert!(role.inline[POLICY].to_string().contains(audit["QueueArn"].as_str().unwrap()));
    assert!(role.description.as_deref().unwrap().ends_with(&format!(" for {stack}")), "{role:?}");
    check_tags(&role.tags, stack, "Worker11F36D0F");

    let table = api.table(&id("Sessions8896A56D")).unwrap().unwrap();
    assert_eq!(table["BillingModeSummary"]["BillingMode"], "PAY_PER_REQUEST");
    assert_eq!(table["KeySchema"][1]["AttributeName"], "started");
    let group = api.log_group(&id("RequestsC42AC379")).unwrap().unwrap();
    assert_eq!(group["retentionInDays"].to_string(), "7");
    let parameter = |logical_id: &str| api.parameter(&id(logical_id)).unwrap().unwrap()["Value"].clone();
    assert_eq!(parameter("AllowedOrigins623E3CA4"), "https://example.com,https://www.example.com");
    assert!(parameter("DebugA7303C21").as_str().unwrap().ends_with("/debug"));
}

/// DESIGN 3: the documented form of a record.
fn check_record(world: &World, stack: &str) {
    let record = world.record(stack);
    let mut keys: Vec<&str> = record.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!((&keys[..3], keys.last()), (&["version", "stackName", "region"][..], Some(&"lastModified")));
    keys.sort_unstable();
    let known =
        ["deploy", "exportNames", "lastModified", "outputs", "region", "resources", "stackName", "version"];
    assert_eq!(keys, known, "empty lists are omitted");
    assert_eq!(
        (&record["version"], &record["stackName"], &record["region"]),
        (&json!(9), &json!(stack), &json!("us-east-1"))
    );
    let resources = record["resources"].as_object().unwrap();
    assert!(!resources.contains_key("CDKMetadata"), "AWS::CDK::Metadata is no resource");
    assert!(!resources.contains_key("Pages127DFD1A"), "its condition is false");
    for (logical_id, row) in resources {
        assert_eq!(row["provisionedBy"], "cc-api", "{logical_id}");
        assert!(row["physicalId"].as_str().is_some_and(|id| !id.is_empty()), "{logical_id}: {row}");
        assert!(row["properties"].is_object() && row["resourceType"].is_string(), "{logical_id}: {row}");
    }
    let needs = |logical_id: &str| -> BTreeSet<String> {
        let list = resources[logical_id]["dependencies"].as_array().unwrap();
        list.iter().map(|it| it.as_str().unwrap().to_owned()).collect()
    };
    let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
    assert_eq!(needs("JobsPolicy30CCDE58"), set(&["Uploads4F6EB0FD", JOBS, "EventsD32975C2"]));
    assert_eq!(needs("AllowedOrigins623E3CA4"), set(&["Uploads4F6EB0FD"]), "DependsOn is a dependency (T13)");
    assert!(resources["EventsD32975C2"].get("dependencies").is_none(), "an empty list is omitted");
    assert_eq!(resources[JOBS]["deletionPolicy"], "Delete");
    assert_eq!(record["deploy"]["deployed"], true);
    assert_eq!(record["outputs"]["JobsUrl"], resources[JOBS]["physicalId"]);
    assert_eq!(record["outputs"]["FirstOrigin"], "https://example.com");
    assert!(record["outputs"].get("PagesArn").is_none());
    world.check_put_down(stack);
}

/// The resources of a record, to be looked for after a destroy.
fn check_gone(world: &World, record: &Value) {
    let api = world.aws.api();
    for (logical_id, row) in record["resources"].as_object().unwrap() {
        let id = row["physicalId"].as_str().unwrap();
        let there = match row["resourceType"].as_str().unwrap() {
            "AWS::S3::Bucket" => api.bucket_exists(id).unwrap(),
            "AWS::SQS::Queue" => api.queue(id).unwrap().is_some(),
            "AWS::SNS::Topic" => api.topic(id).unwrap().is_some(),
            "AWS::DynamoDB::Table" => api.table(id).unwrap().is_some(),
            "AWS::Logs::LogGroup" => api.log_group(id).unwrap().is_some(),
            "AWS::SSM::Parameter" => api.parameter(id).unwrap().is_some(),
            "AWS::IAM::Role" => api.role(id).unwrap().is_some(),
            // Parts of what is asked for above.
            _ => false,
        };
        assert!(!there, "{logical_id} is still there: {id}");
    }
}

/// Position of the first call that begins so.
#[track_caller]
fn at(calls: &[String], start: &str) -> usize {
    calls
        .iter()
        .position(|call| call.starts_with(start))
        .unwrap_or_else(|| panic!("no {start} in {calls:#?}"))
}

#[test]
fn an_app_for_any_account_is_created_left_alone_changed_and_destroyed() {
    let world = world();
    let _alone = world.alone();
    let api = world.aws.api();

    let run =
        world.deploy_with(webapp("cdk.out", "WebApp", "WebApp", |_| ()), json!({ "stacks": ["WebApp"] }));
    assert_eq!(run.word(), "deployed", "{}", run.outcome);
    let row = &run.answer()["stacks"][0];
    assert_eq!(
        (&row["stack"], &row["region"], &row["counts"]["create"]),
        (&json!("WebApp"), &json!("us-east-1"), &json!(15))
    );
    check_resources(&world, "WebApp");
    check_record(&world, "WebApp");
    let result = world.result(&run);
    let outputs = &result["stacks"][0]["outputs"];
    assert_eq!(*outputs, world.record("WebApp")["outputs"]);
    assert_eq!(outputs["JobsArn"], outputs["WebApp-JobsArn"]);
    assert_eq!(world.record("WebApp")["exportNames"], json!(["WebApp-JobsArn"]));
    println!("created in {:.2} s, {} events", run.seconds, run.history.len());

    unchanged(&world);

    // One property.
    let first = world.record("WebApp");
    let mark = world.mark();
    let run = world.deploy_with(
        webapp("cdk.out", "WebApp", "WebApp", |template| {
            template["Resources"][JOBS]["Properties"]["VisibilityTimeout"] = json!(61);
        }),
        json!({ "stacks": ["WebApp"] }),
    );
    assert_eq!(run.word(), "deployed");
    let calls = world.mutations(mark);
    assert_eq!(calls.len(), 1, "{calls:#?}");
    assert!(calls[0].starts_with("UpdateResource AWS::SQS::Queue"), "{calls:#?}");
    assert_eq!(api.queue(&world.physical_id("WebApp", JOBS)).unwrap().unwrap()["VisibilityTimeout"], "61");
    check_tags(&queue_tags(&world, &world.physical_id("WebApp", JOBS)), "WebApp", JOBS);
    assert_eq!(
        world.record("WebApp")["deploy"]["stackId"],
        first["deploy"]["stackId"],
        "T11: one id for all deploys"
    );
    println!("one property in {:.2} s, {} requests", run.seconds, world.since(mark).len());

    // The changed app: an update, a replacement with what is built on it, a removal.
    let mark = world.mark();
    let old_audit = first["resources"][AUDIT]["physicalId"].as_str().unwrap();
    let greeting = first["resources"]["Greeting7772ECD5"]["physicalId"].as_str().unwrap();
    let run = world
        .deploy_with(webapp("cdk.out.changed", "WebApp", "WebApp", |_| ()), json!({ "stacks": ["WebApp"] }));
    assert_eq!(run.word(), "deployed");
    let calls = world.mutations(mark);
    let created = at(&calls, "CreateResource AWS::SQS::Queue");
    let policy = at(&calls, "UpdateResource AWS::IAM::RolePolicy");
    let deleted = at(&calls, "DeleteResource AWS::SQS::Queue");
    assert!(created < policy && policy < deleted, "P6: what references the old one first: {calls:#?}");
    at(&calls, "UpdateResource AWS::SQS::Queue");
    at(&calls, "DeleteResource AWS::SSM::Parameter");
    assert_eq!(calls.len(), 5, "{calls:#?}");
    let audit = world.row("WebApp", AUDIT);
    assert_ne!(audit["physicalId"], old_audit);
    assert_eq!(api.queue(audit["physicalId"].as_str().unwrap()).unwrap().unwrap()["FifoQueue"], "true");
    assert_eq!(api.queue(old_audit).unwrap(), None);
    assert_eq!(api.parameter(greeting).unwrap(), None);
    assert_eq!(api.queue(&world.physical_id("WebApp", JOBS)).unwrap().unwrap()["VisibilityTimeout"], "120");
    let role = api.role(&world.physical_id("WebApp", "Worker11F36D0F")).unwrap().unwrap();
    assert!(role.inline[POLICY].to_string().contains(&attribute(&audit, "Arn")), "P6: {:?}", role.inline);
    let record = world.record("WebApp");
    assert!(record.get("pendingDeletes").is_none() && record["resources"].get("Greeting7772ECD5").is_none());
    world.check_put_down("WebApp");

    let run = world.destroy("WebApp");
    assert_eq!(run.word(), "destroyed");
    check_gone(&world, &first);
    check_gone(&world, &record);
    world.check_not_on_record("WebApp");
    println!("destroyed in {:.2} s", run.seconds);
}

/// A deploy of what is deployed asks nothing of Cloud Control and writes nothing but its lock and journal.
fn unchanged(world: &World) {
    let etag =
        || world.aws.api().object_etag(world.aws.state_bucket(), "cdkd/WebApp/us-east-1/state.json").unwrap();
    let before = etag();
    let mut least = f64::MAX;
    let mut requests = 0;
    for _ in 0..3 {
        let mark = world.mark();
        let run =
            world.deploy_with(webapp("cdk.out", "WebApp", "WebApp", |_| ()), json!({ "stacks": ["WebApp"] }));
        assert_eq!(run.word(), "unchanged", "{}", run.outcome);
        assert_eq!(world.cloud_control(mark), 0, "no Cloud Control call");
        let writes = world.writes(mark, "/WebApp/us-east-1/");
        let state = world.aws.state_bucket();
        let other: Vec<&String> = writes
            .iter()
            .filter(|write| {
                write.contains(state) && !write.contains("/lock.json") && !write.contains("cdkd-journal/")
            })
            .collect();
        assert_eq!(other, [""; 0], "nothing but lock and journal");
        requests = world.since(mark).len();
        least = least.min(run.seconds);
    }
    assert_eq!(before, etag(), "the record is not written");
    world.check_put_down("WebApp");
    println!("unchanged in {least:.2} s, {requests} requests");
    // One of them asks for the marker of the region.
    assert!(requests <= 51, "an unchanged deploy makes {requests} requests");
}

#[test]
fn an_app_for_one_account_and_region_is_deployed_from_a_prefix() {
    let world = world();
    let _turn = world.among_others();
    let assembly = world.aws.upload_prefix("tests/apps/webapp/cdk.out").unwrap();
    let input = json!({ "assembly": assembly, "stacks": ["WebAppEast"] });
    let run = world.run("cdkd-deploy", &input);
    assert!(run.outcome.succeeded(), "{}", run.outcome);
    check_resources(&world, "WebAppEast");
    check_record(&world, "WebAppEast");
    assert_eq!(world.run("cdkd-deploy", &input).word(), "unchanged");
    let assembly = world.aws.upload_prefix("tests/apps/webapp/cdk.out.changed").unwrap();
    let run = world.run("cdkd-deploy", &json!({ "assembly": assembly, "stacks": ["WebAppEast"] }));
    assert_eq!(run.word(), "deployed");
    let record = world.record("WebAppEast");
    world.destroy("WebAppEast");
    check_gone(&world, &record);
    world.check_not_on_record("WebAppEast");
}

#[test]
fn t6_a_resource_whose_condition_turned_false_is_deleted() {
    let world = world();
    let _turn = world.among_others();
    let app = || {
        webapp("cdk.out", "WebApp", "WebAppT6", |template| {
            template["Outputs"]["JobsArn"]["Export"]["Name"] = json!("WebAppT6-JobsArn");
        })
    };
    let input =
        |stage: &str| json!({ "stacks": ["WebAppT6"], "parameters": { "WebAppT6": { "Stage": stage } } });
    let run = world.deploy_with(app(), input("dev"));
    assert!(run.outcome.succeeded(), "{}", run.outcome);
    let debug = world.physical_id("WebAppT6", "DebugA7303C21");
    let api = world.aws.api();
    assert!(api.parameter(&debug).unwrap().is_some());

    let run = world.deploy_with(app(), input("prod"));
    assert!(run.outcome.succeeded(), "{}", run.outcome);
    assert_eq!(api.parameter(&debug).unwrap(), None);
    let record = world.record("WebAppT6");
    assert!(record["resources"].get("DebugA7303C21").is_none());
    // And what turned true is made.
    let pages = world.physical_id("WebAppT6", "Pages127DFD1A");
    assert!(api.topic(&pages).unwrap().is_some());
    assert_eq!(record["outputs"]["PagesArn"], pages.as_str());
    let group = api.log_group(&world.physical_id("WebAppT6", "RequestsC42AC379")).unwrap().unwrap();
    assert_eq!(group["retentionInDays"].to_string(), "365");

    // T15: a value that no run gives is the recorded one; an unknown or missing one is an error, not a delete.
    let run = world.deploy_with(app(), json!({ "stacks": ["WebAppT6"] }));
    assert_eq!(run.word(), "unchanged", "{}", run.outcome);
    let run = world.deploy_with(
        app(),
        json!({ "stacks": ["WebAppT6"], "parameters": { "WebAppT6": { "Stge": "dev" } } }),
    );
    let cause = run.refused("UnknownParameter");
    assert!(cause["message"].as_str().unwrap().contains("Stge"), "{cause}");
    world.destroy("WebAppT6");
    world.check_not_on_record("WebAppT6");
}

#[test]
fn t11_the_stack_id_is_an_arn_with_a_uuid_and_stays() {
    let world = world();
    let _turn = world.among_others();
    let stack = |value: &str| {
        let template = json!({
            "Resources": { "P": { "Type": "AWS::SSM::Parameter", "Properties": {
                "Type": "String", "Value": { "Ref": "AWS::StackId" }, "Description": value,
            } } },
            "Outputs": { "Id": { "Value": { "Ref": "AWS::StackId" } } },
        });
        Stack::new("StackIds", &template)
    };
    world.deploy(stack("a"));
    let id = world.record("StackIds")["outputs"]["Id"].as_str().unwrap().to_owned();
    assert!(id.contains('/'), "{id}");
    let (prefix, uuid) = id.rsplit_once('/').unwrap();
    assert_eq!(prefix, "arn:aws:cloudformation:us-east-1:123456789012:stack/StackIds");
    let groups: Vec<usize> = uuid.split('-').map(str::len).collect();
    assert_eq!(groups, [8, 4, 4, 4, 12], "{id}");
    assert!(uuid.bytes().all(|c| c == b'-' || c.is_ascii_hexdigit()) && uuid.as_bytes()[14] == b'4', "{id}");
    let value =
        || world.aws.api().parameter(&world.physical_id("StackIds", "P")).unwrap().unwrap()["Value"].clone();
    assert_eq!(value(), id.as_str());
    world.deploy(stack("b"));
    assert_eq!((value(), &world.record("StackIds")["outputs"]["Id"]), (json!(id), &json!(id)));
    world.destroy("StackIds");
    // Another stack of the same name has another id.
    world.deploy(stack("a"));
    assert_ne!(world.record("StackIds")["outputs"]["Id"], id.as_str());
    world.destroy("StackIds");
}

#[test]
fn t13_depends_on_a_condition_false_resource_is_dropped() {
    let world = world();
    let _turn = world.among_others();
    let parameter = |more: Value| {
        let mut resource =
            json!({ "Type": "AWS::SSM::Parameter", "Properties": { "Type": "String", "Value": "v" } });
        resource.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        resource
    };
    let template = json!({
        "Conditions": { "Never": { "Fn::Equals": ["a", "b"] } },
        "Resources": {
            "Later": parameter(json!({ "DependsOn": ["Never1", "Always"] })),
            "Never1": parameter(json!({ "Condition": "Never" })),
            "Always": parameter(json!({})),
        },
    });
    let run = world.deploy(Stack::new("DependsOnFalse", &template));
    assert_eq!(run.word(), "deployed");
    let record = world.record("DependsOnFalse");
    assert_eq!(record["resources"]["Later"]["dependencies"], json!(["Always"]));
    assert_eq!(record["resources"].as_object().unwrap().len(), 2);
    world.destroy("DependsOnFalse");
}

#[test]
fn expanded_policies_of_roles_topics_and_queues_come_change_and_go() {
    let world = world();
    let _turn = world.among_others();
    let api = world.aws.api();
    let trust = json!({ "Version": "2012-10-17", "Statement": [
        { "Effect": "Allow", "Principal": { "Service": "ec2.amazonaws.com" }, "Action": "sts:AssumeRole" }
    ] });
    let stack = |roles: &[&str], action: &str| {
        let document = |action: &str, resource: Value| {
            json!({ "Version": "2012-10-17", "Statement": [
            { "Effect": "Allow", "Principal": { "AWS": { "Ref": "AWS::AccountId" } }, "Action": action, "Resource": resource }
        ] })
        };
        let refs: Vec<Value> = roles.iter().map(|role| json!({ "Ref": role })).collect();
        Stack::with(
            "Expansion",
            &json!({
                "One": { "Type": "AWS::IAM::Role", "Properties": { "AssumeRolePolicyDocument": trust } },
                "Two": { "Type": "AWS::IAM::Role", "Properties": { "AssumeRolePolicyDocument": trust } },
                "Shared": { "Type": "AWS::IAM::Policy", "Properties": {
                    "PolicyName": "shared", "Roles": refs,
                    "PolicyDocument": { "Version": "2012-10-17", "Statement": [
                        { "Effect": "Allow", "Action": action, "Resource": "*" }
                    ] },
                } },
                "Topic": { "Type": "AWS::SNS::Topic" },
                "TopicPolicy": { "Type": "AWS::SNS::TopicPolicy", "Properties": {
                    "Topics": [{ "Ref": "Topic" }], "PolicyDocument": document("sns:Publish", json!({ "Ref": "Topic" })),
                } },
                "Queue": { "Type": "AWS::SQS::Queue" },
                "QueuePolicy": { "Type": "AWS::SQS::QueuePolicy", "Properties": {
                    "Queues": [{ "Ref": "Queue" }], "PolicyDocument": document(action, json!({ "Fn::GetAtt": ["Queue", "Arn"] })),
                } },
            }),
        )
    };
    let inline = |logical_id: &str| {
        let role = api.role(&world.physical_id("Expansion", logical_id)).unwrap().unwrap();
        role.inline.get("shared").map(|policy| policy["Statement"][0]["Action"].clone())
    };
    let queue_policy = || {
        let queue = api.queue(&world.physical_id("Expansion", "Queue")).unwrap().unwrap();
        queue.get("Policy").and_then(Value::as_str).unwrap_or_default().to_owned()
    };
    world.deploy(stack(&["One", "Two"], "sqs:SendMessage"));
    assert_eq!(
        (inline("One"), inline("Two")),
        (Some(json!("sqs:SendMessage")), Some(json!("sqs:SendMessage")))
    );
    let topic = api.topic(&world.physical_id("Expansion", "Topic")).unwrap().unwrap();
    assert!(topic["Policy"].contains("sns:Publish"), "{topic:?}");
    assert!(queue_policy().contains("sqs:SendMessage"));

    world.deploy(stack(&["Two"], "sqs:ReceiveMessage"));
    assert_eq!((inline("One"), inline("Two")), (None, Some(json!("sqs:ReceiveMessage"))));
    assert!(queue_policy().contains("sqs:ReceiveMessage"));
    assert_eq!(world.try_deploy(stack(&["Two"], "sqs:ReceiveMessage")).word(), "unchanged");
    world.destroy("Expansion");
    world.check_not_on_record("Expansion");
}

#[test]
fn t12_stack_tags_stand_below_a_resources_own() {
    let world = world();
    let _turn = world.among_others();
    let stack = Stack::with(
        "Tagged",
        &json!({
            "Topic": { "Type": "AWS::SNS::Topic", "Properties": { "Tags": [{ "Key": "team", "Value": "own" }] } },
            "Group": { "Type": "AWS::Logs::LogGroup" },
            "Parameter": { "Type": "AWS::SSM::Parameter", "Properties": { "Type": "String", "Value": "v", "Tags": { "a": "b" } } },
        }),
    );
    world.deploy(stack.property("tags", json!({ "team": "stack", "env": "test" })));
    let topic = world.physical_id("Tagged", "Topic");
    let answer =
        world.aws.api().query(Query::Sns, "ListTagsForResource", &[("ResourceArn", &topic)]).unwrap();
    let tags = answer.pairs("Tags/member");
    assert_eq!(
        (tags["team"].as_str(), tags["env"].as_str(), tags["cdkd:logical-id"].as_str()),
        ("own", "test", "Topic")
    );
    let name = world.physical_id("Tagged", "Parameter");
    let request = json!({ "ResourceType": "Parameter", "ResourceId": name });
    let answer = world.aws.api().json(Json::Ssm, "ListTagsForResource", &request).unwrap();
    let tags = answer["TagList"].to_string();
    for tag in ["\"a\"", "\"env\"", "\"team\"", "\"cdkd:stack\""] {
        assert!(tags.contains(tag), "{tags}");
    }
    world.destroy("Tagged");
}

#[test]
fn l7_the_record_is_read_under_the_lock() {
    let world = world();
    let _alone = world.alone();
    // The index's upkeep after the first round reads the record as well.
    let _quiet = world.quiet();
    let parameter =
        json!({ "P": { "Type": "AWS::SSM::Parameter", "Properties": { "Type": "String", "Value": "v" } } });
    for round in ["empty", "on record"] {
        let mark = world.mark();
        world.deploy(Stack::with("LockFirst", &parameter));
        let log = world.since(mark);
        let place = |operation: &str, key: &str| {
            log.iter().position(|it| {
                it.operation == operation && it.resource.ends_with(&format!("LockFirst/us-east-1/{key}"))
            })
        };
        let locked = place("PutObject", "lock.json").unwrap();
        let read = place("GetObject", "state.json").unwrap();
        assert!(locked < read, "{round}: the record was read before the lock was taken");
    }
    world.destroy("LockFirst");
}

/// 500 resources, every tenth built on the one before it.
fn many(name: &str, secret: &str) -> Stack {
    let mut resources = json!({});
    for number in 0..500 {
        let mut value = json!(format!("{secret}-{number}"));
        if number % 10 == 0 && number > 0 {
            value = json!({ "Fn::Sub": format!("{secret}-${{P{}}}", number - 10) });
        }
        resources[format!("P{number}")] =
            json!({ "Type": "AWS::SSM::Parameter", "Properties": { "Type": "String", "Value": value } });
    }
    Stack::new(
        name,
        &json!({ "Resources": resources, "Outputs": { "Last": { "Value": { "Ref": "P499" } } } }),
    )
}

#[track_caller]
fn check_run(world: &World, what: &str, run: &Run, mark: u64, secret: &str) {
    assert!(run.outcome.succeeded(), "{}", run.outcome);
    assert!(!run.says(secret), "F1: a property value stands in the history");
    println!(
        "500 resources, {what}: {:.1} s, {} events, {} requests, largest payload {} bytes",
        run.seconds,
        run.history.len(),
        world.since(mark).len(),
        run.largest_payload()
    );
}

#[test]
fn f1_500_resources_pass_with_small_payloads_and_no_values() {
    let world = world();
    let _alone = world.alone();
    let secret = "Pl4nted";
    let mark = world.mark();
    let run = world.try_deploy(many("Many", secret));
    check_run(&world, "created", &run, mark, secret);
    assert_eq!(world.record("Many")["resources"].as_object().unwrap().len(), 500);
    assert!(run.outcome.output.as_ref().unwrap().to_string().len() < 4096, "F8: the answer is small");
    assert!(run.history.len() < 500, "{} events", run.history.len());
    world.check_put_down("Many");

    let mark = world.mark();
    let run = world.try_deploy(many("Many", secret));
    check_run(&world, "unchanged", &run, mark, secret);
    assert_eq!((run.word(), world.cloud_control(mark)), ("unchanged".to_owned(), 0));

    let mark = world.mark();
    let run = world.run("cdkd-destroy", &json!({ "stacks": ["Many"] }));
    check_run(&world, "destroyed", &run, mark, secret);
    world.check_not_on_record("Many");
}

#[test]
fn f8_an_answer_is_small_and_the_long_lists_are_in_the_result() {
    let world = world();
    let _turn = world.among_others();
    let mut outputs = json!({});
    for number in 0..150 {
        outputs[format!("O{number}")] = json!({ "Value": format!("v4lue-{number}-{}", "x".repeat(500)) });
    }
    let template = json!({
        "Resources": { "P": { "Type": "AWS::SSM::Parameter", "Properties": { "Type": "String", "Value": "v" } } },
        "Outputs": outputs,
    });
    let run = world.deploy(Stack::new("LongAnswer", &template));
    let answer = run.answer();
    assert!(answer.to_string().len() < 4096, "{answer}");
    let keys: Vec<&str> = answer.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(keys, ["outcome", "stacks", "notices", "warnings", "result"]);
    assert!(!run.says("v4lue"), "outputs are no payload");
    assert_eq!(world.result(&run)["stacks"][0]["outputs"].as_object().unwrap().len(), 150);
    assert_eq!(world.aws.result(&answer).unwrap().unwrap(), world.result(&run));
    world.destroy("LongAnswer");
}

#[test]
fn no_property_value_is_in_an_execution_also_when_it_fails() {
    let world = world();
    let _turn = world.among_others();
    let secret = "Pl4ntedSecret";
    let stack = |second: Value| {
        App::from(Stack::with(
            "Planted",
            &json!({
                "First": { "Type": "AWS::SSM::Parameter", "Properties": { "Type": "String", "Value": secret } },
                "Second": { "Type": "AWS::SQS::Queue", "DependsOn": "First", "Properties": second },
                "Third": { "Type": "AWS::SNS::Topic", "Properties": { "DisplayName": secret, "Tags": [{ "Key": "k", "Value": secret }] } },
            }),
        ))
    };
    for second in [json!({ "Nonsense": secret }), json!({ "VisibilityTimeout": format!("{secret}-60") })] {
        let run = world.try_deploy(stack(second));
        assert!(!run.outcome.succeeded());
        assert!(!run.says(secret), "{}", run.outcome);
    }
    let run = world.deploy(stack(json!({ "VisibilityTimeout": 10 })));
    assert!(!run.says(secret));
    let run = world.deploy(stack(json!({ "VisibilityTimeout": 11, "QueueName": format!("{secret}-q") })));
    assert!(!run.says(secret), "{:#?}", run.history);
    let run = world.destroy("Planted");
    assert!(!run.says(secret));
}
