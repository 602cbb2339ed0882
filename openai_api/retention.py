"""Delete stored responses, chats and webhook deliveries past their retention: a periodic job and `prune_kept`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobs.webhooks.services import lost_deliveries, old_deliveries, prune_deliveries
from openai_api.responses.store import old_responses, prune_responses
from openai_api.stored_chats.store import old_chats, prune_chats

if TYPE_CHECKING:
    from jobs.running_job import RunningJob


def is_due() -> bool:
    return any(rows.exists() for rows in (old_responses(), old_chats(), old_deliveries(), lost_deliveries()))


def prune_kept() -> dict[str, int]:
    """Delete old objects and return how many of each kind."""
    return {
        "responses": prune_responses(),
        "chat completions": prune_chats(),
        "webhook deliveries": prune_deliveries(),
    }


def run_prune(job: RunningJob) -> dict[str, int]:
    job.progress(0, 1, "Deleting expired objects")
    counts = prune_kept()
    job.progress(1, 1)
    return counts
