"""The job that prunes the log, queued when there is something to prune."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from django.utils import timezone

from openai_api.models import LogAccess
from openai_api.request_log.access import record_access
from openai_api.request_log.retention import Retention, is_anything_old, prune_log

if TYPE_CHECKING:
    from jobs.running_job import RunningJob


def is_due() -> bool:
    return is_anything_old(Retention.from_settings(), timezone.now())


def run_prune(job: RunningJob) -> dict[str, Any]:
    pruned = prune_log(
        retention=Retention.from_settings(),
        tell=lambda count: job.progress(count, 0, f"{count:,} rows"),
    )
    record_access(act=LogAccess.Act.PRUNE, user=None, num_rows=pruned.rows, detail=asdict(pruned))
    return asdict(pruned)
