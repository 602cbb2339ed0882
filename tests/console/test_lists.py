"""Lists: what they say when nothing is in them, their filters, and the sidebar's names for them."""

from __future__ import annotations

import re
from datetime import UTC, datetime

import pytest
from django.contrib import admin
from django.contrib.auth.models import Group, User
from django.test import Client
from django.urls import reverse

from console.navigation import SECTIONS
from jobs.models import Job
from openai_api.models import LogAccess
from tests.console.test_pages import client_of

pytestmark = pytest.mark.django_db
LISTS = [(section, tab) for section, entries in SECTIONS for entry in entries for tab in entry.tabs if tab.model]
JOBS = "/admin/jobs/job/"


@pytest.fixture
def root() -> Client:
    return client_of(User.objects.create_superuser("root"))


@pytest.fixture
def jobs() -> list[Job]:
    return [
        Job.objects.create(kind="example.count", title=title, state=state)
        for title, state in (("Count sheep", "succeeded"), ("Count wolves", "failed"))
    ]


def content(client: Client, path: str) -> str:
    return client.get(path).content.decode().split('id="content"')[1]


@pytest.mark.parametrize(("section", "tab"), LISTS, ids=lambda each: getattr(each, "title", each))
def test_a_list_is_called_what_its_tab_is_called(root: Client, section, tab):
    app, name = tab.model.lower().split(".")
    page = root.get(reverse(f"admin:{app}_{name}_changelist")).content.decode()
    assert f"<h1>{tab.title}</h1>" in page
    places = re.split(r"&rsaquo;", page.split('<div class="breadcrumbs">')[1].split("</div>")[0])
    assert [re.sub(r"<[^>]+>", "", place).strip() for place in places] == ["Home", section, tab.title]


def test_pages_of_an_object_lead_back_to_its_list(root: Client):
    group = Group.objects.create(name="Visitors")
    for act in ("change", "delete", "history"):
        page = root.get(reverse(f"admin:auth_group_{act}", args=[group.pk])).content.decode()
        places = page.split('<div class="breadcrumbs">')[1].split("</div>")[0]
        assert '<a href="/admin/auth/group/">Groups</a>' in places
        assert "Administration" in places


@pytest.mark.parametrize("model", [m for m, its in admin.site._registry.items() if hasattr(its, "empty_words")])
def test_an_empty_list_says_what_would_be_in_it(root: Client, model):
    assert not model._default_manager.exists()
    page = content(root, reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_changelist"))
    assert '<p class="state state-empty">' in page
    for useless in ('id="searchbar"', 'id="list-filters"', 'name="action"', 'class="paginator"'):
        assert useless not in page


def test_every_list_of_the_sidebar_has_such_words():
    own = {"openai_api.RequestLog", "audit.AuditEvent"}  # have lists of their own
    never_empty = {"auth.User", "auth.Group"}
    listed = {tab.model for _, tab in LISTS} - own - never_empty
    spoken = {its.opts.label for its in admin.site._registry.values() if hasattr(its, "empty_words")}
    assert listed <= spoken


def test_forms_save_first_and_offer_another_only_after_an_addition(root: Client):
    def names(path: str) -> list[str]:
        row = root.get(path).content.decode().split('class="submit-row"')[1].split("</div>")[0]
        return re.findall(r'name="_(\w+)"', row)

    group = Group.objects.create(name="Visitors")
    assert names(reverse("admin:auth_group_add")) == ["save", "continue", "addanother"]
    assert names(reverse("admin:auth_group_change", args=[group.pk])) == ["save", "continue"]


def test_a_search_without_a_hit_leads_back(root: Client, jobs):
    page = content(root, f"{JOBS}?q=goats")
    assert "No matching results." in page
    assert '<a href="?">Show all</a>' in page
    assert "0 found" in page
    assert 'name="action"' not in page


def test_what_a_list_is_filtered_by_stands_on_the_filter(root: Client, jobs):
    page = content(root, f"{JOBS}?state__exact=failed")
    assert "Count wolves" in page
    assert "Count sheep" not in page
    assert re.search(r"<summary>State: <strong>Failed</strong></summary>", page)
    assert "Clear all filters" in page
    plain = content(root, JOBS)
    assert "<summary>State</summary>" in plain
    assert "Clear all filters" not in plain
    assert "found (" not in plain


def test_times_are_written_to_the_second_and_sort(root: Client):
    at = datetime(2026, 3, 4, 17, 8, 9, tzinfo=UTC)
    LogAccess.objects.create(act=LogAccess.Act.choices[0][0], at=at)
    assert "2026-03-04 17:08:09" in content(root, reverse("admin:openai_api_logaccess_changelist"))
