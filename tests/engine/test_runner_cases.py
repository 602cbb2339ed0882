"""Document 003's runner cases by their names, for both batching modes. A batch has no padding here: what its cases say
of padding masks is that prompts of different lengths do not see each other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

from inference.engine.models.loader import LoadedModel
from tests.builders import build_request
from tests.engine.harness import EngineHarness, reference_tokens

MIXED = [tuple(range(3, 6)), tuple(range(10, 17)), tuple(range(20, 25))]  # 3, 7 and 5 tokens
Make = Callable[..., EngineHarness]


@pytest.fixture(params=["continuous", "static"])
def make(llama, request) -> Make:
    return partial(EngineHarness, llama, batching_mode=request.param, batch_wait_timeout_s=0.0)


def is_clear(harness: EngineHarness) -> bool:
    """Nothing is kept of the batch."""
    engine = harness.engine
    return (engine.num_running, engine.num_free_slots, engine.kv_used_ratio) == (0, 16, 0.0)


def test_single_request_prefill(llama, make):
    harness = make()
    found = harness.add(build_request((5, 6, 7)))
    harness.step()

    assert found.token_ids == reference_tokens(llama, (5, 6, 7), 1)
    assert (harness.engine.num_running, harness.engine.num_free_slots) == (1, 15)
    assert harness.engine.kv_used_ratio > 0


def test_multi_request_batched_prefill_with_mixed_prompt_lengths(llama, make):
    harness = make()
    found = [harness.add(build_request(prompt)) for prompt in MIXED]
    harness.step()

    assert [t.token_ids for t in found] == [reference_tokens(llama, prompt, 1) for prompt in MIXED]
    assert (harness.engine.num_running, harness.engine.num_free_slots) == (3, 13)


def test_decode_step(llama, make):
    harness = make()
    found = [harness.add(build_request(prompt)) for prompt in MIXED]
    for num_tokens in range(1, 5):
        harness.step()
        assert [len(t.token_ids) for t in found] == [num_tokens] * 3

    assert [t.token_ids for t in found] == [reference_tokens(llama, prompt, 4) for prompt in MIXED]


def test_eos_handling(llama, make):
    """The model's end is what one of three samples next; the others go on."""
    wanted = [reference_tokens(llama, prompt, 8) for prompt in MIXED]
    end = next(token for token in wanted[1] if token not in wanted[0] + wanted[2])
    place = wanted[1].index(end)
    harness = make_with_end(make, llama, end)
    found = [harness.add(build_request(prompt, ignore_eos=False)) for prompt in MIXED]
    harness.run()

    assert [t.finished.reason for t in found] == ["length", "stop", "length"]
    assert found[1].finished.usage.completion_tokens == place + 1
    assert [t.token_ids for t in (found[0], found[2])] == [wanted[0], wanted[2]]
    assert is_clear(harness)


def make_with_end(make: Make, llama: LoadedModel, end: int) -> EngineHarness:
    loaded = replace(llama, eos_token_ids=frozenset({end}))
    return EngineHarness(loaded, **make.keywords)  # type: ignore[attr-defined]


def test_max_tokens(make):
    harness = make()
    found = harness.add(build_request(max_tokens=3))
    for num_tokens in (1, 2, 3):
        assert not found.is_ended
        harness.step()
        assert len(found.token_ids) == num_tokens

    assert found.finished.reason == "length"
    assert is_clear(harness)


def test_batch_runs_until_all_finish(make):
    harness = make()
    short, long = harness.add(build_request(max_tokens=2)), harness.add(build_request((9, 8), max_tokens=5))
    for _ in range(2):
        harness.step()
    assert (short.is_ended, long.is_ended, harness.engine.num_running) == (True, False, 1)
    for _ in range(3):
        harness.step()

    assert (len(short.token_ids), len(long.token_ids)) == (2, 5)
    assert is_clear(harness)


def test_has_work(make):
    harness = make()
    assert not harness.engine.has_work
    harness.add(build_request(max_tokens=2))
    assert harness.engine.has_work
    harness.step()
    assert harness.engine.has_work
    harness.step()
    assert not harness.engine.has_work


def test_stop_string_handling(llama, make):
    text = make().generate(prompt=(5, 6, 7), max_tokens=8).text
    stop = text[len(text) // 2 :][:2]
    harness = make()
    found = harness.add(build_request((5, 6, 7), stop=(stop,)))
    beside = harness.add(build_request((9, 8)))
    harness.run()

    assert found.finished.reason == "stop"
    assert found.text == text[: text.index(stop)]
    assert beside.token_ids == reference_tokens(llama, (9, 8), 8)


def test_static_batch_lifecycle(make):
    """A batch forms, all of it completes, it is cleared, and the next one forms."""
    harness = make(max_batch_size=2)
    found = [harness.add(build_request((n, 6), max_tokens=3)) for n in range(5, 10)]
    harness.run()

    assert all(t.finished.reason == "length" for t in found)
    assert (harness.engine.num_free_slots, harness.engine.kv_used_ratio) == (2, 0.0)


def test_requests_together_take_far_fewer_steps_than_one_after_the_other(make):
    """Exit criterion 3 in what does not depend on the machine: W2's shape, 16 requests at once."""

    def steps(harness: EngineHarness) -> int:
        counted = 0
        while harness.engine.has_work:
            harness.step()
            counted += 1
        return counted

    requests = [build_request(tuple(range(3, 3 + 8 * n)), max_tokens=8 + n) for n in range(1, 17)]
    alone = 0
    for request in requests:
        harness = make()
        harness.add(request)
        alone += steps(harness)
    together = make()
    for request in requests:
        together.add(request)

    assert steps(together) * 4 < alone
