"""Run texts through a model that returns numbers: embedding vectors or classifier scores."""

from __future__ import annotations

from collections.abc import Sequence

from inference import runs
from inference.client import EmbeddingRequest, Event, FinishedEvent
from inference.registry.model_card import ModelCard
from openai_api.backend import get_backend
from openai_api.generation.run import collect_events
from openai_api.http.call import Call
from openai_api.http.errors import invalid


async def vectors_of(call: Call, requests: Sequence[EmbeddingRequest]) -> list[bytes]:
    """Return the vectors of the texts, in order. Raises MillmError; the engine stops however this ends."""

    def note(event: Event) -> None:
        if isinstance(event, FinishedEvent):
            call.add_usage(event.usage)

    size = runs.batch_size(get_backend().client())
    return runs.vectors_of(await collect_events(call, requests, group_size=size, observe=note))


def check_lengths(texts: Sequence[Sequence[int]], model: ModelCard, *, param: str = "input") -> None:
    for place, ids in enumerate(texts):
        if len(ids) > model.max_model_len:
            message = f"`input[{place}]` must have at most {model.max_model_len} tokens for this model, got {len(ids)}."
            raise invalid(message, param=param, code="context_length_exceeded")
