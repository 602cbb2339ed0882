"""What the sampling parameters do, in a sentence each, for the form where their defaults are set."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inference.files.sources import SourceError, present_directory
from inference.models import LanguageModel
from inference.validation import RANGES

SAMPLING_HELP = {
    "temperature": "How much chance there is: 0 always takes the likeliest token, 1 follows the model's probabilities.",
    "top_p": "Only the likeliest tokens that together have this probability are drawn from.",
    "top_k": "Only so many of the likeliest tokens are drawn from; 0: all.",
    "min_p": "Tokens less likely than this part of the likeliest one are left out.",
    "typical_p": "Keeps tokens that are about as surprising as expected, up to this probability; 1: all.",
    "presence_penalty": "Lowers tokens that were in the answer already; negative ones raise them.",
    "frequency_penalty": "The same, the more often they were there.",
    "repetition_penalty": "Divides the score of tokens that were in prompt or answer; 1: no change.",
    "max_tokens": "How long an answer may get where the request says nothing.",
}


@dataclass(frozen=True, slots=True)
class SamplingRow:
    name: str
    help: str
    least: str
    most: str
    value: Any


def sampling_rows(model: LanguageModel | None) -> list[SamplingRow]:
    """A row for each parameter; ``value`` is the model's own default, None where it has none."""
    values = model.default_sampling if model is not None and isinstance(model.default_sampling, dict) else {}
    return [
        SamplingRow(name, SAMPLING_HELP[name], _plain(found.lower), _plain(found.upper), values.get(name))
        for name, found in RANGES.items()
    ]


def _plain(number: float) -> str:
    """Without an exponent: 1,000,000 and 0.000001."""
    return f"{number:,.6f}".rstrip("0").rstrip(".")


MAX_SHOWN = 60_000


def own_chat_template(model: LanguageModel) -> str:
    """Empty where there is none, or the model is not here."""
    try:
        path = present_directory(model.model_source)
    except SourceError:
        return ""
    return "" if path is None else _read(path)[:MAX_SHOWN]


def _read(path: Path) -> str:
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
