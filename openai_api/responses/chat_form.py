"""Convert a response's request to a chat completion, so that both share one way of generating.

Errors of the chat are reported under the names of the original fields.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from openai_api.http import errors
from openai_api.responses.items import item_text
from openai_api.responses.mcp import RemoteTools, function_name, output_of
from openai_api.responses.schemas.bodies import Item
from openai_api.responses.schemas.request import JsonSchemaText, PromptSchema, ResponseRequest
from openai_api.responses.schemas.tools import (
    FILE_SEARCH,
    AllowedFunctions,
    FileSearchTool,
    FunctionChoice,
    McpChoice,
    OfferedFunction,
    SearchChoice,
)
from openai_api.schemas.chat import ChatRequest
from openai_api.schemas.generation import DrawingSchema
from openai_api.schemas.structured import GrammarExtensions

CITATION_START, CITATION_END = "【", "】"
NOTHING = "No text was found."
NOT_APPROVED = "The user did not approve this call."
NOT_KEPT = "The results of this search are no longer available."


def results_text(results: Sequence[Mapping[str, Any]] | None, *, first: int = 1) -> str:
    """Return search results numbered from ``first``, so that the answer can cite them."""
    if results is None:
        return NOT_KEPT
    if not results:
        return NOTHING
    return "\n\n".join(_result_text(number, result) for number, result in enumerate(results, first))


def _result_text(number: int, result: Mapping[str, Any]) -> str:
    return f"{CITATION_START}{number}{CITATION_END} {result.get('filename') or 'file'}\n{result.get('text') or ''}"


Message = dict[str, Any]


def messages_of(instructions: str | None, items: Iterable[Item], *, num_results: int = 0) -> list[Message]:
    """Return the messages, instructions first. An answer's reasoning, text and calls form one message, as in templates.

    Instructions and the system messages after them are merged: many templates accept a single one, in front. Search
    results are numbered after ``num_results``.
    """
    transcript = Transcript(num_results)
    if instructions:
        transcript.add({"role": "system", "content": instructions})
    for item in items:
        _add(transcript, item)
    return [
        {**message, "content": ""} if message["content"] is None and "tool_calls" not in message else message
        for message in transcript.messages
    ]


class Transcript:
    def __init__(self, num_results: int = 0) -> None:
        self.messages: list[Message] = []
        self.num_results = num_results
        self.requests: dict[str, Item] = {}  # for approval, by id

    def add(self, message: Message) -> None:
        self.messages.append(message)

    def instruct(self, text: str) -> None:
        if len(self.messages) == 1 and self.messages[0]["role"] == "system":
            self.messages[0]["content"] += f"\n\n{text}"
        else:
            self.add({"role": "system", "content": text})

    def instruct_first(self, text: str) -> None:
        """Add to the system message at the beginning: many templates take none after the user's messages."""
        if self.messages and self.messages[0]["role"] == "system":
            self.messages[0]["content"] += f"\n\n{text}"
        else:
            self.messages.insert(0, {"role": "system", "content": text})

    def add_call(self, call_id: str, name: str, arguments: str, output: str) -> None:
        """Add a call of a tool, to the assistant's turn, and what it gave."""
        function = {"name": name, "arguments": arguments}
        self.turn().setdefault("tool_calls", []).append({"id": call_id, "type": "function", "function": function})
        self.add({"role": "tool", "tool_call_id": call_id, "content": output})

    def turn(self) -> Message:
        """Return the assistant's last turn, started if necessary."""
        if not self.messages or self.messages[-1]["role"] != "assistant":
            self.add({"role": "assistant", "content": None})
        return self.messages[-1]


def _add(transcript: Transcript, item: Item) -> None:
    kind, text = item["type"], item_text(item)
    if kind == "function_call":
        function = {"name": item["name"], "arguments": text}
        turn = transcript.turn()
        turn.setdefault("tool_calls", []).append({"id": item["call_id"], "type": "function", "function": function})
    elif kind == "file_search_call":
        results = item.get("results")
        text = results_text(results, first=transcript.num_results + 1)
        transcript.num_results += len(results or ())
        queries = json.dumps({"queries": item["queries"]}, ensure_ascii=False)
        transcript.add_call(item["id"], FILE_SEARCH, queries, text)
    elif kind.startswith("mcp_"):
        _add_mcp(transcript, item)
    elif kind == "function_call_output":
        transcript.add({"role": "tool", "tool_call_id": item["call_id"], "content": text})
    elif kind == "compaction":
        transcript.instruct_first(text)
    elif kind == "reasoning":
        if text:
            transcript.turn()["reasoning_content"] = text
    elif item["role"] == "assistant":
        _say(transcript, text)
    elif item["role"] in {"system", "developer"}:
        transcript.instruct(text)
    else:
        transcript.add({"role": item["role"], "content": text})


def _add_mcp(transcript: Transcript, item: Item) -> None:
    """Add what the model reads of an MCP item. The tools of a list are among the functions, and the call of a request
    that was approved is an item of its own.
    """
    kind = item["type"]
    if kind == "mcp_call":
        transcript.add_call(item["id"], function_name(item), item["arguments"] or "{}", output_of(item))
    elif kind == "mcp_approval_request":
        transcript.requests[item["id"]] = item
    elif kind == "mcp_approval_response" and not item["approve"]:
        request = transcript.requests.get(item["approval_request_id"])
        if request is not None:
            text = f"{NOT_APPROVED} {item.get('reason') or ''}".rstrip()
            transcript.add_call(request["id"], function_name(request), request["arguments"] or "{}", text)


def _say(transcript: Transcript, text: str) -> None:
    """Append text, in a new turn unless only reasoning came before it."""
    last = transcript.messages[-1] if transcript.messages else {}
    if last.get("role") == "assistant" and last["content"] is None and "tool_calls" not in last:
        last["content"] = text
    else:
        transcript.add({"role": "assistant", "content": text})


ChatBody = dict[str, Any]
# Fields with the same name and meaning in a chat.
_SHARED = {*DrawingSchema.model_fields, *GrammarExtensions.model_fields, "reasoning_budget"} - {"stream"}
MAX_QUERIES = 4
MAX_QUERY_CHARS = 200  # a small model may not end one by itself

SEARCH_FUNCTION: dict[str, Any] = {
    "name": FILE_SEARCH,
    "description": (
        "Searches the user's files and gives back the texts that fit best. Cite a text that you use by its number, "
        "like 【1】, right behind what you say."
    ),
    "parameters": {
        "type": "object",
        "properties": {
            "queries": {
                "type": "array",
                "items": {"type": "string", "minLength": 1, "maxLength": MAX_QUERY_CHARS},
                "minItems": 1,
                "maxItems": MAX_QUERIES,
                "description": "What to look for.",
            }
        },
        "required": ["queries"],
        "additionalProperties": False,
    },
}

_NAMES = (  # chat field -> name here; the first match counts
    (re.compile(r"\bresponse_format\.json_schema\b"), "text.format"),
    (re.compile(r"\bresponse_format\b"), "text.format"),
    (re.compile(r"\bmax_completion_tokens\b"), "max_output_tokens"),
    (re.compile(r"\bmax_tokens\b"), "max_output_tokens"),
    (re.compile(r"\breasoning_effort\b"), "reasoning.effort"),
    (re.compile(r"\bmessages\b(\[\d+\][\w.\[\]]*)?"), "input"),
    (re.compile(r"\btool_choice\.allowed_tools\b"), "tool_choice"),
    (re.compile(r"\b(tools\[\d+\]|tool_choice)\.function\b"), r"\1"),
)
_TOOL = re.compile(r"(?<!\.)\btools\[(\d+)\]")  # not logprobs of a choice


def chat_body(request: PromptSchema, items: Sequence[Item], remote: RemoteTools | None = None) -> ChatBody:
    """Return the chat's fields: what the model reads, and for a response how it samples. ``remote``: MCP tools."""
    remote = remote or RemoteTools()
    body: ChatBody = {
        "model": request.model,
        "messages": messages_of(request.instructions, items),
        **_tool_fields(request, remote),
        **_format_fields(request),
    }
    if request.chat_template_kwargs is not None:
        body["chat_template_kwargs"] = request.chat_template_kwargs.model_dump(exclude_unset=True)
    if request.reasoning is not None and request.reasoning.effort is not None:
        body["reasoning_effort"] = request.reasoning.effort
    if isinstance(request, ResponseRequest):
        body |= _drawing_fields(request)
    return body


def parse_chat(request: PromptSchema, body: Mapping[str, Any]) -> ChatRequest:
    """Return the validated chat. Raises MillmError in terms of the response's request."""
    with renaming(request):
        return ChatRequest.parse(body)


def renaming(request: PromptSchema) -> AbstractContextManager[None]:
    """Rename chat fields in errors to those of the response."""
    places = [place for place, _ in request.callable_tools]
    return errors.renaming(partial(renamed, tool_places=places))


def renamed(text: str, tool_places: Sequence[int]) -> str:
    for pattern, name in _NAMES:
        text = pattern.sub(name, text)
    return _TOOL.sub(lambda found: f"tools[{_place(int(found.group(1)), tool_places)}]", text)


def _place(number: int, places: Sequence[int]) -> int:
    """Return the index of a chat's tool in the request, which may have had more tools."""
    return places[number] if number < len(places) else number


def _tool_fields(request: PromptSchema, remote: RemoteTools) -> ChatBody:
    fields: ChatBody = {}
    functions = [*(_function(tool) for _, tool in request.callable_tools), *remote.functions()]
    if functions:
        fields["tools"] = [{"type": "function", "function": function} for function in functions]
        if request.parallel_tool_calls is not None:
            fields["parallel_tool_calls"] = request.parallel_tool_calls
    if request.tool_choice is not None and (functions or request.tool_choice != "auto"):
        fields["tool_choice"] = _tool_choice(request, remote)
    return fields


def _function(tool: OfferedFunction | FileSearchTool) -> dict[str, Any]:
    if isinstance(tool, FileSearchTool):
        return SEARCH_FUNCTION
    return tool.model_dump(exclude={"type"}, exclude_none=True)


def _tool_choice(request: PromptSchema, remote: RemoteTools) -> Any:
    choice = request.tool_choice
    if isinstance(choice, AllowedFunctions):
        chosen = [
            name
            for place, tool in enumerate(choice.tools)
            for name in _chosen_names(tool, remote, param=f"tool_choice.tools[{place}]")
        ]
        return _allowed(choice.mode, chosen)
    if choice is None or isinstance(choice, str):
        return choice
    names = _chosen_names(choice, remote, param="tool_choice")
    return _allowed("required", names) if len(names) > 1 else {"type": "function", "function": {"name": names[0]}}


def _chosen_names(choice: FunctionChoice | SearchChoice | McpChoice, remote: RemoteTools, *, param: str) -> list[str]:
    if isinstance(choice, McpChoice):
        return remote.names(choice.server_label, choice.name, param=param)
    return [choice.name]


def _allowed(mode: str, names: Sequence[str]) -> dict[str, Any]:
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


def _format_fields(request: PromptSchema) -> ChatBody:
    form = request.text.format if request.text else None
    if isinstance(form, JsonSchemaText):
        schema = form.model_dump(by_alias=True, exclude={"type"}, exclude_none=True)
        return {"response_format": {"type": "json_schema", "json_schema": schema}}
    return {"response_format": {"type": form.type}} if form is not None else {}


def _drawing_fields(request: ResponseRequest) -> ChatBody:
    names = _SHARED & request.model_fields_set
    fields = request.model_dump(include=set(names), by_alias=True, exclude_unset=True)
    if request.max_output_tokens is not None:
        fields["max_completion_tokens"] = request.max_output_tokens
    if request.num_logprobs is not None:
        fields |= {"logprobs": True, "top_logprobs": request.num_logprobs}
    return fields
