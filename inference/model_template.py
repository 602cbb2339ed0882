"""The chat template that a model's files bring along, as text to read."""

from __future__ import annotations

import json
from pathlib import Path

from inference.files.sources import SourceError, present_directory
from inference.models import LanguageModel

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
