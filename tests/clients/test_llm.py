"""The command line tool ``llm``, which is told of servers in a file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.clients.environment import python_of, run_command

MODELS = """
- model_id: stories
  model_name: demo
  api_base: {url}/v1
  api_key_name: millm
  supports_schema: true
  supports_tools: true
"""
OPTIONS = ("-o", "max_tokens", "24", "-o", "temperature", "0")
TOOL = '''
def get_weather(city: str) -> str:
    """Get the weather in a city."""
    return "sunny, 20 degrees"
'''
SCHEMA = {
    "type": "object",
    "properties": {"kind": {"enum": ["cat", "dog"]}},
    "required": ["kind"],
    "additionalProperties": False,
}
Llm = Callable[..., str]


@pytest.fixture
def llm(site: str, tmp_path: Path) -> Llm:
    """``llm("-m", "stories", ...)``: what the command prints."""
    command = str(python_of("openai").with_name("llm"))
    (tmp_path / "extra-openai-models.yaml").write_text(MODELS.format(url=site))
    (tmp_path / "keys.json").write_text(json.dumps({"millm": "none"}))
    return lambda *arguments: run_command([command, *arguments], {"LLM_USER_PATH": str(tmp_path)}, tmp_path)


def test_streamed_and_whole_answers_are_the_same(llm: Llm) -> None:
    streamed = llm("-m", "stories", *OPTIONS, "Tell me a story.")
    assert len(streamed.split()) > 8
    assert llm("-m", "stories", *OPTIONS, "--no-stream", "Tell me a story.") == streamed


def test_a_conversation_goes_on_and_is_logged(llm: Llm) -> None:
    llm("-m", "stories", *OPTIONS, "-s", "Be brief.", "Tell me a story.")
    llm("-c", *OPTIONS, "And then?")
    logged = json.loads(llm("logs", "--json", "-n", "0"))
    assert len({each["conversation_id"] for each in logged}) == 1
    assert all(each["input_tokens"] > 3 and each["output_tokens"] > 3 for each in logged)


def test_a_schema_is_followed(llm: Llm) -> None:
    answer = llm("-m", "stories", *OPTIONS, "--schema", json.dumps(SCHEMA), "Tell me a story.")
    assert json.loads(answer)["kind"] in {"cat", "dog"}


def test_a_tool_is_run_and_its_result_answered(llm: Llm) -> None:
    options = ("-o", "max_tokens", "80", "-o", "temperature", "0", "--td")
    answer = llm("-m", "stories", *options, "--functions", TOOL, "What is the weather in Paris?")
    assert answer.strip()
    logged = json.loads(llm("logs", "--json", "-n", "0"))
    assert [call["name"] for each in logged for call in each["tool_calls"]] == ["get_weather"]
