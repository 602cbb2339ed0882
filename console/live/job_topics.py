"""``jobs``: how many have not ended; ``job:<id>``: how far one is. Without "manage all jobs", of one's own."""

from __future__ import annotations

import uuid

from django.contrib.auth.models import User
from django.db.models import QuerySet

from console.live.topic import Reading, Topic, register_topic
from jobs.models import Job


def read_jobs(user: User, rest: str) -> Reading:
    return {"open": _visible(user).filter(state__in=(Job.State.QUEUED, Job.State.RUNNING)).count()}


def read_job(user: User, rest: str) -> Reading | None:
    try:
        job = _visible(user).filter(pk=uuid.UUID(rest)).first()
    except ValueError:
        return None
    if job is None:
        return None
    return {"state": job.state, "done": job.done, "total": job.total, "message": job.message, "error": job.error}


def _visible(user: User) -> QuerySet[Job]:
    return Job.objects.all() if user.has_perm("jobs.manage_all_jobs") else Job.objects.filter(owner=user)


JOBS = register_topic(Topic("jobs", read_jobs, ("jobs.view_job",)))
JOB = register_topic(Topic("job", read_job, ("jobs.view_job",)))
