"""The public resource schemas, as they lie in the cfn-lint wheel.

They decide what Cloud Control serves and what it refuses: which types have
which handlers, which properties are read-only, write-only or create-only, what
identifies a resource, and what a valid model looks like.
"""

from __future__ import annotations

import copy
import functools
import importlib.util
import json
import re
from pathlib import Path
from typing import Any, Iterator

Pointer = tuple[str, ...]

_MISSING = object()
_TYPE_NAMES = {"string": "String", "integer": "Integer", "number": "Number", "boolean": "Boolean",
               "object": "JSONObject", "array": "JSONArray", "null": "Null"}


def _root() -> Path:
    spec = importlib.util.find_spec("cfnlint")
    if spec is None or not spec.submodule_search_locations:
        raise RuntimeError("cfn-lint is not installed: its wheel carries the resource schemas")
    return Path(next(iter(spec.submodule_search_locations))) / "data" / "schemas"


@functools.cache
def _index() -> dict[str, Path]:
    """Type name to schema file. The table of the first Region has nearly all; the rest is found by scanning."""
    root = _root()
    files = root / "resources"
    table = json.loads((root / "providers" / "us-east-1.json").read_text())
    index = {name: files / f"{digest}.json" for name, digest in table.items()}
    known = {path.name for path in index.values()}
    for path in files.glob("*.json"):
        if path.name not in known:
            found = re.search(r'"typeName":\s*"([^"]+)"', path.read_text())
            if found:
                index.setdefault(found.group(1), path)
    return index


@functools.cache
def load(type_name: str) -> Schema | None:
    """The schema of a type, or None when there is no such type."""
    path = _index().get(type_name)
    return Schema(json.loads(path.read_text())) if path else None


def pointer(text: str) -> Pointer:
    """``/properties/A/*/B`` as ``("A", "*", "B")``."""
    parts = [part.replace("~1", "/").replace("~0", "~") for part in text.split("/")[1:]]
    return tuple(parts[1:] if parts[:1] == ["properties"] else parts)


def values_at(node: Any, path: Pointer) -> Iterator[Any]:
    """Every value that a pointer reaches; arrays are entered with or without ``*``."""
    if not path:
        yield node
    elif isinstance(node, list):
        for item in node:
            yield from values_at(item, path[1:] if path[0] == "*" else path)
    elif isinstance(node, dict):
        if path[0] == "*":
            for item in node.values():
                yield from values_at(item, path[1:])
        elif path[0] in node:
            yield from values_at(node[path[0]], path[1:])


def without(node: Any, paths: list[Pointer]) -> Any:
    """A copy of a model without the values that the pointers reach."""
    node = copy.deepcopy(node)
    for path in paths:
        _remove(node, path)
    return node


def _remove(node: Any, path: Pointer) -> None:
    if isinstance(node, list):
        rest = path[1:] if path[0] == "*" else path
        for item in node:
            if rest:
                _remove(item, rest)
    elif isinstance(node, dict):
        if path[0] == "*":
            for item in node.values():
                if path[1:]:
                    _remove(item, path[1:])
        elif len(path) == 1:
            node.pop(path[0], None)
        elif path[0] in node:
            _remove(node[path[0]], path[1:])


class Schema:
    """One resource type."""

    def __init__(self, document: dict[str, Any]) -> None:
        self.document = document
        self.type_name: str = document["typeName"]
        self.properties: dict[str, Any] = document.get("properties", {})
        self.handlers: dict[str, Any] = document.get("handlers", {})
        self.primary = self._pointers("primaryIdentifier")
        self.read_only = self._pointers("readOnlyProperties")
        self.write_only = self._pointers("writeOnlyProperties")
        self.create_only = self._pointers("createOnlyProperties")
        self.conditional_create_only = self._pointers("conditionalCreateOnlyProperties")

    def _pointers(self, key: str) -> list[Pointer]:
        return [pointer(text) for text in self.document.get(key, [])]

    @property
    def provisionable(self) -> bool:
        """Whether Cloud Control manages the type at all: it needs to create, read and delete."""
        return bool(self.primary) and all(name in self.handlers for name in ("create", "read", "delete"))

    def supports(self, action: str) -> bool:
        return self.provisionable and action.lower() in self.handlers

    def identifier(self, model: dict[str, Any]) -> str | None:
        """The primary identifier in a model, compound ones joined by ``|`` in the schema's order."""
        parts = []
        for path in self.primary:
            value = next(values_at(model, path), None)
            if value is None:
                return None
            parts.append(str(value))
        return "|".join(parts)

    def identifier_parts(self, identifier: str) -> dict[str, str]:
        """The top-level properties that an identifier names."""
        if len(self.primary) == 1:
            return {self.primary[0][0]: identifier}
        return {path[0]: part for path, part in zip(self.primary, identifier.split("|"))}

    def present(self, model: dict[str, Any], paths: list[Pointer]) -> list[str]:
        """Which of the pointers a model fills, in the form the service names them."""
        return ["/properties/" + "/".join(path) for path in paths
                if next(values_at(model, path), _MISSING) is not _MISSING]

    def changed(self, old: dict[str, Any], new: dict[str, Any], paths: list[Pointer]) -> list[str]:
        """Which of the pointers reach different values in two models."""
        return ["/properties/" + "/".join(path) for path in paths
                if list(values_at(old, path)) != list(values_at(new, path))]

    def validate(self, model: Any) -> list[str]:
        """What is wrong with a model, in the words of the service."""
        problems: list[str] = []
        self._check(model, {"type": "object", "properties": self.properties, "additionalProperties": False,
                            **{key: self.document[key] for key in ("required", "anyOf", "oneOf", "allOf")
                               if key in self.document}}, "#", problems)
        return problems

    # -- validation ---------------------------------------------------------

    def _resolve(self, schema: dict[str, Any]) -> dict[str, Any]:
        while "$ref" in schema:
            target: Any = self.document
            for part in schema["$ref"].lstrip("#/").split("/"):
                target = target.get(part, {}) if isinstance(target, dict) else {}
            schema = {**target, **{key: value for key, value in schema.items() if key != "$ref"}}
        return schema

    def _check(self, value: Any, schema: Any, where: str, problems: list[str]) -> None:
        if not isinstance(schema, dict):
            return
        schema = self._resolve(schema)
        expected = schema.get("type")
        if expected is not None:
            kinds = expected if isinstance(expected, list) else [expected]
            if not any(_is_kind(value, kind) for kind in kinds):
                problems.append(f"{where}: expected type: {_TYPE_NAMES.get(kinds[0], kinds[0])}, "
                                f"found: {_kind_of(value)}")
                return
        if "enum" in schema and value not in schema["enum"]:
            problems.append(f"{where}: #: {value} is not a valid enum value")
        if "const" in schema and value != schema["const"]:
            problems.append(f"{where}: failed validation constraint for keyword [const]")
        if isinstance(value, str):
            self._check_text(value, schema, where, problems)
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            if value < schema.get("minimum", value) or value > schema.get("maximum", value):
                problems.append(f"{where}: {value} is not in the range "
                                f"[{schema.get('minimum')}, {schema.get('maximum')}]")
        elif isinstance(value, list):
            self._check_list(value, schema, where, problems)
        elif isinstance(value, dict):
            self._check_object(value, schema, where, problems)
        for part in schema.get("allOf", []):
            self._check(value, part, where, problems)
        for keyword in ("anyOf", "oneOf"):
            if keyword in schema:
                self._check_options(value, schema[keyword], keyword, where, problems)

    def _check_options(self, value: Any, options: list[Any], keyword: str, where: str, problems: list[str]) -> None:
        """At least one option must fit; if one alone has the right kind, what is wrong with that one is told."""
        close = []
        for option in options:
            found: list[str] = []
            self._check(value, option, where, found)
            if not found:
                return
            if not found[0].startswith(f"{where}: expected type"):
                close.append(found)
        if len(close) == 1 and len(options) > 1:
            problems.extend(close[0])
        else:
            problems.append(f"{where}: failed validation constraint for keyword [{keyword}]")

    @staticmethod
    def _check_text(value: str, schema: dict[str, Any], where: str, problems: list[str]) -> None:
        if len(value) < schema.get("minLength", 0):
            problems.append(f"{where}: expected minLength: {schema['minLength']}, actual: {len(value)}")
        if len(value) > schema.get("maxLength", len(value)):
            problems.append(f"{where}: expected maxLength: {schema['maxLength']}, actual: {len(value)}")
        pattern = schema.get("pattern")
        if pattern and not _matches(pattern, value):
            problems.append(f"{where}: failed validation constraint for keyword [pattern]")

    def _check_list(self, value: list, schema: dict[str, Any], where: str, problems: list[str]) -> None:
        if len(value) < schema.get("minItems", 0):
            problems.append(f"{where}: expected minimum item count: {schema['minItems']}, found: {len(value)}")
        if len(value) > schema.get("maxItems", len(value)):
            problems.append(f"{where}: expected maximum item count: {schema['maxItems']}, found: {len(value)}")
        if schema.get("uniqueItems") and len({json.dumps(item, sort_keys=True) for item in value}) != len(value):
            problems.append(f"{where}: array items are not unique")
        for position, item in enumerate(value):
            self._check(item, schema.get("items"), f"{where}/{position}", problems)

    def _check_object(self, value: dict, schema: dict[str, Any], where: str, problems: list[str]) -> None:
        known = schema.get("properties", {})
        patterns = schema.get("patternProperties", {})
        for name in schema.get("required", []):
            if name not in value:
                problems.append(f"{where}: required key [{name}] not found")
        for name, item in value.items():
            if name in known:
                self._check(item, known[name], f"{where}/{name}", problems)
                continue
            matching = [part for pattern, part in patterns.items() if _matches(pattern, name)]
            for part in matching:
                self._check(item, part, f"{where}/{name}", problems)
            additional = schema.get("additionalProperties", True)
            if not matching and additional is False:
                problems.append(f"{where}: extraneous key [{name}] is not permitted")
            elif not matching and isinstance(additional, dict):
                self._check(item, additional, f"{where}/{name}", problems)


def _is_kind(value: Any, kind: str) -> bool:
    if kind == "integer":
        return isinstance(value, int) and not isinstance(value, bool)
    if kind == "number":
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    return isinstance(value, {"string": str, "boolean": bool, "object": dict, "array": list,
                              "null": type(None)}.get(kind, object))


def _kind_of(value: Any) -> str:
    for kind, name in _TYPE_NAMES.items():
        if _is_kind(value, kind):
            return name
    return type(value).__name__


@functools.cache
def _compiled(pattern: str) -> re.Pattern[str] | None:
    try:
        return re.compile(pattern)
    except re.error:
        return None  # a Java or ECMA pattern that Python cannot read decides nothing


def _matches(pattern: str, text: str) -> bool:
    compiled = _compiled(pattern)
    return compiled is None or compiled.search(text) is not None
