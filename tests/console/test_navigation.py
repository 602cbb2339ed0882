"""The sidebar and its tabs: only what one may open, nothing lost, one place marked."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from django.apps import apps
from django.conf import settings
from django.contrib import admin
from django.contrib.auth.models import User
from django.contrib.staticfiles import finders
from django.test import Client, RequestFactory

from console.navigation import MORE_ICON, SECTIONS
from console.pages import PAGES
from console.search import DOCS_ICON, SOURCES
from tests.console.test_pages import client_of, staff

pytestmark = pytest.mark.django_db


@pytest.fixture
def root() -> Client:
    return client_of(User.objects.create_superuser("root"))


def links(page: str, label: str = "Console") -> list[str]:
    """The addresses in the navigation of that name: the sidebar, or the tabs of an entry."""
    _, found, rest = page.partition(f'aria-label="{label}"')
    return re.findall(r'<a href="([^"]+)"', rest.split("</nav>")[0]) if found else []


def texts(page: str) -> list[str]:
    return re.findall(r"<span>([^<]+)</span>", page.split('<nav id="console-nav"')[1].split("</nav>")[0])


def test_an_administrator_finds_every_model_that_the_admin_lists(root: Client, rf: RequestFactory):
    entries = links(root.get("/admin/").content.decode())
    assert len(entries) == len(set(entries)) <= 15
    found = set(entries)
    for entry in entries:
        page = root.get(entry).content.decode()
        tabs = re.search(r'<nav class="tabs".*?</nav>', page)
        found |= set(re.findall(r'href="([^"]+)"', tabs[0])) if tabs else set()
    request = rf.get("/admin/")
    request.user = User.objects.get()
    listed = [model for model, its in admin.site._registry.items() if any(its.get_model_perms(request).values())]
    assert len(listed) > 15
    assert {f"/admin/{model._meta.app_label}/{model._meta.model_name}/" for model in listed} <= found


def test_nobody_is_shown_what_they_may_not_open():
    client = client_of(staff("view_sae"))
    page = client.get("/admin/").content.decode()
    assert links(page) == ["/admin/", "/admin/steering/sae/"]
    assert texts(page) == ["Dashboard", "SAEs"]  # an entry of one tab is called what the tab is called
    assert 'class="tabs"' not in client.get("/admin/steering/sae/").content.decode()
    for word in ("Request log", "API keys", "Users", "Engine"):
        assert word not in page


def test_tabs_are_those_that_one_may_open():
    client = client_of(staff("view_batch", "view_vectorstore", "view_video"))
    assert links(client.get("/admin/").content.decode()) == ["/admin/", "/admin/storage/batch/"]
    page = client.get("/admin/storage/vectorstore/").content.decode()
    found = ["/admin/storage/batch/", "/admin/storage/vectorstore/", "/admin/media/video/"]
    assert links(page, "Storage") == found
    assert re.findall(r'href="([^"]+)" aria-current="page"', page) == ["/admin/storage/batch/", found[1]]


def test_pages_of_an_object_have_no_tabs(root: Client):
    assert 'class="tabs"' in root.get("/admin/auth/group/?q=x").content.decode()
    assert 'class="tabs"' not in root.get("/admin/auth/group/add/").content.decode()


def test_a_list_without_an_entry_is_under_more(root: Client, monkeypatch: pytest.MonkeyPatch):
    left = tuple((title, entries) for title, entries in SECTIONS if title != "Serving")
    monkeypatch.setattr("console.navigation.SECTIONS", left)
    page = root.get("/admin/").content.decode()
    assert "/admin/storage/batch/" in links(page)
    assert ">More</h2>" in page


@pytest.mark.parametrize(
    ("path", "current"),
    [
        ("/admin/", "/admin/"),
        ("/admin/steering/sae/", "/admin/steering/feature/"),
        ("/admin/steering/sae/add/", "/admin/steering/feature/"),
        ("/admin/auth/group/add/", "/admin/auth/user/"),
        ("/admin/storage/batch/", "/admin/storage/storedfile/"),
        ("/admin/password_change/", None),
    ],
)
def test_the_place_where_one_is_is_marked(root: Client, path: str, current: str | None):
    sidebar = root.get(path).content.decode().split('<nav id="console-nav"')[1].split("</nav>")[0]
    marked = re.findall(r'href="([^"]+)" aria-current="page"', sidebar)
    assert marked == ([current] if current else [])


def test_every_tab_names_something_that_is_there():
    """A page that is not built yet may be missing, a model may not."""
    for tab in (tab for _, entries in SECTIONS for entry in entries for tab in entry.tabs):
        assert bool(tab.page) != bool(tab.model)
        if tab.model:
            assert apps.get_model(tab.model) in admin.site._registry
    assert PAGES.find("dashboard")


def test_the_sprite_holds_the_icons_in_use_and_no_others():
    found = finders.find("console/vendor/lucide/icons.svg")
    symbols = set(re.findall(r'<symbol id="([^"]+)"', Path(str(found)).read_text()))
    templates = "".join(path.read_text() for path in (settings.BASE_DIR / "templates").rglob("*.html"))
    named = set(re.findall(r'console/icon.html" with name="([^"]+)"', templates))
    named |= {entry.icon for _, entries in SECTIONS for entry in entries} | {MORE_ICON, DOCS_ICON}
    assert {source.icon for source in SOURCES} <= named
    assert symbols == named


def test_a_popup_has_no_frame(root: Client):
    page = root.get("/admin/auth/group/add/?_popup=1").content.decode()
    assert "console-nav" not in page
    assert "frame.js" not in page
