"""Pages of other sites: let in by name, never with cookies, to the API alone."""

from __future__ import annotations

import pytest
from django.conf import settings as django_settings
from django.test import Client
from pytest_django.fixtures import Settings

from millm_site.http.cors import MIDDLEWARE, REQUEST_HEADERS, cors_middleware, is_origin

PAGE = "https://app.example.org"
PREFLIGHT = {"Origin": PAGE, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "x-api-key"}


@pytest.fixture
def site(settings: Settings) -> Client:
    settings.MIDDLEWARE = [MIDDLEWARE, *settings.MIDDLEWARE]
    settings.CORS_ALLOWED_ORIGINS = [PAGE]
    return Client()


def test_nobody_is_let_in_by_default() -> None:
    assert MIDDLEWARE not in django_settings.MIDDLEWARE
    assert (cors_middleware(()), cors_middleware(["*"])) == ([], [MIDDLEWARE])


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/tokenize", "/rerank"])
def test_a_page_may_ask_what_it_may_send(site: Client, path: str) -> None:
    response = site.options(path, headers=PREFLIGHT)

    assert response.status_code == 200
    assert response.headers["access-control-allow-origin"] == PAGE
    assert "POST" in response.headers["access-control-allow-methods"]
    allowed = response.headers["access-control-allow-headers"]
    assert all(name in allowed for name in REQUEST_HEADERS)
    assert "access-control-allow-credentials" not in response.headers


@pytest.mark.parametrize("origin", ["https://evil.example", "http://app.example.org", "null", f"{PAGE}.evil.example"])
def test_other_pages_may_not(site: Client, origin: str) -> None:
    response = site.options("/v1/chat/completions", headers={**PREFLIGHT, "Origin": origin})

    assert "access-control-allow-origin" not in response.headers


@pytest.mark.parametrize("path", ["/admin/login/", "/health/live", "/v1x"])
def test_the_rest_of_the_site_stays_closed(site: Client, path: str) -> None:
    assert "access-control-allow-origin" not in site.options(path, headers=PREFLIGHT).headers


@pytest.mark.parametrize(
    ("value", "is_one"),
    [
        ("*", True),
        (PAGE, True),
        ("http://localhost:3000", True),
        ("https://a.example/", False),
        ("a.example", False),
        ("https://user@a.example", False),
        ("https://*.a.example", False),
        ("ftp://a.example", False),
        ("null", False),
    ],
)
def test_origins(value: str, is_one: bool) -> None:
    assert is_origin(value) == is_one
