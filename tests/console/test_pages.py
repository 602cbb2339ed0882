"""Pages of our own in the admin: who may see them, how they are asked."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import Permission, User
from django.core.exceptions import PermissionDenied
from django.http import JsonResponse
from django.test import Client, RequestFactory

from console.pages import Endpoint, Page, Pages
from console.site import ConsoleSite

pytestmark = pytest.mark.django_db


def staff(*codenames: str) -> User:
    user = User.objects.create_user(f"user-{'-'.join(codenames)}", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=codenames))
    return user


def client_of(user: User) -> Client:
    client = Client(headers={"host": "localhost"})
    client.force_login(user)
    return client


def test_every_member_of_the_staff_sees_the_dashboard():
    answer = client_of(staff()).get("/admin/")
    assert answer.status_code == 200
    assert "Dashboard" in answer.content.decode()


def test_who_is_not_logged_in_or_not_of_the_staff_is_asked_to_log_in():
    assert Client().get("/admin/", headers={"host": "localhost"}).status_code == 302
    assert client_of(User.objects.create_user("guest")).get("/admin/").status_code == 302


def test_a_page_takes_no_posts():
    assert client_of(staff()).post("/admin/").status_code == 405


@pytest.fixture
def pages() -> Pages:
    return Pages()


def answer_of(pages: Pages, user: User, route: str, method: str = "get"):
    """As the URLs of a site with these pages would answer."""
    request = getattr(RequestFactory(), method)(f"/{route}", headers={"host": "localhost"})
    request.user = user
    request._dont_enforce_csrf_checks = True
    for pattern in pages.urls(ConsoleSite(name="admin")):
        if match := pattern.resolve(route):
            return match.func(request, *match.args, **match.kwargs)
    raise AssertionError(f"no page at {route}")


def test_permissions_are_all_needed(pages: Pages):
    pages.add_page(Page("x", "x/", "X", "console/dashboard.html", ("jobs.view_job", "jobs.change_job")))
    with pytest.raises(PermissionDenied):
        answer_of(pages, staff("view_job"), "x/")
    assert answer_of(pages, staff("view_job", "change_job"), "x/").status_code == 200


def test_an_endpoint_takes_its_methods_and_parts_of_its_route(pages: Pages):
    view = lambda request, pk: JsonResponse({"pk": pk})  # noqa: E731
    pages.add_endpoint(Endpoint("e", "e/<int:pk>/", view, ("jobs.view_job",), ("GET",)))
    assert answer_of(pages, staff("view_job"), "e/7/").content == b'{"pk": 7}'
    assert answer_of(pages, staff("view_job", "add_job"), "e/7/", "post").status_code == 405
    with pytest.raises(PermissionDenied):
        answer_of(pages, staff("add_job"), "e/7/")


def test_a_name_is_given_once(pages: Pages):
    page = pages.add_page(Page("x", "x/", "X", "console/dashboard.html"))
    with pytest.raises(AssertionError, match="page x is already registered"):
        pages.add_page(page)
