"""Edits of one part of what is generated, against transformers under plain hooks that read the whole text each time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from inference.engine.cache.prefix_keys import PREFIX_BLOCK
from inference.engine.messages import Scoring
from inference.engine.models.self_check import probe_layouts
from inference.engine.models.sites import decoder_layers
from inference.interventions import ChosenTokens, Intervention, Site, VectorEdit, Window
from inference.segments import ANSWER_ONLY, Segment, SegmentRules
from inference.text.token_bytes import TokenBytes
from tests.builders import build_request
from tests.engine.harness import EngineHarness, Transcript
from tests.engine.reference_segments import RULES, THINKING, segment_places

pytestmark = pytest.mark.slow

PROMPT = tuple(range(5, 25))
THINK: frozenset[Segment] = frozenset({"thinking"})
ANSWER: frozenset[Segment] = frozenset({"answer"})
NO_CALLS: frozenset[Segment] = frozenset({"thinking", "answer"})
CHOICES: dict[str, list[ChosenTokens]] = {
    "thinking": [ChosenTokens(phase="generation", segments=THINK)],
    "answer": [ChosenTokens(phase="generation", segments=ANSWER)],
    "outside calls": [ChosenTokens(segments=NO_CALLS)],
    "the first of the answer": [ChosenTokens(phase="generation", segments=ANSWER, segment_window=Window(1, 6))],
    "late, outside calls": [ChosenTokens(phase="generation", segments=NO_CALLS, window=Window(8))],
    "several": [
        ChosenTokens(window=Window(2, 9)),
        ChosenTokens(phase="generation", segments=THINK, segment_window=Window(3)),
        ChosenTokens(phase="generation", segments=ANSWER, segment_window=Window(0, 7)),
        ChosenTokens(segments=NO_CALLS),
    ],
}
PREEMPTED = {"max_seq_len": 128, "max_stall_factor": 0.0}
SPECULATIVE = {"speculative_method": "prompt_lookup", "prompt_lookup_min": 1, "min_speculative_gain": 0.0}
CONFIGS: dict[str, dict[str, Any]] = {
    "contiguous": {"kv_cache_backend": "contiguous"},
    "paged": {"kv_cache_backend": "paged"},
    "small chunks": {"max_prefill_tokens": 3},
    "no prefix cache": {"prefix_cache": False},
    "speculating": SPECULATIVE,
    "preempted": {"kv_cache_backend": "paged", **PREEMPTED},
    "preempted and speculating": {"kv_cache_backend": "contiguous", **PREEMPTED, **SPECULATIVE},
    "preempted without a prefix cache": {"kv_cache_backend": "paged", "prefix_cache": False, **PREEMPTED},
}


def few_tokens(loaded) -> tuple[int, ...]:
    """Of which marks are made, and two of no meaning."""
    encode = loaded.tokenizer.backend_tokenizer.token_to_id
    return tuple(encode(text) for text in ("<", "t", ">", "/", "[", "]", "{", "Ġ", "a"))


def vector(number: int) -> torch.Tensor:
    return 1.5 * torch.randn(32, generator=torch.Generator().manual_seed(number))


def intervention(name: str) -> Intervention:
    """Each choice with a vector of its own, at two layers in turn."""
    edits = (VectorEdit(Site(1 + n % 2), vector(n), **vars(choice)) for n, choice in enumerate(CHOICES[name]))
    return Intervention(name, tuple(edits))


def mask(edit: ChosenTokens, rules: SegmentRules, loaded, prompt: Sequence[int], made: Sequence[int]) -> list[bool]:
    """On which of a sequence's tokens the edit acts, said in other words than the engine's."""
    found = []
    for index in range(len(prompt)):
        found.append(edit.phase in ("both", "prompt") and index in edit.window)
    for index, (part, segment_index) in enumerate(segment_places(rules, [*map(TokenBytes(backend(loaded)), made)])):
        in_windows = index in edit.window and segment_index in edit.segment_window
        found.append(edit.phase in ("both", "generation") and part in edit.segments and in_windows)
    return found


def backend(loaded) -> Any:
    return loaded.tokenizer.backend_tokenizer


def reference_logprobs(loaded, steering: Intervention, rules: SegmentRules, prompt, made) -> np.ndarray:
    """Of the tokens that the engine made, by transformers in one pass over all of them."""

    def hook_of(edits: list[tuple[torch.Tensor, torch.Tensor]]):
        def hook(module, inputs, output):
            hidden = output[0] if isinstance(output, tuple) else output
            steered = hidden + sum(acts * added for acts, added in edits)
            return (steered, *output[1:]) if isinstance(output, tuple) else steered

        return hook

    by_layer: dict[int, list[tuple[torch.Tensor, torch.Tensor]]] = {}
    for edit in steering.edits:
        assert isinstance(edit, VectorEdit)
        acts = torch.tensor(mask(edit, rules, loaded, prompt, made)).float().unsqueeze(-1)
        by_layer.setdefault(edit.site.layer, []).append((acts, edit.vector))
    module, handles = loaded.module, []
    ours = module.config._attn_implementation
    module.set_attn_implementation("eager")
    for layer, edits in by_layer.items():
        handles.append(decoder_layers(module)[layer].register_forward_hook(hook_of(edits)))
    try:
        with torch.no_grad():
            logits = module(input_ids=torch.tensor([[*prompt, *made]]), use_cache=False).logits[0]
    finally:
        for handle in handles:
            handle.remove()
        module.set_attn_implementation(ours)
    chosen = logits[len(prompt) - 1 : -1].double().log_softmax(-1)
    return chosen[torch.arange(len(made)), torch.tensor(made)].numpy()


def num_applied(loaded, steering: Intervention, rules: SegmentRules, prompt, made) -> int:
    """Sites times tokens; the last token is never run."""
    acts: dict[Site, np.ndarray] = {}
    for edit in steering.edits:
        chosen = np.array(mask(edit, rules, loaded, prompt, made)[:-1])
        acts[edit.site] = acts.get(edit.site, np.zeros(len(chosen), bool)) | chosen
    return int(sum(chosen.sum() for chosen in acts.values()))


def check(
    loaded,
    transcript: Transcript,
    steering: Intervention,
    rules: SegmentRules = RULES,
    prompt=PROMPT,
    *,
    runs_once: bool = True,
) -> None:
    """The receipt counts computed tokens: recomputed ones twice, cached ones not at all."""
    made = transcript.token_ids
    expected = reference_logprobs(loaded, steering, rules, prompt, made)
    np.testing.assert_allclose([one.logprob for one in transcript.logprobs], expected, atol=3e-4)
    receipt = transcript.finished.receipt
    assert receipt is not None
    assert receipt.expected == receipt.applied
    if runs_once and not transcript.finished.usage.cached_tokens:
        assert receipt.applied == num_applied(loaded, steering, rules, prompt, made)


def wild(loaded, seed: int, **fields: Any) -> dict[str, Any]:
    """A request whose tokens are drawn from those of the marks: parts come and go."""
    sampling = {"temperature": 1.0, "allowed_token_ids": few_tokens(loaded), "seed": seed}
    bias = tuple((token, 8.0) for token in few_tokens(loaded))  # so that the few are near each other
    return {
        "prompt": PROMPT,
        "max_tokens": 60,
        "logprobs": 0,
        "segment_rules": RULES,
        **sampling,
        "logit_bias": bias,
        **fields,
    }


def made_parts(loaded, transcript: Transcript, rules: SegmentRules = RULES) -> set[str]:
    made = [*map(TokenBytes(backend(loaded)), transcript.token_ids)]
    return {part for part, _ in segment_places(rules, made)}


def bytes_for(config: dict[str, Any], loaded) -> dict[str, Any]:
    if "max_stall_factor" not in config:
        return config
    return {**config, "kv_cache_bytes": 160 * sum(layout.bytes_per_token for layout in probe_layouts(loaded.module))}


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_each_scope_acts_on_its_part_alone(llama, config):
    """Mates of one batch, each with a scope of its own, some in the midst of thoughts from the beginning."""
    harness = EngineHarness(llama, **bytes_for(config, llama))
    begun = SegmentRules(RULES.states, THINKING)
    asked = [(name, rules) for name in CHOICES for rules in (RULES, begun)]
    got = [
        harness.add(**wild(llama, seed, intervention=intervention(name), segment_rules=rules))
        for seed, (name, rules) in enumerate(asked)
    ]
    plain = harness.add(**wild(llama, 50))
    harness.run()
    seen: set[str] = set()
    for (name, rules), transcript in zip(asked, got, strict=True):
        check(llama, transcript, intervention(name), rules, runs_once="max_stall_factor" not in config)
        seen |= made_parts(llama, transcript, rules)
    alone = EngineHarness(llama).generate(**wild(llama, 50))
    assert plain.token_ids == alone.token_ids
    assert seen == {"thinking", "answer", "call"}
    if "max_stall_factor" in config:
        assert harness.engine.num_preemptions > 0
    if "speculative_method" in config:
        assert harness.engine.stats().accepted_draft_tokens > 0


def test_every_architecture(loaded):
    got = EngineHarness(loaded).generate(**wild(loaded, 3, intervention=intervention("several")))
    check(loaded, got, intervention("several"))


def test_choices_of_one_prompt_have_parts_of_their_own(llama):
    harness = EngineHarness(llama)
    steering = intervention("several")
    got = [harness.add(**wild(llama, seed, index=seed, intervention=steering)) for seed in range(5)]
    harness.run()
    for transcript in got:
        check(llama, transcript, steering)
    assert len({tuple(transcript.token_ids) for transcript in got}) == len(got)


@pytest.mark.parametrize("config", [CONFIGS["contiguous"], CONFIGS["small chunks"], {"max_prefill_tokens": 1}])
def test_a_continuation_that_is_scored_has_the_parts_that_it_would_have_had(llama, config):
    steering = intervention("several")
    made = EngineHarness(llama).generate(**wild(llama, 7, intervention=steering))
    scored = EngineHarness(llama, **config).generate(
        prompt=PROMPT, max_tokens=0, scoring=Scoring(tuple(made.token_ids)), intervention=steering, segment_rules=RULES
    )
    (found,) = [event.logprobs for event in scored.events if hasattr(event, "logprobs")]
    np.testing.assert_allclose(found, [one.logprob for one in made.logprobs], atol=3e-4)


def test_without_marks_everything_is_the_answer(llama):
    for name, other in (("answer", "generation"), ("thinking", "nothing")):
        got = EngineHarness(llama).generate(
            **wild(llama, 2, intervention=intervention(name), segment_rules=ANSWER_ONLY)
        )
        edits = (VectorEdit(Site(1), vector(0), phase="generation"),) if other == "generation" else ()
        alike = EngineHarness(llama).generate(**wild(llama, 2, intervention=Intervention(other, edits)))
        assert got.logprobs == alike.logprobs
        assert got.finished.receipt.applied == (59 if edits else 0)


@pytest.mark.parametrize("backend_name", ["contiguous", "paged"])
def test_what_was_generated_under_a_scope_is_no_other_s_prompt(llama, backend_name):
    """An edit everywhere outside of calls: the next turn's prompt has no calls, whatever was called before."""
    steering = intervention("outside calls")
    harness = EngineHarness(llama, kv_cache_backend=backend_name)
    first = harness.generate(**wild(llama, 4, intervention=steering, segment_rules=SegmentRules(RULES.states, 3)))
    turn = (*PROMPT, *first.token_ids, 11, 12)
    again = harness.generate(**wild(llama, 5, prompt=turn, intervention=steering))
    check(llama, again, steering, prompt=turn)
    assert again.finished.usage.cached_tokens < 32


def test_the_same_tokens_under_other_rules_have_other_keys(llama):
    def keys(rules: SegmentRules, name: str) -> list[bytes | None]:
        engine = EngineHarness(llama).engine
        request = build_request(tuple(range(PREFIX_BLOCK)), intervention=intervention(name), segment_rules=rules)
        sequence = engine._intake.build_sequence(request, object(), 0.0)
        sequence.token_ids.extend(range(40, 40 + 2 * PREFIX_BLOCK))
        return sequence.prefix_keys.upto(sequence.token_ids, 3)

    begun = SegmentRules(RULES.states, THINKING)
    assert keys(RULES, "answer")[0] == keys(begun, "answer")[0]
    assert set(keys(RULES, "answer")[1:]).isdisjoint(keys(begun, "answer")[1:])
    assert keys(RULES, "answer") == keys(SegmentRules(RULES.states), "answer")
    assert None not in keys(RULES, "answer")
