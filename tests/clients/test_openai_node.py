"""OpenAI's client for JavaScript."""

from __future__ import annotations

import json

import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from tests.clients.environment import NODE_PROGRAMS, Report, run_node


@pytest.fixture(scope="module")
def report(site: str) -> Report:
    return run_node("openai_node", site)


def test_it_is_the_version_that_the_list_says(report: Report) -> None:
    wanted = json.loads((NODE_PROGRAMS / "package.json").read_text())["dependencies"]["openai"]
    assert report("version") == wanted


def test_chat_streamed_and_whole(report: Report) -> None:
    whole = ChatCompletion.model_validate(plain(report("chat")), strict=True)
    chunks = [ChatCompletionChunk.model_validate(plain(chunk), strict=True) for chunk in report("chat_stream")]
    text = whole.choices[0].message.content
    assert text
    assert len(text.split()) > 8
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == text
    assert chunks[-1].usage == whole.usage
    helper = report("stream_helper")
    assert helper["text"] == helper["deltas"] == text


@pytest.mark.parametrize("case", ["run_tools", "run_tools_in_a_stream"])
def test_the_client_runs_tools_by_itself(report: Report, case: str) -> None:
    found = report(case)
    assert [arguments.keys() for arguments in found["asked"]] == [{"city"}]
    assert found["answer"]
    assert found.get("roles", ROLES) == ROLES


@pytest.mark.parametrize("case", ["parse", "responses_parse"])
def test_answers_are_parsed(report: Report, case: str) -> None:
    animal = report(case)
    assert animal["kind"] in {"cat", "dog"}
    assert isinstance(animal["is_tame"], bool)


def test_responses_streamed_and_whole(report: Report) -> None:
    stream = report("responses_stream")
    assert stream["text"] == report("responses") == report("chat")["choices"][0]["message"]["content"]
    assert stream["types"][0] == "response.created"
    assert stream["types"][-1] in {"response.completed", "response.incomplete"}


def test_a_response_goes_on(report: Report) -> None:
    found = report("responses_continue")
    assert sorted(found["items"]) == ["assistant", "user", "user"]
    assert found["more"]


def test_completions_echo(report: Report) -> None:
    (choice,) = report("completions")["choices"]
    assert choice["text"].startswith("Once upon a time")
    assert choice["logprobs"]["token_logprobs"][0] is None


def test_embeddings_are_the_same_in_both_encodings(report: Report) -> None:
    found = report("embeddings")
    for default, floats in zip(found["default"], found["float"], strict=True):
        assert default == pytest.approx(floats, abs=1e-6)


def test_raw_responses(report: Report) -> None:
    found = report("with_response")
    assert found["status"] == 200
    assert found["header"] == found["request_id"] == found["of_answer"]
    raw = report("as_response")
    assert raw["type"].startswith("text/event-stream")
    assert raw["text"].endswith("data: [DONE]\n\n")


def test_an_aborted_stream_harms_nobody(report: Report) -> None:
    found = report("abort")
    assert found["count"] >= 3
    assert found["next"] == 1


def test_models_are_listed(report: Report) -> None:
    assert {"demo", "vectors"} <= set(report("models"))


def test_files(report: Report) -> None:
    assert report("files") == {"content": "The cat sat.", "is_listed": True, "deleted": True}


def test_a_vector_store(report: Report) -> None:
    found = report("vector_store")
    assert found["status"] == "completed"
    assert found["hits"] == ["The cat sat by the sea."]


def test_errors_are_the_client_s_own(report: Report) -> None:
    found = [[error["name"], error["status"], error["code"]] for error in report("errors")]
    assert found == [
        ["BadRequestError", 400, "invalid_value"],
        ["NotFoundError", 404, "model_not_found"],
        ["AuthenticationError", 401, "invalid_api_key"],
        ["NotFoundError", 404, "response_not_found"],
    ]


def plain(answer: dict) -> dict:
    """Without what the client itself adds."""
    return {name: value for name, value in answer.items() if not name.startswith("_")}


ROLES = ["user", "assistant", "tool", "assistant"]
