"""The console's connection through our server and others: handshake, limits, an orderly end."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import live
from tests.conftest import LiveSite, bare_site, site_environment
from tests.platform.test_live_site import free_port
from tests.platform.web_socket import Line, web_socket
from tests.platform.wire import get

LIVE = "/admin/live/"
LOG_IN = """
from django.contrib.auth import get_user_model
from django.contrib.sessions.backends.db import SessionStore
user = get_user_model().objects.filter(is_superuser=True).first()
session = SessionStore()
session.update({"_auth_user_id": str(user.pk), "_auth_user_backend": "django.contrib.auth.backends.ModelBackend",
                "_auth_user_hash": user.get_session_auth_hash()})
session.save()
print("session", session.session_key)
"""


def cookie_of(server: live.LiveServer) -> str:
    key = server.manage("shell", "-c", LOG_IN).split("session ")[1].split()[0]
    return f"millm_session={key}"


@pytest.fixture(scope="module")
def cookie(live_site: LiveSite) -> str:
    return cookie_of(live_site.server)


@pytest.fixture
def line(live_site: LiveSite, cookie: str) -> Iterator[Line]:
    with web_socket(live_site.url, LIVE, cookie=cookie) as line:
        assert line.status == 101
        yield line


def test_a_page_hears_of_the_engine(line: Line) -> None:
    line.say({"subscribe": "engine"})
    message = line.hear()
    assert message["topic"] == "engine"
    assert message["data"]["state"] in ("good", "busy")


def test_pages_of_other_sites_are_refused(live_site: LiveSite, cookie: str) -> None:
    with web_socket(live_site.url, LIVE, cookie=cookie, origin="http://elsewhere.example") as line:
        assert line.status == 403


def test_without_a_login_it_ends_at_once(live_site: LiveSite) -> None:
    with web_socket(live_site.url, LIVE) as line:
        assert (line.status, line.close_code()) == (101, 4401)


def test_a_long_message_ends_it(line: Line) -> None:
    line.send(1, b"x" * 5_000)
    assert line.close_code() == 1009


@pytest.mark.parametrize("path", ["/v1/models", "/health/live"])
def test_elsewhere_the_upgrade_has_no_effect(live_site: LiveSite, path: str) -> None:
    with web_socket(live_site.url, path) as line:
        assert line.status == 200


def test_who_vanishes_leaves_nothing_behind(live_site: LiveSite, cookie: str) -> None:
    before = len(live_site.server.output)
    for _ in range(20):
        with web_socket(live_site.url, LIVE, cookie=cookie) as line:
            line.say({"subscribe": "engine"})
    assert get(live_site.url, "/health/live").status == 200
    assert "Traceback" not in live_site.server.output[before:]


def test_a_body_of_a_handshake_is_not_taken_for_frames(live_site: LiveSite, cookie: str) -> None:
    with web_socket(live_site.url, LIVE, cookie=cookie, body=b"\x81\x05hello") as line:
        if line.status == 101:
            line.say({"subscribe": "engine"})
            assert line.hear()["topic"] == "engine"
        else:
            assert line.status == 400


def test_a_stopping_server_says_goodbye_and_does_not_wait(tmp_path: Path, database_url: str) -> None:
    environment = {**site_environment(database_url, tmp_path), "MILLM_DRAIN_SECONDS": "600"}
    with live.serving("--setup", environment=environment) as server:
        cookie = cookie_of(server)
        with web_socket(server.url, LIVE, cookie=cookie) as line, web_socket(server.url, LIVE, cookie=cookie) as deaf:
            line.say({"subscribe": "engine"})
            line.hear()
            assert deaf.status == 101
            server.process.send_signal(signal.SIGTERM)
            assert line.close_code() == 1001
            assert server.process.wait(120) == 0, server.output
    assert "Traceback" not in server.output


def test_plain_daphne_speaks_it_too(tmp_path: Path, migrated_database_url: str) -> None:
    environment = site_environment(migrated_database_url, tmp_path)
    port = free_port()
    command = [sys.executable, "-m", "daphne", "-p", str(port), "millm_site.asgi:application"]
    with live.running(command, environment) as server:
        server.wait_for("(?i)listening")
        with web_socket(f"http://127.0.0.1:{port}", LIVE) as line:
            assert (line.status, line.close_code()) == (101, 4401)
        server.stop(signal.SIGTERM)


def test_live_connections_are_bounded(tmp_path: Path) -> None:
    with bare_site(tmp_path, MILLM_MAX_SOCKETS="2") as site:
        cookie = cookie_of(site.server)
        with web_socket(site.url, LIVE, cookie=cookie) as one, web_socket(site.url, LIVE, cookie=cookie) as two:
            assert (one.status, two.status) == (101, 101)
            with web_socket(site.url, LIVE, cookie=cookie) as three:
                assert three.status == 503
            one.say({"subscribe": "engine"})
            assert one.hear()["topic"] == "engine"
            assert get(site.url, "/health/live").status == 200
        deadline = time.monotonic() + 20
        while True:  # the places of connections that ended are free again
            with web_socket(site.url, LIVE, cookie=cookie) as again:
                if again.status == 101:
                    break
            assert time.monotonic() < deadline
            time.sleep(0.2)
