"""What a replay found, in words: the page of its job shows it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from django.template.loader import render_to_string
from django.utils.safestring import SafeString

from openai_api.models import RequestLog
from openai_api.request_log.visible_text import visible_text
from steering.evaluation.word_diff import word_diff


@dataclass(frozen=True, slots=True)
class Pair:
    """The texts of one choice, as strangers wrote them but for characters that act."""

    then: str
    now: str
    diff: SafeString


def replayed_html(result: Mapping[str, Any]) -> SafeString:
    texts = zip_longest(result["original"], result["texts"], fillvalue="")
    context = {
        "result": result,
        "verdict": verdict(result),
        "is_logged": RequestLog.objects.filter(pk=result["request"]).exists(),
        "pairs": [_pair(visible_text(then), visible_text(now)) for then, now in texts],
    }
    return render_to_string("admin/openai_api/requestlog/replayed.html", context)


def verdict(result: Mapping[str, Any]) -> str:
    """What the comparison says, and why where that is known."""
    if result["same_text"]:
        return "The same text" + ("." if result["same_steering"] else ", although the steering is another.")
    if not result["same_steering"]:
        return "Another text, by another steering."
    if not result["seeded"]:
        return "Another text, by the same steering: the request named no seed, so that each answer is drawn anew."
    return "Another text, although seed and steering are the same: the model or its settings have changed since."


def _pair(then: str, now: str) -> Pair:
    return Pair(then, now, word_diff(then, now))
