"""The search form, which query strings, saved searches and commands all go through."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from django import forms
from django.db.models import Q
from django.forms.utils import pretty_name
from django.utils import timezone

from inference.models import LanguageModel
from openai_api.keys.record import KEY_START, PREFIX_LENGTH, STATIC_PREFIX, STATIC_PREFIX_LENGTH
from openai_api.models import ApiKey, RequestLog
from openai_api.request_id import ANSWERS, REQUEST
from openai_api.request_log.models import MAX_SEARCH, has_words
from openai_api.request_log.search import LAST, NONE, NOT_SCORED, OTHERS, OUTCOMES, SCORES, SOURCES, LogSearch
from openai_api.request_log.summary import ROOT, visible_text
from steering.models import SteeringProfile

MAX_OFFERED = 200  # suggestions beside a field; others can be typed
ANY = ("", "any")
CURSORS = ("before", "after")
NEED_TEXT = ("text", "metadata")  # fields for users who may see texts
TIME = {"type": "datetime-local", "step": "1"}  # to the second
BAR = {"type": "search", "class": "log-bar"}
_ID = re.compile(rf"({'|'.join(map(re.escape, (REQUEST, *ANSWERS)))})[\w.:-]+")


def is_prefix(value: str) -> bool:
    """Return whether the text is the prefix of a secret, as pages show it."""
    is_static = value.startswith(STATIC_PREFIX) and len(value) == STATIC_PREFIX_LENGTH
    return is_static or (value.startswith(KEY_START) and len(value) == PREFIX_LENGTH)


@dataclass(frozen=True, slots=True)
class Chip:
    """An active filter, with the query string of the search without it."""

    label: str
    value: str
    query: str


def _with_id(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the data, with an id that was entered as words as the id."""
    found = {name: data[name] for name in data}
    text = str(found.get("text") or "").strip()
    return {**found, "text": "", "id": text} if _ID.fullmatch(text) and not found.get("id") else found


class SearchForm(forms.Form):
    """The form of a search; ``offers`` are the suggested names. Unknown values are errors."""

    text = forms.CharField(
        label="Words",
        required=False,
        max_length=MAX_SEARCH,
        help_text='"phrases", or, -exclude. Only the start and end of very long texts are searched.',
    )
    last = forms.ChoiceField(
        label="Time", required=False, choices=[ANY, *((name, title) for name, (title, _) in LAST.items())]
    )
    since = forms.DateTimeField(required=False, widget=forms.DateTimeInput(attrs=TIME))
    until = forms.DateTimeField(required=False, widget=forms.DateTimeInput(attrs=TIME))
    model = forms.CharField(required=False, max_length=200)
    profile = forms.CharField(required=False, max_length=200, help_text="name, name@version or none")
    key = forms.CharField(label="API key", required=False, max_length=100, help_text="name, prefix or none")
    user = forms.CharField(required=False, max_length=200)
    endpoint = forms.CharField(required=False, max_length=60, help_text="-models: all but models")
    source = forms.ChoiceField(
        required=False,
        choices=[("", "clients and batches"), *((name, title) for name, (title, _) in SOURCES.items())],
        help_text='Console: playground, previews and "Try it".',
    )
    outcome = forms.ChoiceField(
        required=False, choices=[ANY, *((name, title) for name, (title, _) in OUTCOMES.items())]
    )
    status = forms.IntegerField(required=False, min_value=100, max_value=599)
    code = forms.CharField(label="Error code", required=False, max_length=100)
    stream = forms.ChoiceField(label="Streamed", required=False, choices=[ANY, ("yes", "yes"), ("no", "no")])
    score = forms.ChoiceField(
        required=False,
        choices=[ANY, *((name, title) for name, (title, _) in SCORES.items()), (NOT_SCORED, "not scored")],
    )
    score_name = forms.CharField(required=False, max_length=60, help_text="Empty: of the answer as a whole.")
    saved = forms.CharField(label="Saved list", required=False, max_length=100)
    metadata = forms.CharField(required=False, max_length=600, help_text="name=value, as in the request's metadata")
    slower = forms.FloatField(label="Min duration (ms)", required=False, min_value=0, max_value=1e9)
    id = forms.CharField(label="Id starts with", required=False, max_length=64, help_text="of the request or response")

    def __init__(self, data: Mapping[str, Any] | None, *, sees_text: bool) -> None:
        super().__init__(_with_id(data or {}), auto_id="log-%s")
        self._sees_text = sees_text
        if not sees_text:
            for name in NEED_TEXT:
                del self.fields[name]
        self.fields[self.bar_name].widget = forms.TextInput(
            {**BAR, "placeholder": "Words, or the start of an id" if sees_text else "Start of an id"}
        )
        self.offers = {name: f"log-{name}-offers" for name in ("model", "profile", "key") if name in self.fields}
        for name, place in self.offers.items():
            self.fields[name].widget.attrs["list"] = place

    @property
    def bar_name(self) -> str:
        return "text" if self._sees_text else "id"

    @property
    def bar(self) -> forms.BoundField:
        """Return the field of the search bar."""
        return self[self.bar_name]

    @property
    def filters(self) -> list[forms.BoundField]:
        return [self[name] for name in self.fields if name != self.bar_name]

    @property
    def hides_console(self) -> bool:
        return not any(self.conditions.get(name) for name in ("source", "id", "saved"))

    def chips(self) -> Iterator[Chip]:
        """Yield the active filters; removing the last one shows requests of the console too."""
        conditions = self.conditions
        for name, value in conditions.items():
            field = self.fields[name]
            choices = dict(field.choices) if isinstance(field, forms.ChoiceField) else {}  # type: ignore[arg-type]
            shown = choices.get(value, value)
            others = {other: text for other, text in conditions.items() if other != name}
            yield Chip(str(field.label or pretty_name(name)), visible_text(str(shown)), f"?{urlencode(others)}")
        if self.hides_console:
            yield Chip("Hidden", "console", f"?{urlencode({**conditions, 'source': 'all'})}")

    @property
    def conditions(self) -> dict[str, str]:
        """Return the fields that are set, as typed, for saving and links."""
        written = ((name, str(self.data.get(name, "")).strip()) for name in self.fields)
        return {name: value for name, value in written if value}

    def offered(self) -> dict[str, list[str]]:
        """Return suggestions from small tables, never from the log itself."""
        return {
            "log-model-offers": list(LanguageModel.objects.values_list("name", flat=True)[:MAX_OFFERED]),
            "log-profile-offers": [
                NONE,
                *SteeringProfile.objects.order_by("name").values_list("name", flat=True).distinct()[:MAX_OFFERED],
            ],
            "log-key-offers": [NONE, *ApiKey.objects.values_list("name", flat=True)[:MAX_OFFERED]],
        }

    def clean_text(self) -> str:
        text: str = self.cleaned_data["text"]
        if text and not has_words(text):
            raise forms.ValidationError("Enter at least one word.")
        return text

    def clean_metadata(self) -> tuple[str, str] | None:
        written: str = self.cleaned_data["metadata"]
        name, sign, value = written.partition("=")
        if written and not (name.strip() and sign):
            raise forms.ValidationError("Enter a name and a value as name=value.")
        return (name.strip(), value.strip()) if written else None

    def clean_endpoint(self) -> str:
        """Return the endpoint as logged; lists show it without its prefix."""
        value: str = self.cleaned_data["endpoint"].strip()
        sign, name = (OTHERS, value[1:].lstrip()) if value.startswith(OTHERS) else ("", value)
        return sign + (name if not name or name.startswith("/") else f"{ROOT}{name.removeprefix('v1/')}")

    def clean_key(self) -> tuple[int, ...] | None:
        value = self.cleaned_data["key"]
        if not value:
            return None
        if value == NONE:
            return ()
        known = Q(prefix=value) if is_prefix(value) else Q(name=value)
        found = tuple(ApiKey.objects.filter(known).values_list("pk", flat=True)[:1_000])
        if not found and not (is_prefix(value) and RequestLog.objects.filter(key_prefix=value).exists()):
            raise forms.ValidationError(f'There is no key "{value}".')
        return found

    def _key_prefix(self) -> str:
        value = str(self.data.get("key", "")).strip()
        return value if is_prefix(value) else ""

    def clean(self) -> dict[str, Any]:
        data = super().clean() or self.cleaned_data
        if not self._sees_text and any(self.data.get(name) for name in NEED_TEXT):
            raise forms.ValidationError("You don't have permission to search request texts.")
        unknown = [name for name in self.data if name not in (*self.fields, *CURSORS, *NEED_TEXT)]
        if unknown:
            raise forms.ValidationError(f'Unknown search field "{unknown[0][:50]}".')
        if data.get("score_name") and not data.get("score"):
            self.add_error("score", "Choose which scores of this name.")
        if data.get("last") and data.get("since"):
            self.add_error("since", "Choose either this or a time above.")
        return data

    def search(self) -> LogSearch:
        """Return the search of a valid form."""
        data = self.cleaned_data
        since = timezone.now() - LAST[data["last"]][1] if data["last"] else data["since"]
        return LogSearch(
            since=since,
            keys=data["key"],
            key_prefix=self._key_prefix(),
            stream={"yes": True, "no": False}.get(data["stream"]),
            slower_ms=data["slower"],
            saved_list=data["saved"],
            metadata=data.get("metadata"),
            text=data.get("text", ""),
            **{
                name: data[name]
                for name in (
                    "id",
                    "until",
                    "user",
                    "model",
                    "profile",
                    "endpoint",
                    "source",
                    "outcome",
                    "status",
                    "code",
                    "score",
                    "score_name",
                )
            },
        )
