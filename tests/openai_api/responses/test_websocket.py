"""WebSocket mode of /v1/responses: the events of HTTP as messages, in lanes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
from channels.testing import WebsocketCommunicator
from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter

from millm_site.http.asgi_handler import SiteHandler
from openai_api.responses.websocket import GOING_AWAY, MAX_LANES, MAX_PENDING, POLICY, ResponsesSocket
from tests.openai_api.conftest import Api
from tests.openai_api.fakes import answering
from tests.openai_api.responses.test_create import events as events_of_http
from tests.openai_api.responses.test_state import said

EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
PATH = "/v1/responses"


@asynccontextmanager
async def opened(application: Any, path: str = PATH, **headers: str) -> AsyncIterator[Any]:
    given = [(b"host", b"localhost"), *((name.encode(), value.encode()) for name, value in headers.items())]
    line = WebsocketCommunicator(application, path, headers=given)
    line.scope["client"] = ("127.0.0.1", 5000)
    line.is_accepted, _ = await line.connect(timeout=60)
    try:
        yield line
    finally:
        await line.disconnect(timeout=60)


async def ask(line: Any, **fields: Any) -> list[dict[str, Any]]:
    """Send a message and return the events up to the last one."""
    await line.send_json_to({"type": "response.create", "model": "tiny", **fields})
    heard: list[dict[str, Any]] = []
    while not heard or heard[-1]["type"] not in {"response.completed", "response.failed", "error"}:
        heard.append(json.loads(await line.receive_from(timeout=60)))
    return heard


def text_of(heard: list[dict[str, Any]]) -> str:
    return "".join(event["delta"] for event in heard if event["type"] == "response.output_text.delta")


@pytest.mark.parametrize("path", [PATH, "/openai/v1/responses", "/ollama/v1/responses"])
async def test_the_events_are_those_of_http(stored: Api, path: str):
    stored.engine.script = answering("One. Two.")
    expected = await events_of_http(stored, input="A")
    async with opened(SiteHandler(), path) as line:
        heard = await ask(line, input="A")
    assert [event["type"] for event in heard] == [event["type"] for event in expected]
    for event in heard:
        EVENT.validate_python(event, strict=True)
    assert text_of(heard) == "One. Two."
    assert [entry.endpoint for entry in stored.log.entries] == [PATH, PATH]
    assert stored.log.entries[-1].stream


async def test_a_stored_response_is_continued(stored: Api):
    stored.engine.script = answering("One.")
    async with opened(SiteHandler()) as line:
        first = (await ask(line, input="A"))[-1]["response"]
        second = (await ask(line, input="B", previous_response_id=first["id"]))[-1]["response"]
    assert second["previous_response_id"] == first["id"]
    assert said(stored) == [("user", "A"), ("assistant", "One."), ("user", "B")]


async def test_the_last_response_that_was_not_stored_is_continued_on_its_connection(stored: Api):
    stored.engine.script = answering("One.")
    async with opened(SiteHandler()) as line:
        base = (await ask(line, input="A"))[-1]["response"]["id"]
        first = (await ask(line, input="B", store=False, previous_response_id=base))[-1]["response"]
        heard = await ask(line, input=[{"role": "user", "content": "C"}], store=False, previous_response_id=first["id"])
        second = heard[-1]["response"]
        assert {event["response"]["previous_response_id"] for event in heard if "response" in event} == {first["id"]}
        assert [content for role, content in said(stored) if role == "user"] == ["A", "B", "C"]
        assert [role for role, _ in said(stored)] == ["user", "assistant"] * 2 + ["user"]
        lost = (await ask(line, input="D", previous_response_id=first["id"]))[-1]
        assert (lost["type"], lost["status"]) == ("error", 404)
        assert lost["error"]["code"] == "previous_response_not_found"
        evicted = (await ask(line, input="D", previous_response_id=second["id"]))[-1]
        assert evicted["error"]["code"] == "previous_response_not_found", "an error evicts what was kept"
    async with opened(SiteHandler()) as other:
        assert (await ask(other, input="D", previous_response_id=second["id"]))[-1]["status"] == 404


@pytest.mark.parametrize(
    ("message", "param", "code"),
    [
        ("no JSON", None, "invalid_json"),
        ("[" * 100_000, None, "invalid_json"),
        ('["response.create"]', "type", "invalid_event_type"),
        ('{"type": "response.steer"}', "type", "invalid_event_type"),
        ('{"type": "response.create", "background": true}', "background", "unsupported_parameter"),
        ('{"type": "response.create", "stream_id": ""}', "stream_id", "invalid_value"),
        ('{"type": "response.create", "stream_id": ["a"]}', "stream_id", "invalid_value"),
        ('{"type": "response.create", "generate": "no"}', "generate", "invalid_type"),
        ('{"type": "response.create", "model": "tiny", "input": 7, "generate": false}', "input", None),
        ('{"type": "response.create", "model": "tiny", "input": "A", "temperature": 9}', "temperature", None),
        ('{"type": "response.create", "model": "nobody", "input": "A"}', "model", "model_not_found"),
        ('{"type": "response.create", "model": "tiny", "input": 7}', "input", None),
    ],
)
async def test_a_bad_message_gets_an_error_and_the_connection_stays(stored: Api, message: str, param: Any, code: Any):
    stored.engine.script = answering("One.")
    async with opened(SiteHandler()) as line:
        await line.send_to(message)
        told = json.loads(await line.receive_from(timeout=60))
        assert told["type"] == "error"
        assert 400 <= told["status"] < 500
        assert told["error"]["param"] == param
        assert code is None or told["error"]["code"] == code
        assert text_of(await ask(line, input="A")) == "One."


async def test_a_turn_is_prepared_without_an_answer(stored: Api):
    stored.engine.script = answering("One.")
    async with opened(SiteHandler()) as line:
        heard = await ask(line, input="A", generate=False, instructions="Be brief.", store=True)
        assert stored.engine.requests[-1].sampling.max_tokens == 1
        assert [event["type"].split(".")[1] for event in heard] == ["created", "in_progress", "completed"]
        assert [event["sequence_number"] for event in heard] == [0, 1, 2]
        for event in heard:
            EVENT.validate_python(event, strict=True)
        prepared = heard[-1]["response"]
        assert (prepared["output"], prepared["usage"]["output_tokens"]) == ([], 0)
        assert prepared["usage"]["total_tokens"] == prepared["usage"]["input_tokens"] > 0
        assert text_of(await ask(line, input="B", previous_response_id=prepared["id"])) == "One."
        assert said(stored) == [("user", "A"), ("user", "B")]
        assert (await ask(line, input="C", previous_response_id=prepared["id"]))[-1]["status"] == 404


async def test_streams_run_at_the_same_time_and_each_in_order(stored: Api):
    stored.engine.script = answering("One.")
    async with opened(SiteHandler()) as line:
        await line.send_json_to({"type": "response.create", "model": "tiny", "input": "A", "stream_id": "a"})
        await line.send_json_to({"type": "response.create", "model": "tiny", "input": "B", "stream_id": "b"})
        await line.send_json_to({"type": "response.create", "model": "tiny", "input": "C", "stream_id": "a"})
        heard: list[dict[str, Any]] = []
        while sum(event["type"] == "response.completed" for event in heard) < 3:
            heard.append(json.loads(await line.receive_from(timeout=60)))
    lanes = {name: [event for event in heard if event["stream_id"] == name] for name in "ab"}
    assert len(lanes["a"]) + len(lanes["b"]) == len(heard)
    assert [event["type"] for event in lanes["a"]] == 2 * [event["type"] for event in lanes["b"]]
    for event in heard:
        event.pop("stream_id")
        EVENT.validate_python(event, strict=True)


async def test_a_stream_does_not_wait_for_another_one():
    application = Waiting()
    async with opened(ResponsesSocket(application, lambda: False)) as line:
        for stream_id in ("a", "b"):
            application.asked.clear()
            await line.send_json_to({"type": "response.create", "stream_id": stream_id})
            await asyncio.wait_for(application.asked.wait(), 60)
        await line.send_json_to({"type": "response.create", "stream_id": "a", "background": True})
        assert await line.receive_nothing()
    assert application.told == 2 * [{"type": "http.disconnect"}]


async def test_a_new_stream_forks_from_a_response_of_another_one_that_was_not_stored(stored: Api):
    stored.engine.script = answering("One.")
    async with opened(SiteHandler()) as line:
        first = (await ask(line, input="A", store=False, stream_id="a"))[-1]["response"]["id"]
        fork = (await ask(line, input="B", store=False, stream_id="b", previous_response_id=first))[-1]
        assert (fork["type"], fork["stream_id"]) == ("response.completed", "b")
        assert said(stored) == [("user", "A"), ("assistant", "One."), ("user", "B")]
        await ask(line, input="C", store=False, stream_id="a", previous_response_id=first)
        assert said(stored) == [("user", "A"), ("assistant", "One."), ("user", "C")]
        lost = (await ask(line, input="D", stream_id="b", previous_response_id=first))[-1]
        assert (lost["type"], lost["status"], lost["stream_id"]) == ("error", 404, "b")


async def test_streams_of_a_connection_are_limited_and_idle_ones_make_room(stored: Api):
    application = Waiting()
    async with opened(ResponsesSocket(application, lambda: False)) as line:
        for number in range(MAX_LANES + 1):
            await line.send_json_to({"type": "response.create", "stream_id": f"{number}"})
        told = json.loads(await line.receive_from(timeout=60))
        assert (told["error"]["code"], told["stream_id"]) == ("websocket_stream_limit_reached", f"{MAX_LANES}")
    stored.engine.script = answering("One.")
    async with opened(SiteHandler()) as line:
        for number in range(MAX_LANES + 3):
            assert text_of(await ask(line, input="A", stream_id=f"{number}")) == "One."


async def test_pages_of_other_sites_need_a_key(stored: Api):
    async with opened(SiteHandler(), origin="https://evil.example") as line:
        told = (await ask(line, input="A"))[-1]
    assert (told["type"], told["status"]) == ("error", 401)


@pytest.mark.parametrize("path", ["/v1/models", "/v1/responses/x", "/admin/"])
async def test_other_paths_have_no_websocket(path: str):
    async with opened(SiteHandler(), path) as line:
        assert not line.is_accepted


async def test_other_hosts_have_none(settings: Any):
    settings.ALLOWED_HOSTS = ["models.example"]
    async with opened(SiteHandler()) as line:
        assert not line.is_accepted


class Waiting:
    """An application whose answer never comes. ``told`` is what it receives after the request."""

    def __init__(self) -> None:
        self.told: list[Mapping[str, Any]] = []
        self.asked = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await receive()
        self.asked.set()
        self.told.append(await receive())


async def test_a_client_that_leaves_ends_its_response(settings: Any):
    application = Waiting()
    async with opened(ResponsesSocket(application, lambda: False)) as line:
        await line.send_json_to({"type": "response.create"})
        await asyncio.wait_for(application.asked.wait(), 60)
    assert application.told == [{"type": "http.disconnect"}]


async def test_a_client_may_send_a_few_messages_ahead():
    application = Waiting()
    async with opened(ResponsesSocket(application, lambda: False)) as line:
        for _ in range(MAX_PENDING + 2):
            await line.send_json_to({"type": "response.create"})
            await asyncio.sleep(0)
        assert (await line.receive_output(timeout=60))["code"] == POLICY
    assert application.told == [{"type": "http.disconnect"}]


async def test_a_connection_ends_after_its_time_and_when_the_server_stops():
    async with opened(ResponsesSocket(Waiting(), lambda: False, max_s=0)) as line:
        told = json.loads(await line.receive_from(timeout=60))
        assert told["error"]["code"] == "websocket_connection_limit_reached"
        assert (await line.receive_output(timeout=60))["code"] == POLICY
    async with opened(ResponsesSocket(Waiting(), lambda: True)) as line:
        assert (await line.receive_output(timeout=60))["code"] == GOING_AWAY
    async with opened(ResponsesSocket(Waiting(), lambda: False, idle_s=0)) as line:
        assert (await line.receive_output(timeout=60))["code"] == 1000
