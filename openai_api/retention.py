"""Delete stored responses and chats past their retention: a periodic job and the command `prune_kept`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from openai_api.responses.store import old_responses, prune_responses
from openai_api.stored_chats.store import old_chats, prune_chats

if TYPE_CHECKING:
    from jobs.running_job import RunningJob


def is_due() -> bool:
    return old_responses().exists() or old_chats().exists()


def prune_kept() -> dict[str, int]:
    """Delete old objects and return how many of each kind."""
    return {"responses": prune_responses(), "chat completions": prune_chats()}


def run_prune(job: RunningJob) -> dict[str, int]:
    job.progress(0, 1, "Deleting expired objects")
    counts = prune_kept()
    job.progress(1, 1)
    return counts
