"""Webhooks in the console: the secret shown once, deliveries with their attempts, test events, somebody else's."""

from __future__ import annotations

import re

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client

from audit.models import AuditEvent
from jobs.execution import run_job
from jobs.webhooks.models import WebhookDelivery, WebhookEndpoint
from jobs.webhooks.services import create_endpoint, send_test_event

pytestmark = pytest.mark.django_db
ENDPOINTS, DELIVERIES = "/admin/webhooks/webhookendpoint/", "/admin/webhooks/webhookdelivery/"
FORM = {"name": "ci", "url": "https://example.com/hook", "event_types": ["batch.completed"], "is_enabled": "on"}
EVIL = "<script>alert(1)</script>"


def client_of(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


def staff(name: str, *codenames: str) -> User:
    user = User.objects.create_user(name, is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=codenames))
    return user


def endpoint(owner: User, **fields: object) -> WebhookEndpoint:
    values = {"name": "ci", "url": "https://example.com/", "event_types": ["job.failed"], **fields}
    return create_endpoint(endpoint=WebhookEndpoint(owner=owner, **values)).endpoint


@pytest.fixture
def admin(admin_user: User) -> Client:
    return client_of(admin_user)


def test_a_secret_is_shown_once(admin: Client, admin_user: User):
    assert "No webhooks yet" in admin.get(ENDPOINTS).content.decode()
    created = admin.post(ENDPOINTS + "add/", FORM)
    row = WebhookEndpoint.objects.get()
    assert (row.owner, row.event_types) == (admin_user, ["batch.completed"])
    assert row.secret in created.content.decode().replace("&#x3D;", "=")
    assert "no-store" in created.headers["Cache-Control"]
    for url in (ENDPOINTS, f"{ENDPOINTS}{row.pk}/change/"):
        assert row.secret not in admin.get(url).content.decode()
    assert row.secret_hint in admin.get(f"{ENDPOINTS}{row.pk}/change/").content.decode()
    old = row.secret
    assert "Create new secret" in admin.get(f"{ENDPOINTS}{row.pk}/rotate/").content.decode()
    rotated = admin.post(f"{ENDPOINTS}{row.pk}/rotate/", {"grace_s": 3_600}).content.decode()
    row.refresh_from_db()
    assert row.secret in rotated
    assert old not in rotated
    assert len(row.signing_secrets) == 2
    assert set(AuditEvent.objects.filter(kind="webhooks.webhookendpoint").values_list("action", flat=True)) == {
        "add",
        "rotate",
    }


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("url", "http://127.0.0.1/", "is not a public address"),
        ("url", "javascript:alert(1)", "must start with http"),
        ("event_types", [], "This field is required"),
        ("event_types", ["batch.done"], "Select a valid choice"),
    ],
)
def test_forms_that_are_refused(field: str, value: object, message: str, admin: Client):
    assert message in admin.post(ENDPOINTS + "add/", {**FORM, field: value}).content.decode()
    assert not WebhookEndpoint.objects.exists()


def test_a_test_event_its_delivery_and_again(admin: Client, admin_user: User, settings):
    settings.MILLM_WEBHOOK_PRIVATE_NETWORKS = True
    row = endpoint(admin_user, url="http://127.0.0.1:9/")
    assert admin.get(f"{ENDPOINTS}{row.pk}/test/").status_code == 405
    answer = admin.post(f"{ENDPOINTS}{row.pk}/test/", follow=True)
    delivery = WebhookDelivery.objects.get()
    assert "Send now" in answer.content.decode()
    run_job(delivery.job_id)
    page = admin.get(f"{DELIVERIES}{delivery.pk}/change/").content.decode()
    assert "The request to the URL failed: ConnectionRefusedError." in page
    assert re.findall(r"<script(?![^>]*\ssrc=)[^>]*>", page) == [], "an inline script"
    assert "webhook.test" in admin.get(DELIVERIES).content.decode()
    WebhookDelivery.objects.update(state="failed")
    assert "Deliver again" in admin.get(f"{DELIVERIES}{delivery.pk}/change/").content.decode()
    assert admin.get(f"{DELIVERIES}{delivery.pk}/redeliver/").status_code == 405
    admin.post(f"{DELIVERIES}{delivery.pk}/redeliver/")
    delivery.refresh_from_db()
    assert delivery.state == "pending"
    WebhookEndpoint.objects.update(is_enabled=False)
    assert "is disabled" in admin.post(f"{DELIVERIES}{delivery.pk}/redeliver/", follow=True).content.decode()


def test_an_endpoint_is_changed_and_deleted_with_its_deliveries(admin: Client, admin_user: User):
    row = endpoint(admin_user)
    send_test_event(endpoint=row)
    salt = row.secret_salt
    admin.post(f"{ENDPOINTS}{row.pk}/change/", {**FORM, "name": "renamed", "receives_all": "on"})
    row.refresh_from_db()
    assert (row.name, row.receives_all, row.secret_salt) == ("renamed", True, salt)
    assert "Are you sure" in admin.get(f"{ENDPOINTS}{row.pk}/delete/").content.decode()
    admin.post(f"{ENDPOINTS}{row.pk}/delete/", {"post": "yes"})
    assert not WebhookEndpoint.objects.exists()
    assert not WebhookDelivery.objects.exists()


def test_texts_of_strangers_are_escaped(admin: Client, admin_user: User):
    row = endpoint(admin_user, name=EVIL)
    delivery = send_test_event(endpoint=row)
    WebhookDelivery.objects.update(data={"id": EVIL}, error=EVIL)
    pages = (ENDPOINTS, f"{ENDPOINTS}{row.pk}/change/", f"{ENDPOINTS}{row.pk}/rotate/", f"{ENDPOINTS}{row.pk}/delete/")
    for url in (*pages, DELIVERIES, f"{DELIVERIES}{delivery.pk}/change/"):
        text = admin.get(url).content.decode()
        assert EVIL not in text, url


def test_endpoints_of_others_are_not_there(admin_user: User):
    names = [f"{action}_webhookendpoint" for action in ("view", "add", "change", "delete")]
    wanda = staff("wanda", *names, "view_webhookdelivery")
    client = client_of(wanda)
    others = endpoint(admin_user, name="others")
    delivery = send_test_event(endpoint=others)
    for url in (f"{ENDPOINTS}{others.pk}/change/", f"{DELIVERIES}{delivery.pk}/change/"):
        assert client.get(url).status_code == 302  # to the index, as Django does for rows that are not there
    assert client.post(f"{ENDPOINTS}{others.pk}/test/").status_code == 404
    assert client.post(f"{DELIVERIES}{delivery.pk}/redeliver/").status_code == 404
    assert "others" not in client.get(ENDPOINTS).content.decode()
    assert "receives_all" not in client.get(ENDPOINTS + "add/").content.decode()
    client.post(ENDPOINTS + "add/", {**FORM, "receives_all": "on"})
    assert WebhookEndpoint.objects.get(owner=wanda).receives_all is False


def test_who_may_only_see_cannot_act(admin_user: User):
    row = endpoint(admin_user)
    delivery = send_test_event(endpoint=row)
    client = client_of(staff("vera", "view_webhookendpoint", "view_webhookdelivery", "manage_all_webhooks"))
    page = client.get(f"{ENDPOINTS}{row.pk}/change/").content.decode()
    assert "Send test event" not in page
    assert "Rotate secret" not in page
    assert client.post(f"{ENDPOINTS}{row.pk}/test/").status_code == 403
    assert client.post(f"{ENDPOINTS}{row.pk}/rotate/", {"grace_s": 0}).status_code == 403
    assert client.post(f"{DELIVERIES}{delivery.pk}/redeliver/").status_code == 403
