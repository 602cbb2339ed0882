"""Texts to vectors by a registered embedding model, through the engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from inference.client import (
    EmbeddingEvent,
    EmbeddingRequest,
    EngineError,
    EventStream,
    FailedEvent,
    get_client,
)
from inference.registry.registry import ReadyModel, get_registry
from steering.engine_model import submit_when_there_is_room
from steering.errors import SteeringError


class NotAnEmbedderError(SteeringError):
    """The model generates text."""

    code = "wrong_model_kind"
    param = "embedding_model"


@dataclass(frozen=True, slots=True)
class TextEmbedder:
    """Vectors of length 1, so that what is alike has a small distance. Texts are cut to what the model takes."""

    model: ReadyModel

    async def embed(self, texts: Sequence[str], *, priority: int = 0) -> list[NDArray[np.float32]]:
        """EngineError."""
        encoded = [self._encode(text) for text in texts]
        name = self.model.record.name
        batch = uuid4().hex
        requests = [
            EmbeddingRequest(f"embed-{batch}/{i}", name, ids, i, priority=priority) for i, ids in enumerate(encoded)
        ]
        return await _collect(await submit_when_there_is_room(lambda: get_client().embed(requests)), len(texts))

    def _encode(self, text: str) -> tuple[int, ...]:
        """A label has far fewer characters than any model takes, so it is cut by tokens only."""
        return tuple(self.model.text.encode(text[: self.model.text.max_chars])[: self.model.max_model_len])


async def find_embedder(name: str) -> TextEmbedder:
    """The model, loaded if need be. NotAnEmbedderError, ModelNotFoundError and what loading raises."""
    ready = await get_registry().ready(name)
    if ready.kind != "embedding":
        raise NotAnEmbedderError(f"The model “{ready.record.name}” is made for {ready.kind}, not for embedding.")
    return TextEmbedder(ready)


async def _collect(stream: EventStream, num_texts: int) -> list[NDArray[np.float32]]:
    vectors: dict[int, NDArray[np.float32]] = {}
    try:
        async for event in stream:
            if isinstance(event, FailedEvent):
                raise EngineError(event.message)
            if isinstance(event, EmbeddingEvent):
                vectors[event.index] = _normalised(np.frombuffer(event.values, "<f4"))
    finally:
        stream.close()
    if len(vectors) != num_texts:
        raise EngineError("The engine ended before the texts were embedded.")
    return [vectors[index] for index in range(num_texts)]


def _normalised(vector: NDArray[np.float32]) -> NDArray[np.float32]:
    length = float(np.linalg.norm(vector))
    result: NDArray[np.float32] = vector / length if length > 0 else vector
    return result
