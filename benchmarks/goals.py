"""The goals, and whether the records meet them. Speeds are compared as ratios within one run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.engine import ENGINE
from benchmarks.peers.servers import PEERS
from benchmarks.record import Record
from benchmarks.serve import SERVER
from benchmarks.subject import ratios

FULL = "qwen3-0.6b"
BFLOAT16, AVX2, AMX = "avx512_bf16", "avx2", "amx"


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

    def over_best_peer(self, workload: str, figure: str, label: str, *, at_most: bool = False) -> float | None:
        """Return the figure of our server over that of the peer which is best at it, in the record ``label``."""
        record = self.get("peers", f"{self.shape}-{label}")
        rows = {} if record is None else {r.subject: r for r in record.rows if r.workload == workload}
        found = [ratios(rows, figure, SERVER, peer) for peer in rows if peer in PEERS] if SERVER in rows else []
        known = [ratio for ratio in found if ratio is not None]
        return (max if at_most else min)(known, default=None)

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


def _bfloat16_goals(kind: str) -> tuple[Goal, ...]:
    """Return the goals for processors of a kind that multiply in bfloat16."""
    first, second = (f"{workload}, bf16, {kind.upper()}" for workload in ("W1", "W2"))
    return (
        Goal(first, "tok/s over the best peer", 1.25, lambda r: _tok_s(r, "W1", kind)),
        Goal(second, "tok/s over the best peer", 1.3, lambda r: _tok_s(r, "W2", kind)),
        Goal(second, "TTFT p50 over the best", 1, lambda r: _tail(r, "ttft_p50_s", kind), at_most=True),
        Goal(second, "TTFT p95 over the best", 1, lambda r: _tail(r, "ttft_p95_s", kind), at_most=True),
        Goal(second, "ITL p99 over the best", 1, lambda r: _tail(r, "itl_p99_s", kind), at_most=True),
    )


def _byte_goals(weights: str, kind: str) -> tuple[Goal, ...]:
    """Return the goals for weights of 8 bits on processors of a kind."""
    first, second = (f"{workload}, {weights}, {kind.upper()}" for workload in ("W1", "W2"))
    return (
        Goal(first, "tok/s over the best int8 peer", 1, lambda r: _tok_s(r, "W1", f"{weights}-{kind}")),
        Goal(second, "tok/s over the best int8 peer", 1, lambda r: _tok_s(r, "W2", f"{weights}-{kind}")),
    )


GOALS = (
    *_bfloat16_goals(BFLOAT16),
    *_bfloat16_goals(AMX),
    Goal("W1, bf16", "share of the memory limit", 0.85, lambda r: r.value("decoding", "share"), percent=True),
    Goal("W2, bf16, AVX2", "tok/s over the best peer", 1.3, lambda r: _tok_s(r, "W2", AVX2)),
    *_byte_goals("int8", BFLOAT16),
    *_byte_goals("w8a8", BFLOAT16),
    *_byte_goals("int8", AMX),
    *_byte_goals("w8a8", AMX),
    *_byte_goals("int8", AVX2),
    Goal("server overhead", "W1 over HTTP / engine", 0.95, lambda r: _http(r, "W1"), percent=True),
    Goal("server overhead", "W2 (16 streams) over HTTP / engine", 0.95, lambda r: _http(r, "W2"), percent=True),
    Goal("steering, add", "W3: K = 16 / K = 0", 0.97, lambda r: _steering(r, "add"), percent=True),
    Goal("steering, clamp", "W3: K = 16 / K = 0", 0.97, lambda r: _steering(r, "clamp"), percent=True),
    Goal("W4", "TTFT p50 with a shared prefix / without", 0.2, lambda r: r.prefix_cache(), at_most=True),
    Goal("W5", "ITL p99 / ITL p50", 2.0, lambda r: r.stall(), at_most=True),
    Goal(
        "batch invariance, bf16",
        "W2: tok/s with it / without",
        0.9,
        lambda r: r.value("invariance", "W2: batch invariant, tok/s over off", f"{FULL}-bfloat16"),
        percent=True,
    ),
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
    Goal(
        "GPU W2",
        "share of the time in which the device is idle",
        0.15,
        lambda r: r.value("gpu", "w2_idle"),
        percent=True,
        at_most=True,
    ),
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


def _tok_s(records: Records, workload: str, label: str) -> float | None:
    return records.over_best_peer(workload, "output_tok_s", label)


def _tail(records: Records, figure: str, label: str) -> float | None:
    return records.over_best_peer("W2", figure, label, at_most=True)


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
