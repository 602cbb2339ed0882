"""The media app, and the parts that a serving process starts: the client of the worker process."""

from __future__ import annotations

from django.apps import AppConfig
from django.conf import settings


class MediaConfig(AppConfig):
    name = "media"
    verbose_name = "Audio, images and videos"


def start_media() -> None:
    """Install the backend of media models. The worker process starts with the first model. For serving processes."""
    from core.runtime import runtime
    from inference.registry.media import MEDIA_BACKEND
    from media.backend import MEDIA_CLIENT, WorkerBackend, is_installed, note_death
    from media.client import MediaClient

    if is_installed() and runtime.find(MEDIA_CLIENT) is None:
        client = MediaClient(on_death=note_death)
        runtime.install(MEDIA_CLIENT, client)
        runtime.install(MEDIA_BACKEND, WorkerBackend(client))


def start_video_queue() -> None:
    """Start the thread that runs videos, once the registry can load their models. For serving processes."""
    from core.runtime import runtime
    from inference.registry.registry import get_registry
    from media.backend import MEDIA_CLIENT
    from media.queue import VIDEO_QUEUE, VideoQueue

    client = runtime.find(MEDIA_CLIENT)
    if client is not None and runtime.find(VIDEO_QUEUE) is None:
        stall_s = settings.MILLM_JOB_STALL_SECONDS
        queue = VideoQueue(client, lambda name: get_registry().ready_card(name), stall_s=stall_s)
        runtime.install(VIDEO_QUEUE, queue)
        queue.start()


def stop_media() -> None:
    """Return the running video to the queue and end the worker process; its requests fail."""
    from core.runtime import runtime
    from inference.registry.media import MEDIA_BACKEND
    from media.backend import MEDIA_CLIENT
    from media.queue import VIDEO_QUEUE

    queue = runtime.remove(VIDEO_QUEUE)
    if queue is not None:
        queue.stop()
    client = runtime.remove(MEDIA_CLIENT)
    runtime.remove(MEDIA_BACKEND)
    if client is not None:
        client.stop()
