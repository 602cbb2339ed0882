"""Queue events for the endpoints that receive them, in the transaction of the change that they report.

A process that is killed after the commit loses nothing: the rows of the deliveries and of their jobs are there, and any
worker sends them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import transaction
from django.utils import timezone

from core.ids import new_id
from jobs.claims import wake_workers
from jobs.lanes import Lane
from jobs.models import Job
from jobs.webhooks.models import MANAGE_ALL, TEST_EVENT, EventType, WebhookDelivery, WebhookEndpoint

DELIVER = "webhooks.deliver"


@dataclass(frozen=True, slots=True)
class Event:
    """What happened to an object.

    ``owner_id``: the object's owner. ``permission``: of objects that belong to nobody, the one that shows them.
    """

    type: EventType
    data: Mapping[str, Any]
    owner_id: int | None = None
    permission: str = ""


@transaction.atomic
def queue_events(events: Sequence[Event]) -> list[WebhookDelivery]:
    """Queue the events for every endpoint that receives them. Call it in the transaction of the change."""
    if not events:
        return []
    types = {event.type for event in events}
    rows = WebhookEndpoint.objects.filter(is_enabled=True, owner__is_active=True, event_types__overlap=list(types))
    endpoints = list(rows.select_related("owner"))
    deliveries: list[WebhookDelivery] = []
    for event in events if endpoints else ():
        event_id = new_id("evt_")
        found = (endpoint for endpoint in endpoints if _receives(endpoint, event))
        deliveries += [new_delivery(endpoint, event_id, event.type, event.data) for endpoint in found]
    return queue_deliveries(deliveries)


def queue_job_event(row: Job) -> None:
    """Queue the event of a job that has ended, in the transaction that ends it. Deliveries have no events."""
    if row.kind != DELIVER:
        data = {"id": str(row.pk), "kind": row.kind}
        queue_events([Event(EventType(f"job.{row.state}"), data, row.owner_id)])


@transaction.atomic
def queue_test_event(endpoint: WebhookEndpoint) -> WebhookDelivery:
    """Queue an event that only tests the endpoint."""
    (delivery,) = queue_deliveries([new_delivery(endpoint, new_id("evt_"), TEST_EVENT, {"id": str(endpoint.pk)})])
    return delivery


def new_delivery(endpoint: WebhookEndpoint, event_id: str, event_type: str, data: Mapping[str, Any]) -> WebhookDelivery:
    now = timezone.now()
    return WebhookDelivery(
        endpoint=endpoint,
        event_id=event_id,
        event_type=event_type,
        data=dict(data),
        created_at=now,
        give_up_at=give_up_at(now),
    )


def give_up_at(start: datetime) -> datetime:
    """Return until when deliveries are retried that start now."""
    return start + timedelta(hours=settings.MILLM_WEBHOOK_RETRY_HOURS)


@transaction.atomic
def queue_deliveries(deliveries: Sequence[WebhookDelivery]) -> list[WebhookDelivery]:
    """Save new deliveries, each with a job. Endpoints take turns in the lane, as owners do in others."""
    saved = WebhookDelivery.objects.bulk_create(deliveries)
    queue_jobs(saved)
    return saved


def queue_jobs(deliveries: Iterable[WebhookDelivery]) -> None:
    """Queue the jobs of saved deliveries."""
    jobs = [
        Job(
            pk=delivery.job_id,
            kind=DELIVER,
            lane=Lane.WEBHOOKS,
            account=f"webhook {delivery.endpoint_id}",
            title=f"Delivery of {delivery.event_type}",
            params={"delivery": delivery.pk},
        )
        for delivery in deliveries
    ]
    if jobs:
        Job.objects.bulk_create(jobs)
        wake_workers(Lane.WEBHOOKS)


def _receives(endpoint: WebhookEndpoint, event: Event) -> bool:
    """Return whether the endpoint's owner may see the object, and the endpoint subscribes to the event."""
    if event.type not in endpoint.event_types:
        return False
    if event.permission:
        return endpoint.owner.has_perm(event.permission)
    if event.owner_id is not None and endpoint.owner_id == event.owner_id:
        return True
    return endpoint.receives_all and endpoint.owner.has_perm(MANAGE_ALL)
