"""Traps 1 and 2 of daphne: chunked bodies that get lost, and bodies without a limit."""

from __future__ import annotations

import json
import socket
import time

import psutil

from tests.live import LiveServer
from tests.platform.wire import answer, ask, connected, get, head, read_all

MEGABYTE = 2**20
CHUNKED = "Transfer-Encoding: chunked"


def chunked(*parts: bytes) -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


def test_chunked_form_reaches_django(echo: LiveServer) -> None:
    lines = ("Content-Type: application/x-www-form-urlencoded", CHUNKED, "Connection: close")
    got = ask(echo.url, head("POST", "/form", *lines) + chunked(b"a=1&", b"b=two"))
    assert json.loads(got.body)["post"] == {"a": "1", "b": "two"}


def test_chunked_upload_reaches_django(echo: LiveServer) -> None:
    part = b'--x\r\nContent-Disposition: form-data; name="f"; filename="f.txt"\r\n\r\nhello\r\n--x--\r\n'
    lines = ("Content-Type: multipart/form-data; boundary=x", CHUNKED, "Connection: close")
    got = ask(echo.url, head("POST", "/form", *lines) + chunked(part[:20], part[20:]))
    assert json.loads(got.body)["files"] == {"f": "hello"}


def test_chunked_json_reaches_rest_framework(echo: LiveServer) -> None:
    lines = ("Content-Type: application/json", CHUNKED, "Connection: close")
    got = ask(echo.url, head("POST", "/rest", *lines) + chunked(b'{"a": [1, ', b"2]}"))
    assert json.loads(got.body) == {"a": [1, 2]}


def test_body_behind_an_offer_to_upgrade_reaches_django(echo: LiveServer) -> None:
    """Java's HTTP client offers h2c with its first request; a server that does not speak it ignores the offer."""
    offer = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAAP__")
    first = head("POST", "/size", *offer, "Content-Length: 3") + b"abc"
    second = head("POST", "/size", "Content-Length: 2", "Connection: close") + b"ab"
    with connected(echo.url) as connection:
        connection.sendall(first + second)
        received = read_all(connection)
    assert received.index(b'{"bytes": 3}') < received.index(b'{"bytes": 2}')


def test_body_at_the_limit_is_taken_and_one_byte_more_refused(echo: LiveServer) -> None:
    at, above = (
        head("POST", "/size", f"Content-Length: {n}", "Connection: close") + bytes(n) for n in (100_000, 100_001)
    )
    assert json.loads(ask(echo.url, at).body) == {"bytes": 100_000}
    assert ask(echo.url, above).status == 413


def test_declared_ten_gigabytes_are_refused_before_any_is_read(echo: LiveServer) -> None:
    got = ask(echo.url, head("POST", "/size", f"Content-Length: {10 * 2**30}", "Expect: 100-continue"))
    assert got.status == 413
    assert got.error["code"] == "request_too_large"
    assert got.error["type"] == "invalid_request_error"
    assert set(got.error) == {"message", "type", "param", "code"}
    assert got.headers["connection"] == "close"
    assert got.headers["x-request-id"]


def test_client_that_sends_on_regardless_still_reads_the_refusal(echo: LiveServer) -> None:
    before = psutil.Process(echo.pid).memory_info().rss
    with connected(echo.url) as connection:
        connection.sendall(head("POST", "/size", f"Content-Length: {10 * 2**30}"))
        sent = send_while_taken(connection)
        got = answer(read_all(connection).removesuffix(b"(reset)"))
    assert got.status == 413
    assert sent > MEGABYTE
    assert psutil.Process(echo.pid).memory_info().rss - before < 20 * MEGABYTE


def test_endless_chunked_body_is_refused_at_the_limit(echo: LiveServer) -> None:
    before = psutil.Process(echo.pid).memory_info().rss
    with connected(echo.url) as connection:
        connection.sendall(head("POST", "/size", CHUNKED))
        sent = send_while_taken(connection, b"10000\r\n" + bytes(2**16) + b"\r\n")
        got = answer(read_all(connection).removesuffix(b"(reset)"))
    assert got.status == 413
    assert got.error["code"] == "request_too_large"
    assert sent > MEGABYTE
    assert psutil.Process(echo.pid).memory_info().rss - before < 20 * MEGABYTE


def test_next_request_is_served_after_refusals(echo: LiveServer) -> None:
    ask(echo.url, head("POST", "/size", "Content-Length: 99999999"))
    assert get(echo.url, "/health/live").status == 200


def send_while_taken(connection: socket.socket, block: bytes = bytes(2**16)) -> int:
    """Bytes sent until the server stops taking them, which it does a moment after it has refused."""
    sent, until = 0, time.monotonic() + 15
    try:
        while time.monotonic() < until:
            connection.sendall(block)
            sent += len(block)
    except OSError:
        return sent
    raise AssertionError(f"the server still takes bytes after {sent}")
