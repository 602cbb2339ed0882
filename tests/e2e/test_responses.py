"""Responses and conversations through the official client: on the shared server, and over the death of an own one."""

from __future__ import annotations

import signal
import time

import pytest
from openai import OpenAI
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel, Field, TypeAdapter

from tests import live
from tests.conftest import site_environment

EVENT = TypeAdapter(ResponseStreamEvent)
STORY = "Tell me a story."
LONG = {"max_output_tokens": 900, "extra_body": {"ignore_eos": True}}
ENDED = {"completed", "incomplete", "failed", "cancelled"}


class Pet(BaseModel):
    name: str = Field(max_length=20)  # bounded: what a model writes differs from processor to processor


def test_a_response_and_its_events(client):
    whole = client.responses.create(model="demo", input=STORY, max_output_tokens=40, temperature=0)
    Response.model_validate(whole.to_dict(), strict=True)
    assert len(whole.output_text.split()) > 10
    stream = client.responses.create(model="demo", input=STORY, max_output_tokens=40, temperature=0, stream=True)
    events = [EVENT.validate_python(event.to_dict(), strict=True) for event in stream]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[-1].response.output_text == whole.output_text


def test_the_stream_helper_and_structured_output(client):
    with client.responses.stream(
        model="demo", input="Name a cat as JSON.", text_format=Pet, max_output_tokens=200, temperature=0
    ) as stream:
        for _ in stream:
            pass
        final = stream.get_final_response()
    assert final.output_parsed is not None
    assert final.output_parsed.name


def test_a_profile_steers_a_response(client):
    raw = client.responses.with_raw_response.create(
        model="demo", input=STORY, max_output_tokens=20, extra_body={"profile": "gloomy"}
    )
    receipt = raw.parse().to_dict()["millm"]
    assert receipt["profile"] == "gloomy@1"
    assert receipt["steering"]["applied"] == receipt["steering"]["expected"] > 0


def test_a_conversation_is_remembered(client):
    talk = client.conversations.create(items=[{"type": "message", "role": "user", "content": STORY}])
    first = client.responses.create(model="demo", input="Go on.", conversation=talk.id, max_output_tokens=20)
    second = client.responses.create(
        model="demo", input="And then?", previous_response_id=first.id, max_output_tokens=20
    )
    assert second.usage.input_tokens > first.usage.output_tokens
    assert len(client.conversations.items.list(talk.id).data) == 3
    assert len(client.responses.input_items.list(second.id, limit=100).data) == 3


def test_a_background_response_is_followed_and_cancelled(client):
    stream = client.responses.create(
        model="demo", input=STORY, background=True, stream=True, max_output_tokens=30, temperature=0
    )
    events = [EVENT.validate_python(event.to_dict(), strict=True) for event in stream]
    assert [event.type for event in events[:3]] == ["response.created", "response.queued", "response.in_progress"]
    final = events[-1].response
    assert final.status in {"completed", "incomplete"}
    again = client.responses.retrieve(final.id, stream=True, starting_after=3)
    assert [event.sequence_number for event in again] == list(range(4, len(events)))
    long = client.responses.create(model="demo", input=STORY, background=True, **LONG)
    assert client.responses.cancel(long.id).status == "cancelled"
    assert client.responses.retrieve(long.id).status == "cancelled"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_responses_outlive_their_server(database_url, tmp_path, number):
    """One that runs, one that is streamed, and more that are queued: in the next process each of them ends."""
    environment = {
        **site_environment(database_url, tmp_path),
        "MILLM_JOB_STALL_SECONDS": "2",
        "MILLM_JOB_WORKERS": "2",
        "MILLM_DRAIN_SECONDS": "0",
    }
    with live.serving("--setup", environment=environment) as server:
        client = OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
        kept = client.responses.create(model="demo", input="hi", max_output_tokens=5)
        stream = client.responses.create(model="demo", input=STORY, background=True, stream=True, **LONG)
        ids = [next(iter(stream)).response.id]
        ids += [client.responses.create(model="demo", input=STORY, background=True, **LONG).id for _ in range(4)]
        wait_for(lambda: client.responses.retrieve(ids[1]).status == "in_progress")
        server.process.send_signal(number)
        server.process.wait(live.PATIENCE_S)
    with live.serving(environment=environment) as server:
        client = OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
        assert client.responses.retrieve(kept.id).output_text == kept.output_text
        wait_for(
            lambda: all(client.responses.retrieve(each).status in ENDED for each in ids), timeout_s=live.PATIENCE_S
        )
        ended = [client.responses.retrieve(each) for each in ids]
        assert [each.status for each in ended[1:]] == ["incomplete"] * 4  # 900 tokens each, as they were asked for
        assert all(each.usage.output_tokens == 900 for each in ended[1:])
        if ended[0].status == "failed":
            assert ended[0].error.to_dict()["millm_code"] == "response_interrupted"
        last = list(client.responses.retrieve(ids[0], stream=True))[-1]
        assert last.type in {"response.failed", "response.incomplete"}
        assert server.stop() == 0, server.output


def wait_for(condition, timeout_s=live.PATIENCE_S):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not become true in time"
        time.sleep(0.05)
