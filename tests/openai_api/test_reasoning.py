"""Reasoning in chat completions: never content, counted, and as much of it as was asked for."""

from __future__ import annotations

from typing import Any

import pytest
from openai.types.chat import ChatCompletion
from pydantic import TypeAdapter

from inference.client import ThinkingBudget, TokensEvent
from inference.text.dialects.dialect import Dialect
from inference.text.dialects.thinking import KNOWN_MARKS
from inference.text.dialects.tool_formats import HERMES
from tests.openai_api.conftest import Api, chunks_of
from tests.openai_api.fakes import answering, finished

THOUGHT = "<think>\nHm.\n</think>\n\n"
JSON = {"response_format": {"type": "json_object"}}


@pytest.fixture
def thinker(api: Api) -> Api:
    api.registry.text.dialect = Dialect(KNOWN_MARKS[0], HERMES)
    api.engine.script = answering(f"{THOUGHT}Yes.")
    return api


async def body_of(api: Api, **fields: Any) -> dict[str, Any]:
    response = await api.chat(**fields)
    assert response.status_code == 200, response.content
    TypeAdapter(ChatCompletion).validate_json(response.content, strict=True)
    body: dict[str, Any] = response.json()
    return body


def num_reasoning(body: dict[str, Any]) -> int:
    count: int = body["usage"]["completion_tokens_details"]["reasoning_tokens"]
    return count


async def test_reasoning_is_told_from_content(thinker: Api):
    body = await body_of(thinker)
    message = body["choices"][0]["message"]
    assert (message["content"], message["reasoning_content"], message["reasoning"]) == ("Yes.", "Hm.", "Hm.")
    assert num_reasoning(body) == len("<think>\nHm.\n</think>"), "a byte is a token here"


async def test_reasoning_streams_before_content(thinker: Api):
    response = await thinker.chat(stream=True, stream_options={"include_usage": True})
    chunks = (await chunks_of(response))[:-1]
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks if chunk["choices"]]
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "Hm."
    assert "".join(delta.get("reasoning", "") for delta in deltas) == "Hm."
    assert "".join(delta.get("content", "") for delta in deltas) == "Yes."
    assert num_reasoning(chunks[-1]) == 20


async def test_prompts_that_begin_the_reasoning(thinker: Api):
    thinker.registry.text.prompt_end = "<think>\n"
    thinker.engine.script = answering("Hm.</think>Yes.")
    body = await body_of(thinker)
    assert body["choices"][0]["message"]["reasoning"] == "Hm."
    assert body["choices"][0]["message"]["content"] == "Yes."
    assert num_reasoning(body) == len("Hm.</think>")


async def test_reasoning_that_was_cut(thinker: Api):
    body = await body_of(thinker, max_tokens=9)
    assert body["choices"][0]["message"]["content"] == ""
    assert body["choices"][0]["message"]["reasoning"] == "H"
    assert body["choices"][0]["finish_reason"] == "length"
    assert num_reasoning(body) == 9


async def test_prompts_that_have_ended_the_reasoning(thinker: Api):
    thinker.registry.text.prompt_end = "<think>\n\n</think>\n\n"
    thinker.engine.script = answering("<think>is a word</think>")
    body = await body_of(thinker)
    assert body["choices"][0]["message"]["content"] == "<think>is a word</think>"
    assert num_reasoning(body) == 0


async def test_a_users_mark_begins_nothing(thinker: Api):
    thinker.engine.script = answering("Yes.")
    body = await body_of(thinker, messages=[{"role": "user", "content": "<think>"}])
    assert body["choices"][0]["message"]["content"] == "Yes."


async def test_tokens_that_come_together_are_counted_apart(thinker: Api):
    def script(request: Any) -> list[Any]:
        text = "<think>a</think>bc"
        return [TokensEvent(request.index, tuple(text.encode()), text), finished(request, len(text))]

    thinker.engine.script = script
    assert num_reasoning(await body_of(thinker)) == len("<think>a</think>")


async def test_models_that_do_not_reason_keep_their_marks(api: Api):
    api.engine.script = answering(THOUGHT)
    body = await body_of(api)
    assert body["choices"][0]["message"] == {"role": "assistant", "content": THOUGHT, "refusal": None}


@pytest.mark.parametrize(
    ("variables", "effort", "kwargs", "is_ignored"),
    [
        ({"enable_thinking"}, "none", {"enable_thinking": False}, False),
        ({"thinking", "reasoning_effort"}, "none", {"thinking": False}, False),
        ({"reasoning_effort"}, "none", {"reasoning_effort": "none"}, False),
        ({"reasoning_effort"}, "high", {"reasoning_effort": "high"}, False),
        ({"enable_thinking"}, "high", None, True),
        (set(), "low", None, True),
    ],
)
async def test_effort_is_the_templates_business(
    thinker: Api, variables: set[str], effort: str, kwargs: dict[str, Any] | None, is_ignored: bool
):
    thinker.registry.text.variables = frozenset(variables)
    response = await thinker.chat(reasoning_effort=effort)
    assert response.status_code == 200
    assert thinker.registry.text.kwargs == kwargs
    assert (response.headers.get("x-millm-ignored-fields") == "reasoning_effort") is is_ignored


async def test_the_requests_own_variables_win(thinker: Api):
    await thinker.chat(reasoning_effort="none", chat_template_kwargs={"enable_thinking": True})
    assert thinker.registry.text.kwargs == {"enable_thinking": True}


async def test_reasoning_without_a_switch_is_ended_at_once(thinker: Api):
    thinker.registry.text.variables = frozenset()
    await thinker.chat(reasoning_effort="none")
    assert thinker.engine.requests[0].sampling.thinking == ThinkingBudget(0, 1, 2)


async def test_budgets_reach_the_engine(thinker: Api):
    thinker.registry.text.prompt_end = "<think>"
    await thinker.chat(reasoning_budget=7)
    await thinker.chat(reasoning_budget=-1)
    await thinker.chat(reasoning_budget=True)
    await thinker.chat(reasoning_budget=False)
    budgets = [request.sampling.thinking for request in thinker.engine.requests]
    assert budgets == [ThinkingBudget(7, 1, 2, has_begun=True), None, None, ThinkingBudget(0, 1, 2, has_begun=True)]


async def test_budgets_need_marks_that_are_tokens(thinker: Api):
    thinker.registry.text.dialect = Dialect(KNOWN_MARKS[1])
    error = (await thinker.chat(reasoning_budget=7)).json()["error"]
    assert (error["code"], error["param"]) == ("unsupported_parameter", "reasoning_budget")


@pytest.mark.parametrize("value", [-2, 1.5, "1", 10**12])
async def test_bad_budgets(thinker: Api, value: object):
    response = await thinker.chat(reasoning_budget=value)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "reasoning_budget"


@pytest.mark.parametrize("value", ["some", "", 3])
async def test_bad_efforts(thinker: Api, value: object):
    response = await thinker.chat(reasoning_effort=value)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "reasoning_effort"


async def test_grammars_begin_after_the_reasoning(thinker: Api):
    await thinker.chat(**JSON)
    thinker.registry.text.prompt_end = "<think></think>"
    await thinker.chat(**JSON)
    after, alone = (request.sampling.grammar for request in thinker.engine.requests)
    assert after is not None
    assert alone is not None
    assert after.kind == "composed"
    assert [part.kind for part in after.parts.values()] == ["json_object"]
    assert alone.kind == "json_object"


async def test_reasoning_comes_back_to_the_template(thinker: Api):
    for name in ("reasoning_content", "reasoning"):
        messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y", name: "Hm."}]
        response = await thinker.chat(messages=messages)
        assert "x-millm-ignored-fields" not in response.headers
        assert thinker.registry.text.rendered[1] == {"role": "assistant", "content": "y", "reasoning_content": "Hm."}


@pytest.mark.parametrize(
    ("fields", "options"),
    [
        ({}, (True, False)),
        ({"add_generation_prompt": False}, (False, False)),
        ({"continue_final_message": True}, (True, True)),
    ],
)
async def test_how_the_prompt_ends(thinker: Api, fields: dict[str, Any], options: tuple[bool, bool]):
    messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]
    assert (await thinker.chat(messages=messages, **fields)).status_code == 200
    given = thinker.registry.text.render_options
    assert (given["add_generation_prompt"], given["continue_final"]) == options


@pytest.mark.parametrize(
    ("last", "fields", "param"),
    [
        ({"role": "user", "content": "x"}, {}, "continue_final_message"),
        ({"role": "assistant", "content": " "}, {}, "continue_final_message"),
        ({"role": "assistant", "refusal": "no"}, {}, "continue_final_message"),
        ({"role": "assistant", "content": "y"}, {"add_generation_prompt": True}, "add_generation_prompt"),
    ],
)
async def test_what_cannot_be_continued(thinker: Api, last: dict[str, Any], fields: dict[str, Any], param: str):
    messages = [{"role": "user", "content": "x"}, last]
    error = (await thinker.chat(messages=messages, continue_final_message=True, **fields)).json()["error"]
    assert (error["param"], error["code"]) == (param, "invalid_value")
