"""Plot of throughput and inter-token latency by number of streams."""

from __future__ import annotations

from pathlib import Path

from benchmarks.record import Record

PATH = Path(__file__).parent / "streams.png"
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
