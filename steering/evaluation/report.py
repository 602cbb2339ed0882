"""An evaluation's report: tables, plots and texts, on a page and as files."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from django.template.loader import render_to_string
from django.utils.html import format_html_join
from django.utils.safestring import SafeString, mark_safe

from inference.interventions import site_label
from steering.evaluation.plot import Plot, number_text
from steering.evaluation.word_diff import word_diff
from steering.models import Evaluation

STYLE = Path(__file__).resolve().parent.parent / "static" / "steering" / "evaluation.css"
FACTOR = "× strength"
MEASURES = {
    "kl": "KL to unsteered (nats per token)",
    "perplexity": "perplexity, unsteered model",
    "repeat": "repeated 4-grams",
    "distinct_1": "distinct-1",
    "distinct_2": "distinct-2",
    "activation": "activation of the feature",
    "active": "tokens on which it is active",
    "words": "words of the list",
}
SIZE = "relative size"
STRONG_KL = 4.0  # nats: the darkest mark in a comparison


@dataclass(frozen=True)
class Table:
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]


def report_html(evaluation: Evaluation) -> SafeString:
    """Return the report as an HTML fragment."""
    context = {"evaluation": evaluation, "result": evaluation.result, **_CONTEXTS[evaluation.kind](evaluation.result)}
    return render_to_string(f"admin/steering/evaluation/{evaluation.kind}.html", context)


def report_page(evaluation: Evaluation) -> str:
    """Return the report as a self-contained HTML file."""
    style = mark_safe(STYLE.read_text())  # noqa: S308 - our own file
    context = {"evaluation": evaluation, "report": report_html(evaluation), "style": style}
    return render_to_string("admin/steering/evaluation/file.html", context)


def report_json(evaluation: Evaluation) -> str:
    head = {"kind": evaluation.kind, "created_at": evaluation.created_at.isoformat()}
    return json.dumps({**head, **evaluation.result}, indent=2, ensure_ascii=False, allow_nan=False)


def report_csv(evaluation: Evaluation) -> str:
    """Return one row for each strength, or for each prompt of a comparison. Cells are never formulas."""
    table = _TABLES[evaluation.kind](evaluation.result)
    lines = io.StringIO()
    writer = csv.writer(lines)
    writer.writerow(table.columns)
    writer.writerows([_cell(value) for value in row] for row in table.rows)
    return lines.getvalue()


def _cell(value: Any) -> Any:
    if isinstance(value, str) and value.lstrip().startswith(("=", "+", "-", "@", "\t", "\r")):
        return "'" + value
    return "" if value is None else value


# Sweep


def _sweep_table(result: Mapping[str, Any]) -> Table:
    points = result["points"]
    measures = [key for key in MEASURES if any(point[key] is not None for point in points)]
    titles, sizes = _size_columns(points)
    rows = [
        (
            "no steering" if point["factor"] is None else point["factor"],
            *(point[key] for key in measures),
            *size,
            point["num_tokens"],
            point["failures"],
        )
        for point, size in zip(points, sizes, strict=True)
    ]
    return Table((FACTOR, *(MEASURES[key] for key in measures), *titles, "tokens", "failures"), tuple(rows))


def _size_columns(points: Sequence[Mapping[str, Any]]) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
    """Return the titles and cells for relative sizes: one column, or one for each site if the edits act at several."""
    sites = list(dict.fromkeys(site for point in points for site in point.get("pushes", {})))
    if len(sites) < 2:
        return (SIZE,), [(sum(point["pushes"].values()) if "pushes" in point else point["push"],) for point in points]
    cells = [tuple(point["pushes"].get(site, 0.0) for site in sites) for point in points]
    return tuple(f"{SIZE}, {site_label(site)}" for site in sites), cells


def _sweep_context(result: Mapping[str, Any]) -> dict[str, Any]:
    steered = [point for point in result["points"] if point["factor"] is not None]
    plots = [
        Plot(
            title[0].upper() + title[1:], FACTOR, tuple((p["factor"], p[key]) for p in steered if p[key] is not None)
        ).svg()
        for key, title in MEASURES.items()
        if key != "active"
    ]
    points = [{**point, "factor_text": _number(point["factor"])} for point in result["points"]]
    return {"table": _shown(_sweep_table(result)), "plots": [plot for plot in plots if plot], "points": points}


# Calibration


def _calibration_table(result: Mapping[str, Any]) -> Table:
    titles, sizes = _size_columns(result["curve"])
    rows = tuple((p["factor"], p["kl"], *size) for p, size in zip(result["curve"], sizes, strict=True))
    return Table((FACTOR, MEASURES["kl"], *titles), rows)


def _calibration_context(result: Mapping[str, Any]) -> dict[str, Any]:
    points = tuple((point["factor"], point["kl"]) for point in result["curve"] if point["kl"] is not None)
    plot = Plot(MEASURES["kl"], FACTOR, points, level=result["target"]).svg()
    told = {"target": _number(result["target"]), "push_cap": _number(result["push_cap"])}
    return {"table": _shown(_calibration_table(result)), "plots": [plot] if plot else [], **told}


# Comparison


def _comparison_table(result: Mapping[str, Any]) -> Table:
    names = _names(result)
    columns = ("prompt", *(f"{name}{what}" for name in names for what in ("", ": KL (nats per token)")))
    rows = tuple(
        (pair["prompt"], *(value for a in pair["answers"] for value in (_text(a), a["kl"]))) for pair in result["pairs"]
    )
    return Table(columns, rows)


def _comparison_context(result: Mapping[str, Any]) -> dict[str, Any]:
    pairs = [
        {
            "prompt": pair["prompt"],
            "sides": [
                {"name": name, "kl": _number(answer["kl"]), "failure": answer["failure"], "marked": _marked(answer)}
                for name, answer in zip(_names(result), pair["answers"], strict=True)
            ],
            "diff": word_diff(*(_text(answer) for answer in pair["answers"])),
        }
        for pair in result["pairs"]
    ]
    means = [(name, _number(kl)) for name, kl in zip(_names(result), result["kl"], strict=True)]
    return {"pairs": pairs, "means": means}


def _names(result: Mapping[str, Any]) -> tuple[str, str]:
    return result["version"], result["other"] or "no profile"


def _text(answer: Mapping[str, Any]) -> str:
    return "".join(text for text, _ in answer["pieces"])


def _marked(answer: Mapping[str, Any]) -> SafeString:
    """Return the tokens as HTML; the darker, the more the distributions of the two sides differ."""
    rows = ((_shade(kl), "–" if kl is None else f"{kl:.3f} nats", text) for text, kl in answer["pieces"])
    return format_html_join("", '<span class="kl-{}" title="{}">{}</span>', rows)


def _shade(kl: float | None) -> int:
    return 5 if kl is None else min(5, int(5 * (min(kl, STRONG_KL) / STRONG_KL) ** 0.5))


def _shown(table: Table) -> Table:
    return Table(table.columns, tuple(tuple(_number(value) for value in row) for row in table.rows))


def _number(value: Any) -> Any:
    if value is None:
        return "–"
    return number_text(value) if isinstance(value, float) else value


_CONTEXTS = {"sweep": _sweep_context, "calibration": _calibration_context, "comparison": _comparison_context}
_TABLES = {"sweep": _sweep_table, "calibration": _calibration_table, "comparison": _comparison_table}
