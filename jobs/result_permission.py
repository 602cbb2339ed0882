"""Who may see what a job found."""

from __future__ import annotations

from django.contrib.auth.models import User

from jobs.errors import UnknownKindError
from jobs.kinds import find_kind
from jobs.models import Job


def may_see_result(job: Job, user: User) -> bool:
    """Beside the right to see the job. A kind that this process does not know asks for nothing more."""
    try:
        needed = find_kind(job.kind).result_permission
    except UnknownKindError:
        return True
    return not needed or user.has_perm(needed)
