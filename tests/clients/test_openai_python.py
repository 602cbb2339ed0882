"""OpenAI's client for Python: the newest one, and the one of the major version before."""

from __future__ import annotations

import json
import math

import pytest

from tests.clients.environment import Report, pins, run_python

TEXT_EVENTS = ["response.created", "response.in_progress", "response.output_item.added", "response.content_part.added"]
ENVIRONMENTS = ("openai", "litellm")


@pytest.fixture(scope="module", params=ENVIRONMENTS)
def environment(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def report(environment: str, site: str) -> Report:
    return run_python(environment, "openai_python", site)


def test_it_is_the_version_that_the_list_says(report: Report, environment: str) -> None:
    assert report("version") == pins(environment)["openai"]


def test_the_environments_hold_two_major_versions() -> None:
    assert [pins(name)["openai"].split(".")[0] for name in ENVIRONMENTS] == ["3", "2"]


def test_every_way_to_ask_for_a_chat_has_the_same_answer(report: Report) -> None:
    chat = report("chat")
    text = chat["choices"][0]["message"]["content"]
    assert len(text.split()) > 8
    assert chat["usage"]["completion_tokens"] <= 24
    assert "".join(c["choices"][0]["delta"]["content"] or "" for c in report("chat_stream") if c["choices"]) == text
    assert report("async_chat") == [text] * 8
    assert report("async_stream") == text
    assert report("async_stream_helper")["text"].startswith(text)
    assert report("raw_response")["text"] == text
    assert report("async_streaming_response") == text


def test_a_stream_ends_with_its_usage(report: Report) -> None:
    *chunks, last = report("chat_stream")
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    assert chunks[-1]["choices"][0]["finish_reason"] in {"stop", "length"}
    assert last["choices"] == []
    assert last["usage"] == report("chat")["usage"]


def test_the_helper_names_its_events(report: Report) -> None:
    types = report("async_stream_helper")["types"]
    assert {"chunk", "content.delta", "content.done"} <= set(types)


def test_a_demanded_call_is_parsed_in_a_stream(report: Report) -> None:
    call = report("stream_helper_with_tools")
    assert call["name"] == "get_weather"
    assert call["is_weather"]
    assert {"tool_calls.function.arguments.delta", "tool_calls.function.arguments.done"} <= set(call["types"])


@pytest.mark.parametrize("case", ["parse", "responses_parse"])
def test_answers_are_parsed(report: Report, case: str) -> None:
    animal = report(case)
    assert animal["kind"] in {"cat", "dog"}
    assert isinstance(animal["is_tame"], bool)


def test_responses_have_the_text_of_their_events(report: Report) -> None:
    stream = report("responses_stream")
    assert report("responses") == report("chat")["choices"][0]["message"]["content"]
    assert stream["text"].startswith(report("responses"))
    assert stream["types"][:4] == TEXT_EVENTS
    assert stream["types"][-1] == "response.completed"
    other = report("async_responses_stream")
    assert other["numbers"] == list(range(len(other["types"])))
    assert other["types"][-1] in {"response.completed", "response.incomplete"}


def test_responses_over_websocket_are_those_of_http(report: Report, environment: str) -> None:
    if environment != "openai":
        pytest.skip("this environment has no client of WebSockets")
    first, second = report("responses_websocket")
    assert first == report("responses")
    assert second


def test_raw_responses_have_the_request_s_id(report: Report) -> None:
    raw = report("raw_response")
    assert raw["status"] == 200
    assert raw["request_id"] == raw["of_answer"]
    assert raw["request_id"]


def test_a_streamed_body_is_an_event_stream(report: Report) -> None:
    raw = report("streaming_response")
    assert raw["type"].startswith("text/event-stream")
    assert raw["lines"][-1] == "data: [DONE]"
    assert all(json.loads(line.removeprefix("data: "))["object"] for line in raw["lines"][:-1])


def test_completions_echo_with_log_probabilities(report: Report) -> None:
    first, second = report("completions")["choices"]
    assert first["text"].startswith("Once upon a time")
    assert second["text"].startswith("The cat")
    assert first["logprobs"]["token_logprobs"][0] is None
    assert all(value <= 0 for value in first["logprobs"]["token_logprobs"][1:])
    begin, *tokens = first["logprobs"]["tokens"]  # the text begins with a token that has no text of its own
    assert (begin, "".join(tokens)) == ("<|startoftext|>", first["text"])


def test_embeddings_are_the_same_in_both_encodings(report: Report) -> None:
    found = report("embeddings")
    for default, plain in zip(found["default"], found["float"], strict=True):
        assert default == pytest.approx(plain, abs=1e-6)
        assert math.hypot(*plain) == pytest.approx(1, abs=1e-5)
    assert found["dimensions"] == 8


def test_models_are_listed(report: Report) -> None:
    models = report("models")
    assert {"demo", "vectors"} <= set(models["list"])
    assert models["one"] == "demo"


def test_errors_are_the_client_s_own(report: Report) -> None:
    assert report("errors") == [
        ["BadRequestError", 400, "invalid_value", "temperature"],
        ["NotFoundError", 404, "model_not_found", "model"],
        ["AuthenticationError", 401, "invalid_api_key", None],
        ["NotFoundError", 404, "response_not_found", "response_id"],
        ["BadRequestError", 400, "unsupported_parameter", "suffix"],
    ]
