//! Tags: where and in which form a type takes them.

use std::fmt;

use serde_json::Value;

use super::path::PropertyPath;
use super::{is_type, resolve};

/// How a type writes its tags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TagShape {
    /// `[{"Key": …, "Value": …}]`
    List,
    /// As `List`, each with a required `"PropagateAtLaunch"` (Auto Scaling groups).
    PropagatingList,
    /// `{key: value}`
    Map,
}

impl TagShape {
    const ALL: [Self; 3] = [Self::List, Self::PropagatingList, Self::Map];

    fn word(self) -> &'static str {
        match self {
            Self::List => "list",
            Self::PropagatingList => "propagating",
            Self::Map => "map",
        }
    }
}

/// Where and how a type takes tags.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tagging {
    /// Nearly always `Tags`.
    pub property: PropertyPath,
    pub shape: TagShape,
    /// Whether tags may come with the create.
    pub on_create: bool,
    /// Whether a change of tags is an update in place.
    pub updatable: bool,
}

impl Tagging {
    /// `tagging` (and the older `taggable`) with their defaults: a type takes tags at `Tags` unless it says otherwise.
    /// Some say so and have no such property; then it is not so.
    pub(super) fn from_schema(schema: &Value) -> Option<Self> {
        let tagging = schema.get("tagging");
        let flag =
            |key: &str| tagging.and_then(|tagging| tagging.get(key)).and_then(Value::as_bool).unwrap_or(true);
        if !flag("taggable") || schema.get("taggable").and_then(Value::as_bool) == Some(false) {
            return None;
        }
        let pointer = tagging.and_then(|tagging| tagging.get("tagProperty")).and_then(Value::as_str);
        let property = PropertyPath::parse(pointer.unwrap_or("/properties/Tags"))?;
        let mut node = schema;
        for segment in property.segments() {
            node = resolve(schema, node)?.get("properties")?.get(segment)?;
        }
        let shape = tag_shape(schema, resolve(schema, node)?)?;
        Some(Self { property, shape, on_create: flag("tagOnCreate"), updatable: flag("tagUpdatable") })
    }

    /// Reads what [`fmt::Display`] writes.
    pub(super) fn parse_field(text: &str) -> Option<Self> {
        let mut words = text.split(':');
        let property = PropertyPath::parse(words.next()?)?;
        let shape = words.next()?;
        let shape = TagShape::ALL.into_iter().find(|candidate| candidate.word() == shape)?;
        let rest: Vec<&str> = words.collect();
        Some(Self {
            property,
            shape,
            on_create: rest.contains(&"create"),
            updatable: rest.contains(&"update"),
        })
    }
}

/// `Tags:list:create:update`: property, shape, when tags may be given.
impl fmt::Display for Tagging {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.property, self.shape.word())?;
        f.write_str(if self.on_create { ":create" } else { "" })?;
        f.write_str(if self.updatable { ":update" } else { "" })
    }
}

fn tag_shape(schema: &Value, node: &Value) -> Option<TagShape> {
    if is_type(node, "array") {
        let item = resolve(schema, node.get("items")?)?;
        // A choice of forms: the first that is known.
        let forms =
            item.get("oneOf").and_then(Value::as_array).map_or(std::slice::from_ref(item), Vec::as_slice);
        return forms.iter().find_map(|form| {
            let properties = form.get("properties")?;
            properties.get("Key").and(properties.get("Value"))?;
            Some(match properties.get("PropagateAtLaunch") {
                Some(_) => TagShape::PropagatingList,
                None => TagShape::List,
            })
        });
    }
    let map = is_type(node, "object") || node.get("patternProperties").is_some();
    (map && node.get("properties").is_none()).then_some(TagShape::Map)
}

#[cfg(test)]
mod tests {
    use super::super::lookup;
    use super::*;

    #[test]
    fn where_types_take_tags() {
        for (type_name, want) in [
            ("AWS::SQS::Queue", Some(("Tags", TagShape::List))),
            ("AWS::SSM::Parameter", Some(("Tags", TagShape::Map))),
            ("AWS::Cognito::UserPool", Some(("UserPoolTags", TagShape::Map))),
            ("AWS::AutoScaling::AutoScalingGroup", Some(("Tags", TagShape::PropagatingList))),
            ("AWS::SNS::Subscription", None),
            ("AWS::S3::BucketPolicy", None),
        ] {
            let tagging = lookup(type_name).unwrap_or_default().tagging;
            let got = tagging.as_ref().map(|tagging| (tagging.property.top(), tagging.shape));
            assert_eq!(got, want, "{type_name}");
        }
    }
}
