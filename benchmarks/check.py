"""Has the engine become slower? ``make bench-check``; ``--write`` makes what is measured now the new baseline.

Counts and ratios of one run only: they hold on a busy machine too. A ratio of times that looks worse is measured again,
and the best of the tries counts: noise makes figures worse more often than better.
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
from benchmarks.profiles import KINDS
from benchmarks.shapes import DEFAULT_FOLDER, SHAPES, Shape, shape_folder
from benchmarks.steering import Steered
from benchmarks.subject import Plan, measure, ratios, say
from benchmarks.transformers_peers import Generate, load_module
from benchmarks.workloads import Scale, streams
from inference.engine.config import EngineConfig
from inference.engine.models.loader import LoadedModel, ModelSpec, load_model

TRIES = 3
ROUNDS = 5
LONG = 512  # prompt tokens
STEERED = 16


def counted(loaded: LoadedModel) -> dict[str, Measure]:
    """Counts of decode steps; all are better when they are lower."""
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
    return found


def timed(loaded: LoadedModel, shape: Shape, path: Path, rounds: int, share: float) -> dict[str, Measure]:
    """Ratios of times within interleaved rounds; all are better when they are higher."""
    plan, peer = Plan(Scale(shape.vocab, share), rounds), Generate(load_module(shape, path))
    with running(loaded, EngineConfig()) as engine:
        found = _against(engine, peer, plan)
    for kind, profiles in KINDS.items():  # each with an engine whose prefix cache has none of the prompts
        with running(loaded, EngineConfig(), profiles(loaded, STEERED)) as engine:
            pair = [Steered(engine, "none", 0), Steered(engine, "steered", STEERED)]
            rows = {row.subject: row for row in measure(pair, [streams(16)], plan)}
            value = ratios(rows, "output_tok_s", "steered", "none")
            assert value is not None
            found[f"{kind} K={STEERED}: tok/s / unsteered"] = Measure(value, "higher")
    return found


def _against(engine: EngineSubject, peer: Generate, plan: Plan) -> dict[str, Measure]:
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
    """Compare; times are taken again, up to ``tries`` times, as long as one looks worse."""
    best, fixed = dict(time()), dict(count())
    for _ in range(tries - 1):
        if not any(change.is_failure() for change in compare(before, fixed | best)):
            break
        best = better_of(best, time())
    return compare(before, fixed | best)


def better_of(first: Mapping[str, Measure], second: Mapping[str, Measure]) -> dict[str, Measure]:
    """Name by name; both have the same names."""
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
    parser.add_argument("--write", action="store_true", help="make the measured figures the baseline")
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
        return counted(loaded)

    def time() -> Mapping[str, Measure]:
        return timed(loaded, shape, path, options.rounds, options.share)

    if options.write:
        tries = [time() for _ in range(TRIES)]
        write_baseline({**count(), **_middle(tries)}, this_machine().as_json(), options.baseline)
        return 0
    changes = judge(read_baseline(options.baseline), count, time)
    worse = [change.name for change in changes if change.is_failure()]
    say("", *table(changes), "", f"Worse by more than {TOLERANCE:.0%}: {', '.join(worse) or 'nothing'}.")
    return int(bool(worse))


def _middle(tries: Sequence[Mapping[str, Measure]]) -> dict[str, Measure]:
    """The baseline of a time is its median: the best try of a later run must come near it, not beat luck."""
    return {
        name: Measure(statistics.median(one[name].value for one in tries), first.better)
        for name, first in tries[0].items()
    }


if __name__ == "__main__":
    sys.exit(main())
