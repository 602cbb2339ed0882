"""Chat completions without streaming: the body, and what reaches the engine."""

from __future__ import annotations

import math
from typing import Any

import pytest
from openai.types.chat import ChatCompletion
from pydantic import TypeAdapter

from core.errors import MillmError
from inference.client import FailedEvent, PromptLogprobsEvent, Timings, TokenLogprob, Usage
from openai_api.request_id import request_id_of
from openai_api.schemas.base import RequestSchema
from openai_api.schemas.chat import ChatRequest
from openai_api.schemas.completions import CompletionRequest
from openai_api.schemas.vector_stores import StoreChange
from tests.openai_api.conftest import Api
from tests.openai_api.fakes import BOS, TURN, answering, finished, tokens_of


def strict(body: bytes) -> ChatCompletion:
    return TypeAdapter(ChatCompletion).validate_json(body, strict=True)


@pytest.mark.parametrize(
    ("schema", "body", "expected"),
    [
        (CompletionRequest, {"model": "tiny", "prompt": [[1.0, 2], [3.0]]}, {"prompt": [[1, 2], [3]]}),
        (CompletionRequest, {"model": "tiny", "prompt": [1.0, 2]}, {"prompt": [[1, 2]]}),
        (ChatRequest, {"stop_token_ids": [5.0]}, {"stop_token_ids": [5]}),
        (StoreChange, {"expires_after": {"anchor": "last_active_at", "days": 7.0}}, {"days": 7}),
    ],
)
def test_nested_integers_may_be_written_as_floats(schema: type[RequestSchema], body: dict[str, Any], expected: Any):
    start = {"model": "tiny", "messages": [{"role": "user", "content": "a"}]} if schema is ChatRequest else {}
    dumped = schema.parse({**start, **body}).model_dump()
    found = dumped["expires_after"] if "expires_after" in body else dumped
    assert {name: found[name] for name in expected} == expected
    assert ".0" not in str({name: found[name] for name in expected})


def test_fractions_are_no_integers_wherever_they_are():
    with pytest.raises(MillmError, match="prompt"):
        CompletionRequest.parse({"model": "tiny", "prompt": [[1.5]]})


async def test_integers_may_be_written_as_floats(api: Api):
    """As languages with a single type of numbers write them."""
    response = await api.chat(n=2.0, max_tokens=16.0, seed=-3.0, top_k=5.0, min_tokens=1.0, stop=None)
    assert response.status_code == 200, response.content
    assert len(response.json()["choices"]) == 2
    sampling = api.engine.requests[0].sampling
    assert (sampling.max_tokens, sampling.top_k, sampling.min_tokens) == (16, 5, 1)
    assert all(type(value) is int for value in (sampling.max_tokens, sampling.top_k, sampling.seed))
    assert api.log.only.parameters["n"] == 2


async def test_128_choices(api: Api):
    choices = (await api.chat(n=128)).json()["choices"]
    assert [choice["index"] for choice in choices] == list(range(128))


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("profil", "profile"),
        ("profiles", "profile"),
        ("Profile", "profile"),
        ("stering", "steering"),
        ("steering_intensty", "steering_intensity"),
        ("return_activation", "return_activations"),
    ],
)
async def test_near_misses_of_our_own_fields_are_refused(api: Api, name: str, meant: str):
    for response in (await api.chat(**{name: "gloomy"}), await api.complete(**{name: "gloomy"})):
        assert response.status_code == 400
        error = response.json()["error"]
        assert (error["code"], error["param"]) == ("unknown_parameter", name)
        assert f"Did you mean `{meant}`?" in error["message"]
    assert api.engine.requests == []


@pytest.mark.parametrize(
    "name", ["file", "prefix", "profiling_level", "stream_id", "activations", "provider", "x" * 5_000]
)
async def test_other_unknown_fields_are_ignored_by_name(api: Api, name: str):
    response = await api.chat(**{name: "x"})
    assert response.status_code == 200
    assert name[:64] in response.headers["x-millm-ignored-fields"]


@pytest.mark.parametrize("effort", ["xhigh", "max"])
async def test_the_greatest_efforts_reach_the_template(api: Api, effort: str):
    api.registry.text.variables = frozenset({"reasoning_effort"})
    assert (await api.chat(reasoning_effort=effort)).status_code == 200
    assert api.registry.text.kwargs == {"reasoning_effort": effort}


async def test_completion_has_the_contracts_body(api: Api):
    response = await api.chat()
    assert response.status_code == 200
    body = response.json()
    assert body["id"].startswith("chatcmpl-")
    assert body["model"] == "tiny"
    assert body["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Hello sea", "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ]
    assert body["usage"] == {
        "prompt_tokens": 4,
        "completion_tokens": 9,
        "total_tokens": 13,
        "prompt_tokens_details": {"cached_tokens": 2},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }
    assert "millm" not in body
    assert strict(response.content).choices[0].message.content == "Hello sea"


async def test_the_answer_s_id_leads_to_its_row_in_the_log(api: Api):
    ids = [(await api.chat()).json()["id"], (await api.complete()).json()["id"]]
    rows = [entry.id.removeprefix("req_") for entry in api.log.entries]
    assert ids == [f"chatcmpl-{rows[0]}", f"cmpl-{rows[1]}"]
    assert [request_id_of(answer) for answer in ids] == [entry.id for entry in api.log.entries]
    named = [(await api.chat({"X-Client-Request-Id": "req_mine"})).json()["id"] for _ in range(2)]
    assert len({*named, "chatcmpl-mine"}) == 3, "clients may repeat their ids, answers never do"


async def test_the_engine_gives_each_choice_of_a_seed_its_own_numbers(api: Api):
    body = (await api.chat(n=3, seed=2**63 - 1)).json()
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2]
    assert [(r.sampling.seed, r.index) for r in api.engine.requests] == [(2**63 - 1, i) for i in range(3)]
    assert body["usage"]["prompt_tokens"] == 4, "a prompt counts once"
    assert body["usage"]["completion_tokens"] == 27


async def test_logprobs_have_openais_format(api: Api):
    api.engine.script = answering("aé")
    response = await api.chat(logprobs=True, top_logprobs=2)
    assert strict(response.content).choices[0].logprobs is not None
    content = response.json()["choices"][0]["logprobs"]["content"]
    assert content[0] == {
        "token": "a",
        "logprob": -0.25,
        "bytes": [97],
        "top_logprobs": [
            {"token": "\0", "logprob": -0.5, "bytes": [0]},
            {"token": "\x01", "logprob": -1.5, "bytes": [1]},
        ],
    }
    assert [token["token"] for token in content[1:]] == ["bytes:\\xc3", "bytes:\\xa9"]


async def test_logprobs_without_top_ones(api: Api):
    response = await api.chat(logprobs=True)
    assert api.engine.requests[0].sampling.logprobs == 0
    assert all(token["top_logprobs"] == [] for token in response.json()["choices"][0]["logprobs"]["content"])


async def test_every_field_reaches_the_engine(api: Api):
    await api.chat(
        temperature=0.7,
        top_p=0.9,
        top_k=-1,
        min_p=0.1,
        presence_penalty=1,
        frequency_penalty=-1.5,
        repetition_penalty=1.1,
        logit_bias={"5": -100, "7": 2.5},
        seed=-1,
        stop="x",
        stop_token_ids=[3],
        ignore_eos=True,
        include_stop_str_in_output=True,
        min_tokens=9,
        bad_words=["ab", " ab", "c"],
        allowed_token_ids=[7, 5],
        typical_p=0.6,
        skip_special_tokens=False,
        max_completion_tokens=9,
    )
    sampling = api.engine.requests[0].sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0.7, 0.9, 0, 0.1)
    assert (sampling.presence_penalty, sampling.frequency_penalty, sampling.repetition_penalty) == (1, -1.5, 1.1)
    assert sampling.logit_bias == ((5, -100.0), (7, 2.5))
    assert sampling.seed == -1, "not the seed of another request"
    assert (sampling.stop, sampling.stop_token_ids, sampling.ignore_eos) == (("x",), (3,), True)
    assert sampling.max_tokens == sampling.min_tokens == 9
    assert sampling.bad_words == ((97, 98), (32, 97, 98), (99,), (32, 99))
    assert (sampling.allowed_token_ids, sampling.typical_p) == ((7, 5), 0.6)
    assert (sampling.include_stop, sampling.skip_special_tokens) == (True, False)


async def test_absent_and_null_fields_take_the_models_defaults(api: Api, settings):
    settings.MILLM_MAX_TOKENS_DEFAULT = 11
    nulls = dict.fromkeys(
        ["temperature", "top_p", "n", "stop", "seed", "logprobs", "logit_bias", "max_tokens", "tools", "stream"]
    )
    assert (await api.chat(**nulls)).status_code == 200
    assert api.engine.requests[0].sampling.temperature == 1.0
    assert api.engine.requests[0].sampling.max_tokens == 11
    await api.chat(model="org/steered", temperature=None)
    assert api.engine.requests[1].sampling.temperature == 0.5
    assert api.engine.requests[1].sampling.max_tokens == 7


async def test_the_default_length_is_what_fits(api: Api):
    await api.chat(messages=[{"role": "user", "content": "x" * 90}])
    assert api.engine.requests[0].sampling.max_tokens == 100 - 92


async def test_messages_of_all_roles_reach_the_template(api: Api):
    call = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": '{"at": "sea"}'}}
    messages = [
        {"role": "developer", "content": "d"},
        {"role": "user", "name": "ann", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "blue"},
        {"role": "function", "name": "look", "content": "blue"},
        {"role": "assistant", "content": None, "refusal": "no"},
    ]
    assert (await api.chat(messages=messages)).status_code == 200
    assert api.registry.text.rendered == [
        {"role": "system", "content": "d"},
        {"role": "user", "content": "a\nb", "name": "ann"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": {"at": "sea"}}}
            ],
        },
        {"role": "tool", "content": "blue", "tool_call_id": "call_1", "name": "look"},
        {"role": "tool", "content": "blue", "name": "look"},
        {"role": "assistant", "content": "no"},
    ]


async def test_arguments_that_are_no_json_stay_text(api: Api):
    call = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{at: sea"}}
    messages = [{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [call]}]
    assert (await api.chat(messages=messages)).status_code == 200
    assert api.registry.text.rendered[1]["tool_calls"][0]["function"]["arguments"] == "{at: sea"


async def test_a_refusal_among_the_parts_is_text(api: Api):
    parts = [{"type": "text", "text": "Well,"}, {"type": "refusal", "refusal": "no."}]
    messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": parts}]
    assert (await api.chat(messages=messages)).status_code == 200
    assert api.registry.text.rendered[1]["content"] == "Well,\nno."


async def test_template_switches_are_passed_on(api: Api):
    await api.chat(chat_template_kwargs={"enable_thinking": False, "thinking": None})
    assert api.registry.text.kwargs == {"enable_thinking": False}


async def test_special_tokens_in_user_text_are_left_to_the_tokenizer(api: Api):
    response = await api.chat(messages=[{"role": "user", "content": "</s><s>"}])
    assert response.status_code == 200
    assert api.engine.requests[0].prompt_token_ids == (BOS, *b"</s><s>", TURN)


async def test_nul_in_text_is_fine(api: Api):
    assert (await api.chat(messages=[{"role": "user", "content": "a\0b"}])).status_code == 200


async def test_fields_without_effect_are_named_in_a_header(api: Api):
    response = await api.chat(
        verbosity="low",
        metadata={"a": "b"},
        reasoning_effort="low",
        service_tier=None,
        unheard_of=1,
        **{"bad\r\nname": 1},
        messages=[{"role": "user", "content": "x", "weight": 1}],
    )
    assert response.status_code == 200
    assert response["x-millm-ignored-fields"] == (
        "verbosity, unheard_of, bad%0D%0Aname, messages[].weight, reasoning_effort"
    )
    assert "x-millm-ignored-fields" not in (await api.chat(user="u")).headers


async def test_fields_that_nobody_knows_can_be_refused(api: Api, settings):
    settings.MILLM_UNKNOWN_FIELDS = "reject"
    assert (await api.chat(verbosity="low")).status_code == 200, "this one is known"
    response = await api.chat(**{"unheard_of" * 30: 1})
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["code"] == "unknown_parameter"
    assert error["param"].startswith("unheard_of")
    assert len(error["param"]) <= 201
    assert (await api.complete(unheard_of=1)).json()["error"]["param"] == "unheard_of"


@pytest.mark.parametrize("alias", ["tiny", "small"])
async def test_aliases_mean_the_same_model(api: Api, alias: str):
    body = (await api.chat(model=alias)).json()
    assert body["model"] == "tiny"
    assert api.engine.requests[0].model == "tiny"


async def test_length_is_reported_as_such(api: Api):
    body = (await api.chat(max_tokens=3)).json()
    assert body["choices"][0]["message"]["content"] == "Hel"
    assert body["choices"][0]["finish_reason"] == "length"


async def test_headers_of_every_response(api: Api):
    response = await api.chat()
    assert response["x-request-id"] == api.log.only.id
    assert response["x-request-id"].startswith("req_")
    assert int(response["openai-processing-ms"]) >= 0
    assert "x-millm-profile" not in response.headers


@pytest.mark.parametrize("sent", ["my-id.1:2", "a" * 48])
async def test_a_sane_client_id_becomes_the_requests_id(api: Api, sent: str):
    response = await api.post("/v1/nothing", {}, **{"X-Client-Request-Id": sent})
    assert response["x-request-id"] == sent == api.log.only.id


@pytest.mark.parametrize("sent", ["a" * 49, "é", "a b", "<b>", "", "-x"])
async def test_other_client_ids_are_not_taken(api: Api, sent: str):
    response = await api.post("/v1/nothing", {}, **{"X-Client-Request-Id": sent})
    assert response["x-request-id"].startswith("req_")


async def test_prompt_logprobs_are_written_as_vllm_does(api: Api):
    api.engine.script = lambda request: [
        PromptLogprobsEvent(request.index, (None, TokenLogprob(97, -3.0, ((98, -0.5), (TURN, -math.inf)), 7))),
        *tokens_of(request, "x"),
        finished(request, 1),
    ]
    body = (await api.chat(prompt_logprobs=2, n=2)).json()
    assert api.engine.requests[0].sampling.prompt_logprobs == 2
    assert body["prompt_logprobs"] == [
        None,
        {
            "98": {"logprob": -0.5, "rank": 1, "decoded_token": "b"},
            str(TURN): {"logprob": -9999.0, "rank": 2, "decoded_token": "</s>"},
            "97": {"logprob": -3.0, "rank": 7, "decoded_token": "a"},
        },
    ]
    api.engine.script = answering("x")
    assert "prompt_logprobs" not in (await api.chat()).json()


async def test_constraints_that_leave_no_token_are_the_requests_fault(api: Api):
    api.engine.script = lambda request: [
        FailedEvent(request.index, "no_token_allowed", "No token is allowed here.", Usage(), Timings())
    ]
    response = await api.chat()
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "no_token_allowed"


async def test_a_generic_template_ends_answers_with_its_stop_strings(api: Api):
    api.registry.text.stop_strings = ("\nUser:",)
    await api.chat(stop=["x"])
    await api.post("/v1/completions", {"model": "tiny", "prompt": "hi", "stop": "x"})
    assert [request.sampling.stop for request in api.engine.requests] == [("x", "\nUser:"), ("x",)]
