"""Several web workers with one engine: ``manage.py serve --workers``."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import psutil
import psycopg
import pytest
from openai import OpenAI

from tests import database, live
from tests.conftest import site_environment
from tests.live import LiveServer
from tests.platform.web_socket import web_socket
from tests.platform.wire import get

pytestmark = pytest.mark.live
STORY = {"model": "demo", "messages": [{"role": "user", "content": "Tell me a story."}]}
LONG = {**STORY, "max_tokens": 800, "stream": True, "ignore_eos": True}
KEY = "a-key-of-the-tests-for-everything-0123456789"
MANY = 20  # connections, of which both workers accept some


class Line:
    """A kept connection, which one worker has accepted."""

    def __init__(self, server: LiveServer) -> None:
        place = urlsplit(server.url)
        self.connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=live.PATIENCE_S)
        self.send("GET", "/health/live")
        assert self.read() == {"status": "alive"}
        self.worker = self._worker(server)

    def _worker(self, server: LiveServer) -> int:
        port = self.connection.sock.getsockname()[1]
        for pid in workers(server):
            if any(end.raddr and end.raddr.port == port for end in psutil.Process(pid).net_connections("tcp")):
                return pid
        raise AssertionError("no worker has the connection")

    def send(self, method: str, path: str, body: object = None, key: str = "", **headers: str) -> None:
        content = None if body is None else json.dumps(body).encode()
        given = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {}) | headers
        self.connection.request(method, path, content, given)
        self.answer = self.connection.getresponse()
        self.status = self.answer.status
        self.headers = {name.lower(): value for name, value in self.answer.getheaders()}

    def read(self) -> Any:
        content = self.answer.read()
        return json.loads(content) if content else None

    def ask(self, path: str, body: object = None, key: str = "", method: str = "") -> Any:
        """Send a request and return the answer, whatever its status."""
        self.send(method or ("GET" if body is None else "POST"), path, body, key)
        return self.read()

    def close(self) -> None:
        self.connection.close()


def workers(server: LiveServer) -> set[int]:
    children = psutil.Process(server.pid).children()
    return {child.pid for child in children if _is_worker(child)}


def _is_worker(process: psutil.Process) -> bool:
    try:
        return "millm_site.workers" in process.cmdline()
    except psutil.Error:
        return False


@contextmanager
def lines(server: LiveServer) -> Iterator[tuple[Line, Line]]:
    """One connection to each of two workers, once both serve."""
    with ExitStack() as stack:

        def both() -> list[Line]:
            found: dict[int, Line] = {}
            for _ in range(MANY):
                line = Line(server)
                stack.callback(line.close)
                found.setdefault(line.worker, line)
            return list(found.values()) if len(found) == 2 else []

        one, other = until(both)
        yield one, other


@contextmanager
def served(home: Path, *, number: int = 2, **variables: str) -> Iterator[LiveServer]:
    with database.own_database() as url:
        environment = site_environment(url, home) | {"MILLM_ADMIN_API_KEY": KEY, **variables}
        with live.serving("--setup", "--workers", str(number), environment=environment) as server:
            yield server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with served(tmp_path_factory.mktemp("workers")) as server:
        yield server
        assert server.stop() == 0, server.output


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[LiveServer]:
    """One that the test may harm."""
    with served(tmp_path) as server:
        yield server


@pytest.fixture
def pair(server: LiveServer) -> Iterator[tuple[Line, Line]]:
    with lines(server) as pair:
        yield pair


def until(condition: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + live.PATIENCE_S
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return found


def new_key(server: LiveServer, name: str, **limits: int) -> str:
    options = [part for limit, value in limits.items() for part in (f"--{limit.replace('_', '-')}", str(value))]
    output = server.manage("create_api_key", name, "--user", "admin", *options)
    return next(word for word in output.split() if word.startswith("sk-millm-"))


def metric(server: LiveServer, name: str) -> float:
    """The sum of a metric's series."""
    text = get(server.url, "/metrics").body.decode()
    return sum(
        float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith((name + "{", name + " "))
    )


def load(line: Line) -> tuple[int, int]:
    """Running and waiting sequences of the engine, as a worker sees them."""
    found = line.ask("/health/ready")["load"]
    return found["running"], found["waiting"]


class TestRequests:
    def test_parallel_clients_are_answered_as_one_is(self, server: LiveServer) -> None:
        client = OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=live.PATIENCE_S)

        def tell(number: int) -> str:
            body: Any = {**STORY, "max_tokens": 24, "temperature": 0}
            if number % 2:
                return client.chat.completions.create(**body).choices[0].message.content or ""
            return "".join(
                chunk.choices[0].delta.content or "" for chunk in client.chat.completions.create(**body, stream=True)
            )

        with ThreadPoolExecutor(16) as pool:
            assert len(set(pool.map(tell, range(48)))) == 1

    def test_both_workers_accept_connections(self, server: LiveServer, pair: tuple[Line, Line]) -> None:
        assert {line.worker for line in pair} == workers(server)

    def test_steered_requests_through_both(self, pair: tuple[Line, Line]) -> None:
        answers = [
            line.ask("/v1/chat/completions", {**STORY, "profile": "gloomy", "seed": 0, "max_tokens": 16})
            for line in pair
        ]
        assert answers[0]["choices"] == answers[1]["choices"]
        assert answers[0]["millm"]["profile"] == answers[1]["millm"]["profile"]

    def test_errors_are_those_of_the_engine_and_the_registry(self, pair: tuple[Line, Line]) -> None:
        for line in pair:
            assert line.ask("/v1/completions", {"model": "none", "prompt": "a"})["error"]["code"] == "model_not_found"
            too_long = line.ask("/v1/completions", {"model": "demo", "prompt": "a " * 5_000, "max_tokens": 1})
            assert too_long["error"]["code"] == "context_length_exceeded"
            assert (
                line.ask("/v1/chat/completions", {**STORY, "profile": "none"})["error"]["code"] == "profile_not_found"
            )

    def test_a_client_that_leaves_frees_the_engine(self, server: LiveServer, pair: tuple[Line, Line]) -> None:
        leaving, staying = pair
        leaving.send("POST", "/v1/chat/completions", LONG)
        assert leaving.answer.readline().startswith(b"data:")
        until(lambda: load(staying)[0] > 0)
        leaving.answer.close()
        leaving.close()
        until(lambda: load(staying) == (0, 0))

    def test_web_sockets(self, server: LiveServer) -> None:
        with web_socket(server.url, "/v1/responses") as socket:
            for number in range(2):  # the second one continues the first, which only this connection knows
                socket.say({"type": "response.create", "model": "demo", "input": "Hello.", "max_output_tokens": 4})
                events = [socket.hear()]
                while events[-1]["type"] not in {"response.completed", "response.incomplete"}:
                    events.append(socket.hear())
                assert events[0]["type"] == "response.created", number


class TestSharedState:
    def test_requests_per_minute(self, server: LiveServer, pair: tuple[Line, Line]) -> None:
        key = new_key(server, "minute", requests_per_minute=10)
        statuses = []
        for number in range(20):
            pair[number % 2].ask("/v1/models", key=key)
            statuses.append(pair[number % 2].status)
            assert pair[number % 2].headers["x-ratelimit-limit-requests"] == "10"
        assert Counter(statuses) == {200: 10, 429: 10}

    def test_concurrent_requests_and_their_end(self, server: LiveServer, pair: tuple[Line, Line]) -> None:
        key = new_key(server, "concurrent", max_concurrent_requests=1)
        one, other = pair
        one.send("POST", "/v1/chat/completions", LONG, key)
        assert one.status == 200
        refused = other.ask("/v1/models", key=key)
        assert (other.status, refused["error"]["code"]) == (429, "rate_limit_exceeded")
        one.answer.close()
        one.close()
        until(lambda: other.ask("/v1/models", key=key) and other.status == 200)

    def test_tokens_of_a_day(self, server: LiveServer, pair: tuple[Line, Line]) -> None:
        key = new_key(server, "day", tokens_per_day=100)
        body = {**STORY, "max_tokens": 20, "ignore_eos": True}
        used = 0
        for number in range(12):
            answer = pair[number % 2].ask("/v1/chat/completions", body, key)
            if pair[number % 2].status == 200:
                used += answer["usage"]["total_tokens"]
            else:
                assert answer["error"]["code"] == "insufficient_quota"
        size = answer_size(pair[0], body)
        assert 100 - size < used <= 100

    def test_a_published_version_is_used_by_the_next_request_to_another_worker(self, pair: tuple[Line, Line]) -> None:
        one, other = pair
        profile = next(row for row in one.ask("/api/profiles", key=KEY)["data"] if row["name"] == "gloomy")
        path = f"/api/profiles/{profile['id']}"
        for strength in (0.5, 0.6, 0.7):
            edits = one.ask(f"{path}/draft", key=KEY)["edits"]
            one.ask(f"{path}/draft", {"edits": [{**edit, "strength": strength} for edit in edits]}, KEY, method="PUT")
            assert one.status == 200
            number = one.ask(f"{path}/publish", {"note": ""}, KEY)["number"]
            for line in (other, one):
                answer = line.ask("/v1/chat/completions", {**STORY, "profile": "gloomy", "max_tokens": 1})
                assert answer["millm"]["profile"] == f"gloomy@{number}"
            one, other = other, one

    def test_a_key_is_known_and_revoked_at_once(self, pair: tuple[Line, Line]) -> None:
        one, other = pair
        made = one.ask("/api/keys", {"name": "short-lived"}, KEY)
        for line, status in ((other, 200), (one, 200)):
            line.ask("/v1/models", key=made["key"])
            assert line.status == status
        other.ask(f"/api/keys/{made['id']}/revoke", {}, KEY)
        assert other.status == 200
        for line in (one, other):
            line.ask("/v1/models", key=made["key"])
            assert line.status == 401

    def test_metrics_add_up(self, server: LiveServer, pair: tuple[Line, Line]) -> None:
        endpoint = 'endpoint="/v1/completions"'
        names = (
            f'millm_requests_total{{{endpoint},model="demo",status="200"}}',
            f"millm_request_duration_seconds_count{{{endpoint}}}",
            "millm_generation_tokens_total",
        )
        until(lambda: load(pair[0]) == (0, 0) and metric(server, "millm_requests_in_progress") == 0)
        before = [metric(server, name) for name in names]
        for number in range(10):
            pair[number % 2].ask(
                "/v1/completions", {"model": "demo", "prompt": "Once", "max_tokens": 4, "ignore_eos": True}
            )
        until(lambda: metric(server, names[0]) - before[0] >= 10)
        assert [metric(server, name) - value for name, value in zip(names, before, strict=True)] == [10, 10, 40]
        assert metric(server, "millm_requests_in_progress") == 0
        labels = {
            line.split('worker="')[1][0]
            for line in get(server.url, "/metrics").body.decode().splitlines()
            if "process_resident_memory_bytes{" in line
        }
        assert labels == {"m", "1", "2"}

    def test_a_background_response_is_followed_and_cancelled_through_another_worker(
        self, server: LiveServer, pair: tuple[Line, Line]
    ) -> None:
        one, other = pair
        body = {
            "model": "demo",
            "input": "Tell me a story.",
            "background": True,
            "max_output_tokens": 800,
            "stream": True,
        }
        one.send("POST", "/v1/responses", {**body, "ignore_eos": True})
        first = next(line for line in one.answer if line.startswith(b"data:"))
        response = json.loads(first[5:])["response"]["id"]
        other.send("GET", f"/v1/responses/{response}?stream=true&starting_after=1")
        assert other.status == 200
        assert next(line for line in other.answer if line.startswith(b"data:"))
        with contextlib.closing(Line(server)) as third:
            assert third.ask(f"/v1/responses/{response}/cancel", {})["status"] == "cancelled"
        for line in (one, other):
            assert b"response.incomplete" in line.answer.read()

    def test_a_model_is_unloaded_through_one_and_loaded_by_a_request_to_the_other(
        self, pair: tuple[Line, Line]
    ) -> None:
        one, other = pair
        model = next(row for row in one.ask("/api/models", key=KEY)["data"] if row["name"] == "demo")
        one.ask(f"/api/models/{model['id']}/unload", {}, KEY)
        assert one.status < 300
        until(lambda: other.ask(f"/api/models/{model['id']}", key=KEY)["state"] == "unloaded")
        assert other.ask("/v1/chat/completions", {**STORY, "max_tokens": 1})["choices"]
        assert one.ask(f"/api/models/{model['id']}", key=KEY)["state"] == "loaded"

    def test_failed_logins(self, tmp_path: Path) -> None:
        with served(tmp_path, MILLM_LOGIN_ATTEMPTS="4") as server, lines(server) as pair:
            statuses = [log_in(pair[number % 2], password="wrong") for number in range(8)]
        assert statuses == [200] * 4 + [429] * 4

    def test_a_day_s_requests_through_four_workers_by_many_clients(self, tmp_path: Path) -> None:
        with served(tmp_path, number=4) as server:
            key = new_key(server, "requests", requests_per_day=100)

            def ask(number: int) -> int:
                return get(server.url, "/v1/models", f"Authorization: Bearer {key}").status

            with ThreadPoolExecutor(16) as pool:
                assert Counter(pool.map(ask, range(300))) == {200: 100, 429: 200}


def log_in(line: Line, *, password: str) -> int:
    line.send("GET", "/admin/login/")
    page = line.answer.read().decode()
    cookie = line.headers["set-cookie"].partition(";")[0]
    token = page.partition('name="csrfmiddlewaretoken" value="')[2].partition('"')[0]
    form = urlencode({"csrfmiddlewaretoken": token, "username": "admin", "password": password, "next": "/admin/"})
    line.connection.request(
        "POST", "/admin/login/", form, {"Cookie": cookie, "Content-Type": "application/x-www-form-urlencoded"}
    )
    answer = line.connection.getresponse()
    answer.read()
    return answer.status


def answer_size(line: Line, body: dict[str, Any]) -> int:
    size: int = line.ask("/v1/chat/completions", body)["usage"]["total_tokens"]
    return size


def _answers(line: Line) -> bool:
    return "choices" in line.ask("/v1/chat/completions", {**STORY, "max_tokens": 1})


def _is_draining(line: Line) -> bool:
    return bool(line.ask("/health/ready")["server"] != "ok")


class TestFaults:
    def test_a_killed_worker_takes_only_its_own_connections(self, own_server: LiveServer) -> None:
        key = new_key(own_server, "two", max_concurrent_requests=2)
        with lines(own_server) as (killed, kept):
            for line in (killed, kept):
                line.send("POST", "/v1/chat/completions", {**LONG, "user": "streams"}, key)
                assert line.answer.readline().startswith(b"data:")
            before = metric(own_server, "millm_requests_total")
            os.kill(killed.worker, signal.SIGKILL)
            with pytest.raises((http.client.HTTPException, OSError)):
                killed.answer.read()
            fresh = Line(own_server)  # accepted at once by the other one
            until(lambda: load(fresh) == (1, 0))
            until(lambda: fresh.ask("/v1/models", key=key) and fresh.status == 200)  # its request counts no more
            assert b"[DONE]" in kept.answer.read()
            own_server.wait_for("It starts again")
            until(lambda: len(workers(own_server)) == 2)
            assert metric(own_server, "millm_requests_total") >= before
            fresh.close()
        with lines(own_server) as pair:
            assert all(line.ask("/v1/chat/completions", {**STORY, "max_tokens": 1})["choices"] for line in pair)
        assert own_server.stop() == 0, own_server.output
        with psycopg.connect(own_server.environment["MILLM_DATABASE_URL"]) as connection:
            rows = """SELECT error_code, count(*) FROM openai_api_requestlog
                WHERE "user" = 'streams' OR error_code = 'server_killed' GROUP BY 1"""
            assert dict(connection.execute(rows).fetchall()) == {"": 1, "server_killed": 1}

    def test_an_engine_process_that_dies_is_one_for_all_workers(self, tmp_path: Path) -> None:
        with served(tmp_path, MILLM_ENGINE="process") as server, lines(server) as pair:
            for line in pair:
                line.send("POST", "/v1/chat/completions", LONG)
                assert line.answer.readline().startswith(b"data:")
            server.engine.kill()
            for line in pair:
                content = line.answer.read()
                assert content.count(b'"error"') == 1
            for line in pair:  # they wait until the model is loaded again
                until(partial(_answers, line))
            assert workers(server) == {line.worker for line in pair}
            assert server.stop() == 0, server.output

    def test_a_worker_that_does_not_respond_does_not_hold_up_a_change(self, own_server: LiveServer) -> None:
        with lines(own_server) as (stuck, line):
            os.kill(stuck.worker, signal.SIGSTOP)
            try:
                made = line.ask("/api/keys", {"name": "made meanwhile"}, KEY)
                assert line.status == 201
                assert line.ask("/v1/models", key=made["key"])["data"]
                until(lambda: "has not reached every process" in own_server.output)
            finally:
                os.kill(stuck.worker, signal.SIGCONT)
            until(lambda: stuck.ask("/v1/models", key=made["key"]) and stuck.status == 200)
        assert own_server.stop() == 0, own_server.output

    def test_sigterm_drains_all_workers(self, own_server: LiveServer) -> None:
        with lines(own_server) as pair, lines(own_server) as spare:
            for line in pair:
                line.send("POST", "/v1/chat/completions", {**LONG, "max_tokens": 400})
                assert line.answer.readline().startswith(b"data:")
            own_server.process.send_signal(signal.SIGTERM)
            for line in spare:
                until(partial(_is_draining, line))
            for line in pair:
                content = line.answer.read()
                assert b"[DONE]" in content
                assert content.count(b"data:") > 100
            assert own_server.process.wait(live.PATIENCE_S) == 0
        assert "Stopped." in own_server.output

    def test_workers_end_with_the_main_process(self, own_server: LiveServer) -> None:
        pids = workers(own_server)
        with lines(own_server) as (line, _):
            line.send("POST", "/v1/chat/completions", LONG)
            assert line.answer.readline().startswith(b"data:")
            own_server.kill()
            with contextlib.suppress(http.client.HTTPException, OSError):
                line.answer.read()
        assert all(live.ended(pid, 30) for pid in pids)

    def test_sighup_replaces_the_workers_without_a_failed_request(self, own_server: LiveServer) -> None:
        before = workers(own_server)
        is_over, statuses = threading.Event(), Counter[int]()

        def ask() -> None:
            while not is_over.is_set():
                statuses[get(own_server.url, "/v1/models").status] += 1

        with lines(own_server) as (line, _):
            line.send("POST", "/v1/chat/completions", LONG)
            asking = threading.Thread(target=ask)
            asking.start()
            try:
                own_server.process.send_signal(signal.SIGHUP)
                assert b"[DONE]" in line.answer.read()
                until(lambda: not before & workers(own_server) and len(workers(own_server)) == 2)
            finally:
                is_over.set()
                asking.join()
        assert set(statuses) == {200}
        with lines(own_server) as pair:
            assert all(line.ask("/v1/chat/completions", {**STORY, "max_tokens": 1})["choices"] for line in pair)
        assert own_server.stop() == 0, own_server.output
