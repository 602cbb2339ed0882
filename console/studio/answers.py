"""Requests of the studio, handled as API requests that are steered by the edits of the page."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

from django.contrib.auth.models import User
from django.http import HttpRequest
from django.http.response import HttpResponseBase

from console.playground.answers import CHAT, COMPLETION, INSPECTION, PERMISSION, respond_with_draft
from console.studio.edits import read_unsaved
from core.database import own_connection
from core.errors import MillmError
from inference.models import LanguageModel
from inference.registry.records import ModelNotFoundError
from openai_api.endpoints.chat import create_chat_completion
from openai_api.endpoints.completions import create_completion
from openai_api.generation.inspection import inspect_answer
from openai_api.http.endpoint import Handler
from openai_api.http.errors import invalid, unsupported_parameter
from openai_api.http.json_body import read_json_object
from openai_api.http.session_auth import authenticate_session, refusal_response
from steering.models import SteeringProfile
from steering.profiles.draft_form import UnsavedDraft
from steering.visibility import visible_profiles

STEERED = frozenset({"edits", "profile"})


def _view(endpoint: str, handler: Handler, names: frozenset[str], **fixed: Any) -> Callable[..., Any]:
    """Return the view of an endpoint. The body has ``edits`` in place of steering, and the profile that they are of."""
    allowed = (names - {"steering", "steering_intensity"}) | STEERED

    async def view(request: HttpRequest) -> HttpResponseBase:
        try:
            user = await authenticate_session(request, PERMISSION, act="use the studio")
            fields = read_json_object(request)
            if unknown := sorted(fields.keys() - allowed):
                raise unsupported_parameter(unknown[0], "The studio does not send it.")
            draft = await asyncio.to_thread(_read, fields, cast("User", user))
        except MillmError as error:
            return refusal_response(error)
        asked = {name: value for name, value in fields.items() if name not in STEERED}
        return await respond_with_draft(user, endpoint, handler, {**asked, **fixed}, draft)

    return view


def _read(fields: dict[str, Any], user: User) -> UnsavedDraft:
    """Read the edits in a thread, with a database connection that is closed before the answer is generated."""
    with own_connection():
        model = find_model(fields)
        return read_unsaved(model, find_profile(fields, model, user), list_of_edits(fields), user)


def find_model(fields: dict[str, Any]) -> LanguageModel:
    name = fields.get("model")
    if not isinstance(name, str) or "\0" in name:
        raise invalid("`model` is required.", param="model")
    model = LanguageModel.objects.filter(name=name).first()
    if model is None:
        raise ModelNotFoundError(name)
    return model


def find_profile(fields: dict[str, Any], model: LanguageModel, user: User) -> SteeringProfile | None:
    """Return the profile that the edits are the draft of, or None if no profile is named."""
    name = fields.get("profile") or None
    if name is None:
        return None
    profile = None
    if isinstance(name, str) and "\0" not in name and user.has_perm("steering.view_steeringprofile"):
        profile = visible_profiles(user).filter(model=model, name=name).select_related("model").first()
    if profile is None:
        message = "The profile does not exist, or you don't have access to it."
        raise MillmError(message, status=404, code="profile_not_found", param="profile")
    return profile


def list_of_edits(fields: dict[str, Any]) -> list[Any]:
    edits = fields.get("edits")
    if not isinstance(edits, list):
        raise invalid("`edits` must be a list.", param="edits")
    return edits


ask_chat = _view("/v1/chat/completions", create_chat_completion, CHAT, stream=True)
ask_completion = _view("/v1/completions", create_completion, COMPLETION, stream=True)
inspect = _view("/admin/studio/inspect", inspect_answer, INSPECTION)
