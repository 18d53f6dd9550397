//! The rewrite against a slow one that is easy to see right: evaluate first, then look at the finished text.

use proptest::prelude::*;
use serde_json::Map;

use super::*;
use crate::assets::testing::{FROM, TO, table};

/// Stands for what is not constant in a finished text. Any letter: it counts as a part of a name.
const UNKNOWN: char = 'U';

const ACCOUNT: &str = "123456789012";

fn constant(name: &str) -> Option<&'static str> {
    match name {
        "AWS::AccountId" => Some(ACCOUNT),
        "AWS::Region" => Some("eu-west-1"),
        "P" => Some("s"),
        "S" => Some("/"),
        _ => None,
    }
}

/// What an expression comes to; what is not constant is marked, so that two evaluations can be compared.
fn evaluate(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Object(fields) => match fields.iter().next() {
            Some((name, argument)) if name == "Fn::FindInMap" => {
                assert_eq!(argument, &json!(["M", "a", "b"]));
                ACCOUNT.to_owned()
            }
            Some((name, argument)) if name == "Ref" => look_up(argument.as_str().unwrap(), None),
            Some((name, argument)) if name == "Fn::GetAtt" => {
                format!(
                    "{UNKNOWN}<{}.{}>{UNKNOWN}",
                    argument[0].as_str().unwrap(),
                    argument[1].as_str().unwrap()
                )
            }
            Some((name, argument)) if name == "Fn::Join" => {
                let items = argument[1].as_array().unwrap().iter().map(evaluate).collect::<Vec<_>>();
                items.join(argument[0].as_str().unwrap())
            }
            Some((name, argument)) if name == "Fn::Sub" => {
                let (text, variables) = match argument {
                    Value::String(text) => (text.as_str(), None),
                    list => (list[0].as_str().unwrap(), list[1].as_object()),
                };
                let mut out = String::new();
                let mut rest = text;
                while let Some((before, behind)) = rest.split_once("${") {
                    out.push_str(before);
                    let (name, behind) = behind.split_once('}').unwrap();
                    match name.strip_prefix('!') {
                        Some(literal) => out.extend(["${", literal, "}"]),
                        None => out.push_str(&look_up(name, variables)),
                    }
                    rest = behind;
                }
                out + rest
            }
            other => panic!("{other:?}"),
        },
        other => panic!("{other}"),
    }
}

fn look_up(name: &str, variables: Option<&Map<String, Value>>) -> String {
    if let Some(value) = variables.and_then(|it| it.get(name)) {
        return evaluate(value);
    }
    constant(name).map_or_else(|| format!("{UNKNOWN}<{name}>{UNKNOWN}"), str::to_owned)
}

/// Redirects in a finished text, character by character.
fn slow(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(FROM) {
        out.push_str(&rest[..at]);
        let behind = &rest[at + FROM.len()..];
        let may_begin =
            out.chars().next_back().is_none_or(|c| !c.is_ascii_alphanumeric() && !"-_.".contains(c));
        let may_end = match behind.chars().next() {
            None => true,
            Some('.') => {
                let next = &behind[1..];
                next.is_empty() || next.starts_with([' ', '"']) || next.starts_with("s3.")
            }
            Some(c) => !c.is_ascii_alphanumeric() && !"-_".contains(c),
        };
        out.push_str(if may_begin && may_end { TO } else { FROM });
        rest = behind;
    }
    out + rest
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        6 => Just(FROM.to_owned()),
        2 => Just("cdk-hnb659fds-assets-".to_owned()),
        2 => Just("-eu-west-1".to_owned()),
        1 => Just("123456789012".to_owned()),
        1 => Just("cdk-hnb659fds-as".to_owned()),
        1 => Just("sets-123456789012-eu-west-1".to_owned()),
        4 => "[-_a.:, \"/]{0,2}",
        1 => Just(".s3.".to_owned()),
    ]
}

/// Text of a `Fn::Sub`.
fn sub_text() -> impl Strategy<Value = String> {
    let variable = prop_oneof![
        Just("${AWS::AccountId}"),
        Just("${AWS::Region}"),
        Just("${P}"),
        Just("${S}"),
        Just("${V}"),
        Just("${W}"),
        Just("${Other}"),
        Just("${Res.Arn}"),
        Just("${!Literal}"),
    ];
    proptest::collection::vec(prop_oneof![3 => text(), 2 => variable.prop_map(str::to_owned)], 0..5)
        .prop_map(|parts| parts.concat())
}

fn expression() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        4 => text().prop_map(Value::String),
        2 => prop_oneof![Just("AWS::AccountId"), Just("AWS::Region"), Just("P"), Just("S"), Just("Other")]
            .prop_map(|name| json!({ "Ref": name })),
        1 => Just(json!({ "Fn::GetAtt": ["Res", "Name"] })),
        1 => Just(json!({ "Fn::FindInMap": ["M", "a", "b"] })),
        2 => sub_text().prop_map(|text| json!({ "Fn::Sub": text })),
    ];
    leaf.prop_recursive(3, 24, 5, |inner| {
        let delimiter = prop_oneof![3 => Just(""), 1 => Just("-"), 1 => Just("/"), 1 => Just(",")];
        prop_oneof![
            3 => (delimiter, proptest::collection::vec(inner.clone(), 0..5))
                .prop_map(|(delimiter, items)| json!({ "Fn::Join": [delimiter, items] })),
            1 => (sub_text(), inner.clone(), inner)
                .prop_map(|(text, v, w)| json!({ "Fn::Sub": [text, { "V": v, "W": w }] })),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, ..ProptestConfig::default() })]

    #[test]
    fn a_rewritten_tree_comes_to_what_its_text_does_when_redirected_in_the_end(tree in expression()) {
        let mut table = table();
        table.forget_keys();
        let names = ["AWS::AccountId", "AWS::Region", "P", "S"];
        let values = names.map(|name| (name.to_owned(), constant(name).unwrap().to_owned())).into();
        let mut template = json!({
            "Mappings": { "M": { "a": { "b": ACCOUNT } } },
            "Resources": { "R": { "Properties": { "P": tree } } },
        });
        let done = table.rewrite(&mut template, &Constants { values });
        let after = &template["Resources"]["R"]["Properties"]["P"];
        let expected = slow(&evaluate(&tree));
        prop_assert_eq!(&evaluate(after), &expected);
        // What is not touched stays as it was written.
        prop_assert!(done.changed > 0 || *after == tree);
        // And what is left of it, once it is known, passes the audit or is found by it.
        prop_assert_eq!(table.audit(&json!(expected)), []);
    }
}
