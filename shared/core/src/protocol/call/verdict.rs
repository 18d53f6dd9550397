//! What an answer of AWS means for the call and for the record.

use serde_json::{Map, Value, json};

use crate::error::{Code, Error};
use crate::name::RecordKey;
use crate::protocol::journal::{Change, Intent};
use crate::schema::{self, TypeSchema};
use crate::state::tree::{key_of, parts};

/// The row remembers the mark of its create: an update of the tags sends it again.
pub(super) fn note_mark(then: &mut [Change], mark: &str) {
    for change in then {
        if let Change::Put { row, .. } = change {
            row.set_own("token", json!(mark));
        }
    }
}

/// The attributes that are kept of a model: what AWS set and what names the resource. Minted secrets are masked.
pub(super) fn attributes(schema: &TypeSchema, model: &Value) -> Map<String, Value> {
    let mut kept = Map::new();
    let names = schema
        .read_only
        .iter()
        .chain(&schema.primary_identifier)
        .chain(schema.additional_identifiers.iter().flatten())
        .map(schema::PropertyPath::top);
    let own = schema.name.iter().map(|rule| rule.property.as_str());
    for name in names.chain(own) {
        let hidden = schema.is_write_only(&schema::PropertyPath::new([name]));
        if let Some(value) = model.get(name).filter(|_| !hidden) {
            kept.entry(name.to_owned()).or_insert_with(|| value.clone());
        }
    }
    for name in schema::minted_secrets(&schema.type_name) {
        if let Some(value) = kept.get_mut(*name) {
            *value = json!("***");
        }
    }
    kept
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Again {
    Throttled,
    /// Another operation on the resource is in progress.
    Busy,
    /// A role or policy of this run is not visible everywhere yet.
    Propagating,
    No,
}

/// Whether a call that failed is worth another, by the code of the call or of the event.
pub(super) fn again(code: &str, message: &str) -> Again {
    match code {
        "Throttling" | "ThrottlingException" | "TooManyRequestsException" | "RequestLimitExceeded" => {
            Again::Throttled
        }
        "ConcurrentOperationException"
        | "ConcurrentModificationException"
        | "NetworkFailure"
        | "ServiceInternalError"
        | "InternalFailure"
        | "HandlerInternalFailureException" => Again::Busy,
        _ if [
            "cannot be assumed",
            "Invalid principal in policy",
            "is not authorized to perform: sts:AssumeRole",
        ]
        .iter()
        .any(|sign| message.contains(sign)) =>
        {
            Again::Propagating
        }
        _ => Again::No,
    }
}

pub(super) fn failed(key: &RecordKey, intent: &Intent, code: &str, message: &str) -> Error {
    let hint = match code {
        "AlreadyExists" => "something of that name exists that this stack did not make: rename one of them",
        "AccessDenied" | "UnauthorizedTaggingOperation" | "AccessDeniedException" => {
            "give the role `cdkd-exec` the permission (parameter `ExecPolicies` of the installation)"
        }
        "InvalidRequest" | "ValidationException" => "correct the property that the message names",
        "ServiceLimitExceeded" => "raise the quota, or delete what is not needed",
        _ => "the message is of the service; correct the cause and start the execution again",
    };
    let (path, logical_id) = parts(&intent.logical_id);
    // A nested stack is named by its record (rule E8).
    let nested = (!path.is_empty()).then(|| key_of(key, path).stack);
    let of = nested.as_ref().map(|stack| format!(" of nested stack `{stack}`")).unwrap_or_default();
    let error = Error::new(
        Code::ProvisioningFailed,
        format!(
            "could not {} `{logical_id}`{of} ({}): {code}: {message}",
            intent.operation.name(),
            intent.type_name
        ),
    )
    .hint(hint)
    .detail("logicalId", logical_id)
    .detail("type", intent.type_name.as_str())
    .detail("operation", intent.operation.name())
    .detail("awsCode", code);
    match nested {
        Some(stack) => error.detail("nestedStack", stack.as_str()),
        None => error,
    }
}

pub(super) fn unknown(intent: &Intent) -> Error {
    Error::new(
        Code::UnknownOutcome,
        format!(
            "an earlier run meant to {} `{}` ({}), and nothing tells any more whether that happened",
            intent.operation.name(),
            intent.logical_id,
            intent.type_name
        ),
    )
    .hint("look for the resource by its tag `cdkd:logical-id`; delete it or bring it under its name, then remove the journal of the stack")
    .detail("logicalId", intent.logical_id.as_str())
    .detail("type", intent.type_name.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn p7_throttling_inside_a_failed_event_is_throttling() {
        let table = [
            ("Throttling", "Rate exceeded", Again::Throttled),
            ("ThrottlingException", "", Again::Throttled),
            ("ConcurrentOperationException", "", Again::Busy),
            ("InvalidRequest", "role cannot be assumed by Lambda", Again::Propagating),
            ("InvalidRequest", "bad", Again::No),
            ("AlreadyExists", "", Again::No),
        ];
        for (code, message, expected) in table {
            assert_eq!(again(code, message), expected, "{code}");
        }
    }

    #[test]
    fn s16_attributes_are_what_aws_set_and_minted_secrets_are_masked() {
        let queue = schema::lookup("AWS::SQS::Queue").unwrap();
        let model = json!({"QueueUrl": "u", "Arn": "a", "QueueName": "n", "VisibilityTimeout": 30});
        let kept = attributes(&queue, &model);
        assert_eq!(Value::Object(kept), json!({"Arn": "a", "QueueUrl": "u", "QueueName": "n"}));
        let client = schema::lookup("AWS::Cognito::UserPoolClient").unwrap();
        let model = json!({"ClientId": "c", "ClientSecret": "s3cr3t", "UserPoolId": "p"});
        assert_eq!(attributes(&client, &model)["ClientSecret"], "***");
    }
}
