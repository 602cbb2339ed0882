"""Create, change, rotate and delete webhook endpoints, test them, deliver events again, and delete old deliveries."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import timedelta

from django.conf import settings
from django.contrib.auth.models import AnonymousUser, User
from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import Exists, OuterRef, QuerySet
from django.utils import timezone

from audit.models import AuditEvent
from audit.record import record, record_deleted, record_saved, stored_fields
from jobs.claims import wake_workers
from jobs.errors import JobStateError
from jobs.lanes import Lane
from jobs.models import Job
from jobs.webhooks.models import MANAGE_ALL, WebhookDelivery, WebhookEndpoint, new_salt
from jobs.webhooks.outbox import give_up_at, queue_jobs, queue_test_event

MAX_GRACE = timedelta(days=7)
SECRETS = frozenset({"secret_salt", "old_secret_salt", "old_valid_until", "rotated_at", "created_at"})
BATCH = 500
LOST = "The delivery was interrupted repeatedly; see the server's log."


@dataclass(frozen=True, slots=True)
class CreatedSecret:
    """An endpoint with its new secret, which is shown once."""

    endpoint: WebhookEndpoint
    secret: str


def visible_endpoints(user: User | AnonymousUser) -> QuerySet[WebhookEndpoint]:
    """Return the user's endpoints, or all with the permission to manage all webhooks."""
    rows = WebhookEndpoint.objects.select_related("owner")
    return rows if user.has_perm(MANAGE_ALL) else rows.filter(owner=user.pk)


def visible_deliveries(user: User | AnonymousUser) -> QuerySet[WebhookDelivery]:
    """Return the deliveries to the endpoints that the user may see."""
    return WebhookDelivery.objects.select_related("endpoint").filter(endpoint__in=visible_endpoints(user))


@transaction.atomic
def create_endpoint(*, endpoint: WebhookEndpoint, user: User | None = None) -> CreatedSecret:
    """Save a new endpoint, which has an owner. Raise ValidationError."""
    endpoint.secret_salt = new_salt()
    _check(endpoint)
    endpoint.save(force_insert=True)
    record_saved(endpoint, before=None, user=user, leave_out=SECRETS)
    return CreatedSecret(endpoint, endpoint.secret)


@transaction.atomic
def change_endpoint(*, endpoint: WebhookEndpoint, user: User | None = None) -> None:
    """Save a changed endpoint. Raise ValidationError. Its secrets stay as they are in the database."""
    WebhookEndpoint.objects.select_for_update().filter(pk=endpoint.pk).first()
    before = stored_fields(endpoint)
    _check(endpoint)
    endpoint.save(update_fields=WebhookEndpoint.SETTABLE)
    record_saved(endpoint, before=before, user=user, leave_out=SECRETS)


@transaction.atomic
def rotate_secret(
    *, endpoint: WebhookEndpoint, grace: timedelta = timedelta(), user: User | None = None
) -> CreatedSecret:
    """Give the endpoint a new secret. For ``grace``, events are signed with the old one too. Raise ValidationError."""
    if not timedelta() <= grace <= MAX_GRACE:
        raise ValidationError(f"The old secret can sign for 0 to {MAX_GRACE.days} more days, got {grace}.")
    row = WebhookEndpoint.objects.select_for_update(of=("self",)).select_related("owner").get(pk=endpoint.pk)
    now = timezone.now()
    row.old_secret_salt, row.old_valid_until = (row.secret_salt, now + grace) if grace else ("", None)
    row.secret_salt = new_salt()
    row.rotated_at = now
    row.save(update_fields=("secret_salt", "old_secret_salt", "old_valid_until", "rotated_at"))
    until = f"signs until {row.old_valid_until:%Y-%m-%d %H:%M} UTC" if row.old_valid_until else "no longer signs"
    record(AuditEvent.Action.ROTATE, row, user=user, detail=f"the old secret {until}")
    return CreatedSecret(row, row.secret)


@transaction.atomic
def delete_endpoints(*, endpoints: QuerySet[WebhookEndpoint], user: User | None = None) -> None:
    """Delete endpoints with their deliveries. Events that are queued for them are not sent."""
    for endpoint in endpoints:
        record_deleted(endpoint, user=user)
        endpoint.delete()


@transaction.atomic
def send_test_event(*, endpoint: WebhookEndpoint) -> WebhookDelivery:
    """Queue a test event. Raise JobStateError if the endpoint is disabled."""
    if not endpoint.is_enabled:
        raise JobStateError(f'The endpoint "{endpoint}" is disabled. Enable it to send a test event.')
    return queue_test_event(endpoint)


@transaction.atomic
def redeliver(*, delivery: WebhookDelivery) -> WebhookDelivery:
    """Send an event now: again if it has been delivered or has failed, without waiting if it is pending."""
    row = WebhookDelivery.objects.select_for_update(of=("self",)).select_related("endpoint").get(pk=delivery.pk)
    if not row.endpoint.is_enabled:
        raise JobStateError(f'The endpoint "{row.endpoint}" is disabled. Enable it to deliver the event.')
    if row.state == WebhookDelivery.State.PENDING:
        Job.objects.queued().filter(pk=row.job_id).update(not_before=None)
        wake_workers(Lane.WEBHOOKS)
        return row
    row.state, row.error, row.ended_at = WebhookDelivery.State.PENDING, "", None
    row.give_up_at = give_up_at(timezone.now())
    row.job_id = uuid.uuid4()
    row.save()
    queue_jobs([row])
    return row


def old_deliveries() -> QuerySet[WebhookDelivery]:
    """Return deliveries older than MILLM_WEBHOOK_RETENTION_DAYS that have ended."""
    before = timezone.now() - timedelta(days=settings.MILLM_WEBHOOK_RETENTION_DAYS)
    return WebhookDelivery.objects.exclude(state=WebhookDelivery.State.PENDING).filter(created_at__lt=before)


def lost_deliveries() -> QuerySet[WebhookDelivery]:
    """Return pending deliveries without a job that could send them, such as after several crashes of its process."""
    jobs = Job.objects.filter(pk=OuterRef("job_id")).exclude(state__in=Job.ENDED)
    return WebhookDelivery.objects.filter(~Exists(jobs), state=WebhookDelivery.State.PENDING)


def prune_deliveries() -> int:
    """Mark lost deliveries as failed, delete old ones, and return how many were deleted."""
    lost_deliveries().update(
        state=WebhookDelivery.State.FAILED, error=LOST, ended_at=timezone.now(), next_attempt_at=None
    )
    count, old = 0, old_deliveries()
    while pks := list(old.order_by("pk").values_list("pk", flat=True)[:BATCH]):
        WebhookDelivery.objects.filter(pk__in=pks).delete()
        count += len(pks)
    return count


def _check(endpoint: WebhookEndpoint) -> None:
    endpoint.event_types = sorted(set(endpoint.event_types))
    endpoint.full_clean()
    if endpoint.receives_all and not endpoint.owner.has_perm(MANAGE_ALL):
        message = f"{endpoint.owner} may not receive everybody's events: this needs the permission {MANAGE_ALL}."
        raise ValidationError({"receives_all": message})
