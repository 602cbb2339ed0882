"""Trap 4 of daphne: SIGTERM cuts streams."""

from __future__ import annotations

import re
import signal
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from tests import live
from tests.live import LiveServer
from tests.platform.conftest import StartEcho
from tests.platform.wire import Answer, answer, connected, get, head, read_all, read_until


@contextmanager
def streaming(server: LiveServer, events: int, every: float) -> Iterator[Future[bytes]]:
    """A running stream whose first event has come; the future holds all of its bytes."""
    with connected(server.url, timeout_s=live.PATIENCE_S) as connection, ThreadPoolExecutor(1) as pool:
        connection.sendall(head("GET", f"/stream?events={events}&every={every}", "Connection: close"))
        beginning = read_until(connection, b"data: 0")
        yield pool.submit(lambda: beginning + read_all(connection))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_running_stream_finishes_and_new_requests_are_refused(start_echo: StartEcho, number: signal.Signals) -> None:
    echo = start_echo(DRAIN_SECONDS=900)
    with connected(echo.url) as kept, streaming(echo, 40, 0.05) as stream:
        kept.sendall(head("GET", "/health/live"))
        read_until(kept, b"alive")
        echo.process.send_signal(number)
        echo.wait_for("^draining")
        for refused in (get(echo.url, "/form"), on_kept_connection(kept)):
            assert refused.status == 503
            assert 1 <= int(refused.headers["retry-after"]) <= 120
            assert refused.error["code"] == "server_is_stopping"
        assert get(echo.url, "/health/live").status == 200
        body = stream.result()
    assert [f"data: {n}\n".encode() in body for n in range(40)] == [True] * 40
    assert b"[DONE]" in body
    assert echo.process.wait(live.PATIENCE_S) == 0
    left = re.search(r"engine stopped with (\d+) s left", echo.output)
    assert left is not None
    assert 0 < int(left[1]) < 900


def test_request_without_end_is_cut_when_the_time_is_up(start_echo: StartEcho) -> None:
    echo = start_echo(DRAIN_SECONDS=1)
    with streaming(echo, 10_000, 0.05) as stream:
        assert echo.stop() == 0
        assert b"[DONE]" not in stream.result()
    assert "engine stopped with 0 s left" in echo.output


def test_second_signal_cuts(start_echo: StartEcho) -> None:
    echo = start_echo(DRAIN_SECONDS=3_600)
    with streaming(echo, 10_000, 0.05) as stream:
        echo.process.send_signal(signal.SIGTERM)
        echo.wait_for("^draining")
        assert echo.stop() == 0
        assert b"[DONE]" not in stream.result()


def test_idle_server_stops_at_once(start_echo: StartEcho) -> None:
    echo = start_echo(DRAIN_SECONDS=3_600)
    with connected(echo.url) as kept:
        kept.sendall(head("GET", "/health/live"))
        read_until(kept, b"alive")
        assert echo.stop() == 0


def test_forty_streams_finish(start_echo: StartEcho) -> None:
    echo = start_echo(DRAIN_SECONDS=600)
    begun = threading.Barrier(41, timeout=live.PATIENCE_S)

    def read_stream() -> bytes:
        with connected(echo.url, timeout_s=live.PATIENCE_S) as connection:
            connection.sendall(head("GET", "/stream?events=40&every=0.05", "Connection: close"))
            beginning = read_until(connection, b"data: 0")
            begun.wait()
            return beginning + read_all(connection)

    with ThreadPoolExecutor(40) as pool:
        streams = [pool.submit(read_stream) for _ in range(40)]
        begun.wait()
        assert echo.stop() == 0
    assert sum(stream.result().count(b"data: ") for stream in streams) == 40 * 41


def on_kept_connection(kept: socket.socket) -> Answer:
    kept.sendall(head("GET", "/form"))
    return answer(read_all(kept))
