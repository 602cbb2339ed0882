"""The sidebar's entries, by task. Models without an entry are listed under "More"."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest
from django.urls import reverse

from console.pages import PAGES, may_see


@dataclass(frozen=True, slots=True)
class Entry:
    """A link to a registered ``page``, or to the list of a ``model`` ("app_label.ObjectName")."""

    title: str
    page: str = ""
    model: str = ""


@dataclass(frozen=True, slots=True)
class Link:
    title: str
    url: str
    is_current: bool = False
    key: str = ""  # name of its count in the live state


@dataclass(frozen=True, slots=True)
class Section:
    title: str
    links: tuple[Link, ...]


SECTIONS: tuple[tuple[str, tuple[Entry, ...]], ...] = (
    ("Overview", (Entry("Dashboard", page="dashboard"), Entry("Playground", page="playground"))),
    (
        "Steer",
        (
            Entry("Profiles", model="steering.SteeringProfile"),
            Entry("Published versions", model="steering.ProfileVersion"),
            Entry("SAEs", model="steering.SAE"),
            Entry("Features", model="steering.Feature"),
            Entry("Vectors", model="steering.VectorSet"),
            Entry("Evaluations", model="steering.Evaluation"),
            Entry("Policies", model="steering.SteeringPolicy"),
        ),
    ),
    (
        "Serve",
        (
            Entry("Models", model="inference.LanguageModel"),
            Entry("Voices", model="media.Voice"),
            Entry("API keys", model="openai_api.ApiKey"),
            Entry("Jobs", model="jobs.Job"),
            Entry("Videos", model="media.Video"),
            Entry("Files", model="storage.StoredFile"),
            Entry("Batches", model="storage.Batch"),
            Entry("Vector stores", model="storage.VectorStore"),
            Entry("Responses", model="responses.StoredResponse"),
            Entry("Conversations", model="responses.Conversation"),
            Entry("Stored completions", model="stored_chats.StoredChat"),
        ),
    ),
    (
        "Audit",
        (
            Entry("Request log", model="openai_api.RequestLog"),
            Entry("Log access", model="openai_api.LogAccess"),
            Entry("Audit trail", model="audit.AuditEvent"),
            Entry("Watch rules", model="steering.WatchRule"),
            Entry("Watch events", model="steering.WatchEvent"),
            Entry("Key usage", model="openai_api.KeyDay"),
        ),
    ),
    ("Settings", (Entry("Users", model="auth.User"), Entry("Groups", model="auth.Group"))),
)


@dataclass(frozen=True, slots=True)
class Place:
    """The section and entry of the sidebar that a page belongs to."""

    section: str
    link: Link


def sections(request: HttpRequest, app_list: Iterable[Mapping[str, Any]]) -> tuple[Section, ...]:
    """Return the entries that the user can open. ``app_list`` is the admin's list for this user."""
    lists = _lists_by_model(app_list)
    placed = {entry.model for _, entries in SECTIONS for entry in entries}
    found = [
        (title, [link for entry in entries if (link := _link(request, entry, lists))]) for title, entries in SECTIONS
    ]
    found.append(("More", [Link(name, url) for model, (name, url) in lists.items() if model not in placed]))
    current = _current(request.path, [link.url for _, links in found for link in links])
    return tuple(Section(title, tuple(_marked(link, current) for link in links)) for title, links in found if links)


def place_of(found: Iterable[Section]) -> Place | None:
    """Return the place of the page, or None for pages outside the sidebar, such as changing the password."""
    return next((Place(section.title, link) for section in found for link in section.links if link.is_current), None)


def _lists_by_model(app_list: Iterable[Mapping[str, Any]]) -> dict[str, tuple[str, str]]:
    """Return the title and URL of each list, by ``app_label.ObjectName``."""
    return {
        f"{app['app_label']}.{model['object_name']}": (str(model["name"]), model["admin_url"])
        for app in app_list
        for model in app["models"]
        if model["admin_url"]
    }


def _link(request: HttpRequest, entry: Entry, lists: Mapping[str, tuple[str, str]]) -> Link | None:
    if entry.model:
        return Link(entry.title, lists[entry.model][1], key=entry.model) if entry.model in lists else None
    page = PAGES.find(entry.page)
    return Link(entry.title, reverse(page.url_name), key=page.name) if page and may_see(request, page) else None


def _current(path: str, urls: Iterable[str]) -> str:
    """Return the entry with the longest URL that is a prefix of the path. The dashboard's URL must match exactly."""
    home = reverse("admin:index")
    return max((url for url in urls if path == url or (url != home and path.startswith(url))), key=len, default="")


def _marked(link: Link, current: str) -> Link:
    return Link(link.title, link.url, link.url == current, link.key)
