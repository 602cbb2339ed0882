"""Sections of the request log's detail page. Logged text comes from clients and is always escaped."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from django.contrib.admin.utils import quote
from django.contrib.auth.models import User
from django.db.models import QuerySet
from django.template.loader import render_to_string
from django.urls import NoReverseMatch, reverse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe

from core.pagination import ByTime
from core.times import utc_text
from inference.interventions import site_label
from openai_api.models import RequestLog
from openai_api.request_log.entry import TOKENS
from openai_api.request_log.models import METADATA
from openai_api.request_log.pages.messages import Message, messages
from openai_api.request_log.summary import key_text, visible_text
from steering.models import Feature, ProfileVersion, WatchEvent
from steering.profiles.display import changes_since_previous, edits_table
from steering.profiles.snapshot import DRAFT

MAX_EVENTS = 100


ROLES = ("system", "developer", "user", "assistant", "tool")  # those with a look of their own


def conversation(row: RequestLog) -> SafeString:
    """Render the messages of the prompt, then the answer or answers."""
    answers = messages(row.completion)
    said = [*messages(row.prompt), *(Message(f"answer {answer.role}".strip(), answer.text) for answer in answers)]
    return format_html_join("", "{}", ((message_html(message),) for message in said))


STUDIO_SETTINGS = ("seed", "max_tokens", "temperature", "frequency_penalty", "presence_penalty")
MAX_ADDRESS = 16_000  # characters of the studio's state, as in its scripts


def studio_url(row: RequestLog) -> str:
    """Return the address of the studio with the request's profile, prompts and settings; "" if it has no room for them.

    They are behind "#", which browsers do not send, so that texts do not reach the logs of servers.
    """
    said = messages(row.prompt)
    if row.endpoint != "/v1/chat/completions" or not {each.role for each in said} <= {"system", "user", "assistant"}:
        return ""
    prompts = [each.text for each in said if each.role == "user"]
    state = {
        "model": row.model,
        "profile": row.profile if re.fullmatch(r"[\w-]+@\d+", row.profile) else None,
        "prompts": prompts,
        "system": "\n".join(each.text for each in said if each.role == "system"),
        **{name: row.parameters[name] for name in STUDIO_SETTINGS if row.parameters.get(name) is not None},
    }
    text = json.dumps(state).encode()
    packed = base64.urlsafe_b64encode(text).decode().rstrip("=")
    url = f"{reverse('admin:console_studio')}#{packed}"
    return url if prompts and len(packed) <= MAX_ADDRESS else ""


def turns_html(turns: Iterable[RequestLog]) -> SafeString:
    """Render earlier turns, each with a link to its request."""
    return format_html_join(
        "",
        '<section class="log-turn"><p class="log-at"><a href="{}">{}</a></p>{}</section>',
        (
            (
                reverse("admin:openai_api_requestlog_change", args=[quote(turn.pk)]),
                f"{utc_text(turn.created_at)} UTC",
                conversation(turn),
            )
            for turn in turns
        ),
    )


def message_html(message: Message) -> SafeString:
    role = "answer" if message.role.startswith("answer") else message.role
    return format_html(
        '<div class="log-message log-message-{}"><h3 class="log-role">{}</h3><pre tabindex="0">{}</pre></div>',
        role if role in (*ROLES, "answer") else "other",
        visible_text(message.role or "text"),
        visible_text(message.text),
    )


def neighbours(row: RequestLog, rows: QuerySet[RequestLog]) -> tuple[str | None, str | None]:
    """Return the ids of the next newer and the next older of ``rows``. Two queries."""
    order = ByTime("created_at")
    position = order.position_of(row)
    newer, older = order.newer_than(rows, position), order.older_than(rows, position)
    return newer.values_list("pk", flat=True).first(), older.values_list("pk", flat=True).first()


def profile_version(row: RequestLog) -> ProfileVersion | None:
    """Return the version that steered the request, if it still exists."""
    name, _, number = row.profile.rpartition("@")
    return ProfileVersion.objects.filter(
        profile__model__name=row.model, profile__name=name, number=int(number) if number[:9].isdecimal() else 0
    ).first()


def profile_link(row: RequestLog) -> str | SafeString:
    if not row.profile:
        return "none"
    found = profile_version(row)
    url = _version_url(found) if found else None
    shown = visible_text(row.profile)
    return format_html('<a href="{}">{}</a>', url, shown) if url else shown


def key_link(row: RequestLog) -> str | SafeString:
    """Link to the key and its state: a refused secret may be that of a revoked or rotated key."""
    shown = key_text(row)
    if row.api_key is None:
        return f"{shown}: invalid or deleted key" if shown else "none"
    return format_html('<a href="{}">{}</a>', reverse("admin:openai_api_apikey_change", args=[row.api_key.pk]), shown)


def metadata_html(row: RequestLog) -> SafeString | str:
    """List what the client named the request by, each with a link to the requests that have the same."""
    pairs = row.parameters.get(METADATA)
    if not isinstance(pairs, dict):
        return ""
    url = reverse("admin:openai_api_requestlog_changelist")
    named = [(name, value) for name, value in pairs.items() if isinstance(value, str)]
    links = (
        (f"{url}?{urlencode({METADATA: f'{name}={value}'})}", visible_text(f"{name}={value}")) for name, value in named
    )
    return format_html_join(mark_safe("<br>"), '<a href="{}">{}</a>', links)


def version_html(row: RequestLog) -> SafeString | str:
    """Describe the profile at that version, and what changed with it."""
    version = profile_version(row) if row.profile else None
    if row.profile.endswith(DRAFT):
        return "Preview of a draft. Its edits are in the parameters below."
    if version is None:
        return "This version no longer exists." if row.profile else "none"
    return format_html(
        '{}<h4 class="log-role">Changes in {}</h4>{}', edits_table(version), version, changes_since_previous(version)
    )


def watch_html(row: RequestLog) -> SafeString | str:
    """List the stored values that watch rules matched in this request."""
    events = list(WatchEvent.objects.filter(request_id=row.pk).order_by("rule")[:MAX_EVENTS])
    if not events:
        return "No watch rule matched."
    lines = (
        (
            visible_text(event.rule),
            visible_text(event.subject),
            f"{event.value:.4g}",
            f"{event.threshold:.4g}",
            event.num_tokens,
            f"{event.place} ({'prompt' if event.in_prompt else 'answer'})",
        )
        for event in events
    )
    return format_html(
        '<div class="log-scroll" tabindex="0" role="region" aria-label="Watch rules that matched">'
        '<table class="log-events"><thead><tr><th>Rule</th><th>Feature or vector</th><th>Largest value</th>'
        "<th>Threshold</th><th>Tokens above</th><th>At token</th></tr></thead><tbody>{}</tbody></table></div>",
        format_html_join("", "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>", lines),
    )


def _version_url(version: ProfileVersion) -> str | None:
    for view, pk in (("profileversion", version.pk), ("steeringprofile", version.profile_id)):
        try:
            return reverse(f"admin:steering_{view}_change", args=[pk])
        except NoReverseMatch:
            continue
    return None


def effect_text(effect: Mapping[str, Any]) -> str:
    """Describe steering at one site: "layer 6 (resid_post): changed 100% of 68 tokens, by 31% of their norm"."""
    change = effect.get("mean_change")
    size = "by an overflowing amount" if change is None else f"by {100 * change:.3g}% of their norm on average"
    share = effect.get("changed_share", 0)
    return f"{site_label(str(effect.get('site')))}: changed {share:.0%} of {effect.get('tokens')} tokens, {size}"


MAX_FEATURES = 200  # the strongest, offered for selection
MAX_LABELS = 5_000
DENSE = 0.05  # of all tokens
Notes = dict[int, list[tuple[str, str]]]  # by position
Token = dict[str, Any]  # in the form that the page's script reads


@dataclass(frozen=True, slots=True)
class Part:
    """The prompt, or an answer to it with its number."""

    title: str
    tokens: list[Token]
    note: str = ""
    answer: int | None = None

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


def tokens_html(row: RequestLog, user: User, *, explain_url: str = "") -> SafeString:
    """Render the tokens. The caller checks access to texts; labels require the permission to see features.

    ``explain_url`` explains a token of an answer.
    """
    parts = list(_parts(row))
    strongest, tell = _strongest(row), _strongest(row, first=1)
    sae = next((record["sae"] for record in _records(row)), "")
    labels, dense = _labels_and_dense(row.model, sae, list(strongest))
    if not user.has_perm("steering.view_feature"):
        labels = {}
    # The first one colours the tokens at first. Dense features, and those of a text's first token, say little about it.
    order = sorted(strongest, key=lambda index: (index in dense, -tell.get(index, 0.0), -strongest[index]))
    chosen = order[:MAX_FEATURES]
    context = {
        "parts": parts,
        "sae": sae,
        "explain_url": explain_url,
        "labels_json": json.dumps(labels, ensure_ascii=False),
        "has_logprobs": any(token["logprob"] is not None for part in parts for token in part.tokens),
        "features": [FeatureChoice(index, labels.get(index, ""), f"{strongest[index]:.4g}") for index in chosen],
        "num_left_out": len(strongest) - len(chosen),
    }
    return render_to_string("admin/openai_api/requestlog/tokens.html", context)


def _records(row: RequestLog) -> list[Any]:
    """Return the records, empty for a row whose texts were not stored or have been pruned."""
    found = row.parameters.get(TOKENS)
    return found if isinstance(found, list) else []


def _parts(row: RequestLog) -> Iterator[Part]:
    answers = [answer for record in _records(row) for answer in record["answers"]]
    notes = _watched(row) if len(answers) == 1 else {}  # with several answers the token's answer is unknown
    for number, answer in enumerate(answers):
        if answer["prompt"]:
            yield Part(f"Prompt tokens{_place(number, answers)}", _tokens(answer["prompt"], notes))
        if answer["tokens"]:
            tokens = _tokens(answer["tokens"], notes)
            yield Part(f"Answer tokens{_place(number, answers)}", tokens, _cut(answer), number)


def _place(number: int, answers: list[Any]) -> str:
    return f" #{number}" if len(answers) > 1 else ""


def _cut(answer: dict[str, Any]) -> str:
    kept, written = len(answer["tokens"]), answer["num_tokens"]
    return (
        f"Showing the first {kept} of {written} tokens; the log stores no more of one request."
        if kept < written
        else ""
    )


def _tokens(kept: list[dict[str, Any]], notes: Notes) -> list[Token]:
    """Return the tokens. Dots stand for prompt tokens that were not read."""
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


def _strongest(row: RequestLog, *, first: int = 0) -> dict[int, float]:
    """Return the largest activation of each feature at the places from ``first`` on."""
    found: dict[int, float] = {}
    for record in _records(row):
        for answer in record["answers"]:
            for token in (*answer["prompt"], *answer["tokens"]):
                for index, value in token.get("features") or () if token["place"] >= first else ():
                    found[index] = max(value, found.get(index, value))
    return found


def _labels_and_dense(model: str, sae: str, indices: list[int]) -> tuple[dict[int, str], set[int]]:
    """Return the labels of features, and those that are active on a large share of all tokens. One query."""
    rows = Feature.objects.filter(sae__model__name=model, sae__name=sae, index__in=indices[:MAX_LABELS])
    found = list(rows.values_list("index", "label", "density"))
    labels = {index: visible_text(label) for index, label, _ in found if label}
    return labels, {index for index, _, density in found if density is not None and density >= DENSE}


def _watched(row: RequestLog) -> Notes:
    found: Notes = {}
    for event in WatchEvent.objects.filter(request_id=row.pk).order_by("rule"):
        saw = visible_text(f"{event.rule}: {event.subject}")
        found.setdefault(event.place, []).append(("Watch rule", f"{saw}, {event.value:.4g}"))
    return found
