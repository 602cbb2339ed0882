"""A step that raises fails the sequences that make it raise; the others get the tokens they would get alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from inference.engine.model_runner import StepOutput
from inference.engine.sampling.sampler import Sampled
from inference.engine.scheduling.chunk_isolation import chunk_isolation
from inference.engine.scheduling.scheduler import Chunk
from inference.engine.scheduling.sequence import Sequence, SequenceState
from inference.engine.scheduling.step_isolation import StepIsolation, is_out_of_memory
from inference.interventions import Intervention, Site, VectorEdit
from tests.builders import build_request
from tests.engine.harness import EngineHarness, Transcript, reference_tokens

pytestmark = pytest.mark.slow

GUILTY = 399  # a token that the others' prompts do not contain
NO_ROOM = torch.OutOfMemoryError("no room")


@contextmanager
def raising(module: Any, error: Exception, when: Callable[[list[int]], bool]) -> Iterator[list[int]]:
    """The model raises on steps over token ids for which ``when`` holds; yields the sizes of all steps."""
    sizes: list[int] = []

    def hook(_: object, inputs: tuple[torch.Tensor, ...]) -> None:
        ids = inputs[0].flatten().tolist()
        sizes.append(len(ids))
        if when(ids):
            raise error

    handle = module.model.embed_tokens.register_forward_pre_hook(hook)
    try:
        yield sizes
    finally:
        handle.remove()


def test_only_the_guilty_sequences_of_a_step_fail(llama):
    harness = EngineHarness(llama)
    prompts = [(5 + i, 6, 7) for i in range(8)]
    with raising(llama.module, RuntimeError("secret detail"), lambda ids: GUILTY in ids) as sizes:
        good = [harness.add(build_request(prompt)) for prompt in prompts]
        bad = [harness.add(build_request((8, GUILTY))) for _ in range(2)]
        harness.run()
    assert [t.token_ids for t in good] == [reference_tokens(llama, prompt, 8) for prompt in prompts]
    assert {t.failed.code for t in bad} == {"server_error"}
    assert all("secret" not in t.failed.message for t in bad)
    assert len(sizes) < 8 + 2 * 10, "guilty sequences are looked for by halves"


def test_a_sequence_that_becomes_guilty_fails_with_what_it_has(llama):
    harness = EngineHarness(llama)
    tokens = reference_tokens(llama, (5, 6, 7), 8)
    fatal = next(token for token in tokens[2:] if token not in reference_tokens(llama, (9, 8), 8))
    with raising(llama.module, RuntimeError("no"), lambda ids: fatal in ids):
        bad, good = harness.add(build_request((5, 6, 7))), harness.add(build_request((9, 8)))
        harness.run()
    assert bad.token_ids == tokens[: tokens.index(fatal) + 1]
    assert bad.failed.usage.completion_tokens == len(bad.token_ids)
    assert good.token_ids == reference_tokens(llama, (9, 8), 8)


def test_a_fault_that_passes_by_costs_nobody_anything(llama):
    harness = EngineHarness(llama)
    faults = iter([False, True, False, False, True] + [False] * 100)
    with raising(llama.module, RuntimeError("once"), lambda _: next(faults)):
        both = [harness.add(build_request((n, 6, 7))) for n in (5, 9)]
        harness.run()
    assert [t.token_ids for t in both] == [reference_tokens(llama, (n, 6, 7), 8) for n in (5, 9)]


def test_an_attempt_that_fails_in_sampling_changes_no_random_number_no_penalty_and_no_receipt(llama):
    """The output projection is whole until its rows reach the sampler: bias beyond its cut vocabulary raises there."""
    edit = VectorEdit(Site(1), torch.full((32,), 0.3))
    options = {"temperature": 1.0, "seed": 7, "presence_penalty": 0.5, "repetition_penalty": 1.2, "logprobs": 2}

    def neighbour(harness: EngineHarness) -> Transcript:
        return harness.add(build_request((5, 6, 7), intervention=Intervention("f", (edit,)), **options))

    def cut(*arguments: Any) -> torch.Tensor:
        return arguments[-1][..., :390]

    handle = llama.module.lm_head.register_forward_hook(cut)
    try:
        alone = neighbour(harness := EngineHarness(llama))
        harness.run()
        harness = EngineHarness(llama)
        neighbours = [neighbour(harness), neighbour(harness)]
        guilty = harness.add(build_request((8, 9), logit_bias=((395, 1.0),)))
        harness.run()
    finally:
        handle.remove()
    assert guilty.failed.code == "server_error"
    for found in neighbours:
        assert (found.token_ids, found.finished.receipt) == (alone.token_ids, alone.finished.receipt)
        assert [p.token_id for p in found.logprobs] == [p.token_id for p in alone.logprobs]


def test_random_numbers_drawn_by_a_failed_attempt_are_drawn_again():
    """Where the sampler itself fails after it drew: only the isolation can put the generator back."""
    sequences = [_sequence(seed) for seed in (1, 2)]
    drawn: dict[int, float] = {}

    def run(chunks: list[Chunk]) -> StepOutput:
        for chunk in chunks:
            seed = chunk.sequence.request.sampling.seed
            assert seed is not None
            drawn[seed] = float(torch.rand(1, generator=chunk.sequence.generator))
            chunk.sequence.num_computed += chunk.num_tokens
        if len(chunks) > 1:
            raise RuntimeError("too many")
        return StepOutput(Sampled([0], [None], [True], [True]), {}, [])

    result = chunk_isolation(run).run([Chunk(s, 3) for s in sequences])
    assert drawn == {seed: float(torch.rand(1, generator=torch.Generator().manual_seed(seed))) for seed in (1, 2)}
    assert [s.num_computed for s in sequences] == [3, 3]
    assert not result.failures


def test_a_batch_that_memory_is_too_short_for_runs_in_halves(llama):
    harness = EngineHarness(llama)
    prompts = [tuple(range(3 + i, 19 + i)) for i in range(4)]
    with raising(llama.module, NO_ROOM, lambda ids: len(ids) > 20) as sizes:
        all_four = [harness.add(build_request(prompt)) for prompt in prompts]
        harness.run()
    assert [t.token_ids for t in all_four] == [reference_tokens(llama, prompt, 8) for prompt in prompts]
    assert sizes[:4] == [64, 32, 16, 16]


def test_a_prompt_that_memory_is_too_short_for_runs_in_smaller_chunks(llama):
    harness = EngineHarness(llama)
    prompt = tuple(range(3, 103))
    with raising(llama.module, NO_ROOM, lambda ids: len(ids) > 30) as sizes:
        found = harness.generate(prompt=prompt)
    assert found.token_ids == reference_tokens(llama, prompt, 8)
    assert sizes[:3] == [100, 50, 25]


def test_a_request_that_memory_never_suffices_for_fails_alone_and_the_next_one_runs(llama):
    harness = EngineHarness(llama)
    with raising(llama.module, NO_ROOM, lambda ids: GUILTY in ids):
        big, small = harness.add(build_request((GUILTY, 6))), harness.add(build_request((5, 6, 7)))
        harness.run()
        assert big.failed.code == "out_of_memory"
        assert small.token_ids == reference_tokens(llama, (5, 6, 7), 8)
    assert harness.generate(prompt=(GUILTY, 6)).token_ids == reference_tokens(llama, (GUILTY, 6), 8)


def test_unused_memory_is_freed_before_another_attempt():
    freed: list[str] = []

    def run(chunks: list[Chunk]) -> StepOutput:
        freed.append("attempt")
        raise NO_ROOM

    isolation = StepIsolation(run, free_memory=lambda: freed.append("free"))
    isolation.run([Chunk(_sequence(1), 1)])
    assert freed == ["attempt", "free"]
    assert isolation.counters.faults == {"out_of_memory": 1}


@pytest.mark.parametrize("size", [2**60, 2**50])
def test_the_cpu_allocator_s_own_error_is_out_of_memory(size):
    with pytest.raises(RuntimeError) as caught:
        torch.empty(size, dtype=torch.uint8)
    assert is_out_of_memory(caught.value)


def test_other_errors_are_not():
    assert is_out_of_memory(MemoryError())
    assert not is_out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))


def test_a_lost_device_is_not_tried_again(llama):
    harness = EngineHarness(llama)
    with raising(llama.module, torch.AcceleratorError("device-side assert triggered"), lambda _: True) as sizes:
        harness.add(build_request())
        harness.add(build_request())
        with pytest.raises(torch.AcceleratorError):
            harness.step()
    assert len(sizes) == 1


def _sequence(seed: int) -> Sequence:
    request = build_request(temperature=1.0, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    sequence = Sequence(request, None, 0.0, 8, None, generator)  # type: ignore[arg-type]  # nothing is detokenised
    sequence.state = SequenceState.PREFILL
    return sequence
