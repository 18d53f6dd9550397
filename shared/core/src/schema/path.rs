//! Paths of properties, as resource schemas write them, and what they select.

use std::fmt;

use serde_json::{Number, Value};

/// The path of a property below a resource's properties: `Code/ZipFile`, `Rules/*/Id`.
///
/// `*` stands for every item of a list and every value of a map. Schemas sometimes omit it; a list met on the
/// way to a named property is therefore entered too.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PropertyPath(Vec<String>);

impl PropertyPath {
    /// Reads a JSON pointer of a schema (`/properties/Rules/*/Id`) or the bare form (`Rules/*/Id`).
    /// `None` if it names nothing.
    pub fn parse(text: &str) -> Option<Self> {
        let bare = text.strip_prefix("/properties/").unwrap_or(text);
        let segments: Vec<String> = bare.split('/').map(str::to_owned).collect();
        (!segments.iter().any(String::is_empty)).then_some(Self(segments))
    }

    /// A path of these segments.
    pub fn new<S: Into<String>>(segments: impl IntoIterator<Item = S>) -> Self {
        Self(segments.into_iter().map(Into::into).collect())
    }

    /// The names on the way down; never empty for a path that was parsed.
    pub fn segments(&self) -> &[String] {
        &self.0
    }

    /// The property of the resource that the path starts at.
    pub fn top(&self) -> &str {
        self.0.first().map_or("", String::as_str)
    }

    /// Whether `other` is at this path or below it. `*` meets any segment, an index too.
    pub fn covers(&self, other: &Self) -> bool {
        self.0.len() <= other.0.len() && self.meets(other)
    }

    /// Whether a change at `other` may change what this path selects: it is at this path, below it or above it.
    pub fn touches(&self, other: &Self) -> bool {
        self.meets(other)
    }

    fn meets(&self, other: &Self) -> bool {
        self.0.iter().zip(&other.0).all(|(a, b)| a == "*" || b == "*" || a == b)
    }

    /// The first value at this path.
    pub fn first<'v>(&self, model: &'v Value) -> Option<&'v Value> {
        first(&self.0, model)
    }

    /// Whether what this path selects differs between two models. Only that counts: a change beside it, in the
    /// same list item or object, does not (rule T7). Absent and `null` are the same; see [`same`] for the rest.
    pub fn differs(&self, old: &Value, new: &Value) -> bool {
        differs(&self.0, Some(old), Some(new))
    }

    /// Removes what this path selects, and objects that become empty by it. Returns whether anything went.
    pub fn remove(&self, model: &mut Value) -> bool {
        remove(&self.0, model)
    }
}

impl fmt::Display for PropertyPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("/"))
    }
}

/// Whether two values are the same to CloudFormation: scalars by their text (`60` is `"60"`, `true` is
/// `"true"`: templates and parameters write either), numbers also by value (`1` is `1.0`), objects in any order,
/// lists in order.
pub fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b)),
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(key, a)| b.get(key).is_some_and(|b| same(a, b)))
        }
        (Value::Number(a), Value::Number(b)) => a == b || (!(a.is_i64() && b.is_i64()) && by_value(a, b)),
        _ => a == b || scalar(a).is_some_and(|text| Some(text) == scalar(b)),
    }
}

/// Two integers are never compared like this: large ones would lose their last digits.
fn by_value(a: &Number, b: &Number) -> bool {
    a.as_f64().is_some_and(|a| b.as_f64() == Some(a))
}

/// The text of a string, number or boolean.
pub fn scalar(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(flag) => Some(flag.to_string()),
        _ => None,
    }
}

fn first<'v>(path: &[String], value: &'v Value) -> Option<&'v Value> {
    let Some((segment, rest)) = path.split_first() else { return Some(value) };
    match value {
        Value::Object(map) if segment == "*" => map.values().find_map(|value| first(rest, value)),
        Value::Object(map) => first(rest, map.get(segment)?),
        Value::Array(items) if segment == "*" => items.iter().find_map(|item| first(rest, item)),
        Value::Array(items) => items.iter().find_map(|item| first(path, item)),
        _ => None,
    }
}

fn differs(path: &[String], old: Option<&Value>, new: Option<&Value>) -> bool {
    let old = old.filter(|value| !value.is_null());
    let new = new.filter(|value| !value.is_null());
    let Some((segment, rest)) = path.split_first() else {
        return match (old, new) {
            (Some(old), Some(new)) => !same(old, new),
            (old, new) => old.is_some() != new.is_some(),
        };
    };
    let Some(any) = old.or(new) else { return false };
    match any {
        Value::Array(_) => {
            let rest = if segment == "*" { rest } else { path };
            let items = |value: Option<&Value>| value.and_then(Value::as_array).map_or(0, Vec::len);
            (0..items(old).max(items(new)))
                .any(|i| differs(rest, old.and_then(|v| v.get(i)), new.and_then(|v| v.get(i))))
        }
        Value::Object(_) if segment == "*" => {
            let keys = |value: Option<&'_ Value>| -> Vec<String> {
                value.and_then(Value::as_object).map(|map| map.keys().cloned().collect()).unwrap_or_default()
            };
            keys(old)
                .iter()
                .chain(&keys(new))
                .any(|key| differs(rest, old.and_then(|v| v.get(key)), new.and_then(|v| v.get(key))))
        }
        Value::Object(_) => differs(rest, old.and_then(|v| v.get(segment)), new.and_then(|v| v.get(segment))),
        // A scalar where the schema has an object: an expression's result, or JSON as text. All or nothing.
        _ => differs(&[], old, new),
    }
}

fn remove(path: &[String], value: &mut Value) -> bool {
    let Some((segment, rest)) = path.split_first() else { return false };
    match value {
        Value::Object(map) if segment == "*" => {
            if rest.is_empty() {
                let any = !map.is_empty();
                map.clear();
                return any;
            }
            map.values_mut().fold(false, |any, value| remove(rest, value) | any)
        }
        Value::Object(map) if rest.is_empty() => map.shift_remove(segment).is_some(),
        Value::Object(map) => {
            let Some(child) = map.get_mut(segment) else { return false };
            let removed = remove(rest, child);
            if removed && child.as_object().is_some_and(serde_json::Map::is_empty) {
                map.shift_remove(segment);
            }
            removed
        }
        Value::Array(items) => {
            let rest = if segment == "*" { rest } else { path };
            if rest.is_empty() {
                let any = !items.is_empty();
                items.clear();
                return any;
            }
            items.iter_mut().fold(false, |any, item| remove(rest, item) | any)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn path(text: &str) -> PropertyPath {
        PropertyPath::new(text.split('/'))
    }

    #[test]
    fn pointers_of_schemas() {
        for (text, want) in [
            ("/properties/QueueName", Some("QueueName")),
            ("/properties/Rules/*/Id", Some("Rules/*/Id")),
            ("Code/ZipFile", Some("Code/ZipFile")),
            ("", None),
            ("/properties/", None),
            ("/properties//A", None),
        ] {
            assert_eq!(PropertyPath::parse(text).map(|path| path.to_string()).as_deref(), want, "{text}");
        }
    }

    #[test]
    fn where_a_change_is() {
        // (path of the schema, path of the change, covers, touches)
        for (schema, change, covers, touches) in [
            ("A", "A", true, true),
            ("A", "A/B", true, true),
            ("A/B", "A", false, true),
            ("A/B", "A/C", false, false),
            ("A/*/B", "A/0/B", true, true),
            ("A/*/B", "A/0/B/C", true, true),
            ("A/*/B", "A/0/C", false, false),
            ("A/*/B", "A/0", false, true),
            ("A", "AB", false, false),
        ] {
            assert_eq!(path(schema).covers(&path(change)), covers, "{schema} covers {change}");
            assert_eq!(path(schema).touches(&path(change)), touches, "{schema} touches {change}");
        }
    }

    #[test]
    fn only_what_the_path_selects_counts() {
        for (at, old, new, want) in [
            ("A", json!({"A": 1}), json!({"A": 1}), false),
            ("A", json!({"A": 1}), json!({"A": 2}), true),
            ("A", json!({"A": 1}), json!({}), true),
            ("A", json!({"A": null}), json!({}), false),
            ("A", json!({"A": "60"}), json!({"A": 60}), false),
            ("A", json!({"A": true}), json!({"A": "true"}), false),
            ("A", json!({"A": 1}), json!({"A": 1.0}), false),
            ("A", json!({"A": 9_007_199_254_740_993_i64}), json!({"A": 9_007_199_254_740_992_i64}), true),
            ("A", json!({"A": {"x": 1, "y": 2}}), json!({"A": {"y": 2, "x": 1}}), false),
            ("A", json!({"A": {"x": 1}}), json!({"A": {"x": 1, "y": 2}}), true),
            ("A/B", json!({"A": {"B": 1, "C": 1}}), json!({"A": {"B": 1, "C": 2}}), false),
            ("A/B", json!({"A": {"B": 1}}), json!({"A": {"B": 2}}), true),
            ("A/B", json!({"A": {"B": 1}}), json!({}), true),
            ("A/B", json!({"A": {"C": 1}}), json!({}), false),
            ("A/*/B", json!({"A": [{"B": 1}]}), json!({"A": [{"B": 1}, {"C": 1}]}), false),
            ("A/*/B", json!({"A": [{"B": 1}]}), json!({"A": [{"B": 1}, {"B": 2}]}), true),
            ("A/*/B", json!({"A": [{"B": 1, "C": 1}]}), json!({"A": [{"B": 1, "C": 2}]}), false),
            ("A/B", json!({"A": [{"B": 1}]}), json!({"A": [{"B": 2}]}), true),
            ("A/*", json!({"A": [1, 2]}), json!({"A": [1, 2]}), false),
            ("A/*", json!({"A": [1, 2]}), json!({"A": [1]}), true),
            ("A/*/B", json!({"A": {"k": {"B": 1}}}), json!({"A": {"k": {"B": 2}}}), true),
            ("A/*/B", json!({"A": {"k": {"B": 1}}}), json!({"A": {"k": {"B": 1, "C": 2}}}), false),
            ("A/B", json!({"A": "text"}), json!({"A": "text"}), false),
            ("A/B", json!({"A": "text"}), json!({"A": "other"}), true),
        ] {
            assert_eq!(path(at).differs(&old, &new), want, "{at}: {old} -> {new}");
            assert_eq!(path(at).differs(&new, &old), want, "{at}: {new} -> {old}");
        }
    }

    #[test]
    fn removal() {
        for (at, model, want) in [
            ("A", json!({"A": 1, "B": 2}), json!({"B": 2})),
            ("A/B", json!({"A": {"B": 1, "C": 2}}), json!({"A": {"C": 2}})),
            ("A/B", json!({"A": {"B": 1}, "C": 2}), json!({"C": 2})),
            ("A/B", json!({"A": {}}), json!({"A": {}})),
            ("A/*/B", json!({"A": [{"B": 1, "C": 2}, {"B": 3}]}), json!({"A": [{"C": 2}, {}]})),
            ("A/B", json!({"A": [{"B": 1, "C": 2}]}), json!({"A": [{"C": 2}]})),
            ("A/*/B", json!({"A": {"k": {"B": 1, "C": 2}}}), json!({"A": {"k": {"C": 2}}})),
            ("A/B", json!({"A": "text"}), json!({"A": "text"})),
        ] {
            let mut left = model.clone();
            let removed = path(at).remove(&mut left);
            assert_eq!(left, want, "{at} from {model}");
            assert_eq!(removed, model != want, "{at} from {model}");
        }
    }
}
