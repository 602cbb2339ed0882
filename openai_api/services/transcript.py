"""A chat's messages as the model's template takes them, and as token ids."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any, TypeVar

from inference.text import ChatTemplateError, ModelText, PromptTooLongError
from openai_api.errors import invalid
from openai_api.schemas.chat import ChatRequest
from openai_api.schemas.messages import AssistantMessage, FunctionMessage, Message, ToolCall, ToolMessage, text_of

SHORT_TEXT = 2_000  # characters that are worth no thread
T = TypeVar("T")


async def prompt_ids(text: ModelText, wanted: ChatRequest) -> list[int]:
    """The rendered chat; raises ApiError 400 when the template refuses it."""
    messages = [template_message(message) for message in wanted.messages]
    kwargs = wanted.chat_template_kwargs.model_dump(exclude_none=True) if wanted.chat_template_kwargs else None
    try:
        ids = await off_loop(
            lambda: text.render_chat(messages, kwargs=kwargs),
            size=sum(len(message["content"]) for message in messages) + 100 * len(messages),
        )
    except ChatTemplateError as error:
        raise invalid(f"The model's chat template refused the messages: {error}", param="messages") from None
    except PromptTooLongError as error:
        raise invalid(str(error), param="messages", code=error.code) from None
    if not ids:
        raise invalid("The model's chat template made an empty prompt of these messages.", param="messages")
    return ids


async def off_loop(work: Callable[[], T], *, size: int) -> T:
    """Run ``work`` on ``size`` characters in a thread when it would keep other requests waiting."""
    return work() if size <= SHORT_TEXT else await asyncio.to_thread(work)


def template_message(message: Message) -> dict[str, Any]:
    """Templates know the system role only, so instructions of developers go there."""
    plain: dict[str, Any] = {
        "role": "system" if message.role == "developer" else message.role,
        "content": text_of(message.content),
    }
    if isinstance(message, ToolMessage):
        return {**plain, "tool_call_id": message.tool_call_id}
    if isinstance(message, FunctionMessage):
        return {**plain, "role": "tool", "name": message.name}
    if isinstance(message, AssistantMessage):
        plain["content"] = plain["content"] or message.refusal or ""
        if message.tool_calls:
            plain["tool_calls"] = [_template_call(call) for call in message.tool_calls]
    return {**plain, "name": message.name} if message.name else plain


def _template_call(call: ToolCall) -> dict[str, Any]:
    """Templates print the arguments as an object; what is no JSON stays the text that the model wrote."""
    try:
        arguments = json.loads(call.function.arguments)
    except (ValueError, RecursionError):
        arguments = call.function.arguments
    return {"id": call.id, "type": "function", "function": {"name": call.function.name, "arguments": arguments}}
