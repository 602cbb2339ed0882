"""POST /v1/responses/input_tokens: how long a request's prompt would be."""

from __future__ import annotations

from django.http.response import HttpResponseBase

from openai_api.backend import get_backend
from openai_api.call import Call
from openai_api.endpoint import json_response
from openai_api.responses.context import Context, read_context
from openai_api.responses.items import user_message
from openai_api.responses.planning import plan_response
from openai_api.responses.schemas.bodies import InputTokensBody
from openai_api.responses.schemas.request import TokenCountRequest
from openai_api.services.target import default_model


async def count_input_tokens(call: Call) -> HttpResponseBase:
    """Of exactly the prompt that a response would get; one that is too long is refused as there.

    Without a model it is the default one; without an input, that of a message of the user's without text.
    """
    wanted = call.read(TokenCountRequest)
    if not wanted.model:
        wanted = wanted.model_copy(update={"model": default_model(get_backend().registry()).name})
    context = await read_context(call, wanted)
    if not context.items:
        context = Context((), [user_message("")])
    planned = await plan_response(call, wanted, context)
    (prompt,) = planned.plan.prompts
    call.entry.prompt_tokens = len(prompt)
    body: InputTokensBody = {"object": "response.input_tokens", "input_tokens": len(prompt)}
    return json_response(body)
