"""One OpenAPI document for /v1 and /api."""

from __future__ import annotations

import json
from functools import cache
from hashlib import sha256
from typing import Any

from drf_spectacular.generators import SchemaGenerator

from openai_api.openapi.document import document as v1_document

Schema = dict[str, Any]
_REF = "#/components/schemas/"
_PREFIX = "Api"  # prefix of the schemas of /api, because /v1 has schemas with the same names
_CODES = {
    "400": "A parameter is invalid.",
    "401": "There is no session, or the key is wrong.",
    "403": "The user does not have permission.",
    "404": "The object does not exist, or the user does not have access to it.",
    "409": "The request conflicts with the state of the object or with other objects.",
}


@cache
def _api_document() -> Schema:
    found: Schema = SchemaGenerator(patterns=_patterns()).get_schema(request=None, public=True)
    return found


def document() -> Schema:
    """Return the document of /v1 with the paths, schemas and security schemes of /api added."""
    whole, api = v1_document(), _renamed(_api_document())
    components = whole["components"]
    components["schemas"] |= api["components"]["schemas"]
    components["securitySchemes"] |= api["components"]["securitySchemes"]
    whole["paths"] |= {path: _with_errors(item) for path, item in api["paths"].items()}
    return whole


@cache
def document_json() -> bytes:
    """Return the document as JSON. Cached: it depends only on the code and takes about a second to build."""
    return json.dumps(document()).encode()


@cache
def document_tag() -> str:
    """Return the ETag of the document."""
    return f'"{sha256(document_json()).hexdigest()[:32]}"'


def _patterns() -> list[Any]:
    from django.urls import include, path  # imported late because the routes import all views

    return [path("api/", include("management_api.urls"))]


def _renamed(value: Any) -> Any:
    """Return a copy with a prefix added to the names of all schemas."""
    if isinstance(value, dict):
        copy = {name: _renamed(inner) for name, inner in value.items()}
        if isinstance(copy.get("$ref"), str) and copy["$ref"].startswith(_REF):
            copy["$ref"] = copy["$ref"].replace(_REF, _REF + _PREFIX, 1)
        if isinstance(copy.get("securitySchemes"), dict) and isinstance(copy.get("schemas"), dict):
            copy["schemas"] = {_PREFIX + name: schema for name, schema in copy["schemas"].items()}
        return copy
    return [_renamed(inner) for inner in value] if isinstance(value, list) else value


def _with_errors(item: Schema) -> Schema:
    for operation in item.values():
        if isinstance(operation, dict) and "responses" in operation:
            operation["responses"] |= {code: _error(text) for code, text in _CODES.items()}
    return item


def _error(text: str) -> Schema:
    content = {"application/json": {"schema": {"$ref": f"{_REF}ErrorBody"}}}
    return {"description": text, "content": content}
