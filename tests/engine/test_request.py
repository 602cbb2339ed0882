"""A sequence from arrival on. Names of document 003's cases are kept: its Request is our Sequence, its StepOutput our
events.
"""

from __future__ import annotations

import torch

from inference.engine.config import EngineConfig
from inference.engine.messages import FailedEvent, FinishedEvent, Timings, TokensEvent, Usage
from inference.engine.model_engine import ModelEngine
from inference.engine.scheduling.sequence import Sequence, SequenceState
from tests.builders import build_request


def build_sequence(**fields) -> Sequence:
    return Sequence(build_request(**fields), "sink", 1.0, 8, None, torch.Generator())  # type: ignore[arg-type]


def test_initial_state_is_waiting():
    sequence = build_sequence(prompt=(5, 6, 7))

    assert sequence.state is SequenceState.WAITING
    assert (sequence.num_prompt, sequence.num_generated, sequence.num_pending_tokens) == (3, 0, 3)
    assert not sequence.is_done


def test_step_output_with_and_without_error():
    tokens = TokensEvent(0, (5,), "a")
    end = FinishedEvent(0, "stop", Usage(3, 0, 1), Timings())
    failure = FailedEvent(0, "server_error", "The model failed on this request.", Usage(3), Timings())

    assert (tokens.token_ids, tokens.text, tokens.logprobs) == ((5,), "a", ())
    assert (end.usage.prompt_tokens, end.usage.completion_tokens, end.receipt) == (3, 1, None)
    assert (failure.code, failure.usage.completion_tokens) == ("server_error", 0)
    assert FailedEvent.before_start(build_request((5, 6)), "x", "y").usage == Usage(prompt_tokens=2)


def test_request_field_defaults():
    sequence = build_sequence(prompt=(5, 6))

    assert sequence.token_ids == [5, 6]
    assert (sequence.slot, sequence.num_computed, sequence.num_cached, sequence.num_preemptions) == (-1, 0, 0, 0)
    assert (sequence.rows, sequence.matcher, sequence.history, sequence.receipt()) == (None, None, None, None)
    assert (sequence.first_run_at, sequence.first_token_at) == (None, None)


def test_generator_creation_from_seed(llama):
    engine = ModelEngine(llama, EngineConfig())
    for request in (build_request(seed=7), build_request(seed=7, index=1), build_request(seed=7)):
        assert not engine.add(request, object(), 0.0)
    drawn: dict[int, set[float]] = {0: set(), 1: set()}
    for sequence in engine._scheduler.sequences():
        drawn[sequence.request.index].add(float(torch.rand(1, generator=sequence.generator)))

    assert drawn[0] == {float(torch.rand(1, generator=torch.Generator().manual_seed(7)))}
    assert drawn[1] != drawn[0], "a request's choices differ"
    engine.fail_all("engine_shutdown", "stopping")
