//! Plans of whole small templates.

use indexmap::IndexMap;
use serde_json::{Map, Value, json};

use super::*;
use crate::assets::table::Table;
use crate::assets::testing;
use crate::state::{PendingDelete, Record};
use crate::template::{self, ParameterSources, Pseudo, Template};

struct Case {
    template: Value,
    record: Record,
    tags: Map<String, Value>,
    parameters: IndexMap<String, Value>,
    assets: Table,
}

fn key() -> RecordKey {
    RecordKey::parse("Web", "us-east-1").unwrap()
}

/// A row as a deploy leaves it.
fn row(type_name: &str, id: &str, properties: Value, attributes: &Value) -> Row {
    let mut row = Row::new(type_name, id);
    row.set_properties(properties);
    row.set_attributes(attributes.as_object().cloned().unwrap_or_default());
    row.set_text("provisionedBy", "cc-api");
    row
}

fn queue(id: &str, properties: Value) -> Row {
    row(
        "AWS::SQS::Queue",
        id,
        properties,
        &json!({"Arn": format!("arn:{id}"), "QueueUrl": id, "QueueName": id}),
    )
}

impl Case {
    fn new(template: Value) -> Self {
        Self {
            template,
            record: Record::new(&key()),
            tags: Map::new(),
            parameters: IndexMap::new(),
            assets: Table::default(),
        }
    }

    fn on_record(mut self, logical_id: &str, row: Row) -> Self {
        self.record.put_row(logical_id, row);
        self
    }

    fn plan(&self) -> Result<Plan> {
        let template = Template::parse(self.template.to_string().as_bytes(), "Web")?;
        let pseudo = Pseudo {
            account: "123456789012".into(),
            region: "us-east-1".into(),
            partition: "aws".into(),
            url_suffix: "amazonaws.com".into(),
            stack_name: "Web".into(),
            stack_id: "arn:aws:cloudformation:us-east-1:123456789012:stack/Web/0".into(),
            notification_arns: Vec::new(),
        };
        let sources = ParameterSources { run: self.parameters.clone(), ..ParameterSources::default() };
        let parameters = template::bind(&template, &sources)?;
        let conditions = template::conditions(&template, &parameters, &pseudo)?;
        build(&Inputs {
            key: &key(),
            template: &template,
            parameters: &parameters,
            conditions: &conditions,
            pseudo: &pseudo,
            record: &self.record,
            tags: &self.tags,
            imports: &template::NoImports,
            assets: &self.assets,
        })
    }

    /// `operation logicalId (why)`, applies before deletes.
    fn steps(&self) -> Vec<String> {
        let plan = self.plan().unwrap();
        plan.steps()
            .map(|step| {
                let why =
                    if step.why.is_empty() { String::new() } else { format!(" ({})", step.why.join(", ")) };
                format!("{} {}{why}", step.operation.name(), step.id)
            })
            .collect()
    }
}

fn queue_and_topic(queue_properties: &Value) -> Value {
    json!({"Resources": {
        "Topic": {"Type": "AWS::SNS::Topic", "Properties": {"DisplayName": {"Fn::GetAtt": ["Queue", "QueueName"]}}},
        "Queue": {"Type": "AWS::SQS::Queue", "Properties": queue_properties},
    }})
}

#[test]
fn a_new_stack_is_created_dependencies_first() {
    let case = Case::new(queue_and_topic(&json!({})));
    assert_eq!(case.steps(), ["create Queue", "create Topic"]);
    let plan = case.plan().unwrap();
    assert_eq!(plan.applies[1].desired, json!({"DisplayName": "(known after `Queue.QueueName`)"}));
    assert_eq!(plan.applies[1].needs, ["Queue"]);
    assert_eq!((plan.applies[0].weight, plan.applies[1].weight), (2, 1));
    assert_eq!(Plan::from_document(&plan.to_document()).unwrap(), plan);
}

fn deployed(topic_name: &str) -> (Row, Row) {
    let mut topic =
        row("AWS::SNS::Topic", "arn:t", json!({ "DisplayName": topic_name }), &json!({"TopicArn": "arn:t"}));
    topic.set_dependencies(&["Queue".into()]);
    (queue("q", json!({})), topic)
}

#[test]
fn an_unchanged_stack_has_no_steps() {
    let (queue, topic) = deployed("q");
    let case = Case::new(queue_and_topic(&json!({}))).on_record("Queue", queue).on_record("Topic", topic);
    assert_eq!(case.steps(), [] as [String; 0]);
    assert_eq!(case.plan().unwrap().unchanged, 2);
}

#[test]
fn p6_a_replacement_reaches_what_refers_to_it_and_an_update_makes_it_look_again() {
    let (queue, topic) = deployed("q");
    let replaced = Case::new(queue_and_topic(&json!({"FifoQueue": true})))
        .on_record("Queue", queue.clone())
        .on_record("Topic", topic.clone());
    assert_eq!(replaced.steps(), ["replace Queue (FifoQueue)", "update Topic (DisplayName)"]);
    // An update in place may change an attribute; a topic that only names it is looked at again when it is known.
    let updated = Case::new(queue_and_topic(&json!({"DelaySeconds": 5})))
        .on_record("Queue", queue)
        .on_record("Topic", topic);
    assert_eq!(updated.steps(), ["update Queue (DelaySeconds)", "check Topic"]);
}

#[test]
fn t6_a_resource_whose_condition_turned_false_is_deleted() {
    let template = json!({
        "Parameters": {"On": {"Type": "String"}},
        "Conditions": {"Wanted": {"Fn::Equals": [{"Ref": "On"}, "yes"]}},
        "Resources": {"Queue": {"Type": "AWS::SQS::Queue", "Condition": "Wanted"}},
    });
    let mut case = Case::new(template).on_record("Queue", queue("q", json!({})));
    // A required parameter without a value is an error, not a delete.
    assert_eq!(case.plan().unwrap_err().code(), Code::MissingParameter);
    case.parameters.insert("On".into(), json!("yes"));
    assert_eq!(case.steps(), [] as [String; 0]);
    case.parameters.insert("On".into(), json!("no"));
    assert_eq!(case.steps(), ["delete Queue"]);
}

#[test]
fn t7_an_attribute_retargeted_to_a_new_resource_is_an_update() {
    let template = json!({"Resources": {
        "Queue": {"Type": "AWS::SQS::Queue"},
        "Other": {"Type": "AWS::SQS::Queue"},
        "Topic": {"Type": "AWS::SNS::Topic", "Properties": {"DisplayName": {"Fn::GetAtt": ["Other", "QueueName"]}}},
    }});
    let (queue, topic) = deployed("q");
    let case = Case::new(template).on_record("Queue", queue).on_record("Topic", topic);
    assert_eq!(case.steps(), ["create Other", "update Topic (DisplayName)"]);
}

#[test]
fn t12_stack_tags_are_part_of_what_is_desired() {
    let mut case = Case::new(json!({"Resources": {
        "Queue": {"Type": "AWS::SQS::Queue", "Properties": {"Tags": [{"Key": "team", "Value": "own"}]}},
    }}));
    case.tags.insert("team".into(), json!("web"));
    case.tags.insert("stage".into(), json!("dev"));
    let desired = case.plan().unwrap().applies[0].desired.clone();
    assert_eq!(desired, json!({"Tags": [{"Key": "team", "Value": "own"}, {"Key": "stage", "Value": "dev"}]}));
    let case = case.on_record("Queue", queue("q", desired));
    assert_eq!(case.steps(), [] as [String; 0]);
}

#[test]
fn t13_a_dependency_on_what_does_not_exist_is_dropped_and_all_others_are_on_record() {
    let template = json!({
        "Conditions": {"Never": {"Fn::Equals": ["a", "b"]}},
        "Resources": {
            "Gone": {"Type": "AWS::SQS::Queue", "Condition": "Never"},
            "First": {"Type": "AWS::SQS::Queue"},
            "Queue": {"Type": "AWS::SQS::Queue", "DependsOn": ["Gone", "First"]},
        },
    });
    let case = Case::new(template);
    let plan = case.plan().unwrap();
    assert_eq!(plan.applies.iter().map(|step| step.id.as_str()).collect::<Vec<_>>(), ["First", "Queue"]);
    assert_eq!(plan.applies[1].needs, ["First"]);
    // On record without it: only the record changes.
    let case = case.on_record("First", queue("f", json!({}))).on_record("Queue", queue("q", json!({})));
    assert_eq!(case.steps(), ["note Queue"]);
}

#[test]
fn p11_a_replacement_whose_fixed_name_does_not_change_is_refused() {
    let template = |name: &str, fifo: bool| {
        json!({"Resources": {
            "Queue": {"Type": "AWS::SQS::Queue", "Properties": {"QueueName": name, "FifoQueue": fifo}},
        }})
    };
    let before = queue("q", json!({"QueueName": "jobs", "FifoQueue": false}));
    let error = Case::new(template("jobs", true)).on_record("Queue", before.clone()).plan().unwrap_err();
    assert_eq!(error.code(), Code::CustomNamedResourceReplacement);
    assert!(error.to_string().contains("FifoQueue") && error.to_string().contains("QueueName"), "{error}");
    assert_eq!(error.cause()["details"]["logicalId"], "Queue");
    let renamed = Case::new(template("jobs.fifo", true)).on_record("Queue", before);
    assert_eq!(renamed.steps(), ["replace Queue (FifoQueue, QueueName)"]);
}

#[test]
fn p11_a_physical_id_that_another_row_holds_is_never_deleted() {
    let template = json!({"Resources": {"New": {"Type": "AWS::SQS::Queue"}}});
    let mut case = Case::new(template).on_record("New", queue("q", json!({})));
    case.record.add_pending_delete(&PendingDelete { logical_id: "Old".into(), row: queue("q", json!({})) });
    assert_eq!(case.steps(), [] as [String; 0]);
    case.record
        .add_pending_delete(&PendingDelete { logical_id: "New".into(), row: queue("before", json!({})) });
    assert_eq!(case.steps(), ["delete New#1"]);
}

#[test]
fn what_is_gone_from_the_template_goes_dependents_first_by_its_policy() {
    let mut topic = row("AWS::SNS::Topic", "t", json!({}), &json!({}));
    topic.set_dependencies(&["Queue".into()]);
    let mut kept = queue("k", json!({}));
    kept.set_policy("deletionPolicy", Some("Retain"));
    let case = Case::new(json!({"Resources": {}}))
        .on_record("Queue", queue("q", json!({})))
        .on_record("Kept", kept)
        .on_record("Topic", topic);
    assert_eq!(case.steps(), ["delete Topic", "retain Kept", "delete Queue"]);
    let plan = case.plan().unwrap();
    assert_eq!(plan.deletes[2].needs, ["Topic"]);
    assert_eq!(plan.counts(), json!({"delete": 2, "retain": 1, "unchanged": 0}));
    let destroy = destroy(&key(), &case.record, &["Queue".into()]).unwrap();
    let operations: Vec<_> = destroy.deletes.iter().map(|step| (step.id.as_str(), step.operation)).collect();
    assert_eq!(
        operations,
        [("Topic", Operation::Delete), ("Kept", Operation::Retain), ("Queue", Operation::Retain)]
    );
}

#[test]
fn a_type_that_nothing_serves_is_refused_by_name_and_metadata_is_passed_over() {
    let template = |type_name: &str| json!({"Resources": {"R": {"Type": type_name}}});
    for type_name in ["Custom::Thing", "AWS::IAM::AccessKey", "AWS::No::Such"] {
        let error = Case::new(template(type_name)).plan().unwrap_err();
        assert_eq!(error.code(), Code::UnsupportedResourceType);
        assert!(error.message().contains(type_name), "{error}");
    }
    assert_eq!(Case::new(template("AWS::CDK::Metadata")).steps(), [] as [String; 0]);

    // All at once, and what a condition leaves out does not matter.
    let document = json!({"Resources": {
        "A": {"Type": "Custom::A"}, "B": {"Type": "Custom::B"}, "C": {"Type": "Custom::C", "Condition": "Never"},
        "D": {"Type": "AWS::SQS::Queue"}, "E": {"Type": "AWS::CDK::Metadata"},
    }, "Conditions": {"Never": {"Fn::Equals": ["a", "b"]}}});
    let parsed = Template::parse(document.to_string().as_bytes(), "Web").unwrap();
    let conditions = [("Never".to_owned(), false)].into_iter().collect();
    let error = check_types(&key(), &parsed, &conditions).unwrap_err();
    assert_eq!(error.code(), Code::UnsupportedResourceType);
    assert_eq!(error.details()["errors"].as_array().unwrap().len(), 2);
    assert!(error.message().contains("Custom::A") && error.message().contains("1 more"), "{error}");
}

#[test]
fn an_expanded_policy_changes_in_place() {
    let template = |roles: Value| {
        json!({"Resources": {"Policy": {"Type": "AWS::IAM::Policy", "Properties": {
            "PolicyName": "p", "PolicyDocument": {"Statement": []}, "Roles": roles,
        }}}})
    };
    let before = row(
        "AWS::IAM::Policy",
        "p",
        json!({"PolicyName": "p", "PolicyDocument": {"Statement": []}, "Roles": ["a"]}),
        &json!({}),
    );
    let case = Case::new(template(json!(["a", "b"]))).on_record("Policy", before.clone());
    assert_eq!(case.steps(), ["update Policy (Roles)"]);
    assert_eq!(case.plan().unwrap().applies[0].engine, Engine::Expansion);
    assert_eq!(Case::new(template(json!(["a"]))).on_record("Policy", before).steps(), [] as [String; 0]);
}

#[test]
fn a19_a29_what_moves_to_another_storage_alone_is_an_update_and_told_apart() {
    // As an import records it, and every deploy before the region had storage of its own: the names of the assembly.
    let of = |bucket: &str, size: u32| {
        let layer = json!({"Content": {"S3Bucket": bucket, "S3Key": "k.zip"}});
        let setting = json!({"Type": "String", "Value": format!("s3://{bucket}/k")});
        (
            layer,
            setting,
            json!({"Type": "String", "Value": format!("s3://{bucket}/k"), "Description": format!("{size}")}),
        )
    };
    let (layer, setting, both) = of(testing::FROM, 1);
    let (moved_layer, moved_setting, moved_both) = of(testing::TO, 2);
    let mut case = Case::new(json!({"Resources": {
        "Layer": {"Type": "AWS::Lambda::LayerVersion", "Properties": moved_layer},
        "Setting": {"Type": "AWS::SSM::Parameter", "Properties": moved_setting},
        "Both": {"Type": "AWS::SSM::Parameter", "Properties": moved_both},
    }}))
    .on_record("Layer", row("AWS::Lambda::LayerVersion", "layer", layer, &json!({})))
    .on_record("Setting", row("AWS::SSM::Parameter", "setting", setting, &json!({})))
    .on_record("Both", row("AWS::SSM::Parameter", "both", both, &json!({})));
    case.assets = testing::table();
    let plan = case.plan().unwrap();
    let told: Vec<(&str, Operation, bool)> =
        plan.applies.iter().map(|step| (step.id.as_str(), step.operation, step.repoints)).collect();
    assert_eq!(
        told,
        [
            ("Layer", Operation::Replace, true),
            ("Setting", Operation::Update, true),
            ("Both", Operation::Update, false),
        ]
    );
    assert_eq!(plan.warnings.len(), 1, "{:?}", plan.warnings);
    assert!(plan.warnings[0].ends_with("updated: `Setting`; replaced: `Layer`"), "{:?}", plan.warnings);
    assert_eq!(Plan::from_document(&plan.to_document()).unwrap(), plan);

    // Beside what is not known yet it is a part of another name, which the deploy will tell.
    let (_, mut setting, _) = of(testing::FROM, 1);
    setting["Value"] = json!({"Fn::Join": ["", [{"Ref": "New"}, testing::FROM]]});
    case.template["Resources"]["New"] = json!({"Type": "AWS::SQS::Queue"});
    case.template["Resources"]["Setting"]["Properties"] = setting;
    case.plan().unwrap();

    // What a rewrite has missed is refused, with its place.
    let (_, setting, _) = of(testing::FROM, 1);
    case.template["Resources"]["Setting"]["Properties"] = setting;
    let error = case.plan().unwrap_err();
    assert_eq!(error.code(), Code::UnrewrittenAssetReference);
    assert_eq!(error.details()["path"], "Resources.Setting.Properties.Value");
}
