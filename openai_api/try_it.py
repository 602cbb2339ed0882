"""A prompt from a model's page: asked under the session, answered by the service that answers clients."""

from __future__ import annotations

import json
from io import BytesIO

from django import forms
from django.contrib.auth.models import AnonymousUser, User
from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest
from django.http.response import HttpResponseBase

from openai_api.call import Call
from openai_api.endpoint import json_response, respond_as
from openai_api.errors import ApiError, forbidden
from openai_api.services.chat import create_chat_completion

ENDPOINT = "/v1/chat/completions"
PERMISSION = "inference.view_languagemodel"
MAX_PROMPT = 20_000
MAX_TOKENS = 2_000


class TryForm(forms.Form):
    model = forms.CharField(max_length=200)
    prompt = forms.CharField(max_length=MAX_PROMPT, strip=False)
    max_tokens = forms.IntegerField(min_value=1, max_value=MAX_TOKENS)


async def try_model(request: HttpRequest) -> HttpResponseBase:
    """Streams as the API does, and leaves a row in the log under the user's name. CSRF is checked by the middleware."""
    user = await request.auser()
    if not await _may(user):
        message = f"Sign in as staff with the permission {PERMISSION} to try models."
        return _refusal(forbidden(message, code="permission_denied"))
    if request.method != "POST":
        return _refusal(ApiError(405, "Use POST.", code="method_not_allowed", headers={"Allow": "POST"}))
    form = TryForm(request.POST)
    if not form.is_valid():
        name, problems = next(iter(form.errors.items()))
        return _refusal(ApiError(400, f"{name}: {' '.join(map(str, problems))}", code="invalid_value", param=str(name)))
    call = Call(_request(form, user.get_username()), ENDPOINT)
    return await respond_as(call, None, create_chat_completion)


async def _may(user: User | AnonymousUser) -> bool:
    return user.is_active and user.is_staff and await user.ahas_perm(PERMISSION)


def _request(form: TryForm, username: str) -> ASGIRequest:
    asked = form.cleaned_data
    fields = {
        "model": asked["model"],
        "messages": [{"role": "user", "content": asked["prompt"]}],
        "max_tokens": asked["max_tokens"],
        "stream": True,
        "user": username,
    }
    body = json.dumps(fields).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    scope = {"type": "http", "method": "POST", "path": ENDPOINT, "query_string": b"", "headers": headers}
    return ASGIRequest(scope, BytesIO(body))


def _refusal(error: ApiError) -> HttpResponseBase:
    response = json_response(error.body(), error.status)
    for header, value in error.all_headers().items():
        response.headers[header] = value
    return response
