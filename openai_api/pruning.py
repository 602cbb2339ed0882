"""What is kept for clients goes after its time: by a job, by the command `prune_kept`, and beside requests."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

from openai_api.database import in_database
from openai_api.responses.retention import prune_responses
from openai_api.stored_chats.retention import prune_chats

if TYPE_CHECKING:
    from jobs.running_job import RunningJob

logger = logging.getLogger(__name__)
EVERY_S = 3_600.0


def prune_kept() -> dict[str, int]:
    """How many of each went."""
    return {"responses": prune_responses(), "chat completions": prune_chats()}


def run_prune(job: RunningJob) -> dict[str, int]:
    job.progress(0, 1, "Deleting what is kept for longer than the settings say")
    counts = prune_kept()
    job.progress(1, 1)
    return counts


class Pruning:
    """At most once an hour in a process, beside the request that happens to come then."""

    def __init__(self) -> None:
        self._next_at = 0.0
        self._tasks: set[asyncio.Task[None]] = set()

    def maybe(self, loop: asyncio.AbstractEventLoop) -> None:
        if time.monotonic() >= self._next_at:
            self._next_at = time.monotonic() + EVERY_S
            task = loop.create_task(_prune())
            self._tasks.add(task)  # the loop itself holds tasks weakly
            task.add_done_callback(self._tasks.discard)


async def _prune() -> None:
    try:
        counts = await in_database(prune_kept)
    except Exception:  # the next hour tries again, and no request waits for this
        logger.exception("What is kept for too long could not be deleted.")
    else:
        if any(counts.values()):
            logger.info("Deleted what was kept for long enough: %s.", counts)


_pruning = Pruning()
prune_now_and_then = _pruning.maybe
