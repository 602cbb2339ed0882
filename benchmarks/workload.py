"""Running requests through one model's engine without HTTP, and timing them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from inference.engine.config import EngineConfig
from inference.engine.loader import LoadedModel
from inference.engine.messages import GenerationRequest, SamplingParams, TokensEvent
from inference.engine.model_engine import ModelEngine
from inference.interventions import Intervention


@dataclass(frozen=True)
class Figures:
    """Of one run: generated tokens per second, and seconds between a stream's tokens (median)."""

    tokens_per_s: float
    itl_p50_s: float


def request(model: str, index: int, *, prompt: int, new: int, intervention: Intervention | None) -> GenerationRequest:
    """``prompt`` tokens that differ by ``index``, ``new`` greedy tokens."""
    ids = tuple(3 + (index * 31 + i * 7) % 380 for i in range(prompt))
    sampling = SamplingParams(max_tokens=new, temperature=0.0, ignore_eos=True)
    return GenerationRequest(f"bench-{index}", model, ids, sampling, intervention)


def run(loaded: LoadedModel, requests: Sequence[GenerationRequest]) -> Figures:
    """All at once until the last ends; steps are timed, prefill included in the total."""
    engine = ModelEngine(loaded, EngineConfig(max_batch_size=max(16, len(requests))))
    for i, r in enumerate(requests):
        engine.add(r, i, 0.0)
    tokens, gaps, began = 0, [], time.perf_counter()
    while engine.has_work:
        before = time.perf_counter()
        events = engine.step()
        made = sum(len(e.token_ids) for _, e in events if isinstance(e, TokensEvent))
        tokens += made
        if made == len(requests):
            gaps.append(time.perf_counter() - before)
    engine.close()
    return Figures(tokens / (time.perf_counter() - began), statistics.median(gaps) if gaps else 0.0)


def medians(runs: dict[str, Callable[[], float]], rounds: int) -> dict[str, float]:
    """Median of each figure over interleaved rounds, after one round to warm up."""
    seen: dict[str, list[float]] = {name: [] for name in runs}
    for i in range(rounds + 1):
        for name, figure in runs.items():
            value = figure()
            if i:
                seen[name].append(value)
    return {name: statistics.median(values) for name, values in seen.items()}
