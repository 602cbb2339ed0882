"""The sidebar: only what one may open, nothing lost, one place marked."""

from __future__ import annotations

import re

import pytest
from django.apps import apps
from django.contrib import admin
from django.contrib.auth.models import User
from django.test import Client, RequestFactory

from console.navigation import SECTIONS
from console.pages import PAGES
from tests.console.test_pages import client_of, staff

pytestmark = pytest.mark.django_db


@pytest.fixture
def root() -> Client:
    return client_of(User.objects.create_superuser("root"))


def links(page: str) -> list[str]:
    navigation = page.split('<nav id="console-nav"')[1].split("</nav>")[0]
    return re.findall(r'href="([^"]+)"', navigation)


def test_an_administrator_finds_every_model_that_the_admin_lists(root: Client, rf: RequestFactory):
    found = links(root.get("/admin/").content.decode())
    request = rf.get("/admin/")
    request.user = User.objects.get()
    listed = [model for model, its in admin.site._registry.items() if any(its.get_model_perms(request).values())]
    assert len(listed) > 15
    for model in listed:
        assert f"/admin/{model._meta.app_label}/{model._meta.model_name}/" in found
    assert len(found) == len(set(found))


def test_nobody_is_shown_what_they_may_not_open():
    page = client_of(staff("view_sae")).get("/admin/").content.decode()
    assert links(page) == ["/admin/", "/admin/steering/sae/"]
    for word in ("Request log", "API keys", "Users", "Engine"):
        assert word not in page


@pytest.mark.parametrize(
    ("path", "current"),
    [
        ("/admin/", "/admin/"),
        ("/admin/steering/sae/", "/admin/steering/sae/"),
        ("/admin/steering/sae/add/", "/admin/steering/sae/"),
        ("/admin/auth/group/add/", "/admin/auth/group/"),
        ("/admin/password_change/", None),
    ],
)
def test_the_place_where_one_is_is_marked(root: Client, path: str, current: str | None):
    marked = re.findall(r'href="([^"]+)" aria-current="page"', root.get(path).content.decode())
    assert marked == ([current] if current else [])


def test_every_entry_names_something_that_is_there():
    """A page that is not built yet may be missing, a model may not."""
    for _, entries in SECTIONS:
        for entry in entries:
            assert bool(entry.page) != bool(entry.model)
            if entry.model:
                assert apps.get_model(entry.model) in admin.site._registry
    assert PAGES.find("dashboard")


def test_a_popup_has_no_frame(root: Client):
    page = root.get("/admin/auth/group/add/?_popup=1").content.decode()
    assert "console-nav" not in page
    assert "frame.js" not in page
