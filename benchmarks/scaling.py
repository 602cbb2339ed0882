"""The engine's own cost of a step or a cancellation by the amount of what it holds: ``python -m benchmarks.scaling``.

The model computes nothing, so that only the engine is measured. No cost may grow with what does not run: requests in
the queue, tokens that are in the cache, profiles of others, models without work. Times are CPU time of the thread,
because other programs may run beside it.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig

from benchmarks.options import at_least_one
from benchmarks.record import RESULTS, Record
from benchmarks.subject import echo
from benchmarks.tokenizer import FIRST_WORD, build_tokenizer
from inference.engine.cache.device_memory import MemoryWatch
from inference.engine.config import EngineConfig
from inference.engine.kernels import native
from inference.engine.kernels.attention import LayoutProbe, packed_attention
from inference.engine.loop import COMMANDS_PER_TURN, EngineLoop
from inference.engine.messages import BACKGROUND_PRIORITY, GenerationRequest, SamplingParams
from inference.engine.models.facts import DeviceMemory
from inference.engine.models.loader import LoadedModel
from inference.interventions import Intervention, Site, VectorEdit

WIDTH, VOCAB, LAYERS = 8, 512, 2
LONGEST = 2**17  # tokens
STEPS = 40
COUNTED_STEPS = 8
PROMPT = 16  # tokens
RUNNING = 8
ENDLESS = SamplingParams(max_tokens=2048, temperature=0.0, ignore_eos=True)
QUEUES = (10, 100, 1_000, 10_000)
PROMPTS = (128, 1_024, 16_384, 120_000)  # tokens
LONGEST_QUEUE, LONGEST_PROMPT = QUEUES[-1], PROMPTS[-1] + 8192
TOKEN_BYTES = LAYERS * 2 * 4  # of a token in the cache


# A model that computes nothing


class _Layer(nn.Module):
    """A decoder layer that returns its input. Its attention has one head of one value, and keeps nothing."""

    def __init__(self, layer_idx: int) -> None:
        super().__init__()
        self.layer_idx = layer_idx

    def forward(self, hidden: Tensor, packed_batch: object) -> Tensor:
        if isinstance(packed_batch, LayoutProbe):
            one = hidden[None, ..., :1]
            packed_attention(self, one, one, one, None, packed_batch=packed_batch)
        return hidden


class EmptyModel(nn.Module):
    """A model whose next token is always the same."""

    def __init__(self) -> None:
        super().__init__()
        self.config = LlamaConfig(
            vocab_size=VOCAB,
            hidden_size=WIDTH,
            intermediate_size=WIDTH,
            num_hidden_layers=LAYERS,
            num_attention_heads=1,
            max_position_embeddings=LONGEST,
        )
        self.layers = nn.ModuleList(map(_Layer, range(LAYERS)))
        self.hidden = nn.Parameter(torch.ones(1, 1, WIDTH), requires_grad=False)
        self.logits = nn.Parameter(torch.zeros(1, 1, VOCAB), requires_grad=False)
        self.logits[..., FIRST_WORD] = 1.0

    def forward(
        self, *, input_ids: Tensor, packed_batch: object, logits_to_keep: Tensor | int = 0, **_: object
    ) -> SimpleNamespace:
        hidden = self.hidden.expand(1, input_ids.shape[1], WIDTH)
        for layer in self.layers:
            hidden = layer(hidden, packed_batch)
        count = hidden.shape[1] if isinstance(logits_to_keep, int) else len(logits_to_keep)
        return SimpleNamespace(logits=self.logits.expand(1, count, VOCAB))


def empty_model(name: str) -> LoadedModel:
    """Return a model that computes nothing, with the tokenizer of the other benchmarks."""
    return LoadedModel(
        name=name,
        module=EmptyModel(),
        tokenizer=build_tokenizer(VOCAB),
        max_model_len=LONGEST,
        vocab_size=VOCAB,
        eos_token_ids=frozenset(),
        special_token_ids=frozenset(),
        memory_bytes=0,
        hidden_size=WIDTH,
        num_layers=LAYERS,
        dtype="float32",
        device="cpu",
        grammars=None,
    )


@dataclass(eq=False)
class Engine:
    """An engine that is turned by hand. Sinks are numbers."""

    config: EngineConfig
    loop: EngineLoop = field(init=False)
    models: list[str] = field(default_factory=list)
    _numbers: Iterator[int] = field(default_factory=itertools.count)
    _num_commands: int = 0

    def __post_init__(self) -> None:
        memory = MemoryWatch(lambda: DeviceMemory(2**40, 2**40), lambda: 0.0)  # measuring it would be counted
        self.loop = EngineLoop(self.config, lambda deliveries: None, memory)
        self.loop.accept_requests()

    def attach(self, count: int = 1) -> None:
        for _ in range(count):
            self.models.append(f"model-{len(self.models)}")
            attached = self.loop.attach(empty_model(self.models[-1]))
            self.loop.turn()
            attached.result(0)

    def submit(self, prompt: Sequence[int] | int = PROMPT, **fields: Any) -> int:
        """Submit a request, with a prompt of its own if only the number of its tokens is given. Return its sink."""
        sink = next(self._numbers)
        ids = own_prompt(sink, prompt) if isinstance(prompt, int) else tuple(prompt)
        request = GenerationRequest(f"request-{sink}", self.models[0], ids, **{"sampling": ENDLESS, **fields})
        self.loop.submit([request], sink)
        self._num_commands += 1
        return sink

    def settle(self) -> None:
        """Turn until the engine has taken all commands, and then some more."""
        self.take_commands()
        for _ in range(4):
            self.loop.turn()

    def take_commands(self) -> None:
        """Turn until the engine has taken all commands: each turn takes a part of them."""
        for _ in range(-(-self._num_commands // COMMANDS_PER_TURN)):
            self.loop.turn()
        self._num_commands = 0

    def cancel(self, sink: int) -> None:
        self.loop.cancel(sink)
        self._num_commands += 1

    def num_tokens_run(self) -> float:
        return sum(model.step_tokens.total for model in self.loop.stats().by_model)

    def close(self) -> None:
        self.loop.stop(0.0)
        self.loop.run()


def own_prompt(number: int, length: int) -> tuple[int, ...]:
    """Return a prompt that no other number has. Its first tokens are the digits of the number."""
    base = VOCAB - FIRST_WORD
    digits = (number // base**place % base for place in range(4))
    return tuple(FIRST_WORD + digit for digit in itertools.islice(itertools.chain(digits, itertools.repeat(0)), length))


def own_profile(number: int) -> Intervention:
    vector = torch.full((WIDTH,), 0.01)
    return Intervention(f"profile-{number}", (VectorEdit(Site(number % LAYERS), vector),))


# What is measured

Act = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Case:
    """A cost by ``n``. ``prepare`` brings the engine to a state with ``n`` and returns what is measured.

    That is repeated if the ``unit`` is a step. Otherwise it is done once, with ``n`` units.
    """

    name: str
    sizes: tuple[int, ...]
    prepare: Callable[[Engine, int], Act]
    unit: str = "step"
    config: dict[str, Any] = field(default_factory=dict)

    @property
    def is_steady(self) -> bool:
        return self.unit == "step"

    @contextmanager
    def ready(self, n: int) -> Iterator[Act]:
        settings = {"max_batch_size": RUNNING, "max_waiting_requests": 2 * LONGEST_QUEUE, **self.config}
        engine = Engine(EngineConfig(**settings))
        try:
            yield self.prepare(engine, n)
        finally:
            engine.close()


def _queue(engine: Engine, n: int, **fields: Any) -> list[int]:
    """Let a full batch decode, and queue ``n`` more requests. Return their sinks."""
    engine.attach()
    for _ in range(RUNNING):
        engine.submit(**fields)
    engine.settle()
    sinks = [engine.submit(**fields) for _ in range(n)]
    engine.settle()
    _check_running(engine, RUNNING)
    return sinks


def _check_running(engine: Engine, count: int) -> None:
    running = engine.loop.stats().running
    if running != count:
        raise RuntimeError(f"{count} sequences must run, got {running}.")


def _queued(engine: Engine, n: int) -> Act:
    _queue(engine, n)
    return engine.loop.turn


def _queued_in_background(engine: Engine, n: int) -> Act:
    _queue(engine, n, priority=BACKGROUND_PRIORITY)
    return engine.loop.turn


def _steered(engine: Engine, n: int) -> list[int]:
    """Queue as many requests as there are profiles behind a batch, each with its own."""
    engine.attach()
    sinks = [engine.submit(intervention=own_profile(number)) for number in range(RUNNING + n)]
    engine.settle()
    _check_running(engine, RUNNING)
    return sinks[RUNNING:]


def _profiles_in_use(engine: Engine, n: int) -> Act:
    _steered(engine, n)
    return engine.loop.turn


def _models_attached(engine: Engine, n: int) -> Act:
    engine.attach(n)
    engine.submit()
    engine.settle()
    return engine.loop.turn


def _long_sequence(engine: Engine, n: int) -> Act:
    engine.attach()
    engine.submit(n)
    while engine.num_tokens_run() < n:
        engine.loop.turn()
    engine.settle()
    return engine.loop.turn


def _long_prompt_waits(engine: Engine, n: int) -> Act:
    """Let a sequence of ``n`` tokens decode in a cache that has no room for a prompt that starts with them."""
    act = _long_sequence(engine, n)
    engine.submit((*own_prompt(0, n), *own_prompt(1, LONGEST_PROMPT - n)))
    engine.settle()
    _check_running(engine, 1)
    return act


def _prefix_computed(engine: Engine, n: int) -> Act:
    """Let a prompt be computed in small chunks, while a batch waits for its prefix."""
    engine.attach()
    for _ in range(RUNNING):
        engine.submit(own_prompt(0, n))
    engine.settle()
    _check_running(engine, 1)
    return engine.loop.turn


def _cancelled(engine: Engine, n: int) -> Act:
    return _cancel_all(engine, _queue(engine, n))


def _steered_cancelled(engine: Engine, n: int) -> Act:
    return _cancel_all(engine, _steered(engine, n))


def _cancel_all(engine: Engine, sinks: Sequence[int]) -> Act:
    def act() -> None:
        for sink in sinks:
            engine.cancel(sink)
        engine.take_commands()

    return act


def _arrive(engine: Engine, n: int) -> Act:
    _queue(engine, 0)

    def act() -> None:
        for _ in range(n):
            engine.submit()
        engine.take_commands()

    return act


def _unloaded(engine: Engine, n: int) -> Act:
    _queue(engine, n)

    def act() -> None:
        done = engine.loop.detach(engine.models[0])
        engine.loop.turn()
        done.result(0)

    return act


WHOLE_PROMPTS = {"max_prefill_tokens": 8192}
SMALL_CHUNKS = {"max_prefill_tokens": 16}
NO_ROOM = {"kv_cache_bytes": (LONGEST_PROMPT + 32) * TOKEN_BYTES}
STATIC = {"batching_mode": "static", "batch_wait_timeout_s": 0.0}
QUEUE_CASES = (
    Case("requests in the queue", QUEUES, _queued),
    Case("background requests in the queue", QUEUES, _queued_in_background),
    Case("requests in the queue, static batches", QUEUES, _queued, config=STATIC),
)
CASES = (
    *QUEUE_CASES,
    Case("profiles in use", QUEUES, _profiles_in_use),
    Case("models attached", (1, 2, 4, 16), _models_attached),
    Case("tokens of a sequence", PROMPTS, _long_sequence, config=WHOLE_PROMPTS),
    Case("cached tokens of a prompt without room", PROMPTS, _long_prompt_waits, config=WHOLE_PROMPTS | NO_ROOM),
    Case("tokens of a prefix that a batch waits for", PROMPTS[1:], _prefix_computed, config=SMALL_CHUNKS),
    Case("requests cancelled at once", QUEUES, _cancelled, "cancellation"),
    Case("steered requests cancelled at once", QUEUES, _steered_cancelled, "cancellation"),
    Case("requests that arrive at once", QUEUES, _arrive, "request"),
    Case("requests of an unloaded model", QUEUES, _unloaded, "request"),
)


def microseconds(case: Case, n: int) -> float:
    """Return the CPU time of a step (the median of several), or of each unit."""
    with case.ready(n) as act:
        times = []
        for _ in range(STEPS if case.is_steady else 1):
            began_at = time.thread_time()
            act()
            times.append(time.thread_time() - began_at)
    return 1e6 * (statistics.median(times) if case.is_steady else times[0] / n)


def instructions(case: Case, n: int) -> float:
    """Return the Python bytecode instructions of a unit, or of a step: the fewest of several."""
    with case.ready(n) as act:
        if case.is_steady:
            return min(_instructions(act) for _ in range(COUNTED_STEPS))
        return _instructions(act) / n


def growth(case: Case) -> float:
    """Return the instructions of a step or unit with a large ``n``, divided by those with a small one."""
    small = case.sizes[0] if case.is_steady else case.sizes[1]  # a few units have too large a share of a step
    return instructions(case, case.sizes[-2]) / instructions(case, small)


def _instructions(act: Callable[[], object]) -> int:
    count = 0

    def note(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        count += event == "opcode"
        return note

    gc.collect()
    gc.disable()  # its callbacks would be counted at an arbitrary step
    sys.settrace(note)
    try:
        act()
    finally:
        sys.settrace(None)
        gc.enable()
    return count


def record(rounds: int) -> Record:
    native.activate()
    values = {}
    for case in CASES:
        for n in case.sizes:
            values[f"{case.name} / {case.unit} / {n}"] = statistics.median(microseconds(case, n) for _ in range(rounds))
        echo(f"{case.name:45} {', '.join(f'{value:.0f}' for value in list(values.values())[-len(case.sizes) :])} us")
    return Record("scaling", "engine", values=values)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=at_least_one, default=3, help="number of rounds; figures are their medians")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the figures")
    options = parser.parse_args()
    record(options.rounds).save(options.results)
