"""The figures of a GPU: ``make bench-gpu``. Requires only torch and transformers, no web server and no database.

Measures the engine in turns, with and without CUDA graphs and attention kernels, the cost of steering with 64 profiles
that add, clamp or do both, and transformers' continuous batching. Compares every option of the engine with plain torch,
unsteered and steered, and at last writes a profile with the share of time in which the device is idle. Prints the
chosen kernels and the table, saves the figures, and exits with 1 and a diagnosis if a step fails or differs.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace

import torch

from benchmarks.engine import ENGINE, EngineSubject, load_shape, running
from benchmarks.gpu_checks import Check, Steps, check_options, profiled
from benchmarks.limits import limits
from benchmarks.machine import this_machine
from benchmarks.options import Options, options_of, options_parser
from benchmarks.peers.in_process import GenerateBatch, load_module
from benchmarks.profiles import KINDS
from benchmarks.record import Record
from benchmarks.shapes import shape_folder
from benchmarks.steering import Steered
from benchmarks.subject import Plan, Row, echo, measure, ratios, works
from benchmarks.workloads import MAKERS, streams
from inference.engine.cache.device_memory import device_memory
from inference.engine.config import EngineConfig
from inference.interventions import Intervention

PEER = "transformers generate_batch"
NO_GRAPHS, NO_KERNEL, PLAIN = "graphs off", "torch attention", "graphs off, torch attention"
STEERED = 64
CHECKED = 8  # streams of the self-check
MINUTES = 8.0
MAX_SEQ_LEN = 2048  # longer than every sequence here, and short enough that all caches fit into memory
MAX_PREFILL_TOKENS = 4096
CACHE_SHARE = 1 / 8  # of the free memory, for each of the engines
ENGINES: dict[str, EngineConfig] = {
    ENGINE: EngineConfig(),
    NO_GRAPHS: EngineConfig(cuda_graphs="off"),
    NO_KERNEL: EngineConfig(attention_kernel="torch"),
    PLAIN: EngineConfig(cuda_graphs="off", attention_kernel="torch"),
}


class Gpu:
    """The engines of one run, one for each option. ``failures`` are the steps that failed."""

    def __init__(
        self,
        options: Options,
        stack: ExitStack,
        minutes: float = MINUTES,
        engines: Mapping[str, EngineConfig] = ENGINES,
    ) -> None:
        self._options, self._stack = options, stack
        self._plan = Plan(options.scale, options.rounds)
        self._steps = Steps(minutes * 60, echo)
        self._configs = engines
        self._engines: dict[str, EngineSubject] = {}
        self._rows: list[Row] = []
        self._checks: list[Check] = []
        self._values: dict[str, float] = {}

    @property
    def failures(self) -> list[str]:
        return [*self._steps.failures, *(str(check) for check in self._checks if not check.is_right)]

    def record(self) -> Record:
        """Start the engines, check them, and measure W1, W2, and 64 streams with and without 64 profiles."""
        self._steps("limits of the device", self._limits)
        self._steps("engines", self._start)
        if self._engines:
            self._steps("W1 and W2", self._measure)
            self._steps(f"{STEERED} streams with {STEERED} profiles", self._steer)
            if PLAIN in self._engines:
                self._steps(f"W2 of {PEER}", self._compare)
                self._steps("self-check: every option against plain torch", self._check)
            self._steps("profile of W2", self._trace)  # last: the device is slower once it was profiled
        self._values |= derived(self._rows, self._values)
        notes = (*self._options.notes, *map(str, self._checks), *self._steps.failures)
        return Record("gpu", self._options.label, tuple(self._rows), values=self._values, notes=notes)

    def _limits(self) -> None:
        self._values |= limits(self._options.shape)

    def _start(self) -> None:
        loaded = load_shape(self._options.shape, self._options)
        profiles: list[Intervention] = [p for make in KINDS.values() for p in make(loaded, STEERED)]
        share = int(device_memory(torch.device(loaded.device)).free * CACHE_SHARE)
        for name, config in self._configs.items():
            engine = running(loaded, _sized(config, share), profiles, name)
            self._engines[name] = self._stack.enter_context(engine)

    def _check(self) -> None:
        workload = streams(CHECKED)(replace(self._plan.scale, share=self._plan.scale.share / 4), -3)
        for check in check_options(self._engines, PLAIN, list(KINDS), STEERED, workload):
            echo(str(check))
            self._checks.append(check)

    def _measure(self) -> None:
        self._rows += measure(list(self._engines.values()), [MAKERS["W1"], MAKERS["W2"]], self._plan)

    def _compare(self) -> None:
        """Measure the peer on one round of W2, because it takes long."""
        options = self._options
        peer = GenerateBatch(load_module(options.shape, shape_folder(options.shape, options.folder)))
        self._stack.enter_context(closing(peer))
        if works(peer, MAKERS["W1"], self._plan.scale):
            plan = replace(self._plan, rounds=1, warm_up=False)
            compared = measure([self._engines[ENGINE], peer], [MAKERS["W2"]], plan)
            self._rows += [row for row in compared if row.subject == PEER]
            rows = {row.subject: row for row in compared}
            if (gain := ratios(rows, "output_tok_s", ENGINE, PEER)) is not None:
                self._values["w2_over_generate_batch"] = gain

    def _trace(self) -> None:
        path = self._options.folder / "gpu-trace.json"
        self._engines[ENGINE].run(MAKERS["W2"](self._plan.scale, -5))  # graphs are captured and kernels are compiled
        profile = profiled(self._engines[ENGINE], MAKERS["W2"](self._plan.scale, -4), path)
        echo(*profile.lines())
        if profile.idle is not None:
            self._values["w2_idle"] = profile.idle

    def _steer(self) -> None:
        steered = [
            Steered(self._engines[name], _steered_name(name, kind, k), k, number * STEERED, turn=number)
            for name in (ENGINE, NO_GRAPHS)
            if name in self._engines
            for number, kind in enumerate(KINDS)
            for k in (0, STEERED)
        ]
        for subject in steered:
            subject.run(streams(STEERED)(self._plan.scale, -6))
            subject.settle()  # the engines share a module, so only one of them may use it
        self._rows += measure(steered, [streams(STEERED)], self._plan)


def record(options: Options) -> Record:
    """Run everything on the GPU or, without one, on the CPU."""
    with ExitStack() as stack:
        return Gpu(options, stack).record()


def derived(rows: Sequence[Row], found: Mapping[str, float]) -> dict[str, float]:
    """Return the figures that the goals need, and the gain of each engine option, of what was measured."""
    of = {workload: {row.subject: row for row in rows if row.workload == workload} for workload in ("W1", "W2")}
    steered = {row.subject: row for row in rows if row.workload == f"streams {STEERED}"}
    speed = of["W1"][ENGINE].median.decode_tok_s if ENGINE in of["W1"] else None
    limit = found.get("decode_tok_s")

    def ratio(rows: Mapping[str, Row], figure: str, above: str, below: str) -> float | None:
        return ratios(rows, figure, above, below) if above in rows and below in rows else None

    def cost(name: str, kind: str) -> float | None:
        return ratio(steered, "output_tok_s", _steered_name(name, kind, STEERED), _steered_name(name, kind, 0))

    values = {
        "w1_share_of_memory_limit": None if speed is None or limit is None else speed / limit,
        "w1_over_graphs_off": ratio(of["W1"], "decode_tok_s", ENGINE, NO_GRAPHS),
        "w1_over_torch_attention": ratio(of["W1"], "decode_tok_s", ENGINE, NO_KERNEL),
        "w2_over_graphs_off": ratio(of["W2"], "output_tok_s", ENGINE, NO_GRAPHS),
        "w2_over_torch_attention": ratio(of["W2"], "output_tok_s", ENGINE, NO_KERNEL),
        "steered_over_unsteered": cost(ENGINE, "add"),
        "clamped_over_unsteered": cost(ENGINE, "clamp"),
        "steered_over_unsteered_graphs_off": cost(NO_GRAPHS, "add"),
        "clamped_over_unsteered_graphs_off": cost(NO_GRAPHS, "clamp"),
    }
    return {name: value for name, value in values.items() if value is not None}


def _sized(config: EngineConfig, kv_cache_bytes: int) -> EngineConfig:
    return replace(
        config,
        max_batch_size=STEERED,
        max_prefill_tokens=MAX_PREFILL_TOKENS,
        max_seq_len=MAX_SEQ_LEN,
        kv_cache_bytes=kv_cache_bytes,
    )


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
    parser = options_parser(__doc__, shape="qwen3-0.6b")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="no step begins after these minutes")
    parser.add_argument("--quick", action="store_true", help="only the engine as it is configured, without the peer")
    parsed = parser.parse_args()
    options = options_of(parsed)
    logging.basicConfig(
        level=logging.INFO, format="%(message)s"
    )  # shows the chosen kernels and why others were not chosen
    machine = this_machine()
    if not torch.cuda.is_available():
        echo("There is no GPU. Measuring the CPU.")
    with ExitStack() as stack:
        engines = {ENGINE: ENGINES[ENGINE]} if parsed.quick else ENGINES
        gpu = Gpu(options, stack, parsed.minutes, engines)
        done = gpu.record()
        versions = ", ".join(f"{name} {version}" for name, version in machine.versions.items())
        echo("", f"{machine.accelerator or machine.cpu}; {versions}; {options.shape.name}", "", *table(done))
        done.save(options.results)
    if gpu.failures:
        echo("", "Failed:", *(f"- {failure}" for failure in gpu.failures))
        sys.exit(1)


if __name__ == "__main__":
    main()
