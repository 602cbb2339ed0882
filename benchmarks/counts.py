"""Counts of the work of one decode step, which do not depend on the load of the machine.

Python calls (of Python and C functions) are counted with ``sys.setprofile``; torch operators and the bytes of their new
outputs with a dispatch mode. All sequences are decoding, so each step generates one token of each.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from inference.engine.config import EngineConfig
from inference.engine.messages import GenerationRequest, SamplingParams, TokensEvent
from inference.engine.model_engine import ModelEngine
from inference.engine.models.loader import LoadedModel
from inference.interventions import Intervention

STEPS = 8
SETTLE = 4  # steps after the prefill that are not counted
ENOUGH = 2048  # new tokens, so that no sequence ends before the last prompt is computed


@dataclass(frozen=True, slots=True)
class StepCounts:
    """Counts of one decode step, averaged over STEPS."""

    python_calls: float
    torch_ops: float
    new_bytes: float


class _Operators(TorchDispatchMode):
    """Counts operators, and the bytes of outputs that are not views of an input."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.new_bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.calls += 1
        old = {_storage(leaf) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)}
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor) and _storage(leaf) not in old:
                self.new_bytes += leaf.nbytes
        return result


def _storage(tensor: torch.Tensor) -> int:
    if tensor.layout == torch._mkldnn:  # type: ignore[attr-defined]  # oneDNN's own layout hides its memory
        return id(tensor)
    return tensor.untyped_storage().data_ptr()


def decode_counts(
    loaded: LoadedModel, streams: int, *, prompt: int = 16, profiles: Sequence[Intervention] = ()
) -> StepCounts:
    """Return the counts for ``streams`` greedy sequences with prompts of ``prompt`` tokens and ``profiles`` in turn."""
    engine = ModelEngine(loaded, EngineConfig(max_batch_size=max(16, streams)))
    for i in range(streams):
        ids = tuple(3 + (i * 31 + k * 7) % 250 for k in range(prompt))
        sampling = SamplingParams(max_tokens=ENOUGH, temperature=0.0, ignore_eos=True)
        profile = profiles[i % len(profiles)] if profiles else None
        engine.add(GenerationRequest(f"count-{i}", loaded.name, ids, sampling, intervention=profile), i, 0.0)
    try:
        decoding: set[object] = set()
        while len(decoding) < streams:
            decoding |= {sink for sink, event in engine.step() or () if isinstance(event, TokensEvent)}
        for _ in range(SETTLE):
            engine.step()
        calls = _python_calls(lambda: _steps(engine))
        with _Operators() as operators:
            _steps(engine)
        assert engine.num_running == streams, "no sequence may end while steps are counted"
        return StepCounts(calls / STEPS, operators.calls / STEPS, operators.new_bytes / STEPS)
    finally:
        engine.fail_all("cancelled", "Counted.")
        engine.close()


def _steps(engine: ModelEngine) -> None:
    for _ in range(STEPS):
        engine.step()


def _python_calls(act: Callable[[], None]) -> int:
    calls = 0

    def note(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        if event in {"call", "c_call"}:
            calls += 1

    gc.collect()
    gc.disable()  # garbage collection callbacks would be counted at an arbitrary step
    sys.setprofile(note)
    try:
        act()
    finally:
        sys.setprofile(None)
        gc.enable()
    return calls
