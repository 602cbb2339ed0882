"""Describe routes as operations of the OpenAPI document."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, get_args, get_origin

from openai_api.http.errors import anthropic_error, neuronpedia_error, ollama_error, openai_error
from openai_api.http.route import Route, by_path
from openai_api.keys.scopes import Scope
from openai_api.neuronpedia.schemas import NeuronpediaErrorBody
from openai_api.ollama.schemas import OllamaErrorBody
from openai_api.openapi.parameters import PROFILE_HEADER
from openai_api.schemas.anthropic import AnthropicErrorBody
from openai_api.schemas.bodies import ErrorBody

Schema = dict[str, Any]
REF = "#/components/schemas/{model}"
ERRORS = {
    400: "The request is invalid; `param` names the field.",
    401: "The API key is missing or wrong.",
    403: "The key does not have the permission.",
    404: "The URL, model, profile, SAE, feature, file or other object does not exist, or the profile is archived.",
    409: "The profile's SAE is missing or does not fit the model, or the object's state does not allow the action.",
    410: "The link has expired.",
    413: "The request body is too large.",
    415: "The body is not JSON (for uploads: not a multipart form), or it is compressed.",
    416: "The range is outside of the file.",
    429: "A limit of the key was reached; see Retry-After.",
    500: "The server failed; the message contains the request id.",
    501: "The server lacks the packages for media.",
    502: "The media worker crashed.",
    503: "The model or the server is not ready; see Retry-After.",
    504: "The request took longer than the server allows.",
    507: "The server's disk is full.",
}
ERROR_BODIES: dict[object, type[Any]] = {
    openai_error: ErrorBody,
    anthropic_error: AnthropicErrorBody,
    neuronpedia_error: NeuronpediaErrorBody,
    ollama_error: OllamaErrorBody,
}
ALWAYS = {401, 403, 404, 429, 500, 503}
OF_BODIES = {400, 413, 415}
PATH_PARAMETERS: dict[str, Schema] = {"index": {"type": "integer", "minimum": 0}}  # others are strings


def paths(routes: Iterable[Route]) -> Schema:
    """Return the document's paths."""
    return {group[0].plain_path: _path(group) for group in by_path(routes).values()}


def _path(routes: list[Route]) -> Schema:
    described: Schema = {route.method.lower(): operation(route) for route in routes}
    if routes[0].parameters:
        described["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": PATH_PARAMETERS.get(name, {"type": "string"})}
            for name in routes[0].parameters
        ]
    return described


def operation(route: Route) -> Schema:
    described: Schema = {"operationId": route.name, "summary": route.summary, "tags": [route.tag]}
    if parameters := _parameters(route):
        described["parameters"] = parameters
    bodies: Schema = {}
    if route.request is not None:
        bodies["application/json"] = {"schema": ref(route.request)}
    if route.form is not None:
        bodies["multipart/form-data"] = {"schema": route.form}
    if bodies:
        described["requestBody"] = {"required": True, "content": bodies}
    content = {"application/json": {"schema": ref(ERROR_BODIES[route.error_body])}}
    errors = {str(status): {"description": ERRORS[status], "content": content} for status in _errors(route)}
    described["responses"] = {**_answers(route), **errors}
    return described


def _parameters(route: Route) -> list[Schema]:
    found = [PROFILE_HEADER] if route.is_steered else []
    if isinstance(route.query, type):
        properties = route.query.model_json_schema()["properties"]
        return [*found, *(_query_parameter(name, schema) for name, schema in properties.items())]
    return [*found, *map(dict, route.query)]


def _query_parameter(name: str, schema: Schema) -> Schema:
    """Describe a parameter. Query strings have no null: one that may be null is optional."""
    schema = {key: value for key, value in schema.items() if key != "title"}
    if "anyOf" in schema:
        schema = next(each for each in schema["anyOf"] if each != {"type": "null"})
    style = {"style": "deepObject"} if schema.get("type") == "object" else {}
    return {"name": name, "in": "query", **style, "schema": schema}


def _errors(route: Route) -> list[int]:
    """Return the statuses of errors: those of every request, of its kind, and of the route itself."""
    found = ALWAYS | set(route.errors)
    if route.request is not None or route.form is not None:
        found |= OF_BODIES | ({507} if route.scope == Scope.FILES else set())
    if route.query or route.tag == "Responses":
        found |= {400}
    return sorted(found)


def _answers(route: Route) -> Schema:
    if route.response is bytes:
        content = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
        return {
            "200": {"description": "The file.", "content": content},
            "206": {"description": "The requested range.", "content": content},
        }
    content = {"application/json": {"schema": ref(route.response)}}
    if route.events is not None:
        content[route.event_type] = {"schema": ref(route.events)}
    return {"200": {"description": route.returns, "content": content}}


def ref(schema: type[Any]) -> Schema:
    if get_origin(schema) is list:
        return {"type": "array", "items": ref(item_of(schema))}
    return {"type": "object"} if schema is dict else {"$ref": REF.format(model=schema.__name__)}


def item_of(schema: type[Any]) -> type[Any]:
    """Return the type of the items of a list; another type itself."""
    item: type[Any] = get_args(schema)[0] if get_origin(schema) is list else schema
    return item
