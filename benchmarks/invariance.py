"""Cost of batch invariance: ``python -m benchmarks.invariance``. The same requests without and with it, in turns."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace

from benchmarks.engine import load_shape, running
from benchmarks.options import Options, options_of, options_parser
from benchmarks.record import Record
from benchmarks.subject import SETTLE_S, Plan, Row, echo, measure, ratios
from benchmarks.workloads import MAKERS
from inference.engine.config import EngineConfig

OFF, ON, AGAIN = "off", "batch invariant", "off again"
WORKLOADS = ("W1", "W2")
DTYPES = ("bfloat16", "float32")


def record(options: Options) -> Record:
    """Measure both modes. ``off again`` shows how reliable the ratios are."""
    names = [name for name in options.workloads if name in WORKLOADS]
    with ExitStack() as stack:
        loaded = load_shape(options.shape, options, device="cpu", batch_invariant="off")
        invariant = load_shape(options.shape, options, device="cpu", batch_invariant="on")
        subjects = [
            stack.enter_context(running(model, EngineConfig(), name=name))
            for name, model in ((OFF, loaded), (ON, invariant), (AGAIN, loaded))
        ]
        rows = measure(
            subjects, [MAKERS[name] for name in names], Plan(options.scale, options.rounds, settle_s=SETTLE_S)
        )
    values = {key: value for name in names for key, value in _ratios(rows, name).items()}
    echo(*(f"{value:8.3f}  {name}" for name, value in values.items()))
    return Record("invariance", options.label, tuple(rows), values, notes=options.notes)


def in_dtype(options: Options, dtype: str) -> Options:
    """Return the options for the shape in another dtype, which is part of its name."""
    return replace(options, shape=replace(options.shape, name=f"{options.shape.name}-{dtype}", dtype=dtype))


def _ratios(rows: list[Row], workload: str) -> dict[str, float]:
    """Return ratios to the mode off, the medians of the rounds."""
    by_name = {row.subject: row for row in rows if row.workload == workload}
    figures = {"tok/s": "output_tok_s", "TTFT p50": "ttft_p50_s", "ITL p50": "itl_p50_s"}
    found = {
        f"{workload}: {name}, {title} over off": ratios(by_name, figure, name, OFF)
        for name in (ON, AGAIN)
        for title, figure in figures.items()
    }
    return {key: ratio for key, ratio in found.items() if ratio is not None}


if __name__ == "__main__":
    parser = options_parser(__doc__)
    parser.add_argument("--dtypes", nargs="+", choices=("bfloat16", "float16", "float32"), default=DTYPES)
    parsed = parser.parse_args()
    for each in parsed.dtypes:
        chosen = in_dtype(options_of(parsed), each)
        record(chosen).save(chosen.results)
