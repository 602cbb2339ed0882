"""The comparison table of sweeps: methods of steering towards one concept beside controls, as Markdown and JSON.

All rows answer the same prompts with the same seeds. Where a strength was chosen among several, all figures are of the
other half of the prompts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from steering.errors import EvaluationError
from steering.evaluation.arms import figures
from steering.evaluation.measures import AnswerRow, from_columns
from steering.evaluation.plot import number_text
from steering.models import Evaluation
from steering.spec.edit import EditSpec, FeatureTarget, VectorTarget
from steering.spec.parsing import parse_edits
from steering.spec.wording import describe_edit, describe_target

MEASURES = {
    "score": "judge's score (0 to 2)",
    "concept": "concept (0 to 2)",
    "instruction": "instruction (0 to 2)",
    "fluency": "fluency (0 to 2)",
    "words": "words of the concept",
    "off_target": "off-target questions right",
    "perplexity": "perplexity",
    "repeat": "repeated 4-grams",
    "kl_base": "KL(base‖steered)",
    "kl": "KL(steered‖base)",
    "success": "successful answers",
}
SHARES = frozenset({"words", "off_target", "success"})
Figure = list[float | None]


@dataclass(frozen=True)
class EvidenceRow:
    """An arm. ``measures`` are [value, low, high] by name, with 95 % bootstrap intervals over prompts."""

    name: str
    kind: str
    factor: float | None
    num_answers: int
    measures: dict[str, Figure]


@dataclass(frozen=True)
class EvidenceTable:
    """The rows of one concept. ``settings`` are the parameters that all rows share."""

    concept: str
    model: str
    settings: dict[str, Any]
    rows: list[EvidenceRow] = field(default_factory=list)

    @property
    def shown(self) -> list[str]:
        return [key for key in MEASURES if any(key in row.measures for row in self.rows)]


def evidence_table(concept: str, evaluations: Sequence[Evaluation]) -> EvidenceTable:
    """Return the table of sweeps with the same prompts, seeds and words. Raise EvaluationError if they differ."""
    settings = [_settings(evaluation) for evaluation in evaluations]
    if any(other != settings[0] for other in settings):
        raise EvaluationError("Sweeps of one table must have the same model, prompts, sampling, words and judge.")
    profiles = [_profile_row(one) for one in evaluations]
    controls = [row for one in evaluations for row in _control_rows(one, names_subject=len(evaluations) > 1)]
    controls.sort(key=lambda row: _ORDER.index(row.kind))
    return EvidenceTable(
        concept, evaluations[0].result["model"], settings[0], [_unsteered_row(evaluations[0]), *profiles, *controls]
    )


_ORDER = ("system_prompt", "random_direction", "random_feature")


def tables_json(tables: Sequence[EvidenceTable]) -> str:
    return json.dumps([asdict(table) for table in tables], indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def tables_markdown(tables: Sequence[EvidenceTable]) -> str:
    return "\n".join(line for table in tables for line in _markdown(table))


def report_md(evaluation: Evaluation) -> str:
    """Return the comparison table of one sweep as Markdown. Raise EvaluationError for other evaluations."""
    if evaluation.kind != Evaluation.Kind.SWEEP:
        raise EvaluationError("Only a sweep has a comparison table; download another report as HTML, JSON or CSV.")
    return tables_markdown([evidence_table(evaluation.subject, [evaluation])])


def _markdown(table: EvidenceTable) -> Iterator[str]:
    settings = table.settings
    num_prompts, samples = len(settings["texts"]["prompts"]), settings["texts"].get("samples_per_prompt", 1)
    yield f"### {_escaped(table.concept)}"
    yield ""
    yield (
        f"Model {_escaped(table.model)}; {num_prompts} neutral prompts × {samples}, up to "
        f"{settings['texts']['max_tokens']} tokens each, temperature {settings['texts']['temperature']:g}, "
        f"seed {settings['texts']['seed']}. n: answers that the figures of a row are of."
    )
    yield ""
    yield "| | n | " + " | ".join(MEASURES[key] for key in table.shown) + " |"
    yield "|---|---|" + "---|" * len(table.shown)
    for row in table.rows:
        cells = (_cell(key, row.measures.get(key)) for key in table.shown)
        yield f"| {_escaped(row.name)} | {row.num_answers} | " + " | ".join(cells) + " |"
    yield ""


def _cell(key: str, found: Figure | None) -> str:
    if found is None or found[0] is None:
        return "–"
    value, low, high = (_text(key, number) for number in found)
    return value if found[1] is None or found[2] is None else f"{value} ({low} to {high})"


def _text(key: str, value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.1%}" if key in SHARES else number_text(value)


def _escaped(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def _settings(evaluation: Evaluation) -> dict[str, Any]:
    result = evaluation.result
    if "recommendation" not in result:
        raise EvaluationError(f"{evaluation} is of an earlier version of the server; run it again.")
    return {key: result.get(key) for key in ("model", "texts", "words", "judge")}


def _unsteered_row(evaluation: Evaluation) -> EvidenceRow:
    point, found = evaluation.result["points"][0], evaluation.result["off_target"]
    return _row("unsteered", evaluation, [point], None if found is None else found["without"])


def _profile_row(evaluation: Evaluation) -> EvidenceRow:
    result = evaluation.result
    factor = result["recommendation"]["factor"]
    point = next((one for one in result["points"][1:] if one["factor"] == factor), None)
    if point is None:
        raise EvaluationError(f"{evaluation} recommends no strength, and did not measure 1 × the strength.")
    times = "" if factor == 1 else f" × {factor:g}"
    found = result["off_target"]
    name = f"{_method(evaluation)}: {_described(evaluation)}{times}"
    return _row(name, evaluation, [point], None if found is None else found["with"])


def _control_rows(evaluation: Evaluation, *, names_subject: bool) -> Iterator[EvidenceRow]:
    """Yield a row for each kind of control; the random directions are one row."""
    sized = f", sized as {_short_name(evaluation)}" if names_subject else ""
    for kind, name in (
        ("system_prompt", "system prompt"),
        ("random_direction", "random directions"),
        ("random_feature", "random live feature"),
    ):
        points = [one for one in evaluation.result["controls"] if one["kind"] == kind]
        if points:
            number = f" (n = {len(points)})" if kind == "random_direction" or len(points) > 1 else ""
            yield _row(f"{name}{number}{'' if kind == 'system_prompt' else sized}", evaluation, points)


def _row(
    name: str, evaluation: Evaluation, points: Sequence[Mapping[str, Any]], off_target: Figure | None = None
) -> EvidenceRow:
    answers = [row for point in points for row in _reported(evaluation, from_columns(point["answers"]))]
    found = {key: one.to_json() for key, one in figures(answers).items() if one is not None and key in MEASURES}
    if not evaluation.result["words"]:
        found.pop("words", None)
    if off_target is not None:
        found["off_target"] = off_target
    return EvidenceRow(name, points[0]["kind"], points[0]["factor"], len(answers), found)


def _reported(evaluation: Evaluation, rows: list[AnswerRow]) -> list[AnswerRow]:
    """Leave out the prompts that chose the strength; one strength is no choice."""
    is_chosen = len(evaluation.result["points"]) > 2 and evaluation.result["recommendation"]["is_split"]
    return [row for row in rows if row.prompt % 2] if is_chosen else rows


def _method(evaluation: Evaluation) -> str:
    targets = [edit.target for edit in _edits(evaluation)]
    kinds = {
        "features": any(isinstance(target, FeatureTarget) for target in targets),
        "vectors": any(isinstance(target, VectorTarget) for target in targets),
    }
    return " and ".join(kind for kind, is_there in kinds.items() if is_there) or "site edits"


def _described(evaluation: Evaluation) -> str:
    """Return the version, or what inline edits do."""
    return "; ".join(map(describe_edit, _inline_edits(evaluation))) or evaluation.subject


def _short_name(evaluation: Evaluation) -> str:
    """Return the version, or the targets of inline edits; those of features without their labels."""
    targets = (
        f"#{edit.target.index}" if isinstance(edit.target, FeatureTarget) else describe_target(edit)
        for edit in _inline_edits(evaluation)
    )
    return ", ".join(targets) or evaluation.subject


def _inline_edits(evaluation: Evaluation) -> tuple[EditSpec, ...]:
    """Return the edits, if they are neither a version nor a draft."""
    return _edits(evaluation) if evaluation.version is None and evaluation.profile is None else ()


def _edits(evaluation: Evaluation) -> tuple[EditSpec, ...]:
    return parse_edits(evaluation.edits if evaluation.version is None else evaluation.version.edits)
