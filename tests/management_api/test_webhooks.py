"""/api/webhooks: register, change, rotate, test, redeliver; what is refused, and whose endpoints these are."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import Permission

from audit.models import AuditEvent
from jobs.webhooks.models import WebhookDelivery, WebhookEndpoint
from tests.jobs.webhook_receiver import receiving, status
from tests.management_api.conftest import Api, api_of, make_user, refusal

URL = "https://example.com/hook"
BODY = {"name": "ci", "url": URL, "event_types": ["batch.completed", "job.failed"]}


@pytest.fixture
def permitted(db: None) -> Api:
    """A user who may have webhooks, but not manage those of others."""
    user = make_user("wanda")
    for action in ("view", "add", "change", "delete"):
        user.user_permissions.add(Permission.objects.get(codename=f"{action}_webhookendpoint"))
    user.user_permissions.add(Permission.objects.get(codename="view_webhookdelivery"))
    return api_of(user)


def test_made_changed_rotated_removed(admin_api: Api):
    made = admin_api.post("webhooks", BODY)
    assert made.status_code == 201, made.content
    assert made.headers["Cache-Control"] == "no-store"
    webhook = made.json()
    secret = webhook.pop("secret")
    assert secret.startswith("whsec_")
    assert webhook["secret_hint"] == f"whsec_…{secret[-5:]}"
    assert (webhook["owner"], webhook["is_enabled"], webhook["receives_all"]) == ("ada", True, False)
    path = f"webhooks/{webhook['id']}"
    assert admin_api.get(path).json() == webhook
    assert [each["id"] for each in admin_api.found("webhooks", name="ci")] == [webhook["id"]]
    changed = admin_api("PATCH", path, {"is_enabled": False, "event_types": ["watch.triggered"]}).json()
    assert (changed["is_enabled"], changed["event_types"], changed["url"]) == (False, ["watch.triggered"], URL)
    rotated = admin_api.post(f"{path}/rotate", {"grace_s": 3_600}).json()
    assert rotated["secret"] not in {secret, ""}
    assert rotated["old_valid_until"] is not None
    assert "secret" not in admin_api.get(path).json()
    assert admin_api("DELETE", path).status_code == 204
    assert refusal(admin_api.get(path)) == (404, "not_found", None)
    acts = AuditEvent.objects.filter(user="ada", kind="webhooks.webhookendpoint").values_list("action", flat=True)
    assert sorted(acts) == ["add", "change", "delete", "rotate"]


def test_a_test_event_and_its_delivery_again(admin_api: Api, settings: Any):
    from jobs.execution import run_job

    settings.MILLM_WEBHOOK_PRIVATE_NETWORKS = True
    with receiving() as receiver:
        webhook = admin_api.post("webhooks", {**BODY, "url": receiver.url + "/"}).json()
        receiver.replies["/"] = status(204)
        tested = admin_api.post(f"webhooks/{webhook['id']}/test")
        assert tested.status_code == 202, tested.content
        delivery = tested.json()
        assert (delivery["event_type"], delivery["state"]) == ("webhook.test", "pending")
        for number in (1, 2):
            run_job(WebhookDelivery.objects.get().job_id)
            found = admin_api.get(f"webhook_deliveries/{delivery['id']}").json()
            assert (found["state"], [each["status"] for each in found["attempts"]]) == ("delivered", [204] * number)
            assert admin_api.post(f"webhook_deliveries/{delivery['id']}/redeliver").status_code == 202
        assert receiver.received[0].unwrap(webhook["secret"]).type == "webhook.test"
    assert len(admin_api.found("webhook_deliveries", state="pending", endpoint=webhook["id"])) == 1
    assert admin_api.found("webhook_deliveries", event_type="job.failed") == []
    admin_api("PATCH", f"webhooks/{webhook['id']}", {"is_enabled": False})
    for path in (f"webhooks/{webhook['id']}/test", f"webhook_deliveries/{delivery['id']}/redeliver"):
        assert refusal(admin_api.post(path)) == (409, "job_state", None)


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({"url": None}, "invalid_value", "url"),
        ({"url": 5}, "invalid_type", "url"),
        ({"url": "ftp://example.com"}, "invalid_value", "url"),
        ({"url": "http://127.0.0.1:8000/"}, "invalid_value", "url"),
        ({"url": "https://example.com/" + "a" * 2_000}, "invalid_value", "url"),
        ({"url": "https://example.com/\0"}, "invalid_value", "url"),
        ({"event_types": []}, "invalid_value", "event_types"),
        ({"event_types": "batch.completed"}, "invalid_value", "event_types"),
        ({"event_types": ["batch.done"]}, "invalid_value", "event_types[0]"),
        ({"event_types": [5]}, "invalid_type", "event_types[0]"),
        ({"event_types": ["job.failed"] * 101}, "invalid_value", "event_types"),
        ({"name": ""}, "invalid_value", "name"),
        ({"name": "x" * 101}, "invalid_value", "name"),
        ({"is_enabled": "yes"}, "invalid_type", "is_enabled"),
        ({"secret": "whsec_x"}, "unknown_parameter", "secret"),
        ({"owner": "rita"}, "unknown_parameter", "owner"),
    ],
)
def test_refused(body: dict[str, Any], code: str, param: str, admin_api: Api):
    assert refusal(admin_api.post("webhooks", {**BODY, **body})) == (400, code, param)
    assert not WebhookEndpoint.objects.exists()


@pytest.mark.parametrize("grace", [-1, 10**9, "long"])
def test_a_grace_that_is_refused(grace: Any, admin_api: Api):
    webhook = admin_api.post("webhooks", BODY).json()
    assert refusal(admin_api.post(f"webhooks/{webhook['id']}/rotate", {"grace_s": grace}))[::2] == (400, "grace_s")


def test_endpoints_of_others_are_not_there(admin_api: Api, permitted: Api):
    others = admin_api.post("webhooks", BODY).json()["id"]
    delivery = admin_api.post(f"webhooks/{others}/test").json()["id"]
    own = permitted.post("webhooks", {**BODY, "name": "mine"}).json()["id"]
    assert [each["id"] for each in permitted.found("webhooks")] == [own]
    assert permitted.found("webhook_deliveries") == []
    for method, path in (
        ("GET", f"webhooks/{others}"),
        ("PATCH", f"webhooks/{others}"),
        ("DELETE", f"webhooks/{others}"),
        ("POST", f"webhooks/{others}/rotate"),
        ("POST", f"webhooks/{others}/test"),
        ("GET", f"webhook_deliveries/{delivery}"),
        ("POST", f"webhook_deliveries/{delivery}/redeliver"),
    ):
        assert refusal(permitted(method, path))[0] == 404
    assert {each["id"] for each in admin_api.found("webhooks")} == {others, own}
    assert refusal(permitted.post("webhooks", {**BODY, "receives_all": True})) == (
        400,
        "invalid_value",
        "receives_all",
    )
