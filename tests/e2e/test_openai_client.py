"""The official openai client against a server process with the demo."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2 as httpx
import openai
import pytest
from openai import OpenAI
from openai.types.chat import ChatCompletion, ChatCompletionChunk

STORY = [{"role": "user", "content": "Tell me a story."}]
WORDS = json.loads(Path("steering/demo/artifacts/words.json").read_text())


def story(client: OpenAI, *, profile: str | None = None, **fields) -> ChatCompletion:
    body = {"model": "demo", "messages": STORY, "max_tokens": 60, "seed": 1, **fields}
    return client.chat.completions.create(**body, extra_body={"profile": profile})


def share(texts: list[str], words: list[str]) -> float:
    """Share of words of ``texts`` that are in the list."""
    spoken = [w.strip('.,!?";:').lower() for t in texts for w in t.split()]
    return sum(w in set(words) for w in spoken) / max(1, len(spoken))


def test_the_demo_is_listed(client):
    story(client, max_tokens=1)  # loaded now, whoever came first
    models = {m.id: m for m in client.models.list()}
    assert models["demo"].to_dict()["state"] == "loaded"
    assert models["demo"].to_dict()["max_model_len"] >= 512
    assert client.models.retrieve("demo").id == "demo"


def test_a_story_streams(client):
    stream = client.chat.completions.create(
        model="demo", messages=STORY, max_tokens=40, stream=True, stream_options={"include_usage": True}
    )
    chunks = [ChatCompletionChunk.model_validate(c.to_dict(), strict=True) for c in stream]
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert len(text.split()) > 10
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] in {"stop", "length"}
    assert chunks[-1].usage.completion_tokens <= 40
    assert chunks[-1].usage.prompt_tokens > 3


def test_profiles_change_the_story_visibly(client):
    def texts(profile: str | None) -> list[str]:
        return [story(client, profile=profile, seed=seed).choices[0].message.content or "" for seed in range(8)]

    plain, gloomy, joyful = texts(None), texts("gloomy"), texts("joyful")
    assert share(gloomy, WORDS["gloomy"]) > 2 * share(plain, WORDS["gloomy"])
    assert share(joyful, WORDS["joyful"]) > 2 * share(plain, WORDS["joyful"])


@pytest.mark.parametrize(
    "fields",
    [{"extra_body": {"profile": "gloomy"}}, {"model": "demo:gloomy"}, {"extra_headers": {"x-millm-profile": "gloomy"}}],
)
def test_three_ways_to_name_a_profile(client, fields):
    body = {"model": "demo", "messages": STORY, "max_tokens": 20, "temperature": 0, **fields}
    raw = client.chat.completions.with_raw_response.create(**body)
    answer = raw.parse()
    assert raw.headers["x-millm-profile"] == "gloomy@1"
    receipt = answer.to_dict()["millm"]
    assert receipt["profile"] == "gloomy@1"
    assert receipt["fingerprint"] == raw.headers["x-millm-steering"]
    assert receipt["steering"]["applied"] == receipt["steering"]["expected"] > 0
    assert (
        answer.choices[0].message.content
        == story(client, profile="gloomy@1", max_tokens=20, temperature=0).choices[0].message.content
    )


def test_a_seed_repeats_and_choices_differ(client):
    first, second = (story(client, n=3, seed=11) for _ in range(2))
    assert [c.message.content for c in first.choices] == [c.message.content for c in second.choices]
    assert len({c.message.content for c in first.choices}) > 1


def test_the_client_s_stream_helper_understands_us(client):
    with client.chat.completions.stream(model="demo", messages=STORY, max_tokens=500, n=2) as stream:
        for _ in stream:
            pass
        final = stream.get_final_completion()
    assert [c.message.role for c in final.choices] == ["assistant", "assistant"]
    assert all(c.message.content for c in final.choices)


def test_logprobs(client):
    answer = story(client, logprobs=True, top_logprobs=2, temperature=0, max_tokens=5)
    content = answer.choices[0].logprobs.content
    assert "".join(t.token for t in content) == answer.choices[0].message.content
    assert all(t.top_logprobs[0].logprob == t.logprob for t in content)  # of two that are as likely, either


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_ends_the_completion_before_it(exact_client, stream):
    asked = {"model": "demo", "prompt": "Once upon a time", "max_tokens": 24, "temperature": 0}
    text = exact_client.completions.create(**asked).choices[0].text
    stop = text[len(text) // 2 :][:5]  # wherever tokens begin and end
    answer = exact_client.completions.create(**asked, stop=[stop], stream=stream)
    choices = [chunk.choices[0] for chunk in answer] if stream else answer.choices
    assert "".join(choice.text for choice in choices) == text[: text.index(stop)]
    assert choices[-1].finish_reason == "stop"


def test_completions_echo_and_score(client):
    answer = client.completions.create(model="demo", prompt="Once upon a time", echo=True, max_tokens=0, logprobs=1)
    choice = answer.choices[0]
    assert choice.text == "Once upon a time"
    assert choice.logprobs.token_logprobs[0] is None
    assert all(p <= 0 for p in choice.logprobs.token_logprobs[1:])


def test_an_end_that_is_the_only_new_token_is_scored_too(client, live_site):
    """Evaluation harnesses take the last entry for the new token's, whatever it is."""
    end = httpx.get(f"{live_site.url}/tokenizer_info", timeout=60).json()["eos_token_id"]
    prompt = httpx.post(f"{live_site.url}/tokenize", json={"prompt": "Once upon a time"}, timeout=60).json()["tokens"]
    answer = client.completions.create(
        model="demo", prompt=prompt, echo=True, max_tokens=1, logprobs=1, temperature=0, logit_bias={str(end): 100}
    )
    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].text == "Once upon a time"
    assert len(answer.choices[0].logprobs.token_logprobs) == len(prompt) + 1


BAD_REQUESTS = [
    ({"extra_body": {"profile": "nobody"}}, 404, "profile_not_found", "profile"),
    ({"messages": [{"role": "user", "content": "word " * 5000}]}, 400, "context_length_exceeded", "messages"),
    ({"temperature": 9}, 400, None, "temperature"),
    ({"model": "other"}, 404, "model_not_found", "model"),
    ({"extra_body": {"steering": {"features": []}}}, 400, None, "steering.features"),
]


@pytest.mark.parametrize(("fields", "status", "code", "param"), BAD_REQUESTS)
def test_bad_requests_get_the_contract_s_error(client, fields, status, code, param):
    with pytest.raises(openai.APIStatusError) as error:
        client.chat.completions.create(**{"model": "demo", "messages": STORY, **fields})
    assert error.value.status_code == status
    assert error.value.param == param
    if code is not None:
        assert error.value.code == code
    assert error.value.response.headers["x-request-id"]
    assert story(client, max_tokens=2).choices


def test_a_wrong_key_is_refused(live_site):
    wrong = OpenAI(base_url=live_site.api_url, api_key="sk-millm-wrong", max_retries=0)
    with pytest.raises(openai.AuthenticationError) as error:
        wrong.chat.completions.create(model="demo", messages=STORY)
    assert error.value.code == "invalid_api_key"


def engine_load(live_site) -> dict:
    return httpx.get(f"{live_site.url}/health/ready").json()["load"]


def wait_for(condition, timeout_s: float = 10) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not become true in time"
        time.sleep(0.02)


def test_a_client_that_leaves_frees_its_slot(client, live_site):
    wait_for(lambda: engine_load(live_site)["running"] == 0)
    stream = client.chat.completions.create(
        model="demo", messages=STORY, max_tokens=900, stream=True, extra_body={"ignore_eos": True}
    )
    for _, _ in zip(range(3), stream, strict=False):
        pass
    wait_for(lambda: engine_load(live_site)["running"] == 1)
    stream.close()
    left_at = engine_load(live_site)["steps"]
    wait_for(lambda: engine_load(live_site)["running"] == 0)
    assert engine_load(live_site)["steps"] - left_at < 200


FOUR = ["joyful", "gloomy", "cats", "sea"]


def test_sixteen_streams_with_mixed_profiles_equal_each_alone(float32_url):
    client = OpenAI(base_url=float32_url, api_key="none", max_retries=0)
    prompts = [
        "Tell me a story.",
        "Where does the cat live?",
        "Write a story about a fox.",
        "What is the weather like?",
    ]
    cases = [
        (p, profile) for p in prompts for profile in (FOUR[prompts.index(p)], FOUR[prompts.index(p) - 1], None, FOUR[0])
    ]

    def run(case: tuple[str, str | None]) -> tuple[str, str]:
        prompt, profile = case
        stream = client.chat.completions.create(
            model="demo",
            messages=[{"role": "user", "content": prompt}],
            temperature=0,
            max_tokens=48,
            stream=True,
            extra_body={"profile": profile, "ignore_eos": True},
        )
        chunks = [c for c in stream if c.choices]
        return "".join(c.choices[0].delta.content or "" for c in chunks), chunks[-1].choices[0].finish_reason

    alone = [run(case) for case in cases]
    with ThreadPoolExecutor(len(cases)) as pool:
        together = list(pool.map(run, cases))
    assert together == alone
    assert len(cases) == 16
    assert {reason for _, reason in together} == {"length"}
