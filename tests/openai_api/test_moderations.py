"""/v1/moderations: categories are the classifier's labels."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from openai.types import ModerationCreateResponse
from openai.types.moderation import Categories
from pydantic import TypeAdapter

from inference.client import EmbeddingEvent, EmbeddingRequest, FinishedEvent, Timings, Usage
from openai_api.endpoints.moderations import is_harmless
from tests.openai_api.conftest import Api
from tests.openai_api.fakes import record

LABELS = ("OK", "hate", "violence")
OPENAI = tuple(field.alias or name for name, field in Categories.model_fields.items())


def answering(*scores: float) -> Any:
    def script(request: EmbeddingRequest) -> list[Any]:
        values = struct.pack(f"<{len(scores)}f", *scores)
        usage = Usage(len(request.prompt_token_ids))
        return [EmbeddingEvent(request.index, values), FinishedEvent(request.index, "stop", usage, Timings())]

    return script


@pytest.fixture
def judge(api: Api) -> Api:
    api.registry._records = (*api.registry._records, record("judge", kind="classification"))
    api.registry.labels = LABELS
    api.engine.embedding_script = answering(0.25, 0.75, 0.0)
    return api


async def moderate(api: Api, given: Any = "bad words", **fields: Any) -> Any:
    return await api.post("/v1/moderations", {"input": given, **fields})


async def test_categories_are_the_labels(judge: Api):
    body = (await moderate(judge)).json()

    assert body["model"] == "judge"
    assert body["results"] == [
        {
            "flagged": True,
            "categories": {"OK": False, "hate": True, "violence": False},
            "category_scores": {"OK": 0.25, "hate": 0.75, "violence": 0.0},
            "category_applied_input_types": {label: ["text"] for label in LABELS},
        }
    ]
    assert (judge.log.only.endpoint, judge.log.only.prompt_tokens) == ("/v1/moderations", len("bad words"))


async def test_a_reranker_is_no_classifier(judge: Api):
    judge.registry._records = (record("ranker", kind="classification", num_labels=1), *judge.registry._records)
    assert (await moderate(judge)).json()["model"] == "judge"

    judge.registry._records = (record("ranker", kind="classification", num_labels=1),)
    alone = await moderate(judge)
    assert (alone.status_code, alone.json()["error"]["code"]) == (404, "model_not_found")


async def test_a_reranker_that_was_never_loaded_is_found_out(judge: Api):
    judge.registry._records = (record("ranker", kind="classification"),)
    judge.registry.labels = ("LABEL_0",)
    response = await moderate(judge)
    assert (response.status_code, response.json()["error"]["code"]) == (404, "model_not_found")
    assert judge.engine.requests == []


async def test_a_harmless_label_does_not_flag(judge: Api):
    judge.engine.embedding_script = answering(0.9, 0.1, 0.0)
    result = (await moderate(judge)).json()["results"][0]

    assert (result["flagged"], result["categories"]["OK"]) == (False, True)


@pytest.mark.parametrize(
    ("label", "is_one"), [("OK", True), ("non-toxic", True), ("not_hate", True), ("toxic", False), ("hate", False)]
)
def test_harmless_labels(label: str, is_one: bool):
    assert is_harmless(label) == is_one


async def test_several_inputs_keep_their_order(judge: Api):
    judge.engine.embedding_script = lambda request: answering(0, len(request.prompt_token_ids) / 8, 0)(request)
    results = (await moderate(judge, ["a", "abcdef", "abc"])).json()["results"]

    assert [result["category_scores"]["hate"] for result in results] == [0.125, 0.75, 0.375]


async def test_parts_are_one_input(judge: Api):
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    body = (await moderate(judge, parts)).json()

    assert len(body["results"]) == 1
    assert bytes(judge.engine.embedded[0].prompt_token_ids) == b"a\nb"


async def test_openai_s_types_parse_a_classifier_of_openai_s_categories(judge: Api):
    judge.registry.labels = OPENAI
    judge.engine.embedding_script = answering(*(0.0 for _ in OPENAI))
    response = await moderate(judge, model="judge")

    parsed = TypeAdapter(ModerationCreateResponse).validate_json(response.content, strict=True)
    assert parsed.results[0].flagged is False


async def test_without_a_classifier_it_says_so(api: Api):
    response = await moderate(api)

    assert (response.status_code, response.json()["error"]["code"]) == (404, "model_not_found")
    assert "classif" in response.json()["error"]["message"]


async def test_one_of_several_must_be_named(judge: Api):
    judge.registry._records = (*judge.registry._records, record("other", kind="classification"))
    refused = (await moderate(judge)).json()["error"]

    assert (refused["param"], "judge, other" in refused["message"]) == ("model", True)
    assert (await moderate(judge, model="other")).status_code == 200


async def test_keys_choose_among_what_they_may_use(judge: Api):
    headers = judge.keys.add("key", allowed_models=frozenset({"tiny"}))
    response = await judge.post("/v1/moderations", {"input": "a"}, **headers)

    assert response.status_code == 404


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"given": None}, "input", "invalid_prompt"),
        ({"given": []}, "input", "invalid_prompt"),
        ({"given": [5]}, "input[0]", "invalid_type"),
        ({"given": ["a", {"type": "text", "text": "b"}]}, "input[1]", "invalid_type"),
        ({"given": [{"type": "image_url", "image_url": {"url": "x"}}]}, "input", "unsupported_parameter"),
        ({"given": [{"type": "text"}]}, "input", "unsupported_parameter"),
        ({"given": ""}, "input", "invalid_prompt"),
        ({"given": "x" * 101}, "input", "context_length_exceeded"),
        ({"given": "a", "model": "tiny"}, "model", "wrong_model_kind"),
        ({"given": "a", "profile": "joyful", "model": "judge"}, "profile", "unsupported_parameter"),
    ],
)
async def test_bad_requests_are_named(judge: Api, fields: dict[str, Any], param: str, code: str):
    response = await moderate(judge, **fields)
    error = response.json()["error"]

    assert (response.status_code, error["param"], error["code"]) == (400, param, code)
