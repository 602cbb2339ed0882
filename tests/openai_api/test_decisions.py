"""/v1/decisions: questions answered by the probabilities of whole labels."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types import Decision

from inference.client import Event, GenerationRequest, ScoresEvent
from inference.text.dialects.dialect import Dialect, dialect_of
from inference.text.dialects.thinking import KNOWN_MARKS
from openai_api.decisions.endpoint import shares
from openai_api.decisions.schemas import written_labels
from tests.openai_api.conftest import Api
from tests.openai_api.fakes import failing, finished

PREDICATE = {"type": "predicate", "instructions": "It is about the sea.", "name": "sea"}
CHOICE = {"type": "choice", "instructions": "Who?", "choices": [{"value": "cat"}, {"value": "dog", "description": "d"}]}
SCORE = {"type": "score", "instructions": "How sad?", "levels": [{"label": "low"}, {"label": "mid"}, {"label": "high"}]}


def scoring(logprobs: dict[str, float]) -> Any:
    """Each byte of a label costs the same; labels that are not named are unlikely."""

    def script(request: GenerationRequest) -> Iterable[Event]:
        assert request.scoring is not None
        ids = request.scoring.token_ids
        total = logprobs.get(bytes(ids).decode(), -50.0)
        return [ScoresEvent(request.index, tuple(total / len(ids) for _ in ids)), finished(request, len(ids))]

    return script


async def decide(api: Api, *questions: Any, headers: dict[str, str] | None = None, **fields: Any) -> Any:
    body = {"model": "tiny", "input": "The sea.", "questions": list(questions) or [PREDICATE], **fields}
    return await api.post("/v1/decisions", body, **(headers or {}))


def parsed(response: Any) -> Decision:
    assert response.status_code == 200, response.content
    return Decision.model_validate_json(response.content, strict=True)


async def test_each_kind_of_question_is_answered(api: Api):
    api.registry.context = 1000
    api.engine.script = scoring(
        {"Yes": -1, "No": -3, "cat": math.log(0.1), "dog": math.log(0.3), "low": -2, "mid": -2, "high": -2}
    )
    predicate, choice, score = parsed(await decide(api, PREDICATE, CHOICE, SCORE)).answers

    assert predicate.type == "predicate"
    assert predicate.name == "sea"
    assert predicate.probability == pytest.approx(1 / (1 + math.exp(-2)))
    assert choice.type == "choice"
    assert (choice.name, choice.choice) == (None, "dog")
    assert choice.confidence == pytest.approx(0.75)
    assert [each.value for each in choice.probabilities] == ["cat", "dog"]
    assert [each.probability for each in choice.probabilities] == pytest.approx([0.25, 0.75])
    assert score.type == "score"
    assert score.score == pytest.approx(1.0)
    assert score.confidence == pytest.approx(1 / 3)
    assert [(each.label, each.value) for each in score.probabilities] == [("low", 0), ("mid", 1), ("high", 2)]


async def test_nothing_is_generated_and_a_prompt_is_counted_once(api: Api):
    api.registry.context = 1000
    api.engine.script = scoring({})
    body = parsed(await decide(api, CHOICE))

    cat, dog = api.engine.requests
    assert cat.prompt_token_ids == dog.prompt_token_ids
    assert [bytes(one.scoring.token_ids) for one in (cat, dog) if one.scoring] == [b"cat", b"dog"]
    assert {one.sampling.max_tokens for one in (cat, dog)} == {0}
    assert (body.usage.input_tokens, body.usage.output_tokens) == (len(cat.prompt_token_ids), 6)
    entry = api.log.only
    assert (entry.endpoint, entry.status, entry.completion_tokens) == ("/v1/decisions", 200, 6)
    assert json.loads(entry.completion)[0]["choice"] == "cat", "of equal ones the first"


async def test_the_question_follows_the_input_in_one_message(api: Api):
    api.registry.context = 1000
    api.engine.script = scoring({})
    await decide(api, CHOICE)

    (message,) = api.registry.text.rendered
    assert message["role"] == "user"
    assert message["content"].startswith("The sea.\n\nWho?\n\nOptions:\n- cat\n- dog: d\n")


async def test_input_items_become_the_chat(api: Api):
    api.registry.context = 1000
    api.engine.script = scoring({})
    items = [
        {"role": "developer", "content": "Judge."},
        {"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_json", "data": {"n": [1]}}]},
        {"type": "custom_tool_call", "call_id": "c", "name": "look", "input": "sea"},
        {"type": "custom_tool_call_output", "call_id": "c", "output": "blue"},
        {"type": "function_call", "call_id": "f", "name": "see", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "f", "output": [{"type": "input_text", "text": "green"}]},
    ]
    assert (await decide(api, input=items)).status_code == 200
    rendered = api.registry.text.rendered
    assert [one["role"] for one in rendered] == ["system", "user", "assistant", "tool", "assistant", "tool", "user"]
    assert rendered[1]["content"] == 'a\n{"n":[1]}'
    assert rendered[2]["tool_calls"][0]["function"] == {"name": "look", "arguments": "sea"}
    assert [rendered[place]["content"] for place in (3, 5)] == ["blue", "green"]
    assert rendered[-1]["content"].startswith("Statement: It is about the sea.")


async def test_choices_are_typed(api: Api):
    api.registry.context = 1000
    api.engine.script = scoring({"true": 0.0})
    options = [{"value": "true"}, {"value": True}, {"value": False}]
    (answer,) = parsed(await decide(api, {**CHOICE, "choices": options})).answers

    assert answer.type == "choice"
    assert answer.choice is True
    assert [each.value for each in answer.probabilities] == ["true", True, False]


@pytest.mark.parametrize(
    ("values", "written"),
    [
        (["no", "yes"], ("no", "yes")),
        (["no", "nobody"], ('"no"', '"nobody"')),
        ([True, False], ("true", "false")),
        (["true", True], ('"true"', "true")),
        (["ähm", "äh"], ('"ähm"', '"äh"')),
        (['a"', "a"], ('"a\\""', '"a"')),
    ],
)
def test_labels_are_written_as_json_where_one_begins_another(values: list[str | bool], written: tuple[str, ...]):
    assert written_labels(values) == written


@given(st.lists(st.text(st.sampled_from('ab"\\'), min_size=1, max_size=4) | st.booleans(), min_size=2, unique=True))
def test_no_written_label_begins_another(values: list[str | bool]):
    labels = written_labels(values)
    assert not any(one != other and other.startswith(one) for one in labels for other in labels)
    assert len(set(labels)) == len(values)


@given(st.lists(st.floats(-5000, 0), min_size=1, max_size=20))
def test_shares_are_a_softmax(logprobs: list[float]):
    values = np.array(logprobs)
    weights = np.exp(values - values.max())
    np.testing.assert_allclose(shares(logprobs), weights / weights.sum(), rtol=1e-9, atol=1e-300)


async def test_decisions_are_steered(api: Api):
    api.registry.context = 1000
    api.engine.script = scoring({})
    response = await decide(api, profile="gloomy@1")

    assert {request.steering.fingerprint for request in api.engine.requests if request.steering} == {"print-gloomy"}
    assert response.headers["x-millm-profile"] == "gloomy@1"
    assert response.json()["millm"]["profile"] == "gloomy@1"
    assert (await decide(api, profile="nobody")).json()["error"]["code"] == "profile_not_found"


async def test_a_failure_of_the_engine_is_told(api: Api):
    api.registry.context = 1000
    api.engine.script = failing("out_of_memory")
    response = await decide(api)
    assert (response.status_code, response.json()["error"]["code"]) == (503, "out_of_memory")
    assert api.engine.streams[0].num_closes


async def test_a_prompt_that_ends_in_reasoning_is_led_out_of_it(api: Api):
    api.registry.context = 1000
    api.engine.script = scoring({})
    api.registry.text.dialect = Dialect(thinking=KNOWN_MARKS[0])
    api.registry.text.prompt_end = "<think>\n"
    await decide(api)
    ids = api.engine.requests[0].prompt_token_ids
    assert ids[-3:] == (2, *b"\n\n")
    assert api.registry.text.kwargs == {"enable_thinking": False}


async def test_where_content_is_framed_the_label_stands_in_its_frame(api: Api):
    api.registry.context = 1000
    api.engine.script = scoring({})
    api.registry.text.dialect = dialect_of("<|channel|>commentary<|call|>")
    api.registry.text.special_tokens_in = lambda marks: {"<|channel|>": 3, "<|message|>": 4}  # type: ignore[method-assign]
    await decide(api)
    assert api.engine.requests[0].prompt_token_ids[-7:] == (3, *b"final", 4)


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"questions": []}, "questions", "invalid_value"),
        ({"questions": [PREDICATE] * 401}, "questions", "invalid_value"),
        ({"questions": [{**PREDICATE, "type": "essay"}]}, "questions[0]", "invalid_value"),
        ({"questions": ["?"]}, "questions[0]", "invalid_value"),
        ({"questions": [{"type": "predicate"}]}, "questions[0].instructions", "missing_required_parameter"),
        ({"questions": [{**PREDICATE, "instructions": "  "}]}, "questions[0].instructions", "invalid_value"),
        ({"questions": [{**CHOICE, "choices": [{"value": "a"}]}]}, "questions[0].choices", "invalid_value"),
        (
            {"questions": [{**CHOICE, "choices": [{"value": "a"}, {"value": "a"}]}]},
            "questions[0].choices[1].value",
            "invalid_value",
        ),
        (
            {"questions": [PREDICATE, {**SCORE, "levels": [{"label": "a"}, {"label": " "}]}]},
            "questions[1].levels[1].label",
            "invalid_value",
        ),
        (
            {"questions": [{**CHOICE, "choices": [{"value": str(n)} for n in range(255)]}] * 17},
            "questions",
            "invalid_value",
        ),
        ({"input": None}, "input", "invalid_type"),
        ({"input": ""}, "input", "invalid_value"),
        ({"input": []}, "input", "invalid_value"),
        ({"input": [{"type": "reasoning", "summary": []}]}, "input[0]", "unsupported_parameter"),
        ({"input": [{"id": "msg_1"}]}, "input[0]", "invalid_value"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
            "input[0].content[0]",
            "unsupported_parameter",
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "input_json", "data": [1]}]}]},
            "input[0]",
            "invalid_type",
        ),
        (
            {"input": [{"type": "function_call_output", "call_id": "c", "output": "x"}]},
            "input[0].call_id",
            "invalid_value",
        ),
        ({"input": [{"type": "custom_tool_call", "call_id": "c", "name": "n"}]}, "input[0]", "invalid_type"),
        ({"input": "x" * 2000}, "input", "context_length_exceeded"),
        ({"stream": True}, "stream", "unsupported_parameter"),
        ({"model": "vectors"}, "model", "wrong_model_kind"),
    ],
)
async def test_bad_requests_are_named(api: Api, fields: dict[str, Any], param: str, code: str):
    api.registry.context = 1000
    response = await decide(api, **fields)
    error = response.json()["error"]
    assert (response.status_code, error["param"], error["code"]) == (400, param, code), error["message"]
    assert api.engine.requests == []


@pytest.mark.parametrize("data", [{"a": [0] * 10_001}, json.loads('{"a":' * 40 + "1" + "}" * 40), {"a": "x" * 300_000}])
async def test_json_parts_are_bounded(api: Api, data: Any):
    items = [{"role": "user", "content": [{"type": "input_json", "data": data}]}]
    response = await decide(api, input=items)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "input[0]")


async def test_labels_that_the_tokenizer_cannot_tell_apart_are_refused(api: Api):
    api.registry.context = 1000
    api.registry.text.encode_plain = lambda text: [65]  # type: ignore[method-assign]
    response = await decide(api, CHOICE)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "questions[0]")
