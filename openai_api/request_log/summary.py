"""Times, phases and names of a logged request, made safe to show."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from inference.models import LanguageModel
from openai_api.models import RequestLog

_ACTING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff]")


def visible_text(text: str) -> str:
    return _ACTING.sub(lambda found: f"⟨U+{ord(found.group()):04X}⟩", text)


WIDTH, HEIGHT = 1000, 16
MAX_ALL_TICKS = 32  # a longer list may leave out tokens


@dataclass(frozen=True, slots=True)
class Phase:
    """From ``start_ms`` to ``end_ms`` after the request arrived."""

    name: str
    start_ms: float
    end_ms: float
    note: str = ""

    @property
    def took(self) -> str:
        return milliseconds(self.end_ms - self.start_ms)


def milliseconds(value: float | None, *, beside: float | None = None) -> str:
    """Format a duration, in seconds from one second on; ``beside``, a larger duration on the line, decides the unit."""
    if value is None:
        return "-"
    return f"{value / 1000:.2f} s" if max(value, beside or 0.0) >= 1000 else f"{value:.0f} ms"


def phases(row: RequestLog) -> list[Phase]:
    """Return the phases queued, prefill and tokens, or one phase if the request never reached the engine.

    Clock differences never make a negative time. Time before the queue, such as loading a model, is in the last phase.
    """
    return list(_phases(row))


def _phases(row: RequestLog) -> Iterator[Phase]:
    total = max(row.total_ms or 0.0, row.ttft_ms or 0.0, row.queue_ms or 0.0)
    at = 0.0
    if row.queue_ms is not None:
        yield Phase("queued", 0.0, row.queue_ms)
        at = row.queue_ms
    if row.ttft_ms is not None:
        cached = f", {row.cached_tokens} of them cached" if row.cached_tokens else ""
        yield Phase("prefill", at, max(row.ttft_ms, at), f"{row.prompt_tokens} prompt tokens{cached}")
        at = max(row.ttft_ms, at)
        yield Phase("tokens", at, max(total, at), f"{_speed(row.completion_tokens, total - at)}{_pause(row)}")
    elif row.total_ms is not None:
        yield Phase("processed" if row.queue_ms is None else "after the queue", at, max(total, at))


def _speed(num_tokens: int, took_ms: float) -> str:
    speed = f", {(num_tokens - 1) * 1000 / took_ms:.1f} per second" if num_tokens > 1 and took_ms > 0 else ""
    return f"{num_tokens} tokens{speed}"


def _pause(row: RequestLog) -> str:
    """Describe the longest time without a token. Where only some times are kept, it cannot be told."""
    gaps = [after - before for before, after in pairwise(row.token_ms)]
    has_all = len(row.token_ms) <= MAX_ALL_TICKS or len(row.token_ms) >= row.completion_tokens
    return f", longest pause {milliseconds(max(gaps))}" if gaps and has_all else ""


def timeline_html(row: RequestLog) -> SafeString:
    """Render the phases as a bar and as text."""
    found = phases(row)
    if not found:
        return format_html("{}", "No timing data.")
    return format_html("{}{}", _bar(found, row.token_ms), _steps(row, found))


def _bar(found: list[Phase], token_ms: Sequence[int]) -> SafeString:
    whole = found[-1].end_ms or 1.0
    parts = (
        (
            phase.name.replace(" ", "-"),
            round(phase.start_ms / whole * WIDTH, 1),
            round(max((phase.end_ms - phase.start_ms) / whole * WIDTH, 1.0), 1),
            HEIGHT,
            phase.name,
            phase.took,
        )
        for phase in found
    )
    rects = format_html_join(
        "", '<rect class="log-{}" x="{}" y="0" width="{}" height="{}"><title>{}: {}</title></rect>', parts
    )
    return format_html(
        '<svg class="log-timeline" viewBox="0 0 {} {}" preserveAspectRatio="none" aria-hidden="true">{}{}</svg>',
        WIDTH,
        HEIGHT,
        rects,
        _ticks(token_ms, whole),
    )


def _ticks(token_ms: Sequence[int], whole_ms: float) -> SafeString:
    """Return a line at each time at which tokens came."""
    lines = "".join(f"M{min(at / whole_ms, 1.0) * WIDTH:.1f} 4V{HEIGHT}" for at in token_ms)
    return format_html('<path class="log-ticks" d="{}"/>', lines) if lines else SafeString("")


def _steps(row: RequestLog, found: list[Phase]) -> SafeString:
    lines = [
        (
            p.name.replace(" ", "-"),
            f"{p.name} {p.took}" + (f" ({p.note})" if p.note else ""),
            f"at {milliseconds(p.start_ms)}",
        )
        for p in found
    ]
    end = visible_text(row.error_code or row.finish_reason) or f"status {row.status}"
    lines.append(("end", f"end: {end}", f"at {milliseconds(found[-1].end_ms)}"))
    return format_html(
        '<ol class="log-steps">{}</ol>',
        format_html_join("", '<li class="log-{}">{} <span class="log-at">{}</span></li>', lines),
    )


CLIENT_DISCONNECTED = "client_disconnected"
ROOT = "/v1/"  # common to all endpoints, so the list omits it


def badge_of(row: RequestLog) -> str:
    """Return the class of the status badge."""
    if row.error_code == CLIENT_DISCONNECTED:
        return "badge-warn"
    return "badge-bad" if row.status >= 400 or row.error_code else "badge-good"


def key_text(row: RequestLog) -> str:
    """Return the key's name and the prefix of the secret that was sent. A deleted key only has the prefix."""
    secret = f"{row.key_prefix}…" if row.key_prefix else ""
    name = row.api_key.name if row.api_key else ""
    return visible_text(f"{name} ({secret})" if name and secret else name or secret)


@dataclass(frozen=True, slots=True)
class Price:
    """Of a million tokens of each kind."""

    input: float
    cached_input: float
    output: float


Prices = Mapping[str, Price]  # by the name of the model


def known_prices() -> Prices:
    """Return the prices of the models that have those of input and output. One query."""
    rows = LanguageModel.objects.exclude(input_price=None)
    found = rows.values_list("name", "input_price", "cached_input_price", "output_price")
    return {
        name: Price(per_input, per_input if per_cached is None else per_cached, per_output)
        for name, per_input, per_cached, per_output in found
        if per_input is not None and per_output is not None
    }


def cost_of(model: str, prompt_tokens: int, cached_tokens: int, completion_tokens: int, prices: Prices) -> float | None:
    """Return what a request's tokens cost at today's prices, to six significant digits; None if they are unknown.

    ``prompt_tokens`` includes the ``cached_tokens``.
    """
    if model not in prices:
        return None
    price = prices[model]
    new = (prompt_tokens - cached_tokens) * price.input
    return float(f"{(new + cached_tokens * price.cached_input + completion_tokens * price.output) / 1e6:.6g}")


def tokens_text(row: RequestLog) -> str:
    cached = f" ({row.cached_tokens} cached)" if row.cached_tokens else ""
    return f"{row.prompt_tokens}{cached} → {row.completion_tokens}"
