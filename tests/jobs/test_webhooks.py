"""Webhooks: queued with what they report, signed for the official client, retried, and apart for each endpoint."""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.core.exceptions import ValidationError
from django.db import connection, connections, transaction
from django.utils import timezone
from openai import InvalidWebhookSignatureError

from audit.models import AuditEvent
from jobs.errors import JobStateError
from jobs.execution import run_job
from jobs.lanes import Lane
from jobs.models import Job
from jobs.services import cancel_job, enqueue_job
from jobs.webhooks.delivery import retry_delay
from jobs.webhooks.models import EventType, WebhookAttempt, WebhookDelivery, WebhookEndpoint
from jobs.webhooks.outbox import DELIVER, Event, queue_events
from jobs.webhooks.services import (
    CreatedSecret,
    change_endpoint,
    create_endpoint,
    delete_endpoints,
    prune_deliveries,
    redeliver,
    rotate_secret,
    send_test_event,
    visible_deliveries,
)
from jobs.worker import JobWorker, Slots, recover_stalled
from millm_site.env import PROJECT_DIR
from tests.jobs.conftest import AddKind
from tests.jobs.webhook_receiver import (
    Receiver,
    endless_body,
    endless_headers,
    hang,
    no_http,
    receiving,
    reset,
    status,
)
from tests.live import running

pytestmark = pytest.mark.django_db
WAIT_S = 60
ALL = list(EventType.values)


@pytest.fixture(autouse=True)
def private_networks(settings: Any) -> None:
    settings.MILLM_WEBHOOK_PRIVATE_NETWORKS = True


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as found:
        yield found


@pytest.fixture
def ada(db: None) -> User:
    return User.objects.create_superuser("ada")


@pytest.fixture
def rita(db: None) -> User:
    return User.objects.create_user("rita", is_staff=True)


def endpoint(owner: User, url: str, types: list[str] = ALL, **fields: Any) -> CreatedSecret:
    row = WebhookEndpoint(name=f"{owner}'s", url=url, event_types=types, owner=owner, **fields)
    return create_endpoint(endpoint=row, user=owner)


def run_deliveries() -> None:
    """Run each queued delivery once, due or not, in this thread."""
    for job in Job.objects.queued().filter(kind=DELIVER).order_by("created_at"):
        Job.objects.filter(pk=job.pk).update(not_before=None)
        run_job(job.pk)


def the_delivery() -> WebhookDelivery:
    return WebhookDelivery.objects.get()


class TestSigning:
    def test_the_official_client_verifies_and_parses(self, ada: User, receiver: Receiver):
        created = endpoint(ada, receiver.url)
        queue_events([Event(EventType.BATCH_COMPLETED, {"id": "batch_1"}, ada.pk)])
        run_deliveries()
        (received,) = receiver.received
        event = received.unwrap(created.secret)
        assert type(event).__name__ == "BatchCompletedWebhookEvent"
        delivery = the_delivery()
        assert (event.id, event.type, event.data.id) == (delivery.event_id, "batch.completed", "batch_1")
        assert event.object == "event"
        assert abs(event.created_at - time.time()) < WAIT_S
        assert received.headers["webhook-id"] == event.id
        assert received.headers["Content-Type"] == "application/json"
        with pytest.raises(InvalidWebhookSignatureError):
            received.unwrap(endpoint(ada, receiver.url).secret)
        assert (delivery.state, delivery.num_attempts, delivery.error) == ("delivered", 1, "")
        assert [(each.status, each.error) for each in delivery.attempts.all()] == [(200, "")]
        assert not Job.objects.filter(kind=DELIVER).exists()  # the delivery's row is the record

    @pytest.mark.parametrize("event_type", ALL)
    def test_every_type(self, event_type: str, ada: User, receiver: Receiver):
        created = endpoint(ada, receiver.url)
        queue_events([Event(EventType(event_type), {"id": "x"}, ada.pk)])
        run_deliveries()
        event = receiver.received[0].unwrap(created.secret)
        assert (event.type, event.data.id) == (event_type, "x")

    def test_a_changed_body_is_refused_by_the_client(self, ada: User, receiver: Receiver):
        created = endpoint(ada, receiver.url)
        send_test_event(endpoint=created.endpoint)
        run_deliveries()
        (received,) = receiver.received
        forged = type(received)(received.path, received.headers, received.body.replace(b"test", b"best"), 0)
        with pytest.raises(InvalidWebhookSignatureError):
            forged.unwrap(created.secret)

    def test_a_rotated_secret(self, ada: User, receiver: Receiver):
        old = endpoint(ada, receiver.url)
        new = rotate_secret(endpoint=old.endpoint, grace=timedelta(hours=1), user=ada)
        send_test_event(endpoint=new.endpoint)
        run_deliveries()
        assert receiver.received[0].unwrap(old.secret) == receiver.received[0].unwrap(new.secret)
        newest = rotate_secret(endpoint=new.endpoint, user=ada)
        send_test_event(endpoint=newest.endpoint)
        run_deliveries()
        assert receiver.received[1].unwrap(newest.secret)
        with pytest.raises(InvalidWebhookSignatureError):
            receiver.received[1].unwrap(new.secret)
        assert AuditEvent.objects.filter(action="rotate", kind="webhooks.webhookendpoint").count() == 2

    def test_secrets_are_not_in_the_database_and_not_in_the_audit_trail(self, ada: User, receiver: Receiver):
        created = endpoint(ada, receiver.url)
        assert created.secret.startswith("whsec_")
        with connection.cursor() as cursor:
            cursor.execute("SELECT row_to_json(webhooks_webhookendpoint)::text FROM webhooks_webhookendpoint")
            stored = cursor.fetchone()[0]
        assert created.secret.removeprefix("whsec_") not in stored
        (event,) = AuditEvent.objects.filter(kind="webhooks.webhookendpoint")
        assert created.endpoint.secret_salt not in json.dumps(event.changes)
        assert created.secret not in json.dumps(event.changes)


class TestEvents:
    def test_a_job_that_succeeds_fails_or_is_cancelled(self, ada: User, receiver: Receiver, add_kind: AddKind):
        created = endpoint(ada, receiver.url)

        def fail(job: Any) -> None:
            raise ValueError("no")

        good, bad = add_kind(lambda job: {"n": 1}), add_kind(fail)
        jobs = [enqueue_job(kind=kind, params={}, owner=ada) for kind in (good, bad, good)]
        cancel_job(job=jobs[2])
        for job in jobs[:2]:
            run_job(job.pk)
        run_deliveries()
        events = [each.unwrap(created.secret) for each in receiver.received]
        assert {(event.type, event.data.id, event.data.kind) for event in events} == {
            ("job.succeeded", str(jobs[0].pk), good),
            ("job.failed", str(jobs[1].pk), bad),
            ("job.cancelled", str(jobs[2].pk), good),
        }
        assert WebhookDelivery.objects.count() == 3  # deliveries have no events of their own

    def test_a_job_that_crashes_repeatedly(self, ada: User, receiver: Receiver, add_kind: AddKind):
        endpoint(ada, receiver.url)
        job = enqueue_job(kind=add_kind(lambda job: None), params={}, owner=ada)
        Job.objects.filter(pk=job.pk).update(
            state="running", claim=job.pk, crashes=2, heartbeat_at=timezone.now() - timedelta(hours=1)
        )
        recover_stalled(1.0)
        assert the_delivery().event_type == "job.failed"

    def test_what_is_rolled_back_has_no_event(self, ada: User, receiver: Receiver):
        endpoint(ada, receiver.url)
        with transaction.atomic():
            queue_events([Event(EventType.BATCH_FAILED, {"id": "batch_1"}, ada.pk)])
            transaction.set_rollback(True)
        assert not WebhookDelivery.objects.exists()
        assert not Job.objects.exists()

    def test_an_endpoint_gets_what_it_subscribes_to(self, ada: User, receiver: Receiver):
        endpoint(ada, receiver.url, ["batch.completed", "batch.completed", "job.failed"])
        assert WebhookEndpoint.objects.get().event_types == ["batch.completed", "job.failed"]
        for event_type in EventType:
            queue_events([Event(event_type, {"id": "x"}, ada.pk)])
        assert {each.event_type for each in WebhookDelivery.objects.all()} == {"batch.completed", "job.failed"}

    def test_events_go_to_the_owner_of_the_object(self, ada: User, rita: User, receiver: Receiver):
        """Rita's endpoint gets hers; Ada's gets Ada's, or everybody's and those of nobody when it asks for that."""
        endpoint(rita, receiver.url + "/rita")
        endpoint(ada, receiver.url + "/ada")
        endpoint(ada, receiver.url + "/all", receives_all=True)
        for owner, name in ((rita, "of-rita"), (ada, "of-ada"), (None, "of-nobody")):
            event = Event(EventType.RESPONSE_COMPLETED, {"id": name}, None if owner is None else owner.pk)
            queue_events([event])
        run_deliveries()
        got = {(each.path, json.loads(each.body)["data"]["id"]) for each in receiver.received}
        expected = {("/rita", "of-rita"), ("/ada", "of-ada")}
        assert got == expected | {("/all", name) for name in ("of-rita", "of-ada", "of-nobody")}

    def test_everybodys_events_need_the_permission_when_saved_and_when_they_happen(
        self, rita: User, receiver: Receiver
    ):
        with pytest.raises(ValidationError, match="manage_all_webhooks"):
            endpoint(rita, receiver.url, receives_all=True)
        rita.user_permissions.add(Permission.objects.get(codename="manage_all_webhooks"))
        rita = User.objects.get(pk=rita.pk)
        endpoint(rita, receiver.url, receives_all=True)
        event = Event(EventType.BATCH_FAILED, {"id": "batch_1"}, None)
        assert len(queue_events([event])) == 1
        rita.user_permissions.clear()
        assert queue_events([event]) == []

    def test_watch_events_go_to_those_who_may_see_them(self, ada: User, rita: User, receiver: Receiver):
        endpoint(rita, receiver.url + "/rita")
        endpoint(ada, receiver.url + "/ada")
        event = Event(EventType.WATCH_TRIGGERED, {"id": 1}, permission="steering.view_watchevent")
        assert [each.endpoint.owner for each in queue_events([event])] == [ada]
        rita.user_permissions.add(Permission.objects.get(codename="view_watchevent"))
        assert {each.endpoint.owner for each in queue_events([event])} == {ada, rita}

    def test_disabled_endpoints_and_inactive_owners_get_none(self, ada: User, rita: User, receiver: Receiver):
        off = endpoint(ada, receiver.url, is_enabled=False).endpoint
        endpoint(rita, receiver.url)
        rita.is_active = False
        rita.save()
        for owner in (ada, rita):
            assert queue_events([Event(EventType.BATCH_FAILED, {"id": "batch_1"}, owner.pk)]) == []
        with pytest.raises(JobStateError, match="disabled"):
            send_test_event(endpoint=off)

    def test_an_endpoint_that_was_disabled_or_deleted_meanwhile(self, ada: User, receiver: Receiver):
        first, second = endpoint(ada, receiver.url).endpoint, endpoint(ada, receiver.url).endpoint
        queue_events([Event(EventType.BATCH_FAILED, {"id": "batch_1"}, ada.pk)])
        first.is_enabled = False
        change_endpoint(endpoint=first, user=ada)
        delete_endpoints(endpoints=WebhookEndpoint.objects.filter(pk=second.pk), user=ada)
        run_deliveries()
        assert receiver.received == []
        assert (the_delivery().state, the_delivery().error[:25]) == ("failed", "The endpoint was disabled")
        assert not Job.objects.exclude(state="succeeded").exists()


class TestRetries:
    @pytest.mark.parametrize(
        ("reply", "outcome"),
        [
            (lambda receiver: status(500), "500"),
            (lambda receiver: status(404), "404"),
            (lambda receiver: status(304), "304"),
            (lambda receiver: status(302, Location=receiver.url + "/elsewhere"), "302"),
            (lambda receiver: reset, "The request to the URL failed: ConnectionResetError."),
            (lambda receiver: no_http, "The request to the URL failed: BadStatusLine."),
            (hang, "The URL did not answer within 0.5 s."),
            (endless_headers, "The URL did not answer within 0.5 s."),
        ],
    )
    def test_a_bad_answer_is_retried(self, reply: Any, outcome: str, ada: User, receiver: Receiver, settings: Any):
        settings.MILLM_WEBHOOK_TIMEOUT = 0.5
        created = endpoint(ada, receiver.url + "/bad")
        receiver.replies["/bad"] = reply(receiver)
        send_test_event(endpoint=created.endpoint)
        run_deliveries()
        delivery = the_delivery()
        assert [str(each) for each in delivery.attempts.all()] == [outcome]
        assert (delivery.state, delivery.num_attempts) == ("pending", 1)
        assert delivery.next_attempt_at is not None
        job = Job.objects.get(kind=DELIVER)
        assert (job.state, job.not_before) == ("queued", delivery.next_attempt_at)
        receiver.replies.clear()
        run_deliveries()
        done = the_delivery()
        assert (done.state, done.num_attempts, done.next_attempt_at) == ("delivered", 2, None)
        first, second = receiver.received  # a redirect is not followed
        assert first.body == second.body
        assert first.headers["webhook-id"] == second.headers["webhook-id"]
        assert second.unwrap(created.secret)

    def test_an_endless_body_is_not_read(self, ada: User, receiver: Receiver):
        receiver.replies["/"] = endless_body(receiver)
        send_test_event(endpoint=endpoint(ada, receiver.url + "/").endpoint)
        run_deliveries()
        assert the_delivery().state == "delivered"

    def test_nothing_listens(self, ada: User):
        send_test_event(endpoint=endpoint(ada, "http://127.0.0.1:9/").endpoint)
        run_deliveries()
        assert the_delivery().attempts.get().error == "The request to the URL failed: ConnectionRefusedError."

    def test_retries_end(self, ada: User, receiver: Receiver):
        receiver.replies["/"] = status(503)
        send_test_event(endpoint=endpoint(ada, receiver.url + "/").endpoint)
        run_deliveries()
        WebhookDelivery.objects.update(give_up_at=timezone.now())
        run_deliveries()
        delivery = the_delivery()
        assert (delivery.state, delivery.error, delivery.next_attempt_at) == ("failed", "Status 503.", None)
        assert not Job.objects.filter(kind=DELIVER).exists()
        receiver.replies.clear()
        redeliver(delivery=delivery)
        run_deliveries()
        delivery.refresh_from_db()
        assert (delivery.state, delivery.num_attempts, delivery.error) == ("delivered", 3, "")
        assert [each.status for each in delivery.attempts.all()] == [503, 503, 200]

    def test_a_pending_delivery_is_sent_at_once_on_request(self, ada: User, receiver: Receiver):
        receiver.replies["/"] = status(503)
        send_test_event(endpoint=endpoint(ada, receiver.url + "/").endpoint)
        run_deliveries()
        assert not Job.objects.due().exists()
        redeliver(delivery=the_delivery())
        assert Job.objects.due().count() == 1

    def test_delays_grow_to_an_hour_and_differ(self):
        expected = [5, 20, 80, 320, 1_280, 3_600, 3_600]
        for number, seconds in enumerate(expected, 1):
            delays = [retry_delay(number).total_seconds() for _ in range(50)]
            assert all(0.8 * seconds <= delay <= 1.2 * seconds for delay in delays)
            assert len(set(delays)) > 1
        assert retry_delay(10_000).total_seconds() < 5_000

    def test_a_run_after_a_crash_between_the_attempt_and_the_jobs_end(self, ada: User, receiver: Receiver):
        send_test_event(endpoint=endpoint(ada, receiver.url).endpoint)
        run_deliveries()
        delivery = the_delivery()
        Job.objects.create(pk=delivery.job_id, kind=DELIVER, lane=Lane.WEBHOOKS, params={"delivery": delivery.pk})
        run_deliveries()
        assert len(receiver.received) == 1

    def test_deliveries_without_a_job_fail_and_old_ones_are_deleted(self, ada: User, receiver: Receiver, settings: Any):
        created = endpoint(ada, receiver.url)
        for _ in range(3):
            send_test_event(endpoint=created.endpoint)
        lost, old, new = WebhookDelivery.objects.order_by("pk")
        Job.objects.filter(pk=lost.job_id).update(state="failed")
        for each in (old, new):
            run_job(each.job_id)
        before = timezone.now() - timedelta(days=settings.MILLM_WEBHOOK_RETENTION_DAYS, minutes=1)
        WebhookDelivery.objects.filter(pk=old.pk).update(created_at=before)
        assert prune_deliveries() == 1
        assert set(WebhookDelivery.objects.values_list("pk", "state")) == {(lost.pk, "failed"), (new.pk, "delivered")}
        assert WebhookAttempt.objects.count() == 1


class TestAddresses:
    @pytest.mark.parametrize(
        "url",
        [
            "",
            "example.com/hook",
            "ftp://example.com/",
            "file:///etc/passwd",
            "http://",
            "http://user:password@example.com/",
            "http://example.com:99999/",
            "http://example.com/\r\nX-Injected: 1",
            "http://example.com/ a",
            "http://127.0.0.1:8000/admin/",
            "http://localhost/",
            "http://inside.localhost/",
            "http://[::1]/",
            "http://10.0.0.1/",
            "http://192.168.1.1/",
            "http://169.254.169.254/latest/meta-data/",
            "http://[::ffff:127.0.0.1]/",
            "http://[fe80::1]/",
            "https://example.com/" + "a" * 2_000,
        ],
    )
    def test_urls_that_are_refused(self, url: str, ada: User, settings: Any):
        settings.MILLM_WEBHOOK_PRIVATE_NETWORKS = False
        with pytest.raises(ValidationError):
            endpoint(ada, url)

    @pytest.mark.parametrize(
        "url", ["https://example.com/hook?a=b", "http://example.com:8443/", "https://93.184.215.14/"]
    )
    def test_urls_that_are_accepted(self, url: str, ada: User, settings: Any):
        settings.MILLM_WEBHOOK_PRIVATE_NETWORKS = False
        assert endpoint(ada, url).endpoint.url == url

    @pytest.mark.parametrize("url", ["http://169.254.169.254/", "http://0.0.0.0/", "http://224.0.0.1/"])
    def test_the_setting_does_not_allow_everything(self, url: str, ada: User):
        with pytest.raises(ValidationError):
            endpoint(ada, url)

    def test_addresses_are_checked_when_sending(self, ada: User, receiver: Receiver, settings: Any):
        """The setting was changed, or the host's name leads to another address than before."""
        send_test_event(endpoint=endpoint(ada, receiver.url).endpoint)
        settings.MILLM_WEBHOOK_PRIVATE_NETWORKS = False
        run_deliveries()
        assert the_delivery().attempts.get().error == "The host of the URL is not a public one."
        assert receiver.received == []


class TestManyEndpoints:
    @pytest.mark.django_db(transaction=True)
    def test_a_dead_endpoint_does_not_delay_another(self, ada: User, receiver: Receiver, settings: Any):
        """A thousand events wait for an endpoint that hangs; one for a live endpoint, queued last, arrives at once."""
        settings.MILLM_WEBHOOK_TIMEOUT = 2.0
        dead = endpoint(ada, receiver.url + "/dead", ["batch.failed"])
        live = endpoint(ada, receiver.url + "/live", ["batch.completed"])
        receiver.replies["/dead"] = hang(receiver)
        queue_events([Event(EventType.BATCH_FAILED, {"id": f"batch_{n}"}, ada.pk) for n in range(1_000)])
        with ExitStack() as stack:
            worker = JobWorker(slots=Slots({"webhooks": 4}, max_share=0.5), stall_s=30, retention_days=30)
            worker.start()
            stack.callback(worker.stop, 10)
            stack.callback(receiver.is_over.set)
            until(lambda: len(receiver.at("/dead")) >= 2)
            queue_events([Event(EventType.BATCH_COMPLETED, {"id": "batch_live"}, ada.pk)])
            until(lambda: len(receiver.at("/live")) == 1)
            num_dead = len(receiver.at("/dead"))
            assert receiver.at("/live")[0].unwrap(live.secret).data.id == "batch_live"
            until(lambda: live.endpoint.deliveries.get().state == "delivered")
        # Two of the four workers were free for the live endpoint, so it did not wait for the thousand.
        assert num_dead < 500
        assert dead.endpoint.deliveries.filter(state="pending").count() == 1_000
        connections.close_all()

    def test_deliveries_are_not_listed_as_jobs(self, ada: User, rita: User, receiver: Receiver):
        send_test_event(endpoint=endpoint(ada, receiver.url).endpoint)
        assert Job.objects.count() == 1
        assert Job.objects.visible_to(ada).count() == 0
        assert (visible_deliveries(ada).count(), visible_deliveries(rita).count()) == (1, 0)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, list(WebhookDelivery.objects.values("state", "error")[:5])
        threading.Event().wait(0.02)


def test_the_receiver_of_the_docs(ada: User):
    """docs/webhooks.md, run as it is, but for its port."""
    page = (PROJECT_DIR / "docs" / "webhooks.md").read_text()
    code = page.split("```python\n")[1].split("```")[0]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    created = endpoint(ada, f"http://127.0.0.1:{port}/")
    with running(
        [sys.executable, "-c", code.replace("9000", str(port))], {"OPENAI_WEBHOOK_SECRET": created.secret}
    ) as it:
        until(lambda: is_open(port))
        queue_events([Event(EventType.BATCH_COMPLETED, {"id": "batch_1"}, ada.pk)])
        run_deliveries()
        it.wait_for("^batch.completed batch_1$")
        rotate_secret(endpoint=created.endpoint)
        redeliver(delivery=the_delivery())
        run_deliveries()
    assert [str(each) for each in the_delivery().attempts.all()] == ["204", "400"]


def is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
