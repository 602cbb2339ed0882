"""Sign-in with an OpenID Connect provider: a stub that speaks the protocol over HTTP on the loopback interface."""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from django.contrib.auth.models import Group, User
from django.contrib.messages import get_messages
from django.test import Client
from joserfc import jwt
from joserfc.jwk import OctKey, RSAKey
from pydantic import ValidationError

from audit.models import AuditEvent
from console.models import SingleSignOnIdentity
from console.single_sign_on import _client
from millm_site.env import Environment, explain

pytestmark = pytest.mark.django_db
FAILED = "Single sign-on failed. Try again, or ask the administrator to look at the server's log."
CLIENT_ID, CLIENT_SECRET = "millm", "a secret"


class Provider:
    """Keeps one signing key, and the codes that it has given out with what they were asked for."""

    def __init__(self) -> None:
        self.key = RSAKey.generate_key(2048, {"kid": "k1"})
        self.person: dict[str, Any] = {"sub": "42", "preferred_username": "ada", "groups": ["ml-team"]}
        self.userinfo: dict[str, Any] = {}
        self.claims: dict[str, Any] = {}  # that replace those of the id token
        self.signed_with: Any = None
        self.issuer_in_metadata = ""
        self.token_status = 200
        self.asked: dict[str, dict[str, str]] = {}
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                path = urlsplit(self.path).path
                answers = {
                    "/.well-known/openid-configuration": provider.metadata,
                    "/jwks": lambda: {"keys": [provider.key.as_dict(private=False)]},
                    "/userinfo": lambda: provider.userinfo,
                }
                self._answer(200, answers[path]())

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                form = {name: values[0] for name, values in parse_qs(body).items()}
                self._answer(*provider.token(form, self.headers["Authorization"] or ""))

            def _answer(self, status: int, content: dict[str, Any]) -> None:
                data = json.dumps(content).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *arguments: object) -> None:
                """Print nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def metadata(self) -> dict[str, Any]:
        return {
            "issuer": self.issuer_in_metadata or self.url,
            "authorization_endpoint": f"{self.url}/authorize",
            "token_endpoint": f"{self.url}/token",
            "jwks_uri": f"{self.url}/jwks",
            "userinfo_endpoint": f"{self.url}/userinfo",
            "id_token_signing_alg_values_supported": ["RS256"],
        }

    def authorize(self, url: str) -> dict[str, str]:
        """What the browser brings back when the person has agreed."""
        asked = {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}
        assert asked["response_type"] == "code"
        assert asked["client_id"] == CLIENT_ID
        code = secrets.token_hex(8)
        self.asked[code] = asked
        return {"code": code, "state": asked["state"]}

    def token(self, form: dict[str, str], authorization: str) -> tuple[int, dict[str, Any]]:
        asked = self.asked.pop(form["code"], None)
        digest = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        basic = "Basic " + base64.b64encode(f"{CLIENT_ID}:{CLIENT_SECRET}".encode()).decode()
        if asked is None or asked["code_challenge"] != challenge or authorization != basic or self.token_status != 200:
            return 400, {"error": "invalid_grant"}
        now = int(time.time())
        claims = {"iss": self.url, "aud": CLIENT_ID, "iat": now, "exp": now + 60, "nonce": asked["nonce"]}
        claims |= self.person | self.claims
        key, algorithm = (self.signed_with, "HS256") if self.signed_with else (self.key, "RS256")
        id_token = jwt.encode({"alg": algorithm, "kid": "k1"}, claims, key, algorithms=[algorithm])
        return 200, {"access_token": "t", "token_type": "Bearer", "expires_in": 300, "id_token": id_token}


@pytest.fixture
def provider(settings: Any) -> Iterator[Provider]:
    provider = Provider()
    settings.MILLM_OIDC_ISSUER = provider.url
    settings.MILLM_OIDC_CLIENT_ID, settings.MILLM_OIDC_CLIENT_SECRET = CLIENT_ID, CLIENT_SECRET
    settings.MILLM_OIDC_NAME = "Example"
    settings.MILLM_OIDC_ROLES = (("ml-team", "Researchers"), ("compliance", "Auditors"), ("ops", "Admins"))
    _client.cache_clear()
    yield provider
    provider.server.shutdown()
    provider.server.server_close()


@pytest.fixture
def browser() -> Client:
    return Client(headers={"host": "localhost"})


def signs_in(browser: Client, provider: Provider, next_page: str = "") -> Any:
    to_provider = browser.get("/admin/login/sso", {"next": next_page})
    assert to_provider.status_code == 302
    return browser.get("/admin/login/sso/callback", provider.authorize(to_provider.headers["Location"]))


def refusal(browser: Client, response: Any) -> str:
    """The message on the login page, to which a refused person returns."""
    assert response.headers["Location"] == "/admin/login/"
    assert "_auth_user_id" not in browser.session
    (message,) = [str(message) for message in get_messages(browser.get("/admin/login/").wsgi_request)]
    return message


def test_the_login_page_offers_it_and_without_a_provider_does_not(
    provider: Provider, browser: Client, settings: Any
) -> None:
    page = browser.get("/admin/login/?next=/admin/jobs/job/").content.decode()
    assert 'href="/admin/login/sso?next=%2Fadmin%2Fjobs%2Fjob%2F"' in page
    assert "Sign in with Example" in page
    settings.MILLM_OIDC_ISSUER = ""
    assert "Sign in with" not in browser.get("/admin/login/").content.decode()
    for path in ("/admin/login/sso", "/admin/login/sso/callback"):
        assert browser.get(path).headers["Location"] == "/admin/login/"


def test_a_new_person_gets_an_account_with_the_roles_of_the_groups(provider: Provider, browser: Client) -> None:
    provider.person |= {"email": "ada@example.org", "given_name": "Ada", "groups": ["ml-team", "elsewhere"]}
    arrived = signs_in(browser, provider, "/admin/jobs/job/")
    assert arrived.headers["Location"] == "/admin/jobs/job/"
    user = User.objects.get()
    assert (user.username, user.email, user.first_name, user.is_staff) == ("ada", "ada@example.org", "Ada", True)
    assert not user.has_usable_password()
    assert [group.name for group in user.groups.all()] == ["Researchers"]
    assert browser.get("/admin/").status_code == 200
    assert set(AuditEvent.objects.values_list("user", flat=True)) == {"ada"}


def test_roles_follow_the_groups_at_each_sign_in_and_other_groups_stay(provider: Provider, browser: Client) -> None:
    signs_in(browser, provider)
    user = User.objects.get()
    user.groups.add(Group.objects.create(name="Reading circle"))
    provider.person |= {"groups": ["compliance"], "preferred_username": "lovelace"}
    signs_in(browser, provider)
    user = User.objects.get()
    assert user.username == "ada"
    assert {group.name for group in user.groups.all()} == {"Auditors", "Reading circle"}


def test_who_has_no_group_any_more_is_refused_and_loses_the_roles(provider: Provider, browser: Client) -> None:
    signs_in(browser, provider)
    browser.logout()
    provider.person["groups"] = []
    message = refusal(browser, signs_in(browser, provider))
    assert message == "None of your groups gives a role on this server. Ask its administrator for access."
    user = User.objects.get()
    assert not user.is_staff
    assert not user.groups.exists()


def test_a_stranger_without_a_group_leaves_no_account(provider: Provider, browser: Client) -> None:
    provider.person["groups"] = "elsewhere"
    assert "None of your groups" in refusal(browser, signs_in(browser, provider))
    assert not User.objects.exists()


def test_a_name_or_an_address_takes_over_no_account(provider: Provider, browser: Client) -> None:
    local = User.objects.create_superuser("Ada", "ada@example.org", "password")
    provider.person["email"] = "ada@example.org"
    signs_in(browser, provider)
    user = SingleSignOnIdentity.objects.get().user
    assert user != local
    assert user.username == "ada@127.0.0.1"
    assert not user.is_superuser


def test_an_inactive_account_stays_out(provider: Provider, browser: Client) -> None:
    signs_in(browser, provider)
    browser.logout()
    User.objects.update(is_active=False)
    assert refusal(browser, signs_in(browser, provider)).startswith("This account is inactive.")


def test_groups_may_come_from_the_userinfo_of_the_same_person_only(provider: Provider, browser: Client) -> None:
    del provider.person["groups"]
    provider.userinfo = {"sub": "42", "groups": ["ops"]}
    signs_in(browser, provider)
    assert [group.name for group in User.objects.get().groups.all()] == ["Admins"]
    browser.logout()
    provider.userinfo["sub"] = "43"
    assert refusal(browser, signs_in(browser, provider)) == FAILED


@pytest.mark.parametrize(
    "claims",
    [
        {"aud": "another client"},
        {"iss": "https://elsewhere.example.org"},
        {"exp": 1},
        {"nonce": "another"},
        {"sub": ""},
        {"sub": 42},
    ],
)
def test_tokens_of_others_and_old_ones_are_refused(provider: Provider, browser: Client, claims: dict[str, Any]) -> None:
    provider.claims = claims
    assert refusal(browser, signs_in(browser, provider)) == FAILED
    assert not User.objects.exists()


def test_a_token_signed_with_another_kind_of_key_is_refused(provider: Provider, browser: Client) -> None:
    provider.signed_with = OctKey.import_key(CLIENT_SECRET * 4)
    assert refusal(browser, signs_in(browser, provider)) == FAILED


def test_a_token_signed_with_an_unknown_key_is_refused(provider: Provider, browser: Client) -> None:
    known, provider.key = provider.key, RSAKey.generate_key(2048, {"kid": "k1"})
    to_provider = browser.get("/admin/login/sso")
    brought = provider.authorize(to_provider.headers["Location"])
    issued = provider.token
    provider.token = lambda *form: _with_key(provider, known, issued, *form)  # type: ignore[method-assign]
    assert refusal(browser, browser.get("/admin/login/sso/callback", brought)) == FAILED


def _with_key(provider: Provider, published: RSAKey, issued: Any, *form: Any) -> Any:
    """Sign with the own key and publish another one."""
    answer = issued(*form)
    provider.key = published
    return answer


@pytest.mark.parametrize("brought", [{}, {"code": "c", "state": "unknown"}, {"error": "access_denied"}])
def test_a_callback_that_nobody_asked_for_is_refused(
    provider: Provider, browser: Client, brought: dict[str, str]
) -> None:
    assert refusal(browser, browser.get("/admin/login/sso/callback", brought)) == FAILED


def test_a_callback_of_another_browser_is_refused(provider: Provider, browser: Client) -> None:
    brought = provider.authorize(browser.get("/admin/login/sso").headers["Location"])
    other = Client(headers={"host": "localhost"})
    assert refusal(other, other.get("/admin/login/sso/callback", brought)) == FAILED


def test_a_callback_works_once(provider: Provider, browser: Client) -> None:
    brought = provider.authorize(browser.get("/admin/login/sso").headers["Location"])
    browser.get("/admin/login/sso/callback", brought)
    browser.logout()
    assert refusal(browser, browser.get("/admin/login/sso/callback", brought)) == FAILED


def test_a_provider_that_refuses_is_another_one_or_is_away_shows_no_internals(
    provider: Provider, browser: Client, caplog: pytest.LogCaptureFixture
) -> None:
    provider.token_status = 500
    assert refusal(browser, signs_in(browser, provider)) == FAILED
    provider.token_status, provider.issuer_in_metadata = 200, "https://elsewhere.example.org"
    _client.cache_clear()
    assert refusal(browser, signs_in(browser, provider)) == FAILED
    assert "the provider calls itself 'https://elsewhere.example.org'" in caplog.text
    provider.server.shutdown()
    provider.server.server_close()
    _client.cache_clear()
    assert refusal(browser, browser.get("/admin/login/sso")) == FAILED


@pytest.mark.parametrize("elsewhere", ["https://evil.example.org/", "//evil.example.org", "javascript:alert(1)"])
def test_it_leads_to_pages_of_this_site_only(provider: Provider, browser: Client, elsewhere: str) -> None:
    assert signs_in(browser, provider, elsewhere).headers["Location"] == "/admin/"


def test_behind_a_proxy_the_provider_sends_people_to_the_public_address(
    provider: Provider, browser: Client, settings: Any
) -> None:
    settings.MILLM_PUBLIC_URL = "https://millm.example.org"
    asked = parse_qs(urlsplit(browser.get("/admin/login/sso").headers["Location"]).query)
    assert asked["redirect_uri"] == ["https://millm.example.org/admin/login/sso/callback"]


@pytest.mark.parametrize(
    ("variables", "problem"),
    [
        ({"oidc_issuer": "http://login.example.org"}, "must start with https://"),
        ({"oidc_issuer": "http://localhost.example.org"}, "must start with https://"),
        ({"oidc_issuer": "https://login.example.org"}, "MILLM_OIDC_CLIENT_ID: must be set"),
        ({"oidc_issuer": "https://login.example.org", "oidc_client_id": "millm"}, "MILLM_OIDC_ROLES: must name the"),
        ({"oidc_roles": "ml-team"}, "must be pairs such as ml-team=Researchers, not 'ml-team'"),
    ],
)
def test_settings_that_mean_nothing_are_refused(variables: dict[str, str], problem: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Environment.model_validate(variables)
    assert problem in explain(caught.value)
