//! References to assets in a template, redirected before it is evaluated.
//!
//! Fold first, then match: in any tree of `Fn::Join` and `Fn::Sub` every run that is constant for the deploy is text, so
//! that a name is seen with its real neighbours; what is not constant counts as a part of the name. A tree without a match
//! stays as it is, byte for byte; one with a match becomes the same runs joined.
//!
//! Source: DESIGN 9; `seeds/asset-storage.txt`, section 7.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::matching::Edge;
use super::table::Table;

/// What is constant for the deploy of one stack.
#[derive(Clone, Debug, Default)]
pub struct Constants {
    /// Pseudo parameters (`AWS::Region`) and parameters; never a secret.
    pub values: BTreeMap<String, String>,
}

/// What a rewrite did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rewritten {
    /// Expressions that were redirected.
    pub changed: usize,
    /// References that look like an asset's and are none, by the places that they were left at.
    pub left: Vec<(String, String)>,
}

impl Table {
    /// Redirects the references in the properties of resources and in the values of outputs. Metadata, names of exports and
    /// conditions, and logical ids stay.
    pub fn rewrite(&mut self, template: &mut Value, constants: &Constants) -> Rewritten {
        let mut rewritten = Rewritten::default();
        if self.is_empty() {
            return rewritten;
        }
        let mappings = template.get_mut("Mappings").map(Value::take);
        let mut walk = Walk {
            table: self,
            constants,
            mappings: mappings.as_ref(),
            at: String::new(),
            rewritten: &mut rewritten,
            scratch: Vec::new(),
        };
        for (section, field) in [("Resources", "Properties"), ("Outputs", "Value")] {
            for (id, item) in template.get_mut(section).and_then(Value::as_object_mut).into_iter().flatten() {
                if let Some(value) = item.get_mut(field) {
                    walk.at.clone_from(id);
                    walk.value(value, &Edge::END, &Edge::END);
                }
            }
        }
        if let (Some(mappings), Some(place)) = (mappings, template.get_mut("Mappings")) {
            *place = mappings;
        }
        for (_, text) in &rewritten.left {
            self.leave(text.clone());
        }
        rewritten
    }
}

struct Walk<'w> {
    table: &'w Table,
    constants: &'w Constants,
    mappings: Option<&'w Value>,
    /// The logical id, or the output.
    at: String,
    rewritten: &'w mut Rewritten,
    /// Constant text of one expression; a byte that is none of UTF-8 stands for what is not constant.
    scratch: Vec<u8>,
}

/// In [`Walk::scratch`], something that is not constant.
const HOLE: u8 = 0xFF;

/// A run of an expression.
enum Run {
    Text(String),
    /// Not constant.
    Expression(Value),
}

/// What a function's arguments are to the one who looks for text.
enum Shape {
    /// Text, as far as it is constant.
    Folds,
    /// One of the values is what stands there: they have the neighbours of the whole.
    Chooses,
    /// Names of exports, of other stacks' outputs and of attributes: none of them is a bucket's.
    Names,
    /// Anything else.
    Other,
}

fn shape(function: &str) -> Shape {
    match function {
        "Ref" | "Fn::Join" | "Fn::Sub" | "Fn::FindInMap" => Shape::Folds,
        "Fn::If" | "Fn::Select" => Shape::Chooses,
        "Fn::GetAtt" | "Fn::ImportValue" | "Fn::GetStackOutput" | "Condition" | "Fn::Transform" => {
            Shape::Names
        }
        _ => Shape::Other,
    }
}

/// The function of an expression and its argument.
fn function(fields: &Map<String, Value>) -> Option<(&str, &Value)> {
    let mut fields = fields.iter();
    match (fields.next(), fields.next()) {
        (Some((name, argument)), None)
            // In a policy, `Condition` is an object of its own.
            if name == "Ref" || name == "Condition" && argument.is_string() || name.starts_with("Fn::") =>
        {
            Some((name, argument))
        }
        _ => None,
    }
}

impl Walk<'_> {
    /// Redirects in a value between two edges; whether anything changed.
    fn value(&mut self, value: &mut Value, before: &Edge<'_>, after: &Edge<'_>) -> bool {
        match value {
            Value::String(text) => self.table.may_name(text.as_bytes()) && self.text(text, before, after),
            Value::Array(items) => self.each(items, &Edge::END, &Edge::END),
            Value::Object(fields) => match function(fields).map(|(name, _)| shape(name)) {
                Some(Shape::Folds) => self.expression(value, before, after),
                Some(Shape::Chooses) => {
                    let list = fields.values_mut().next().and_then(Value::as_array_mut);
                    // The first is a condition's name, or an index; of a Select the choices are a list of their own.
                    let choices = list.into_iter().flatten().skip(1);
                    let mut any = false;
                    for choice in choices {
                        any |= match choice {
                            Value::Array(items) => self.each(items, before, after),
                            choice => self.value(choice, before, after),
                        };
                    }
                    any
                }
                Some(Shape::Names) => false,
                Some(Shape::Other) | None => self.each(fields.values_mut(), &Edge::END, &Edge::END),
            },
            _ => false,
        }
    }

    fn each<'v>(
        &mut self,
        values: impl IntoIterator<Item = &'v mut Value>,
        before: &Edge<'_>,
        after: &Edge<'_>,
    ) -> bool {
        let mut any = false;
        for value in values {
            any |= self.value(value, before, after);
        }
        any
    }

    /// Redirects in a text; whether anything changed.
    fn text(&mut self, text: &mut String, before: &Edge<'_>, after: &Edge<'_>) -> bool {
        let (at, left) = (&self.at, &mut self.rewritten.left);
        let changed = self.table.redirect(text, before, after, |reference| {
            let reference = (at.clone(), reference);
            if !left.contains(&reference) {
                left.push(reference);
            }
        });
        self.rewritten.changed += usize::from(changed);
        changed
    }

    /// `Ref`, `Fn::Join`, `Fn::Sub` and `Fn::FindInMap`.
    fn expression(&mut self, value: &mut Value, before: &Edge<'_>, after: &Edge<'_>) -> bool {
        if let Some((delimiter, items)) = value.as_object_mut().and_then(loose_join) {
            return self.loose(&delimiter, items, before, after);
        }
        if !self.folds(value) {
            return match value.as_object_mut().and_then(|fields| fields.iter_mut().next()) {
                Some((name, Value::Array(list))) => match list.as_mut_slice() {
                    [Value::String(delimiter), parts] if name == "Fn::Join" => {
                        self.chosen(delimiter, parts, before, after)
                    }
                    _ => self.each(list, &Edge::END, &Edge::END),
                },
                _ => false,
            };
        }
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.clear();
        let has_parts = self.pour(value, &mut scratch);
        let may_name = self.table.may_name(&scratch);
        self.scratch = scratch;
        if !may_name && !has_parts {
            return false;
        }
        let mut runs = Vec::new();
        self.runs(value, &mut runs);
        let runs = merge(runs);
        let mut new = Vec::with_capacity(runs.len());
        let mut any = false;
        for (n, run) in runs.iter().enumerate() {
            let left = n.checked_sub(1).and_then(|n| runs.get(n));
            let left = beside(left, n == 1, before, |run, outer| format!("{outer}{run}"));
            let right =
                beside(runs.get(n + 1), n + 2 == runs.len(), after, |run, outer| format!("{run}{outer}"));
            new.push(match run {
                Run::Text(text) => {
                    let mut text = text.clone();
                    any |= self.text(&mut text, &left, &right);
                    Run::Text(text)
                }
                Run::Expression(expression) => {
                    let mut expression = expression.clone();
                    any |= self.value(&mut expression, &left, &right);
                    Run::Expression(expression)
                }
            });
        }
        if any {
            *value = joined(new);
        }
        any
    }

    /// The values of a `Fn::Join` some of which may be left out, each by itself.
    fn loose(&mut self, delimiter: &str, items: &mut [Value], before: &Edge<'_>, after: &Edge<'_>) -> bool {
        let beside = Edge { text: delimiter.into(), open: true };
        // Where all between a value and the end may be left out, it may meet what is outside: that is not known here.
        let first = items.iter().take_while(|item| chooses(item)).count();
        let last = items.len() - items.iter().rev().take_while(|item| chooses(item)).count();
        let count = items.len();
        let mut any = false;
        for (n, item) in items.iter_mut().enumerate() {
            let left = match n {
                0 => before,
                n if n <= first && !before.is_end() => &Edge::OPEN,
                _ => &beside,
            };
            let right = match n + 1 {
                n if n == count => after,
                n if n >= last && !after.is_end() => &Edge::OPEN,
                _ => &beside,
            };
            any |= self.value(item, left, right);
        }
        any
    }

    /// Redirects in the parts of a `Fn::Join` that a `Fn::If` chooses. Each list is joined by itself, so that its items have
    /// each other for neighbours; a list that changes becomes one item, which joins to the same.
    fn chosen(&mut self, delimiter: &str, parts: &mut Value, before: &Edge<'_>, after: &Edge<'_>) -> bool {
        if let Value::Array(items) = parts {
            let mut whole = json!({ "Fn::Join": [delimiter, std::mem::take(items)] });
            let any = self.expression(&mut whole, before, after);
            *parts = if any {
                json!([whole])
            } else {
                whole.pointer_mut("/Fn::Join/1").map(Value::take).unwrap_or_default()
            };
            return any;
        }
        match parts.get_mut("Fn::If").and_then(Value::as_array_mut) {
            Some(choices) => {
                let mut any = false;
                for choice in choices.iter_mut().skip(1) {
                    any |= self.chosen(delimiter, choice, before, after);
                }
                any
            }
            None => self.value(parts, &Edge::END, &Edge::END),
        }
    }

    /// Whether an expression is text and parts in a known order.
    fn folds(&self, value: &Value) -> bool {
        match value.as_object().and_then(function) {
            Some(("Fn::Join", argument)) => join(argument).is_some_and(|it| !is_loose(it)),
            Some(("Fn::Sub", argument)) => sub(argument).is_some(),
            _ => self.constant(value).is_some(),
        }
    }

    /// Appends the constant text of an expression; answers whether there is more to look at in parts that are not constant.
    fn pour(&self, value: &Value, scratch: &mut Vec<u8>) -> bool {
        match value {
            Value::String(text) => {
                scratch.extend_from_slice(text.as_bytes());
                false
            }
            Value::Number(number) => {
                scratch.extend_from_slice(number.to_string().as_bytes());
                false
            }
            Value::Bool(flag) => {
                scratch.extend_from_slice(flag.to_string().as_bytes());
                false
            }
            Value::Object(fields) => {
                if let Some(text) = self.constant(value) {
                    scratch.extend_from_slice(text.as_bytes());
                    return false;
                }
                match function(fields) {
                    Some(("Fn::Join", argument)) => {
                        if let Some((delimiter, items)) = join(argument).filter(|it| !is_loose(*it)) {
                            let mut more = false;
                            for (n, item) in items.iter().enumerate() {
                                if n > 0 {
                                    scratch.extend_from_slice(delimiter.as_bytes());
                                }
                                more |= self.pour(item, scratch);
                            }
                            return more;
                        }
                        scratch.push(HOLE);
                        true
                    }
                    Some(("Fn::Sub", argument)) => {
                        if let Some((text, variables)) = sub(argument) {
                            let mut more = false;
                            for part in parts(text) {
                                match part {
                                    Part::Text(text) => scratch.extend_from_slice(text.as_bytes()),
                                    Part::Variable(name) => match variables.and_then(|it| it.get(name)) {
                                        Some(value) => more |= self.pour(value, scratch),
                                        None => match self.constants.values.get(name) {
                                            Some(text) => scratch.extend_from_slice(text.as_bytes()),
                                            None => scratch.push(HOLE),
                                        },
                                    },
                                }
                            }
                            return more;
                        }
                        scratch.push(HOLE);
                        true
                    }
                    Some((name, argument)) => {
                        scratch.push(HOLE);
                        !(matches!(shape(name), Shape::Names)
                            || name == "Fn::FindInMap"
                            || argument.is_string())
                    }
                    None => {
                        scratch.push(HOLE);
                        true
                    }
                }
            }
            Value::Array(_) => {
                scratch.push(HOLE);
                true
            }
            Value::Null => false,
        }
    }

    /// The value of a `Ref` or `Fn::FindInMap` that is constant.
    fn constant(&self, value: &Value) -> Option<Cow<'_, str>> {
        let (name, argument) = function(value.as_object()?)?;
        match name {
            "Ref" => self.constants.values.get(argument.as_str()?).map(|text| text.as_str().into()),
            "Fn::FindInMap" => {
                let [map, top, second] = argument.as_array()?.as_slice() else { return None };
                let key = |value: &Value| -> Option<String> {
                    value.as_str().map(str::to_owned).or_else(|| self.constant(value).map(Cow::into_owned))
                };
                let found = self.mappings?.get(key(map)?)?.get(key(top)?)?.get(key(second)?)?;
                scalar(found)
            }
            _ => None,
        }
    }

    /// The runs of an expression, in order.
    fn runs(&self, value: &Value, runs: &mut Vec<Run>) {
        if let Some(text) = scalar(value).or_else(|| self.constant(value)) {
            runs.push(Run::Text(text.into_owned()));
            return;
        }
        match value.as_object().and_then(function) {
            Some(("Fn::Join", argument)) if join(argument).is_some_and(|it| !is_loose(it)) => {
                let Some((delimiter, items)) = join(argument) else { return };
                for (n, item) in items.iter().enumerate() {
                    if n > 0 {
                        runs.push(Run::Text(delimiter.to_owned()));
                    }
                    self.runs(item, runs);
                }
            }
            Some(("Fn::Sub", argument)) if sub(argument).is_some() => {
                let Some((text, variables)) = sub(argument) else { return };
                for part in parts(text) {
                    match part {
                        Part::Text(text) => runs.push(Run::Text(text.into())),
                        Part::Variable(name) => match variables.and_then(|it| it.get(name)) {
                            Some(value) => self.runs(value, runs),
                            None => match self.constants.values.get(name) {
                                Some(text) => runs.push(Run::Text(text.clone())),
                                None => runs.push(Run::Expression(variable(name))),
                            },
                        },
                    }
                }
            }
            _ => runs.push(Run::Expression(value.clone())),
        }
    }
}

fn scalar(value: &Value) -> Option<Cow<'_, str>> {
    match value {
        Value::String(text) => Some(text.as_str().into()),
        Value::Number(number) => Some(number.to_string().into()),
        Value::Bool(flag) => Some(flag.to_string().into()),
        _ => None,
    }
}

/// Delimiter and items of a `Fn::Join` whose items are written out.
fn join(argument: &Value) -> Option<(&str, &[Value])> {
    match argument.as_array()?.as_slice() {
        [Value::String(delimiter), Value::Array(items)] => Some((delimiter, items)),
        _ => None,
    }
}

/// Whether values may be left out with their delimiter: `AWS::NoValue`, by itself or as what a function chooses.
fn is_loose((delimiter, items): (&str, &[Value])) -> bool {
    !delimiter.is_empty() && items.iter().any(chooses)
}

/// Whether a value may be `AWS::NoValue`.
fn chooses(item: &Value) -> bool {
    match item.as_object().and_then(function) {
        Some(("Ref", argument)) => argument == "AWS::NoValue",
        Some((name, _)) => matches!(shape(name), Shape::Chooses),
        None => false,
    }
}

/// Delimiter and items of a `Fn::Join` that [`is_loose`].
fn loose_join(fields: &mut Map<String, Value>) -> Option<(String, &mut Vec<Value>)> {
    let is_one = function(fields)
        .is_some_and(|(name, argument)| name == "Fn::Join" && join(argument).is_some_and(is_loose));
    if !is_one {
        return None;
    }
    match fields.values_mut().next()?.as_array_mut()?.as_mut_slice() {
        [Value::String(delimiter), Value::Array(items)] => Some((delimiter.clone(), items)),
        _ => None,
    }
}

/// Text and variables of a `Fn::Sub`.
fn sub(argument: &Value) -> Option<(&str, Option<&Map<String, Value>>)> {
    match argument {
        Value::String(text) => Some((text, None)),
        Value::Array(list) => match list.as_slice() {
            [Value::String(text)] => Some((text, None)),
            [Value::String(text), Value::Object(variables)] => Some((text, Some(variables))),
            _ => None,
        },
        _ => None,
    }
}

enum Part<'t> {
    Text(Cow<'t, str>),
    Variable(&'t str),
}

/// The parts of a text of `Fn::Sub`; `${!x}` is the text `${x}`.
fn parts(text: &str) -> impl Iterator<Item = Part<'_>> {
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let whole = rest;
        let Some(at) = opening(whole) else {
            rest = "";
            return Some(Part::Text(whole.into()));
        };
        if at > 0 {
            let (before, behind) = whole.split_at(at);
            rest = behind;
            return Some(Part::Text(before.into()));
        }
        let inner = whole.get(2..).unwrap_or_default();
        let Some((name, behind)) = inner.split_once('}') else {
            rest = "";
            return Some(Part::Text(whole.into()));
        };
        rest = behind;
        Some(match name.strip_prefix('!') {
            Some(literal) => Part::Text(format!("${{{literal}}}").into()),
            None => Part::Variable(name.trim()),
        })
    })
}

/// Where the next `${` is.
fn opening(text: &str) -> Option<usize> {
    let bytes = text.as_bytes();
    memchr::memchr_iter(b'$', bytes).find(|at| bytes.get(at + 1) == Some(&b'{'))
}

/// What `${name}` of a `Fn::Sub` stands for.
fn variable(name: &str) -> Value {
    match name.split_once('.') {
        Some((resource, attribute)) => json!({ "Fn::GetAtt": [resource, attribute] }),
        None => json!({ "Ref": name }),
    }
}

/// Puts runs of text that stand side by side into one.
fn merge(runs: Vec<Run>) -> Vec<Run> {
    let mut merged: Vec<Run> = Vec::with_capacity(runs.len());
    for run in runs {
        match (merged.last_mut(), run) {
            (_, Run::Text(text)) if text.is_empty() => {}
            (Some(Run::Text(before)), Run::Text(text)) => before.push_str(&text),
            (_, run) => merged.push(run),
        }
    }
    merged
}

/// What is known of one side of a run: the run beside it, and what is outside of the whole if that one is the last.
fn beside<'e>(
    run: Option<&Run>,
    is_last: bool,
    outer: &Edge<'e>,
    with: impl Fn(&str, &str) -> String,
) -> Edge<'e> {
    match run {
        None => outer.clone(),
        Some(Run::Expression(_)) => Edge::OPEN,
        Some(Run::Text(text)) if is_last => Edge { text: with(text, &outer.text).into(), open: outer.open },
        // Runs of text are merged: behind this one there is something that is not constant.
        Some(Run::Text(text)) => Edge { text: text.clone().into(), open: true },
    }
}

fn joined(runs: Vec<Run>) -> Value {
    let mut values: Vec<Value> = runs
        .into_iter()
        .map(|run| match run {
            Run::Text(text) => Value::String(text),
            Run::Expression(expression) => expression,
        })
        .collect();
    match values.len() {
        1 => values.pop().unwrap_or_default(),
        _ => json!({ "Fn::Join": ["", values] }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::assets::testing::{FROM, TO, table};

    const PLACEHOLDER: &str = "cdk-hnb659fds-assets-${AWS::AccountId}-${AWS::Region}";

    fn constants() -> Constants {
        let values = [
            ("AWS::AccountId", "123456789012"),
            ("AWS::Region", "eu-west-1"),
            ("AWS::Partition", "aws"),
            ("AWS::URLSuffix", "amazonaws.com"),
            ("Stage", "prod"),
            ("Bucket", FROM),
            ("Q", "hnb659fds"),
        ];
        Constants { values: values.map(|(name, value)| (name.to_owned(), value.to_owned())).into() }
    }

    /// A property after the rewrite; and what was left.
    fn rewritten(value: &Value) -> (Value, Vec<String>) {
        let mut template = json!({
            "Mappings": {"Accounts": {"prod": {"id": "123456789012", "n": 7}}},
            "Resources": {"R": {"Type": "T", "Properties": {"P": value}}},
        });
        let before = template.clone();
        let done = table().rewrite(&mut template, &constants());
        let after = template["Resources"]["R"]["Properties"]["P"].take();
        assert_eq!(template["Mappings"], before["Mappings"]);
        assert_eq!(done.changed > 0, after != *value, "{value}");
        (after, done.left.into_iter().map(|(_, text)| text).collect())
    }

    fn sub(text: &str) -> Value {
        json!({ "Fn::Sub": text })
    }

    fn join(items: &Value) -> Value {
        json!({ "Fn::Join": ["", items] })
    }

    #[test]
    fn a5_names_are_found_however_they_are_written() {
        let account = json!({"Ref": "AWS::AccountId"});
        let table = [
            json!(FROM),
            sub(PLACEHOLDER),
            sub("cdk-hnb659fds-assets-123456789012-${AWS::Region}"),
            sub("cdk-hnb659fds-assets-${AWS::AccountId}-eu-west-1"),
            json!({"Fn::Sub": [PLACEHOLDER]}),
            json!({"Fn::Sub": ["cdk-hnb659fds-assets-${Account}-${AWS::Region}", {"Account": account}]}),
            json!({"Fn::Sub": ["${B}", {"B": sub(PLACEHOLDER)}]}),
            json!({"Fn::Sub": ["cdk-${Q}-assets-${ AWS::AccountId }-${AWS::Region}", {}]}),
            join(&json!(["cdk-hnb659fds-assets-", account, "-", {"Ref": "AWS::Region"}])),
            join(&json!(["cdk-hnb659fds-as", "sets-123456789012-eu", "-west-1"])),
            json!({"Fn::Join": ["-", ["cdk", "hnb659fds", "assets", account, {"Ref": "AWS::Region"}]]}),
            json!({"Fn::Join": ["-", ["cdk-hnb659fds-assets", {"Fn::FindInMap": ["Accounts", {"Ref": "Stage"}, "id"]}, "eu-west-1"]]}),
            join(&json!([
                join(&json!(["cdk-hnb659fds", "-assets"])),
                sub("-${AWS::AccountId}-"),
                "eu-west-1"
            ])),
            json!({"Ref": "Bucket"}),
        ];
        for value in table {
            assert_eq!(rewritten(&value), (json!(TO), vec![]), "{value}");
        }
    }

    #[test]
    fn a4_what_may_stand_beside_a_name() {
        let table = [
            ("s3://{}/k", true),
            ("s3://{}/k.zip", true),
            ("{}/", true),
            ("arn:aws:s3:::{}/*", true),
            ("arn:aws:s3:::{}", true),
            ("https://s3.eu-west-1.amazonaws.com/{}/k.zip", true),
            ("https://{}.s3.eu-west-1.amazonaws.com/k.zip", true),
            ("https://{}.s3-eu-west-1.amazonaws.com/k.zip", true),
            ("{}.dkr.ecr", true),
            ("\"{}\"", true),
            ("'{}'", true),
            ("{},b", true),
            ("(b {})", true),
            ("{};", true),
            ("{}*", true),
            ("{}?", true),
            ("\\{}\\", true),
            ("a\t{}\n", true),
            ("the bucket {}. It", true),
            ("{}.", true),
            ("{}.\"", true),
            ("s3%3A%2F%2F{}%2Fk", true),
            ("{}-backup", false),
            ("{}.backup", false),
            ("{}.s", false),
            ("{}2", false),
            ("{}_", false),
            ("{}B", false),
            ("my-{}", false),
            ("my.{}", false),
            ("a{}", false),
            ("_{}", false),
            ("%zz{}", false),
            ("cdk-{}", false),
            ("xcdk-hnb659fds-assets-123456789012-eu-west-1", false),
            ("cdk-hnb659fds-assets-123456789012-eu-west-10", false),
            ("cdk-other-assets-123456789012-eu-west-1", false),
            ("{} and {}", true),
        ];
        for (form, is_ours) in table {
            let (text, moved) = (form.replace("{}", FROM), form.replace("{}", TO));
            let expected = if is_ours { json!(moved) } else { json!(text) };
            assert_eq!(rewritten(&json!(text)), (expected.clone(), vec![]), "{form}");
            // The same, taken apart.
            let parts: Vec<String> = text.split_inclusive('-').map(str::to_owned).collect();
            let value = join(&json!(parts));
            assert_eq!(rewritten(&value).0, if is_ours { expected } else { value }, "{form}");
        }
    }

    #[test]
    fn a2_a_name_beside_what_is_not_constant_is_another_one() {
        let unknown = json!({"Ref": "Other"});
        let table = [
            join(&json!(["my-", sub(PLACEHOLDER)])),
            join(&json!([sub(PLACEHOLDER), "-backup"])),
            join(&json!([unknown, FROM])),
            join(&json!([FROM, unknown])),
            join(&json!([FROM, ".", unknown])),
            sub(&format!("${{Other}}{PLACEHOLDER}")),
            sub(&format!("{PLACEHOLDER}${{Other.Name}}")),
            json!({"Fn::Sub": ["${P}${B}", {"P": {"Fn::GetAtt": ["A", "B"]}, "B": FROM}]}),
            join(&json!(["my-", {"Fn::If": ["C", FROM, "x"]}])),
            json!({"Fn::If": ["C", join(&json!([FROM, "-x"])), "x"]}),
            json!({"Fn::Join": ["-", [FROM, {"Fn::If": ["C", {"Ref": "AWS::NoValue"}, "x"]}]]}),
            // Left out, a value leaves its neighbour to what is outside.
            join(
                &json!(["my-", {"Fn::Join": ["/", [{"Fn::If": ["C", {"Ref": "AWS::NoValue"}, "x"]}, FROM]]}]),
            ),
            join(
                &json!([{"Fn::Join": ["/", [FROM, {"Fn::If": ["C", {"Ref": "AWS::NoValue"}, "x"]}]]}, "-backup"]),
            ),
            // Escaped: not a pseudo parameter.
            sub("cdk-hnb659fds-assets-${!AWS::AccountId}-${AWS::Region}"),
            // Parts that are a choice of lists have the delimiter, and each other, for neighbours.
            json!({"Fn::Join": ["-", {"Fn::If": ["C", [FROM, "x"], ["y"]]}]}),
            json!({"Fn::Join": ["", {"Fn::If": ["C", ["my-", FROM], ["y"]]}]}),
        ];
        for value in table {
            assert_eq!(rewritten(&value), (value.clone(), vec![]), "{value}");
        }
    }

    #[test]
    fn a26_a_constant_run_of_what_is_not_constant_as_a_whole_is_redirected() {
        let key = json!({"Ref": "Key"});
        let table = [
            (join(&json!(["s3://", sub(PLACEHOLDER), "/", key])), join(&json!([format!("s3://{TO}/"), key]))),
            (sub(&format!("s3://{PLACEHOLDER}/${{Key}}")), join(&json!([format!("s3://{TO}/"), key]))),
            (
                sub(&format!("${{A.B.C}}:{PLACEHOLDER}/${{Key}}-${{!x}}")),
                join(&json!([{"Fn::GetAtt": ["A", "B.C"]}, format!(":{TO}/"), key, "-${x}"])),
            ),
            (json!({"Fn::Join": [",", [key, FROM, key]]}), join(&json!([key, format!(",{TO},"), key]))),
            // One of the values of a choice has the neighbours of the choice.
            (
                join(&json!(["s3://", {"Fn::If": ["C", FROM, key]}, "/k"])),
                join(&json!(["s3://", {"Fn::If": ["C", TO, key]}, "/k"])),
            ),
            (json!({"Fn::Select": [0, [FROM, "b"]]}), json!({"Fn::Select": [0, [TO, "b"]]})),
            // A value that may be left out takes its delimiter along: the list stays one.
            (
                json!({"Fn::Join": [",", [FROM, {"Fn::If": ["C", {"Ref": "AWS::NoValue"}, FROM]}, "x"]]}),
                json!({"Fn::Join": [",", [TO, {"Fn::If": ["C", {"Ref": "AWS::NoValue"}, TO]}, "x"]]}),
            ),
            (
                json!({"Fn::Join": [",", {"Fn::If": ["C", [FROM, "x"], ["y"]]}]}),
                json!({"Fn::Join": [",", {"Fn::If": ["C", [format!("{TO},x")], ["y"]]}]}),
            ),
            (
                json!({"Fn::Join": ["", {"Fn::If": ["C", [FROM], ["y"]]}]}),
                json!({"Fn::Join": ["", {"Fn::If": ["C", [TO], ["y"]]}]}),
            ),
            // No reference to a condition: those are names.
            (
                json!({"Condition": {"StringLike": {"s3:prefix": FROM}}}),
                json!({"Condition": {"StringLike": {"s3:prefix": TO}}}),
            ),
            // Functions that neither fold nor choose.
            (json!({"Fn::Base64": sub(PLACEHOLDER)}), json!({"Fn::Base64": TO})),
            (
                join(&json!(["a", {"Fn::Base64": sub(&format!("{PLACEHOLDER}/${{Key}}"))}])),
                join(&json!(["a", {"Fn::Base64": join(&json!([format!("{TO}/"), key]))}])),
            ),
            (
                json!({"Fn::Join": ["/", {"Fn::Split": ["|", format!("a|{FROM}")]}]}),
                json!({"Fn::Join": ["/", {"Fn::Split": ["|", format!("a|{TO}")]}]}),
            ),
        ];
        for (value, expected) in table {
            assert_eq!(rewritten(&value), (expected, vec![]), "{value}");
        }
    }

    #[test]
    fn a27_what_is_no_asset_of_the_assembly_is_left_and_told() {
        let image = "cdk-hnb659fds-container-assets-123456789012-eu-west-1";
        let moved = "cdkd-container-assets-123456789012-eu-west-1";
        let table = [
            (format!("s3://{FROM}/latest/x.json"), None, format!("{FROM}/latest/x.json")),
            (format!("https://{FROM}.s3.amazonaws.com/other.zip"), None, format!("{FROM}/other.zip")),
            (format!("arn:aws:s3:::{FROM}/other.zip"), None, format!("{FROM}/other.zip")),
            (
                format!("https://s3.amazonaws.com/{FROM}/other.zip?versionId=1"),
                None,
                format!("{FROM}/other.zip"),
            ),
            (format!("1.dkr.ecr.eu-west-1.amazonaws.com/{image}:v1"), None, format!("{image}/v1")),
            (format!("1.dkr.ecr.eu-west-1.amazonaws.com/{image}:tag"), Some(moved), String::new()),
            (format!("arn:aws:ecr:eu-west-1:1:repository/{image}"), Some(moved), String::new()),
            // Known, a folder of what is known, a pattern, a variable of a shell.
            (format!("s3://{FROM}/pre/fix/k.json"), Some(TO), String::new()),
            (format!("s3://{FROM}/pre/fix/"), Some(TO), String::new()),
            (format!("s3://{FROM}/pre/*"), Some(TO), String::new()),
            (format!("s3://{FROM}/other?"), Some(TO), String::new()),
            (format!("aws s3 cp s3://{FROM}/$KEY ."), Some(TO), String::new()),
        ];
        for (text, to, left) in table {
            let from = if text.contains(image) { image } else { FROM };
            let expected = to.map_or_else(|| text.clone(), |to| text.replace(from, to));
            let left = if left.is_empty() { vec![] } else { vec![left] };
            assert_eq!(rewritten(&json!(text)), (json!(expected), left), "{text}");
        }
        // The audit of what it comes to agrees.
        let mut table = crate::assets::testing::table();
        let value = json!({"A": format!("s3://{FROM}/latest/x.json"), "B": format!("{FROM}-backup")});
        let mut template = json!({"Resources": {"R": {"Properties": value}}});
        table.rewrite(&mut template, &constants());
        assert_eq!(table.audit(&value), []);
    }

    #[test]
    fn a3_names_of_exports_metadata_and_all_that_is_no_value_stay() {
        let template = json!({
            "Description": FROM,
            "Metadata": {"m": FROM},
            "Parameters": {"P": {"Type": "String", "Default": FROM}},
            "Mappings": {"M": {"a": {"b": FROM}}},
            "Conditions": {"C": {"Fn::Equals": [FROM, {"Ref": "P"}]}},
            "Resources": {"R": {
                "Type": "T", "Metadata": {"aws:asset:path": FROM}, "Condition": "C", "DependsOn": FROM,
                "Properties": {
                    FROM: "a key",
                    "Import": {"Fn::ImportValue": sub(&format!("{PLACEHOLDER}:x"))},
                    "Att": {"Fn::GetAtt": ["R", FROM]},
                    "If": {"Fn::If": [FROM, "a", "b"]},
                },
            }},
            "Outputs": {"O": {
                "Description": FROM, "Value": {"Ref": "R"}, "Export": {"Name": sub(PLACEHOLDER)},
            }},
        });
        let mut after = template.clone();
        let done = table().rewrite(&mut after, &constants());
        assert_eq!((after, done), (template.clone(), Rewritten::default()));

        let mut named = template.clone();
        named["Outputs"]["O"]["Value"] = sub(PLACEHOLDER);
        let mut expected = template;
        expected["Outputs"]["O"]["Value"] = json!(TO);
        assert_eq!(table().rewrite(&mut named, &constants()).changed, 1);
        assert_eq!(named, expected);
    }

    #[test]
    fn a22_an_empty_table_rewrites_nothing() {
        let mut template = json!({"Resources": {"R": {"Properties": {"P": sub(PLACEHOLDER)}}}});
        let before = template.clone();
        assert_eq!(Table::default().rewrite(&mut template, &constants()), Rewritten::default());
        assert_eq!(template, before);
    }
}

#[cfg(test)]
mod reference {
    //! The rewrite against a slow one that is easy to see right: evaluate first, then look at the finished text.

    use proptest::prelude::*;

    use super::*;
    use crate::assets::testing::{FROM, TO, table};

    /// Stands for what is not constant in a finished text. Any letter: it counts as a part of a name.
    const UNKNOWN: char = 'U';

    const ACCOUNT: &str = "123456789012";

    fn constant(name: &str) -> Option<&'static str> {
        match name {
            "AWS::AccountId" => Some(ACCOUNT),
            "AWS::Region" => Some("eu-west-1"),
            "P" => Some("s"),
            "S" => Some("/"),
            _ => None,
        }
    }

    /// What an expression comes to; what is not constant is marked, so that two evaluations can be compared.
    fn evaluate(value: &Value) -> String {
        match value {
            Value::String(text) => text.clone(),
            Value::Object(fields) => match fields.iter().next() {
                Some((name, argument)) if name == "Fn::FindInMap" => {
                    assert_eq!(argument, &json!(["M", "a", "b"]));
                    ACCOUNT.to_owned()
                }
                Some((name, argument)) if name == "Ref" => look_up(argument.as_str().unwrap(), None),
                Some((name, argument)) if name == "Fn::GetAtt" => {
                    format!(
                        "{UNKNOWN}<{}.{}>{UNKNOWN}",
                        argument[0].as_str().unwrap(),
                        argument[1].as_str().unwrap()
                    )
                }
                Some((name, argument)) if name == "Fn::Join" => {
                    let items = argument[1].as_array().unwrap().iter().map(evaluate).collect::<Vec<_>>();
                    items.join(argument[0].as_str().unwrap())
                }
                Some((name, argument)) if name == "Fn::Sub" => {
                    let (text, variables) = match argument {
                        Value::String(text) => (text.as_str(), None),
                        list => (list[0].as_str().unwrap(), list[1].as_object()),
                    };
                    let mut out = String::new();
                    let mut rest = text;
                    while let Some((before, behind)) = rest.split_once("${") {
                        out.push_str(before);
                        let (name, behind) = behind.split_once('}').unwrap();
                        match name.strip_prefix('!') {
                            Some(literal) => out.extend(["${", literal, "}"]),
                            None => out.push_str(&look_up(name, variables)),
                        }
                        rest = behind;
                    }
                    out + rest
                }
                other => panic!("{other:?}"),
            },
            other => panic!("{other}"),
        }
    }

    fn look_up(name: &str, variables: Option<&Map<String, Value>>) -> String {
        if let Some(value) = variables.and_then(|it| it.get(name)) {
            return evaluate(value);
        }
        constant(name).map_or_else(|| format!("{UNKNOWN}<{name}>{UNKNOWN}"), str::to_owned)
    }

    /// Redirects in a finished text, character by character.
    fn slow(text: &str) -> String {
        let mut out = String::new();
        let mut rest = text;
        while let Some(at) = rest.find(FROM) {
            out.push_str(&rest[..at]);
            let behind = &rest[at + FROM.len()..];
            let may_begin =
                out.chars().next_back().is_none_or(|c| !c.is_ascii_alphanumeric() && !"-_.".contains(c));
            let may_end = match behind.chars().next() {
                None => true,
                Some('.') => {
                    let next = &behind[1..];
                    next.is_empty() || next.starts_with([' ', '"']) || next.starts_with("s3.")
                }
                Some(c) => !c.is_ascii_alphanumeric() && !"-_".contains(c),
            };
            out.push_str(if may_begin && may_end { TO } else { FROM });
            rest = behind;
        }
        out + rest
    }

    fn text() -> impl Strategy<Value = String> {
        prop_oneof![
            6 => Just(FROM.to_owned()),
            2 => Just("cdk-hnb659fds-assets-".to_owned()),
            2 => Just("-eu-west-1".to_owned()),
            1 => Just("123456789012".to_owned()),
            1 => Just("cdk-hnb659fds-as".to_owned()),
            1 => Just("sets-123456789012-eu-west-1".to_owned()),
            4 => "[-_a.:, \"/]{0,2}",
            1 => Just(".s3.".to_owned()),
        ]
    }

    /// Text of a `Fn::Sub`.
    fn sub_text() -> impl Strategy<Value = String> {
        let variable = prop_oneof![
            Just("${AWS::AccountId}"),
            Just("${AWS::Region}"),
            Just("${P}"),
            Just("${S}"),
            Just("${V}"),
            Just("${W}"),
            Just("${Other}"),
            Just("${Res.Arn}"),
            Just("${!Literal}"),
        ];
        proptest::collection::vec(prop_oneof![3 => text(), 2 => variable.prop_map(str::to_owned)], 0..5)
            .prop_map(|parts| parts.concat())
    }

    fn expression() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            4 => text().prop_map(Value::String),
            2 => prop_oneof![Just("AWS::AccountId"), Just("AWS::Region"), Just("P"), Just("S"), Just("Other")]
                .prop_map(|name| json!({ "Ref": name })),
            1 => Just(json!({ "Fn::GetAtt": ["Res", "Name"] })),
            1 => Just(json!({ "Fn::FindInMap": ["M", "a", "b"] })),
            2 => sub_text().prop_map(|text| json!({ "Fn::Sub": text })),
        ];
        leaf.prop_recursive(3, 24, 5, |inner| {
            let delimiter = prop_oneof![3 => Just(""), 1 => Just("-"), 1 => Just("/"), 1 => Just(",")];
            prop_oneof![
                3 => (delimiter, proptest::collection::vec(inner.clone(), 0..5))
                    .prop_map(|(delimiter, items)| json!({ "Fn::Join": [delimiter, items] })),
                1 => (sub_text(), inner.clone(), inner)
                    .prop_map(|(text, v, w)| json!({ "Fn::Sub": [text, { "V": v, "W": w }] })),
            ]
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 4000, ..ProptestConfig::default() })]

        #[test]
        fn a_rewritten_tree_comes_to_what_its_text_does_when_redirected_in_the_end(tree in expression()) {
            let mut table = table();
            table.forget_keys();
            let names = ["AWS::AccountId", "AWS::Region", "P", "S"];
            let values = names.map(|name| (name.to_owned(), constant(name).unwrap().to_owned())).into();
            let mut template = json!({
                "Mappings": { "M": { "a": { "b": ACCOUNT } } },
                "Resources": { "R": { "Properties": { "P": tree } } },
            });
            let done = table.rewrite(&mut template, &Constants { values });
            let after = &template["Resources"]["R"]["Properties"]["P"];
            let expected = slow(&evaluate(&tree));
            prop_assert_eq!(&evaluate(after), &expected);
            // What is not touched stays as it was written.
            prop_assert!(done.changed > 0 || *after == tree);
            // And what is left of it, once it is known, passes the audit or is found by it.
            prop_assert_eq!(table.audit(&json!(expected)), []);
        }
    }
}
