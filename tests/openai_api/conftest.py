"""A /v1 surface over fakes: no weights, no engine thread, log entries collected in a list.

Requests and events are pickled on their way to the engine and back, so that one elsewhere could be behind the surface.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any, cast

import httpx2 as httpx
import pytest
from django.core.handlers.asgi import ASGIHandler
from django.core.signals import request_finished
from django.db import close_old_connections
from django.http.response import HttpResponseBase
from django.test import AsyncClient
from openai import AsyncOpenAI

from core.runtime import runtime
from inference.registry.records import ModelRecord
from jobs.execution import RunningJobs
from openai_api.backend import BACKEND, Backend, get_backend
from openai_api.http.call import Call
from openai_api.keys.limits import RATE_LIMITS, Limits
from openai_api.keys.record import KeyRecord, digest_of
from openai_api.request_log.entry import LogEntry
from openai_api.request_log.writer import LOG_WRITER
from steering.watch.watcher import NO_WATCH, Watch
from tests.inference.pickling import PicklingClient
from tests.openai_api.fakes import FakeEngine, FakeRegistry, FakeSteering, record, version_of


class Log:
    """Collects entries instead of writing them."""

    def __init__(self) -> None:
        self.entries: list[LogEntry] = []

    def accept(self, entry: LogEntry) -> None:
        """It is written at its end."""

    def write(self, entry: LogEntry) -> None:
        self.entries.append(entry)

    @property
    def only(self) -> LogEntry:
        (entry,) = self.entries
        return entry


@dataclass
class Clock:
    now: float = 1_000.0

    def __call__(self) -> float:
        return self.now


class Keys:
    """The usable keys, without a database."""

    def __init__(self) -> None:
        self.records: dict[str, KeyRecord] = {}
        self.failure: Exception | None = None

    async def __call__(self) -> dict[str, KeyRecord]:
        if self.failure is not None:
            raise self.failure
        return self.records

    def add(self, plain: str, **fields: Any) -> dict[str, str]:
        """A new key; returns its header."""
        record = KeyRecord(**{"pk": len(self.records) + 1, "name": "test", "digest": digest_of(plain), **fields})
        self.records[record.digest] = record
        return {"Authorization": f"Bearer {plain}"}


class Client(AsyncClient):
    """Ends the streams that a test left unread, when the test ends.

    The collector would end them at any time later, and their rows would stand in the log of another test.
    """

    def __init__(self) -> None:
        super().__init__()
        self._streamed: list[HttpResponseBase] = []

    async def request(self, **request: Any) -> Any:
        response = await super().request(**request)
        if response.streaming:
            self._streamed.append(response)
        return response

    def close_streams(self) -> None:
        request_finished.disconnect(close_old_connections)  # as Django's client does: the test's connection stays
        for response in self._streamed:
            response.close()
        request_finished.connect(close_old_connections)


@dataclass
class Api:
    """A client on loopback, and what stands behind the surface."""

    engine: FakeEngine
    registry: FakeRegistry
    log: Log
    clock: Clock
    keys: Keys
    steering: FakeSteering
    client: Client = field(default_factory=Client)
    running: RunningJobs = field(default_factory=RunningJobs)

    async def post(self, path: str, body: Any, **headers: str) -> Any:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        if not data:  # the test client forgets the type of an empty body
            headers["Content-Type"] = "application/json"
        return await self.client.post(path, data, content_type="application/json", headers=headers)

    async def chat(self, headers: dict[str, str] | None = None, /, **fields: Any) -> Any:
        messages = [{"role": "user", "content": "hi"}]
        body = {"model": "tiny", "messages": messages, **fields}
        return await self.post("/v1/chat/completions", body, **(headers or {}))

    async def complete(self, **fields: Any) -> Any:
        return await self.post("/v1/completions", {"model": "tiny", "prompt": "hi", **fields})


async def unwatched(model: str, *, special_token_ids: frozenset[int]) -> Watch:
    """No model has rules."""
    return NO_WATCH


async def find_profile(model: str, reference: str) -> str:
    name, number = version_of(reference)
    return f"{name}@{number}"


async def published(model: str) -> list[tuple[str, int]]:
    return [("cats", 2), ("gloomy", 2), ("joyful", 2)] if model in {"tiny", "org/steered"} else []


@pytest.fixture
def api(settings: Any) -> Iterator[Api]:
    settings.MILLM_AUTH = "loopback"
    settings.MILLM_TRUSTED_PROXIES = ("127.0.0.1", "::1")
    engine, clock, log, keys, steering = FakeEngine(), Clock(), Log(), Keys(), FakeSteering()
    client = PicklingClient(engine)
    registry = FakeRegistry(
        record("tiny", aliases=("small",)),
        record("org/steered", default_profile="joyful", default_sampling={"temperature": 0.5, "max_tokens": 7}),
        record("cold:8b", state="unloaded"),
        record("vectors", kind="embedding"),
    )

    async def unload(call: Call, record: ModelRecord) -> None:
        registry.unload(record.name)

    before = get_backend()
    runtime.install(
        BACKEND,
        Backend(
            lambda: client,
            lambda: registry,
            steering,
            keys,
            find_profile=find_profile,
            published=published,
            watch=unwatched,
            unload=unload,
            ping_s=0.05,
            first_event_s=0.01,
        ),
    )
    runtime.install(RATE_LIMITS, Limits(clock))
    runtime.install(LOG_WRITER, log)
    api = Api(engine, registry, log, clock, keys, steering)
    yield api
    api.client.close_streams()
    runtime.install(BACKEND, before)
    runtime.install(RATE_LIMITS, Limits())
    runtime.remove(LOG_WRITER)


async def events_of(response: Any) -> list[str]:
    """The events of a streamed response, comments included, without their separators."""
    text = b"".join([part async for part in response.streaming_content]).decode()
    assert text.endswith("\n\n")
    return text[:-2].split("\n\n")


async def chunks_of(response: Any) -> list[Any]:
    """Data events as JSON, but for the final [DONE]."""
    events = [event.removeprefix("data: ") for event in await events_of(response) if event.startswith("data: ")]
    return [event if event == "[DONE]" else json.loads(event) for event in events]


@pytest.fixture
async def strict_client(api: Api) -> AsyncIterator[AsyncOpenAI]:
    """Strict where the client can be: what does not fit its types is an error."""
    transport = httpx.ASGITransport(app=cast("Any", ASGIHandler()), client=("127.0.0.1", 1))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost/v1") as http:
        yield AsyncOpenAI(
            base_url="http://localhost/v1",
            api_key="none",
            http_client=http,
            max_retries=0,
            _strict_response_validation=True,
        )
