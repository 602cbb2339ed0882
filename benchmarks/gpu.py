"""The GPU's rows, on a machine that has nothing but torch and transformers: ``make bench-gpu``.

No web server and no database: the engine itself beside transformers' continuous batching, in turns, and the cost of
steering with 64 profiles. Prints the table and saves the figures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing

import torch

from benchmarks.engine import ENGINE, load_shape, running
from benchmarks.limits import limits
from benchmarks.machine import this_machine
from benchmarks.options import Options, options_of, options_parser
from benchmarks.profiles import adding
from benchmarks.record import Record
from benchmarks.shapes import shape_folder
from benchmarks.steering import Steered
from benchmarks.subject import Plan, Row, measure, ratios, say
from benchmarks.transformers_peers import GenerateBatch, load_module
from benchmarks.workloads import MAKERS, streams
from inference.engine.config import EngineConfig

PEER = "transformers generate_batch"
STEERED = 64


def record(options: Options) -> Record:
    """W1, W2 and 64 streams with and without 64 profiles, wherever torch runs; the GPU where there is one."""
    found, plan = limits(options.shape), Plan(options.scale, options.rounds)
    loaded = load_shape(options.shape, options)
    module = load_module(options.shape, shape_folder(options.shape, options.folder))
    config = EngineConfig(max_batch_size=STEERED)
    with ExitStack() as stack:
        engine = stack.enter_context(running(loaded, config, adding(loaded, STEERED)))
        peer = stack.enter_context(closing(GenerateBatch(module)))
        rows = measure([engine, peer], [MAKERS["W1"], MAKERS["W2"]], plan)
        pair = [Steered(engine, f"add K={k}", k) for k in (0, STEERED)]
        rows += measure(pair, [streams(STEERED)], plan)
    return Record("gpu", options.label, tuple(rows), values={**found, **derived(rows, found)})


def derived(rows: Sequence[Row], found: Mapping[str, float]) -> dict[str, float]:
    """What the goals ask, of this one run."""
    of = {workload: {row.subject: row for row in rows if row.workload == workload} for workload in ("W1", "W2")}
    steered = {row.subject: row for row in rows if row.workload == f"streams {STEERED}"}
    speed = of["W1"][ENGINE].median.decode_tok_s
    values = {
        "w1_share_of_memory_limit": None if speed is None else speed / found["decode_tok_s"],
        "w2_over_generate_batch": ratios(of["W2"], "output_tok_s", ENGINE, PEER),
        "steered_over_unsteered": ratios(steered, "output_tok_s", f"add K={STEERED}", "add K=0"),
    }
    return {name: value for name, value in values.items() if value is not None}


def table(done: Record) -> list[str]:
    rows = [
        "| workload | subject | out tok/s | decode tok/s | TTFT p50 ms | ITL p50 ms | ITL p99 ms |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in done.rows:
        m = row.median
        numbers = (m.output_tok_s, m.decode_tok_s, _ms(m.ttft_p50_s), _ms(m.itl_p50_s), _ms(m.itl_p99_s))
        cells = " | ".join("-" if number is None else f"{number:.4g}" for number in numbers)
        rows.append(f"| {row.workload} | {row.subject} | {cells} |")
    return [*rows, "", *(f"- {name}: {value:.4g}" for name, value in done.values.items())]


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000


def main() -> None:
    options = options_of(options_parser(__doc__, shape="qwen3-0.6b").parse_args())
    machine = this_machine()
    if not torch.cuda.is_available():
        say("No GPU here: these are the CPU's figures.")
    done = record(options)
    versions = ", ".join(f"{name} {version}" for name, version in machine.versions.items())
    say("", f"{machine.accelerator or machine.cpu}; {versions}; {options.shape.name}", "", *table(done))
    done.save(options.results)


if __name__ == "__main__":
    main()
