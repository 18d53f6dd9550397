//! Types that Cloud Control lacks but whose parts it serves (DESIGN 8, "Expansion").

use serde_json::{Map, Value};

use super::lookup;
use super::name::{NameSeed, plain_name};
use super::path::scalar;
use super::reference::identifier;

/// One resource of Cloud Control that is part of a resource of the template.
#[derive(Clone, Debug, PartialEq)]
pub struct Part {
    /// Tells the part from its siblings, and stays the same as long as it is the same part: `RoleName:worker`.
    /// A target that is not known yet has its position instead: `RoleName#0`.
    pub key: String,
    /// `AWS::IAM::RolePolicy`
    pub type_name: &'static str,
    /// As Cloud Control will give it; `None` while the target is not known.
    pub identifier: Option<String>,
    pub desired: Value,
}

/// A type that is expanded: the lists of its targets, and what each of these becomes.
struct Expansion {
    type_name: &'static str,
    /// The list of targets, the part's type, the property that holds the target there.
    targets: &'static [(&'static str, &'static str, &'static str)],
    /// What each part takes over.
    shared: &'static [&'static str],
}

const EXPANSIONS: &[Expansion] = &[
    Expansion {
        type_name: "AWS::IAM::Policy",
        targets: &[
            ("Groups", "AWS::IAM::GroupPolicy", "GroupName"),
            ("Roles", "AWS::IAM::RolePolicy", "RoleName"),
            ("Users", "AWS::IAM::UserPolicy", "UserName"),
        ],
        shared: &["PolicyName", "PolicyDocument"],
    },
    Expansion {
        type_name: "AWS::SNS::TopicPolicy",
        targets: &[("Topics", "AWS::SNS::TopicInlinePolicy", "TopicArn")],
        shared: &["PolicyDocument"],
    },
    Expansion {
        type_name: "AWS::SQS::QueuePolicy",
        targets: &[("Queues", "AWS::SQS::QueueInlinePolicy", "Queue")],
        shared: &["PolicyDocument"],
    },
];

fn expansion(type_name: &str) -> Option<&'static Expansion> {
    EXPANSIONS.iter().find(|expansion| expansion.type_name == type_name)
}

/// Whether resources of this type are deployed as their parts.
pub fn is_expanded(type_name: &str) -> bool {
    expansion(type_name).is_some()
}

/// The parts of a resource; `None` for a type that is no sum of parts. A target that is listed twice is one part.
pub fn expand(type_name: &str, properties: &Value) -> Option<Vec<Part>> {
    let expansion = expansion(type_name)?;
    let mut parts: Vec<Part> = Vec::new();
    for &(list, type_name, property) in expansion.targets {
        let targets = match properties.get(list) {
            None | Some(Value::Null) => &[],
            Some(Value::Array(targets)) => targets.as_slice(),
            // CloudFormation takes a single value for a list of one.
            Some(one) => std::slice::from_ref(one),
        };
        for (position, target) in targets.iter().enumerate() {
            let key = match scalar(target) {
                Some(name) => format!("{property}:{name}"),
                None => format!("{property}#{position}"),
            };
            if parts.iter().any(|part| part.key == key) {
                continue;
            }
            let shared = expansion
                .shared
                .iter()
                .filter_map(|name| Some(((*name).to_owned(), properties.get(*name)?.clone())));
            let mut desired: Map<String, Value> = shared.collect();
            desired.insert(property.to_owned(), target.clone());
            let desired = Value::Object(desired);
            let identifier = lookup(type_name).and_then(|schema| identifier(&schema, &desired));
            parts.push(Part { key, type_name, identifier, desired });
        }
    }
    Some(parts)
}

/// What `Ref` returns for a resource that is deployed as its parts, which is also its physical id: the policy's
/// name for `AWS::IAM::Policy`, a made-up id of the kind that CloudFormation makes for the others. `None` for a type
/// that is not expanded, or if the policy's name is not known yet.
pub fn expanded_reference(type_name: &str, seed: &NameSeed<'_>, properties: &Value) -> Option<String> {
    expansion(type_name)?;
    if type_name == "AWS::IAM::Policy" {
        return properties.get("PolicyName").and_then(scalar);
    }
    Some(plain_name(seed))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::name::tests::seed;
    use super::*;

    #[test]
    fn parts() {
        let document = json!({"Statement": []});
        let cases = [
            (
                "AWS::IAM::Policy",
                json!({"PolicyName": "p", "PolicyDocument": document, "Roles": ["r1", "r2", "r1"], "Users": ["r1"]}),
                vec![
                    ("RoleName:r1", "AWS::IAM::RolePolicy", Some("p|r1")),
                    ("RoleName:r2", "AWS::IAM::RolePolicy", Some("p|r2")),
                    ("UserName:r1", "AWS::IAM::UserPolicy", Some("p|r1")),
                ],
            ),
            (
                "AWS::IAM::Policy",
                json!({"PolicyName": "p", "PolicyDocument": document, "Groups": [{"Ref": "G"}]}),
                vec![("GroupName#0", "AWS::IAM::GroupPolicy", None)],
            ),
            (
                "AWS::SQS::QueuePolicy",
                json!({"PolicyDocument": document, "Queues": ["https://q"]}),
                vec![("Queue:https://q", "AWS::SQS::QueueInlinePolicy", Some("https://q"))],
            ),
            (
                "AWS::SNS::TopicPolicy",
                json!({"PolicyDocument": document, "Topics": "arn:t"}),
                vec![("TopicArn:arn:t", "AWS::SNS::TopicInlinePolicy", Some("arn:t"))],
            ),
            ("AWS::SNS::TopicPolicy", json!({}), vec![]),
        ];
        for (type_name, properties, want) in cases {
            let parts = expand(type_name, &properties).unwrap_or_default();
            let got: Vec<_> = parts
                .iter()
                .map(|part| (part.key.as_str(), part.type_name, part.identifier.as_deref()))
                .collect();
            assert_eq!(got, want, "{type_name} {properties}");
        }
        assert_eq!(expand("AWS::IAM::Role", &json!({})), None);
    }

    #[test]
    fn a_part_holds_what_its_type_takes() {
        let properties = json!({"PolicyName": "p", "PolicyDocument": {"Statement": []}, "Roles": ["r"]});
        let parts = expand("AWS::IAM::Policy", &properties).unwrap_or_default();
        let desired: Vec<&Value> = parts.iter().map(|part| &part.desired).collect();
        assert_eq!(
            desired,
            [&json!({"PolicyName": "p", "PolicyDocument": {"Statement": []}, "RoleName": "r"})]
        );
    }

    /// The parts are served by Cloud Control, and what they become is not.
    #[test]
    fn expansions_agree_with_the_schemas() {
        for expansion in EXPANSIONS {
            assert!(lookup(expansion.type_name).is_some_and(|schema| !schema.provisionable()));
            for (_, part, property) in expansion.targets {
                let schema = lookup(part).unwrap_or_default();
                assert!(schema.mutable(), "{part}");
                assert!(schema.primary_identifier.iter().any(|path| path.top() == *property), "{part}");
            }
        }
    }

    #[test]
    fn references() {
        let properties = json!({"PolicyName": "p"});
        seed(|seed| {
            assert_eq!(expanded_reference("AWS::IAM::Policy", seed, &properties).as_deref(), Some("p"));
            assert_eq!(expanded_reference("AWS::IAM::Policy", seed, &json!({})), None);
            let queue = expanded_reference("AWS::SQS::QueuePolicy", seed, &json!({})).unwrap_or_default();
            assert!(queue.starts_with("App-Queue1-"), "{queue}");
            assert_eq!(expanded_reference("AWS::S3::Bucket", seed, &json!({})), None);
        });
    }
}
