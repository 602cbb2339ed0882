"""The graphics of a feature page: a histogram, and texts with highlighted tokens. Without inline styles or scripts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log1p
from typing import Any

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

NUM_HEATS = 9
_WIDTH, _HEIGHT, _BASE = 320, 100, 104


@dataclass(frozen=True, slots=True)
class HeatedToken:
    """A token with its activation. ``heat`` is 0 if the feature is inactive, NUM_HEATS at the largest activation."""

    text: str
    value: float
    heat: int


@dataclass(frozen=True, slots=True)
class ExampleRow:
    max_value: float
    tokens: tuple[HeatedToken, ...]


def example_rows(stored: Sequence[Mapping[str, Any]]) -> tuple[ExampleRow, ...]:
    return tuple(_row(example["tokens"], example["values"]) for example in stored if example["values"])


def histogram_picture(stored: Mapping[str, Any] | None) -> SafeString | None:
    """Return an SVG of the counts on a log scale, because small activations are far more frequent."""
    if not stored or not any(stored["counts"]):
        return None
    counts, width = _used(stored["counts"]), float(stored["width"])
    highest = log1p(max(counts))
    bar = _WIDTH / len(counts)
    bars = (
        (
            round(number * bar + 0.1 * bar, 1),
            round(_BASE - _HEIGHT * log1p(count) / highest, 1),
            round(0.8 * bar, 1),
            round(_HEIGHT * log1p(count) / highest, 1),
            f"{number * width:.3g} to {(number + 1) * width:.3g}: {count} tokens",
        )
        for number, count in enumerate(counts)
    )
    return format_html(
        '<svg class="steering-histogram" viewBox="0 0 320 120" role="img" aria-label="{}">'
        '{}<line x1="0" x2="320" y1="104" y2="104"/><text x="0" y="117">0</text>'
        '<text class="end" x="320" y="117">{}</text></svg>',
        f"{sum(counts)} activations between 0 and {len(counts) * width:.3g}; counts on a logarithmic scale",
        format_html_join("", '<rect x="{}" y="{}" width="{}" height="{}"><title>{}</title></rect>', bars),
        f"{len(counts) * width:.3g}",
    )


def _used(counts: Sequence[int]) -> list[int]:
    """Return the counts without empty bins at the end."""
    last = max(number for number, count in enumerate(counts) if count)
    return list(counts[: last + 1])


def centred_row(tokens: Sequence[str], values: Sequence[float]) -> ExampleRow:
    """Return a text whose tokens are coloured by how far their values, which may be negative, exceed the mean."""
    mean = sum(values) / len(values)
    return _row(tokens, values, [value - mean for value in values])


def _row(tokens: Sequence[str], values: Sequence[float], heats: Sequence[float] | None = None) -> ExampleRow:
    """``heats`` are the numbers that the colours show, by default the values."""
    shown = values if heats is None else heats
    largest = max(shown)
    heated = (
        HeatedToken(visible_token(token), value, round(NUM_HEATS * heat / largest) if largest > 0 and heat > 0 else 0)
        for token, value, heat in zip(tokens, values, shown, strict=True)
    )
    return ExampleRow(max(values), tuple(heated))


def visible_token(token: str) -> str:
    """Return the token with line breaks as a visible character, so that an example stays one paragraph."""
    return token.replace("\r", "").replace("\n", "⏎")
