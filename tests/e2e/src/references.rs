//! Stacks that refer to each other, and what others find of them.

use std::time::{Duration, Instant};

use cdkd_test_support::{Json, REGION};
use cdkd_wire::{Hold, RuleBuilder, When};
use serde_json::{Map, Value, json};

use crate::app::{App, Stack};
use crate::run::Run;
use crate::world::World;

pub const QUEUE: &str = "AWS::SQS::Queue";
pub const PARAMETER: &str = "AWS::SSM::Parameter";
/// Longer than any step of a run takes here.
pub const PATIENCE: Duration = Duration::from_secs(90);

/// One queue, whose ARN is exported under each of these names; its name is the output `Plain`.
pub fn producer(name: &str, exports: &[&str]) -> Stack {
    producer_of(name, exports, &json!({ "VisibilityTimeout": 30 }), &json!({}))
}

/// The same with properties of the queue and further resources.
pub fn producer_of(name: &str, exports: &[&str], properties: &Value, more: &Value) -> Stack {
    let arn = json!({ "Fn::GetAtt": ["Q", "Arn"] });
    let mut outputs = Map::new();
    outputs.insert("Plain".to_owned(), json!({ "Value": { "Fn::GetAtt": ["Q", "QueueName"] } }));
    for (number, export) in exports.iter().enumerate() {
        outputs.insert(format!("Out{number}"), json!({ "Value": arn, "Export": { "Name": export } }));
    }
    let mut resources = json!({ "Q": { "Type": QUEUE, "Properties": properties } });
    resources.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    Stack::new(name, &json!({ "Resources": resources, "Outputs": outputs }))
}

pub fn import(name: &str) -> Value {
    json!({ "Fn::ImportValue": name })
}

/// A parameter with this value.
pub fn setting(value: &Value) -> Value {
    json!({ "Type": PARAMETER, "Properties": { "Type": "String", "Value": value } })
}

/// One parameter `P` that holds these imports.
pub fn consumer(name: &str, imports: &[&str]) -> Stack {
    Stack::with(name, &json!({ "P": setting(&imported(imports)) }))
}

/// The text that a consumer's parameter holds.
pub fn imported(imports: &[&str]) -> Value {
    let values: Vec<Value> = imports.iter().map(|name| import(name)).collect();
    if values.is_empty() { json!("nothing") } else { json!({ "Fn::Join": ["|", values] }) }
}

/// The output of another stack, read without protecting it.
pub fn read(stack: &str, output: &str, region: Option<&str>) -> Value {
    let mut arguments = json!({ "StackName": stack, "OutputName": output });
    if let Some(region) = region {
        arguments["Region"] = json!(region);
    }
    json!({ "Fn::GetStackOutput": arguments })
}

impl World {
    /// Destroys stacks in one run, and expects it to succeed.
    #[track_caller]
    pub fn destroy_all(&self, stacks: &[&str]) -> Run {
        let run = self.try_destroy(stacks);
        assert_eq!(run.outcome.status, "SUCCEEDED", "{}", run.outcome);
        run
    }

    /// Destroys stacks in one run.
    #[track_caller]
    pub fn try_destroy(&self, stacks: &[&str]) -> Run {
        self.run("cdkd-destroy", &json!({ "stacks": stacks }))
    }

    /// Starts a deploy and does not wait for it; its ARN.
    pub fn start_deploy(&self, app: impl Into<App>, mut input: Value) -> String {
        input["assembly"] = json!(self.upload(&app.into()));
        self.aws.api().start_execution("cdkd-deploy", &input).unwrap()
    }

    /// The record of a stack of any region.
    pub fn record_in(&self, stack: &str, region: &str) -> Option<Value> {
        let key = format!("cdkd/{stack}/{region}/state.json");
        let body = self.aws.api().get_object(self.aws.state_bucket(), &key).unwrap()?;
        Some(serde_json::from_slice(&body).unwrap())
    }

    /// The record but for when it was written.
    #[track_caller]
    pub fn picture(&self, stack: &str) -> Value {
        let mut record = self.record(stack);
        record.as_object_mut().unwrap().remove("lastModified");
        record
    }

    /// What the parameter `P` of a stack holds.
    #[track_caller]
    pub fn held(&self, stack: &str) -> String {
        let name = self.physical_id(stack, "P");
        self.aws.api().parameter(&name).unwrap().unwrap()["Value"].as_str().unwrap().to_owned()
    }

    /// `stack value` of an export in the index.
    #[track_caller]
    pub fn indexed(&self, export: &str) -> Option<String> {
        let key = format!("cdkd/_index/{REGION}/exports.json");
        let body = self.aws.api().get_object(self.aws.state_bucket(), &key).unwrap()?;
        let index: Value = serde_json::from_slice(&body).unwrap();
        let entry = index["exports"].get(export)?;
        assert_eq!(entry["producerRegion"], REGION, "{entry}");
        Some(format!("{} {}", entry["producerStack"].as_str().unwrap(), entry["value"].as_str().unwrap()))
    }

    /// The stored value of an export.
    #[track_caller]
    pub fn exported(&self, stack: &str, export: &str) -> String {
        let record = self.record(stack);
        let names = record["exportNames"].as_array().cloned().unwrap_or_default();
        assert!(names.contains(&json!(export)), "{stack} does not export {export}: {record:#}");
        record["outputs"][export].as_str().unwrap().to_owned()
    }

    /// `export<stack` of each import on record.
    #[track_caller]
    pub fn imports(&self, stack: &str) -> Vec<String> {
        let record = self.record(stack);
        let list = record["imports"].as_array().cloned().unwrap_or_default();
        list.iter()
            .map(|it| {
                assert_eq!(it["sourceRegion"], REGION, "{it}");
                format!("{}<{}", it["exportName"].as_str().unwrap(), it["sourceStack"].as_str().unwrap())
            })
            .collect()
    }

    pub fn queue_lives(&self, url: &str) -> bool {
        self.aws.api().queue(url).unwrap().is_some()
    }

    /// How many queues bear names that cdkd gave for a stack.
    pub fn queues(&self, stack: &str) -> usize {
        let request = json!({ "QueueNamePrefix": format!("{stack}-") });
        let answer = self.aws.api().json(Json::Sqs, "ListQueues", &request).unwrap();
        answer["QueueUrls"].as_array().map_or(0, Vec::len)
    }

    /// The names of all parameters with this text in them.
    pub fn parameters(&self, text: &str) -> Vec<String> {
        let mut names = Vec::new();
        let mut request = json!({ "MaxResults": 50 });
        loop {
            let page = self.aws.api().json(Json::Ssm, "DescribeParameters", &request).unwrap();
            let found = page["Parameters"].as_array().into_iter().flatten();
            names.extend(found.filter_map(|it| it["Name"].as_str()).map(str::to_owned));
            match page["NextToken"].as_str().filter(|it| !it.is_empty()) {
                Some(next) => request["NextToken"] = json!(next),
                None => break,
            }
        }
        names.retain(|name| name.contains(text));
        names
    }

    /// The next such call of Cloud Control about a resource whose name or properties have this text fails for good.
    pub fn fail(&self, kind: &str, operation: &str, matching: &str) {
        self.fault(&json!({
            "type": kind, "operation": operation, "match": matching, "mode": "event", "times": 1,
            "error": { "HandlerErrorCode": "InvalidRequest", "StatusMessage": "not today" },
        }));
    }
}

/// A gate that holds the first such request; the rule goes with it.
pub struct Gate<'a> {
    world: &'a World,
    hold: Hold,
}

impl<'a> Gate<'a> {
    pub fn new(world: &'a World, requests: RuleBuilder, when: When) -> Self {
        Self { world, hold: world.aws.wire().hold(requests.nth(1), when) }
    }

    /// Waits until a request is held.
    #[track_caller]
    pub fn wait(&self) {
        self.hold.wait_until_held(PATIENCE).unwrap();
    }
}

impl Drop for Gate<'_> {
    fn drop(&mut self) {
        self.hold.release();
        self.world.aws.wire().remove_rule(self.hold.rule());
    }
}

/// The index says of these exports what the record of the stack says. It follows the record by events, so one of a
/// moment ago may still be on its way.
#[track_caller]
pub fn index_follows(world: &World, stack: &str, exports: &[&str]) {
    let record = world.record(stack);
    let exported: Vec<&str> =
        record["exportNames"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    // A name that this stack does not export may be another's.
    let follows = |name: &str, entry: Option<&str>| {
        if exported.contains(&name) {
            entry == Some(&format!("{stack} {}", record["outputs"][name].as_str().unwrap()))
        } else {
            entry.is_none_or(|entry| !entry.starts_with(&format!("{stack} ")))
        }
    };
    let began = Instant::now();
    for name in exports {
        loop {
            let entry = world.indexed(name);
            if follows(name, entry.as_deref()) {
                break;
            }
            assert!(began.elapsed() < PATIENCE, "{name}: {entry:?} on {record}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// Message and hint of a cause say all that.
#[track_caller]
pub fn says(cause: &Value, parts: &[&str]) {
    let text = format!("{} {}", cause["message"], cause["hint"]).replace('\\', "");
    for part in parts {
        assert!(text.contains(part), "no `{part}` in {cause}");
    }
}

/// Destroys a producer, which is to be refused with nothing touched.
#[track_caller]
pub fn destroy_refused(world: &World, stack: &str, exports: &[&str], code: &str) -> Value {
    let before = world.picture(stack);
    let run = world.try_destroy(&[stack]);
    untouched(world, &run, stack, exports, &before, code)
}

/// Deploys a producer, which is to be refused with nothing touched.
#[track_caller]
pub fn deploy_refused(
    world: &World,
    app: impl Into<App>,
    stack: &str,
    exports: &[&str],
    code: &str,
) -> Value {
    let before = world.picture(stack);
    let run = world.try_deploy(app);
    untouched(world, &run, stack, exports, &before, code)
}

/// A run that was refused left the stack as it was, and its exports in the index.
#[track_caller]
pub fn untouched(
    world: &World,
    run: &Run,
    stack: &str,
    exports: &[&str],
    before: &Value,
    code: &str,
) -> Value {
    let cause = run.refused(code);
    assert_eq!(world.picture(stack), *before, "{code}");
    index_follows(world, stack, exports);
    world.check_put_down(stack);
    for row in cause["details"]["stacks"].as_array().into_iter().flatten() {
        assert!(matches!(row["outcome"].as_str(), Some("failed" | "notStarted")), "{cause}");
    }
    cause
}
