//! Tags: the stack's below a resource's own (rule T12), and the marks by which a lost create is found again.

use serde_json::{Map, Value, json};

use crate::schema::{TagShape, TypeSchema};

/// The properties with the stack's tags below their own. Types without tags, or with tags deeper than the top
/// level, stay as they are.
pub fn with_stack_tags(schema: &TypeSchema, mut properties: Value, tags: &Map<String, Value>) -> Value {
    if !tags.is_empty() {
        merge(schema, &mut properties, tags, false);
    }
    properties
}

/// The properties of a create with the marks `cdkd:stack`, `cdkd:logical-id` and `cdkd:token` (DESIGN 8).
///
/// They are no part of the diff: what is stored does not hold them. In the id of a resource of a nested stack `/` stands
/// for `~`, which not every service takes in a tag.
pub fn mark(schema: &TypeSchema, mut properties: Value, stack: &str, logical_id: &str, token: &str) -> Value {
    let mut marks = Map::new();
    marks.insert("cdkd:stack".into(), json!(stack));
    marks.insert("cdkd:logical-id".into(), json!(logical_id.replace('~', "/")));
    marks.insert("cdkd:token".into(), json!(token));
    if schema.tagging.as_ref().is_some_and(|tagging| tagging.on_create) {
        merge(schema, &mut properties, &marks, true);
    }
    properties
}

/// Adds tags that the properties do not have yet; `all` of them or none, as AWS allows 50 on a resource.
fn merge(schema: &TypeSchema, properties: &mut Value, tags: &Map<String, Value>, all: bool) {
    let Some(tagging) = &schema.tagging else { return };
    let [property] = tagging.property.segments() else { return };
    let Some(properties) = properties.as_object_mut() else { return };
    match tagging.shape {
        TagShape::Map => {
            let known = properties.entry(property.clone()).or_insert_with(|| json!({}));
            if let Some(known) = known.as_object_mut() {
                if all && known.len() + tags.len() > 50 {
                    return;
                }
                for (key, value) in tags {
                    known.entry(key.clone()).or_insert_with(|| value.clone());
                }
            }
        }
        TagShape::List | TagShape::PropagatingList => {
            let known = properties.entry(property.clone()).or_insert_with(|| json!([]));
            if let Some(known) = known.as_array_mut() {
                if all && known.len() + tags.len() > 50 {
                    return;
                }
                for (key, value) in tags {
                    if known.iter().any(|tag| tag["Key"] == json!(key)) {
                        continue;
                    }
                    let mut tag = json!({ "Key": key, "Value": value });
                    if tagging.shape == TagShape::PropagatingList {
                        tag["PropagateAtLaunch"] = json!(true);
                    }
                    known.push(tag);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::lookup;

    fn stack_tags() -> Map<String, Value> {
        let Value::Object(tags) = json!({"team": "web", "stage": "dev"}) else { return Map::new() };
        tags
    }

    #[test]
    fn t12_stack_tags_lie_below_a_resources_own() {
        let table = [
            (
                "AWS::SQS::Queue",
                json!({"Tags": [{"Key": "team", "Value": "own"}]}),
                json!({"Tags": [{"Key": "team", "Value": "own"}, {"Key": "stage", "Value": "dev"}]}),
            ),
            ("AWS::SSM::Parameter", json!({}), json!({"Tags": {"team": "web", "stage": "dev"}})),
            (
                "AWS::AutoScaling::AutoScalingGroup",
                json!({"Tags": [{"Key": "team", "Value": "own", "PropagateAtLaunch": false}]}),
                json!({"Tags": [
                    {"Key": "team", "Value": "own", "PropagateAtLaunch": false},
                    {"Key": "stage", "Value": "dev", "PropagateAtLaunch": true},
                ]}),
            ),
            ("AWS::IAM::RolePolicy", json!({"PolicyName": "p"}), json!({"PolicyName": "p"})),
        ];
        for (type_name, properties, expected) in table {
            let schema = lookup(type_name).unwrap();
            assert_eq!(with_stack_tags(&schema, properties, &stack_tags()), expected, "{type_name}");
        }
    }

    #[test]
    fn marks_come_on_top_or_not_at_all() {
        let schema = lookup("AWS::SQS::Queue").unwrap();
        let marked = mark(&schema, json!({}), "Web", "Queue", "t");
        let keys: Vec<_> = marked["Tags"].as_array().unwrap().iter().map(|tag| tag["Key"].clone()).collect();
        assert_eq!(keys, ["cdkd:stack", "cdkd:logical-id", "cdkd:token"]);
        let full: Vec<Value> = (0..49).map(|n| json!({"Key": n.to_string(), "Value": "v"})).collect();
        let unmarked = mark(&schema, json!({ "Tags": full }), "Web", "Queue", "t");
        assert_eq!(unmarked["Tags"].as_array().unwrap().len(), 49);
    }
}
