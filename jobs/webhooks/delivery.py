"""The job of a delivery: one attempt to send it, then success, another attempt later, or failure.

The format and the signature are those of Standard Webhooks, which OpenAI uses. An attempt that was cut off is repeated,
so an endpoint may get an event twice, with the same ``webhook-id``. Of the answer, only the status is read.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import random
import time
from collections.abc import Sequence
from datetime import datetime, timedelta

from django.db import transaction
from django.utils import timezone

from core.outbound import OutboundError, open_url, parse_url
from jobs.errors import JobPostponed
from jobs.running_job import RunningJob, retry_while_db_down
from jobs.webhooks.models import SECRET_START, WebhookAttempt, WebhookDelivery, outbound_rules

State = WebhookDelivery.State
FIRST_RETRY_S = 5.0
RETRY_FACTOR = 4.0
MAX_RETRY_S = 3_600.0
JITTER = 0.2
DISABLED = "The endpoint was disabled before the event was delivered."


def run_delivery(job: RunningJob) -> None:
    """Send the delivery once. Raise JobPostponed if it has to be sent again later."""
    delivery = retry_while_db_down(lambda: _find(job), job.stopping)
    if delivery is None:
        return
    endpoint = delivery.endpoint
    if not (endpoint.is_enabled and endpoint.owner.is_active):
        retry_while_db_down(lambda: _fail(job, delivery, DISABLED), job.stopping)
        return
    attempt = send(delivery)
    later = retry_while_db_down(lambda: _note(job, delivery, attempt), job.stopping)
    if later is not None:
        raise JobPostponed(later, f"Attempt {delivery.num_attempts} failed: {attempt}")


def send(delivery: WebhookDelivery) -> WebhookAttempt:
    """Send the event, and return the attempt, not saved."""
    attempt, started = WebhookAttempt(delivery=delivery), time.monotonic()
    body = event_body(delivery)
    timestamp = int(time.time())
    headers = {
        "Content-Type": "application/json",
        "User-Agent": "miLLM",
        "Connection": "close",
        "webhook-id": delivery.event_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": sign(delivery.endpoint.signing_secrets, delivery.event_id, timestamp, body),
    }
    try:
        with open_url(
            "POST", parse_url(delivery.endpoint.url), outbound_rules(), headers=headers, body=body
        ) as response:
            status = response.status
        attempt.status = status
    except OutboundError as error:
        attempt.error = error.message[:300]
    attempt.took_ms = round((time.monotonic() - started) * 1_000)
    return attempt


def event_body(delivery: WebhookDelivery) -> bytes:
    """Return the body, the same for each attempt."""
    event = {
        "id": delivery.event_id,
        "object": "event",
        "created_at": int(delivery.created_at.timestamp()),
        "type": delivery.event_type,
        "data": delivery.data,
    }
    return json.dumps(event, separators=(",", ":"), sort_keys=True).encode()


def sign(secrets: Sequence[str], message_id: str, timestamp: int, body: bytes) -> str:
    """Return the header ``webhook-signature``: a signature for each secret."""
    message = f"{message_id}.{timestamp}.".encode() + body
    keys = (base64.b64decode(secret.removeprefix(SECRET_START)) for secret in secrets)
    digests = (hmac.new(key, message, hashlib.sha256).digest() for key in keys)
    return " ".join(f"v1,{base64.b64encode(digest).decode()}" for digest in digests)


def retry_delay(num_attempts: int) -> timedelta:
    """Return how long to wait after that many failed attempts: exponential back-off with jitter."""
    seconds = min(FIRST_RETRY_S * RETRY_FACTOR ** min(num_attempts - 1, 10), MAX_RETRY_S)
    return timedelta(seconds=seconds * random.uniform(1 - JITTER, 1 + JITTER))  # noqa: S311 - not a secret


def _find(job: RunningJob) -> WebhookDelivery | None:
    """Return the delivery; None if it was deleted, or has ended in an attempt that did not note the job's end."""
    rows = WebhookDelivery.objects.filter(pk=job.params["delivery"], state=State.PENDING, job_id=job.id)
    return rows.select_related("endpoint__owner").first()


@transaction.atomic
def _note(job: RunningJob, delivery: WebhookDelivery, attempt: WebhookAttempt) -> datetime | None:
    """Save the attempt and what follows from it. Return when to send again, None if that is not necessary."""
    job.hold()
    row = WebhookDelivery.objects.select_for_update().filter(pk=delivery.pk).first()
    if row is None:  # deleted with its endpoint
        return None
    attempt.pk = None  # a retry of the transaction
    attempt.save(force_insert=True)
    row.num_attempts += 1
    delivery.num_attempts = row.num_attempts
    later = None if attempt.is_success else timezone.now() + retry_delay(row.num_attempts)
    if later is not None and later > row.give_up_at:
        later = None
    row.next_attempt_at = later
    if later is None:
        _end(row, State.DELIVERED if attempt.is_success else State.FAILED, attempt.error or f"Status {attempt.status}.")
    row.save()
    return later


@transaction.atomic
def _fail(job: RunningJob, delivery: WebhookDelivery, error: str) -> None:
    job.hold()
    _end(delivery, State.FAILED, error)
    delivery.save()


def _end(row: WebhookDelivery, state: State, error: str) -> None:
    row.state = state
    row.error = "" if state == State.DELIVERED else error
    row.ended_at = timezone.now()
    row.next_attempt_at = None
