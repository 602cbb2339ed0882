"""Decode speed of a single stream relative to the memory bandwidth: ``python -m benchmarks.decoding``.

Reading memory and decoding alternate, because the speed of a shared machine drifts within minutes. Each round is
compared with the bandwidth measured immediately before and after it.
"""

from __future__ import annotations

import itertools
import statistics

import torch

from benchmarks.engine import EngineSubject, load_shape, running
from benchmarks.figures import figures
from benchmarks.limits import READ_BYTES, read_bandwidth
from benchmarks.options import Options, parse_options
from benchmarks.record import Record
from benchmarks.subject import echo
from benchmarks.workloads import single
from inference.engine.config import EngineConfig
from inference.torch_threads import borrowed_workers

ROUNDS = 9
READ_S = 1.0


def record(options: Options, *, read_bytes: int = READ_BYTES, read_s: float = READ_S) -> Record:
    """Measure ``share``: the decode speed of W1 over the speed at which the weights could be read once per token."""
    if options.quantization:
        raise ValueError(f"Quantized weights are not supported here, got {options.quantization}.")
    with running(load_shape(options.shape, options), EngineConfig()) as engine:
        _decode_tok_s(engine, options, -1)
        readings, speeds = [_read(read_bytes, read_s)], []
        for number in range(options.rounds):
            speeds.append(_decode_tok_s(engine, options, number))
            readings.append(_read(read_bytes, read_s))
    limits = [(a + b) / 2 / options.shape.bytes_per_step for a, b in itertools.pairwise(readings)]
    shares = [speed / limit for speed, limit in zip(speeds, limits, strict=True)]
    values = {
        "share": statistics.median(shares),
        "lowest_share": min(shares),
        "highest_share": max(shares),
        "decode_tok_s": statistics.median(speeds),
        "limit_tok_s": statistics.median(limits),
    }
    echo(*(f"{name}: {value:.4g}" for name, value in values.items()))
    notes = (f"{options.rounds} alternating rounds of reading and decoding", *options.notes)
    return Record("decoding", options.label, values=values, notes=notes)


def _decode_tok_s(engine: EngineSubject, options: Options, seed: int) -> float:
    speed = figures(engine.run(single(options.scale, seed))).decode_tok_s
    assert speed is not None
    return speed


@borrowed_workers()
def _read(num_bytes: int, repeat_s: float) -> float:
    return read_bandwidth(torch.device("cpu"), num_bytes, repeat_s)


if __name__ == "__main__":
    found = parse_options(__doc__, rounds=ROUNDS)
    record(found).save(found.results)
