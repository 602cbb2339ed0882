"""/v1/decisions on the demo, against the log-probabilities that completions tell of the same tokens."""

from __future__ import annotations

import math
import re
from typing import Any

import httpx2 as httpx
import pytest
from openai import OpenAI
from openai.types import Decision

from tests import live

INPUT = "Mia walked along the beach. The waves were loud, and she was sad."
LABELS = ("the sea", "a forest full of trees")
CHOICE: Any = {
    "type": "choice",
    "name": "where",
    "instructions": "Where does the story happen?",
    "choices": [{"value": label} for label in LABELS],
}
QUESTION = (
    "Where does the story happen?\n\nOptions:\n- the sea\n- a forest full of trees\n\n"
    "Answer with one of them exactly as it is written there, and nothing else."
)


def decide(client: OpenAI, *questions: Any, profile: str | None = None) -> Decision:
    body = client.decisions.create(
        model="demo", input=INPUT, questions=questions or (CHOICE,), extra_body={"profile": profile}
    )
    return Decision.model_validate(body.to_dict(), strict=True)


def tokens(url: str, **fields: Any) -> list[int]:
    return list(httpx.post(f"{url}/tokenize", json={"model": "demo", **fields}, timeout=600).json()["tokens"])


def label_logprob(client: OpenAI, prompt: list[int], label: list[int], profile: str | None) -> float:
    echoed = client.completions.create(
        model="demo",
        prompt=[*prompt, *label],
        echo=True,
        max_tokens=0,
        logprobs=0,
        extra_body={"profile": profile},
    )
    found = echoed.choices[0].logprobs
    assert found is not None
    assert found.token_logprobs is not None
    return math.fsum(value or 0.0 for value in found.token_logprobs[len(prompt) :])


def test_probabilities_are_those_of_whole_labels(exact_client: OpenAI, float32_url: str):
    """No label is a single token, and their lengths differ."""
    messages = [{"role": "user", "content": f"{INPUT}\n\n{QUESTION}"}]
    prompt = tokens(float32_url, messages=messages)
    labels = [tokens(float32_url, prompt=label, add_special_tokens=False) for label in LABELS]
    assert 1 < len(labels[0]) < len(labels[1])
    logprobs = [label_logprob(exact_client, prompt, label, None) for label in labels]
    expected = math.exp(logprobs[0]) / sum(map(math.exp, logprobs))

    answer = decide(exact_client).answers[0]

    assert answer.type == "choice"
    assert answer.probabilities[0].probability == pytest.approx(expected, rel=1e-3)
    assert answer.choice == LABELS[logprobs[1] > logprobs[0]]


def test_a_profile_steers_the_decision(client: OpenAI):
    plain, steered = decide(client), decide(client, profile="gloomy")

    assert [one.to_dict() for one in plain.answers] != [one.to_dict() for one in steered.answers]
    millm: Any = steered.to_dict()["millm"]
    assert millm["profile"].startswith("gloomy@")
    assert millm["steering"]["applied"] == millm["steering"]["expected"] > 0


def test_many_questions_at_once(client: OpenAI):
    """More sequences than the queue takes at once."""
    predicate: Any = {"type": "predicate", "instructions": "She is sad."}
    score: Any = {
        "type": "score",
        "instructions": "How loud is it?",
        "levels": [{"label": "quiet"}, {"label": "loud"}, {"label": "very loud"}],
    }
    body = decide(client, *[predicate, CHOICE, score] * 20)

    assert [answer.type for answer in body.answers] == ["predicate", "choice", "score"] * 20
    for answer in body.answers:
        if answer.type == "predicate":
            assert 0 < answer.probability < 1
        elif answer.type != "refusal":
            assert math.fsum(each.probability for each in answer.probabilities) == pytest.approx(1)
    assert body.usage.input_tokens_details.cached_tokens > 0


def test_the_example_of_the_docs_runs(client: OpenAI):
    page = (live.PROJECT_DIR / "docs" / "openai-compatibility.md").read_text()
    section = page.split("\n## Decisions\n")[1].split("\n## ")[0]
    (example,) = re.findall("```python\n(.*?)```", section, re.DOTALL)
    exec(compile(example, "docs/openai-compatibility.md", "exec"), {"client": client})  # noqa: S102
