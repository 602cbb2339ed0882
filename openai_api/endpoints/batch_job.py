"""The job of a batch: validate the input, run its lines in a window that slides over them, store the results.

Results are written as lines end, so after a crash only the lines that were in progress run again. Only one run writes
at a time: a run that lost the job's claim writes to files that are not read, and not to the database. When the key's
daily quota is used up, the job is postponed to the next day; when this server's disk is full, for a minute, after which
any worker may take it; when its turn is over and batches of others wait, it returns to the queue.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time
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
from core.runtime import Service, runtime
from inference.runs import total_batch_size
from jobs.errors import JobCancelled, JobLost, JobPostponed, JobYielded
from jobs.running_job import RunningJob, retry_while_db_down
from openai_api.backend import get_backend
from openai_api.database import in_database_however_long
from openai_api.decisions.endpoint import create_decision
from openai_api.endpoints.anthropic_messages import create_message
from openai_api.endpoints.batch_window import MAX_LINES, BatchWindow, WindowShare, are_others_waiting
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
from storage.errors import StorageError, StorageFullError, StorageUnreachableError
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
    return Result(line.number, record_of(line, response=answer), is_error, usage_of(body))


def record_of(line: BatchLine, *, response: Any = None, error: Any = None) -> dict[str, Any]:
    """Return one line of the results file."""
    return {"id": new_id("batch_req_"), "custom_id": line.custom_id, "response": response, "error": error}


def expired(line: BatchLine) -> Result:
    message = "This request could not be executed before the completion window expired."
    record = record_of(line, error={"code": "batch_expired", "message": message})
    return Result(line.number, record, is_error=True)


async def until_quiet() -> None:
    """Wait while other requests wait for the engine."""
    client = get_backend().client()
    while are_others_waiting(client.stats()):  # noqa: ASYNC110 - the engine has no event for it
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


POLL_S = 0.25  # between attempts to start lines
SAVE_S = 1.0  # between checkpoints
MAX_AHEAD = 10_000  # lines that may end before one that takes long
WATCH_S = 1.0
DISK_PAUSE = timedelta(minutes=1)
OUT_OF_STORAGE = {
    StorageFullError: "The disk of the server that processed the batch is full.",
    StorageUnreachableError: "The server's file storage cannot be reached.",
}
BATCH_WINDOW = Service(
    lambda: BatchWindow(lambda: get_backend().client().stats(), lambda: total_batch_size(get_backend().client()))
)


class KeyGoneError(Exception):
    """The key that the batch was created with is revoked, expired or deleted."""


def run_batch(job: RunningJob) -> dict[str, Any]:
    batch = Batch.objects.get(public_id=job.params["batch"])
    if batch.has_ended:
        return {"status": batch.status}
    try:
        return _run(job, batch)
    except (StorageFullError, StorageUnreachableError) as error:
        if timezone.now() >= batch.expires_at:
            raise
        text = f"{OUT_OF_STORAGE[type(error)]} The batch continues on any server in a minute."
        raise JobPostponed(timezone.now() + DISK_PAUSE, text) from error


def _run(job: RunningJob, batch: Batch) -> dict[str, Any]:
    results = BatchResults(batch.public_id, str(job.claim))
    run = BatchRun(job, batch, results, results.resume(Checkpoint.read(job.checkpoint)))
    try:
        batch = run.work()
    except (StorageFullError, StorageUnreachableError) as error:
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
        file = find_file(self.batch.input_file, owner_id=self.batch.owner_id, param="input_file_id")
        with BlobStore.from_settings().local(file.blob) as path:
            return self._work(path)

    def _work(self, path: Path) -> Batch:
        if self.batch.in_progress_at is None or self.done.number == 0:
            limit = settings.MILLM_MAX_BODY_BYTES
            validation = validate_lines(path, endpoint=self.batch.endpoint, max_line_bytes=limit)
            with transaction.atomic():
                self.job.hold()
                self.batch = start_batch(batch=self.batch, validation=validation)
            if self.batch.has_ended:
                return self.batch
        self.save()  # so that a run after a crash finds this run's results
        with runtime.get(BATCH_WINDOW).entry() as share:
            window = LineWindow(self, self._lines(path), share)
            with asyncio.Runner() as runner:
                runner.run(window.run())
        self.save()
        if window.is_expired:
            return self._expire(self._lines(path))
        if window.is_quota_used_up:
            self._postpone()
        if window.is_turn_over:
            raise JobYielded
        return self.finish(Status.COMPLETED)

    def finish(self, status: str, errors: Sequence[LineError] = ()) -> Batch:
        with transaction.atomic():
            self.job.hold()
            return finish_batch(batch=self.batch, status=status, done=self.done, errors=errors)

    def add(self, result: Result) -> None:
        """Write the result of a line. A run after a crash finds it, also if no checkpoint has been saved since."""
        self.done = self.results.append(self.done, [result])

    def save(self) -> None:
        """Save a checkpoint with all results."""
        done = self.done
        self.results.sync()
        retry_while_db_down(lambda: self._note_progress(done), self.job.stopping)
        self.job.save_checkpoint(done.as_json(), ends_turn=False)
        self.results.drop_others()
        self.job.progress(done.completed + done.failed, self.batch.total)

    async def key(self) -> KeyRecord | None:
        """Return the key that created the batch; None if it was created without one. Raise KeyGoneError."""
        if self.batch.api_key_id is None:
            return None
        now = timezone.now()
        for record in (await get_backend().keys()).values():
            if record.pk == self.batch.api_key_id and (record.expires_at is None or record.expires_at > now):
                return record
        raise KeyGoneError("The API key that created this batch is no longer valid.")

    @property
    def max_lines(self) -> int:
        """How many of its lines may run at once: one image, as the worker does."""
        return 1 if self.batch.endpoint == IMAGES else MAX_LINES

    def _note_progress(self, done: Checkpoint) -> None:
        with transaction.atomic():
            self.job.hold()
            note_progress(batch=self.batch, done=done)

    def _postpone(self) -> None:
        """Postpone the job to the next day, when the key's quota resets, or to the batch's expiry."""
        until = min(end_of_day(timezone.now()), self.batch.expires_at)
        raise JobPostponed(
            until, f"The key's daily quota is used up. The batch continues at {until:%Y-%m-%d %H:%M} UTC."
        )

    def _expire(self, rest: Iterator[BatchLine]) -> Batch:
        while lines := list(itertools.islice(rest, 1_000)):
            self.results.expect(lines)
            self.done = self.results.append(self.done, [expired(line) for line in lines])
            self.save()
        return self.finish(Status.EXPIRED)

    def _lines(self, path: Path) -> Iterator[BatchLine]:
        """Yield the lines that are not done."""
        done = self.done
        lines = lines_from(path, offset=done.offset, number=done.number, max_line_bytes=settings.MILLM_MAX_BODY_BYTES)
        ahead = frozenset(done.ahead)
        return (line for line in lines if line.number not in ahead)


class LineWindow:
    """Runs lines, each as soon as the engine has room for it, until none is left or the run has to pause.

    It pauses when the batch expires, which cancels the running lines, and when the key's quota is used up or the job's
    turn is over, after which the running lines end.
    """

    def __init__(self, run: BatchRun, lines: Iterator[BatchLine], share: WindowShare) -> None:
        self._run = run
        self._lines = lines
        self._share = share
        self._next: BatchLine | None = next(lines, None)
        self._tasks: set[asyncio.Task[Result | None]] = set()
        self._saving: asyncio.Task[bool] | None = None
        self._saved, self._saved_at = run.done, time.monotonic()
        self.is_expired = False
        self.is_quota_used_up = False
        self.is_turn_over = False

    async def run(self) -> None:
        """Raise what ends the run while lines are in progress: a cancelled job, a stopping process, a full disk."""
        watch = asyncio.create_task(self._watch())
        try:
            while not await self._step(watch):
                pass
        finally:
            for task in (*self._tasks, watch):
                task.cancel()
            await asyncio.gather(*self._pending(watch), return_exceptions=True)

    async def _step(self, watch: asyncio.Task[None]) -> bool:
        """Start lines, wait until something happens, and keep results. Return whether the window is finished."""
        left_s = (self._run.batch.expires_at - timezone.now()).total_seconds()
        self.is_expired = left_s <= 0
        if self.is_expired:
            return True
        await self._fill()
        if not self._tasks and (self._next is None or self._is_pausing):
            return True
        done, _ = await asyncio.wait(
            self._pending(watch), timeout=min(POLL_S, left_s), return_when=asyncio.FIRST_COMPLETED
        )
        self._keep(done)
        if watch in done:
            watch.result()
        self._save_if_due()
        return False

    def _pending(self, watch: asyncio.Task[None]) -> list[asyncio.Task[Any]]:
        return [watch, *self._tasks, *([self._saving] if self._saving is not None else ())]

    @property
    def _is_pausing(self) -> bool:
        return self.is_quota_used_up or self.is_turn_over

    async def _fill(self) -> None:
        """Start as many lines as the engine has room for."""
        if self._next is None or self._is_pausing or (self._tasks and len(self._run.done.ahead) >= MAX_AHEAD):
            return
        BlobStore.from_settings().check_room(0)  # before generating anything that could not be stored
        key = await self._run.key()
        while self._next is not None and self._share.try_start(self._run.max_lines):
            self._run.results.expect([self._next])
            self._tasks.add(asyncio.create_task(self._answer(self._next, key)))
            self._next = next(self._lines, None)

    async def _answer(self, line: BatchLine, key: KeyRecord | None) -> Result | None:
        """Return the line's result; None if it waits for the key's next day."""
        try:
            return await answer_line(line, endpoint=self._run.batch.endpoint, key=key)
        except QuotaUsedUpError:
            self.is_quota_used_up = True
            return None
        finally:
            self._share.end()

    def _keep(self, done: set[asyncio.Task[Any]]) -> None:
        """Write the results of lines that have ended."""
        for task in self._tasks & done:
            self._tasks.discard(task)
            result = task.result()
            if result is not None:
                try:
                    self._run.add(result)
                except FileNotFoundError:  # deleted by the run that replaced this one
                    raise JobLost from None

    def _save_if_due(self) -> None:
        """Save a checkpoint now and then, in a thread, while lines run."""
        if self._saving is not None and self._saving.done():
            saving, self._saving = self._saving, None
            self.is_turn_over = saving.result()
        now = time.monotonic()
        if self._saving is None and self._run.done is not self._saved and now - self._saved_at >= SAVE_S:
            self._saved, self._saved_at = self._run.done, now
            self._saving = asyncio.create_task(in_database_however_long(self._save))

    def _save(self) -> bool:
        """Save a checkpoint, and return whether the job's turn is over."""
        self._run.save()
        return self._run.job.is_turn_over()

    async def _watch(self) -> None:
        """Poll until the job is cancelled or its process stops, then raise. Never returns."""
        while True:
            await asyncio.sleep(WATCH_S)
            await in_database_however_long(self._run.job.check_cancelled)
