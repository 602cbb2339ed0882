"""The OpenAPI 3.1 document of /v1 and the health checks, built from the routes and their schemas."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from pydantic import TypeAdapter
from pydantic.json_schema import models_json_schema

from openai_api import VERSION
from openai_api.neuronpedia.routes import ROUTES as NEURONPEDIA_ROUTES
from openai_api.neuronpedia.schemas import NeuronpediaErrorBody
from openai_api.ollama.routes import ROUTES as OLLAMA_ROUTES
from openai_api.ollama.schemas import OllamaErrorBody
from openai_api.openapi.operation import REF, Schema, item_of, paths
from openai_api.routes import ROUTES
from openai_api.schemas.anthropic import AnthropicErrorBody
from openai_api.schemas.bodies import ErrorBody

ALL_ROUTES = (*ROUTES, *NEURONPEDIA_ROUTES, *OLLAMA_ROUTES)


def servers() -> list[Schema]:
    """Return MILLM_PUBLIC_URL, for programs that are generated from the document, and the address of the document."""
    public = [{"url": settings.MILLM_PUBLIC_URL}] if settings.MILLM_PUBLIC_URL else []
    return [*public, {"url": "/"}]


def document() -> Schema:
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "miLLM",
            "version": VERSION,
            "description": "Language models over the OpenAI API, steered per request by the field `profile`.",
        },
        "servers": servers(),
        "security": [{"bearer": []}, {"api-key": []}, {"x-api-key": []}, {}],
        "paths": {
            **paths(ALL_ROUTES),
            "/health/live": {"get": _health("live", "Check whether the process is running", failing=False)},
            "/health/ready": {"get": _health("ready", "Check whether the server is ready for requests", failing=True)},
        },
        "components": {"schemas": _schemas(), "securitySchemes": _security()},
    }


def _health(operation: str, summary: str, *, failing: bool) -> Schema:
    responses = {"200": {"description": "Yes."}} | ({"503": {"description": "No."}} if failing else {})
    return {"operationId": operation, "summary": summary, "tags": ["Health"], "security": [], "responses": responses}


def _schemas() -> Schema:
    schemas = dict.fromkeys(route.request for route in ALL_ROUTES if route.request is not None)
    _, requests = models_json_schema([(schema, "validation") for schema in schemas], ref_template=REF)
    definitions: Schema = dict(requests["$defs"])
    for schema in schemas:
        definitions[schema.__name__]["x-millm-refused"] = sorted(schema.REFUSED)
    adapters = [(answer.__name__, "serialization", TypeAdapter(answer)) for answer in _answers()]
    _, answers = TypeAdapter.json_schemas(adapters, ref_template=REF)  # type: ignore[arg-type]  # wants literals
    definitions |= answers["$defs"]
    return dict(sorted(definitions.items()))


def _answers() -> list[type[Any]]:
    found = [answer for route in ALL_ROUTES for answer in (route.response, route.events)]
    named = [item_of(answer) for answer in found if answer not in {None, bytes, dict}]
    return list(dict.fromkeys([*named, ErrorBody, AnthropicErrorBody, NeuronpediaErrorBody, OllamaErrorBody]))


def _security() -> Schema:
    headers = {name: {"type": "apiKey", "in": "header", "name": name} for name in ("api-key", "x-api-key")}
    return {"bearer": {"type": "http", "scheme": "bearer"}, **headers}
