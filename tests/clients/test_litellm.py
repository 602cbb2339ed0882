"""LiteLLM, as a client of its own and as a router."""

from __future__ import annotations

import json

import pytest

from tests.clients.environment import Report, run_python


@pytest.fixture(scope="module")
def report(site: str) -> Report:
    return run_python("litellm", "litellm_client", site)


def test_every_way_to_ask_has_the_same_answer(report: Report) -> None:
    whole, stream = report("completion"), report("stream")
    text = whole["choices"][0]["message"]["content"]
    assert len(text.split()) > 8
    assert stream["text"] == text
    assert stream["count"] > 5
    assert stream["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
    assert report("acompletion") == [text] * 4
    assert report("router") == text
    assert report("responses") == text


def test_extensions_are_passed_on(report: Report) -> None:
    found = report("as_vllm")
    assert found["text"]
    assert found["millm"]["profile"] == "gloomy@1"


def test_a_demanded_tool(report: Report) -> None:
    (call,) = report("demanded_tool")["tool_calls"]
    assert call["function"]["name"] == "get_weather"
    assert json.loads(call["function"]["arguments"]).keys() == {"city"}


def test_structured_output(report: Report) -> None:
    assert report("structured")["kind"] in {"cat", "dog"}


def test_completions(report: Report) -> None:
    assert report("text_completion")


def test_events_of_responses(report: Report) -> None:
    types = report("responses_stream")
    assert types[0] == "response.created"
    assert types[-1] in {"response.completed", "response.incomplete"}
    assert "response.output_text.delta" in types


def test_anthropic_s_messages(report: Report) -> None:
    message = report("messages")
    assert message["type"] == "message"
    assert message["content"][0]["text"]


def test_embeddings(report: Report) -> None:
    first, second = report("embedding")
    assert len(first) == len(second) == 32
    assert first != second


def test_errors_have_their_names(report: Report) -> None:
    assert report("errors") == [["BadRequestError", 400], ["NotFoundError", 404], ["AuthenticationError", 401]]
