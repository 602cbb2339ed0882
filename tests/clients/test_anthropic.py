"""Anthropic's clients for Python and JavaScript."""

from __future__ import annotations

import pytest
from anthropic.types import Message

from tests.clients.environment import Report, run_node, run_python

EVENTS = {"message_start", "content_block_start", "content_block_delta", "content_block_stop", "message_stop"}


@pytest.fixture(scope="module")
def python(site: str) -> Report:
    return run_python("openai", "anthropic_client", site)


@pytest.fixture(scope="module")
def node(site: str) -> Report:
    return run_node("anthropic_node", site)


def test_python_messages(python: Report) -> None:
    message = Message.model_validate(python("message"), strict=True)
    assert message.content
    assert message.usage.output_tokens <= 24
    raw = python("raw_response")
    assert (raw["status"], raw["type"]) == (200, "message")
    assert raw["request_id"]


def test_python_streams(python: Report) -> None:
    found = python("async_stream")
    assert found["text"] == found["final"]
    assert found["many"] == ["message"] * 4


def test_python_tools(python: Report) -> None:
    found = python("tool_and_result")
    assert found["name"] == "get_weather"
    assert found["input"].keys() == {"city"}
    assert found["reason"] == "tool_use"
    assert found["answer"]


def test_python_streamed_tools(python: Report) -> None:
    found = python("streamed_tool")
    (block,) = found["content"]
    assert block["input"].keys() == {"city"}
    assert "input_json" in found["types"]


def test_python_counts_and_errors(python: Report) -> None:
    assert python("count_tokens") > 3
    assert python("errors") == [["NotFoundError", 404], ["BadRequestError", 400]]


def test_node_messages_and_streams(node: Report) -> None:
    message, stream = node("message"), node("stream")
    assert stream["text"] == message["content"][0]["text"]
    assert set(stream["types"]) >= EVENTS
    assert node("count_tokens")["input_tokens"] == message["usage"]["input_tokens"]


def test_node_tools(node: Report) -> None:
    (whole,) = node("forced_tool")
    assert (whole["type"], whole["name"]) == ("tool_use", "get_weather")
    assert whole["input"].keys() == {"city"}
    streamed = node("forced_tool_in_a_stream")
    assert streamed["stop_reason"] == "tool_use"
    assert streamed["content"][0]["input"].keys() == {"city"}


def test_node_errors(node: Report) -> None:
    assert [[error["name"], error["status"]] for error in node("errors")] == [
        ["NotFoundError", 404],
        ["BadRequestError", 400],
    ]
