//! `exports.json`: the index of a region's exports, a hint that makes an import one look-up (seed, "Derived view").
//!
//! Nothing trusts it: an import is verified by its producer's record, a destroy reads the records. It can be rebuilt
//! from them at any time.

use serde_json::{Map, Value, json};

use crate::error::{Code, Error, Result};
use crate::name::{RecordKey, Region, StackName};
use crate::state::Record;
use crate::value::same;

/// The version that is written, and the only one that is read.
pub const INDEX_VERSION: u64 = 1;

/// `{prefix}/_index/{region}/exports.json` (DESIGN 3).
pub fn place(prefix: &str, region: &Region) -> String {
    format!("{prefix}/_index/{region}/exports.json")
}

/// The index of a region. Fields that this release does not know survive.
#[derive(Clone, Debug, PartialEq)]
pub struct Index {
    region: Region,
    document: Map<String, Value>,
}

/// Where an export is said to come from.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// In stored form.
    pub value: Value,
    pub producer: RecordKey,
    /// The `ETag` of the producer's record that the value was read from; absent means verify by reading.
    pub etag: Option<String>,
}

/// What was found at the index's place.
#[derive(Clone, Debug, PartialEq)]
pub enum Found {
    Index(Index),
    /// It does not parse: to be rebuilt from the records.
    Corrupt,
}

impl Index {
    /// An index without entries.
    pub fn new(region: &Region) -> Self {
        let mut document = Map::new();
        document.insert("indexVersion".into(), json!(INDEX_VERSION));
        document.insert("region".into(), json!(region.as_str()));
        document.insert("exports".into(), json!({}));
        Self { region: region.clone(), document }
    }

    /// Reads an index.
    ///
    /// # Errors
    /// `UnsupportedIndexVersion` for one of a newer tool: it is never rebuilt over (rule E11).
    pub fn parse(body: &[u8], region: &Region) -> Result<Found> {
        let Ok(Value::Object(document)) = serde_json::from_slice(body) else { return Ok(Found::Corrupt) };
        let version = document.get("indexVersion").unwrap_or(&Value::Null);
        if version.as_u64() != Some(INDEX_VERSION) {
            // Any number beyond, however it is written, is a newer version; anything else never was one.
            if version.as_f64().is_some_and(|version| version > 1.0) {
                return Err(Error::new(
                    Code::UnsupportedIndexVersion,
                    format!(
                        "the index of exports of {region} has version {version}; this cdkd reads {INDEX_VERSION}"
                    ),
                )
                .hint("a newer tool has written it: upgrade cdkd; the index was not touched")
                .detail("region", region.as_str()));
            }
            return Ok(Found::Corrupt);
        }
        let entries = document.get("exports").and_then(Value::as_object);
        let whole = entries.is_some_and(|entries| entries.values().all(|entry| read(entry).is_some()));
        let here = document.get("region").is_none_or(|named| named.as_str() == Some(region.as_str()));
        Ok(if whole && here {
            Found::Index(Self { region: region.clone(), document })
        } else {
            Found::Corrupt
        })
    }

    /// The index that the records of a region make, whatever their order: where several could give a name its value,
    /// a record of version 9 does, whose own the name is, before those below, and among equals the first by key.
    /// Records of other regions are passed over; each comes with its `ETag`, if that is known.
    pub fn rebuild<'r>(
        region: &Region,
        records: impl IntoIterator<Item = (&'r RecordKey, &'r Record, Option<&'r str>)>,
    ) -> Self {
        let mut records: Vec<_> = records.into_iter().filter(|(key, ..)| key.region == *region).collect();
        records.sort_by(|(a, old, _), (b, new, _)| precedence(a, old).cmp(&precedence(b, new)));
        let mut index = Self::new(region);
        for (key, record, etag) in records {
            for (name, value) in record.importable() {
                if index.lookup(&name).is_none() {
                    let etag = etag.map(str::to_owned);
                    index.patch(&name, &Entry { value, producer: key.clone(), etag });
                }
            }
        }
        index.sort();
        index
    }

    /// The document as it is stored: 2-space JSON.
    pub fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec_pretty(&self.document).unwrap_or_default()
    }

    pub fn region(&self) -> &Region {
        &self.region
    }

    pub fn lookup(&self, name: &str) -> Option<Entry> {
        let entry = read(self.exports()?.get(name)?)?;
        // Imports are of their own region (rule E32); an entry that says otherwise is none.
        (entry.producer.region == self.region).then_some(entry)
    }

    /// The names, in order of the document.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.exports().into_iter().flatten().map(|(name, _)| name.as_str())
    }

    /// Makes the entries of a stack those of its record: what it no longer exports goes, the rest is added or changed.
    ///
    /// An export of a record of version 9 is its stack's own and takes the name from any other entry; a record below
    /// owns no name and takes none that is taken (rules E1, E4). So either order ends the same.
    pub fn update_for_stack(&mut self, key: &RecordKey, record: &Record, etag: Option<&str>) {
        if key.region != self.region {
            return;
        }
        let exports = record.importable();
        self.retain(|name, entry| entry.producer != *key || exports.contains_key(name));
        for (name, value) in exports {
            let holder = self.lookup(&name).map(|entry| entry.producer);
            if holder.is_none_or(|holder| holder == *key || record.says_exports()) {
                self.patch(&name, &Entry { value, producer: key.clone(), etag: etag.map(str::to_owned) });
            }
        }
    }

    /// Drops the entries of a stack that is gone.
    pub fn remove_for_stack(&mut self, key: &RecordKey) {
        self.retain(|_, entry| entry.producer != *key);
    }

    /// Sets one entry; its unknown fields survive while it stays with its producer.
    pub fn patch(&mut self, name: &str, entry: &Entry) {
        let exports = self.document.entry("exports").or_insert_with(|| json!({}));
        let Some(exports) = exports.as_object_mut() else { return };
        let known =
            exports.get(name).filter(|known| read(known).is_some_and(|it| it.producer == entry.producer));
        let mut fields = known.and_then(Value::as_object).cloned().unwrap_or_default();
        fields.insert("value".into(), entry.value.clone());
        fields.insert("producerStack".into(), json!(entry.producer.stack.as_str()));
        fields.insert("producerRegion".into(), json!(entry.producer.region.as_str()));
        match &entry.etag {
            Some(etag) => {
                fields.insert("producerEtag".into(), json!(etag));
            }
            None => {
                fields.shift_remove("producerEtag");
            }
        }
        exports.insert(name.to_owned(), Value::Object(fields));
    }

    /// Drops an entry that was found to be false.
    pub fn forget(&mut self, name: &str) {
        if let Some(exports) = self.document.get_mut("exports").and_then(Value::as_object_mut) {
            exports.shift_remove(name);
        }
    }

    /// Stamps the write, milliseconds since 1970.
    pub fn touch(&mut self, now: i64) {
        self.document.insert("lastModified".into(), json!(now));
    }

    /// Whether both say the same, whatever the order of keys and the time of the last write: then nothing is written
    /// (rule E6).
    pub fn says_the_same(&self, other: &Self) -> bool {
        let without = |index: &Self| {
            let mut document = index.document.clone();
            document.shift_remove("lastModified");
            Value::Object(document)
        };
        same(&without(self), &without(other))
    }

    fn exports(&self) -> Option<&Map<String, Value>> {
        self.document.get("exports").and_then(Value::as_object)
    }

    fn retain(&mut self, mut keep: impl FnMut(&str, &Entry) -> bool) {
        if let Some(exports) = self.document.get_mut("exports").and_then(Value::as_object_mut) {
            exports.retain(|name, entry| read(entry).is_none_or(|entry| keep(name, &entry)));
        }
    }

    fn sort(&mut self) {
        if let Some(exports) = self.document.get_mut("exports").and_then(Value::as_object_mut) {
            exports.sort_keys();
        }
    }
}

/// Which of several records gives a name its value: one of version 9, whose own the name is, before those below; among
/// equals the first by key. The scan of a missed import and the rebuilt index agree by it.
pub(super) fn precedence<'r>(key: &'r RecordKey, record: &Record) -> (bool, &'r RecordKey) {
    (!record.says_exports(), key)
}

fn read(entry: &Value) -> Option<Entry> {
    let stack: StackName = entry.get("producerStack")?.as_str()?.parse().ok()?;
    let region: Region = entry.get("producerRegion")?.as_str()?.parse().ok()?;
    Some(Entry {
        value: entry.get("value")?.clone(),
        producer: RecordKey::new(stack, region),
        etag: entry.get("producerEtag").and_then(Value::as_str).map(str::to_owned),
    })
}

#[cfg(test)]
mod tests {
    use super::super::testing::{key, producer, record, record_of};
    use super::*;
    use proptest::prelude::*;

    fn region() -> Region {
        "us-east-1".parse().unwrap()
    }

    fn parsed(document: &Value) -> Result<Found> {
        Index::parse(document.to_string().as_bytes(), &region())
    }

    fn index(document: &Value) -> Index {
        let Found::Index(index) = parsed(document).unwrap() else { panic!("an index") };
        index
    }

    /// `name<stack` of each entry.
    fn entries(index: &Index) -> String {
        let list: Vec<_> = index
            .names()
            .filter_map(|name| Some(format!("{name}<{}", index.lookup(name)?.producer.stack)))
            .collect();
        list.join(" ")
    }

    const SEED: &str = r#"{
  "indexVersion": 1,
  "region": "us-east-1",
  "exports": {
    "BucketArn": {
      "value": "arn:aws:s3:::my-bucket",
      "producerStack": "Producer",
      "producerRegion": "us-east-1",
      "future": 1.10
    }
  },
  "unknown": null,
  "lastModified": 1234567890
}"#;

    #[test]
    fn an_index_of_the_command_line_tool_is_kept_to_the_byte() {
        let Found::Index(mut index) = Index::parse(SEED.as_bytes(), &region()).unwrap() else { panic!() };
        assert_eq!(String::from_utf8(index.to_bytes()).unwrap(), SEED);
        let entry = index.lookup("BucketArn").unwrap();
        assert_eq!((entry.producer, entry.etag), (key("Producer"), None));
        // Saying the same of the same producer keeps the unknown field; another producer's entry is another entry.
        let again = record(
            "Producer",
            json!({"outputs": {"BucketArn": "arn:aws:s3:::my-bucket"}, "exportNames": ["BucketArn"]}),
        );
        index.update_for_stack(&key("Producer"), &again, None);
        assert_eq!(String::from_utf8(index.to_bytes()).unwrap(), SEED);
        index.update_for_stack(&key("Other"), &again, Some("\"e\""));
        let body = String::from_utf8(index.to_bytes()).unwrap();
        assert!(!body.contains("future") && body.contains("\"producerEtag\": \"\\\"e\\\"\""), "{body}");
    }

    #[test]
    fn e11_a_newer_index_is_refused_and_never_rebuilt_over() {
        for version in [json!(99), json!(2), json!(1.5), json!(1e40)] {
            let error = parsed(&json!({"indexVersion": version, "exports": []})).unwrap_err();
            assert_eq!(error.code(), Code::UnsupportedIndexVersion);
            assert!(error.message().contains("us-east-1"), "{error}");
        }
    }

    #[test]
    fn what_does_not_parse_is_corrupt() {
        for body in ["", "{", "[]", "{}", r#"{"indexVersion": 0, "exports": {}}"#, r#"{"indexVersion": 1}"#] {
            assert_eq!(Index::parse(body.as_bytes(), &region()).unwrap(), Found::Corrupt, "{body}");
        }
        for exports in [
            json!([]),
            json!({"X": null}),
            json!({"X": {"value": 1, "producerStack": "P"}}),
            json!({"X": {"value": 1, "producerStack": "", "producerRegion": "us-east-1"}}),
        ] {
            assert_eq!(parsed(&json!({"indexVersion": 1, "exports": exports})).unwrap(), Found::Corrupt);
        }
        let elsewhere = json!({"indexVersion": 1, "region": "eu-west-1", "exports": {}});
        assert_eq!(parsed(&elsewhere).unwrap(), Found::Corrupt);
    }

    #[test]
    fn e6_an_export_comes_and_goes_and_reordered_keys_are_no_change() {
        let mut index = Index::new(&region());
        index.touch(1);
        let empty = index.clone();
        index.update_for_stack(&key("P"), &producer("P", &["X", "Y"]), None);
        assert_eq!(entries(&index), "X<P Y<P");
        let mut other = Index::new(&region());
        other.update_for_stack(&key("P"), &producer("P", &["Y", "X"]), None);
        other.touch(2);
        assert!(index.says_the_same(&other) && !index.says_the_same(&empty));
        index.update_for_stack(&key("P"), &producer("P", &[]), None);
        assert!(index.says_the_same(&empty));
    }

    #[test]
    fn e1_an_export_of_version_9_has_the_name_in_either_order() {
        // `Stg` has a plain output of the name, once on a record below version 9 and once on one of it.
        let plain = json!({"outputs": {"VpcId": "plain"}});
        let prod = record("Prod", json!({"outputs": {"VpcId": "exported"}, "exportNames": ["VpcId"]}));
        for stg in [record_of(8, "Stg", plain.clone()), record("Stg", plain.clone())] {
            let stacks = [(key("Stg"), &stg), (key("Prod"), &prod)];
            for order in [[0, 1], [1, 0]] {
                let mut index = Index::new(&region());
                for at in order {
                    index.update_for_stack(&stacks[at].0, stacks[at].1, None);
                }
                assert_eq!(index.lookup("VpcId").unwrap().value, "exported");
                let rebuilt = Index::rebuild(&region(), order.map(|at| (&stacks[at].0, stacks[at].1, None)));
                assert!(rebuilt.says_the_same(&index));
            }
        }
        let mut alone = Index::new(&region());
        alone.update_for_stack(&key("Stg"), &record("Stg", plain), None);
        assert_eq!(alone.lookup("VpcId"), None, "no such export");
    }

    #[test]
    fn a_record_below_version_9_is_indexed_from_all_outputs_and_takes_no_name() {
        let mut index = Index::new(&region());
        index.update_for_stack(&key("A"), &record_of(8, "A", json!({"outputs": {"X": 0, "Y": false}})), None);
        index.update_for_stack(&key("B"), &record_of(8, "B", json!({"outputs": {"X": 1}})), None);
        assert_eq!(entries(&index), "X<A Y<A");
        assert_eq!(index.lookup("X").unwrap().value, 0);
    }

    #[test]
    fn what_a_destroyed_stack_held_goes() {
        let mut index = Index::new(&region());
        index.update_for_stack(&key("A"), &producer("A", &["X"]), None);
        index.update_for_stack(&key("B"), &producer("B", &["Y"]), None);
        index.remove_for_stack(&key("A"));
        assert_eq!(entries(&index), "Y<B");
        // E26: neither is what is being withdrawn in it.
        let mut half = producer("B", &["Y"]);
        super::super::handshake::withdraw_all(&mut half);
        index.update_for_stack(&key("B"), &half, None);
        assert_eq!(entries(&index), "");
    }

    #[test]
    fn e32_another_region_is_not_served_nor_indexed() {
        let entry = json!({"value": "v", "producerStack": "P", "producerRegion": "eu-west-1"});
        let index = index(&json!({"indexVersion": 1, "exports": {"X": entry}}));
        assert_eq!(index.lookup("X"), None);
        let far = RecordKey::parse("P", "eu-west-1").unwrap();
        let mut own = Index::new(&region());
        own.update_for_stack(&far, &producer("P", &["X"]), None);
        let rebuilt = Index::rebuild(&region(), [(&far, &producer("P", &["X"]), None)]);
        assert_eq!((entries(&own), entries(&rebuilt)), (String::new(), String::new()));
    }

    proptest! {
        /// E10: the index that records make does not depend on the order in which they are read.
        #[test]
        fn e10_a_rebuilt_index_is_the_same_whatever_the_order(
            exports in proptest::collection::vec((8_u64..=9, proptest::collection::vec("[X-Z]", 0..3)), 1..6),
            seed in any::<u64>(),
        ) {
            let records: Vec<(RecordKey, Record)> = exports
                .iter()
                .enumerate()
                .map(|(at, (version, names))| {
                    let stack = format!("S{at}");
                    let outputs: Map<String, Value> = names.iter().map(|name| (name.clone(), json!(stack))).collect();
                    let fields = json!({"outputs": outputs, "exportNames": names});
                    (key(&stack), record_of(*version, &stack, fields))
                })
                .collect();
            let mut shuffled: Vec<_> = records.iter().collect();
            let turn = usize::try_from(seed % 7).unwrap_or(0) % shuffled.len();
            shuffled.rotate_left(turn);
            if seed % 2 == 0 {
                shuffled.reverse();
            }
            let one = Index::rebuild(&region(), records.iter().map(|(key, record)| (key, record, None)));
            let two = Index::rebuild(&region(), shuffled.into_iter().map(|(key, record)| (key, record, None)));
            prop_assert_eq!(one.to_bytes(), two.to_bytes());
        }
    }
}
