"""The job that adds files to a vector store.

The chunks in the table are its checkpoint: after a crash, a new run splits the text into the same chunks and continues
after the last one in the table. Only one run may write chunks of a file at a time: each write holds the job's claim.
"""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

from django.db import transaction

from core.errors import MillmError
from inference.client import BACKGROUND_PRIORITY
from inference.registry.model_card import ModelCard
from jobs.errors import JobCancelled
from jobs.running_job import RunningJob
from storage.blobs import BlobStore
from storage.chunking import Chunking
from storage.embedder import AT_ONCE, get_embedder
from storage.errors import ExtractionError, StorageError
from storage.extraction.process import extract_pieces
from storage.models import Chunk, VectorStore, VectorStoreFile
from storage.vector_search import ensure_index
from storage.vector_stores import Status, end_files


class FileDetachedError(Exception):
    """The file was detached, cancelled or attached again, so this run must stop."""


def run_ingestion(job: RunningJob) -> dict[str, Any]:
    """Add the job's files to the store. A file that cannot be read does not affect the others."""
    keys: list[int] = job.params["files"]
    try:
        for number, key in enumerate(keys):
            job.progress(number, len(keys))
            job.end_turn()
            row = _files(job.id).filter(pk=key).select_related("file", "store").first()
            if row is not None:
                _ingest_file(job, row)
    except JobCancelled:
        with transaction.atomic():
            job.hold()
            end_files(files=list(_files(job.id)), status=Status.CANCELLED)
        raise
    job.progress(len(keys), len(keys))
    ended = VectorStoreFile.objects.filter(pk__in=keys)
    return {str(status): ended.filter(status=status).count() for status in Status.values}


def _ingest_file(job: RunningJob, row: VectorStoreFile) -> None:
    try:
        FileIngestion(job, row).run()
    except FileDetachedError:
        job.log(f"{row.file.filename} was removed from the vector store.")
    except ExtractionError as error:
        _fail(job, row, error.code, error.message)
    except MillmError as error:
        if job.is_stopped:
            job.check_cancelled()  # the process is stopping, so the job returns to the queue
        _fail(job, row, "server_error", str(error))


def _fail(job: RunningJob, row: VectorStoreFile, code: str, message: str) -> None:
    job.log(f"{row.file.filename}: {message}")
    with transaction.atomic():
        job.hold()
        end_files(files=[row], status=Status.FAILED, code=code, message=message)


class FileIngestion:
    """Adds one file: extracts its text, splits it, embeds the chunks and stores them."""

    def __init__(self, job: RunningJob, row: VectorStoreFile) -> None:
        self.job = job
        self.row = row

    def run(self) -> None:
        with asyncio.Runner() as runner:
            model = runner.run(self._model())
            claim_model(store=self.row.store, model=model.record.name, dimensions=model.dimensions)
            ensure_index(model.dimensions)
            pieces = self._pieces(model)
            done = self._num_stored(pieces)
            for start, group in groups(pieces, done):
                self.job.check_cancelled()
                self.job.end_turn()
                self._store(start, group, runner.run(self._vectors(model, group)))
        self._complete(pieces)

    def _num_stored(self, pieces: Sequence[str]) -> int:
        """Return how many chunks are stored already. Delete chunks of an older version that split differently."""
        done = self.row.chunks.count()
        last = self.row.chunks.filter(position=done - 1).first()
        if done and (last is None or pieces[done - 1 : done] != [last.text]):
            with transaction.atomic():
                self._lock()
                self.row.chunks.all().delete()
            return 0
        return done

    async def _model(self) -> ModelCard:
        embedder = get_embedder()
        return await embedder.ready(embedder.resolve(self.row.store))

    async def _vectors(self, model: ModelCard, texts: Sequence[str]) -> list[list[float]]:
        """Embed the texts, with the lowest priority."""
        return await get_embedder().embed(model, texts, priority=BACKGROUND_PRIORITY)

    def _pieces(self, model: ModelCard) -> list[str]:
        file, chunking = self.row.file, Chunking(self.row.max_chunk_tokens, self.row.overlap_tokens)
        with BlobStore.from_settings().local(file.blob) as path:
            return extract_pieces(
                path,
                file.filename,
                tokenizer=model.text.tokenizer_json(),
                chunking=chunking.fitting(model),
                check=self.job.check_cancelled,
            )

    def _store(self, start: int, texts: Sequence[str], vectors: Sequence[Sequence[float]]) -> None:
        rows = [
            Chunk(
                store_id=self.row.store_id,
                store_file_id=self.row.pk,
                position=start + place,
                text=text,
                dimensions=len(vector),
                embedding=list(vector),
            )
            for place, (text, vector) in enumerate(zip(texts, vectors, strict=True))
        ]
        with transaction.atomic():
            self._lock()
            Chunk.objects.bulk_create(rows)

    def _complete(self, pieces: Sequence[str]) -> None:
        with transaction.atomic():
            self._lock()
            size = sum(len(piece.encode()) for piece in pieces)
            VectorStoreFile.objects.filter(pk=self.row.pk).update(status=Status.COMPLETED, usage_bytes=size)

    def _lock(self) -> None:
        self.job.hold()
        if not _files(self.job.id).filter(pk=self.row.pk).select_for_update().exists():
            raise FileDetachedError


def claim_model(*, store: VectorStore, model: str, dimensions: int) -> None:
    """Record the embedding model of the store. Raise StorageError if it was filled with another one."""
    with transaction.atomic():
        row = VectorStore.objects.select_for_update().filter(pk=store.pk).first()
        if row is None:
            raise FileDetachedError
        if row.embedding_model not in {"", model} or row.dimensions not in {None, dimensions}:
            raise StorageError("The vector store was filled with another embedding model.")
        row.embedding_model, row.dimensions = model, dimensions
        row.save(update_fields=["embedding_model", "dimensions"])


def groups(pieces: Sequence[str], done: int) -> Iterator[tuple[int, list[str]]]:
    """Yield the remaining chunks in groups, each with the position of its first chunk."""
    for start in itertools.count(done, AT_ONCE):
        if start >= len(pieces):
            return
        yield start, list(pieces[start : start + AT_ONCE])


def _files(job_id: uuid.UUID) -> Any:
    return VectorStoreFile.objects.filter(job_id=job_id, status=Status.IN_PROGRESS)
