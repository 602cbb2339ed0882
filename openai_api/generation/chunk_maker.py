"""What chunks of chats and of text completions have in common."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Generic, TypeVar, cast

from openai_api.generation.run import Generation
from openai_api.generation.stats import usage_body
from openai_api.schemas.bodies import ChatChunkBody, CompletionBody, UsageBody

SYSTEM_FINGERPRINT = "fp_millm_3"  # changes when the same seed may produce different tokens
BATCH_INVARIANT = "_batch_invariant"  # follows if results do not depend on the batch
ChunkT = TypeVar("ChunkT", ChatChunkBody, CompletionBody)


class ChunkMaker(Generic[ChunkT]):
    """Makes the chunks of one generation. The last one has the usage, if requested, and what steering did."""

    object_name: ClassVar[str]
    id_prefix: ClassVar[str]

    def __init__(self, generation: Generation, *, include_usage: bool) -> None:
        self._generation = generation
        self._text = generation.target.model.text
        self._include_usage = include_usage
        self._id = generation.call.answer_id(self.id_prefix)
        self._created = int(time.time())

    def finish(self) -> Iterator[ChunkT]:
        if self._include_usage:
            chunk = self._chunk([])
            chunk["usage"] = self.usage()
            yield self._with_steering(chunk)

    def usage(self) -> UsageBody:
        """Return the usage so far."""
        return usage_body(self._generation.stats.usage)

    def _chunk(self, choices: Sequence[Any]) -> ChunkT:
        model = self._generation.target.model
        chunk = {
            "id": self._id,
            "object": self.object_name,
            "created": self._created,
            "model": model.record.name,
            "choices": choices,
            "system_fingerprint": SYSTEM_FINGERPRINT + BATCH_INVARIANT * model.batch_invariant,
        }
        if self._include_usage:
            chunk["usage"] = None
        return cast("ChunkT", chunk)

    def _finished(self, chunk: ChunkT) -> ChunkT:
        """Return the chunk that ends a choice; the last one of all has what steering did, unless the usage follows."""
        is_last = self._generation.stats.is_complete and not self._include_usage
        return self._with_steering(chunk) if is_last else chunk

    def _with_steering(self, chunk: ChunkT) -> ChunkT:
        millm = self._generation.millm
        if millm is not None:
            chunk["millm"] = millm
        return chunk
