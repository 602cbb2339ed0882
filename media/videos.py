"""The rows and files of videos: create, claim, finish, delete, expire. The blobs have a store of their own."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from django.conf import settings
from django.db import transaction
from django.db.models import F
from django.db.models.functions import Greatest, Now
from django.utils import timezone

from core.errors import MillmError
from core.ids import MAX_LENGTH
from media.messages import VideoFormat
from media.models import Video
from storage.blobs import BLOCK, Blob, BlobStore, BlobWriter
from storage.sweep import ABANDONED_S

FORMATS: tuple[VideoFormat, ...] = ("mp4", "avi")
MAX_ATTEMPTS = 2  # a video whose process or worker died is started once more
MAX_WAITING = 1_000
RETRY_S = 60.0


class VideoNotFoundError(MillmError):
    status = 404
    code = "video_not_found"
    param = "video_id"


class TooManyVideosError(MillmError):
    """The queue is full."""

    status = 503
    code = "overloaded"


@dataclass(frozen=True, slots=True)
class VideoOrder:
    """What a client ordered. ``options``: of the pipeline; those that are None are left to it."""

    model: str
    prompt: str
    width: int
    height: int
    seconds: int
    fps: float
    num_frames: int
    seed: int
    options: Mapping[str, Any] = field(default_factory=dict)


def video_store() -> BlobStore:
    """Return the store of reference images and generated files."""
    return BlobStore.from_settings("videos")


def create_video(
    *,
    order: VideoOrder,
    owner_id: int | None,
    key_id: int | None,
    reference: BlobWriter | None = None,
    remixed_from: str = "",
) -> Video:
    """Queue a video. If the row cannot be written, the reference is deleted. Raise TooManyVideosError."""
    blob = reference.keep() if reference is not None else None
    try:
        with transaction.atomic():
            if Video.objects.waiting().count() >= MAX_WAITING:
                message = f"{MAX_WAITING} videos are waiting. Try again later."
                raise TooManyVideosError(message, retry_after_s=RETRY_S)
            return Video.objects.create(
                **{**asdict(order), "options": dict(order.options)},
                owner_id=owner_id,
                api_key_id=key_id,
                reference=blob.name if blob is not None else "",
                remixed_from=remixed_from,
            )
    except BaseException:
        if blob is not None:
            video_store().delete(blob.name)
        raise


def find_video(public_id: str, *, owner_id: int | None) -> Video:
    """Return the video. Raise VideoNotFoundError if it does not exist or belongs to another user."""
    found = None
    if len(public_id) <= MAX_LENGTH and "\0" not in public_id:
        found = Video.objects.of(owner_id).filter(public_id=public_id).first()
    if found is None:
        raise VideoNotFoundError(f"The video `{public_id[:64]}` does not exist.")
    return found


def delete_video(*, public_id: str, owner_id: int | None) -> None:
    """Delete the video and its files. A run notices that its row is gone. Raise VideoNotFoundError."""
    with transaction.atomic():
        pk = find_video(public_id, owner_id=owner_id).pk
        row = Video.objects.select_for_update().filter(pk=pk).first()
        if row is not None:
            row.delete()
            _delete_later(row.blobs)


def claim_next() -> Video | None:
    """Claim the oldest video that may start and return it; None if there is none."""
    with transaction.atomic():
        row = Video.objects.due().select_for_update(skip_locked=True).first()
        if row is None:
            return None
        row.status, row.claim = Video.Status.IN_PROGRESS, uuid.uuid4()
        row.attempts += 1
        row.started_at = row.started_at or timezone.now()
        row.heartbeat_at, row.not_before = timezone.now(), None
        row.save()
        return row


def beat(*, claim: uuid.UUID | None, progress: int) -> bool:
    """Write the heartbeat and the progress, which never falls; False if the run has lost its row."""
    rows = Video.objects.claimed(claim)
    return bool(rows.update(heartbeat_at=Now(), progress=Greatest("progress", progress)))


@contextlib.contextmanager
def drafts() -> Iterator[dict[VideoFormat, Path]]:
    """Provide paths for the worker to write to. What is there at the end of the block is deleted."""
    store = video_store()
    store.unfinished.mkdir(parents=True, exist_ok=True)
    store.check_room(0)
    paths = {name: store.unfinished / f"{uuid.uuid4().hex}.{name}" for name in FORMATS}
    try:
        yield paths
    finally:
        for path in paths.values():
            path.unlink(missing_ok=True)


def keep_outputs(paths: Mapping[VideoFormat, Path]) -> dict[str, Blob]:
    """Store the files of a video. If one cannot be stored, none is."""
    kept: dict[str, Blob] = {}
    try:
        for name, path in paths.items():
            with video_store().writing() as writer, path.open("rb") as file:
                while block := file.read(BLOCK):
                    writer.write(block)
                kept[name] = writer.keep()
    except BaseException:
        delete_blobs([blob.name for blob in kept.values()])
        raise
    return kept


def finish_video(*, claim: uuid.UUID | None, outputs: Mapping[str, Blob]) -> None:
    """Mark the video as completed. If the run has lost its row, the files are deleted."""
    now, days = timezone.now(), settings.MILLM_VIDEO_RETENTION_DAYS
    count = Video.objects.claimed(claim).update(
        status=Video.Status.COMPLETED,
        claim=None,
        progress=100,
        outputs={name: asdict(blob) for name, blob in outputs.items()},
        completed_at=now,
        expires_at=now + timedelta(days=days) if days else None,
    )
    if not count:
        delete_blobs([blob.name for blob in outputs.values()])


def fail_video(*, claim: uuid.UUID | None, code: str, message: str) -> None:
    """Mark the video as failed, and delete its reference."""
    with transaction.atomic():
        row = Video.objects.claimed(claim).select_for_update().first()
        if row is not None:
            _fail(row, code, message)


def release_video(*, claim: uuid.UUID | None, wait_s: float, is_counted: bool) -> None:
    """Return a video to the queue. ``is_counted``: the attempt counts."""
    Video.objects.claimed(claim).update(
        status=Video.Status.QUEUED,
        claim=None,
        heartbeat_at=None,
        not_before=Now() + timedelta(seconds=wait_s),
        attempts=F("attempts") - (0 if is_counted else 1),
    )


def recover_stalled(*, stall_s: float, own: uuid.UUID | None = None) -> int:
    """Queue videos again whose process is gone, or fail them after the last attempt; return how many there were.

    The run ``own`` of this process is never one of them.
    """
    old = Video.objects.filter(
        status=Video.Status.IN_PROGRESS, heartbeat_at__lt=Now() - timedelta(seconds=stall_s)
    ).exclude(claim=own)
    with transaction.atomic():
        rows = list(old.select_for_update(skip_locked=True))
        for row in rows:
            if row.attempts >= MAX_ATTEMPTS:
                _fail(row, "server_restarted", f"The server stopped {row.attempts} times while it made this video.")
            else:
                row.status, row.claim, row.heartbeat_at = Video.Status.QUEUED, None, None
                row.save(update_fields=("status", "claim", "heartbeat_at"))
    return len(rows)


def expire_videos() -> int:
    """Delete the files of videos whose time is over; the rows stay. Return how many there were."""
    old = Video.objects.filter(status=Video.Status.COMPLETED, expires_at__lte=Now()).exclude(outputs={}, reference="")
    with transaction.atomic():
        rows = list(old.select_for_update(skip_locked=True))
        for row in rows:
            _delete_later(row.blobs)
            row.outputs, row.reference = {}, ""
            row.save(update_fields=("outputs", "reference"))
    return len(rows)


def delete_orphans(*, older_than_s: float = ABANDONED_S) -> int:
    """Delete blobs without a row, of crashed processes and deleted users, and return how many there were."""
    store = video_store()
    old = set(store.names(older_than_s=older_than_s))
    if old:
        old -= {name for row in Video.objects.exclude(outputs={}, reference="").iterator() for name in row.blobs}
    delete_blobs(list(old))
    return len(old) + store.delete_unfinished(older_than_s=older_than_s)


def delete_blobs(names: Sequence[str]) -> None:
    store = video_store()
    for name in names:
        store.delete(name)


def _fail(row: Video, code: str, message: str) -> None:
    _delete_later(row.blobs)
    row.status, row.claim, row.reference, row.outputs = Video.Status.FAILED, None, "", {}
    row.error_code, row.error_message = code[:100], message
    row.save()


def _delete_later(names: list[str]) -> None:
    """Delete blobs once the transaction is committed."""
    transaction.on_commit(lambda: delete_blobs(names))
