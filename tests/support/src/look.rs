//! One reader for each type of resource that the sample apps have: is it there, and as it should be?
//!
//! They ask the services themselves, not Cloud Control, so that a test does not believe the party it examines.

use std::collections::BTreeMap;

use http::Method;
use serde_json::{Map, Value, json};

use crate::api::{Api, Json, Query};
use crate::error::{Error, Result, optional};
use crate::xml::Xml;

/// An IAM role with its policies.
#[derive(Clone, Debug, PartialEq)]
pub struct Role {
    pub arn: String,
    pub description: Option<String>,
    pub trust: Value,
    /// Inline policies by name.
    pub inline: BTreeMap<String, Value>,
    /// ARNs of attached policies.
    pub attached: Vec<String>,
    pub tags: BTreeMap<String, String>,
}

/// A subscription to a topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subscription {
    pub arn: String,
    pub protocol: String,
    pub endpoint: String,
    pub attributes: BTreeMap<String, String>,
}

impl Api {
    /// Whether a bucket of this account is there.
    pub fn bucket_exists(&self, bucket: &str) -> Result<bool> {
        let answer = self.rest_ok("s3", Method::HEAD, &format!("/{bucket}"), &[], &[]);
        Ok(optional(answer, &["NotFound"])?.is_some())
    }

    /// A sub-resource of a bucket such as `versioning`, `tagging`, `cors`, `encryption`, `policy`; none if not set.
    pub fn bucket_setting(&self, bucket: &str, setting: &str) -> Result<Option<String>> {
        let path = format!("/{bucket}?{setting}=");
        let answer = self.rest("s3", Method::GET, &path, &[], &[])?;
        Ok(answer.status.is_success().then(|| answer.text()))
    }

    /// Whether a bucket keeps versions.
    pub fn bucket_is_versioned(&self, bucket: &str) -> Result<bool> {
        let Some(text) = self.bucket_setting(bucket, "versioning")? else { return Ok(false) };
        Ok(Xml::parse(&text)?.get("Status") == Some("Enabled"))
    }

    /// The tags of a bucket.
    pub fn bucket_tags(&self, bucket: &str) -> Result<BTreeMap<String, String>> {
        let Some(text) = self.bucket_setting(bucket, "tagging")? else { return Ok(BTreeMap::new()) };
        Ok(Xml::parse(&text)?.pairs("TagSet/Tag"))
    }

    /// All attributes of a queue, by name or by URL.
    pub fn queue(&self, name_or_url: &str) -> Result<Option<Map<String, Value>>> {
        let absent = &["AWS.SimpleQueueService.NonExistentQueue", "QueueDoesNotExist"];
        let url = if name_or_url.starts_with("http") {
            name_or_url.to_owned()
        } else {
            let found = self.json(Json::Sqs, "GetQueueUrl", &json!({"QueueName": name_or_url}));
            match optional(found, absent)? {
                Some(answer) => answer["QueueUrl"].as_str().unwrap_or_default().to_owned(),
                None => return Ok(None),
            }
        };
        let request = json!({"QueueUrl": url, "AttributeNames": ["All"]});
        let answer = optional(self.json(Json::Sqs, "GetQueueAttributes", &request), absent)?;
        Ok(answer.map(|it| it["Attributes"].as_object().cloned().unwrap_or_default()))
    }

    /// Takes the messages that are in a queue, by its URL.
    pub fn receive_messages(&self, url: &str) -> Result<Vec<String>> {
        let request = json!({"QueueUrl": url, "MaxNumberOfMessages": 10});
        let answer = self.json(Json::Sqs, "ReceiveMessage", &request)?;
        let messages = answer["Messages"].as_array().cloned().unwrap_or_default();
        Ok(messages.iter().filter_map(|message| Some(message["Body"].as_str()?.to_owned())).collect())
    }

    /// The description of a table.
    pub fn table(&self, name: &str) -> Result<Option<Value>> {
        let found = self.json(Json::DynamoDb, "DescribeTable", &json!({"TableName": name}));
        Ok(optional(found, &["ResourceNotFoundException"])?.map(|mut answer| answer["Table"].take()))
    }

    /// The attributes of a topic.
    pub fn topic(&self, arn: &str) -> Result<Option<BTreeMap<String, String>>> {
        let found = self.query(Query::Sns, "GetTopicAttributes", &[("TopicArn", arn)]);
        Ok(optional(found, &["NotFound", "NotFoundException"])?.map(|it| it.pairs("Attributes/entry")))
    }

    /// The subscriptions to a topic, with their attributes.
    pub fn subscriptions(&self, topic: &str) -> Result<Vec<Subscription>> {
        let found = self.query(Query::Sns, "ListSubscriptionsByTopic", &[("TopicArn", topic)])?;
        let mut subscriptions = Vec::new();
        for it in found.all("Subscriptions/member") {
            let text = |name: &str| it.get(name).unwrap_or_default().to_owned();
            let arn = text("SubscriptionArn");
            let more = self.query(Query::Sns, "GetSubscriptionAttributes", &[("SubscriptionArn", &arn)])?;
            subscriptions.push(Subscription {
                arn,
                protocol: text("Protocol"),
                endpoint: text("Endpoint"),
                attributes: more.pairs("Attributes/entry"),
            });
        }
        Ok(subscriptions)
    }

    /// A parameter: `Name`, `Type`, `Value`, ….
    pub fn parameter(&self, name: &str) -> Result<Option<Value>> {
        let found = self.json(Json::Ssm, "GetParameter", &json!({"Name": name, "WithDecryption": true}));
        Ok(optional(found, &["ParameterNotFound"])?.map(|mut answer| answer["Parameter"].take()))
    }

    /// A log group of that very name.
    pub fn log_group(&self, name: &str) -> Result<Option<Value>> {
        let answer = self.json(Json::Logs, "DescribeLogGroups", &json!({"logGroupNamePrefix": name}))?;
        let groups = answer["logGroups"].as_array().cloned().unwrap_or_default();
        Ok(groups.into_iter().find(|group| group["logGroupName"] == name))
    }

    /// All lines that were logged to a group.
    pub fn log_lines(&self, group: &str) -> Result<Vec<String>> {
        let mut lines = Vec::new();
        let mut request = json!({"logGroupName": group});
        loop {
            let found = self.json(Json::Logs, "FilterLogEvents", &request);
            let Some(mut page) = optional(found, &["ResourceNotFoundException"])? else { return Ok(lines) };
            let events = page["events"].as_array().cloned().unwrap_or_default();
            lines.extend(events.iter().filter_map(|event| Some(event["message"].as_str()?.to_owned())));
            match page["nextToken"].take() {
                Value::Null => return Ok(lines),
                token => request["nextToken"] = token,
            }
        }
    }

    /// A role with its policies.
    pub fn role(&self, name: &str) -> Result<Option<Role>> {
        let of_role = [("RoleName", name)];
        let Some(found) = optional(self.query(Query::Iam, "GetRole", &of_role), &["NoSuchEntity"])? else {
            return Ok(None);
        };
        let mut inline = BTreeMap::new();
        let names = self.query(Query::Iam, "ListRolePolicies", &of_role)?;
        for policy in names.all("PolicyNames/member") {
            let request = [("RoleName", name), ("PolicyName", &policy.text)];
            let answer = self.query(Query::Iam, "GetRolePolicy", &request)?;
            inline.insert(policy.text.clone(), document(answer.get("PolicyDocument").unwrap_or_default())?);
        }
        let attached = self.query(Query::Iam, "ListAttachedRolePolicies", &of_role)?;
        let attached = attached.all("AttachedPolicies/member/PolicyArn");
        Ok(Some(Role {
            arn: found.get("Role/Arn").unwrap_or_default().to_owned(),
            description: found.get("Role/Description").filter(|text| !text.is_empty()).map(str::to_owned),
            trust: document(found.get("Role/AssumeRolePolicyDocument").unwrap_or_default())?,
            inline,
            attached: attached.into_iter().map(|arn| arn.text.clone()).collect(),
            tags: found.pairs("Role/Tags/member"),
        }))
    }
}

/// A policy document as IAM gives it: percent-encoded JSON.
fn document(text: &str) -> Result<Value> {
    let text = percent_encoding::percent_decode_str(text).decode_utf8_lossy();
    serde_json::from_str(&text)
        .map_err(|error| Error::other(format!("a policy is not JSON ({error}): {text}")))
}
