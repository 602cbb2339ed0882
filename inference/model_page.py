"""The parts of a model's admin page beside its form: request parameters, and the chat template of its files."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inference.files.sources import SourceError, present_directory
from inference.models import LanguageModel
from inference.validation import PARAMETERS, Parameter, Range, Text


@dataclass(frozen=True, slots=True)
class ParameterRow:
    name: str
    help: str
    allowed: str
    value: Any


def parameter_rows(model: LanguageModel | None) -> list[ParameterRow]:
    """Return a row per parameter; ``value`` is the model's default, None if it has none."""
    values = model.default_sampling if model is not None and isinstance(model.default_sampling, dict) else {}
    known = PARAMETERS[model.kind if model is not None else LanguageModel.Kind.GENERATION]
    return [ParameterRow(name, found.help, _allowed(found), values.get(name)) for name, found in known.items()]


def _allowed(parameter: Parameter) -> str:
    match parameter:
        case Range(lower, upper):
            return f"{_plain(lower)} to {_plain(upper)}"
        case Text(form=form):
            return form
    return "true or false"


def _plain(number: float) -> str:
    """Return the number without an exponent, like 1,000,000 and 0.000001."""
    return f"{number:,.6f}".rstrip("0").rstrip(".")


MAX_SHOWN = 60_000


def own_chat_template(model: LanguageModel) -> str:
    """Return the chat template of the model's files; empty if there is none or the model is not downloaded."""
    try:
        path = present_directory(model.model_source)
    except SourceError:
        return ""
    return "" if path is None else _read_template(path)[:MAX_SHOWN]


def _read_template(path: Path) -> str:
    try:
        file = path / "chat_template.jinja"
        if file.is_file():
            return file.read_text("utf-8", "replace")
        config = path / "tokenizer_config.json"
        if not config.is_file() or config.stat().st_size > 10_000_000:
            return ""
        found = json.loads(config.read_text("utf-8", "replace"))
    except (OSError, ValueError, RecursionError):
        return ""
    template = found.get("chat_template") if isinstance(found, dict) else None
    return template if isinstance(template, str) else ""
