"""Check whether the engine has become slower (``make bench-check``). ``--write`` writes a new baseline.

Compares only counts, and ratios within one run, which are reliable on a busy machine too. If a ratio of times looks
worse, it is measured again and the best attempt counts, because noise makes figures worse more often than better.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from benchmarks.baseline import PATH, TOLERANCE, Change, Measure, compare, read_baseline, write_baseline
from benchmarks.counts import StepCounts, decode_counts
from benchmarks.engine import EngineSubject, running
from benchmarks.machine import this_machine
from benchmarks.peers.in_process import Generate, load_module
from benchmarks.profiles import KINDS
from benchmarks.scaling import QUEUE_CASES, growth
from benchmarks.shapes import DEFAULT_FOLDER, SHAPES, Shape, shape_folder
from benchmarks.steering import Steered
from benchmarks.subject import Plan, echo, measure, ratios
from benchmarks.workloads import Scale, streams
from inference.engine.config import EngineConfig
from inference.engine.models.facts import ModelSpec
from inference.engine.models.loader import LoadedModel, load_model

TRIES = 3
ROUNDS = 5
LONG = 512  # prompt tokens
STEERED = 16


def measure_counts(loaded: LoadedModel) -> dict[str, Measure]:
    """Return counts of decode steps and of the engine's own work, all of which are better if lower."""
    one, many = decode_counts(loaded, 1), decode_counts(loaded, 16)
    long = decode_counts(loaded, 16, prompt=LONG)
    found = _counts(_streams(1), one) | _counts(_streams(16), many)
    found["growth of Python calls from 16 to 512 prompt tokens"] = Measure(
        long.python_calls / many.python_calls, "lower"
    )
    for kind, profiles in KINDS.items():
        steered = decode_counts(loaded, 16, profiles=profiles(loaded, STEERED))
        found[f"{kind} K={STEERED}: Python calls / unsteered"] = Measure(
            steered.python_calls / many.python_calls, "lower"
        )
        found[f"{kind} K={STEERED}: torch operators / unsteered"] = Measure(steered.torch_ops / many.torch_ops, "lower")
    for case in QUEUE_CASES:
        found[f"growth of Python instructions a {case.unit}: {case.name}"] = Measure(growth(case), "lower")
    return found


def measure_ratios(loaded: LoadedModel, shape: Shape, path: Path, rounds: int, share: float) -> dict[str, Measure]:
    """Return ratios of speeds within interleaved rounds, all of which are better if higher."""
    plan, peer = Plan(Scale(shape.vocab, share), rounds), Generate(load_module(shape, path))
    with running(loaded, EngineConfig()) as engine:
        found = _versus_peer(engine, peer, plan)
    for kind, profiles in KINDS.items():  # a new engine each time, so that the prompts are not in its prefix cache
        with running(loaded, EngineConfig(), profiles(loaded, STEERED)) as engine:
            pair = [Steered(engine, "none", 0), Steered(engine, "steered", STEERED)]
            rows = {row.subject: row for row in measure(pair, [streams(16)], plan)}
            value = ratios(rows, "output_tok_s", "steered", "none")
            assert value is not None
            found[f"{kind} K={STEERED}: tok/s / unsteered"] = Measure(value, "higher")
    return found


def _versus_peer(engine: EngineSubject, peer: Generate, plan: Plan) -> dict[str, Measure]:
    found = {}
    for count in (1, 16):
        rows = {row.subject: row for row in measure([engine, peer], [streams(count)], plan)}
        value = ratios(rows, "output_tok_s", engine.name, peer.name)
        assert value is not None
        found[f"{_streams(count)}: tok/s / transformers generate"] = Measure(value, "higher")
    return found


def _counts(label: str, counts: StepCounts) -> dict[str, Measure]:
    return {
        f"{label}: Python calls a step": Measure(counts.python_calls, "lower"),
        f"{label}: torch operators a step": Measure(counts.torch_ops, "lower"),
        f"{label}: new tensor kB a step": Measure(counts.new_bytes / 1024, "lower"),
    }


def _streams(count: int) -> str:
    return f"{count} stream{'s' if count > 1 else ''}"


def judge(
    before: Mapping[str, Measure],
    count: Callable[[], Mapping[str, Measure]],
    time: Callable[[], Mapping[str, Measure]],
    tries: int = TRIES,
) -> list[Change]:
    """Compare with the baseline. While a figure looks worse, measure the times again, in up to ``tries`` attempts."""
    best, fixed = dict(time()), dict(count())
    for _ in range(tries - 1):
        if not any(change.is_failure() for change in compare(before, fixed | best)):
            break
        best = better_of(best, time())
    return compare(before, fixed | best)


def better_of(first: Mapping[str, Measure], second: Mapping[str, Measure]) -> dict[str, Measure]:
    """Return the better measure of each name. Both arguments have the same names."""
    return {
        name: Measure((max if one.better == "higher" else min)(one.value, second[name].value), one.better)
        for name, one in first.items()
    }


def table(changes: Sequence[Change]) -> list[str]:
    rows = ["| figure | baseline | now | loss | |", "|---|---|---|---|---|"]
    for change in changes:
        loss = "" if change.loss is None else f"{change.loss:+.1%}"
        verdict = "WORSE" if change.is_failure() else ""
        rows.append(f"| {change.name} | {_number(change.before)} | {_number(change.now)} | {loss} | {verdict} |")
    return rows


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the measured figures as the new baseline")
    parser.add_argument("--shape", choices=SHAPES, default="small")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--share", type=float, default=0.5)
    parser.add_argument("--folder", type=Path, default=DEFAULT_FOLDER)
    parser.add_argument("--baseline", type=Path, default=PATH)
    options = parser.parse_args(arguments)
    shape = SHAPES[options.shape]
    path = shape_folder(shape, options.folder)
    loaded = load_model(ModelSpec(shape.name, path, dtype=shape.dtype, device="cpu"))

    def count() -> Mapping[str, Measure]:
        return measure_counts(loaded)

    def time() -> Mapping[str, Measure]:
        return measure_ratios(loaded, shape, path, options.rounds, options.share)

    if options.write:
        tries = [time() for _ in range(TRIES)]
        write_baseline({**count(), **_medians(tries)}, this_machine().as_json(), options.baseline)
        return 0
    changes = judge(read_baseline(options.baseline), count, time)
    worse = [change.name for change in changes if change.is_failure()]
    echo("", *table(changes), "", f"Worse by more than {TOLERANCE:.0%}: {', '.join(worse) or 'none'}.")
    return int(bool(worse))


def _medians(tries: Sequence[Mapping[str, Measure]]) -> dict[str, Measure]:
    """Return the medians as the baseline, so that later runs are not compared with a lucky attempt."""
    return {
        name: Measure(statistics.median(one[name].value for one in tries), first.better)
        for name, first in tries[0].items()
    }


if __name__ == "__main__":
    sys.exit(main())
