//! What a change of properties means for a resource, and the patch that carries it.

use serde_json::{Map, Value, json};

use crate::schema::{PropertyPath, TypeSchema, same};

/// What has to be done to bring a resource from its last stored properties to the desired ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    Same,
    /// In place; the properties that differ.
    Update {
        changed: Vec<String>,
    },
    /// By a new resource; the paths that force it.
    Replace {
        because: Vec<String>,
    },
}

/// Compares stored form against stored form (DESIGN 7); create-only is judged at the exact path (rule T7).
pub fn judge(schema: &TypeSchema, before: &Value, desired: &Value) -> Verdict {
    let changed = changed(before, desired);
    if changed.is_empty() {
        return Verdict::Same;
    }
    let because: Vec<String> =
        schema.changed_create_only(before, desired).iter().map(ToString::to_string).collect();
    if !because.is_empty() {
        return Verdict::Replace { because };
    }
    if schema.mutable() { Verdict::Update { changed } } else { Verdict::Replace { because: changed } }
}

/// The top-level properties that differ, in order of the desired ones, then those that go.
pub fn changed(before: &Value, desired: &Value) -> Vec<String> {
    let nothing = Map::new();
    let (before, desired) = (before.as_object().unwrap_or(&nothing), desired.as_object().unwrap_or(&nothing));
    let differs =
        desired.iter().filter(|(key, value)| !before.get(*key).is_some_and(|known| same(known, value)));
    let goes = before.keys().filter(|key| !desired.contains_key(*key));
    differs.map(|(key, _)| key).chain(goes).cloned().collect()
}

/// The properties of a fixed identity that a replacement would share with what it replaces, so that both cannot
/// exist side by side (rule P11). Empty if the new one gets a name of its own, or the type deletes first.
pub fn fixed_identity(schema: &TypeSchema, before: &Value, desired: &Value) -> Vec<String> {
    if schema.delete_then_create {
        return Vec::new();
    }
    let kept = |path: &PropertyPath| {
        path.first(desired).is_some_and(|new| path.first(before).is_some_and(|old| same(old, new)))
    };
    if let Some(rule) = &schema.name {
        let name = PropertyPath::new([rule.property.clone()]);
        if kept(&name) {
            return vec![rule.property.clone()];
        }
    }
    if !schema.primary_identifier.is_empty() && schema.primary_identifier.iter().all(kept) {
        return schema.primary_identifier.iter().map(ToString::to_string).collect();
    }
    Vec::new()
}

/// Types whose write-only properties an update does not need: sending them again would do work for nothing.
const NOT_SENT_AGAIN: &[(&str, &str)] = &[
    // A function's code is uploaded again only when it changes (rule P15).
    ("AWS::Lambda::Function", "Code"),
];

/// The RFC 6902 patch from the last stored properties to the desired ones.
///
/// Whole properties are set with `add`, which also replaces; write-only ones are sent again whatever changed, since
/// the model that the patch is applied to does not hold them (rule P5); what is gone is removed, unless it could not
/// be read back and so is not in that model.
pub fn patch(schema: &TypeSchema, before: &Value, desired: &Value) -> Vec<Value> {
    let changed = changed(before, desired);
    if changed.is_empty() {
        return Vec::new();
    }
    let nothing = Map::new();
    let wanted = desired.as_object().unwrap_or(&nothing);
    let mut operations = Vec::new();
    for (key, value) in wanted {
        let path = PropertyPath::new([key.as_str()]);
        let sent_again = schema.write_only_paths().iter().any(|hidden| {
            hidden.top() == key
                && hidden.first(desired).is_some()
                && !schema.create_only.iter().any(|fixed| fixed.covers(hidden))
        }) && !NOT_SENT_AGAIN.contains(&(schema.type_name.as_str(), key.as_str()));
        let fixed = schema.create_only.iter().any(|create_only| create_only.covers(&path));
        if changed.contains(key) || (sent_again && !fixed) {
            operations.push(json!({ "op": "add", "path": pointer(key), "value": value }));
        }
    }
    for key in changed.iter().filter(|key| !wanted.contains_key(*key)) {
        let hidden = schema.is_write_only(&PropertyPath::new([key.as_str()]));
        if !hidden {
            operations.push(json!({ "op": "remove", "path": pointer(key) }));
        }
    }
    operations
}

fn pointer(key: &str) -> String {
    format!("/{}", key.replace('~', "~0").replace('/', "~1"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::lookup;

    fn schema(type_name: &str) -> TypeSchema {
        lookup(type_name).unwrap()
    }

    #[test]
    fn t7_create_only_is_judged_at_the_exact_path_and_a_removed_key_is_a_change() {
        let update =
            |keys: &[&str]| Verdict::Update { changed: keys.iter().map(|k| (*k).to_owned()).collect() };
        let replace =
            |keys: &[&str]| Verdict::Replace { because: keys.iter().map(|k| (*k).to_owned()).collect() };
        let queue = "AWS::SQS::Queue";
        let table = [
            (queue, json!({"VisibilityTimeout": 30}), json!({"VisibilityTimeout": "30"}), Verdict::Same),
            (
                queue,
                json!({"VisibilityTimeout": 30}),
                json!({"VisibilityTimeout": 31}),
                update(&["VisibilityTimeout"]),
            ),
            (queue, json!({"VisibilityTimeout": 30}), json!({}), update(&["VisibilityTimeout"])),
            (
                queue,
                json!({"RedrivePolicy": {"a": 1, "b": 2}}),
                json!({"RedrivePolicy": {"a": 1}}),
                update(&["RedrivePolicy"]),
            ),
            (queue, json!({"FifoQueue": false}), json!({"FifoQueue": true}), replace(&["FifoQueue"])),
            ("AWS::Lambda::Permission", json!({"Action": "a"}), json!({"Action": "b"}), replace(&["Action"])),
        ];
        for (type_name, before, desired, expected) in table {
            assert_eq!(judge(&schema(type_name), &before, &desired), expected, "{before} {desired}");
        }
    }

    #[test]
    fn p5_write_only_properties_are_sent_again_with_add() {
        // AWS::SecretsManager::Secret: `SecretString` and `GenerateSecretString` are write-only.
        let secret = schema("AWS::SecretsManager::Secret");
        let before = json!({"Name": "n", "SecretString": "{{resolve:ssm-secure:x}}", "Description": "a"});
        let desired = json!({"Name": "n", "SecretString": "{{resolve:ssm-secure:x}}", "Description": "b"});
        assert_eq!(
            patch(&secret, &before, &desired),
            [
                json!({"op": "add", "path": "/SecretString", "value": "{{resolve:ssm-secure:x}}"}),
                json!({"op": "add", "path": "/Description", "value": "b"}),
            ]
        );
        assert_eq!(patch(&secret, &before, &before), [] as [Value; 0]);
        let gone = json!({"Name": "n"});
        assert_eq!(patch(&secret, &before, &gone), [json!({"op": "remove", "path": "/Description"})]);
    }

    #[test]
    fn p5_a_nested_write_only_path_brings_its_whole_property() {
        let schema = TypeSchema::parse_line("Own::Test::Type h=crud w=Auth/Password").unwrap_or_else(|| {
            let mut schema = schema("AWS::SQS::Queue");
            schema.write_only = vec![PropertyPath::new(["Auth", "Password"])];
            schema
        });
        let mut schema = schema;
        schema.write_only = vec![PropertyPath::new(["Auth", "Password"])];
        let before = json!({"Auth": {"User": "u", "Password": "p"}, "Size": 1});
        let desired = json!({"Auth": {"User": "u", "Password": "p"}, "Size": 2});
        assert_eq!(
            patch(&schema, &before, &desired),
            [
                json!({"op": "add", "path": "/Auth", "value": {"User": "u", "Password": "p"}}),
                json!({"op": "add", "path": "/Size", "value": 2}),
            ]
        );
    }

    #[test]
    fn p15_code_is_not_sent_again() {
        let function = schema("AWS::Lambda::Function");
        let before = json!({"Code": {"S3Bucket": "b", "S3Key": "k"}, "MemorySize": 128});
        let desired = json!({"Code": {"S3Bucket": "b", "S3Key": "k"}, "MemorySize": 256});
        assert_eq!(
            patch(&function, &before, &desired),
            [json!({"op": "add", "path": "/MemorySize", "value": 256})]
        );
    }

    #[test]
    fn p11_a_fixed_identity_is_seen() {
        let table = [
            (
                "AWS::SQS::Queue",
                json!({"QueueName": "q"}),
                json!({"QueueName": "q", "FifoQueue": true}),
                vec!["QueueName"],
            ),
            ("AWS::SQS::Queue", json!({"QueueName": "q"}), json!({"QueueName": "r"}), vec![]),
            ("AWS::SQS::Queue", json!({}), json!({"FifoQueue": true}), vec![]),
            ("AWS::DynamoDB::Table", json!({"TableName": "t"}), json!({"TableName": "t"}), vec!["TableName"]),
        ];
        for (type_name, before, desired, expected) in table {
            assert_eq!(fixed_identity(&schema(type_name), &before, &desired), expected, "{type_name}");
        }
    }
}
