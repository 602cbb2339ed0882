"""What keeps a model from being served, as far as it can be told without downloading or loading it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from django.core.exceptions import ValidationError

from inference.chat_template import ChatTemplate, ChatTemplateError
from inference.sources import ModelSource, SourceError, check_within_roots, local_directory, resolve_source

MODEL_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._/@+:-]*[A-Za-z0-9._/@+-])?")
DEVICE = re.compile(r"auto|cpu|cuda(:\d+)?")


def name_problems(names: Sequence[str]) -> list[str]:
    problems = [
        f"{name!r} cannot be a model's name: letters, digits and . _ / @ + : - only, first a letter or digit, "
        "and no colon at the end."
        for name in names
        if not MODEL_NAME.fullmatch(name) or ".." in name
    ]
    if len(set(names)) < len(names):
        problems.append("A name or alias is given twice.")
    return problems


def device_problems(device: str) -> list[str]:
    return [] if DEVICE.fullmatch(device) else [f"The device must be auto, cpu, cuda or cuda:N, not {device!r}."]


def source_problems(source: ModelSource) -> list[str]:
    """A Hub id is only looked at; a directory is checked as it is before loading."""
    try:
        if local_directory(source.source) is not None:
            resolve_source(source)
    except SourceError as error:
        return [str(error)]
    return []


def within_roots(source: str) -> str:
    """A source that somebody names in a form; ValidationError for a path outside of MILLM_MODEL_ROOTS."""
    try:
        check_within_roots(source)
    except SourceError as error:
        raise ValidationError(str(error)) from error
    return source


def template_problems(source: str) -> list[str]:
    try:
        if source:
            ChatTemplate(source)
    except ChatTemplateError as error:
        return [str(error)]
    return []
