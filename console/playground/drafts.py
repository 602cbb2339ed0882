"""A column's own edits, kept as the draft of a new profile."""

from __future__ import annotations

from typing import Any

from django.core.exceptions import ValidationError
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.urls import reverse

from console.pages import Endpoint, register_endpoint
from console.playground.answers import PERMISSION
from inference.models import LanguageModel
from openai_api.generation.target import steering_refusal
from openai_api.http.endpoint import json_response
from openai_api.http.errors import ApiError, invalid, model_not_found
from openai_api.http.json_body import read_json_object
from openai_api.http.session_auth import refusal_response
from steering.errors import SteeringError
from steering.models import SteeringProfile
from steering.profiles.inline_edits import read_inline
from steering.services import create_profile
from steering.spec.parsing import parse_edits


def save_draft(request: HttpRequest) -> HttpResponseBase:
    """Answers with the profile's page."""
    try:
        profile = _saved(request, read_json_object(request))
    except SteeringError as error:
        return refusal_response(steering_refusal(error))
    except ValidationError as error:
        return refusal_response(invalid(" ".join(error.messages), param="name"))
    except ApiError as error:
        return refusal_response(error)
    url = reverse("admin:steering_steeringprofile_change", args=[profile.pk])
    return json_response({"name": profile.name, "url": url}, 201)


def _saved(request: HttpRequest, fields: dict[str, Any]) -> SteeringProfile:
    """Only the writing is one transaction: what reads the edits brings a connection of its own."""
    name, model_name = (_text(fields, key) for key in ("name", "model"))
    model = LanguageModel.objects.filter(name=model_name).first()
    if model is None:
        raise model_not_found(model_name)
    edits = parse_edits(read_inline(model.pk, model.name, fields.get("steering")).edits)
    owner: Any = request.user
    return create_profile(name=name, model=model, description="From the playground.", owner=owner, edits=edits)


def _text(fields: dict[str, Any], key: str) -> str:
    value = fields.get(key)
    if not isinstance(value, str) or not value or "\0" in value:
        raise invalid(f"Say the {key}.", param=key)
    return value


register_endpoint(
    Endpoint(
        name="playground_draft",
        route="playground/draft/",
        view=save_draft,
        permissions=(PERMISSION, "steering.add_steeringprofile"),
    )
)
