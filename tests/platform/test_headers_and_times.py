"""Trap 7 of daphne: silence on long headers, patience with half requests. A stream may last all the same."""

from __future__ import annotations

import time

import pytest

from tests.live import LiveServer
from tests.platform.conftest import StartEcho
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
        b"GET /health/live HTTP/1.1\r\n\r\n",
        head("GET", "/health/live", "Host: localhost"),
        b"GET /health/live HTTP/1.1\r\nHost: \r\n\r\n",
        b"GET ftp://localhost/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET health/live HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET http:///health/live HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET http://[::1/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"CONNECT localhost:80 HTTP/1.1\r\nHost: localhost\r\n\r\n",
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
        "no Host",
        "two Hosts",
        "empty Host",
        "target of another scheme",
        "target without a slash",
        "target without an authority",
        "target with half an address",
        "tunnel",
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


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "localhost:port",
        "localhost:-1",
        "localhost:65536",
        "localhost:" + "9" * 30,
        "local host",
        "[::1",
    ],
)
def test_a_bad_host_is_refused_in_one_line_of_the_log(start_echo: StartEcho, host: str) -> None:
    echo = start_echo()
    got = ask(echo.url, f"GET /form HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
    assert got.status == 400
    assert got.error["code"] == "invalid_host"
    get(echo.url, "/health/live")
    assert echo.stop() == 0
    assert "Traceback" not in echo.output
    assert echo.output.count("Host") <= 1


def test_an_absolute_target_is_served_by_its_path_and_its_authority(echo: LiveServer) -> None:
    """RFC 9112, 3.2.2: a server must accept it, and its authority overrides the Host header."""
    line = b"GET http://localhost/health/live?x=1 HTTP/1.1\r\n"
    assert ask(echo.url, line + b"Host: evil.example\r\nConnection: close\r\n\r\n").status == 200
    foreign = b"GET http://evil.example/health/live HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    assert ask(echo.url, foreign).error["code"] == "invalid_host"


def test_the_body_limit_of_an_absolute_target_is_that_of_its_path(echo: LiveServer) -> None:
    got = ask(
        echo.url,
        b"POST http://localhost/size HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100001\r\n\r\n",
    )
    assert got.error["code"] == "request_too_large"


@pytest.mark.parametrize("size", ["FFFFFFFFFFFFFFFFF", "F" * 200, "7FFFFFFFFFFFFFFF", "18700"])
def test_an_enormous_chunk_is_refused_before_it_comes(echo: LiveServer, size: str) -> None:
    got = ask(echo.url, head("POST", "/size", "Transfer-Encoding: chunked") + f"{size}\r\nabc".encode())
    assert got.error["code"] == "request_too_large"


@pytest.mark.parametrize(
    "lines",
    [
        ("Connection: keep-alive", "Connection: close"),
        ("Connection: close", "Connection: keep-alive"),
        ("Connection: keep-alive, close",),
        ("Connection: Close",),
    ],
)
def test_any_connection_header_may_ask_to_close(start_echo: StartEcho, lines: tuple[str, ...]) -> None:
    echo = start_echo(IDLE_TIMEOUT=3_600)
    with connected(echo.url) as connection:
        connection.sendall(head("GET", "/health/live", *lines))
        received = read_all(connection)  # times out where the server keeps the connection
    assert b"connection: close" in received.lower()


def test_a_connection_stays_open_when_nobody_asks_to_close(echo: LiveServer) -> None:
    with connected(echo.url) as connection:
        for _ in range(2):
            connection.sendall(head("GET", "/health/live", "Connection: keep-alive", "Connection: x-other"))
            read_until(connection, b"alive")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
def test_probes_answer_other_methods_as_an_api_does(echo: LiveServer, method: str) -> None:
    got = ask(echo.url, head(method, "/health/live", "Content-Length: 0", "Connection: close"))
    assert got.status == 405
    assert got.error["code"] == "method_not_allowed"
    assert got.headers["allow"] == "GET, HEAD"


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


def test_malformed_request_is_refused_after_the_answer_before_it(echo: LiveServer) -> None:
    """A refusal in the middle of another request's answer would be taken for a part of it."""
    with connected(echo.url) as connection:
        connection.sendall(head("GET", "/sleep?seconds=0.3") + b"nonsense\r\n\r\n")
        received = read_all(connection)
    assert received.index(b"slept") < received.index(b"400 Bad Request")


def test_upgrade_to_websocket_is_ignored(echo: LiveServer) -> None:
    assert get(echo.url, "/health/live", "Upgrade: websocket", "Sec-WebSocket-Key: x").status == 200
