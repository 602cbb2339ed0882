"""Gain and cost of prompt lookup: ``python -m benchmarks.speculation``. Sends the same requests without and with it.

``looping`` answers greedily, which soon repeats itself with random weights: most drafts are accepted. ``random``
samples from the whole vocabulary: almost nothing is drafted. ``misleading`` samples from few words, whose pairs occur
again but are followed by another word each time: most drafts are rejected.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace

from benchmarks.engine import EngineSubject, load_shape, running
from benchmarks.options import Options, options_of, options_parser
from benchmarks.record import Record
from benchmarks.subject import Plan, Row, echo, measure, ratios
from benchmarks.tokenizer import FIRST_WORD
from benchmarks.workloads import Maker, Scale, Workload, streams
from inference.engine.config import EngineConfig
from inference.engine.messages import SamplingParams

COUNTS = (1, 8)
NUM_WORDS = 24
OFF = "off"
ON = EngineConfig(speculative_method="prompt_lookup")
CONFIGS: Mapping[str, EngineConfig] = {
    OFF: EngineConfig(),
    "prompt lookup": ON,
    "of 8 tokens": replace(ON, num_speculative_tokens=8),
    "always": replace(ON, min_speculative_gain=0.0),
    "off again": EngineConfig(),  # shows how reliable the ratios are
}
KINDS: Mapping[str, SamplingParams] = {
    "looping": SamplingParams(temperature=0.0, ignore_eos=True),
    "random": SamplingParams(temperature=1.0, ignore_eos=True),
    "misleading": SamplingParams(
        temperature=1.0, ignore_eos=True, allowed_token_ids=tuple(range(FIRST_WORD, FIRST_WORD + NUM_WORDS))
    ),
}


def record(options: Options, counts: Sequence[int] = COUNTS) -> Record:
    loaded = load_shape(options.shape, options)
    with ExitStack() as stack:
        engines = [stack.enter_context(running(loaded, config, name=name)) for name, config in CONFIGS.items()]
        rows: list[Row] = []
        values: dict[str, float] = {}
        for kind, sampling in KINDS.items():
            for count in counts:
                found, shares = _measured(engines, sampling, _long_answers(kind, count), options)
                rows += found
                values |= shares | _gains(found)
    return Record("speculation", options.label, tuple(rows), values)


def _measured(
    engines: Sequence[EngineSubject], sampling: SamplingParams, maker: Maker, options: Options
) -> tuple[list[Row], dict[str, float]]:
    """Return the rows, and the share of drafted tokens and of accepted drafts for each engine."""
    subjects = [engine.with_sampling(sampling) for engine in engines]
    before = [engine.draft_counts() for engine in engines]
    rows = measure(subjects, [maker], Plan(options.scale, options.rounds))
    shares = {}
    for row, engine, (drafted, accepted) in zip(rows, engines, before, strict=True):
        all_drafted, all_accepted = engine.draft_counts()
        if all_drafted > drafted:
            name = f"{row.workload}: {row.subject}"
            shares[f"{name}, tokens guessed of those made"] = (all_drafted - drafted) / _num_made(row, options)
            shares[f"{name}, guesses right"] = (all_accepted - accepted) / (all_drafted - drafted)
    return rows, shares


def _num_made(row: Row, options: Options) -> float:
    """Return the number of generated tokens, including the warm-up round."""
    return row.median.completion_tokens * (options.rounds + 1)


def _gains(rows: Sequence[Row]) -> dict[str, float]:
    """Return the speedup by speculation in output tokens per second, the median of the rounds."""
    by_name = {row.subject: row for row in rows}
    found = {name: ratios(by_name, "output_tok_s", name, OFF) for name in by_name if name != OFF}
    return {f"{rows[0].workload}: {name}, tok/s over off": ratio for name, ratio in found.items() if ratio is not None}


def _long_answers(kind: str, count: int) -> Maker:
    """Return the maker of a workload with answers of three times the usual length, so that texts can repeat."""

    def make(scale: Scale, seed: int) -> Workload:
        workload = streams(count)(scale, seed)
        jobs = tuple(replace(job, new=3 * job.new) for job in workload.jobs)
        return Workload(f"{kind} {count}", f"{count} streams: 128 prompt tokens, 192 new", jobs)

    return make


if __name__ == "__main__":
    parser = options_parser(__doc__)
    parser.add_argument("--counts", type=int, nargs="+", default=COUNTS)
    parsed = parser.parse_args()
    chosen = options_of(parsed)
    measured = record(chosen, parsed.counts)
    echo(*(f"{value:8.3f}  {name}" for name, value in measured.values.items()))
    measured.save(chosen.results)
