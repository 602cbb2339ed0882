"""Convert Ollama's requests to chat and text completions of /v1, and the names in their errors back."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from pydantic_core import from_json, to_json

from openai_api.http.errors import invalid
from openai_api.ollama.schemas import (
    OllamaChatRequest,
    OllamaGenerateRequest,
    OllamaMessage,
    OllamaOptions,
    SteeredRequest,
)
from openai_api.schemas.chat import ChatRequest
from openai_api.schemas.completions import CompletionRequest
from openai_api.schemas.generation import MAX_TOKENS

_COPIED = ("temperature", "top_p", "top_k", "min_p", "typical_p", "presence_penalty", "frequency_penalty", "stop")
_OWN = re.compile(r"(?:(?<=`)|^)(?:max_tokens|" + "|".join(_COPIED) + r"|repetition_penalty|seed)\b")
_OPTIONS = {"max_tokens": "num_predict", "repetition_penalty": "repeat_penalty"}
_NAMES = (  # field of /v1 -> Ollama's name
    (re.compile(r"(?:(?<=`)|^)(?:guided_json|response_format)\b"), "format"),
    (re.compile(r"(?:(?<=`)|^)(?:reasoning_effort|chat_template_kwargs)\b"), "think"),
)
_PROMPT = re.compile(r"(?:(?<=`)|^)messages(?:\[\d+\])?(?:\.content)?(?=`|$)")
_PROMPT_LOGPROBS = re.compile(r"(?:(?<=`)|^)logprobs\b")
UNKNOWN_CALL = "call_unknown"


def renamed(text: str) -> str:
    """Return an error's text with Ollama's names, for a chat."""
    text = _OWN.sub(lambda match: f"options.{_OPTIONS.get(match[0], match[0])}", text)
    for pattern, name in _NAMES:
        text = pattern.sub(name, text)
    return text


def renamed_prompt(text: str) -> str:
    """Return an error's text with Ollama's names, for a prompt that became a chat."""
    return _PROMPT.sub("prompt", renamed(text))


def renamed_raw(text: str) -> str:
    """Return an error's text with Ollama's names, for a text completion."""
    return _PROMPT_LOGPROBS.sub("top_logprobs", renamed(text))


def chat_of(request: OllamaChatRequest, model: str) -> ChatRequest:
    """Return the chat completion that answers the request. Raises MillmError 400 with names of /v1."""
    messages = list(chat_messages(request.messages or ()))
    body = _common(request, model) | _thinking(request) | _chat_logprobs(request) | {"messages": messages}
    if request.tools:
        body["tools"] = [_tool(tool) for tool in request.tools]
    last = messages[-1]
    if last["role"] == "assistant" and last["content"].strip() and "tool_calls" not in last:
        body["continue_final_message"] = True
    return ChatRequest.parse(body)


def chat_of_prompt(request: OllamaGenerateRequest, model: str) -> ChatRequest:
    """Return the chat completion for a prompt that is not raw. Raises MillmError 400 with names of /v1."""
    messages = [] if request.context is None else read_context(request.context)
    if request.system:
        messages = [message for message in messages if message["role"] != "system"]
        messages.insert(0, {"role": "system", "content": request.system})
    messages.append({"role": "user", "content": request.prompt or ""})
    body = _common(request, model) | _thinking(request) | _chat_logprobs(request) | {"messages": messages}
    return ChatRequest.parse(body)


def completion_of(request: OllamaGenerateRequest, model: str) -> CompletionRequest:
    """Return the text completion for a raw prompt. Raises MillmError 400 with names of /v1."""
    body = _common(request, model) | {"prompt": request.prompt or ""}
    if request.logprobs:
        body["logprobs"] = request.top_logprobs or 0
    return CompletionRequest.parse(body)


def _common(request: SteeredRequest, model: str) -> dict[str, Any]:
    """Return the fields that chats and texts share."""
    body = {"model": model, "stream": request.stream, **_sampling(request.options), **request.steering_fields}
    if request.format == "json":
        body["response_format"] = {"type": "json_object"}
    elif request.format:
        body["guided_json"] = request.format
    return body


def _sampling(options: OllamaOptions | None) -> dict[str, Any]:
    if options is None:
        return {}
    found = {name: getattr(options, name) for name in _COPIED}
    if options.seed != -1:
        found["seed"] = options.seed
    if options.repeat_last_n != 0:
        found["repetition_penalty"] = options.repeat_penalty
    if options.num_predict is not None:
        found["max_tokens"] = options.num_predict if options.num_predict > 0 else MAX_TOKENS
    return {name: value for name, value in found.items() if value is not None}


def _thinking(request: SteeredRequest) -> dict[str, Any]:
    if request.think is None:
        return {}
    if request.think is True:
        return {"chat_template_kwargs": {"enable_thinking": True, "thinking": True}}
    return {"reasoning_effort": request.think or "none"}


def _chat_logprobs(request: SteeredRequest) -> dict[str, Any]:
    return {"logprobs": True, "top_logprobs": request.top_logprobs or 0} if request.logprobs else {}


def _tool(tool: Any) -> Any:
    """Return the tool with its type, which Ollama's clients may leave out."""
    return {"type": "function", **tool} if isinstance(tool, dict) else tool


def chat_messages(messages: Sequence[OllamaMessage]) -> Iterator[dict[str, Any]]:
    """Convert messages one by one. A result without the id of its call gets that of the first open call it fits."""
    open_calls: list[tuple[str, str]] = []  # id and name
    for place, message in enumerate(messages):
        if message.role == "tool":
            yield _result(message, open_calls)
        elif message.role == "assistant":
            calls = _calls(message, place)
            open_calls = [(call["id"], call["function"]["name"]) for call in calls]
            yield _assistant(message, calls)
        else:
            yield {"role": message.role, "content": message.content or ""}


def _assistant(message: OllamaMessage, calls: list[dict[str, Any]]) -> dict[str, Any]:
    plain: dict[str, Any] = {"role": "assistant", "content": message.content or ""}
    if calls:
        plain["tool_calls"] = calls
    if message.thinking:
        plain["reasoning_content"] = message.thinking
    return plain


def _calls(message: OllamaMessage, place: int) -> list[dict[str, Any]]:
    return [
        {
            "id": call.id or f"call_{place}_{number}",
            "type": "function",
            "function": {
                "name": call.function.name,
                "arguments": json.dumps(call.function.arguments, ensure_ascii=False),
            },
        }
        for number, call in enumerate(message.tool_calls or ())
    ]


def _result(message: OllamaMessage, open_calls: list[tuple[str, str]]) -> dict[str, Any]:
    """Return the message of a tool's result, and take its call from the open ones."""
    content, given = message.content or "", message.tool_call_id
    fitting = [call for call in open_calls if (call[0] == given if given else message.tool_name in {None, call[1]})]
    if fitting:
        open_calls.remove(fitting[0])
        return {"role": "tool", "content": content, "tool_call_id": fitting[0][0]}
    if message.tool_name and not given:
        return {"role": "function", "content": content, "name": message.tool_name}
    return {"role": "tool", "content": content, "tool_call_id": given or UNKNOWN_CALL}


_MARK = 0x6D6C4C  # begins every context, so that token ids of other servers are not taken for one
_BYTES = 3  # of each number: more would not fit the integers of some clients


def context_of(chat: ChatRequest, answer: str) -> list[int]:
    """Return the conversation as the numbers of `context`: its messages as JSON, three bytes in each number."""
    messages = [{"role": one.role, "content": one.content} for one in chat.messages]
    data = to_json([*messages, {"role": "assistant", "content": answer}])
    padded = data + b" " * (-len(data) % _BYTES)
    return [_MARK, *(int.from_bytes(padded[at : at + _BYTES]) for at in range(0, len(padded), _BYTES))]


def read_context(context: Sequence[int]) -> list[dict[str, Any]]:
    """Return the messages of a conversation. Raises MillmError 400 unless this server made the numbers."""
    try:
        if context and context[0] == _MARK:
            data = b"".join(number.to_bytes(_BYTES) for number in context[1:])
            found = from_json(data)
            if isinstance(found, list) and all(isinstance(one, dict) and _is_message(one) for one in found):
                return found
        elif not context:
            return []
    except (ValueError, OverflowError):
        pass
    raise invalid("`context` must be what an earlier answer of this server contains. Leave it out.", param="context")


def _is_message(value: dict[str, Any]) -> bool:
    return value.keys() == {"role", "content"} and all(isinstance(one, str) for one in value.values())
