"""Whether an argument is a string, told from its schema alone."""

from __future__ import annotations

from typing import Any

import pytest

from inference.text.dialects.argument_form import argument_forms

RECURSIVE: dict[str, Any] = {"$ref": "#/$defs/loop"}
DEFINITIONS = {"loop": RECURSIVE, "city": {"type": "string"}, "a/b": {}}


@pytest.mark.parametrize(
    ("schema", "form"),
    [
        ({"type": "string"}, "text"),
        ({"type": ["string", "null"]}, "text"),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "text"),
        ({"enum": ["a", "b"]}, "text"),
        ({"enum": ["a", None]}, "text"),
        ({"const": "a"}, "text"),
        ({"$ref": "#/$defs/city"}, "text"),
        ({"type": "object"}, "structure"),
        ({"type": "array", "items": {"type": "string"}}, "structure"),
        ({"oneOf": [{"type": "array"}, {"type": "object"}]}, "structure"),
        ({"type": "integer"}, "scalar"),
        ({"type": ["string", "integer"]}, "scalar"),
        ({"enum": ["1", 1]}, "scalar"),
        ({"type": "null"}, "scalar"),
        ({}, "scalar"),
        (True, "scalar"),
        (RECURSIVE, "scalar"),
        ({"$ref": "#/$defs/none"}, "scalar"),
        ({"type": 5}, "scalar"),
    ],
)
def test_forms(schema: Any, form: str):
    assert argument_forms({"properties": {"x": schema}, "$defs": DEFINITIONS}) == {"x": form}


@pytest.mark.parametrize("schema", [{}, {"properties": None}, {"properties": []}])
def test_a_schema_without_properties_tells_nothing(schema: Any):
    assert argument_forms(schema) == {}
