"""How many connections are open at once: no more than the settings say, and those that are keep working."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from http.client import HTTPConnection
from urllib.parse import urlsplit

import pytest

from millm_site.server.limits import OTHER_FILES, possible_connections
from tests.live import LiveServer
from tests.platform.conftest import StartEcho
from tests.platform.wire import get


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def opened(server: LiveServer, stack: ExitStack) -> HTTPConnection:
    """A connection that was served once and stays open."""
    line = HTTPConnection(urlsplit(server.url).netloc, timeout=20)
    stack.callback(line.close)
    assert status(line) == 200
    return line


def status(line: HTTPConnection) -> int:
    """Of one more request on an open connection."""
    line.request("GET", "/health/live", headers={"Host": "localhost"})
    response = line.getresponse()
    response.read()
    return response.status


def refused_until_there_is_room(server: LiveServer, lines: list[HTTPConnection]) -> None:
    got = get(server.url, "/health/live")
    assert (got.status, got.error["code"]) == (503, "server_is_overloaded")
    assert got.headers["retry-after"]
    for line in lines:
        assert status(line) == 200
    lines[0].close()
    deadline = time.monotonic() + 20
    while get(server.url, "/health/live").status != 200:
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_one_too_many_is_answered_503(start_echo: StartEcho, stack: ExitStack) -> None:
    server = start_echo(MAX_CONNECTIONS=3, IDLE_TIMEOUT=60)
    refused_until_there_is_room(server, [opened(server, stack) for _ in range(3)])


def test_one_address_does_not_take_them_all(start_echo: StartEcho, stack: ExitStack) -> None:
    server = start_echo(MAX_ADDRESS_CONNECTIONS=2, TRUSTED_PROXIES="none", IDLE_TIMEOUT=60)
    refused_until_there_is_room(server, [opened(server, stack) for _ in range(2)])


def test_a_proxy_s_connections_are_those_of_many(start_echo: StartEcho, stack: ExitStack) -> None:
    server = start_echo(MAX_ADDRESS_CONNECTIONS=2, TRUSTED_PROXIES="127.0.0.1", IDLE_TIMEOUT=60)
    for _ in range(5):
        opened(server, stack)


def test_a_flood_of_connections_leaves_nothing_behind(start_echo: StartEcho, stack: ExitStack) -> None:
    server = start_echo(MAX_CONNECTIONS=4, IDLE_TIMEOUT=60)
    parts = urlsplit(server.url)
    with ExitStack() as flood:
        for _ in range(200):
            with suppress(ConnectionResetError):  # the server may abort it before connect() returns
                flood.enter_context(socket.create_connection((parts.hostname, parts.port), timeout=20))
        time.sleep(0.5)
    deadline = time.monotonic() + 30
    while get(server.url, "/health/live").status != 200:
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_no_more_than_the_system_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr("resource.getrlimit", lambda _: (1_024, 2_000))
    monkeypatch.setattr("resource.setrlimit", lambda _, limits: asked.append(limits))
    assert possible_connections(4_096) == 2_000 - OTHER_FILES
    assert possible_connections(0) == 2_000 - OTHER_FILES
    assert possible_connections(100) == 100
    assert asked == [(2_000, 2_000)] * 3
