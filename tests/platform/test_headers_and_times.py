"""Trap 7 of daphne: silence on long headers, patience with half requests. A stream may last all the same."""

from __future__ import annotations

import time

import pytest

from tests.live import LiveServer
from tests.platform.wire import answer, ask, connected, get, head, read_all, read_until


def test_header_line_of_64_kilobytes_is_431(echo: LiveServer) -> None:
    got = get(echo.url, "/health/live", "X-Long: " + "x" * 65_536)
    assert got.status == 431
    assert got.error["code"] == "header_too_large"


def test_many_header_lines_are_431(echo: LiveServer) -> None:
    assert get(echo.url, "/health/live", *(f"X-{n}: 1" for n in range(1_000))).status == 431


def test_header_of_ordinary_size_is_served(echo: LiveServer) -> None:
    assert get(echo.url, "/health/live", "Cookie: " + "x" * 16_000).status == 200


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"nonsense\r\n\r\n",
        b"GET /\x00 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        head("POST", "/size", "Content-Length: 5", "Content-Length: 6"),
        head("POST", "/size", "Content-Length: 5", "Transfer-Encoding: chunked"),
        head("POST", "/size", "Content-Length: " + "9" * 5_000),
        head("POST", "/size", "Content-Length: -1"),
        head("POST", "/size", "Transfer-Encoding: chunked") + b"zz\r\n",
        head("GET", "/", "No colon"),
    ],
    ids=[
        "no HTTP",
        "NUL in path",
        "two lengths",
        "length and chunked",
        "5,000 digits",
        "negative",
        "bad chunk",
        "no colon",
    ],
)
def test_malformed_request_is_answered(echo: LiveServer, request_bytes: bytes) -> None:
    got = ask(echo.url, request_bytes)
    assert got.status == 400
    assert got.headers["connection"] == "close"


@pytest.mark.parametrize("line", ["429 Too Many Requests", "422 Unprocessable", "404 Not Found", "299 Unknown Status"])
def test_the_status_line_has_words_for_what_has_words(echo: LiveServer, line: str) -> None:
    with connected(echo.url) as connection:
        connection.sendall(head("GET", f"/status/{line[:3]}", "Connection: close"))
        assert read_all(connection).startswith(f"HTTP/1.1 {line}".encode())


def test_foreign_host_is_refused(echo: LiveServer) -> None:
    got = ask(echo.url, b"GET /form HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n")
    assert got.status == 400


@pytest.mark.parametrize("beginning", [b"GET / HTT", head("GET", "/")[:-2]], ids=["half a line", "no end of header"])
def test_half_a_header_is_closed_in_time(echo: LiveServer, beginning: bytes) -> None:
    with connected(echo.url) as connection:
        started = time.monotonic()
        connection.sendall(beginning)
        got = answer(read_all(connection))
    assert got.status == 408
    assert time.monotonic() - started < 4


def test_header_that_trickles_in_is_closed_in_time(echo: LiveServer) -> None:
    """A byte now and then resets an idle timer: the limit is on the whole header."""
    with connected(echo.url) as connection:
        started = time.monotonic()
        connection.settimeout(0.2)
        received = b""
        while b"\r\n\r\n" not in received and time.monotonic() - started < 5:
            connection.sendall(b"G")
            try:
                received += connection.recv(65_536)
            except TimeoutError:
                continue
    assert answer(received).status == 408


def test_body_that_does_not_come_is_closed_in_time(echo: LiveServer) -> None:
    with connected(echo.url) as connection:
        connection.sendall(head("POST", "/size", "Content-Length: 10") + b"1234")
        got = answer(read_all(connection))
    assert got.status == 408


def test_kept_connection_closes_when_idle(echo: LiveServer) -> None:
    with connected(echo.url) as connection:
        connection.sendall(head("GET", "/health/live"))
        read_until(connection, b"alive")
        started = time.monotonic()
        assert read_all(connection) == b""
    assert time.monotonic() - started < 4


def test_stream_outlives_every_time_limit(echo: LiveServer) -> None:
    """Limits are 1 and 2 s here; the stream takes 4 s with pauses of 1.3 s."""
    got = get(echo.url, "/stream?events=3&every=1.3")
    assert got.body.count(b"data: ") == 4
    assert b"[DONE]" in got.body


def test_several_requests_in_one_packet_are_answered_in_order(echo: LiveServer) -> None:
    both = (
        head("POST", "/size", "Content-Length: 3")
        + b"abc"
        + head("POST", "/size", "Content-Length: 2", "Connection: close")
    )
    with connected(echo.url) as connection:
        connection.sendall(both + b"ab")
        received = read_all(connection)
    assert received.count(b"200 OK") == 2
    assert received.index(b'{"bytes": 3}') < received.index(b'{"bytes": 2}')


def test_upgrade_to_websocket_is_ignored(echo: LiveServer) -> None:
    assert get(echo.url, "/health/live", "Upgrade: websocket", "Sec-WebSocket-Key: x").status == 200
