"""The parts of a model's admin page beside its form: sampling parameters, and the chat template of its files."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inference.files.sources import SourceError, present_directory
from inference.models import LanguageModel
from inference.validation import RANGES

SAMPLING_HELP = {
    "temperature": "Randomness: 0 always takes the most likely token, 1 follows the model's probabilities.",
    "top_p": "Sample from the most likely tokens that together have this probability.",
    "top_k": "Sample from this many of the most likely tokens; 0: all.",
    "min_p": "Exclude tokens less likely than this fraction of the most likely one.",
    "typical_p": "Keep tokens about as surprising as expected, up to this probability; 1: all.",
    "presence_penalty": "Makes tokens that occurred in the answer less likely; negative values, more likely.",
    "frequency_penalty": "Like presence_penalty, in proportion to how often the token occurred.",
    "repetition_penalty": "Divides the logits of tokens in prompt or answer; 1: no change.",
    "max_tokens": "Maximum length of an answer if the request sets none.",
}


@dataclass(frozen=True, slots=True)
class SamplingRow:
    name: str
    help: str
    least: str
    most: str
    value: Any


def sampling_rows(model: LanguageModel | None) -> list[SamplingRow]:
    """Return a row per parameter; ``value`` is the model's default, None if it has none."""
    values = model.default_sampling if model is not None and isinstance(model.default_sampling, dict) else {}
    return [
        SamplingRow(name, SAMPLING_HELP[name], _plain(found.lower), _plain(found.upper), values.get(name))
        for name, found in RANGES.items()
    ]


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
