"""Embeddings across the engine's border: a text's tokens in, its vector out."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EmbeddingRequest:
    """One text to embed. ``index`` is its place in the request; several share a stream."""

    request_id: str
    model: str
    prompt_token_ids: tuple[int, ...]
    index: int = 0


@dataclass(frozen=True, slots=True)
class EmbeddingEvent:
    """The vector: ``[dimensions]`` float32 numbers, little endian. A FinishedEvent with the usage follows."""

    index: int
    values: bytes
