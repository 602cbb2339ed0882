"""Plots of throughput and inter-token latency by number of streams, and of the engine's own costs by ``n``."""

from __future__ import annotations

from pathlib import Path

from benchmarks.record import Record

PATH = Path(__file__).parent / "streams.png"
SCALING = PATH.with_name("scaling.png")
COLUMNS = 4
BLUE, ORANGE = "#2563eb", "#ea580c"


def draw(record: Record, path: Path = PATH) -> Path:
    """Plot a record of benchmarks.curve. The axis is logarithmic, because the number of streams doubles per point."""
    from matplotlib.figure import Figure

    rows = sorted(record.rows, key=lambda row: row.median.requests)
    counts = [row.median.requests for row in rows]
    figure = Figure(figsize=(8, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.plot(counts, [row.median.output_tok_s for row in rows], "o-", color=BLUE)
    left.set(title="Throughput", ylabel="generated tokens / s")
    for name, style in (("itl_p50_s", "o-"), ("itl_p99_s", "o--")):
        milliseconds = [1000 * (getattr(row.median, name) or 0.0) for row in rows]
        right.plot(counts, milliseconds, style, color=ORANGE, label=name[4:7])
    right.set(title="Time between a stream's tokens", ylabel="ms")
    right.legend(frameon=False)
    for axes in (left, right):
        axes.set_xscale("log", base=2)
        axes.set_xticks(counts, [str(count) for count in counts])
        axes.set(xlabel="streams", ylim=(0, None))
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(f"{record.shape}, {record.machine.cores} cores, {record.machine.date}", fontsize=10)
    figure.savefig(path, dpi=130)
    return path


def series(record: Record) -> dict[tuple[str, str], dict[int, float]]:
    """Return the costs of benchmarks.scaling in microseconds: by name and unit, then by ``n``."""
    found: dict[tuple[str, str], dict[int, float]] = {}
    for key, value in record.values.items():
        name, unit, n = key.rsplit(" / ", 2)
        found.setdefault((name, unit), {})[int(n)] = value
    return found


def draw_scaling(record: Record, path: Path = SCALING) -> Path:
    """Plot each cost of benchmarks.scaling over ``n``, all on the same logarithmic axis of time."""
    from matplotlib.figure import Figure

    costs = series(record)
    rows = -(-len(costs) // COLUMNS)
    figure = Figure(figsize=(11, 2.5 * rows), layout="constrained")
    grid = figure.subplots(rows, COLUMNS, squeeze=False, sharey=True)
    for axes in grid.flat[len(costs) :]:
        axes.set_visible(False)
    for axes, ((name, unit), by_n) in zip(grid.flat, costs.items(), strict=False):
        axes.plot(list(by_n), list(by_n.values()), "o-", color=BLUE if unit == "step" else ORANGE)
        axes.set(xscale="log", yscale="log", ylim=(10, 10_000))
        axes.set_title(name, fontsize=8)
        axes.set_ylabel(f"\u00b5s per {unit}", fontsize=8)
        axes.tick_params(labelsize=8)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(f"CPU time by n, with a model that computes nothing, {record.machine.date}", fontsize=10)
    figure.savefig(path, dpi=130)
    return path
