"""What a model is asked about a feature: an explanation, and whether a text has what an explanation says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

MARK = ("<<", ">>")
MAX_CHARS = 400
_ACTIVE = 0.5  # of an example's largest activation: tokens above it are marked


def explanation_prompt(examples: Sequence[Mapping[str, Any]], promoted: Sequence[str]) -> str:
    """Return the prompt that asks for a label. Tokens with a high activation are marked."""
    texts = "\n".join(f"{number}. {marked(example)}" for number, example in enumerate(examples, 1))
    words = ", ".join(token.strip() for token in promoted if token.strip())
    hint = f"\nWords that often come with it: {words}" if words else ""
    return (
        f"The words between {MARK[0]} and {MARK[1]} in these texts share one topic or function:\n{texts}{hint}\n"
        "Name it in two to six words, as specific as possible. Write only the name."
    )


def detection_prompt(label: str, example: Mapping[str, Any]) -> str:
    """Return the prompt that asks whether a text has what the label says. Nothing is marked in it."""
    return f'Text: "{plain(example)}"\nDoes the text contain this: {label}? Answer with Yes or No.'


def marked(example: Mapping[str, Any]) -> str:
    """Return the text of an example with its active tokens marked, cut to MAX_CHARS around the largest one."""
    values = [float(value) for value in example["values"]]
    largest = max(values, default=0.0)
    parts = [
        f"{MARK[0]}{token.strip()}{MARK[1]}" if largest > 0 and value >= _ACTIVE * largest else token.strip()
        for token, value in zip(example["tokens"], values, strict=True)
    ]
    spaces = [" " if token[:1].isspace() else "" for token in example["tokens"]]
    text = "".join(space + part for space, part in zip(spaces, parts, strict=True)).strip()
    place = max(text.rfind(MARK[1]), 0)
    start = max(0, place - MAX_CHARS * 3 // 4)
    return text[start : start + MAX_CHARS]


def plain(example: Mapping[str, Any]) -> str:
    """Return the text of an example, cut to MAX_CHARS."""
    return "".join(example["tokens"]).replace("\n", " ").strip()[-MAX_CHARS:]
