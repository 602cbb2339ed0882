"""The shipped profiles do what they say: over 64 seeded samples of a neutral prompt, through the engine."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from asgiref.sync import async_to_sync
from django.core.management import call_command

from inference.engine.models.facts import ModelSpec
from inference.engine.models.loader import LoadedModel, load_model
from inference.interventions import Intervention
from tests.engine.harness import EngineHarness
from tests.steering.resolving import intervention_of, local_resolver

ARTIFACTS = Path("steering/demo/artifacts")
WORDS = json.loads((ARTIFACTS / "words.json").read_text())
NUM_SAMPLES = 64
MAX_PERPLEXITY_RATIO = 2.5

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(scope="module")
def demo() -> LoadedModel:
    return load_model(ModelSpec("demo", ARTIFACTS / "model", device="cpu"))


@pytest.fixture(scope="module")
def unsteered(demo) -> list[list[int]]:
    return samples(demo, None)


def samples(demo: LoadedModel, intervention: Intervention | None) -> list[list[int]]:
    messages = [{"role": "user", "content": "Tell me a story."}]
    prompt = tuple(demo.tokenizer.apply_chat_template(messages, add_generation_prompt=True)["input_ids"])
    harness = EngineHarness(demo, max_batch_size=NUM_SAMPLES)
    got = [
        harness.add(
            prompt=prompt,
            model="demo",
            max_tokens=80,
            temperature=1.0,
            seed=seed,
            ignore_eos=False,
            intervention=intervention,
        )
        for seed in range(NUM_SAMPLES)
    ]
    harness.run()
    return [t.token_ids for t in got]


def share(demo: LoadedModel, texts: list[list[int]], words: list[str]) -> float:
    spoken = [w.strip('.,!?";:').lower() for ids in texts for w in demo.tokenizer.decode(ids).split()]
    return sum(w in set(words) for w in spoken) / len(spoken)


@torch.inference_mode()
def perplexity(demo: LoadedModel, texts: list[list[int]]) -> float:
    """Of the texts under the unsteered model, on transformers' own attention."""
    module: Any = demo.module
    module.set_attn_implementation("sdpa")
    total = count = 0
    for ids in (t for t in texts if len(t) > 1):
        logprobs = module(torch.tensor([ids])).logits[0].float().log_softmax(-1)
        total -= logprobs[:-1].gather(1, torch.tensor(ids[1:]).unsqueeze(1)).sum().item()
        count += len(ids) - 1
    module.set_attn_implementation("millm")
    return math.exp(total / count)


@pytest.mark.parametrize("name", ["joyful", "gloomy", "cats", "sea"])
def test_a_profile_doubles_the_share_of_its_words_and_stays_fluent(demo, unsteered, name):
    call_command("install_demo")
    special = frozenset(demo.tokenizer.all_special_ids)
    resolved = async_to_sync(local_resolver().resolve)("demo", name, special_token_ids=special)
    steered = samples(demo, intervention_of(resolved))
    assert share(demo, steered, WORDS[name]) >= 2 * share(demo, unsteered, WORDS[name])
    assert perplexity(demo, steered) <= MAX_PERPLEXITY_RATIO * perplexity(demo, unsteered)


def test_opposite_moods_push_each_other_s_words_away(demo, unsteered):
    call_command("install_demo")
    special = frozenset(demo.tokenizer.all_special_ids)
    for name, other in (("joyful", "gloomy"), ("gloomy", "joyful")):
        resolved = async_to_sync(local_resolver().resolve)("demo", name, special_token_ids=special)
        steered = samples(demo, intervention_of(resolved))
        assert share(demo, steered, WORDS[other]) < share(demo, steered, WORDS[name])
