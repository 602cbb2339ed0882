"""What the site answers outside of its apps."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from asgiref.sync import iscoroutinefunction
from django.contrib.auth.models import User
from django.test import Client
from django.urls import URLResolver, get_resolver, reverse
from pytest_django.fixtures import Settings

from management_api.openapi import document_json
from millm_site.http.asgi_handler import ASYNC_PATHS
from openai_api.apps import stop_log_writer


def test_root_leads_to_the_console(client: Client) -> None:
    response = client.get("/")
    assert (response.status_code, response.headers["Location"]) == (302, "/admin/")


@pytest.fixture
def _log_ends() -> Iterator[None]:
    """A request to /v1 starts the thread that writes the request log."""
    yield
    stop_log_writer()


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("_log_ends")
def test_unknown_page_is_a_page_and_unknown_endpoint_the_contracts_error(client: Client, settings: Settings) -> None:
    settings.MILLM_AUTH = "loopback"
    page, api = client.get("/nothing"), client.get("/v1/nothing")
    assert (page.status_code, api.status_code) == (404, 404)
    assert page.headers["Content-Type"].startswith("text/html")
    error = api.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert "/v1/nothing" in error["message"]
    assert api.headers["x-request-id"]


@pytest.mark.django_db
def test_what_one_may_not_do_is_refused_by_a_page_with_a_way_back(client: Client) -> None:
    client.force_login(User.objects.create_user("guest", is_staff=True))
    answer = client.get("/admin/auth/user/")
    assert answer.status_code == 403
    text = answer.content.decode()
    assert "Your account does not have permission to do this." in text
    assert 'href="/admin/"' in text


def views(patterns: list[Any], prefix: str = "/") -> Iterator[tuple[str, Any]]:
    for pattern in patterns:
        path = prefix + str(pattern.pattern).removeprefix("^")
        if isinstance(pattern, URLResolver):
            yield from views(pattern.url_patterns, path)
        else:
            yield path, pattern.callback


def test_every_view_of_the_api_runs_on_the_event_loop() -> None:
    """Synchronous ones would wait for each other there: all in one thread."""
    found = [(path, view) for path, view in views(get_resolver().url_patterns) if ASYNC_PATHS.match(path)]
    assert len(found) > 50
    assert [path for path, view in found if not iscoroutinefunction(view)] == []


def test_openapi_document_describes_the_api(client: Client) -> None:
    document = json.loads(client.get("/openapi.json").content)
    assert document["openapi"].startswith("3.")
    assert "/v1/chat/completions" in document["paths"]


def test_the_openapi_document_is_made_once_and_revalidated(client: Client) -> None:
    first = client.get("/openapi.json")
    assert first["Content-Type"] == "application/json"
    assert first.content == document_json()
    assert document_json() is document_json()
    assert client.get("/openapi.json", headers={"If-None-Match": first["ETag"]}).status_code == 304
    assert client.get("/openapi.json", headers={"If-None-Match": '"other"'}).status_code == 200
    head = client.head("/openapi.json")
    assert (head.status_code, head["ETag"]) == (200, first["ETag"])


def test_docs_page_loads_everything_from_here(client: Client) -> None:
    page = client.get("/docs").content.decode()
    addresses = re.findall(r'(?:src|href|data-url)="([^"]+)"', page)
    assert len(addresses) >= 4
    for address in addresses:
        assert address.startswith("/"), address
        assert client.get(address).status_code == 200, address


def test_static_file_is_cached_and_revalidated(client: Client) -> None:
    first = client.get("/static/admin/css/base.css")
    assert first.status_code == 200
    assert first.headers["Content-Type"].startswith("text/css")
    assert "max-age" in first.headers["Cache-Control"]
    again = client.get("/static/admin/css/base.css", headers={"if-none-match": first.headers["ETag"]})
    assert again.status_code == 304


@pytest.mark.parametrize(
    "path",
    [
        "/static/nothing.css",
        "/static/",
        "/static/admin",
        "/static/../manage.py",
        "/static/%2e%2e/manage.py",
        "/static//etc/passwd",
    ],
)
def test_only_static_files_are_served_as_such(client: Client, path: str) -> None:
    assert client.get(path).status_code == 404


def test_console_asks_for_a_login(client: Client) -> None:
    assert client.get(reverse("admin:index")).status_code == 302
