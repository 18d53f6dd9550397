//! Which scalar a type wants where: the part of its schema that [`coerce`](super::coerce) follows.

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use serde_json::Value;

/// What a type's properties look like, as far as it decides about scalars; empty if nothing is known.
///
/// Kept as the text that stands in the table and read only while it is followed: most uses of a schema never ask.
/// The text is a list of objects, separated by `;`; the first are the properties of the resource. An object is a
/// list of members, separated by commas: a name, then its shape.
///
/// | shape | value |
/// |---|---|
/// | (nothing) | text |
/// | `#` | an integer |
/// | `%` | a number |
/// | `?` | a boolean |
/// | `-` | left alone |
/// | `[` and a shape | a list of these |
/// | `:` and a position | the object there |
///
/// Members that are left alone are left out. The last member may be `*`: any other name, as in a map.
/// `Enabled?,Rules[:1;Id,Days#` has a boolean, and a list of objects that have a text and an integer. Objects may
/// refer to each other in a circle, as statements of a web ACL do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shapes(String);

/// A shape in the text of [`Shapes`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape<'t> {
    Text,
    Integer,
    Number,
    Boolean,
    Open,
    /// The rest is the items' shape.
    List(&'t str),
    /// The position of an object.
    Object(usize),
}

impl<'t> Shape<'t> {
    /// What is not understood is left alone.
    pub(super) fn parse(text: &'t str) -> Self {
        let Some(sign) = text.chars().next() else { return Self::Text };
        let rest = text.get(1..).unwrap_or_default();
        match sign {
            '#' => Self::Integer,
            '%' => Self::Number,
            '?' => Self::Boolean,
            '[' => Self::List(rest),
            ':' => rest.parse().map_or(Self::Open, Self::Object),
            _ => Self::Open,
        }
    }
}

const SIGNS: &[char] = &['#', '%', '?', '-', '[', ':'];

/// The members of an object in the text of [`Shapes`]: names with their shapes.
pub(super) fn members(object: &str) -> impl Iterator<Item = (&str, &str)> {
    let members = object.split(',').filter(|member| !member.is_empty());
    members.map(|member| member.split_at(member.find(SIGNS).unwrap_or(member.len())))
}

impl Shapes {
    /// From a type's schema, without the properties for which `skip` holds.
    pub(super) fn from_schema(schema: &Value, skip: impl Fn(&str) -> bool) -> Self {
        let mut reader = Reader { schema, fuel: 200_000 };
        let Form::Object(mut root) = reader.read(schema, DEPTH) else { return Self::default() };
        root.retain(|name, _| !skip(name));
        let mut layout = Layout { reader, positions: HashMap::new(), objects: Vec::new() };
        layout.object(root, None);
        Self(layout.write())
    }

    /// Reads what [`fmt::Display`] writes.
    pub(super) fn parse_field(text: &str) -> Self {
        Self(text.to_owned())
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The objects; shapes refer to them by position.
    pub(super) fn objects(&self) -> Vec<&str> {
        self.0.split(';').collect()
    }
}

impl fmt::Display for Shapes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// How deep a schema is followed outside its definitions; deeper ones do not occur.
const DEPTH: usize = 24;

/// What a node of a schema allows.
#[derive(Clone, Debug, PartialEq)]
enum Form<'s> {
    /// Anything, or alternatives that a scalar's text cannot tell apart.
    Any,
    Text,
    /// One of some words, none of which is the text of a number or boolean.
    Word,
    Integer,
    Number,
    Boolean,
    List(Box<Form<'s>>),
    /// By name; `*` is any other name.
    Object(Members<Form<'s>>),
    /// As the definition that this pointer of the schema leads to.
    Defined(&'s str),
}

type Members<T> = BTreeMap<String, T>;

struct Reader<'s> {
    schema: &'s Value,
    /// How many more nodes are read: alternatives of alternatives must not take for ever.
    fuel: usize,
}

impl<'s> Reader<'s> {
    fn read(&mut self, node: &'s Value, depth: usize) -> Form<'s> {
        if depth == 0 || self.fuel == 0 {
            return Form::Any;
        }
        self.fuel -= 1;
        let mut form = self.read_types(node, depth);
        if let Some(pointer) = node.get("$ref").and_then(Value::as_str) {
            form = self.both(form, Form::Defined(pointer), depth);
        }
        for part in list(node, "allOf") {
            let part = self.read(part, depth - 1);
            form = self.both(form, part, depth);
        }
        for choice in ["oneOf", "anyOf"] {
            let mut forms = list(node, choice).iter();
            let Some(first) = forms.next() else { continue };
            let mut either = self.read(first, depth - 1);
            for other in forms {
                let other = self.read(other, depth - 1);
                either = self.either(either, other, depth);
            }
            form = self.both(form, either, depth);
        }
        form
    }

    /// What the node says itself.
    fn read_types(&mut self, node: &'s Value, depth: usize) -> Form<'s> {
        let types: Vec<&str> = match node.get("type") {
            Some(Value::String(one)) => vec![one],
            Some(Value::Array(any)) => any.iter().filter_map(Value::as_str).collect(),
            _ if node.get("items").is_some() => vec!["array"],
            _ => vec!["object"],
        };
        let mut forms = Vec::new();
        for name in types {
            forms.push(match name {
                "null" => continue,
                "string" if words_only(node) => Form::Word,
                "string" => Form::Text,
                "integer" => Form::Integer,
                "number" => Form::Number,
                "boolean" => Form::Boolean,
                "array" => match node.get("items") {
                    Some(items) => Form::List(Box::new(self.read(items, depth - 1))),
                    None => Form::Any,
                },
                "object" => self.read_object(node, depth),
                _ => Form::Any,
            });
        }
        forms.into_iter().reduce(|a, b| self.either(a, b, depth)).unwrap_or(Form::Any)
    }

    fn read_object(&mut self, node: &'s Value, depth: usize) -> Form<'s> {
        let named = node.get("properties").and_then(Value::as_object).into_iter().flatten();
        let mut members: Members<_> =
            named.map(|(name, node)| (name.clone(), self.read(node, depth - 1))).collect();
        let patterns = node.get("patternProperties").and_then(Value::as_object).into_iter().flatten();
        let rest = node.get("additionalProperties").filter(|rest| rest.is_object());
        // Which pattern a name fits is not asked; they agree nearly always.
        let others: Vec<_> =
            patterns.map(|(_, node)| node).chain(rest).map(|node| self.read(node, depth - 1)).collect();
        if let Some(other) = others.into_iter().reduce(|a, b| self.either(a, b, depth)) {
            members.insert("*".to_owned(), other);
        }
        if members.is_empty() { Form::Any } else { Form::Object(members) }
    }

    fn definition(&mut self, pointer: &str, depth: usize) -> Form<'s> {
        let schema = self.schema;
        match pointer.strip_prefix('#').and_then(|pointer| schema.pointer(pointer)) {
            Some(node) if depth > 0 => self.read(node, depth - 1),
            _ => Form::Any,
        }
    }

    /// The form of what has either form.
    fn either(&mut self, a: Form<'s>, b: Form<'s>, depth: usize) -> Form<'s> {
        match (a, b) {
            (a, b) if a == b => a,
            _ if depth == 0 => Form::Any,
            (Form::Defined(pointer), other) | (other, Form::Defined(pointer)) => {
                let defined = self.definition(pointer, depth);
                self.either(defined, other, depth - 1)
            }
            (Form::Text, Form::Word) | (Form::Word, Form::Text) => Form::Text,
            // Text beside a list or an object is its JSON, or a name for it. It stays text.
            (Form::Text | Form::Word, holder @ (Form::List(_) | Form::Object(_)))
            | (holder @ (Form::List(_) | Form::Object(_)), Form::Text | Form::Word) => holder,
            (Form::Integer, Form::Number) | (Form::Number, Form::Integer) => Form::Number,
            (Form::List(a), Form::List(b)) => Form::List(Box::new(self.either(*a, *b, depth - 1))),
            (Form::Object(a), Form::Object(b)) => {
                Form::Object(merge(a, b, |a, b| self.either(a, b, depth - 1)))
            }
            _ => Form::Any,
        }
    }

    /// The form of what has both forms.
    fn both(&mut self, a: Form<'s>, b: Form<'s>, depth: usize) -> Form<'s> {
        match (a, b) {
            (Form::Any, other) | (other, Form::Any) => other,
            (a, b) if a == b => a,
            _ if depth == 0 => Form::Any,
            (Form::Defined(pointer), other) | (other, Form::Defined(pointer)) => {
                let defined = self.definition(pointer, depth);
                self.both(defined, other, depth - 1)
            }
            (Form::Text, Form::Word) | (Form::Word, Form::Text) => Form::Word,
            (Form::Integer, Form::Number) | (Form::Number, Form::Integer) => Form::Integer,
            (Form::List(a), Form::List(b)) => Form::List(Box::new(self.both(*a, *b, depth - 1))),
            (Form::Object(a), Form::Object(b)) => {
                Form::Object(merge(a, b, |a, b| self.both(a, b, depth - 1)))
            }
            // Nothing has both. The service will say so.
            _ => Form::Any,
        }
    }
}

/// A member that only one of them has stays: where the other form holds, it is not there.
fn merge<T>(mut a: Members<T>, b: Members<T>, mut join: impl FnMut(T, T) -> T) -> Members<T> {
    for (name, b) in b {
        let joined = match a.remove(&name) {
            Some(a) => join(a, b),
            None => b,
        };
        a.insert(name, joined);
    }
    a
}

fn list<'s>(node: &'s Value, key: &str) -> &'s [Value] {
    node.get(key).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

/// Whether the node lists the values it takes, and no template could give one of them as a number or boolean.
fn words_only(node: &Value) -> bool {
    let words = list(node, "enum");
    let is_word =
        |word: &Value| word.as_str().is_some_and(|word| serde_json::from_str::<Value>(word).is_err());
    !words.is_empty() && words.iter().all(is_word)
}

/// A form whose objects have positions.
#[derive(Clone, Debug)]
enum Placed {
    /// Left alone.
    Open,
    /// A scalar, by its sign.
    Scalar(&'static str),
    List(Box<Placed>),
    Object(usize),
}

struct Layout<'s> {
    reader: Reader<'s>,
    positions: HashMap<&'s str, usize>,
    objects: Vec<Members<Placed>>,
}

impl<'s> Layout<'s> {
    /// Gives an object a position. One with a pointer has it before its members: these may lead back to it.
    fn object(&mut self, members: Members<Form<'s>>, pointer: Option<&'s str>) -> usize {
        let position = self.objects.len();
        self.objects.push(Members::new());
        if let Some(pointer) = pointer {
            self.positions.insert(pointer, position);
        }
        let mut placed = Members::new();
        for (name, form) in members {
            placed.insert(name, self.place(form, DEPTH));
        }
        if let Some(object) = self.objects.get_mut(position) {
            *object = placed;
        }
        position
    }

    /// `depth` bounds definitions that lead to each other without an object between.
    fn place(&mut self, form: Form<'s>, depth: usize) -> Placed {
        match form {
            _ if depth == 0 => Placed::Open,
            Form::Any | Form::Word => Placed::Open,
            Form::Text => Placed::Scalar(""),
            Form::Integer => Placed::Scalar("#"),
            Form::Number => Placed::Scalar("%"),
            Form::Boolean => Placed::Scalar("?"),
            Form::List(items) => Placed::List(Box::new(self.place(*items, depth - 1))),
            Form::Object(members) => Placed::Object(self.object(members, None)),
            Form::Defined(pointer) => match self.positions.get(pointer) {
                Some(position) => Placed::Object(*position),
                None => match self.reader.definition(pointer, DEPTH) {
                    Form::Object(members) => Placed::Object(self.object(members, Some(pointer))),
                    other => self.place(other, depth - 1),
                },
            },
        }
    }

    /// The text: objects that say nothing are left out, equal ones stand once.
    fn write(mut self) -> String {
        self.drop_what_says_nothing();
        let classes = self.classes();
        // In the order in which the text refers to them.
        let mut order: Vec<usize> = vec![0];
        let mut positions: HashMap<usize, usize> = HashMap::new();
        positions.extend(classes.first().map(|class| (*class, 0)));
        let mut text = String::new();
        let mut next = 0;
        while let Some(object) = order.get(next).and_then(|object| self.objects.get(*object)) {
            if next > 0 {
                text.push(';');
            }
            text.push_str(&write_object(object, &mut |position| {
                let class = classes.get(position).copied().unwrap_or_default();
                *positions.entry(class).or_insert_with(|| {
                    order.push(position);
                    order.len() - 1
                })
            }));
            next += 1;
        }
        text
    }

    fn drop_what_says_nothing(&mut self) {
        let mut telling = vec![false; self.objects.len()];
        // Until nothing new tells: circles of objects do not tell by themselves.
        loop {
            let now: Vec<bool> = self
                .objects
                .iter()
                .map(|object| object.values().any(|placed| tells(placed, &telling)))
                .collect();
            if now == telling {
                break;
            }
            telling = now;
        }
        for object in &mut self.objects {
            for placed in object.values_mut() {
                if !tells(placed, &telling) {
                    *placed = Placed::Open;
                }
            }
            // No text holds such names. What other names are is then not known either.
            let odd = |name: &str| {
                name.contains([',', ';', ' ', '=', '\n']) || name.contains(SIGNS) || !name.is_ascii()
            };
            if object.keys().any(|name| odd(name)) {
                object.retain(|name, _| !odd(name) && name != "*");
            }
            if !object.contains_key("*") {
                object.retain(|_, placed| !matches!(placed, Placed::Open));
            }
        }
    }

    /// A number per object; equal objects have the same. Refined from "all are equal" until nothing splits, so that
    /// circles come out right.
    fn classes(&self) -> Vec<usize> {
        let mut classes = vec![0; self.objects.len()];
        let mut count = 1;
        loop {
            let mut seen: HashMap<String, usize> = HashMap::new();
            let mut refined = Vec::with_capacity(classes.len());
            for object in &self.objects {
                let text =
                    write_object(object, &mut |position| classes.get(position).copied().unwrap_or_default());
                let fresh = seen.len();
                refined.push(*seen.entry(text).or_insert(fresh));
            }
            classes = refined;
            if seen.len() <= count {
                return classes;
            }
            count = seen.len();
        }
    }
}

/// Whether any scalar below is not left alone.
fn tells(placed: &Placed, telling: &[bool]) -> bool {
    match placed {
        Placed::Open => false,
        Placed::Scalar(_) => true,
        Placed::List(items) => tells(items, telling),
        Placed::Object(position) => telling.get(*position).copied().unwrap_or_default(),
    }
}

fn write_object(object: &Members<Placed>, position: &mut impl FnMut(usize) -> usize) -> String {
    let (other, named): (Vec<_>, Vec<_>) = object.iter().partition(|(name, _)| *name == "*");
    let members: Vec<String> = named
        .into_iter()
        .chain(other)
        .map(|(name, placed)| format!("{name}{}", write_shape(placed, position)))
        .collect();
    members.join(",")
}

fn write_shape(placed: &Placed, position: &mut impl FnMut(usize) -> usize) -> String {
    match placed {
        Placed::Open => "-".to_owned(),
        Placed::Scalar(sign) => (*sign).to_owned(),
        Placed::List(items) => format!("[{}", write_shape(items, position)),
        Placed::Object(object) => format!(":{}", position(*object)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::{lookup, type_names};
    use super::*;

    #[test]
    fn what_schemas_say() {
        let text = json!({"type": "string"});
        let integer = json!({"type": "integer"});
        for (what, properties, want) in [
            (
                "scalars",
                json!({"T": text, "I": integer, "N": {"type": "number"}, "B": {"type": "boolean"}}),
                "B?,I#,N%,T",
            ),
            ("lists", json!({"A": {"type": "array", "items": {"type": "array", "items": integer}}}), "A[[#"),
            ("a definition", json!({"A": {"$ref": "#/definitions/Port"}}), "A#"),
            ("a definition of an object", json!({"A": {"$ref": "#/definitions/Tag"}}), "A:1;Key,Value"),
            (
                "equal objects",
                json!({"A": {"$ref": "#/definitions/Tag"}, "B": {"properties": {"Key": text, "Value": text}}}),
                "A:1,B:1;Key,Value",
            ),
            ("a circle", json!({"A": {"$ref": "#/definitions/Tree"}}), "A:1;Leaf#,Trees[:1"),
            ("a circle without scalars", json!({"A": {"$ref": "#/definitions/Void"}, "B": text}), "B"),
            ("a circle without objects", json!({"A": {"$ref": "#/definitions/Lists"}, "B": text}), "B"),
            ("a circle of definitions", json!({"A": {"$ref": "#/definitions/Self"}, "B": text}), "B"),
            ("no such definition", json!({"A": {"$ref": "#/definitions/Nothing"}, "B": text}), "B"),
            ("a map", json!({"A": {"type": "object", "patternProperties": {".*": text}}}), "A:1;*"),
            (
                "a map by its values",
                json!({"A": {"type": "object", "additionalProperties": integer}}),
                "A:1;*#",
            ),
            (
                "patterns that disagree",
                json!({"A": {"patternProperties": {"a": text, "b": integer}}, "B": text}),
                "B",
            ),
            (
                "a map with names that are left alone",
                json!({"A": {"properties": {"X": {"type": "object"}}, "additionalProperties": text}}),
                "A:1;X-,*",
            ),
            ("JSON", json!({"A": {"type": ["object", "string"]}, "B": {"type": "object"}, "C": text}), "C"),
            (
                "JSON of a known form",
                json!({"A": {"type": ["object", "string"], "properties": {"X": integer}}}),
                "A:1;X#",
            ),
            ("a choice of types", json!({"A": {"type": ["integer", "string"]}, "B": text}), "B"),
            ("a number of either kind", json!({"A": {"type": ["integer", "number"]}}), "A%"),
            ("or null", json!({"A": {"type": ["boolean", "null"]}}), "A?"),
            ("branches that agree", json!({"A": {"oneOf": [text, {"type": "string", "enum": ["X"]}]}}), "A"),
            ("branches that disagree", json!({"A": {"oneOf": [text, integer]}, "B": text}), "B"),
            (
                "branches that only restrict",
                json!({"A": {"type": "string", "anyOf": [{}, {"pattern": "x"}]}}),
                "A",
            ),
            (
                "branches with other members",
                json!({"A": {"oneOf": [
                    {"properties": {"X": integer, "Z": text}}, {"properties": {"Y": text, "Z": integer}}]}}),
                "A:1;X#,Y",
            ),
            (
                "branches in a definition",
                json!({"A": {"anyOf": [{"$ref": "#/definitions/Tag"}, {"properties": {"Key": integer}}]}}),
                "A:1;Value",
            ),
            ("all of", json!({"A": {"allOf": [{"minimum": 1}, integer]}}), "A#"),
            ("words", json!({"A": {"type": "string", "enum": ["On", "Off"]}, "B": text}), "B"),
            ("numbers as text", json!({"A": {"type": "string", "enum": ["1.0", "Off"]}}), "A"),
            (
                "names that the text cannot hold",
                json!({"a b": integer, "c,d": text, "e:f": text, "G": text}),
                "G",
            ),
            ("what AWS sets", json!({"Arn": text, "A": text}), "A"),
            ("nothing", json!({"A": {}}), ""),
        ] {
            let schema = json!({
                "definitions": {
                    "Port": integer,
                    "Tag": {"type": "object", "properties": {"Key": text, "Value": text}},
                    "Tree": {"properties": {
                        "Leaf": integer, "Trees": {"type": "array", "items": {"$ref": "#/definitions/Tree"}}}},
                    "Void": {"properties": {"Void": {"$ref": "#/definitions/Void"}}},
                    "Lists": {"type": "array", "items": {"$ref": "#/definitions/Lists"}},
                    "Self": {"$ref": "#/definitions/Self"},
                },
                "properties": properties,
            });
            assert_eq!(Shapes::from_schema(&schema, |name| name == "Arn").to_string(), want, "{what}");
        }
    }

    /// Alternatives that lead back to themselves multiply; reading them ends, and nothing is known.
    #[test]
    fn circles_of_alternatives() {
        let alternatives = |names: [&str; 3]| -> Value {
            let branches = names.map(|name| {
                let name = format!("#/definitions/{name}");
                json!({"properties": {"X": {"$ref": name}, "Y": {"$ref": name}, "Z": {"type": "integer"}}})
            });
            json!({"anyOf": branches})
        };
        let schema = json!({
            "definitions": {
                "A": alternatives(["A", "B", "C"]),
                "B": alternatives(["B", "C", "A"]),
                "C": alternatives(["C", "A", "B"]),
            },
            "properties": {"A": {"$ref": "#/definitions/A"}},
        });
        assert!(Shapes::from_schema(&schema, |_| false).is_empty());
    }

    #[test]
    fn shapes_of_the_table_lead_somewhere() {
        for type_name in type_names() {
            let schema = lookup(type_name).unwrap_or_default();
            let objects = schema.shapes.objects();
            for (name, shape) in objects.iter().flat_map(|object| members(object)) {
                match Shape::parse(shape.trim_start_matches('[')) {
                    Shape::Object(position) => assert!(position < objects.len(), "{type_name} {name}{shape}"),
                    Shape::Open => assert_eq!(shape, "-", "{type_name} {name}"),
                    _ => {}
                }
            }
        }
    }
}
