"""The tables of webhook endpoints, of the events queued for them, and of the attempts to deliver those."""

from __future__ import annotations

import base64
import ipaddress
import secrets
import uuid

from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.core.exceptions import ValidationError
from django.db import models
from django.db.models.functions import Now
from django.utils import timezone
from django.utils.crypto import salted_hmac

from core import ids
from core.outbound import OutboundError, OutboundRules, is_public, is_public_or_private, parse_url

SECRET_START = "whsec_"  # noqa: S105 - how secrets begin
MANAGE_ALL = "webhooks.manage_all_webhooks"


class EventType(models.TextChoices):
    """What an endpoint can subscribe to. The names of responses and batches are OpenAI's."""

    RESPONSE_COMPLETED = "response.completed", "response.completed"
    RESPONSE_FAILED = "response.failed", "response.failed"
    RESPONSE_CANCELLED = "response.cancelled", "response.cancelled"
    RESPONSE_INCOMPLETE = "response.incomplete", "response.incomplete"
    BATCH_COMPLETED = "batch.completed", "batch.completed"
    BATCH_FAILED = "batch.failed", "batch.failed"
    BATCH_EXPIRED = "batch.expired", "batch.expired"
    BATCH_CANCELLED = "batch.cancelled", "batch.cancelled"
    JOB_SUCCEEDED = "job.succeeded", "job.succeeded"
    JOB_FAILED = "job.failed", "job.failed"
    JOB_CANCELLED = "job.cancelled", "job.cancelled"
    WATCH_TRIGGERED = "watch.triggered", "watch.triggered"


TEST_EVENT = "webhook.test"  # sent on request, whatever the endpoint subscribes to


def outbound_rules() -> OutboundRules:
    """Return which addresses an endpoint may have, and how long an attempt may take."""
    is_allowed = is_public_or_private if settings.MILLM_WEBHOOK_PRIVATE_NETWORKS else is_public
    return OutboundRules(is_allowed=is_allowed, ports=None, timeout_s=settings.MILLM_WEBHOOK_TIMEOUT)


def validate_url(url: str) -> None:
    """Raise ValidationError for a URL that could never be called. The addresses of names are checked when sending."""
    try:
        host = parse_url(url).hostname or ""
    except OutboundError as error:
        raise ValidationError(error.message) from None
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        if host != "localhost" and not host.endswith(".localhost"):
            return
        address = ipaddress.ip_address("127.0.0.1")
    if not outbound_rules().is_allowed(address):
        raise ValidationError(
            f"The host `{host}` is not a public address. MILLM_WEBHOOK_PRIVATE_NETWORKS=true allows private ones."
        )


def new_salt() -> str:
    return secrets.token_hex(16)


def secret_of(salt: str) -> str:
    """Return the signing secret that belongs to a salt. It is derived from SECRET_KEY and stored nowhere."""
    digest = salted_hmac("jobs.webhooks", salt, algorithm="sha256").digest()
    return SECRET_START + base64.b64encode(digest).decode()


class WebhookEndpoint(models.Model):
    """A URL that receives events of its owner's objects. The database has only salts of its secrets."""

    SETTABLE = ("name", "url", "event_types", "is_enabled", "receives_all")

    name = models.CharField(max_length=100)
    url = models.CharField("URL", max_length=2_000, validators=[validate_url])
    event_types = ArrayField(models.CharField(max_length=40, choices=EventType.choices))
    is_enabled = models.BooleanField("enabled", default=True)
    receives_all = models.BooleanField(
        "events of everybody's objects",
        default=False,
        help_text="Otherwise only events of its owner's objects. The owner needs the permission to manage all "
        "webhooks.",
    )
    owner = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="webhook_endpoints", editable=False
    )
    secret_salt = models.CharField(max_length=32, default=new_salt, editable=False)
    old_secret_salt = models.CharField(max_length=32, blank=True, default="", editable=False)
    old_valid_until = models.DateTimeField(null=True, editable=False, help_text="Until then, both secrets sign.")
    rotated_at = models.DateTimeField(null=True, editable=False)
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        ordering = ("name", "pk")
        verbose_name = "webhook endpoint"
        permissions = (("manage_all_webhooks", "Can manage everybody's webhooks, and receive everybody's events"),)

    def __str__(self) -> str:
        return self.name

    @property
    def secret(self) -> str:
        return secret_of(self.secret_salt)

    @property
    def secret_hint(self) -> str:
        """The end of the secret, to recognise it."""
        return f"{SECRET_START}…{self.secret[-5:]}"

    @property
    def has_old_secret(self) -> bool:
        return self.old_valid_until is not None and self.old_valid_until > timezone.now()

    @property
    def signing_secrets(self) -> list[str]:
        """The secrets that sign now, the newest first."""
        return [self.secret, *([secret_of(self.old_secret_salt)] if self.has_old_secret else ())]


class WebhookDelivery(models.Model):
    """An event queued for an endpoint. The job ``job_id`` sends it, and tries again until ``give_up_at``."""

    class State(models.TextChoices):
        PENDING = "pending"
        DELIVERED = "delivered"
        FAILED = "failed"

    # Without a constraint, so that the end of a job, which queues an event, never fails when the endpoint is deleted.
    endpoint = models.ForeignKey(
        WebhookEndpoint, on_delete=models.CASCADE, related_name="deliveries", db_constraint=False
    )
    event_id = models.CharField("event", max_length=ids.MAX_LENGTH)
    event_type = models.CharField("type", max_length=40)
    data = models.JSONField()
    created_at = models.DateTimeField(default=timezone.now)
    state = models.CharField(max_length=10, choices=State, default=State.PENDING)
    num_attempts = models.PositiveIntegerField("attempts", default=0)
    next_attempt_at = models.DateTimeField("next attempt", null=True)
    give_up_at = models.DateTimeField("retried until")
    ended_at = models.DateTimeField("ended", null=True)
    error = models.CharField(max_length=300, blank=True, help_text="Why the delivery failed.")
    job_id = models.UUIDField(default=uuid.uuid4, editable=False)

    class Meta:
        ordering = ("-pk",)
        verbose_name = "webhook delivery"
        verbose_name_plural = "webhook deliveries"
        constraints = (models.UniqueConstraint(fields=("endpoint", "event_id"), name="webhook_event_once"),)
        indexes = (models.Index(fields=("state", "created_at"), name="webhook_delivery_state"),)

    def __str__(self) -> str:
        return f"{self.event_type} ({self.event_id})"


class WebhookAttempt(models.Model):
    """One request to an endpoint. ``status`` is that of the answer; without one, ``error`` says why."""

    delivery = models.ForeignKey(WebhookDelivery, on_delete=models.CASCADE, related_name="attempts")
    at = models.DateTimeField(default=timezone.now)
    status = models.PositiveSmallIntegerField(null=True)
    error = models.CharField(max_length=300, blank=True)
    took_ms = models.PositiveIntegerField()

    class Meta:
        ordering = ("pk",)

    def __str__(self) -> str:
        return f"{self.status or self.error}"

    @property
    def is_success(self) -> bool:
        return self.status is not None and 200 <= self.status < 300
