"""Anthropic's messages: the chat behind them is ours, the form of the answer theirs."""

from __future__ import annotations

from typing import Any

from django.http.response import HttpResponseBase

from openai_api.anthropic_errors import anthropic_error
from openai_api.call import Call
from openai_api.endpoint import json_response
from openai_api.errors import renaming
from openai_api.schemas.anthropic import CountTokensRequest, MessagesRequest
from openai_api.schemas.anthropic_bodies import TokenCountBody
from openai_api.services.answer import check_tools
from openai_api.services.anthropic_chat import chat_of, renamed
from openai_api.services.anthropic_events import MessageEvents, MessageFold
from openai_api.services.chat import plan_chat
from openai_api.services.generation import Generation
from openai_api.services.reply import collect, stream
from openai_api.services.target import resolve_target
from openai_api.services.transcript import prompt_ids
from openai_api.sse import Framing, named_event


async def create_message(call: Call) -> HttpResponseBase:
    wanted = call.read(MessagesRequest)
    chat = chat_of(wanted)
    call.entry.user = (chat.user or "")[:200]
    with renaming(renamed):
        target = await resolve_target(call, chat)
        plan, answers = await plan_chat(chat, target, clamps=True)
    generation = Generation(call, target, plan)
    events = MessageEvents(generation, answers)
    if wanted.stream:
        return await stream(generation, events, framing=MESSAGES)
    fold = MessageFold()
    await collect(generation, events, fold.add)
    return json_response(fold.body())


async def count_tokens(call: Call) -> HttpResponseBase:
    """Of the prompt that the same request would make."""
    chat = chat_of(call.read(CountTokensRequest))
    with renaming(renamed):
        target = await resolve_target(call, chat)
        check_tools(chat.tool_use, target.model.text.dialect)
        body: TokenCountBody = {"input_tokens": len(await prompt_ids(target.model.text, chat))}
    return json_response(body)


def _event(body: Any) -> bytes:
    return named_event(body["type"], body)


MESSAGES = Framing(event=_event, ping=_event({"type": "ping"}), done=b"", error=anthropic_error)
