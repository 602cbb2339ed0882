"""Run a prompt from a model's admin page under the session, with the handler that serves API clients."""

from __future__ import annotations

from typing import Any

from django import forms
from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest
from django.http.response import HttpResponseBase

from core.errors import MillmError
from openai_api.endpoints.chat import create_chat_completion
from openai_api.http.call import Call
from openai_api.http.endpoint import respond_as
from openai_api.http.session_auth import authenticate_session, refusal_response, request_for

ENDPOINT = "/v1/chat/completions"
PERMISSION = "console.use_playground"  # viewing models does not include generating
MAX_PROMPT = 20_000
MAX_TOKENS = 2_000


class TryForm(forms.Form):
    model = forms.CharField(max_length=200)
    prompt = forms.CharField(max_length=MAX_PROMPT, strip=False)
    max_tokens = forms.IntegerField(min_value=1, max_value=MAX_TOKENS)


async def try_model(request: HttpRequest) -> HttpResponseBase:
    """Stream the answer as the API does, and log it under the user's name. The middleware checks CSRF."""
    try:
        user = await authenticate_session(request, PERMISSION, act="try models")
        asked = _request(checked(TryForm(request.POST)), user.get_username())
    except MillmError as error:
        return refusal_response(error)
    return await respond_as(
        Call(asked, ENDPOINT, source="console", session_user_id=user.pk), None, create_chat_completion
    )


def checked(form: forms.Form) -> dict[str, Any]:
    """Return the values of a form. Raises MillmError 400 for the first invalid field."""
    if not form.is_valid():
        name, problems = next(iter(form.errors.items()))
        message = f"{name}: {' '.join(map(str, problems))}"
        raise MillmError(message, code="invalid_value", param=str(name))
    return form.cleaned_data


def _request(asked: dict[str, Any], username: str) -> ASGIRequest:
    fields = {
        "model": asked["model"],
        "messages": [{"role": "user", "content": asked["prompt"]}],
        "max_tokens": asked["max_tokens"],
        "stream": True,
        "user": username,
    }
    return request_for(ENDPOINT, fields)
