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
from steering.errors import EvaluationError
from steering.evaluation.arms import figures, intervals_of
from steering.evaluation.measures import from_columns
from steering.evaluation.plot import Mark, Plot, number_text, png
from steering.evaluation.recommendation import verdict
from steering.evaluation.word_diff import word_diff
from steering.models import Evaluation

STYLE = Path(__file__).resolve().parent.parent / "static" / "steering" / "evaluation.css"
FACTOR = "× strength"
MEASURES = {
    "kl_base": "KL(base‖steered), unsteered text (nats per token)",
    "kl": "KL(steered‖base), steered text (nats per token)",
    "perplexity": "perplexity, unsteered model",
    "repeat": "repeated 4-grams",
    "distinct_1": "distinct-1",
    "distinct_2": "distinct-2",
    "activation": "activation of the feature",
    "active": "tokens on which it is active",
    "words": "words of the list",
    "concept": "concept (0 to 2)",
    "instruction": "instruction (0 to 2)",
    "fluency": "fluency (0 to 2)",
    "score": "harmonic mean of the three",
    "success": "successful answers",
}
SIZE = "relative size"
STRONG_KL = 4.0  # nats: the darkest mark in a comparison


@dataclass(frozen=True)
class Table:
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]


def report_html(evaluation: Evaluation) -> SafeString:
    """Return the report as an HTML fragment."""
    context = {"evaluation": evaluation, "result": evaluation.result, "headlines": _headlines(evaluation.result)}
    context |= _CONTEXTS[evaluation.kind](evaluation.result)
    return render_to_string(f"admin/steering/evaluation/{evaluation.kind}.html", context)


def _headlines(result: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return the evaluated versions with their headline KL; reports of earlier versions have none."""
    known = [(result["version"], result.get("headline"))]
    if "headlines" in result:
        known = list(zip(_names(result), result["headlines"], strict=True))
    return [{"name": name, "text": found["text"]} for name, found in known if found is not None]


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


def report_png(evaluation: Evaluation) -> bytes:
    """Return the report's plots as a picture. Raise EvaluationError for a comparison, which has none."""
    if evaluation.kind not in _PLOTS:
        raise EvaluationError("A comparison has no plots; download it as HTML, JSON or CSV.")
    return png(_PLOTS[evaluation.kind](evaluation.result), str(evaluation))


def _cell(value: Any) -> Any:
    if isinstance(value, str) and value.lstrip().startswith(("=", "+", "-", "@", "\t", "\r")):
        return "'" + value
    return "" if value is None else value


# Sweep


def _sweep_table(result: Mapping[str, Any]) -> Table:
    """Return all figures with their intervals: a row for each strength, then one for each control."""
    points = [*result["points"], *result.get("controls", ())]
    measures = [key for key in MEASURES if any(point.get(key) is not None for point in points)]
    titles, sizes = _size_columns(points)
    columns = [title for key in measures for title in _columns(key, points)]
    rows = [
        (
            _arm_name(point),
            *(value for key in measures for value in _cells(key, point, points)),
            *size,
            point["num_tokens"],
            point["failures"],
        )
        for point, size in zip(points, sizes, strict=True)
    ]
    return Table((FACTOR, *columns, *titles, "tokens", "failures"), tuple(rows))


def _columns(key: str, points: Sequence[Mapping[str, Any]]) -> list[str]:
    title = MEASURES[key]
    return [title, f"{title}, low", f"{title}, high"] if _has_interval(key, points) else [title]


def _cells(key: str, point: Mapping[str, Any], points: Sequence[Mapping[str, Any]]) -> list[Any]:
    if not _has_interval(key, points):
        return [point.get(key)]
    return [point.get(key), *point.get("intervals", {}).get(key, (None, None))]


def _has_interval(key: str, points: Sequence[Mapping[str, Any]]) -> bool:
    return any(point.get("intervals", {}).get(key) for point in points)


def _arm_name(point: Mapping[str, Any]) -> Any:
    """Return the strength, or the control's name. Points of older reports are of the profile."""
    if point["factor"] is None and point.get("kind", "unsteered") == "unsteered":
        return "no steering"
    return point["factor"] if point.get("kind", "profile") == "profile" else point["name"]


def _summary_table(result: Mapping[str, Any]) -> Table:
    """Return the figures as texts for people: value and interval in one cell, the random directions in one row."""
    points = [*result["points"], *pooled_controls(result.get("controls", ()))]
    measures = [key for key in MEASURES if any(point.get(key) is not None for point in points)]
    titles, sizes = _size_columns(points)
    rows = [
        (
            _number(_arm_name(point)),
            *(_with_interval(key, point) for key in measures),
            *map(_number, size),
            point["num_tokens"],
            point["failures"],
        )
        for point, size in zip(points, sizes, strict=True)
    ]
    return Table((FACTOR, *(MEASURES[key] for key in measures), *titles, "tokens", "failures"), tuple(rows))


def _with_interval(key: str, point: Mapping[str, Any]) -> str:
    low, high = point.get("intervals", {}).get(key) or (None, None)
    value = _number(point.get(key))
    if low is None or high is None:
        return str(value)
    return f"{value} ({_number(low)} to {_number(high)})"


def pooled_controls(controls: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the controls with all random directions as one, and all random features as one."""
    found: list[Mapping[str, Any]] = []
    for kind, name in (("random_direction", "random directions"), ("random_feature", "random features")):
        alike = [point for point in controls if point["kind"] == kind]
        if len(alike) > 1:
            found.append(_pooled(alike, f"{name} (n = {len(alike)})"))
        else:
            found.extend(alike)
    return [*found, *(point for point in controls if point["kind"] == "system_prompt")]


def _pooled(points: Sequence[Mapping[str, Any]], name: str) -> dict[str, Any]:
    """Return one point with the answers of several; an interval is over prompts, each with the answers of all."""
    rows = [row for point in points for row in from_columns(point["answers"])]
    estimates = figures(rows)
    values = {key: None if found is None else found.value for key, found in estimates.items()}
    sums = {key: sum(point[key] for point in points) for key in ("num_tokens", "failures")}
    return {**points[0], "name": name, **values, **sums, "intervals": intervals_of(estimates), "samples": []} | {
        "distinct_1": None,
        "distinct_2": None,
    }


def _size_columns(points: Sequence[Mapping[str, Any]]) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
    """Return the titles and cells for relative sizes: one column, or one for each site if the edits act at several."""
    sites = list(dict.fromkeys(site for point in points for site in point.get("pushes", {})))
    if len(sites) < 2:
        return (SIZE,), [(sum(point["pushes"].values()) if "pushes" in point else point["push"],) for point in points]
    cells = [tuple(point["pushes"].get(site, 0.0) for site in sites) for point in points]
    return tuple(f"{SIZE}, {site_label(site)}" for site in sites), cells


def _sweep_context(result: Mapping[str, Any]) -> dict[str, Any]:
    alike = [point for point in result.get("controls", ()) if point["kind"] == "random_direction"]
    arms = [*result["points"], *(point for point in result.get("controls", ()) if point not in alike[1:])]
    found = result.get("recommendation") or {}
    points = [
        {
            **point,
            "heading": _heading(point),
            "is_chosen": bool(found.get("is_found")) and _is_recommended(point, found),
            "figures": [(SHORT_NAMES[key], _with_interval(key, point)) for key in SHORT_NAMES if _is_known(key, point)],
        }
        for point in arms
        if point["samples"]
    ]
    if points and not any(point["is_chosen"] for point in points):
        points[0]["is_chosen"] = True
    return {
        "verdict": verdict(found) if found else "",
        "table": _summary_table(result),
        "plots": [svg for plot in _sweep_plots(result) if (svg := plot.svg())],
        "points": points,
        "off_target": _off_target(result.get("off_target")),
    }


SHORT_NAMES = {
    "kl_base": "KL(base‖steered)",
    "kl": "KL(steered‖base)",
    "perplexity": "perplexity",
    "words": "listed words",
    "score": "judge's score",
    "success": "successful answers",
}


def _is_known(key: str, point: Mapping[str, Any]) -> bool:
    return point.get(key) is not None


def _is_recommended(point: Mapping[str, Any], found: Mapping[str, Any]) -> bool:
    return bool(point.get("kind", "profile") == "profile" and point["factor"] == found["factor"])


def _heading(point: Mapping[str, Any]) -> str:
    name = _arm_name(point)
    return f"{_number(name)} × the strength" if isinstance(name, float) else str(name).capitalize()


def _sweep_plots(result: Mapping[str, Any]) -> list[Plot]:
    """Return effect against fluency first, then each measure by strength."""
    steered = [point for point in result["points"] if point["factor"] is not None]
    plots = [
        Plot(
            title[0].upper() + title[1:],
            FACTOR,
            tuple((p["factor"], p[key]) for p in steered if p.get(key) is not None),
            intervals=_bars(key, steered),
            log_y=key in ("kl", "kl_base", "perplexity"),
        )
        for key, title in MEASURES.items()
        if key not in ("active", "success")
    ]
    return [_effect_plot(result), *plots] if "recommendation" in result else plots


def _bars(key: str, points: Sequence[Mapping[str, Any]]) -> tuple[tuple[float, float, float], ...]:
    known = ((p["factor"], *(p.get("intervals", {}).get(key) or (None, None))) for p in points if _is_known(key, p))
    return tuple((x, low, high) for x, low, high in known if low is not None and high is not None)


def _effect_plot(result: Mapping[str, Any]) -> Plot:
    """Return perplexity by effect, one point for each strength, with the controls and no steering beside them.

    A KL is drawn on a logarithmic axis, which unsteered answers with a KL of 0 are not on.
    """
    found = result["recommendation"]
    effect, is_kl = found["effect"], found["effect"] == "kl_base"
    others = [*result["points"][:1], *pooled_controls(result.get("controls", ()))]
    steered = [p for p in result["points"][1:] if _is_drawn(effect, p, is_log=is_kl)]
    marks = [_effect_mark(effect, p) for p in others if _is_drawn(effect, p, is_log=is_kl)]
    best = [p for p in steered if found["is_found"] and _is_recommended(p, found)]
    return Plot(
        "Perplexity (unsteered model) by effect",
        MEASURES[effect],
        tuple((p[effect], p["perplexity"]) for p in steered),
        intervals=tuple((p[effect], *bar[1:]) for p in steered for bar in _bars("perplexity", [p])),
        marks=(*marks, *(Mark("recommended", p[effect], p["perplexity"], kind="best") for p in best)),
        names={p[effect]: f"{p['factor']:g}×" for p in steered},
        log_x=is_kl,
        log_y=True,
        in_order=True,
    )


def _is_drawn(effect: str, point: Mapping[str, Any], *, is_log: bool) -> bool:
    return _is_known(effect, point) and _is_known("perplexity", point) and (point[effect] > 0 or not is_log)


def _effect_mark(effect: str, point: Mapping[str, Any]) -> Mark:
    low, high = point.get("intervals", {}).get("perplexity") or (None, None)
    name = str(_arm_name(point)) if point.get("kind") != "random_feature" else "random feature"
    return Mark(name, point[effect], point["perplexity"], low, high)


def _off_target(found: Mapping[str, Any] | None) -> dict[str, str] | None:
    if found is None:
        return None
    texts = {name: _share(*found[name]) for name in ("with", "without", "difference")}
    return {"with_it": texts["with"], "without": texts["without"], "difference": texts["difference"]}


def _share(value: float, low: float | None, high: float | None) -> str:
    if low is None or high is None:
        return f"{value:.1%}"
    return f"{value:.1%} ({low:.1%} to {high:.1%})"


# Calibration


def _calibration_table(result: Mapping[str, Any]) -> Table:
    titles, sizes = _size_columns(result["curve"])
    rows = tuple(
        (p["factor"], p["kl"], *(p.get("interval") or (None, None)), *size)
        for p, size in zip(result["curve"], sizes, strict=True)
    )
    title = _calibrated(result)
    return Table((FACTOR, title, f"{title}, low", f"{title}, high", *titles), rows)


def _calibrated(result: Mapping[str, Any]) -> str:
    """Return the name of the KL that the job calibrated; older jobs took the other direction."""
    older = "KL(steered‖base), unsteered text (nats per token)"
    return MEASURES["kl_base"] if result.get("measure") == "kl_base" else older


def _calibration_context(result: Mapping[str, Any]) -> dict[str, Any]:
    told = {"target": _number(result["target"]), "push_cap": _number(result["push_cap"])}
    told["measure"] = _calibrated(result)
    plots = [svg for plot in _calibration_plots(result) if (svg := plot.svg())]
    return {"table": _shown(_calibration_table(result)), "plots": plots, **told}


def _calibration_plots(result: Mapping[str, Any]) -> list[Plot]:
    known = [point for point in result["curve"] if point["kl"] is not None]
    points = tuple((point["factor"], point["kl"]) for point in known)
    ends = ((point["factor"], *(point.get("interval") or (None, None))) for point in known)
    bars = tuple((x, low, high) for x, low, high in ends if low is not None and high is not None)
    title = _calibrated(result)
    return [Plot(title, FACTOR, points, level=result["target"], intervals=bars, log_x=True, log_y=True)]


# Comparison


def _comparison_table(result: Mapping[str, Any]) -> Table:
    names = _names(result)
    others = names[::-1]
    columns = ["prompt"]
    for name, other in zip(names, others, strict=True):
        columns += [name, f"KL({name}‖{other}) on it (nats per token)"]
    rows = tuple(
        (pair["prompt"], *(value for a in pair["answers"] for value in (_text(a), a["kl"]))) for pair in result["pairs"]
    )
    return Table(tuple(columns), rows)


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
    known = result.get("kl_intervals", ([], []))
    means = [
        {"name": name, "kl": _with_interval("kl", {"kl": kl, "intervals": {"kl": interval}}), "other": other}
        for name, other, kl, interval in zip(_names(result), _names(result)[::-1], result["kl"], known, strict=True)
    ]
    failures = [sum(bool(pair["answers"][side]["failure"]) for pair in result["pairs"]) for side in (0, 1)]
    return {"pairs": pairs, "means": means, "failures": sum(failures)}


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
_PLOTS = {"sweep": _sweep_plots, "calibration": _calibration_plots}
