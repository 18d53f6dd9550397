//! Scalars as the schema wants them.

use serde_json::{Map, Number, Value};

use super::TypeSchema;
use super::shape::{Shape, members};

/// Gives each scalar the type that the schema wants there: CloudFormation takes `"60"` for an integer, `"true"` for
/// a boolean and `60` for text; Cloud Control refuses them.
///
/// Text becomes a number or boolean only if it is spelled exactly as JSON writes that, so that [`same`](super::same)
/// holds between before and after, and a second time changes nothing. All else stays for the service to judge: text
/// that is no number (a dynamic reference that is not resolved yet, say), a scalar where a list or an object
/// belongs, JSON as text, places where the schema leaves a choice, and names that it does not know.
pub fn coerce(schema: &TypeSchema, properties: &mut Value) {
    if let Value::Object(properties) = properties
        && !schema.shapes.is_empty()
    {
        coerce_object(&schema.shapes.objects(), 0, properties);
    }
}

fn coerce_object(objects: &[&str], position: usize, map: &mut Map<String, Value>) {
    let Some(object) = objects.get(position) else { return };
    for (name, shape) in members(object) {
        if name == "*" {
            let named = |key: &str| members(object).any(|(name, _)| name == key);
            for (_, value) in map.iter_mut().filter(|(key, _)| !named(key)) {
                coerce_value(objects, shape, value);
            }
        } else if let Some(value) = map.get_mut(name) {
            coerce_value(objects, shape, value);
        }
    }
}

fn coerce_value(objects: &[&str], shape: &str, value: &mut Value) {
    let coerced = match (Shape::parse(shape), &mut *value) {
        (Shape::List(shape), Value::Array(items)) => {
            for item in items {
                coerce_value(objects, shape, item);
            }
            None
        }
        (Shape::Object(position), Value::Object(map)) => {
            coerce_object(objects, position, map);
            None
        }
        (Shape::Text, Value::Number(number)) => Some(Value::String(number.to_string())),
        (Shape::Text, Value::Bool(flag)) => Some(Value::String(flag.to_string())),
        (Shape::Integer, Value::String(text)) => number(text).filter(is_integer).map(Value::Number),
        (Shape::Number, Value::String(text)) => number(text).map(Value::Number),
        (Shape::Boolean, Value::String(text)) => text.parse().ok().map(Value::Bool),
        _ => None,
    };
    if let Some(coerced) = coerced {
        *value = coerced;
    }
}

/// The number that is written as this text.
fn number(text: &str) -> Option<Number> {
    text.parse().ok().filter(|number: &Number| number.to_string() == text)
}

/// Whether it is written as one: `1.0` and `1e3` are not.
fn is_integer(number: &Number) -> bool {
    !number.to_string().contains(['.', 'e', 'E'])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::super::{lookup, same, type_names};
    use super::*;

    /// The number as it is written, with all its digits.
    fn written(text: &str) -> Value {
        text.parse().map(Value::Number).unwrap()
    }

    #[test]
    fn scalars_become_what_the_schema_wants() {
        for (type_name, properties, want) in [
            ("AWS::SQS::Queue", json!({"VisibilityTimeout": "60"}), json!({"VisibilityTimeout": 60})),
            ("AWS::SQS::Queue", json!({"FifoQueue": "true"}), json!({"FifoQueue": true})),
            ("AWS::SQS::Queue", json!({"QueueName": 7}), json!({"QueueName": "7"})),
            // The properties of what may also be JSON as text.
            (
                "AWS::SQS::Queue",
                json!({"RedrivePolicy": {"deadLetterTargetArn": "a", "maxReceiveCount": "3"}}),
                json!({"RedrivePolicy": {"deadLetterTargetArn": "a", "maxReceiveCount": 3}}),
            ),
            (
                "AWS::SQS::Queue",
                json!({"Tags": [{"Key": "k", "Value": 1.50}, {"Key": 2, "Value": true}]}),
                json!({"Tags": [{"Key": "k", "Value": "1.5"}, {"Key": "2", "Value": "true"}]}),
            ),
            (
                "AWS::S3::Bucket",
                json!({"PublicAccessBlockConfiguration": {"BlockPublicAcls": "true", "BlockPublicPolicy": "false"}}),
                json!({"PublicAccessBlockConfiguration": {"BlockPublicAcls": true, "BlockPublicPolicy": false}}),
            ),
            (
                "AWS::S3::Bucket",
                json!({"LifecycleConfiguration": {"Rules": [{"Transitions": [{"TransitionInDays": "30"}]}]}}),
                json!({"LifecycleConfiguration": {"Rules": [{"Transitions": [{"TransitionInDays": 30}]}]}}),
            ),
            (
                "AWS::DynamoDB::Table",
                json!({
                    "ProvisionedThroughput": {"ReadCapacityUnits": "5", "WriteCapacityUnits": 5},
                    "GlobalSecondaryIndexes": [{"ProvisionedThroughput": {"ReadCapacityUnits": "1"}}],
                }),
                json!({
                    "ProvisionedThroughput": {"ReadCapacityUnits": 5, "WriteCapacityUnits": 5},
                    "GlobalSecondaryIndexes": [{"ProvisionedThroughput": {"ReadCapacityUnits": 1}}],
                }),
            ),
            (
                "AWS::Lambda::Function",
                json!({"MemorySize": "128", "Environment": {"Variables": {"PORT": 80, "DEBUG": true, "N": "1"}}}),
                json!({"MemorySize": 128, "Environment": {"Variables": {"PORT": "80", "DEBUG": "true", "N": "1"}}}),
            ),
            (
                "AWS::EC2::SecurityGroup",
                json!({"SecurityGroupIngress": [{"FromPort": "80", "ToPort": 80, "IpProtocol": -1}]}),
                json!({"SecurityGroupIngress": [{"FromPort": 80, "ToPort": 80, "IpProtocol": "-1"}]}),
            ),
            (
                "AWS::EC2::Instance",
                json!({"SecurityGroupIds": [1, "b"]}),
                json!({"SecurityGroupIds": ["1", "b"]}),
            ),
            (
                "AWS::ECS::TaskDefinition",
                json!({
                    "Cpu": 256,
                    "ContainerDefinitions": [
                        {"Cpu": "256", "Essential": "true", "PortMappings": [{"ContainerPort": "80"}]}],
                }),
                json!({
                    "Cpu": "256",
                    "ContainerDefinitions": [
                        {"Cpu": 256, "Essential": true, "PortMappings": [{"ContainerPort": 80}]}],
                }),
            ),
            (
                "AWS::ECS::TaskDefinition",
                json!({"ContainerDefinitions": [
                    {"DockerLabels": {"a": 1}, "Environment": [{"Name": "A", "Value": 1}]}]}),
                json!({"ContainerDefinitions": [
                    {"DockerLabels": {"a": "1"}, "Environment": [{"Name": "A", "Value": "1"}]}]}),
            ),
            // Lists of lists.
            (
                "AWS::Rekognition::StreamProcessor",
                json!({"PolygonRegionsOfInterest": [[{"X": "0.5", "Y": "1"}], [{"X": "0.10", "Y": 0}]]}),
                json!({"PolygonRegionsOfInterest": [[{"X": 0.5, "Y": 1}], [{"X": written("0.10"), "Y": 0}]]}),
            ),
            // Objects in objects of their own kind.
            (
                "AWS::WAFv2::WebACL",
                json!({"Rules": [{"Priority": "0", "Statement": {"NotStatement": {"Statement": {
                    "AndStatement": {"Statements": [{"RateBasedStatement": {"Limit": "100"}}]}}}}}]}),
                json!({"Rules": [{"Priority": 0, "Statement": {"NotStatement": {"Statement": {
                    "AndStatement": {"Statements": [{"RateBasedStatement": {"Limit": 100}}]}}}}}]}),
            ),
            // A boolean or text, as the schema says.
            (
                "AWS::ApiGateway::Method",
                json!({"RequestParameters": {"method.request.querystring.q": true}, "ApiKeyRequired": "false"}),
                json!({"RequestParameters": {"method.request.querystring.q": true}, "ApiKeyRequired": false}),
            ),
        ] {
            let schema = lookup(type_name).unwrap();
            let mut coerced = properties.clone();
            coerce(&schema, &mut coerced);
            assert_eq!(coerced, want, "{type_name} {properties}");
            assert!(same(&properties, &coerced), "{type_name} {properties}");
        }
    }

    #[test]
    fn the_rest_stays() {
        for (type_name, properties) in [
            ("AWS::SQS::Queue", json!({"VisibilityTimeout": "{{resolve:ssm:/timeout}}"})),
            ("AWS::SQS::Queue", json!({"QueueName": "{{resolve:ssm:/name}}"})),
            ("AWS::SQS::Queue", json!({"VisibilityTimeout": "sixty"})),
            ("AWS::SQS::Queue", json!({"VisibilityTimeout": "60.0"})),
            ("AWS::SQS::Queue", json!({"VisibilityTimeout": "1e2"})),
            ("AWS::SQS::Queue", json!({"VisibilityTimeout": "060"})),
            ("AWS::SQS::Queue", json!({"VisibilityTimeout": " 60"})),
            ("AWS::SQS::Queue", json!({"VisibilityTimeout": ""})),
            ("AWS::SQS::Queue", json!({"VisibilityTimeout": true})),
            ("AWS::SQS::Queue", json!({"VisibilityTimeout": null})),
            ("AWS::SQS::Queue", json!({"VisibilityTimeout": ["60"]})),
            ("AWS::SQS::Queue", json!({"VisibilityTimeout": {"Ref": "Timeout"}})),
            ("AWS::SQS::Queue", json!({"FifoQueue": "True"})),
            ("AWS::SQS::Queue", json!({"FifoQueue": 1})),
            ("AWS::SQS::Queue", json!({"QueueName": "60"})),
            ("AWS::SQS::Queue", json!({"RedrivePolicy": "{\"maxReceiveCount\": \"3\"}"})),
            ("AWS::SQS::Queue", json!({"Tags": 1})),
            ("AWS::SQS::Queue", json!({"NewerThanTheTable": "1", "AndThis": 1})),
            ("AWS::SQS::Queue", json!("60")),
            (
                "AWS::IAM::Role",
                json!({"AssumeRolePolicyDocument": {"Statement": [{"Sid": 1, "Resource": "2"}]}}),
            ),
            ("AWS::CloudFormation::CustomResource", json!({"Anything": "1", "Else": true})),
        ] {
            let mut coerced = properties.clone();
            coerce(&lookup(type_name).unwrap(), &mut coerced);
            assert_eq!(coerced, properties, "{type_name}");
        }
        let mut properties = json!({"VisibilityTimeout": "60"});
        coerce(&TypeSchema::default(), &mut properties);
        assert_eq!(properties, json!({"VisibilityTimeout": "60"}));
    }

    /// A value of this shape with these scalars, whatever scalars the shape wants.
    fn fill(objects: &[&str], shape: &str, depth: usize, scalars: &mut dyn Iterator<Item = Value>) -> Value {
        match Shape::parse(shape) {
            Shape::List(items) if depth > 0 => {
                (0..2).map(|_| fill(objects, items, depth - 1, scalars)).collect()
            }
            Shape::Object(position) if depth > 0 => members(objects[position])
                .map(|(name, shape)| (name.to_owned(), fill(objects, shape, depth - 1, scalars)))
                .collect::<Map<_, _>>()
                .into(),
            _ => scalars.next().unwrap_or_default(),
        }
    }

    const TEXTS: &[&str] =
        &["true", "false", "True", "-0", "007", "1.10", "1e400", "1E5", " 1", "{{resolve:ssm:/p}}"];

    fn scalar() -> impl Strategy<Value = Value> {
        prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            any::<i64>().prop_map(|number| number.to_string().into()),
            any::<f64>().prop_map(|number| number.to_string().into()),
            "[0-9.eE+-]{0,8}".prop_map(Value::from),
            proptest::sample::select(TEXTS).prop_map(Value::from),
            proptest::sample::select(&["1.10", "1e400", "-0"][..]).prop_map(written),
        ]
    }

    proptest! {
        #[test]
        fn once_is_enough_and_nothing_changes_to_cloudformation(
            type_name in proptest::sample::select(type_names().collect::<Vec<_>>()),
            scalars in prop::collection::vec(scalar(), 1..40),
        ) {
            let schema = lookup(type_name).unwrap();
            let objects = schema.shapes.objects();
            let before = fill(&objects, ":0", 5, &mut scalars.into_iter().cycle());
            let mut once = before.clone();
            coerce(&schema, &mut once);
            prop_assert!(same(&before, &once), "{before} {once}");
            let mut twice = once.clone();
            coerce(&schema, &mut twice);
            prop_assert_eq!(once, twice);
        }
    }
}
