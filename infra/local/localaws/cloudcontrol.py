"""Cloud Control, with the rules of the real service and real resources behind it.

A request is checked against the resource schema, done at once by the
CloudFormation provisioners, and reported as in progress until its time has
come. What is kept beside the services: the desired state last accepted (for
write-only properties and types without a live reader), and the requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json
import logging
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

from . import admin, jsonpatch, live, schemas
from .provisioners import Refused
from .schemas import Schema

Model = dict[str, Any]

logger = logging.getLogger("cloudcontrol")

#: Seconds for which a client token is remembered.
TOKEN_LIFETIME = 36 * 3600
#: Characters that a desired state or patch document may have.
DOCUMENT_LIMIT = 262_144
_TOKEN = re.compile(r"[-A-Za-z0-9+/=]{1,128}")
_TYPE = re.compile(r"[A-Za-z0-9]{2,64}::[A-Za-z0-9]{2,64}::[A-Za-z0-9]{2,64}")
_STACK = "cloudcontrol"

_lock = threading.RLock()


class CallError(Exception):
    """An exception that the call itself answers."""

    def __init__(self, name: str, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.name, self.status = name, status


# -- state -------------------------------------------------------------------
# Records and requests lie in ministack's own stores, so that persistence and reset cover them.

def _module() -> Any:
    from ministack.services import cloudcontrol

    return cloudcontrol


def _tokens() -> dict[str, dict[str, Any]]:
    return _module()._client_tokens


def _record(type_name: str, identifier: str) -> dict[str, Any] | None:
    module = _module()
    return module._resources.get(module._resource_key(type_name, identifier))


def _store(record: dict[str, Any]) -> None:
    module = _module()
    module._resources[module._resource_key(record["TypeName"], record["Identifier"])] = record


def _forget(type_name: str, identifier: str) -> None:
    module = _module()
    module._resources.pop(module._resource_key(type_name, identifier), None)


# -- models ------------------------------------------------------------------

def _nested(path: str, value: Any, schema: Schema, model: Model) -> None:
    """Put an attribute like ``Endpoint.Address`` where the schema has it."""
    parts = path.split(".")
    if parts[0] not in schema.properties:
        return
    for part in parts[:-1]:
        model = model.setdefault(part, {})
        if not isinstance(model, dict):
            return
    model[parts[-1]] = value


def _stored_model(schema: Schema, record: dict[str, Any]) -> Model:
    """The desired state with the attributes and identifier that the service gave it."""
    model = copy.deepcopy(record["props"])
    for name, value in record["attrs"].items():
        _nested(name, value, schema, model)
    parts = record["pid"].split("|")
    for position, path in enumerate(schema.primary):
        if next(schemas.values_at(model, path), None) is not None:
            continue
        part = parts[position] if len(parts) == len(schema.primary) else record["pid"]
        if path[-1].endswith("Name") and part.startswith("arn:"):
            part = re.split("[:/]", part)[-1]
        _nested(".".join(path), part, schema, model)
    return model


def _full_model(schema: Schema, identifier: str) -> Model | None:
    """All that is known of a resource, write-only properties included."""
    record = _record(schema.type_name, identifier)
    reader = live.TYPES.get(schema.type_name)
    if reader is None:
        return _stored_model(schema, record) if record else None
    seen = reader.read(schema.identifier_parts(identifier))
    if seen is None:
        if record is not None:  # deleted elsewhere
            _forget(schema.type_name, identifier)
        return None
    kept = {name: value for name, value in (record["props"] if record else {}).items() if name not in reader.owned}
    return {**seen, **copy.deepcopy(kept)}


def _read(schema: Schema, identifier: str) -> Model | None:
    """The model as the service shows it."""
    model = _full_model(schema, identifier)
    return None if model is None else schemas.without(model, schema.write_only)


# -- requests ----------------------------------------------------------------

def _schema(data: dict[str, Any], action: str) -> Schema:
    type_name = data.get("TypeName") or ""
    if not _TYPE.fullmatch(type_name):
        raise CallError("ValidationException", f"1 validation error detected: Value '{type_name}' at 'typeName' "
                        "failed to satisfy constraint: Member must satisfy regular expression pattern: "
                        "[A-Za-z0-9]{2,64}::[A-Za-z0-9]{2,64}::[A-Za-z0-9]{2,64}(::MODULE){0,1}")
    schema = schemas.load(type_name)
    if schema is None:
        raise CallError("TypeNotFoundException", f"The type {type_name} cannot be found.")
    if not schema.supports(action):
        raise CallError("UnsupportedActionException", f"Resource type {type_name} does not support {action} action")
    if not _served(type_name):
        raise CallError("UnsupportedActionException",
                        f"Resource type {type_name} does not support {action} action: "
                        "the local AWS has no service for it and generic types are off")
    _check_role(data.get("RoleArn"))
    return schema


def _served(type_name: str) -> bool:
    from ministack.services.cloudformation import provisioners

    return type_name in provisioners._RESOURCE_HANDLERS or admin.settings.generic_types


def _check_role(arn: str | None) -> None:
    from ministack.core.responses import get_account_id
    from ministack.services import iam

    if arn is None:
        return
    found = re.fullmatch(r"arn:aws:iam::(\d{12}):role/(?:.*/)?([^/]+)", arn)
    if not found or (found.group(1) == get_account_id() and found.group(2) not in iam._roles):
        raise CallError("ValidationException", f"Role {arn} is invalid or cannot be assumed")


def _document(data: dict[str, Any], name: str) -> Any:
    text = data.get(name)
    if not isinstance(text, str) or not 1 <= len(text) <= DOCUMENT_LIMIT:
        raise CallError("ValidationException", f"1 validation error detected: Value at '{name[0].lower()}{name[1:]}' "
                        f"failed to satisfy constraint: Member must have length between 1 and {DOCUMENT_LIMIT}")
    try:
        return json.loads(text)
    except ValueError:
        raise CallError("InvalidRequestException", f"{name} is not a JSON document") from None


def _identifier(schema: Schema, data: dict[str, Any]) -> str:
    identifier = data.get("Identifier")
    if not isinstance(identifier, str) or not 1 <= len(identifier) <= 1024:
        raise CallError("ValidationException", "1 validation error detected: Value at 'identifier' failed to "
                        "satisfy constraint: Member must have length between 1 and 1024")
    reader = live.TYPES.get(schema.type_name)
    return reader.canonical(identifier) if reader else identifier


def _refusal(code: str, message: str) -> Exception:
    """A refused model or patch: an event or the answer of the call, as the settings say."""
    if admin.settings.cloud_control_refusals == "call":
        return CallError("ValidationException", message)
    return Refused(code, message)


def _view(event: dict[str, Any]) -> dict[str, Any]:
    """An event as it may be seen now."""
    if time.time() >= event["_ready"] or event["OperationStatus"] == "CANCEL_COMPLETE":
        return {name: value for name, value in event.items() if not name.startswith("_")}
    shown = {name: event[name] for name in ("TypeName", "RequestToken", "Operation") if name in event}
    if event["_known"] is not None:
        shown["Identifier"] = event["_known"]
    return {**shown, "OperationStatus": "IN_PROGRESS", "EventTime": event["_asked"], "RetryAfter": event["_ready"]}


def _pending(type_name: str, identifier: str | None) -> bool:
    now = time.time()
    return identifier is not None and any(
        event["TypeName"] == type_name and event["_ready"] > now and event["OperationStatus"] != "CANCEL_COMPLETE"
        and identifier in (event.get("Identifier"), event["_known"]) for event in _module()._requests.values())


def _submit(operation: str, schema: Schema, data: dict[str, Any], identifier: str | None,
            work: Callable[[], tuple[str, Model | None]]) -> dict[str, Any]:
    """Accept an operation, do it, and remember how it ends."""
    signature = json.dumps([operation, schema.type_name, *(data.get(name) for name in (
        "Identifier", "DesiredState", "PatchDocument", "RoleArn", "TypeVersionId"))])
    replayed = _replay(data.get("ClientToken"), signature)
    if replayed is not None:
        return replayed
    text = "\n".join(data.get(name) or "" for name in ("Identifier", "DesiredState", "PatchDocument"))
    called = admin.take_fault(operation, schema.type_name, text, "call")
    if called is not None and not called.after:
        raise _fault_error(called)
    if operation != "CREATE" and _pending(schema.type_name, identifier):
        raise CallError("ConcurrentOperationException",
                        f"Another operation on resource {identifier} of type {schema.type_name} is in progress.")
    event: dict[str, Any] = {"TypeName": schema.type_name, "Operation": operation, "RequestToken": str(uuid.uuid4()),
                             "_known": identifier, "_asked": time.time()}
    fault = admin.take_fault(operation, schema.type_name, text, "event")
    event.update(_outcome(operation, identifier, work, fault))
    slow = admin.take_fault(operation, schema.type_name, text, "delay")
    delay = next((rule.delay for rule in (slow, fault) if rule is not None and rule.delay is not None),
                 admin.settings.cloud_control_delay)
    event["EventTime"] = event["_ready"] = event["_asked"] + delay
    _module()._requests[event["RequestToken"]] = event
    if data.get("ClientToken"):
        _tokens()[data["ClientToken"]] = {"signature": signature, "request": event["RequestToken"],
                                          "time": time.time()}
    if called is not None:
        raise _fault_error(called)
    return {"ProgressEvent": _view(event)}


def _replay(token: Any, signature: str) -> dict[str, Any] | None:
    """The progress of the request that already used a client token."""
    if token is None:
        return None
    if not isinstance(token, str) or not _TOKEN.fullmatch(token):
        raise CallError("ValidationException", "1 validation error detected: Value at 'clientToken' failed to "
                        "satisfy constraint: Member must satisfy regular expression pattern: [-A-Za-z0-9+/=]+")
    known = _tokens().get(token)
    if known is None or time.time() - known["time"] > TOKEN_LIFETIME:
        return None
    if known["signature"] != signature:
        raise CallError("ClientTokenConflictException",
                        f"The client token {token} has already been used for a different request.")
    return {"ProgressEvent": _view(_module()._requests[known["request"]])}


def _fault_error(fault: admin.Fault) -> CallError:
    name = fault.error.get("name") or fault.error.get("HandlerErrorCode") or "ThrottlingException"
    if not name.endswith(("Exception", "Error")):
        name += "Exception"
    return CallError(name, fault.error.get("StatusMessage", "Rate exceeded"), int(fault.error.get("status", 400)))


def _outcome(operation: str, identifier: str | None, work: Callable[[], tuple[str, Model | None]],
             fault: admin.Fault | None) -> dict[str, Any]:
    """How an operation ends: what the final event says."""
    end: dict[str, Any] = {}
    if identifier is not None and operation != "CREATE":
        end["Identifier"] = identifier
    try:
        if fault is None or fault.after:
            end["Identifier"], model = work()
            if model is not None:
                end["ResourceModel"] = json.dumps(model)
        if fault is not None:
            raise Refused(fault.error.get("HandlerErrorCode", "GeneralServiceException"),
                          fault.error.get("StatusMessage", "Injected failure"))
    except CallError:
        raise
    except Exception as error:
        code, message = _failure(error)
        end.pop("ResourceModel", None)
        return {**end, "OperationStatus": "FAILED", "ErrorCode": code, "StatusMessage": message}
    return {**end, "OperationStatus": "SUCCESS"}


def _failure(error: Exception) -> tuple[str, str]:
    """The HandlerErrorCode for what a provisioner raised."""
    if isinstance(error, Refused):
        return error.code, str(error)
    message = str(error)
    if re.search(r"already exists|AlreadyExists", message):
        return "AlreadyExists", message
    if re.search(r"not found|cannot be found|does not exist|NotFound", message):
        return "NotFound", message
    if isinstance(error, (ValueError, TypeError)) or hasattr(error, "status"):
        return "InvalidRequest", message
    logger.exception("A provisioner failed")
    return "InternalFailure", f"{type(error).__name__}: {message}"


# -- operations --------------------------------------------------------------

def create(data: dict[str, Any]) -> dict[str, Any]:
    schema = _schema(data, "CREATE")
    desired = _document(data, "DesiredState")
    known = schema.identifier(desired) if isinstance(desired, dict) else None

    def work() -> tuple[str, Model]:
        if isinstance(desired, dict):
            refused = schema.present(desired, schema.read_only)
            if refused:
                raise _refusal("InvalidRequest", "Model validation failed (Encountered read-only properties: "
                               f"[{', '.join(refused)}])")
        problems = schema.validate(desired)
        if problems:
            raise _refusal("InvalidRequest", _invalid(problems))
        _refuse_existing(schema, desired)
        logical_id = "R" + uuid.uuid4().hex[:12]
        physical_id, attributes = _provision(schema, logical_id, desired)
        record = {"TypeName": schema.type_name, "pid": physical_id, "lid": logical_id, "props": desired,
                  "attrs": attributes, "Properties": "{}"}
        reader = live.TYPES.get(schema.type_name)
        stored = _stored_model(schema, record)
        record["Identifier"] = identifier = schema.identifier(stored) or physical_id
        if reader is None and _record(schema.type_name, identifier) is not None:
            raise Refused("AlreadyExists", _exists(schema, identifier))
        _store(record)
        return identifier, _shown(schema, identifier)

    return _submit("CREATE", schema, data, known, work)


def update(data: dict[str, Any]) -> dict[str, Any]:
    schema = _schema(data, "UPDATE")
    identifier = _identifier(schema, data)
    operations = _document(data, "PatchDocument")

    def work() -> tuple[str, Model]:
        full = _full_model(schema, identifier)
        if full is None:
            raise Refused("NotFound", _missing(schema, identifier))
        current = schemas.without(full, schema.write_only)
        try:
            patched = jsonpatch.apply(current, operations)
        except jsonpatch.PatchError as error:
            raise CallError("ValidationException", f"Invalid patch update: {error}") from None
        if not isinstance(patched, dict):
            raise CallError("ValidationException", "Invalid patch update: the model must be an object")
        _refuse_fixed(schema, full, current, patched, data)
        desired = schemas.without(patched, schema.read_only)
        problems = schema.validate(desired)
        if problems:
            raise _refusal("InvalidRequest", _invalid(problems))
        record = _record(schema.type_name, identifier) or {
            "TypeName": schema.type_name, "Identifier": identifier, "pid": identifier, "lid": identifier,
            "props": {}, "attrs": {}, "Properties": "{}"}
        old = schemas.without(full, schema.read_only)
        if schema.type_name == "AWS::Lambda::Function" and not desired.get("Code"):
            desired["Code"] = old.get("Code", {})  # an update without code leaves the code alone
        attributes = _modify(schema, record, old, desired)
        _store({**record, "props": desired, "attrs": {**record["attrs"], **attributes}})
        return identifier, _shown(schema, identifier)

    return _submit("UPDATE", schema, data, identifier, work)


def delete(data: dict[str, Any]) -> dict[str, Any]:
    schema = _schema(data, "DELETE")
    identifier = _identifier(schema, data)

    def work() -> tuple[str, None]:
        model = _full_model(schema, identifier)
        if model is None:
            raise Refused("NotFound", _missing(schema, identifier))
        record = _record(schema.type_name, identifier)
        _remove(schema, record, identifier, model)
        _forget(schema.type_name, identifier)
        return identifier, None

    return _submit("DELETE", schema, data, identifier, work)


def get(data: dict[str, Any]) -> dict[str, Any]:
    schema = _schema(data, "READ")
    identifier = _identifier(schema, data)
    _call_fault("READ", schema.type_name, identifier)
    model = _read(schema, identifier)
    if model is None:
        raise CallError("ResourceNotFoundException", _missing(schema, identifier))
    return {"TypeName": schema.type_name,
            "ResourceDescription": {"Identifier": identifier, "Properties": json.dumps(model)}}


def list_resources(data: dict[str, Any]) -> dict[str, Any]:
    schema = _schema(data, "LIST")
    _call_fault("LIST", schema.type_name, data.get("ResourceModel") or "")
    wanted = json.loads(data.get("ResourceModel") or "{}")
    reader = live.TYPES.get(schema.type_name)
    if reader is not None:
        identifiers = ["|".join(parts[path[0]] for path in schema.primary) for parts in reader.all()]
    else:
        identifiers = [record["Identifier"] for record in _module()._resources.values()
                       if record["TypeName"] == schema.type_name]
    start = int(data.get("NextToken") or 0)
    size = int(data.get("MaxResults") or 100)
    found = []
    for identifier in sorted(identifiers):
        model = _read(schema, identifier)
        if model is not None and all(model.get(name) == value for name, value in wanted.items()):
            found.append({"Identifier": identifier, "Properties": json.dumps(model)})
    answer: dict[str, Any] = {"TypeName": schema.type_name, "ResourceDescriptions": found[start:start + size]}
    if start + size < len(found):
        answer["NextToken"] = str(start + size)
    return answer


def status(data: dict[str, Any]) -> dict[str, Any]:
    event = _request(data)
    _call_fault("STATUS", event["TypeName"], event.get("Identifier") or "")
    return {"ProgressEvent": _view(event)}


def cancel(data: dict[str, Any]) -> dict[str, Any]:
    """The work is done already: as with the real service, cancelling does not undo it."""
    event = _request(data)
    if _view(event)["OperationStatus"] != "IN_PROGRESS":
        raise CallError("ConcurrentModificationException",
                        f"Request {event['RequestToken']} is not in progress and cannot be cancelled.")
    event.update(OperationStatus="CANCEL_COMPLETE", EventTime=time.time())
    return {"ProgressEvent": _view(event)}


def list_requests(data: dict[str, Any]) -> dict[str, Any]:
    wanted = data.get("ResourceRequestStatusFilter") or {}
    events = [_view(event) for event in _module()._requests.values()]
    return {"ResourceRequestStatusSummaries": [
        event for event in sorted(events, key=lambda event: event["EventTime"], reverse=True)
        if event["Operation"] in (wanted.get("Operations") or [event["Operation"]])
        and event["OperationStatus"] in (wanted.get("OperationStatuses") or [event["OperationStatus"]])]}


def _request(data: dict[str, Any]) -> dict[str, Any]:
    event = _module()._requests.get(data.get("RequestToken"))
    if event is None:
        raise CallError("RequestTokenNotFoundException", f"Request token {data.get('RequestToken')} was not found.")
    return event


def _call_fault(operation: str, type_name: str, text: str) -> None:
    fault = admin.take_fault(operation, type_name, text, "call")
    if fault is not None:
        raise _fault_error(fault)


def _shown(schema: Schema, identifier: str) -> Model:
    return _read(schema, identifier) or {}


def _invalid(problems: list[str]) -> str:
    head = f"#: {len(problems)} schema violations found, " if len(problems) > 1 else ""
    return f"Model validation failed ({head}{', '.join(problems)})"


def _missing(schema: Schema, identifier: str) -> str:
    return f"Resource of type '{schema.type_name}' with identifier '{identifier}' was not found."


def _exists(schema: Schema, identifier: str) -> str:
    return f"Resource of type '{schema.type_name}' with identifier '{identifier}' already exists."


def _refuse_existing(schema: Schema, desired: Model) -> None:
    """AlreadyExists when the identifier or the name is taken."""
    from ministack.services import s3

    reader = live.TYPES.get(schema.type_name)
    if reader is not None:
        parts = reader.candidate(desired)
        taken = parts is not None and reader.read(parts) is not None
        if schema.type_name == "AWS::S3::Bucket" and desired.get("BucketName"):
            taken = s3._bucket_owner_account(desired["BucketName"]) is not None
        if taken:
            raise Refused("AlreadyExists", _exists(schema, "|".join((parts or {}).values())))
        return
    identifier = schema.identifier(desired)
    if identifier is not None and _record(schema.type_name, identifier) is not None:
        raise Refused("AlreadyExists", _exists(schema, identifier))
    names = [path[0] for path in schema.create_only if len(path) == 1 and (
        path[0] == "Name" or path[0] == schema.type_name.rsplit("::", 1)[1] + "Name") and path[0] in desired]
    for record in _module()._resources.values():
        if record["TypeName"] == schema.type_name and any(record["props"].get(name) == desired[name]
                                                          for name in names):
            scope = [path[0] for path in schema.create_only if path[0] not in names]
            if all(record["props"].get(name) == desired.get(name) for name in scope):
                raise Refused("AlreadyExists", _exists(schema, record["Identifier"]))


def _refuse_fixed(schema: Schema, full: Model, current: Model, patched: Model, data: dict[str, Any]) -> None:
    """Refuse a patch that changes what cannot change."""
    changed = schema.changed(current, patched, schema.read_only)
    if changed:
        raise _refusal("InvalidRequest",
                       f"Invalid patch update: readOnlyProperties [{', '.join(changed)}] cannot be updated")
    hidden = [path for path in schema.create_only if path in schema.write_only]
    changed = schema.changed(current, patched, [path for path in schema.create_only if path not in hidden])
    changed += [name for path in hidden if list(schemas.values_at(patched, path))
                for name in schema.changed(full, patched, [path])]
    if changed:
        raise _refusal("NotUpdatable",
                       f"Invalid patch update: createOnlyProperties [{', '.join(changed)}] cannot be updated")
    changed = schema.changed(current, patched, schema.conditional_create_only)
    if changed and admin.take_fault("UPDATE", schema.type_name, f"{data['Identifier']}\n{data['PatchDocument']}",
                                    "conditionalCreateOnly"):
        raise Refused("NotUpdatable", f"The properties [{', '.join(changed)}] cannot be updated in this case")


# -- provisioners ------------------------------------------------------------

def _handlers(type_name: str) -> dict[str, Any] | None:
    from ministack.services.cloudformation import provisioners

    return provisioners._RESOURCE_HANDLERS.get(type_name)


@contextlib.contextmanager
def _own_name_seed() -> Iterator[None]:
    """Generated names must not follow from an earlier operation of the same thread."""
    from ministack.services.cloudformation import provisioners

    token = provisioners._NAME_SEED.set(uuid.uuid4().hex[:8])
    try:
        yield
    finally:
        provisioners._NAME_SEED.reset(token)


def _provision(schema: Schema, logical_id: str, desired: Model) -> tuple[str, dict[str, Any]]:
    from ministack.services.cloudformation import provisioners

    if _handlers(schema.type_name) is None:
        return _generic(schema, logical_id, desired)
    with _own_name_seed():
        physical_id, attributes = provisioners._provision_resource(
            schema.type_name, logical_id, copy.deepcopy(desired), _STACK)
    return physical_id, attributes or {}


def _modify(schema: Schema, record: dict[str, Any], old: Model, desired: Model) -> dict[str, Any]:
    """Update in place: Cloud Control never replaces."""
    from ministack.services.cloudformation import provisioners

    handlers = _handlers(schema.type_name)
    if handlers is None or old == desired:
        return {}
    arguments = (record["pid"], copy.deepcopy(old), copy.deepcopy(desired), _STACK)
    if "update" not in handlers:
        physical_id, attributes = provisioners._update_resource(
            schema.type_name, *arguments, record["lid"], record["attrs"])
    elif handlers.get("update_with_logical_id"):
        physical_id, attributes = handlers["update"](*arguments, record["lid"])
    else:
        physical_id, attributes = handlers["update"](*arguments)
    if physical_id != record["pid"]:
        logger.warning("The update of %s %s gave it the physical id %s", schema.type_name, record["pid"], physical_id)
        record["pid"] = physical_id
    return attributes or {}


def _remove(schema: Schema, record: dict[str, Any] | None, identifier: str, model: Model) -> None:
    from ministack.services.cloudformation import provisioners

    if _handlers(schema.type_name) is not None:
        provisioners._delete_resource(schema.type_name, record["pid"] if record else identifier,
                                      schemas.without(model, schema.read_only), _STACK,
                                      record["lid"] if record else identifier)


def _generic(schema: Schema, logical_id: str, desired: Model) -> tuple[str, dict[str, Any]]:
    """Stand in for a service that is not there: the model is kept, attributes are made up once."""
    from ministack.core.responses import get_account_id, get_region

    unique = uuid.uuid4().hex[:17]
    kind = schema.type_name.split("::")
    name = next((str(desired[path[0]]) for path in schema.create_only + schema.primary
                 if len(path) == 1 and path[0].endswith("Name") and path[0] in desired), unique)
    attributes: dict[str, Any] = {}
    for path in schema.read_only + [path for path in schema.primary if path not in schema.read_only]:
        if len(path) != 1 or path[0] in desired:
            continue
        declared = schema.properties.get(path[0], {}).get("type", "string")
        if path[0].endswith("Arn"):
            attributes[path[0]] = (f"arn:aws:{kind[1].lower()}:{get_region()}:{get_account_id()}:"
                                   f"{kind[2].lower()}/{name}")
        elif path[0].endswith("Ip"):
            attributes[path[0]] = f"203.0.113.{int(unique[:2], 16)}"
        elif declared == "string":
            attributes[path[0]] = name if path[0].endswith("Name") else f"{kind[2].lower()}-{unique}"
        elif declared in ("integer", "number"):
            attributes[path[0]] = 1
        elif declared == "boolean":
            attributes[path[0]] = False
    return attributes.get(schema.primary[0][0], name), attributes


# -- HTTP --------------------------------------------------------------------

_OPERATIONS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "CreateResource": create, "UpdateResource": update, "DeleteResource": delete, "GetResource": get,
    "ListResources": list_resources, "GetResourceRequestStatus": status, "CancelResourceRequest": cancel,
    "ListResourceRequests": list_requests,
}


def _call(action: str, data: dict[str, Any]) -> tuple[int, dict[str, str], bytes]:
    from ministack.core.responses import error_response_json, json_response

    try:
        with _lock:
            return json_response(_OPERATIONS[action](data))
    except CallError as error:
        return error_response_json(error.name, str(error), error.status)


def install() -> None:
    from ministack.core.responses import AccountRegionScopedDict, error_response_json
    from ministack.services import cloudcontrol

    cloudcontrol._client_tokens = AccountRegionScopedDict()
    get_state, load_state = cloudcontrol.get_state, cloudcontrol.load_persisted_state

    def state() -> dict[str, Any]:
        return {**get_state(), "client_tokens": cloudcontrol._client_tokens}

    def load(data: dict[str, Any]) -> None:
        load_state(data)
        if isinstance((data or {}).get("client_tokens"), AccountRegionScopedDict):
            cloudcontrol._client_tokens.update(data["client_tokens"])

    async def handle_request(method: str, path: str, headers: dict[str, str], body: bytes,
                             query_params: dict[str, Any]) -> tuple[int, dict[str, str], bytes]:
        action = headers.get("x-amz-target", "").rsplit(".", 1)[-1]
        if action not in _OPERATIONS:
            return error_response_json("UnknownOperationException", f"Unknown operation {action}", 400)
        try:
            data = json.loads(body or b"{}")
        except ValueError:
            return error_response_json("SerializationException", "The body is not JSON", 400)
        return await asyncio.to_thread(_call, action, data)

    original_reset = cloudcontrol.reset

    def reset() -> None:
        original_reset()
        cloudcontrol._client_tokens = AccountRegionScopedDict()
        admin.clear_faults()

    cloudcontrol.handle_request, cloudcontrol.reset = handle_request, reset
    cloudcontrol.get_state, cloudcontrol.load_persisted_state = state, load
