"""Random histories of an engine, stepped by hand: whatever happens in whatever order, the invariants hold.

After every turn the books add up; in the end every accepted sequence has had exactly one terminal event; and those that
were left alone have the tokens that they get alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from inference.captures import CaptureSpec
from inference.engine.config import EngineConfig
from inference.engine.errors import EngineDownError, ModelNotAttachedError, QueueFullError
from inference.engine.loop import EngineLoop
from inference.engine.messages import (
    BACKGROUND_PRIORITY,
    TERMINAL_EVENTS,
    CaptureEvent,
    Delivery,
    FailedEvent,
    GenerationRequest,
)
from inference.engine.models.facts import ModelSpec
from inference.engine.models.loader import LoadedModel, load_model
from inference.interventions import Intervention, Site, VectorEdit
from tests.builders import build_model, build_request
from tests.engine.harness import EngineHarness, Transcript

pytestmark = pytest.mark.slow

POISON = 390  # a prompt with this token makes every step that runs it raise
NAMES = ("tiny", "other")
MAX_TURNS = 3000
LIMITS: dict[str, Any] = {"max_batch_size": 3, "max_waiting_requests": 6, "max_prefill_tokens": 16}
KINDS: dict[str, dict[str, Any]] = {
    "contiguous": {"kv_cache_backend": "contiguous"},
    # Five blocks of 32 tokens for three sequences that grow over a block's end: some are preempted and recomputed.
    "preempting": {"kv_cache_backend": "paged", "kv_cache_bytes": 64 * 1024},
    # Guesses at nearly every step, most of them wrong.
    "speculating": {
        "speculative_method": "prompt_lookup",
        "prompt_lookup_min": 1,
        "min_speculative_gain": 0.0,
        "kv_cache_backend": "contiguous",
    },
    "speculating and preempting": {
        "speculative_method": "prompt_lookup",
        "prompt_lookup_min": 1,
        "min_speculative_gain": 0.0,
        "kv_cache_backend": "paged",
        "kv_cache_bytes": 64 * 1024,
    },
    "static": {"batching_mode": "static", "batch_wait_timeout_s": 0.001},
    # Members of a batch that were preempted wait behind requests of higher priority.
    "static and preempting": {
        "batching_mode": "static",
        "batch_wait_timeout_s": 0.001,
        "scheduler_policy": "priority",
        "kv_cache_backend": "paged",
        "kv_cache_bytes": 64 * 1024,
    },
    # The smallest pools that a model with windows of 40 tokens can have.
    "windows": {"kv_cache_backend": "paged", "kv_cache_bytes": 64 * 1024},
}

PROFILES = {
    "": None,
    "both": Intervention("both", (VectorEdit(Site(1), torch.full((32,), 0.4)),)),
    "generation": Intervention("generation", (VectorEdit(Site(2), torch.full((32,), 0.4), phase="generation"),)),
}

READS: dict[str, tuple[CaptureSpec, ...]] = {
    "": (),
    "all": (CaptureSpec(site=Site(1)),),
    "prompt before": (
        CaptureSpec(site=Site(1), stage="pre", phase="prompt"),
        CaptureSpec(site=Site(2), pooling="mean"),
    ),
    "answer": (CaptureSpec(site=Site(2, "mlp_out"), phase="generation"),),
}

prompts = st.tuples(st.integers(3, 40), st.sampled_from((1, 7, 28, 30, 31, 32, 58, 60))).map(
    lambda p: tuple(3 + (p[0] * i) % 380 for i in range(p[1]))
)
samplings = st.fixed_dictionaries(
    {
        "max_tokens": st.sampled_from((1, 5, 12, 30)),
        "temperature": st.sampled_from((0.0, 0.0, 0.0, 1.0)),
        "stop": st.sampled_from(((), (), ("e",), ("zzz", "th"))),
        "ignore_eos": st.booleans(),
    }
)


class EngineHistory(RuleBasedStateMachine):
    models: dict[str, LoadedModel]  # each with a module of its own, as loading gives them
    alone: LoadedModel
    config: EngineConfig

    def __init__(self) -> None:
        super().__init__()
        self.loop = EngineLoop(self.config, self.publish)
        self.loop.accept_requests()
        self.transcripts: dict[tuple[int, int], Transcript] = {}
        self.accepted: dict[tuple[int, int], GenerationRequest] = {}
        self.cancelled: set[int] = set()
        self.attached: set[str] = set()
        self.is_stopping = False
        self.next_sink = 0
        self.attach("tiny")

    def publish(self, deliveries: list[Delivery]) -> None:
        for sink, event in deliveries:
            assert isinstance(sink, int)
            self.transcripts[sink, event.index].events.append(event)

    # What may happen

    @initialize(length=st.integers(26, 31))
    def begin(self, length: int) -> None:
        """A batch that together needs more blocks than the smallest cache has."""
        for first in range(3):
            sampling = {"max_tokens": 60, "temperature": 0.0, "stop": (), "ignore_eos": True}
            ids = tuple(range(3 + first, 3 + first + length))
            self.submit(ids, sampling, 1, "", "tiny", "all", is_poisoned=False)

    @rule(
        prompt=prompts,
        sampling=samplings,
        n=st.integers(1, 3),
        profile=st.sampled_from(sorted(PROFILES)),
        model=st.sampled_from(NAMES),
        captures=st.sampled_from(sorted(READS)),
        is_poisoned=st.sampled_from((False,) * 7 + (True,)),
        priority=st.sampled_from((0, 0, 3, BACKGROUND_PRIORITY)),
    )
    def submit(
        self,
        prompt: tuple[int, ...],
        sampling: dict[str, Any],
        n: int,
        profile: str,
        model: str,
        captures: str,
        is_poisoned: bool,
        priority: int = 0,
    ) -> None:
        ids = (*prompt, POISON) if is_poisoned else prompt
        requests = [
            build_request(
                ids,
                model=model,
                index=i,
                intervention=PROFILES[profile],
                captures=READS[captures],
                seed=i,
                priority=priority,
                **sampling,
            )
            for i in range(n)
        ]
        sink, self.next_sink = self.next_sink, self.next_sink + 1
        fresh = {(sink, i): request for i, request in enumerate(requests)}
        self.transcripts |= {key: Transcript() for key in fresh}
        try:
            self.loop.submit(requests, sink)
        except QueueFullError:
            assert self.num_open + n > self.config.max_batch_size + self.config.max_waiting_requests
        except ModelNotAttachedError:
            assert model not in self.attached
        except EngineDownError:
            assert self.is_stopping
        else:
            self.accepted |= fresh

    @rule()
    def turn(self) -> None:
        self.loop.turn()

    @rule(count=st.integers(2, 12))
    def turns(self, count: int) -> None:
        for _ in range(count):
            self.loop.turn()
            self.loop.check_integrity()

    @rule(data=st.data())
    def cancel(self, data: Any) -> None:
        """Running, waiting, not yet seen by the engine, ended long ago, or never accepted."""
        sink = data.draw(st.integers(0, self.next_sink))
        self.loop.cancel(sink)
        self.cancelled.add(sink)

    @rule(name=st.sampled_from(NAMES))
    def load(self, name: str) -> None:
        self.attach(name)

    @rule(name=st.sampled_from(NAMES))
    def unload(self, name: str) -> None:
        done = self.loop.detach(name)
        self.loop.turn()
        if not self.is_stopping:
            done.result(0)
            self.attached.discard(name)

    @precondition(lambda self: not self.is_stopping and self.next_sink > 3)
    @rule()
    def drain(self) -> None:
        self.loop.stop(3600)
        self.is_stopping = True

    # What must hold

    @invariant()
    def books_add_up(self) -> None:
        self.loop.check_integrity()

    @invariant()
    def nobody_hears_anything_after_the_end(self) -> None:
        for key, transcript in self.transcripts.items():
            ends = [e for e in transcript.events if isinstance(e, TERMINAL_EVENTS)]
            assert len(ends) <= 1
            assert not ends or transcript.events[-1] is ends[0]
            assert key in self.accepted or not transcript.events

    def teardown(self) -> None:
        self._run_to_the_end()
        for key, request in self.accepted.items():
            self._check_outcome(key, request, self.transcripts[key])
        self.loop.stop(0)
        self.loop.run()  # comes to its end, and takes the steering hooks off the modules for the next history
        assert self.loop.stats().state == "stopped"

    # Helpers

    @property
    def num_open(self) -> int:
        return sum(not self.transcripts[key].is_ended for key in self.accepted)

    def attach(self, name: str) -> None:
        done = self.loop.attach(self.models[name])
        self.loop.turn()
        if not self.is_stopping:
            done.result(0)
            self.attached.add(name)

    def _run_to_the_end(self) -> None:
        for _ in range(MAX_TURNS):
            if not self.num_open:
                break
            self.loop.turn()
            self.loop.check_integrity()
        stats = self.loop.stats()
        assert (self.num_open, stats.running, stats.waiting) == (0, 0, 0)
        assert (stats.background_running, stats.background_waiting) == (0, 0)
        assert stats.free_slots == len(stats.models) * self.config.max_batch_size
        assert sum(model.steering_rows for model in stats.by_model) == 0

    def _check_outcome(self, key: tuple[int, int], request: GenerationRequest, transcript: Transcript) -> None:
        end = transcript.end
        if isinstance(end, FailedEvent):
            expected = {"model_unloaded"} | ({"server_error"} if POISON in request.prompt_token_ids else set())
            assert end.code in expected
            return
        assert POISON not in request.prompt_token_ids or end.reason == "cancelled"
        if end.reason == "cancelled":
            assert key[0] in self.cancelled
        if request.sampling.temperature > 0 and end.reason == "cancelled":
            return
        alone = outcome_alone(self.alone, replace(request, model="alone"))
        if end.reason == "cancelled":
            assert alone.token_ids[: len(transcript.token_ids)] == transcript.token_ids
            return
        assert (transcript.token_ids, transcript.text, end.reason) == (
            alone.token_ids,
            alone.text,
            alone.finished.reason,
        )
        assert end.usage.completion_tokens == alone.finished.usage.completion_tokens
        assert end.receipt is None or end.receipt.applied == end.receipt.expected
        assert read_places(transcript) == read_places(alone)


def read_places(transcript: Transcript) -> list[tuple[int, int]]:
    """Number of the read, and place or number of tokens pooled."""
    found = [r for e in transcript.events if isinstance(e, CaptureEvent) for r in e.captures]
    return sorted((r.number, place) for r in found for place in r.places or (r.num_tokens,))


@cache
def outcome_alone(loaded: LoadedModel, request: GenerationRequest) -> Transcript:
    return EngineHarness(loaded).generate(request=request)


def never_choose_poison(_: object, __: object, logits: torch.Tensor) -> None:
    logits[..., POISON] = -1e4


def raise_on_poison(_: object, inputs: tuple[torch.Tensor, ...]) -> None:
    if (inputs[0] == POISON).any():
        raise RuntimeError("poison")


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, LoadedModel]]:
    """Three times the same weights, with a module each, as loading gives them; "alone" knows no poison."""

    @cache
    def of(architecture: str) -> dict[str, LoadedModel]:
        overrides = {"sliding_window": 40} if architecture == "gemma3" else {}
        path = build_model(tmp_path_factory.mktemp("model"), architecture, **overrides)
        loaded = {name: load_model(ModelSpec(name, path, dtype="float32", device="cpu")) for name in (*NAMES, "alone")}
        for name, model in loaded.items():
            module: Any = model.module
            module.lm_head.register_forward_hook(never_choose_poison)
            if name in NAMES:
                module.model.embed_tokens.register_forward_pre_hook(raise_on_poison)
        return loaded

    return of


@pytest.fixture(params=KINDS)
def history(
    request: pytest.FixtureRequest, machines: Callable[[str], dict[str, LoadedModel]]
) -> Callable[[], EngineHistory]:
    config = EngineConfig(**LIMITS, **KINDS[request.param])
    models = machines("gemma3" if request.param == "windows" else "llama")
    return type("History", (EngineHistory,), {"models": models, "alone": models["alone"], "config": config})


def test_random_histories_keep_the_invariants(history):
    run_state_machine_as_test(
        history,
        settings=settings(
            max_examples=8,
            stateful_step_count=20,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
        ),
    )
