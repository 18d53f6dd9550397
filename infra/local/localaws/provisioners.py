"""Provisioners that ministack lacks, and corrections of those that forget what they are told.

Five inline-policy types become real policies of the real services, so that the
services' own APIs show them. Buckets, topics, roles and functions keep the
properties that the originals drop, and refuse what the real ones refuse. Both
ways in, CloudFormation and Cloud Control, pass here.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from ministack.core.responses import get_account_id, get_region

from .live import find_queue

Properties = dict[str, Any]


class Refused(Exception):
    """A failure that carries its HandlerErrorCode."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def document_text(document: Any) -> str:
    return document if isinstance(document, str) else json.dumps(document)


# -- inline policies ---------------------------------------------------------

def _iam_inline(kind: str, store: str, put: str, remove: str) -> dict[str, Callable[..., Any]]:
    """Handlers for the inline policy of one kind of IAM entity."""
    from ministack.services import iam

    parameter = f"{kind}Name"

    def write(properties: Properties) -> tuple[str, dict[str, Any]]:
        name = properties[parameter]
        if name not in getattr(iam, store):
            raise Refused("NotFound", f"The {kind.lower()} with name {name} cannot be found.")
        status, _, body = getattr(iam, put)({parameter: name, "PolicyName": properties["PolicyName"],
                                             "PolicyDocument": document_text(properties.get("PolicyDocument", {}))})
        if status >= 400:
            raise Refused("InvalidRequest", body.decode() if isinstance(body, bytes) else str(body))
        return f"{properties['PolicyName']}|{name}", {}

    def delete(physical_id: str, _: Properties) -> None:
        policy, name = physical_id.split("|", 1)
        getattr(iam, remove)({parameter: name, "PolicyName": policy})

    return {"create": lambda logical_id, properties, stack: write(properties),
            "update": lambda physical_id, old, new, stack: write(new), "delete": delete}


def default_topic_policy(arn: str) -> str:
    """The policy that a topic has when nobody set one."""
    return json.dumps({"Version": "2008-10-17", "Id": "__default_policy_ID", "Statement": [
        {"Sid": "__default_statement_ID", "Effect": "Allow", "Principal": {"AWS": "*"},
         "Action": ["SNS:Publish", "SNS:Subscribe", "SNS:Receive"], "Resource": arn}]})


def _attribute_inline(identifier: str, find: Callable[[str], dict[str, Any] | None], missing: str,
                      default: Callable[[str], str | None]) -> dict[str, Callable[..., Any]]:
    """Handlers for the one policy that a queue or topic carries as an attribute."""

    def write(properties: Properties) -> tuple[str, dict[str, Any]]:
        target = properties[identifier]
        record = find(target)
        if record is None:
            raise Refused("NotFound", missing)
        record["attributes"]["Policy"] = document_text(properties["PolicyDocument"])
        return target, {}

    def delete(physical_id: str, _: Properties) -> None:
        record = find(physical_id)
        if record is None:
            return
        policy = default(physical_id)
        if policy is None:
            record["attributes"].pop("Policy", None)
        else:
            record["attributes"]["Policy"] = policy

    return {"create": lambda logical_id, properties, stack: write(properties),
            "update": lambda physical_id, old, new, stack: write(new), "delete": delete}


# -- properties that the originals drop --------------------------------------

def _after(handlers: dict[str, Any], apply: Callable[[str, Properties, Properties], None]) -> None:
    """Run ``apply(physical id, old properties, new properties)`` after a type's create and update."""
    create, update = handlers["create"], handlers["update"]

    def create_and_apply(logical_id: str, properties: Properties, stack: str) -> Any:
        made = create(logical_id, properties, stack)
        apply(made[0], {}, properties)
        return made

    def update_and_apply(physical_id: str, old: Properties, new: Properties, stack: str, *rest: Any) -> Any:
        made = update(physical_id, old, new, stack, *rest)
        apply(made[0], old, new)
        return made

    handlers["create"], handlers["update"] = create_and_apply, update_and_apply


def _apply_bucket(name: str, old: Properties, new: Properties) -> None:
    from ministack.services import s3

    versioning = (new.get("VersioningConfiguration") or {}).get("Status")
    if versioning == "Suspended" or (versioning is None and "VersioningConfiguration" in old):
        if name in s3._bucket_versioning:
            s3._bucket_versioning[name] = "Suspended"
    tags = {tag["Key"]: str(tag.get("Value", "")) for tag in new.get("Tags") or []}
    if tags:
        s3._bucket_tags[name] = tags
    elif old.get("Tags"):
        s3._bucket_tags.pop(name, None)
    if "BucketEncryption" in new:
        s3._put_bucket_encryption(name, _encryption_xml(new["BucketEncryption"]))
    elif "BucketEncryption" in old:
        s3._delete_bucket_encryption(name)
    rules = (new.get("OwnershipControls") or {}).get("Rules") or []
    if rules:
        inner = "".join(f"<Rule><ObjectOwnership>{rule['ObjectOwnership']}</ObjectOwnership></Rule>" for rule in rules)
        s3._put_bucket_ownership_controls(name, f"<OwnershipControls>{inner}</OwnershipControls>".encode())


def _encryption_xml(encryption: Properties) -> bytes:
    rules = []
    for rule in encryption.get("ServerSideEncryptionConfiguration") or []:
        default = rule.get("ServerSideEncryptionByDefault") or {}
        key = f"<KMSMasterKeyID>{default['KMSMasterKeyID']}</KMSMasterKeyID>" if "KMSMasterKeyID" in default else ""
        rules.append("<Rule><ApplyServerSideEncryptionByDefault>"
                     f"<SSEAlgorithm>{default.get('SSEAlgorithm', 'AES256')}</SSEAlgorithm>{key}"
                     "</ApplyServerSideEncryptionByDefault>"
                     f"<BucketKeyEnabled>{str(rule.get('BucketKeyEnabled', False)).lower()}</BucketKeyEnabled></Rule>")
    return (f'<ServerSideEncryptionConfiguration xmlns="http://s3.amazonaws.com/doc/2006-03-01/">{"".join(rules)}'
            "</ServerSideEncryptionConfiguration>").encode()


def bucket_is_empty(name: str) -> bool:
    from ministack.services import s3

    bucket = s3._buckets.get(name)
    return not (bucket and bucket["objects"]) and not any(
        key[0] == name and s3._object_versions.get(key) for key in s3._object_versions)


def _guard_bucket_delete(handlers: dict[str, Any]) -> None:
    delete = handlers["delete"]

    def delete_if_empty(physical_id: str, properties: Properties) -> None:
        if not bucket_is_empty(physical_id):
            raise Refused("GeneralServiceException",
                          "The bucket you tried to delete is not empty (Service: S3, Status Code: 409)")
        delete(physical_id, properties)

    handlers["delete"] = delete_if_empty


def _before_create(handlers: dict[str, Any], check: Callable[[Properties], None]) -> None:
    """Let a check refuse what the real service would refuse at create."""
    create = handlers["create"]

    def checked_create(logical_id: str, properties: Properties, stack: str) -> Any:
        check(properties)
        return create(logical_id, properties, stack)

    handlers["create"] = checked_create


def _check_subscription(properties: Properties) -> None:
    from ministack.services import sns

    if properties["TopicArn"] not in sns._topics:
        raise Refused("NotFound", "Topic does not exist (Service: Sns, Status Code: 404)")


def trusts(role: dict[str, Any] | None, service: str) -> bool:
    """Whether a role is there and lets a service assume it."""
    return role is not None and service in document_text(role["AssumeRolePolicyDocument"])


def _check_archive(source: Properties) -> None:
    """What a function or a layer is made of must be there."""
    from ministack.services import lambda_svc

    if source.get("S3Bucket") and lambda_svc._fetch_code_from_s3(
            source["S3Bucket"], source.get("S3Key", ""), version_id=source.get("S3ObjectVersion")) is None:
        raise Refused("InvalidRequest", "Error occurred while GetObject. S3 Error Code: NoSuchKey. "
                      "S3 Error Message: The specified key does not exist. (Service: Lambda, Status Code: 400)")


def _check_layer(properties: Properties) -> None:
    _check_archive(properties.get("Content") or {})


def _check_function(properties: Properties) -> None:
    from ministack.services import iam

    if not trusts(iam._roles.get(properties.get("Role", "").rsplit("/", 1)[-1]), "lambda.amazonaws.com"):
        raise Refused("InvalidRequest", "The role defined for the function cannot be assumed by Lambda. "
                      "(Service: Lambda, Status Code: 400)")
    _check_archive(properties.get("Code") or {})
    variables = (properties.get("Environment") or {}).get("Variables") or {}
    if sum(len(str(name)) + len(str(value)) for name, value in variables.items()) > 4096:
        raise Refused("InvalidRequest", "Lambda was unable to configure your environment variables because the "
                      "environment variables you have provided exceeded the 4KB limit.")


_TOPIC_TEXT = ("KmsMasterKeyId", "SignatureVersion", "TracingConfig")
_TOPIC_FLAGS = ("FifoTopic", "ContentBasedDeduplication")


def _apply_topic(arn: str, old: Properties, new: Properties) -> None:
    from ministack.services import sns

    attributes = sns._topics[arn]["attributes"]
    attributes["DisplayName"] = str(new.get("DisplayName", ""))
    for name in _TOPIC_TEXT + _TOPIC_FLAGS:
        if name in new:
            attributes[name] = str(new[name]).lower() if name in _TOPIC_FLAGS else str(new[name])
        elif name in old:
            attributes.pop(name, None)


def _apply_role(name: str, old: Properties, new: Properties) -> None:
    from ministack.services import iam

    role = iam._roles[name]
    if new.get("PermissionsBoundary"):
        role["PermissionsBoundary"] = new["PermissionsBoundary"]
    elif "PermissionsBoundary" in old:
        role.pop("PermissionsBoundary", None)


def _apply_function(name: str, old: Properties, new: Properties) -> None:
    from ministack.services import lambda_svc

    function = lambda_svc._functions[name]
    reserved = new.get("ReservedConcurrentExecutions")
    if reserved is not None:
        function["concurrency"] = int(reserved)
    elif "ReservedConcurrentExecutions" in old:
        function["concurrency"] = None


def _end_processes(handlers: dict[str, Any]) -> None:
    """A deleted function leaves no warm process behind."""
    from ministack.services import lambda_svc

    delete = handlers["delete"]

    def delete_with_processes(physical_id: str, properties: Properties) -> None:
        delete(physical_id, properties)
        lambda_svc.invalidate_worker(physical_id, account=get_account_id(), region=get_region())

    handlers["delete"] = delete_with_processes


def install() -> None:
    from ministack.services import sns, sqs
    from ministack.services.cloudformation import provisioners

    # Queue URLs with the address that the server really has.
    sqs.DEFAULT_HOST = "127.0.0.1"
    sqs._CANONICAL_NETLOC = f"{sqs.DEFAULT_HOST}:{sqs.DEFAULT_PORT}"
    handlers = provisioners._RESOURCE_HANDLERS
    handlers.update({
        "AWS::IAM::RolePolicy": _iam_inline("Role", "_roles", "_put_role_policy", "_delete_role_policy"),
        "AWS::IAM::UserPolicy": _iam_inline("User", "_users", "_put_user_policy", "_delete_user_policy"),
        "AWS::IAM::GroupPolicy": _iam_inline("Group", "_groups", "_put_group_policy", "_delete_group_policy"),
        "AWS::SQS::QueueInlinePolicy": _attribute_inline(
            "Queue", find_queue, "The specified queue does not exist.", lambda _: None),
        "AWS::SNS::TopicInlinePolicy": _attribute_inline(
            "TopicArn", lambda arn: sns._topics.get(arn), "Topic does not exist", default_topic_policy),
    })
    _after(handlers["AWS::S3::Bucket"], _apply_bucket)
    _guard_bucket_delete(handlers["AWS::S3::Bucket"])
    _after(handlers["AWS::SNS::Topic"], _apply_topic)
    _after(handlers["AWS::IAM::Role"], _apply_role)
    _after(handlers["AWS::Lambda::Function"], _apply_function)
    _before_create(handlers["AWS::Lambda::Function"], _check_function)
    _before_create(handlers["AWS::Lambda::LayerVersion"], _check_layer)
    _end_processes(handlers["AWS::Lambda::Function"])
    _before_create(handlers["AWS::SNS::Subscription"], _check_subscription)
