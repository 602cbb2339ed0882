"""POST /v1/responses/compact: a long conversation as one item, which later responses take in its place.

The model itself writes the summary. The item holds it in ``encrypted_content``, which clients pass on unread; it is
encoded and not encrypted, since it says nothing that the client did not send or could not be told.
"""

from __future__ import annotations

import time
from typing import Any

from django.http.response import HttpResponseBase

from openai_api.call import Call
from openai_api.endpoint import json_response
from openai_api.errors import invalid, renaming
from openai_api.request_id import new_id
from openai_api.responses.context import read_context
from openai_api.responses.items import compaction_item, item_text
from openai_api.responses.response_body import usage_body
from openai_api.responses.schemas.bodies import CompactionBody, Item
from openai_api.responses.schemas.request import CompactionRequest
from openai_api.schemas.chat import ChatRequest
from openai_api.schemas.steered import SteeredSchema
from openai_api.services.chat import plan_chat
from openai_api.services.chat_chunks import ChatChunks
from openai_api.services.chat_fold import ChatFold
from openai_api.services.generation import Generation
from openai_api.services.reply import collect
from openai_api.services.target import resolve_target

PROMPT = (
    "Summarise the conversation below for the assistant, who will go on with it and sees nothing of it but your "
    "summary. Keep what was asked, what was decided, names, numbers and what is still open. Answer with the summary "
    "alone.\n\n"
)


async def compact_response(call: Call) -> HttpResponseBase:
    """Raises ApiError 400 where the conversation does not fit the model's context."""
    wanted = call.read(CompactionRequest)
    context = await read_context(call, wanted)
    if not context.items:
        message = "There is nothing to compact: send `input` or `previous_response_id`."
        raise invalid(message, param="input", code="missing_required_parameter")
    chat = chat_of(wanted, context.items)
    with renaming(lambda text: text.replace("max_tokens", "input").replace("messages", "input")):
        target = await resolve_target(call, chat)
        plan, answers = await plan_chat(chat, target)
    generation = Generation(call, target, plan)
    chunks = ChatChunks(generation, answers, num_choices=1, has_logprobs=False, include_usage=True)
    fold = ChatFold(chunks.usage, has_logprobs=False)
    await collect(generation, chunks, fold.add)
    completion = fold.body()
    body: CompactionBody = {
        "id": call.answer_id("resp_"),
        "object": "response.compaction",
        "created_at": int(time.time()),
        "output": [compaction_item(new_id("cmp_"), completion["choices"][0]["message"]["content"] or "")],
        "usage": usage_body(generation.usage, completion["usage"]["completion_tokens_details"]["reasoning_tokens"]),
    }
    return json_response(body)


def chat_of(wanted: CompactionRequest, items: list[Item]) -> ChatRequest:
    """One message, so that every chat template takes it, whatever turns the conversation has."""
    lines = [f"instructions: {wanted.instructions}"] if wanted.instructions else []
    lines += [f"{item.get('role') or item['type'].replace('_', ' ')}: {item_text(item)}" for item in items]
    steering: dict[str, Any] = wanted.model_dump(include=set(SteeredSchema.model_fields), exclude_unset=True)
    return ChatRequest.parse({**steering, "messages": [{"role": "user", "content": PROMPT + "\n".join(lines)}]})
