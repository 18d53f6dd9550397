//! Evaluation of expressions to nodes: unknown parts carry their reason, secrets stay tokens.

use indexmap::IndexMap;
use serde_json::{Map, Value};

use super::intrinsic::{self, Call, Evaluate};
use super::path::Path;
use super::text::Writer;
use super::{Resource, Scope};
use crate::error::{Code, Error, Place, Result};
use crate::secrets::token;
use crate::value::Node;

/// Evaluates an expression of the template's resources or outputs.
///
/// A map with exactly one key `Ref` or `Fn::…` is a function; every other map is one (rule T5). Elements and keys
/// that are `AWS::NoValue` are left out. Strings keep their dynamic references as [`crate::value::Piece::Secret`].
///
/// # Errors
/// [`Code::InvalidIntrinsic`], [`Code::UnresolvedReference`], [`Code::UnsupportedIntrinsic`], or what
/// [`super::Resources::attribute`] refuses; each with its place.
pub fn evaluate(expression: &Value, scope: &Scope<'_>, place: &Place) -> Result<Node> {
    eval(expression, scope, &Path::Root(place))
}

/// All properties of a resource, as a [`Node::Map`].
pub fn properties(logical_id: &str, resource: &Resource, scope: &Scope<'_>) -> Result<Node> {
    let place = scope.template.properties_place(logical_id);
    match &resource.properties {
        // At the root a sole key `Ref` is the name of a property.
        Value::Object(map) => eval_map(map, scope, &Path::Root(&place)),
        other => eval(other, scope, &Path::Root(&place)),
    }
}

pub(super) fn eval(expression: &Value, scope: &Scope<'_>, at: &Path<'_>) -> Result<Node> {
    match expression {
        Value::Null => Ok(Node::Null),
        Value::Bool(flag) => Ok(Node::Bool(*flag)),
        Value::Number(number) => Ok(Node::Number(number.clone())),
        Value::String(text) => Ok(Node::Text(token::pieces(text))),
        Value::Array(items) => Ok(Node::List(eval_list(items, scope, at)?)),
        Value::Object(map) => match intrinsic::call(map) {
            None => eval_map(map, scope, at),
            Some(Call { name, argument }) => {
                let at = at.key(name);
                match intrinsic::find(name).map(|function| &function.evaluate) {
                    Some(Evaluate::Value(function)) => function(argument, scope, &at),
                    Some(Evaluate::Text(function)) => {
                        let mut writer = Writer::default();
                        function(argument, scope, &at, &mut writer).map(|()| Node::Text(writer.finish()))
                    }
                    Some(Evaluate::Condition(_)) => Err(intrinsic::only_in_conditions(name, &at)),
                    None => Err(intrinsic::unsupported(name, &at)),
                }
                .map_err(|error| intrinsic::locate(error, name, &at))
            }
        },
    }
}

/// Evaluates the functions of an expression for their errors alone, each outermost one by itself.
pub(super) fn probe(expression: &Value, scope: &Scope<'_>, at: &Path<'_>, errors: &mut Vec<Error>) {
    match expression {
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                probe(item, scope, &at.index(index), errors);
            }
        }
        Value::Object(map) if intrinsic::call(map).is_some() => {
            errors.extend(eval(expression, scope, at).err());
        }
        Value::Object(map) => {
            for (key, item) in map {
                probe(item, scope, &at.key(key), errors);
            }
        }
    }
}

fn eval_list(items: &[Value], scope: &Scope<'_>, at: &Path<'_>) -> Result<Vec<Node>> {
    let mut out = Vec::with_capacity(items.len());
    for (index, item) in items.iter().enumerate() {
        match eval(item, scope, &at.index(index))? {
            Node::NoValue => {}
            node => out.push(node),
        }
    }
    Ok(out)
}

fn eval_map(map: &Map<String, Value>, scope: &Scope<'_>, at: &Path<'_>) -> Result<Node> {
    let mut out = IndexMap::with_capacity(map.len());
    for (key, item) in map {
        match eval(item, scope, &at.key(key))? {
            Node::NoValue => {}
            node => {
                out.insert(key.clone(), node);
            }
        }
    }
    Ok(Node::Map(out))
}

/// Writes an expression that has to be text. `false` if it is `AWS::NoValue`: nothing is written then, not even
/// `before`.
pub(super) fn write(
    expression: &Value,
    scope: &Scope<'_>,
    at: &Path<'_>,
    before: &str,
    writer: &mut Writer,
) -> Result<bool> {
    if let Value::String(text) = expression {
        writer.template(before);
        writer.template(text);
        return Ok(true);
    }
    if let Some(Call { name, argument }) = expression.as_object().and_then(intrinsic::call)
        && let Some(Evaluate::Text(function)) = intrinsic::find(name).map(|function| &function.evaluate)
    {
        writer.template(before);
        let at = at.key(name);
        function(argument, scope, &at, writer).map_err(|error| intrinsic::locate(error, name, &at))?;
        return Ok(true);
    }
    let node = eval(expression, scope, at)?;
    if node == Node::NoValue {
        return Ok(false);
    }
    writer.template(before);
    writer.value(&scalar(&node, at)?);
    Ok(true)
}

/// A node that has to be text, a number or a boolean, as text.
pub(super) fn scalar(node: &Node, at: &Path<'_>) -> Result<crate::value::Text> {
    node.scalar_text().ok_or_else(|| {
        let message = format!("a string is needed here, not {}", kind(node));
        Error::new(Code::InvalidIntrinsic, message).place(&at.place())
    })
}

/// What a node is, with its article.
pub(super) fn kind(node: &Node) -> &'static str {
    match node {
        Node::Null => "null",
        Node::Bool(_) => "a boolean",
        Node::Number(_) => "a number",
        Node::Text(_) => "a string",
        Node::List(_) => "a list",
        Node::Map(_) => "an object",
        Node::Unknown(_) => "an unknown value",
        Node::NoValue => "`AWS::NoValue`",
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Stack, sample};
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    #[test]
    fn t5_only_a_map_with_exactly_one_key_is_a_function() {
        let stack = sample();
        let table = [
            (json!({"Ref": "Env"}), json!("dev")),
            (json!({"Ref": "Env", "Name": "x"}), json!({"Ref": "Env", "Name": "x"})),
            (json!({"Condition": {"StringEquals": {}}}), json!({"Condition": {"StringEquals": {}}})),
            (json!({"Condition": "IsDev"}), json!({"Condition": "IsDev"})),
            (json!({"Fn": {"GetAtt": 1}}), json!({"Fn": {"GetAtt": 1}})),
        ];
        for (expression, expected) in table {
            assert_eq!(stack.stored(&expression), Ok(expected));
        }
    }

    #[test]
    fn no_value_leaves_maps_and_lists() {
        let expression = json!({
            "A": {"Ref": "AWS::NoValue"},
            "B": [1, {"Ref": "AWS::NoValue"}, {"Fn::If": ["IsProd", 2, {"Ref": "AWS::NoValue"}]}, 3],
            "C": {"D": {"Ref": "AWS::NoValue"}},
        });
        let node = sample().evaluate(&expression).unwrap();
        assert_eq!(node.stored().unwrap(), json!({"B": [1, 3], "C": {}}));
        let Node::Map(map) = node else { panic!("a map") };
        assert!(!map.contains_key("A"));
    }

    #[test]
    fn numbers_stay_as_they_are_written() {
        let stack = sample();
        let document: Value = serde_json::from_str(r#"{"a": 1.10, "b": 1e400}"#).unwrap();
        assert_eq!(stack.stored(&document).unwrap().to_string(), r#"{"a":1.10,"b":1e+400}"#);
    }

    #[test]
    fn s15_a_token_is_live_only_where_the_template_wrote_it() {
        let stack = sample();
        let table = [
            (json!("{{resolve:secretsmanager:a}}"), 1),
            (json!({"Fn::GetAtt": "Topic.Token"}), 0),
            (json!({"Fn::Join": ["", ["x", {"Fn::GetAtt": "Topic.Token"}]]}), 0),
            (
                json!({"Fn::Join": ["", ["{{resolve:secretsmanager:", {"Ref": "Topic"}, ":SecretString:pw::}}"]]}),
                1,
            ),
            (json!({"Fn::Sub": "{{resolve:secretsmanager:${Topic}}}"}), 1),
            (json!({"Fn::Join": ["", [{"Fn::Sub": "{{resolve:ssm-secure:"}, "p", "}}"]]}), 1),
            (json!({"Fn::Join": ["", ["pw=", {"Ref": "Password"}]]}), 1),
        ];
        for (expression, secrets) in table {
            let node = stack.evaluate(&expression).unwrap();
            assert_eq!(node.secrets().len(), secrets, "{expression}");
        }
    }

    #[test]
    fn properties_of_a_resource() {
        let stack = Stack::new(json!({"Resources": {
            "A": {"Properties": {"Ref": {"Ref": "AWS::Region"}}},
            "B": {"Properties": {"Name": {"Fn::GetAtt": ["A", "Gone"]}}},
            "C": {},
        }}));
        let of = |id: &str| properties(id, &stack.template.resources[id], &stack.scope());
        assert_eq!(of("A").unwrap().stored().unwrap(), json!({"Ref": "eu-west-1"}));
        assert_eq!(of("C").unwrap(), Node::Map(IndexMap::new()));
        let error = of("B").unwrap_err();
        let place = error.where_().unwrap();
        assert_eq!(place.logical_id.as_deref(), Some("B"));
        assert_eq!(place.path.join("."), "Resources.B.Properties.Name.Fn::GetAtt");
    }

    /// JSON in which functions, well and badly formed, are frequent.
    fn any_expression() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            (-2..4_i64).prop_map(Value::from),
            "(Topic|Topic\\.Arn|NewBucket|Off|Env|Subnets|AWS::Region|AWS::NoValue|IsDev|Regions|dev|Ami|Nope)"
                .prop_map(Value::from),
            "(\\$\\{|Topic|!|\\.Arn|\\}|\\{\\{resolve:|ssm:|secretsmanager:|\\}\\}|,|ä){0,6}".prop_map(Value::from),
        ];
        let key = "(Ref|Condition|Name|Fn::(GetAtt|Sub|Join|Select|Split|If|FindInMap|Base64|ImportValue|GetStackOutput|Equals|And|Or|Not|Cidr|X)\
             |StackName|OutputName|Region|RoleArn)";
        leaf.prop_recursive(4, 48, 4, move |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                (key, inner.clone())
                    .prop_map(|(key, value)| Value::Object([(key, value)].into_iter().collect())),
                proptest::collection::vec((key, inner), 0..3)
                    .prop_map(|pairs| Value::Object(pairs.into_iter().collect())),
            ]
        })
    }

    proptest! {
        /// Whatever stands in a template, it is evaluated or refused with its place; never a panic.
        #[test]
        fn any_expression_is_evaluated_or_refused(expression in any_expression()) {
            let stack = sample();
            if let Err(error) = stack.evaluate(&expression) {
                prop_assert!(error.where_().is_some());
            }
        }

        /// What `check` lets pass, evaluates; so no error waits for a run that has begun.
        #[test]
        fn any_checked_template_evaluates(expression in any_expression()) {
            let mut stack = sample();
            stack.template.resources["Topic"].properties = json!({ "P": expression });
            if stack.check().is_ok() {
                let resource = &stack.template.resources["Topic"];
                let node = properties("Topic", resource, &stack.scope());
                // Attributes of the sample that are lists are not what `check` could know.
                prop_assert!(node.is_ok() || expression.to_string().contains("GetAtt"), "{:?}", node);
            }
            let _ = super::super::dependencies(&stack.template, &stack.conditions);
            stack.template.conditions.insert("X".into(), expression);
            let _ = super::super::conditions(&stack.template, &stack.bound, &stack.pseudo);
        }
    }
}
