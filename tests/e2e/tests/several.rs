//! Runs with several stacks: in what order, what they wait for, and what one failure leaves of the others.

#![allow(clippy::unwrap_used, reason = "what goes wrong in a test's own helpers fails the test")]

use std::collections::BTreeSet;
use std::time::Instant;

use cdkd_e2e::{
    App, Gate, PARAMETER, PATIENCE, QUEUE, Run, Stack, World, consumer, import, imported, producer,
    producer_of, read, says, setting, world,
};
use cdkd_wire::{Rule, When};
use serde_json::{Value, json};

/// No lock, no journal, and nothing that a run left half done on record.
#[track_caller]
fn settled(world: &World, stacks: &[&str]) {
    for stack in stacks {
        world.check_put_down(stack);
        let record = world.record(stack);
        for left in ["withdrawing", "pendingDeletes", "claims"] {
            assert!(record.get(left).is_none(), "{left} of {stack}: {record:#}");
        }
    }
}

#[track_caller]
fn gone(world: &World, stacks: &[&str]) {
    for stack in stacks {
        world.check_not_on_record(stack);
    }
}

/// The index follows the records by events: waits until it says that.
#[track_caller]
fn index_says(world: &World, export: &str, entry: Option<&str>) {
    let began = Instant::now();
    loop {
        let found = world.indexed(export);
        if found.as_deref() == entry {
            break;
        }
        assert!(began.elapsed() < PATIENCE, "{export}: {found:?}, not {entry:?}");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}

/// What stands of some stacks, to be compared with what stands later.
fn pictures(world: &World, stacks: &[&str]) -> Vec<Value> {
    stacks.iter().map(|stack| world.picture(stack)).collect()
}

/// Writes to the state bucket and calls that change something since a mark: none of a run that is refused in advance.
#[track_caller]
fn untouched(world: &World, mark: u64) {
    assert_eq!(world.mutations(mark), [""; 0], "nothing was touched");
    let writes = world.writes(mark, world.aws.state_bucket());
    let records: Vec<&String> =
        writes.iter().filter(|it| it.ends_with("/state.json") || it.contains("/_index/")).collect();
    assert!(records.is_empty(), "{records:?}");
}

/// The number in the log of the first such call of Cloud Control since a mark.
#[track_caller]
fn call(world: &World, mark: u64, operation: &str, resource: &str) -> u64 {
    let calls = world.since(mark);
    let found = calls.iter().find(|it| it.operation == operation && it.resource.contains(resource));
    found.unwrap_or_else(|| panic!("no {operation} {resource} in {:?}", world.mutations(mark))).seq
}

/// Stacks of a sample app.
fn sample(world: &World, app: &str, folder: &str, mut input: Value) -> Run {
    let assembly = world.aws.upload_assembly_zip(format!("tests/apps/{app}/{folder}")).unwrap();
    input["assembly"] = json!(assembly);
    world.run("cdkd-deploy", &input)
}

#[track_caller]
fn succeeded(run: &Run) {
    assert_eq!(run.outcome.status, "SUCCEEDED", "{}", run.outcome);
}

/// A queue of this name, and the parameter `Stays`.
fn named(stack: &str, export: &str, queue: &str) -> Stack {
    producer_of(stack, &[export], &json!({ "QueueName": queue }), &json!({ "Stays": setting(&json!("v")) }))
}

#[test]
fn e12_producer_and_consumer_in_one_run() {
    let world = world();
    let _alone = world.alone();
    // The order of names and of the assembly is the wrong one.
    let app = || App::from([consumer("PairA", &["pair"]), producer("PairZ", &["pair"])]);
    let run = world.deploy(app());
    assert_eq!(run.outcomes(), ["PairZ deployed", "PairA deployed"]);
    assert_eq!(run.word(), "deployed");
    let arn = world.exported("PairZ", "pair");
    assert_eq!(world.held("PairA"), arn);
    assert_eq!(world.imports("PairA"), ["pair<PairZ"]);
    index_says(&world, "pair", Some(&format!("PairZ {arn}")));
    settled(&world, &["PairA", "PairZ"]);
    let result = world.result(&run);
    let of = |stack: &str| {
        let rows = result["stacks"].as_array().unwrap();
        rows.iter().find(|row| row["stack"] == stack).unwrap_or_else(|| panic!("{result:#}")).clone()
    };
    assert_eq!(of("PairZ")["outputs"]["pair"], json!(arn), "{result:#}");
    assert_eq!(of("PairA")["steps"].as_array().map(Vec::len), Some(1), "{result:#}");
    assert_eq!(run.answer()["result"], format!("runs/{}/result.json", run.name()));

    // Nothing changes: no call, no write of a record, no look through the estate.
    let mark = world.mark();
    let run = world.deploy(app());
    assert_eq!(
        (run.word().as_str(), run.outcomes()),
        ("unchanged", vec!["PairZ unchanged".into(), "PairA unchanged".into()])
    );
    assert_eq!(world.cloud_control(mark), 0);
    untouched(&world, mark);
    let requests = world.since(mark);
    let scans: Vec<&str> = requests
        .iter()
        .filter(|it| it.operation == "ListObjectsV2" && it.resource.ends_with("/cdkd/"))
        .filter_map(|it| it.function.as_deref())
        .collect();
    assert_eq!(scans, [""; 0], "no scan");
    let list: Vec<String> = requests
        .iter()
        .filter(|it| it.service == "s3")
        .map(|it| format!("{} {} {}", it.function.as_deref().unwrap_or_default(), it.operation, it.resource))
        .collect();
    assert!(list.len() <= 105, "{} requests to S3: {list:#?}", list.len());

    let mark = world.mark();
    let run = world.destroy_all(&["PairZ", "PairA"]);
    assert_eq!(
        (run.word().as_str(), run.outcomes()),
        ("destroyed", vec!["PairA destroyed".into(), "PairZ destroyed".into()])
    );
    let (first, second) =
        (call(&world, mark, "DeleteResource", PARAMETER), call(&world, mark, "DeleteResource", QUEUE));
    assert!(first < second, "the consumer goes first");
    gone(&world, &["PairA", "PairZ"]);
    index_says(&world, "pair", None);
    assert_eq!(world.queues("PairZ"), 0);
}

#[test]
fn e34_a_consumer_outside_the_list_refuses_at_once() {
    let world = world();
    let _alone = world.alone();
    let stacks = ["OutP", "OutC", "OutD", "OutX"];
    world.deploy([
        producer("OutP", &["out-x", "out-y"]),
        consumer("OutC", &["out-x"]),
        producer("OutD", &["out-d"]),
        consumer("OutX", &["out-y", "out-d"]),
    ]);
    let (before, mark) = (pictures(&world, &stacks), world.mark());
    for list in [["OutP", "OutC", "OutD"], ["OutD", "OutP", "OutC"]] {
        let cause = world.try_destroy(&list).refused("StackHasActiveImportsError");
        says(&cause, &["OutX (us-east-1)", "`out-y`", "`out-d`", "OutP", "OutD"]);
        let text = cause["details"]["consumers"].to_string();
        assert!(text.contains("OutX") && !text.contains("OutC"), "{cause}");
    }
    assert_eq!(pictures(&world, &stacks), before);
    untouched(&world, mark);
    let locks = world.writes(mark, "lock.json");
    assert!(locks.is_empty(), "no lock is taken: {locks:?}");
    settled(&world, &stacks);
    // All of them go, in whatever order they are named; twice named is once.
    let run = world.destroy_all(&["OutP", "OutC", "OutD", "OutX", "OutP"]);
    let order = run.outcomes();
    let at = |row: &str| order.iter().position(|it| it == row).unwrap_or_else(|| panic!("{row}: {order:?}"));
    for (first, second) in [("OutC", "OutP"), ("OutX", "OutP"), ("OutX", "OutD")] {
        assert!(at(&format!("{first} destroyed")) < at(&format!("{second} destroyed")), "{order:?}");
    }
    assert_eq!(order.len(), 4, "{order:?}");
    gone(&world, &stacks);
}

#[test]
fn e34_a_name_in_two_regions_is_refused_naming_both() {
    let world = world();
    let _alone = world.alone();
    let stack = |id: &str, region: &str| {
        Stack::with(id, &json!({ "P": setting(&json!(region)) }))
            .property("stackName", json!("TwoPlaces"))
            .environment(&format!("aws://{}/{region}", world.aws.account()))
    };
    let run = world.deploy([stack("East", "us-east-1"), stack("West", "eu-west-1")]);
    assert_eq!(run.outcomes(), ["TwoPlaces deployed", "TwoPlaces deployed"]);
    let west = world.record_in("TwoPlaces", "eu-west-1").unwrap();
    let (east_id, west_id) = (
        world.physical_id("TwoPlaces", "P"),
        west["resources"]["P"]["physicalId"].as_str().unwrap().to_owned(),
    );
    let east = || world.aws.api().parameter(&east_id).unwrap().map(|it| it["Value"].clone());
    let west =
        || world.aws.api().in_region("eu-west-1").parameter(&west_id).unwrap().map(|it| it["Value"].clone());
    assert_eq!((east(), west()), (Some(json!("us-east-1")), Some(json!("eu-west-1"))));

    world.deploy(producer("OnePlace", &[]));
    let mark = world.mark();
    let cause = world.try_destroy(&["OnePlace", "TwoPlaces"]).refused("AmbiguousStack");
    says(&cause, &["TwoPlaces", "us-east-1", "eu-west-1", "`region`"]);
    untouched(&world, mark);
    settled(&world, &["OnePlace", "TwoPlaces"]);
    let run = world.run("cdkd-destroy", &json!({ "stacks": ["TwoPlaces"], "region": "eu-west-1" }));
    succeeded(&run);
    assert_eq!((east().is_some(), west()), (true, None));
    assert_eq!(world.record_in("TwoPlaces", "eu-west-1"), None);
    world.destroy_all(&["OnePlace", "TwoPlaces"]);
    gone(&world, &["OnePlace", "TwoPlaces"]);
}

#[test]
fn e12_a_chain_goes_up_and_down_in_one_run() {
    let world = world();
    let _turn = world.among_others();
    // The last one pulls in those that it imports from (rule E13).
    let run = sample(&world, "references", "cdk.out", json!({ "stacks": ["ChainC"] }));
    succeeded(&run);
    assert_eq!(run.outcomes(), ["ChainA deployed", "ChainB deployed", "ChainC deployed"]);
    assert_eq!(world.imports("ChainB"), ["chain-a<ChainA"]);
    assert_eq!(world.imports("ChainC"), ["chain-b<ChainB"]);
    let link = world.physical_id("ChainC", "Link1234EF21");
    let value = world.aws.api().parameter(&link).unwrap().unwrap()["Value"].clone();
    assert_eq!(value, world.physical_id("ChainB", "Link1234EF21"));
    settled(&world, &["ChainA", "ChainB", "ChainC"]);
    let run = sample(&world, "references", "cdk.out", json!({ "stacks": ["ChainC", "ChainA"] }));
    assert_eq!(run.outcomes(), ["ChainA unchanged", "ChainB unchanged", "ChainC unchanged"]);
    let cause = world.try_destroy(&["ChainA", "ChainB"]).refused("StackHasActiveImportsError");
    says(&cause, &["ChainC (us-east-1) imports `chain-b`"]);
    let run = world.destroy_all(&["ChainA", "ChainB", "ChainC"]);
    assert_eq!(run.outcomes(), ["ChainC destroyed", "ChainB destroyed", "ChainA destroyed"]);
    gone(&world, &["ChainA", "ChainB", "ChainC"]);
    for export in ["chain-a", "chain-b"] {
        index_says(&world, export, None);
    }
}

#[test]
fn e15_the_deadly_embrace_ends_in_one_run() {
    let world = world();
    let _alone = world.alone();
    let stacks = ["Beta-Data", "Beta-Service"];
    let export = "Beta-Data:ExportsOutputFnGetAttJobsDF1CC2D4Arn85C9CFC3";
    let run = sample(&world, "stages", "cdk.out", json!({}));
    succeeded(&run);
    let outcomes = run.outcomes();
    assert_eq!(outcomes[0], "Beta-Data deployed", "{outcomes:?}");
    assert_eq!(
        outcomes[1..].iter().map(String::as_str).collect::<BTreeSet<_>>(),
        BTreeSet::from(["Abroad deployed", "Beta-Service deployed"])
    );
    let watched = world.physical_id("Beta-Service", "Watched949350FC");
    let value = || world.aws.api().parameter(&watched).unwrap().unwrap()["Value"].clone();
    let arn = world.exported("Beta-Data", export);
    assert_eq!(value(), json!(arn));
    // The weak reader's record and resource are in its own region.
    let abroad = world.record_in("Abroad", "eu-west-1").unwrap();
    assert_eq!(world.record_in("Abroad", "us-east-1"), None);
    assert_eq!(
        abroad["outputReads"],
        json!([{ "sourceStack": "Beta-Data", "sourceRegion": "us-east-1", "outputName": "JobsName" }])
    );
    let seen = abroad["resources"]["Seen47A6A2AD"]["physicalId"].as_str().unwrap();
    let seen = world.aws.api().in_region("eu-west-1").parameter(seen).unwrap().unwrap()["Value"].clone();
    assert_eq!(seen, world.record("Beta-Data")["outputs"]["JobsName"]);

    // Without the consumer in the run, nothing is touched.
    let before = pictures(&world, &stacks);
    for list in [json!(["Beta-Data"]), json!(["Abroad", "Beta/Data"])] {
        let mark = world.mark();
        let input = json!({ "stacks": list, "options": { "exclusively": true } });
        let run = sample(&world, "stages", "cdk.out.changed", input);
        let cause = run.refused("StackHasActiveImportsError");
        says(&cause, &[export, "Beta-Service (us-east-1)"]);
        assert!(run.outcomes().iter().all(|row| !row.ends_with("deployed")), "{:?}", run.outcomes());
        untouched(&world, mark);
    }
    assert_eq!(pictures(&world, &stacks), before);
    settled(&world, &stacks);

    // Nothing in the new application says which of the two has to go first.
    let run = sample(&world, "stages", "cdk.out.changed", json!({}));
    succeeded(&run);
    assert_eq!(
        run.outcomes().iter().map(String::as_str).collect::<BTreeSet<_>>(),
        BTreeSet::from(["Abroad unchanged", "Beta-Data deployed", "Beta-Service deployed"])
    );
    assert_eq!(world.imports("Beta-Service"), [""; 0]);
    assert_eq!(value(), world.row("Beta-Service", "Own30425842")["attributes"]["Arn"]);
    assert!(world.record("Beta-Data").get("exportNames").is_none(), "{:#}", world.record("Beta-Data"));
    index_says(&world, export, None);
    settled(&world, &stacks);
    // Back again: the export is new, and the consumer waits for it.
    let run = sample(&world, "stages", "cdk.out", json!({ "stacks": ["Beta-Service"] }));
    succeeded(&run);
    assert_eq!(run.outcomes(), ["Beta-Data deployed", "Beta-Service deployed"]);
    assert_eq!(value(), json!(arn));
    index_says(&world, export, Some(&format!("Beta-Data {arn}")));
    let run = world.destroy_all(&["Abroad", "Beta-Data", "Beta-Service"]);
    assert_eq!(run.outcomes().last().unwrap(), "Beta-Data destroyed");
    gone(&world, &stacks);
    assert_eq!(world.record_in("Abroad", "eu-west-1"), None);
}

#[test]
fn e15_a_reference_turns_round_in_one_run() {
    let world = world();
    let _turn = world.among_others();
    let both = |name: &str, exports: &[&str], imports: &[&str]| {
        producer_of(name, exports, &json!({}), &json!({ "P": setting(&imported(imports)) }))
    };
    let stacks = ["TurnA", "TurnB"];
    world.deploy([both("TurnA", &["turn-a"], &[]), both("TurnB", &[], &["turn-a"])]);
    let run = world.deploy([both("TurnA", &[], &["turn-b"]), both("TurnB", &["turn-b"], &[])]);
    assert_eq!(run.outcomes(), ["TurnB deployed", "TurnA deployed"]);
    assert_eq!(world.imports("TurnA"), ["turn-b<TurnB"]);
    assert_eq!(world.imports("TurnB"), [""; 0]);
    assert_eq!(world.held("TurnA"), world.exported("TurnB", "turn-b"));
    index_says(&world, "turn-a", None);
    settled(&world, &stacks);
    let run = world.destroy_all(&["TurnB", "TurnA"]);
    assert_eq!(run.outcomes(), ["TurnA destroyed", "TurnB destroyed"]);
    gone(&world, &stacks);
}

#[test]
fn e15_a_consumer_that_fails_keeps_what_its_producer_gives_up() {
    let world = world();
    let _turn = world.among_others();
    let old = || {
        App::from([
            producer_of("KeepP", &["keep"], &json!({}), &json!({ "Stays": setting(&json!("v")) })),
            consumer("KeepC", &["keep"]),
        ])
    };
    let new = || {
        App::from([Stack::with("KeepP", &json!({ "Stays": setting(&json!("w")) })), consumer("KeepC", &[])])
    };
    world.deploy(old());
    let (url, arn) = (world.physical_id("KeepP", "Q"), world.exported("KeepP", "keep"));
    let before = world.picture("KeepC");
    world.fail(PARAMETER, "UPDATE", "KeepC-");
    let run = world.try_deploy(new());
    run.refused("ProvisioningFailed");
    let mut outcomes = run.outcomes();
    outcomes.sort();
    assert_eq!(outcomes, ["KeepC rolledBack", "KeepP deletesPending"]);
    // The producer's part is done, but for what the consumer still holds.
    let stays = world.aws.api().parameter(&world.physical_id("KeepP", "Stays")).unwrap().unwrap();
    assert_eq!(stays["Value"], "w");
    assert!(world.queue_lives(&url));
    assert_eq!(world.exported("KeepP", "keep"), arn);
    index_says(&world, "keep", Some(&format!("KeepP {arn}")));
    assert_eq!((world.held("KeepC"), world.imports("KeepC")), (arn.clone(), vec!["keep<KeepP".to_owned()]));
    assert_eq!(world.picture("KeepC")["resources"], before["resources"]);
    for stack in ["KeepP", "KeepC"] {
        world.check_put_down(stack);
    }
    // It is on record for the next run, and no run takes it from the consumer.
    let refused = world.deploy_with(new(), json!({ "stacks": ["KeepP"] }));
    says(&refused.refused("StackHasActiveImportsError"), &["`keep`", "KeepC (us-east-1)"]);
    world.try_destroy(&["KeepP"]).refused("StackHasActiveImportsError");
    assert!(world.queue_lives(&url));
    index_says(&world, "keep", Some(&format!("KeepP {arn}")));
    // A new consumer may come as long as it is there.
    world.deploy(consumer("KeepD", &["keep"]));
    world.destroy("KeepD");

    let run = world.deploy(new());
    let mut outcomes = run.outcomes();
    outcomes.sort();
    assert_eq!(outcomes, ["KeepC deployed", "KeepP deployed"]);
    assert!(!world.queue_lives(&url));
    index_says(&world, "keep", None);
    assert_eq!(world.imports("KeepC"), [""; 0]);
    settled(&world, &["KeepC", "KeepP"]);
    assert_eq!(world.record("KeepP")["resources"].as_object().unwrap().len(), 1);
    world.destroy_all(&["KeepC", "KeepP"]);
    gone(&world, &["KeepC", "KeepP"]);
}

#[test]
fn p16_a_delete_that_aws_refuses_waits_for_the_next_run() {
    let world = world();
    let _turn = world.among_others();
    let new = || {
        App::from([Stack::with("StuckP", &json!({ "Stays": setting(&json!("v")) })), consumer("StuckC", &[])])
    };
    world.deploy([
        producer_of("StuckP", &["stuck"], &json!({}), &json!({ "Stays": setting(&json!("v")) })),
        consumer("StuckC", &["stuck"]),
    ]);
    let url = world.physical_id("StuckP", "Q");
    world.fail(QUEUE, "DELETE", "StuckP-");
    let run = world.try_deploy(new());
    run.refused("ProvisioningFailed");
    let mut outcomes = run.outcomes();
    outcomes.sort();
    assert_eq!(outcomes, ["StuckC deployed", "StuckP deletesPending"]);
    assert_eq!(world.held("StuckC"), "nothing");
    assert!(world.queue_lives(&url));
    world.check_put_down("StuckP");
    let run = world.deploy(new());
    assert!(!world.queue_lives(&url), "{:?}", run.outcomes());
    settled(&world, &["StuckP", "StuckC"]);
    world.destroy_all(&["StuckC", "StuckP"]);
    gone(&world, &["StuckC", "StuckP"]);
}

#[test]
fn e24_what_a_value_names_is_replaced_when_its_consumer_has_moved() {
    let world = world();
    let _turn = world.among_others();
    let app = |queue: &str| App::from([named("SwapP", "swap", queue), consumer("SwapC", &["swap"])]);
    let name = |number: u8| format!("swap-{number}");
    world.deploy(app(&name(1)));
    let first = world.physical_id("SwapP", "Q");
    let (consumed, mark) = (world.physical_id("SwapC", "P"), world.mark());
    let run = world.deploy(app(&name(2)));
    assert_eq!(run.outcomes(), ["SwapP deployed", "SwapC deployed"]);
    let second = world.physical_id("SwapP", "Q");
    assert!(world.exported("SwapP", "swap").ends_with(":swap-2"));
    assert_eq!(world.held("SwapC"), world.exported("SwapP", "swap"));
    assert!(!world.queue_lives(&first) && world.queue_lives(&second));
    let moved = call(&world, mark, "UpdateResource", &consumed);
    assert!(moved < call(&world, mark, "DeleteResource", &first), "the consumer has the new value first");
    settled(&world, &["SwapP", "SwapC"]);

    // The consumer fails: it holds the old value, and what that names stays.
    world.fail(PARAMETER, "UPDATE", "SwapC-");
    let run = world.try_deploy(app(&name(3)));
    run.refused("ProvisioningFailed");
    assert_eq!(run.outcomes(), ["SwapP deletesPending", "SwapC rolledBack"]);
    let third = world.physical_id("SwapP", "Q");
    assert!(world.exported("SwapP", "swap").ends_with(":swap-3"));
    assert!(world.held("SwapC").ends_with(":swap-2"));
    assert!(world.queue_lives(&second) && world.queue_lives(&third));
    for stack in ["SwapP", "SwapC"] {
        world.check_put_down(stack);
    }
    let before = world.picture("SwapP");
    for queue in [3, 4] {
        let run = world.deploy_with(app(&name(queue)), json!({ "stacks": ["SwapP"] }));
        says(&run.refused("StackHasActiveImportsError"), &["`swap`", "SwapC (us-east-1)"]);
        assert!(world.queue_lives(&second) && world.queue_lives(&third));
        assert_eq!(world.picture("SwapP"), before);
    }
    world.try_destroy(&["SwapP"]).refused("StackHasActiveImportsError");
    let run = world.deploy(app(&name(3)));
    assert!(!world.queue_lives(&second), "{:?}", run.outcomes());
    assert!(world.queue_lives(&third));
    assert_eq!(world.held("SwapC"), world.exported("SwapP", "swap"));
    settled(&world, &["SwapP", "SwapC"]);
    world.destroy_all(&["SwapP", "SwapC"]);
    gone(&world, &["SwapP", "SwapC"]);
}

#[test]
fn e29_an_export_moves_from_one_stack_to_another() {
    let world = world();
    let _turn = world.among_others();
    let app = |first: &[&str], second: &[&str]| {
        App::from([producer("MoveA", first), producer("MoveB", second), consumer("MoveC", &["move"])])
    };
    world.deploy(app(&["move"], &[]));
    assert_eq!(world.imports("MoveC"), ["move<MoveA"]);
    // Both ways: from the first in the order of names to the second, and back.
    for (number, (first, second, owner)) in
        [(vec![], vec!["move"], "MoveB"), (vec!["move"], vec![], "MoveA")].into_iter().enumerate()
    {
        let run = world.deploy(app(&first, &second));
        assert!(
            run.outcomes().iter().all(|row| row.ends_with(" deployed")),
            "{number}: {:?}",
            run.outcomes()
        );
        assert_eq!(world.imports("MoveC"), [format!("move<{owner}")]);
        let arn = world.exported(owner, "move");
        assert_eq!(world.held("MoveC"), arn);
        index_says(&world, "move", Some(&format!("{owner} {arn}")));
        settled(&world, &["MoveA", "MoveB", "MoveC"]);
        let other = if owner == "MoveA" { "MoveB" } else { "MoveA" };
        assert!(world.record(other)["outputs"].get("move").is_none());
    }
    // Taken away with nobody to take it over while one imports it: refused, nothing touched.
    let before = pictures(&world, &["MoveA", "MoveB", "MoveC"]);
    world.try_deploy(app(&[], &[])).refused("ExportNotFound");
    assert_eq!(pictures(&world, &["MoveA", "MoveB", "MoveC"]), before);
    settled(&world, &["MoveA", "MoveB", "MoveC"]);
    world.destroy_all(&["MoveA", "MoveB", "MoveC"]);
    gone(&world, &["MoveA", "MoveB", "MoveC"]);
}

#[test]
fn e4_two_stacks_of_a_run_do_not_export_one_name() {
    let world = world();
    let _turn = world.among_others();
    let app = [producer("SameA", &["same"]), producer("SameB", &["same"])];
    let cause = world.try_deploy(app).refused("ExportNameTakenError");
    says(&cause, &["`same`", "SameA", "SameB"]);
    gone(&world, &["SameA", "SameB"]);
    index_says(&world, "same", None);
}

#[test]
fn e29_a_physical_name_moves_from_one_stack_to_another() {
    let world = world();
    let _turn = world.among_others();
    let stack = |name: &str, with: bool| {
        let mut resources = json!({ "Stays": setting(&json!("v")) });
        if with {
            resources["Q"] = json!({ "Type": QUEUE, "Properties": { "QueueName": "name-that-moves" } });
        }
        Stack::with(name, &resources)
    };
    let app = |first: bool| App::from([stack("FromA", first), stack("ToB", !first).after(&["FromA"])]);
    world.deploy(app(true));
    let mark = world.mark();
    let run = world.deploy(app(false));
    assert_eq!(run.outcomes(), ["FromA deployed", "ToB deployed"]);
    let calls = world.mutations(mark);
    let queues: Vec<&String> = calls.iter().filter(|it| it.contains("name-that-moves")).collect();
    assert_eq!(queues.len(), 1, "the create names it in its body: {calls:?}");
    assert!(world.queue_lives(&world.physical_id("ToB", "Q")));
    assert!(world.record("FromA")["resources"].get("Q").is_none());
    settled(&world, &["FromA", "ToB"]);
    world.destroy_all(&["FromA", "ToB"]);
    assert!(!world.queue_lives("name-that-moves"));
    gone(&world, &["FromA", "ToB"]);
}

#[test]
fn e16_a_renamed_export_of_the_same_value_is_no_change_of_its_consumer() {
    let world = world();
    let _turn = world.among_others();
    let app = |export: &str| {
        let source = json!({
            "Resources": { "P": setting(&json!("v")) },
            "Outputs": { "Out": { "Value": "renamed-queue", "Export": { "Name": export } } },
        });
        // Create-only: another value would replace it, and a fixed name forbids that.
        let queue = json!({ "Type": QUEUE, "Properties": { "QueueName": import(export) } });
        App::from([Stack::new("RenameP", &source), Stack::with("RenameC", &json!({ "Q": queue }))])
    };
    world.deploy(app("rename-old"));
    let url = world.physical_id("RenameC", "Q");
    let run = world.deploy(app("rename-new"));
    assert_eq!(run.outcomes()[0], "RenameP deployed");
    assert_eq!(world.physical_id("RenameC", "Q"), url);
    assert_eq!(run.answer()["stacks"][1]["counts"]["replace"].as_u64().unwrap_or(0), 0, "{}", run.answer());
    assert!(world.queue_lives(&url));
    assert_eq!(world.imports("RenameC"), ["rename-new<RenameP"]);
    index_says(&world, "rename-old", None);
    index_says(&world, "rename-new", Some("RenameP renamed-queue"));
    settled(&world, &["RenameP", "RenameC"]);
    world.destroy_all(&["RenameP", "RenameC"]);
    gone(&world, &["RenameP", "RenameC"]);
}

#[test]
fn e18_a_value_that_changes_is_told_to_consumers_outside_the_run() {
    let world = world();
    let _turn = world.among_others();
    let app = |value: &str| {
        let source = json!({
            "Resources": { "P": setting(&json!("v")) },
            "Outputs": { "Out": { "Value": value, "Export": { "Name": "tell" } } },
        });
        App::from([Stack::new("TellP", &source), consumer("TellIn", &["tell"])])
    };
    world.deploy(app("one"));
    world.deploy(consumer("TellOut", &["tell"]));
    let run = world.deploy(app("two"));
    assert_eq!(run.outcomes(), ["TellP deployed", "TellIn deployed"]);
    let warnings = run.answer()["warnings"].to_string();
    assert!(warnings.contains("`tell` changes") && warnings.contains("TellOut (us-east-1)"), "{warnings}");
    assert!(!warnings.contains("TellIn"), "it has the new value: {warnings}");
    assert_eq!((world.held("TellIn").as_str(), world.held("TellOut").as_str()), ("two", "one"));
    settled(&world, &["TellP", "TellIn", "TellOut"]);
    world.destroy_all(&["TellP", "TellIn", "TellOut"]);
    gone(&world, &["TellP", "TellIn", "TellOut"]);
}

#[test]
fn e37_a_plan_knows_that_a_value_is_known_later() {
    let world = world();
    let _alone = world.alone();
    let app = || {
        App::from([
            producer("LaterP", &["later"]),
            Stack::with(
                "LaterC",
                &json!({ "P": setting(&import("later")), "R": setting(&read("LaterP", "Plain", None)) }),
            ),
        ])
    };
    let mark = world.mark();
    let run = world.deploy_with(app(), json!({ "options": { "dryRun": true } }));
    succeeded(&run);
    assert_eq!(
        (run.word().as_str(), run.outcomes()),
        ("planned", vec!["LaterP planned".into(), "LaterC planned".into()])
    );
    let result = world.result(&run);
    let plans = result["plans"].as_array().unwrap_or_else(|| panic!("{result:#}"));
    assert_eq!(plans.len(), 2, "{result:#}");
    assert!(plans[1].to_string().contains("known after"), "{:#}", plans[1]);
    let counts = &run.answer()["stacks"][1]["counts"];
    assert_eq!(counts["create"], 2, "{counts}");
    assert_eq!(world.writes(mark, world.aws.state_bucket()), [""; 0]);
    assert_eq!(world.mutations(mark), [""; 0]);
    gone(&world, &["LaterP", "LaterC"]);
    // And with the producer there, a plan of both says what will be.
    world.deploy(app());
    let run = world.deploy_with(app(), json!({ "options": { "dryRun": true } }));
    let counts = &run.answer()["stacks"][1]["counts"];
    assert_eq!(
        (counts["create"].as_u64().unwrap_or(0), counts["update"].as_u64().unwrap_or(0)),
        (0, 0),
        "{counts}"
    );
    world.destroy_all(&["LaterP", "LaterC"]);
    gone(&world, &["LaterP", "LaterC"]);
}

#[test]
fn one_stack_that_fails_stops_those_that_need_it_and_no_other() {
    let world = world();
    let _turn = world.among_others();
    let app = || {
        App::from([
            producer("OneFree", &[]),
            producer("OneFails", &["one-fails"]),
            producer_of(
                "OneWaits",
                &["one-waits"],
                &json!({}),
                &json!({ "P": setting(&imported(&["one-fails"])) }),
            ),
            consumer("OneWaitsToo", &["one-waits"]),
            consumer("OneDeclared", &[]).after(&["OneFails"]),
        ])
    };
    let all = ["OneFree", "OneFails", "OneWaits", "OneWaitsToo", "OneDeclared"];
    world.fail(QUEUE, "CREATE", "OneFails-");
    let run = world.try_deploy(app());
    let cause = run.refused("ProvisioningFailed");
    says(&cause, &["`Q`", "not today"]);
    let mut outcomes = run.outcomes();
    outcomes.sort();
    assert_eq!(
        outcomes,
        [
            "OneDeclared notStarted",
            "OneFails rolledBack",
            "OneFree deployed",
            "OneWaits notStarted",
            "OneWaitsToo notStarted"
        ]
    );
    let result = world.result(&run);
    assert_eq!(result["error"]["code"], "ProvisioningFailed", "{result:#}");
    assert_eq!(result["stacks"].as_array().map(Vec::len), Some(5), "{result:#}");
    settled(&world, &["OneFree"]);
    gone(&world, &all[1..]);
    index_says(&world, "one-fails", None);
    let run = world.deploy(app());
    let mut outcomes = run.outcomes();
    outcomes.sort();
    assert_eq!(
        outcomes,
        [
            "OneDeclared deployed",
            "OneFails deployed",
            "OneFree unchanged",
            "OneWaits deployed",
            "OneWaitsToo deployed"
        ]
    );
    settled(&world, &all);
    // The other way round: a consumer that does not go keeps its producers, and those that nobody needs go.
    world.fail(PARAMETER, "DELETE", "OneWaitsToo-");
    let run = world.try_destroy(&all);
    run.refused("ProvisioningFailed");
    let mut outcomes = run.outcomes();
    outcomes.sort();
    assert_eq!(
        outcomes[1..],
        ["OneFails notStarted", "OneFree destroyed", "OneWaits notStarted", "OneWaitsToo failed"]
    );
    for stack in ["OneFails", "OneWaits", "OneWaitsToo"] {
        world.check_put_down(stack);
        world.record(stack);
    }
    gone(&world, &["OneFree"]);
    world.destroy_all(&["OneFails", "OneWaits", "OneWaitsToo"]);
    if world.aws.record("OneDeclared").unwrap().is_some() {
        world.destroy("OneDeclared");
    }
    gone(&world, &all);
}

#[test]
fn ten_independent_stacks_in_one_run() {
    let world = world();
    let _turn = world.among_others();
    let names: Vec<String> = (0..10).map(|number| format!("Ten{number}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let run = world.deploy(names.iter().map(|name| producer(name, &[name])).collect::<App>());
    let wanted: Vec<String> = names.iter().map(|name| format!("{name} deployed")).collect();
    let mut outcomes = run.outcomes();
    outcomes.sort();
    assert_eq!(outcomes, wanted);
    for name in &names {
        index_says(&world, name, Some(&format!("{name} {}", world.exported(name, name))));
        assert_eq!(world.queues(name), 1);
    }
    settled(&world, &names);
    let run = world.destroy_all(&names);
    assert_eq!(run.outcomes().len(), 10);
    gone(&world, &names);
    for name in &names {
        index_says(&world, name, None);
    }
}

#[test]
fn e32_an_import_is_served_from_the_region_of_its_stack() {
    let world = world();
    let _alone = world.alone();
    let west = format!("aws://{}/eu-west-1", world.aws.account());
    // In one run with a producer of another region, in a run of its own, and in one region.
    let app = || App::from([producer("HereP", &["here"]), consumer("ThereC", &["here"]).environment(&west)]);
    let mark = world.mark();
    let cause = world.try_deploy(app()).refused("ExportNotFound");
    says(&cause, &["`here`", "ThereC"]);
    assert_eq!(world.mutations(mark), [""; 0], "nothing was touched");
    gone(&world, &["HereP"]);
    world.deploy(producer("HereP", &["here"]));
    world.try_deploy(consumer("ThereC", &["here"]).environment(&west)).refused("ExportNotFound");
    assert_eq!(world.record_in("ThereC", "eu-west-1"), None);
    // One name in two regions is no conflict.
    let run = world.deploy([
        producer("ThereP", &["here"]).environment(&west),
        consumer("ThereC", &["here"]).environment(&west),
        consumer("HereC", &["here"]),
    ]);
    assert_eq!(run.outcomes().len(), 3);
    let there = world.record_in("ThereC", "eu-west-1").unwrap();
    assert_eq!(
        there["imports"],
        json!([{ "exportName": "here", "sourceStack": "ThereP", "sourceRegion": "eu-west-1" }])
    );
    assert_eq!(world.imports("HereC"), ["here<HereP"]);
    let value =
        world.record_in("ThereP", "eu-west-1").unwrap()["outputs"]["here"].as_str().unwrap().to_owned();
    assert!(value.starts_with("arn:aws:sqs:eu-west-1:"), "{value}");
    let id = there["resources"]["P"]["physicalId"].as_str().unwrap();
    assert_eq!(world.aws.api().in_region("eu-west-1").parameter(id).unwrap().unwrap()["Value"], json!(value));
    let cause = world.try_destroy(&["ThereP"]).refused("StackHasActiveImportsError");
    says(&cause, &["ThereC (eu-west-1)"]);
    assert!(!cause.to_string().contains("HereC"), "{cause}");
    let run = world.destroy_all(&["HereP", "ThereP", "HereC", "ThereC"]);
    assert_eq!(run.outcomes().len(), 4);
    for stack in ["ThereP", "ThereC"] {
        assert_eq!(world.record_in(stack, "eu-west-1"), None);
    }
    gone(&world, &["HereP", "HereC"]);
}

#[test]
fn a_run_takes_all_of_its_locks_or_none() {
    let world = world();
    let _alone = world.alone();
    let api = world.aws.api();
    let app = |value: &str| {
        let stack = |name: &str| Stack::with(name, &json!({ "P": setting(&json!(value)) }));
        App::from([stack("AllA"), stack("AllB"), stack("AllC")])
    };
    world.deploy(app("one"));
    let before = pictures(&world, &["AllA", "AllB", "AllC"]);
    let update = Rule::on("cloudcontrol", "UpdateResource").resource("AllB-");
    let gate = Gate::new(&world, update, When::Before);
    let first = world.start_deploy(app("two"), json!({ "stacks": ["AllB"] }));
    gate.wait();
    for run in [world.try_deploy(app("three")), world.try_destroy(&["AllC", "AllB", "AllA"])] {
        let cause = run.refused("StackLocked");
        says(&cause, &["AllB", &first]);
        for stack in ["AllA", "AllC"] {
            world.check_put_down(stack);
        }
    }
    assert_eq!(pictures(&world, &["AllA"]), before[..1]);
    let second = world.start_deploy(app("three"), json!({ "options": { "lockWaitSeconds": 30 } }));
    std::thread::sleep(std::time::Duration::from_secs(1));
    assert_eq!(api.describe_execution(&second).unwrap().status, "RUNNING");
    drop(gate);
    for execution in [&first, &second] {
        let outcome = api.wait(execution).unwrap();
        assert!(outcome.succeeded(), "{outcome}");
    }
    for stack in ["AllA", "AllB", "AllC"] {
        assert_eq!(world.held(stack), "three");
    }
    settled(&world, &["AllA", "AllB", "AllC"]);
    world.destroy_all(&["AllA", "AllB", "AllC"]);
    gone(&world, &["AllA", "AllB", "AllC"]);
}

#[test]
fn e22_a_consumer_outside_that_comes_while_a_run_takes_an_export_away() {
    let world = world();
    let _alone = world.alone();
    // Nobody outside imports when the run is prepared; one comes before the clean-up, and the export is still there.
    world.deploy([producer("LateP", &["late"]), consumer("LateC", &["late"])]);
    let (url, arn) = (world.physical_id("LateP", "Q"), world.exported("LateP", "late"));
    let update = Rule::on("cloudcontrol", "UpdateResource").resource("LateC-");
    let gate = Gate::new(&world, update, When::Before);
    let new =
        || App::from([Stack::with("LateP", &json!({ "R": setting(&json!("v")) })), consumer("LateC", &[])]);
    let execution = world.start_deploy(new(), json!({}));
    gate.wait();
    world.deploy(consumer("LateX", &["late"]));
    drop(gate);
    let outcome = world.aws.api().wait(&execution).unwrap();
    assert_eq!(outcome.error.as_deref(), Some("StackHasActiveImportsError"), "{outcome}");
    let rows = outcome.cause_json()["details"]["stacks"].to_string();
    assert!(rows.contains("deletesPending"), "{rows}");
    assert!(world.queue_lives(&url));
    assert_eq!((world.exported("LateP", "late"), world.held("LateX")), (arn.clone(), arn.clone()));
    index_says(&world, "late", Some(&format!("LateP {arn}")));
    for stack in ["LateP", "LateC", "LateX"] {
        world.check_put_down(stack);
    }
    world.destroy("LateX");
    world.deploy(new());
    assert!(!world.queue_lives(&url));
    settled(&world, &["LateP", "LateC"]);
    world.destroy_all(&["LateP", "LateC"]);
    gone(&world, &["LateP", "LateC"]);
}

#[test]
fn e13_a_weak_read_orders_stacks_and_keeps_nobody() {
    let world = world();
    let _turn = world.among_others();
    let reader =
        || Stack::with("ReadA", &json!({ "P": setting(&read("ReadZ", "Plain", Some("us-east-1"))) }));
    let app = || App::from([reader(), producer("ReadZ", &[])]);
    let run = world.deploy(app());
    assert_eq!(run.outcomes(), ["ReadZ deployed", "ReadA deployed"]);
    assert_eq!(json!(world.held("ReadA")), world.record("ReadZ")["outputs"]["Plain"]);
    // Named alone, it does not pull in what it reads.
    let run = world.deploy_with(app(), json!({ "stacks": ["ReadA"] }));
    succeeded(&run);
    assert_eq!(run.outcomes(), ["ReadA unchanged"]);
    let run = world.destroy_all(&["ReadZ", "ReadA"]);
    assert_eq!(run.outcomes(), ["ReadA destroyed", "ReadZ destroyed"]);
    gone(&world, &["ReadA", "ReadZ"]);
}
