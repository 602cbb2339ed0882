"""Ollama's Python client and LangChain's models for Ollama, and their answers against those of /v1."""

from __future__ import annotations

import json
import re
from typing import Any

import httpx2
import pytest

from millm_site.env import PROJECT_DIR
from tests.clients.environment import Report, python_of, run_command, run_python

STORY = [{"role": "user", "content": "Tell me a story."}]


@pytest.fixture(scope="module")
def report(site: str, ollama_site: str) -> Report:
    return run_python("ollama", "ollama_client", site, ollama_site)


def ask(site: str, **fields: Any) -> str:
    body = {"model": "demo", "messages": STORY, "max_tokens": 24, "temperature": 0, **fields}
    answer = httpx2.post(f"{site}/v1/chat/completions", json=body, timeout=300)
    assert answer.status_code == 200, answer.text
    text: str = answer.json()["choices"][0]["message"]["content"]
    return text


@pytest.fixture(scope="module")
def story(site: str) -> str:
    return ask(site)


@pytest.fixture(scope="module")
def gloomy(site: str) -> str:
    return ask(site, profile="gloomy")


def test_models_and_their_profiles(report: Report) -> None:
    found = report("models")
    assert found["names"][0] == "demo:latest"
    assert {"demo:gloomy", "demo:joyful", "vectors:latest"} <= set(found["names"])
    assert "judge" not in " ".join(found["names"])
    assert ["demo:latest", found["shown"]["modelinfo"]["millm.context_length"]] in found["running"]
    assert "tools" in found["shown"]["capabilities"]


def test_every_way_to_ask_has_the_answer_of_v1(report: Report, story: str) -> None:
    assert report("chat")["message"]["content"] == story
    assert report("chat_with_a_tag") == story
    assert "".join(report("stream")["texts"]) == story
    assert set(report("asynchronous").values()) == {story}
    assert report("on_its_own_port")["text"] == story
    assert report("on_its_own_port")["names"] == report("models")["names"]


def test_openais_api_is_at_the_same_addresses(site: str, ollama_site: str, gloomy: str) -> None:
    assert ask(f"{site}/ollama", profile="gloomy") == ask(ollama_site, profile="gloomy") == gloomy


def test_the_last_line_has_the_figures(report: Report) -> None:
    whole, last = report("chat"), report("stream")["last"]
    for found in (whole, last):
        assert (found["done"], found["done_reason"], found["eval_count"]) == (True, "length", 24)
        assert found["total_duration"] >= found["eval_duration"] > 0
        assert found["prompt_eval_count"] > 3
    assert len(report("stream")["texts"]) > 5


def test_a_stream_is_the_whole_answer_of_the_same_seed(report: Report) -> None:
    pairs = report("seeded")
    assert all(streamed == whole for streamed, whole in pairs)
    assert len({whole for _, whole in pairs}) > 4


def test_a_context_is_the_conversation(report: Report) -> None:
    assert "Zorvik" in report("prompt")["second"]
    assert report("prompt")["second"] == report("prompt")["as_chat"]


def test_profiles(report: Report, gloomy: str, story: str) -> None:
    assert set(report("profiles").values()) == {gloomy}
    assert gloomy != story


@pytest.mark.parametrize("case", ["tool_loop", "langchain_tools"])
def test_tools(report: Report, case: str) -> None:
    (call,) = report(case)["calls"]
    assert (call.get("arguments") or call.get("args")) == {"city": "Paris"}
    assert "20" in report(case)["answer"]


def test_structured_output(report: Report) -> None:
    assert report("structured")["kind"] in {"cat", "dog"}
    assert report("langchain_structured")["kind"] in {"cat", "dog"}


def test_logprobs(report: Report) -> None:
    found = report("logprobs")
    assert len(found) == 3
    assert all(one["logprob"] <= 0 and len(one["top_logprobs"]) == 2 for one in found)


def test_embeddings(report: Report, site: str) -> None:
    first, second = report("embeddings")["several"]
    body = {"model": "vectors", "input": "The cat sat."}
    expected = httpx2.post(f"{site}/v1/embeddings", json=body, timeout=300).json()["data"][0]["embedding"]
    assert first == pytest.approx(expected, abs=1e-6)
    assert report("embeddings")["one"] == pytest.approx(expected, abs=1e-6)
    assert first != second
    assert report("langchain_embeddings")[0] == pytest.approx(first, abs=1e-6)


def test_a_request_without_a_prompt_loads_the_model(report: Report) -> None:
    assert report("loading") == "load"


def test_errors_have_their_status_and_text(report: Report) -> None:
    found = report("errors")
    assert [status for status, _ in found] == [404, 400, 404, 400, 400, 400, 401]
    assert "nobody" in found[0][1]
    assert "`options.temperature`" in found[1][1]
    assert "does not support thinking" in found[3][1]
    assert "add_model" in found[4][1]


def test_langchain(report: Report, story: str, gloomy: str) -> None:
    found = report("langchain_chat")
    assert found["text"] == found["streamed"] == story
    assert found["usage"]["output_tokens"] == 24
    assert report("langchain_profile") == gloomy
    first, second = report("langchain_text")
    assert first == second
    assert first


def test_the_examples_of_the_page(site: str) -> None:
    page = (PROJECT_DIR / "docs" / "ollama.md").read_text()
    programs = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert len(programs) == 2
    for program in programs:
        command = [str(python_of("ollama")), "-c", program.replace("http://127.0.0.1:8000", site)]
        assert len(run_command(command, {}, PROJECT_DIR).split()) > 10
    (line,) = re.findall(r"^```sh\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    output = run_command(["/bin/sh", "-c", line.replace("http://127.0.0.1:8000", site)], {}, PROJECT_DIR)
    assert json.loads(output)["millm"]["profile"] == "gloomy@1"
