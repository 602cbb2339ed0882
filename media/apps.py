"""The media app, and the parts that a serving process starts: the client of the worker process."""

from __future__ import annotations

from django.apps import AppConfig


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


def stop_media() -> None:
    """End the worker process; its requests fail."""
    from core.runtime import runtime
    from inference.registry.media import MEDIA_BACKEND
    from media.backend import MEDIA_CLIENT

    client = runtime.remove(MEDIA_CLIENT)
    runtime.remove(MEDIA_BACKEND)
    if client is not None:
        client.stop()
