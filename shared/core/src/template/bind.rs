//! Binding parameters to values (rules T6, T9, T15, S17).

use indexmap::IndexMap;
use serde_json::{Map, Value, json};

use super::parameters::{Parameter, ParameterType, scalar_text};
use super::parse::kind;
use super::{Template, parameters};
use crate::error::{Code, Error, Place, Result, nearest};
use crate::secrets::token;
use crate::value::{Node, Piece, Text};

/// Where values of parameters may come from, strongest first. Values are strings, numbers or booleans, or lists of
/// them for list types; in all but `passed`, text that is spelled like a token is one.
#[derive(Clone, Debug, Default)]
pub struct ParameterSources {
    /// What the parent passes to a nested stack: evaluated already, parts may be unknown.
    pub passed: IndexMap<String, Node>,
    /// What the run's input supplies.
    pub run: IndexMap<String, Value>,
    /// What the manifest of the assembly supplies.
    pub manifest: IndexMap<String, Value>,
    /// What the last deploy recorded, in stored form; names that the template no longer declares are skipped.
    pub previous: IndexMap<String, Value>,
}

/// Where a value came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    Passed,
    Run,
    Manifest,
    Previous,
    Default,
}

impl Source {
    const ALL: [Self; 5] = [Self::Passed, Self::Run, Self::Manifest, Self::Previous, Self::Default];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Run => "run",
            Self::Manifest => "manifest",
            Self::Previous => "previous",
            Self::Default => "default",
        }
    }
}

/// The parameters of a template with their values, in template order.
///
/// A number is text, as CloudFormation has it; a list is a list of text. A parameter whose value would have to be
/// fetched has none here.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Bound {
    pub values: IndexMap<String, Node>,
    pub sources: IndexMap<String, Source>,
    /// The parameters declared `NoEcho`: their values are tokens, or empty.
    pub no_echo: Vec<String>,
    /// The parameters whose `AllowedPattern` uses constructs of Java that are not understood here; their values were
    /// not matched against it, which deserves a warning.
    pub unmatched: Vec<String>,
}

impl Bound {
    /// `{values, sources, noEcho, unmatched}`, values in their document form.
    pub fn to_document(&self) -> Value {
        let values: Map<String, Value> =
            self.values.iter().map(|(name, value)| (name.clone(), value.to_document())).collect();
        let sources: Map<String, Value> =
            self.sources.iter().map(|(name, source)| (name.clone(), json!(source.name()))).collect();
        json!({ "values": values, "sources": sources, "noEcho": self.no_echo, "unmatched": self.unmatched })
    }

    /// Reads [`Bound::to_document`] back.
    ///
    /// # Errors
    /// [`Code::InvalidState`] if the document has another form.
    pub fn from_document(document: &Value) -> Result<Self> {
        let bad =
            || Error::new(Code::InvalidState, "the parameters in a plan do not have the documented form");
        let object = |key: &str| document.get(key).and_then(Value::as_object).ok_or_else(bad);
        let names = |key: &str| {
            let items = document.get(key).and_then(Value::as_array).ok_or_else(bad)?;
            items.iter().map(|item| item.as_str().map(str::to_owned).ok_or_else(bad)).collect::<Result<_>>()
        };
        let mut bound =
            Bound { no_echo: names("noEcho")?, unmatched: names("unmatched")?, ..Bound::default() };
        for (name, value) in object("values")? {
            bound.values.insert(name.clone(), Node::from_document(value)?);
        }
        for (name, source) in object("sources")? {
            let source = Source::ALL.into_iter().find(|known| source == known.name()).ok_or_else(bad)?;
            bound.sources.insert(name.clone(), source);
        }
        Ok(bound)
    }

    /// The values as the record keeps them, for the next deploy's [`ParameterSources::previous`]. Those that are not
    /// known are left out.
    pub fn stored(&self) -> Map<String, Value> {
        self.values.iter().filter_map(|(name, value)| Some((name.clone(), value.stored().ok()?))).collect()
    }
}

/// Binds each parameter: passed by the parent, else from the run, else the manifest, else the recorded previous
/// value, else the default (rule T15).
///
/// # Errors
/// All at once, and never with a value in them: [`Code::UnknownParameter`], [`Code::MissingParameter`],
/// [`Code::InvalidParameter`], and [`Code::PlaintextSecretError`] for a `NoEcho` parameter whose value or default is
/// a literal (rule S17); an empty text is no secret.
pub fn bind(template: &Template, sources: &ParameterSources) -> Result<Bound> {
    let root = Place::stack(template.stack.as_str()).down("Parameters");
    let mut errors = unknown(template, sources, &root);
    let mut bound = Bound::default();
    for (name, parameter) in &template.parameters {
        let at = root.down(name.as_str());
        if parameter.no_echo {
            bound.no_echo.push(name.clone());
        }
        if parameter.allowed_pattern.is_some() && parameter.pattern().is_none() {
            bound.unmatched.push(name.clone());
        }
        match value(name, parameter, sources) {
            // The name is kept for later releases to fetch; `check` refuses its use.
            Ok(_) if parameter.kind == ParameterType::Fetched => {}
            Ok((source, node)) => {
                bound.values.insert(name.clone(), node);
                bound.sources.insert(name.clone(), source);
            }
            Err(error) => errors.push(error.place(&at)),
        }
    }
    Error::all(errors)?;
    Ok(bound)
}

fn unknown(template: &Template, sources: &ParameterSources, root: &Place) -> Vec<Error> {
    let supplied = [
        sources.passed.keys().collect::<Vec<_>>(),
        sources.run.keys().collect(),
        sources.manifest.keys().collect(),
    ];
    let mut names: Vec<&String> = supplied.into_iter().flatten().collect();
    names.sort();
    names.dedup();
    names
        .into_iter()
        .filter(|name| !template.parameters.contains_key(*name))
        .map(|name| {
            let message = format!("the template declares no parameter `{name}`");
            let error = Error::new(Code::UnknownParameter, message).place(root);
            match nearest(name, template.parameters.keys().map(String::as_str)) {
                Some(near) => error.hint(format!("did you mean `{near}`?")),
                None => error,
            }
        })
        .collect()
}

fn value(name: &str, parameter: &Parameter, sources: &ParameterSources) -> Result<(Source, Node)> {
    if let Some(default) = parameter.default.as_deref().filter(|_| parameter.no_echo) {
        echo(name, parameter, &read(name, parameter, &Value::from(default))?, true, "default")?;
    }
    if let Some(node) = sources.passed.get(name) {
        let node = passed(name, parameter, node)?;
        echo(name, parameter, &node, false, "value")?;
        check(name, parameter, &node)?;
        return Ok((Source::Passed, node));
    }
    let default = parameter.default.as_deref().map(Value::from);
    let (source, written) = None
        .or_else(|| Some((Source::Run, sources.run.get(name)?)))
        .or_else(|| Some((Source::Manifest, sources.manifest.get(name)?)))
        .or_else(|| Some((Source::Previous, sources.previous.get(name)?)))
        .or_else(|| Some((Source::Default, default.as_ref()?)))
        .ok_or_else(|| {
            Error::new(Code::MissingParameter, format!("parameter `{name}` has no value and no default"))
                .hint(format!("give it one in the run's input, under `parameters.{name}`"))
        })?;
    let node = read(name, parameter, written)?;
    echo(name, parameter, &node, true, "value")?;
    check(name, parameter, &node)?;
    Ok((source, node))
}

/// A written value as a node; tokens become secrets.
fn read(name: &str, parameter: &Parameter, written: &Value) -> Result<Node> {
    let refuse = || {
        let expected = if parameter.kind.is_list() { "text or a list of texts" } else { "text" };
        Error::new(
            Code::InvalidParameter,
            format!("parameter `{name}` must be {expected}, not {}", kind(written)),
        )
    };
    let text = |value: &Value| {
        let text = parameters::scalar_text(value).ok_or_else(refuse)?;
        Ok(Node::Text(pieces(&text, parameter.no_echo)))
    };
    match written {
        Value::Array(items) if parameter.kind.is_list() => {
            Ok(Node::List(items.iter().map(text).collect::<Result<_>>()?))
        }
        other if parameter.kind.is_list() => {
            let whole = scalar_text(other).ok_or_else(refuse)?;
            let items = whole.split(',').map(|item| Node::Text(pieces(item.trim(), parameter.no_echo)));
            Ok(Node::List(items.collect()))
        }
        other => text(other),
    }
}

/// `NoEcho` says that the value is a secret, so there even an `ssm` token is one, whatever its type.
fn pieces(text: &str, no_echo: bool) -> Text {
    if no_echo {
        token::pieces_with(text, |token| Some(Piece::Secret(token.secret())))
    } else {
        token::pieces(text)
    }
}

/// What a parent passes, in the form of the parameter's type.
fn passed(name: &str, parameter: &Parameter, node: &Node) -> Result<Node> {
    let refuse =
        || Error::new(Code::InvalidParameter, format!("parameter `{name}` must be text, or a list of texts"));
    Ok(match node {
        Node::List(items) if parameter.kind.is_list() => {
            let texts = items.iter().map(|item| item.scalar_text().map(Node::Text).ok_or_else(refuse));
            Node::List(texts.collect::<Result<_>>()?)
        }
        // CloudFormation joins a list for a parameter that is none.
        Node::List(items) => {
            let mut joined = Text::default();
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    joined.push(Piece::Plain(",".into()));
                }
                joined.append(item.scalar_text().ok_or_else(refuse)?);
            }
            Node::Text(joined)
        }
        Node::Unknown(reason) if parameter.kind.is_list() => Node::Unknown(reason.clone()),
        scalar => {
            let text = scalar.scalar_text().ok_or_else(refuse)?;
            if !parameter.kind.is_list() {
                Node::Text(text)
            } else if let Some(reason) = text.unknown() {
                Node::Unknown(reason.clone())
            } else if let Some(plain) = text.as_plain() {
                Node::List(plain.split(',').map(|item| Node::text(item.trim())).collect())
            } else {
                Node::List(vec![Node::Text(text)])
            }
        }
    })
}

/// Refuses literal text for a `NoEcho` parameter. `strict`: nothing but tokens; else one secret part is enough, since
/// its literal neighbours stand in the parent's template already.
fn echo(name: &str, parameter: &Parameter, node: &Node, strict: bool, what: &str) -> Result<()> {
    fn hidden(node: &Node, strict: bool) -> bool {
        match node {
            Node::Text(text) => {
                let secret = |piece: &Piece| !matches!(piece, Piece::Plain(_));
                let pieces = text.pieces();
                pieces.is_empty()
                    || if strict { pieces.iter().all(secret) } else { pieces.iter().any(secret) }
            }
            Node::List(items) => items.iter().all(|item| hidden(item, strict)),
            Node::Unknown(_) => true,
            _ => false,
        }
    }
    // The value of a fetched parameter is its name, no secret.
    if !parameter.no_echo || parameter.kind == ParameterType::Fetched || hidden(node, strict) {
        return Ok(());
    }
    Err(Error::new(
        Code::PlaintextSecretError,
        format!("parameter `{name}` is `NoEcho`, but its {what} is given in plain text"),
    )
    .hint(
        "rotate that secret: it has been written down; keep the new one in Secrets Manager and give its reference, \
         `{{resolve:secretsmanager:…}}`",
    ))
}

fn check(name: &str, parameter: &Parameter, node: &Node) -> Result<()> {
    let items = if let Node::List(items) = node { items.as_slice() } else { std::slice::from_ref(node) };
    if parameter.kind == ParameterType::Fetched {
        return Ok(());
    }
    for item in items {
        // What is not known, and what is a secret, cannot be checked.
        let Some(plain) = item.as_plain() else { continue };
        // An empty `NumberList` is one empty text.
        if parameter.kind == ParameterType::NumberList && plain.is_empty() && items.len() == 1 {
            continue;
        }
        if let Some(broken) = parameter.broken_by(plain) {
            let mut error = Error::new(Code::InvalidParameter, format!("parameter `{name}` {broken}"));
            if let Some(description) = &parameter.constraint_description {
                error = error.hint(description.as_str());
            }
            return Err(error);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::testing::template;
    use super::*;
    use crate::value::Reason;

    fn sources(run: &Value, manifest: &Value, previous: &Value) -> ParameterSources {
        let map = |value: &Value| value.as_object().cloned().unwrap_or_default().into_iter().collect();
        ParameterSources {
            run: map(run),
            manifest: map(manifest),
            previous: map(previous),
            ..ParameterSources::default()
        }
    }

    fn parameter(declaration: &Value) -> Template {
        template(json!({ "Parameters": { "P": declaration } }))
    }

    #[test]
    fn t15_the_run_then_the_manifest_then_the_record_then_the_default() {
        let template = parameter(&json!({"Type": "String", "Default": "d"}));
        let none = json!({});
        let table = [
            (json!({"P": "r"}), json!({"P": "m"}), json!({"P": "p"}), "r", Source::Run),
            (none.clone(), json!({"P": "m"}), json!({"P": "p"}), "m", Source::Manifest),
            (none.clone(), none.clone(), json!({"P": "p", "Former": 1}), "p", Source::Previous),
            (none.clone(), none.clone(), none.clone(), "d", Source::Default),
        ];
        for (run, manifest, previous, value, source) in table {
            let bound = bind(&template, &sources(&run, &manifest, &previous)).unwrap();
            assert_eq!((bound.values["P"].as_plain(), bound.sources["P"]), (Some(value), source));
        }
    }

    #[test]
    fn t15_unknown_names_are_refused() {
        let template = parameter(&json!({"Type": "String", "Default": "d"}));
        for sources in [
            sources(&json!({"PP": "x", "P": "y"}), &json!({}), &json!({})),
            sources(&json!({}), &json!({"PP": "x"}), &json!({})),
        ] {
            let error = bind(&template, &sources).unwrap_err();
            assert_eq!(error.code(), Code::UnknownParameter);
            assert_eq!(error.message(), "the template declares no parameter `PP`");
            assert_eq!(error.hint_text(), Some("did you mean `P`?"));
        }
    }

    #[test]
    fn t6_an_unbound_required_parameter_is_an_error() {
        for type_name in ["String", "AWS::SSM::Parameter::Value<String>"] {
            let template = parameter(&json!({"Type": type_name}));
            let error = bind(&template, &ParameterSources::default()).unwrap_err();
            assert_eq!(error.code(), Code::MissingParameter);
            assert_eq!(error.where_().unwrap().path, ["Parameters", "P"]);
        }
    }

    #[test]
    fn t9_values_by_type() {
        let table = [
            (json!({"Type": "Number"}), json!(1.50), Ok(json!("1.5"))),
            (json!({"Type": "Number"}), json!("7"), Ok(json!("7"))),
            (json!({"Type": "String"}), json!(true), Ok(json!("true"))),
            (json!({"Type": "CommaDelimitedList"}), json!("a, b ,c"), Ok(json!(["a", "b", "c"]))),
            (json!({"Type": "CommaDelimitedList"}), json!(["a,b", 1]), Ok(json!(["a,b", "1"]))),
            (json!({"Type": "CommaDelimitedList"}), json!(""), Ok(json!([""]))),
            (json!({"Type": "List<AWS::EC2::Subnet::Id>"}), json!("s-1,s-2"), Ok(json!(["s-1", "s-2"]))),
            (json!({"Type": "List<Number>"}), json!("1,2"), Ok(json!(["1", "2"]))),
            (json!({"Type": "List<Number>"}), json!("1,x"), Err("parameter `P` must be a number")),
            (json!({"Type": "String"}), json!(["a"]), Err("parameter `P` must be text, not a list")),
            (json!({"Type": "String"}), json!(null), Err("parameter `P` must be text, not null")),
            (
                json!({"Type": "CommaDelimitedList", "AllowedValues": ["a"]}),
                json!("a,b"),
                Err("parameter `P` must be one of `a`"),
            ),
        ];
        for (declaration, value, expected) in table {
            let run = sources(&json!({ "P": value }), &json!({}), &json!({}));
            let result = bind(&parameter(&declaration), &run);
            match (result, expected) {
                (Ok(bound), Ok(expected)) => assert_eq!(bound.values["P"].stored().unwrap(), expected),
                (Err(error), Err(message)) => {
                    assert_eq!((error.code(), error.message()), (Code::InvalidParameter, message));
                }
                (result, _) => panic!("{declaration} {value}: {result:?}"),
            }
        }
    }

    #[test]
    fn s17_a_literal_for_a_noecho_parameter_is_refused() {
        let secret = json!({"Type": "String", "NoEcho": true});
        let with_default = |default: &str| json!({"Type": "String", "NoEcho": "true", "Default": default});
        let list = json!({"Type": "CommaDelimitedList", "NoEcho": true});
        let token = "{{resolve:ssm:/db}}";
        let table = [
            (secret.clone(), json!({"P": "hunter2"}), false),
            (secret.clone(), json!({"P": format!("hunter2{token}")}), false),
            (secret.clone(), json!({"P": token}), true),
            (secret.clone(), json!({"P": ""}), true),
            (with_default("hunter2"), json!({}), false),
            (with_default("hunter2"), json!({"P": token}), false),
            (with_default(""), json!({}), true),
            (with_default(token), json!({}), true),
            (list.clone(), json!({"P": format!("{token},hunter2")}), false),
            (list, json!({"P": format!("{token},{token}")}), true),
        ];
        for (declaration, run, accepted) in table {
            match bind(&parameter(&declaration), &sources(&run, &json!({}), &json!({}))) {
                Ok(bound) => {
                    assert!(accepted, "{declaration} {run}");
                    assert_eq!(bound.no_echo, ["P"]);
                    assert!(bound.values["P"].stored().is_ok());
                }
                Err(error) => {
                    assert!(!accepted, "{declaration} {run}: {error}");
                    assert_eq!(error.code(), Code::PlaintextSecretError);
                    let cause = error.cause().to_string();
                    assert!(!cause.contains("hunter2"), "{cause}");
                    assert!(cause.contains("`P`") && cause.contains("rotate"), "{cause}");
                }
            }
        }
        let bound =
            bind(&parameter(&secret), &sources(&json!({ "P": token }), &json!({}), &json!({}))).unwrap();
        assert_eq!(bound.values["P"].secrets()[0].token, token);
        assert_eq!(bound.stored()["P"], token);
    }

    #[test]
    fn s13_a_parent_passes_a_secret_as_it_is() {
        let secret = Node::Text(token::pieces("{{resolve:secretsmanager:db}}"));
        let pending = Node::Unknown(Reason::Other("known later".into()));
        let table = [
            ("NoEcho", secret.clone(), true),
            ("NoEcho", pending.clone(), true),
            ("NoEcho", Node::text("{{resolve:secretsmanager:db}}"), false),
            ("Description", Node::text("{{resolve:secretsmanager:db}}"), true),
        ];
        for (attribute, node, accepted) in table {
            let declaration = json!({"Type": "String", attribute: "true"});
            let passed = ParameterSources {
                passed: IndexMap::from([("P".to_owned(), node.clone())]),
                ..ParameterSources::default()
            };
            let result = bind(&parameter(&declaration), &passed);
            assert_eq!(result.is_ok(), accepted, "{attribute} {node:?}");
            if let Ok(bound) = result {
                assert_eq!(bound.values["P"].secrets().len(), node.secrets().len());
                assert_eq!(bound.sources["P"], Source::Passed);
            }
        }
    }

    #[test]
    fn a_description_of_the_constraint_is_the_hint() {
        let declaration = json!({"Type": "String", "Default": "ab", "AllowedPattern": "[0-9]+",
            "ConstraintDescription": "digits only"});
        let error = bind(&parameter(&declaration), &ParameterSources::default()).unwrap_err();
        assert_eq!(error.hint_text(), Some("digits only"));
        let declaration = json!({"Type": "String", "Default": "ab", "AllowedPattern": "(?!a)b"});
        let bound = bind(&parameter(&declaration), &ParameterSources::default()).unwrap();
        assert_eq!(bound.unmatched, ["P"]);
    }

    #[test]
    fn a13_a_parameter_that_would_be_fetched_is_not() {
        let template = parameter(&json!({"Type": "AWS::SSM::Parameter::Value<String>", "Default": "/cdk/v"}));
        let bound = bind(&template, &ParameterSources::default()).unwrap();
        assert!(bound.values.is_empty());
    }

    #[test]
    fn bound_parameters_survive_a_plan() {
        let template = template(json!({"Parameters": {
            "A": {"Type": "String", "NoEcho": true, "Default": "{{resolve:ssm-secure:x}}"},
            "B": {"Type": "CommaDelimitedList", "Default": "a,b"},
        }}));
        let bound = bind(&template, &ParameterSources::default()).unwrap();
        assert_eq!(Bound::from_document(&bound.to_document()).unwrap(), bound);
        for bad in [
            json!(null),
            json!({}),
            json!({"values": {}, "sources": {"A": "x"}, "noEcho": [], "unmatched": []}),
        ] {
            assert_eq!(Bound::from_document(&bad).unwrap_err().code(), Code::InvalidState);
        }
    }
}
