"""``manage.py evidence_table SPEC``: sweep methods of steering towards a list of concepts, and write one table of each.

A concept of the spec has a word list, a system prompt with the same goal, and ``methods``: names of published profiles,
or lists of edits in the form of `/api`.
"""

from __future__ import annotations

import json
from argparse import ArgumentParser
from dataclasses import asdict
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError

from core.commands import MillmCommand
from inference.models import LanguageModel
from jobs.commands import require_success, wait_for_end
from steering.evaluation.evidence import EvidenceTable, evidence_table, tables_json, tables_markdown
from steering.evaluation.params import (
    DEFAULT_CONTROLS,
    MAX_PROMPTS,
    NEUTRAL_PROMPTS,
    Controls,
    SweepParams,
    Texts,
    judge_params,
    read_numbers,
)
from steering.evaluation.runner import UnpublishedEdits
from steering.evaluation.services import create_evaluation, inline_target
from steering.models import Evaluation, ProfileVersion
from steering.profiles.inline_edits import read_short_edits

START, END = "<!-- tables: start -->", "<!-- tables: end -->"
DEFAULTS = Texts()


class Command(MillmCommand):
    help = (
        "Sweep profiles and edits towards a list of concepts beside controls, and write a table of each as Markdown "
        "and JSON. Sweeps that were made with the same parameters before are used again."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("spec", type=Path, help="a JSON file, such as steering/demo/smollm2/evidence.json")
        parser.add_argument("--strengths", default="1", help="multiples of the strength to choose from")
        parser.add_argument("--num-prompts", type=int, default=len(NEUTRAL_PROMPTS), help="of the 64 neutral prompts")
        parser.add_argument("--samples-per-prompt", type=int, default=DEFAULTS.samples_per_prompt)
        parser.add_argument("--max-tokens", type=int, default=DEFAULTS.max_tokens)
        parser.add_argument("--temperature", type=float, default=DEFAULTS.temperature)
        parser.add_argument("--seed", type=int, default=DEFAULTS.seed)
        parser.add_argument("--random-directions", type=int, default=DEFAULT_CONTROLS.random_directions)
        parser.add_argument("--judge", default="", help='a model that scores the answers, or "endpoint"')
        parser.add_argument(
            "--output",
            type=Path,
            help="a Markdown file, whose part between the comments `tables: start` and `tables: end` is replaced if it "
            "has them; JSON is written beside it",
        )

    def handle(self, **options: Any) -> None:
        spec = _read_spec(options["spec"])
        tables = [self._table(spec, concept, options) for concept in spec["concepts"]]
        text = tables_markdown(tables)
        self.stdout.write(text)
        if (output := options["output"]) is not None:
            output.write_text(_inserted(output, text), "utf-8")
            output.with_suffix(".json").write_text(tables_json(tables), "utf-8")

    def _table(self, spec: dict[str, Any], concept: dict[str, Any], options: dict[str, Any]) -> EvidenceTable:
        evaluations = []
        for place, method in enumerate(concept["methods"]):
            target = _target(spec["model"], method)
            system = concept["system_prompt"] if not place else ""  # asked once for all methods of the concept
            params = _params(target, spec["words"][concept["name"]], concept, system, options)
            evaluations.append(_known_sweep(target, params) or self._sweep(params))
        return evidence_table(concept["name"], evaluations)

    def _sweep(self, params: SweepParams) -> Evaluation:
        job = wait_for_end(create_evaluation(params=params), self.stdout.write)
        require_success(job)
        return Evaluation.objects.select_related("version__profile").get(job=job)


def _read_spec(path: Path) -> dict[str, Any]:
    """Read the spec, and the word lists that it names. Raise CommandError."""
    try:
        spec: dict[str, Any] = json.loads(path.read_text("utf-8"))
        words = json.loads((path.parent / spec["words"]).read_text("utf-8"))
        concepts = [(one["name"], one["methods"], one["system_prompt"]) for one in spec["concepts"]]
        if missing := [name for name, *_ in concepts if name not in words]:
            raise CommandError(f"{spec['words']} has no word list {missing[0]!r}.")
        return {"model": spec["model"], "concepts": spec["concepts"], "words": words}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CommandError(f"{path} cannot be read: {error!r}") from error


def _params(
    target: int | UnpublishedEdits, words: list[str], concept: dict[str, Any], system: str, options: dict[str, Any]
) -> SweepParams:
    if not 1 <= options["num_prompts"] <= min(len(NEUTRAL_PROMPTS), MAX_PROMPTS):
        raise CommandError(f"--num-prompts must be between 1 and {len(NEUTRAL_PROMPTS)}.")
    texts = Texts(
        NEUTRAL_PROMPTS[: options["num_prompts"]],
        options["max_tokens"],
        options["temperature"],
        options["seed"],
        options["samples_per_prompt"],
    )
    controls = Controls(options["random_directions"], 1, system, off_target=True)
    judge = judge_params(options["judge"], concept.get("judged", concept["name"])) if options["judge"] else None
    return SweepParams(target, texts, read_numbers(options["strengths"]), tuple(words), controls, judge)


def _target(model_name: str, method: str | list[Any]) -> int | UnpublishedEdits:
    """Return the latest version of a profile, or edits. Raise CommandError if it does not exist."""
    model = LanguageModel.objects.filter(name=model_name).first()
    if model is None:
        raise CommandError(f"The model {model_name} does not exist.")
    if not isinstance(method, str):
        return inline_target(model=model, edits=read_short_edits(model, method))
    rows = ProfileVersion.objects.filter(profile__model=model, profile__name=method).order_by("-number")
    if (row := rows.first()) is None:
        raise CommandError(f"The model {model_name} has no published profile {method}.")
    return row.pk


def _known_sweep(target: int | UnpublishedEdits, params: SweepParams) -> Evaluation | None:
    """Return the newest sweep of the version or edits with these parameters."""
    expected = json.loads(
        json.dumps(
            {
                "texts": asdict(params.texts),
                "words": params.words,
                "control_settings": asdict(params.controls),
                "judge": None if params.judge is None else asdict(params.judge),
            }
        )
    )
    sweeps = Evaluation.objects.filter(kind=Evaluation.Kind.SWEEP).select_related("version__profile")
    if isinstance(target, UnpublishedEdits):
        rows = sweeps.filter(model=target.model, version=None, profile=None, edits=target.edits)
    else:
        rows = sweeps.filter(version=target)
    for evaluation in rows:
        found = evaluation.result
        factors = tuple(point["factor"] for point in found["points"][1:])
        if factors == params.factors and all(found.get(key) == value for key, value in expected.items()):
            return evaluation
    return None


def _inserted(path: Path, text: str) -> str:
    """Return the file with its tables replaced, or the tables alone."""
    known = path.read_text("utf-8") if path.is_file() else ""
    before, start, rest = known.partition(START)
    _, end, after = rest.partition(END)
    return f"{before}{start}\n\n{text}\n{end}{after}" if start and end else text
