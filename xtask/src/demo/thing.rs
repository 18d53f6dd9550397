//! Resources, and whether they are there: their services are asked, not Cloud Control and not the record.

use cdkd_test_support::Api;
use serde_json::Value;

use super::Result;

/// A resource as the record has it.
#[derive(Clone, Debug)]
pub(super) struct Thing {
    pub logical_id: String,
    pub type_name: String,
    pub physical_id: String,
    properties: Value,
}

impl Thing {
    pub fn of(logical_id: &str, row: &Value) -> Self {
        let text = |field: &str| row[field].as_str().unwrap_or_default().to_owned();
        Self {
            logical_id: logical_id.to_owned(),
            type_name: text("resourceType"),
            physical_id: text("physicalId"),
            properties: row["properties"].clone(),
        }
    }

    /// Whether both are the same in AWS, whatever their properties.
    pub fn is(&self, other: &Self) -> bool {
        (&self.type_name, &self.physical_id) == (&other.type_name, &other.physical_id)
    }

    /// Asks its service whether it is there.
    pub fn exists(&self, api: &Api) -> Result<bool> {
        let id = &self.physical_id;
        let property = |path: &str| self.properties.pointer(path).and_then(Value::as_str).unwrap_or_default();
        Ok(match self.type_name.as_str() {
            "AWS::S3::Bucket" => api.bucket_exists(id)?,
            "AWS::SQS::Queue" => api.queue(id)?.is_some(),
            "AWS::SQS::QueuePolicy" => {
                let queue = api.queue(property("/Queues/0"))?;
                queue.is_some_and(|it| {
                    it.get("Policy").and_then(Value::as_str).is_some_and(|policy| !policy.is_empty())
                })
            }
            "AWS::SNS::Topic" => api.topic(id)?.is_some(),
            "AWS::SNS::Subscription" => {
                let topic = property("/TopicArn");
                api.topic(topic)?.is_some() && api.subscriptions(topic)?.iter().any(|it| it.arn == *id)
            }
            "AWS::DynamoDB::Table" => api.table(id)?.is_some(),
            "AWS::Logs::LogGroup" => api.log_group(id)?.is_some(),
            "AWS::IAM::Role" => api.role(id)?.is_some(),
            "AWS::IAM::Policy" => {
                let role = api.role(property("/Roles/0"))?;
                role.is_some_and(|role| role.inline.contains_key(property("/PolicyName")))
            }
            "AWS::SSM::Parameter" => api.parameter(id)?.is_some(),
            other => return Err(format!("the demo cannot ask for a resource of type {other}")),
        })
    }
}
