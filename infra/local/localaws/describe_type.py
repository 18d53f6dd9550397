"""CloudFormation's DescribeType for the public resource types, answered from their schemas."""

from __future__ import annotations

import json
from typing import Any
from xml.sax.saxutils import escape

from . import schemas


def provisioning_type(schema: schemas.Schema) -> str:
    if not schema.provisionable:
        return "NON_PROVISIONABLE"
    return "FULLY_MUTABLE" if schema.supports("UPDATE") else "IMMUTABLE"


def describe(name: str, region: str) -> dict[str, str] | None:
    """What DescribeType says of a type, or None when there is no such type."""
    schema = schemas.load(name)
    if schema is None:
        return None
    return {"Arn": f"arn:aws:cloudformation:{region}::type/resource/{name.replace('::', '-')}", "Type": "RESOURCE",
            "TypeName": name, "Visibility": "PUBLIC", "DeprecatedStatus": "LIVE", "IsDefaultVersion": "true",
            "ProvisioningType": provisioning_type(schema), "Schema": json.dumps(schema.document)}


def install() -> None:
    from ministack.core.responses import get_region
    from ministack.services import cloudformation
    from ministack.services.cloudformation.helpers import _error, _p, _xml

    def describe_type(params: dict[str, Any]) -> Any:
        name = _p(params, "TypeName") or _p(params, "Arn").rsplit("/", 1)[-1].replace("-", "::")
        found = describe(name, get_region())
        if found is None:
            return _error("TypeNotFoundException", f"The type '{name}' cannot be found.", 404)
        members = "".join(f"<{member}>{escape(value)}</{member}>" for member, value in found.items())
        return _xml(200, "DescribeTypeResponse", f"<DescribeTypeResult>{members}</DescribeTypeResult>")

    cloudformation._ACTION_HANDLERS["DescribeType"] = describe_type
