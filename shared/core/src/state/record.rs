//! `state.json`: what is deployed, in the form of the cdkd command line tool (DESIGN 3).
//!
//! A [`Record`] is the document as read. Fields that this release does not know survive, in their place, so that an
//! estate can be shared with other tools; views onto it are typed. Numbers go back as they came.

use serde_json::{Map, Value, json};

use crate::error::{Code, Error, Result};
use crate::name::{RecordKey, Region};
use crate::value::same;

/// The schema version that is written.
pub const CURRENT_VERSION: u64 = 9;

/// A stack's record.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    document: Map<String, Value>,
}

/// One resource on record.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    fields: Map<String, Value>,
}

/// A physical resource that a replacement left behind or AWS refused to delete; a later clean-up deletes it.
#[derive(Clone, Debug, PartialEq)]
pub struct PendingDelete {
    pub logical_id: String,
    pub row: Row,
}

/// What cdkd itself remembers of a stack between deploys (the field `deploy`).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Deploy {
    /// `AWS::StackId`, made at the first begin (rule T11).
    pub stack_id: String,
    /// Whether a deploy ever succeeded; until then a run that is rolled back to nothing leaves no record.
    pub deployed: bool,
    /// Parameter values of the last deploy, in document form.
    pub parameters: Map<String, Value>,
    pub tags: Map<String, Value>,
    pub termination_protection: bool,
}

impl Record {
    /// A record for a stack that was never deployed.
    pub fn new(key: &RecordKey) -> Self {
        let document = json!({
            "version": CURRENT_VERSION,
            "stackName": key.stack.as_str(),
            "region": key.region.as_str(),
            "resources": {},
            "outputs": {},
        });
        let Value::Object(document) = document else { return Self { document: Map::new() } };
        Self { document }
    }

    /// Reads a record.
    ///
    /// # Errors
    /// `UnsupportedStateVersion` for a version above 9: it is never overwritten. `InvalidState` for anything that is
    /// not a record.
    pub fn parse(body: &[u8], key: &RecordKey) -> Result<Self> {
        let invalid = |what: String| {
            Error::new(Code::InvalidState, format!("the record of {key} {what}"))
                .hint("restore an earlier version of the object from the state bucket, which is versioned")
                .detail("stack", key.stack.as_str())
                .detail("region", key.region.as_str())
        };
        let document: Value = serde_json::from_slice(body).map_err(|error| {
            invalid(format!("is not JSON (line {}, column {})", error.line(), error.column()))
        })?;
        let Value::Object(document) = document else { return Err(invalid("is not a JSON object".into())) };
        let version = match document.get("version") {
            None => return Err(invalid("has no `version`".into())),
            Some(version) => {
                version.as_u64().ok_or_else(|| invalid("has a `version` that is no number".into()))?
            }
        };
        if version > CURRENT_VERSION {
            return Err(Error::new(
                Code::UnsupportedStateVersion,
                format!("the record of {key} has version {version}; this cdkd reads up to {CURRENT_VERSION}"),
            )
            .hint("a newer tool has deployed this stack: upgrade cdkd; the record was not touched")
            .detail("stack", key.stack.as_str())
            .detail("region", key.region.as_str())
            .detail("version", version));
        }
        if version == 0 {
            return Err(invalid("has version 0, which never was".into()));
        }
        for (field, kind) in
            [("resources", "object"), ("outputs", "object"), ("withdrawing", "object"), ("deploy", "object")]
        {
            if document.get(field).is_some_and(|value| !value.is_object() && !value.is_null()) {
                return Err(invalid(format!("has a `{field}` that is no {kind}")));
            }
        }
        for field in ["imports", "outputReads", "cfnImports", "exportNames", "claims", "pendingDeletes"] {
            if document.get(field).is_some_and(|value| !value.is_array() && !value.is_null()) {
                return Err(invalid(format!("has a `{field}` that is no list")));
            }
        }
        if let Some(resources) = document.get("resources").and_then(Value::as_object) {
            for (logical_id, row) in resources {
                let ok = row["physicalId"].is_string() && row["resourceType"].is_string();
                if !ok {
                    return Err(invalid(format!(
                        "has a resource `{logical_id}` without physical id or type"
                    )));
                }
            }
        }
        Ok(Self { document })
    }

    /// The document as it is stored: 2-space JSON.
    pub fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec_pretty(&self.document).unwrap_or_default()
    }

    /// The schema version it was read under.
    pub fn version(&self) -> u64 {
        self.document.get("version").and_then(Value::as_u64).unwrap_or(CURRENT_VERSION)
    }

    /// The region that the body names; a record of version 1 may name none.
    pub fn region(&self) -> Option<Region> {
        self.document.get("region").and_then(Value::as_str).and_then(|region| region.parse().ok())
    }

    /// Raises the version to the current one; answers the version it had, if it was lower.
    pub fn migrate(&mut self, key: &RecordKey) -> Option<u64> {
        let from = self.version();
        if from == CURRENT_VERSION {
            return None;
        }
        self.set("version", json!(CURRENT_VERSION));
        self.locate(key);
        Some(from)
    }

    /// Writes the region into a record of version 1, whose place did not tell it.
    pub fn locate(&mut self, key: &RecordKey) {
        if self.document.get("region").is_none_or(Value::is_null) {
            self.insert_after("stackName", "region", json!(key.region.as_str()));
        }
    }

    /// The rows, in order of record.
    pub fn rows(&self) -> impl Iterator<Item = (&str, Row)> {
        self.document.get("resources").and_then(Value::as_object).into_iter().flatten().filter_map(
            |(logical_id, row)| {
                row.as_object().map(|fields| (logical_id.as_str(), Row { fields: fields.clone() }))
            },
        )
    }

    /// How many resources are on record.
    pub fn len(&self) -> usize {
        self.document.get("resources").and_then(Value::as_object).map_or(0, Map::len)
    }

    /// Whether nothing is deployed under this record.
    pub fn is_empty(&self) -> bool {
        self.len() == 0 && self.pending_deletes().is_empty()
    }

    pub fn row(&self, logical_id: &str) -> Option<Row> {
        let fields = self.document.get("resources")?.get(logical_id)?.as_object()?;
        Some(Row { fields: fields.clone() })
    }

    /// Puts a row in its place, or at the end.
    pub fn put_row(&mut self, logical_id: &str, row: Row) {
        if let Value::Object(resources) = self.document.entry("resources").or_insert_with(|| json!({})) {
            resources.insert(logical_id.to_owned(), Value::Object(row.fields));
        }
    }

    pub fn remove_row(&mut self, logical_id: &str) -> Option<Row> {
        let resources = self.document.get_mut("resources")?.as_object_mut()?;
        match resources.shift_remove(logical_id)? {
            Value::Object(fields) => Some(Row { fields }),
            _ => None,
        }
    }

    /// Outputs under their names and, if exported, under their export names; stored form.
    pub fn outputs(&self) -> Map<String, Value> {
        self.document.get("outputs").and_then(Value::as_object).cloned().unwrap_or_default()
    }

    /// Replaces outputs and the list of keys that are exports; keeps what is the same untouched.
    pub fn set_outputs(&mut self, outputs: Map<String, Value>, exports: &[String]) {
        self.set("outputs", Value::Object(outputs));
        self.set_list("exportNames", exports.iter().map(|name| json!(name)).collect());
    }

    pub fn pending_deletes(&self) -> Vec<PendingDelete> {
        self.list("pendingDeletes")
            .iter()
            .filter_map(|entry| {
                let mut fields = entry.as_object()?.clone();
                let logical_id = fields.shift_remove("logicalId")?.as_str()?.to_owned();
                Some(PendingDelete { logical_id, row: Row { fields } })
            })
            .collect()
    }

    /// Notes a physical resource that is to be deleted later; a second note of the same one changes nothing.
    pub fn add_pending_delete(&mut self, pending: &PendingDelete) {
        let mut list = self.pending_deletes();
        if !list.iter().any(|known| known.is_same_thing(pending)) {
            list.push(pending.clone());
        }
        self.set_pending_deletes(&list);
    }

    /// Forgets a pending delete: it is done, or the thing is in use again.
    pub fn remove_pending_delete(&mut self, done: &PendingDelete) {
        let list: Vec<_> =
            self.pending_deletes().into_iter().filter(|known| !known.is_same_thing(done)).collect();
        self.set_pending_deletes(&list);
    }

    pub(super) fn set_pending_deletes(&mut self, list: &[PendingDelete]) {
        let list = list
            .iter()
            .map(|pending| {
                let mut fields = Map::new();
                fields.insert("logicalId".into(), json!(pending.logical_id));
                fields.extend(pending.row.fields.clone());
                Value::Object(fields)
            })
            .collect();
        self.set_list("pendingDeletes", list);
    }

    pub fn deploy(&self) -> Option<Deploy> {
        let deploy = self.document.get("deploy")?.as_object()?;
        let object = |name: &str| deploy.get(name).and_then(Value::as_object).cloned().unwrap_or_default();
        let flag = |name: &str| deploy.get(name).and_then(Value::as_bool).unwrap_or(false);
        Some(Deploy {
            stack_id: deploy.get("stackId")?.as_str()?.to_owned(),
            deployed: flag("deployed"),
            parameters: object("parameters"),
            tags: object("tags"),
            termination_protection: flag("terminationProtection"),
        })
    }

    /// Writes what cdkd remembers; fields of `deploy` that it does not know survive.
    pub fn set_deploy(&mut self, deploy: &Deploy) {
        let mut fields = self.document.get("deploy").and_then(Value::as_object).cloned().unwrap_or_default();
        fields.insert("stackId".into(), json!(deploy.stack_id));
        fields.insert("deployed".into(), json!(deploy.deployed));
        for (name, map) in [("parameters", &deploy.parameters), ("tags", &deploy.tags)] {
            if map.is_empty() {
                fields.shift_remove(name);
            } else {
                fields.insert(name.into(), Value::Object(map.clone()));
            }
        }
        if deploy.termination_protection {
            fields.insert("terminationProtection".into(), json!(true));
        } else {
            fields.shift_remove("terminationProtection");
        }
        self.set("deploy", Value::Object(fields));
    }

    /// Whether a deploy ever succeeded. Records of other tools, which have no `deploy`, come from one.
    pub fn was_deployed(&self) -> bool {
        self.deploy().is_none_or(|deploy| deploy.deployed)
    }

    /// Stamps the write, milliseconds since 1970.
    pub fn touch(&mut self, now: i64) {
        self.set("lastModified", json!(now));
    }

    /// The time of the last write, milliseconds since 1970.
    pub fn last_modified(&self) -> Option<i64> {
        self.document.get("lastModified").and_then(Value::as_i64)
    }

    /// Whether both say the same, whatever the order of keys and the time of the last write (rule E6).
    pub fn says_the_same(&self, other: &Record) -> bool {
        let without = |record: &Record| {
            let mut document = record.document.clone();
            document.shift_remove("lastModified");
            Value::Object(document)
        };
        same(&without(self), &without(other))
    }

    pub(super) fn field(&self, name: &str) -> Option<&Value> {
        self.document.get(name)
    }

    pub(super) fn list(&self, field: &str) -> Vec<Value> {
        let list = self.document.get(field).and_then(Value::as_array).cloned().unwrap_or_default();
        // A null element is dropped, not fatal (rule E20).
        list.into_iter().filter(|entry| !entry.is_null()).collect()
    }

    /// Empty lists are omitted.
    pub(super) fn set_list(&mut self, field: &str, list: Vec<Value>) {
        if list.is_empty() {
            self.document.shift_remove(field);
        } else {
            self.set(field, Value::Array(list));
        }
    }

    /// Sets a field in its place; a new one goes before `lastModified`, which stays last as the tool writes it.
    pub(super) fn set(&mut self, field: &str, value: Value) {
        if let Some(known) = self.document.get_mut(field) {
            *known = value;
            return;
        }
        let last = if field == "lastModified" { None } else { self.document.shift_remove("lastModified") };
        self.document.insert(field.to_owned(), value);
        if let Some(last) = last {
            self.document.insert("lastModified".into(), last);
        }
    }

    pub(super) fn unset(&mut self, field: &str) {
        self.document.shift_remove(field);
    }

    fn insert_after(&mut self, before: &str, field: &str, value: Value) {
        let mut document = Map::new();
        let mut value = Some(value);
        for (key, known) in std::mem::take(&mut self.document) {
            if key == field {
                continue;
            }
            let here = key == before;
            document.insert(key, known);
            if here && let Some(value) = value.take() {
                document.insert(field.to_owned(), value);
            }
        }
        if let Some(value) = value {
            document.insert(field.to_owned(), value);
        }
        self.document = document;
    }
}

impl PendingDelete {
    /// Whether both name the same physical resource.
    pub fn is_same_thing(&self, other: &PendingDelete) -> bool {
        self.row.is_same_thing(&other.row)
    }
}

impl Row {
    pub fn new(resource_type: &str, physical_id: &str) -> Self {
        let mut fields = Map::new();
        fields.insert("physicalId".into(), json!(physical_id));
        fields.insert("resourceType".into(), json!(resource_type));
        fields.insert("properties".into(), json!({}));
        Self { fields }
    }

    /// Reads a row from a plan or a journal.
    pub fn from_value(value: &Value) -> Option<Self> {
        let fields = value.as_object()?;
        (fields.get("physicalId")?.is_string() && fields.get("resourceType")?.is_string())
            .then(|| Self { fields: fields.clone() })
    }

    pub fn to_value(&self) -> Value {
        Value::Object(self.fields.clone())
    }

    /// A text field, such as `provisionedBy`.
    pub fn text(&self, field: &str) -> Option<&str> {
        self.fields.get(field).and_then(Value::as_str)
    }

    pub fn set_text(&mut self, field: &str, value: &str) {
        self.fields.insert(field.to_owned(), json!(value));
    }

    pub fn physical_id(&self) -> &str {
        self.fields.get("physicalId").and_then(Value::as_str).unwrap_or_default()
    }

    pub fn set_physical_id(&mut self, physical_id: &str) {
        self.fields.insert("physicalId".into(), json!(physical_id));
    }

    pub fn resource_type(&self) -> &str {
        self.fields.get("resourceType").and_then(Value::as_str).unwrap_or_default()
    }

    /// What was last sent, in stored form.
    pub fn properties(&self) -> Value {
        self.fields.get("properties").cloned().unwrap_or_else(|| json!({}))
    }

    pub fn set_properties(&mut self, properties: Value) {
        self.fields.insert("properties".into(), properties);
        // What another tool observed belonged to the properties before.
        self.fields.shift_remove("observedProperties");
    }

    pub fn attributes(&self) -> Map<String, Value> {
        self.fields.get("attributes").and_then(Value::as_object).cloned().unwrap_or_default()
    }

    pub fn set_attributes(&mut self, attributes: Map<String, Value>) {
        if attributes.is_empty() {
            self.fields.shift_remove("attributes");
        } else {
            self.fields.insert("attributes".into(), Value::Object(attributes));
        }
    }

    /// Logical ids that this resource was built on.
    pub fn dependencies(&self) -> Vec<String> {
        let list = self.fields.get("dependencies").and_then(Value::as_array).cloned().unwrap_or_default();
        list.iter().filter_map(|id| id.as_str().map(str::to_owned)).collect()
    }

    /// Absent when empty.
    pub fn set_dependencies(&mut self, dependencies: &[String]) {
        if dependencies.is_empty() {
            self.fields.shift_remove("dependencies");
        } else {
            self.fields.insert("dependencies".into(), json!(dependencies));
        }
    }

    /// `Delete`, `Retain`, `RetainExceptOnCreate` or `Snapshot`, if the template said so.
    pub fn policy(&self, field: &str) -> Option<&str> {
        self.fields.get(field).and_then(Value::as_str)
    }

    /// `field`: `deletionPolicy` or `updateReplacePolicy`.
    pub fn set_policy(&mut self, field: &str, policy: Option<&str>) {
        match policy {
            Some(policy) => {
                self.fields.insert(field.to_owned(), json!(policy));
            }
            None => {
                self.fields.shift_remove(field);
            }
        }
    }

    /// Ours in `metadata.cdkd`: `generation`, `token`, `parts`.
    pub fn own(&self, field: &str) -> Option<&Value> {
        self.fields.get("metadata")?.get("cdkd")?.get(field)
    }

    pub fn set_own(&mut self, field: &str, value: Value) {
        let metadata = self.fields.entry("metadata").or_insert_with(|| json!({}));
        if !metadata.is_object() {
            *metadata = json!({});
        }
        if let Some(metadata) = metadata.as_object_mut() {
            let own = metadata.entry("cdkd").or_insert_with(|| json!({}));
            if let Some(own) = own.as_object_mut() {
                own.insert(field.to_owned(), value);
            }
        }
    }

    /// Which physical resource of this logical id it is: 0 for the first, one more per replacement.
    pub fn generation(&self) -> u64 {
        self.own("generation").and_then(Value::as_u64).unwrap_or(0)
    }

    /// The resources of Cloud Control behind this row: itself, or the parts that its type is expanded into, as
    /// (type, identifier).
    pub fn things(&self) -> Vec<(String, String)> {
        let Some(parts) = self.own("parts").and_then(Value::as_array) else {
            return vec![(self.resource_type().to_owned(), self.physical_id().to_owned())];
        };
        parts
            .iter()
            .filter_map(|part| {
                Some((part["type"].as_str()?.to_owned(), part["identifier"].as_str()?.to_owned()))
            })
            .collect()
    }

    /// Notes a part that is there: `[{key, type, identifier}]` in `metadata.cdkd.parts`.
    pub fn set_part(&mut self, key: &str, type_name: &str, identifier: &str) {
        let mut parts = self.own("parts").and_then(Value::as_array).cloned().unwrap_or_default();
        parts.retain(|part| part["key"] != key);
        parts.push(json!({ "key": key, "type": type_name, "identifier": identifier }));
        self.set_own("parts", Value::Array(parts));
    }

    /// Notes that a part is gone.
    pub fn remove_part(&mut self, identifier: &str, type_name: &str) {
        let mut parts = self.own("parts").and_then(Value::as_array).cloned().unwrap_or_default();
        parts.retain(|part| !(part["identifier"] == identifier && part["type"] == type_name));
        self.set_own("parts", Value::Array(parts));
    }

    /// Whether both stand for the same physical resource.
    pub fn is_same_thing(&self, other: &Row) -> bool {
        self.resource_type() == other.resource_type() && self.physical_id() == other.physical_id()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> RecordKey {
        RecordKey::parse("Producer", "us-east-1").unwrap()
    }

    const TOOL: &str = r#"{
  "version": 8,
  "region": "us-east-1",
  "stackName": "Producer",
  "resources": {
    "Q63C6E3AB": {
      "physicalId": "https://sqs.us-east-1.amazonaws.com/123456789012/q",
      "resourceType": "AWS::SQS::Queue",
      "properties": {
        "VisibilityTimeout": 30,
        "Ratio": 1.10
      },
      "attributes": {
        "Arn": "arn:aws:sqs:us-east-1:123456789012:q"
      },
      "deletionPolicy": "Delete",
      "updateReplacePolicy": "Delete",
      "provisionedBy": "sdk",
      "observedProperties": {
        "VisibilityTimeout": 30
      },
      "futureField": [
        1
      ]
    }
  },
  "outputs": {
    "BucketArnOut": "arn:aws:s3:::b",
    "BucketArn": "arn:aws:s3:::b"
  },
  "imports": [
    {
      "exportName": "Vpc",
      "sourceStack": "Net",
      "sourceRegion": "us-east-1"
    }
  ],
  "unknown": {
    "kept": null
  },
  "lastModified": 1796061936107
}"#;

    #[test]
    fn a_record_of_the_command_line_tool_is_kept_to_the_byte() {
        let record = Record::parse(TOOL.as_bytes(), &key()).unwrap();
        assert_eq!(String::from_utf8(record.to_bytes()).unwrap(), TOOL);
    }

    /// A record of each version as the command line tool wrote it.
    const FIXTURES: [&str; 10] = [
        include_str!("fixtures/v1.json"),
        include_str!("fixtures/v2.json"),
        include_str!("fixtures/v3.json"),
        include_str!("fixtures/v4.json"),
        include_str!("fixtures/v5.json"),
        include_str!("fixtures/v6.json"),
        include_str!("fixtures/v7.json"),
        include_str!("fixtures/v8.json"),
        include_str!("fixtures/v9.json"),
        include_str!("fixtures/v10.json"),
    ];

    #[test]
    fn every_version_up_to_nine_is_kept_to_the_byte_and_raised_to_nine() {
        let key = RecordKey::parse("Web", "us-east-1").unwrap();
        for (version, body) in (1..=9).zip(FIXTURES) {
            let mut record = Record::parse(body.as_bytes(), &key).unwrap();
            assert_eq!(record.version(), version);
            assert_eq!(String::from_utf8(record.to_bytes()).unwrap(), body);
            assert_eq!(record.migrate(&key), (version < 9).then_some(version));
            let written = String::from_utf8(record.to_bytes()).unwrap();
            let mut raised = body.replace(&format!("\"version\": {version}"), "\"version\": 9");
            if version == 1 {
                raised = raised.replace(
                    "\"stackName\": \"Web\",",
                    "\"stackName\": \"Web\",\n  \"region\": \"us-east-1\",",
                );
            }
            assert_eq!(written, raised);
        }
        let error = Record::parse(FIXTURES[9].as_bytes(), &key).unwrap_err();
        assert_eq!(error.code(), Code::UnsupportedStateVersion);
    }

    #[test]
    fn a_record_from_the_future_is_refused_and_names_both_versions() {
        let body = TOOL.replace("\"version\": 8", "\"version\": 10");
        let error = Record::parse(body.as_bytes(), &key()).unwrap_err();
        assert_eq!(error.code(), Code::UnsupportedStateVersion);
        assert!(error.message().contains("version 10") && error.message().contains("up to 9"), "{error}");
    }

    #[test]
    fn what_is_no_record_is_refused_by_name() {
        let table = [
            ("", "is not JSON"),
            ("{", "is not JSON"),
            ("[]", "is not a JSON object"),
            ("{}", "has no `version`"),
            (r#"{"version": "9"}"#, "a `version` that is no number"),
            (r#"{"version": 0}"#, "version 0"),
            (r#"{"version": 9, "resources": []}"#, "`resources` that is no object"),
            (r#"{"version": 9, "imports": {}}"#, "`imports` that is no list"),
            (r#"{"version": 9, "resources": {"A": {"physicalId": 1}}}"#, "`A` without physical id"),
        ];
        for (body, expected) in table {
            let error = Record::parse(body.as_bytes(), &key()).unwrap_err();
            assert_eq!(error.code(), Code::InvalidState, "{body}");
            assert!(error.message().contains(expected), "{body}: {error}");
        }
    }

    #[test]
    fn a_version_one_record_gets_its_region_after_its_name() {
        let mut record =
            Record::parse(br#"{"version":1,"stackName":"Producer","resources":{},"outputs":{}}"#, &key())
                .unwrap();
        assert_eq!(record.region(), None);
        assert_eq!(record.migrate(&key()), Some(1));
        let keys: Vec<_> = record.document.keys().cloned().collect();
        assert_eq!(keys, ["version", "stackName", "region", "resources", "outputs"]);
    }

    #[test]
    fn new_fields_stand_before_the_stamp_and_empty_lists_are_omitted() {
        let mut record = Record::parse(TOOL.as_bytes(), &key()).unwrap();
        record.set_deploy(&Deploy { stack_id: "arn".into(), deployed: true, ..Deploy::default() });
        record.set_outputs(Map::new(), &[]);
        let keys: Vec<_> = record.document.keys().cloned().collect();
        assert_eq!(keys[keys.len() - 2..], ["deploy", "lastModified"]);
        assert!(!keys.contains(&"exportNames".to_owned()));
        record.set_outputs(Map::new(), &["A".into()]);
        assert_eq!(record.document["exportNames"], json!(["A"]));
    }

    #[test]
    fn e6_reordered_keys_and_a_new_stamp_are_no_change() {
        let record = Record::parse(TOOL.as_bytes(), &key()).unwrap();
        let mut other = record.clone();
        other.touch(5);
        let first = other.document.shift_remove("version").unwrap();
        other.document.insert("version".into(), first);
        assert!(record.says_the_same(&other));
        other.set_outputs(Map::new(), &[]);
        assert!(!record.says_the_same(&other));
    }

    #[test]
    fn pending_deletes_are_noted_once_and_forgotten_by_thing() {
        let mut record = Record::new(&key());
        let mut row = Row::new("AWS::SQS::Queue", "old");
        row.set_dependencies(&["Topic".into()]);
        let pending = PendingDelete { logical_id: "Q".into(), row };
        record.add_pending_delete(&pending);
        record.add_pending_delete(&pending);
        assert_eq!(record.pending_deletes(), std::slice::from_ref(&pending));
        assert!(!record.is_empty());
        record.remove_pending_delete(&pending);
        assert!(record.is_empty());
    }

    #[test]
    fn an_expanded_row_names_its_parts() {
        let mut row = Row::new("AWS::IAM::Policy", "policy");
        assert_eq!(row.things(), [("AWS::IAM::Policy".to_owned(), "policy".to_owned())]);
        row.set_own("parts", json!([{"key": "r", "type": "AWS::IAM::RolePolicy", "identifier": "p|r"}]));
        assert_eq!(row.things(), [("AWS::IAM::RolePolicy".to_owned(), "p|r".to_owned())]);
    }
}
