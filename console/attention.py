"""Notices about what needs attention. Each source is only read for users with its permission."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal
from urllib.parse import urlencode

from django.conf import settings
from django.contrib.auth.models import User
from django.template.defaultfilters import filesizeformat, pluralize
from django.urls import reverse
from django.utils import timezone

from console.load.history import SPANS, read_history, total
from inference.client import EngineError, get_client
from inference.models import LanguageModel
from jobs.models import Job
from openai_api.keys.services import visible_keys
from openai_api.request_log.summary import CLIENT_DISCONNECTED
from openai_api.request_log.writer import log_backlog
from steering.models import ProfileReview, WatchEvent
from steering.visibility import visible_profiles

LATELY = timedelta(days=1)
SOON = timedelta(days=7)
MAX_EACH = 3
MIN_REQUESTS, MIN_ERROR_SHARE = 20, 0.05  # from which errors of an hour need attention
SERVING = ("idle", "running", "draining")  # states of an engine process that needs no attention


@dataclass(frozen=True, slots=True)
class Notice:
    level: Literal["bad", "warn", "quiet"]
    text: str
    url: str = ""


def notices(user: User) -> list[Notice]:
    """Return the user's notices, most severe first."""
    found = [each for permission, source in SOURCES if user.has_perm(permission) for each in source(user)]
    return sorted(found, key=lambda notice: ("bad", "warn", "quiet").index(notice.level))


def _engine(user: User) -> Iterator[Notice]:
    try:
        stats = get_client().stats()
    except EngineError as error:
        yield Notice("bad", f"The engine is not running: {error}")
        return
    if not stats.is_up:
        yield Notice("bad", f"The engine is {stats.state}. {stats.error}".strip())
        return
    if stats.replicas and (down := [each for each in stats.replicas if each.state not in SERVING]):
        text = f"{len(down)} of {len(stats.replicas)} engine processes do not serve requests. {down[0].error}".strip()
        yield Notice("warn", text)
    if stats.restarts:
        yield Notice(
            "warn",
            f"The engine crashed and was restarted {stats.restarts} time{pluralize(stats.restarts)}; see the log.",
        )


def _models(user: User) -> Iterator[Notice]:
    for model in LanguageModel.objects.filter(state=LanguageModel.State.FAILED)[:MAX_EACH]:
        url = reverse("admin:inference_languagemodel_change", args=[model.pk])
        yield Notice("bad", f"The model {model.name} failed to load. {model.error}", url)


def _jobs(user: User) -> Iterator[Notice]:
    visible = Job.objects.visible_to(user)
    for job in visible.filter(state=Job.State.FAILED, finished_at__gte=timezone.now() - LATELY)[:MAX_EACH]:
        yield Notice(
            "warn", f'The job "{job.title}" failed. {job.error}', reverse("admin:jobs_job_change", args=[job.pk])
        )


def _reviews(user: User) -> Iterator[Notice]:
    """Yield open reviews that somebody else requested; users can't decide their own."""
    waiting = ProfileReview.objects.filter(state=ProfileReview.State.OPEN).exclude(requested_by=user)
    waiting = waiting.filter(profile__in=visible_profiles(user).order_by().values("pk"))
    for review in waiting.select_related("profile")[:MAX_EACH]:
        url = reverse("admin:steering_steeringprofile_review", args=[review.profile_id])
        yield Notice("warn", f"The draft of {review.profile.name} is waiting for a review.", url)


def _watch_events(user: User) -> Iterator[Notice]:
    count = WatchEvent.objects.filter(at__gte=timezone.now() - LATELY)[:1_000].count()
    if count:
        text = f"{count if count < 1_000 else '1,000 or more'} watch event{pluralize(count)} in the last 24 hours."
        yield Notice("quiet", text, reverse("admin:steering_watchevent_changelist"))


def _keys(user: User) -> Iterator[Notice]:
    now = timezone.now()
    ending = visible_keys(user).filter(revoked_at=None, expires_at__gte=now, expires_at__lte=now + SOON)
    for key in ending.order_by("expires_at")[:MAX_EACH]:
        url = reverse("admin:openai_api_apikey_change", args=[key.pk])
        yield Notice("quiet", f"The key {key.name} expires on {key.expires_at:%Y-%m-%d}.", url)


def _log(user: User) -> Iterator[Notice]:
    backlog = log_backlog()
    if backlog.dropped:
        yield Notice(
            "bad",
            f"The request log has lost {backlog.dropped} request{pluralize(backlog.dropped)} since the server started.",
        )


def _errors(user: User) -> Iterator[Notice]:
    """Yield a notice if many requests of the last hour failed. Clients that disconnected are no errors."""
    load = total(read_history(SPANS["hour"], timezone.now()))
    errors = {code: number for code, number in load.errors.items() if code != CLIENT_DISCONNECTED}
    failed = sum(errors.values())
    if load.requests < MIN_REQUESTS or failed < MIN_ERROR_SHARE * load.requests:
        return
    code = max(errors, key=lambda each: errors[each])
    text = f"{failed:,} of {load.requests:,} requests failed in the last hour, most often with {code or 'no code'}."
    query = urlencode({"code": code, "last": "hour", "source": "all"})
    url = f"{reverse('admin:openai_api_requestlog_changelist')}?{query}"
    yield Notice("warn", text, url if user.has_perm("openai_api.view_requestlog") else "")


def _disk(user: User) -> Iterator[Notice]:
    free = shutil.disk_usage(settings.MILLM_HOME).free
    if free < 2 * settings.MILLM_MIN_FREE_BYTES:
        yield Notice("warn", f"Only {filesizeformat(free)} free on the disk of MILLM_HOME.")


SOURCES: tuple[tuple[str, Callable[[User], Iterator[Notice]]], ...] = (
    ("inference.view_languagemodel", _engine),
    ("inference.view_languagemodel", _models),
    ("inference.view_languagemodel", _disk),
    ("openai_api.view_requestlog", _log),
    ("console.view_loadsample", _errors),
    ("jobs.view_job", _jobs),
    ("steering.review_steeringprofile", _reviews),
    ("steering.view_watchevent", _watch_events),
    ("openai_api.view_apikey", _keys),
)
