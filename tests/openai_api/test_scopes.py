"""The segment rules of requests, and profiles for a segment that the model never writes."""

from __future__ import annotations

from typing import Any

import pytest

from inference.segments import ANSWER_ONLY
from inference.text.dialects.dialect import Dialect, answer_segment_rules
from inference.text.dialects.thinking import KNOWN_MARKS
from inference.text.dialects.tool_formats import HERMES
from tests.openai_api.conftest import Api

DIALECT = Dialect(KNOWN_MARKS[0], HERMES)
TOOL = {"type": "function", "function": {"name": "add"}}
GLOOMY = {"profile": "gloomy"}


@pytest.fixture
def scoped(api: Api) -> Api:
    """The profiles have an edit of the answer itself."""
    api.registry.text.dialect = DIALECT
    api.steering.depends_on_segments = True
    return api


@pytest.mark.parametrize(
    ("fields", "prompt_end", "thinking", "calls"),
    [
        ({}, "", "possible", "none"),
        ({"tools": [TOOL]}, "", "possible", "offered"),
        ({"tools": [TOOL], "tool_choice": "none"}, "", "possible", "none"),
        ({"tools": [TOOL], "tool_choice": "required"}, "<think>\n", "begun", "offered"),
        ({"response_format": {"type": "json_object"}}, "<think></think>", "none", "none"),
    ],
)
async def test_chats_tell_how_their_answers_parts_are_marked(
    scoped: Api, fields: dict[str, Any], prompt_end: str, thinking: Any, calls: Any
):
    scoped.registry.text.prompt_end = prompt_end
    response = await scoped.chat(**GLOOMY, **fields, n=2)
    assert response.status_code == 200, response.content
    assert [request.segment_rules for request in scoped.engine.requests] == [
        answer_segment_rules(DIALECT, thinking, calls)
    ] * 2


async def test_plain_texts_have_the_parts_that_marks_tell(scoped: Api):
    response = await scoped.complete(**GLOOMY, prompt=["Once", "So <think>\n", "</think>\n"])
    assert response.status_code == 200, response.content
    expected = [answer_segment_rules(DIALECT, thinking, "marked") for thinking in ("possible", "begun", "none")]
    assert [request.segment_rules for request in scoped.engine.requests] == expected


async def test_what_tells_no_parts_needs_no_rules(scoped: Api):
    scoped.steering.depends_on_segments = False
    assert (await scoped.complete(**GLOOMY)).status_code == 200
    assert (await scoped.complete()).status_code == 200
    assert [request.segment_rules for request in scoped.engine.requests] == [ANSWER_ONLY, ANSWER_ONLY]


@pytest.mark.parametrize("endpoint", ["chat", "complete"])
async def test_a_profile_for_thoughts_needs_a_model_that_thinks(scoped: Api, endpoint: str):
    scoped.steering.required_segments = frozenset({"thinking"})
    ask = getattr(scoped, endpoint)
    assert (await ask(**GLOOMY)).status_code == 200
    scoped.engine.requests.clear()
    scoped.registry.text.dialect = Dialect(tools=HERMES)
    response = await ask(**GLOOMY)
    assert response.status_code == 409
    error = response.json()["error"]
    assert (error["code"], error["param"]) == ("scope_not_supported", "profile")
    assert "thinking" in error["message"]
    assert not scoped.engine.requests
    assert scoped.log.entries[-1].error_code == "scope_not_supported"
    assert (await ask()).status_code == 200, "without the profile there is nothing to refuse"
