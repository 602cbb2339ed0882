"""Tokens of a logged request on its page: log-probabilities, features that were read, what watch rules saw there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from django.contrib.auth.models import User
from django.template.loader import render_to_string
from django.utils.safestring import SafeString

from openai_api.models import RequestLog
from openai_api.request_log.metadata import TOKENS
from openai_api.request_log.visible_text import visible_text
from steering.models import Feature, WatchEvent

MAX_FEATURES = 200  # to choose from, the strongest
MAX_LABELS = 5_000
Notes = dict[int, list[tuple[str, str]]]  # by place
Token = dict[str, Any]  # as the page's script takes it


@dataclass(frozen=True, slots=True)
class Part:
    """The prompt, or an answer to it."""

    title: str
    tokens: list[Token]
    note: str = ""

    @property
    def tokens_json(self) -> str:
        return json.dumps(self.tokens, ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class FeatureChoice:
    index: int
    label: str
    largest: str


def has_tokens(row: RequestLog) -> bool:
    return bool(_records(row))


def tokens_html(row: RequestLog, user: User) -> SafeString:
    """Who asks may see texts; labels of features are for those who may see features."""
    parts = list(_parts(row))
    strongest = _strongest(parts)
    sae = next((record["sae"] for record in _records(row)), "")
    labels = _labels(row.model, sae, list(strongest)) if user.has_perm("steering.view_feature") else {}
    chosen = sorted(strongest, key=lambda index: -strongest[index])[:MAX_FEATURES]
    context = {
        "parts": parts,
        "sae": sae,
        "labels_json": json.dumps(labels, ensure_ascii=False),
        "has_logprobs": any(token["logprob"] is not None for part in parts for token in part.tokens),
        "features": [FeatureChoice(index, labels.get(index, ""), f"{strongest[index]:.4g}") for index in chosen],
        "num_left_out": len(strongest) - len(chosen),
    }
    return render_to_string("admin/openai_api/requestlog/tokens.html", context)


def _records(row: RequestLog) -> list[Any]:
    """None of a row whose texts were not kept, or have been pruned."""
    found = row.parameters.get(TOKENS)
    return found if isinstance(found, list) else []


def _parts(row: RequestLog) -> Iterator[Part]:
    answers = [answer for record in _records(row) for answer in record["answers"]]
    notes = _watched(row) if len(answers) == 1 else {}  # of several answers nobody knows whose token it was
    for number, answer in enumerate(answers):
        if answer["prompt"]:
            yield Part(f"Prompt{_place(number, answers)}, as tokens", _tokens(answer["prompt"], notes))
        if answer["tokens"]:
            tokens = _tokens(answer["tokens"], notes)
            yield Part(f"Answer{_place(number, answers)}, as tokens", tokens, _cut(answer))


def _place(number: int, answers: list[Any]) -> str:
    return f" #{number}" if len(answers) > 1 else ""


def _cut(answer: dict[str, Any]) -> str:
    kept, written = len(answer["tokens"]), answer["num_tokens"]
    return f"The first {kept} of {written} tokens: more is not kept of one request." if kept < written else ""


def _tokens(kept: list[dict[str, Any]], notes: Notes) -> list[Token]:
    """Of a prompt not all need to have been read: dots stand for those in between."""
    shown: list[Token] = []
    following = None
    for token in kept:
        if following is not None and token["place"] != following:
            shown.append(_shown({"text": " … "}, []))
        shown.append(_shown(token, [("Place", str(token["place"])), *notes.get(token["place"], ())]))
        following = token["place"] + 1
    return shown


def _shown(token: dict[str, Any], notes: list[tuple[str, str]]) -> Token:
    return {
        "text": visible_text(token["text"]),
        "logprob": token.get("logprob"),
        "top": [[visible_text(text), logprob] for text, logprob in token.get("top", ())],
        "features": _features(token),
        "kl": None,
        "value": None,
        "notes": notes,
    }


def _features(token: dict[str, Any]) -> list[dict[str, float]] | None:
    pairs = token.get("features")
    return None if pairs is None else [{"index": index, "value": value} for index, value in pairs]


def _strongest(parts: list[Part]) -> dict[int, float]:
    """The largest activation of each feature."""
    found: dict[int, float] = {}
    for part in parts:
        for token in part.tokens:
            for feature in token["features"] or ():
                index = int(feature["index"])
                found[index] = max(feature["value"], found.get(index, feature["value"]))
    return found


def _labels(model: str, sae: str, indices: list[int]) -> dict[int, str]:
    rows = Feature.objects.filter(sae__model__name=model, sae__name=sae, index__in=indices[:MAX_LABELS])
    return {index: visible_text(label) for index, label in rows.exclude(label="").values_list("index", "label")}


def _watched(row: RequestLog) -> Notes:
    found: Notes = {}
    for event in WatchEvent.objects.filter(request_id=row.pk).order_by("rule"):
        saw = visible_text(f"{event.rule}: {event.sae} #{event.feature} {event.label}".rstrip())
        found.setdefault(event.place, []).append(("Watch rule", f"{saw}, {event.value:.4g}"))
    return found
