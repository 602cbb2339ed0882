"""Look up the jobs of stored objects."""

from __future__ import annotations

import uuid

from jobs.models import Job


def find_job(job_id: uuid.UUID | None) -> Job | None:
    """Return the job, or None if there is none or it was deleted."""
    return Job.objects.filter(pk=job_id).first() if job_id is not None else None
