//! A template with those of the stacks nested in it, evaluated as one.
//!
//! A nested stack is evaluated in a scope of its own: its template, the parameters that its parent passes, pseudo
//! parameters of its own. What its resources are known as comes from the whole tree: [`Resources`] are asked by ids that
//! say the way, `Child~Queue` (see [`crate::state::tree`]); what the parent asks of a nested stack, its outputs, is
//! evaluated here, so that a value is known as soon as what it is made of is.
//!
//! Source of the semantics: AWS CloudFormation User Guide, "Embed stacks within other stacks".

use indexmap::IndexMap;
use serde_json::{Map, Value};

use super::check::NotYet;
use super::reads::{Reads, Unread, reads};
use super::{
    Bound, Imports, OutputValue, ParameterSources, Pseudo, Resource, Resources, Scope, Template, bind, check,
    conditions, dependencies, evaluate, holds, outputs, properties,
};
use crate::assets::table::Table;
use crate::error::{Code, Error, Place, Result, nearest};
use crate::name::RecordKey;
use crate::state::tree::{NESTED, id, key_of, parts};
use crate::value::{Node, Reason};

/// The template of a nested stack, with those nested in it by logical id.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Nested {
    pub template: Template,
    pub nested: IndexMap<String, Nested>,
}

/// Puts the templates of nested stacks, by path and parents before children, into those that they are nested in.
pub fn nest(templates: impl IntoIterator<Item = (String, Template)>) -> IndexMap<String, Nested> {
    let mut roots: IndexMap<String, Nested> = IndexMap::new();
    for (path, template) in templates {
        let mut at = &mut roots;
        let mut segments: Vec<&str> = path.split('~').collect();
        let logical_id = segments.pop().unwrap_or_default().to_owned();
        for segment in segments {
            at = &mut at.entry(segment.to_owned()).or_default().nested;
        }
        at.insert(logical_id, Nested { template, nested: IndexMap::new() });
    }
    roots
}

/// What an expression of the tree can see of resources and of other stacks.
#[derive(Clone, Copy)]
pub struct Known<'k> {
    /// Asked by ids that say the way: `Child~Queue`.
    pub resources: &'k dyn Resources,
    pub imports: &'k dyn Imports,
}

impl<'k> Known<'k> {
    /// Before the deploy: nothing of resources.
    pub fn before(imports: &'k dyn Imports) -> Self {
        Self { resources: &NotYet, imports }
    }
}

impl Known<'static> {
    /// Before anything is read.
    pub fn nothing() -> Self {
        Self { resources: &NotYet, imports: &Unread }
    }
}

/// The stack at the root of a tree.
#[derive(Clone, Copy)]
pub struct Root<'t> {
    pub key: &'t RecordKey,
    pub template: &'t Template,
    pub nested: &'t IndexMap<String, Nested>,
    pub pseudo: &'t Pseudo,
    pub parameters: &'t Bound,
    pub conditions: &'t IndexMap<String, bool>,
    pub tags: &'t Map<String, Value>,
    /// Where its assets went: nothing of the tree may name where they came from.
    pub assets: &'t Table,
}

/// A stack with those nested in it, as far as they are opened.
pub struct Tree<'t> {
    root: Root<'t>,
    stacks: IndexMap<String, Stack<'t>>,
}

/// One stack of a tree.
pub struct Stack<'t> {
    pub key: RecordKey,
    pub template: &'t Template,
    pub nested: &'t IndexMap<String, Nested>,
    pub pseudo: Pseudo,
    pub conditions: IndexMap<String, bool>,
}

impl<'t> Tree<'t> {
    /// The root alone.
    pub fn new(root: Root<'t>) -> Self {
        let stack = Stack {
            key: root.key.clone(),
            template: root.template,
            nested: root.nested,
            pseudo: root.pseudo.clone(),
            conditions: root.conditions.clone(),
        };
        Self { root, stacks: IndexMap::from([(String::new(), stack)]) }
    }

    /// The whole tree; `stack_id` gives `AWS::StackId` of the nested stack at a path.
    ///
    /// # Errors
    /// As [`Tree::open`].
    pub fn whole(root: Root<'t>, imports: &dyn Imports, stack_id: impl Fn(&str) -> String) -> Result<Self> {
        let mut tree = Self::new(root);
        let mut next = vec![String::new()];
        while let Some(path) = next.pop() {
            next.extend(tree.open(&path, imports, &stack_id)?);
        }
        Ok(tree)
    }

    /// The whole tree as every step of a run sees it, before anything is read: what it consists of depends on no
    /// resource and on no other stack.
    ///
    /// # Errors
    /// As [`Tree::open`].
    pub fn unread(root: Root<'t>, stack_id: impl Fn(&str) -> String) -> Result<Self> {
        Self::whole(root, &Unread, stack_id)
    }

    /// Where the assets of the stack went.
    pub fn assets(&self) -> &'t Table {
        self.root.assets
    }

    /// Adds the stacks nested directly in the one at `path`, as far as their conditions hold; answers their paths.
    ///
    /// The conditions of a nested stack are decided here, before any resource is known, so that every run of a template
    /// has the same graph.
    ///
    /// # Errors
    /// What [`bind`] and [`conditions()`] refuse; [`Code::InvalidTemplate`] for a nested stack without a template.
    pub fn open(
        &mut self,
        path: &str,
        imports: &dyn Imports,
        stack_id: &dyn Fn(&str) -> String,
    ) -> Result<Vec<String>> {
        let stack = self.stack(path)?;
        let mut opened = Vec::new();
        let mut errors = Vec::new();
        for (logical_id, _) in stack.nested_resources() {
            let path = id(path, logical_id);
            let Some(nested) = stack.nested.get(logical_id) else {
                errors.push(no_template(&stack.key, logical_id));
                continue;
            };
            let key = key_of(self.root.key, &path);
            let pseudo = Pseudo {
                // `~` is not legal in resource names (rule T11).
                stack_name: key.stack.as_str().replace('~', "-"),
                stack_id: stack_id(&path),
                ..self.root.pseudo.clone()
            };
            let decided = self
                .bind(&path, &nested.template, Known::before(imports))
                .and_then(|bound| conditions(&nested.template, &bound, &pseudo));
            match decided {
                Ok(conditions) => {
                    opened.push((
                        path,
                        Stack { key, template: &nested.template, nested: &nested.nested, pseudo, conditions },
                    ));
                }
                Err(error) => errors.push(error),
            }
        }
        Error::all(errors)?;
        let paths = opened.iter().map(|(path, _)| path.clone()).collect();
        self.stacks.extend(opened);
        Ok(paths)
    }

    /// The opened stacks by path, parents before children; the root's path is empty.
    pub fn stacks(&self) -> impl Iterator<Item = (&str, &Stack<'t>)> {
        self.stacks.iter().map(|(path, stack)| (path.as_str(), stack))
    }

    /// # Errors
    /// `InternalError` if there is none at that path.
    pub fn stack(&self, path: &str) -> Result<&Stack<'t>> {
        self.stacks.get(path).ok_or_else(|| {
            Error::new(Code::InternalError, format!("there is no stack `{path}` in {}", self.root.key))
        })
    }

    /// A resource by its id, with its stack, if the template has it.
    pub fn resource(&self, id: &str) -> Option<(&Stack<'t>, &'t Resource)> {
        let (path, logical_id) = parts(id);
        let stack = self.stacks.get(path)?;
        Some((stack, stack.template.resources.get(logical_id)?))
    }

    /// The parameters of the stack at a path with their values: the root's as given, those of a nested one as its
    /// parent passes them.
    pub fn parameters(&self, path: &str, known: Known<'_>) -> Result<Bound> {
        if path.is_empty() {
            return Ok(self.root.parameters.clone());
        }
        self.bind(path, self.stack(path)?.template, known)
    }

    fn bind(&self, path: &str, template: &Template, known: Known<'_>) -> Result<Bound> {
        let Node::Map(passed) =
            self.property(path, "Parameters", known)?.unwrap_or(Node::Map(IndexMap::new()))
        else {
            let (parent, logical_id) = parts(path);
            let message = format!("the `Parameters` of nested stack `{logical_id}` must be an object");
            let place = Place::stack(self.stack(parent)?.key.stack.as_str()).at(logical_id);
            return Err(Error::new(Code::InvalidTemplate, message).place(&place));
        };
        bind(template, &ParameterSources { passed, ..ParameterSources::default() })
    }

    /// A property of the resource behind which the nested stack at a path is.
    fn property(&self, path: &str, name: &str, known: Known<'_>) -> Result<Option<Node>> {
        let (parent, logical_id) = parts(path);
        let stack = self.stack(parent)?;
        let Some(expression) =
            stack.template.resources.get(logical_id).and_then(|resource| resource.properties.get(name))
        else {
            return Ok(None);
        };
        let place = stack.template.properties_place(logical_id).down(name);
        self.scope(parent, known, |scope| evaluate(expression, scope, &place)).map(Some)
    }

    /// Evaluates in the scope of the stack at a path.
    pub fn scope<T>(
        &self,
        path: &str,
        known: Known<'_>,
        work: impl FnOnce(&Scope<'_>) -> Result<T>,
    ) -> Result<T> {
        let stack = self.stack(path)?;
        let parameters = self.parameters(path, known)?;
        work(&Scope {
            template: stack.template,
            pseudo: &stack.pseudo,
            parameters: &parameters,
            conditions: &stack.conditions,
            resources: &Within { tree: self, path, known },
            imports: known.imports,
        })
    }

    /// All properties of a resource, by its id.
    ///
    /// # Errors
    /// What the expressions raise; [`Code::UnrewrittenAssetReference`] (see [`Root::assets`]).
    pub fn properties(&self, id: &str, known: Known<'_>) -> Result<Node> {
        let (path, logical_id) = parts(id);
        let (stack, resource) = self.resource(id).ok_or_else(|| {
            Error::new(Code::InternalError, format!("{} has no resource `{id}`", self.root.key))
        })?;
        let properties = self.scope(path, known, |scope| properties(logical_id, resource, scope))?;
        self.audit(&properties, || stack.template.properties_place(logical_id))?;
        Ok(properties)
    }

    /// The outputs of the stack at a path.
    ///
    /// # Errors
    /// What the expressions raise; [`Code::UnrewrittenAssetReference`] (see [`Root::assets`]).
    pub fn outputs(&self, path: &str, known: Known<'_>) -> Result<IndexMap<String, OutputValue>> {
        let outputs = self.scope(path, known, outputs)?;
        let stack = self.stack(path)?.key.stack.as_str();
        let audit = |(name, output): (&String, &OutputValue)| {
            self.audit(&output.value, || {
                Place::stack(stack).down("Outputs").down(name.as_str()).down("Value")
            })
        };
        Error::all(outputs.iter().map(audit).filter_map(Result::err).collect())?;
        Ok(outputs)
    }

    /// Refuses a value that still names storage that the stack's assets were redirected from: deployed so, it would look
    /// for them where they are not. What is not known yet is audited when it is (rule A28).
    fn audit(&self, value: &Node, place: impl Fn() -> Place) -> Result<()> {
        if self.root.assets.is_empty() {
            return Ok(());
        }
        let found = self.root.assets.audit(&value.outline());
        Error::all(found.iter().map(|finding| finding.error(place())).collect())
    }

    /// The attributes of a nested stack's row: `Outputs.X`.
    pub fn attributes(&self, path: &str, known: Known<'_>) -> Result<IndexMap<String, Node>> {
        let outputs = self.outputs(path, known)?;
        Ok(outputs.into_iter().map(|(name, output)| (format!("{OUTPUTS}{name}"), output.value)).collect())
    }

    /// The tags of the stack at a path: those of a nested stack's own resource, above those of its parent (rule T12).
    pub fn tags(&self, path: &str, known: Known<'_>) -> Result<Map<String, Value>> {
        if path.is_empty() {
            return Ok(self.root.tags.clone());
        }
        let mut tags = self.tags(parts(path).0, known)?;
        let own = self.property(path, "Tags", known)?.map(|tags| tags.preview());
        for tag in own.iter().filter_map(Value::as_array).flatten() {
            if let Some(name) = tag["Key"].as_str() {
                tags.insert(name.to_owned(), tag["Value"].clone());
            }
        }
        Ok(tags)
    }

    /// The dependencies of every resource, by id, inside its own stack; parents before what is nested in them.
    ///
    /// # Errors
    /// [`Code::CircularDependency`].
    pub fn dependencies(&self) -> Result<IndexMap<String, Vec<String>>> {
        let mut all = IndexMap::new();
        for (path, stack) in &self.stacks {
            for (logical_id, needs) in dependencies(stack.template, &stack.conditions)? {
                all.insert(id(path, &logical_id), needs.iter().map(|need| id(path, need)).collect());
            }
        }
        Ok(all)
    }

    /// What the stack at a path reads of others.
    ///
    /// # Errors
    /// As [`reads()`].
    pub fn reads(&self, path: &str, known: Known<'_>) -> Result<Reads> {
        let stack = self.stack(path)?;
        let bound = self.parameters(path, Known::before(known.imports))?;
        reads(stack.template, &bound, &stack.conditions, &stack.pseudo)
    }

    /// Checks the templates of all opened stacks.
    ///
    /// # Errors
    /// As [`check()`], of all stacks at once.
    pub fn check(&self, known: Known<'_>) -> Result<()> {
        let one = |path: &str, stack: &Stack<'_>| {
            let bound = self.parameters(path, Known::before(known.imports))?;
            check(stack.template, &bound, &stack.conditions, &stack.pseudo)
        };
        Error::all(self.stacks.iter().filter_map(|(path, stack)| one(path, stack).err()).collect())
    }

    fn output(&self, path: &str, attribute: &str, known: Known<'_>) -> Result<Node> {
        let logical_id = parts(path).1;
        let Some(stack) = self.stacks.get(path) else {
            return Ok(pending(path, Some(attribute)));
        };
        let name = attribute.strip_prefix(OUTPUTS).unwrap_or_default();
        let found = stack.template.outputs.get(name);
        let Some(output) = found.filter(|output| holds(output.condition.as_deref(), &stack.conditions))
        else {
            let mut error = Error::new(
                Code::UnresolvedReference,
                format!("nested stack `{logical_id}` has no attribute `{attribute}`"),
            )
            .detail("logicalId", logical_id);
            let names =
                stack.template.outputs.keys().map(|name| format!("{OUTPUTS}{name}")).collect::<Vec<_>>();
            if let Some(near) = nearest(attribute, names.iter().map(String::as_str)) {
                error = error.hint(format!("did you mean `{near}`?"));
            }
            return Err(error);
        };
        let place = Place::stack(stack.key.stack.as_str()).down("Outputs").down(name).down("Value");
        let node = self.scope(path, known, |scope| evaluate(&output.value, scope, &place))?;
        node.scalar_text().map(Node::Text).ok_or_else(|| {
            let message = format!("the value of output `{name}` must be a string");
            Error::new(Code::InvalidTemplate, message).place(&place)
        })
    }
}

/// How the attributes of a nested stack begin.
const OUTPUTS: &str = "Outputs.";

impl<'t> Stack<'t> {
    /// The resources of this stack behind which there are nested stacks, as far as their conditions hold.
    pub fn nested_resources(&self) -> impl Iterator<Item = (&str, &'t Resource)> {
        let template: &'t Template = self.template;
        template
            .resources
            .iter()
            .filter(|(_, resource)| {
                resource.type_name == NESTED && holds(resource.condition.as_deref(), &self.conditions)
            })
            .map(|(logical_id, resource)| (logical_id.as_str(), resource))
    }
}

/// The error for a nested stack whose template the assembly did not say.
fn no_template(key: &RecordKey, logical_id: &str) -> Error {
    Error::new(
        Code::InvalidTemplate,
        format!("nothing says where the template of nested stack `{logical_id}` is"),
    )
    .hint("a nested stack's template is found in the assembly: make it with `NestedStack` of the CDK")
    .place(&Place::stack(key.stack.as_str()).at(logical_id))
}

/// The resources of one stack of the tree, under their logical ids.
struct Within<'w, 't> {
    tree: &'w Tree<'t>,
    path: &'w str,
    known: Known<'w>,
}

impl Within<'_, '_> {
    fn is_nested(&self, logical_id: &str) -> bool {
        let stack = self.tree.stacks.get(self.path);
        stack
            .and_then(|stack| stack.template.resources.get(logical_id))
            .is_some_and(|resource| resource.type_name == NESTED)
    }
}

impl Resources for Within<'_, '_> {
    fn reference(&self, logical_id: &str) -> Node {
        let id = id(self.path, logical_id);
        if !self.is_nested(logical_id) {
            return self.known.resources.reference(&id);
        }
        match self.tree.stacks.get(&id) {
            Some(stack) => Node::text(stack.pseudo.stack_id.as_str()),
            None => pending(&id, None),
        }
    }

    fn attribute(&self, logical_id: &str, name: &str) -> Result<Node> {
        let id = id(self.path, logical_id);
        if self.is_nested(logical_id) {
            self.tree.output(&id, name, self.known)
        } else {
            self.known.resources.attribute(&id, name)
        }
    }
}

fn pending(id: &str, attribute: Option<&str>) -> Node {
    Node::Unknown(Reason::Pending { logical_id: id.to_owned(), attribute: attribute.map(str::to_owned) })
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Published, Recorded, pseudo, template};
    use super::*;
    use serde_json::json;

    /// A root and, by logical id, the nested templates: `{template, nested}`.
    struct Family {
        key: RecordKey,
        root: Template,
        nested: IndexMap<String, Nested>,
        bound: Bound,
        conditions: IndexMap<String, bool>,
        pseudo: Pseudo,
        tags: Map<String, Value>,
        assets: Table,
    }

    fn nested(documents: &Value) -> IndexMap<String, Nested> {
        let all = documents.as_object().cloned().unwrap_or_default();
        all.into_iter()
            .map(|(id, one)| {
                let of =
                    Nested { template: template(one["template"].clone()), nested: nested(&one["nested"]) };
                (id, of)
            })
            .collect()
    }

    impl Family {
        fn new(root: Value, below: &Value) -> Self {
            let root = template(root);
            let pseudo = pseudo();
            let bound = bind(&root, &ParameterSources::default()).unwrap();
            let conditions = conditions(&root, &bound, &pseudo).unwrap();
            let key = RecordKey::parse("Web", "eu-west-1").unwrap();
            let tags =
                [("team".to_owned(), json!("web")), ("stage".to_owned(), json!("dev"))].into_iter().collect();
            Self {
                key,
                root,
                nested: nested(below),
                bound,
                conditions,
                pseudo,
                tags,
                assets: Table::default(),
            }
        }

        fn tree(&self) -> Result<Tree<'_>> {
            let root = Root {
                key: &self.key,
                template: &self.root,
                nested: &self.nested,
                pseudo: &self.pseudo,
                parameters: &self.bound,
                conditions: &self.conditions,
                tags: &self.tags,
                assets: &self.assets,
            };
            Tree::whole(root, &Published, |path| format!("arn:{path}"))
        }
    }

    const ALL: Known<'static> = Known { resources: &Recorded, imports: &Published };

    fn child(parameters: &Value) -> Value {
        json!({"Type": NESTED, "Properties": {"TemplateURL": "u", "Parameters": parameters}})
    }

    fn grand() -> Value {
        json!({
            "Parameters": {
                "Name": {"Type": "String"},
                "List": {"Type": "CommaDelimitedList", "Default": "x"},
                "Secret": {"Type": "String", "NoEcho": true, "Default": ""},
            },
            "Conditions": {
                "Named": {"Fn::Not": [{"Fn::Equals": [{"Ref": "Name"}, "none"]}]},
                "Never": {"Fn::Equals": ["a", "b"]},
            },
            "Resources": {
                "Queue": {"Condition": "Named", "Properties": {
                    "Q": {"Fn::Sub": "${Name}-${AWS::StackName}-${AWS::StackId}"},
                    "L": {"Ref": "List"},
                    "S": {"Ref": "Secret"},
                }},
                "NewTopic": {},
            },
            "Outputs": {
                "Url": {"Value": {"Ref": "Queue"}}, "Arn": {"Value": {"Fn::GetAtt": "NewTopic.Arn"}},
                "Off": {"Condition": "Never", "Value": "x"},
            },
        })
    }

    fn family() -> Family {
        Family::new(
            json!({
                "Parameters": {"Password": {"Type": "String", "NoEcho": true, "Default": "{{resolve:secretsmanager:s}}"}},
                "Resources": {
                    "Topic": {},
                    "Child": child(&json!({"Arn": {"Fn::GetAtt": "Topic.Arn"}, "Password": {"Ref": "Password"}})),
                    "After": {"Properties": {
                        "Url": {"Fn::GetAtt": ["Child", "Outputs.Url"]}, "Id": {"Ref": "Child"},
                        "New": {"Fn::GetAtt": ["Child", "Outputs.New"]},
                    }},
                },
            }),
            &json!({"Child": {
                "template": {
                    "Parameters": {"Arn": {"Type": "String"}, "Password": {"Type": "String", "NoEcho": true}},
                    "Resources": {
                        "Queue": {"Properties": {"A": {"Ref": "Arn"}}},
                        "Grand": child(&json!({
                            "Name": "n", "List": ["a", {"Ref": "Arn"}], "Secret": {"Ref": "Password"},
                        })),
                    },
                    "Outputs": {
                        "Url": {"Value": {"Fn::Sub": "u/${Grand.Outputs.Url}"}},
                        "New": {"Value": {"Fn::GetAtt": ["Grand", "Outputs.Arn"]}},
                    },
                },
                "nested": {"Grand": {"template": grand()}},
            }}),
        )
    }

    #[test]
    fn values_pass_down_as_parameters_and_up_as_outputs() {
        let family = family();
        let tree = family.tree().unwrap();
        let stored = |id: &str| tree.properties(id, ALL).unwrap().preview();
        assert_eq!(stored("Child~Queue"), json!({"A": "Topic.Arn"}));
        assert_eq!(
            stored("Child~Grand~Queue"),
            json!({
                "Q": "n-Web-Child-Grand-arn:Child~Grand", "L": ["a", "Topic.Arn"],
                "S": "{{resolve:secretsmanager:s}}",
            })
        );
        assert_eq!(
            stored("After"),
            json!({
                "Url": "u/id-of-Child~Grand~Queue", "Id": "arn:Child",
                "New": "Child~Grand~NewTopic.Arn",
            })
        );
        let attributes = tree.attributes("Child", ALL).unwrap();
        assert_eq!(attributes.keys().collect::<Vec<_>>(), ["Outputs.Url", "Outputs.New"]);
        assert_eq!(tree.check(Known::nothing()), Ok(()));
        let needs = tree.dependencies().unwrap();
        assert_eq!(needs["Child"], ["Topic"]);
        assert_eq!(needs["After"], ["Child"]);
        assert!(needs["Child~Grand~Queue"].is_empty());
    }

    #[test]
    fn s13_a_secret_passes_as_its_reference() {
        let family = family();
        let tree = family.tree().unwrap();
        let bound = tree.parameters("Child~Grand", ALL).unwrap();
        assert_eq!(bound.values["Secret"].secrets().len(), 1);
        assert_eq!(bound.stored()["Secret"], "{{resolve:secretsmanager:s}}");
        assert_eq!(bound.stored()["List"], json!(["a", "Topic.Arn"]));
    }

    #[test]
    fn t12_tags_of_the_stack_reach_the_nested_ones_below_their_own() {
        let mut family = family();
        family.root.resources["Child"].properties["Tags"] = json!([{"Key": "stage", "Value": "own"}]);
        let tree = family.tree().unwrap();
        let tags = Value::Object(tree.tags("Child~Grand", ALL).unwrap());
        assert_eq!(tags, json!({"team": "web", "stage": "own"}));
    }

    #[test]
    fn a_nested_stack_whose_condition_is_false_is_not_there() {
        let family = Family::new(
            json!({
                "Conditions": {"No": {"Fn::Equals": ["a", "b"]}},
                "Resources": {"Child": {"Type": NESTED, "Condition": "No", "Properties": {"TemplateURL": "u"}}},
            }),
            &json!({"Child": {"template": {"Resources": {"Q": {}}}}}),
        );
        let tree = family.tree().unwrap();
        assert_eq!(tree.stacks().map(|(path, _)| path).collect::<Vec<_>>(), [""]);
        assert!(tree.resource("Child~Q").is_none());
    }

    #[test]
    fn what_is_wrong_is_told_with_its_stack() {
        let of = |parameters: &Value| {
            Family::new(
                json!({"Resources": {"Topic": {}, "Child": child(parameters)}}),
                &json!({"Child": {"template": grand()}}),
            )
        };
        let code = |parameters: &Value| of(parameters).tree().err().map(|error| error.code().name());
        assert_eq!(code(&json!({"Name": "n"})), None);
        assert_eq!(code(&json!({})), Some("MissingParameter"));
        assert_eq!(code(&json!({"Name": "n", "Nope": 1})), Some("UnknownParameter"));
        assert_eq!(code(&json!({"Name": "n", "Secret": "plain"})), Some("PlaintextSecretError"));
        // A condition that only the deploy could decide.
        assert_eq!(code(&json!({"Name": {"Ref": "Topic"}})), Some("UnresolvedReference"));
        assert_eq!(code(&json!("text")), Some("InvalidTemplate"));

        let without = Family::new(json!({"Resources": {"Child": child(&json!({}))}}), &json!({}));
        let error = without.tree().err().unwrap();
        assert_eq!((error.code(), error.message().contains("`Child`")), (Code::InvalidTemplate, true));

        let family = of(&json!({"Name": "n"}));
        let tree = family.tree().unwrap();
        for attribute in ["Outputs.Urk", "Url", "Outputs.Off"] {
            let error = tree.output("Child", attribute, ALL).unwrap_err();
            assert_eq!(error.code(), Code::UnresolvedReference);
        }
        let error = tree.output("Child", "Outputs.Urk", ALL).unwrap_err();
        assert_eq!(error.hint_text(), Some("did you mean `Outputs.Url`?"));
    }
}
