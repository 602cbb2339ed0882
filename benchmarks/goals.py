"""The goals, and whether the records meet them. Speeds are compared as ratios within one run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.engine import ENGINE
from benchmarks.record import Record
from benchmarks.serve import SERVER
from benchmarks.subject import ratios

FULL = "qwen3-0.6b"
VLLM = "vLLM"
LLAMA_Q8 = "llama.cpp Q8_0"


@dataclass(frozen=True, slots=True)
class Goal:
    """A goal. It is met if the figure is at least ``bound``, or with ``at_most``, at most ``bound``."""

    topic: str
    text: str
    bound: float
    measure: Callable[[Records], float | None]
    at_most: bool = False
    percent: bool = False

    def verdict(self, measured: float | None) -> str:
        if measured is None:
            return "not measured"
        is_met = measured <= self.bound if self.at_most else measured >= self.bound
        return "met" if is_met else "missed"


class Records:
    """Finds figures of the records of one shape."""

    def __init__(self, records: Sequence[Record], shape: str = FULL) -> None:
        self.shape = shape
        self._records = {(record.program, record.shape): record for record in records}

    def get(self, program: str, shape: str = "") -> Record | None:
        return self._records.get((program, shape or self.shape))

    def value(self, program: str, name: str, shape: str = "") -> float | None:
        record = self.get(program, shape)
        return None if record is None else record.values.get(name)

    def ratio(
        self, program: str, workload: str, figure: str, above: str, below: str, *, shape: str = ""
    ) -> float | None:
        """Return the ratio of the figures of two subjects on a workload of the same run."""
        record = self.get(program, shape)
        rows = {} if record is None else {r.subject: r for r in record.rows if r.workload == workload}
        return ratios(rows, figure, above, below) if above in rows and below in rows else None

    def figure(self, program: str, workload: str, subject: str, figure: str) -> float | None:
        record = self.get(program)
        row = None if record is None else record.row(subject, workload)
        found: float | None = None if row is None else getattr(row.median, figure)
        return found

    def prefix_cache(self) -> float | None:
        return _quotient(
            self.figure("serve", "W4", SERVER, "ttft_p50_s"),
            self.figure("serve", "W4 unshared", SERVER, "ttft_p50_s"),
        )

    def stall(self) -> float | None:
        return _quotient(
            self.figure("serve", "W5", SERVER, "itl_p99_s"), self.figure("serve", "W5", SERVER, "itl_p50_s")
        )


GOALS = (
    Goal("W1, CPU bf16", "tok/s over vLLM's CPU build", 1.25, lambda r: _over(r, "W1", "output_tok_s", VLLM)),
    Goal("W1, CPU bf16", "share of the memory limit", 0.8, lambda r: r.value("decoding", "share"), percent=True),
    Goal(
        "W1, CPU int8",
        "tok/s over llama.cpp Q8_0",
        1.0,
        lambda r: r.ratio("peers", "W1", "output_tok_s", SERVER, LLAMA_Q8, shape=f"{r.shape}-int8"),
    ),
    Goal("W2, CPU bf16", "tok/s over vLLM's CPU build", 1.3, lambda r: _over(r, "W2", "output_tok_s", VLLM)),
    Goal("W2, CPU bf16", "TTFT p50 over vLLM's", 1.0, lambda r: _over(r, "W2", "ttft_p50_s", VLLM), at_most=True),
    Goal("server overhead", "W1 over HTTP / engine", 0.95, lambda r: _http(r, "W1"), percent=True),
    Goal("server overhead", "W2 (16 streams) over HTTP / engine", 0.95, lambda r: _http(r, "W2"), percent=True),
    Goal("steering, add", "W3: K = 16 / K = 0", 0.97, lambda r: _steering(r, "add"), percent=True),
    Goal("steering, clamp", "W3: K = 16 / K = 0", 0.97, lambda r: _steering(r, "clamp"), percent=True),
    Goal("W4", "TTFT p50 with a shared prefix / without", 0.2, lambda r: r.prefix_cache(), at_most=True),
    Goal("W5", "ITL p99 / ITL p50", 2.0, lambda r: r.stall(), at_most=True),
    Goal(
        "start",
        "s until the demo answers, second start",
        10,
        lambda r: r.value("start", "second_start_s", "demo"),
        at_most=True,
    ),
    Goal("idle", "MB without a model", 600, lambda r: r.value("start", "idle_mb", "demo"), at_most=True),
    Goal(
        "GPU W1", "share of the memory limit", 0.7, lambda r: r.value("gpu", "w1_share_of_memory_limit"), percent=True
    ),
    Goal("GPU W2", "tok/s over transformers' generate_batch", 3.0, lambda r: r.value("gpu", "w2_over_generate_batch")),
    Goal("GPU steering", "K = 64 / K = 0", 0.97, lambda r: r.value("gpu", "steered_over_unsteered"), percent=True),
)


def goals_table(records: Records) -> list[str]:
    rows = ["| | figure | goal | measured | |", "|---|---|---|---|---|"]
    for goal in GOALS:
        measured = goal.measure(records)
        sign = "≤" if goal.at_most else "≥"
        cells = (goal.topic, goal.text, f"{sign} {_number(goal.bound, goal)}", _number(measured, goal))
        rows.append(f"| {' | '.join(cells)} | {goal.verdict(measured)} |")
    return rows


def _over(records: Records, workload: str, figure: str, peer: str) -> float | None:
    return records.ratio("peers", workload, figure, SERVER, peer)


def _http(records: Records, workload: str) -> float | None:
    return records.ratio("serve", workload, "output_tok_s", SERVER, ENGINE)


def _steering(records: Records, kind: str) -> float | None:
    return records.ratio("steering", "W3", "output_tok_s", f"W3 {kind} K=16", f"W3 {kind} K=0")


def _quotient(above: float | None, below: float | None) -> float | None:
    return above / below if above is not None and below else None


def _number(value: float | None, goal: Goal) -> str:
    if value is None:
        return "-"
    return f"{value:.1%}" if goal.percent else f"{value:.3g}"
