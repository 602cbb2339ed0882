"""MILLM_PUBLIC_URL on a live server behind a proxy that sends another Host header."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from http.cookies import SimpleCookie
from urllib.parse import urlencode

import pytest

from tests.conftest import ADMIN_PASSWORD, ADMIN_USER, LiveSite, bare_site
from tests.platform.wire import Answer, ask

PUBLIC = "https://models.example.com"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveSite]:
    with bare_site(tmp_path_factory.mktemp("public") / "home", MILLM_PUBLIC_URL=PUBLIC, MILLM_TLS="true") as site:
        yield site


def proxied(
    site: LiveSite, method: str, path: str, *lines: str, host: str = "models.example.com", body: str = ""
) -> Answer:
    """Send a request as a proxy on this machine does."""
    sent = [f"Host: {host}", "X-Forwarded-Proto: https", "X-Forwarded-For: 203.0.113.7", "Connection: close", *lines]
    if body:
        sent += ["Content-Type: application/x-www-form-urlencoded", f"Content-Length: {len(body)}"]
    return ask(site.url, ("\r\n".join([f"{method} {path} HTTP/1.1", *sent, "", ""]) + body).encode())


def test_address_is_printed_and_documented(site: LiveSite) -> None:
    assert f"{PUBLIC}/admin/" in site.server.output
    document = json.loads(proxied(site, "GET", "/openapi.json").body)
    assert [server["url"] for server in document["servers"]] == [PUBLIC, "/"]


@pytest.mark.parametrize("host", ["models.example.com", "127.0.0.1:8000"])
def test_login_works_whichever_host_the_proxy_sends(site: LiveSite, host: str) -> None:
    page = proxied(site, "GET", "/admin/login/", host=host)
    assert page.status == 200
    token = re.search(r'name="csrfmiddlewaretoken" value="(\w+)"', page.body.decode())
    assert token is not None
    cookie = SimpleCookie(page.headers["set-cookie"])["millm_csrf"].value
    form = {"username": ADMIN_USER, "password": ADMIN_PASSWORD, "csrfmiddlewaretoken": token[1]}
    headers = (f"Cookie: millm_csrf={cookie}", f"Origin: {PUBLIC}", f"Referer: {PUBLIC}/admin/login/")
    done = proxied(site, "POST", "/admin/login/", *headers, host=host, body=urlencode(form))
    assert done.status == 302
    other = (headers[0], "Origin: https://evil.example", "Referer: https://evil.example/")
    assert proxied(site, "POST", "/admin/login/", *other, host=host, body=urlencode(form)).status == 403


def test_other_hosts_are_refused(site: LiveSite) -> None:
    refused = proxied(site, "GET", "/v1/models", host="evil.example")
    assert refused.status == 400
    assert "MILLM_ALLOWED_HOSTS" in refused.error["message"]
