//! Nested stacks: each has a record of its own, and they live and go with their parent.

#![allow(clippy::unwrap_used, reason = "what goes wrong in a test's own helpers fails the test")]

use std::sync::Arc;
use std::time::Duration;

use cdkd_e2e::{App, QUEUE, Run, Stack, World, consumer, import, setting, world_of};
use cdkd_test_support::{Json, Options};
use cdkd_wire::Rule;
use serde_json::{Value, json};

/// With a short time limit: a take-over waits for it.
fn world() -> Arc<World> {
    world_of(Options::default().time_limit(10))
}

const CHILD: &str = "ChildNestedStackChildNestedStackResourceC40294CA";
const GRANDCHILD: &str = "GrandchildNestedStackGrandchildNestedStackResource53009DE2";

/// A nested stack whose template lies in the assembly.
fn nested(file: &str, parameters: &Value) -> Value {
    json!({
        "Type": "AWS::CloudFormation::Stack",
        "Properties": { "TemplateURL": "https://never-fetched", "Parameters": parameters },
        "Metadata": { "aws:asset:path": file },
    })
}

/// A queue whose ARN the child exports, and a parameter in the parent that reads what comes up.
fn family(name: &str, export: &str, timeout: u32) -> App {
    let child = json!({
        "Parameters": { "Given": { "Type": "String" } },
        "Resources": {
            "Q": { "Type": QUEUE, "Properties": { "VisibilityTimeout": timeout } },
            "P": setting(&json!({ "Ref": "Given" })),
        },
        "Outputs": {
            "Name": { "Value": { "Fn::GetAtt": ["Q", "QueueName"] } },
            "Arn": { "Value": { "Fn::GetAtt": ["Q", "Arn"] }, "Export": { "Name": export } },
        },
    });
    let resources = json!({
        "Top": { "Type": QUEUE, "Properties": {} },
        "Child": nested("child.json", &json!({ "Given": { "Fn::GetAtt": ["Top", "QueueName"] } })),
        "P": setting(&json!({ "Fn::GetAtt": ["Child", "Outputs.Name"] })),
    });
    App::from(Stack::with(name, &resources)).file("child.json", child.to_string().as_bytes())
}

/// The URLs of all queues of a stack and of those nested in it.
fn queues(world: &World, stack: &str) -> usize {
    let request = json!({ "QueueNamePrefix": stack });
    let answer = world.aws.api().json(Json::Sqs, "ListQueues", &request).unwrap();
    answer["QueueUrls"].as_array().map_or(0, Vec::len)
}

#[track_caller]
fn check_gone(world: &World, stacks: &[&str]) {
    for stack in stacks {
        world.check_not_on_record(stack);
    }
    assert_eq!(queues(world, stacks[0]), 0);
}

fn sample(world: &World, folder: &str) -> Run {
    let assembly = world.aws.upload_assembly_zip(format!("tests/apps/nested/{folder}")).unwrap();
    let run = world.run("cdkd-deploy", &json!({ "assembly": assembly }));
    assert_eq!(run.outcome.status, "SUCCEEDED", "{}", run.outcome);
    run
}

#[test]
fn the_sample_app_from_nothing_to_nothing() {
    let world = world();
    let _alone = world.alone();
    let api = world.aws.api();
    let child = format!("Nested~{CHILD}");
    let grandchild = format!("{child}~{GRANDCHILD}");

    assert_eq!(sample(&world, "cdk.out").word(), "deployed");
    let record = world.record(&child);
    assert_eq!((&record["parentStack"], &record["parentLogicalId"]), (&json!("Nested"), &json!(CHILD)));
    assert_eq!(record["exportNames"], json!(["nested-jobs-arn"]));
    assert_eq!(world.record(&grandchild)["parentStack"], json!(child));
    let url = world.physical_id(&child, "JobsDF1CC2D4");
    let queue = api.queue(&url).unwrap().unwrap();
    let topic = world.physical_id("Nested", "EventsD32975C2");
    assert!(queue["Policy"].as_str().unwrap().contains(&topic), "{queue:?}");
    let place = world.physical_id(&grandchild, "Place7A6A35E8");
    let value = |name: &str| api.parameter(name).unwrap().unwrap()["Value"].as_str().unwrap().to_owned();
    assert!(value(&place).ends_with(&format!(" to {}", url.rsplit('/').next().unwrap())));
    let summary = world.physical_id("Nested", "Summary68521F81");
    assert_eq!(value(&summary), format!("jobs in {url}, their place in {place}"));
    // T12: the tags of the stack reach what is nested in it.
    let tags = api.json(Json::Sqs, "ListQueueTags", &json!({ "QueueUrl": url })).unwrap()["Tags"].clone();
    assert_eq!(tags["application"], "nested", "{tags}");
    assert_eq!(tags["cdkd:logical-id"], format!("{CHILD}/JobsDF1CC2D4"), "{tags}");
    assert!(world.indexed("nested-jobs-arn").unwrap().starts_with(&child));

    // Nothing changes: no call, no write of a record.
    let mark = world.mark();
    assert_eq!(sample(&world, "cdk.out").word(), "unchanged");
    assert_eq!(world.cloud_control(mark), 0);
    assert_eq!(world.writes(mark, "state.json"), [""; 0]);

    // In the nested stack alone.
    let mark = world.mark();
    assert_eq!(sample(&world, "cdk.out.changed").word(), "deployed");
    assert_eq!(world.mutations(mark), [format!("UpdateResource AWS::SQS::Queue {url}")]);
    assert_eq!(api.queue(&url).unwrap().unwrap()["VisibilityTimeout"], "60");

    // Without it: its content, its records, its row.
    assert_eq!(sample(&world, "cdk.out.without").word(), "deployed");
    assert!(world.record("Nested")["resources"].get(CHILD).is_none());
    assert_eq!((api.queue(&url).unwrap(), api.parameter(&place).unwrap()), (None, None));
    for stack in [&child, &grandchild] {
        world.check_not_on_record(stack);
    }
    assert_eq!(world.indexed("nested-jobs-arn"), None);

    assert_eq!(sample(&world, "cdk.out").word(), "deployed");
    world.destroy("Nested");
    check_gone(&world, &["Nested", &child, &grandchild]);
}

#[test]
fn e8_a_nested_stack_goes_with_its_parent_and_keeps_it_when_it_fails() {
    let world = world();
    let _turn = world.among_others();
    world.deploy(family("KeptParent", "kept-arn", 30));
    let alone = world.try_destroy(&["KeptParent~Child"]).refused("InvalidInput");
    assert!(alone["message"].as_str().unwrap().contains("`KeptParent`"), "{alone}");
    let alone = world
        .deploy_with(family("KeptParent", "kept-arn", 30), json!({ "stacks": ["KeptParent~Child"] }))
        .refused("InvalidInput");
    assert!(alone["message"].as_str().unwrap().contains("`KeptParent`"), "{alone}");

    world.fault(&json!({
        "type": QUEUE, "operation": "DELETE", "match": "KeptParent-Child-Q", "mode": "event", "times": 1,
        "error": { "HandlerErrorCode": "GeneralServiceException", "StatusMessage": "not now" },
    }));
    let cause = world.try_destroy(&["KeptParent"]).refused("ProvisioningFailed");
    assert!(cause["message"].as_str().unwrap().contains("KeptParent~Child"), "{cause}");
    assert!(world.row("KeptParent", "Child").is_object());
    assert!(world.row("KeptParent~Child", "Q").is_object());
    world.destroy("KeptParent");
    check_gone(&world, &["KeptParent", "KeptParent~Child"]);
}

#[test]
fn e27_exports_of_a_nested_stack_are_protected() {
    let world = world();
    let _turn = world.among_others();
    world.deploy(family("GuardedParent", "guarded-arn", 30));
    world.deploy(consumer("GuardedUser", &["guarded-arn"]));
    assert_eq!(world.imports("GuardedUser"), ["guarded-arn<GuardedParent~Child"]);
    let cause = world.try_destroy(&["GuardedParent"]).refused("StackHasActiveImportsError");
    assert!(cause["message"].as_str().unwrap().contains("GuardedUser"), "{cause}");
    // Nor does a deploy that drops the nested stack, or replaces what the export names.
    let dropped = Stack::with("GuardedParent", &json!({ "Top": { "Type": QUEUE, "Properties": {} } }));
    world.try_deploy(dropped).refused("StackHasActiveImportsError");
    assert_eq!(world.record("GuardedParent~Child")["exportNames"], json!(["guarded-arn"]));
    world.destroy("GuardedUser");
    world.destroy("GuardedParent");
    check_gone(&world, &["GuardedParent", "GuardedParent~Child"]);
}

#[test]
fn e27_imports_of_a_nested_stack_stand_on_its_own_record() {
    let world = world();
    let _turn = world.among_others();
    world.deploy(family("SourceParent", "source-arn", 30));
    let child = json!({ "Resources": { "P": setting(&import("source-arn")) } });
    let user = App::from(Stack::with("UserParent", &json!({ "Child": nested("c.json", &json!({})) })))
        .file("c.json", child.to_string().as_bytes());
    world.deploy(user);
    assert_eq!(world.imports("UserParent~Child"), ["source-arn<SourceParent~Child"]);
    let cause = world.try_destroy(&["SourceParent"]).refused("StackHasActiveImportsError");
    assert!(cause["message"].as_str().unwrap().contains("UserParent~Child"), "{cause}");
    world.destroy_all(&["SourceParent", "UserParent"]);
    check_gone(&world, &["SourceParent", "SourceParent~Child"]);
    check_gone(&world, &["UserParent", "UserParent~Child"]);
}

#[test]
fn a_failing_nested_stack_is_rolled_back_with_its_parent() {
    let world = world();
    let _turn = world.among_others();
    let broken = |name: &str| {
        let child = json!({ "Resources": {
            "Q": { "Type": QUEUE, "Properties": {} },
            "Bad": { "Type": QUEUE, "Properties": { "VisibilityTimeout": 30 }, "DependsOn": "Q" },
        } });
        let resources = json!({
            "Top": { "Type": QUEUE, "Properties": {} }, "Child": nested("c.json", &json!({})),
        });
        App::from(Stack::with(name, &resources)).file("c.json", child.to_string().as_bytes())
    };
    for name in ["BackParent", "BackAgain"] {
        if name == "BackAgain" {
            world.deploy(Stack::with(name, &json!({ "Top": { "Type": QUEUE, "Properties": {} } })));
        }
        world.fault(&json!({
            "type": QUEUE, "operation": "CREATE", "match": format!("{name}-Child-Bad"), "mode": "event", "times": 1,
            "error": { "HandlerErrorCode": "GeneralServiceException", "StatusMessage": "no" },
        }));
        let cause = world.try_deploy(broken(name)).refused("ProvisioningFailed");
        assert_eq!(cause["details"]["nestedStack"], format!("{name}~Child"), "{cause}");
        assert_eq!(cause["details"]["outcome"], "rolledBack", "{cause}");
        if name == "BackAgain" {
            assert!(world.record(name)["resources"].get("Child").is_none());
            world.check_not_on_record("BackAgain~Child");
            world.destroy(name);
        }
        check_gone(&world, &[name, &format!("{name}~Child")]);
    }
}

#[test]
fn a_run_that_dies_in_a_nested_stack_leaves_nothing_twice() {
    let world = world();
    let _alone = world.alone();
    for (name, place, before) in [
        ("DeadIntent", "DeadIntent~Child/us-east-1/state.json", false),
        ("DeadParent", "cdkd/DeadParent/us-east-1/state.json", true),
        ("DeadJournal", "cdkd-journal/cdkd/DeadJournal/us-east-1/0000000004", false),
    ] {
        let app = || family(name, &format!("{name}-arn"), 30);
        let put = Rule::on("s3", "PutObject").resource(place).nth(1);
        let kill = world.rule(if before { put.kill_before() } else { put.kill_after() });
        let execution = world.start_deploy(app(), json!({}));
        let api = world.aws.api();
        for _ in 0..600 {
            if kill.fired() > 0 {
                break;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        assert!(kill.fired() > 0, "{name}");
        api.stop_execution(&execution).unwrap();
        drop(kill);
        world.deploy(app());
        assert_eq!(queues(&world, name), 2, "{name}");
        assert_eq!(world.record(&format!("{name}~Child"))["resources"].as_object().unwrap().len(), 2);
        world.destroy(name);
        check_gone(&world, &[name, &format!("{name}~Child")]);
    }
}
