//! The lists `imports`, `outputReads` and `cfnImports` of every save: the one place that decides them.
//!
//! They never lose an entry while a resource may still be built on it. A list that is too long refuses a destroy that
//! would be safe; one that is too short deletes a producer under a live consumer (seed, "A FAILED consumer deploy").

use std::collections::BTreeSet;

use serde_json::Value;

use crate::error::Result;
use crate::state::{CfnImport, Entry, Import, OutputRead, Record};

/// What a run reads of other stacks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reads {
    pub imports: BTreeSet<Import>,
    pub output_reads: BTreeSet<OutputRead>,
    pub cfn_imports: BTreeSet<CfnImport>,
}

impl Reads {
    /// Those on record.
    ///
    /// # Errors
    /// `InvalidState` for an element that does not have the documented form.
    pub fn of(record: &Record) -> Result<Self> {
        Ok(Self {
            imports: record.reads()?.into_iter().collect(),
            output_reads: record.reads()?.into_iter().collect(),
            cfn_imports: record.reads()?.into_iter().collect(),
        })
    }
}

/// Which save it is.
#[derive(Clone, Copy, Debug)]
pub enum Save<'a> {
    /// Any but those below: before provisioning, between slices, after a failure, after a rollback.
    Midway,
    /// The last save of a run that came to its end. `wanted` are the logical ids of its template: with anything else
    /// on record, or waiting for its delete, resources from before this template are left.
    Success { wanted: &'a BTreeSet<String> },
    /// A run that was refused before its first call, or a first deploy that was rolled back to nothing. `found` is the
    /// record as the run found it, if there was one.
    Undone { found: Option<&'a Record> },
}

/// What becomes of the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It is saved.
    Save,
    /// The run made it and leaves nothing behind: it is deleted.
    Delete,
}

/// Puts onto the record what it has to say of the stacks it reads. `now` are the reads of this run; all that earlier
/// saves of it recorded stand in `record`.
pub fn settle(record: &mut Record, now: &Reads, save: Save<'_>) -> Fate {
    match save {
        Save::Undone { found: Some(found) } => {
            restore::<Import>(record, found);
            restore::<OutputRead>(record, found);
            restore::<CfnImport>(record, found);
        }
        Save::Undone { found: None } if record.is_empty() => return Fate::Delete,
        // Something is left of the first deploy: what it was built on must stay.
        Save::Undone { found: None } | Save::Midway => unite(record, now, false),
        Save::Success { wanted } => {
            let nothing_left = record.pending_deletes().is_empty()
                && record.rows().all(|(logical_id, _)| wanted.contains(logical_id));
            unite(record, now, nothing_left);
        }
    }
    Fate::Save
}

fn unite(record: &mut Record, now: &Reads, replace: bool) {
    merge(record, &now.imports, replace);
    merge(record, &now.output_reads, replace);
    merge(record, &now.cfn_imports, replace);
}

/// Recorded entries keep their place and the fields that this release does not know, so that a list that says the same
/// is the same; new ones follow in the order of their names.
fn merge<E: Entry>(record: &mut Record, now: &BTreeSet<E>, replace: bool) {
    let mut missing: BTreeSet<&E> = now.iter().collect();
    let mut list: Vec<Value> = record
        .raw_reads::<E>()
        .into_iter()
        .filter(|raw| {
            let entry = E::from_value(raw);
            match &entry {
                Some(entry) => {
                    // Twice the same entry is once.
                    missing.remove(entry) || (!replace && !now.contains(entry))
                }
                // Of a form that is not understood: something may still be built on it.
                None => !replace,
            }
        })
        .collect();
    list.extend(missing.into_iter().map(Entry::to_value));
    record.set_raw_reads::<E>(list);
}

fn restore<E: Entry>(record: &mut Record, found: &Record) {
    record.set_raw_reads::<E>(found.raw_reads::<E>());
}

#[cfg(test)]
mod tests {
    use super::super::scan;
    use super::super::testing::{consumer, key, record};
    use super::*;
    use crate::state::{PendingDelete, Row};
    use serde_json::json;

    fn import(name: &str, source: &str) -> Import {
        Import { export_name: name.into(), source_stack: source.into(), source_region: "us-east-1".into() }
    }

    fn reads(imports: &[(&str, &str)]) -> Reads {
        Reads {
            imports: imports.iter().map(|(name, source)| import(name, source)).collect(),
            ..Reads::default()
        }
    }

    fn ids(ids: &[&str]) -> BTreeSet<String> {
        ids.iter().map(|id| (*id).to_owned()).collect()
    }

    fn imports(record: &Record) -> String {
        let list: Vec<Import> = record.reads().unwrap();
        let list: Vec<_> = list.iter().map(|it| format!("{}<{}", it.export_name, it.source_stack)).collect();
        list.join(" ")
    }

    #[test]
    fn every_save_but_the_last_of_a_success_unites() {
        let row = || Row::new("AWS::SQS::Queue", "q");
        let pending = PendingDelete { logical_id: "Old".into(), row: Row::new("AWS::SQS::Queue", "old") };
        let (one, both) = (ids(&["A"]), ids(&["A", "B"]));
        let table = [
            (Save::Midway, &[][..], false, "Old<P Kept<P New<P"),
            (Save::Success { wanted: &one }, &["A"][..], false, "Kept<P New<P"),
            (Save::Success { wanted: &both }, &["A"][..], false, "Kept<P New<P"),
            // A row that the template lacks, or a thing that waits for its delete, may be built on what was imported.
            (Save::Success { wanted: &one }, &["A", "B"][..], false, "Old<P Kept<P New<P"),
            (Save::Success { wanted: &one }, &["A"][..], true, "Old<P Kept<P New<P"),
        ];
        for (save, rows, with_pending, expected) in table {
            let mut record = consumer("C", &[("Old", "P"), ("Kept", "P")]);
            for id in rows {
                record.put_row(id, row());
            }
            if with_pending {
                record.add_pending_delete(&pending);
            }
            assert_eq!(settle(&mut record, &reads(&[("New", "P"), ("Kept", "P")]), save), Fate::Save);
            assert_eq!(imports(&record), expected, "{save:?} {rows:?}");
        }
    }

    #[test]
    fn e5_an_update_that_fails_half_way_holds_old_and_new_imports() {
        let mut record = consumer("C", &[("Old", "P")]);
        let now = reads(&[("New", "P")]);
        // Before provisioning, after the failure, after the rollback: the same every time.
        for _ in 0..3 {
            settle(&mut record, &now, Save::Midway);
        }
        assert_eq!(imports(&record), "Old<P New<P");
        let c = key("C");
        let found = scan::consumers(&key("P"), None, [(&c, Ok(&record))]).unwrap();
        assert!(scan::refuse(&key("P"), &found, scan::Intent::Destroy).is_err());
    }

    #[test]
    fn e16_a_renamed_export_replaces_the_old_name() {
        let mut record = consumer("C", &[("P:Ref1", "P")]);
        settle(&mut record, &reads(&[("P:Ref2", "P")]), Save::Success { wanted: &ids(&[]) });
        assert_eq!(imports(&record), "P:Ref2<P");
    }

    #[test]
    fn e29_the_source_follows_an_export_that_moves() {
        let mut record = consumer("C", &[("X", "P1")]);
        settle(&mut record, &reads(&[("X", "P2")]), Save::Midway);
        assert_eq!(imports(&record), "X<P1 X<P2");
        settle(&mut record, &reads(&[("X", "P2")]), Save::Success { wanted: &ids(&[]) });
        assert_eq!(imports(&record), "X<P2");
    }

    #[test]
    fn e28_a_run_that_did_nothing_leaves_the_lists_as_it_found_them() {
        let found = record(
            "C",
            json!({"imports": [
                {"exportName": "Old", "sourceStack": "P", "sourceRegion": "us-east-1", "future": 1},
            ]}),
        );
        let mut now = found.clone();
        settle(&mut now, &reads(&[("New", "P")]), Save::Midway);
        assert_ne!(now, found);
        assert_eq!(settle(&mut now, &Reads::default(), Save::Undone { found: Some(&found) }), Fate::Save);
        assert_eq!(now, found);
    }

    #[test]
    fn e28_a_first_deploy_rolled_back_to_nothing_leaves_no_record() {
        let mut first = consumer("C", &[("X", "P")]);
        let undone = Save::Undone { found: None };
        assert_eq!(settle(&mut first, &Reads::default(), undone), Fate::Delete);
        // Not to nothing: what is left keeps what it was built on.
        first.put_row("Q", Row::new("AWS::SQS::Queue", "q"));
        assert_eq!(settle(&mut first, &reads(&[("Y", "P")]), undone), Fate::Save);
        assert_eq!(imports(&first), "X<P Y<P");
    }

    #[test]
    fn e20_null_elements_go_and_unknown_fields_and_forms_stay() {
        let known = json!({"exportName": "X", "sourceStack": "P", "sourceRegion": "us-east-1", "future": 1});
        let mut now = record("C", json!({"imports": [null, known, {"other": "form"}, known]}));
        settle(&mut now, &reads(&[("X", "P")]), Save::Midway);
        assert_eq!(now.raw_reads::<Import>(), [known.clone(), json!({"other": "form"})]);
        settle(&mut now, &reads(&[("X", "P")]), Save::Success { wanted: &ids(&[]) });
        assert_eq!(now.raw_reads::<Import>(), [known]);
    }

    #[test]
    fn all_three_lists_are_decided_alike_and_empty_ones_are_omitted() {
        let read = |name: &str| OutputRead {
            source_stack: "P".into(),
            source_region: "eu-west-1".into(),
            output_name: name.into(),
        };
        let cfn = CfnImport { export_name: "V".into(), source_region: "us-east-1".into() };
        let now = Reads {
            output_reads: [read("B"), read("A")].into(),
            cfn_imports: [cfn].into(),
            ..reads(&[("X", "P")])
        };
        let mut record = record("C", json!({}));
        let before = record.clone();
        settle(&mut record, &now, Save::Midway);
        assert_eq!(Reads::of(&record).unwrap(), now);
        // Saying the same again changes nothing, not even an order.
        let same = record.clone();
        settle(&mut record, &now, Save::Success { wanted: &ids(&[]) });
        assert_eq!(record, same);
        settle(&mut record, &Reads::default(), Save::Success { wanted: &ids(&[]) });
        assert_eq!(record, before);
    }

    /// The lists of reads, and what is exported, each have one writer (DESIGN 6: "One function decides this; no other
    /// code writes those fields"). A record's document is private to the room `state`, so its setters are all there is.
    #[test]
    #[expect(clippy::disallowed_methods, reason = "the test reads the sources")]
    fn no_other_code_writes_what_is_imported_or_exported() {
        let mut folders = vec![std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src")];
        let mut files = 0;
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(&folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                } else if path.extension().is_some_and(|extension| extension == "rs") {
                    files += 1;
                    let text = std::fs::read_to_string(&path).unwrap();
                    let tests = text.find("#[cfg(test)]").unwrap_or(text.len());
                    check_writers(&path.to_string_lossy().replace('\\', "/"), &text[..tests]);
                }
            }
        }
        assert!(files > 50, "{files} sources");
    }

    fn check_writers(path: &str, text: &str) {
        const SETTERS: [(&str, &str); 6] = [
            ("set_raw_reads", "references/imports.rs"),
            ("set_export_names", "references/handshake.rs"),
            ("set_published", "references/handshake.rs"),
            ("set_withdrawing", "references/handshake.rs"),
            ("set_superseded", "references/handshake.rs"),
            ("set_claims", "references/handshake.rs"),
        ];
        if path.ends_with("state/references.rs") {
            return;
        }
        for (setter, writer) in SETTERS {
            assert!(
                !text.contains(setter) || path.ends_with(writer),
                "{path} uses `{setter}`; only {writer} may"
            );
        }
        if !path.contains("/state/") {
            return;
        }
        for field in ["imports", "outputReads", "cfnImports", "withdrawing", "superseded", "claims"] {
            for verb in ["set", "set_list", "unset", "insert", "entry", "get_mut", "shift_remove"] {
                let form = format!("{verb}(\"{field}\"");
                assert!(!text.contains(&form), "{path} writes `{field}` by `{form}`");
            }
        }
    }
}
