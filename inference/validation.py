"""Validate a model's names, device, source, chat template and default sampling, without downloading or loading it."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.core.exceptions import ValidationError

from inference.files.sources import ModelSource, SourceError, check_within_roots, local_directory, resolve_source
from inference.text.chat_template import ChatTemplate, ChatTemplateError
from inference.text.generic_templates import template_source

MODEL_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._/@+:-]*[A-Za-z0-9._/@+-])?")
DEVICE = re.compile(r"auto|cpu|cuda(:\d+)?")


def name_problems(names: Sequence[str]) -> list[str]:
    problems = [
        f"{name!r} is not a valid model name: use letters, digits and . _ / @ + : - only, start with a letter or "
        "digit, and do not end with a colon."
        for name in names
        if not MODEL_NAME.fullmatch(name) or ".." in name
    ]
    if len(set(names)) < len(names):
        problems.append("A name or alias is listed twice.")
    return problems


def device_problems(device: str) -> list[str]:
    return [] if DEVICE.fullmatch(device) else [f"The device must be auto, cpu, cuda or cuda:N, got {device!r}."]


def source_problems(source: ModelSource) -> list[str]:
    """Return what is wrong with a source. A directory is checked as before loading, a Hub id only for its form."""
    try:
        if local_directory(source.source) is not None:
            resolve_source(source)
    except SourceError as error:
        return [str(error)]
    return []


def within_roots(source: str) -> str:
    """Return a source from a form. Raise ValidationError for a path outside MILLM_MODEL_ROOTS."""
    try:
        check_within_roots(source)
    except SourceError as error:
        raise ValidationError(str(error)) from error
    return source


def template_problems(source: str) -> list[str]:
    try:
        if source:
            ChatTemplate(template_source(source))
    except ChatTemplateError as error:
        return [str(error)]
    return []


@dataclass(frozen=True, slots=True)
class _Range:
    lower: float
    upper: float
    is_integer: bool = False

    def problem(self, value: Any) -> str:
        """Return why the value is refused; empty if it is valid."""
        kind = "an integer" if self.is_integer else "a number"
        kinds = (int,) if self.is_integer else (int, float)
        if isinstance(value, bool) or not isinstance(value, kinds) or not math.isfinite(value):
            return f"must be {kind}, got {value!r}"
        if not self.lower <= value <= self.upper:
            return f"must be between {self.lower:g} and {self.upper:g}, got {value!r}"
        return ""


RANGES: Mapping[str, _Range] = {
    "temperature": _Range(0, 2),
    "top_p": _Range(1e-6, 1),
    "top_k": _Range(0, 1_000_000, is_integer=True),
    "min_p": _Range(0, 1),
    "typical_p": _Range(1e-6, 1),
    "presence_penalty": _Range(-2, 2),
    "frequency_penalty": _Range(-2, 2),
    "repetition_penalty": _Range(0.01, 10),
    "max_tokens": _Range(1, 10_000_000, is_integer=True),
}


def sampling_problems(values: Any) -> list[str]:
    """Return a sentence for each invalid default."""
    if not isinstance(values, dict):
        return [
            f'The default sampling parameters must be a JSON object such as {{"temperature": 0.7}}, got {values!r}.'
        ]
    return [_problem(name, value) for name, value in values.items() if _problem(name, value)]


def _problem(name: str, value: Any) -> str:
    allowed = RANGES.get(name)
    if allowed is None:
        return f"{name} is not a sampling parameter. Supported: {', '.join(RANGES)}."
    problem = allowed.problem(value)
    return f"{name} {problem}." if problem else ""
