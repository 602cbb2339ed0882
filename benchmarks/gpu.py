"""The figures of a GPU: ``make bench-gpu``. Requires only torch and transformers, no web server and no database.

Measures the engine and transformers' continuous batching in turns, with and without CUDA graphs and the flash kernel,
and the cost of steering with 64 profiles that add, clamp or do both. Prints the chosen kernels and the table, and saves
the figures.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace

import torch

from benchmarks.engine import ENGINE, load_shape, running
from benchmarks.limits import limits
from benchmarks.machine import this_machine
from benchmarks.options import Options, options_of, options_parser
from benchmarks.peers.in_process import GenerateBatch, load_module
from benchmarks.profiles import KINDS
from benchmarks.record import Record
from benchmarks.shapes import shape_folder
from benchmarks.steering import Steered
from benchmarks.subject import Plan, Row, Subject, echo, measure, ratios
from benchmarks.workloads import MAKERS, streams
from inference.engine.cache.device_memory import device_memory
from inference.engine.config import EngineConfig
from inference.interventions import Intervention

PEER = "transformers generate_batch"
NO_GRAPHS, NO_FLASH, PLAIN = "graphs off", "flash off", "graphs and flash off"
STEERED = 64
MAX_SEQ_LEN = 2048  # longer than every sequence here, and short enough that all caches fit into memory
CACHE_SHARE = 1 / 8  # of the free memory, for each of the engines
ENGINES: dict[str, EngineConfig] = {
    ENGINE: EngineConfig(),
    NO_GRAPHS: EngineConfig(cuda_graphs="off"),
    NO_FLASH: EngineConfig(attention_kernel="torch"),
    PLAIN: EngineConfig(cuda_graphs="off", attention_kernel="torch"),
}


def record(options: Options) -> Record:
    """Measure W1, W2, and 64 streams with and without 64 profiles, on the GPU or, without one, on the CPU."""
    found, plan = limits(options.shape), Plan(options.scale, options.rounds)
    loaded = load_shape(options.shape, options)
    module = load_module(options.shape, shape_folder(options.shape, options.folder))
    profiles: list[Intervention] = [p for make in KINDS.values() for p in make(loaded, STEERED)]
    share = int(device_memory(torch.device(loaded.device)).free * CACHE_SHARE)
    with ExitStack() as stack:
        engines = {
            name: stack.enter_context(running(loaded, _sized(config, share), profiles, name))
            for name, config in ENGINES.items()
        }
        peer = stack.enter_context(closing(GenerateBatch(module)))
        peers = [peer] if _runs(peer, plan) else []
        rows = measure([*engines.values(), *peers], [MAKERS["W1"], MAKERS["W2"]], plan)
        steered = [
            Steered(engines[name], _steered_name(name, kind, k), k, number * STEERED)
            for name in (ENGINE, NO_GRAPHS)
            for number, kind in enumerate(KINDS)
            for k in (0, STEERED)
        ]
        rows += measure(steered, [streams(STEERED)], plan)
    return Record("gpu", options.label, tuple(rows), values={**found, **derived(rows, found)})


def _runs(peer: Subject, plan: Plan) -> bool:
    """Return whether the peer works. One that does not must not prevent the other measurements."""
    try:
        peer.run(MAKERS["W1"](replace(plan.scale, share=plan.scale.share / 16), -2))
    except Exception as error:  # noqa: BLE001 - whatever another project's code raises
        echo(f"Skipping {peer.name}. {type(error).__name__}: {error}")
        return False
    return True


def derived(rows: Sequence[Row], found: Mapping[str, float]) -> dict[str, float]:
    """Return the figures that the goals need, and the gain of each engine option."""
    of = {workload: {row.subject: row for row in rows if row.workload == workload} for workload in ("W1", "W2")}
    steered = {row.subject: row for row in rows if row.workload == f"streams {STEERED}"}
    speed = of["W1"][ENGINE].median.decode_tok_s

    def cost(name: str, kind: str) -> float | None:
        return ratios(steered, "output_tok_s", _steered_name(name, kind, STEERED), _steered_name(name, kind, 0))

    values = {
        "w1_share_of_memory_limit": None if speed is None else speed / found["decode_tok_s"],
        "w2_over_generate_batch": ratios(of["W2"], "output_tok_s", ENGINE, PEER) if PEER in of["W2"] else None,
        "w1_over_graphs_off": ratios(of["W1"], "decode_tok_s", ENGINE, NO_GRAPHS),
        "w1_over_flash_off": ratios(of["W1"], "decode_tok_s", ENGINE, NO_FLASH),
        "w2_over_graphs_off": ratios(of["W2"], "output_tok_s", ENGINE, NO_GRAPHS),
        "w2_over_flash_off": ratios(of["W2"], "output_tok_s", ENGINE, NO_FLASH),
        "steered_over_unsteered": cost(ENGINE, "add"),
        "clamped_over_unsteered": cost(ENGINE, "clamp"),
        "steered_over_unsteered_graphs_off": cost(NO_GRAPHS, "add"),
        "clamped_over_unsteered_graphs_off": cost(NO_GRAPHS, "clamp"),
    }
    return {name: value for name, value in values.items() if value is not None}


def _sized(config: EngineConfig, kv_cache_bytes: int) -> EngineConfig:
    return replace(config, max_batch_size=STEERED, max_seq_len=MAX_SEQ_LEN, kv_cache_bytes=kv_cache_bytes)


def _steered_name(engine: str, kind: str, distinct: int) -> str:
    return f"{kind} K={distinct}" if engine == ENGINE else f"{kind} K={distinct}, {engine}"


def table(done: Record) -> list[str]:
    rows = [
        "| workload | subject | out tok/s | decode tok/s | TTFT p50 ms | p99 | ITL p50 ms | p99 |"
        " latency p50 ms | p99 |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in done.rows:
        m = row.median
        seconds = (
            *(m.ttft_p50_s, m.ttft_p99_s, m.itl_p50_s, m.itl_p99_s),
            *(m.latency_p50_s, m.latency_p99_s),
        )
        numbers = (m.output_tok_s, m.decode_tok_s, *map(_ms, seconds))
        cells = " | ".join("-" if number is None else f"{number:.4g}" for number in numbers)
        rows.append(f"| {row.workload} | {row.subject} | {cells} |")
    return [*rows, "", *(f"- {name}: {value:.4g}" for name, value in done.values.items())]


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000


def main() -> None:
    options = options_of(options_parser(__doc__, shape="qwen3-0.6b").parse_args())
    logging.basicConfig(
        level=logging.INFO, format="%(message)s"
    )  # shows the chosen kernels and why others were not chosen
    machine = this_machine()
    if not torch.cuda.is_available():
        echo("There is no GPU. Measuring the CPU.")
    done = record(options)
    versions = ", ".join(f"{name} {version}" for name, version in machine.versions.items())
    echo("", f"{machine.accelerator or machine.cpu}; {versions}; {options.shape.name}", "", *table(done))
    done.save(options.results)


if __name__ == "__main__":
    main()
