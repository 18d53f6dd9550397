//! Runs of stacks with assets: where they go, and what the resources that refer to them say.
//!
//! A region's mode is one for all, so each test that switches it on has regions of its own.

#![allow(clippy::unwrap_used, reason = "what goes wrong in a test's own helpers fails the test")]

use cdkd_e2e::{App, Run, Stack, World, world};
use cdkd_test_support::{ACCOUNT, Api};
use serde_json::{Value, json};

/// A key as CDK makes it of a content.
const HASH: &str = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";
/// Where CDK's own deploy publishes, as an asset manifest says.
const CDK: &str = "cdk-hnb659fds-assets-${AWS::AccountId}-${AWS::Region}";

fn cdk_bucket(region: &str) -> String {
    format!("cdk-hnb659fds-assets-{ACCOUNT}-{region}")
}

fn own_bucket(region: &str) -> String {
    format!("cdkd-assets-{ACCOUNT}-{region}")
}

/// The two ends of one region.
struct Region<'a> {
    world: &'a World,
    api: Api,
    name: &'a str,
}

impl<'a> Region<'a> {
    /// A region that `cdk bootstrap` has been run for.
    fn new(world: &'a World, name: &'a str) -> Self {
        let api = world.aws.api().in_region(name);
        api.create_bucket(&cdk_bucket(name)).unwrap();
        Self { world, api, name }
    }

    /// Switches the mode on.
    fn bootstrap(&self) -> Value {
        self.world.aws.api().invoke("cdkd-bootstrap", &json!({ "region": self.name })).unwrap()
    }

    fn published(&self, bucket: &str) -> Vec<String> {
        self.api.list_objects(bucket, "").unwrap()
    }

    fn environment(&self) -> String {
        format!("aws://{ACCOUNT}/{}", self.name)
    }

    /// The record of a stack, as text.
    fn record(&self, stack: &str) -> String {
        let key = format!("cdkd/{stack}/{}/state.json", self.name);
        let body = self.world.aws.api().get_object(self.world.aws.state_bucket(), &key).unwrap();
        body.map(|body| String::from_utf8(body).unwrap()).unwrap_or_default()
    }

    fn marker(&self) -> String {
        format!("cdkd-bootstrap/{}.json", self.name)
    }

    fn is_opted_in(&self) -> bool {
        let marker = self.world.aws.api().get_object(self.world.aws.state_bucket(), &self.marker()).unwrap();
        marker.is_some()
    }
}

/// An asset of a file with one destination.
fn asset(path: &str, bucket: &str, key: &str) -> Value {
    json!({
        "displayName": path, "source": {"path": path, "packaging": "file"},
        "destinations": {"current": {"bucketName": bucket, "objectKey": key}},
    })
}

fn url() -> Value {
    json!({ "Fn::Sub": format!("s3://{CDK}/{HASH}.json") })
}

fn parameter(value: &Value) -> Value {
    json!({ "Type": "AWS::SSM::Parameter", "Properties": { "Type": "String", "Value": value } })
}

/// A stack whose parameter says where its asset is.
fn app(stack: &str, region: &Region<'_>) -> App {
    let template = json!({"Resources": {"P": parameter(&url())}, "Outputs": {"Url": {"Value": url()}}});
    with_asset(Stack::new(stack, &template).environment(&region.environment()), stack)
}

/// A stack with one asset and, as CDK has it, its own template as another.
fn with_asset(app: impl Into<App>, stack: &str) -> App {
    let template = format!("{stack}.template.json");
    let files = json!({
        HASH: asset("data.json", CDK, &format!("{HASH}.json")),
        "template": asset(&template, CDK, &format!("{}.json", HASH.replace('9', "0"))),
    });
    app.into().assets(stack, &files).file("data.json", b"{\"a\": 1}")
}

fn notices(run: &Run) -> Vec<String> {
    let answer = run.answer();
    answer["notices"].as_array().unwrap().iter().map(|it| it.as_str().unwrap().to_owned()).collect()
}

fn destroy(world: &World, stack: &str, region: &Region<'_>) {
    let run = world.run("cdkd-destroy", &json!({ "stacks": [stack], "region": region.name }));
    assert_eq!(run.word(), "destroyed");
}

#[test]
fn a21_a22_without_a_marker_everything_is_as_the_assembly_says() {
    let world = world();
    let _here = world.among_others();
    let region = Region::new(&world, "us-east-1");
    let run = world.deploy(app("Legacy", &region));
    assert_eq!(region.published(&cdk_bucket("us-east-1")), [format!("{HASH}.json")]);
    assert!(region.record("Legacy").contains(&format!("s3://{}/{HASH}.json", cdk_bucket("us-east-1"))));
    let told = notices(&run);
    let hazard: Vec<_> = told.iter().filter(|it| it.contains("cdk gc")).collect();
    assert_eq!(hazard.len(), 1, "{told:?}");
    assert!(hazard[0].contains("us-east-1") && hazard[0].contains("cdkd-bootstrap"), "{hazard:?}");

    // The template is laid out byte for byte as a value.
    let place = format!("runs/{}/templates/us-east-1/Legacy.json", run.name());
    let laid: Value = serde_json::from_slice(
        &world.aws.api().get_object(world.aws.runs_bucket(), &place).unwrap().unwrap(),
    )
    .unwrap();
    assert_eq!(laid["Resources"]["P"]["Properties"]["Value"], url());

    // Again: nothing changes, and the hazard is told again. Who stays on purpose knows it.
    assert_eq!(world.deploy(app("Legacy", &region)).word(), "unchanged");
    let chosen =
        world.deploy_with(app("Legacy", &region), json!({"options": {"useCdkBootstrapAssets": true}}));
    assert_eq!((chosen.word(), notices(&chosen)), ("unchanged".to_owned(), vec![]));
    let file = json!({"context": {"cdkd": {"useCdkBootstrapAssets": true}}}).to_string();
    let said = world.deploy(app("Legacy", &region).file("cdk.json", file.as_bytes()));
    assert_eq!((said.word(), notices(&said)), ("unchanged".to_owned(), vec![]));

    // Without an asset but the template there is nothing to lose.
    let files = json!({"t": asset("Bare.template.json", CDK, "t.json")});
    let bare = App::from(Stack::with("Bare", &json!({"P": parameter(&json!("v"))}))).assets("Bare", &files);
    assert_eq!(notices(&world.deploy(bare)), [""; 0]);

    assert!(!region.is_opted_in());
    assert!(!region.api.bucket_exists(&own_bucket("us-east-1")).unwrap());
    destroy(&world, "Legacy", &region);
    destroy(&world, "Bare", &region);
}

#[test]
fn a30_a_deployed_stack_moves_to_storage_of_its_own() {
    let world = world();
    let _here = world.among_others();
    let region = Region::new(&world, "eu-west-1");
    world.deploy(app("Moving", &region));
    let before = region.published(&cdk_bucket("eu-west-1"));
    assert!(region.record("Moving").contains(&cdk_bucket("eu-west-1")));

    let made = region.bootstrap();
    assert!(made["message"].as_str().unwrap().starts_with("Asset mode is on for eu-west-1"), "{made}");

    // The plan shows it, and publishes nothing.
    let plan = world.deploy_with(app("Moving", &region), json!({"options": {"dryRun": true}}));
    let answer = plan.answer();
    assert_eq!(answer["stacks"][0]["counts"]["update"], 1, "{answer}");
    let warnings = answer["warnings"].to_string();
    assert!(warnings.contains("only because their assets are in another storage"), "{answer}");
    let steps = &world.result(&plan)["plans"][0]["applies"];
    assert_eq!((&steps[0]["logicalId"], &steps[0]["repoints"]), (&json!("P"), &json!(true)), "{steps}");
    assert_eq!(region.published(&own_bucket("eu-west-1")), [""; 0]);

    let mark = world.mark();
    let run = world.deploy(app("Moving", &region));
    assert_eq!(run.answer()["stacks"][0]["counts"]["update"], 1);
    assert_eq!(region.published(&own_bucket("eu-west-1")), [format!("{HASH}.json")]);
    let record = region.record("Moving");
    assert!(!record.contains("hnb659fds"), "{record}");
    assert!(record.contains(&format!("s3://{}/{HASH}.json", own_bucket("eu-west-1"))), "{record}");
    assert_eq!(world.writes(mark, &cdk_bucket("eu-west-1")), [""; 0]);
    assert_eq!(region.published(&cdk_bucket("eu-west-1")), before);
    assert_eq!(notices(&run), [""; 0]);

    assert_eq!(world.deploy(app("Moving", &region)).word(), "unchanged");
    // Back, and forth again: both storages hold it.
    let back = world.deploy_with(app("Moving", &region), json!({"options": {"useCdkBootstrapAssets": true}}));
    assert_eq!(back.word(), "deployed");
    assert!(region.record("Moving").contains(&cdk_bucket("eu-west-1")));
    world.deploy(app("Moving", &region));
    destroy(&world, "Moving", &region);
}

#[test]
fn a23_each_region_of_a_run_has_its_own_mode_and_storage() {
    let world = world();
    let _here = world.among_others();
    let regions = ["ap-south-1", "ap-northeast-1", "ap-southeast-2"].map(|name| Region::new(&world, name));
    let names = ["South", "North", "East"];
    regions[0].bootstrap();
    regions[1].bootstrap();
    let all = || {
        names.iter().zip(&regions).fold(App::default(), |all, (name, region)| {
            let template = json!({"Resources": {"P": parameter(&url())}});
            with_asset(all.stack(Stack::new(name, &template).environment(&region.environment())), name)
        })
    };
    let run = world.deploy(all());
    let buckets = [own_bucket("ap-south-1"), own_bucket("ap-northeast-1"), cdk_bucket("ap-southeast-2")];
    for ((name, region), bucket) in names.iter().zip(&regions).zip(&buckets) {
        assert!(region.record(name).contains(&format!("s3://{bucket}/{HASH}.json")), "{name}");
        assert_eq!(region.published(bucket), [format!("{HASH}.json")], "{name}");
    }
    let told = notices(&run);
    assert_eq!(told.iter().filter(|it| it.contains("cdk gc")).count(), 1, "{told:?}");
    assert!(told.iter().any(|it| it.contains("ap-southeast-2")), "{told:?}");

    // The next run finds what the marker says then.
    regions[2].bootstrap();
    let run = world.deploy(all());
    assert_eq!(
        run.outcomes().iter().filter(|it| it.ends_with("deployed")).count(),
        1,
        "{:?}",
        run.outcomes()
    );
    assert!(regions[2].record("East").contains(&own_bucket("ap-southeast-2")));
    for (name, region) in names.iter().zip(&regions) {
        destroy(&world, name, region);
    }
}

#[test]
fn a24_a25_storage_that_is_gone_is_no_reason_to_fall_back_and_is_made_anew() {
    let world = world();
    let _here = world.among_others();
    let region = Region::new(&world, "eu-central-1");
    region.bootstrap();
    world.deploy(app("Lost", &region));
    let (own, cdk) = (own_bucket("eu-central-1"), cdk_bucket("eu-central-1"));
    region.api.delete_object(&own, &format!("{HASH}.json")).unwrap();
    region.api.delete_bucket(&own).unwrap();
    let refused = |code: &str, what: &str| {
        for options in [json!({}), json!({"dryRun": true}), json!({"publishOnly": true})] {
            let run = world.deploy_with(app("Lost", &region), json!({ "options": options }));
            let cause = run.refused(code);
            let text = cause.to_string();
            assert!(text.contains(what) && text.contains("cdkd-bootstrap"), "{cause}");
        }
        assert_eq!(region.published(&cdk), [""; 0]);
    };
    refused("AssetStorageMissing", &own);

    let made = region.bootstrap();
    assert_eq!(
        made["assets"]["created"],
        json!({"assetBucket": true, "containerRepo": false, "marker": false})
    );
    assert_eq!(world.deploy(app("Lost", &region)).word(), "unchanged");
    assert_eq!(region.published(&own), [format!("{HASH}.json")]);

    // A marker that says too little is not taken for absent.
    let (api, bucket) = (world.aws.api(), world.aws.state_bucket());
    let good = api.get_object(bucket, &region.marker()).unwrap().unwrap();
    for bad in ["", "{}", r#"{"assetBucket": "a-b-c", "containerRepo": "r-r", "assetSupportVersion": 2}"#] {
        api.put_object(bucket, &region.marker(), bad.as_bytes()).unwrap();
        let cause = world.try_deploy(app("Lost", &region)).refused("InvalidBootstrapMarker");
        assert!(cause["message"].as_str().unwrap().contains("eu-central-1"), "{cause}");
    }
    api.put_object(bucket, &region.marker(), &good).unwrap();
    destroy(&world, "Lost", &region);
}

#[test]
fn a14_a_bucket_that_a_stranger_owns_is_refused_at_every_call() {
    let world = world();
    let _here = world.among_others();
    let region = Region::new(&world, "eu-north-1");
    region.bootstrap();
    world.deploy(app("Squatted", &region));
    let own = own_bucket("eu-north-1");
    region.api.delete_object(&own, &format!("{HASH}.json")).unwrap();
    region.api.delete_bucket(&own).unwrap();
    region.api.of_account("999999999999").create_bucket(&own).unwrap();
    let cause = world.try_deploy(app("Squatted", &region)).refused("BucketUnavailable");
    assert!(cause["message"].as_str().unwrap().contains(&own), "{cause}");
    let refused = world.aws.api().invoke("cdkd-bootstrap", &json!({"region": "eu-north-1"})).unwrap_err();
    assert!(refused.to_string().contains("belongs to another account"), "{refused}");
    let theirs = region.api.of_account("999999999999").list_objects(&own, "").unwrap();
    assert_eq!(theirs, [""; 0]);
    destroy(&world, "Squatted", &region);
}

#[test]
fn a28_a_reference_that_is_known_only_during_the_deploy_is_refused_before_its_call() {
    let world = world();
    let _here = world.alone();
    let region = Region::new(&world, "ca-central-1");
    region.bootstrap();
    let qualifier = json!({"Fn::GetAtt": ["Qualifier", "Value"]});
    let late =
        json!({"Fn::Join": ["", ["s3://cdk-", qualifier, format!("-assets-{ACCOUNT}-ca-central-1/x")]]});
    let template =
        json!({"Resources": {"Qualifier": parameter(&json!("hnb659fds")), "Late": parameter(&late)}});
    let app = || with_asset(Stack::new("Late", &template).environment(&region.environment()), "Late");
    let mark = world.mark();
    let run = world.try_deploy(app());
    let cause = run.refused("UnrewrittenAssetReference");
    let text = cause.to_string();
    assert!(
        text.contains("Resources.Late.Properties.Value") && text.contains(&own_bucket("ca-central-1")),
        "{cause}"
    );
    assert_eq!(cause["details"]["outcome"], "rolledBack", "{cause}");
    let made = world.mutations(mark);
    let calls: Vec<&str> = made.iter().filter_map(|call| call.split(' ').next()).collect();
    assert_eq!(calls, ["CreateResource", "DeleteResource"], "{made:?}");
    // What is known before is refused in the plan.
    let split = json!({"Fn::Join": ["", {"Fn::Split": ["|", format!("cdk-hnb659fds|-assets-{ACCOUNT}-ca-central-1")]}]});
    let early = json!({"Resources": {"Early": parameter(&split)}});
    let app = with_asset(Stack::new("Early", &early).environment(&region.environment()), "Early");
    let run = world.deploy_with(app, json!({"options": {"dryRun": true}}));
    let cause = run.refused("UnrewrittenAssetReference");
    assert!(cause.to_string().contains("Resources.Early.Properties.Value"), "{cause}");
}

#[test]
fn e3_a3_an_export_whose_name_holds_the_buckets_is_exported_under_it() {
    let world = world();
    let _here = world.among_others();
    let region = Region::new(&world, "sa-east-1");
    region.bootstrap();
    let name = json!({ "Fn::Sub": format!("{CDK}:url") });
    let outputs = json!({"Url": {"Value": url(), "Export": {"Name": name}}});
    let producer = json!({"Resources": {"P": parameter(&json!("v"))}, "Outputs": outputs});
    let consumer = json!({"Resources": {"P": parameter(&json!({"Fn::ImportValue": name}))}});
    let both = with_asset(Stack::new("Names", &producer).environment(&region.environment()), "Names")
        .stack(Stack::new("Uses", &consumer).environment(&region.environment()));
    world.deploy(both);
    let record: Value = serde_json::from_str(&region.record("Uses")).unwrap();
    assert_eq!(record["imports"][0]["exportName"], format!("{}:url", cdk_bucket("sa-east-1")));
    let value = &record["resources"]["P"]["properties"]["Value"];
    assert_eq!(*value, format!("s3://{}/{HASH}.json", own_bucket("sa-east-1")));
    destroy(&world, "Uses", &region);
    destroy(&world, "Names", &region);
}

#[test]
fn a1_a32_templates_of_nested_stacks_are_found_rewritten_and_audited() {
    let world = world();
    let _here = world.among_others();
    let region = Region::new(&world, "eu-west-3");
    region.bootstrap();
    let nested = |metadata: Value, parameters: Value| {
        let template_url =
            json!({"Fn::Sub": format!("https://s3.${{AWS::Region}}.${{AWS::URLSuffix}}/{CDK}/child.json")});
        json!({
            "Type": "AWS::CloudFormation::Stack", "Metadata": metadata,
            "Properties": {"TemplateURL": template_url, "Parameters": parameters},
        })
    };
    // The bucket's name comes to the grandchild through a parameter, as older constructs pass it.
    let passed = json!({"Bucket": {"Fn::Sub": CDK}});
    let root = json!({"Resources": {"Child": nested(json!({"aws:asset:path": "child.json"}), passed)}});
    let child = json!({
        "Parameters": {"Bucket": {"Type": "String"}},
        "Resources": {
            "P": parameter(&url()),
            "Grand": nested(json!({"aws:asset:path": "grand.json"}), json!({"Bucket": {"Ref": "Bucket"}})),
        },
    });
    let grand = json!({
        "Parameters": {"Bucket": {"Type": "String"}},
        "Resources": {"P": parameter(&json!({"Fn::Join": ["", ["s3://", {"Ref": "Bucket"}, format!("/{HASH}.json")]]}))},
    });
    let files = json!({
        HASH: asset("data.json", CDK, &format!("{HASH}.json")),
        "child": asset("child.json", CDK, "child.json"),
        "grand": asset("grand.json", CDK, "grand.json"),
    });
    let app = App::from(Stack::new("Nest", &root).environment(&region.environment()))
        .assets("Nest", &files)
        .file("data.json", b"{}")
        .file("child.json", child.to_string().as_bytes())
        .file("grand.json", grand.to_string().as_bytes());
    world.deploy(app.clone());
    for stack in ["Nest", "Nest~Child", "Nest~Child~Grand"] {
        let record = region.record(stack);
        assert!(!record.is_empty() && !record.contains("hnb659fds"), "{stack}: {record}");
    }
    assert!(
        region.record("Nest~Child~Grand").contains(&format!("s3://{}/{HASH}.json", own_bucket("eu-west-3")))
    );
    assert_eq!(
        region.published(&own_bucket("eu-west-3")),
        [format!("{HASH}.json")],
        "templates are not published"
    );
    assert_eq!(world.deploy(app).word(), "unchanged");
    destroy(&world, "Nest", &region);
}

#[test]
fn publish_only_publishes_and_touches_nothing_else() {
    let world = world();
    let _here = world.among_others();
    let region = Region::new(&world, "us-west-2");
    region.bootstrap();
    let unsupported = json!({"Resources": {"C": {"Type": "Custom::Thing", "Properties": {"P": url()}}}});
    let app = || with_asset(Stack::new("Only", &unsupported).environment(&region.environment()), "Only");
    let mark = world.mark();
    for counts in [json!({"published": 1, "skipped": 0}), json!({"published": 0, "skipped": 1})] {
        let run = world.deploy_with(app(), json!({"options": {"publishOnly": true}}));
        assert_eq!((run.word().as_str(), &run.answer()["counts"]), ("published", &counts));
        assert_eq!(run.outcomes(), ["Only published"]);
    }
    assert_eq!(region.published(&own_bucket("us-west-2")), [format!("{HASH}.json")]);
    assert_eq!(
        world.writes(mark, world.aws.state_bucket()).iter().filter(|it| it.contains("Only")).count(),
        0
    );
    assert_eq!(region.record("Only"), "");

    // Nothing to publish is no error.
    let bare = App::from(Stack::with("Nothing", &json!({"P": parameter(&json!("v"))})));
    let run = world.deploy_with(bare, json!({"options": {"publishOnly": true}}));
    assert_eq!(
        (run.word().as_str(), &run.answer()["counts"]),
        ("published", &json!({"published": 0, "skipped": 0}))
    );
}

#[test]
fn a_missing_source_stops_the_run_before_a_lock_is_taken() {
    let world = world();
    let _here = world.among_others();
    let region = Region::new(&world, "us-west-1");
    region.bootstrap();
    let template = json!({"Resources": {"P": parameter(&url())}});
    let files = json!({HASH: asset("gone.json", CDK, &format!("{HASH}.json"))});
    let stack = Stack::new("Gone", &template).environment(&region.environment());
    let run = world.try_deploy(App::from(stack).assets("Gone", &files));
    let cause = run.refused("InvalidAssembly");
    assert!(cause["message"].as_str().unwrap().contains("gone.json"), "{cause}");
    assert_eq!(region.record("Gone"), "");
    let lock = format!("cdkd/Gone/{}/lock.json", region.name);
    assert_eq!(world.aws.api().list_versions(world.aws.state_bucket(), &lock).unwrap(), []);
}
