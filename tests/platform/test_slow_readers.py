"""A client that stops reading its stream: bounded, then cut and told so, and nobody else's matter."""

from __future__ import annotations

import json
import socket
import time
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import psycopg
import pytest

from inference.client import MAX_EVENTS
from tests import live
from tests.builders import build_model
from tests.conftest import site_environment
from tests.platform.test_engine_faults import eventually, load
from tests.platform.test_load_faults import ask, chat
from tests.platform.wire import get, read_all, read_until

pytestmark = pytest.mark.live
MEBIBYTE = 2**20
ENDLESS = {"stream": True, "ignore_eos": True, "user": "slow"}


def test_a_client_that_stops_reading_is_bounded_then_cut_and_told_so(tmp_path: Path, database_url: str) -> None:
    """16 choices of 3000 tokens with 20 alternatives each: 48,000 events, more than are kept for a reader."""
    assert 2 * MAX_EVENTS < 16 * 3000
    model = build_model(tmp_path / "model", max_position_embeddings=4096)
    environment = site_environment(database_url, tmp_path / "home") | {"MILLM_IDLE_TIMEOUT": "300"}
    with live.serving("--setup", environment=environment) as server:
        server.manage("add_model", "tiny", str(model), "--dtype", "float32")
        assert ask(server.url, chat("tiny", max_tokens=2)).status == 200
        process = psutil.Process(server.pid)
        before = process.memory_info().rss
        with stuck(server.url) as connection:
            connection.sendall(chat("tiny", **ENDLESS, n=16, max_tokens=3000, logprobs=True, top_logprobs=20))
            beginning = read_until(connection, b'"content":"')
            neighbour = ask(server.url, chat("tiny", max_tokens=100, ignore_eos=True))
            assert json.loads(neighbour.body)["usage"]["completion_tokens"] == 100
            wait_for_metric(server.url, b'millm_request_failure_total{code="slow_reader",model="tiny"} 16.0')
            assert process.memory_info().rss - before < 200 * MEBIBYTE
            assert eventually(lambda: load(server.url) == (0, 0), 5)
            events = beginning + read_all(connection)
        assert b'"code":"slow_reader"' in events.rsplit(b"data: ", 1)[1]
        assert b"[DONE]" not in events
        assert ask(server.url, chat("tiny", max_tokens=2)).status == 200
        assert server.stop() == 0
    assert logged(database_url, "slow") == ["slow_reader"]


def test_one_who_never_reads_again_is_cut_when_the_time_is_up(tmp_path: Path, database_url: str) -> None:
    """What is kept for the reader is fewer events than the bound, so it is the connection's own time that ends it."""
    environment = site_environment(database_url, tmp_path / "home") | {"MILLM_IDLE_TIMEOUT": "2"}
    with live.serving("--setup", environment=environment) as server:
        demo = json.loads(get(server.url, "/v1/models").body)["data"][0]["id"]
        assert ask(server.url, chat(demo, max_tokens=2)).status == 200
        with stuck(server.url) as connection:
            connection.sendall(chat(demo, **ENDLESS, n=16, max_tokens=900, logprobs=True, top_logprobs=20))
            read_until(connection, b'"content":"')
            deadline = time.monotonic() + 60
            while not logged(database_url, "slow"):
                assert time.monotonic() < deadline
                time.sleep(0.1)
            assert eventually(lambda: load(server.url) == (0, 0), 5)
            assert b"[DONE]" not in read_all(connection)
        assert server.stop() == 0
    assert logged(database_url, "slow") == ["client_disconnected"]


def stuck(url: str) -> socket.socket:
    """A connection that takes little in while nobody reads from it."""
    parts = urlsplit(url)
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.settimeout(60)
    connection.connect((parts.hostname, parts.port))
    return connection


def wait_for_metric(url: str, line: bytes) -> None:
    deadline = time.monotonic() + 120
    while line not in get(url, "/metrics").body:
        assert time.monotonic() < deadline, line
        time.sleep(0.2)


def logged(database_url: str, user: str) -> list[str]:
    """The error codes of a user's requests."""
    with psycopg.connect(database_url) as connection:
        query = 'SELECT error_code FROM openai_api_requestlog WHERE "user" = %s'
        return [code for (code,) in connection.execute(query, [user]).fetchall()]
