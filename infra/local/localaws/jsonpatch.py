"""RFC 6902, strictly: an operation on a path that is not there is an error."""

from __future__ import annotations

import copy
from typing import Any


class PatchError(ValueError):
    """A patch document that is malformed or does not fit the model."""


def apply(document: Any, operations: Any) -> Any:
    """The document after the operations; the argument stays as it is."""
    if not isinstance(operations, list):
        raise PatchError("The patch document must be an array of operations")
    document = copy.deepcopy(document)
    for operation in operations:
        document = _apply_one(document, operation)
    return document


def _apply_one(document: Any, operation: Any) -> Any:
    if not isinstance(operation, dict) or not isinstance(operation.get("path"), str):
        raise PatchError("Each operation must be an object with a path")
    kind, path = operation.get("op"), _tokens(operation["path"])
    if kind in ("add", "replace", "test") and "value" not in operation:
        raise PatchError(f"The operation {kind} needs a value")
    if kind == "add":
        return _add(document, path, copy.deepcopy(operation["value"]))
    if kind == "remove":
        return _remove(document, path)[0]
    if kind == "replace":
        _get(document, path)
        return _put(document, path, copy.deepcopy(operation["value"]))
    if kind == "test":
        if _get(document, path) != operation["value"]:
            raise PatchError(f"The test of {operation['path']} failed")
        return document
    if kind in ("move", "copy"):
        if not isinstance(operation.get("from"), str):
            raise PatchError(f"The operation {kind} needs a from")
        source = _tokens(operation["from"])
        value = copy.deepcopy(_get(document, source))
        if kind == "move":
            document = _remove(document, source)[0]
        return _add(document, path, value)
    raise PatchError(f"Unknown operation {kind!r}")


def _tokens(path: str) -> list[str]:
    if path == "":
        return []
    if not path.startswith("/"):
        raise PatchError(f"The path {path!r} must start with a slash")
    return [token.replace("~1", "/").replace("~0", "~") for token in path[1:].split("/")]


def _position(node: list, token: str, *, adding: bool = False) -> int:
    if adding and token == "-":
        return len(node)
    if not token.isdigit() or (len(token) > 1 and token[0] == "0"):
        raise PatchError(f"{token!r} is no array position")
    if int(token) >= len(node) + adding:
        raise PatchError(f"The array position {token} is out of range")
    return int(token)


def _get(document: Any, path: list[str]) -> Any:
    for token in path:
        if isinstance(document, dict) and token in document:
            document = document[token]
        elif isinstance(document, list):
            document = document[_position(document, token)]
        else:
            raise PatchError(f"There is no /{'/'.join(path)} in the model")
    return document


def _parent(document: Any, path: list[str]) -> Any:
    parent = _get(document, path[:-1])
    if not isinstance(parent, (dict, list)):
        raise PatchError(f"/{'/'.join(path[:-1])} is neither an object nor an array")
    return parent


def _add(document: Any, path: list[str], value: Any) -> Any:
    if not path:
        return value
    parent = _parent(document, path)
    if isinstance(parent, list):
        parent.insert(_position(parent, path[-1], adding=True), value)
    else:
        parent[path[-1]] = value
    return document


def _put(document: Any, path: list[str], value: Any) -> Any:
    if not path:
        return value
    parent = _parent(document, path)
    parent[_position(parent, path[-1]) if isinstance(parent, list) else path[-1]] = value
    return document


def _remove(document: Any, path: list[str]) -> tuple[Any, Any]:
    if not path:
        raise PatchError("The whole model cannot be removed")
    _get(document, path)
    parent = _parent(document, path)
    value = parent.pop(_position(parent, path[-1]) if isinstance(parent, list) else path[-1])
    return document, value
