"""A whole server whose engine thread dies or hangs, or is slow while clients leave."""

from __future__ import annotations

import json
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest

from millm_site.embedded_postgres.cluster import EmbeddedPostgres
from tests import live
from tests.conftest import site_environment
from tests.platform.conftest import postmaster_of
from tests.platform.wire import Answer, answer, connected, get, head, read_all, read_until
from tests.ray_cluster import RayNode

pytestmark = pytest.mark.live
CHAT = {"model": "", "messages": [{"role": "user", "content": "Tell me a story."}], "max_tokens": 5}


@contextmanager
def faulty(fault: str, home: Path, database_url: str, **variables: str) -> Iterator[live.LiveServer]:
    environment = {
        **site_environment(database_url, home),
        "MILLM_PORT": "0",
        "MILLM_ENGINE_STALL_SECONDS": "1",
        "MILLM_DRAIN_SECONDS": "10",
        **variables,
    }
    with live.running([sys.executable, "-m", "tests.platform.faulty_server", fault], environment) as server:
        server.url = server.wait_for(live.SERVES_ON).group(1)
        yield server


def chat(url: str, **fields: Any) -> Answer:
    with connected(url, timeout_s=live.PATIENCE_S) as connection:
        connection.sendall(request(url, **CHAT | fields))
        return answer(read_all(connection))


def request(url: str, **fields: Any) -> bytes:
    models = json.loads(get(url, "/v1/models").body)["data"]
    data = json.dumps({**fields, "model": models[0]["id"]}).encode()
    lines = ("Content-Type: application/json", f"Content-Length: {len(data)}", "Connection: close")
    return head("POST", "/v1/chat/completions", *lines) + data


@pytest.mark.parametrize("engine", ["thread", "process"])
def test_after_a_thread_s_death_the_server_serves_on(tmp_path: Path, database_url: str, engine: str) -> None:
    with faulty("die", tmp_path, database_url, MILLM_ENGINE=engine) as server:
        refused = chat(server.url)
        assert (refused.status, refused.error["message"]) == (500, "The engine failed.")
        assert eventually_ready(server.url)
        assert chat(server.url).status == 200
        assert b"millm_engine_restarts_total 1.0" in get(server.url, "/metrics").body
        assert server.stop() == 0


def test_after_a_thread_hangs_the_server_tells_everyone_and_ends_with_an_error(
    tmp_path: Path, database_url: str
) -> None:
    with faulty("hang", tmp_path, database_url, MILLM_ENGINE="thread") as server:
        refused = chat(server.url)
        assert (refused.status, refused.error["message"]) == (500, "The engine failed.")
        assert server.process.wait(live.PATIENCE_S) == 1
    assert "The engine failed. The engine thread has not responded for 1 s" in server.output


def test_an_engine_process_that_hangs_or_is_killed_is_replaced_and_each_request_has_one_end(
    tmp_path: Path, database_url: str
) -> None:
    with faulty("hang", tmp_path, database_url, MILLM_ENGINE="process") as server:
        refused = chat(server.url, user="hung")
        assert (refused.status, refused.error["message"]) == (500, "The engine failed.")
        assert eventually_ready(server.url)
        assert chat(server.url, user="after").status == 200
        long = CHAT | {"stream": True, "max_tokens": 900, "ignore_eos": True}
        with connected(server.url, timeout_s=live.PATIENCE_S) as streaming:
            streaming.sendall(request(server.url, **long, user="killed"))
            beginning = read_until(streaming, b'"content":"')
            server.engine.kill()
            events = (beginning + read_all(streaming)).decode()
        assert events.count('"error":{') == 1
        assert '"message":"The engine failed."' in events
        assert chat(server.url, user="at once").status == 200  # it waits for the process and its model
        assert b"millm_engine_restarts_total 2.0" in get(server.url, "/metrics").body
        engine = server.engine.pid
        assert engine != server.pid
        assert server.stop() == 0
        assert live.ended(engine)
    rows = logged(database_url)
    assert {user: code for user, (code, _) in rows.items() if user} == {
        "hung": "server_error",
        "after": "",
        "killed": "server_error",
        "at once": "",
    }
    assert "The engine process ended with exit code 70." in server.output


@pytest.fixture(params=["process", "ray"])
def replicas(request: pytest.FixtureRequest) -> Iterator[Replicas]:
    """Two engine processes of this machine or of a Ray cluster: the settings, and how to find them."""
    if request.param == "process":
        yield Replicas({"MILLM_ENGINE": "process", "MILLM_ENGINE_REPLICAS": "2"}, lambda server: server.engines)
        return
    node: RayNode = request.getfixturevalue("ray_node")
    yield Replicas({"MILLM_ENGINE": node.address, "MILLM_ENGINE_REPLICAS": "2"}, lambda server: node.engines)
    assert eventually(lambda: not node.engines, live.PATIENCE_S)


@dataclass(frozen=True, slots=True)
class Replicas:
    settings: dict[str, str]
    engines: Callable[[live.LiveServer], list[psutil.Process]]


@pytest.mark.parametrize("fault", ["die", "hang"])
def test_a_replica_that_fails_ends_its_own_requests_only(
    tmp_path: Path, database_url: str, replicas: Replicas, fault: str
) -> None:
    with faulty(fault, tmp_path, database_url, **replicas.settings) as server:
        assert eventually(lambda: num_serving(server.url) == 2, live.PATIENCE_S), server.output
        with ThreadPoolExecutor(4) as pool:
            answers = list(pool.map(lambda user: chat(server.url, user=user), ["a", "b", "c", "d"]))
        refused = [each for each in answers if each.status != 200]
        assert 0 < len(refused) < 4, "those on the other replica were answered"
        assert {(each.status, each.error["message"]) for each in refused} == {(500, "The engine failed.")}
        assert eventually(lambda: num_serving(server.url) == 2, live.PATIENCE_S), server.output
        assert b"millm_engine_restarts_total 1.0" in get(server.url, "/metrics").body
        with ThreadPoolExecutor(4) as pool:
            assert {each.status for each in pool.map(lambda user: chat(server.url, user=user), "efgh")} == {200}
        assert server.stop() == 0


def test_when_a_replica_is_killed_only_its_streams_end_and_new_requests_go_elsewhere(
    tmp_path: Path, database_url: str, replicas: Replicas
) -> None:
    """Steps take 50 ms, so that all streams run when the replica is killed."""
    with faulty("slow", tmp_path, database_url, **replicas.settings) as server, ExitStack() as stack:
        assert eventually(lambda: num_serving(server.url) == 2, live.PATIENCE_S), server.output
        long = CHAT | {"stream": True, "max_tokens": 60, "ignore_eos": True}
        streams = [stack.enter_context(connected(server.url, timeout_s=live.PATIENCE_S)) for _ in range(6)]
        for number, stream in enumerate(streams):
            stream.sendall(request(server.url, **long, user=f"stream {number}"))
        beginnings = [read_until(stream, b'"content":"') for stream in streams]
        victim = replicas.engines(server)[0]
        victim.kill()
        assert chat(server.url, user="at once").status == 200
        assert get(server.url, "/health/ready").status == 200
        assert num_serving(server.url) == 1, "the request has not waited for it to start again"
        events = [
            (beginning + read_all(stream)).decode() for beginning, stream in zip(beginnings, streams, strict=True)
        ]
        ends = Counter((text.count('"error":{'), text.count('"finish_reason":"length"')) for text in events)
        assert set(ends) == {(1, 0), (0, 1)}, "each has one end, and those on the other replica are complete"
        assert eventually(lambda: num_serving(server.url) == 2, live.PATIENCE_S), server.output
        assert victim.pid not in {each.pid for each in replicas.engines(server)}
        with ThreadPoolExecutor(4) as pool:
            assert {each.status for each in pool.map(lambda user: chat(server.url, user=user), "abcd")} == {200}
        engines = [each.pid for each in replicas.engines(server)]
        assert server.stop() == 0
        assert all(map(live.ended, engines))
    codes = Counter(code for user, (code, _) in logged(database_url).items() if user.startswith("stream"))
    assert codes == {"server_error": ends[1, 0], "": ends[0, 1]}


def num_serving(url: str) -> int:
    """Return how many engine processes serve a model."""
    text = get(url, "/metrics").body.decode()
    up, models = (re.findall(rf'^millm_replica_{name}{{replica="\d+"}} (\S+)', text, re.M) for name in ("up", "models"))
    return sum(float(is_up) > 0 and float(count) > 0 for is_up, count in zip(up, models, strict=True))


@pytest.mark.parametrize("engine", ["thread", "process"])
def test_clients_that_leave_free_the_queue_and_the_batch_at_once(
    tmp_path: Path, database_url: str, engine: str
) -> None:
    """Steps take 50 ms, the whole answer would take 20 s."""
    with faulty("slow", tmp_path, database_url, MILLM_ENGINE=engine, MILLM_MAX_BATCH_SIZE="1") as server:
        assert chat(server.url).status == 200  # the model is loaded now
        long = CHAT | {"stream": True, "max_tokens": 400, "ignore_eos": True}
        with connected(server.url) as running, connected(server.url) as queued:
            running.sendall(request(server.url, **long, user="running"))
            read_until(running, b'"content":"')
            queued.sendall(request(server.url, **long, user="queued"))
            assert eventually(lambda: load(server.url) == (1, 1), 10)
            queued.close()
            assert eventually(lambda: load(server.url) == (1, 0), 3)
            running.close()
            assert eventually(lambda: load(server.url) == (0, 0), 3)
        assert chat(server.url).status == 200
        assert server.stop() == 0
    rows = logged(database_url)
    assert rows["queued"] == ("client_disconnected", 0)
    assert rows["running"][0] == "client_disconnected"
    assert 0 < rows["running"][1] < 400


@pytest.mark.parametrize("engine", ["thread", "process"])
def test_a_full_queue_says_when_to_come_again_by_the_rate_at_which_requests_end(
    tmp_path: Path, database_url: str, engine: str
) -> None:
    """Steps take 50 ms, so 60 tokens take 3 s at least: two such ends and one before are no more than one in 2 s."""
    limits = {"MILLM_MAX_BATCH_SIZE": "1", "MILLM_MAX_WAITING_REQUESTS": "1"}
    with faulty("slow", tmp_path, database_url, MILLM_ENGINE=engine, **limits) as server:
        assert chat(server.url).status == 200
        for _ in range(2):
            assert chat(server.url, max_tokens=60, ignore_eos=True).status == 200
        long = CHAT | {"stream": True, "max_tokens": 400, "ignore_eos": True}
        with connected(server.url) as running, connected(server.url) as queued:
            running.sendall(request(server.url, **long))
            read_until(running, b'"content":"')
            queued.sendall(request(server.url, **long))
            assert eventually(lambda: load(server.url) == (1, 1), 10)
            refused = chat(server.url)
            assert (refused.status, refused.error["code"]) == (503, "server_is_overloaded")
            assert "2 requests are running or waiting; the limit is 2." in refused.error["message"]
            assert 2 <= int(refused.headers["retry-after"]) <= 60
        assert eventually(lambda: load(server.url) == (0, 0), 5)
        assert chat(server.url).status == 200
        assert server.stop() == 0


def test_streams_outlive_the_database_and_every_request_is_logged_once_it_is_back(home: Path, tmp_path: Path) -> None:
    """A database server of the test's own, named by URL: nothing of ours starts it again."""
    database = EmbeddedPostgres(home / "postgres")
    database.ensure_running()
    url = f"postgresql://postgres@/postgres?host={database.socket_dir}"
    with faulty("slow", tmp_path, url, MILLM_DATABASE_TIMEOUT="1") as server:
        assert chat(server.url, user="before").status == 200
        with connected(server.url, timeout_s=live.PATIENCE_S) as streaming:
            story = CHAT | {"stream": True, "max_tokens": 100, "ignore_eos": True, "user": "during"}
            streaming.sendall(request(server.url, **story, stream_options={"include_usage": True}))
            beginning = read_until(streaming, b'"content":"')
            postmaster = postmaster_of(home)
            assert postmaster is not None
            postmaster.send_signal(signal.SIGQUIT)
            assert live.ended(postmaster.pid)
            assert chat(server.url, user="without").status == 200  # models and keys are known in the process
            events = (beginning + read_all(streaming)).decode()
        assert events.count("[DONE]") == 1
        assert '"completion_tokens":100' in events
        assert '"error"' not in events
        assert load(server.url) == (0, 0)
        assert get(server.url, "/health/ready").status == 503
        database.ensure_running()
        assert eventually(lambda: get(server.url, "/health/ready").status == 200, 15)
        assert chat(server.url, user="after").status == 200
        users = {"before", "during", "without", "after"}
        assert eventually(lambda: users <= logged(url).keys(), 15), (logged(url), server.output)
        assert server.stop() == 0
    rows = logged(url)
    assert {rows[user][0] for user in users} == {""}
    assert rows["during"][1] == 100
    with psycopg.connect(url) as connection:
        query = 'SELECT count(*) FROM openai_api_requestlog WHERE "user" <> %s'
        assert connection.execute(query, [""]).fetchone() == (4,), "each is written once"
    assert database.stop_if_unused()


def load(url: str) -> tuple[int, int]:
    report = json.loads(get(url, "/health").body)["load"]
    return report["running"], report["waiting"]


def eventually(condition: Callable[[], bool], within_s: float) -> bool:
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def logged(database_url: str) -> dict[str, tuple[str, int]]:
    """Error code and completion tokens of each request, by its user."""
    with psycopg.connect(database_url) as connection:
        rows = connection.execute('SELECT "user", error_code, completion_tokens FROM openai_api_requestlog').fetchall()
    return {user: (code, count) for user, code, count in rows}


def eventually_ready(url: str) -> bool:
    deadline = time.monotonic() + live.PATIENCE_S
    while time.monotonic() < deadline:
        report: dict[str, Any] = json.loads(get(url, "/health").body)
        if report["status"] == "ready":
            return True
        assert "The engine" in report["engine"]
        time.sleep(0.05)
    return False
