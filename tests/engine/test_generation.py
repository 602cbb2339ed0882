"""What one request asks for and gets: ends, limits, usage, log-probabilities, seeds."""

from __future__ import annotations

import pytest
import torch

from inference.engine.messages import PromptLogprobsEvent
from inference.engine.output.detokenizer import Detokenizer, TokenDecoder
from tests.engine.harness import EngineHarness, reference_tokens

PROMPT = (5, 6, 7, 8)


def test_length_and_usage(llama):
    end = EngineHarness(llama).generate(prompt=PROMPT, max_tokens=6).finished
    assert end.reason == "length"
    assert (end.usage.prompt_tokens, end.usage.completion_tokens, end.usage.cached_tokens) == (4, 6, 0)


def test_the_context_bounds_the_completion(llama):
    end = EngineHarness(llama, max_seq_len=10).generate(prompt=PROMPT, max_tokens=100).finished
    assert (end.reason, end.usage.completion_tokens) == ("length", 6)


def test_a_stop_token_ends_and_is_counted_but_not_sent(llama):
    tokens = reference_tokens(llama, PROMPT, 12)
    stop = next(t for i, t in enumerate(tokens) if i > 2 and t not in tokens[:i])
    place = tokens.index(stop)
    got = EngineHarness(llama).generate(prompt=PROMPT, max_tokens=12, stop_token_ids=(stop,))
    assert got.finished.reason == "stop"
    assert got.token_ids == tokens[:place]
    assert got.finished.usage.completion_tokens == place + 1


def test_the_model_s_end_token_stops_unless_ignored(llama):
    bias = ((2, 1000.0),)
    stopped = EngineHarness(llama).generate(prompt=PROMPT, logit_bias=bias, ignore_eos=False)
    assert (stopped.finished.reason, stopped.text) == ("stop", "")
    assert EngineHarness(llama).generate(prompt=PROMPT, logit_bias=bias).finished.reason == "length"


def test_the_end_token_s_log_probability_comes_with_the_end_where_it_was_asked_for(llama):
    bias = ((2, 1000.0),)
    ended = EngineHarness(llama).generate(prompt=PROMPT, logit_bias=bias, ignore_eos=False, logprobs=1).finished
    assert ended.ending is not None
    assert ended.ending.token_id == 2
    assert ended.ending.logprob < 0
    silent = EngineHarness(llama).generate(prompt=PROMPT, logit_bias=bias, ignore_eos=False)
    assert silent.finished.ending is None


def test_a_stop_string_ends_the_text_before_it(llama):
    whole = EngineHarness(llama).generate(prompt=PROMPT, max_tokens=30).text
    stop = next(c for i, c in enumerate(whole) if i > 3 and c not in whole[:i] and c != "\ufffd")
    got = EngineHarness(llama).generate(prompt=PROMPT, max_tokens=30, stop=(stop,))
    assert got.finished.reason == "stop"
    assert got.text == whole[: whole.index(stop)]


@pytest.mark.parametrize("max_prefill_tokens", [2, 256])
def test_prompt_logprobs_equal_the_model_s(llama, max_prefill_tokens):
    prompt = tuple(range(3, 14))
    harness = EngineHarness(llama, max_prefill_tokens=max_prefill_tokens)
    got = harness.generate(prompt=prompt, max_tokens=2, prompt_logprobs=2, logprobs=2)
    event = next(e for e in got.events if isinstance(e, PromptLogprobsEvent))
    assert got.events[0] is event
    llama.module.set_attn_implementation("eager")
    reference = llama.module(torch.tensor([prompt])).logits[0].log_softmax(-1)
    llama.module.set_attn_implementation("millm")
    assert event.logprobs[0] is None
    for i, logprob in enumerate(event.logprobs[1:]):
        assert logprob.token_id == prompt[i + 1]
        assert logprob.logprob == pytest.approx(reference[i, prompt[i + 1]].item(), abs=1e-4)
        assert [t for t, _ in logprob.top] == reference[i].topk(2).indices.tolist()
    assert got.token_ids == reference_tokens(llama, prompt, 2)
    assert len(got.logprobs) == 2


def test_scoring_a_prompt_without_generating(llama):
    got = EngineHarness(llama).generate(prompt=PROMPT, max_tokens=0, prompt_logprobs=0)
    assert len(got.events[0].logprobs) == 4
    assert (got.finished.reason, got.finished.usage.completion_tokens, got.token_ids) == ("length", 0, [])


def test_a_prompt_as_long_as_the_context_can_be_scored(llama):
    prompt = tuple(3 + i % 50 for i in range(256))
    assert EngineHarness(llama).generate(prompt=prompt, max_tokens=0, prompt_logprobs=0).finished
    assert EngineHarness(llama).add(prompt=prompt, max_tokens=1).failed.code == "context_length_exceeded"


def test_seeds_give_the_same_choice_and_choices_differ(llama):
    def choices() -> list[list[int]]:
        harness = EngineHarness(llama)
        got = [harness.add(prompt=PROMPT, temperature=1.0, seed=7, index=i) for i in range(3)]
        harness.run()
        return [t.token_ids for t in got]

    first = choices()
    assert first == choices()
    assert len({tuple(c) for c in first}) == 3
    assert EngineHarness(llama).generate(prompt=PROMPT, temperature=1.0, seed=7).token_ids == first[0]


def test_unseeded_requests_differ_and_follow_the_engine_s_seed(llama):
    def two(**config) -> list[list[int]]:
        harness = EngineHarness(llama, **config)
        got = [harness.add(prompt=PROMPT, temperature=1.0) for _ in range(2)]
        harness.run()
        return [t.token_ids for t in got]

    assert two(seed=3) == two(seed=3)
    assert two()[0] != two()[0]
    assert len({tuple(t) for t in two(seed=3)}) == 2


@pytest.mark.parametrize("prompt", [(), (400,), (-1,), (5, 10**12)])
def test_bad_token_ids_never_reach_the_model(llama, prompt):
    harness = EngineHarness(llama)
    assert harness.add(prompt=prompt).failed.code == "invalid_prompt"
    assert not harness.engine.has_work


def test_extreme_seeds_are_taken(llama):
    for seed in (0, 2**63 - 1, -(2**63)):
        assert EngineHarness(llama).generate(prompt=PROMPT, temperature=1.0, seed=seed, index=2).finished


def test_a_tokenizer_that_fails_on_one_sequence_fails_that_one_only(llama):
    class Brittle:
        def decode(self, ids, skip_special_tokens=True):
            raise ValueError("cannot decode")

    harness = EngineHarness(llama)
    bad, good = harness.add(prompt=(9, 8), max_tokens=5), harness.add(prompt=PROMPT, max_tokens=5)
    guilty = next(s for s in harness.engine._scheduler.sequences() if s.request.prompt_token_ids == (9, 8))
    guilty.detokenizer = Detokenizer(TokenDecoder(Brittle()))
    harness.run()
    assert bad.failed.code == "server_error"
    assert good.token_ids == reference_tokens(llama, PROMPT, 5)


@pytest.mark.parametrize("backend", ["contiguous", "paged"])
def test_cached_tokens_say_nothing_of_requests_with_another_salt(llama, backend):
    harness = EngineHarness(llama, kv_cache_backend=backend)
    prompt = tuple(range(3, 103))
    first, other, same = (harness.generate(prompt=prompt, cache_salt=salt) for salt in ("ann", "bob", "ann"))
    assert [t.finished.usage.cached_tokens for t in (first, other, same)] == [0, 0, 96]
    assert first.token_ids == other.token_ids == same.token_ids
