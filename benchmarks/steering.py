"""The cost of steering: ``python -m benchmarks.steering``. Measures profiles that add, clamp or do both.

Runs W3, and 16 streams with K distinct profiles resident. In the latter, up to 256 profiles take turns over batches of
16 streams. The number of batches is the same for every K, so that tables of any size are compared at the same work.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from benchmarks.engine import EngineSubject, load_shape, running
from benchmarks.figures import Trace
from benchmarks.options import Options, options_of, options_parser
from benchmarks.profiles import KINDS
from benchmarks.record import Record
from benchmarks.subject import Plan, measure
from benchmarks.workloads import Job, Maker, Scale, Workload, steered, streams
from inference.engine.config import EngineConfig

STREAMS = 16
DISTINCT = (0, 1, 4, 16, 64, 256)
W3_DISTINCT = (0, 1, 4, 16)


class Steered:
    """An engine subject whose jobs use K of its profiles in turn, starting with ``first``.

    Prompts are rotated by ``turn`` tokens, so that subjects on one engine do not share prefixes.
    """

    def __init__(self, engine: EngineSubject, name: str, distinct: int, first: int = 0, turn: int = 0) -> None:
        self.name = name
        self._engine = engine
        self._distinct = distinct
        self._first = first
        self._turn = turn

    def run(self, workload: Workload) -> list[Trace]:
        turned = [replace(job, prompt=job.prompt[self._turn :] + job.prompt[: self._turn]) for job in workload.jobs]
        return self._engine.run(replace(workload, jobs=steered_jobs(turned, self._distinct, self._first)))

    def settle(self) -> None:
        self._engine.settle()

    def peak_memory_mb(self) -> float | None:
        return self._engine.peak_memory_mb()


def steered_jobs(jobs: Sequence[Job], distinct: int, first: int = 0) -> tuple[Job, ...]:
    """Return the jobs with ``distinct`` profiles in turn, starting with the number ``first``; unsteered for 0."""
    return tuple(replace(job, profile=first + i % distinct if distinct else None) for i, job in enumerate(jobs))


def record(options: Options, distinct: Sequence[int] = DISTINCT) -> Record:
    loaded = load_shape(options.shape, options)
    plan, most = Plan(options.scale, options.rounds), max(*distinct, *W3_DISTINCT)
    rows = []
    for kind, profiles in KINDS.items():
        config = EngineConfig(max_batch_size=STREAMS, max_waiting_requests=max(most, STREAMS))
        with running(loaded, config, profiles(loaded, most)) as engine:
            subjects = [Steered(engine, f"{kind} K={k}", k) for k in distinct]
            rows += measure(subjects, [resident(max(most, STREAMS))], plan)
            if "W3" in options.workloads:
                w3 = [Steered(engine, f"W3 {kind} K={k}", k) for k in W3_DISTINCT]
                rows += measure(w3, [_w3], plan)
    return Record("steering", options.label, tuple(rows), notes=(f"{STREAMS} streams at once", *options.notes))


def _w3(scale: Scale, seed: int) -> Workload:
    """Return the jobs of W2. The subject decides which of them are steered."""
    return replace(steered(0)(scale, seed), name="W3")


def resident(count: int) -> Maker:
    """Return the maker of ``count`` requests, STREAMS of which run at once, with all of their profiles resident."""

    def make(scale: Scale, seed: int) -> Workload:
        workload = streams(count)(replace(scale, share=scale.share / 4), seed)
        return replace(workload, name="resident", note=f"{count} requests, {STREAMS} at once, K profiles among them")

    return make


if __name__ == "__main__":
    parser = options_parser(__doc__)
    parser.add_argument("--distinct", type=int, nargs="+", default=DISTINCT)
    parsed = parser.parse_args()
    found = options_of(parsed)
    record(found, parsed.distinct).save(found.results)
