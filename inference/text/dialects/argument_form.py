"""The kind of value of a tool's arguments, for notations that write strings without quotes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

# text: a string, unquoted. structure: an object or a list as JSON. scalar: JSON if valid, otherwise a string.
ArgumentForm = Literal["text", "structure", "scalar"]
ArgumentForms = Mapping[str, ArgumentForm]  # by argument name

MAX_DEPTH = 8  # of references and alternatives
_KINDS: Mapping[type, str] = {
    str: "string",
    bool: "boolean",
    int: "number",
    float: "number",
    dict: "object",
    list: "array",
    type(None): "null",
}


def argument_forms(schema: Mapping[str, Any]) -> dict[str, ArgumentForm]:
    """Return the forms of a tool's parameters."""
    properties = schema.get("properties")
    if not isinstance(properties, Mapping):
        return {}
    return {str(name): form_of(value, schema) for name, value in properties.items()}


def form_of(schema: object, root: Mapping[str, Any]) -> ArgumentForm:
    """Return the form of a value. References are resolved in ``root``."""
    kinds = _kinds(schema, root, MAX_DEPTH) - {"null"}
    if kinds == {"string"}:
        return "text"
    return "structure" if kinds and kinds <= {"object", "array"} else "scalar"


def _kinds(schema: object, root: Mapping[str, Any], depth: int) -> set[str]:
    """Return the JSON types that the value may have; empty if the schema does not specify them."""
    if not isinstance(schema, Mapping) or not depth:
        return set()
    if "const" in schema:
        return {_kind(schema["const"])}
    if isinstance(schema.get("enum"), list):
        return {_kind(value) for value in schema["enum"]}
    if "type" in schema:
        types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        return {str(each) for each in types}
    if isinstance(schema.get("$ref"), str):
        return _kinds(_referred(schema["$ref"], root), root, depth - 1)
    found: set[str] = set()
    for alternative in (*_list(schema.get("anyOf")), *_list(schema.get("oneOf"))):
        found |= _kinds(alternative, root, depth - 1)
    return found


def _referred(reference: str, root: Mapping[str, Any]) -> object:
    found: object = root
    for part in reference.removeprefix("#").strip("/").split("/"):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found


def _kind(value: object) -> str:
    return _KINDS.get(type(value), "")


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []
