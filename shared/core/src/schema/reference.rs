//! What CloudFormation makes of a resource: its identifier, what `Ref` and `Fn::GetAtt` return, what happens to it
//! by default when it goes.

use serde_json::Value;

use super::path::scalar;
use super::{TypeSchema, lookup};

/// Cloud Control's identifier of a resource, from its model: the primary identifier's values joined by `|`.
/// `None` if one of them is missing or no scalar.
pub fn identifier(schema: &TypeSchema, model: &Value) -> Option<String> {
    let parts: Option<Vec<String>> =
        schema.primary_identifier.iter().map(|path| path.first(model).and_then(scalar)).collect();
    parts.filter(|parts| !parts.is_empty()).map(|parts| parts.join("|"))
}

/// What `Ref` returns for a resource that Cloud Control made. For most types that is the identifier; see
/// [`REFERENCES`] for the others.
///
/// `model` is the resource's properties and attributes; it is asked where the identifier does not hold the
/// value. A resource that CloudFormation itself made has no need of this: its physical id is what `Ref` returns.
pub fn reference(type_name: &str, identifier: &str, model: &Value) -> String {
    if type_name == "AWS::Events::Rule" {
        return rule_reference(identifier).unwrap_or_else(|| identifier.to_owned());
    }
    let Some((_, property)) = REFERENCES.iter().find(|(name, _)| *name == type_name) else {
        return identifier.to_owned();
    };
    identifier_part(type_name, identifier, property)
        .or_else(|| attribute(type_name, model, property).and_then(scalar))
        .unwrap_or_else(|| identifier.to_owned())
}

/// The value of a property inside a compound identifier. `None` if it is not part of it, or if the parts cannot
/// be told apart, since one holds a `|` itself.
fn identifier_part(type_name: &str, identifier: &str, property: &str) -> Option<String> {
    let names = lookup(type_name)?.primary_identifier;
    let parts: Vec<&str> = identifier.split('|').collect();
    let position = names.iter().position(|name| name.to_string() == property)?;
    (parts.len() == names.len()).then(|| parts.get(position).map(|part| (*part).to_owned()))?
}

/// `arn:…:rule/name` is `name`; `arn:…:rule/bus/name` is `bus|name`. A partner's bus has slashes in its name.
fn rule_reference(arn: &str) -> Option<String> {
    let (_, path) = arn.split_once(":rule/")?;
    Some(match path.rsplit_once('/') {
        Some((bus, name)) => format!("{bus}|{name}"),
        None => path.to_owned(),
    })
}

/// The value of `Fn::GetAtt`, from a resource's properties and attributes. Dots in a name lead into objects
/// (`Endpoint.Address`), unless the model has a key of that very name.
pub fn attribute<'m>(type_name: &str, model: &'m Value, name: &str) -> Option<&'m Value> {
    let find = |name: &str| {
        model.get(name).or_else(|| name.split('.').try_fold(model, |value, segment| value.get(segment)))
    };
    find(name)
        .or_else(|| {
            let (.., property) = ALIASES.iter().find(|(ty, att, _)| *ty == type_name && *att == name)?;
            find(property)
        })
        .filter(|value| !value.is_null())
}

/// Attributes of a type that AWS mints as secrets. Their values are never stored.
pub fn minted_secrets(type_name: &str) -> &'static [&'static str] {
    MINTED.iter().find(|(name, _)| *name == type_name).map_or(&[], |(_, attributes)| attributes)
}

/// What CloudFormation does with a resource that goes and has no `DeletionPolicy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DefaultDeletion {
    Delete,
    /// A last snapshot is taken and kept.
    Snapshot,
}

/// The deletion policy of a resource whose template has none: clusters and stand-alone instances of RDS leave a
/// snapshot (CloudFormation Template Reference, on the attribute `DeletionPolicy`).
pub fn default_deletion_policy(type_name: &str, properties: &Value) -> DefaultDeletion {
    let in_cluster = properties.get("DBClusterIdentifier").is_some_and(|cluster| !cluster.is_null());
    match type_name {
        "AWS::RDS::DBCluster" => DefaultDeletion::Snapshot,
        "AWS::RDS::DBInstance" if !in_cluster => DefaultDeletion::Snapshot,
        _ => DefaultDeletion::Delete,
    }
}

/// Types whose `Ref` is another value than their identifier: the property that holds it. From the "Return values"
/// of each type in the CloudFormation Template Reference. Where those name a string that CloudFormation makes up
/// (`AWS::ApiGateway::Method`, `AWS::EC2::Route`) the identifier stands in for it: no API takes such a string.
#[rustfmt::skip]
const REFERENCES: &[(&str, &str)] = &[
    ("AWS::ApiGateway::Authorizer", "AuthorizerId"),
    ("AWS::ApiGateway::Deployment", "DeploymentId"),
    ("AWS::ApiGateway::DocumentationPart", "DocumentationPartId"),
    ("AWS::ApiGateway::DocumentationVersion", "DocumentationVersion"),
    ("AWS::ApiGateway::Model", "Name"),
    ("AWS::ApiGateway::RequestValidator", "RequestValidatorId"),
    ("AWS::ApiGateway::Resource", "ResourceId"),
    ("AWS::ApiGateway::Stage", "StageName"),
    ("AWS::ApiGatewayV2::ApiMapping", "ApiMappingId"),
    ("AWS::ApiGatewayV2::Authorizer", "AuthorizerId"),
    ("AWS::ApiGatewayV2::Deployment", "DeploymentId"),
    ("AWS::ApiGatewayV2::Integration", "IntegrationId"),
    ("AWS::ApiGatewayV2::IntegrationResponse", "IntegrationResponseId"),
    ("AWS::ApiGatewayV2::Model", "ModelId"),
    ("AWS::ApiGatewayV2::Route", "RouteId"),
    ("AWS::ApiGatewayV2::RouteResponse", "RouteResponseId"),
    ("AWS::ApiGatewayV2::Stage", "StageName"),
    ("AWS::AppConfig::ConfigurationProfile", "ConfigurationProfileId"),
    ("AWS::AppConfig::Deployment", "DeploymentNumber"),
    ("AWS::AppConfig::Environment", "EnvironmentId"),
    ("AWS::AppConfig::HostedConfigurationVersion", "VersionNumber"),
    ("AWS::AppSync::ApiKey", "Arn"),
    ("AWS::ApplicationAutoScaling::ScalingPolicy", "Arn"),
    ("AWS::AutoScaling::LifecycleHook", "LifecycleHookName"),
    ("AWS::AutoScaling::ScheduledAction", "ScheduledActionName"),
    ("AWS::Batch::JobDefinition", "JobDefinitionArn"),
    ("AWS::CodeDeploy::DeploymentGroup", "DeploymentGroupName"),
    ("AWS::Cognito::UserPoolClient", "ClientId"),
    ("AWS::Cognito::UserPoolDomain", "Domain"),
    ("AWS::Cognito::UserPoolGroup", "GroupName"),
    ("AWS::Cognito::UserPoolIdentityProvider", "ProviderName"),
    ("AWS::Cognito::UserPoolResourceServer", "Identifier"),
    ("AWS::Cognito::UserPoolUser", "Username"),
    ("AWS::EC2::EIP", "PublicIp"),
    ("AWS::EC2::VPCCidrBlock", "Id"),
    ("AWS::ECS::Service", "ServiceArn"),
    ("AWS::EMR::InstanceFleetConfig", "InstanceFleetId"),
    ("AWS::EMR::InstanceGroupConfig", "InstanceGroupId"),
    ("AWS::ElasticBeanstalk::ApplicationVersion", "Id"),
    ("AWS::ElasticBeanstalk::ConfigurationTemplate", "TemplateName"),
    ("AWS::Glue::Connection", "Name"),
    ("AWS::Glue::Integration", "IntegrationArn"),
    ("AWS::Glue::Table", "Name"),
    ("AWS::GuardDuty::Filter", "Name"),
    ("AWS::GuardDuty::IPSet", "Id"),
    ("AWS::GuardDuty::Master", "MasterId"),
    ("AWS::GuardDuty::Member", "MemberId"),
    ("AWS::GuardDuty::ThreatIntelSet", "Id"),
    ("AWS::Lambda::Permission", "Id"),
    ("AWS::Logs::LogStream", "LogStreamName"),
    ("AWS::Logs::MetricFilter", "FilterName"),
    ("AWS::Logs::SubscriptionFilter", "FilterName"),
    ("AWS::Route53::RecordSet", "Name"),
    ("AWS::S3Tables::Namespace", "Namespace"),
    ("AWS::S3Tables::Table", "TableName"),
    ("AWS::SES::ReceiptRule", "RuleName"),
    ("AWS::SSM::MaintenanceWindowTarget", "WindowTargetId"),
    ("AWS::SSM::MaintenanceWindowTask", "WindowTaskId"),
    ("AWS::ServiceDiscovery::Instance", "InstanceId"),
];

/// Attributes that `Fn::GetAtt` names otherwise than the schema does: type, attribute, path in the schema.
const ALIASES: &[(&str, &str, &str)] = &[
    ("AWS::DataPipeline::Pipeline", "Id", "PipelineId"),
    ("AWS::DirectoryService::SimpleAD", "Id", "DirectoryId"),
    ("AWS::Redshift::Cluster", "Id", "ClusterIdentifier"),
];

/// From the schemas' read-only properties. An API key's `Value` may also be given; it is a secret either way.
const MINTED: &[(&str, &[&str])] = &[
    ("AWS::ApiGateway::ApiKey", &["Value"]),
    ("AWS::AppSync::ApiKey", &["ApiKey"]),
    ("AWS::Cognito::UserPoolClient", &["ClientSecret"]),
    ("AWS::IAM::AccessKey", &["SecretAccessKey"]),
    ("AWS::IVS::IngestConfiguration", &["StreamKey"]),
    ("AWS::IVS::StreamKey", &["Value"]),
    ("AWS::ManagedBlockchain::Accessor", &["BillingToken"]),
    ("AWS::MediaPackage::Channel", &["HlsIngest"]),
];

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn identifiers() {
        for (type_name, model, want) in [
            ("AWS::S3::Bucket", json!({"BucketName": "b"}), Some("b")),
            ("AWS::ApiGateway::Resource", json!({"ResourceId": "r", "RestApiId": "a"}), Some("a|r")),
            ("AWS::ApiGateway::Deployment", json!({"DeploymentId": "d", "RestApiId": "a"}), Some("d|a")),
            ("AWS::IAM::RolePolicy", json!({"RoleName": "r", "PolicyName": "p"}), Some("p|r")),
            (
                "AWS::AppConfig::HostedConfigurationVersion",
                json!({"ApplicationId": "a", "ConfigurationProfileId": "p", "VersionNumber": 7}),
                Some("a|p|7"),
            ),
            ("AWS::S3::StorageLens", json!({"StorageLensConfiguration": {"Id": "lens"}}), Some("lens")),
            ("AWS::ApiGateway::Resource", json!({"ResourceId": "r"}), None),
            ("AWS::S3::Bucket", json!({"BucketName": {"Ref": "X"}}), None),
            ("AWS::CloudFormation::Macro", json!({}), None),
        ] {
            let schema = lookup(type_name).unwrap_or_default();
            assert_eq!(identifier(&schema, &model).as_deref(), want, "{type_name} {model}");
        }
    }

    #[test]
    fn references() {
        let rule = "arn:aws:events:eu-west-1:123456789012:rule";
        for (type_name, identifier, model, want) in [
            ("AWS::S3::Bucket", "b", json!({}), "b"),
            ("AWS::SQS::Queue", "https://sqs/q", json!({}), "https://sqs/q"),
            ("AWS::ApiGateway::Resource", "api|res", json!({}), "res"),
            ("AWS::ApiGateway::Deployment", "dep|api", json!({}), "dep"),
            ("AWS::ApiGateway::Method", "api|res|GET", json!({}), "api|res|GET"),
            ("AWS::ApiGateway::Authorizer", "api|auth", json!({}), "auth"),
            ("AWS::ApiGatewayV2::Authorizer", "auth|api", json!({}), "auth"),
            ("AWS::ApiGatewayV2::Stage", "api|$default", json!({}), "$default"),
            ("AWS::AppConfig::HostedConfigurationVersion", "a|p|7", json!({}), "7"),
            ("AWS::AppSync::ApiKey", "api|key", json!({"Arn": "arn:key"}), "arn:key"),
            ("AWS::Batch::JobDefinition", "jobs", json!({"JobDefinitionArn": "arn:jobs:1"}), "arn:jobs:1"),
            ("AWS::Cognito::UserPoolClient", "pool|client", json!({}), "client"),
            ("AWS::EC2::EIP", "1.2.3.4|eipalloc-1", json!({}), "1.2.3.4"),
            ("AWS::ECS::Service", "arn:service|cluster", json!({}), "arn:service"),
            ("AWS::Lambda::Permission", "function|statement", json!({}), "statement"),
            ("AWS::Route53::RecordSet", "a.example.com|Z1|A|", json!({}), "a.example.com"),
            // A part that holds the separator: the model decides.
            ("AWS::Glue::Table", "1|db|odd|name", json!({"Name": "odd|name"}), "odd|name"),
            ("AWS::Glue::Table", "1|db|odd|name", json!({}), "1|db|odd|name"),
            ("AWS::WAFv2::WebACL", "name|id|REGIONAL", json!({}), "name|id|REGIONAL"),
            ("AWS::Events::Rule", &format!("{rule}/nightly"), json!({}), "nightly"),
            ("AWS::Events::Rule", &format!("{rule}/bus/nightly"), json!({}), "bus|nightly"),
            (
                "AWS::Events::Rule",
                &format!("{rule}/aws.partner/x.com/1/n"),
                json!({}),
                "aws.partner/x.com/1|n",
            ),
            ("AWS::Events::Rule", "nightly", json!({}), "nightly"),
            ("Custom::Thing", "anything", json!({}), "anything"),
        ] {
            assert_eq!(reference(type_name, identifier, &model), want, "{type_name} {identifier}");
        }
    }

    /// Each entry of the tables names a type and a property that exist.
    #[test]
    fn tables_agree_with_the_schemas() {
        for (type_name, property) in REFERENCES {
            let schema = lookup(type_name).unwrap_or_default();
            let is_part = schema.primary_identifier.iter().any(|path| path.to_string() == *property);
            let read_only = schema.read_only.iter().any(|path| path.to_string() == *property);
            assert!(is_part || read_only || *type_name == "AWS::S3Tables::Table", "{type_name} {property}");
        }
        for (type_name, _) in MINTED {
            assert!(lookup(type_name).is_some(), "{type_name}");
        }
        assert!(REFERENCES.is_sorted());
    }

    #[test]
    fn attributes() {
        let model = json!({"Arn": "a", "Endpoint": {"Address": "h", "Port": "1"}, "Nested.Key": "k", "No": null,
            "ClusterIdentifier": "c"});
        for (type_name, name, want) in [
            ("AWS::SQS::Queue", "Arn", Some("a")),
            ("AWS::RDS::DBInstance", "Endpoint.Address", Some("h")),
            ("AWS::X::Y", "Nested.Key", Some("k")),
            ("AWS::X::Y", "Endpoint.Missing", None),
            ("AWS::X::Y", "No", None),
            ("AWS::Redshift::Cluster", "Id", Some("c")),
            ("AWS::X::Y", "Id", None),
        ] {
            assert_eq!(
                attribute(type_name, &model, name).and_then(Value::as_str),
                want,
                "{type_name} {name}"
            );
        }
    }

    #[test]
    fn secrets_that_aws_mints() {
        assert_eq!(minted_secrets("AWS::Cognito::UserPoolClient"), ["ClientSecret"]);
        assert!(minted_secrets("AWS::S3::Bucket").is_empty());
    }

    #[test]
    fn default_deletion() {
        use DefaultDeletion::{Delete, Snapshot};
        for (type_name, properties, want) in [
            ("AWS::RDS::DBCluster", json!({}), Snapshot),
            ("AWS::RDS::DBInstance", json!({}), Snapshot),
            ("AWS::RDS::DBInstance", json!({"DBClusterIdentifier": null}), Snapshot),
            ("AWS::RDS::DBInstance", json!({"DBClusterIdentifier": "c"}), Delete),
            ("AWS::S3::Bucket", json!({}), Delete),
        ] {
            assert_eq!(default_deletion_policy(type_name, &properties), want, "{type_name} {properties}");
        }
    }
}
