//! cdkd's way into an account: upload, create or update the stack, bootstrap.

use std::collections::BTreeMap;
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::api::{Api, Query};
use crate::error::{Error, Result};
use crate::package::Package;
use crate::xml::Xml;

/// The stack that the template makes.
const STACK: &str = "cdkd";

/// Parameters of the template by name, beyond where the code is.
pub type Parameters = BTreeMap<String, String>;

/// An installed cdkd.
#[derive(Clone, Debug)]
pub struct Installation {
    /// Outputs of the stack by name.
    pub outputs: BTreeMap<String, String>,
    /// What `cdkd-bootstrap` answered.
    pub bootstrap: Value,
    /// Whether anything had to be done.
    pub changed: bool,
}

impl Installation {
    /// Where the records of stacks live.
    pub fn state_bucket(&self) -> &str {
        self.outputs.get("StateBucket").map_or("", String::as_str)
    }

    /// Where uploads and the results of runs live.
    pub fn runs_bucket(&self) -> &str {
        self.outputs.get("RunsBucket").map_or("", String::as_str)
    }
}

impl Api {
    /// Installs a package or updates what is installed, as far as it differs, and has `cdkd-bootstrap` make the state bucket:
    /// who wants asset storage asks for it.
    pub fn install(&self, package: &Package, parameters: &Parameters) -> Result<Installation> {
        let bucket = format!("cdkd-artifacts-{}-{}", self.account(), self.region());
        let prefix = format!("{}/", package.fingerprint());
        let mut wanted = parameters.clone();
        wanted.insert("ArtifactBucket".to_owned(), bucket.clone());
        wanted.insert("ArtifactPrefix".to_owned(), prefix.clone());

        let installed = self.stack()?;
        let current = |stack: &Xml| {
            let found = parameters_of(stack);
            wanted.iter().all(|(name, value)| found.get(name) == Some(value))
        };
        let settled = installed.as_ref().is_some_and(|stack| is_settled(status(stack)) && current(stack));
        if !settled {
            self.upload(&bucket, &prefix, package)?;
            self.deploy_stack(installed.as_ref(), &package.template, &wanted)?;
        }
        let stack = self.stack()?.ok_or_else(|| Error::other("the stack `cdkd` is gone"))?;
        let outputs = stack.all("Outputs/member").into_iter();
        let outputs =
            outputs.filter_map(|it| Some((it.get("OutputKey")?.into(), it.get("OutputValue")?.into())));
        Ok(Installation {
            outputs: outputs.collect(),
            bootstrap: self.invoke("cdkd-bootstrap", &json!({ "assets": false }))?,
            changed: !settled,
        })
    }

    fn upload(&self, bucket: &str, prefix: &str, package: &Package) -> Result<()> {
        self.create_bucket(bucket)?;
        let mut uploaded: Vec<(&[u8], String)> = Vec::new();
        for (name, content) in &package.files {
            let key = format!("{prefix}{name}");
            match uploaded.iter().find(|(earlier, _)| std::ptr::eq(*earlier, &raw const **content)) {
                Some((_, earlier)) => self.copy_object(bucket, earlier, &key)?,
                None => drop(self.put_object(bucket, &key, content)?),
            }
            uploaded.push((content, key));
        }
        Ok(())
    }

    fn deploy_stack(&self, installed: Option<&Xml>, template: &str, parameters: &Parameters) -> Result<()> {
        let mut request = vec![
            ("StackName".to_owned(), STACK),
            ("TemplateBody".to_owned(), template),
            ("Capabilities.member.1".to_owned(), "CAPABILITY_NAMED_IAM"),
        ];
        // What is not asked for stays as it was installed.
        let kept = installed.map(parameters_of).unwrap_or_default();
        let kept = kept.keys().filter(|name| !parameters.contains_key(*name));
        let given = parameters.iter().map(|(name, value)| (name, "ParameterValue", value.as_str()));
        let given = given.chain(kept.map(|name| (name, "UsePreviousValue", "true")));
        for (number, (name, field, value)) in (1..).zip(given) {
            request.push((format!("Parameters.member.{number}.ParameterKey"), name));
            request.push((format!("Parameters.member.{number}.{field}"), value));
        }
        let operation = if installed.is_some() { "UpdateStack" } else { "CreateStack" };
        let request: Vec<(&str, &str)> =
            request.iter().map(|(name, value)| (name.as_str(), *value)).collect();
        match self.query(Query::CloudFormation, operation, &request) {
            Err(Error::Service { message, .. }) if message.contains("No updates") => return Ok(()),
            answer => drop(answer?),
        }
        let deadline = Instant::now() + Duration::from_mins(2);
        loop {
            let stack = self.stack()?;
            let status = stack.as_ref().map_or("", status);
            if is_settled(status) {
                return Ok(());
            }
            if !status.ends_with("_IN_PROGRESS") || Instant::now() > deadline {
                return Err(Error::other(format!("{operation}: {status}\n{}", self.stack_failures()?)));
            }
            sleep(Duration::from_millis(50));
        }
    }

    fn stack(&self) -> Result<Option<Xml>> {
        match self.query(Query::CloudFormation, "DescribeStacks", &[("StackName", STACK)]) {
            Ok(found) => {
                let stack = found.all("Stacks/member").into_iter().next().cloned();
                Ok(stack.filter(|stack| status(stack) != "DELETE_COMPLETE"))
            }
            Err(error) if error.code() == Some("ValidationError") => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// What the events of the stack say about failures.
    fn stack_failures(&self) -> Result<String> {
        let events = self.query(Query::CloudFormation, "DescribeStackEvents", &[("StackName", STACK)])?;
        let failures = events.all("StackEvents/member").into_iter().filter_map(|event| {
            let status = event.get("ResourceStatus").filter(|status| status.ends_with("FAILED"))?;
            let reason = event.get("ResourceStatusReason").unwrap_or_default();
            Some(format!("{} {status}: {reason}", event.get("LogicalResourceId").unwrap_or_default()))
        });
        Ok(failures.collect::<Vec<_>>().join("\n"))
    }
}

fn status(stack: &Xml) -> &str {
    stack.get("StackStatus").unwrap_or_default()
}

fn is_settled(status: &str) -> bool {
    matches!(status, "CREATE_COMPLETE" | "UPDATE_COMPLETE")
}

fn parameters_of(stack: &Xml) -> Parameters {
    let parameters = stack.all("Parameters/member").into_iter();
    let pair = |it: &Xml| Some((it.get("ParameterKey")?.to_owned(), it.get("ParameterValue")?.to_owned()));
    parameters.filter_map(pair).collect()
}
