//! Rewrite and audit of large templates.
//!
//! With an argument `speed` it prints `{none, some, all, one, five, functions}`: gigabytes a second of a template of 10 MB
//! with 20,000 strings of which none, one in a hundred, or all name the bucket; one in a hundred with one and with five
//! qualifiers, in turn; and one in a hundred where a fifth of the strings are `Fn::Sub` and `Fn::Join`. With `memory` it parses, rewrites, audits and writes one of 50 MB: `{bytes, resident}`, the most
//! bytes that this process ever had in memory.

#![allow(clippy::print_stdout, reason = "it is what it is for")]

use std::error::Error;
use std::time::Instant;

use cdkd_core::assembly::asset_manifest::AssetManifest;
use cdkd_core::assets::rewrite::Constants;
use cdkd_core::assets::table::{Here, Storage, Table, keys};
use serde_json::{Map, Value, json};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const ACCOUNT: &str = "123456789012";
const REGION: &str = "us-east-1";
/// Strings of a template of 10 MB, and of one resource.
const STRINGS: usize = 20_000;
const OF_ONE: usize = 20;
/// Bytes of a string.
const LENGTH: usize = 500;
/// Runs of each; the middle one counts. Odd.
const ROUNDS: usize = 21;

fn main() -> Result<()> {
    let answer = match std::env::args().nth(1).as_deref() {
        Some("speed") => speed()?,
        Some("memory") => memory()?,
        _ => return Err("`speed` or `memory`?".into()),
    };
    println!("{answer}");
    Ok(())
}

fn speed() -> Result<Value> {
    let one = table(1)?;
    let five = table(5)?;
    let measure = |table: &Table, every: Option<usize>| median(table, &template(STRINGS, every, false));
    let mut pairs = Vec::new();
    // In turn, so that what else the machine does meets both.
    for _ in 0..5 {
        pairs.push((measure(&one, Some(100)), measure(&five, Some(100))));
    }
    pairs.sort_by(|a, b| (a.1 / a.0).total_cmp(&(b.1 / b.0)));
    let (with_one, with_five) = pairs[pairs.len() / 2];
    Ok(json!({
        "none": measure(&one, None),
        "some": measure(&one, Some(100)),
        "all": measure(&one, Some(1)),
        "one": with_one,
        "five": with_five,
        "functions": median(&one, &template(STRINGS, Some(100), true)),
    }))
}

/// Gigabytes a second of rewrite and audit.
#[expect(clippy::cast_precision_loss, reason = "sizes are far below 2^52")]
fn median(table: &Table, template: &Value) -> f64 {
    let bytes = STRINGS * LENGTH;
    let mut speeds: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let (mut table, mut template) = (table.clone(), template.clone());
            let start = Instant::now();
            table.rewrite(&mut template, &constants());
            let left = audit(&table, &template);
            let seconds = start.elapsed().as_secs_f64();
            assert_eq!(left, 0, "something was not rewritten");
            bytes as f64 / seconds / 1e9
        })
        .collect();
    speeds.sort_by(f64::total_cmp);
    speeds[ROUNDS / 2]
}

fn audit(table: &Table, template: &Value) -> usize {
    let resources = template["Resources"].as_object().into_iter().flatten();
    resources.map(|(_, resource)| table.audit(&resource["Properties"]).len()).sum()
}

fn memory() -> Result<Value> {
    let bytes = serde_json::to_vec(&template(5 * STRINGS, Some(100), true))?;
    let before = bytes.len();
    let mut table = table(1)?;
    let mut document: Value = serde_json::from_slice(&bytes)?;
    table.rewrite(&mut document, &constants());
    let left = audit(&table, &document);
    let written = serde_json::to_vec(&document)?;
    let status = std::fs::read_to_string("/proc/self/status")?;
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).ok_or("no VmHWM")?;
    let kilobytes: u64 = peak.trim().trim_end_matches(" kB").parse()?;
    Ok(json!({ "bytes": before, "written": written.len(), "left": left, "resident": kilobytes * 1024 }))
}

fn constants() -> Constants {
    let values = [("AWS::AccountId", ACCOUNT), ("AWS::Region", REGION), ("AWS::Partition", "aws")];
    Constants { values: values.map(|(name, value)| (name.to_owned(), value.to_owned())).into() }
}

fn table(qualifiers: usize) -> Result<Table> {
    let files: Map<String, Value> = (0..qualifiers)
        .map(|n| {
            let bucket = format!("cdk-quali{n}-assets-${{AWS::AccountId}}-${{AWS::Region}}");
            let destination = json!({ "bucketName": bucket, "objectKey": "k.zip" });
            (n.to_string(), json!({"source": {"path": "a"}, "destinations": {"d": destination}}))
        })
        .collect();
    let manifest = json!({"version": "36.0.0", "files": files}).to_string();
    let told = |error: cdkd_core::Error| error.cause().to_string();
    let manifest = AssetManifest::parse(manifest.as_bytes(), "S.assets.json").map_err(told)?;
    let (account, region) = (ACCOUNT.parse().map_err(told)?, REGION.parse().map_err(told)?);
    let storage =
        Storage { bucket: "cdkd-assets-123456789012-us-east-1".into(), repository: "cdkd-images".into() };
    let here = Here { account: &account, region: &region };
    Ok(Table::new(std::slice::from_ref(&manifest), &keys([&manifest], here), here, Some(&storage)))
}

/// A template of so many strings, of which every so many-th names the bucket; with `functions` one in ten is a `Fn::Sub`,
/// one a `Fn::Join`.
fn template(strings: usize, every: Option<usize>, functions: bool) -> Value {
    let mut resources = Map::new();
    for first in (0..strings).step_by(OF_ONE) {
        let properties: Map<String, Value> = (first..(first + OF_ONE).min(strings))
            .map(|n| {
                (format!("Property{n}"), string(n, every.is_some_and(|every| n % every == 0), functions))
            })
            .collect();
        resources
            .insert(format!("R{first}"), json!({"Type": "AWS::SSM::Parameter", "Properties": properties}));
    }
    json!({ "Resources": resources })
}

fn string(n: usize, hit: bool, functions: bool) -> Value {
    let filler = "a text such as templates have, with s3:// and arn:aws:iam::123456789012:role/x in it; ";
    let mut text = filler.repeat(LENGTH / filler.len() + 1);
    text.truncate(LENGTH);
    if hit {
        text.replace_range(200..256, " s3://cdk-quali0-assets-123456789012-us-east-1/k.zip and");
    }
    let (before, behind) = text.split_at(300);
    match n % 10 {
        3 if functions => json!({ "Fn::Sub": format!("{before}${{AWS::Region}}{behind}") }),
        7 if functions => json!({ "Fn::Join": ["", [before, {"Ref": "AWS::Region"}, behind]] }),
        _ => json!(text),
    }
}
