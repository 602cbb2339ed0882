"""Search of the console, for its page and the command palette: pages, objects by name, and ids by their beginning.

Objects are those that the user sees in the admin's lists: permissions and query sets are those of the list's admin.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import reduce
from operator import or_
from typing import Any

from django.contrib import admin
from django.contrib.admin.utils import quote
from django.contrib.auth.models import User
from django.db.models import Model, Q
from django.http import HttpRequest, JsonResponse
from django.urls import reverse

from console.models import SavedList
from console.navigation import sections
from console.pages import Endpoint, Page, register_endpoint, register_page
from inference.models import LanguageModel
from jobs.models import Job
from media.models import Video, Voice
from openai_api.keys.record import KEY_START, PREFIX_LENGTH
from openai_api.models import ApiKey, RequestLog
from openai_api.request_log.search import LogSearch
from openai_api.request_log.summary import visible_text
from openai_api.responses.models import Conversation, StoredResponse
from openai_api.stored_chats.models import StoredChat
from steering.models import SAE, Feature, ProfileVersion, SteeringProfile, VectorSet
from storage.models import Batch, StoredFile, VectorStore

MAX_ON_PAGE = 10
MAX_IN_PALETTE = 5
MAX_CHARS = 200
MAX_NOTE = 120
DOCS_ICON = "book-open"
_ID = re.compile(r"[\w.:-]{4,}", re.ASCII)
_VERSION = re.compile(r"(?P<name>.+)@(?P<number>\d{1,9})", re.ASCII)
Find = Callable[[Any, str], Any]  # (rows, text) to rows


@dataclass(frozen=True, slots=True)
class Hit:
    name: str
    note: str
    url: str
    icon: str  # a symbol of icons.svg


@dataclass(frozen=True, slots=True)
class Group:
    """Results of one kind. ``more`` is the URL of the full list, empty if all results are shown."""

    title: str
    hits: tuple[Hit, ...]
    more: str = ""


@dataclass(frozen=True, slots=True)
class Source:
    """A searchable kind. ``query`` is the parameter of its list that takes the text."""

    title: str
    icon: str
    model: type[Model]
    find: Find
    note: Callable[[Any], str]
    query: str = "q"


def search(request: HttpRequest) -> Mapping[str, Any]:
    """Return the results for the page, none for a blank text."""
    text = _text(request)
    return {"searched": text, "groups": _groups(request, text, MAX_ON_PAGE) if text else []}


def palette(request: HttpRequest) -> JsonResponse:
    """Return the results for the palette, for a blank text all pages."""
    text = _text(request)
    found = _groups(request, text, MAX_IN_PALETTE) if text else [_pages(request, "")]
    return JsonResponse({"groups": [asdict(group) for group in found]})


def _text(request: HttpRequest) -> str:
    """Return what is searched. NUL is removed, because Postgres cannot store it."""
    return request.GET.get("q", "").replace("\0", "").strip()[:MAX_CHARS]


def _groups(request: HttpRequest, text: str, limit: int) -> list[Group]:
    """Return the kinds with results; those whose first result begins with the text, such as an id, come first."""
    found = [_pages(request, text), *(_group(request, source, text, limit) for source in SOURCES)]
    shown = [group for group in found if group.hits]
    return sorted(shown, key=lambda group: not group.hits[0].name.lower().startswith(text.lower()))


def _pages(request: HttpRequest, text: str) -> Group:
    """Return the pages with all words of the text in their titles; those whose own title begins with it come first."""
    words = text.lower().split()
    found = [hit for hit in _all_pages(request) if all(word in f"{hit.name} {hit.note}".lower() for word in words)]
    found.sort(key=lambda hit: not hit.name.lower().startswith(text.lower()))
    return Group("Pages", tuple(found))


def _all_pages(request: HttpRequest) -> Iterator[Hit]:
    for section in sections(request, admin.site.get_app_list(request)):
        for item in section.items:
            for tab in item.tabs:
                place = section.title if tab.title == item.title else item.title
                yield Hit(tab.title, place, tab.url, item.icon)
    yield Hit("API reference", "Documentation", reverse("docs"), DOCS_ICON)
    if isinstance(request.user, User) and request.user.has_usable_password():
        yield Hit("Change password", "Your account", reverse("admin:password_change"), "key-round")


def _group(request: HttpRequest, source: Source, text: str, limit: int) -> Group:
    listed = admin.site.get_model_admin(source.model)
    if not listed.has_view_permission(request):
        return Group(source.title, ())
    rows = list(source.find(listed.get_queryset(request), text)[: limit + 1])
    name = f"admin:{source.model._meta.app_label}_{source.model._meta.model_name}"
    hits = tuple(
        Hit(
            visible_text(str(row)),
            _short(source.note(row)),
            reverse(f"{name}_change", args=[quote(row.pk)]),
            source.icon,
        )
        for row in rows[:limit]
    )
    more = reverse(f"{name}_changelist", query={source.query: text}) if len(rows) > limit else ""
    return Group(source.title, hits, more)


def _short(note: str) -> str:
    shown = visible_text(note)
    return shown if len(shown) <= MAX_NOTE else f"{shown[:MAX_NOTE]}…"


def _models(rows: Any, text: str) -> Any:
    return rows.filter(Q(name__icontains=text) | Q(aliases__icontains=text) | Q(source__icontains=text))


def _profiles(rows: Any, text: str) -> Any:
    return rows.filter(Q(name__icontains=text) | Q(description__icontains=text)).order_by("name", "pk")


def _versions(rows: Any, text: str) -> Any:
    """Return the version that requests would name so."""
    named = _VERSION.fullmatch(text)
    if named is None:
        return rows.none()
    return rows.filter(profile__name=named["name"], number=named["number"]).select_related("profile__model")


def _features(rows: Any, text: str) -> Any:
    return rows.search(text)


def _keys(rows: Any, text: str) -> Any:
    """Return keys by name, or by the beginning of the secret, of which only the prefix is stored."""
    named = Q(name__icontains=text)
    secret = Q(prefix__startswith=text[:PREFIX_LENGTH])
    return rows.filter(named | secret if text.startswith(KEY_START) else named).order_by("name", "pk")


def _requests(rows: Any, text: str) -> Any:
    """Return requests by their id or that of their answer."""
    if not _ID.fullmatch(text):
        return rows.none()
    found = LogSearch(id=text).rows().order_by("-created_at")
    return found.only("created_at", "endpoint", "model", "status")


def _jobs(rows: Any, text: str) -> Any:
    """Return jobs by parts of their titles, or by the beginning of their UUID."""
    found = Q(title__icontains=text)
    digits = text.replace("-", "").lower()
    if re.fullmatch(r"[0-9a-f]{4,32}", digits):
        found |= Q(pk__range=tuple(uuid.UUID(digits.ljust(32, fill)) for fill in "0f"))
    return rows.filter(found).order_by("-created_at").only("title", "state")


def by_name(field: str, *related: str) -> Find:
    return lambda rows, text: (
        rows.filter(**{f"{field}__icontains": text}).order_by(field, "pk").select_related(*related)
    )


def by_id(field: str, *only: str, name: str = "") -> Find:
    """Return a search by the beginning of an id, and by parts of ``name`` if the kind has one."""

    def find(rows: Any, text: str) -> Any:
        fields = {f"{field}__startswith"} if _ID.fullmatch(text) else set()
        fields |= {f"{name}__icontains"} if name else set()
        found = rows.filter(reduce(or_, (Q(**{each: text}) for each in fields))) if fields else rows.none()
        return found.order_by("-created_at", "pk").only(field, *only, *filter(None, [name]))

    return find


SOURCES = (
    Source("Models", "box", LanguageModel, _models, lambda row: row.source),
    Source("Profiles", "sliders-horizontal", SteeringProfile, _profiles, lambda row: row.description),
    Source(
        "Published versions", "sliders-horizontal", ProfileVersion, _versions, lambda row: f"of {row.profile.model}"
    ),
    Source("SAEs", "sparkles", SAE, by_name("name", "model"), lambda row: f"of {row.model}"),
    Source("Features", "sparkles", Feature, _features, lambda row: row.description),
    Source("Vectors", "sparkles", VectorSet, by_name("name", "model"), lambda row: f"of {row.model}"),
    Source("Saved lists", "bookmark", SavedList, by_name("name"), lambda row: row.description),
    Source("Voices", "box", Voice, by_name("name", "model"), lambda row: f"of {row.model}"),
    Source("API keys", "key-round", ApiKey, _keys, lambda row: row.note),
    Source(
        "Requests",
        "scroll-text",
        RequestLog,
        _requests,
        lambda row: f"{row.created_at:%Y-%m-%d %H:%M:%S}, {row.endpoint}, {row.model or 'no model'}, {row.status}",
        query="id",
    ),
    Source("Jobs", "list-checks", Job, _jobs, lambda row: row.get_state_display().lower()),
    Source(
        "Responses",
        "messages-square",
        StoredResponse,
        by_id("id", "model", "status"),
        lambda row: f"{row.model}, {row.get_status_display().lower()}",
    ),
    Source("Conversations", "messages-square", Conversation, by_id("id"), lambda row: ""),
    Source("Stored completions", "messages-square", StoredChat, by_id("id", "model"), lambda row: row.model),
    Source("Files", "database", StoredFile, by_id("public_id", "purpose", name="filename"), lambda row: row.purpose),
    Source(
        "Batches",
        "database",
        Batch,
        by_id("public_id", "model", "status"),
        lambda row: row.get_status_display().lower(),
    ),
    Source("Vector stores", "database", VectorStore, by_id("public_id", name="name"), lambda row: ""),
    Source(
        "Videos",
        "database",
        Video,
        by_id("public_id", "model", "status"),
        lambda row: f"{row.model}, {row.get_status_display().lower()}",
    ),
    Source("Users", "users", User, by_name("username"), lambda row: row.get_full_name()),
)

SEARCH = register_page(Page("search", "search/", "Search", "console/search.html", context=search))
PALETTE = register_endpoint(Endpoint("palette", "search/palette/", palette, methods=("GET",)))
