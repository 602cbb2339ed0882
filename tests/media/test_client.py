"""The server's side of the worker process, with a stub for the worker."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from core.errors import MillmError
from media.client import FIRST_PAUSE_S, MAX_OPEN, ROOT, MediaClient
from media.messages import Done, GenerateImages, ModelSpec, Progress

STUB = (sys.executable, "-m", "tests.media.stub_worker")


class Clock:
    """A clock that tests set."""

    now = 1_000.0

    def __call__(self) -> float:
        return self.now


class Deaths:
    """Keeps the models of workers that died."""

    def __init__(self) -> None:
        self.models: list[frozenset[str]] = []
        self.happened = threading.Event()

    def __call__(self, models: frozenset[str]) -> None:
        self.models.append(models)
        self.happened.set()


@pytest.fixture
def deaths() -> Deaths:
    return Deaths()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def client(deaths: Deaths, clock: Clock) -> Iterator[MediaClient]:
    client = MediaClient(on_death=deaths, command=STUB, clock=clock)
    yield client
    client.stop()


def spec(name: str) -> ModelSpec:
    return ModelSpec(name, "image", Path("/nowhere"))


def images(prompt: str, model: str = "a") -> GenerateImages:
    return GenerateImages("", model, prompt, 64, 64, 1, 0, "png")


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - the client has no event for it
            await asyncio.sleep(0.001)


def is_running(client: MediaClient) -> bool:
    return client.pid is not None


def runs(pid: int | None) -> bool:
    return Path(f"/proc/{pid}").exists()


async def events(client: MediaClient, prompt: str) -> list[Any]:
    return [event async for event in client.submit(images(prompt))]


async def error(client: MediaClient, prompt: str) -> MillmError:
    with pytest.raises(MillmError) as raised:
        await events(client, prompt)
    return raised.value


async def test_one_process_serves_all_models_and_ends_with_the_last(client: MediaClient, deaths: Deaths):
    assert not is_running(client)
    first, second = client.load(spec("a")).result(), client.load(spec("b")).result()
    assert first.memory_bytes == second.memory_bytes == client.pid  # the stub sends its process id
    progress, done = await events(client, "answer")
    assert isinstance(progress, Progress)
    assert isinstance(done, Done)
    client.unload("a").result()
    pid = client.pid
    assert runs(pid)
    client.unload("b").result()
    assert not is_running(client)
    assert not runs(pid)
    assert not deaths.models  # nobody lost anything
    assert client.load(spec("a")).result().memory_bytes != pid  # without a pause


async def test_failures_have_status_code_and_param(client: MediaClient):
    with pytest.raises(MillmError, match="The model is broken"):
        client.load(spec("broken")).result()
    client.load(spec("a")).result()
    refused = await error(client, "refuse")
    assert (refused.status, refused.code, refused.param) == (400, "invalid_value", "size")
    assert client.num_open == 0


async def test_requests_fail_before_a_model_was_loaded(client: MediaClient):
    assert (await error(client, "answer")).code == "media_worker_died"
    client.unload("a").result()  # of a model that nobody loaded


@pytest.mark.parametrize("killed_by", ["itself", "a signal"])
async def test_a_dead_worker_fails_its_requests_and_loses_its_models(
    client: MediaClient, deaths: Deaths, clock: Clock, killed_by: str
):
    client.load(spec("a")).result()
    client.load(spec("b")).result()
    waiting = [asyncio.create_task(error(client, "wait")) for _ in range(3)]
    await until(lambda: client.num_open == 3)
    assert client.is_busy("a")
    if killed_by == "itself":
        waiting.append(asyncio.create_task(error(client, "die")))
    else:
        assert client.pid is not None
        os.kill(client.pid, signal.SIGKILL)
    failed = await asyncio.gather(*waiting)
    assert {(each.status, each.code) for each in failed} == {(502, "media_worker_died")}
    assert await asyncio.to_thread(deaths.happened.wait, 10)
    assert deaths.models == [frozenset({"a", "b"})]
    assert client.num_open == 0
    assert not is_running(client)

    with pytest.raises(MillmError, match="it restarts in 2 s") as paused:
        client.load(spec("a")).result()
    assert (paused.value.status, paused.value.retry_after_s) == (503, 2 * FIRST_PAUSE_S)
    clock.now += 2 * FIRST_PAUSE_S
    client.load(spec("a")).result()
    assert len(await events(client, "answer")) == 2


def test_pauses_grow_until_a_worker_lives_long(deaths: Deaths, clock: Clock):
    client = MediaClient(on_death=deaths, command=("/bin/false",), clock=clock)
    pauses = []
    for _ in range(8):
        deaths.happened.clear()
        with pytest.raises(MillmError, match="crashed"):
            client.load(spec("a")).result()
        assert deaths.happened.wait(10)
        with pytest.raises(MillmError) as paused:
            client.load(spec("a")).result()
        pauses.append(paused.value.retry_after_s)
        clock.now += 60.0
    assert pauses == [2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0]
    client.stop()


async def test_a_consumer_that_stops_early_cancels_its_request(client: MediaClient):
    client.load(spec("a")).result()
    stream = client.submit(images("wait"))
    assert isinstance(await anext(stream), Progress)
    stream.cancel()
    await until(lambda: not client.is_busy("a"))  # the stub answers the cancellation


async def test_too_many_requests_are_refused(client: MediaClient):
    client.load(spec("a")).result()
    waiting = [asyncio.create_task(error(client, "wait")) for _ in range(MAX_OPEN)]
    await until(lambda: client.num_open == MAX_OPEN)
    refused = await error(client, "wait")
    assert (refused.status, refused.code) == (503, "overloaded")
    assert refused.retry_after_s
    client.unload("a").result()
    assert {each.code for each in await asyncio.gather(*waiting)} == {"model_unloaded"}


async def test_a_stopped_client_ends_its_process_and_starts_no_other(client: MediaClient):
    client.load(spec("a")).result()
    waiting = asyncio.create_task(error(client, "wait"))
    await until(lambda: client.is_busy("a"))
    pid = client.pid
    client.stop()
    assert not runs(pid)
    assert (await waiting).status == 503
    with pytest.raises(MillmError, match="shutting down"):
        client.load(spec("a")).result()


PARENT = """
import sys, time
from pathlib import Path
from media.client import MediaClient
from media.messages import ModelSpec
client = MediaClient(command=(sys.executable, "-m", "tests.media.stub_worker"))
client.load(ModelSpec("a", "image", Path("/nowhere"))).result()
print(client.pid, flush=True)
time.sleep(600)
"""


def test_a_killed_server_leaves_no_worker():
    with subprocess.Popen([sys.executable, "-c", PARENT], cwd=ROOT, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        pid = int(server.stdout.readline())
        descriptor = os.pidfd_open(pid)
        server.kill()
    assert select.select([descriptor], [], [], 20)[0]  # readable when the process has ended
    os.close(descriptor)
