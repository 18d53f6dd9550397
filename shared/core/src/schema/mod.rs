//! What AWS says about its resource types, and what CloudFormation makes of it.
//!
//! [`lookup`] reads one line of a table that is compiled in; `cargo xtask schemas` makes the table from the public
//! resource schemas. A type that is newer than the table is read from `DescribeType` by
//! [`TypeSchema::from_schema`]. [`coerce`](fn@coerce) gives scalars the types that a schema wants. What no schema
//! says stands in small reviewed tables: what `Ref` returns ([`reference`](fn@reference)), names
//! ([`physical_name`]), secrets that AWS mints ([`minted_secrets`]), types that Cloud Control serves only in parts
//! ([`expand`](fn@expand)).

use std::fmt;

use serde_json::Value;

mod coerce;
mod expand;
mod name;
mod path;
mod reference;
mod shape;
mod tags;

pub use coerce::coerce;
pub use expand::{Part, expand, expanded_reference, is_expanded};
pub use name::{NameRule, NameSeed, Suffix, physical_name};
pub use path::{PropertyPath, same, scalar};
pub use reference::{
    DefaultDeletion, attribute, default_deletion_policy, identifier, minted_secrets, reference,
};
pub use shape::Shapes;
pub use tags::{TagShape, Tagging};

/// One line per type, sorted by name; lines before that start with `#` say where the data comes from.
static TABLE: &str = include_str!("types.txt");

/// What may be done to a resource of a type; a schema without a handler for it means it may not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Handler {
    Create,
    Read,
    Update,
    Delete,
    List,
}

impl Handler {
    const ALL: [Self; 5] = [Self::Create, Self::Read, Self::Update, Self::Delete, Self::List];

    /// The key of the schema's `handlers`.
    fn key(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Read => "read",
            Self::Update => "update",
            Self::Delete => "delete",
            Self::List => "list",
        }
    }

    /// The letter in a line of the table.
    fn letter(self) -> char {
        match self {
            Self::Create => 'c',
            Self::Read => 'r',
            Self::Update => 'u',
            Self::Delete => 'd',
            Self::List => 'l',
        }
    }
}

/// What the schema of a resource type says, as far as cdkd needs it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TypeSchema {
    /// `AWS::SQS::Queue`
    pub type_name: String,
    pub handlers: Vec<Handler>,
    /// A change replaces the resource.
    pub create_only: Vec<PropertyPath>,
    /// A change may replace the resource; only the service knows (it answers `NotUpdatable`).
    pub conditional_create_only: Vec<PropertyPath>,
    /// Set by AWS: never part of a desired state.
    pub read_only: Vec<PropertyPath>,
    /// Never read back, so every update has to send them again.
    pub write_only: Vec<PropertyPath>,
    /// Joined by `|` they are Cloud Control's identifier, in this order. Empty for types without handlers.
    pub primary_identifier: Vec<PropertyPath>,
    /// Other ways to name the resource.
    pub additional_identifiers: Vec<Vec<PropertyPath>>,
    /// Properties without which a create fails.
    pub required: Vec<String>,
    /// Two of them cannot exist side by side: a replacement deletes first (`replacementStrategy`).
    pub delete_then_create: bool,
    /// `None` if the type takes no tags.
    pub tagging: Option<Tagging>,
    /// The optional name that cdkd sets; see [`physical_name`].
    pub name: Option<NameRule>,
    /// Which scalar is wanted where; see [`coerce`](fn@coerce).
    pub shapes: Shapes,
}

/// What the table says about a type; `None` if it does not know it.
///
/// Cost: a binary search over the table's text and the parsing of one line.
pub fn lookup(type_name: &str) -> Option<TypeSchema> {
    let line = find_line(TABLE, type_name)?;
    let mut schema = TypeSchema::parse_line(line)?;
    name::review(&mut schema);
    Some(schema)
}

/// All type names of the table, sorted.
pub fn type_names() -> impl Iterator<Item = &'static str> {
    TABLE.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split(' ').next())
}

fn find_line<'t>(table: &'t str, type_name: &str) -> Option<&'t str> {
    // Invariant: the line, if there is one, starts in low..high, and low starts a line.
    let (mut low, mut high) = (0, table.len());
    while low < high {
        let middle = low + (high - low) / 2;
        let start = table.get(low..middle)?.rfind('\n').map_or(low, |newline| low + newline + 1);
        let rest = table.get(start..)?;
        let line = rest.split('\n').next()?;
        match line.split(' ').next()?.cmp(type_name) {
            std::cmp::Ordering::Equal => return Some(line),
            std::cmp::Ordering::Less => low = start + line.len() + 1,
            std::cmp::Ordering::Greater => high = start,
        }
    }
    None
}

impl TypeSchema {
    /// Reads a resource type's schema: the `Schema` of `DescribeType`, or a file of cfn-lint. `None` if it is none.
    pub fn from_schema(schema: &Value) -> Option<Self> {
        let mut result = Self::from_schema_alone(schema)?;
        name::review(&mut result);
        Some(result)
    }

    /// As [`Self::from_schema`], without what the reviewed tables add: what a line of the table holds.
    pub fn from_schema_alone(schema: &Value) -> Option<Self> {
        let type_name = schema.get("typeName")?.as_str()?.to_owned();
        let paths = |key: &str| sorted(read_paths(schema.get(key)));
        let handlers = schema.get("handlers");
        let create_only = paths("createOnlyProperties");
        let write_only = paths("writeOnlyProperties");
        // Some schemas list a property that may be given at the create as read-only too
        // (`AWS::Signer::SigningProfile.ProfileName`).
        let mut read_only = paths("readOnlyProperties");
        read_only.retain(|path| !create_only.iter().chain(&write_only).any(|given| path.covers(given)));
        let set_by_aws =
            |name: &str| read_only.iter().any(|path| matches!(path.segments(), [top] if top == name));
        Some(Self {
            shapes: Shapes::from_schema(schema, set_by_aws),
            handlers: Handler::ALL
                .into_iter()
                .filter(|handler| handlers.is_some_and(|handlers| handlers.get(handler.key()).is_some()))
                .collect(),
            create_only,
            conditional_create_only: paths("conditionalCreateOnlyProperties"),
            read_only,
            write_only,
            primary_identifier: read_paths(schema.get("primaryIdentifier")),
            additional_identifiers: schema
                .get("additionalIdentifiers")
                .and_then(Value::as_array)
                .map(|all| all.iter().map(|one| read_paths(Some(one))).collect())
                .unwrap_or_default(),
            required: sorted(read_strings(schema.get("required"))),
            delete_then_create: schema.get("replacementStrategy").and_then(Value::as_str)
                == Some("delete_then_create"),
            tagging: Tagging::from_schema(schema),
            name: NameRule::from_schema(&type_name, schema),
            type_name,
        })
    }

    /// Whether Cloud Control can make one, read it and delete it.
    pub fn provisionable(&self) -> bool {
        [Handler::Create, Handler::Read, Handler::Delete]
            .iter()
            .all(|handler| self.handlers.contains(handler))
    }

    /// Whether Cloud Control can also change one. If not, every change replaces.
    pub fn mutable(&self) -> bool {
        self.provisionable() && self.handlers.contains(&Handler::Update)
    }

    /// Whether a change at this path is one of a create-only property: at it, below it, or above it.
    ///
    /// A change above may leave the create-only property as it is; [`Self::changed_create_only`] compares.
    pub fn is_create_only(&self, changed: &PropertyPath) -> bool {
        self.create_only.iter().any(|path| path.touches(changed))
    }

    /// As [`Self::is_create_only`], for properties whose change only may replace.
    pub fn is_conditional_create_only(&self, changed: &PropertyPath) -> bool {
        self.conditional_create_only.iter().any(|path| path.touches(changed))
    }

    /// Whether AWS sets what is at this path.
    pub fn is_read_only(&self, at: &PropertyPath) -> bool {
        self.read_only.iter().any(|path| path.covers(at))
    }

    /// Whether what is at this path cannot be read back.
    pub fn is_write_only(&self, at: &PropertyPath) -> bool {
        self.write_only.iter().any(|path| path.covers(at))
    }

    /// The create-only paths whose values differ between two property maps (rule T7).
    pub fn changed_create_only(&self, old: &Value, new: &Value) -> Vec<&PropertyPath> {
        self.create_only.iter().filter(|path| path.differs(old, new)).collect()
    }

    /// The conditionally create-only paths whose values differ between two property maps.
    pub fn changed_conditional_create_only(&self, old: &Value, new: &Value) -> Vec<&PropertyPath> {
        self.conditional_create_only.iter().filter(|path| path.differs(old, new)).collect()
    }

    /// The paths that an update has to send again, since the service does not return them.
    pub fn write_only_paths(&self) -> &[PropertyPath] {
        &self.write_only
    }

    /// Removes what only AWS sets: what was read becomes what may be desired.
    pub fn strip_read_only(&self, model: &mut Value) {
        for path in &self.read_only {
            path.remove(model);
        }
    }

    /// Removes what a read would not return.
    pub fn strip_write_only(&self, model: &mut Value) {
        for path in &self.write_only {
            path.remove(model);
        }
    }

    /// Reads a line of the table, as [`fmt::Display`] writes it. `None` if it is none; unknown fields are skipped.
    pub fn parse_line(line: &str) -> Option<Self> {
        let mut fields = line.split(' ');
        let type_name = fields.next().filter(|name| name.contains("::"))?.to_owned();
        let mut schema = Self { type_name, ..Self::default() };
        for field in fields {
            let (key, value) = field.split_once('=').unwrap_or((field, ""));
            match key {
                "can" => {
                    schema.handlers =
                        Handler::ALL.into_iter().filter(|handler| value.contains(handler.letter())).collect();
                }
                "id" => schema.primary_identifier = split_paths(value),
                "or" => schema.additional_identifiers.push(split_paths(value)),
                "create-only" => schema.create_only = split_paths(value),
                "maybe-create-only" => schema.conditional_create_only = split_paths(value),
                "read-only" => schema.read_only = split_paths(value),
                "write-only" => schema.write_only = split_paths(value),
                "required" => schema.required = value.split(',').map(str::to_owned).collect(),
                "delete-first" => schema.delete_then_create = true,
                "tags" => schema.tagging = Tagging::parse_field(value),
                "name" => schema.name = NameRule::parse_field(value),
                "types" => schema.shapes = Shapes::parse_field(value),
                _ => {}
            }
        }
        Some(schema)
    }
}

/// A line of the table: the type's name, then fields `key=value` for what is not empty. Paths are separated by
/// commas; no name in a schema holds a space, a comma or a colon.
impl fmt::Display for TypeSchema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.type_name)?;
        if !self.handlers.is_empty() {
            write!(f, " can={}", self.handlers.iter().map(|handler| handler.letter()).collect::<String>())?;
        }
        write_paths(f, "id", &self.primary_identifier)?;
        for other in &self.additional_identifiers {
            write_paths(f, "or", other)?;
        }
        write_paths(f, "create-only", &self.create_only)?;
        write_paths(f, "maybe-create-only", &self.conditional_create_only)?;
        write_paths(f, "read-only", &self.read_only)?;
        write_paths(f, "write-only", &self.write_only)?;
        if !self.required.is_empty() {
            write!(f, " required={}", self.required.join(","))?;
        }
        if self.delete_then_create {
            f.write_str(" delete-first")?;
        }
        if let Some(tagging) = &self.tagging {
            write!(f, " tags={tagging}")?;
        }
        if let Some(name) = &self.name {
            write!(f, " name={name}")?;
        }
        if !self.shapes.is_empty() {
            write!(f, " types={}", self.shapes)?;
        }
        Ok(())
    }
}

fn write_paths(f: &mut fmt::Formatter<'_>, key: &str, paths: &[PropertyPath]) -> fmt::Result {
    if paths.is_empty() {
        return Ok(());
    }
    let paths: Vec<String> = paths.iter().map(ToString::to_string).collect();
    write!(f, " {key}={}", paths.join(","))
}

fn split_paths(text: &str) -> Vec<PropertyPath> {
    text.split(',').filter_map(PropertyPath::parse).collect()
}

fn read_strings(value: Option<&Value>) -> Vec<String> {
    let items = value.and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    items.iter().filter_map(Value::as_str).map(str::to_owned).collect()
}

fn read_paths(value: Option<&Value>) -> Vec<PropertyPath> {
    read_strings(value).iter().filter_map(|text| PropertyPath::parse(text)).collect()
}

fn sorted<T: Ord>(mut items: Vec<T>) -> Vec<T> {
    items.sort();
    items.dedup();
    items
}

fn is_type(node: &Value, name: &str) -> bool {
    match node.get("type") {
        Some(Value::String(one)) => one == name,
        Some(Value::Array(any)) => any.iter().any(|one| one == name),
        _ => false,
    }
}

/// Follows `$ref` inside a schema document.
fn resolve<'s>(schema: &'s Value, mut node: &'s Value) -> Option<&'s Value> {
    // Deeper chains do not occur; a circle would not end.
    for _ in 0..8 {
        let Some(pointer) = node.get("$ref").and_then(Value::as_str) else { return Some(node) };
        node = schema.pointer(pointer.strip_prefix('#')?)?;
    }
    None
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn lines_are_found() {
        let table = "# a\n# b\nAWS::A::A id=X\nAWS::A::AB id=Y\nAWS::B::A id=Z\n";
        for (name, want) in [
            ("AWS::A::A", Some("AWS::A::A id=X")),
            ("AWS::A::AB", Some("AWS::A::AB id=Y")),
            ("AWS::B::A", Some("AWS::B::A id=Z")),
            ("AWS::A::AA", None),
            ("AWS::A", None),
            ("AWS::C::A", None),
            ("#", None),
            ("", None),
        ] {
            assert_eq!(find_line(table, name).filter(|_| !name.starts_with('#')), want, "{name}");
        }
        assert_eq!(find_line("", "AWS::A::A"), None);
    }

    #[test]
    fn every_line_of_the_table() {
        let mut last = "";
        let mut count = 0;
        for line in TABLE.lines().filter(|line| !line.starts_with('#')) {
            let schema = TypeSchema::parse_line(line).unwrap_or_default();
            assert_eq!(schema.to_string(), line);
            assert!(last < schema.type_name.as_str(), "{line}");
            assert!(lookup(&schema.type_name).is_some(), "{line}");
            assert!(!schema.provisionable() || !schema.primary_identifier.is_empty(), "{line}");
            last = line.split(' ').next().unwrap_or_default();
            count += 1;
        }
        assert!(count > 1800, "{count}");
        // The search cuts the text at any byte.
        assert!(TABLE.is_ascii());
        assert_eq!(type_names().count(), count);
    }

    /// A sample of what the public schemas say, checked by hand.
    #[test]
    fn what_may_be_done() {
        for (type_name, provisionable, mutable) in [
            ("AWS::ApiGateway::Deployment", true, true),
            ("AWS::CloudFormation::Macro", false, false),
            ("AWS::DocDB::DBCluster", false, false),
            ("AWS::EC2::NetworkAclEntry", false, false),
            ("AWS::EC2::SubnetRouteTableAssociation", true, false),
            ("AWS::EMR::Cluster", false, false),
            ("AWS::FSx::FileSystem", false, false),
            ("AWS::Lambda::LayerVersion", true, false),
            ("AWS::EC2::EIPAssociation", true, false),
            ("AWS::IAM::AccessKey", false, false),
            ("AWS::IAM::Policy", false, false),
            ("AWS::IAM::RolePolicy", true, true),
            ("AWS::Lambda::Function", true, true),
            ("AWS::Lambda::Permission", true, false),
            ("AWS::S3::Bucket", true, true),
            ("AWS::S3::BucketPolicy", true, true),
            ("AWS::SNS::TopicPolicy", false, false),
            ("AWS::SQS::Queue", true, true),
            ("AWS::SQS::QueuePolicy", false, false),
        ] {
            let schema = lookup(type_name).unwrap_or_default();
            assert_eq!((schema.provisionable(), schema.mutable()), (provisionable, mutable), "{type_name}");
        }
        for unknown in ["Custom::Thing", "AWS::Nothing::Here", "", "AWS::S3::Buckets", "# cfn-lint"] {
            assert_eq!(lookup(unknown), None, "{unknown}");
        }
    }

    fn texts(paths: Vec<&PropertyPath>) -> Vec<String> {
        paths.into_iter().map(ToString::to_string).collect()
    }

    #[test]
    fn replacement_is_judged_at_the_exact_path() {
        for (type_name, old, new, fixed, maybe) in [
            (
                "AWS::SQS::Queue",
                json!({"VisibilityTimeout": 1}),
                json!({"VisibilityTimeout": 2}),
                vec![],
                vec![],
            ),
            ("AWS::SQS::Queue", json!({}), json!({"FifoQueue": true}), vec!["FifoQueue"], vec![]),
            (
                "AWS::DynamoDB::Table",
                json!({"KeySchema": [1]}),
                json!({"KeySchema": [2]}),
                vec![],
                vec!["KeySchema"],
            ),
            (
                "AWS::KinesisFirehose::DeliveryStream",
                json!({"IcebergDestinationConfiguration": {"CatalogConfiguration": {"CatalogArn": "a"}, "s3": 1}}),
                json!({"IcebergDestinationConfiguration": {"CatalogConfiguration": {"CatalogArn": "a"}, "s3": 2}}),
                vec![],
                vec![],
            ),
            (
                "AWS::KinesisFirehose::DeliveryStream",
                json!({"IcebergDestinationConfiguration": {"CatalogConfiguration": {"CatalogArn": "a"}}}),
                json!({"IcebergDestinationConfiguration": {"CatalogConfiguration": {"CatalogArn": "b"}}}),
                vec!["IcebergDestinationConfiguration/CatalogConfiguration"],
                vec![],
            ),
        ] {
            let schema = lookup(type_name).unwrap_or_default();
            assert_eq!(texts(schema.changed_create_only(&old, &new)), fixed, "{type_name} {old} {new}");
            assert_eq!(
                texts(schema.changed_conditional_create_only(&old, &new)),
                maybe,
                "{type_name} {old} {new}"
            );
        }
        let queue = lookup("AWS::SQS::Queue").unwrap_or_default();
        assert!(queue.is_create_only(&PropertyPath::new(["FifoQueue"])));
        assert!(!queue.is_create_only(&PropertyPath::new(["VisibilityTimeout"])));
        assert!(queue.is_read_only(&PropertyPath::new(["Arn"])));
        let function = lookup("AWS::Lambda::Function").unwrap_or_default();
        assert!(function.is_write_only(&PropertyPath::new(["Code", "S3Bucket"])));
    }

    #[test]
    fn what_may_be_given_is_not_read_only() {
        let profile = lookup("AWS::Signer::SigningProfile").unwrap_or_default();
        let mut model = json!({"ProfileName": "p", "Arn": "a"});
        profile.strip_read_only(&mut model);
        assert_eq!(model, json!({"ProfileName": "p"}));
    }

    #[test]
    fn what_aws_sets_is_not_desired() {
        let bucket = lookup("AWS::S3::Bucket").unwrap_or_default();
        let mut model = json!({"BucketName": "b", "Arn": "arn", "DomainName": "d", "Tags": []});
        bucket.strip_read_only(&mut model);
        assert_eq!(model, json!({"BucketName": "b", "Tags": []}));
    }

    #[test]
    fn a_schema_that_the_table_does_not_know() {
        let schema = json!({
            "typeName": "AWS::New::Thing",
            "handlers": {"create": {}, "read": {}, "delete": {}},
            "definitions": {"Tag": {"type": "object", "properties": {"Key": {}, "Value": {}}}},
            "properties": {
                "ThingName": {"type": "string", "pattern": "^[a-z0-9-]{3,40}$"},
                "Id": {"type": "string"},
                "Tags": {"type": "array", "items": {"$ref": "#/definitions/Tag"}},
            },
            "createOnlyProperties": ["/properties/ThingName"],
            "readOnlyProperties": ["/properties/Id"],
            "primaryIdentifier": ["/properties/Id"],
            "replacementStrategy": "delete_then_create",
        });
        let line = "AWS::New::Thing can=crd id=Id create-only=ThingName read-only=Id delete-first \
                    tags=Tags:list:create:update name=ThingName:40:a- types=ThingName";
        assert_eq!(TypeSchema::from_schema(&schema).map(|schema| schema.to_string()).as_deref(), Some(line));
        assert_eq!(TypeSchema::from_schema(&json!({"a": 1})), None);
    }
}
