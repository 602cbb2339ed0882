"""LangChain: chat models on both APIs, completions, tools, structured output, embeddings."""

from __future__ import annotations

import pytest

from tests.clients.environment import Report, run_python


@pytest.fixture(scope="module")
def report(site: str) -> Report:
    return run_python("openai", "langchain_client", site)


def test_answers_and_usage(report: Report) -> None:
    answer = report("invoke")
    assert answer["text"]
    usage = answer["usage"]
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    assert answer["metadata"]["finish_reason"] in {"stop", "length"}
    assert answer["metadata"]["model_name"] == "demo"


def test_streams(report: Report) -> None:
    stream = report("stream")
    assert stream["count"] > 5
    assert stream["reason"] in {"stop", "length"}
    assert stream["usage"]["output_tokens"] <= 24
    assert report("astream") == stream["text"]
    assert report("abatch") == [stream["text"]] * 4


def test_a_chain(report: Report) -> None:
    assert report("chain")


@pytest.mark.parametrize("case", ["tool_loop", "tool_loop_on_responses"])
def test_a_tool_is_called_and_its_result_answered(report: Report, case: str) -> None:
    found = report(case)
    (call,) = found["calls"]
    assert call["name"] == "get_weather"
    assert call["args"].keys() == {"city"}
    assert found["answer"]


def test_a_demanded_tool_in_a_stream(report: Report) -> None:
    found = report("demanded_tool_in_a_stream")
    (call,) = found["calls"]
    assert call["args"].keys() == {"city"}
    assert found["chunks"] > 2


@pytest.mark.parametrize("case", ["structured_by_schema", "structured_by_tool", "structured_on_responses"])
def test_structured_output(report: Report, case: str) -> None:
    found = report(case)
    assert found["kind"] in {"cat", "dog"}
    assert isinstance(found["is_tame"], bool)


def test_responses(report: Report) -> None:
    found = report("responses")
    assert found["text"] == report("responses_stream") == report("stream")["text"]
    assert found["usage"]["output_tokens"] <= 24


def test_the_server_remembers_a_conversation(report: Report) -> None:
    found = report("responses_continue")
    assert found["second"]["input_tokens"] > found["first"]["input_tokens"] + found["first"]["output_tokens"]


def test_log_probabilities(report: Report) -> None:
    found = report("logprobs")
    assert "".join(each["token"] for each in found["content"]) == found["text"]
    assert all(len(each["top_logprobs"]) == 2 for each in found["content"])


def test_a_profile(report: Report) -> None:
    assert report("profile") == "gloomy@1"


def test_completions(report: Report) -> None:
    found = report("completion")
    assert found["text"] == found["stream"]
    assert found["text"]


def test_embeddings(report: Report) -> None:
    found = report("embeddings")
    for vector in (found["query"], *found["async"]):
        assert vector == pytest.approx(found["documents"][0], abs=1e-5)
