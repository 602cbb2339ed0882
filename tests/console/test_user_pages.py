"""A user is made, with a role, on one page."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import Group, User
from django.test import Client

from tests.console.test_pages import client_of

pytestmark = pytest.mark.django_db
ADD, LIST = "/admin/auth/user/add/", "/admin/auth/user/"
PASSWORD = "a-walk-in-the-rain"


@pytest.fixture
def root() -> Client:
    return client_of(User.objects.create_superuser("root"))


def test_the_form_offers_roles_and_lets_new_users_in(root: Client):
    page = root.get(ADD).content.decode()
    for name in Group.objects.values_list("name", flat=True):
        assert name in page
    assert "checked" in page.split('name="is_staff"')[1].split(">")[0]


def test_a_researcher_is_made_on_one_page(root: Client):
    group = Group.objects.get(name="Researchers")
    posted = {"username": "ada", "password1": PASSWORD, "password2": PASSWORD, "usable_password": "true"}
    assert root.post(ADD, posted | {"groups": str(group.pk), "is_staff": "on"}).status_code == 302
    client = Client()
    assert client.login(username="ada", password=PASSWORD)
    assert client.get("/admin/steering/steeringprofile/").status_code == 200
    assert client.get(LIST).status_code == 403
    row = root.get(LIST).content.decode().split(">ada<")[1].split("</tr>")[0]
    assert "Researchers" in row


def test_without_the_tick_nobody_is_let_in(root: Client):
    posted = {"username": "ada", "password1": PASSWORD, "password2": PASSWORD, "usable_password": "true"}
    assert root.post(ADD, posted).status_code == 302
    user = User.objects.get(username="ada")
    assert not user.is_staff
    assert not user.groups.exists()


def test_a_password_that_is_too_easy_is_refused(root: Client):
    posted = {"username": "ada", "password1": "12345", "password2": "12345", "usable_password": "true"}
    assert "too common" in root.post(ADD, posted).content.decode()
    assert not User.objects.filter(username="ada").exists()
