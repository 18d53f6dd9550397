//! What an expression evaluates to.
//!
//! A [`Node`] is a tree whose strings are lists of [`Piece`]s: plain text, a secret (its token, with the account and
//! region it belongs to), or something not known yet (with its reason). Three forms are made from it:
//!
//! - the *stored form* ([`Node::stored`]): JSON in which each secret is its `{{resolve:…}}` text;
//! - the *document form* ([`Node::to_document`]): JSON that keeps the pieces, for plans and journals;
//! - the live form, which only `provision` makes, in memory, the moment before a call (DESIGN 7).
//!
//! Only a [`Piece::Secret`] is ever made live: text that merely looks like a token stays text (rule S15).

use std::fmt;

use indexmap::IndexMap;
use serde_json::{Map, Number, Value, json};

use crate::error::{Code, Error, Result};

/// A secret in its stored form: the token, and whose it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Secret {
    /// The whole token, `{{resolve:service:reference}}`.
    pub token: String,
    /// The account and region the token is to be resolved in, when they are not the stack's own.
    pub account: Option<String>,
    pub region: Option<String>,
}

/// Why something has no value yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The resource is created or replaced by this run: every attribute of it is new.
    Pending { logical_id: String, attribute: Option<String> },
    /// The resource is updated by this run; the attribute may change.
    MayChange { logical_id: String, attribute: String },
    /// Anything else that is known only after the deploy, in words.
    Other(String),
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Pending { logical_id, attribute: None } => write!(f, "known after `{logical_id}`"),
            Reason::Pending { logical_id, attribute: Some(name) } => {
                write!(f, "known after `{logical_id}.{name}`")
            }
            Reason::MayChange { logical_id, attribute } => {
                write!(f, "may change with `{logical_id}.{attribute}`")
            }
            Reason::Other(text) => f.write_str(text),
        }
    }
}

/// A part of a string.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    Plain(String),
    Secret(Secret),
    Unknown(Reason),
}

/// A string as a list of pieces; neighbouring plain pieces are one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Text(Vec<Piece>);

impl Text {
    pub fn plain(text: impl Into<String>) -> Self {
        // Not by `push`: a vector that grows from nothing reserves room for four.
        let text = text.into();
        Self(if text.is_empty() { Vec::new() } else { vec![Piece::Plain(text)] })
    }

    pub fn pieces(&self) -> &[Piece] {
        &self.0
    }

    pub fn push(&mut self, piece: Piece) {
        match (self.0.last_mut(), piece) {
            (_, Piece::Plain(text)) if text.is_empty() => {}
            (Some(Piece::Plain(last)), Piece::Plain(text)) => last.push_str(&text),
            (_, piece) => self.0.push(piece),
        }
    }

    pub fn append(&mut self, other: Text) {
        for piece in other.0 {
            self.push(piece);
        }
    }

    /// The text, if all of it is plain.
    pub fn as_plain(&self) -> Option<&str> {
        match self.0.as_slice() {
            [] => Some(""),
            [Piece::Plain(text)] => Some(text),
            _ => None,
        }
    }

    /// The reason of the first piece that is not known.
    pub fn unknown(&self) -> Option<&Reason> {
        self.0.iter().find_map(|piece| if let Piece::Unknown(reason) = piece { Some(reason) } else { None })
    }

    pub fn secrets(&self) -> impl Iterator<Item = &Secret> {
        self.0.iter().filter_map(|piece| if let Piece::Secret(secret) = piece { Some(secret) } else { None })
    }

    /// The stored form: secrets as their tokens. `None` if a piece is not known.
    pub fn stored(&self) -> Option<String> {
        let mut out = String::new();
        for piece in &self.0 {
            match piece {
                Piece::Plain(text) => out.push_str(text),
                Piece::Secret(secret) => out.push_str(&secret.token),
                Piece::Unknown(_) => return None,
            }
        }
        Some(out)
    }
}

impl From<&str> for Text {
    fn from(text: &str) -> Self {
        Text::plain(text)
    }
}

/// A value of the template language.
#[derive(Clone, Debug, PartialEq)]
pub enum Node {
    Null,
    Bool(bool),
    Number(Number),
    Text(Text),
    List(Vec<Node>),
    Map(IndexMap<String, Node>),
    /// A value of unknown form: an attribute that may be a list, or a function of something unknown.
    Unknown(Reason),
    /// `AWS::NoValue`: the property, element or key that holds it is left out.
    NoValue,
}

impl Node {
    pub fn text(text: impl Into<String>) -> Self {
        Node::Text(Text::plain(text))
    }

    /// Plain JSON, whose strings are taken literally: nothing in it becomes a secret.
    pub fn literal(value: &Value) -> Self {
        match value {
            Value::Null => Node::Null,
            Value::Bool(flag) => Node::Bool(*flag),
            Value::Number(number) => Node::Number(number.clone()),
            Value::String(text) => Node::text(text.as_str()),
            Value::Array(items) => Node::List(items.iter().map(Node::literal).collect()),
            Value::Object(map) => {
                Node::Map(map.iter().map(|(key, value)| (key.clone(), Node::literal(value))).collect())
            }
        }
    }

    /// The plain string this node is, if it is one.
    pub fn as_plain(&self) -> Option<&str> {
        if let Node::Text(text) = self { text.as_plain() } else { None }
    }

    /// A scalar as the text CloudFormation makes of it: numbers and booleans become strings (rule T10).
    pub fn scalar_text(&self) -> Option<Text> {
        match self {
            Node::Text(text) => Some(text.clone()),
            Node::Bool(flag) => Some(Text::plain(flag.to_string())),
            Node::Number(number) => Some(Text::plain(number.to_string())),
            Node::Unknown(reason) => {
                let mut text = Text::default();
                text.push(Piece::Unknown(reason.clone()));
                Some(text)
            }
            Node::Null | Node::NoValue | Node::List(_) | Node::Map(_) => None,
        }
    }

    /// The reason of the first part that is not known.
    pub fn unknown(&self) -> Option<&Reason> {
        match self {
            Node::Unknown(reason) => Some(reason),
            Node::Text(text) => text.unknown(),
            Node::List(items) => items.iter().find_map(Node::unknown),
            Node::Map(map) => map.values().find_map(Node::unknown),
            Node::Null | Node::Bool(_) | Node::Number(_) | Node::NoValue => None,
        }
    }

    /// All secrets below this node, in order.
    pub fn secrets(&self) -> Vec<&Secret> {
        fn walk<'a>(node: &'a Node, found: &mut Vec<&'a Secret>) {
            match node {
                Node::Text(text) => found.extend(text.secrets()),
                Node::List(items) => items.iter().for_each(|item| walk(item, found)),
                Node::Map(map) => map.values().for_each(|item| walk(item, found)),
                _ => {}
            }
        }
        let mut found = Vec::new();
        walk(self, &mut found);
        found
    }

    /// The stored form; `Err` with the reason of the first unknown part. `NoValue` children are left out; a
    /// `NoValue` at the root is `null`.
    pub fn stored(&self) -> Result<Value, Reason> {
        Ok(match self {
            Node::Null | Node::NoValue => Value::Null,
            Node::Bool(flag) => Value::Bool(*flag),
            Node::Number(number) => Value::Number(number.clone()),
            Node::Text(text) => match text.stored() {
                Some(text) => Value::String(text),
                None => return Err(text.unknown().cloned().unwrap_or(Reason::Other("unknown".into()))),
            },
            Node::List(items) => Value::Array(
                items
                    .iter()
                    .filter(|item| **item != Node::NoValue)
                    .map(Node::stored)
                    .collect::<Result<Vec<_>, _>>()?,
            ),
            Node::Map(map) => {
                let mut out = Map::new();
                for (key, item) in map {
                    if *item != Node::NoValue {
                        out.insert(key.clone(), item.stored()?);
                    }
                }
                Value::Object(out)
            }
            Node::Unknown(reason) => return Err(reason.clone()),
        })
    }

    /// The stored form with a mark wherever something is not known yet, to compare and to show in a plan.
    pub fn preview(&self) -> Value {
        self.shown(&|reason| format!("({reason})"))
    }

    /// The same with a character of names in the place of what is not known, which may continue a name on either side.
    pub fn outline(&self) -> Value {
        self.shown(&|_| "_".to_owned())
    }

    fn shown(&self, unknown: &dyn Fn(&Reason) -> String) -> Value {
        match self {
            Node::Text(text) => {
                let parts = text.0.iter().map(|piece| match piece {
                    Piece::Plain(text) => text.clone(),
                    Piece::Secret(secret) => secret.token.clone(),
                    Piece::Unknown(reason) => unknown(reason),
                });
                Value::String(parts.collect())
            }
            Node::List(items) => {
                let items = items.iter().filter(|item| **item != Node::NoValue);
                Value::Array(items.map(|item| item.shown(unknown)).collect())
            }
            Node::Map(map) => Value::Object(
                map.iter()
                    .filter(|(_, item)| **item != Node::NoValue)
                    .map(|(key, item)| (key.clone(), item.shown(unknown)))
                    .collect(),
            ),
            Node::Unknown(reason) => Value::String(unknown(reason)),
            Node::Null | Node::NoValue => Value::Null,
            Node::Bool(flag) => Value::Bool(*flag),
            Node::Number(number) => Value::Number(number.clone()),
        }
    }

    /// JSON that keeps the pieces: a string that is not all plain is `{"$text": […]}`, a value of unknown form
    /// `{"$unknown": …}`; a map with a key that begins with `$` is `{"$map": {…}}`, so that no template can spell one.
    pub fn to_document(&self) -> Value {
        match self {
            Node::Null => Value::Null,
            Node::Bool(flag) => Value::Bool(*flag),
            Node::Number(number) => Value::Number(number.clone()),
            Node::Text(text) => match text.as_plain() {
                Some(plain) => Value::String(plain.to_owned()),
                None => json!({ "$text": text.0.iter().map(piece_to_document).collect::<Vec<_>>() }),
            },
            Node::List(items) => Value::Array(items.iter().map(Node::to_document).collect()),
            Node::Map(map) => {
                let inner: Map<String, Value> =
                    map.iter().map(|(key, item)| (key.clone(), item.to_document())).collect();
                if map.keys().any(|key| key.starts_with('$')) {
                    json!({ "$map": inner })
                } else {
                    Value::Object(inner)
                }
            }
            Node::Unknown(reason) => json!({ "$unknown": reason_to_document(reason) }),
            Node::NoValue => json!({ "$noValue": true }),
        }
    }

    /// Reads [`Node::to_document`] back.
    pub fn from_document(document: &Value) -> Result<Self> {
        let bad = || {
            Error::new(Code::InvalidState, "a value in a plan or journal does not have the documented form")
        };
        Ok(match document {
            Value::Array(items) => {
                Node::List(items.iter().map(Node::from_document).collect::<Result<Vec<_>>>()?)
            }
            Value::Object(map) => {
                let special = if map.len() == 1 { map.iter().next() } else { None };
                match special {
                    Some((key, Value::Array(pieces))) if key == "$text" => {
                        let mut text = Text::default();
                        for piece in pieces {
                            text.push(piece_from_document(piece).ok_or_else(bad)?);
                        }
                        Node::Text(text)
                    }
                    Some((key, reason)) if key == "$unknown" => {
                        Node::Unknown(reason_from_document(reason).ok_or_else(bad)?)
                    }
                    Some((key, _)) if key == "$noValue" => Node::NoValue,
                    Some((key, Value::Object(inner))) if key == "$map" => map_from_document(inner)?,
                    _ => map_from_document(map)?,
                }
            }
            scalar => Node::literal(scalar),
        })
    }
}

fn map_from_document(map: &Map<String, Value>) -> Result<Node> {
    let mut out = IndexMap::new();
    for (key, item) in map {
        out.insert(key.clone(), Node::from_document(item)?);
    }
    Ok(Node::Map(out))
}

fn piece_to_document(piece: &Piece) -> Value {
    match piece {
        Piece::Plain(text) => json!(text),
        Piece::Secret(secret) => {
            let mut out = Map::new();
            out.insert("secret".into(), json!(secret.token));
            if let Some(account) = &secret.account {
                out.insert("account".into(), json!(account));
            }
            if let Some(region) = &secret.region {
                out.insert("region".into(), json!(region));
            }
            Value::Object(out)
        }
        Piece::Unknown(reason) => json!({ "unknown": reason_to_document(reason) }),
    }
}

fn piece_from_document(value: &Value) -> Option<Piece> {
    if let Some(text) = value.as_str() {
        return Some(Piece::Plain(text.to_owned()));
    }
    if let Some(token) = value["secret"].as_str() {
        return Some(Piece::Secret(Secret {
            token: token.to_owned(),
            account: value["account"].as_str().map(str::to_owned),
            region: value["region"].as_str().map(str::to_owned),
        }));
    }
    reason_from_document(&value["unknown"]).map(Piece::Unknown)
}

fn reason_to_document(reason: &Reason) -> Value {
    match reason {
        Reason::Pending { logical_id, attribute: None } => json!({ "pending": logical_id }),
        Reason::Pending { logical_id, attribute: Some(name) } => {
            json!({ "pending": logical_id, "attribute": name })
        }
        Reason::MayChange { logical_id, attribute } => {
            json!({ "mayChange": logical_id, "attribute": attribute })
        }
        Reason::Other(text) => json!({ "other": text }),
    }
}

fn reason_from_document(value: &Value) -> Option<Reason> {
    let attribute = value["attribute"].as_str().map(str::to_owned);
    if let Some(logical_id) = value["pending"].as_str() {
        Some(Reason::Pending { logical_id: logical_id.to_owned(), attribute })
    } else if let Some(logical_id) = value["mayChange"].as_str() {
        Some(Reason::MayChange { logical_id: logical_id.to_owned(), attribute: attribute? })
    } else {
        value["other"].as_str().map(|text| Reason::Other(text.to_owned()))
    }
}

/// Whether two stored values are the same: numbers by value (`1` is `1.0`), maps whatever their order (rule E6).
pub fn same(left: &Value, right: &Value) -> bool {
    match (left, right) {
        (Value::Number(a), Value::Number(b)) => {
            // Integers beyond 2^53 are not compared as floats, which would take neighbours for one.
            let whole = |number: &Number| number.is_i64() || number.is_u64();
            a == b || (!(whole(a) && whole(b)) && a.as_f64().is_some() && a.as_f64() == b.as_f64())
        }
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b)),
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(key, a)| b.get(key).is_some_and(|b| same(a, b)))
        }
        (a, b) => a == b,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn secret(token: &str) -> Piece {
        Piece::Secret(Secret { token: token.into(), account: None, region: Some("eu-west-1".into()) })
    }

    #[test]
    fn stored_form_holds_the_token_and_leaves_no_value_out() {
        let mut text = Text::plain("password=");
        text.push(secret("{{resolve:secretsmanager:s}}"));
        let node = Node::Map(IndexMap::from([
            ("A".to_owned(), Node::Text(text)),
            ("B".to_owned(), Node::NoValue),
            ("C".to_owned(), Node::List(vec![Node::NoValue, Node::Bool(true)])),
        ]));
        assert_eq!(node.stored(), Ok(json!({"A": "password={{resolve:secretsmanager:s}}", "C": [true]})));
        assert_eq!(Node::from_document(&node.to_document()).unwrap(), node);
    }

    #[test]
    fn s15_text_that_looks_like_a_token_stays_text() {
        let node = Node::literal(&json!("{{resolve:ssm:/y}}"));
        assert!(node.secrets().is_empty());
        assert!(Node::from_document(&node.to_document()).unwrap().secrets().is_empty());
    }

    #[test]
    fn an_unknown_part_has_its_reason() {
        let reason = Reason::Pending { logical_id: "Queue".into(), attribute: Some("Arn".into()) };
        let mut text = Text::plain("arn: ");
        text.push(Piece::Unknown(reason.clone()));
        let node = Node::List(vec![Node::Text(text)]);
        assert_eq!(node.stored(), Err(reason));
        assert_eq!(node.unknown().unwrap().to_string(), "known after `Queue.Arn`");
    }

    #[test]
    fn equality_of_stored_values() {
        let table = [
            (json!(1), json!(1.0), true),
            (json!({"a": 1, "b": 2}), json!({"b": 2, "a": 1}), true),
            (json!([1, 2]), json!([2, 1]), false),
            (json!("1"), json!(1), false),
            (json!(9_007_199_254_740_992_i64), json!(9_007_199_254_740_993_i64), false),
            (json!({"a": null}), json!({}), false),
        ];
        for (left, right, expected) in table {
            assert_eq!(same(&left, &right), expected, "{left} {right}");
        }
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            "(\\$text|\\$map|\\$unknown|\\$noValue|[a-z${}:]{0,8})".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 32, 4, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                proptest::collection::vec(("(\\$text|\\$map|\\$unknown|\\$noValue|[a-z]{0,3})", inner), 0..4)
                    .prop_map(|pairs| Value::Object(pairs.into_iter().collect())),
            ]
        })
    }

    proptest! {
        /// No template can spell a secret, an unknown or a missing value through the document form.
        #[test]
        fn any_literal_survives_the_document_form(value in any_json()) {
            let node = Node::literal(&value);
            let back = Node::from_document(&node.to_document()).unwrap();
            prop_assert_eq!(back.stored().unwrap(), value);
        }
    }
}
