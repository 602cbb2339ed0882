"""The queue of videos: a thread of a serving process that runs one video after the other in the media worker.

The rows are the queue. A run holds its row with a claim and a heartbeat, so several processes share the work, and
a row whose process is gone is queued again. See media/videos.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

from django.db import InterfaceError, OperationalError

from core.database import in_database, in_thread
from core.errors import MillmError
from core.runtime import Service
from inference.registry.model_card import Card
from media.client import MediaClient, WorkerDiedError
from media.messages import GenerateVideo, Progress, VideoFormat
from media.models import Video
from media.videos import (
    MAX_ATTEMPTS,
    beat,
    claim_next,
    delete_orphans,
    drafts,
    expire_videos,
    fail_video,
    finish_video,
    keep_outputs,
    recover_stalled,
    release_video,
    video_store,
)
from storage.blobs import Blob

logger = logging.getLogger(__name__)
T = TypeVar("T")
POLL_S = 2.0  # finds videos that other processes queued
TICK_S = 0.5  # between writes of the progress
BEAT_S = 2.0  # between heartbeats, at most
ORPHANS_S = 3_600.0  # between searches for files without a row
FAULT_PAUSE_S = 5.0
WAIT_S = 2.0  # after the worker died
ONCE_MORE = frozenset({"media_worker_died", "model_unloaded"})
FINAL = frozenset({"model_load_failed", "out_of_memory"})  # of errors with the status 503


class RowLostError(Exception):
    """The video was deleted, or another process took it over."""


class StoppingError(Exception):
    """The process is stopping."""


class VideoQueue:
    """Runs queued videos. ``ready`` loads a model, as :meth:`ModelRegistry.ready_card` does."""

    def __init__(
        self,
        client: MediaClient,
        ready: Callable[[str], Awaitable[Card]],
        *,
        stall_s: float,
        tick_s: float = TICK_S,
        poll_s: float = POLL_S,
    ) -> None:
        self._client = client
        self._ready = ready
        self._stall_s = stall_s
        self._beat_s = min(BEAT_S, stall_s / 6)
        self._tick_s = tick_s
        self._poll_s = poll_s
        self._running: Video | None = None
        self._progress = 0
        self._is_stopping = False
        self._changed = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="video-queue", daemon=True)
        self._last_contact = time.monotonic()
        self._orphans_at = 0.0

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        """Look for videos to start and for deleted ones. Callable from any thread."""
        loop = self._loop
        if loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self._changed.set)

    def stop(self, timeout_s: float = 5.0) -> None:
        """Return the running video to the queue and end the thread."""
        self._is_stopping = True
        self.wake()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    async def run_next(self) -> bool:
        """Run the oldest video that may start; False if there is none."""
        self._loop = asyncio.get_running_loop()
        row = await in_database(claim_next)
        if row is None:
            return False
        self._running, self._progress = row, row.progress
        try:
            await self._run(row)
        finally:
            self._running = None
        return True

    async def sweep(self) -> None:
        """Recover the videos of processes that are gone, and delete files that are not needed any more.

        After an outage of the database all heartbeats are old: then none is recovered.
        """
        own = self._running.claim if self._running is not None else None
        silent_s = time.monotonic() - self._last_contact
        await in_database(expire_videos)
        self._last_contact = time.monotonic()
        if silent_s < self._stall_s:
            await in_database(lambda: recover_stalled(stall_s=self._stall_s, own=own))
        if time.monotonic() >= self._orphans_at:
            self._orphans_at = time.monotonic() + ORPHANS_S
            await in_thread(delete_orphans)

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        sweeps = asyncio.create_task(self._sweep_forever())
        while not self._is_stopping:
            try:
                if not await self.run_next():
                    await self._wait(self._poll_s)
            except (OperationalError, InterfaceError) as error:
                logger.warning("The queue of videos cannot reach the database (%s). Retrying.", error)
                await self._wait(FAULT_PAUSE_S)
            except Exception:
                logger.exception("The queue of videos failed. Retrying.")
                await self._wait(FAULT_PAUSE_S)
        sweeps.cancel()

    async def _sweep_forever(self) -> None:
        while True:
            try:
                await self.sweep()
            except Exception as error:  # noqa: BLE001 - the next sweep may succeed
                logger.warning("The videos could not be swept (%s). Retrying.", error)
            await asyncio.sleep(self._stall_s / 3)

    async def _wait(self, seconds: float) -> None:
        """Wait until :meth:`wake` is called, at most so long."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._changed.wait(), seconds)
        self._changed.clear()

    async def _run(self, row: Video) -> None:
        """Run a claimed video; whatever happens becomes its status."""
        try:
            outputs = await self._watched(row)
            await self._insist(lambda: finish_video(claim=row.claim, outputs=outputs))
        except RowLostError:
            logger.info("The video %s was deleted or taken over while it ran.", row.public_id)
        except StoppingError:
            await self._insist(lambda: release_video(claim=row.claim, wait_s=0.0, is_counted=False))
        except MillmError as error:
            await self._insist(partial(_end_badly, row, error))
        except Exception:
            logger.exception("The video %s failed.", row.public_id)
            failure = MillmError("The server failed to make this video.", status=500, code="server_error")
            await self._insist(partial(_end_badly, row, failure))

    async def _watched(self, row: Video) -> dict[str, Blob]:
        """Return the files of the video, or raise what ends the run: RowLostError, StoppingError, MillmError."""
        work = asyncio.create_task(self._generate(row))
        watch = asyncio.create_task(self._watch(row))
        try:
            await asyncio.wait({work, watch}, return_when=asyncio.FIRST_COMPLETED)
            return await (work if work.done() else watch)
        finally:
            for task in (work, watch):
                task.cancel()
            await asyncio.gather(work, watch, return_exceptions=True)

    async def _watch(self, row: Video) -> dict[str, Blob]:
        """Write heartbeats and progress until the row is lost or the process stops, then raise. Never returns."""
        told, told_at = row.progress, time.monotonic()
        while True:
            await self._wait_for_tick()
            if self._is_stopping:
                raise StoppingError
            progress, now = self._progress, time.monotonic()
            if progress == told and now - told_at < self._beat_s and not self._changed.is_set():
                continue
            self._changed.clear()
            try:
                is_held = await in_database(beat, claim=row.claim, progress=progress)
            except (OperationalError, InterfaceError) as error:
                logger.warning("The heartbeat of the video %s could not be written: %s", row.public_id, error)
                continue
            if not is_held:
                raise RowLostError
            told, told_at = progress, now

    async def _wait_for_tick(self) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._changed.wait(), self._tick_s)

    async def _generate(self, row: Video) -> dict[str, Blob]:
        await self._ready(row.model)
        with drafts() as paths, contextlib.ExitStack() as stack:
            image: Path | None = None
            if row.reference:
                image = await asyncio.to_thread(stack.enter_context, video_store().local(row.reference))
            try:
                task = self._client.submit(_request(row, paths, image))
            except WorkerDiedError as error:  # it died after the model was loaded, and nobody noticed yet
                raise MillmError(error.message, status=503, code="model_not_ready", retry_after_s=WAIT_S) from None
            try:
                async for event in task:
                    if isinstance(event, Progress) and event.total:
                        self._progress = max(self._progress, min(99, int(100 * event.done / event.total)))
            finally:
                task.cancel()
            return await asyncio.to_thread(keep_outputs, paths)

    async def _insist(self, work: Callable[[], T]) -> T | None:
        """Run ``work``, again while the database is away. When the process stops, the sweep does what is left."""
        while True:
            try:
                return await in_database(work)
            except (OperationalError, InterfaceError) as error:
                logger.warning("The queue of videos waits for the database (%s).", error)
            if self._is_stopping:
                return None
            await asyncio.sleep(self._tick_s)


def _request(row: Video, paths: dict[VideoFormat, Path], image: Path | None) -> GenerateVideo:
    options = row.options
    return GenerateVideo(
        task="",
        model=row.model,
        prompt=row.prompt,
        width=row.width,
        height=row.height,
        num_frames=row.num_frames,
        fps=row.fps,
        seed=row.seed,
        outputs=paths,
        steps=options.get("steps"),
        guidance=options.get("guidance"),
        negative_prompt=options.get("negative_prompt"),
        flow_shift=options.get("flow_shift"),
        strength=options.get("strength"),
        image=image,
    )


def _end_badly(row: Video, error: MillmError) -> None:
    """Return the video to the queue if another attempt may succeed, else mark it as failed."""
    code = error.code or "server_error"
    if code in ONCE_MORE and row.attempts < MAX_ATTEMPTS:
        release_video(claim=row.claim, wait_s=WAIT_S, is_counted=True)
    elif error.status == 503 and code not in FINAL | ONCE_MORE:
        release_video(claim=row.claim, wait_s=error.retry_after_s or FAULT_PAUSE_S, is_counted=False)
    else:
        logger.info("The video %s failed: %s", row.public_id, error.message)
        fail_video(claim=row.claim, code=code, message=error.message)


def _no_queue() -> VideoQueue:
    raise RuntimeError("This process does not run videos.")


VIDEO_QUEUE: Service[VideoQueue] = Service(_no_queue)
