//! The scan for consumers, before anything that they import is taken away (seed, "Strong-reference scan at destroy").
//!
//! It trusts records alone and fails closed: a record that cannot be read, or a live lock of another tool, may hide a
//! consumer.

use std::collections::BTreeSet;

use indexmap::IndexMap;
use serde_json::json;

use super::exports::{Why, Withdrawal};
use super::handshake::is_within;
use super::{abridged, quoted};
use crate::error::{Code, Error, Kind, Result};
use crate::name::RecordKey;
use crate::state::lock::{Lock, SKEW};
use crate::state::{CfnImport, Import, Record};

/// How many consumers an error names; a run's history takes no more than 256 KB.
const NAMED: usize = 200;

/// Who imports.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Consumer {
    pub key: RecordKey,
    pub export: String,
}

/// What a scan found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scan {
    /// In order of their keys.
    pub consumers: Vec<Consumer>,
    /// Records below version 4 in the producer's region: they cannot say what they import, and the answer of the run
    /// names them (rule E35).
    pub cannot_say: Vec<RecordKey>,
}

/// Finds who imports from a stack or one nested in it: any export, or one of `exports`. Records of that same tree are
/// no consumers: they go with it (rule E27).
///
/// An import that was answered by CloudFormation counts where the stack exports that name.
///
/// # Errors
/// `StrongReferenceScanIncomplete` naming the record that cannot be read (rule E21).
pub fn consumers<'r>(
    producer: &RecordKey,
    exports: Option<&[String]>,
    records: impl IntoIterator<Item = (&'r RecordKey, Result<&'r Record, &'r Error>)>,
) -> Result<Scan> {
    let mut scan = Scan::default();
    let mut found = BTreeSet::new();
    let mut weak: Vec<(&RecordKey, CfnImport)> = Vec::new();
    // Of those CloudFormation's answers are told apart by name.
    let mut owned: BTreeSet<String> = exports.into_iter().flatten().cloned().collect();
    let wanted = |name: &str| exports.is_none_or(|exports| exports.iter().any(|export| export == name));
    for (key, record) in records {
        let within = key.region == producer.region && is_within(key.stack.as_str(), &producer.stack);
        let record = record.map_err(|error| incomplete(producer, key, error.message()))?;
        if within {
            if exports.is_none() {
                owned.extend(record.importable().keys().cloned());
                owned.extend(record.withdrawing().keys().cloned());
            }
            continue;
        }
        if !record.says_imports() && key.region == producer.region {
            scan.cannot_say.push(key.clone());
        }
        let unreadable = |error: Error| incomplete(producer, key, error.message());
        for import in record.reads::<Import>().map_err(unreadable)? {
            if import.source_region.eq_ignore_ascii_case(producer.region.as_str())
                && is_within(&import.source_stack, &producer.stack)
                && wanted(&import.export_name)
            {
                found.insert(Consumer { key: key.clone(), export: import.export_name });
            }
        }
        weak.extend(record.reads::<CfnImport>().map_err(unreadable)?.into_iter().map(|it| (key, it)));
    }
    for (key, import) in weak {
        if import.source_region.eq_ignore_ascii_case(producer.region.as_str())
            && owned.contains(&import.export_name)
        {
            found.insert(Consumer { key: key.clone(), export: import.export_name });
        }
    }
    scan.consumers = found.into_iter().collect();
    scan.cannot_say.sort();
    Ok(scan)
}

impl Scan {
    /// What is left when the stacks of a run, which stop importing or go as well, are no consumers.
    #[must_use]
    pub fn without(mut self, inside: impl Fn(&Consumer) -> bool) -> Self {
        self.consumers.retain(|consumer| !inside(consumer));
        self
    }

    /// The exports that such stacks import.
    pub fn exports_within(&self, inside: impl Fn(&Consumer) -> bool) -> BTreeSet<String> {
        self.consumers
            .iter()
            .filter(|consumer| inside(consumer))
            .map(|consumer| consumer.export.clone())
            .collect()
    }

    /// The warning that names records which cannot say what they import.
    pub fn warning(&self, producer: &RecordKey) -> Option<String> {
        cannot_say(&format!("whether these import from {producer}"), &self.cannot_say)
    }

    /// The consumers, each with what it imports.
    fn by_consumer(&self) -> IndexMap<&RecordKey, Vec<&str>> {
        let mut map: IndexMap<&RecordKey, Vec<&str>> = IndexMap::new();
        for consumer in &self.consumers {
            map.entry(&consumer.key).or_default().push(&consumer.export);
        }
        map
    }
}

/// The warning that names records below version 4, if there are any. `what`: "what these import".
pub(super) fn cannot_say(what: &str, records: &[RecordKey]) -> Option<String> {
    let names: Vec<String> = records.iter().map(ToString::to_string).collect();
    (!names.is_empty()).then(|| {
        let names = abridged(&names, 20, ", ");
        format!("{what} is not on record, since they were last deployed before version 4: {names}")
    })
}

/// What a run was about to do.
#[derive(Clone, Copy, Debug)]
pub enum Intent<'a> {
    Destroy,
    /// A deploy that takes these exports away; none where someone only asks.
    Withdraw(&'a [Withdrawal]),
}

/// The refusal: every consumer, region and export, and the two ways out. There is no way to force it (seed, "Why no
/// --force escape hatch").
///
/// # Errors
/// `StackHasActiveImportsError` if the scan found consumers.
pub fn refuse(producer: &RecordKey, scan: &Scan, intent: Intent<'_>) -> Result<()> {
    if scan.consumers.is_empty() {
        return Ok(());
    }
    let consumers = scan.by_consumer();
    let list: Vec<String> = consumers
        .iter()
        .map(|(key, exports)| format!("{key} imports {}", quoted(exports.iter().copied())))
        .collect();
    let list = abridged(&list, NAMED, "; ");
    let stacks: Vec<String> = consumers.keys().map(|key| format!("\"{}\"", key.stack)).collect();
    let stacks = abridged(&stacks, 10, ", ");
    let regions: BTreeSet<&str> = consumers.keys().map(|key| key.region.as_str()).collect();
    let regions = regions.into_iter().collect::<Vec<_>>().join(" or ");
    let message = match intent {
        Intent::Destroy => format!("{producer} cannot be destroyed while others import from it: {list}"),
        Intent::Withdraw(withdrawals) => {
            let gone: Vec<String> = withdrawals
                .iter()
                .filter(|gone| scan.consumers.iter().any(|consumer| consumer.export == gone.name))
                .map(|gone| match &gone.why {
                    Why::NotExported => format!("`{}` is no longer exported", gone.name),
                    Why::Names(id) => {
                        format!("`{}` names `{id}`, which is replaced or deleted", gone.name)
                    }
                    Why::Named(id) => format!(
                        "`{}` had a value before that names `{id}`, which is to be deleted; some may hold it still",
                        gone.name
                    ),
                })
                .collect();
            let why = abridged(&gone, NAMED, "; ");
            let why = if why.is_empty() { why } else { format!(" ({why})") };
            format!("{producer} cannot take away what others import: {list}{why}")
        }
    };
    let mut hint = format!(
        "either destroy the consumers first: `cdkd-destroy` with {{\"stacks\": [{stacks}], \"region\": \"{regions}\"}}; \
         or remove their `Fn::ImportValue`, deploy them with `cdkd-deploy`, and start this execution again"
    );
    if let Intent::Withdraw(_) = intent {
        hint.push_str(
            " (a consumer that stops importing, or is to get the new value, may be deployed in the same execution)",
        );
    }
    hint.push_str(". There is no way to force it; `Fn::GetStackOutput` reads without protecting");
    let details: Vec<_> = scan
        .consumers
        .iter()
        .take(NAMED)
        .map(|consumer| {
            json!({
                "stack": consumer.key.stack.as_str(),
                "region": consumer.key.region.as_str(),
                "export": consumer.export,
            })
        })
        .collect();
    Err(Error::new(Code::StackHasActiveImportsError, message)
        .hint(hint)
        .detail("stack", producer.stack.as_str())
        .detail("region", producer.region.as_str())
        .detail("consumers", details)
        .detail("count", scan.consumers.len()))
}

/// One refusal of all that refuse the stacks of a run, whose message tells every one of them.
///
/// # Errors
/// The first, with the others in its words; what may pass by itself alone, since then the whole is tried again.
pub fn together(mut errors: Vec<Error>) -> Result<()> {
    if let Some(passing) = errors.iter().find(|error| error.kind() == Kind::Retryable) {
        return Err(passing.clone());
    }
    if errors.len() < 2 {
        return errors.pop().map_or(Ok(()), Err);
    }
    let messages: Vec<String> = errors.iter().map(|error| error.message().to_owned()).collect();
    let Some(first) = errors.first() else { return Ok(()) };
    let mut whole = Error::new(first.code(), abridged(&messages, 20, "; "));
    if let Some(hint) = first.hint_text() {
        whole = whole.hint(hint);
    }
    let lists = |field: &str| -> Vec<serde_json::Value> {
        let lists = errors.iter().filter_map(|error| error.details().get(field)?.as_array());
        lists.flatten().take(NAMED).cloned().collect()
    };
    let consumers = lists("consumers");
    if !consumers.is_empty() {
        whole = whole.detail("consumers", consumers);
    }
    Err(whole.detail("errors", errors.iter().take(20).map(Error::cause).collect::<Vec<_>>()))
}

/// Looks at the locks of an estate: another tool that is at work may be about to record an import.
///
/// # Errors
/// `StrongReferenceScanIncomplete` naming the lock of a tool that is not this one, or one that cannot be read. A lock
/// that has run out is none.
pub fn look_at_locks<'r>(
    producer: &RecordKey,
    locks: impl IntoIterator<Item = (&'r RecordKey, Result<&'r Lock, &'r Error>)>,
    now: i64,
) -> Result<()> {
    for (key, lock) in locks {
        let lock = lock.map_err(|error| incomplete(producer, key, error.message()))?;
        if key == producer || lock.execution().is_some() || now > lock.expires_at() + SKEW {
            continue;
        }
        return Err(incomplete(
            producer,
            key,
            &format!("`{}`, another tool, is at work on {key}", lock.owner()),
        )
        .hint("start the execution again once that tool is done"));
    }
    Ok(())
}

fn incomplete(producer: &RecordKey, key: &RecordKey, why: &str) -> Error {
    Error::new(
        Code::StrongReferenceScanIncomplete,
        format!("whether {key} imports from {producer} cannot be told: {why}"),
    )
    .hint(
        "repair the record, from an earlier version of the object if need be, and start the execution again",
    )
    .detail("stack", key.stack.as_str())
    .detail("region", key.region.as_str())
    .detail("producer", producer.stack.as_str())
}

#[cfg(test)]
mod tests {
    use super::super::handshake::withdraw_all;
    use super::super::testing::{consumer, key, producer, record, record_of};
    use super::*;
    use crate::state::lock::{HOLDS_FOR, Holder};

    fn scanned(
        producer: &RecordKey,
        exports: Option<&[String]>,
        records: &[(RecordKey, Record)],
    ) -> Result<Scan> {
        consumers(producer, exports, records.iter().map(|(key, record)| (key, Ok(record))))
    }

    fn told(scan: &Scan) -> String {
        let list: Vec<_> =
            scan.consumers.iter().map(|it| format!("{}<{}", it.key.stack, it.export)).collect();
        list.join(" ")
    }

    #[test]
    fn who_imports() {
        let far = RecordKey::parse("Far", "eu-west-1").unwrap();
        let records = [
            (key("P"), producer("P", &["X", "Y"])),
            (key("C2"), consumer("C2", &[("Y", "P"), ("X", "P"), ("X", "P")])),
            (key("C1"), consumer("C1", &[("X", "P"), ("X", "P2"), ("Z", "Q")])),
            (key("Self"), consumer("Self", &[])),
            // Imports are of their own region, but a record that says otherwise is believed.
            (far, consumer("Far", &[("X", "P")])),
        ];
        let table: [(Option<&[&str]>, &str); 4] =
            [(None, "C1<X C2<X C2<Y Far<X"), (Some(&["Y"]), "C2<Y"), (Some(&["Nope"]), ""), (Some(&[]), "")];
        for (exports, expected) in table {
            let exports: Option<Vec<String>> =
                exports.map(|names| names.iter().map(|name| (*name).to_owned()).collect());
            let scan = scanned(&key("P"), exports.as_deref(), &records).unwrap();
            assert_eq!(told(&scan), expected, "{exports:?}");
        }
        // The same name exported in another region is another export.
        let elsewhere = RecordKey::parse("P", "eu-west-1").unwrap();
        assert_eq!(told(&scanned(&elsewhere, None, &records).unwrap()), "");
    }

    #[test]
    fn e12_a_chain_names_consumer_and_export() {
        let mut b = consumer("B", &[("A-X", "A")]);
        super::super::handshake::publish(
            &mut b,
            &super::super::exports::Published {
                outputs: json!({"B-X": "v"}).as_object().cloned().unwrap(),
                export_names: vec!["B-X".into()],
                warnings: vec![],
            },
            [],
        );
        let chain =
            [(key("A"), producer("A", &["A-X"])), (key("B"), b), (key("C"), consumer("C", &[("B-X", "B")]))];
        for (stack, expected) in [("A", "B<A-X"), ("B", "C<B-X"), ("C", "")] {
            assert_eq!(told(&scanned(&key(stack), None, &chain).unwrap()), expected);
        }
    }

    #[test]
    fn e27_a_nested_producer_is_protected_and_consumers_inside_its_tree_do_not_block() {
        let records = [
            (key("P"), producer("P", &[])),
            (key("P~Child"), producer("P~Child", &["X"])),
            (key("P~Other"), consumer("P~Other", &[("X", "P~Child")])),
            (key("P2"), consumer("P2", &[("X", "P~Child")])),
        ];
        assert_eq!(told(&scanned(&key("P"), None, &records).unwrap()), "P2<X");
        // The child alone goes: what stays of the tree is protected.
        assert_eq!(told(&scanned(&key("P~Child"), None, &records).unwrap()), "P2<X P~Other<X");
    }

    #[test]
    fn e21_a_record_that_cannot_be_read_fails_the_scan_closed() {
        let broken = Record::parse(b"{", &key("C")).unwrap_err();
        let (p, c) = (key("P"), key("C"));
        let good = producer("P", &["X"]);
        let error = consumers(&p, None, [(&p, Ok(&good)), (&c, Err(&broken))]).unwrap_err();
        assert_eq!(error.code(), Code::StrongReferenceScanIncomplete);
        assert!(
            error.message().contains("C (us-east-1)") && error.message().contains("is not JSON"),
            "{error}"
        );
        assert_eq!(error.details()["stack"], "C");

        let odd = record("C", json!({"imports": [{"exportName": "X"}]}));
        let error = scanned(&p, None, &[(c, odd)]).unwrap_err();
        assert_eq!(error.code(), Code::StrongReferenceScanIncomplete);
    }

    #[test]
    fn e35_records_below_version_4_are_named() {
        let far = RecordKey::parse("Far", "eu-west-1").unwrap();
        let records = [
            (key("V3"), record_of(3, "V3", json!({}))),
            (key("V1"), record_of(1, "V1", json!({}))),
            (key("V4"), record_of(4, "V4", json!({}))),
            (far, record_of(3, "Far", json!({}))),
        ];
        let scan = scanned(&key("P"), None, &records).unwrap();
        assert_eq!(scan.cannot_say, [key("V1"), key("V3")]);
        assert!(scan.consumers.is_empty());
        assert!(scan.warning(&key("P")).unwrap().ends_with("version 4: V1 (us-east-1), V3 (us-east-1)"));
        assert_eq!(Scan::default().warning(&key("P")), None);
    }

    #[test]
    fn an_import_from_cloudformation_is_strong_once_a_record_exports_the_name() {
        let cfn = record("C", json!({"cfnImports": [{"exportName": "X", "sourceRegion": "us-east-1"}]}));
        let mut withdrawing = producer("P", &["X"]);
        withdraw_all(&mut withdrawing);
        let x = ["X".to_owned()];
        let table = [
            (producer("P", &["X"]), None, "C<X"),
            (withdrawing, None, "C<X"),
            (producer("P", &["Y"]), None, ""),
            (producer("P", &["X", "Y"]), Some(&x[..]), "C<X"),
        ];
        for (record, exports, expected) in table {
            // The consumer is met before the producer.
            let records = [(key("C"), cfn.clone()), (key("P"), record)];
            assert_eq!(told(&scanned(&key("P"), exports, &records).unwrap()), expected);
        }
    }

    #[test]
    fn the_refusal_names_every_consumer_and_both_ways_out() {
        let records = [
            (key("Web"), consumer("Web", &[("X", "P"), ("Y", "P")])),
            (key("Jobs"), consumer("Jobs", &[("X", "P")])),
        ];
        let scan = scanned(&key("P"), None, &records).unwrap();
        let error = refuse(&key("P"), &scan, Intent::Destroy).unwrap_err();
        insta::assert_snapshot!(error, @r#"
        StackHasActiveImportsError: P (us-east-1) cannot be destroyed while others import from it: Jobs (us-east-1) imports `X`; Web (us-east-1) imports `X`, `Y`
        hint: either destroy the consumers first: `cdkd-destroy` with {"stacks": ["Jobs", "Web"], "region": "us-east-1"}; or remove their `Fn::ImportValue`, deploy them with `cdkd-deploy`, and start this execution again. There is no way to force it; `Fn::GetStackOutput` reads without protecting
        "#);
        assert_eq!(
            error.details()["consumers"][2],
            json!({"stack": "Web", "region": "us-east-1", "export": "Y"})
        );

        let withdrawn = [
            Withdrawal { name: "X".into(), why: Why::NotExported },
            Withdrawal { name: "Y".into(), why: Why::Names("Queue".into()) },
            Withdrawal { name: "Z".into(), why: Why::NotExported },
        ];
        let error = refuse(&key("P"), &scan, Intent::Withdraw(&withdrawn)).unwrap_err();
        insta::assert_snapshot!(error.message(), @"P (us-east-1) cannot take away what others import: Jobs (us-east-1) imports `X`; Web (us-east-1) imports `X`, `Y` (`X` is no longer exported; `Y` names `Queue`, which is replaced or deleted)");
        assert!(error.hint_text().unwrap().contains("in the same execution"));

        let none = scan.without(|_| true);
        assert_eq!(refuse(&key("P"), &none, Intent::Destroy), Ok(()));
    }

    #[test]
    fn e15_consumers_of_the_run_are_told_apart() {
        let records =
            [(key("In"), consumer("In", &[("X", "P")])), (key("Out"), consumer("Out", &[("X", "P")]))];
        let scan = scanned(&key("P"), None, &records).unwrap();
        let inside = |consumer: &Consumer| consumer.key == key("In");
        assert_eq!(scan.exports_within(inside), ["X".to_owned()].into());
        assert_eq!(told(&scan.without(inside)), "Out<X");
    }

    #[test]
    fn e15_one_refusal_tells_what_every_stack_of_the_run_may_not_take_away() {
        let records = [(key("C"), consumer("C", &[("X", "P"), ("Y", "Q")]))];
        let refusal = |stack: &str, name: &str| {
            let gone = [Withdrawal { name: name.into(), why: Why::NotExported }];
            let scan = scanned(&key(stack), Some(&[name.to_owned()]), &records).unwrap();
            refuse(&key(stack), &scan, Intent::Withdraw(&gone)).unwrap_err()
        };
        let (p, q) = (refusal("P", "X"), refusal("Q", "Y"));
        assert_eq!(together(vec![]), Ok(()));
        assert_eq!(together(vec![p.clone()]), Err(p.clone()));
        let both = together(vec![p.clone(), q.clone()]).unwrap_err();
        assert_eq!(both.code(), Code::StackHasActiveImportsError);
        assert_eq!(both.message(), format!("{}; {}", p.message(), q.message()));
        assert_eq!(both.details()["consumers"].as_array().unwrap().len(), 2);
        let passing = Error::new(Code::Throttled, "slow down");
        assert_eq!(together(vec![p, passing.clone()]), Err(passing));
    }

    #[test]
    fn a_refusal_of_a_thousand_consumers_fits_into_a_history() {
        let records: Vec<_> = (0..1000)
            .map(|at| (key(&format!("C{at}")), consumer(&format!("C{at}"), &[("X", "P"), ("Y", "P")])))
            .collect();
        let scan = scanned(&key("P"), None, &records).unwrap();
        let error = refuse(&key("P"), &scan, Intent::Destroy).unwrap_err();
        assert!(error.message().contains("and 800 more"));
        assert_eq!(error.details()["count"], 2000);
        // Step Functions takes 32,768 characters of a cause.
        assert!(error.cause().to_string().len() < 32_768, "{}", error.cause().to_string().len());
    }

    #[test]
    fn a_live_lock_of_another_tool_fails_the_scan_closed() {
        let now = 1_796_070_352_000;
        let tool = |until: i64| {
            let body = format!(r#"{{"owner":"ann@host:12","expiresAt":{until},"operation":"deploy"}}"#);
            Lock::parse(body.as_bytes(), &key("C")).unwrap()
        };
        let ours = Lock::new(
            &Holder { execution: "arn".into(), operation: "deploy".into(), nonce: "n".into() },
            now,
        );
        let (p, c) = (key("P"), key("C"));
        let check = |lock: Result<&Lock, &Error>| look_at_locks(&p, [(&c, lock)], now);
        assert_eq!(check(Ok(&ours)), Ok(()));
        assert_eq!(check(Ok(&tool(now - SKEW - 1))), Ok(()));
        let error = check(Ok(&tool(now + HOLDS_FOR))).unwrap_err();
        assert_eq!(error.code(), Code::StrongReferenceScanIncomplete);
        assert!(
            error.message().contains("`ann@host:12`") && error.message().contains("C (us-east-1)"),
            "{error}"
        );
        let broken = Lock::parse(b"{", &c).unwrap_err();
        assert_eq!(check(Err(&broken)).unwrap_err().code(), Code::StrongReferenceScanIncomplete);
    }
}
