"""The queue of videos: a stub of the worker, a real database and a real disk."""

from __future__ import annotations

import asyncio
import itertools
import sys
import uuid
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from core.errors import MillmError
from inference.registry.model_card import MediaCard, ModelLoadFailedError, ModelNotReadyError
from media.client import MediaClient
from media.messages import ModelSpec
from media.models import Video
from media.queue import VideoQueue
from media.videos import (
    MAX_WAITING,
    TooManyVideosError,
    VideoNotFoundError,
    VideoOrder,
    beat,
    claim_next,
    create_video,
    delete_orphans,
    delete_video,
    find_video,
    release_video,
    video_store,
)
from storage.blobs import BlobStore
from tests.database import in_thread

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.xdist_group("media")]
STUB = (sys.executable, "-m", "tests.media.stub_worker")
Ready = Callable[[str], Awaitable[Any]]


@pytest.fixture(autouse=True)
def home(settings: Any, tmp_path: Path) -> Path:
    settings.MILLM_HOME = tmp_path
    settings.MILLM_MIN_FREE_BYTES = 0
    return tmp_path


@pytest.fixture
def client() -> Iterator[MediaClient]:
    """Return a client that never waits before it starts another worker."""
    ticks = itertools.count(0, 1_000)
    client = MediaClient(command=STUB, clock=lambda: float(next(ticks)))
    yield client
    client.stop()


@pytest.fixture
def ready(client: MediaClient) -> Ready:
    async def ready(name: str) -> Any:
        facts = await asyncio.wrap_future(client.load(ModelSpec(name, "video", Path("/nowhere"))))
        return MediaCard(None, "video", facts)  # type: ignore[arg-type]  # nobody reads its record

    return ready


@pytest.fixture
def queue(client: MediaClient, ready: Ready) -> VideoQueue:
    return VideoQueue(client, ready, stall_s=30.0, tick_s=0.01, poll_s=0.01)


def order(prompt: str = "answer", **fields: Any) -> VideoOrder:
    shape = {"width": 64, "height": 32, "seconds": 1, "fps": 5.0, "num_frames": 5, "seed": 7}
    return VideoOrder(**{"model": "wan", "prompt": prompt, **shape, **fields})


def add(prompt: str = "answer", **fields: Any) -> Video:
    return create_video(order=order(prompt, **fields), owner_id=None, key_id=None)


def blobs() -> list[str]:
    return [path.name for path in video_store().root.rglob("*") if path.is_file()]


async def seen(video: Video) -> Video:
    await in_thread(video.refresh_from_db)
    return video


async def until(holds: Callable[[], Any]) -> None:
    async with asyncio.timeout(20):
        while not await in_thread(holds):  # noqa: ASYNC110 - another thread or process makes it hold
            await asyncio.sleep(0.005)


async def test_videos_run_in_the_order_of_their_creation(queue: VideoQueue) -> None:
    first, second = await in_thread(add), await in_thread(add)
    assert await queue.run_next()
    assert ((await seen(first)).status, (await seen(second)).status) == ("completed", "queued")
    assert (first.progress, first.attempts, first.claim) == (100, 1, None)
    assert first.started_at is not None
    assert first.completed_at is not None
    assert first.expires_at == first.completed_at + timedelta(days=7)
    assert {name: output["size"] for name, output in first.outputs.items()} == {"mp4": 13, "avi": 13}
    assert video_store().path(first.outputs["mp4"]["name"]).read_text() == "answer as mp4"
    assert await queue.run_next()
    assert not await queue.run_next()
    assert (await seen(second)).status == "completed"
    assert len(blobs()) == 4


async def test_files_may_be_kept_for_ever(queue: VideoQueue, settings: Any) -> None:
    settings.MILLM_VIDEO_RETENTION_DAYS = 0
    video = await in_thread(add)
    await queue.run_next()
    assert (await seen(video)).expires_at is None
    assert not video.has_expired


async def test_a_refusal_of_the_worker_is_the_videos_error(queue: VideoQueue) -> None:
    video = await in_thread(add, "refuse")
    await queue.run_next()
    assert (await seen(video)).status == "failed"
    assert (video.error_code, video.error_message) == ("invalid_value", "`size` is wrong.")
    assert blobs() == []


async def test_a_video_whose_worker_dies_runs_once_more(queue: VideoQueue) -> None:
    video = await in_thread(add, "die")
    await queue.run_next()
    assert (await seen(video)).status == "queued"
    assert video.attempts == 1
    assert not await queue.run_next()  # not at once
    await in_thread(lambda: Video.objects.update(prompt="answer", not_before=None))
    await queue.run_next()
    assert ((await seen(video)).status, video.attempts) == ("completed", 2)


async def test_a_video_whose_worker_dies_twice_fails(queue: VideoQueue) -> None:
    video = await in_thread(add, "die")
    await queue.run_next()
    await in_thread(lambda: Video.objects.update(not_before=None))
    await queue.run_next()
    assert ((await seen(video)).status, video.error_code) == ("failed", "media_worker_died")
    assert blobs() == []


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (ModelNotReadyError("It still loads.", 3.0), "queued", ""),
        (MillmError("Busy.", status=503, code="overloaded"), "queued", ""),
        (ModelLoadFailedError("It does not fit.", 3.0), "failed", "model_load_failed"),
        (MillmError("Gone.", status=404, code="model_not_found"), "failed", "model_not_found"),
        (RuntimeError("A bug."), "failed", "server_error"),
    ],
)
async def test_models_that_are_not_ready(client: MediaClient, error: Exception, status: str, code: str) -> None:
    async def ready(name: str) -> Any:
        raise error

    video = await in_thread(add)
    await VideoQueue(client, ready, stall_s=30.0, tick_s=0.01).run_next()
    assert ((await seen(video)).status, video.error_code) == (status, code)
    assert video.attempts == (0 if status == "queued" else 1)


async def test_a_worker_that_died_unnoticed_costs_no_attempt(client: MediaClient, home: Path) -> None:
    async def ready(name: str) -> Any:
        return None  # as the registry says until it has heard of the worker's end

    video = await in_thread(add)
    await VideoQueue(client, ready, stall_s=30.0, tick_s=0.01).run_next()
    assert ((await seen(video)).status, video.attempts) == ("queued", 0)


async def test_a_deleted_video_stops(queue: VideoQueue, client: MediaClient) -> None:
    video = await in_thread(add, "wait")
    running = asyncio.create_task(queue.run_next())
    await until(lambda: client.num_open == 1 and Video.objects.filter(status="in_progress").exists())
    await in_thread(lambda: delete_video(public_id=video.public_id, owner_id=None))
    queue.wake()
    async with asyncio.timeout(20):
        assert await running
    await until(lambda: client.num_open == 0)
    assert not await in_thread(Video.objects.exists)
    assert blobs() == []


async def test_a_video_that_another_process_took_over_is_left_to_it(queue: VideoQueue, client: MediaClient) -> None:
    video = await in_thread(add, "wait")
    running = asyncio.create_task(queue.run_next())
    await until(lambda: client.num_open == 1)
    other = uuid.uuid4()
    await in_thread(lambda: Video.objects.update(claim=other))
    queue.wake()
    async with asyncio.timeout(20):
        await running
    assert ((await seen(video)).status, video.claim) == ("in_progress", other)


async def test_a_stopping_process_returns_its_video(queue: VideoQueue, client: MediaClient) -> None:
    video = await in_thread(add, "wait")
    running = asyncio.create_task(queue.run_next())
    await until(lambda: client.num_open == 1)
    queue.stop()
    async with asyncio.timeout(20):
        await running
    assert ((await seen(video)).status, video.attempts, video.claim) == ("queued", 0, None)


async def test_a_video_of_a_process_that_is_gone_runs_again(queue: VideoQueue, client: MediaClient) -> None:
    video = await in_thread(add)
    await in_thread(claim_next)  # by a process that dies now
    await queue.sweep()
    assert (await seen(video)).status == "in_progress"  # its heartbeat is recent
    await in_thread(lambda: Video.objects.update(heartbeat_at=timezone.now() - timedelta(minutes=1), progress=40))
    await queue.sweep()
    assert ((await seen(video)).status, video.progress) == ("queued", 40)
    await queue.run_next()
    assert ((await seen(video)).status, video.attempts) == ("completed", 2)


async def test_a_video_that_loses_its_process_twice_fails(queue: VideoQueue) -> None:
    video = await in_thread(add)
    for _ in range(2):
        await in_thread(claim_next)
        await in_thread(lambda: Video.objects.update(heartbeat_at=timezone.now() - timedelta(minutes=1)))
        await queue.sweep()
    assert ((await seen(video)).status, video.error_code) == ("failed", "server_restarted")


async def test_progress_never_falls() -> None:
    await in_thread(add)
    row = await in_thread(claim_next)
    assert row is not None
    assert await in_thread(lambda: beat(claim=row.claim, progress=40))
    assert await in_thread(lambda: beat(claim=row.claim, progress=10))
    assert (await seen(row)).progress == 40
    await in_thread(lambda: release_video(claim=row.claim, wait_s=0, is_counted=True))
    assert not await in_thread(lambda: beat(claim=row.claim, progress=50))


async def test_the_thread_runs_videos_and_ends(queue: VideoQueue) -> None:
    video = await in_thread(add)
    queue.start()
    await until(lambda: Video.objects.filter(pk=video.pk, status="completed").exists())
    second = await in_thread(add)
    queue.wake()
    await until(lambda: Video.objects.filter(pk=second.pk, status="completed").exists())
    await asyncio.to_thread(queue.stop)
    assert not queue._thread.is_alive()


async def test_expired_files_are_deleted(queue: VideoQueue) -> None:
    video = await in_thread(add)
    await queue.run_next()
    await in_thread(lambda: Video.objects.update(expires_at=timezone.now() - timedelta(seconds=1)))
    assert (await seen(video)).has_expired
    await queue.sweep()
    assert ((await seen(video)).status, video.outputs) == ("completed", {})
    assert video.has_expired
    assert blobs() == []


def test_files_without_a_row_are_deleted(home: Path) -> None:
    with video_store().writing() as writer:
        writer.write(b"lost")
        writer.keep()
    with video_store().writing() as writer:
        writer.write(b"kept")
        video = create_video(order=order(), owner_id=None, key_id=None, reference=writer)
    (home / "videos" / "unfinished" / "draft.mp4").write_bytes(b"half")
    assert delete_orphans(older_than_s=-1.0) == 2
    assert blobs() == [video.reference]
    delete_video(public_id=video.public_id, owner_id=None)
    assert blobs() == []
    with pytest.raises(VideoNotFoundError):
        find_video(video.public_id, owner_id=None)


def test_a_full_queue_leaves_no_file() -> None:
    fields = asdict(order())
    Video.objects.bulk_create(Video(**fields) for _ in range(MAX_WAITING))
    with video_store().writing() as writer:
        writer.write(b"image")
        with pytest.raises(TooManyVideosError):
            create_video(order=order(), owner_id=None, key_id=None, reference=writer)
    assert blobs() == []


def test_the_files_of_videos_are_apart_from_uploads() -> None:
    assert video_store().root != BlobStore.from_settings().root
