"""Registration of custom admin pages, with their URLs and permissions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from django.contrib.admin import AdminSite
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.shortcuts import render
from django.urls import URLPattern, path
from django.views.decorators.http import require_http_methods

Context = Callable[..., Mapping[str, Any]]  # called with the request and the route's arguments
View = Callable[..., HttpResponseBase]


def nothing(request: HttpRequest) -> Mapping[str, Any]:
    return {}


@dataclass(frozen=True, slots=True)
class Page:
    """One page, at ``/admin/<route>``, whose template extends ``admin/base_site.html``.

    Its URL is named ``admin:console_<name>``. All ``permissions`` are required; without any, all staff can see it.
    """

    name: str
    route: str
    title: str
    template: str
    permissions: tuple[str, ...] = ()
    context: Context = nothing

    @property
    def url_name(self) -> str:
        return f"admin:console_{self.name}"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A view that a page requests data from or posts to, behind the same login."""

    name: str
    route: str
    view: View
    permissions: tuple[str, ...] = ()
    methods: tuple[str, ...] = ("POST",)

    @property
    def url_name(self) -> str:
        return f"admin:console_{self.name}"


class Pages:
    """The registered pages and endpoints."""

    def __init__(self) -> None:
        self._pages: dict[str, Page] = {}
        self._endpoints: dict[str, Endpoint] = {}

    def add_page(self, page: Page) -> Page:
        assert page.name not in self._pages, f"page {page.name} is already registered"
        self._pages[page.name] = page
        return page

    def add_endpoint(self, endpoint: Endpoint) -> Endpoint:
        assert endpoint.name not in self._endpoints, f"endpoint {endpoint.name} is already registered"
        self._endpoints[endpoint.name] = endpoint
        return endpoint

    def find(self, name: str) -> Page | None:
        return self._pages.get(name)

    def urls(self, site: AdminSite) -> list[URLPattern]:
        shown = [_url(site, page, partial(_show, site, page), ("GET", "HEAD")) for page in self._pages.values()]
        asked = [_url(site, each, partial(_answer, each), each.methods) for each in self._endpoints.values()]
        return shown + asked


PAGES = Pages()
register_page = PAGES.add_page
register_endpoint = PAGES.add_endpoint


def may_see(request: HttpRequest, declared: Page | Endpoint) -> bool:
    return request.user.has_perms(declared.permissions)


def _url(site: AdminSite, declared: Page | Endpoint, view: View, methods: tuple[str, ...]) -> URLPattern:
    guarded = site.admin_view(require_http_methods(methods)(view))
    return path(declared.route, guarded, name=f"console_{declared.name}")


def _show(site: AdminSite, page: Page, request: HttpRequest, **parts: Any) -> HttpResponseBase:
    if not may_see(request, page):
        raise PermissionDenied
    context = {**site.each_context(request), "title": page.title, "page": page, **page.context(request, **parts)}
    return render(request, page.template, context)


def _answer(endpoint: Endpoint, request: HttpRequest, **parts: Any) -> HttpResponseBase:
    if not may_see(request, endpoint):
        raise PermissionDenied
    return endpoint.view(request, **parts)
