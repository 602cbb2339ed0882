"""POST /v1/embeddings over a fake engine: forms of input, formats, dimensions, usage, refusals."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import pytest
from openai.types import CreateEmbeddingResponse

from inference.client import EngineDownError, FailedEvent, QueueFullError, Timings, Usage
from inference.registry.model_card import ModelLoadFailedError
from tests.openai_api.conftest import Api


async def embed(api: Api, headers: dict[str, str] | None = None, /, **fields: Any) -> Any:
    return await api.post("/v1/embeddings", {"model": "vectors", "input": "hi", **fields}, **(headers or {}))


async def test_a_text_becomes_a_vector(api: Api):
    response = await embed(api)

    assert response.status_code == 200
    body = response.json()
    CreateEmbeddingResponse.model_validate(body, strict=True)
    assert body == {
        "object": "list",
        "data": [{"object": "embedding", "index": 0, "embedding": [2.0, 1.0, 2.0, 3.0]}],
        "model": "vectors",
        "usage": {"prompt_tokens": 2, "total_tokens": 2},
    }


@pytest.mark.parametrize(
    ("given", "ids"),
    [
        ("abc", [(97, 98, 99)]),
        (["a", "bcd"], [(97,), (98, 99, 100)]),
        ([5, 6], [(5, 6)]),
        ([[5], [6, 7]], [(5,), (6, 7)]),
    ],
)
async def test_all_forms_of_input(api: Api, given: Any, ids: list[tuple[int, ...]]):
    body = (await embed(api, input=given)).json()

    assert [request.prompt_token_ids for request in api.engine.embedded] == ids
    assert [item["embedding"][0] for item in body["data"]] == [len(each) for each in ids]
    assert body["usage"]["prompt_tokens"] == sum(map(len, ids))


async def test_many_texts_keep_their_order(api: Api, settings: Any):
    settings.MILLM_MAX_BATCH_SIZE = 4
    body = (await embed(api, input=["x" * n for n in range(1, 12)])).json()

    assert [item["index"] for item in body["data"]] == list(range(11))
    assert [item["embedding"][0] for item in body["data"]] == list(range(1, 12))
    assert len(api.engine.streams) == 3


async def test_base64_is_float32_little_endian(api: Api):
    item = (await embed(api, encoding_format="base64")).json()["data"][0]

    assert np.frombuffer(base64.b64decode(item["embedding"]), "<f4").tolist() == [2, 1, 2, 3]


@pytest.mark.parametrize("encoding", ["float", "base64"])
async def test_dimensions_shorten_to_a_vector_of_length_1(api: Api, encoding: str):
    value = (await embed(api, dimensions=3, encoding_format=encoding)).json()["data"][0]["embedding"]
    vector = np.frombuffer(base64.b64decode(value), "<f4") if encoding == "base64" else value

    np.testing.assert_allclose(vector, [2 / 3, 1 / 3, 2 / 3], rtol=1e-6)


@pytest.mark.parametrize("text", ["", ["a", ""]])
async def test_empty_texts_are_refused_whatever_the_tokenizer_adds(api: Api, text: Any):
    api.registry.text.encode = lambda given, **options: [1, *given.encode(), 2]  # type: ignore[method-assign]
    response = await embed(api, input=text)
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "invalid_prompt"
    assert (await embed(api, input=" ")).status_code == 200


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"input": ""}, "input", "invalid_prompt"),
        ({"input": []}, "input", "invalid_prompt"),
        ({"input": ["a", ""]}, "input", "invalid_prompt"),
        ({"input": ["a", 5]}, "input", "invalid_prompt"),
        ({"input": [True]}, "input", "invalid_prompt"),
        ({"input": [-1]}, "input", "invalid_prompt"),
        ({"input": [[5], [10**6]]}, "input", "invalid_prompt"),
        ({"input": [[[5]]]}, "input", "invalid_prompt"),
        ({"input": ["a"] * 2049}, "input", "invalid_prompt"),
        ({"input": None}, "input", "invalid_prompt"),
        ({"input": "x" * 101}, "input", "context_length_exceeded"),
        ({"input": "x" * 200_000}, "input", "context_length_exceeded"),
        ({"dimensions": 5}, "dimensions", "invalid_value"),
        ({"dimensions": 0}, "dimensions", "invalid_value"),
        ({"dimensions": 10**30}, "dimensions", "invalid_value"),
        ({"encoding_format": "hex"}, "encoding_format", "invalid_value"),
        ({"profile": "joyful"}, "profile", "unsupported_parameter"),
        ({"model": "vectors:joyful"}, "profile", "unsupported_parameter"),
        ({"model": "tiny"}, "model", "wrong_model_kind"),
    ],
)
async def test_bad_requests_are_named(api: Api, fields: dict[str, Any], param: str, code: str):
    response = await embed(api, **fields)
    error = response.json()["error"]

    assert (response.status_code, error["param"], error["code"]) == (400, param, code)
    assert api.engine.embedded == []
    assert (await embed(api)).status_code == 200


async def test_a_profile_in_the_header_is_refused_too(api: Api):
    assert (await embed(api, {"x-millm-profile": "joyful"})).json()["error"]["code"] == "unsupported_parameter"


async def test_an_embedding_model_does_not_chat(api: Api):
    response = await api.chat(model="vectors")

    assert response.status_code == 400
    assert response.json()["error"]["code"] == "wrong_model_kind"
    assert "/v1/embeddings" in response.json()["error"]["message"]


async def test_an_unknown_model(api: Api):
    assert (await embed(api, model="nobody")).json()["error"]["code"] == "model_not_found"


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (QueueFullError("Full.", 3.0), "server_is_overloaded"),
        (EngineDownError("Down."), "engine_unavailable"),
    ],
)
async def test_a_refusing_engine_is_a_503(api: Api, failure: Exception, code: str):
    api.engine.failure = failure
    response = await embed(api)

    assert (response.status_code, response.json()["error"]["code"]) == (503, code)
    assert response.headers["Retry-After"]


async def test_a_model_that_cannot_be_loaded_is_a_503_that_says_why(api: Api):
    api.registry.failure = ModelLoadFailedError("It needs 9.00 GiB, and 2.00 GiB can be had.", 20.0)
    response = await embed(api)

    assert (response.status_code, response.headers["Retry-After"]) == (503, "20")
    assert response.json()["error"]["code"] == "model_load_failed"
    assert "9.00 GiB" in response.json()["error"]["message"]


async def test_a_text_that_fails_fails_the_request_and_stops_the_others(api: Api):
    def script(request):
        return [FailedEvent(request.index, "out_of_memory", "Too much.", Usage(), Timings())]

    api.engine.embedding_script = script
    response = await embed(api, input=["a", "b"])

    assert (response.status_code, response.json()["error"]["code"]) == (503, "out_of_memory")
    assert all(stream.num_closes for stream in api.engine.streams)


async def test_a_request_that_takes_too_long_is_a_504(api: Api, settings: Any):
    settings.MILLM_REQUEST_TIMEOUT = 0.05
    api.engine.embedding_script = lambda request: []
    response = await embed(api)

    assert (response.status_code, response.json()["error"]["code"]) == (504, "request_timeout")
    assert api.engine.streams[0].num_closes == 1


async def test_the_log_has_one_row_with_the_counts(api: Api):
    await embed(api, input=["ab", "cde"], dimensions=2)
    entry = api.log.only

    assert (entry.endpoint, entry.model, entry.status) == ("/v1/embeddings", "vectors", 200)
    assert (entry.prompt_tokens, entry.completion_tokens) == (5, 0)
    assert entry.prompt == ["ab", "cde"]
    assert entry.parameters == {"dimensions": 2}
