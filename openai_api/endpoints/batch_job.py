"""The job of a batch: validate the input, run it group by group, store the results.

Each group ends with a checkpoint. After a crash, results up to the checkpoint are kept and the lines of the interrupted
group run again. Only one run writes at a time: a run that lost the job's claim writes to files that are not read, and
not to the database. When the key's daily quota is used up, the job is postponed to the next day; when this server's
disk is full, for a minute, after which any worker may take it.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from io import BytesIO
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.handlers.asgi import ASGIRequest
from django.db import transaction
from django.http.response import HttpResponseBase
from django.utils import timezone

from core.ids import new_id
from jobs.errors import JobCancelled, JobPostponed
from jobs.running_job import RunningJob
from openai_api.backend import get_backend
from openai_api.decisions.endpoint import create_decision
from openai_api.endpoints.anthropic_messages import create_message
from openai_api.endpoints.chat import create_chat_completion
from openai_api.endpoints.completions import create_completion
from openai_api.endpoints.embeddings import create_embeddings
from openai_api.endpoints.moderations import create_moderations
from openai_api.endpoints.rerank import rerank, score
from openai_api.http.call import Call
from openai_api.http.endpoint import Handler, answer_as
from openai_api.http.errors import MESSAGES
from openai_api.keys.quotas import end_of_day
from openai_api.keys.record import KeyRecord
from openai_api.keys.scopes import Scope
from openai_api.media import videos
from openai_api.media.images import create_image
from openai_api.responses.endpoints import create_response
from storage.batch_lines import BatchLine, LineError, lines_from, validate_lines
from storage.batch_results import BatchResults, Checkpoint, Result
from storage.batches import Status, finish_batch, note_progress, start_batch
from storage.blobs import BlobStore
from storage.errors import StorageError, StorageFullError
from storage.files import find_file
from storage.models import Batch

IMAGES, VIDEOS = "/v1/images/generations", "/v1/videos"
HANDLERS: Mapping[str, Handler] = {
    "/v1/chat/completions": create_chat_completion,
    "/v1/completions": create_completion,
    "/v1/embeddings": create_embeddings,
    "/v1/responses": create_response,
    "/v1/moderations": create_moderations,
    "/v1/decisions": create_decision,
    "/v1/rerank": rerank,
    "/v1/score": score,
    MESSAGES: create_message,
    IMAGES: create_image,
    VIDEOS: videos.create,  # the answer is the queued video
}
TRANSIENT = {429, 503}
MAX_ATTEMPTS = 30
MAX_PAUSE_S = 30.0
QUIET_POLL_S = 0.25


class QuotaUsedUpError(Exception):
    """The key's daily quota is used up; it resets the next day."""


async def answer_line(line: BatchLine, *, endpoint: str, key: KeyRecord | None) -> Result:
    """Run one line on its endpoint, retrying with backoff while the server is busy.

    Raises QuotaUsedUpError, except for a line that needs more than the quota of a whole day: it fails with its error.
    """
    for attempt in range(MAX_ATTEMPTS):
        await until_quiet()
        call = Call(request_of(line, endpoint), endpoint, is_background=True, source="job")
        scope = Scope.MEDIA if endpoint in {IMAGES, VIDEOS} else Scope.GENERATE
        response = await answer_as(call, key, HANDLERS[endpoint], scope=scope)
        if call.error_code == "insufficient_quota" and "Retry-After" in response.headers:
            raise QuotaUsedUpError
        is_final = response.status_code not in TRANSIENT or response.headers.get("x-should-retry") == "false"
        if is_final or attempt == MAX_ATTEMPTS - 1:
            break
        await asyncio.sleep(pause_s(response, attempt))
    body = json.loads(response.content)  # type: ignore[attr-defined]  # batches do not stream
    is_error = response.status_code >= 400
    answer = {"status_code": response.status_code, "request_id": call.id, "body": body}
    return Result(line.number, line.end, record_of(line, response=answer), is_error, usage_of(body))


def record_of(line: BatchLine, *, response: Any = None, error: Any = None) -> dict[str, Any]:
    """Return one line of the results file."""
    return {"id": new_id("batch_req_"), "custom_id": line.custom_id, "response": response, "error": error}


def expired(line: BatchLine) -> Result:
    message = "This request could not be executed before the completion window expired."
    record = record_of(line, error={"code": "batch_expired", "message": message})
    return Result(line.number, line.end, record, is_error=True)


async def until_quiet() -> None:
    """Wait while interactive requests wait for the engine."""
    client = get_backend().client()
    while client.stats().waiting > 0:  # noqa: ASYNC110 - the engine has no event for it
        await asyncio.sleep(QUIET_POLL_S)


def request_of(line: BatchLine, endpoint: str) -> ASGIRequest:
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(line.body)).encode())]
    scope = {"type": "http", "method": "POST", "path": endpoint, "query_string": b"", "headers": headers}
    return ASGIRequest(scope, BytesIO(line.body))


def pause_s(response: HttpResponseBase, attempt: int) -> float:
    asked = response.headers.get("Retry-After", "")
    retry_after_s = float(asked) if asked.isdigit() else 0.0
    return min(MAX_PAUSE_S, max(retry_after_s, 0.25 * 2.0**attempt))


def usage_of(body: Any) -> dict[str, int]:
    """Return the usage under the names of responses, whether the endpoint uses those or a completion's."""
    usage = body.get("usage") or {}
    read, written = (
        usage.get(f"{new}_tokens_details") or usage.get(f"{old}_tokens_details") or {}
        for new, old in (("input", "prompt"), ("output", "completion"))
    )
    return {
        "input_tokens": usage.get("input_tokens", usage.get("prompt_tokens", 0)),
        "cached_tokens": read.get("cached_tokens", 0),
        "output_tokens": usage.get("output_tokens", usage.get("completion_tokens", 0)),
        "reasoning_tokens": written.get("reasoning_tokens", 0),
    }


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
        text = "The disk of the server that processed the batch is full. The batch continues on any server in a minute."
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
    """One run of the job. ``done`` is what a checkpoint holds."""

    def __init__(self, job: RunningJob, batch: Batch, results: BatchResults, done: Checkpoint) -> None:
        self.job = job
        self.batch = batch
        self.results = results
        self.done = done

    def work(self) -> Batch:
        """Run the batch and return it once it has ended."""
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
            for wave in line_groups(self._lines(path), MAX_AT_ONCE * WAVE):
                if timezone.now() >= self.batch.expires_at:
                    return self._expire(itertools.chain(wave, self._lines(path, after=wave[-1])))
                BlobStore.from_settings().check_room(0)  # before generating anything that could not be stored
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
        """Postpone the job to the next day, when the key's quota resets, or to the batch's expiry."""
        until = min(end_of_day(timezone.now()), self.batch.expires_at)
        raise JobPostponed(
            until, f"The key's daily quota is used up. The batch continues at {until:%Y-%m-%d %H:%M} UTC."
        )

    async def _answer(self, wave: Sequence[BatchLine]) -> list[Result | None]:
        """Run all lines of a group, a few at once; None for lines that wait for the key's next day.

        Raises what ends the run while the lines are in progress.
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
        """Poll until the job is cancelled or its process stops, then raise. Never returns."""
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
        for lines in line_groups(rest, 1_000):
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
        raise KeyGoneError("The API key that created this batch is no longer valid.")

    def _num_at_once(self) -> int:
        """Return how many lines run at once: at most half of the engine's slots; one image, as the worker does."""
        if self.batch.endpoint == IMAGES:
            return 1
        return max(1, min(MAX_AT_ONCE, settings.MILLM_MAX_BATCH_SIZE // 2))


def line_groups(lines: Iterator[BatchLine], size: int) -> Iterator[list[BatchLine]]:
    while wave := list(itertools.islice(lines, size)):
        yield wave
