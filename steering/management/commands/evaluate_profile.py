"""``manage.py evaluate_profile KIND NAME@NUMBER``: enqueue an evaluation, and wait for its report."""

from __future__ import annotations

from argparse import ArgumentParser, BooleanOptionalAction
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from django.core.management.base import CommandError

from core.commands import MillmCommand
from jobs.commands import require_success, wait_for_end
from jobs.models import Job
from steering.errors import EvaluationError
from steering.evaluation.evidence import report_md
from steering.evaluation.params import (
    QUICK,
    TARGETS,
    CalibrationParams,
    ComparisonParams,
    Controls,
    EvaluationParams,
    Scale,
    SweepParams,
    Texts,
    judge_params,
    read_numbers,
)
from steering.evaluation.report import report_csv, report_json, report_page, report_png
from steering.evaluation.services import create_evaluation, use_calibration
from steering.models import Evaluation, ProfileVersion
from steering.spec.units import STRONG_PUSH

T = TypeVar("T")
DEFAULTS = Texts()
WRITERS: dict[str, Callable[[Evaluation], str | bytes]] = {
    ".html": report_page,
    ".json": report_json,
    ".csv": report_csv,
    ".png": report_png,
    ".md": report_md,
}


class Command(MillmCommand):
    help = (
        "Evaluate a published version: sweep its strength, calibrate it, or compare it with another "
        "version. The running server does this in a job."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("act", choices=("sweep", "calibrate", "compare"))
        parser.add_argument("version", help="name@number")
        parser.add_argument("--model", required=True, help="its model")
        parser.add_argument("--other", help="compare: name@number (default: no profile)")
        parser.add_argument(
            "--quick",
            action="store_true",
            help="a first look: 8 prompts, 24 tokens, 2 strengths and few controls, unless others are given",
        )
        parser.add_argument("--strengths", help="sweep: multiples of the strength")
        parser.add_argument("--words", default="", help="sweep: words to count, separated by commas")
        parser.add_argument(
            "--target", default="medium", help="calibrate: nats per token, or one of " + ", ".join(TARGETS)
        )
        parser.add_argument(
            "--push-cap", type=float, default=STRONG_PUSH, help="calibrate: cap on the relative size of each edit"
        )
        parser.add_argument("--use", action="store_true", help="calibrate: apply the proposed strength to the draft")
        parser.add_argument("--prompt", action="append", dest="prompts", help="repeatable")
        parser.add_argument("--max-tokens", type=int)
        parser.add_argument("--temperature", type=float, default=DEFAULTS.temperature)
        parser.add_argument("--seed", type=int, default=DEFAULTS.seed)
        parser.add_argument(
            "--samples-per-prompt", type=int, default=DEFAULTS.samples_per_prompt, help="answers to each prompt"
        )
        parser.add_argument("--random-directions", type=int, help="sweep: control arms")
        parser.add_argument("--random-features", type=int, help="sweep: control arms")
        parser.add_argument("--control-system-prompt", default="", help="sweep: a control with the profile's goal")
        parser.add_argument(
            "--off-target", action=BooleanOptionalAction, help="sweep: ask multiple-choice questions, or do not"
        )
        parser.add_argument("--judge", default="", help='sweep: a model that scores the answers, or "endpoint"')
        parser.add_argument("--concept", default="", help="sweep: what the judge looks for")
        parser.add_argument("--output", type=Path, help="write the report to a .html, .json, .csv, .png or .md file")
        parser.add_argument("--no-wait", action="store_true", help="only enqueue the job")

    def handle(self, **options: Any) -> None:
        output = options["output"]
        if output is not None and output.suffix not in WRITERS:
            raise CommandError(
                f"The report's file must end with {', '.join(WRITERS)}, got {output.suffix or output.name!r}."
            )
        job = create_evaluation(params=_params(options))
        self.stdout.write(f'Queued job {job.pk} ("{job}").')
        if not options["no_wait"]:
            self._report(wait_for_end(job, self.stdout.write), options)

    def _report(self, job: Job, options: dict[str, Any]) -> None:
        require_success(job)
        evaluation = Evaluation.objects.select_related("version__profile").get(job=job)
        if options["output"] is not None:
            content = WRITERS[options["output"].suffix](evaluation)
            options["output"].write_bytes(content.encode() if isinstance(content, str) else content)
        if options["use"]:
            profile = use_calibration(evaluation=evaluation)
            self.stdout.write(f"Applied to draft {profile}. Publish it to use it.")
        self.stdout.write(report_csv(evaluation))


def _params(options: dict[str, Any]) -> EvaluationParams:
    version = _version(options["version"], options["model"])
    scale = QUICK if options["quick"] else Scale()
    texts = Texts(
        scale.prompts if options["prompts"] is None else tuple(options["prompts"]),
        _given(options["max_tokens"], scale.max_tokens),
        options["temperature"],
        options["seed"],
        options["samples_per_prompt"],
    )
    match options["act"]:
        case "sweep":
            words = tuple(word.strip() for word in options["words"].split(",") if word.strip())
            factors = scale.factors if options["strengths"] is None else read_numbers(options["strengths"])
            judge = judge_params(options["judge"], options["concept"])
            return SweepParams(version, texts, factors, words, _controls(options, scale.controls), judge)
        case "calibrate":
            return CalibrationParams(version, texts, _target(options["target"]), options["push_cap"])
        case _:
            other = None if options["other"] is None else _version(options["other"], options["model"])
            return ComparisonParams(version, other, texts)


def _controls(options: dict[str, Any], usual: Controls) -> Controls:
    return Controls(
        _given(options["random_directions"], usual.random_directions),
        _given(options["random_features"], usual.random_features),
        options["control_system_prompt"],
        _given(options["off_target"], usual.off_target),
    )


def _given(value: T | None, usual: T) -> T:
    return usual if value is None else value


def _target(text: str) -> float:
    if text in TARGETS:
        return TARGETS[text]
    values = read_numbers(text)
    if len(values) != 1:
        raise EvaluationError(f"The target must be a number or one of {', '.join(TARGETS)}, got {text!r}.")
    return values[0]


def _version(reference: str, model: str) -> int:
    name, _, number = reference.rpartition("@")
    rows = ProfileVersion.objects.filter(profile__name=name, profile__model__name=model)
    row = rows.filter(number=int(number)).first() if number.isdecimal() and len(number) < 10 else None
    if row is None:
        raise EvaluationError(f"The model {model} has no version {reference}; use name@number.")
    return row.pk
