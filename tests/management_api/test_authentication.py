"""Who may ask /api: a key with the scope, or a session with its CSRF token."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from openai_api.keys.authentication import snapshot
from openai_api.keys.services import create_api_key
from openai_api.models import ApiKey
from tests.management_api.conftest import api_of, make_user, refusal

pytestmark = pytest.mark.django_db


def get(client: Client, **headers: str) -> Any:
    return client.get("/api/models", headers=headers)


def bearer(key: str) -> dict[str, str]:
    snapshot.forget()
    return {"Authorization": f"Bearer {key}"}


def test_nobody(settings):
    """Not from this machine either, which may use /v1 without a key."""
    settings.MILLM_AUTH = "loopback"
    response = get(Client())
    assert refusal(response) == (401, "invalid_api_key", None)
    assert response.headers["WWW-Authenticate"] == "Bearer"
    assert response.headers["x-request-id"].startswith("req_")


@pytest.mark.parametrize("key", ["", "none", "sk-millm-wrong", "x" * 10_000, "ä"])
def test_wrong_keys(key):
    assert refusal(get(Client(), **bearer(key))) == (401, "invalid_api_key", None)


def test_another_scheme(admin_api):
    assert refusal(get(Client(), Authorization="Basic YTpi")) == (401, "invalid_api_key", None)


def test_a_key_acts_as_its_owner(admin_api, auditor_api):
    assert admin_api.get("me").json()["user"] == "ada"
    found = auditor_api.get("me").json()
    assert (found["user"], found["key"], found["groups"]) == ("aldo", "aldo's", ["Auditors"])
    assert "openai_api.view_requestlog" in found["permissions"]
    assert "inference.change_languagemodel" not in found["permissions"]


@pytest.mark.parametrize("header", ["api-key", "x-api-key"])
def test_the_other_headers(header, admin_api):
    plain = admin_api.headers["Authorization"].removeprefix("Bearer ")
    assert get(Client(), **{header: plain}).status_code == 200


def test_a_key_without_the_scope():
    plain = create_api_key(name="for /v1", owner=make_user("ada", "Admins")).plain
    assert refusal(get(Client(), **bearer(plain))) == (403, "scope_required", None)


def test_a_key_whose_owner_is_not_staff():
    api = api_of(make_user("ada", "Admins", is_staff=False))
    assert refusal(api.get("models")) == (403, "permission_denied", None)


@pytest.mark.parametrize("change", [{"revoked_at": timezone.now()}, {"expires_at": timezone.now()}])
def test_a_key_that_was_given_up(change, admin_api):
    ApiKey.objects.update(**change)
    snapshot.forget()
    assert refusal(admin_api.get("models")) == (401, "invalid_api_key", None)


def test_a_key_whose_owner_left(admin_api):
    admin_api.user.is_active = False
    admin_api.user.save()
    snapshot.forget()
    assert refusal(admin_api.get("models")) == (401, "invalid_api_key", None)


def test_rights_that_are_taken_are_gone_at_once(admin_api):
    assert admin_api.get("models").status_code == 200
    admin_api.user.groups.clear()
    assert refusal(admin_api.get("models")) == (403, "permission_denied", None)


class TestSessions:
    @pytest.fixture
    def browser(self) -> Client:
        client = Client(enforce_csrf_checks=True)
        client.force_login(make_user("ada", "Admins"))
        return client

    def test_may_look(self, browser):
        assert get(browser).status_code == 200
        assert browser.get("/api/me").json()["key"] is None

    def test_change_nothing_without_a_token(self, browser):
        response = browser.post("/api/keys", json.dumps({"name": "x"}), content_type="application/json")
        assert refusal(response) == (403, "csrf_failed", None)
        assert not ApiKey.objects.exists()

    def test_with_the_token_of_a_page(self, browser):
        page = browser.get("/admin/openai_api/apikey/add/").content.decode()
        found = re.search(r'name="csrfmiddlewaretoken" value="(\w+)"', page)
        assert found is not None
        headers = {"X-CSRFToken": found[1]}
        response = browser.post(
            "/api/keys", json.dumps({"name": "x"}), content_type="application/json", headers=headers
        )
        assert response.status_code == 201

    def test_a_wrong_key_is_not_made_good_by_a_session(self, browser):
        assert refusal(get(browser, **bearer("sk-millm-wrong"))) == (401, "invalid_api_key", None)

    def test_somebody_without_the_role(self):
        client = Client()
        client.force_login(make_user("nobody"))
        assert refusal(get(client)) == (403, "permission_denied", None)

    def test_somebody_who_is_not_staff(self):
        client = Client()
        client.force_login(make_user("ada", "Admins", is_staff=False))
        assert refusal(get(client)) == (403, "permission_denied", None)


def test_other_sites_get_no_answer(admin_api, settings):
    """/api is not among the paths that MILLM_CORS_ORIGINS opens."""
    assert re.match(settings.CORS_URLS_REGEX, "/api/models") is None
