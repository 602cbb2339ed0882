"""The job of a batch: check its input, answer it wave by wave, keep the results.

Each wave ends with a checkpoint, behind which nothing is done twice: after a crash the results are those until then,
and the lines of the wave that was lost are answered again. One run at a time writes: a run that lost the job's claim
writes into files that nobody reads, and not into the database. While the key's quota of the day is used up, the job
is postponed to the next day; while this server's disk is full, for a minute, after which any worker may take it.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from django.conf import settings
from django.db import transaction
from django.utils import timezone

from jobs.errors import JobCancelled, JobPostponed
from jobs.running_job import RunningJob
from openai_api.backend import get_backend
from openai_api.keys import KeyRecord
from openai_api.quotas import end_of_day
from openai_api.services.batch_line import QuotaUsedUpError, answer_line, expired
from storage.batch_lines import BatchLine, LineError, lines_from, validate_lines
from storage.batch_results import BatchResults, Checkpoint, Result
from storage.batches import Status, finish_batch, note_progress, start_batch
from storage.blobs import BlobStore
from storage.errors import StorageError, StorageFullError
from storage.files import find_file
from storage.models import Batch

MAX_AT_ONCE = 8
WAVE = 4  # times what runs at once
WATCH_S = 1.0
DISK_PAUSE = timedelta(minutes=1)


class KeyGoneError(Exception):
    """The key that the batch was created with is revoked, expired or deleted."""


def run_batch(job: RunningJob) -> dict[str, Any]:
    batch = Batch.objects.get(public_id=job.params["batch"])
    if batch.has_ended:
        return {"status": batch.status}
    try:
        return _run(job, batch)
    except StorageFullError as error:
        if timezone.now() >= batch.expires_at:
            raise
        text = "The disk of the server that worked on the batch is full. Any server goes on with it in a minute."
        raise JobPostponed(timezone.now() + DISK_PAUSE, text) from error


def _run(job: RunningJob, batch: Batch) -> dict[str, Any]:
    results = BatchResults(batch.public_id, str(job.claim))
    run = BatchRun(job, batch, results, results.resume(Checkpoint.read(job.checkpoint)))
    try:
        batch = run.work()
    except StorageFullError as error:
        if timezone.now() >= batch.expires_at:
            run.finish(Status.FAILED, [LineError(error.code, str(error))])
        raise
    except JobCancelled:
        run.finish(Status.CANCELLED)
        raise
    except (KeyGoneError, StorageError) as error:
        code = error.code if isinstance(error, StorageError) else "invalid_api_key"
        run.finish(Status.FAILED, [LineError(code, str(error))])
        raise
    return {"status": batch.status, "completed": batch.completed, "failed": batch.failed}


class BatchRun:
    """``done`` is what a checkpoint holds."""

    def __init__(self, job: RunningJob, batch: Batch, results: BatchResults, done: Checkpoint) -> None:
        self.job = job
        self.batch = batch
        self.results = results
        self.done = done

    def work(self) -> Batch:
        """The batch, which has ended."""
        path = self._input()
        if self.batch.in_progress_at is None or self.done.number == 0:
            limit = settings.MILLM_MAX_BODY_BYTES
            validation = validate_lines(path, endpoint=self.batch.endpoint, max_line_bytes=limit)
            with transaction.atomic():
                self.job.hold()
                self.batch = start_batch(batch=self.batch, validation=validation)
            if self.batch.has_ended:
                return self.batch
        with asyncio.Runner() as runner:
            for wave in waves(self._lines(path), MAX_AT_ONCE * WAVE):
                if timezone.now() >= self.batch.expires_at:
                    return self._expire(itertools.chain(wave, self._lines(path, after=wave[-1])))
                BlobStore.from_settings().check_room(0)  # before anything is generated that could not be kept
                answers = runner.run(self._answer(wave))
                self._keep(wave, [answer for answer in answers if answer is not None])
                if None in answers:
                    self._postpone()
        return self.finish(Status.COMPLETED)

    def finish(self, status: str, errors: Sequence[LineError] = ()) -> Batch:
        with transaction.atomic():
            self.job.hold()
            return finish_batch(batch=self.batch, status=status, done=self.done, errors=errors)

    def _postpone(self) -> None:
        """To the next day, when the key's quota begins again, or to the batch's end."""
        until = min(end_of_day(timezone.now()), self.batch.expires_at)
        raise JobPostponed(until, f"The key’s daily quota is used up. The batch goes on at {until:%Y-%m-%d %H:%M} UTC.")

    async def _answer(self, wave: Sequence[BatchLine]) -> list[Result | None]:
        """All lines of a wave, a few at once; None for those that wait for the key's next day.

        Raises what ends the run while they are under way.
        """
        key, turns = await self._key(), asyncio.Semaphore(self._num_at_once())
        is_used_up = False

        async def one(line: BatchLine) -> Result | None:
            nonlocal is_used_up
            async with turns:
                if is_used_up:
                    return None
                try:
                    return await answer_line(line, endpoint=self.batch.endpoint, key=key)
                except QuotaUsedUpError:
                    is_used_up = True
                    return None

        answers = asyncio.gather(*(one(line) for line in wave))
        watch = asyncio.ensure_future(self._watch())
        try:
            await asyncio.wait({answers, watch}, return_when=asyncio.FIRST_COMPLETED)
            return answers.result() if answers.done() else watch.result()
        finally:
            for task in (answers, watch):
                task.cancel()
            await asyncio.gather(answers, watch, return_exceptions=True)

    async def _watch(self) -> list[Result | None]:
        """Never returns: raises when the job is cancelled, or its process stops."""
        while True:
            await asyncio.sleep(WATCH_S)
            await asyncio.to_thread(self.job.check_cancelled)

    def _keep(self, lines: Sequence[BatchLine], results: Sequence[Result]) -> None:
        self.job.check_cancelled()
        self.done = self.results.append(self.done, [line.number for line in lines], results)
        with transaction.atomic():
            self.job.hold()
            note_progress(batch=self.batch, done=self.done)
        self.job.save_checkpoint(self.done.as_json())
        self.results.drop_others()
        self.job.progress(self.done.completed + self.done.failed, self.batch.total)

    def _expire(self, rest: Iterator[BatchLine]) -> Batch:
        for lines in waves(rest, 1_000):
            self._keep(lines, [expired(line) for line in lines])
        return self.finish(Status.EXPIRED)

    def _lines(self, path: Path, after: BatchLine | None = None) -> Iterator[BatchLine]:
        number, offset = (self.done.number, self.done.offset) if after is None else (after.number, after.end)
        lines = lines_from(path, offset=offset, number=number, max_line_bytes=settings.MILLM_MAX_BODY_BYTES)
        ahead = frozenset(self.done.ahead)
        return (line for line in lines if line.number not in ahead)

    def _input(self) -> Path:
        file = find_file(self.batch.input_file, owner_id=self.batch.owner_id, param="input_file_id")
        return BlobStore.from_settings().path(file.blob)

    async def _key(self) -> KeyRecord | None:
        if self.batch.api_key_id is None:
            return None
        now = timezone.now()
        for record in (await get_backend().keys()).values():
            if record.pk == self.batch.api_key_id and (record.expires_at is None or record.expires_at > now):
                return record
        raise KeyGoneError("The key that this batch was created with is no longer valid.")

    def _num_at_once(self) -> int:
        """Half of the engine's places at most are ever taken from those who wait."""
        return max(1, min(MAX_AT_ONCE, settings.MILLM_MAX_BATCH_SIZE // 2))


def waves(lines: Iterator[BatchLine], size: int) -> Iterator[list[BatchLine]]:
    while wave := list(itertools.islice(lines, size)):
        yield wave
