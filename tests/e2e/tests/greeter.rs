//! The sample app with code: it runs from where its assets were published, before and after they move.

#![allow(clippy::unwrap_used, reason = "what goes wrong in a test's own helpers fails the test")]

use cdkd_e2e::{Run, World, world};
use cdkd_test_support::{ACCOUNT, Json, REGION};
use serde_json::{Value, json};

const INNER: &str = "Greeter~InnerNestedStackInnerNestedStackResource745E041B";

fn deploy(world: &World, folder: &str, options: &Value) -> Run {
    let assembly = world.aws.upload_assembly_zip(format!("tests/apps/assets/{folder}")).unwrap();
    let run = world.run("cdkd-deploy", &json!({ "assembly": assembly, "options": options }));
    assert_eq!(run.outcome.status, "SUCCEEDED", "{}", run.outcome);
    run
}

fn outputs(world: &World) -> Value {
    world.record("Greeter")["outputs"].clone()
}

/// What the deployed functions and the state machine answer.
fn answers(world: &World) -> (Value, Value, Value) {
    let (api, outputs) = (world.aws.api(), outputs(world));
    let named = |output: &str| outputs[output].as_str().unwrap().to_owned();
    let greeting = api.invoke(&named("Function"), &json!({"name": "ada"})).unwrap();
    let echo = api.invoke(&named("InnerFunction"), &json!({"n": 1})).unwrap();
    let started = json!({"stateMachineArn": named("FlowArn"), "input": "{}"});
    let started = api.json(Json::StepFunctions, "StartExecution", &started).unwrap();
    let flow = api.wait(started["executionArn"].as_str().unwrap()).unwrap();
    (greeting, echo, flow.output.unwrap())
}

#[track_caller]
fn check_answers(world: &World, bucket: &str, mark: &str) {
    let (greeting, echo, flow) = answers(world);
    assert_eq!(greeting["says"], format!("good morning, Ada{mark}"), "{greeting}");
    assert_eq!(greeting["layer"], "words 1", "{greeting}");
    let data = greeting["data"].as_str().unwrap();
    let key =
        data.strip_prefix(&format!("s3://{bucket}/")).unwrap_or_else(|| panic!("{data} is not in {bucket}"));
    let body = world.aws.api().get_object(bucket, key).unwrap().unwrap();
    assert_eq!(serde_json::from_slice::<Value>(&body).unwrap(), json!({"languages": ["en"]}));
    assert_eq!(echo, json!({"echo": {"n": 1}}));
    assert_eq!(flow, json!({"flow": "from an asset"}));
}

#[test]
fn a30_a29_an_app_with_code_moves_to_storage_of_its_own_and_runs_from_there() {
    let world = world();
    let (api, cdk) = (world.aws.api(), format!("cdk-hnb659fds-assets-{ACCOUNT}-{REGION}"));
    let own = format!("cdkd-assets-{ACCOUNT}-{REGION}");
    api.create_bucket(&cdk).unwrap();
    let run = deploy(&world, "cdk.out", &json!({}));
    assert_eq!(run.outcomes(), ["Phrases deployed", "Greeter deployed"]);
    let published = api.list_objects(&cdk, "").unwrap();
    assert_eq!(published.len(), 5, "two functions, a layer, a file and a definition: {published:?}");
    check_answers(&world, &cdk, "");

    api.invoke("cdkd-bootstrap", &json!({})).unwrap();
    let plan = deploy(&world, "cdk.out", &json!({"dryRun": true}));
    let answer = plan.answer();
    let warnings = answer["warnings"].to_string();
    // What is create-only is replaced, and told apart (A29).
    assert!(warnings.contains("replaced: `WordsA4B36C34`"), "{answer}");
    assert!(warnings.contains("updated:") && warnings.contains("FlowA74D6E88"), "{answer}");
    let steps = &world.result(&plan)["plans"][1]["applies"];
    let moved =
        |id: &str| steps.as_array().unwrap().iter().any(|it| it["id"] == id && it["repoints"] == true);
    assert!(
        moved("WordsA4B36C34") && moved("FlowA74D6E88") && moved("GreetServiceRoleDefaultPolicy97567763"),
        "{steps}"
    );
    assert!(steps.to_string().contains(&own) && !steps[0]["desired"].to_string().contains(&cdk));

    let mark = world.mark();
    let moved = deploy(&world, "cdk.out", &json!({}));
    assert_eq!(moved.outcomes(), ["Phrases unchanged", "Greeter deployed"]);
    for stack in ["Greeter", INNER] {
        let record = world.record(stack).to_string();
        assert!(!record.contains("hnb659fds"), "{record}");
    }
    assert_eq!(api.list_objects(&own, "").unwrap(), published, "the keys are the same");
    assert_eq!(world.writes(mark, &cdk), [""; 0]);
    assert_eq!(api.list_objects(&cdk, "").unwrap(), published);
    check_answers(&world, &own, "");

    // What `cdk gc` does.
    for key in &published {
        api.delete_object(&cdk, key).unwrap();
    }
    assert_eq!(deploy(&world, "cdk.out", &json!({})).word(), "unchanged");
    let changed = deploy(&world, "cdk.out.changed", &json!({}));
    assert_eq!(changed.outcomes(), ["Phrases unchanged", "Greeter deployed"]);
    check_answers(&world, &own, "!");

    let functions: Vec<String> =
        ["Function", "InnerFunction"].map(|it| outputs(&world)[it].as_str().unwrap().to_owned()).into();
    world.run("cdkd-destroy", &json!({"stacks": ["Greeter", "Phrases"]}));
    for stack in ["Greeter", INNER, "Phrases"] {
        world.check_not_on_record(stack);
    }
    for function in functions {
        assert!(api.invoke(&function, &json!({})).is_err(), "{function} is still there");
    }
    assert_eq!(api.list_objects(&own, "").unwrap(), published, "assets outlive their stack");
}
