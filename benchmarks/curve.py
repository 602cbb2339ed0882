"""Throughput and inter-token latency of the engine by number of streams: ``python -m benchmarks.curve``."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.engine import load_shape, running
from benchmarks.options import Options, options_of, options_parser
from benchmarks.record import Record
from benchmarks.subject import Plan, measure
from benchmarks.workloads import streams
from inference.engine.config import EngineConfig

COUNTS = (1, 2, 4, 8, 16, 32, 64)


def record(options: Options, counts: Sequence[int] = COUNTS) -> Record:
    makers = [streams(count) for count in counts]
    config = EngineConfig(max_batch_size=max(counts))
    with running(load_shape(options.shape, options), config) as engine:
        rows = measure([engine], makers, Plan(options.scale, options.rounds))
    return Record("curve", options.label, tuple(rows), notes=options.notes)


if __name__ == "__main__":
    parser = options_parser(__doc__)
    parser.add_argument("--counts", type=int, nargs="+", default=COUNTS)
    parsed = parser.parse_args()
    found = options_of(parsed)
    record(found, parsed.counts).save(found.results)
