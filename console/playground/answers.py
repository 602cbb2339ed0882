"""What the playground's columns ask: on the way of every client, under the session, with a log row of each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.http import HttpRequest
from django.http.response import HttpResponseBase

from openai_api.endpoints.chat import create_chat_completion
from openai_api.endpoints.completions import create_completion
from openai_api.generation.inspection import inspect_answer
from openai_api.http.call import Call
from openai_api.http.endpoint import Handler, respond_as
from openai_api.http.errors import ApiError, unsupported_parameter
from openai_api.http.json_body import read_json_object
from openai_api.http.session_auth import authenticate_session, refusal_response, request_for

PERMISSION = "console.use_playground"
STEERING = frozenset({"model", "profile", "steering", "steering_intensity"})
SAMPLING = frozenset(
    {"seed", "temperature", "top_p", "top_k", "min_p", "max_tokens", "stop", "logprobs", "return_activations"}
    | {"frequency_penalty", "presence_penalty", "repetition_penalty"}
)
CHAT = STEERING | SAMPLING | {"messages", "top_logprobs"}
COMPLETION = STEERING | SAMPLING | {"prompt"}
INSPECTION = STEERING | {"kind", "prompt_ids", "completion_ids", "sae", "feature"}


def _view(endpoint: str, handler: Handler, names: frozenset[str], **fixed: Any) -> Callable[..., Any]:
    """``names``: the fields that the page sends; anything else is refused, ``user`` and ``store`` above all."""

    async def view(request: HttpRequest) -> HttpResponseBase:
        try:
            user = await authenticate_session(request, PERMISSION, act="use the playground")
            fields = read_json_object(request)
            if unknown := sorted(fields.keys() - names):
                raise unsupported_parameter(unknown[0], "The playground does not send it.")
        except ApiError as error:
            return refusal_response(error)
        asked = request_for(endpoint, {**fields, **fixed, "user": user.get_username()})
        return await respond_as(Call(asked, endpoint, source="console", session_user_id=user.pk), None, handler)

    return view


ask_chat = _view("/v1/chat/completions", create_chat_completion, CHAT, stream=True)
ask_completion = _view("/v1/completions", create_completion, COMPLETION, stream=True)
inspect = _view("/admin/playground/inspect", inspect_answer, INSPECTION)
