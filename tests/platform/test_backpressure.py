"""Trap 3 of daphne: what a client does not read is kept in memory."""

from __future__ import annotations

import time

import psutil

from tests import live
from tests.platform.conftest import StartEcho
from tests.platform.wire import connected, get, head, read_all, read_until

MEGABYTE = 2**20


def test_client_that_does_not_read_costs_little_memory_and_is_cut(start_echo: StartEcho) -> None:
    echo = start_echo(IDLE_TIMEOUT=2)
    process = psutil.Process(echo.pid)
    get(echo.url, "/health/live")
    before = process.memory_info().rss
    with connected(echo.url) as connection:
        connection.sendall(head("GET", "/flood?megabytes=300"))
        read_until(connection, b"200 OK")
        time.sleep(1)
        assert process.memory_info().rss - before < 30 * MEGABYTE
        assert get(echo.url, "/health/live").status == 200
        time.sleep(2.5)
        assert len(read_all(connection)) < 50 * MEGABYTE


def test_client_that_reads_gets_everything(start_echo: StartEcho) -> None:
    echo = start_echo()
    with connected(echo.url, timeout_s=live.PATIENCE_S) as connection:
        connection.sendall(head("GET", "/flood?megabytes=100", "Connection: close"))
        received = 0
        while block := connection.recv(2**20):
            received += len(block)
    assert received > 100 * MEGABYTE
    assert psutil.Process(echo.pid).memory_full_info().uss < 250 * MEGABYTE
