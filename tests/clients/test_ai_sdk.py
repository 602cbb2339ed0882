"""Vercel's AI SDK, by all three of its ways to a server like ours."""

from __future__ import annotations

import pytest

from tests.clients.environment import Report, run_node


@pytest.fixture(scope="module")
def report(site: str) -> Report:
    return run_node("ai_sdk", site)


@pytest.fixture(params=["compatible", "responses", "chat"])
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_text_streamed_and_whole(report: Report, way: str) -> None:
    whole, stream = report(f"{way}_generate_text"), report(f"{way}_stream_text")
    assert len(whole["text"].split()) > 8
    assert stream["text"] == whole["text"]
    assert stream["finishReason"] == whole["finishReason"]
    assert whole["finishReason"] in {"stop", "length"}
    assert "error" not in stream["types"]
    assert stream["types"].count("text-delta") > 3
    for usage in (whole["usage"], stream["usage"]):
        assert usage["inputTokens"] > 3
        assert 0 < usage["outputTokens"] <= 24


def test_a_system_message_and_a_history(report: Report, way: str) -> None:
    assert report(f"{way}_system_and_history")


def test_tools_are_run_and_their_results_answered(report: Report, way: str) -> None:
    found = report(f"{way}_tools")
    assert [arguments.keys() for arguments in found["asked"]] == [{"city"}]
    assert found["steps"] == ["tool-calls", "stop"]
    assert found["text"]


def test_tools_are_run_in_a_stream(report: Report, way: str) -> None:
    found, whole = report(f"{way}_tools_in_a_stream"), report(f"{way}_tools")
    assert found["asked"] == whole["asked"]
    assert found["text"] == whole["text"]
    assert {"tool-input-delta", "tool-call", "tool-result"} <= set(found["types"])
    assert "error" not in found["types"]


def test_a_demanded_tool_is_called_whatever_was_asked(report: Report, way: str) -> None:
    found = report(f"{way}_forced_tool")
    ((name, arguments),) = found["calls"]
    assert name == "get_weather"
    assert found["asked"] == [arguments]
    assert arguments.keys() == {"city"}


@pytest.mark.parametrize("case", ["generate_object", "output_object", "stream_object"])
def test_objects_follow_their_schema(report: Report, way: str, case: str) -> None:
    found = report(f"{way}_{case}")
    if case == "stream_object":
        assert found["partial"] >= 1
        found = found["object"]
    assert found["kind"] in {"cat", "dog"}
    assert isinstance(found["isTame"], bool)


def test_embeddings(report: Report, way: str) -> None:
    found = report(f"{way}_embeddings")
    assert len(found["many"]) == 2
    assert found["many"][0] == pytest.approx(found["one"], abs=1e-5)
    assert found["usage"]["tokens"] > 0


def test_errors_are_told(report: Report, way: str) -> None:
    error = report(f"{way}_error")
    assert error["status"] == 404
    assert "nobody" in error["message"]


@pytest.mark.parametrize("provider", ["compatible", "openai"])
def test_completions(report: Report, provider: str) -> None:
    assert report(f"{provider}_completion")


def test_a_profile_rides_along(report: Report) -> None:
    assert report("profile") == "gloomy@1"
