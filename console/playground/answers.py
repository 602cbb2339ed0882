"""Requests of the playground and of draft previews, handled as API requests and authorised by the session."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, cast

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest
from django.http.response import HttpResponseBase

from core.database import own_connection
from core.errors import MillmError
from openai_api.analysis.page import explained
from openai_api.endpoints.chat import create_chat_completion
from openai_api.endpoints.completions import create_completion
from openai_api.generation.inspection import inspect_answer
from openai_api.http.call import Call, SteeringOverride
from openai_api.http.endpoint import Handler, json_response, respond_as
from openai_api.http.errors import forbidden, invalid, openai_error, unsupported_parameter
from openai_api.http.json_body import parse_json, read_json_object
from openai_api.http.session_auth import SessionUser, authenticate_session, refusal_response, request_for
from steering.models import SteeringProfile
from steering.profiles.admin import SteeringProfileAdmin
from steering.profiles.draft_form import InvalidDraftError, UnsavedDraft
from steering.profiles.resolver import SteeringSelection

PERMISSION = "console.use_playground"
STEERING = frozenset({"model", "profile", "steering", "steering_intensity"})
SAMPLING = frozenset(
    {"seed", "temperature", "top_p", "top_k", "min_p", "max_tokens", "stop", "logprobs", "return_activations"}
    | {"frequency_penalty", "presence_penalty", "repetition_penalty"}
)
CHAT = STEERING | SAMPLING | {"messages", "top_logprobs"}
COMPLETION = STEERING | SAMPLING | {"prompt"}
EXPLANATION = STEERING | {"input", "completion_ids", "position", "token", "sae"}
INSPECTION = STEERING | {"kind", "prompt_ids", "completion_ids", "sae", "feature"}


def _view(endpoint: str, handler: Handler, names: frozenset[str], **fixed: Any) -> Callable[..., Any]:
    """Return the view of an endpoint. Fields other than ``names`` are refused, such as ``user`` and ``store``."""

    async def view(request: HttpRequest) -> HttpResponseBase:
        try:
            user = await authenticate_session(request, PERMISSION, act="use the playground")
            fields = read_json_object(request)
            if unknown := sorted(fields.keys() - names):
                raise unsupported_parameter(unknown[0], "The playground does not send it.")
        except MillmError as error:
            return refusal_response(error)
        asked = request_for(endpoint, {**fields, **fixed, "user": user.get_username()})
        return await respond_as(Call(asked, endpoint, source="console", session_user_id=user.pk), None, handler)

    return view


ask_chat = _view("/v1/chat/completions", create_chat_completion, CHAT, stream=True)
ask_completion = _view("/v1/completions", create_completion, COMPLETION, stream=True)
inspect = _view("/admin/playground/inspect", inspect_answer, INSPECTION)


async def explain(request: HttpRequest) -> HttpResponseBase:
    """Explain a token of an answer, as a fragment of the page."""
    try:
        user = await authenticate_session(request, PERMISSION, act="use the playground")
        fields = read_json_object(request)
        if unknown := sorted(fields.keys() - EXPLANATION):
            raise unsupported_parameter(unknown[0], "The playground does not send it.")
    except MillmError as error:
        return refusal_response(error)
    return await explained(user, "/admin/playground/explain", fields)


ASKED = "_preview"
"""The form field that holds the request as JSON."""


def _draft_view(endpoint: str, handler: Handler, names: frozenset[str], **fixed: Any) -> Callable[..., Any]:
    """Return the view that previews a draft. The body has the fields ``names``; the form has model and steering."""

    async def view(request: HttpRequest, object_id: str) -> HttpResponseBase:
        try:
            user = await authenticate_session(request, PERMISSION, act="preview drafts")
            fields = _asked(request, names)
            draft = await asyncio.to_thread(_read, request, user, object_id)
        except InvalidDraftError as error:
            return _problems_response(error)
        except MillmError as error:
            return refusal_response(error)
        return await respond_with_draft(user, endpoint, handler, {**fields, **fixed}, draft)

    return view


async def respond_with_draft(
    user: SessionUser, endpoint: str, handler: Handler, fields: Mapping[str, Any], draft: UnsavedDraft
) -> HttpResponseBase:
    """Answer as the API would, steered by a draft instead of what requests can select."""
    asked = request_for(endpoint, {**fields, "model": draft.model, "user": user.get_username()})
    override = SteeringOverride(SteeringSelection(draft=draft.version), draft.words)
    call = Call(asked, endpoint, source="console", session_user_id=user.pk, override=override)
    return await respond_as(call, None, handler)


def _asked(request: HttpRequest, names: frozenset[str]) -> dict[str, Any]:
    fields = parse_json(request.POST.get(ASKED, "").encode("utf-8", "surrogatepass"))
    if not isinstance(fields, dict):
        raise invalid(f"`{ASKED}` must be a JSON object.", param=ASKED)
    if unknown := sorted(fields.keys() - names):
        raise unsupported_parameter(unknown[0], "The preview does not send it.")
    return fields


def _read(request: HttpRequest, user: SessionUser, object_id: str) -> UnsavedDraft:
    """Read the form in a thread, with a database connection that is closed before the answer is generated."""
    request.user = cast("Any", user)
    pages = cast("SteeringProfileAdmin", admin.site.get_model_admin(SteeringProfile))
    try:
        with own_connection():
            return pages.unsaved_draft(request, object_id)
    except Http404:
        raise MillmError(
            "The profile does not exist, or you don't have access to it.", status=404, code="profile_not_found"
        ) from None
    except PermissionDenied:
        message = "You can't edit this profile, so you can't preview its draft. Duplicate it instead."
        raise forbidden(message, code="permission_denied") from None


def _problems_response(error: InvalidDraftError) -> HttpResponseBase:
    """Return the API's error, with the form field of each problem."""
    problems = [{"field": one.field, "place": one.place, "message": one.message} for one in error.problems]
    return json_response({**openai_error(error), "problems": problems}, 400)


preview_chat = _draft_view("/v1/chat/completions", create_chat_completion, CHAT - STEERING, stream=True)
preview_completion = _draft_view("/v1/completions", create_completion, COMPLETION - STEERING, stream=True)
preview_inspect = _draft_view("/admin/playground/inspect", inspect_answer, INSPECTION - STEERING)
