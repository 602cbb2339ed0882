"""One line of a batch: a request like any other, but behind those that somebody waits for."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from io import BytesIO
from typing import Any

from django.core.handlers.asgi import ASGIRequest
from django.http.response import HttpResponseBase

from openai_api.anthropic_errors import MESSAGES
from openai_api.backend import get_backend
from openai_api.call import Call
from openai_api.decisions.create import create_decision
from openai_api.endpoint import Handler, answer_as
from openai_api.keys import KeyRecord
from openai_api.request_id import new_id
from openai_api.responses.create import create_response
from openai_api.services.anthropic import create_message
from openai_api.services.chat import create_chat_completion
from openai_api.services.completions import create_completion
from openai_api.services.embeddings import create_embeddings
from openai_api.services.moderations import create_moderations
from openai_api.services.rerank import rerank, score
from storage.batch_lines import BatchLine
from storage.batch_results import Result

HANDLERS: Mapping[str, Handler] = {
    "/v1/chat/completions": create_chat_completion,
    "/v1/completions": create_completion,
    "/v1/embeddings": create_embeddings,
    "/v1/responses": create_response,
    "/v1/moderations": create_moderations,
    "/v1/decisions": create_decision,
    "/v1/rerank": rerank,
    "/v1/score": score,
    MESSAGES: create_message,
}
TRANSIENT = {429, 503}
MAX_ATTEMPTS = 30
MAX_PAUSE_S = 30.0
QUIET_POLL_S = 0.25


class QuotaUsedUpError(Exception):
    """The key's quota of the day is used up: nothing but waiting for the next day helps."""


async def answer_line(line: BatchLine, *, endpoint: str, key: KeyRecord | None) -> Result:
    """What the endpoint answers; a server that is busy is asked again, later and later. Raises QuotaUsedUpError."""
    for attempt in range(MAX_ATTEMPTS):
        await until_quiet()
        call = Call(request_of(line, endpoint), endpoint, is_background=True, source="job")
        response = await answer_as(call, key, HANDLERS[endpoint])
        if call.entry.error_code == "insufficient_quota":
            raise QuotaUsedUpError
        is_final = response.status_code not in TRANSIENT or response.headers.get("x-should-retry") == "false"
        if is_final or attempt == MAX_ATTEMPTS - 1:
            break
        await asyncio.sleep(pause_s(response, attempt))
    body = json.loads(response.content)  # type: ignore[attr-defined]  # batches do not stream
    is_error = response.status_code >= 400
    answer = {"status_code": response.status_code, "request_id": call.id, "body": body}
    return Result(line.number, line.end, record_of(line, response=answer), is_error, usage_of(body))


def record_of(line: BatchLine, *, response: Any = None, error: Any = None) -> dict[str, Any]:
    """A line of the results."""
    return {"id": new_id("batch_req_"), "custom_id": line.custom_id, "response": response, "error": error}


def expired(line: BatchLine) -> Result:
    message = "This request could not be executed before the completion window expired."
    record = record_of(line, error={"code": "batch_expired", "message": message})
    return Result(line.number, line.end, record, is_error=True)


async def until_quiet() -> None:
    """Wait while others wait for the engine."""
    client = get_backend().client()
    while client.stats().waiting > 0:  # noqa: ASYNC110 - the engine tells nobody
        await asyncio.sleep(QUIET_POLL_S)


def request_of(line: BatchLine, endpoint: str) -> ASGIRequest:
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(line.body)).encode())]
    scope = {"type": "http", "method": "POST", "path": endpoint, "query_string": b"", "headers": headers}
    return ASGIRequest(scope, BytesIO(line.body))


def pause_s(response: HttpResponseBase, attempt: int) -> float:
    asked = response.headers.get("Retry-After", "")
    wanted = float(asked) if asked.isdigit() else 0.0
    return min(MAX_PAUSE_S, max(wanted, 0.25 * 2.0**attempt))


def usage_of(body: Any) -> dict[str, int]:
    """By the names of responses, whichever the endpoint has: those or a completion's."""
    usage = body.get("usage") or {}
    read, written = (
        usage.get(f"{new}_tokens_details") or usage.get(f"{old}_tokens_details") or {}
        for new, old in (("input", "prompt"), ("output", "completion"))
    )
    return {
        "input_tokens": usage.get("input_tokens", usage.get("prompt_tokens", 0)),
        "cached_tokens": read.get("cached_tokens", 0),
        "output_tokens": usage.get("output_tokens", usage.get("completion_tokens", 0)),
        "reasoning_tokens": written.get("reasoning_tokens", 0),
    }
