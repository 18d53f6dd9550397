//! Looking at expressions without evaluating them: their form, and the names they use.

use indexmap::IndexMap;
use serde_json::{Map, Value};

use super::intrinsic::{self, Call, Evaluate, Function};
use super::path::Path;
use super::reads::Read;
use super::{ParameterType, Pseudo, Template, holds};
use crate::error::{Code, Error, nearest};
use crate::secrets::token;

/// Where an expression stands: what it may refer to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Site {
    /// Properties of resources and values of outputs.
    Value,
    /// The name of an export, which has to be known before any resource is (rule E30).
    ExportName,
    /// The section `Conditions`.
    Condition,
    /// What says what to read from another stack, which has to be known before any resource is (rule E30).
    Coordinate,
    /// The same, and it has to be literal once pseudo parameters are put in (rule G1).
    Literal,
}

/// Walks expressions; collects the resources they depend on, and what is wrong with them.
pub(super) struct Survey<'t> {
    pub template: &'t Template,
    conditions: &'t IndexMap<String, bool>,
    site: Site,
    /// Whether what is walked is used: not in the other branch of an `Fn::If`, not in what does not exist.
    taken: bool,
    /// Logical ids that taken functions name, in order, with repetitions.
    pub references: Vec<&'t str>,
    /// The taken calls that read from other stacks, in order.
    pub reads: Vec<Read<'t>>,
    pub errors: Vec<Error>,
}

impl<'t> Survey<'t> {
    pub fn new(template: &'t Template, conditions: &'t IndexMap<String, bool>, site: Site) -> Self {
        Self {
            template,
            conditions,
            site,
            taken: true,
            references: Vec::new(),
            reads: Vec::new(),
            errors: Vec::new(),
        }
    }

    /// Walks with `taken` lowered if it is not `taken`.
    pub fn branch(&mut self, taken: bool, walk: impl FnOnce(&mut Self)) {
        let before = self.taken;
        self.taken = before && taken;
        walk(self);
        self.taken = before;
    }

    /// Walks what stands at another site.
    pub fn at_site(&mut self, site: Site, walk: impl FnOnce(&mut Self)) {
        let before = std::mem::replace(&mut self.site, site);
        walk(self);
        self.site = before;
    }

    /// Walks an expression.
    pub fn value(&mut self, expression: &'t Value, at: &Path<'_>) {
        match expression {
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
            Value::String(text) => self.text(text, at),
            Value::Array(items) => self.items(items, at),
            Value::Object(map) => match intrinsic::call(map) {
                None => self.map(map, at),
                Some(Call { name, argument }) => {
                    let at = at.key(name);
                    match intrinsic::find(name) {
                        Some(function) if matches!(function.evaluate, Evaluate::Condition(_)) => {
                            self.errors.push(intrinsic::only_in_conditions(name, &at));
                        }
                        Some(function) => (function.survey)(argument, self, &at),
                        None => self.errors.push(intrinsic::unsupported(name, &at)),
                    }
                }
            },
        }
    }

    /// Walks the elements of a list.
    pub fn items(&mut self, items: &'t [Value], at: &Path<'_>) {
        for (index, item) in items.iter().enumerate() {
            self.value(item, &at.index(index));
        }
    }

    /// Walks the values of a map that is no function.
    pub fn map(&mut self, map: &'t Map<String, Value>, at: &Path<'_>) {
        for (key, item) in map {
            let at = at.key(key);
            if key.starts_with("Fn::") {
                let error = if intrinsic::find(key).is_some() {
                    let message = format!("`{key}` has to be the only key of its object");
                    Error::new(Code::InvalidIntrinsic, message).place(&at.place())
                } else {
                    intrinsic::unsupported(key, &at)
                };
                self.errors.push(error.detail("fragment", key.as_str()));
            }
            self.value(item, &at);
        }
    }

    /// Walks an expression of a condition, which has to be a condition function.
    pub fn condition(&mut self, expression: &'t Value, at: &Path<'_>) {
        match intrinsic::condition_call(expression) {
            Some((function, argument)) => (function.survey)(argument, self, &at.key(function.name)),
            None => self.errors.push(intrinsic::no_condition(expression, at)),
        }
    }

    /// Looks at a string of the template.
    pub fn text(&mut self, text: &str, at: &Path<'_>) {
        if let Some(service) = token::begins(text) {
            let head = format!("{}{service}:", token::HEAD);
            let message = format!("the dynamic reference `{head}…}}}}` is not supported by this release");
            self.errors.push(
                Error::new(Code::UnsupportedIntrinsic, message)
                    .hint("give it as the value of a parameter that is declared `NoEcho`, and use that")
                    .detail("fragment", head)
                    .place(&at.place()),
            );
        }
    }

    /// The name of a condition in an `Fn::If` or `Condition`.
    pub fn condition_name(&mut self, name: &str, at: &Path<'_>) {
        if !self.template.conditions.contains_key(name) {
            self.errors.push(unknown_condition(self.template, name, at));
        }
    }

    /// A name as `Ref` takes it. `fragment` is what the template says there.
    pub fn named(&mut self, name: &'t str, fragment: &str, at: &Path<'_>) {
        if let Some(parameter) = self.template.parameters.get(name) {
            if parameter.kind == ParameterType::Fetched {
                self.errors.push(fetched(name, &parameter.type_name, at).detail("fragment", fragment));
            } else if self.site == Site::Literal {
                let message = format!("a literal is needed here, which parameter `{name}` is not");
                self.errors.push(
                    Error::new(Code::InvalidIntrinsic, message)
                        .hint("only pseudo parameters may be put in")
                        .detail("fragment", fragment)
                        .place(&at.place()),
                );
            }
        } else if !Pseudo::NAMES.contains(&name) {
            self.resource(name, fragment, at);
        }
    }

    /// A call that reads from another stack. `false` if it may not stand here, which is said.
    pub fn read(&mut self, function: &'static Function, argument: &'t Value, at: &Path<'_>) -> bool {
        let wrong = match self.site {
            Site::Value => {
                if self.taken {
                    self.reads.push(Read::new(function, argument, at));
                }
                return true;
            }
            Site::ExportName => "may not stand in the name of an export",
            Site::Condition => "may not stand in the section `Conditions`",
            Site::Coordinate | Site::Literal => "may not stand in the arguments of another read",
        };
        self.errors.push(function.wrong(wrong, at));
        false
    }

    /// A resource whose reference or attribute is used.
    pub fn resource(&mut self, logical_id: &'t str, fragment: &str, at: &Path<'_>) {
        let error = match self.template.resources.get(logical_id) {
            None => unknown_name(self.template, logical_id, at),
            Some(_) if self.site == Site::ExportName => Error::new(
                Code::InvalidTemplate,
                format!("the name of an export may not depend on a resource: `{logical_id}`"),
            )
            .hint("export names must be known before anything is deployed"),
            Some(_) if self.site == Site::Condition => Error::new(
                Code::InvalidIntrinsic,
                format!("a condition may not depend on a resource: `{logical_id}`"),
            ),
            Some(_) if matches!(self.site, Site::Coordinate | Site::Literal) => Error::new(
                Code::InvalidIntrinsic,
                format!("what to read from another stack may not depend on a resource: `{logical_id}`"),
            )
            .hint("values of other stacks are read before anything is deployed"),
            Some(resource) => {
                if !self.taken {
                    return;
                }
                if holds(resource.condition.as_deref(), self.conditions) {
                    self.references.push(logical_id);
                    return;
                }
                does_not_exist(logical_id, resource.condition.as_deref(), at)
            }
        };
        self.errors.push(error.detail("fragment", fragment).place(&at.place()));
    }

    /// The truth of a condition, where it is known.
    pub fn truth(&self, name: &str) -> Option<bool> {
        self.conditions.get(name).copied()
    }

    pub fn site(&self) -> Site {
        self.site
    }
}

/// The error for a name that is neither a parameter nor a resource.
pub(super) fn unknown_name(template: &Template, name: &str, at: &Path<'_>) -> Error {
    let message = format!("`{name}` is neither a resource nor a parameter of the template");
    let known = template.resources.keys().chain(template.parameters.keys()).map(String::as_str);
    let error = Error::new(Code::UnresolvedReference, message).place(&at.place());
    match nearest(name, known.chain(Pseudo::NAMES)) {
        Some(near) => error.hint(format!("did you mean `{near}`?")),
        None => error,
    }
}

pub(super) fn unknown_condition(template: &Template, name: &str, at: &Path<'_>) -> Error {
    let message = format!("`{name}` is no condition of the template");
    let error = Error::new(Code::UnresolvedReference, message).detail("fragment", name).place(&at.place());
    match nearest(name, template.conditions.keys().map(String::as_str)) {
        Some(near) => error.hint(format!("did you mean `{near}`?")),
        None => error,
    }
}

/// The error for a parameter whose value would have to be fetched.
pub(super) fn fetched(name: &str, type_name: &str, at: &Path<'_>) -> Error {
    let message = format!("parameter `{name}` is of type `{type_name}`, which this release does not fetch");
    Error::new(Code::UnsupportedIntrinsic, message)
        .hint("declare it as `String` and give the value in the run's input")
        .place(&at.place())
}

/// The error for a resource that is used but whose condition is false.
pub(super) fn does_not_exist(logical_id: &str, condition: Option<&str>, at: &Path<'_>) -> Error {
    let message = match condition {
        Some(condition) => {
            format!("`{logical_id}` does not exist in this deploy: its condition `{condition}` is false")
        }
        None => format!("`{logical_id}` does not exist in this deploy"),
    };
    Error::new(Code::UnresolvedReference, message)
        .hint("put the reference into an `Fn::If` on the same condition")
        .place(&at.place())
}
