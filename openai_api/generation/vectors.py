"""Run texts through a model that returns numbers: embedding vectors or classifier scores."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from django.conf import settings

from inference.client import EmbeddingEvent, EmbeddingRequest, FailedEvent, FinishedEvent
from inference.registry.registry import ReadyModel
from openai_api.backend import get_backend
from openai_api.generation.batched_submission import BatchedSubmission
from openai_api.generation.run import failure
from openai_api.http.call import Call
from openai_api.http.errors import invalid, timed_out, unavailable


async def vectors_of(call: Call, requests: Sequence[EmbeddingRequest]) -> list[bytes]:
    """Return the vectors of the texts, in order. Raises ApiError; the engine stops however this ends."""
    submission = BatchedSubmission(get_backend().client().embed, requests, size=settings.MILLM_MAX_BATCH_SIZE)
    try:
        async with asyncio.timeout_at(call.deadline):
            return await _collect(call, submission, len(requests))
    except TimeoutError:
        raise timed_out(settings.MILLM_REQUEST_TIMEOUT) from None
    finally:
        submission.close()


async def _collect(call: Call, submission: BatchedSubmission, num_texts: int) -> list[bytes]:
    vectors: dict[int, bytes] = {}
    async for event in submission:
        if isinstance(event, EmbeddingEvent):
            vectors[event.index] = event.values
        elif isinstance(event, FailedEvent):
            raise failure(event.code, event.message)
        elif isinstance(event, FinishedEvent):
            call.entry.prompt_tokens += event.usage.prompt_tokens
    if len(vectors) != num_texts:
        raise unavailable("The engine ended the request early.", code="engine_shutdown")
    return [vectors[index] for index in range(num_texts)]


def check_lengths(texts: Sequence[Sequence[int]], model: ReadyModel, *, param: str = "input") -> None:
    for place, ids in enumerate(texts):
        if len(ids) > model.max_model_len:
            message = f"Input {place} has {len(ids)} tokens, but this model takes {model.max_model_len}. Shorten it."
            raise invalid(message, param=param, code="context_length_exceeded")
