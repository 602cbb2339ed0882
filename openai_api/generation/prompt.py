"""Render a chat's messages with the model's template, and encode them as token ids."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from inference.client import ThinkingBudget
from inference.text.chat_template import ChatTemplateError
from inference.text.dialects.answer_grammar import ThinkingState
from inference.text.dialects.tool_format import ToolFormat
from inference.text.model_text import ModelText, PromptTooLongError
from openai_api.http.errors import invalid, unsupported_parameter
from openai_api.schemas.chat import ChatRequest
from openai_api.schemas.messages import AssistantMessage, FunctionMessage, Message, ToolCall, ToolMessage, text_of
from openai_api.schemas.tools import FunctionTool

SWITCHES = ("enable_thinking", "thinking")


def template_variables(text: ModelText, request: ChatRequest) -> dict[str, Any]:
    """Return the request's template variables, with ``reasoning_effort`` under the template's own name."""
    given = request.chat_template_kwargs.model_dump(exclude_none=True) if request.chat_template_kwargs else {}
    effort = request.reasoning_effort
    if effort is None:
        return given
    derived: dict[str, Any] = {}
    switch = _switch(text)
    if effort == "none" and switch is not None:
        derived[switch] = False
    elif text.knows_variable("reasoning_effort"):
        derived["reasoning_effort"] = effort
    return {**derived, **given}


def is_effort_without_effect(text: ModelText, request: ChatRequest) -> bool:
    """Return whether the model ignores the requested effort. Reasoning that cannot be turned off is cut off."""
    return request.reasoning_effort not in {None, "none"} and not text.knows_variable("reasoning_effort")


def thinking_budget(text: ModelText, request: ChatRequest, thinking: ThinkingState) -> ThinkingBudget | None:
    """Return the reasoning budget in tokens. Raises MillmError 400 where the model does not support one."""
    max_tokens = _max_thinking(text, request)
    marks = text.dialect.thinking
    if max_tokens is None or thinking == "none" or marks is None:
        return None
    start_id, end_id = text.token_of(marks.start), text.token_of(marks.end)
    if start_id is None or end_id is None:
        param = "reasoning_effort" if request.reasoning_budget is None else "reasoning_budget"
        raise unsupported_parameter(param, "This model's reasoning tags are not single tokens.")
    return ThinkingBudget(max_tokens, start_id, end_id, has_begun=thinking == "begun")


def _max_thinking(text: ModelText, request: ChatRequest) -> int | None:
    if request.reasoning_budget is not None:
        return None if request.reasoning_budget < 0 else request.reasoning_budget
    return 0 if request.reasoning_effort == "none" and _switch(text) is None else None


def _switch(text: ModelText) -> str | None:
    """Return the template variable that turns reasoning off."""
    return next((name for name in SWITCHES if text.knows_variable(name)), None)


NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}}
SHORT_ID = re.compile("[a-zA-Z0-9]{9}")
SHORT_TEXT = 2_000  # characters; shorter work runs on the event loop
T = TypeVar("T")


async def prompt_ids(text: ModelText, request: ChatRequest) -> list[int]:
    """Return the token ids of the rendered chat. Raises MillmError 400 when the template refuses it."""
    messages = template_messages(request.messages, text.dialect.tools)
    tools = [template_tool(tool) for tool in request.tool_use.tools] if request.tool_use else None
    kwargs = template_variables(text, request) or None
    try:
        ids = await off_loop(
            lambda: text.render_chat(
                messages,
                tools=tools,
                kwargs=kwargs,
                add_generation_prompt=request.add_generation_prompt is not False,
                continue_final=bool(request.continue_final_message),
            ),
            size=sum(len(message["content"]) + 100 for message in messages) + len(repr(tools)),
        )
    except ChatTemplateError as error:
        message = f"The model's chat template rejected the messages: {error}"
        raise error.with_param("messages", message=message) from None
    except PromptTooLongError as error:
        raise error.with_param("messages") from None
    if not ids:
        raise invalid("The model's chat template rendered an empty prompt for these messages.", param="messages")
    return ids


async def off_loop(work: Callable[[], T], *, size: int) -> T:
    """Run ``work`` on ``size`` characters, in a thread when it would delay other requests."""
    return work() if size <= SHORT_TEXT else await asyncio.to_thread(work)


def template_messages(messages: Sequence[Message], tool_format: ToolFormat | None) -> list[dict[str, Any]]:
    """Convert messages to what templates expect: tool results with tool names, ids in the required form."""
    plain = [template_message(message) for message in messages]
    names: dict[str, str] = {}
    for message in plain:
        for call in message.get("tool_calls", ()):
            names[call["id"]] = call["function"]["name"]
            call["id"] = _template_id(call["id"], tool_format)
        if "tool_call_id" in message:
            if message["tool_call_id"] in names:
                message["name"] = names[message["tool_call_id"]]
            message["tool_call_id"] = _template_id(message["tool_call_id"], tool_format)
    return plain


def template_tool(tool: FunctionTool) -> dict[str, Any]:
    """Return the tool without ``strict``, which only concerns the server."""
    function = tool.model_dump(include={"name", "description", "parameters"}, exclude_none=True)
    return {"type": "function", "function": {**function, "parameters": tool.parameters or NO_PARAMETERS}}


def template_message(message: Message) -> dict[str, Any]:
    """Convert one message. Templates know only the system role, so developer instructions go there."""
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
        reasoning = message.reasoning_content or message.reasoning
        if reasoning:
            plain["reasoning_content"] = reasoning
        if message.tool_calls:
            plain["tool_calls"] = [_template_call(call) for call in message.tool_calls]
    return {**plain, "name": message.name} if message.name else plain


def _template_id(call_id: str, tool_format: ToolFormat | None) -> str:
    """Return the id in the form that the template accepts. Mistral's require nine letters and digits."""
    if tool_format is None or tool_format.ids != "short" or SHORT_ID.fullmatch(call_id):
        return call_id
    return hashlib.sha256(call_id.encode()).hexdigest()[:9]


def _template_call(call: ToolCall) -> dict[str, Any]:
    """Return a call with its arguments as an object; text that is not JSON stays text."""
    try:
        arguments = json.loads(call.function.arguments)
    except (ValueError, RecursionError):
        arguments = call.function.arguments
    return {"id": call.id, "type": "function", "function": {"name": call.function.name, "arguments": arguments}}
