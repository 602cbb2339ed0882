"""The admin site with the console's pages and navigation, and the dashboard as its first page."""

from __future__ import annotations

import math
from typing import Any

from django.conf import settings
from django.contrib.admin import AdminSite
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import URLPattern, URLResolver

from console.login_limit import LimitedLoginForm
from console.navigation import place_of, sections
from console.pages import PAGES
from console.single_sign_on import is_offered


class ConsoleSite(AdminSite):
    site_header = site_title = "miLLM"
    index_title = "Dashboard"
    enable_nav_sidebar = False  # the console's sidebar is in the header block of base_site.html
    site_url = None
    login_form = LimitedLoginForm

    def get_urls(self) -> list[URLPattern | URLResolver]:
        return [*PAGES.urls(self), *super().get_urls()]

    def login(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        offered = {"single_sign_on": settings.MILLM_OIDC_NAME if is_offered() else ""}
        response = super().login(request, {**offered, **(extra_context or {})})
        form = (response.context_data or {}).get("form") if isinstance(response, TemplateResponse) else None
        if isinstance(form, LimitedLoginForm) and form.wait_s:
            response.status_code = 429
            response.headers["Retry-After"] = str(math.ceil(form.wait_s))
        return response

    def each_context(self, request: HttpRequest) -> dict[str, Any]:
        context = super().each_context(request)
        found = sections(request, context["available_apps"])
        return {**context, "console_sections": found, "console_place": place_of(found)}
