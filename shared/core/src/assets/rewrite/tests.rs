//! What is rewritten, left and told, case by case.

use super::*;
use crate::assets::testing::{FROM, TO, table};

const PLACEHOLDER: &str = "cdk-hnb659fds-assets-${AWS::AccountId}-${AWS::Region}";

fn constants() -> Constants {
    let values = [
        ("AWS::AccountId", "123456789012"),
        ("AWS::Region", "eu-west-1"),
        ("AWS::Partition", "aws"),
        ("AWS::URLSuffix", "amazonaws.com"),
        ("Stage", "prod"),
        ("Bucket", FROM),
        ("Q", "hnb659fds"),
    ];
    Constants { values: values.map(|(name, value)| (name.to_owned(), value.to_owned())).into() }
}

/// A property after the rewrite; and what was left.
fn rewritten(value: &Value) -> (Value, Vec<String>) {
    let mut template = json!({
        "Mappings": {"Accounts": {"prod": {"id": "123456789012", "n": 7}}},
        "Resources": {"R": {"Type": "T", "Properties": {"P": value}}},
    });
    let before = template.clone();
    let done = table().rewrite(&mut template, &constants());
    let after = template["Resources"]["R"]["Properties"]["P"].take();
    assert_eq!(template["Mappings"], before["Mappings"]);
    assert_eq!(done.changed > 0, after != *value, "{value}");
    (after, done.left.into_iter().map(|(_, text)| text).collect())
}

fn sub(text: &str) -> Value {
    json!({ "Fn::Sub": text })
}

fn join(items: &Value) -> Value {
    json!({ "Fn::Join": ["", items] })
}

#[test]
fn a5_names_are_found_however_they_are_written() {
    let account = json!({"Ref": "AWS::AccountId"});
    let table = [
        json!(FROM),
        sub(PLACEHOLDER),
        sub("cdk-hnb659fds-assets-123456789012-${AWS::Region}"),
        sub("cdk-hnb659fds-assets-${AWS::AccountId}-eu-west-1"),
        json!({"Fn::Sub": [PLACEHOLDER]}),
        json!({"Fn::Sub": ["cdk-hnb659fds-assets-${Account}-${AWS::Region}", {"Account": account}]}),
        json!({"Fn::Sub": ["${B}", {"B": sub(PLACEHOLDER)}]}),
        json!({"Fn::Sub": ["cdk-${Q}-assets-${AWS::AccountId}-${AWS::Region}", {}]}),
        join(&json!(["cdk-hnb659fds-assets-", account, "-", {"Ref": "AWS::Region"}])),
        join(&json!(["cdk-hnb659fds-as", "sets-123456789012-eu", "-west-1"])),
        json!({"Fn::Join": ["-", ["cdk", "hnb659fds", "assets", account, {"Ref": "AWS::Region"}]]}),
        json!({"Fn::Join": ["-", ["cdk-hnb659fds-assets", {"Fn::FindInMap": ["Accounts", {"Ref": "Stage"}, "id"]}, "eu-west-1"]]}),
        join(&json!([join(&json!(["cdk-hnb659fds", "-assets"])), sub("-${AWS::AccountId}-"), "eu-west-1"])),
        json!({"Ref": "Bucket"}),
    ];
    for value in table {
        assert_eq!(rewritten(&value), (json!(TO), vec![]), "{value}");
    }
}

#[test]
fn a4_what_may_stand_beside_a_name() {
    let table = [
        ("s3://{}/k", true),
        ("s3://{}/k.zip", true),
        ("{}/", true),
        ("arn:aws:s3:::{}/*", true),
        ("arn:aws:s3:::{}", true),
        ("https://s3.eu-west-1.amazonaws.com/{}/k.zip", true),
        ("https://{}.s3.eu-west-1.amazonaws.com/k.zip", true),
        ("https://{}.s3-eu-west-1.amazonaws.com/k.zip", true),
        ("{}.dkr.ecr", true),
        ("\"{}\"", true),
        ("'{}'", true),
        ("{},b", true),
        ("(b {})", true),
        ("{};", true),
        ("{}*", true),
        ("{}?", true),
        ("\\{}\\", true),
        ("a\t{}\n", true),
        ("the bucket {}. It", true),
        ("{}.", true),
        ("{}.\"", true),
        ("s3%3A%2F%2F{}%2Fk", true),
        ("{}-backup", false),
        ("{}.backup", false),
        ("{}.s", false),
        ("{}2", false),
        ("{}_", false),
        ("{}B", false),
        ("my-{}", false),
        ("my.{}", false),
        ("a{}", false),
        ("_{}", false),
        ("%zz{}", false),
        ("cdk-{}", false),
        ("xcdk-hnb659fds-assets-123456789012-eu-west-1", false),
        ("cdk-hnb659fds-assets-123456789012-eu-west-10", false),
        ("cdk-other-assets-123456789012-eu-west-1", false),
        ("{} and {}", true),
    ];
    for (form, is_ours) in table {
        let (text, moved) = (form.replace("{}", FROM), form.replace("{}", TO));
        let expected = if is_ours { json!(moved) } else { json!(text) };
        assert_eq!(rewritten(&json!(text)), (expected.clone(), vec![]), "{form}");
        // The same, taken apart.
        let parts: Vec<String> = text.split_inclusive('-').map(str::to_owned).collect();
        let value = join(&json!(parts));
        assert_eq!(rewritten(&value).0, if is_ours { expected } else { value }, "{form}");
    }
}

#[test]
fn a2_a_name_beside_what_is_not_constant_is_another_one() {
    let unknown = json!({"Ref": "Other"});
    let table = [
        join(&json!(["my-", sub(PLACEHOLDER)])),
        join(&json!([sub(PLACEHOLDER), "-backup"])),
        join(&json!([unknown, FROM])),
        join(&json!([FROM, unknown])),
        join(&json!([FROM, ".", unknown])),
        sub(&format!("${{Other}}{PLACEHOLDER}")),
        sub(&format!("{PLACEHOLDER}${{Other.Name}}")),
        json!({"Fn::Sub": ["${P}${B}", {"P": {"Fn::GetAtt": ["A", "B"]}, "B": FROM}]}),
        join(&json!(["my-", {"Fn::If": ["C", FROM, "x"]}])),
        json!({"Fn::If": ["C", join(&json!([FROM, "-x"])), "x"]}),
        json!({"Fn::Join": ["-", [FROM, {"Fn::If": ["C", {"Ref": "AWS::NoValue"}, "x"]}]]}),
        // Left out, a value leaves its neighbour to what is outside.
        join(&json!(["my-", {"Fn::Join": ["/", [{"Fn::If": ["C", {"Ref": "AWS::NoValue"}, "x"]}, FROM]]}])),
        join(
            &json!([{"Fn::Join": ["/", [FROM, {"Fn::If": ["C", {"Ref": "AWS::NoValue"}, "x"]}]]}, "-backup"]),
        ),
        // Escaped: not a pseudo parameter.
        sub("cdk-hnb659fds-assets-${!AWS::AccountId}-${AWS::Region}"),
        // Parts that are a choice of lists have the delimiter, and each other, for neighbours.
        json!({"Fn::Join": ["-", {"Fn::If": ["C", [FROM, "x"], ["y"]]}]}),
        json!({"Fn::Join": ["", {"Fn::If": ["C", ["my-", FROM], ["y"]]}]}),
    ];
    for value in table {
        assert_eq!(rewritten(&value), (value.clone(), vec![]), "{value}");
    }
}

#[test]
fn a26_a_constant_run_of_what_is_not_constant_as_a_whole_is_redirected() {
    let key = json!({"Ref": "Key"});
    let table = [
        (join(&json!(["s3://", sub(PLACEHOLDER), "/", key])), join(&json!([format!("s3://{TO}/"), key]))),
        (sub(&format!("s3://{PLACEHOLDER}/${{Key}}")), join(&json!([format!("s3://{TO}/"), key]))),
        (
            sub(&format!("${{A.B.C}}:{PLACEHOLDER}/${{Key}}-${{!x}}")),
            join(&json!([{"Fn::GetAtt": ["A", "B.C"]}, format!(":{TO}/"), key, "-${x}"])),
        ),
        (json!({"Fn::Join": [",", [key, FROM, key]]}), join(&json!([key, format!(",{TO},"), key]))),
        // One of the values of a choice has the neighbours of the choice.
        (
            join(&json!(["s3://", {"Fn::If": ["C", FROM, key]}, "/k"])),
            join(&json!(["s3://", {"Fn::If": ["C", TO, key]}, "/k"])),
        ),
        (json!({"Fn::Select": [0, [FROM, "b"]]}), json!({"Fn::Select": [0, [TO, "b"]]})),
        // A value that may be left out takes its delimiter along: the list stays one.
        (
            json!({"Fn::Join": [",", [FROM, {"Fn::If": ["C", {"Ref": "AWS::NoValue"}, FROM]}, "x"]]}),
            json!({"Fn::Join": [",", [TO, {"Fn::If": ["C", {"Ref": "AWS::NoValue"}, TO]}, "x"]]}),
        ),
        (
            json!({"Fn::Join": [",", {"Fn::If": ["C", [FROM, "x"], ["y"]]}]}),
            json!({"Fn::Join": [",", {"Fn::If": ["C", [format!("{TO},x")], ["y"]]}]}),
        ),
        (
            json!({"Fn::Join": ["", {"Fn::If": ["C", [FROM], ["y"]]}]}),
            json!({"Fn::Join": ["", {"Fn::If": ["C", [TO], ["y"]]}]}),
        ),
        // No reference to a condition: those are names.
        (
            json!({"Condition": {"StringLike": {"s3:prefix": FROM}}}),
            json!({"Condition": {"StringLike": {"s3:prefix": TO}}}),
        ),
        // Functions that neither fold nor choose.
        (json!({"Fn::Base64": sub(PLACEHOLDER)}), json!({"Fn::Base64": TO})),
        (
            join(&json!(["a", {"Fn::Base64": sub(&format!("{PLACEHOLDER}/${{Key}}"))}])),
            join(&json!(["a", {"Fn::Base64": join(&json!([format!("{TO}/"), key]))}])),
        ),
        (
            json!({"Fn::Join": ["/", {"Fn::Split": ["|", format!("a|{FROM}")]}]}),
            json!({"Fn::Join": ["/", {"Fn::Split": ["|", format!("a|{TO}")]}]}),
        ),
    ];
    for (value, expected) in table {
        assert_eq!(rewritten(&value), (expected, vec![]), "{value}");
    }
}

#[test]
fn a27_what_is_no_asset_of_the_assembly_is_left_and_told() {
    let image = "cdk-hnb659fds-container-assets-123456789012-eu-west-1";
    let moved = "cdkd-container-assets-123456789012-eu-west-1";
    let table = [
        (format!("s3://{FROM}/latest/x.json"), None, format!("{FROM}/latest/x.json")),
        (format!("https://{FROM}.s3.amazonaws.com/other.zip"), None, format!("{FROM}/other.zip")),
        (format!("arn:aws:s3:::{FROM}/other.zip"), None, format!("{FROM}/other.zip")),
        (format!("https://s3.amazonaws.com/{FROM}/other.zip?versionId=1"), None, format!("{FROM}/other.zip")),
        (format!("1.dkr.ecr.eu-west-1.amazonaws.com/{image}:v1"), None, format!("{image}/v1")),
        (format!("1.dkr.ecr.eu-west-1.amazonaws.com/{image}:tag"), Some(moved), String::new()),
        (format!("arn:aws:ecr:eu-west-1:1:repository/{image}"), Some(moved), String::new()),
        // Known, a folder of what is known, a pattern, a variable of a shell.
        (format!("s3://{FROM}/pre/fix/k.json"), Some(TO), String::new()),
        (format!("s3://{FROM}/pre/fix/"), Some(TO), String::new()),
        (format!("s3://{FROM}/pre/*"), Some(TO), String::new()),
        (format!("s3://{FROM}/other?"), Some(TO), String::new()),
        (format!("aws s3 cp s3://{FROM}/$KEY ."), Some(TO), String::new()),
    ];
    for (text, to, left) in table {
        let from = if text.contains(image) { image } else { FROM };
        let expected = to.map_or_else(|| text.clone(), |to| text.replace(from, to));
        let left = if left.is_empty() { vec![] } else { vec![left] };
        assert_eq!(rewritten(&json!(text)), (json!(expected), left), "{text}");
    }
    // The audit of what it comes to agrees.
    let mut table = crate::assets::testing::table();
    let value = json!({"A": format!("s3://{FROM}/latest/x.json"), "B": format!("{FROM}-backup")});
    let mut template = json!({"Resources": {"R": {"Properties": value}}});
    table.rewrite(&mut template, &constants());
    assert_eq!(table.audit(&value), []);
}

#[test]
fn a3_names_of_exports_metadata_and_all_that_is_no_value_stay() {
    let template = json!({
        "Description": FROM,
        "Metadata": {"m": FROM},
        "Parameters": {"P": {"Type": "String", "Default": FROM}},
        "Mappings": {"M": {"a": {"b": FROM}}},
        "Conditions": {"C": {"Fn::Equals": [FROM, {"Ref": "P"}]}},
        "Resources": {"R": {
            "Type": "T", "Metadata": {"aws:asset:path": FROM}, "Condition": "C", "DependsOn": FROM,
            "Properties": {
                FROM: "a key",
                "Import": {"Fn::ImportValue": sub(&format!("{PLACEHOLDER}:x"))},
                "Att": {"Fn::GetAtt": ["R", FROM]},
                "If": {"Fn::If": [FROM, "a", "b"]},
            },
        }},
        "Outputs": {"O": {
            "Description": FROM, "Value": {"Ref": "R"}, "Export": {"Name": sub(PLACEHOLDER)},
        }},
    });
    let mut after = template.clone();
    let done = table().rewrite(&mut after, &constants());
    assert_eq!((after, done), (template.clone(), Rewritten::default()));

    let mut named = template.clone();
    named["Outputs"]["O"]["Value"] = sub(PLACEHOLDER);
    let mut expected = template;
    expected["Outputs"]["O"]["Value"] = json!(TO);
    assert_eq!(table().rewrite(&mut named, &constants()).changed, 1);
    assert_eq!(named, expected);
}

#[test]
fn a26_a_parameter_beside_a_name_stays_one() {
    // Its value may be another one by the time the stack is locked.
    let stage = json!({"Ref": "Stage"});
    let table = [
        (
            sub(&format!("s3://{PLACEHOLDER}/* ${{Stage}}/k")),
            join(&json!([format!("s3://{TO}/* "), stage, "/k"])),
        ),
        (
            join(&json!([stage, ":", FROM, ",", stage, ",", FROM])),
            join(&json!([stage, format!(":{TO},"), stage, format!(",{TO}")])),
        ),
        // A part of the name.
        (
            sub("${Stage}/cdk-${Q}-assets-${AWS::AccountId}-${AWS::Region}/*"),
            join(&json!([stage, format!("/{TO}/*")])),
        ),
    ];
    for (value, expected) in table {
        assert_eq!(rewritten(&value), (expected, vec![]), "{value}");
    }
}

#[test]
fn s15_a_parameter_never_becomes_a_part_of_a_dynamic_reference() {
    let mut constants = constants();
    constants.values.insert("Braced".to_owned(), "{{resolve:secretsmanager:a}}".to_owned());
    let value = join(&json!(["s3://", FROM, "/k ", {"Ref": "Braced"}]));
    let mut template = json!({"Resources": {"R": {"Properties": {"P": value}}}});
    table().rewrite(&mut template, &constants);
    let expected = join(&json!([format!("s3://{TO}/k "), {"Ref": "Braced"}]));
    assert_eq!(template["Resources"]["R"]["Properties"]["P"], expected);
}

#[test]
fn a22_an_empty_table_rewrites_nothing() {
    let mut template = json!({"Resources": {"R": {"Properties": {"P": sub(PLACEHOLDER)}}}});
    let before = template.clone();
    assert_eq!(Table::default().rewrite(&mut template, &constants()), Rewritten::default());
    assert_eq!(template, before);
}
