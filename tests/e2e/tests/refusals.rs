//! What is refused: with the right code, naming the thing, and nothing touched.

#![allow(clippy::unwrap_used, reason = "what goes wrong in a test's own helpers fails the test")]

use std::time::Duration;

use cdkd_e2e::{App, Run, Stack, World, world};
use cdkd_test_support::Archive;
use cdkd_wire::{Rule, When};
use serde_json::{Value, json};

fn parameter() -> Value {
    json!({ "P": { "Type": "AWS::SSM::Parameter", "Properties": { "Type": "String", "Value": "v" } } })
}

/// Runs a machine that is to refuse before anything is touched: no lock, no journal, no record, no Cloud Control call.
#[track_caller]
fn untouched(world: &World, machine: &str, input: &Value, code: &str, says: &[&str]) -> Value {
    let mark = world.mark();
    let run = world.run(machine, input);
    let cause = check(&run, code, says);
    assert_eq!(
        world.writes(mark, world.aws.state_bucket()),
        [""; 0],
        "{code}: the state bucket was written to"
    );
    assert_eq!(world.cloud_control(mark), 0, "{code}: Cloud Control was called");
    cause
}

/// Whether a refusal has this code and says all that; what it says is message and hint.
#[track_caller]
fn check(run: &Run, code: &str, says: &[&str]) -> Value {
    let cause = run.refused(code);
    let text = format!("{} {}", cause["message"], cause["hint"]);
    for part in says {
        assert!(text.contains(part), "no `{part}` in {cause}");
    }
    // Of some the message says what is right; of no other is a person left without a way on.
    let told =
        ["InvalidInput", "InvalidTemplate", "UnresolvedReference", "CircularDependency"].contains(&code);
    assert!(told || cause["hint"].as_str().is_some_and(|hint| !hint.is_empty()), "no hint in {cause}");
    cause
}

#[track_caller]
fn deploy(world: &World, app: impl Into<App>, mut more: Value, code: &str, says: &[&str]) -> Value {
    more["assembly"] = json!(world.upload(&app.into()));
    untouched(world, "cdkd-deploy", &more, code, says)
}

#[test]
fn a_wrong_address_is_named() {
    let world = world();
    let _alone = world.alone();
    let runs = world.aws.runs_bucket();
    for address in [
        format!("s3://{runs}/uploads/none.zip"),
        format!("s3://{runs}/uploads/none/"),
        "s3://cdkd-there-is-no-such-bucket/a.zip".to_owned(),
        "s3://cdkd-there-is-no-such-bucket/a/".to_owned(),
    ] {
        let input = json!({ "assembly": address });
        untouched(&world, "cdkd-deploy", &input, "AssemblyNotFound", &[&address]);
    }
}

#[test]
fn what_is_no_assembly_is_told_what_it_lacks() {
    let world = world();
    let _alone = world.alone();
    let zip =
        |archive: Archive| json!({ "assembly": world.aws.upload_zip(&archive.zip(6).unwrap()).unwrap() });
    let none = zip(Archive::default().file("readme.txt", b"hello".to_vec()));
    untouched(&world, "cdkd-deploy", &none, "InvalidAssembly", &["manifest.json"]);
    let bad = zip(Archive::default().file("manifest.json", b"{ no".to_vec()));
    untouched(&world, "cdkd-deploy", &bad, "InvalidAssembly", &["manifest.json"]);
    let no_zip =
        json!({ "assembly": world.aws.upload_zip(b"this is no zip, whatever its name says").unwrap() });
    untouched(&world, "cdkd-deploy", &no_zip, "InvalidAssembly", &["zip"]);
    world.aws.api().put_object(world.aws.runs_bucket(), "uploads/bare/readme.txt", b"hello").unwrap();
    let prefix = json!({ "assembly": format!("s3://{}/uploads/bare/", world.aws.runs_bucket()) });
    untouched(&world, "cdkd-deploy", &prefix, "InvalidAssembly", &["manifest.json"]);

    let future =
        App::from(Stack::with("Future", &parameter())).manifest(|it| it["version"] = json!("999.0.0"));
    deploy(&world, future, json!({}), "UnsupportedAssemblyVersion", &["999.0.0"]);
    let no_template = App::from(Stack::with("NoTemplate", &parameter()))
        .manifest(|it| it["artifacts"]["NoTemplate"]["properties"]["templateFile"] = json!("other.json"));
    deploy(&world, no_template, json!({}), "InvalidAssembly", &["other.json"]);
}

#[test]
fn paths_that_leave_the_assembly_are_refused() {
    let world = world();
    let _alone = world.alone();
    let app = |path: &str| {
        App::from(Stack::with("Escapes", &parameter()))
            .manifest(|it| it["artifacts"]["Escapes"]["properties"]["templateFile"] = json!(path))
    };
    for path in ["../Escapes.template.json", "/etc/passwd", "a/../../b.json"] {
        deploy(&world, app(path), json!({}), "UnsafeAssemblyPath", &[path]);
    }
    // The name of an entry, as no library writes it: patched into the bytes.
    let zip = App::from(Stack::with("Slip", &parameter())).file("xx_evil.json", b"{}").zip();
    let zip = replace(&zip, b"xx_evil.json", b"../evil.json");
    let input = json!({ "assembly": world.aws.upload_zip(&zip).unwrap() });
    untouched(&world, "cdkd-deploy", &input, "UnsafeAssemblyPath", &["../evil.json"]);
}

fn replace(bytes: &[u8], from: &[u8], to: &[u8]) -> Vec<u8> {
    let mut out = bytes.to_vec();
    let places: Vec<usize> =
        bytes.windows(from.len()).enumerate().filter(|(_, w)| *w == from).map(|(at, _)| at).collect();
    assert_eq!(places.len(), 2, "once in front of the file and once in the directory");
    for at in places {
        out[at..at + to.len()].copy_from_slice(to);
    }
    out
}

#[test]
fn a_zip_bomb_is_refused_before_it_is_inflated() {
    let world = world();
    let _alone = world.alone();
    let mut template = vec![b' '; 9 << 20];
    template.extend_from_slice(json!({ "Resources": parameter() }).to_string().as_bytes());
    let text = String::from_utf8(template).unwrap();
    deploy(&world, Stack::of_text("Bomb", &text), json!({}), "AssemblyTooLarge", &["Bomb.template.json"]);
}

#[test]
fn a_template_that_is_none_is_refused() {
    let world = world();
    let _alone = world.alone();
    for text in [
        "{ \"Resources\": ",
        "Resources:\n  P: {}\n",
        "[]",
        "{\"Resources\": []}",
        "{\"Resources\": {\"P\": {}}}",
    ] {
        deploy(&world, Stack::of_text("NoJson", text), json!({}), "InvalidTemplate", &["NoJson"]);
    }
}

#[test]
fn stacks_that_cannot_be_selected_are_named() {
    let world = world();
    let _alone = world.alone();
    let app = || {
        App::default()
            .stack(Stack::with("Frontend", &parameter()))
            .stack(Stack::with("Backend", &parameter()))
    };
    deploy(&world, app(), json!({ "stacks": ["Frontendd"] }), "StackNotFound", &["Frontendd", "`Frontend`"]);
    let other = |environment: &str| Stack::with("Abroad", &parameter()).environment(environment);
    let only = json!({ "stacks": ["Abroad"] });
    deploy(&world, other("aws://999999999999/us-east-1"), only, "WrongAccount", &["Abroad", "999999999999"]);
    let twice = App::default()
        .stack(Stack::with("Twice", &parameter()))
        .stack(Stack::with("Other", &parameter()))
        .manifest(|it| it["artifacts"]["Other"]["properties"]["stackName"] = json!("Twice"));
    deploy(&world, twice, json!({}), "AmbiguousStack", &["Twice", "`Other`", "us-east-1"]);
}

#[test]
fn stacks_that_wait_for_each_other_are_named() {
    let world = world();
    let _alone = world.alone();
    let importing = |name: &str, export: &str, import: Value| {
        let mut resources = parameter();
        resources["P"]["Properties"]["Value"] = import;
        let outputs = json!({ "O": { "Value": "v", "Export": { "Name": export } } });
        Stack::new(name, &json!({ "Resources": resources, "Outputs": outputs }))
    };
    let import = |name: &str| json!({ "Fn::ImportValue": name });
    let read = |stack: &str| json!({ "Fn::GetStackOutput": { "StackName": stack, "OutputName": "O" } });
    let circles = [
        (import("circle-right"), import("circle-left")),
        (import("circle-right"), read("Left")),
        (read("Right"), read("Left")),
    ];
    for (left, right) in circles {
        let app = App::default()
            .stack(importing("Left", "circle-left", left))
            .stack(importing("Right", "circle-right", right))
            .stack(Stack::with("Bystander", &parameter()));
        let says = &["`Left`", "`Right`"];
        let cause = deploy(&world, app, json!({}), "CircularDependency", says);
        assert!(!cause.to_string().contains("Bystander"), "{cause}");
    }
}

#[test]
fn one_wrong_stack_refuses_the_run_and_all_that_is_wrong_is_told() {
    let world = world();
    let _alone = world.alone();
    let wrong = |name: &str, target: &str| {
        let mut resources = parameter();
        resources["P"]["Properties"]["Value"] = json!({ "Ref": target });
        Stack::with(name, &resources)
    };
    let app = App::default()
        .stack(Stack::with("Right", &parameter()))
        .stack(wrong("Wrong", "Topicc"))
        .stack(wrong("Abroad", "Queuee").environment(&format!("aws://{}/eu-west-1", world.aws.account())));
    let cause = deploy(&world, app, json!({}), "UnresolvedReference", &["Topicc", "1 more"]);
    assert!(cause.to_string().contains("Queuee"), "{cause}");
}

#[test]
fn an_unsupported_type_is_refused_by_name() {
    let world = world();
    let _alone = world.alone();
    for type_name in ["Custom::Thing", "AWS::IAM::AccessKey", "AWS::SQS::Quue"] {
        let mut resources = parameter();
        resources["Other"] = json!({ "Type": type_name, "Properties": {} });
        let cause = deploy(
            &world,
            Stack::with("Types", &resources),
            json!({}),
            "UnsupportedResourceType",
            &[type_name, "Types", "Other"],
        );
        assert_eq!(cause["details"]["type"], type_name);
    }
}

#[test]
fn a_nested_stack_without_a_template_in_the_assembly_is_refused() {
    let world = world();
    let _alone = world.alone();
    let mut resources = parameter();
    let url = json!({ "TemplateURL": "https://elsewhere.example.com/template.json" });
    resources["Other"] = json!({ "Type": "AWS::CloudFormation::Stack", "Properties": url });
    deploy(&world, Stack::with("Nests", &resources), json!({}), "InvalidTemplate", &["Nests", "Other"]);
}

#[test]
fn an_unsupported_function_is_refused_by_name() {
    let world = world();
    let _alone = world.alone();
    let value = |value: Value| json!({ "P": { "Type": "AWS::SSM::Parameter", "Properties": { "Type": "String", "Value": value } } });
    for (name, value) in [
        ("Fn::GetAZs", value(json!({ "Fn::GetAZs": "" }))),
        ("Fn::Transform", value(json!({ "Fn::Transform": { "Name": "AWS::Include", "Parameters": {} } }))),
        ("Fn::Nonsense", value(json!({ "Fn::Nonsense": [] }))),
        ("{{resolve:secretsmanager:", value(json!("{{resolve:secretsmanager:a}}"))),
    ] {
        deploy(&world, Stack::with("Functions", &value), json!({}), "UnsupportedIntrinsic", &[name]);
    }
    let macros =
        Stack::new("Macros", &json!({ "Transform": "AWS::Serverless-2016-10-31", "Resources": parameter() }));
    deploy(&world, macros, json!({}), "UnsupportedIntrinsic", &["AWS::Serverless-2016-10-31"]);
}

#[test]
fn references_to_nothing_and_circles_are_refused() {
    let world = world();
    let _alone = world.alone();
    let named = |reference: Value| {
        let mut resources = parameter();
        resources["P"]["Properties"]["Value"] = reference;
        Stack::with("References", &resources)
    };
    deploy(&world, named(json!({ "Ref": "Topicc" })), json!({}), "UnresolvedReference", &["Topicc"]);
    deploy(&world, named(json!({ "Fn::GetAtt": ["P", "Value"] })), json!({}), "CircularDependency", &["P"]);
}

#[test]
fn s17_a_secret_in_plain_text_is_refused_and_rests_nowhere() {
    let world = world();
    let _alone = world.alone();
    let template = |default: Value| {
        let mut declaration = json!({ "Type": "String", "NoEcho": true });
        if !default.is_null() {
            declaration["Default"] = default;
        }
        json!({ "Parameters": { "Password": declaration }, "Resources": {
            "P": { "Type": "AWS::SSM::Parameter", "Properties": { "Type": "String", "Value": { "Ref": "Password" } } },
        } })
    };
    let secret = "h4rdToGuess";
    let in_template = Stack::new("Secretive", &template(json!(secret)));
    deploy(&world, in_template, json!({}), "PlaintextSecretError", &["Password", "rotate"]);
    assert_eq!(world.find(secret), [""; 0]);
    let input = json!({ "parameters": { "Secretive": { "Password": secret } } });
    let cause = deploy(
        &world,
        Stack::new("Secretive", &template(Value::Null)),
        input,
        "PlaintextSecretError",
        &["Password", "rotate"],
    );
    assert!(!cause.to_string().contains(secret));
    assert_eq!(world.find(secret), [""; 0]);
    for function in ["read-assembly", "save-state", "resolve", "provision"] {
        let lines = world.aws.api().log_lines(&format!("/aws/lambda/cdkd-{function}")).unwrap();
        assert!(!lines.iter().any(|line| line.contains(secret)), "S11: in the log of {function}");
    }
}

#[test]
fn p11_a_replacement_under_a_fixed_name_is_refused_at_plan() {
    let world = world();
    let _alone = world.alone();
    let stack = |path: &str| {
        Stack::with(
            "FixedName",
            &json!({ "Role": { "Type": "AWS::IAM::Role", "Properties": {
            "RoleName": "p11-role", "Path": path,
            "AssumeRolePolicyDocument": { "Version": "2012-10-17", "Statement": [
                { "Effect": "Allow", "Principal": { "Service": "ec2.amazonaws.com" }, "Action": "sts:AssumeRole" }
            ] },
        } } }),
        )
    };
    world.deploy(stack("/one/"));
    let (mark, before) = (world.mark(), world.record("FixedName"));
    let run = world.try_deploy(stack("/two/"));
    check(&run, "CustomNamedResourceReplacement", &["Path", "RoleName", "Role"]);
    assert_eq!(world.cloud_control(mark), 0);
    assert_eq!(world.record("FixedName"), before);
    world.check_put_down("FixedName");
    world.destroy("FixedName");
}

#[test]
fn p13_termination_protection_refuses_a_destroy() {
    let world = world();
    let _alone = world.alone();
    let stack = |protected: bool| {
        Stack::with("Protected", &parameter()).property("terminationProtection", json!(protected))
    };
    world.deploy(stack(true));
    let (mark, before) = (world.mark(), world.record("Protected"));
    let run = world.run("cdkd-destroy", &json!({ "stacks": ["Protected"] }));
    check(&run, "TerminationProtected", &["Protected", "terminationProtection"]);
    assert_eq!(world.cloud_control(mark), 0);
    assert_eq!(world.record("Protected"), before);
    world.check_put_down("Protected");
    world.deploy(stack(false));
    world.destroy("Protected");
}

#[test]
fn a_destroy_needs_a_stack_on_record() {
    let world = world();
    let _alone = world.alone();
    world.deploy(Stack::with("Deployed", &parameter()));
    let input = |stacks: &[&str]| json!({ "stacks": stacks });
    untouched(&world, "cdkd-destroy", &input(&["Deployd"]), "StackNotFound", &["Deployd", "`Deployed`"]);
    untouched(&world, "cdkd-destroy", &json!({}), "InvalidInput", &["stacks"]);
    untouched(&world, "cdkd-destroy", &input(&[]), "InvalidInput", &["stacks"]);
    untouched(&world, "cdkd-destroy", &input(&["Deployed", "Other"]), "StackNotFound", &["`Other`"]);
    untouched(&world, "cdkd-destroy", &input(&["Parent~Child"]), "InvalidInput", &["Parent"]);
    let abroad = json!({ "stacks": ["Deployed"], "region": "eu-west-1" });
    untouched(&world, "cdkd-destroy", &abroad, "StackNotFound", &["Deployed", "eu-west-1"]);
    world.destroy("Deployed");
    untouched(&world, "cdkd-destroy", &input(&["Deployed"]), "StackNotFound", &["Deployed"]);
    // A destroy of two that ended half way is started again; what never was is still refused.
    world.deploy(Stack::with("Undeployed", &parameter()));
    let three = input(&["Deployed", "Undeployed", "Other"]);
    untouched(&world, "cdkd-destroy", &three, "StackNotFound", &["`Other`"]);
    let run = world.run("cdkd-destroy", &input(&["Deployed", "Undeployed"]));
    assert_eq!(run.outcomes(), ["Undeployed destroyed"], "{}", run.outcome);
    let notices = run.answer()["notices"].to_string();
    assert!(notices.contains("`Deployed`"), "{notices}");
}

#[test]
fn a12_assets_that_are_not_published_are_refused() {
    let world = world();
    let _alone = world.alone();
    let made = json!({"source": {"executable": ["make", "it"]}, "destinations": {"d": {"bucketName": "b", "objectKey": "k"}}});
    let image = json!({"source": {"directory": "i"}, "destinations": {"d": {"repositoryName": "r", "imageTag": "t"}}});
    let stack = || Stack::with("Assets", &parameter());
    let files = App::from(stack()).assets("Assets", &json!({ "abc": made }));
    deploy(&world, files, json!({}), "UnsupportedAsset", &["Assets", "abc"]);
    let images = App::from(stack())
        .asset_manifest("Assets", &json!({"version": "36.0.0", "dockerImages": {"xyz": image}}));
    deploy(&world, images, json!({}), "UnsupportedAsset", &["Assets", "the image `i`"]);
    let mut template = json!({"Resources": parameter()});
    template["Parameters"]["AssetParameters12S3Bucket34"] = json!({"Type": "String"});
    let legacy = App::from(Stack::new("Assets", &template));
    deploy(&world, legacy, json!({}), "UnsupportedAsset", &["legacy synthesizer", "DefaultStackSynthesizer"]);
}

#[test]
fn a_malformed_input_names_the_field() {
    let world = world();
    let _alone = world.alone();
    for (input, field) in [
        (json!({}), "assembly"),
        (json!({ "assembly": 5 }), "assembly"),
        (json!({ "assembly": "https://example.com/a.zip" }), "assembly"),
        (json!({ "assembly": "s3://bucket/a.tar" }), "assembly"),
        (json!({ "assembly": "s3://bucket/a.zip", "stacks": "A" }), "stacks"),
        (json!({ "assembly": "s3://bucket/a.zip", "region": "nowhere" }), "region"),
        (json!({ "assembly": "s3://bucket/a.zip", "options": [] }), "options"),
        (json!({ "assembly": "s3://bucket/a.zip", "options": { "dryRun": "yes" } }), "dryRun"),
        (json!({ "assembly": "s3://bucket/a.zip", "parameters": { "A": 5 } }), "parameters"),
        (
            json!({ "assembly": "s3://bucket/a.zip", "options": { "publishOnly": true, "dryRun": true } }),
            "publishOnly",
        ),
        (json!([]), "cdkd-deploy"),
        (json!("text"), "cdkd-deploy"),
    ] {
        untouched(&world, "cdkd-deploy", &input, "InvalidInput", &[field]);
    }
    for (input, field) in [
        (json!({ "stacks": "A" }), "stacks"),
        (json!({ "stacks": ["no name!"] }), "stacks"),
        (json!({ "stacks": ["A"], "retain": ["no id!"] }), "retain"),
        (json!([]), "cdkd-destroy"),
    ] {
        untouched(&world, "cdkd-destroy", &input, "InvalidInput", &[field]);
    }
}

#[test]
fn t16_a_stack_without_resources_is_skipped_or_refused() {
    let world = world();
    let _alone = world.alone();
    let empty = || Stack::with("Empty", &json!({}));
    let mark = world.mark();
    let run = world.deploy(empty());
    assert!(run.answer()["notices"].to_string().contains("Empty"), "{}", run.outcome);
    assert_eq!(world.writes(mark, world.aws.state_bucket()), [""; 0]);
    world.deploy(Stack::with("Empty", &parameter()));
    deploy(&world, empty(), json!({}), "InvalidTemplate", &["Empty", "cdkd-destroy"]);
    world.destroy("Empty");
}

#[test]
fn a_dry_run_plans_and_writes_nothing_but_its_own_documents() {
    let world = world();
    let _alone = world.alone();
    let plan = |stack: Stack| {
        let mark = world.mark();
        let run = world.deploy_with(stack, json!({ "options": { "dryRun": true } }));
        assert_eq!(run.word(), "planned", "{}", run.outcome);
        assert_eq!(world.writes(mark, world.aws.state_bucket()), [""; 0], "no lock, nothing recorded");
        assert_eq!(world.cloud_control(mark), 0);
        let folder = format!("{}/runs/{}/", world.aws.runs_bucket(), run.name());
        let other: Vec<String> =
            world.writes(mark, "").into_iter().filter(|write| !write.contains(&folder)).collect();
        assert_eq!(other, [""; 0]);
        (run.answer()["stacks"][0].clone(), world.result(&run))
    };
    let (row, result) = plan(Stack::with("Planned", &parameter()));
    assert_eq!((&row["outcome"], &row["counts"]["create"]), (&json!("planned"), &json!(1)));
    assert_eq!(result["plans"][0]["applies"][0]["logicalId"], "P");
    assert_eq!(world.aws.record("Planned").unwrap(), None);

    world.deploy(Stack::with("Planned", &parameter()));
    let before = world.record("Planned");
    let (row, _) = plan(Stack::with("Planned", &json!({ "Q": { "Type": "AWS::SQS::Queue" } })));
    assert_eq!((&row["counts"]["create"], &row["counts"]["delete"]), (&json!(1), &json!(1)));
    assert_eq!(world.record("Planned"), before);
    let (row, _) = plan(Stack::with("Planned", &parameter()));
    assert_eq!(row["counts"], json!({ "unchanged": 1 }));
    world.destroy("Planned");
}

#[test]
fn l6_a_lock_of_another_tool_refuses_and_tells_how_to_free_it() {
    let world = world();
    let _alone = world.alone();
    let api = world.aws.api();
    let key = "cdkd/ToolLock/us-east-1/lock.json";
    let now = u64::try_from(
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis(),
    )
    .unwrap();
    let lock = json!({ "owner": "alice@laptop:4711", "timestamp": now, "expiresAt": now + 1_800_000, "operation": "deploy" });
    api.put_object(world.aws.state_bucket(), key, lock.to_string().as_bytes()).unwrap();
    let cause = deploy(
        &world,
        Stack::with("ToolLock", &parameter()),
        json!({}),
        "StackLocked",
        &["alice@laptop:4711", "deploy", "since 20", "until 20", "UTC", "unlock", "ToolLock"],
    );
    assert_eq!(
        (&cause["details"]["holder"], &cause["details"]["until"]),
        (&json!("alice@laptop:4711"), &json!(now + 1_800_000))
    );
    assert_eq!(
        api.get_object(world.aws.state_bucket(), key).unwrap().unwrap(),
        lock.to_string().into_bytes()
    );
    // L9: clocks differ, so a lock that has just expired still holds; one that expired long ago does not.
    let mut just = lock.clone();
    just["expiresAt"] = json!(now - 5_000);
    api.put_object(world.aws.state_bucket(), key, just.to_string().as_bytes()).unwrap();
    deploy(&world, Stack::with("ToolLock", &parameter()), json!({}), "StackLocked", &["alice@laptop:4711"]);
    let freed = api.invoke(
        "cdkd-save-state",
        &json!({ "action": "unlock", "stack": "ToolLock", "region": "us-east-1" }),
    );
    let freed = freed.unwrap();
    assert_eq!((&freed["unlocked"], &freed["holder"]), (&json!(true), &json!("alice@laptop:4711")));
    just["expiresAt"] = json!(now - 600_000);
    api.put_object(world.aws.state_bucket(), key, just.to_string().as_bytes()).unwrap();
    world.deploy(Stack::with("ToolLock", &parameter()));
    world.destroy("ToolLock");
    world.check_not_on_record("ToolLock");
}

#[test]
fn l6_a_running_execution_keeps_its_stack() {
    let world = world();
    let _alone = world.alone();
    let api = world.aws.api();
    let gate =
        world.aws.wire().hold(Rule::on("cloudcontrol", "CreateResource").body("RunningLock"), When::Before);
    let assembly = world.upload(&Stack::with("RunningLock", &parameter()).into());
    let first = api.start_execution("cdkd-deploy", &json!({ "assembly": assembly })).unwrap();
    gate.wait_until_held(Duration::from_mins(1)).unwrap();
    let refused = |machine: &str, input: &Value| {
        let cause = untouched(
            &world,
            machine,
            input,
            "StackLocked",
            &[&first, "deploy", "since 20", "until 20", "stop it"],
        );
        assert_eq!(cause["details"]["holder"], first.as_str());
    };
    refused("cdkd-deploy", &json!({ "assembly": assembly }));
    let unlock = json!({ "action": "unlock", "stack": "RunningLock", "region": "us-east-1" });
    let error = api.invoke("cdkd-save-state", &unlock).unwrap_err();
    assert_eq!(error.code(), Some("StackLocked"), "a person does not break the lock of what runs");
    gate.release();
    let rule = gate.rule();
    assert!(api.wait(&first).unwrap().succeeded());
    world.aws.wire().remove_rule(rule);
    world.destroy("RunningLock");
}

#[test]
fn one_run_waits_for_anothers_lock_as_long_as_it_is_told_to() {
    let world = world();
    let _alone = world.alone();
    let api = world.aws.api();
    let gate =
        world.aws.wire().hold(Rule::on("cloudcontrol", "CreateResource").body("Patient"), When::Before);
    let assembly = world.upload(&Stack::with("Patient", &parameter()).into());
    let first = api.start_execution("cdkd-deploy", &json!({ "assembly": assembly })).unwrap();
    gate.wait_until_held(Duration::from_mins(1)).unwrap();
    let waits = json!({ "assembly": assembly, "options": { "lockWaitSeconds": 30 } });
    let second = api.start_execution("cdkd-deploy", &waits).unwrap();
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(api.describe_execution(&second).unwrap().status, "RUNNING");
    gate.release();
    let rule = gate.rule();
    assert!(api.wait(&first).unwrap().succeeded());
    let outcome = api.wait(&second).unwrap();
    assert_eq!(
        outcome.output.as_ref().map(|it| it["outcome"].clone()),
        Some(json!("unchanged")),
        "{outcome}"
    );
    world.aws.wire().remove_rule(rule);
    world.destroy("Patient");
}
