"""Embed texts with the engine, for search and ingestion."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Protocol

from core.errors import MillmError
from core.ids import new_id
from core.runtime import Service, runtime
from inference.client import EmbeddingRequest, EngineClient, get_client
from inference.registry.model_card import ModelCard
from inference.registry.records import ModelNotFoundError, ModelRecord, default_of
from inference.registry.registry import get_registry
from inference.runs import Run, SequenceFailedError, vectors_of
from storage.errors import ObjectNotFoundError, StorageError
from storage.models import VectorStore

AT_ONCE = 16
MISMATCH = "embedding_model_mismatch"


class Models(Protocol):
    """The part of :class:`inference.registry.registry.ModelRegistry` that embedding uses."""

    def records(self) -> tuple[ModelRecord, ...]: ...

    def find(self, name: str) -> ModelRecord: ...

    async def ready(self, name: str) -> ModelCard: ...


class EmbeddingFailedError(MillmError):
    """The engine could not embed a text. The message is the engine's."""

    status = 503
    code = "engine_unavailable"
    retry_after_s = 5.0
    names_files = True


class Embedder:
    """Embeds texts. ``client`` and ``models`` are looked up on each call, because they may be replaced."""

    def __init__(
        self, client: Callable[[], EngineClient] = get_client, models: Callable[[], Models] = get_registry
    ) -> None:
        self._client = client
        self._models = models

    def resolve(self, store: VectorStore | None, name: str | None = None) -> ModelRecord:
        """Return the embedding model of ``store``. Raise StorageError (400) if there is none.

        It is the model ``name``, or the one that the store was created with, or the default embedding model, or the
        only one. A store holds vectors of a single model, so a model other than the one it was filled with is an error.
        """
        if name:
            record = self._named(name, ObjectNotFoundError, "model_not_found")
        elif store is not None and store.is_model_chosen:
            record = self._named(store.embedding_model, StorageError, MISMATCH)
        else:
            record = self._implied()
        if store is not None and store.embedding_model not in {"", record.name}:
            message = (
                f"The vector store was filled with the embedding model `{store.embedding_model}` and cannot use "
                f"`{record.name}`. Create a new vector store to use another model."
            )
            raise StorageError(message, code=MISMATCH, param="embedding_model")
        return record

    async def ready(self, record: ModelRecord) -> ModelCard:
        """Load the model if necessary and return it. Raise ModelNotReadyError or EngineError if that fails."""
        model = await self._models().ready(record.name)
        if model.kind != "embedding":
            raise StorageError(
                f"`{record.name}` is a {model.kind} model, not an embedding model.", code="wrong_model_kind"
            )
        return model

    async def embed(self, model: ModelCard, texts: Sequence[str], *, priority: int = 0) -> list[list[float]]:
        """Return the vectors of the texts, in their order. Raise EmbeddingFailedError or EngineError if that fails."""
        name = new_id("embed_")
        requests = [
            EmbeddingRequest(f"{name}/{i}", model.record.name, tuple(model.text.encode(text)), i, priority=priority)
            for i, text in enumerate(texts)
        ]
        try:
            collected = await Run(self._client(), requests, group_size=AT_ONCE, waits=True).collect()
        except SequenceFailedError as error:
            raise EmbeddingFailedError(str(error)) from error
        return [list(struct.unpack(f"<{len(values) // 4}f", values)) for values in vectors_of(collected)]

    def _named(self, name: str, refusal: type[StorageError], code: str) -> ModelRecord:
        try:
            record = self._models().find(name)
        except ModelNotFoundError:
            message = f"The embedding model `{name[:200]}` does not exist."
            raise refusal(message, code=code, param="embedding_model") from None
        if record.kind != "embedding":
            message = f"`{record.name}` is a {record.kind} model, not an embedding model."
            raise StorageError(message, code="wrong_model_kind", param="embedding_model")
        return record

    def _implied(self) -> ModelRecord:
        records = self._models().records()
        chosen = default_of(records, "embedding")
        known = [record for record in records if record.kind == "embedding"]
        if not known:
            message = "This server has no embedding model. Add one with `manage.py add_model NAME SOURCE`."
            raise StorageError(message, code="no_embedding_model_configured", param="embedding_model")
        if chosen is None:
            names = ", ".join(record.name for record in known[:10])
            message = f"This server has several embedding models ({names}). Name one, or make one the default."
            raise StorageError(message, code="ambiguous_embedding_model", param="embedding_model")
        return chosen


EMBEDDER = Service(lambda: Embedder())


def get_embedder() -> Embedder:
    """Return the embedder of this process."""
    return runtime.get(EMBEDDER)
