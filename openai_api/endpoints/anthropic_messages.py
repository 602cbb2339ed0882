"""POST /v1/messages: Anthropic's requests run as our chat completions and are answered in Anthropic's form."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from django.http.response import HttpResponseBase

from openai_api.endpoints.anthropic_events import MessageEvents, MessageFold
from openai_api.endpoints.chat import plan_chat
from openai_api.generation.answer import check_tools
from openai_api.generation.prompt import prompt_ids
from openai_api.generation.reply import collect, stream
from openai_api.generation.run import Generation
from openai_api.generation.target import resolve_target
from openai_api.http.call import Call
from openai_api.http.endpoint import json_response
from openai_api.http.errors import anthropic_error, renaming
from openai_api.http.sse import Framing, named_event
from openai_api.schemas.anthropic import (
    AssistantTurn,
    Choice,
    CountTokensRequest,
    CustomTool,
    MessagesRequest,
    SystemTurn,
    TextBlock,
    ThinkingBlock,
    TokenCountBody,
    ToolResultBlock,
    ToolUseBlock,
    Turn,
    UserTurn,
)
from openai_api.schemas.chat import ChatRequest

MODES = {"auto": "auto", "any": "required", "none": "none"}
_NAMES = (  # chat field -> Anthropic's name
    (re.compile(r"(?:(?<=`)|^)stop\b"), "stop_sequences"),
    (re.compile(r"\breasoning_budget\b"), "thinking"),
    (re.compile(r"\breasoning_effort\b"), "output_config.effort"),
    (re.compile(r"\bguided_json\b"), "output_config.format.schema"),
    (re.compile(r"\b(tools\[\d+\])\.function\.parameters\b"), r"\1.input_schema"),
    (re.compile(r"\b(tools\[\d+\])\.function\b"), r"\1"),
)
COPIED = ("model", "temperature", "top_p", "top_k", "stream", "max_tokens")
STEERED = ("profile", "steering", "steering_intensity")  # here null differs from an absent field


def chat_of(request: CountTokensRequest) -> ChatRequest:
    """Convert the request to a chat completion. Raises MillmError 400."""
    body = {name: getattr(request, name) for name in COPIED if getattr(request, name, None) is not None}
    body |= {name: getattr(request, name) for name in STEERED if name in request.model_fields_set}
    body["messages"] = list(chat_messages(request))
    body |= _tools(request) | _thinking(request)
    if isinstance(request, MessagesRequest):
        body["stop"] = request.stop_sequences
        body["user"] = request.metadata.user_id if request.metadata else None
    if request.output_config is not None and request.output_config.format is not None:
        body["guided_json"] = request.output_config.format.schema_
    if isinstance(request.messages[-1], AssistantTurn):
        body["continue_final_message"] = True
    with renaming(renamed):
        return ChatRequest.parse(body)


def renamed(text: str) -> str:
    """Return an error's text with Anthropic's field names."""
    for pattern, name in _NAMES:
        text = pattern.sub(name, text)
    return text


def chat_messages(request: CountTokensRequest) -> Iterator[dict[str, Any]]:
    if request.system:
        yield {"role": "system", "content": _joined(request.system)}
    for turn in request.messages:
        yield from _messages_of(turn)


def _messages_of(turn: Turn) -> Iterator[dict[str, Any]]:
    if isinstance(turn, SystemTurn):
        yield {"role": "system", "content": _joined(turn.content)}
    elif isinstance(turn, AssistantTurn):
        yield _assistant_message(turn)
    else:
        yield from _user_messages(turn)


def _user_messages(turn: UserTurn) -> Iterator[dict[str, Any]]:
    """Split a user turn: each tool result becomes a message of its own; texts between them stay together."""
    texts: list[TextBlock] = []
    for block in turn.content:
        if isinstance(block, ToolResultBlock):
            if texts:
                yield {"role": "user", "content": _joined(texts)}
                texts = []
            yield {"role": "tool", "tool_call_id": block.tool_use_id, "content": _result_text(block)}
        else:
            texts.append(block)
    if texts:
        yield {"role": "user", "content": _joined(texts)}


def _assistant_message(turn: AssistantTurn) -> dict[str, Any]:
    calls = [block for block in turn.content if isinstance(block, ToolUseBlock)]
    thoughts = [block.thinking for block in turn.content if isinstance(block, ThinkingBlock)]
    message: dict[str, Any] = {
        "role": "assistant",
        "content": "".join(block.text for block in turn.content if isinstance(block, TextBlock)),
    }
    if thoughts:
        message["reasoning_content"] = "\n".join(thoughts)
    if calls:
        message["tool_calls"] = [_call(block) for block in calls]
    return message


def _call(block: ToolUseBlock) -> dict[str, Any]:
    arguments = json.dumps(block.input, ensure_ascii=False)
    return {"id": block.id, "type": "function", "function": {"name": block.name, "arguments": arguments}}


def _result_text(block: ToolResultBlock) -> str:
    """Return a tool result as text. Templates have no field for failure, so the text states it."""
    text = _joined(block.content or ())
    return f"Error: {text}" if block.is_error else text


def _tools(request: CountTokensRequest) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if request.tools:
        found["tools"] = [_tool(tool) for tool in request.tools]
    if request.tool_choice is not None:
        found["tool_choice"] = _choice(request.tool_choice)
        found["parallel_tool_calls"] = not request.tool_choice.disable_parallel_tool_use
    return found


def _tool(tool: CustomTool) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description, "parameters": tool.input_schema}
    return {"type": "function", "function": {**function, "strict": tool.strict}}


def _choice(choice: Choice) -> Any:
    return {"type": "function", "function": {"name": choice.name}} if choice.type == "tool" else MODES[choice.type]


def _thinking(request: CountTokensRequest) -> dict[str, Any]:
    """Map the thinking settings. Models without reasoning ignore them."""
    found: dict[str, Any] = {}
    if request.output_config is not None and request.output_config.effort is not None:
        found["reasoning_effort"] = request.output_config.effort
    if request.thinking is None:
        return found
    if request.thinking.type == "disabled":
        return {"reasoning_effort": "none"}
    found["chat_template_kwargs"] = {"enable_thinking": True, "thinking": True}
    if request.thinking.budget_tokens is not None:
        found["reasoning_budget"] = request.thinking.budget_tokens
    return found


def _joined(texts: Sequence[TextBlock]) -> str:
    return "\n".join(block.text for block in texts)


async def create_message(call: Call) -> HttpResponseBase:
    request = call.read(MessagesRequest)
    chat = chat_of(request)
    call.user = (chat.user or "")[:200]
    with renaming(renamed):
        target = await resolve_target(call, chat)
        plan, answers = await plan_chat(chat, target, clamps=True)
    generation = await Generation.start(call, target, plan)
    events = MessageEvents(generation, answers)
    if request.stream:
        return await stream(generation, events, framing=MESSAGES)
    fold = MessageFold()
    await collect(generation, events, fold.add)
    return json_response(fold.body())


async def count_tokens(call: Call) -> HttpResponseBase:
    """Count the tokens of the prompt that the same request to /v1/messages would have."""
    chat = chat_of(call.read(CountTokensRequest))
    with renaming(renamed):
        target = await resolve_target(call, chat)
        check_tools(chat.tool_use, target.model.text.dialect)
        body: TokenCountBody = {"input_tokens": len(await prompt_ids(target.model.text, chat))}
    return json_response(body)


def _event(body: Any) -> bytes:
    return named_event(body["type"], body)


MESSAGES = Framing(event=_event, ping=_event({"type": "ping"}), done=b"", error=anthropic_error)
