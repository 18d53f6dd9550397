//! References to assets in a template, redirected before it is evaluated.
//!
//! Fold first, then match: in any tree of `Fn::Join` and `Fn::Sub` every run that is constant for the deploy is text, so
//! that a name is seen with its real neighbours; what is not constant counts as a part of the name. A tree without a match
//! stays as it is, byte for byte; one with a match becomes the same runs joined.
//!
//! Source: DESIGN 9; `seeds/asset-storage.txt`, section 7.

mod fold;

use std::collections::BTreeMap;
use std::ops::Range;

use serde_json::{Value, json};

use super::matching::Edge;
use super::table::Table;
use fold::{Bit, Fold, Shape, chooses, function, has_texts, loose_join, shape, variable};

/// What is constant for the deploy of one stack.
#[derive(Clone, Debug, Default)]
pub struct Constants {
    /// Pseudo parameters (`AWS::Region`) and parameters; never a secret.
    pub values: BTreeMap<String, String>,
}

impl Constants {
    /// A value that may become a part of the template's own text. One with braces may not: it could open or close a dynamic
    /// reference there (rule S15).
    fn get(&self, name: &str) -> Option<&str> {
        self.values.get(name).map(String::as_str).filter(|value| !value.contains(['{', '}']))
    }
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
            fold: Fold { constants, mappings: mappings.as_ref() },
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

/// A run of an expression.
enum Run {
    Text(Words),
    /// Not constant.
    Expression(Value),
}

/// Text, with the parameters that parts of it are the values of. What is not a part of a name stays a `Ref`: the value may
/// be another one when the stack is locked and its record read.
#[derive(Clone, Default)]
struct Words {
    text: String,
    parameters: Vec<(Range<usize>, String)>,
}

impl Words {
    /// Follows what a redirection did to the text.
    fn moved(&mut self, redirected: &[(Range<usize>, usize)]) {
        self.parameters
            .retain(|(own, _)| redirected.iter().all(|(it, _)| own.end <= it.start || it.end <= own.start));
        for (own, _) in &mut self.parameters {
            let before = redirected.iter().filter(|(it, _)| it.end <= own.start);
            let (gone, come) = before.fold((0, 0), |(gone, come), (it, len)| (gone + it.len(), come + len));
            *own = own.start + come - gone..own.end + come - gone;
        }
    }

    fn values(self) -> Vec<Value> {
        let (mut values, mut done) = (Vec::new(), 0);
        for (range, name) in self.parameters {
            values.extend(self.text.get(done..range.start).map(Value::from));
            values.push(json!({ "Ref": name }));
            done = range.end;
        }
        values.extend(self.text.get(done..).map(Value::from));
        values.retain(|value| value != "");
        values
    }
}

struct Walk<'w> {
    table: &'w Table,
    fold: Fold<'w>,
    /// The logical id, or the output.
    at: String,
    rewritten: &'w mut Rewritten,
    /// Constant text of one expression; a byte that is none of UTF-8 stands for what is not constant.
    scratch: Vec<u8>,
}

/// In [`Walk::scratch`], something that is not constant.
const HOLE: u8 = 0xFF;

impl Walk<'_> {
    /// Redirects in a value between two edges; whether anything changed.
    fn value(&mut self, value: &mut Value, before: &Edge<'_>, after: &Edge<'_>) -> bool {
        match value {
            Value::String(text) => {
                self.table.may_name(text.as_bytes()) && !self.text(text, before, after).is_empty()
            }
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

    /// Redirects in a text; answers as [`Table::redirect`].
    fn text(&mut self, text: &mut String, before: &Edge<'_>, after: &Edge<'_>) -> Vec<(Range<usize>, usize)> {
        let (at, left) = (&self.at, &mut self.rewritten.left);
        let redirected = self.table.redirect(text, before, after, |reference| {
            let reference = (at.clone(), reference);
            if !left.contains(&reference) {
                left.push(reference);
            }
        });
        self.rewritten.changed += usize::from(!redirected.is_empty());
        redirected
    }

    /// `Ref`, `Fn::Join`, `Fn::Sub` and `Fn::FindInMap`.
    fn expression(&mut self, value: &mut Value, before: &Edge<'_>, after: &Edge<'_>) -> bool {
        if let Some((delimiter, items)) = value.as_object_mut().and_then(loose_join) {
            return self.loose(&delimiter, items, before, after);
        }
        if !self.fold.folds(value) {
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
        if !self.may_name(value) {
            return false;
        }
        let runs = self.runs(value);
        let mut new = Vec::with_capacity(runs.len());
        let mut any = false;
        for (n, run) in runs.iter().enumerate() {
            let left = n.checked_sub(1).and_then(|n| runs.get(n));
            let left = beside(left, n == 1, before, |run, outer| format!("{outer}{run}"));
            let right =
                beside(runs.get(n + 1), n + 2 == runs.len(), after, |run, outer| format!("{run}{outer}"));
            new.push(match run {
                Run::Text(words) => {
                    let mut words = words.clone();
                    let redirected = self.text(&mut words.text, &left, &right);
                    any |= !redirected.is_empty();
                    words.moved(&redirected);
                    Run::Text(words)
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

    /// Whether an expression may come to a text that names a source, or has parts that may.
    fn may_name(&mut self, value: &Value) -> bool {
        let scratch = &mut self.scratch;
        scratch.clear();
        let mut has_parts = false;
        self.fold.each(value, &mut |bit| match bit {
            Bit::Text(text) => scratch.extend_from_slice(text.as_bytes()),
            Bit::Parameter { value, .. } => scratch.extend_from_slice(value.as_bytes()),
            Bit::Variable(_) => scratch.push(HOLE),
            Bit::Part(part) => {
                scratch.push(HOLE);
                has_parts |= has_texts(part);
            }
        });
        has_parts || self.table.may_name(scratch)
    }

    /// The runs of an expression, in order; no two of text stand side by side.
    fn runs(&self, value: &Value) -> Vec<Run> {
        let mut runs: Vec<Run> = Vec::new();
        let words = |runs: &mut Vec<Run>, text: &str, parameter: Option<&str>| {
            if !matches!(runs.last(), Some(Run::Text(_))) {
                runs.push(Run::Text(Words::default()));
            }
            if let Some(Run::Text(words)) = runs.last_mut() {
                let start = words.text.len();
                words.text.push_str(text);
                words.parameters.extend(parameter.map(|name| (start..words.text.len(), name.to_owned())));
            }
        };
        self.fold.each(value, &mut |bit| match bit {
            Bit::Text(text) if text.is_empty() => {}
            Bit::Text(text) => words(&mut runs, &text, None),
            Bit::Parameter { name, value } => words(&mut runs, value, Some(name)),
            Bit::Variable(name) => runs.push(Run::Expression(variable(name))),
            Bit::Part(part) => runs.push(Run::Expression(part.clone())),
        });
        runs
    }
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
        Some(Run::Text(words)) if is_last => {
            Edge { text: with(&words.text, &outer.text).into(), open: outer.open }
        }
        // Runs of text are merged: behind this one there is something that is not constant.
        Some(Run::Text(words)) => Edge { text: words.text.clone().into(), open: true },
    }
}

fn joined(runs: Vec<Run>) -> Value {
    let mut values: Vec<Value> = runs
        .into_iter()
        .flat_map(|run| match run {
            Run::Text(words) => words.values(),
            Run::Expression(expression) => vec![expression],
        })
        .collect();
    match values.len() {
        1 => values.pop().unwrap_or_default(),
        _ => json!({ "Fn::Join": ["", values] }),
    }
}

#[cfg(test)]
mod reference;
#[cfg(test)]
mod tests;
