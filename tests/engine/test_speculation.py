"""Prompt lookup changes how many steps an answer takes, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from inference.engine.config import EngineConfig
from inference.engine.kernels import native
from inference.engine.messages import TokensEvent
from inference.engine.models.facts import ModelSpec
from inference.engine.models.loader import load_model
from inference.engine.scheduling.drafter import Drafter, PromptLookup
from inference.engine.scheduling.speculation import Speculation
from inference.engine.stats import ModelStats
from inference.interventions import Intervention, Site, VectorEdit
from inference.text.grammar import Grammar
from tests.builders import build_model
from tests.engine.harness import EngineHarness, Transcript, reference_tokens
from tests.engine.sequences import build_sequence

pytestmark = pytest.mark.slow

ON: dict[str, Any] = {
    "speculative_method": "prompt_lookup",
    "prompt_lookup_min": 1,  # guesses at nearly every step, most of them wrong
    "min_speculative_gain": 0.0,
}
PROMPT = (5, 6, 7, 8, 5, 6, 7, 9)
PROMPTS = [tuple(3 + (7 * i + j % 5) % 380 for j in range(length)) for i, length in enumerate((2, 9, 19, 33))]
FEW = tuple(range(20, 26))  # an answer of few words repeats itself: many guesses are right
GREEDY: dict[str, Any] = {"temperature": 0.0, "max_tokens": 90, "ignore_eos": True}


@pytest.fixture(params=["contiguous", "paged"])
def backend(request) -> str:
    return request.param


def answers(loaded, requests: list[dict[str, Any]], **config: Any) -> tuple[list[Transcript], ModelStats]:
    harness = EngineHarness(loaded, **config)
    got = [harness.add(**request) for request in requests]
    harness.run()
    return got, harness.engine.stats()


def told(transcript: Transcript) -> tuple[object, ...]:
    """All that a client sees of an answer; numbers of the model only as far as float32 is exact."""
    end = transcript.finished
    receipt = end.receipt and (end.receipt.expected, end.receipt.applied)
    logprobs = [(p.token_id, p.rank, [t for t, _ in p.top]) for p in transcript.logprobs]
    return transcript.token_ids, transcript.text, end.reason, end.usage, receipt, logprobs


def check_same(loaded, requests: list[dict[str, Any]], **config: Any) -> ModelStats:
    plain, _ = answers(loaded, requests, **config)
    guessed, stats = answers(loaded, requests, **config, **ON)
    assert [told(t) for t in guessed] == [told(t) for t in plain]
    return stats


@pytest.mark.parametrize("num_speculative_tokens", [1, 7])
def test_greedy_answers_are_transformers_(loaded, backend, num_speculative_tokens):
    got, stats = answers(
        loaded,
        [{"prompt": prompt, **GREEDY} for prompt in PROMPTS],
        kv_cache_backend=backend,
        max_prefill_tokens=9,
        num_speculative_tokens=num_speculative_tokens,
        **ON,
    )
    for prompt, transcript in zip(PROMPTS, got, strict=True):
        assert transcript.token_ids == reference_tokens(loaded, prompt, 90)
    assert stats.draft_tokens > stats.accepted_draft_tokens > 0


def test_without_native_kernels(loaded):
    native.deactivate()
    try:
        stats = check_same(loaded, [{"prompt": prompt, **GREEDY} for prompt in PROMPTS])
    finally:
        native.activate()
    assert stats.draft_tokens > stats.accepted_draft_tokens > 0


def test_in_bfloat16_each_place_sees_the_drafts_before_it(tmp_path, backend):
    """Kernels of several rows round otherwise than those of one, so tokens are given and their chances compared."""
    loaded = load_model(ModelSpec("tiny", build_model(tmp_path, "qwen3"), dtype="bfloat16", device="cpu"))
    request = {"prompt": PROMPT, "allowed_token_ids": (20,), "max_tokens": 60, "logprobs": 0}
    (plain,), _ = answers(loaded, [request], kv_cache_backend=backend)
    (guessed,), stats = answers(loaded, [request], kv_cache_backend=backend, num_speculative_tokens=7, **ON)
    assert stats.accepted_draft_tokens > 40
    expected = [p.logprob for p in plain.logprobs]
    assert [p.logprob for p in guessed.logprobs] == pytest.approx(expected, abs=0.1)


def test_in_static_batches(llama):
    requests = [{"prompt": prompt, **GREEDY} for prompt in PROMPTS]
    assert check_same(llama, requests, batching_mode="static", max_batch_size=2).accepted_draft_tokens > 0


SAMPLINGS: dict[str, dict[str, Any]] = {
    "random": {"temperature": 1.0},
    "cut": {"temperature": 0.8, "top_k": 7, "top_p": 0.9, "min_p": 0.02, "typical_p": 0.95},
    "allowed": {"temperature": 0.5, "allowed_token_ids": FEW},
    "biased": {"temperature": 0.7, "logit_bias": tuple((t, 6.0) for t in FEW), "bad_words": ((24,), (25,))},
    "penalties": {"frequency_penalty": 0.4, "presence_penalty": 0.3, "repetition_penalty": 1.2},
    "penalties of few": {"frequency_penalty": 0.1, "repetition_penalty": 1.5, "allowed_token_ids": FEW},
    "bad words": {"bad_words": ((20, 21), (21, 22, 20)), "allowed_token_ids": FEW[:3], "temperature": 3.0},
    "least length": {"allowed_token_ids": (*FEW, 2), "ignore_eos": False, "temperature": 1.0, "min_tokens": 40},
}


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
def test_every_parameter_gives_the_same_tokens(llama, sampling):
    """Of seeded requests; long enough for several draws from the generator."""
    base = {"temperature": 0.0, "max_tokens": 150, "logprobs": 3}
    requests = [{"prompt": PROMPT, **base, **sampling, "seed": seed} for seed in range(3)]
    assert check_same(llama, requests, num_speculative_tokens=3).draft_tokens > 0


@pytest.mark.parametrize("min_tokens", range(30, 36))
def test_the_least_length_inside_a_draft(llama, min_tokens):
    """The end is what the model wants most, and gets as soon as it may."""
    request = {
        "prompt": PROMPT,
        "allowed_token_ids": (*FEW[:2], 2),
        "logit_bias": ((2, 100.0),),
        "ignore_eos": False,
        "min_tokens": min_tokens,
        "max_tokens": 60,
    }
    plain, _ = answers(llama, [request])
    assert plain[0].finished.usage.completion_tokens == min_tokens + 1
    assert check_same(llama, [request], num_speculative_tokens=7).accepted_draft_tokens > 0


def test_right_guesses_save_steps_and_random_rows_take_part(llama):
    request = {"prompt": PROMPT, "max_tokens": 150, "seed": 1, **SAMPLINGS["allowed"]}
    harness, plain = EngineHarness(llama, **ON), EngineHarness(llama)
    for engine in (harness, plain):
        engine.generate(**request)
    stats = harness.engine.stats()
    assert stats.accepted_draft_tokens > 20
    assert plain.engine.stats().step_seconds.count - stats.step_seconds.count == stats.accepted_draft_tokens
    assert stats.step_tokens.total == len(PROMPT) + stats.step_seconds.count - 1 + stats.draft_tokens


def test_a_step_s_tokens_come_in_one_event(llama):
    request = {"prompt": PROMPT, "max_tokens": 100, "allowed_token_ids": FEW[:2], "ignore_eos": True}
    harness = EngineHarness(llama, num_speculative_tokens=3, **ON)
    got = [harness.add(**request, index=0), harness.add(**request, index=1)]
    seen = [0, 0]
    while harness.engine.has_work:
        harness.step()
        counts = [sum(isinstance(event, TokensEvent) for event in t.events) for t in got]
        assert all(now - before <= 1 for now, before in zip(counts, seen, strict=True))
        seen = counts
    assert max(len(e.token_ids) for e in got[0].events if isinstance(e, TokensEvent)) == 4


@pytest.mark.parametrize("prefix_cache", [True, False])
def test_preempted(loaded, backend, prefix_cache):
    prompts = [tuple(3 + (5 * i + j) % 390 for j in range(40)) for i in range(4)]
    per_token = 4 * 2 * 2 * 8 * 4
    config = {
        "kv_cache_backend": backend,
        "kv_cache_bytes": 160 * per_token,
        "max_seq_len": 128,
        "prefix_cache": prefix_cache,
        "max_stall_factor": 0.0,
    }
    harness = EngineHarness(loaded, **config, **ON)
    got = [harness.add(prompt=prompt, **{**GREEDY, "max_tokens": 60}) for prompt in prompts]
    harness.run()
    assert harness.engine.num_preemptions > 0
    assert harness.engine.stats().draft_tokens > 0
    for prompt, transcript in zip(prompts, got, strict=True):
        assert transcript.token_ids == reference_tokens(loaded, prompt, 60)


def test_blocks_with_rejected_tokens_are_never_found(loaded, backend):
    """The next turn takes over what the first computed, and goes on as if it had computed it itself."""
    config = {"kv_cache_backend": backend, "num_speculative_tokens": 7}
    harness = EngineHarness(loaded, **config, **ON)
    first = harness.generate(prompt=PROMPT, **GREEDY)
    turn = (*PROMPT, *first.token_ids, 11, 12)
    again = harness.generate(prompt=turn, **GREEDY)
    assert again.finished.usage.cached_tokens == 96
    assert again.token_ids == EngineHarness(loaded, prefix_cache=False).generate(prompt=turn, **GREEDY).token_ids
    stats = harness.engine.stats()
    assert stats.draft_tokens > stats.accepted_draft_tokens > 0


@pytest.mark.parametrize("max_tokens", range(84, 94))
def test_what_right_guesses_completed_is_found_as_without_them(llama, backend, max_tokens):
    """A block may be full in the very step that ends the answer."""
    request = {"prompt": PROMPT, "allowed_token_ids": FEW[:2], "max_tokens": max_tokens}
    found = []
    for config in ({}, ON):
        harness = EngineHarness(llama, kv_cache_backend=backend, **config)
        first = harness.generate(**request)
        again = harness.generate(prompt=(*PROMPT, *first.token_ids, 11), max_tokens=1)
        found.append(again.finished.usage.cached_tokens)
    assert found[0] == found[1] == (64 if max_tokens < 89 else 96)


@pytest.mark.parametrize("max_tokens", [*range(30, 42), 1, 2])
def test_the_limit_inside_a_draft(llama, max_tokens):
    request = {"prompt": PROMPT, "allowed_token_ids": FEW[:2], "max_tokens": max_tokens}
    stats = check_same(llama, [request], num_speculative_tokens=7)
    assert max_tokens < 3 or stats.accepted_draft_tokens > 0


def test_the_context_s_end_inside_a_draft(llama, backend):
    request = {"prompt": PROMPT, "allowed_token_ids": FEW[:2], "max_tokens": 500}
    stats = check_same(llama, [request], num_speculative_tokens=7, max_seq_len=64, kv_cache_backend=backend)
    assert stats.accepted_draft_tokens > 0


@pytest.mark.parametrize("seed", range(8))
def test_the_end_token_inside_a_draft(llama, seed):
    """The end may follow any token, and the prompt suggests that it does."""
    request = {
        "prompt": (20, 21, 2, 20, 22, 2, 21, 20),
        "allowed_token_ids": (20, 21, 22, 2),
        "logit_bias": ((2, 1.0),),
        "temperature": 3.0,
        "ignore_eos": False,
        "max_tokens": 60,
        "seed": seed,
    }
    check_same(llama, [request], num_speculative_tokens=7)


@pytest.mark.parametrize("end", range(25, 36))
def test_a_stop_string_inside_a_draft(llama, end):
    """Tokens after it that were guessed right as well count nowhere."""
    request: dict[str, Any] = {"prompt": PROMPT, "allowed_token_ids": FEW[:3], "max_tokens": 60, "logprobs": 1}
    text = answers(llama, [request])[0][0].text
    stop = text[end - 25 : end]  # what it ends with is text that stood there before
    stats = check_same(llama, [{**request, "stop": (stop,)}], num_speculative_tokens=7, max_seq_len=128)
    assert stats.draft_tokens > 0


PROFILES = {
    "both": Intervention("both", (VectorEdit(Site(1), torch.full((32,), 0.4)),)),
    "generation": Intervention("generation", (VectorEdit(Site(2), torch.full((32,), 0.4), phase="generation"),)),
    "skipping": Intervention(
        "skipping", (VectorEdit(Site(1), torch.full((32,), 0.4)),), skip_token_ids=frozenset(FEW[:2])
    ),
}


@pytest.mark.parametrize("stop", [(), ("e",)])
def test_steering_acts_on_the_same_tokens_and_its_receipt_counts_them(loaded, backend, stop):
    requests = [
        {"prompt": PROMPT, "intervention": profile, "allowed_token_ids": FEW, "max_tokens": 70, "stop": stop}
        for profile in (*PROFILES.values(), None)
    ]
    stats = check_same(loaded, requests, kv_cache_backend=backend)
    assert stop or stats.draft_tokens > stats.accepted_draft_tokens > 0


def test_rows_under_a_grammar_are_left_out(llama):
    """And stand beside others that are not."""
    grammar = Grammar("regex", "(cat|sat|sea|sun ){20}")
    request = {"prompt": PROMPT, "allowed_token_ids": FEW[:2], "max_tokens": 60}
    requests: list[dict[str, Any]] = [request, {"prompt": PROMPT, "grammar": grammar, "max_tokens": 60}]
    stats = check_same(llama, requests)
    alone = answers(llama, requests[:1], **ON)[1]
    assert stats.draft_tokens == alone.draft_tokens > 0


def test_prompts_that_wait_have_the_step_for_themselves(llama):
    harness = EngineHarness(llama, max_prefill_tokens=16, **ON)
    harness.add(prompt=PROMPT, allowed_token_ids=FEW[:2], max_tokens=100)
    for _ in range(20):
        harness.step()
    before = harness.engine.stats()
    assert before.draft_tokens > 0
    late = harness.add(prompt=tuple(range(3, 99)), max_tokens=1)
    while not late.is_ended:
        harness.step()
    assert harness.engine.stats().draft_tokens == before.draft_tokens


def test_a_draft_that_makes_the_step_raise_does_not_fail_its_request(llama):
    """The model refuses a token that the answer never has, but guesses do."""
    bad = 30
    embed: Any = llama.module.model.embed_tokens

    def refuse(_: object, inputs: tuple[torch.Tensor, ...]) -> None:
        if bool((inputs[0] == bad).any()) and inputs[0].shape[1] < len(prompt):
            raise RuntimeError("a guess")

    prompt = (20, 30, 21, 30, 20, 30, 21, 30, 20)
    plain, _ = answers(llama, [{"prompt": prompt, "allowed_token_ids": (20, 21), "max_tokens": 20}])
    handle = embed.register_forward_pre_hook(refuse)
    try:
        got, stats = answers(llama, [{"prompt": prompt, "allowed_token_ids": (20, 21), "max_tokens": 20}], **ON)
    finally:
        handle.remove()
    assert got[0].token_ids == plain[0].token_ids
    assert stats.step_faults["server_error"] > 0


def test_the_distribution_is_the_plain_sampler_s(llama):
    """Chi-square of 2000 unseeded answers of three tokens against their exact chances, at the 0.1 % level."""
    prompt, allowed, temperature = (22, 20, 22, 21, 22, 22, 22, 22), (20, 21, 22), 3.0
    request = {"prompt": prompt, "allowed_token_ids": allowed, "temperature": temperature, "max_tokens": 4}
    harness = EngineHarness(llama, max_batch_size=50, max_prefill_tokens=1000, seed=5, **ON)
    got = [harness.add(**request) for _ in range(2000)]
    harness.run()
    stats = harness.engine.stats()
    assert stats.draft_tokens - stats.accepted_draft_tokens > 500
    assert stats.accepted_draft_tokens > 300
    seen = [tuple(t.token_ids[:3]) for t in got]
    expected = exact_chances(llama, prompt, allowed, temperature)
    chi_square = sum((seen.count(t) - 2000 * p) ** 2 / (2000 * p) for t, p in expected.items())
    assert len(expected) == 27
    assert chi_square < 54.05  # 26 degrees of freedom


def exact_chances(
    loaded, prompt: tuple[int, ...], allowed: tuple[int, ...], temperature: float
) -> dict[tuple[int, ...], float]:
    """Of all answers of three tokens, by transformers' own forward."""
    module: Any = loaded.module
    ids = list(allowed)
    module.set_attn_implementation("eager")
    chances: dict[tuple[int, ...], float] = {(): 1.0}
    try:
        for _ in range(3):
            following: dict[tuple[int, ...], float] = {}
            for answer, chance in chances.items():
                with torch.inference_mode():
                    logits = module(torch.tensor([[*prompt, *answer]])).logits[0, -1, ids]
                for token, p in zip(ids, (logits / temperature).softmax(-1).tolist(), strict=True):
                    following[*answer, token] = chance * p
            chances = following
    finally:
        module.set_attn_implementation("millm")
    return chances


# The policy


def test_chances_follow_what_became_of_drafts():
    drafter = Drafter(PromptLookup(1, 3))
    assert drafter.chance == 0.25
    for _ in range(30):
        drafter.note(4, 0)
    assert drafter.chance < 0.05
    for _ in range(30):
        drafter.note(4, 4)
    assert drafter.chance > 0.9


def test_drafts_that_did_not_run_teach_by_what_came_instead():
    tokens = [1, 2, 3]
    drafter = Drafter(PromptLookup(1, 3))
    for token in [1, 2, 3] * 5:
        if draft := drafter.propose(tokens, 2):
            drafter.note_unused(len(tokens), draft[0])
        tokens.append(token)
    assert drafter.chance > 0.7
    for token in range(10, 40):
        if draft := drafter.propose(tokens, 2):
            drafter.note_unused(len(tokens), draft[0])
        tokens += [token, 3]
    assert drafter.chance < 0.1


def test_drafts_go_to_those_who_guess_well():
    speculation = Speculation(EngineConfig(speculative_method="prompt_lookup", prompt_lookup_min=1))
    good, bad = (build_sequence((1, 2, 3, 1, 2, 3, 1), max_tokens=100) for _ in range(2))
    speculation.note_step(2, 0.02)
    assert speculation.drafts([good, bad], 100) == [(2, 3, 1, 2)] * 2, "what it costs is not known yet"
    for _ in range(10):
        speculation.note_outcome(good, 4, 4)
        speculation.note_outcome(bad, 4, 0)
    speculation.note_step(10, 0.06)  # a token more takes a quarter of a step
    assert speculation.drafts([good, bad], 100) == [(2, 3, 1, 2), ()]
    assert speculation.drafts([good, bad], 3) == [(2, 3, 1), ()]
    assert (speculation.counts.drafts, speculation.counts.tokens, speculation.counts.accepted) == (20, 80, 40)


def test_a_draft_ends_before_a_stop_token_and_the_limit():
    speculation = Speculation(EngineConfig(speculative_method="prompt_lookup", min_speculative_gain=0.0))
    prompt = (1, 2, 3, 4, 5, 1, 2)
    stopping = build_sequence(prompt, max_tokens=100)
    stopping.stop_ids = frozenset({4})
    short = build_sequence(prompt)
    short.max_tokens = 3
    last = build_sequence(prompt)
    last.max_tokens = 1
    assert speculation.drafts([stopping, short, last], 100) == [(3,), (3, 4), ()]


def test_it_is_off_unless_asked_for():
    assert EngineConfig().speculative_method == "none"
