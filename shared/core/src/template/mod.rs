//! The template language of CloudFormation, evaluated here to the stored form (a secret stays its token).
//!
//! The order of use: [`Template::parse`], [`bind`], [`conditions()`], [`check()`] before anything is touched, and
//! [`reads()`] to know what to fetch of other stacks; then [`dependencies`], [`properties`] and [`outputs()`] while
//! deploying. Everything is a plain function of its arguments; what resources are known as comes in through
//! [`Resources`], what other stacks publish through [`Imports`].
//!
//! Source of the semantics: AWS CloudFormation User Guide, "Template anatomy" and "Intrinsic function reference".
//! A new function is one file in `intrinsic` and one row in its table.

mod bind;
mod check;
mod conditions;
mod evaluate;
mod graph;
mod intrinsic;
mod links;
mod mappings;
mod outputs;
mod parameters;
mod parse;
mod path;
mod reads;
pub(crate) mod sub;
mod survey;
mod text;
mod tree;

pub use bind::{Bound, ParameterSources, Source, bind};
pub use check::check;
pub use conditions::conditions;
pub use evaluate::{evaluate, properties};
pub use graph::dependencies;
pub use links::{Links, links};
pub use outputs::{OutputValue, outputs};
pub use parameters::{Parameter, ParameterType};
pub use reads::{Imports, NoImports, OutputRead, Reads, reads};
pub use tree::{Known, Nested, Root, Stack, Tree, nest};

use indexmap::IndexMap;
use serde_json::{Map, Value};

use crate::error::{Place, Result};
use crate::value::Node;

/// A template, taken apart; every section is there, empty if the document lacks it. Expressions are as written.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Template {
    /// The stack it belongs to: where its errors are placed.
    pub stack: String,
    pub description: Option<String>,
    pub metadata: Value,
    pub parameters: IndexMap<String, Parameter>,
    /// Not evaluated in this release.
    pub rules: Value,
    /// Map → first key → second key → a string, number or boolean, or a list of them.
    pub mappings: IndexMap<String, IndexMap<String, Map<String, Value>>>,
    pub conditions: IndexMap<String, Value>,
    /// The names of macros the template asks for; [`check()`] refuses them.
    pub transform: Vec<String>,
    pub resources: IndexMap<String, Resource>,
    pub outputs: IndexMap<String, Output>,
}

impl Template {
    /// The resources whose condition holds, in template order.
    pub fn active<'t>(
        &'t self,
        conditions: &'t IndexMap<String, bool>,
    ) -> impl Iterator<Item = (&'t str, &'t Resource)> {
        self.resources
            .iter()
            .filter(|(_, resource)| holds(resource.condition.as_deref(), conditions))
            .map(|(logical_id, resource)| (logical_id.as_str(), resource))
    }

    /// Where a resource's properties stand.
    fn properties_place(&self, logical_id: &str) -> Place {
        let segments = ["Resources", logical_id, "Properties"];
        Place {
            stack: Some(self.stack.clone()),
            logical_id: Some(logical_id.to_owned()),
            path: segments.map(str::to_owned).to_vec(),
        }
    }
}

/// A resource of a template.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Resource {
    pub type_name: String,
    /// An object, as written; its root is never a function.
    pub properties: Value,
    pub depends_on: Vec<String>,
    pub condition: Option<String>,
    pub deletion_policy: Option<DeletionPolicy>,
    /// Never [`DeletionPolicy::RetainExceptOnCreate`].
    pub update_replace_policy: Option<DeletionPolicy>,
    pub metadata: Value,
    pub update_policy: Value,
    pub creation_policy: Value,
}

/// What becomes of a resource that is no longer wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeletionPolicy {
    Delete,
    Retain,
    RetainExceptOnCreate,
    Snapshot,
}

impl DeletionPolicy {
    pub const ALL: [Self; 4] = [Self::Delete, Self::Retain, Self::RetainExceptOnCreate, Self::Snapshot];

    /// As templates and records spell it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Delete => "Delete",
            Self::Retain => "Retain",
            Self::RetainExceptOnCreate => "RetainExceptOnCreate",
            Self::Snapshot => "Snapshot",
        }
    }

    /// Reads [`Self::name`] back.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|policy| policy.name() == name)
    }
}

/// An output of a template.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Output {
    pub value: Value,
    /// `Export.Name`.
    pub export_name: Option<Value>,
    pub condition: Option<String>,
    pub description: Option<String>,
}

/// The pseudo parameters: constants of a deploy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pseudo {
    /// `AWS::AccountId`: 12 digits.
    pub account: String,
    /// `AWS::Region`
    pub region: String,
    /// `AWS::Partition`
    pub partition: String,
    /// `AWS::URLSuffix`
    pub url_suffix: String,
    /// `AWS::StackName`; a nested stack's is `Parent~LogicalId` on record, but must be legal in resource names here.
    pub stack_name: String,
    /// `AWS::StackId`: an ARN with a UUID (rule T11).
    pub stack_id: String,
    /// `AWS::NotificationARNs`
    pub notification_arns: Vec<String>,
}

impl Pseudo {
    const NAMES: [&'static str; 8] = [
        "AWS::AccountId",
        "AWS::NoValue",
        "AWS::NotificationARNs",
        "AWS::Partition",
        "AWS::Region",
        "AWS::StackId",
        "AWS::StackName",
        "AWS::URLSuffix",
    ];

    /// What `Ref` of a pseudo parameter is; `None` if there is none of that name.
    fn get(&self, name: &str) -> Option<Node> {
        Some(match name {
            "AWS::AccountId" => Node::text(self.account.as_str()),
            "AWS::NoValue" => Node::NoValue,
            "AWS::NotificationARNs" => {
                Node::List(self.notification_arns.iter().map(|arn| Node::text(arn.as_str())).collect())
            }
            "AWS::Partition" => Node::text(self.partition.as_str()),
            "AWS::Region" => Node::text(self.region.as_str()),
            "AWS::StackId" => Node::text(self.stack_id.as_str()),
            "AWS::StackName" => Node::text(self.stack_name.as_str()),
            "AWS::URLSuffix" => Node::text(self.url_suffix.as_str()),
            _ => return None,
        })
    }
}

/// What a resource's `Ref` and attributes are; callers implement it over the record and the run's progress.
pub trait Resources {
    /// What `Ref` returns; [`Node::Unknown`] while the resource is not there.
    fn reference(&self, logical_id: &str) -> Node;

    /// What `Fn::GetAtt` returns; an error if the type has no such attribute.
    fn attribute(&self, logical_id: &str, name: &str) -> Result<Node>;
}

/// All that an expression can see.
#[derive(Clone, Copy)]
pub struct Scope<'a> {
    pub template: &'a Template,
    pub pseudo: &'a Pseudo,
    pub parameters: &'a Bound,
    pub conditions: &'a IndexMap<String, bool>,
    pub resources: &'a dyn Resources,
    pub imports: &'a dyn Imports,
}

/// Whether what bears this condition exists. A condition that is not known counts as false; [`check()`] refuses it.
fn holds(condition: Option<&str>, conditions: &IndexMap<String, bool>) -> bool {
    condition.is_none_or(|name| conditions.get(name).copied().unwrap_or(false))
}

#[cfg(test)]
mod testing {
    //! A stack to evaluate expressions in.

    use super::*;
    use crate::error::{Code, Error};
    use crate::name::RecordKey;
    use crate::secrets::token;
    use crate::value::Reason;

    pub fn pseudo() -> Pseudo {
        Pseudo {
            account: "123456789012".into(),
            region: "eu-west-1".into(),
            partition: "aws".into(),
            url_suffix: "amazonaws.com".into(),
            stack_name: "Web".into(),
            stack_id: "arn:aws:cloudformation:eu-west-1:123456789012:stack/Web/0".into(),
            notification_arns: vec!["arn:1".into(), "arn:2".into()],
        }
    }

    /// Resources named `New…` are created by this run; `Gone` attributes are refused; others are on record.
    pub struct Recorded;

    impl Resources for Recorded {
        fn reference(&self, logical_id: &str) -> Node {
            if logical_id.starts_with("New") {
                Node::Unknown(Reason::Pending { logical_id: logical_id.into(), attribute: None })
            } else {
                Node::text(format!("id-of-{logical_id}"))
            }
        }

        fn attribute(&self, logical_id: &str, name: &str) -> Result<Node> {
            match name {
                "Gone" => {
                    Err(Error::new(Code::UnresolvedReference, format!("`{logical_id}` has no `{name}`")))
                }
                "List" => Ok(Node::List(vec![Node::text("one"), Node::text("two")])),
                "Token" => Ok(Node::text("{{resolve:ssm:/y}}")),
                _ if logical_id.starts_with("New") => Ok(Node::Unknown(Reason::Pending {
                    logical_id: logical_id.into(),
                    attribute: Some(name.into()),
                })),
                _ => Ok(Node::text(format!("{logical_id}.{name}"))),
            }
        }
    }

    /// Exports and outputs named `New…` are not published yet; `Gone` is not there; others are.
    pub struct Published;

    impl Published {
        fn value(name: &str, value: impl Into<String>, reason: String) -> Result<Node> {
            match name {
                "Gone" => Err(Error::new(Code::UnresolvedReference, "there is no `Gone`")),
                "Three" => Ok(Node::text("a||b||c")),
                "One" => Ok(Node::text("a")),
                "None" => Ok(Node::text("")),
                "Token" => Ok(Node::text("{{resolve:ssm-secure:/p}}")),
                "Secret" => Ok(Node::Text(token::pieces("{{resolve:ssm-secure:/p}}"))),
                _ if name.starts_with("New") => Ok(Node::Unknown(Reason::Other(reason))),
                _ => Ok(Node::text(value)),
            }
        }
    }

    impl Imports for Published {
        fn import(&self, export: &str) -> Result<Node> {
            Self::value(export, format!("export-{export}"), format!("import of `{export}`"))
        }

        fn output(&self, read: &OutputRead) -> Result<Node> {
            let RecordKey { stack, region } = &read.source;
            Self::value(&read.output, format!("{stack}/{region}/{}", read.output), read.to_string())
        }
    }

    /// A template from its JSON; `Type` is added to resources that lack it.
    pub fn template(mut document: Value) -> Template {
        if let Some(resources) = document.get_mut("Resources").and_then(Value::as_object_mut) {
            for resource in resources.values_mut().filter_map(Value::as_object_mut) {
                resource.entry("Type").or_insert_with(|| "AWS::SNS::Topic".into());
            }
        }
        Template::parse(document.to_string().as_bytes(), "Web").unwrap()
    }

    /// A template with everything its parameters and conditions decide.
    pub struct Stack {
        pub template: Template,
        pub bound: Bound,
        pub conditions: IndexMap<String, bool>,
        pub pseudo: Pseudo,
    }

    impl Stack {
        pub fn new(document: Value) -> Self {
            let template = template(document);
            let pseudo = pseudo();
            let bound = bind(&template, &ParameterSources::default()).unwrap();
            let conditions = conditions(&template, &bound, &pseudo).unwrap();
            Self { template, bound, conditions, pseudo }
        }

        pub fn scope(&self) -> Scope<'_> {
            Scope {
                template: &self.template,
                pseudo: &self.pseudo,
                parameters: &self.bound,
                conditions: &self.conditions,
                resources: &Recorded,
                imports: &Published,
            }
        }

        pub fn evaluate(&self, expression: &Value) -> Result<Node> {
            evaluate(expression, &self.scope(), &Place::stack("Web"))
        }

        pub fn check(&self) -> Result<()> {
            check(&self.template, &self.bound, &self.conditions, &self.pseudo)
        }

        /// The stored form, or the code of the error, or the reason why it is not known.
        pub fn stored(&self, expression: &Value) -> Result<Value, String> {
            match self.evaluate(expression) {
                Ok(node) => node.stored().map_err(|reason| reason.to_string()),
                Err(error) => Err(error.code().name().to_owned()),
            }
        }
    }

    /// The stack that the functions' tables of cases are evaluated in.
    pub fn sample() -> Stack {
        Stack::new(serde_json::json!({
            "Parameters": {
                "Env": {"Type": "String", "Default": "dev"},
                "Count": {"Type": "Number", "Default": 2},
                "Subnets": {"Type": "CommaDelimitedList", "Default": "a, b,c"},
                "Password": {"Type": "String", "NoEcho": true, "Default": "{{resolve:secretsmanager:db}}"},
            },
            "Mappings": {"Regions": {
                "eu-west-1": {"Ami": "ami-1", "Zones": ["a", "b"], "Size": 3},
                "dev": {"Ami": "ami-2"},
            }},
            "Conditions": {
                "IsDev": {"Fn::Equals": [{"Ref": "Env"}, "dev"]},
                "IsProd": {"Fn::Not": [{"Condition": "IsDev"}]},
            },
            "Resources": {
                "Topic": {}, "Queue": {}, "NewBucket": {}, "Off": {"Condition": "IsProd"},
            },
        }))
    }
}
