"""Streamed chat completions: the order of chunks, failures, pings, the deadline, and clients that leave."""

from __future__ import annotations

import json
from typing import Any

import pytest
from openai.types.chat import ChatCompletionChunk
from pydantic import TypeAdapter

from inference.client import FailedEvent, Timings, TokensEvent, Usage
from tests.openai_api.conftest import Api, chunks_of, events_of
from tests.openai_api.connection import Connection
from tests.openai_api.fakes import answering, failing, finished, silent, tokens_of

CHUNK = TypeAdapter(ChatCompletionChunk)


async def stream(api: Api, **fields: Any) -> list[Any]:
    response = await api.chat(stream=True, **fields)
    assert response.status_code == 200
    return await chunks_of(response)


async def test_chunks_come_in_the_contracts_order(api: Api):
    api.engine.script = answering("Hi!")
    *chunks, done = await stream(api)
    assert done == "[DONE]"
    assert [chunk["choices"][0]["delta"] for chunk in chunks] == [
        {"role": "assistant", "content": ""},
        {"content": "H"},
        {"content": "i"},
        {"content": "!"},
        {},
    ]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * 4 + ["stop"]
    assert all("usage" not in chunk for chunk in chunks)
    assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks}) == 1
    for chunk in chunks:
        CHUNK.validate_json(json.dumps(chunk), strict=True)


async def test_usage_comes_last_and_is_null_before(api: Api):
    *chunks, usage, done = await stream(api, stream_options={"include_usage": True})
    assert done == "[DONE]"
    assert all(chunk["usage"] is None for chunk in chunks)
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    assert usage["choices"] == []
    assert usage["usage"]["total_tokens"] == 13
    CHUNK.validate_json(json.dumps(usage), strict=True)


async def test_each_choice_begins_with_its_role(api: Api):
    *chunks, _ = await stream(api, n=3)
    assert [chunk["choices"][0]["index"] for chunk in chunks[:3]] == [0, 1, 2]
    assert all("role" in chunk["choices"][0]["delta"] for chunk in chunks[:3])
    assert not any("role" in chunk["choices"][0]["delta"] for chunk in chunks[3:])
    assert [chunk["choices"][0]["index"] for chunk in chunks[-3:]] == [0, 1, 2]


async def test_the_stream_says_the_same_as_the_body(api: Api):
    api.engine.script = answering("Grüße 😀 aus dem Zug")
    *chunks, _ = await stream(api, logprobs=True)
    body = (await api.chat(logprobs=True)).json()
    text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
    assert text == body["choices"][0]["message"]["content"] == "Grüße 😀 aus dem Zug"
    tokens = [token for chunk in chunks for token in (chunk["choices"][0]["logprobs"] or {"content": []})["content"]]
    assert tokens == body["choices"][0]["logprobs"]["content"]


async def test_headers_of_a_stream(api: Api):
    response = await api.chat(stream=True, profile="gloomy")
    assert response["Content-Type"] == "text/event-stream"
    assert response["Cache-Control"] == "no-cache"
    assert response["X-Accel-Buffering"] == "no"
    assert response["x-millm-profile"] == "gloomy@2"
    assert response["x-millm-steering"] == "print-gloomy"
    assert not response.has_header("Content-Encoding")
    await chunks_of(response)


@pytest.mark.parametrize("options", [None, {"include_usage": True}])
async def test_the_last_chunk_carries_the_proof_of_steering(api: Api, options: Any):
    *chunks, _ = await stream(api, n=2, profile="gloomy@1", stream_options=options)
    assert chunks[-1]["millm"] == {
        "profile": "gloomy@1",
        "fingerprint": "print-gloomy",
        "policies": [],
        "intensity": 1.0,
        "steering": {"expected": 18, "applied": 18, "sites": []},
    }
    assert not any("millm" in chunk for chunk in chunks[:-1])
    CHUNK.validate_json(json.dumps(chunks[-1]), strict=True)


async def test_a_failure_before_the_first_token_is_a_status(api: Api):
    api.engine.script = failing("sae_mismatch")
    response = await api.chat(stream=True, profile="gloomy")
    assert response.status_code == 409
    assert response.json()["error"]["code"] == "sae_mismatch"
    assert response["x-should-retry"] == "false"
    assert api.log.only.status == 409


async def test_a_failure_in_the_stream_is_an_error_event_and_no_done(api: Api):
    api.engine.script = failing("steering_unstable", after="He")
    response = await api.chat(stream=True)
    assert response.status_code == 200
    *_, last = await chunks_of(response)
    assert last == {
        "error": {"message": "It failed.", "type": "server_error", "param": None, "code": "steering_unstable"}
    }
    entry = api.log.only
    assert (entry.status, entry.error_code, entry.completion) == (200, "steering_unstable", "He")
    assert api.engine.streams[0].num_closes


async def test_an_exception_in_the_stream_is_hidden(api: Api):
    def script(request):
        return [*tokens_of(request, "a"), TokensEvent(99, (1,), "no such sequence")]

    api.engine.script = script
    *_, last = await chunks_of(await api.chat(stream=True))
    assert last["error"]["type"] == "server_error"
    assert api.log.only.id in last["error"]["message"]
    assert "IndexError" not in last["error"]["message"]


async def test_comments_keep_a_queued_stream_open(api: Api):
    api.engine.script = silent
    response = await api.chat(stream=True)
    events = aiter(response.streaming_content)
    assert b"role" in await anext(events)
    assert await anext(events) == b": ping\n\n"
    (request,) = api.engine.requests
    api.engine.streams[0].push(*tokens_of(request, "a"), finished(request, 1))
    rest = b"".join([part async for part in events])
    assert rest.endswith(b"data: [DONE]\n\n")


async def test_the_deadline_ends_a_stream_with_an_error(api: Api, settings):
    settings.MILLM_REQUEST_TIMEOUT = 0.1
    api.engine.script = lambda request: tokens_of(request, "He")
    *_, last = await chunks_of(await api.chat(stream=True))
    assert last["error"]["code"] == "request_timeout"
    assert api.engine.streams[0].num_closes
    assert (api.log.only.status, api.log.only.error_code) == (200, "request_timeout")
    assert api.log.only.completion == "He"


async def test_the_deadline_ends_a_body_with_504(api: Api, settings):
    settings.MILLM_REQUEST_TIMEOUT = 0.05
    api.engine.script = silent
    response = await api.chat()
    assert response.status_code == 504
    assert response["x-should-retry"] == "false"
    assert api.engine.streams[0].num_closes


async def test_a_normal_stream_leaves_one_row(api: Api):
    await stream(api, profile="gloomy")
    entry = api.log.only
    assert entry.stream
    assert (entry.status, entry.error_code, entry.finish_reason) == (200, "", "stop")
    assert (entry.prompt_tokens, entry.cached_tokens, entry.completion_tokens) == (4, 2, 9)
    assert (entry.profile, entry.fingerprint) == ("gloomy@2", "print-gloomy")
    assert (entry.steering_expected, entry.steering_applied) == (9, 9)
    assert (entry.queue_ms, entry.ttft_ms) == (1.0, 2.0)
    assert entry.total_ms is not None
    assert entry.token_ms == sorted(entry.token_ms)
    assert 0 < len(entry.token_ms) <= entry.completion_tokens
    assert entry.completion == "Hello sea"


REQUEST = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "stream": True}


async def test_a_client_that_leaves_while_tokens_are_awaited(api: Api):
    api.engine.script = lambda request: tokens_of(request, "He")
    connection = Connection(REQUEST)
    await connection.wait_for(b'"content":"e"')
    await connection.leave()
    assert api.engine.streams[0].num_closes
    entry = api.log.only
    assert (entry.status, entry.error_code, entry.completion) == (200, "client_disconnected", "He")
    assert (entry.prompt_tokens, entry.completion_tokens) == (4, 2)
    assert entry.ttft_ms is not None
    assert entry.queue_ms is None


async def test_a_client_that_leaves_while_the_stream_waits_at_a_yield(api: Api):
    api.engine.script = lambda request: tokens_of(request, "He")
    connection = Connection(REQUEST, stalls_at=b"role")
    await connection.wait_for(b"role")
    await connection.leave()
    assert api.engine.streams[0].num_closes
    assert api.log.only.error_code == "client_disconnected"


async def test_a_client_that_leaves_before_the_body_is_done(api: Api):
    api.engine.script = lambda request: tokens_of(request, "He")
    connection = Connection({**REQUEST, "stream": False})
    await api.engine.is_drained.wait()
    await connection.leave()
    assert api.engine.streams[0].num_closes
    entry = api.log.only
    assert (entry.status, entry.error_code, entry.completion) == (499, "client_disconnected", "He")
    assert connection.sent == []


async def test_a_response_that_nobody_reads_is_cancelled_and_logged(api: Api):
    response = await api.chat(stream=True)
    response.close()
    assert api.engine.streams[0].num_closes
    assert api.log.only.error_code == "client_disconnected"


async def test_a_stream_dropped_between_view_and_server_is_cancelled(api: Api):
    from openai_api.http.sse import EventSource

    closed = []

    async def events():
        yield b""

    source = EventSource(events(), lambda: closed.append(True))
    del source
    assert closed == [True]


async def test_closing_twice_writes_one_row(api: Api):
    response = await api.chat(stream=True)
    await events_of(response)
    response.close()
    assert len(api.log.entries) == 1
    assert api.log.only.error_code == ""


@pytest.mark.parametrize(
    ("code", "status", "retry_after"),
    [
        ("server_error", 500, None),
        ("steering_unstable", 500, None),
        ("steering_not_applied", 500, None),
        ("sae_mismatch", 409, None),
        ("engine_shutdown", 503, "5"),
        ("model_unloaded", 503, "1"),
        ("out_of_memory", 503, "10"),
        ("slow_reader", 500, None),
    ],
)
async def test_engine_failures_have_a_status(api: Api, code: str, status: int, retry_after: str | None):
    api.engine.script = failing(code, after="x")
    response = await api.chat()
    assert response.status_code == status
    assert response.json()["error"] == {
        "message": "It failed.",
        "type": "invalid_request_error" if status == 409 else "server_error",
        "param": "profile" if status == 409 else None,
        "code": code,
    }
    assert response.headers.get("Retry-After") == retry_after
    assert api.log.only.error_code == code


async def test_one_failed_choice_fails_the_request_and_cancels_the_others(api: Api):
    def script(request):
        if request.index == 1:
            return [FailedEvent(1, "server_error", "No.", Usage(), Timings())]
        return tokens_of(request, "a")

    api.engine.script = script
    assert (await api.chat(n=2)).status_code == 500
    assert api.engine.streams[0].num_closes


@pytest.mark.parametrize("receipt", [None, "short"])
async def test_output_is_withheld_when_the_profile_did_not_act(api: Api, receipt: str | None):
    from inference.client import SteeringReceipt

    broken = SteeringReceipt("print-gloomy", 5, 4) if receipt else None
    api.engine.script = lambda request: [*tokens_of(request, "a"), finished(request, 1, receipt=broken)]
    response = await api.chat(profile="gloomy")
    assert response.status_code == 500
    assert response.json()["error"]["code"] == "steering_not_applied"


async def test_an_engine_that_stops_mid_stream_is_an_error(api: Api):
    api.engine.script = lambda request: [*tokens_of(request, "a"), finished(request, 1, reason="cancelled")]
    *_, last = await chunks_of(await api.chat(stream=True))
    assert last["error"]["code"] == "engine_shutdown"


async def test_an_answer_without_a_word_ends_like_any_other(api: Api):
    """Its only event is there before the headers are."""
    api.engine.script = answering("")
    chunks = await chunks_of(await api.chat(stream=True))
    assert chunks[-1] == "[DONE]"
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks[:-1]][-1] == "stop"
