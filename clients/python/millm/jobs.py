"""Jobs of the server: progress, and waiting for the end."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import openai

from millm.transport import JSON, Transport

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 2.0
GROWTH = 1.5


@dataclass(frozen=True)
class Progress:
    """How far a job is. ``total`` is 0 while it is unknown. ``str(progress)`` is a line of text."""

    title: str
    state: str
    done: int
    total: int
    message: str

    def __str__(self) -> str:
        counted = f" {self.done} of {self.total}" if self.total else ""
        return f"{self.title}: {self.state}{counted}{', ' if self.message else ''}{self.message}"


OnProgress = Callable[[Progress], object] | None
"""Called with a :class:`Progress` whenever a job has moved on: ``progress=print`` shows a line each time."""


class JobFailedError(openai.OpenAIError):
    """A job of the server failed or was cancelled. ``job`` is the job as the server sent it, with its log lines."""

    def __init__(self, job: Mapping[str, Any]) -> None:
        super().__init__(f"{job['title']}: the job {job['state']}. {job['error'] or job['message']}".rstrip())
        self.job = job


def wait_for_job(transport: Transport, job: JSON, progress: OnProgress = None) -> JSON:
    """Poll a job until it ends, and return its result. Raise JobFailedError unless it succeeds.

    An interrupt (Ctrl-C) cancels the job.
    """
    seen, pause = None, FIRST_PAUSE_S
    try:
        while True:
            job = transport.api_get(f"jobs/{job['id']}")
            now = Progress(job["title"], job["state"], job["done"], job["total"], job["message"])
            if progress is not None and now != seen:
                progress(now)
            seen = now
            if job["state"] in {"succeeded", "failed", "cancelled"}:
                break
            time.sleep(pause)
            pause = min(pause * GROWTH, LONGEST_PAUSE_S)
    except KeyboardInterrupt:
        transport.api_post(f"jobs/{job['id']}/cancel")
        raise
    if job["state"] != "succeeded":
        raise JobFailedError(job)
    result: JSON = job["result"]
    return result
