"""ECR: a right to describe one repository is one on that repository, not on all."""

from __future__ import annotations

import json
from typing import Any


def _named(body: bytes) -> str | None:
    """The one repository that a request names in a list."""
    try:
        names = json.loads(body or b"{}").get("repositoryNames") or []
    except (ValueError, AttributeError):
        return None
    return names[0] if len(names) == 1 else None


def install() -> None:
    from ministack.core import iam_actions

    original = iam_actions.extract_resource_arn

    def extract_resource_arn(service: str, method: str, path: str, headers: dict[str, str], body: bytes,
                             query_params: dict[str, Any], region: str, account_id: str) -> str:
        name = _named(body) if service == "ecr" else None
        if name:
            return f"arn:aws:ecr:{region}:{account_id}:repository/{name}"
        return original(service, method, path, headers, body, query_params, region, account_id)

    iam_actions.extract_resource_arn = extract_resource_arn
