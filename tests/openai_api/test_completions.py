"""Text completions: prompts of all forms, echo, logprobs, best_of, streams."""

from __future__ import annotations

import json
from typing import Any

import pytest
from openai.types import Completion
from pydantic import TypeAdapter

from inference.client import PromptLogprobsEvent, TokenLogprob, TokensEvent
from inference.text.fill_in_middle import FillTokens
from tests.openai_api.conftest import Api, chunks_of
from tests.openai_api.fakes import BOS, answering, finished, tokens_of

COMPLETION = TypeAdapter(Completion)


def echoing(request):
    """As the engine does: the prompt's logprobs first, where they are asked for."""
    events: list[Any] = []
    if request.sampling.prompt_logprobs is not None:
        _, *rest = request.prompt_token_ids
        events.append(PromptLogprobsEvent(request.index, (None, *(TokenLogprob(t, -1.0, ((t, -1.0),)) for t in rest))))
    tokens = tokens_of(request, "yes")[: request.sampling.max_tokens]
    return [*events, *tokens, finished(request, len(tokens), "length")]


async def test_completion_has_the_contracts_body(api: Api):
    response = await api.complete()
    body = response.json()
    assert body["id"].startswith("cmpl-")
    assert body["object"] == "text_completion"
    assert body["choices"] == [{"index": 0, "text": "Hello sea", "logprobs": None, "finish_reason": "stop"}]
    assert body["usage"]["prompt_tokens"] == 2
    assert COMPLETION.validate_json(response.content, strict=True).choices[0].text == "Hello sea"


async def test_the_fingerprint_tells_whether_results_depend_on_the_batch(api: Api):
    found = []
    for is_invariant in (False, True):
        api.registry.batch_invariant = is_invariant
        found += [(await send()).json()["system_fingerprint"] for send in (api.complete, api.chat)]
        found += [chunk["system_fingerprint"] for chunk in (await chunks_of(await api.chat(stream=True)))[:1]]
    assert len(set(found[:3])) == len(set(found[3:])) == 1
    assert found[3] == f"{found[0]}_batch_invariant"


async def test_a_completion_without_max_tokens_has_the_server_s_default(api: Api, settings: Any):
    """OpenAI's default is 16 tokens; the page says how this server differs."""
    settings.MILLM_MAX_TOKENS_DEFAULT = 40
    await api.complete()
    await api.complete(max_tokens=16)
    assert [request.sampling.max_tokens for request in api.engine.requests] == [40, 16]


@pytest.mark.parametrize("prompt", ["", [""], ["a", ""]])
async def test_an_empty_prompt_is_continued_where_texts_begin_with_a_token(api: Api, prompt: Any):
    text = api.registry.text
    text.encode = lambda given, **options: [BOS, *given.encode()]  # type: ignore[method-assign]
    assert (await api.complete(prompt=prompt)).status_code == 200
    assert api.engine.requests[-1].prompt_token_ids == (BOS,)


@pytest.mark.parametrize(
    ("prompt", "ids"),
    [
        ("ab", [(97, 98)]),
        (["ab", "c"], [(97, 98), (99,)]),
        ([97, 98], [(97, 98)]),
        ([[97, 98], [99]], [(97, 98), (99,)]),
    ],
)
async def test_prompts_of_all_forms(api: Api, prompt: Any, ids: list[tuple[int, ...]]):
    body = (await api.complete(prompt=prompt)).json()
    assert [request.prompt_token_ids for request in api.engine.requests] == ids
    assert [choice["index"] for choice in body["choices"]] == list(range(len(ids)))
    assert body["usage"]["prompt_tokens"] == sum(len(one) for one in ids)


async def test_choices_of_several_prompts(api: Api):
    api.engine.script = lambda request: [
        *tokens_of(request, f"{request.index}"),
        finished(request, 1),
    ]
    body = (await api.complete(prompt=["a", "b"], n=2)).json()
    assert [(choice["index"], choice["text"]) for choice in body["choices"]] == [(i, str(i)) for i in range(4)]
    assert [request.prompt_token_ids for request in api.engine.requests] == [(97,), (97,), (98,), (98,)]
    assert body["usage"]["prompt_tokens"] == 2


async def test_many_prompts_go_to_the_engine_in_waves(api: Api, settings):
    settings.MILLM_MAX_BATCH_SIZE = 4
    body = (await api.complete(prompt=[str(number) for number in range(10)])).json()
    assert len(body["choices"]) == 10
    assert len(api.engine.streams) == 3


async def test_logprobs_have_the_legacy_format(api: Api):
    api.engine.script = answering("a é")
    response = await api.complete(logprobs=2)
    logprobs = response.json()["choices"][0]["logprobs"]
    assert logprobs["tokens"] == ["a", " ", "bytes:\\xc3", "bytes:\\xa9"]
    assert logprobs["token_logprobs"] == [-0.25] * 4
    assert logprobs["text_offset"] == [0, 1, 2, 2]
    assert logprobs["top_logprobs"][0] == {"\0": -0.5, "\x01": -1.5, "a": -0.25}
    COMPLETION.validate_json(response.content, strict=True)


async def test_special_tokens_are_no_part_of_the_text(api: Api):
    api.engine.script = echoing
    body = (await api.complete(prompt=[[BOS, 97, 98]], echo=True, logprobs=0, max_tokens=0)).json()
    assert body["choices"][0]["text"] == "ab"
    assert body["choices"][0]["logprobs"]["tokens"] == ["<s>", "a", "b"]
    assert body["choices"][0]["logprobs"]["text_offset"] == [0, 0, 1]


async def test_logprobs_of_zero_have_no_top_ones(api: Api):
    logprobs = (await api.complete(logprobs=0)).json()["choices"][0]["logprobs"]
    assert logprobs["top_logprobs"] is None
    assert len(logprobs["tokens"]) == 9


async def test_echo_repeats_the_prompt_as_it_was_sent(api: Api):
    body = (await api.complete(prompt=["ab ", "c"], echo=True)).json()
    assert [choice["text"] for choice in body["choices"]] == ["ab Hello sea", "cHello sea"]
    assert body["usage"]["completion_tokens"] == 18
    assert (await api.complete(prompt=[99], echo=True)).json()["choices"][0]["text"] == "cHello sea"


async def test_echo_with_logprobs_and_no_tokens_scores_the_prompt(api: Api):
    """What lm-evaluation-harness asks for."""
    api.engine.script = echoing
    body = (await api.complete(prompt=[[97, 98, 99]], echo=True, logprobs=1, max_tokens=0)).json()
    (choice,) = body["choices"]
    assert choice["text"] == "abc"
    assert choice["finish_reason"] == "length"
    assert choice["logprobs"] == {
        "tokens": ["a", "b", "c"],
        "token_logprobs": [None, -1.0, -1.0],
        "top_logprobs": [None, {"b": -1.0}, {"c": -1.0}],
        "text_offset": [0, 1, 2],
    }
    assert api.engine.requests[0].sampling.max_tokens == 0
    assert api.engine.requests[0].sampling.prompt_logprobs == 1
    assert body["usage"]["completion_tokens"] == 0


async def test_echo_with_logprobs_joins_prompt_and_completion(api: Api):
    api.engine.script = echoing
    choice = (await api.complete(prompt="ab", echo=True, logprobs=1, max_tokens=1)).json()["choices"][0]
    assert choice["text"] == "aby"
    assert choice["logprobs"]["tokens"] == ["a", "b", "y"]
    assert choice["logprobs"]["text_offset"] == [0, 1, 2]


def ranked(request):
    """Candidate number i has the mean logprob -(i - 1)**2: the second is the best."""
    token = TokenLogprob(65, -float((request.index % 3 - 1) ** 2))
    return [TokensEvent(request.index, (65,), str(request.index), (token,)), finished(request, 1)]


async def test_best_of_keeps_the_likeliest(api: Api):
    api.engine.script = ranked
    body = (await api.complete(prompt=["a", "b"], best_of=3, n=1)).json()
    assert [(choice["index"], choice["text"]) for choice in body["choices"]] == [(0, "1"), (1, "4")]
    assert all(choice["logprobs"] is None for choice in body["choices"])
    assert body["usage"]["completion_tokens"] == 6, "all candidates were generated"


async def test_best_of_with_logprobs_and_echo(api: Api):
    api.engine.script = ranked
    choice = (await api.complete(prompt="a", best_of=3, echo=True)).json()["choices"][0]
    assert choice["text"] == "a1"


async def test_streams_interleave_choices_by_index(api: Api):
    api.engine.script = answering("ab")
    response = await api.complete(prompt=["x", "y"], stream=True, stream_options={"include_usage": True})
    *chunks, usage, done = await chunks_of(response)
    assert done == "[DONE]"
    assert [(chunk["choices"][0]["index"], chunk["choices"][0]["text"]) for chunk in chunks] == [
        (0, "a"),
        (1, "a"),
        (0, "b"),
        (1, "b"),
        (0, ""),
        (1, ""),
    ]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * 4 + ["stop"] * 2
    assert all(chunk["usage"] is None for chunk in chunks)
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 4
    COMPLETION.validate_json(json.dumps(usage), strict=True)
    COMPLETION.validate_json(json.dumps({**chunks[-1], "usage": usage["usage"]}), strict=True)


async def test_a_stream_echoes_first(api: Api):
    chunks = await chunks_of(await api.complete(prompt="ab", echo=True, stream=True))
    assert chunks[0]["choices"][0]["text"] == "ab"


async def test_a_profile_leaves_its_proof(api: Api):
    body = (await api.complete(profile="cats")).json()
    assert body["millm"]["profile"] == "cats@2"
    assert api.engine.requests[0].steering is not None


async def test_the_log_has_all_texts(api: Api):
    await api.complete(prompt=["x", "y"], temperature=0)
    entry = api.log.only
    assert entry.prompt == ["x", "y"]
    assert json.loads(entry.completion) == ["Hello sea", "Hello sea"]
    assert entry.parameters == {"temperature": 0.0}
    assert entry.endpoint == "/v1/completions"


async def test_prompt_logprobs_beside_an_echo_leave_it_alone(api: Api):
    api.engine.script = echoing
    plain = (await api.complete(prompt="ab", prompt_logprobs=1)).json()["choices"][0]
    assert plain["text"] == "yes"
    assert plain["logprobs"] is None
    assert plain["prompt_logprobs"] == [None, {"98": {"logprob": -1.0, "rank": 0, "decoded_token": "b"}}]
    echoed = (await api.complete(prompt="ab", prompt_logprobs=1, echo=True)).json()["choices"][0]
    assert echoed == {**plain, "text": "abyes"}
    scored = (await api.complete(prompt="ab", prompt_logprobs=0, echo=True, logprobs=3, max_tokens=1)).json()
    assert api.engine.requests[-1].sampling.prompt_logprobs == 3
    assert scored["choices"][0]["text"] == "aby"
    assert scored["choices"][0]["logprobs"]["tokens"] == ["a", "b", "y"]


def unequal(request):
    """One candidate is short and unlikely, the other long and likelier by its mean alone."""
    prompt = PromptLogprobsEvent(request.index, (None, TokenLogprob(98, -0.01), TokenLogprob(98, -0.01)))
    values = [-0.6] if request.index == 0 else [-0.5] * 6
    tokens = TokensEvent(
        request.index,
        (65,) * len(values),
        str(request.index) * len(values),
        tuple(TokenLogprob(65, value) for value in values),
    )
    return [prompt, tokens, finished(request, len(values))]


async def test_best_of_ranks_completions_whatever_the_echoed_prompt_is(api: Api):
    api.engine.script = unequal
    body = (await api.complete(prompt="abb", best_of=2, n=1, echo=True, logprobs=0)).json()
    assert body["choices"][0]["text"] == "abb111111"


async def test_special_tokens_that_are_not_skipped_have_places(api: Api):
    api.engine.script = echoing
    choice = (await api.complete(prompt="ab", echo=True, logprobs=0, skip_special_tokens=False)).json()["choices"][0]
    assert choice["logprobs"]["text_offset"] == [0, 1, 2, 3, 4]


FILL = FillTokens(prefix=1, suffix=2, middle=3, is_suffix_first=False, stop_ids=frozenset({1, 2, 3, 4}))


@pytest.fixture
def filling(api: Api) -> Api:
    """The model's tokenizer has tokens for fill-in-the-middle."""
    api.registry.text.fill_tokens = FILL
    return api


async def test_a_suffix_makes_a_prompt_with_a_hole(filling: Api):
    response = await filling.complete(prompt=["ab", ""], suffix="yz", stop_token_ids=[7, 2])
    assert [choice["text"] for choice in response.json()["choices"]] == ["Hello sea", "Hello sea"]
    sent = filling.engine.requests
    assert sent[0].prompt_token_ids == (BOS, 1, *b"ab", 2, *b"yz", 3)
    assert sent[1].prompt_token_ids == (BOS, 1, 2, *b"yz", 3)
    assert sent[0].sampling.stop_token_ids == (7, 2, 1, 3, 4)
    assert response.json()["usage"]["prompt_tokens"] == 8 + 6
    assert filling.log.only.parameters["suffix"] == "yz"


async def test_a_suffix_streams(filling: Api):
    *chunks, done = await chunks_of(await filling.complete(prompt="ab", suffix="yz", stream=True))
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks if chunk["choices"]) == "Hello sea"
    assert done == "[DONE]"


@pytest.mark.parametrize("suffix", [None, ""])
async def test_no_suffix_is_no_hole(filling: Api, suffix: str | None):
    assert (await filling.complete(prompt="ab", suffix=suffix)).status_code == 200
    assert filling.engine.requests[0].prompt_token_ids == tuple(b"ab")
    assert filling.engine.requests[0].sampling.stop_token_ids == ()


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"suffix": 3}, "suffix", "invalid_type"),
        ({"suffix": ["yz"]}, "suffix", "invalid_type"),
        ({"suffix": "yz", "echo": True}, "echo", "invalid_value"),
        ({"suffix": "yz", "prompt": [1, 2]}, "prompt", "invalid_value"),
        ({"suffix": "y" * 120}, "max_tokens", "context_length_exceeded"),
        ({"suffix": "y" * 200_000}, "prompt", "context_length_exceeded"),
    ],
    ids=lambda value: str(value)[:40],
)
async def test_bad_suffixes_are_refused(filling: Api, fields: dict[str, Any], param: str, code: str):
    response = await filling.complete(**fields)
    error = response.json()["error"]
    assert (response.status_code, error["param"], error["code"]) == (400, param, code), error
    assert len(response.content) < 1_000
    assert filling.engine.requests == []
    assert filling.log.only.status == 400


async def test_a_model_without_the_tokens_refuses_a_suffix_by_name(api: Api):
    response = await api.complete(suffix="yz")
    error = response.json()["error"]
    assert (response.status_code, error["param"], error["code"]) == (400, "suffix", "unsupported_parameter")
    assert "`tiny`" in error["message"]
    assert "fill-in-the-middle" in error["message"]
