//! References between stacks: no producer goes while a consumer lives, whoever comes first.

#![allow(clippy::unwrap_used, reason = "what goes wrong in a test's own helpers fails the test")]

use std::collections::{BTreeMap, BTreeSet};

use cdkd_e2e::{
    App, QUEUE, Run, Stack, World, consumer, deploy_refused, destroy_refused, import, imported,
    index_follows, producer, producer_of, says, setting, untouched, world,
};
use serde_json::{Value, json};

fn index(world: &World) -> Value {
    let place = "cdkd/_index/us-east-1/exports.json";
    let body = world.aws.api().get_object(world.aws.state_bucket(), place).unwrap();
    body.map_or(Value::Null, |body| serde_json::from_slice(&body).unwrap())
}

fn plant(world: &World, key: &str, document: &Value) {
    let body = document.to_string();
    world.aws.api().put_object(world.aws.state_bucket(), key, body.as_bytes()).unwrap();
}

fn remove(world: &World, key: &str) {
    world.aws.api().delete_object(world.aws.state_bucket(), key).unwrap();
}

/// A document that stands in every other test's way: it goes with its test, however that ends.
struct Planted<'a> {
    world: &'a World,
    key: &'static str,
}

impl<'a> Planted<'a> {
    fn new(world: &'a World, key: &'static str, body: &str) -> Self {
        world.aws.api().put_object(world.aws.state_bucket(), key, body.as_bytes()).unwrap();
        Self { world, key }
    }
}

impl Drop for Planted<'_> {
    fn drop(&mut self) {
        self.world.aws.api().delete_object(self.world.aws.state_bucket(), self.key).unwrap();
    }
}

/// One stack of the sample app.
fn sample(world: &World, folder: &str, stack: &str) -> Run {
    let assembly = world.aws.upload_assembly_zip(format!("tests/apps/references/{folder}")).unwrap();
    let input = json!({ "assembly": assembly, "stacks": [stack], "options": { "exclusively": true } });
    world.run("cdkd-deploy", &input)
}

#[track_caller]
fn succeeded(run: &Run) {
    assert_eq!(run.outcome.status, "SUCCEEDED", "{}", run.outcome);
}

#[test]
fn the_sample_app_goes_through_a_deadly_embrace() {
    let world = world();
    let _turn = world.among_others();
    let exports = ["producer-jobs-arn"];
    succeeded(&sample(&world, "cdk.out", "Producer"));
    succeeded(&sample(&world, "cdk.out", "Consumer"));
    succeeded(&sample(&world, "cdk.out", "WeakReader"));
    let arn = world.record("Producer")["outputs"]["producer-jobs-arn"].as_str().unwrap().to_owned();
    assert!(arn.starts_with("arn:aws:sqs:us-east-1:"), "{arn}");
    assert_eq!(world.record("Producer")["exportNames"], json!(exports));
    assert_eq!(world.indexed(exports[0]), Some(format!("Producer {arn}")));
    assert_eq!(world.imports("Consumer"), ["producer-jobs-arn<Producer"]);
    let name = world.physical_id("Consumer", "Setting2E7FC5C3");
    let value = || world.aws.api().parameter(&name).unwrap().unwrap()["Value"].clone();
    assert_eq!(value(), format!("jobs at {arn}"));
    assert_eq!(world.imports("WeakReader"), [""; 0]);

    // The producer's change takes the export away while it is imported: that of the consumer has to come first.
    let before = world.picture("Producer");
    let run = sample(&world, "cdk.out.changed", "Producer");
    let cause = untouched(&world, &run, "Producer", &exports, &before, "StackHasActiveImportsError");
    says(&cause, &["`producer-jobs-arn` is no longer exported", "Consumer (us-east-1)", "cdkd-destroy"]);
    succeeded(&sample(&world, "cdk.out.changed", "Consumer"));
    assert_eq!(value(), "no longer imported");
    assert_eq!(world.imports("Consumer"), [""; 0]);
    succeeded(&sample(&world, "cdk.out.changed", "Producer"));
    assert_eq!(world.indexed(exports[0]), None);
    assert_eq!(world.record("Producer")["outputs"].as_object().unwrap().len(), 1);
    // The weak reader stands in nobody's way (rule E13).
    world.destroy("Producer");
    for stack in ["Consumer", "WeakReader"] {
        world.destroy(stack);
        world.check_not_on_record(stack);
    }
}

#[test]
fn e12_a_chain_goes_from_its_end() {
    let world = world();
    let _turn = world.among_others();
    for stack in ["ChainA", "ChainB", "ChainC"] {
        succeeded(&sample(&world, "cdk.out", stack));
    }
    assert_eq!(world.imports("ChainB"), ["chain-a<ChainA"]);
    assert_eq!(world.imports("ChainC"), ["chain-b<ChainB"]);
    let link = world.physical_id("ChainC", "Link1234EF21");
    let value = world.aws.api().parameter(&link).unwrap().unwrap()["Value"].clone();
    assert_eq!(value, world.physical_id("ChainB", "Link1234EF21"));
    let cause = destroy_refused(&world, "ChainA", &["chain-a"], "StackHasActiveImportsError");
    says(&cause, &["ChainB (us-east-1) imports `chain-a`"]);
    let cause = destroy_refused(&world, "ChainB", &["chain-b"], "StackHasActiveImportsError");
    says(&cause, &["ChainC (us-east-1) imports `chain-b`"]);
    for stack in ["ChainC", "ChainB", "ChainA"] {
        world.destroy(stack);
        world.check_not_on_record(stack);
    }
    assert_eq!((world.indexed("chain-a"), world.indexed("chain-b")), (None, None));
}

#[test]
fn a_destroy_is_refused_while_others_import_and_names_them_all() {
    let world = world();
    let _turn = world.among_others();
    let exports = ["held-x", "held-y"];
    world.deploy(producer("Held", &exports));
    let url = world.physical_id("Held", "Q");
    let arn = world.record("Held")["outputs"]["held-x"].as_str().unwrap().to_owned();
    assert_eq!(world.indexed("held-x"), Some(format!("Held {arn}")));
    assert_eq!(world.indexed("held-y"), Some(format!("Held {arn}")));
    world.deploy(consumer("HeldOne", &exports));
    world.deploy(consumer("HeldTwo", &["held-y"]));
    assert_eq!(world.imports("HeldOne"), ["held-x<Held", "held-y<Held"]);
    assert_eq!(world.held("HeldOne"), format!("{arn}|{arn}"));
    assert_eq!(world.held("HeldTwo"), arn);
    // Records of all regions are looked through.
    let far = "cdkd/HeldFar/eu-west-1/state.json";
    let far = Planted::new(
        &world,
        far,
        r#"{
            "version": 9, "stackName": "HeldFar", "region": "eu-west-1", "resources": {},
            "imports": [{ "exportName": "held-x", "sourceStack": "Held", "sourceRegion": "us-east-1" }]
        }"#,
    );
    let cause = destroy_refused(&world, "Held", &exports, "StackHasActiveImportsError");
    says(
        &cause,
        &[
            "Held (us-east-1) cannot be destroyed",
            "HeldOne (us-east-1) imports `held-x`",
            "`held-y`",
            "HeldTwo (us-east-1) imports `held-y`",
            "HeldFar (eu-west-1) imports `held-x`",
            "destroy the consumers first",
            r#""HeldOne""#,
            "remove their `Fn::ImportValue`",
            "no way to force it",
        ],
    );
    assert_eq!(
        cause["details"]["consumers"],
        json!([
            { "stack": "HeldFar", "region": "eu-west-1", "export": "held-x" },
            { "stack": "HeldOne", "region": "us-east-1", "export": "held-x" },
            { "stack": "HeldOne", "region": "us-east-1", "export": "held-y" },
            { "stack": "HeldTwo", "region": "us-east-1", "export": "held-y" },
        ])
    );
    assert!(world.queue_lives(&url));
    // What was refused goes on being imported.
    world.deploy(consumer("HeldThree", &["held-x"]));
    drop(far);
    for stack in ["HeldOne", "HeldTwo"] {
        world.destroy(stack);
    }
    let cause = destroy_refused(&world, "Held", &exports, "StackHasActiveImportsError");
    assert_eq!(cause["details"]["count"], 1, "{cause}");
    world.destroy("HeldThree");
    world.destroy("Held");
    world.check_not_on_record("Held");
    assert!(!world.queue_lives(&url));
    assert_eq!((world.indexed("held-x"), world.indexed("held-y")), (None, None));
}

#[test]
fn an_export_stays_as_long_as_it_is_imported() {
    let world = world();
    let _alone = world.alone();
    let exports = ["kept-x", "kept-y"];
    world.deploy(producer("Kept", &exports));
    world.deploy(consumer("KeptUser", &["kept-x"]));
    let mark = world.mark();
    let without = || producer_of("Kept", &["kept-y"], &json!({ "VisibilityTimeout": 31 }), &json!({}));
    let cause = deploy_refused(&world, without(), "Kept", &exports, "StackHasActiveImportsError");
    says(
        &cause,
        &[
            "Kept (us-east-1) cannot take away",
            "KeptUser (us-east-1) imports `kept-x`",
            "`kept-x` is no longer exported",
            "destroy the consumers first",
            "remove their `Fn::ImportValue`",
        ],
    );
    assert_eq!(world.mutations(mark), [""; 0], "nothing was touched");
    // The one that nobody imports may go at once.
    world.deploy(producer("Kept", &["kept-x"]));
    assert_eq!(world.indexed("kept-y"), None);
    world.deploy(consumer("KeptUser", &[]));
    assert_eq!(world.held("KeptUser"), "nothing");
    world.deploy(without());
    assert_eq!(world.record("Kept")["exportNames"], json!(["kept-y"]));
    assert_eq!(world.indexed("kept-x"), None);
    assert!(world.indexed("kept-y").is_some());
    world.destroy("Kept");
    world.destroy("KeptUser");
}

#[test]
fn e24_what_an_imported_value_names_is_not_replaced() {
    let world = world();
    let _alone = world.alone();
    let exports = ["renamed"];
    let named = |name: &str| producer_of("Renamed", &exports, &json!({ "QueueName": name }), &json!({}));
    world.deploy(named("renamed-one"));
    let url = world.physical_id("Renamed", "Q");
    world.deploy(consumer("RenamedUser", &exports));
    let mark = world.mark();
    let cause =
        deploy_refused(&world, named("renamed-two"), "Renamed", &exports, "StackHasActiveImportsError");
    says(&cause, &["`renamed` names `Q`, which is replaced or deleted", "RenamedUser (us-east-1)"]);
    assert_eq!(world.mutations(mark), [""; 0], "nothing was touched");
    assert!(world.queue_lives(&url));
    world.deploy(consumer("RenamedUser", &[]));
    world.deploy(named("renamed-two"));
    assert!(!world.queue_lives(&url));
    let arn = world.record("Renamed")["outputs"]["renamed"].as_str().unwrap().to_owned();
    assert!(arn.ends_with(":renamed-two"), "{arn}");
    assert_eq!(world.indexed("renamed"), Some(format!("Renamed {arn}")));
    world.destroy("Renamed");
    world.destroy("RenamedUser");
}

#[test]
fn e18_a_value_that_changes_is_told() {
    let world = world();
    let _turn = world.among_others();
    let stack = |value: &str| {
        Stack::new(
            "Told",
            &json!({
                "Resources": { "P": setting(&json!("v")) },
                "Outputs": { "Out": { "Value": value, "Export": { "Name": "told" } } },
            }),
        )
    };
    world.deploy(stack("one"));
    world.deploy(consumer("ToldUser", &["told"]));
    let run = world.deploy(stack("two"));
    let warnings = run.answer()["warnings"].to_string();
    assert!(warnings.contains("`told` changes") && warnings.contains("ToldUser (us-east-1)"), "{warnings}");
    assert_eq!(world.indexed("told").as_deref(), Some("Told two"));
    assert_eq!(world.held("ToldUser"), "one");
    world.deploy(consumer("ToldUser", &["told"]));
    assert_eq!(world.held("ToldUser"), "two");
    world.destroy("ToldUser");
    world.destroy("Told");
}

#[test]
fn e19_e6_the_index_is_a_hint() {
    let world = world();
    let _alone = world.alone();
    let place = "cdkd/_index/us-east-1/exports.json";
    world.deploy(producer("Hinted", &["hint-x", "hint-y", "hint-z"]));
    let arn = world.record("Hinted")["outputs"]["hint-x"].as_str().unwrap().to_owned();
    let right = format!("Hinted {arn}");
    let whole = index(&world);
    let planted = |name: &str, stack: &str| {
        let mut index = whole.clone();
        let entry = json!({ "value": "stale", "producerStack": stack, "producerRegion": "us-east-1" });
        index["exports"][name] = entry;
        plant(&world, place, &index);
    };
    // A value that its producer no longer has, and a producer that is not there.
    planted("hint-x", "Hinted");
    world.deploy(consumer("HintStale", &["hint-x"]));
    assert_eq!(world.held("HintStale"), arn);
    planted("hint-y", "HintGone");
    world.deploy(consumer("HintMoved", &["hint-y"]));
    assert_eq!(world.held("HintMoved"), arn);
    assert_eq!(world.imports("HintMoved"), ["hint-y<Hinted"]);
    assert_eq!(world.indexed("hint-y"), Some(right.clone()), "the index is mended");
    // A name that is indexed and that no record exports.
    planted("hint-nowhere", "Hinted");
    let cause = world.try_deploy(consumer("HintNone", &["hint-nowhere"])).refused("ExportNotFound");
    says(&cause, &["`hint-nowhere`", "HintNone"]);
    world.check_not_on_record("HintNone");

    // No index, and one that does not parse: made anew, with all names.
    for body in [None, Some("{ no index")] {
        match body {
            None => remove(&world, place),
            Some(body) => {
                let bucket = world.aws.state_bucket();
                world.aws.api().put_object(bucket, place, body.as_bytes()).unwrap();
            }
        }
        world.deploy(consumer("HintAnew", &["hint-z"]));
        assert_eq!(world.held("HintAnew"), arn);
        for name in ["hint-x", "hint-y", "hint-z"] {
            assert_eq!(world.indexed(name), Some(right.clone()), "{name} after {body:?}");
        }
        world.destroy("HintAnew");
    }

    // What says the same is not written again.
    let mark = world.mark();
    assert_eq!(world.deploy(producer("Hinted", &["hint-x", "hint-y", "hint-z"])).word(), "unchanged");
    assert_eq!(world.deploy(consumer("HintStale", &["hint-x"])).word(), "unchanged");
    assert_eq!(world.writes(mark, "_index"), [""; 0]);
    for stack in ["HintStale", "HintMoved", "Hinted"] {
        world.destroy(stack);
    }
    assert_eq!(world.indexed("hint-x"), None);
}

/// Twelve imports of three producers, with ten more stacks around them: what is asked does not depend on how many
/// imports or stacks there are.
#[test]
fn e19_an_import_costs_one_look_at_the_index_and_one_at_each_producer() {
    let world = world();
    let _alone = world.alone();
    let _quiet = world.quiet();
    let exports = |producer: usize| (0..4).map(move |number| format!("cost-{producer}-{number}"));
    let producers: Vec<String> = (0..3).map(|number| format!("CostP{number}")).collect();
    let others: Vec<String> = (0..10).map(|number| format!("CostAround{number}")).collect();
    let sources = producers.iter().enumerate().map(|(number, name)| {
        let names: Vec<String> = exports(number).collect();
        producer(name, &names.iter().map(String::as_str).collect::<Vec<_>>())
    });
    world.deploy(sources.chain(others.iter().map(|name| producer(name, &[]))).collect::<App>());
    let imports: Vec<String> = (0..3).flat_map(exports).collect();
    let imports: Vec<&str> = imports.iter().map(String::as_str).collect();
    let app = |name: &str, more: &str| {
        let value = json!({ "Fn::Join": ["", [imported(&imports), more]] });
        Stack::with(name, &json!({ "P": setting(&value) }))
    };

    let lookup = ["3 GetObject CostP*/state.json 200", "1 GetObject exports.json 200"];
    // The handshake: the imports on record, then the lock and the record of each producer once more.
    let looks = ["3 GetObject CostP*/lock.json 404", "3 GetObject CostP*/state.json 304"];
    let intent = ["1 PutObject CostReader/state.json 200"];
    let runs: [(&str, &[&[&str]]); 3] =
        [("one", &[&lookup, &looks, &intent]), ("two", &[&lookup, &looks]), ("two", &[&lookup])];
    for (more, expected) in runs {
        let mark = world.mark();
        world.deploy(app("CostReader", more));
        let expected: BTreeSet<String> = expected.concat().into_iter().map(str::to_owned).collect();
        assert_eq!(asked(&world, mark), expected, "{more}");
    }
    // Of a run of two, `prepare` looks once for all of it, before anything is touched. Each stack looks anew when its turn
    // comes, which may be much later: then the values are those of that moment.
    let mark = world.mark();
    world.deploy([app("CostReader", "three"), app("CostReaderB", "one")]);
    let expected = [
        "9 GetObject CostP*/state.json 200",
        "3 GetObject exports.json 200",
        "6 GetObject CostP*/lock.json 404",
        "6 GetObject CostP*/state.json 304",
        "1 PutObject CostReaderB/state.json 200",
    ];
    assert_eq!(asked(&world, mark), expected.map(str::to_owned).into());
    world.destroy_all(&["CostReader", "CostReaderB"]);
    let all: Vec<&str> = producers.iter().chain(&others).map(String::as_str).collect();
    world.destroy_all(&all);
}

/// What runs have asked since a mark of others' documents and of the estate, and what they wrote before they looked.
fn asked(world: &World, mark: u64) -> BTreeSet<String> {
    let mut asked: BTreeMap<String, usize> = BTreeMap::new();
    for it in world.since(mark) {
        if it.service != "s3" {
            continue;
        }
        let Some(key) = it.resource.strip_prefix(&format!("{}/cdkd/", world.aws.state_bucket())) else {
            continue;
        };
        let key = key.replace("us-east-1/", "").replace("_index/", "");
        let own = key.starts_with("CostReader");
        if own && !(it.function.as_deref() == Some("cdkd-resolve") && it.operation == "PutObject") {
            continue;
        }
        let key = if key.starts_with("CostP") { key.replace(['0', '1', '2'], "*") } else { key };
        *asked.entry(format!("{} {key} {}", it.operation, it.status.unwrap_or_default())).or_default() += 1;
    }
    asked.into_iter().map(|(request, times)| format!("{times} {request}")).collect()
}

#[test]
fn e4_a_name_has_one_owner() {
    let world = world();
    let _alone = world.alone();
    world.deploy(producer("Owner", &["owned"]));
    let before = world.picture("Owner");
    let mark = world.mark();
    let cause = world.try_deploy(producer("Taker", &["taker-own", "owned"])).refused("ExportNameTakenError");
    says(&cause, &["`owned` is exported by Owner (us-east-1)", "Taker (us-east-1)"]);
    assert_eq!(cause["details"]["owner"], "Owner");
    assert_eq!(world.mutations(mark), [""; 0], "nothing was touched");
    world.check_not_on_record("Taker");
    assert_eq!(world.indexed("taker-own"), None);
    // The same of an update.
    world.deploy(producer("Taker", &["taker-own"]));
    let exports = ["taker-own", "owned"];
    let cause =
        deploy_refused(&world, producer("Taker", &exports), "Taker", &exports, "ExportNameTakenError");
    says(&cause, &["`owned` is exported by Owner (us-east-1)"]);
    assert_eq!(world.picture("Owner"), before);
    // Given up, it is free.
    world.deploy(producer("Owner", &[]));
    world.deploy(producer("Taker", &exports));
    assert!(world.indexed("owned").unwrap().starts_with("Taker "));
    world.destroy("Owner");
    world.destroy("Taker");
}

#[test]
fn e23_an_alias_that_is_skipped_now_is_withdrawn() {
    let world = world();
    let _turn = world.among_others();
    let source = |outputs: &Value, conditions: &Value| {
        let queue = json!({ "Q": { "Type": QUEUE } });
        let mut template = json!({ "Resources": queue, "Outputs": outputs });
        if conditions.is_object() {
            template["Conditions"] = conditions.clone();
        }
        Stack::new("Alias", &template)
    };
    let alias = json!({ "Value": { "Fn::GetAtt": ["Q", "Arn"] }, "Export": { "Name": "AliasX" } });
    world.deploy(source(&json!({ "O": alias }), &Value::Null));
    world.deploy(consumer("AliasUser", &["AliasX"]));
    // The name is taken by an output; the condition of the output is false.
    let taken = json!({ "O": alias, "AliasX": { "Value": "plain" } });
    let mut never = alias.clone();
    never["Condition"] = json!("Never");
    let never = (json!({ "O": never }), json!({ "Never": { "Fn::Equals": ["a", "b"] } }));
    for (outputs, conditions) in [(&taken, &Value::Null), (&never.0, &never.1)] {
        let app = source(outputs, conditions);
        let cause = deploy_refused(&world, app, "Alias", &["AliasX"], "StackHasActiveImportsError");
        says(&cause, &["`AliasX` is no longer exported", "AliasUser (us-east-1)"]);
    }
    world.destroy("AliasUser");
    world.deploy(source(&taken, &Value::Null));
    let record = world.record("Alias");
    assert_eq!((&record["outputs"]["AliasX"], record.get("exportNames")), (&json!("plain"), None));
    index_follows(&world, "Alias", &["AliasX"]);
    world.destroy("Alias");
}

#[test]
fn e21_a_record_that_cannot_be_read_may_hide_a_consumer() {
    let world = world();
    let _alone = world.alone();
    let place = "cdkd/Unreadable/us-east-1/state.json";
    let exports = ["hidden-x", "hidden-y"];
    world.deploy(producer("Hidden", &exports));
    let api = world.aws.api();
    for body in ["{ no record", r#"{"version":99,"stackName":"Unreadable","region":"us-east-1"}"#] {
        let _planted = Planted::new(&world, place, body);
        let mark = world.mark();
        let cause = destroy_refused(&world, "Hidden", &exports, "StrongReferenceScanIncomplete");
        says(&cause, &["Unreadable (us-east-1)", "Hidden (us-east-1)", "repair the record"]);
        let without = producer("Hidden", &["hidden-x"]);
        let cause = deploy_refused(&world, without, "Hidden", &exports, "StrongReferenceScanIncomplete");
        says(&cause, &["Unreadable (us-east-1)"]);
        assert_eq!(world.mutations(mark), [""; 0], "nothing was touched");
        assert_eq!(api.get_object(world.aws.state_bucket(), place).unwrap().unwrap(), body.as_bytes());
    }
    // Another tool at work on another stack may be about to import.
    let owner = r#"{"owner":"ann@laptop:12","operation":"deploy","expiresAt":4102444800000}"#;
    let lock = Planted::new(&world, "cdkd/Elsewhere/us-east-1/lock.json", owner);
    let cause = destroy_refused(&world, "Hidden", &exports, "StrongReferenceScanIncomplete");
    says(&cause, &["`ann@laptop:12`", "Elsewhere (us-east-1)"]);
    drop(lock);
    world.destroy("Hidden");
    world.check_not_on_record("Hidden");
}

#[test]
fn e28_a_first_deploy_that_comes_to_nothing_leaves_no_record() {
    let world = world();
    let _turn = world.among_others();
    let cause = world.try_deploy(consumer("Nowhere", &["nowhere-x"])).refused("ExportNotFound");
    says(&cause, &["`nowhere-x`", "Nowhere"]);
    world.check_not_on_record("Nowhere");

    world.deploy(producer("Somewhere", &["somewhere-x"]));
    let cause = world.try_deploy(consumer("Nowhere", &["somewhere-y"])).refused("ExportNotFound");
    says(&cause, &["did you mean `somewhere-x`?"]);
    // Rolled back to nothing: it holds the producer no longer.
    world.fault(&json!({
        "type": QUEUE, "operation": "CREATE", "match": "Nowhere", "mode": "event", "times": 1,
        "error": { "HandlerErrorCode": "InvalidRequest", "StatusMessage": "no" },
    }));
    let both = json!({ "P": setting(&import("somewhere-x")), "Q": { "Type": QUEUE, "DependsOn": "P" } });
    let cause = world.try_deploy(Stack::with("Nowhere", &both)).refused("ProvisioningFailed");
    assert_eq!(cause["details"]["stacks"][0]["outcome"], "rolledBack", "{cause}");
    world.check_not_on_record("Nowhere");
    world.destroy("Somewhere");
}

#[test]
fn e5_a_consumer_that_fails_half_way_holds_old_and_new() {
    let world = world();
    let _turn = world.among_others();
    world.deploy(producer("HalfOld", &["half-old"]));
    world.deploy(producer("HalfNew", &["half-new"]));
    world.deploy(consumer("Half", &["half-old"]));
    world.fault(&json!({
        "type": QUEUE, "operation": "CREATE", "match": "Half-", "mode": "event", "times": 1,
        "error": { "HandlerErrorCode": "InvalidRequest", "StatusMessage": "no" },
    }));
    let both = || {
        Stack::with(
            "Half",
            &json!({ "P": setting(&import("half-new")), "Q": { "Type": QUEUE, "DependsOn": "P" } }),
        )
    };
    let run = world.deploy_with(both(), json!({ "options": { "rollback": false } }));
    run.refused("ProvisioningFailed");
    let mut held = world.imports("Half");
    held.sort();
    assert_eq!(held, ["half-new<HalfNew", "half-old<HalfOld"]);
    for (stack, export) in [("HalfOld", "half-old"), ("HalfNew", "half-new")] {
        destroy_refused(&world, stack, &[export], "StackHasActiveImportsError");
    }
    world.deploy(both());
    assert_eq!(world.imports("Half"), ["half-new<HalfNew"]);
    world.destroy("HalfOld");
    world.destroy("Half");
    world.destroy("HalfNew");
}

#[test]
fn e33_e13_g2_g7_a_weak_read_is_on_record_and_protects_nothing() {
    let world = world();
    let _turn = world.among_others();
    let reader = |name: &str, stack: &str, output: &str| {
        let read = json!({ "Fn::GetStackOutput": { "StackName": stack, "OutputName": output } });
        Stack::with(name, &json!({ "P": setting(&read) }))
    };
    let cause = world.try_deploy(reader("Weak", "WeakSource", "Plain")).refused("OutputNotFound");
    says(&cause, &["WeakSource (us-east-1)", "`Plain`"]);
    world.check_not_on_record("Weak");
    world.deploy(producer("WeakSource", &[]));
    let cause = world.try_deploy(reader("Weak", "WeakSource", "Plan")).refused("OutputNotFound");
    says(&cause, &["WeakSource (us-east-1) has no output `Plan`", "it has `Plain`", "did you mean `Plain`?"]);
    world.check_not_on_record("Weak");
    // G2: a stack does not read its own.
    let cause = world.try_deploy(reader("Weak", "Weak", "Plain")).refused("InvalidIntrinsic");
    says(&cause, &["`Fn::GetStackOutput`", "the stack itself", "use the value of that output in its place"]);
    world.check_not_on_record("Weak");

    world.deploy(reader("Weak", "WeakSource", "Plain"));
    assert_eq!(json!(world.held("Weak")), world.record("WeakSource")["outputs"]["Plain"]);
    assert_eq!(
        world.record("Weak")["outputReads"],
        json!([{ "sourceStack": "WeakSource", "sourceRegion": "us-east-1", "outputName": "Plain" }])
    );
    assert_eq!(world.imports("Weak"), [""; 0]);
    world.destroy("WeakSource");
    world.check_not_on_record("WeakSource");
    let before = world.picture("Weak");
    world.try_deploy(reader("Weak", "WeakSource", "Plain")).refused("OutputNotFound");
    assert_eq!(world.picture("Weak"), before);
    world.destroy("Weak");
}

#[test]
fn a_rolled_back_producer_exports_again_what_it_withdrew() {
    let world = world();
    let _turn = world.among_others();
    let exports = ["back-x", "back-y"];
    world.deploy(producer("Back", &exports));
    let before = world.indexed("back-x");
    assert!(before.is_some());
    let without = || {
        let more = json!({ "Fails": { "Type": QUEUE, "DependsOn": "Q" } });
        producer_of("Back", &["back-y"], &json!({ "VisibilityTimeout": 31 }), &more)
    };
    let fault = || {
        world.fault(&json!({
            "type": QUEUE, "operation": "CREATE", "match": "Back-", "mode": "event", "times": 1,
            "error": { "HandlerErrorCode": "InvalidRequest", "StatusMessage": "no" },
        }));
    };
    fault();
    let cause = world.try_deploy(without()).refused("ProvisioningFailed");
    assert_eq!(cause["details"]["stacks"][0]["outcome"], "rolledBack", "{cause}");
    let record = world.record("Back");
    let mut names: Vec<&str> =
        record["exportNames"].as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect();
    names.sort_unstable();
    assert_eq!(names, exports);
    assert!(record.get("withdrawing").is_none(), "{record:#}");
    assert_eq!(world.indexed("back-x"), before);
    world.check_put_down("Back");
    world.deploy(consumer("BackUser", &["back-x"]));
    world.destroy("BackUser");

    // Without rollback it stays withdrawn until a deploy publishes it anew (rule E26).
    fault();
    world.deploy_with(without(), json!({ "options": { "rollback": false } })).refused("ProvisioningFailed");
    assert!(world.record("Back")["withdrawing"]["back-x"].is_string());
    assert_eq!(world.indexed("back-x"), None);
    let run = world.try_deploy(consumer("BackUser", &["back-x"]));
    assert_eq!(run.outcome.status, "FAILED", "{}", run.outcome);
    world.check_not_on_record("BackUser");
    world.deploy(producer("Back", &exports));
    assert_eq!(world.indexed("back-x"), before);
    assert!(world.record("Back").get("withdrawing").is_none());
    assert_eq!(world.queues("Back"), 1);
    world.deploy(consumer("BackUser", &["back-x"]));
    world.destroy("BackUser");
    world.destroy("Back");
    world.check_not_on_record("Back");
}

#[test]
fn e26_what_a_failed_destroy_withdrew_is_not_served_again_by_a_run_that_fails() {
    let world = world();
    let _alone = world.alone();
    let place = "cdkd/Unreadable/us-east-1/state.json";
    let stack = || {
        Stack::new(
            "Wreck",
            &json!({
                "Resources": { "Q": { "Type": QUEUE, "DependsOn": "P" }, "P": setting(&json!("v")) },
                "Outputs": {
                    "Out": { "Value": { "Fn::GetAtt": ["Q", "Arn"] }, "Export": { "Name": "wreck-x" } },
                },
            }),
        )
    };
    let fault = |operation: &str, kind: &str| {
        world.fault(&json!({
            "type": kind, "operation": operation, "match": "Wreck-", "mode": "event", "times": 1,
            "error": { "HandlerErrorCode": "InvalidRequest", "StatusMessage": "no" },
        }));
    };
    let withdrawn = || {
        let record = world.record("Wreck");
        assert!(record["withdrawing"]["wreck-x"].is_string(), "{record:#}");
        assert_eq!(record["exportNames"].as_array().map_or(0, Vec::len), 0, "{record:#}");
        assert_eq!(world.indexed("wreck-x"), None);
    };
    world.deploy(stack());
    let url = world.physical_id("Wreck", "Q");
    // The queue goes, the parameter that it depends on does not.
    fault("DELETE", "AWS::SSM::Parameter");
    let run = world.try_destroy(&["Wreck"]);
    assert_eq!(run.outcome.status, "FAILED", "{}", run.outcome);
    assert!(!world.queue_lives(&url));
    withdrawn();
    // A destroy that is refused.
    let bucket = world.aws.state_bucket();
    world.aws.api().put_object(bucket, place, b"{ no record").unwrap();
    destroy_refused(&world, "Wreck", &["wreck-x"], "StrongReferenceScanIncomplete");
    withdrawn();
    remove(&world, place);
    // A deploy that is rolled back.
    fault("CREATE", QUEUE);
    let cause = world.try_deploy(stack()).refused("ProvisioningFailed");
    assert_eq!(cause["details"]["stacks"][0]["outcome"], "rolledBack", "{cause}");
    withdrawn();
    world.deploy(stack());
    assert!(world.indexed("wreck-x").is_some());
    world.destroy("Wreck");
    world.check_not_on_record("Wreck");
}
