//! AWS and the network at their worst: what a run makes of it.

#![allow(clippy::unwrap_used, reason = "what goes wrong in a test's own helpers fails the test")]

use std::sync::Arc;

use cdkd_e2e::{Stack, World, world_of};
use cdkd_test_support::{Json, Options};
use cdkd_wire::Rule;
use serde_json::{Value, json};

/// With a short time limit: who loses the journal cannot say that it is over, and is waited for.
fn world() -> Arc<World> {
    world_of(Options::default().time_limit(12))
}

const QUEUE: &str = "AWS::SQS::Queue";

fn queue(timeout: u32) -> Value {
    json!({ "Type": QUEUE, "Properties": { "VisibilityTimeout": timeout } })
}

fn parameter(value: &str) -> Value {
    json!({ "Type": "AWS::SSM::Parameter", "Properties": { "Type": "String", "Value": value } })
}

/// The queues whose names begin with a stack's name: how cdkd names them.
fn queues(world: &World, stack: &str) -> Vec<String> {
    let request = json!({ "QueueNamePrefix": format!("{stack}-") });
    let answer = world.aws.api().json(Json::Sqs, "ListQueues", &request).unwrap();
    let urls = answer["QueueUrls"].as_array().cloned().unwrap_or_default();
    urls.iter().map(|url| url.as_str().unwrap().to_owned()).collect()
}

fn timeout(world: &World, url: &str) -> String {
    world.aws.api().queue(url).unwrap().unwrap()["VisibilityTimeout"].as_str().unwrap().to_owned()
}

fn failed(code: &str, message: &str) -> Value {
    json!({ "HandlerErrorCode": code, "StatusMessage": message })
}

/// Deploys a stack of one queue and checks that there is exactly one in the end.
#[track_caller]
fn one_queue(world: &World, stack: &str) {
    let run = world.deploy(Stack::with(stack, &json!({ "Q": queue(30) })));
    assert_eq!(run.word(), "deployed");
    assert_eq!(queues(world, stack), [world.physical_id(stack, "Q")], "nothing is created twice");
    world.check_put_down(stack);
}

#[test]
fn p1_the_network_fails_while_polling_and_nothing_is_created_twice() {
    let world = world();
    let _alone = world.alone();
    for (stack, rule) in [
        ("PollDropped", Rule::on("cloudcontrol", "GetResourceRequestStatus").times(3).drop_after()),
        ("PollRefused", Rule::on("cloudcontrol", "GetResourceRequestStatus").times(3).internal_error()),
        ("PollThrottled", Rule::on("cloudcontrol", "GetResourceRequestStatus").times(3).throttle()),
    ] {
        let rule = world.rule(rule);
        let mark = world.mark();
        one_queue(&world, stack);
        assert_eq!(rule.fired(), 3, "{stack}");
        assert_eq!(world.mutations(mark).len(), 1, "{stack}: {:?}", world.mutations(mark));
        world.destroy(stack);
        world.check_not_on_record(stack);
    }
}

#[test]
fn p1_a_call_whose_answer_is_lost_is_repeated_under_its_token() {
    let world = world();
    let _turn = world.among_others();
    for (stack, rule) in [
        ("CreateLost", Rule::on("cloudcontrol", "CreateResource").body("CreateLost").nth(1).drop_after()),
        (
            "CreateNotSent",
            Rule::on("cloudcontrol", "CreateResource").body("CreateNotSent").nth(1).drop_before(),
        ),
        (
            "CreateInTrouble",
            Rule::on("cloudcontrol", "CreateResource").body("CreateInTrouble").nth(1).answer_after(
                500,
                "ServiceInternalErrorException",
                "no",
            ),
        ),
    ] {
        let rule = world.rule(rule);
        one_queue(&world, stack);
        assert_eq!(rule.fired(), 1, "{stack}");
        let url = world.physical_id(stack, "Q");
        let update = world.rule(Rule::on("cloudcontrol", "UpdateResource").body(&url).nth(1).drop_after());
        world.deploy(Stack::with(stack, &json!({ "Q": queue(31) })));
        assert_eq!((update.fired(), timeout(&world, &url).as_str()), (1, "31"));
        let delete = world.rule(Rule::on("cloudcontrol", "DeleteResource").body(&url).nth(1).drop_after());
        world.destroy(stack);
        assert_eq!(delete.fired(), 1);
        assert_eq!(queues(&world, stack), [""; 0]);
        world.check_not_on_record(stack);
    }
}

#[test]
fn p7_throttling_of_the_call_is_waited_out() {
    let world = world();
    let _turn = world.among_others();
    for (operation, stack) in
        [("CREATE", "ThrottledCreate"), ("UPDATE", "ThrottledUpdate"), ("DELETE", "ThrottledDelete")]
    {
        world.fault(&json!({
            "type": QUEUE, "operation": operation, "match": stack, "mode": "call", "times": 2,
            "error": { "name": "ThrottlingException", "StatusMessage": "Rate exceeded" },
        }));
        one_queue(&world, stack);
        let url = world.physical_id(stack, "Q");
        world.deploy(Stack::with(stack, &json!({ "Q": queue(31) })));
        assert_eq!(timeout(&world, &url), "31");
        world.destroy(stack);
        assert_eq!(world.hits(stack), 2);
        world.check_not_on_record(stack);
    }
}

#[test]
fn p3_p7_throttling_inside_a_failed_event_is_tried_anew_under_another_token() {
    let world = world();
    let _turn = world.among_others();
    // Under its old token the emulator would answer the old event for ever.
    for (operation, stack) in
        [("CREATE", "EventCreate"), ("UPDATE", "EventUpdate"), ("DELETE", "EventDelete")]
    {
        world.fault(&json!({
            "type": QUEUE, "operation": operation, "match": stack, "mode": "event", "times": 2,
            "error": failed("Throttling", "Rate exceeded"),
        }));
        one_queue(&world, stack);
        let url = world.physical_id(stack, "Q");
        world.deploy(Stack::with(stack, &json!({ "Q": queue(31) })));
        assert_eq!(timeout(&world, &url), "31");
        world.destroy(stack);
        assert_eq!(world.hits(stack), 2);
        world.check_not_on_record(stack);
    }
}

#[test]
fn p9_a_role_that_is_not_visible_yet_is_tried_again() {
    let world = world();
    let _turn = world.among_others();
    world.fault(&json!({
        "type": QUEUE, "operation": "CREATE", "match": "NotVisible", "mode": "event", "times": 1,
        "error": failed("InvalidRequest", "The role defined for the function cannot be assumed by Lambda."),
    }));
    one_queue(&world, "NotVisible");
    assert_eq!(world.hits("NotVisible"), 1);
    world.destroy("NotVisible");
}

#[test]
fn p4_a_delete_that_failed_with_not_found_is_done() {
    let world = world();
    let _turn = world.among_others();
    one_queue(&world, "DeleteNotFound");
    world.fault(&json!({
        "type": QUEUE, "operation": "DELETE", "match": "DeleteNotFound", "mode": "event", "after": true,
        "error": failed("NotFound", "was not found"),
    }));
    world.destroy("DeleteNotFound");
    assert_eq!(world.hits("DeleteNotFound"), 1);
    world.check_not_on_record("DeleteNotFound");

    // Someone else deleted it.
    one_queue(&world, "DeletedByHand");
    let url = world.physical_id("DeletedByHand", "Q");
    world.aws.api().json(Json::Sqs, "DeleteQueue", &json!({ "QueueUrl": url })).unwrap();
    world.destroy("DeletedByHand");
    world.check_not_on_record("DeletedByHand");
}

#[test]
fn p5_a_write_only_property_survives_an_update_of_another() {
    let world = world();
    let _turn = world.among_others();
    let stack = |description: &str, secret: &str| {
        Stack::with(
            "WriteOnly",
            &json!({ "S": { "Type": "AWS::SecretsManager::Secret", "Properties": {
            "Description": description, "SecretString": secret,
        } } }),
        )
    };
    let secret = || {
        let target = [
            ("content-type", "application/x-amz-json-1.1".to_owned()),
            ("x-amz-target", "secretsmanager.GetSecretValue".to_owned()),
        ];
        let body = json!({ "SecretId": world.physical_id("WriteOnly", "S") }).to_string();
        let answer = world
            .aws
            .api()
            .rest("secretsmanager", http::Method::POST, "/", &target, body.as_bytes())
            .unwrap();
        let answer: Value = serde_json::from_slice(&answer.body).unwrap();
        answer["SecretString"].as_str().unwrap_or_default().to_owned()
    };
    world.deploy(stack("one", "first"));
    assert_eq!(secret(), "first");
    let mark = world.mark();
    world.deploy(stack("two", "first"));
    assert!(
        world
            .mutations(mark)
            .iter()
            .any(|call| call.starts_with("UpdateResource AWS::SecretsManager::Secret"))
    );
    assert_eq!(secret(), "first", "the update of the description keeps it");
    world.deploy(stack("two", "second"));
    assert_eq!(secret(), "second");
    world.destroy("WriteOnly");
}

#[test]
fn p2_what_a_failed_create_left_is_deleted_and_the_first_error_is_reported() {
    let world = world();
    let _turn = world.among_others();
    world.fault(&json!({
        "type": QUEUE, "operation": "CREATE", "match": "Remnant", "mode": "event", "after": true,
        "error": failed("GeneralServiceException", "the queue did not become healthy"),
    }));
    let run = world.try_deploy(Stack::with("Remnant", &json!({ "Q": queue(30), "P": parameter("v") })));
    let cause = run.refused("ProvisioningFailed");
    let message = cause["message"].as_str().unwrap();
    assert!(message.contains("`Q`") && message.contains("the queue did not become healthy"), "{cause}");
    assert_eq!((&cause["details"]["logicalId"], &cause["details"]["type"]), (&json!("Q"), &json!(QUEUE)));
    assert_eq!(cause["details"]["stacks"][0]["outcome"], "rolledBack", "{cause}");
    assert_eq!(queues(&world, "Remnant"), [""; 0]);
    world.check_not_on_record("Remnant");
}

#[test]
fn p2_what_was_there_before_is_never_taken_for_a_remnant() {
    let world = world();
    let _turn = world.among_others();
    let request = json!({ "QueueName": "of-someone-else" });
    let answer = world.aws.api().json(Json::Sqs, "CreateQueue", &request).unwrap();
    let url = answer["QueueUrl"].as_str().unwrap();
    let named = json!({ "Q": { "Type": QUEUE, "Properties": { "QueueName": "of-someone-else" } } });
    let run = world.try_deploy(Stack::with("Taken", &named));
    let cause = run.refused("ProvisioningFailed");
    assert_eq!(cause["details"]["awsCode"], "AlreadyExists", "{cause}");
    assert!(world.aws.api().queue(url).unwrap().is_some(), "it is someone else's");
    world.check_not_on_record("Taken");
}

#[test]
fn e28_a_first_deploy_that_fails_in_the_middle_leaves_nothing() {
    let world = world();
    let _turn = world.among_others();
    let mut resources = json!({ "Bad": queue(30) });
    for number in 0..4 {
        resources[format!("Before{number}")] = parameter("v");
    }
    resources["Topic"] = json!({ "Type": "AWS::SNS::Topic" });
    resources["Bad"]["DependsOn"] = json!(["Before0", "Before1", "Before2", "Before3", "Topic"]);
    resources["After"] = parameter("v");
    resources["After"]["DependsOn"] = json!("Bad");
    world.fault(&json!({
        "type": QUEUE, "operation": "CREATE", "match": "MiddleFails", "mode": "event",
        "error": failed("InvalidRequest", "no such thing"),
    }));
    let run = world.try_deploy(Stack::with("MiddleFails", &resources));
    let cause = run.refused("ProvisioningFailed");
    assert_eq!(cause["details"]["stacks"][0]["outcome"], "rolledBack", "{cause}");
    let result = world.result(&run);
    assert_eq!(
        (&result["outcome"], &result["error"]["code"]),
        (&json!("rolledBack"), &json!("ProvisioningFailed"))
    );
    world.check_not_on_record("MiddleFails");
    // By the names that cdkd gives.
    let found = world.aws.api().json(Json::Ssm, "DescribeParameters", &json!({})).unwrap();
    let names = found["Parameters"].to_string();
    assert!(!names.contains("MiddleFails"), "{names}");
    let topics = world.aws.api().query(cdkd_test_support::Query::Sns, "ListTopics", &[]).unwrap();
    assert!(!format!("{topics:?}").contains("MiddleFails"), "{topics:?}");

    // The next try makes all of it.
    let run = world.deploy(Stack::with("MiddleFails", &resources));
    assert_eq!(run.answer()["stacks"][0]["counts"]["create"], 7);
    world.destroy("MiddleFails");
}

#[test]
fn a_failed_update_brings_the_old_properties_back() {
    let world = world();
    let _turn = world.among_others();
    let resources = |timeout: u32, value: &str, more: bool| {
        let mut resources = json!({ "Q": queue(timeout), "P": parameter(value), "Last": queue(timeout) });
        resources["Last"]["DependsOn"] = json!(["Q", "P"]);
        if more {
            resources["New"] = parameter("new");
            resources["Last"]["DependsOn"] = json!(["Q", "P", "New"]);
        }
        resources
    };
    world.deploy(Stack::with("UpdateFails", &resources(30, "old", false)));
    let before = world.record("UpdateFails");
    let (first, last) = (world.physical_id("UpdateFails", "Q"), world.physical_id("UpdateFails", "Last"));
    world.fault(&json!({
        "type": QUEUE, "operation": "UPDATE", "match": "UpdateFails-Last", "mode": "event",
        "error": failed("InvalidRequest", "not today"),
    }));
    let run = world.try_deploy(Stack::with("UpdateFails", &resources(60, "new", true)));
    let cause = run.refused("ProvisioningFailed");
    assert!(cause["message"].as_str().unwrap().contains("not today"), "{cause}");
    assert_eq!(cause["details"]["stacks"][0]["outcome"], "rolledBack", "{cause}");
    assert_eq!((timeout(&world, &first), timeout(&world, &last)), ("30".to_owned(), "30".to_owned()));
    let value = |id: &str| {
        world.aws.api().parameter(&world.physical_id("UpdateFails", id)).unwrap().unwrap()["Value"].clone()
    };
    assert_eq!(value("P"), "old");
    let record = world.record("UpdateFails");
    assert_eq!(record["resources"], before["resources"], "the record says what it said");
    assert_eq!(record["outputs"], before["outputs"]);
    world.check_put_down("UpdateFails");
    assert_eq!(world.deploy(Stack::with("UpdateFails", &resources(30, "old", false))).word(), "unchanged");
    world.destroy("UpdateFails");
}

#[test]
fn a_failed_run_gives_a_replaced_resource_its_place_back() {
    let world = world();
    let _turn = world.among_others();
    let resources = |fifo: bool| {
        let mut first = queue(30);
        if fifo {
            first["Properties"]["FifoQueue"] = json!(true);
        }
        let mut second = parameter("x");
        second["Properties"]["Value"] = json!({ "Fn::GetAtt": ["Q", "Arn"] });
        json!({ "Q": first, "P": second })
    };
    world.deploy(Stack::with("ReplaceFails", &resources(false)));
    let before = world.record("ReplaceFails");
    let old = world.physical_id("ReplaceFails", "Q");
    world.fault(&json!({
        "type": "AWS::SSM::Parameter", "operation": "UPDATE", "match": "ReplaceFails", "mode": "event",
        "error": failed("GeneralServiceException", "not today"),
    }));
    let run = world.try_deploy(Stack::with("ReplaceFails", &resources(true)));
    let cause = run.refused("ProvisioningFailed");
    assert_eq!(cause["details"]["stacks"][0]["outcome"], "rolledBack", "{cause}");
    assert_eq!(queues(&world, "ReplaceFails"), [old], "the old one stays, the new one is gone");
    let record = world.record("ReplaceFails");
    assert_eq!(record["resources"], before["resources"]);
    assert!(record.get("pendingDeletes").is_none(), "{record}");
    world.deploy(Stack::with("ReplaceFails", &resources(true)));
    assert_eq!(queues(&world, "ReplaceFails"), [world.physical_id("ReplaceFails", "Q")]);
    world.destroy("ReplaceFails");
}

#[test]
fn without_rollback_a_failed_run_leaves_what_it_did_on_record() {
    let world = world();
    let _turn = world.among_others();
    let mut resources = json!({ "P": parameter("v"), "Q": queue(30) });
    resources["Q"]["DependsOn"] = json!("P");
    world.fault(&json!({
        "type": QUEUE, "operation": "CREATE", "match": "NoRollback", "mode": "event",
        "error": failed("InvalidRequest", "not today"),
    }));
    let input = json!({ "options": { "rollback": false } });
    let run = world.deploy_with(Stack::with("NoRollback", &resources), input);
    let cause = run.refused("ProvisioningFailed");
    assert_eq!(cause["details"]["stacks"][0]["outcome"], "failed", "{cause}");
    let parameter = world.physical_id("NoRollback", "P");
    assert!(world.aws.api().parameter(&parameter).unwrap().is_some());
    world.check_put_down("NoRollback");
    let run = world.deploy(Stack::with("NoRollback", &resources));
    let counts = run.answer()["stacks"][0]["counts"].clone();
    assert_eq!((&counts["create"], &counts["unchanged"]), (&json!(1), &json!(1)), "it goes on where it was");
    assert_eq!(world.physical_id("NoRollback", "P"), parameter);
    world.destroy("NoRollback");
}

#[test]
fn p12_retain_keeps_and_names_what_leaves_the_template() {
    let world = world();
    let _turn = world.among_others();
    let mut kept = queue(30);
    kept["DeletionPolicy"] = json!("Retain");
    kept["UpdateReplacePolicy"] = json!("Retain");
    world.deploy(Stack::with("Retained", &json!({ "Q": kept, "P": parameter("v") })));
    let url = world.physical_id("Retained", "Q");
    let run = world.deploy(Stack::with("Retained", &json!({ "P": parameter("v") })));
    assert_eq!(run.answer()["stacks"][0]["counts"]["retain"], 1);
    assert!(world.aws.api().queue(&url).unwrap().is_some());
    let result = world.result(&run);
    assert!(result["stacks"][0]["steps"].to_string().contains("retain"), "{result:#}");
    world.destroy("Retained");
    assert!(world.aws.api().queue(&url).unwrap().is_some());
}

#[test]
fn p11_a_physical_id_that_another_row_holds_is_not_deleted() {
    let world = world();
    let _turn = world.among_others();
    // A subscription is found again by its topic and endpoint: made under a second logical id it is the same one.
    let resources = |logical_id: &str| {
        let mut resources = json!({ "T": { "Type": "AWS::SNS::Topic" }, "Q": queue(30) });
        resources[logical_id] = json!({ "Type": "AWS::SNS::Subscription", "Properties": {
            "TopicArn": { "Ref": "T" }, "Protocol": "sqs", "Endpoint": { "Fn::GetAtt": ["Q", "Arn"] },
        } });
        resources
    };
    world.deploy(Stack::with("SameThing", &resources("One")));
    let topic = world.physical_id("SameThing", "T");
    let run = world.try_deploy(Stack::with("SameThing", &resources("Two")));
    let left = world.aws.api().subscriptions(&topic).unwrap();
    assert_eq!(left.len(), 1, "{}", run.outcome);
    world.destroy("SameThing");
}

/// The writes of a deploy whose answers may be lost, by the key they go to.
const WRITES: [(&str, &str); 3] = [
    ("lock", "*/{}/us-east-1/lock.json"),
    ("journal", "cdkd-state-*/cdkd-journal/cdkd/{}/*"),
    ("record", "*/{}/us-east-1/state.json"),
];

fn put(stack: &str, place: &str) -> cdkd_wire::RuleBuilder {
    Rule::on("s3", "PutObject").resource(&place.replace("{}", stack))
}

#[test]
fn l1_a_write_whose_answer_is_lost_is_known_for_ones_own() {
    let world = world();
    let _turn = world.among_others();
    for (what, place) in WRITES {
        let stack = format!("Lost{what}");
        // Of the journal, one in the middle of the work and not only the fence.
        let nth = if what == "journal" { 4 } else { 1 };
        let rule = world.rule(put(&stack, place).nth(nth).drop_after());
        one_queue(&world, &stack);
        assert_eq!(rule.fired(), 1, "{what}");
        drop(rule);
        let rule = world.rule(put(&stack, place).nth(1).times(2).drop_after());
        world.deploy(Stack::with(&stack, &json!({ "Q": queue(31) })));
        assert!(rule.fired() >= 1, "{what}");
        drop(rule);
        let rule = world.rule(put(&stack, place).nth(2).drop_after());
        world.destroy(&stack);
        let _not_all_are_written = rule.fired();
        world.check_not_on_record(&stack);
    }
}

#[test]
fn l1_every_journal_write_may_lose_its_answer() {
    let world = world();
    let _turn = world.among_others();
    let stack = "LostAll";
    for nth in 1..=6 {
        let stack = format!("{stack}{nth}");
        let rule = world.rule(put(&stack, WRITES[1].1).nth(nth).drop_after());
        one_queue(&world, &stack);
        assert_eq!(rule.fired(), 1, "write {nth}");
        world.destroy(&stack);
        world.check_not_on_record(&stack);
    }
}

#[test]
fn l2_a_409_is_a_retry_for_every_document() {
    let world = world();
    let _turn = world.among_others();
    for (what, place) in WRITES {
        let stack = format!("Conflict{what}");
        let rule = world.rule(put(&stack, place).nth(1).times(2).conditional_conflict());
        one_queue(&world, &stack);
        assert_eq!(rule.fired(), 2, "{what}");
        // And the delete of the lock.
        let delete = Rule::on("s3", "DeleteObject").resource(&place.replace("{}", &stack)).nth(1);
        let rule = world.rule(delete.conditional_conflict());
        world.destroy(&stack);
        assert!(rule.fired() >= 1 || what == "journal", "{what}");
        world.check_not_on_record(&stack);
    }
}

#[test]
fn l2_a_412_of_the_lock_is_another_look() {
    let world = world();
    let _turn = world.among_others();
    let rule = world.rule(put("LockRace", WRITES[0].1).nth(1).precondition_failed());
    one_queue(&world, "LockRace");
    assert_eq!(rule.fired(), 1);
    world.destroy("LockRace");
}

#[test]
fn l2_a_412_of_the_journal_is_waited_out_behind_a_new_fence_and_nothing_happens_twice() {
    let world = world();
    let _turn = world.among_others();
    // The intent, what Cloud Control answered, the outcome. Who lost may not call any more; the lock is still the
    // run's, so that the next invocation goes on.
    for entry in ["clientToken", "requestToken", "outcome"] {
        let stack = format!("JournalRace{entry}");
        let rule =
            world.rule(put(&stack, WRITES[1].1).body(&format!("\"{entry}\":")).nth(1).precondition_failed());
        one_queue(&world, &stack);
        assert_eq!(rule.fired(), 1, "{entry}");
        drop(rule);
        world.destroy(&stack);
        assert_eq!(queues(&world, &stack), [""; 0]);
        world.check_not_on_record(&stack);
    }
}

#[test]
fn l2_a_412_of_the_record_is_a_conflict_and_nothing_is_lost() {
    let world = world();
    let _turn = world.among_others();
    for nth in [1, 2] {
        let stack = format!("RecordRace{nth}");
        let rule = world.rule(put(&stack, WRITES[2].1).nth(nth).precondition_failed());
        let run = world.try_deploy(Stack::with(&stack, &json!({ "Q": queue(30) })));
        assert_eq!(rule.fired(), 1, "{nth}");
        let cause = run.refused("StateConflict");
        assert!(cause["message"].as_str().unwrap().contains(&stack), "{cause}");
        drop(rule);
        // What was made is known, by record or journal: the next run goes on with it.
        one_queue(&world, &stack);
        world.destroy(&stack);
        assert_eq!(queues(&world, &stack), [""; 0]);
        world.check_not_on_record(&stack);
    }
}

#[test]
fn f6_s3_in_trouble_for_a_moment_is_waited_out() {
    let world = world();
    let _turn = world.among_others();
    let slow = world.rule(Rule::on("s3", "*").resource("*InTrouble*").nth(3).times(2).slow_down());
    let broken = world.rule(Rule::on("s3", "*").resource("*InTrouble*").nth(8).times(2).internal_error());
    one_queue(&world, "InTrouble");
    assert_eq!((slow.fired(), broken.fired()), (2, 2));
    drop((slow, broken));
    world.destroy("InTrouble");
}
