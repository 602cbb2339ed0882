"""Embeddings and classes across the engine's border: a text's tokens in, its vector out."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EmbeddingRequest:
    """One text to embed or to classify. ``index`` is its place in the request; several share a stream.

    ``token_type_ids`` tells the two texts of a pair apart where the model asks for it; empty: all of one text.
    ``priority``: texts with BACKGROUND_PRIORITY and less are behind all others.
    """

    request_id: str
    model: str
    prompt_token_ids: tuple[int, ...]
    index: int = 0
    token_type_ids: tuple[int, ...] = ()
    priority: int = 0


@dataclass(frozen=True, slots=True)
class EmbeddingEvent:
    """The vector: ``[dimensions]`` float32 numbers, little endian; of a classifier its scores by label. A FinishedEvent
    with the usage follows.
    """

    index: int
    values: bytes
