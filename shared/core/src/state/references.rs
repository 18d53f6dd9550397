//! What a record says of other stacks: typed views onto `imports`, `outputReads`, `cfnImports`, `exportNames`,
//! `withdrawing`, `superseded` and `claims` (DESIGN 3 and 6).
//!
//! The lists of reads are written by [`crate::references::imports`] alone, what is exported by
//! [`crate::references::handshake`] alone; a test over the sources holds both to it.

use serde_json::{Map, Value, json};

use super::Record;
use crate::error::{Code, Error, Result};

/// The first version whose records say what they import.
const SAYS_IMPORTS: u64 = 4;

/// The first version whose records say which outputs are exports.
const SAYS_EXPORTS: u64 = 9;

/// An entry of one of the lists of reads.
pub trait Entry: Sized + Clone + Ord {
    /// The list it stands in.
    const FIELD: &'static str;

    /// Reads an element of the list; `None` if it does not have the documented form.
    fn from_value(value: &Value) -> Option<Self>;

    fn to_value(&self) -> Value;
}

/// An export that the stack was built on by `Fn::ImportValue`: strong, it protects its producer.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Import {
    pub export_name: String,
    pub source_stack: String,
    pub source_region: String,
}

/// An output that the stack was built on by `Fn::GetStackOutput`: weak, it informs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OutputRead {
    pub source_stack: String,
    pub source_region: String,
    pub output_name: String,
}

/// An export of a stack of CloudFormation: weak, until a record of that region exports the name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CfnImport {
    pub export_name: String,
    pub source_region: String,
}

fn text(value: &Value, field: &str) -> Option<String> {
    value.get(field)?.as_str().map(str::to_owned)
}

impl Entry for Import {
    const FIELD: &'static str = "imports";

    fn from_value(value: &Value) -> Option<Self> {
        Some(Self {
            export_name: text(value, "exportName")?,
            source_stack: text(value, "sourceStack")?,
            source_region: text(value, "sourceRegion")?,
        })
    }

    fn to_value(&self) -> Value {
        json!({
            "exportName": self.export_name,
            "sourceStack": self.source_stack,
            "sourceRegion": self.source_region,
        })
    }
}

impl Entry for OutputRead {
    const FIELD: &'static str = "outputReads";

    fn from_value(value: &Value) -> Option<Self> {
        Some(Self {
            source_stack: text(value, "sourceStack")?,
            source_region: text(value, "sourceRegion")?,
            output_name: text(value, "outputName")?,
        })
    }

    fn to_value(&self) -> Value {
        json!({
            "sourceStack": self.source_stack,
            "sourceRegion": self.source_region,
            "outputName": self.output_name,
        })
    }
}

impl Entry for CfnImport {
    const FIELD: &'static str = "cfnImports";

    fn from_value(value: &Value) -> Option<Self> {
        Some(Self { export_name: text(value, "exportName")?, source_region: text(value, "sourceRegion")? })
    }

    fn to_value(&self) -> Value {
        json!({ "exportName": self.export_name, "sourceRegion": self.source_region })
    }
}

impl Record {
    /// The entries of a list of reads; null elements are dropped (rule E20).
    ///
    /// # Errors
    /// `InvalidState` for an element of another form: what it would protect is not known.
    pub fn reads<E: Entry>(&self) -> Result<Vec<E>> {
        self.list(E::FIELD)
            .iter()
            .map(|entry| {
                E::from_value(entry).ok_or_else(|| {
                    let message =
                        format!("a record has an element of `{}` without the documented fields", E::FIELD);
                    Error::new(Code::InvalidState, message)
                })
            })
            .collect()
    }

    /// The elements of a list of reads as they stand, so that fields that this release does not know survive.
    pub(crate) fn raw_reads<E: Entry>(&self) -> Vec<Value> {
        self.list(E::FIELD)
    }

    /// Writes a list of reads. For [`crate::references::imports`] alone, which decides the union.
    pub(crate) fn set_raw_reads<E: Entry>(&mut self, list: Vec<Value>) {
        self.set_list(E::FIELD, list);
    }

    /// Whether the record can say what its stack imports: those below version 4 cannot (rule E35).
    pub fn says_imports(&self) -> bool {
        self.version() >= SAYS_IMPORTS || self.field(Import::FIELD).is_some_and(Value::is_array)
    }

    /// Whether the record says which of its outputs are exports; if not it owns no name.
    pub fn says_exports(&self) -> bool {
        self.version() >= SAYS_EXPORTS
    }

    /// The keys of `outputs` that are exports.
    pub fn export_names(&self) -> Vec<String> {
        self.names("exportNames")
    }

    /// For [`crate::references::handshake`] alone.
    pub(crate) fn set_export_names(&mut self, names: &[String]) {
        self.set_list("exportNames", names.iter().map(|name| json!(name)).collect());
    }

    /// For [`crate::references::handshake`] alone.
    pub(crate) fn set_published(&mut self, outputs: Map<String, Value>) {
        self.set("outputs", Value::Object(outputs));
    }

    /// Exports that a run has begun to take away, with their values; they are not served.
    pub fn withdrawing(&self) -> Map<String, Value> {
        self.field("withdrawing").and_then(Value::as_object).cloned().unwrap_or_default()
    }

    /// For [`crate::references::handshake`] alone. Absent when empty.
    pub(crate) fn set_withdrawing(&mut self, exports: Map<String, Value>) {
        if exports.is_empty() {
            self.unset("withdrawing");
        } else {
            self.set("withdrawing", Value::Object(exports));
        }
    }

    /// Earlier values of exports, each a list, oldest first: consumers may hold them still, so what they name is not
    /// deleted before a scan. They are not served.
    pub fn superseded(&self) -> Map<String, Value> {
        self.field("superseded").and_then(Value::as_object).cloned().unwrap_or_default()
    }

    /// For [`crate::references::handshake`] alone. Absent when empty.
    pub(crate) fn set_superseded(&mut self, values: Map<String, Value>) {
        if values.is_empty() {
            self.unset("superseded");
        } else {
            self.set("superseded", Value::Object(values));
        }
    }

    /// Names that a run of this stack is about to export.
    pub fn claims(&self) -> Vec<String> {
        self.names("claims")
    }

    /// For [`crate::references::handshake`] alone.
    pub(crate) fn set_claims(&mut self, names: &[String]) {
        self.set_list("claims", names.iter().map(|name| json!(name)).collect());
    }

    fn names(&self, field: &str) -> Vec<String> {
        self.list(field).iter().filter_map(|name| name.as_str().map(str::to_owned)).collect()
    }

    /// What another stack can import from this one, with its stored value: `exportNames` of what is published; of a
    /// record below version 9, which does not say, every output. Never what is being withdrawn.
    pub fn importable(&self) -> Map<String, Value> {
        let mut outputs = self.outputs();
        if self.says_exports() {
            let names = self.export_names();
            outputs.retain(|name, _| names.contains(name));
        }
        let withdrawing = self.withdrawing();
        outputs.retain(|name, _| !withdrawing.contains_key(name));
        outputs
    }

    /// The value of an export; presence counts, not truth (rule E31).
    pub fn export(&self, name: &str) -> Option<Value> {
        self.importable().shift_remove(name)
    }

    /// The names that are this stack's alone in its region: its exports, those being withdrawn, which a refused run
    /// takes back, and its claims. A record below version 9 owns none.
    pub fn owned_names(&self) -> Vec<String> {
        if !self.says_exports() {
            return self.claims();
        }
        let mut names = self.export_names();
        names.extend(self.withdrawing().keys().cloned());
        names.extend(self.claims());
        names.sort_unstable();
        names.dedup();
        names
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::name::RecordKey;

    fn record(document: &Value) -> Record {
        let key = RecordKey::parse("P", "us-east-1").unwrap();
        Record::parse(document.to_string().as_bytes(), &key).unwrap()
    }

    #[test]
    fn e20_a_null_element_is_dropped_and_another_form_is_told() {
        let import = json!({"exportName": "Vpc", "sourceStack": "Net", "sourceRegion": "us-east-1", "x": 1});
        let good = record(&json!({"version": 9, "imports": [null, import], "outputReads": null}));
        let [import] = &good.reads::<Import>().unwrap()[..] else { panic!("one import") };
        assert_eq!(import.source_stack, "Net");
        assert!(good.reads::<OutputRead>().unwrap().is_empty());
        for element in [json!(1), json!({"exportName": "Vpc"}), json!({"exportName": 1})] {
            let bad = record(&json!({"version": 9, "imports": [element]}));
            assert_eq!(bad.reads::<Import>().unwrap_err().code(), Code::InvalidState);
        }
    }

    #[test]
    fn e35_which_records_say_what_they_import() {
        assert!(!record(&json!({"version": 3})).says_imports());
        assert!(record(&json!({"version": 3, "imports": []})).says_imports());
        assert!(record(&json!({"version": 4})).says_imports());
    }

    #[test]
    fn e1_what_can_be_imported() {
        let outputs = json!({"A": "a", "B": "b", "C": 0});
        let table = [
            (json!({"version": 8, "outputs": outputs}), "A B C", ""),
            (json!({"version": 8, "outputs": outputs, "withdrawing": {"A": 1}}), "B C", ""),
            (json!({"version": 9, "outputs": outputs}), "", ""),
            (json!({"version": 9, "outputs": outputs, "exportNames": ["C", "Gone", null]}), "C", "C Gone"),
            (
                json!({"version": 9, "outputs": outputs, "exportNames": ["A"], "withdrawing": {"A": 1, "D": 1}}),
                "",
                "A D",
            ),
            (json!({"version": 9, "claims": ["Z"]}), "", "Z"),
        ];
        for (document, importable, owned) in table {
            let record = record(&document);
            assert_eq!(record.importable().keys().cloned().collect::<Vec<_>>().join(" "), importable);
            assert_eq!(record.owned_names().join(" "), owned, "{document}");
        }
    }
}
