"""The response object: what the request asked for, and what became of it."""

from __future__ import annotations

import time
from typing import Any

from inference.client import SamplingParams, Usage
from openai_api.http.errors import ApiError
from openai_api.responses.schemas.bodies import (
    ResponseBody,
    ResponseErrorBody,
    ResponseStatus,
    ResponseUsageBody,
)
from openai_api.responses.schemas.request import ResponseRequest
from openai_api.responses.schemas.tools import FileSearchTool, OfferedFunction

_CODES = {429: "rate_limit_exceeded"}  # OpenAI's codes of failed responses by HTTP status; others are the server's
_BAD_REQUEST = "invalid_prompt"
DEFAULT_VERBOSITY = "medium"  # OpenAI's


def new_body(
    response_id: str, wanted: ResponseRequest, model: str, status: ResponseStatus, params: SamplingParams
) -> ResponseBody:
    """``params`` are what the answer is drawn by, the model's and the server's defaults included."""
    conversation = wanted.conversation
    return {
        "id": response_id,
        "object": "response",
        "created_at": int(time.time()),
        "completed_at": None,
        "status": status,
        "background": bool(wanted.background),
        "conversation": {"id": conversation} if conversation is not None else None,
        "error": None,
        "frequency_penalty": params.frequency_penalty,
        "incomplete_details": None,
        "instructions": wanted.instructions,
        "max_output_tokens": wanted.max_output_tokens,
        "max_tool_calls": wanted.max_tool_calls,
        "metadata": dict(wanted.metadata or {}),
        "model": model,
        "output": [],
        "parallel_tool_calls": wanted.parallel_tool_calls is not False,
        "presence_penalty": params.presence_penalty,
        "previous_response_id": wanted.previous_response_id,
        "prompt_cache_key": wanted.prompt_cache_key,
        "reasoning": {"effort": wanted.reasoning.effort if wanted.reasoning else None, "summary": None},
        "safety_identifier": wanted.safety_identifier,
        "service_tier": "default",
        "store": wanted.is_stored,
        "temperature": params.temperature,
        "text": {"format": _format(wanted), "verbosity": _verbosity(wanted)},
        "tool_choice": _tool_choice(wanted),
        "tools": _tools(wanted),
        "top_logprobs": wanted.top_logprobs or 0,
        "top_p": params.top_p,
        "truncation": wanted.truncation or "disabled",
        "usage": None,
        "user": wanted.user,
    }


def usage_body(usage: Usage, reasoning_tokens: int) -> ResponseUsageBody:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


def error_body(error: ApiError) -> ResponseErrorBody:
    """OpenAI knows few codes for this; the server's own one stands beside."""
    default = _BAD_REQUEST if error.status < 500 else "server_error"
    return {
        "code": _CODES.get(error.status, default),
        "message": error.message,
        "param": error.param,
        "type": error.error_type,
        "millm_code": error.code,
    }


def _format(wanted: ResponseRequest) -> dict[str, Any]:
    form = wanted.text.format if wanted.text else None
    return {"type": "text"} if form is None else form.model_dump(by_alias=True, exclude_unset=True)


def _verbosity(wanted: ResponseRequest) -> str:
    """Without effect here; clients expect a value."""
    return (wanted.text.verbosity if wanted.text else None) or DEFAULT_VERBOSITY


def _tools(wanted: ResponseRequest) -> list[dict[str, Any]]:
    """Those that the model may call; what this server does not run is not among them."""
    return [_tool(tool) for _, tool in wanted.callable_tools]


def _tool(tool: OfferedFunction | FileSearchTool) -> dict[str, Any]:
    if isinstance(tool, FileSearchTool):
        return tool.model_dump(exclude_none=True)
    return {
        "type": "function",
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters or {},
        "strict": bool(tool.strict),
    }


def _tool_choice(wanted: ResponseRequest) -> Any:
    choice = wanted.tool_choice
    return "auto" if choice is None else choice if isinstance(choice, str) else choice.model_dump()
