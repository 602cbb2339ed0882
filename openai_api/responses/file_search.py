"""The file_search tool: run the model's queries on vector stores, and find citations in its answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from core.database import in_database, in_thread
from inference.registry.model_card import ModelCard
from openai_api.backend import get_backend
from openai_api.endpoints.vector_store_search import DEFAULT_RESULTS, best_hits
from openai_api.endpoints.vector_stores import embedder
from openai_api.generation.target import check_model_allowed, find_model, ready_model
from openai_api.http.call import Call
from openai_api.http.errors import timed_out
from openai_api.keys.scopes import Scope, check_scope
from openai_api.responses.chat_form import CITATION_END, CITATION_START, MAX_QUERIES
from openai_api.responses.schemas.bodies import Item
from openai_api.responses.schemas.request import PromptSchema
from openai_api.responses.schemas.tools import FileSearchTool
from storage.errors import StorageError
from storage.models import VectorStore
from storage.vector_search import Hit
from storage.vector_stores import usable_store

MAX_QUERY = 4_000  # characters
ROOM = 8  # tokens reserved for those that a tokenizer adds
Results = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class FileSearch:
    """A search tool; ``place`` is its index in the request, for errors."""

    tool: FileSearchTool
    place: int

    @classmethod
    def of(cls, request: PromptSchema) -> FileSearch | None:
        found = request.file_search
        return None if found is None else cls(found[1], found[0])

    async def check(self, call: Call) -> None:
        """Require all stores to exist, to be the owner's, and to be searchable. Raises MillmError 400, 403, 404."""
        for number in range(len(self.tool.vector_store_ids)):
            await self._store(call, number)

    async def run(self, call: Call, queries: list[str]) -> Results:
        """Return the best results of all stores. Raises MillmError."""
        hits: list[Hit] = []
        try:
            async with asyncio.timeout_at(call.deadline):
                for number in range(len(self.tool.vector_store_ids) if queries else 0):
                    hits += await self._hits(call, number, queries)
        except TimeoutError:
            raise timed_out(call.timeout_s, call.timeout_setting) from None
        best = sorted(hits, key=lambda hit: -hit.score)[: self.tool.max_num_results or DEFAULT_RESULTS]
        return [_result(hit) for hit in best]

    async def _hits(self, call: Call, number: int, queries: list[str]) -> list[Hit]:
        store, name = await self._store(call, number)
        record, _ = find_model(get_backend().registry(), name)
        model = await ready_model(record, "embedding")
        texts = [_fitting(model, query) for query in queries]
        await call.reserve_tokens(sum(len(model.text.encode(text)) for text in texts))
        vectors = await embedder().embed(model, texts, priority=call.priority)
        return await in_thread(best_hits, store, vectors, self.tool)

    async def _store(self, call: Call, number: int) -> tuple[VectorStore, str]:
        """Return a store and its embedding model. The key needs the same permissions as for a direct search."""
        check_scope(call.key, Scope.FILES, "/v1/vector_stores")
        try:
            store = await in_database(usable_store, self.tool.vector_store_ids[number], owner_id=call.owner_id)
            record = embedder().resolve(store)
        except StorageError as error:
            raise error.with_param(f"tools[{self.place}].vector_store_ids[{number}]") from None
        check_model_allowed(call.key, record)
        return store, record.name


def queries_of(arguments: str) -> list[str]:
    """Return the model's queries: the arguments of its call or, if malformed, the text itself."""
    try:
        given = json.loads(arguments)
    except (ValueError, RecursionError):
        given = arguments
    if isinstance(given, dict):
        given = next((given[name] for name in ("queries", "query") if name in given), "")
    texts = given if isinstance(given, list) else [given]
    return [text[:MAX_QUERY] for text in texts if isinstance(text, str) and text.strip()][:MAX_QUERIES]


def _fitting(model: ModelCard, query: str) -> str:
    """Truncate a query that is too long: it is the model's, so the client could not shorten it."""
    ids = model.text.encode(query)
    return query if len(ids) <= model.max_model_len else model.text.decode(ids[: model.max_model_len - ROOM])


def _result(hit: Hit) -> dict[str, Any]:
    return {
        "file_id": hit.file_id,
        "filename": hit.filename,
        "score": hit.score,
        "text": hit.text,
        "attributes": hit.attributes,
    }


MAX_MARK = 8  # characters; anything longer is text
Annotation = dict[str, Any]


class CitationReader:
    """Find citations in streamed text. ``sources`` are the results the model has seen, numbered from 1; they may grow.

    A number without a result stays in the text.
    """

    def __init__(self, sources: Sequence[Mapping[str, Any]]) -> None:
        self._sources = sources
        self._held = ""
        self._length = 0  # length of the text without citations

    def feed(self, text: str) -> Iterator[str | Annotation]:
        """Return text and annotations, in order. A possible start of a citation is held back."""
        self._held += text
        while self._held:
            start = self._held.find(CITATION_START)
            if start < 0:
                yield self._text(len(self._held))
                return
            if start:
                yield self._text(start)
            end = self._held.find(CITATION_END, 0, MAX_MARK)
            if end < 0 and len(self._held) < MAX_MARK and CITATION_START not in self._held[1:]:
                return
            annotation = self._annotation(self._held[1:end]) if end > 0 else None
            if annotation is None:
                yield self._text(1)
            else:
                self._held = self._held[end + 1 :]
                yield annotation

    def finish(self) -> Iterator[str]:
        if self._held:
            yield self._text(len(self._held))

    def _text(self, length: int) -> str:
        text, self._held = self._held[:length], self._held[length:]
        self._length += length
        return text

    def _annotation(self, number: str) -> Annotation | None:
        place = int(number) - 1 if number.isascii() and number.isdecimal() else -1
        if not 0 <= place < len(self._sources):
            return None
        source = self._sources[place]
        return {
            "type": "file_citation",
            "file_id": source.get("file_id") or "",
            "filename": source.get("filename") or "",
            "index": self._length,
        }


@dataclass(slots=True)
class Searching:
    """State of the searches. ``sources`` are the results the model has seen, by number; each search appends."""

    is_on: bool = True
    shows_results: bool = False
    sources: list[dict[str, Any]] = field(default_factory=list)

    def note(self, items: Iterable[Item]) -> None:
        """Add results of earlier turns, which can be cited too."""
        for item in items:
            if item["type"] == "file_search_call":
                self.sources.extend(item.get("results") or ())
