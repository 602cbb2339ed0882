"""The tables of jobs and of their log lines."""

from __future__ import annotations

import json
import uuid
from typing import Any

from django.conf import settings
from django.contrib.auth.models import AnonymousUser, User
from django.db import models
from django.db.models.functions import Now

from core.text import is_storable
from jobs.errors import NotStorableError
from jobs.lanes import Lane

MAX_ACCOUNT = 40
MANAGE_ALL = "jobs.manage_all_jobs"


class JobQuerySet(models.QuerySet["Job"]):
    def queued(self) -> JobQuerySet:
        return self.filter(state=Job.State.QUEUED)

    def due(self) -> JobQuerySet:
        """Return queued jobs that may start now."""
        return self.queued().filter(models.Q(not_before=None) | models.Q(not_before__lte=Now()))

    def ended(self) -> JobQuerySet:
        return self.filter(state__in=Job.ENDED)

    def visible_to(self, user: User | AnonymousUser) -> JobQuerySet:
        """Return the user's jobs, or all with the permission to manage all jobs.

        Those of webhooks are left out: each delivery has a page of its own.
        """
        found = self.exclude(lane=Lane.WEBHOOKS)
        return found if user.has_perm(MANAGE_ALL) else found.filter(owner=user.pk)

    def claimed(self, claim: uuid.UUID) -> JobQuerySet:
        """Return the row that a run may write to; none if the run has lost it."""
        return self.filter(claim=claim, state=Job.State.RUNNING)


class Job(models.Model):
    """A job. ``claim`` identifies the only run that may write to the row."""

    class State(models.TextChoices):
        QUEUED = "queued"
        RUNNING = "running"
        SUCCEEDED = "succeeded"
        FAILED = "failed"
        CANCELLED = "cancelled"

    ENDED = (State.SUCCEEDED, State.FAILED, State.CANCELLED)

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    kind = models.CharField(max_length=100)
    lane = models.CharField(
        max_length=20, choices=Lane, db_default=Lane.BULK.value, help_text="Lanes have workers of their own."
    )
    title = models.CharField(max_length=300)
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL)
    account = models.CharField(
        max_length=MAX_ACCOUNT,
        blank=True,
        db_default="",
        help_text="Whose turn in the lane the job uses: a user or an API key; empty: the server itself.",
    )
    priority = models.SmallIntegerField(
        default=0, help_text="Of an owner's jobs in a lane, those with a higher priority start first."
    )
    params = models.JSONField(default=dict)

    state = models.CharField(max_length=20, choices=State, default=State.QUEUED)
    done = models.PositiveBigIntegerField(default=0)
    total = models.PositiveBigIntegerField(default=0, help_text="0: unknown.")
    message = models.CharField(max_length=500, blank=True)
    checkpoint = models.JSONField(default=dict, help_text="Where the job resumes after a crash.")
    result = models.JSONField(default=dict)
    error = models.TextField(blank=True)
    cancel_requested = models.BooleanField(default=False)

    attempts = models.PositiveIntegerField(default=0, help_text="Number of starts.")
    crashes = models.PositiveIntegerField(default=0, help_text="Number of times its process crashed.")
    not_before = models.DateTimeField(null=True, help_text="Earliest start of a postponed job.")
    claim = models.UUIDField(null=True, unique=True, editable=False)
    worker = models.CharField(max_length=200, blank=True, help_text="The process that last ran it.")
    created_at = models.DateTimeField(db_default=Now())
    started_at = models.DateTimeField(null=True)
    claimed_at = models.DateTimeField(null=True, editable=False, help_text="The newest start.")
    finished_at = models.DateTimeField(null=True)
    heartbeat_at = models.DateTimeField(null=True)

    objects = JobQuerySet.as_manager()

    class Meta:
        ordering = ("-created_at",)
        permissions = (("manage_all_jobs", "Can see, cancel and retry everybody's jobs"),)
        indexes = (
            models.Index(fields=("state", "heartbeat_at"), name="job_state_heartbeat"),
            models.Index(fields=("-created_at",), name="job_newest_first"),
            models.Index(fields=("lane", "state", "account"), name="job_lane_queue"),
            models.Index(fields=("lane", "account", "-claimed_at"), name="job_lane_turns"),
        )
        constraints = (
            models.CheckConstraint(
                condition=models.Q(state="running", claim__isnull=False)
                | (~models.Q(state="running") & models.Q(claim__isnull=True)),
                name="job_claimed_while_running",
            ),
        )

    def __str__(self) -> str:
        return self.title

    @property
    def has_ended(self) -> bool:
        return self.state in self.ENDED


class JobLine(models.Model):
    """A line of a job's log."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="lines")
    at = models.DateTimeField(db_default=Now())
    text = models.TextField()

    class Meta:
        ordering = ("pk",)

    def __str__(self) -> str:
        return self.text[:80]


MAX_BYTES = 16 * 2**20


def check_storable(value: Any, name: str) -> dict[str, Any]:
    """Return ``value`` if Postgres can store it as a JSON object, otherwise raise NotStorableError."""
    if not isinstance(value, dict):
        raise NotStorableError(f"The {name} of a job must be an object, got {type(value).__name__}.")
    try:
        text = json.dumps(value, allow_nan=False, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise NotStorableError(f"The {name} of a job cannot be stored as JSON: {error}") from None
    if "\\u0000" in text or not is_storable(text):
        raise NotStorableError(f"The {name} of a job must not contain NUL or lone surrogates.")
    if len(text.encode()) > MAX_BYTES:
        raise NotStorableError(f"The {name} of a job must be at most {MAX_BYTES // 2**20} MiB.")
    return value
