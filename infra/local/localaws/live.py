"""What the services themselves say about a resource, in the shape of its resource model.

Cloud Control reads the live thing, so a change made elsewhere is seen, and a
resource made elsewhere can be read, updated and deleted.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable
from typing import Any
from xml.etree import ElementTree

Model = dict[str, Any]
Parts = dict[str, str]


@dataclasses.dataclass(frozen=True)
class Live:
    """How to look at the resources of one type."""

    #: The model of a resource, or None when there is none.
    read: Callable[[Parts], Model | None]
    #: The identifier that a desired state will get, as far as it says; used to find what exists already.
    candidate: Callable[[Model], Parts | None]
    #: The identifiers of all resources in the account and Region.
    all: Callable[[], Iterable[Parts]]
    #: Properties that the live thing alone decides; others come from the stored desired state.
    owned: frozenset[str]
    #: The one form of an identifier that callers may write in several ways.
    canonical: Callable[[str], str] = str


def _pruned(model: Model) -> Model:
    """Without what is unset: services leave such properties out."""
    return {name: value for name, value in model.items() if value not in (None, "", [], {})}


def _tags(tags: dict[str, str] | None) -> list[dict[str, str]]:
    return [{"Key": key, "Value": value} for key, value in (tags or {}).items()]


def _object(text: Any) -> Any:
    """A JSON text as what it says; anything else as it is."""
    if isinstance(text, str):
        try:
            return json.loads(text)
        except ValueError:
            return text
    return text


def _names(*properties: str) -> Callable[[Model], Parts | None]:
    def candidate(model: Model) -> Parts | None:
        return {name: model[name] for name in properties} if all(name in model for name in properties) else None
    return candidate


def _arn(service: str, resource: str) -> str:
    from ministack.core.responses import get_account_id, get_region

    return f"arn:aws:{service}:{get_region()}:{get_account_id()}:{resource}"


# -- S3 ----------------------------------------------------------------------

def _leaves(text: Any) -> dict[str, str]:
    """The leaf elements of an XML text by local name."""
    if not text:
        return {}
    root = ElementTree.fromstring(text)
    return {node.tag.rsplit("}", 1)[-1]: node.text or "" for node in root.iter() if not len(node)}


def _bucket(parts: Parts) -> Model | None:
    from ministack.core.responses import get_region
    from ministack.services import s3

    name = parts["BucketName"]
    bucket = s3._buckets.get(name)
    if bucket is None:
        return None
    region = bucket.get("region") or get_region()
    block = {key: value == "true" for key, value in _leaves(bucket.get("_public_access_block")).items()}
    encryption = _leaves(s3._bucket_encryption.get(name))
    default = {"SSEAlgorithm": encryption.get("SSEAlgorithm", "AES256")}
    if encryption.get("KMSMasterKeyID"):
        default["KMSMasterKeyID"] = encryption["KMSMasterKeyID"]
    ownership = _leaves(bucket.get("_ownership_controls")).get("ObjectOwnership", "BucketOwnerEnforced")
    status = s3._bucket_versioning.get(name)
    return _pruned({
        "BucketName": name, "Arn": f"arn:aws:s3:::{name}", "DomainName": f"{name}.s3.amazonaws.com",
        "DualStackDomainName": f"{name}.s3.dualstack.{region}.amazonaws.com",
        "RegionalDomainName": f"{name}.s3.{region}.amazonaws.com",
        "WebsiteURL": f"http://{name}.s3-website-{region}.amazonaws.com",
        "VersioningConfiguration": {"Status": status} if status else None,
        "Tags": _tags(s3._bucket_tags.get(name)), "PublicAccessBlockConfiguration": block,
        "BucketEncryption": {"ServerSideEncryptionConfiguration": [{
            "BucketKeyEnabled": encryption.get("BucketKeyEnabled") == "true",
            "ServerSideEncryptionByDefault": default}]},
        "OwnershipControls": {"Rules": [{"ObjectOwnership": ownership}]},
    })


def _all_buckets() -> Iterable[Parts]:
    from ministack.services import s3

    return [{"BucketName": name} for name in s3._buckets]


# -- SQS and SNS -------------------------------------------------------------

_QUEUE_NUMBERS = ("DelaySeconds", "KmsDataKeyReusePeriodSeconds", "MaximumMessageSize", "MessageRetentionPeriod",
                  "ReceiveMessageWaitTimeSeconds", "VisibilityTimeout")
_QUEUE_FLAGS = ("ContentBasedDeduplication", "FifoQueue", "SqsManagedSseEnabled")
_QUEUE_TEXT = ("DeduplicationScope", "FifoThroughputLimit", "KmsMasterKeyId")
_QUEUE_OBJECTS = ("RedriveAllowPolicy", "RedrivePolicy")


def find_queue(url: str) -> dict[str, Any] | None:
    """The queue behind a URL, whatever host the URL names: a proxy's, or the server's own."""
    from ministack.services import sqs

    try:
        return sqs._get_q(url)
    except sqs._Err:
        return None


def _queue_url(url: str) -> str:
    queue = find_queue(url)
    return queue["url"] if queue else url


def _queue(parts: Parts) -> Model | None:
    queue = find_queue(parts["QueueUrl"])
    if queue is None:
        return None
    attributes = queue["attributes"]
    return _pruned({
        "QueueUrl": queue["url"], "Arn": attributes["QueueArn"], "QueueName": queue["name"],
        "Tags": _tags(queue.get("tags")),
        **{name: int(attributes[name]) for name in _QUEUE_NUMBERS if name in attributes},
        **{name: attributes[name] == "true" for name in _QUEUE_FLAGS if name in attributes},
        **{name: attributes[name] for name in _QUEUE_TEXT if name in attributes},
        **{name: _object(attributes[name]) for name in _QUEUE_OBJECTS if name in attributes},
    })


def _queue_candidate(model: Model) -> Parts | None:
    from ministack.core.responses import get_account_id
    from ministack.services import sqs

    name = model.get("QueueName")
    return {"QueueUrl": sqs._queue_url_for_account(get_account_id(), name)} if name else None


def _all_queues() -> Iterable[Parts]:
    from ministack.services import sqs

    return [{"QueueUrl": url} for url in sqs._queues]


def _queue_policy(parts: Parts) -> Model | None:
    policy = (find_queue(parts["Queue"]) or {"attributes": {}})["attributes"].get("Policy")
    return {"Queue": parts["Queue"], "PolicyDocument": _object(policy)} if policy else None


def _topic(parts: Parts) -> Model | None:
    from ministack.services import sns

    topic = sns._topics.get(parts["TopicArn"])
    if topic is None:
        return None
    attributes = topic["attributes"]
    return _pruned({
        "TopicArn": topic["arn"], "TopicName": topic["name"], "DisplayName": attributes.get("DisplayName"),
        "Tags": _tags(topic.get("tags")),
        "Subscription": [{"Endpoint": one["endpoint"], "Protocol": one["protocol"]}
                         for one in topic["subscriptions"]],
        **{name: attributes[name] for name in ("KmsMasterKeyId", "SignatureVersion", "TracingConfig")
           if name in attributes},
        **{name: attributes[name] == "true" for name in ("ContentBasedDeduplication", "FifoTopic")
           if name in attributes},
    })


def _topic_candidate(model: Model) -> Parts | None:
    return {"TopicArn": _arn("sns", model["TopicName"])} if model.get("TopicName") else None


def _all_topics() -> Iterable[Parts]:
    from ministack.services import sns

    return [{"TopicArn": arn} for arn in sns._topics]


def _topic_policy(parts: Parts) -> Model | None:
    from ministack.services import sns

    policy = _object((sns._topics.get(parts["TopicArn"]) or {"attributes": {}})["attributes"].get("Policy"))
    if not policy or (isinstance(policy, dict) and policy.get("Id") == "__default_policy_ID"):
        return None
    return {"TopicArn": parts["TopicArn"], "PolicyDocument": policy}


def _subscription(parts: Parts) -> Model | None:
    from ministack.services import sns

    arn = parts["Arn"]
    subscription = sns._find_subscription(sns._sub_arn_to_topic.get(arn) or "", arn)
    if subscription is None:
        return None
    attributes = subscription["attributes"]
    filtered = _object(attributes.get("FilterPolicy"))
    return _pruned({
        "Arn": arn, "TopicArn": subscription["topic_arn"], "Protocol": subscription["protocol"],
        "Endpoint": subscription["endpoint"], "FilterPolicy": filtered,
        "FilterPolicyScope": attributes.get("FilterPolicyScope") if filtered else None,
        "RawMessageDelivery": True if attributes.get("RawMessageDelivery") == "true" else None,
        "RedrivePolicy": _object(attributes.get("RedrivePolicy")),
        "DeliveryPolicy": _object(attributes.get("DeliveryPolicy")),
        "SubscriptionRoleArn": attributes.get("SubscriptionRoleArn"),
    })


def _all_subscriptions() -> Iterable[Parts]:
    from ministack.services import sns

    return [{"Arn": arn} for arn in sns._sub_arn_to_topic]


# -- DynamoDB, SSM, Logs -----------------------------------------------------

def _table(parts: Parts) -> Model | None:
    from ministack.services import dynamodb

    table = dynamodb._tables.get(parts["TableName"])
    if table is None:
        return None
    billing = (table.get("BillingModeSummary") or {}).get("BillingMode", "PROVISIONED")
    throughput = table.get("ProvisionedThroughput") or {}
    stream = table.get("StreamSpecification") or {}
    streaming = bool(stream.get("StreamEnabled"))
    expiry = dynamodb._ttl_settings.get(parts["TableName"]) or {}
    return _pruned({
        "TableName": table["TableName"], "Arn": table["TableArn"], "KeySchema": table["KeySchema"],
        "AttributeDefinitions": table["AttributeDefinitions"], "BillingMode": billing,
        "ProvisionedThroughput": {name: int(throughput[name]) for name in ("ReadCapacityUnits", "WriteCapacityUnits")
                                  if name in throughput} if billing == "PROVISIONED" else None,
        "DeletionProtectionEnabled": bool(table.get("DeletionProtectionEnabled")),
        "StreamSpecification": {"StreamViewType": stream["StreamViewType"]} if streaming else None,
        "StreamArn": table.get("LatestStreamArn") if streaming else None,
        "TimeToLiveSpecification": {"AttributeName": expiry["AttributeName"], "Enabled": True}
        if expiry.get("TimeToLiveStatus") == "ENABLED" else None,
        "Tags": dynamodb._tags.get(table["TableArn"]),
    })


def _all_tables() -> Iterable[Parts]:
    from ministack.services import dynamodb

    return [{"TableName": name} for name in dynamodb._tables]


def _parameter(parts: Parts) -> Model | None:
    from ministack.services import ssm

    _, parameter = ssm._lookup_parameter(parts["Name"])
    if parameter is None:
        return None
    return _pruned({"Name": parameter["Name"], "Arn": parameter["ARN"], "Type": parameter["Type"],
                    "Value": parameter["Value"], "DataType": parameter.get("DataType", "text"),
                    "Description": parameter.get("Description"), "Tier": parameter.get("Tier"),
                    "AllowedPattern": parameter.get("AllowedPattern"), "Tags": ssm._tags.get(parameter["ARN"])})


def _all_parameters() -> Iterable[Parts]:
    from ministack.services import ssm

    return [{"Name": name} for name in ssm._parameters]


def _log_group(parts: Parts) -> Model | None:
    from ministack.services import cloudwatch_logs

    group = cloudwatch_logs._log_groups.get(parts["LogGroupName"])
    if group is None:
        return None
    return _pruned({"LogGroupName": parts["LogGroupName"], "Arn": group["arn"],
                    "LogGroupClass": group.get("logGroupClass") or "STANDARD",
                    "RetentionInDays": group.get("retentionInDays"), "KmsKeyId": group.get("kmsKeyId"),
                    "Tags": _tags(group.get("tags"))})


def _all_log_groups() -> Iterable[Parts]:
    from ministack.services import cloudwatch_logs

    return [{"LogGroupName": name} for name in cloudwatch_logs._log_groups]


# -- IAM ---------------------------------------------------------------------

def _role(parts: Parts) -> Model | None:
    from ministack.services import iam

    role = iam._roles.get(parts["RoleName"])
    if role is None:
        return None
    return _pruned({
        "RoleName": role["RoleName"], "Arn": role["Arn"], "RoleId": role["RoleId"], "Path": role["Path"],
        "AssumeRolePolicyDocument": _object(role["AssumeRolePolicyDocument"]),
        "Description": role.get("Description"), "MaxSessionDuration": role.get("MaxSessionDuration"),
        "ManagedPolicyArns": list(role.get("AttachedPolicies", [])),
        "Policies": [{"PolicyName": name, "PolicyDocument": _object(document)}
                     for name, document in role.get("InlinePolicies", {}).items()],
        "PermissionsBoundary": role.get("PermissionsBoundary"), "Tags": list(role.get("Tags", [])),
    })


def _all_roles() -> Iterable[Parts]:
    from ministack.services import iam

    return [{"RoleName": name} for name in iam._roles]


def _inline_policies(kind: str, name: str) -> dict[str, Any]:
    from ministack.services import iam

    if kind == "Role":
        return (iam._roles.get(name) or {}).get("InlinePolicies", {})
    store = iam._user_inline_policies if kind == "User" else iam._group_inline_policies
    return store.get(name) or {}


def _inline_policy(kind: str) -> Live:
    owner = f"{kind}Name"

    def read(parts: Parts) -> Model | None:
        policies = _inline_policies(kind, parts.get(owner, ""))
        if parts["PolicyName"] not in policies:
            return None
        return {"PolicyName": parts["PolicyName"], owner: parts[owner],
                "PolicyDocument": _object(policies[parts["PolicyName"]])}

    return Live(read, _names("PolicyName", owner), list, frozenset({"PolicyDocument"}))


# -- Lambda ------------------------------------------------------------------

_FUNCTION_COPIED = ("Role", "Runtime", "Handler", "Timeout", "MemorySize", "Description", "PackageType",
                    "Architectures", "EphemeralStorage", "TracingConfig", "LoggingConfig", "KmsKeyArn")


def _function(parts: Parts) -> Model | None:
    from ministack.services import lambda_svc

    function = lambda_svc._functions.get(parts["FunctionName"])
    if function is None:
        return None
    config = function["config"]
    variables = (config.get("Environment") or {}).get("Variables")
    model = _pruned({
        "FunctionName": config["FunctionName"], "Arn": config["FunctionArn"],
        "Environment": {"Variables": dict(variables)} if variables else None,
        "Layers": [layer if isinstance(layer, str) else layer["Arn"] for layer in config.get("Layers") or []],
        "ReservedConcurrentExecutions": function.get("concurrency"), "Tags": _tags(function.get("tags")),
        "SnapStartResponse": config.get("SnapStart"),
        **{name: config.get(name) for name in _FUNCTION_COPIED},
    })
    return {**model, "Code": {}}  # the code cannot be read back, the property is there all the same


def _all_functions() -> Iterable[Parts]:
    from ministack.services import lambda_svc

    return [{"FunctionName": name} for name in lambda_svc._functions]


TYPES: dict[str, Live] = {
    "AWS::S3::Bucket": Live(_bucket, _names("BucketName"), _all_buckets, frozenset({
        "VersioningConfiguration", "Tags", "PublicAccessBlockConfiguration", "BucketEncryption",
        "OwnershipControls"})),
    "AWS::SQS::Queue": Live(_queue, _queue_candidate, _all_queues, frozenset(
        _QUEUE_NUMBERS + _QUEUE_FLAGS + _QUEUE_TEXT + _QUEUE_OBJECTS + ("Tags",)), _queue_url),
    "AWS::SQS::QueueInlinePolicy": Live(_queue_policy, _names("Queue"), list, frozenset({"PolicyDocument"}),
                                        _queue_url),
    "AWS::SNS::Topic": Live(_topic, _topic_candidate, _all_topics, frozenset({
        "DisplayName", "Tags", "Subscription", "KmsMasterKeyId", "SignatureVersion", "TracingConfig",
        "ContentBasedDeduplication", "FifoTopic"})),
    "AWS::SNS::TopicInlinePolicy": Live(_topic_policy, _names("TopicArn"), list, frozenset({"PolicyDocument"})),
    "AWS::SNS::Subscription": Live(_subscription, lambda _: None, _all_subscriptions, frozenset({
        "FilterPolicy", "FilterPolicyScope", "RawMessageDelivery", "RedrivePolicy", "DeliveryPolicy",
        "SubscriptionRoleArn", "Endpoint"})),
    "AWS::DynamoDB::Table": Live(_table, _names("TableName"), _all_tables, frozenset({
        "KeySchema", "AttributeDefinitions", "BillingMode", "ProvisionedThroughput", "DeletionProtectionEnabled",
        "StreamSpecification", "TimeToLiveSpecification", "Tags"})),
    "AWS::SSM::Parameter": Live(_parameter, _names("Name"), _all_parameters, frozenset({
        "Type", "Value", "DataType", "Tags"})),
    "AWS::Logs::LogGroup": Live(_log_group, _names("LogGroupName"), _all_log_groups, frozenset({
        "RetentionInDays", "KmsKeyId", "LogGroupClass", "Tags"})),
    "AWS::IAM::Role": Live(_role, _names("RoleName"), _all_roles, frozenset({
        "AssumeRolePolicyDocument", "Description", "MaxSessionDuration", "ManagedPolicyArns", "Policies", "Path",
        "PermissionsBoundary", "Tags"})),
    "AWS::IAM::RolePolicy": _inline_policy("Role"),
    "AWS::IAM::UserPolicy": _inline_policy("User"),
    "AWS::IAM::GroupPolicy": _inline_policy("Group"),
    "AWS::Lambda::Function": Live(_function, _names("FunctionName"), _all_functions, frozenset(
        _FUNCTION_COPIED + ("Environment", "Layers", "Tags", "ReservedConcurrentExecutions"))),
}
