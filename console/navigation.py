"""The sidebar's entries, by task, and the tabs of each. Lists that no entry names are under "More"."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest
from django.urls import reverse

from console.pages import PAGES, may_see


@dataclass(frozen=True, slots=True)
class Tab:
    """A registered ``page``, or the list of a ``model`` ("app_label.ObjectName")."""

    title: str
    page: str = ""
    model: str = ""


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of the sidebar, which opens its first tab that the user may see.

    ``icon`` is a symbol of icons.svg. ``live`` names the live topic whose count is shown.
    """

    title: str
    icon: str
    tabs: tuple[Tab, ...]
    live: str = ""


SECTIONS: tuple[tuple[str, tuple[Entry, ...]], ...] = (
    (
        "Overview",
        (
            Entry("Dashboard", "layout-dashboard", (Tab("Dashboard", page="dashboard"),)),
            Entry(
                "Studio",
                "flask-conical",
                (Tab("Steering studio", page="studio"), Tab("Playground", page="playground")),
            ),
            Entry(
                "Saved",
                "bookmark",
                (
                    Tab("Saved lists", model="console.SavedList"),
                    Tab("Public pages", model="console.SharedPage"),
                ),
            ),
        ),
    ),
    (
        "Steering",
        (
            Entry(
                "Profiles",
                "sliders-horizontal",
                (
                    Tab("Profiles", model="steering.SteeringProfile"),
                    Tab("Published versions", model="steering.ProfileVersion"),
                    Tab("Evaluations", model="steering.Evaluation"),
                    Tab("Policies", model="steering.SteeringPolicy"),
                ),
            ),
            Entry(
                "Features and SAEs",
                "sparkles",
                (
                    Tab("Features", model="steering.Feature"),
                    Tab("SAEs", model="steering.SAE"),
                    Tab("Vectors", model="steering.VectorSet"),
                ),
            ),
        ),
    ),
    (
        "Serving",
        (
            Entry(
                "Models",
                "box",
                (Tab("Models", model="inference.LanguageModel"), Tab("Voices", model="media.Voice")),
            ),
            Entry(
                "API keys",
                "key-round",
                (Tab("API keys", model="openai_api.ApiKey"), Tab("Key usage", model="openai_api.KeyDay")),
            ),
            Entry(
                "Storage",
                "database",
                (
                    Tab("Files", model="storage.StoredFile"),
                    Tab("Batches", model="storage.Batch"),
                    Tab("Vector stores", model="storage.VectorStore"),
                    Tab("Videos", model="media.Video"),
                ),
            ),
            Entry(
                "Responses",
                "messages-square",
                (
                    Tab("Responses", model="responses.StoredResponse"),
                    Tab("Conversations", model="responses.Conversation"),
                    Tab("Stored completions", model="stored_chats.StoredChat"),
                ),
            ),
        ),
    ),
    (
        "Monitoring",
        (
            Entry("Request log", "scroll-text", (Tab("Request log", model="openai_api.RequestLog"),)),
            Entry(
                "Watch",
                "eye",
                (
                    Tab("Watch events", model="steering.WatchEvent"),
                    Tab("Watch rules", model="steering.WatchRule"),
                ),
            ),
            Entry(
                "Jobs",
                "list-checks",
                (
                    Tab("Jobs", model="jobs.Job"),
                    Tab("Webhooks", model="webhooks.WebhookEndpoint"),
                    Tab("Webhook deliveries", model="webhooks.WebhookDelivery"),
                ),
                live="jobs",
            ),
            Entry(
                "Audit",
                "history",
                (
                    Tab("Audit trail", model="audit.AuditEvent"),
                    Tab("Log access", model="openai_api.LogAccess"),
                ),
            ),
        ),
    ),
    (
        "Administration",
        (
            Entry("Users", "users", (Tab("Users", model="auth.User"), Tab("Groups", model="auth.Group"))),
            Entry("Settings", "settings", (Tab("Settings", page="settings"),)),
        ),
    ),
)
MORE = "More"
MORE_ICON = "ellipsis"


@dataclass(frozen=True, slots=True)
class Link:
    title: str
    url: str
    is_current: bool = False


@dataclass(frozen=True, slots=True)
class NavItem:
    """An entry that the user can open, with the links of its tabs."""

    title: str
    icon: str
    tabs: tuple[Link, ...]
    live: str = ""

    @property
    def url(self) -> str:
        return self.tabs[0].url

    @property
    def current(self) -> Link | None:
        return next((tab for tab in self.tabs if tab.is_current), None)


@dataclass(frozen=True, slots=True)
class Section:
    title: str
    items: tuple[NavItem, ...]


@dataclass(frozen=True, slots=True)
class Place:
    """The section, entry and tab that a page belongs to."""

    section: str
    item: NavItem
    link: Link


def sections(request: HttpRequest, app_list: Iterable[Mapping[str, Any]]) -> tuple[Section, ...]:
    """Return the entries that the user can open. ``app_list`` is the admin's list for this user."""
    lists = _lists_by_model(app_list)
    found = [(title, [_item(request, entry, lists) for entry in entries]) for title, entries in SECTIONS]
    found.append((MORE, [NavItem(name, MORE_ICON, (Link(name, url),)) for name, url in _unplaced(lists)]))
    current = _current(request.path, [tab.url for _, items in found for item in items for tab in item.tabs])
    marked = ((title, tuple(_marked(item, current) for item in items if item.tabs)) for title, items in found)
    return tuple(Section(title, items) for title, items in marked if items)


def place_of(found: Iterable[Section]) -> Place | None:
    """Return the place of the page, or None for pages outside the sidebar, such as changing the password."""
    places = (Place(section.title, item, item.current) for section in found for item in section.items if item.current)
    return next(places, None)


def _lists_by_model(app_list: Iterable[Mapping[str, Any]]) -> dict[str, tuple[str, str]]:
    """Return the title and URL of each list, by ``app_label.ObjectName``."""
    return {
        f"{app['app_label']}.{model['object_name']}": (str(model["name"]), model["admin_url"])
        for app in app_list
        for model in app["models"]
        if model["admin_url"]
    }


def _unplaced(lists: Mapping[str, tuple[str, str]]) -> Iterator[tuple[str, str]]:
    placed = {tab.model for _, entries in SECTIONS for entry in entries for tab in entry.tabs}
    return (named for model, named in lists.items() if model not in placed)


def _item(request: HttpRequest, entry: Entry, lists: Mapping[str, tuple[str, str]]) -> NavItem:
    """Return the entry with the tabs that the user may see, named after its tab if that is the only one."""
    tabs = tuple(link for tab in entry.tabs if (link := _link(request, tab, lists)))
    return NavItem(tabs[0].title if len(tabs) == 1 else entry.title, entry.icon, tabs, entry.live)


def _link(request: HttpRequest, tab: Tab, lists: Mapping[str, tuple[str, str]]) -> Link | None:
    if tab.model:
        return Link(tab.title, lists[tab.model][1]) if tab.model in lists else None
    page = PAGES.find(tab.page)
    return Link(tab.title, reverse(page.url_name)) if page and may_see(request, page) else None


def _current(path: str, urls: Iterable[str]) -> str:
    """Return the tab with the longest URL that is a prefix of the path. The dashboard's URL must match exactly."""
    home = reverse("admin:index")
    return max((url for url in urls if path == url or (url != home and path.startswith(url))), key=len, default="")


def _marked(item: NavItem, current: str) -> NavItem:
    tabs = tuple(Link(tab.title, tab.url, tab.url == current) for tab in item.tabs)
    return NavItem(item.title, item.icon, tabs, item.live)
