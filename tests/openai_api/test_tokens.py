"""/tokenize, /detokenize, /tokenizer_info: over fakes for the surface, over real tokenizers for the ids."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from inference.text.model_text import ModelText
from openai_api.schemas.tokens import MAX_TOKEN_IDS
from tests.inference.tokenizers import llama_tokenizer
from tests.openai_api.conftest import Api
from tests.openai_api.fakes import BOS, TURN, VOCAB_SIZE, FakeText, record

TOOL = {"type": "function", "function": {"name": "weather"}}


async def tokenize(api: Api, path: str = "/v1/tokenize", **fields: Any) -> Any:
    return await api.post(path, {"model": "tiny", **fields})


@pytest.mark.parametrize("path", ["/v1/tokenize", "/tokenize", "/tokenize/"])
async def test_a_prompt(api: Api, path: str):
    body = (await tokenize(api, path, prompt="hé")).json()

    assert body == {"count": 3, "max_model_len": 100, "tokens": [104, 195, 169], "token_strs": None}
    assert (api.log.only.endpoint, api.log.only.model, api.log.only.prompt) == ("/v1/tokenize", "tiny", "hé")


async def test_a_chat_is_rendered_by_the_template(api: Api):
    messages = [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]

    assert (await tokenize(api, messages=messages)).json()["tokens"] == [BOS, 104, 105, TURN]
    assert api.registry.text.rendered == [{"role": "user", "content": "hi"}]


async def test_token_strings(api: Api):
    messages = [{"role": "user", "content": "hé"}]
    body = (await tokenize(api, messages=messages, return_token_strs=True)).json()

    assert body["token_strs"] == ["<s>", "h", "bytes:\\xc3", "bytes:\\xa9", "</s>"]


async def test_an_empty_prompt_has_no_tokens(api: Api):
    assert (await tokenize(api, prompt="")).json()["count"] == 0


async def test_models_of_every_kind(api: Api):
    assert (await tokenize(api, model="vectors", prompt="a")).json()["tokens"] == [97]


async def test_long_texts_leave_the_event_loop_alone(api: Api):
    await tokenize(api, prompt="x" * 50_000)
    await tokenize(api, prompt="x")

    first, second = api.registry.text.threads
    assert (first != threading.get_ident(), second == threading.get_ident()) == (True, True)


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({}, "prompt", "invalid_prompt"),
        ({"prompt": None, "messages": None}, "prompt", "invalid_prompt"),
        ({"prompt": "a", "messages": [{"role": "user", "content": "a"}]}, "prompt", "invalid_prompt"),
        ({"prompt": ["a"]}, "prompt", "invalid_type"),
        ({"prompt": 5}, "prompt", "invalid_type"),
        ({"prompt": "x" * 200_000}, "prompt", "context_length_exceeded"),
        ({"messages": []}, "messages", "invalid_value"),
        ({"messages": [{"role": "robot", "content": "a"}]}, "messages[0]", "invalid_value"),
        ({"messages": [{"role": "assistant", "content": "a"}]}, "messages", "invalid_value"),
        ({"messages": [{"role": "user", "content": "a"}], "add_special_tokens": True}, "add_special_tokens", None),
        ({"prompt": "a", "add_generation_prompt": False}, "add_generation_prompt", None),
        ({"prompt": "a", "chat_template_kwargs": {"thinking": True}}, "chat_template_kwargs", None),
        ({"prompt": "a", "chat_template": "x"}, "chat_template", "unsupported_parameter"),
        ({"prompt": "a", "tools": [TOOL]}, "tools", None),
        (
            {"messages": [{"role": "user", "content": "a"}], "tools": [{}]},
            "tools[0].type",
            "missing_required_parameter",
        ),
        (
            {"messages": [{"role": "user", "content": "a"}], "continue_final_message": True},
            "continue_final_message",
            None,
        ),
        ({"prompt": "a", "return_token_strs": "yes"}, "return_token_strs", "invalid_type"),
        ({"prompt": "a", "model": 5}, "model", "invalid_type"),
    ],
)
async def test_bad_requests_are_named(api: Api, fields: dict[str, Any], param: str, code: str | None):
    response = await tokenize(api, **fields)
    error = response.json()["error"]

    assert (response.status_code, error["param"], error["code"]) == (400, param, code or "invalid_value")
    assert api.log.only.status == 400


async def test_lone_surrogates_are_no_unicode(api: Api):
    response = await api.post("/tokenize", b'{"model": "tiny", "prompt": "\\ud800"}')

    assert (response.status_code, response.json()["error"]["code"]) == (400, "invalid_unicode")


async def test_without_a_name_there_must_be_one_model_or_a_default(api: Api):
    refused = await api.post("/tokenize", {"prompt": "a"})
    api.registry._records = (record("other"), record("chosen", is_default=True))
    await api.post("/tokenize", {"prompt": "a"})
    api.registry._records = (record("only"),)
    await api.post("/tokenize", {"prompt": "a"})

    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "model")
    assert [entry.model for entry in api.log.entries] == ["", "chosen", "only"]


async def test_keys_hold_here_too(api: Api):
    headers = api.keys.add("key", allowed_models=frozenset({"vectors"}))
    response = await api.post("/tokenize", {"model": "tiny", "prompt": "a"}, **headers)
    wrong = await api.post("/tokenize", {"model": "tiny", "prompt": "a"}, Authorization="Bearer wrong-key")

    assert (response.status_code, response.json()["error"]["code"]) == (403, "model_not_allowed")
    assert wrong.status_code == 401


@pytest.mark.parametrize("path", ["/v1/detokenize", "/detokenize"])
async def test_detokenize(api: Api, path: str):
    response = await api.post(path, {"model": "tiny", "tokens": [104, 195, 169]})

    assert response.json() == {"prompt": "hé"}
    assert api.log.only.prompt == [104, 195, 169]


@pytest.mark.parametrize(
    "tokens", [None, "a", [1.5], [True], ["1"], [-1], [VOCAB_SIZE], [2**40], [[1]], [1] * (MAX_TOKEN_IDS + 1)]
)
async def test_bad_tokens(api: Api, tokens: Any):
    response = await api.post("/detokenize", {"model": "tiny", "tokens": tokens})

    assert (response.status_code, response.json()["error"]["param"].split("[")[0]) == (400, "tokens")


@pytest.mark.parametrize("path", ["/v1/tokenizer_info", "/tokenizer_info"])
async def test_info(api: Api, path: str):
    body = (await api.client.get(path, {"model": "small"})).json()

    assert body == {
        "model": "tiny",
        "tokenizer_class": "Bytes",
        "vocab_size": VOCAB_SIZE,
        "model_max_length": 100,
        "bos_token": "<s>",
        "bos_token_id": BOS,
        "eos_token": "</s>",
        "eos_token_id": TURN,
        "chat_template": "{{ messages }}",
    }
    assert (await api.client.get(path, {"model": "nobody"})).status_code == 404
    assert (await api.client.post(path)).status_code == 405


@dataclass
class Real:
    """The surface over a real tokenizer, and the same one as transformers has it."""

    api: Api
    tokenizer: Any


@pytest.fixture
def real(api: Api, tmp_path: Path) -> Real:
    tokenizer = llama_tokenizer()
    tokenizer.save_pretrained(tmp_path)
    api.registry.text = ModelText(tokenizer, max_model_len=100)  # type: ignore[assignment]
    return Real(api, AutoTokenizer.from_pretrained(tmp_path))


@pytest.mark.parametrize("adds", [True, False])
@pytest.mark.parametrize("text", ["The cat sat.", "", " 你好 😀", "a\0b"])
async def test_ids_are_the_tokenizer_s_own(real: Real, text: str, adds: bool):
    body = (await tokenize(real.api, prompt=text, add_special_tokens=adds)).json()

    assert body["tokens"] == real.tokenizer(text, add_special_tokens=adds).input_ids
    assert body["count"] == len(body["tokens"])


@pytest.mark.parametrize("adds", [True, False])
async def test_text_that_spells_a_special_token_stays_text(real: Real, adds: bool):
    end = real.tokenizer.eos_token
    ids = (await tokenize(real.api, prompt=f"a{end}", add_special_tokens=adds)).json()["tokens"]
    back = await real.api.post("/detokenize", {"model": "tiny", "tokens": ids})

    assert real.tokenizer.eos_token_id not in ids
    assert back.json()["prompt"].endswith(f"a{end}")


@pytest.mark.parametrize("begins", [True, False])
async def test_a_chat_is_transformers_own(real: Real, begins: bool):
    chat = [{"role": "user", "content": "The cat"}]
    wanted = real.tokenizer.apply_chat_template(chat, add_generation_prompt=begins, return_dict=False)
    body = (await tokenize(real.api, messages=chat, add_generation_prompt=begins)).json()

    assert body["tokens"] == wanted


async def test_info_is_the_tokenizer_s_own(real: Real):
    body = (await real.api.client.get("/tokenizer_info", {"model": "tiny"})).json()

    assert body["chat_template"] == real.tokenizer.chat_template
    assert body["vocab_size"] == len(real.tokenizer)
    for name, token in real.tokenizer.special_tokens_map.items():
        assert (body[name], body[f"{name}_id"]) == (token, real.tokenizer.convert_tokens_to_ids(token))


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=40))
def test_texts_come_back(text: str):
    model = ModelText(llama_tokenizer(), max_model_len=1_000)

    assert model.decode(model.encode(text, adds_special=False)) == text


def test_the_fake_has_what_the_real_one_has():
    assert type(FakeText.tokenizer) is type(ModelText(llama_tokenizer(), max_model_len=9).tokenizer)
