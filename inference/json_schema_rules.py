"""Which JSON schemas can be enforced: known keywords only, bounded, with references into themselves only.

A keyword that would be passed over makes output that the client's own validator refuses, so it is an error by name.
What the keywords mean, and their remaining conflicts, is llguidance's business.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

MAX_DEPTH = 32  # subschemas inside each other
MAX_ENUM_VALUES = 1_000  # in the whole schema
MAX_NAMED = 10  # keywords that one message lists

_ONE = frozenset({"items", "additionalProperties"})
_LISTS = frozenset({"anyOf", "oneOf", "allOf", "prefixItems"})
_MAPS = frozenset({"properties", "patternProperties", "$defs", "definitions"})
_VALUES = frozenset(
    {
        "$ref", "type", "enum", "const", "required", "format", "pattern", "minLength", "maxLength", "minimum",
        "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minItems", "maxItems",
        "minProperties", "maxProperties",
    }
)  # fmt: skip
_ANNOTATIONS = frozenset(
    {
        "$schema", "$id", "$comment", "title", "description", "default", "examples", "deprecated", "readOnly",
        "writeOnly", "discriminator", "contentEncoding", "contentMediaType", "contentSchema",
    }
)  # fmt: skip
KEYWORDS = _ONE | _LISTS | _MAPS | _VALUES


class SchemaRuleError(ValueError):
    """The schema is outside the rules; the message says where and why."""


def check_schema(schema: Any, *, max_pattern_length: int) -> None:
    """Raise SchemaRuleError. Iterative: a schema may be as deep as it likes."""
    num_values = 0
    stack: list[tuple[Any, int]] = [(schema, 0)]
    while stack:
        part, depth = stack.pop()
        if isinstance(part, bool):
            continue
        if not isinstance(part, dict):
            raise SchemaRuleError("A schema must be an object or a boolean.")
        if depth > MAX_DEPTH:
            raise SchemaRuleError(f"It is nested more than {MAX_DEPTH} levels deep.")
        _check_keywords(part)
        _check_reference(part.get("$ref"))
        _check_patterns(part, max_pattern_length)
        num_values += len(part["enum"]) if isinstance(part.get("enum"), list) else 0
        stack.extend((inner, depth + 1) for inner in _subschemas(part))
    if num_values > MAX_ENUM_VALUES:
        raise SchemaRuleError(f"Its enums have {num_values} values, {MAX_ENUM_VALUES} are allowed.")


def _check_keywords(part: dict[str, Any]) -> None:
    unknown = [name for name in part if name not in KEYWORDS | _ANNOTATIONS and not _is_private(name)]
    if unknown:
        named = ", ".join(f"“{name[:50]}”" for name in unknown[:MAX_NAMED])
        raise SchemaRuleError(f"These keywords are not supported in a schema: {named}. Leave them out.")


def _is_private(name: str) -> bool:
    """Extensions mean nothing to us; llguidance's own one would change how it reads the schema."""
    return name.startswith("x-") and name != "x-guidance"


def _check_reference(reference: Any) -> None:
    if reference is not None and not (isinstance(reference, str) and reference.startswith("#")):
        raise SchemaRuleError(
            f"The reference “{str(reference)[:200]}” does not begin with “#”: references into the schema itself are "
            "allowed, nothing is fetched."
        )


def _check_patterns(part: dict[str, Any], max_length: int) -> None:
    named = part.get("patternProperties")
    for pattern in (part.get("pattern"), *(named if isinstance(named, dict) else ())):
        if isinstance(pattern, str) and len(pattern) > max_length:
            raise SchemaRuleError(f"A pattern has {len(pattern)} characters, {max_length} are allowed.")


def _subschemas(part: dict[str, Any]) -> Iterator[Any]:
    for name, value in part.items():
        if name in _ONE:
            yield from value if isinstance(value, list) else (value,)
        elif name in _LISTS:
            yield from value if isinstance(value, list) else ()
        elif name in _MAPS:
            yield from value.values() if isinstance(value, dict) else ()
