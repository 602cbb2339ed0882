"""The response object: the request's settings and the outcome."""

from __future__ import annotations

import time
from typing import Any

from core.errors import MillmError
from inference.client import SamplingParams, Usage
from openai_api.http.errors import client_message, error_type
from openai_api.responses.mcp import shown_url
from openai_api.responses.schemas.bodies import (
    ResponseBody,
    ResponseErrorBody,
    ResponseStatus,
    ResponseUsageBody,
)
from openai_api.responses.schemas.request import ResponseRequest
from openai_api.responses.schemas.tools import FileSearchTool, HostedTool, McpTool, OfferedFunction

_CODES = {429: "rate_limit_exceeded"}  # OpenAI's codes of failed responses by HTTP status; otherwise the server's
_BAD_REQUEST = "invalid_prompt"
DEFAULT_VERBOSITY = "medium"  # OpenAI's


def new_body(
    response_id: str, request: ResponseRequest, model: str, status: ResponseStatus, params: SamplingParams
) -> ResponseBody:
    """Build the object; ``params`` are the sampling parameters, defaults included."""
    conversation = request.conversation
    return {
        "id": response_id,
        "object": "response",
        "created_at": int(time.time()),
        "completed_at": None,
        "status": status,
        "background": bool(request.background),
        "conversation": {"id": conversation} if conversation is not None else None,
        "error": None,
        "frequency_penalty": params.frequency_penalty,
        "incomplete_details": None,
        "instructions": request.instructions,
        "max_output_tokens": request.max_output_tokens,
        "max_tool_calls": request.max_tool_calls,
        "metadata": dict(request.metadata or {}),
        "model": model,
        "output": [],
        "parallel_tool_calls": request.parallel_tool_calls is not False,
        "presence_penalty": params.presence_penalty,
        "previous_response_id": request.previous_response_id,
        "prompt_cache_key": request.prompt_cache_key,
        "reasoning": {"effort": request.reasoning.effort if request.reasoning else None, "summary": None},
        "safety_identifier": request.safety_identifier,
        "service_tier": "default",
        "store": request.is_stored,
        "temperature": params.temperature,
        "text": {"format": _format(request), "verbosity": _verbosity(request)},
        "tool_choice": _tool_choice(request),
        "tools": _tools(request),
        "top_logprobs": request.top_logprobs or 0,
        "top_p": params.top_p,
        "truncation": request.truncation or "disabled",
        "usage": None,
        "user": request.user,
    }


def usage_body(usage: Usage, reasoning_tokens: int) -> ResponseUsageBody:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


def error_body(error: MillmError) -> ResponseErrorBody:
    """Build the error. OpenAI has few codes for this, so the server's own one is added."""
    default = _BAD_REQUEST if error.status < 500 else "server_error"
    return {
        "code": _CODES.get(error.status, default),
        "message": client_message(error),
        "param": error.param,
        "type": error_type(error),
        "millm_code": error.code,
    }


def _format(request: ResponseRequest) -> dict[str, Any]:
    form = request.text.format if request.text else None
    return {"type": "text"} if form is None else form.model_dump(by_alias=True, exclude_unset=True)


def _verbosity(request: ResponseRequest) -> str:
    """Return the verbosity, which has no effect but which clients expect."""
    return (request.text.verbosity if request.text else None) or DEFAULT_VERBOSITY


def _tools(request: ResponseRequest) -> list[dict[str, Any]]:
    """Return the tools that the model may call, without those that this server does not run."""
    return [_tool(tool) for tool in request.tools or () if not isinstance(tool, HostedTool)]


def _tool(tool: OfferedFunction | FileSearchTool | McpTool) -> dict[str, Any]:
    if isinstance(tool, McpTool):  # without what may be secret
        shown = tool.model_dump(mode="json", exclude={"authorization", "headers"}, exclude_none=True)
        return {**shown, "server_url": shown_url(tool.server_url), "headers": None}
    if isinstance(tool, FileSearchTool):
        return tool.model_dump(exclude_none=True)
    return {
        "type": "function",
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters or {},
        "strict": bool(tool.strict),
    }


def _tool_choice(request: ResponseRequest) -> Any:
    choice = request.tool_choice
    return "auto" if choice is None else choice if isinstance(choice, str) else choice.model_dump()
