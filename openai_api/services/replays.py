"""Replays of logged requests, enqueued by page and command alike."""

from __future__ import annotations

from django.contrib.auth.models import User

from jobs.models import Job
from jobs.services import enqueue_job
from openai_api.apps import REPLAY
from openai_api.models import RequestLog
from steering.profiles.snapshot import DRAFT

AS_LOGGED = ""
NO_PROFILE = "none"
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


class ReplayError(Exception):
    """``str(error)`` is a sentence for people."""


def start_replay(*, row: RequestLog, profile: str = AS_LOGGED, owner: User | None = None) -> Job:
    """Enqueue it; ReplayError where the log does not hold enough of the request. ``profile`` may name another one."""
    check_replayable(row)
    if profile == AS_LOGGED and row.profile.endswith(DRAFT):
        raise ReplayError(f"{row.profile} was a draft that nobody kept; name a profile to replay the request with.")
    title = f"Replay {row.pk}" + (f" with {profile}" if profile else "")
    return enqueue_job(kind=REPLAY, params={"request": row.pk, "profile": profile}, owner=owner, title=title)


def check_replayable(row: RequestLog) -> None:
    """ReplayError says why the request cannot run again."""
    if row.endpoint not in (CHAT, COMPLETIONS):
        raise ReplayError(f"Requests to {row.endpoint} cannot be replayed; those to {CHAT} and {COMPLETIONS} can.")
    if not row.prompt or row.prompt.startswith("sha256:") or "dropped" in row.parameters:
        raise ReplayError("The log did not keep this request's text (see MILLM_LOG_CONTENT), so it cannot run again.")
