"""Write the results section of benchmarks/README.md from the records: ``python -m benchmarks.report``."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.figures import Figures
from benchmarks.goals import FULL, Records, goals_table
from benchmarks.machine import Machine
from benchmarks.picture import PATH as PICTURE
from benchmarks.picture import SCALING, draw, draw_scaling, series
from benchmarks.record import RESULTS, Record, read_records
from benchmarks.subject import Row

README = Path(__file__).parent / "README.md"
BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"

COLUMNS: tuple[tuple[str, Callable[[Figures], float | None]], ...] = (
    ("out tok/s", lambda f: f.output_tok_s),
    ("total tok/s", lambda f: f.total_tok_s),
    ("tok/s of a stream", lambda f: f.decode_tok_s),
    ("TTFT p50 ms", lambda f: _ms(f.ttft_p50_s)),
    ("p95", lambda f: _ms(f.ttft_p95_s)),
    ("p99", lambda f: _ms(f.ttft_p99_s)),
    ("ITL p50 ms", lambda f: _ms(f.itl_p50_s)),
    ("p95", lambda f: _ms(f.itl_p95_s)),
    ("p99", lambda f: _ms(f.itl_p99_s)),
    ("latency p50 s", lambda f: f.latency_p50_s),
    ("p95", lambda f: f.latency_p95_s),
    ("p99", lambda f: f.latency_p99_s),
    ("peak MB", lambda f: f.peak_memory_mb),
)
TITLES = {
    "peers": "Comparison with other engines",
    "decoding": "One stream relative to memory bandwidth",
    "serve": "With and without HTTP",
    "engine_modes": "Kinds of engines and several web workers",
    "routing": "Simulated replicas",
    "engine": "Without HTTP",
    "steering": "Steering",
    "curve": "By number of streams",
    "speculation": "Prompt lookup",
    "invariance": "Batch invariance",
    "quality": "Quality with quantization",
    "gpu": "On a GPU",
    "scaling": "The engine's own costs",
    "limits": "Limits of the machine",
    "start": "Start",
    "media": "Audio and images",
    "console": "Pages with a large database",
    "jobs": "Batches and the jobs beside them",
    "soak": "Soak",
}


def results(records: Sequence[Record], picture: str) -> list[str]:
    """Return the whole section: the goals, then the record of each program and shape."""
    lines = ["## Goals", "", *goals_table(Records(records)), ""]
    if picture:
        lines += [f"![Throughput and inter-token latency by number of streams]({picture})", ""]
    order = list(TITLES)
    for record in sorted(records, key=lambda r: (order.index(r.program), r.shape != FULL, r.shape)):
        lines += section(record)
    return lines


def section(record: Record) -> list[str]:
    rounds = max((len(row.rounds) for row in record.rows), default=0)
    medians = f" Medians of {rounds} interleaved rounds." if rounds else ""
    lines = [f"## {TITLES[record.program]}: {record.shape}", "", f"{where(record.machine)}.{medians}", ""]
    if record.rows:
        lines += [*rows_table(record.rows), ""]
    if record.program == "scaling":
        lines += [*scaling_table(record), "", f"![The engine's own costs by n]({SCALING.name})", ""]
    else:
        lines += [f"- {name.replace('_', ' ')}: {value:.4g}" for name, value in record.values.items()]
    lines += [f"- {note}" for note in record.notes]
    return lines if lines[-1] == "" else [*lines, ""]


def where(machine: Machine) -> str:
    """Describe the machine, the date and the versions in one line."""
    place = f"{machine.accelerator} with {machine.cpu}" if machine.accelerator else machine.cpu
    versions = ", ".join(f"{name} {version}" for name, version in machine.versions.items())
    commit = f", commit {machine.commit}" if machine.commit else ""
    return (
        f"{machine.date}{commit}: {place}, {machine.cores} cores, {machine.memory_gib:.0f} GiB,"
        f" {machine.threads} threads, Python {machine.python}, {versions}"
    )


def rows_table(rows: Sequence[Row]) -> list[str]:
    """Return the table. Ratio: output tokens per second relative to the first subject on the same workload."""
    titles = ["workload", "subject", *(title for title, _ in COLUMNS), "ratio"]
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    first: dict[str, Row] = {}
    for row in rows:
        base = first.setdefault(row.workload, row)
        cells = [_number(read(row.median)) for _, read in COLUMNS]
        ratio = f"{row.median.output_tok_s / base.median.output_tok_s:.3f}"
        lines.append(f"| {' | '.join((row.workload, row.subject, *cells, ratio))} |")
    return lines


def scaling_table(record: Record) -> list[str]:
    """Return the costs of benchmarks.scaling: a row for each cost, with a cell for each ``n``."""
    lines = ["| n | cost of one | \u00b5s by n |", "|---|---|---|"]
    for (name, unit), costs in series(record).items():
        cells = ", ".join(f"{n:,}: {value:,.0f}" for n, value in costs.items())
        lines.append(f"| {name} | {unit} | {cells} |")
    return lines


def replace_section(text: str, lines: Sequence[str]) -> str:
    """Return ``text`` with the part between the markers replaced. Raise ValueError if it has no markers."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"The page must contain the markers {BEGIN} and {END}.")
    return f"{before}{BEGIN}\n\n" + "\n".join(lines).strip() + f"\n\n{END}{after}"


def write_report(folder: Path = RESULTS, readme: Path = README, picture: Path = PICTURE) -> None:
    records = read_records(folder)
    curves = sorted((r for r in records if r.program == "curve"), key=lambda r: r.shape != FULL)
    drawn = draw(curves[0], picture).name if curves else ""
    for record in records:
        if record.program == "scaling":
            draw_scaling(record, picture.with_name(SCALING.name))
    readme.write_text(replace_section(readme.read_text(), results(records, drawn)))


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--readme", type=Path, default=README)
    options = parser.parse_args()
    write_report(options.results, options.readme)
