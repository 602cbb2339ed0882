"""Tokens per second over the number of streams, beside transformers' ``generate`` on the same module."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from benchmarks.workload import medians, request, run
from inference.engine.loader import LoadedModel

PROMPT, NEW = 32, 64


def table(loaded: LoadedModel, streams: tuple[int, ...], rounds: int) -> list[str]:
    """Markdown rows: streams, ours, transformers', ratio."""
    runs: dict[str, Callable[[], float]] = {}
    for n in streams:
        runs[f"ours {n}"] = partial(_ours, loaded, n)
        runs[f"theirs {n}"] = partial(_theirs, loaded, n)
    found = medians(runs, rounds)
    rows = ["| streams | miLLM tok/s | transformers generate tok/s | ratio |", "|---|---|---|---|"]
    for n in streams:
        ours, theirs = found[f"ours {n}"], found[f"theirs {n}"]
        rows.append(f"| {n} | {ours:.0f} | {theirs:.0f} | {ours / theirs:.2f} |")
    return rows


def _ours(loaded: LoadedModel, streams: int) -> float:
    requests = [request(loaded.name, i, prompt=PROMPT, new=NEW, intervention=None) for i in range(streams)]
    return run(loaded, requests).tokens_per_s


def _theirs(loaded: LoadedModel, streams: int) -> float:
    requests = [request(loaded.name, i, prompt=PROMPT, new=NEW, intervention=None) for i in range(streams)]
    ids = torch.tensor([r.prompt_token_ids for r in requests])
    module: Any = loaded.module
    ours = module.config._attn_implementation
    module.set_attn_implementation("sdpa")
    began = time.perf_counter()
    module.generate(ids, max_new_tokens=NEW, min_new_tokens=NEW, do_sample=False, pad_token_id=0)
    seconds = time.perf_counter() - began
    module.set_attn_implementation(ours)
    return streams * NEW / seconds
