//! Who refers to whom: the references of a whole estate, for people and their tools.

use serde_json::{Value, json};

use crate::error::{Code, Error, Result};
use crate::name::RecordKey;
use crate::state::{Import, OutputRead, Record};

use super::scan::cannot_say;

/// `{stacks: [{stack, region, imports: [{export, stack, region}], outputReads: [{output, stack, region}], exports:
/// [name]}], warnings: [text]}` in order of the records.
///
/// Imports protect what they name, output reads do not. The names are those that others may import now.
///
/// # Errors
/// `StrongReferenceScanIncomplete` naming a record that cannot be read: a picture without it would look complete.
pub fn of<'r>(
    records: impl IntoIterator<Item = (&'r RecordKey, Result<&'r Record, &'r Error>)>,
) -> Result<Value> {
    let mut stacks = Vec::new();
    let mut silent = Vec::new();
    for (key, record) in records {
        let unreadable = |error: &Error| {
            Error::new(
                Code::StrongReferenceScanIncomplete,
                format!("what {key} refers to cannot be told: {}", error.message()),
            )
            .hint("repair the record, from an earlier version of the object if need be")
            .detail("stack", key.stack.as_str())
            .detail("region", key.region.as_str())
        };
        let record = record.map_err(unreadable)?;
        let imports = record.reads::<Import>().map_err(|error| unreadable(&error))?;
        let imports: Vec<Value> = imports
            .iter()
            .map(|it| json!({ "export": it.export_name, "stack": it.source_stack, "region": it.source_region }))
            .collect();
        let reads = record.reads::<OutputRead>().map_err(|error| unreadable(&error))?;
        let reads: Vec<Value> = reads
            .iter()
            .map(|it| json!({ "output": it.output_name, "stack": it.source_stack, "region": it.source_region }))
            .collect();
        let exports: Vec<String> = record.importable().keys().cloned().collect();
        if !record.says_imports() {
            silent.push(key.clone());
        }
        stacks.push(json!({
            "stack": key.stack.as_str(),
            "region": key.region.as_str(),
            "imports": imports,
            "outputReads": reads,
            "exports": exports,
        }));
    }
    let warnings: Vec<String> = cannot_say("what these import", &silent).into_iter().collect();
    Ok(json!({ "stacks": stacks, "warnings": warnings }))
}

#[cfg(test)]
mod tests {
    use super::super::testing::{consumer, key, producer, record, record_of};
    use super::*;

    #[test]
    fn imports_reads_and_exports_of_every_stack() {
        let reader = record(
            "R",
            json!({ "outputReads": [{"sourceStack": "P", "sourceRegion": "eu-west-1", "outputName": "O"}] }),
        );
        let records = [
            (key("C"), consumer("C", &[("X", "P")])),
            (key("P"), producer("P", &["X", "Y"])),
            (key("R"), reader),
        ];
        let picture = of(records.iter().map(|(key, record)| (key, Ok(record)))).unwrap();
        let expected = json!({
            "stacks": [
                {"stack": "C", "region": "us-east-1", "imports": [{"export": "X", "stack": "P", "region": "us-east-1"}],
                 "outputReads": [], "exports": []},
                {"stack": "P", "region": "us-east-1", "imports": [], "outputReads": [], "exports": ["X", "Y"]},
                {"stack": "R", "region": "us-east-1", "imports": [],
                 "outputReads": [{"output": "O", "stack": "P", "region": "eu-west-1"}], "exports": []},
            ],
            "warnings": [],
        });
        assert_eq!(picture, expected);
    }

    #[test]
    fn e21_a_record_that_cannot_be_read_makes_no_picture() {
        let broken = Record::parse(b"{", &key("C")).unwrap_err();
        let error = of([(&key("C"), Err(&broken))]).unwrap_err();
        assert_eq!(error.code(), Code::StrongReferenceScanIncomplete);
        assert!(error.message().contains("C (us-east-1)"), "{error}");
        let odd = record("C", json!({ "outputReads": [{}] }));
        let error = of([(&key("C"), Ok(&odd))]).unwrap_err();
        assert_eq!(error.code(), Code::StrongReferenceScanIncomplete);
    }

    #[test]
    fn e35_records_that_cannot_say_are_named() {
        let old = record_of(3, "Old", json!({}));
        let picture = of([(&key("Old"), Ok(&old))]).unwrap();
        assert!(picture["warnings"][0].as_str().unwrap().ends_with("Old (us-east-1)"), "{picture}");
    }
}
