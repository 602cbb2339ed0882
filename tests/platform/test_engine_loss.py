"""A whole server whose engine thread dies or hangs."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests import live
from tests.conftest import site_environment
from tests.platform.wire import Answer, answer, connected, get, head, read_all

pytestmark = pytest.mark.live
CHAT = {"model": "", "messages": [{"role": "user", "content": "Tell me a story."}], "max_tokens": 5}


@contextmanager
def faulty(fault: str, home: Path, database_url: str) -> Iterator[live.LiveServer]:
    environment = {
        **site_environment(database_url, home),
        "MILLM_PORT": "0",
        "MILLM_ENGINE_STALL_SECONDS": "1",
        "MILLM_DRAIN_SECONDS": "10",
    }
    with live.running([sys.executable, "-m", "tests.platform.faulty_server", fault], environment) as server:
        server.url = server.wait_for(live.SERVES_ON).group(1)
        yield server


def chat(url: str) -> Answer:
    models = json.loads(get(url, "/v1/models").body)["data"]
    data = json.dumps(CHAT | {"model": models[0]["id"]}).encode()
    fields = ("Content-Type: application/json", f"Content-Length: {len(data)}", "Connection: close")
    with connected(url, timeout_s=60) as connection:
        connection.sendall(head("POST", "/v1/chat/completions", *fields) + data)
        return answer(read_all(connection))


def test_after_a_thread_s_death_the_server_serves_on(tmp_path: Path, database_url: str) -> None:
    with faulty("die", tmp_path, database_url) as server:
        refused = chat(server.url)
        assert (refused.status, refused.error["message"]) == (500, "The engine failed.")
        assert eventually_ready(server.url)
        assert chat(server.url).status == 200
        assert b"millm_engine_restarts_total 1.0" in get(server.url, "/metrics").body
        assert server.stop() == 0


def test_after_a_thread_hangs_the_server_tells_everyone_and_ends_with_an_error(
    tmp_path: Path, database_url: str
) -> None:
    with faulty("hang", tmp_path, database_url) as server:
        refused = chat(server.url)
        assert (refused.status, refused.error["message"]) == (500, "The engine failed.")
        assert server.process.wait(30) == 1
    assert "The engine is lost. The engine thread has not moved for 1 s" in server.output


def eventually_ready(url: str) -> bool:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        report: dict[str, Any] = json.loads(get(url, "/health").body)
        if report["status"] == "ready":
            return True
        assert "The engine" in report["engine"]
        time.sleep(0.05)
    return False
