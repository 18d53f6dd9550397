//! Real assemblies, where there are any: `../shared/corpus` beside the checkout. Without it there is nothing to check.

use std::fs;
use std::path::{Path, PathBuf};

use cdkd_core::assembly::asset_manifest::AssetManifest;
use cdkd_core::assets::rewrite::Constants;
use cdkd_core::assets::table::{Here, Storage, Table, keys};
use cdkd_test_support::workspace;
use serde_json::Value;

const ACCOUNT: &str = "123456789012";
const REGION: &str = "us-east-1";
const OWN: &str = "cdkd-assets-123456789012-us-east-1";

fn assemblies() -> Vec<PathBuf> {
    let corpus = workspace::root().join("../shared/corpus");
    let Ok(folders) = fs::read_dir(corpus) else { return Vec::new() };
    folders.filter_map(|entry| Some(entry.ok()?.path())).filter(|path| path.is_dir()).collect()
}

/// All files below a folder whose names end so, as JSON.
fn documents(folder: &Path, ending: &str, found: &mut Vec<(PathBuf, Value)>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            documents(&path, ending, found);
        } else if path.to_string_lossy().ends_with(ending)
            && let Ok(document) = serde_json::from_slice(&fs::read(&path).unwrap_or_default())
        {
            found.push((path, document));
        }
    }
}

/// What of a template a rewrite looks at.
fn values(template: &Value) -> Vec<&Value> {
    let of = |section: &str, field: &'static str| {
        template[section].as_object().into_iter().flatten().map(move |(_, item)| &item[field])
    };
    of("Resources", "Properties").chain(of("Outputs", "Value")).collect()
}

#[test]
fn a1_no_template_of_real_assemblies_names_the_storage_that_its_assets_left() {
    let (account, region) = (ACCOUNT.parse().unwrap(), REGION.parse().unwrap());
    let here = Here { account: &account, region: &region };
    let storage = Storage { bucket: OWN.into(), repository: "cdkd-images".into() };
    let names = [
        ("AWS::AccountId", ACCOUNT),
        ("AWS::Region", REGION),
        ("AWS::Partition", "aws"),
        ("AWS::URLSuffix", "amazonaws.com"),
    ];
    let constants =
        Constants { values: names.map(|(name, value)| (name.to_owned(), value.to_owned())).into() };
    let (mut templates, mut redirected) = (0, 0);
    for assembly in assemblies() {
        let (mut manifests, mut all) = (Vec::new(), Vec::new());
        documents(&assembly, ".assets.json", &mut manifests);
        documents(&assembly, ".template.json", &mut all);
        let manifests: Vec<AssetManifest> = manifests
            .iter()
            .filter_map(|(_, it)| AssetManifest::parse(it.to_string().as_bytes(), "x.assets.json").ok())
            .collect();
        let keys = keys(&manifests, here);
        let table = Table::new(&manifests, &keys, here, Some(&storage));
        for (path, template) in all {
            let mut same = template.clone();
            Table::new(&manifests, &keys, here, None).rewrite(&mut same, &constants);
            assert_eq!(same, template, "{}", path.display());

            let (mut table, mut moved) = (table.clone(), template.clone());
            let done = table.rewrite(&mut moved, &constants);
            templates += 1;
            redirected += done.changed;
            for value in values(&moved) {
                assert_eq!(table.audit(value), [], "{}", path.display());
                let text = value.to_string();
                let left = text.contains("cdk-") && text.contains("-assets-${AWS::AccountId}-${AWS::Region}");
                assert!(table.is_empty() || !left || !done.left.is_empty(), "{}: {value:#}", path.display());
            }
            // Again changes nothing.
            let before = moved.clone();
            assert_eq!(table.rewrite(&mut moved, &constants).changed, 0, "{}", path.display());
            assert_eq!(moved, before);
        }
    }
    assert!(templates == 0 || redirected > templates / 4, "{redirected} references in {templates} templates");
    println!("{redirected} references in {templates} templates");
}
