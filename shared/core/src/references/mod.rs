//! References between stacks: what a stack exports, what it imports, and the protocol that keeps a live consumer from
//! losing its producer (DESIGN 6; the numbered rules are those of the tests).
//!
//! The producer's side: [`exports`] tells what a template publishes and what a deploy takes away, [`handshake`] writes
//! that intent into the record, [`scan`] looks for consumers. The consumer's side: [`resolve`] finds a value,
//! [`imports`] writes the intent into the record, [`handshake`] looks a second time. [`index`] is a hint beside it all,
//! [`picture`] shows it to people.
//!
//! Nothing here reads or writes: records come in, decisions and changed records go out.

pub mod exports;
pub mod forecast;
pub mod handshake;
pub mod imports;
pub mod index;
pub mod picture;
pub mod resolve;
pub mod run;
pub mod scan;

/// Names in backticks, for messages.
fn quoted<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    let names: Vec<String> = names.into_iter().map(|name| format!("`{name}`")).collect();
    names.join(", ")
}

/// The first `most` of `parts`, and how many more there are: an error has to fit into an execution's history.
fn abridged(parts: &[String], most: usize, separator: &str) -> String {
    let mut parts = parts.to_vec();
    if parts.len() > most {
        let more = format!("and {} more", parts.len() - most);
        parts.truncate(most);
        parts.push(more);
    }
    parts.join(separator)
}

#[cfg(test)]
pub(crate) mod testing {
    //! Records to refer from and to.

    use crate::name::RecordKey;
    use crate::state::Record;
    use serde_json::{Map, Value, json};

    pub fn key(stack: &str) -> RecordKey {
        RecordKey::parse(stack, "us-east-1").unwrap()
    }

    /// A record of version 9 in us-east-1 with these further fields.
    pub fn record(stack: &str, fields: Value) -> Record {
        record_of(9, stack, fields)
    }

    pub fn record_of(version: u64, stack: &str, fields: Value) -> Record {
        let mut document = Map::new();
        document.insert("version".into(), json!(version));
        document.insert("stackName".into(), json!(stack));
        document.insert("region".into(), json!("us-east-1"));
        if let Value::Object(fields) = fields {
            document.extend(fields);
        }
        Record::parse(Value::Object(document).to_string().as_bytes(), &key(stack)).unwrap()
    }

    /// A producer that exports each name with the value `value-of-{name}`.
    pub fn producer(stack: &str, names: &[&str]) -> Record {
        let outputs: Map<String, Value> =
            names.iter().map(|name| ((*name).to_owned(), json!(format!("value-of-{name}")))).collect();
        record(stack, json!({ "outputs": outputs, "exportNames": names }))
    }

    /// A consumer of `(export, source stack)`.
    pub fn consumer(stack: &str, imports: &[(&str, &str)]) -> Record {
        let imports: Vec<Value> = imports
            .iter()
            .map(|(name, source)| json!({"exportName": name, "sourceStack": source, "sourceRegion": "us-east-1"}))
            .collect();
        record(stack, json!({ "imports": imports }))
    }
}
