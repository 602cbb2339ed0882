"""Every page of the console: found by following links, and held against the admin's own addresses."""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Iterator
from urllib.parse import urljoin

from django.contrib import admin
from django.http import HttpRequest
from django.urls import Resolver404, URLResolver, get_resolver, resolve
from playwright.sync_api import APIRequestContext

from tests import combinations

MANY = 20 if combinations.ALL else 6  # of pages of which no two are alike
UNLIKE = {
    "jobs_job_change",
    "steering_evaluation_change",
    "steering_steeringprofile_change",
    "steering_profileversion_change",
    "inference_languagemodel_change",
    "openai_api_apikey_change",
}
LINK = re.compile(r'href="(/admin/[^"#]*)')
START = (
    "/admin/",
    "/admin/search/?q=harbour",
    "/admin/steering/",
    "/admin/password_change/",
    "/admin/password_change/done/",
)
BESIDE = {  # what links lead to only sometimes, or by other ways
    "steering_steeringprofile_change": "../review/",  # where MILLM_PROFILE_REVIEW asks for one
    "auth_user_change": "../password/",
    "openai_api_requestlog_change": "/admin/openai_api/logaccess/?act__exact=read",  # there since this page was read
}


def follow(request: APIRequestContext, site: str) -> dict[str, list[str]]:
    """Paths of pages by their address' name, one of each or, of those that differ, many."""
    todo, seen = deque(START), set(START)
    pages: dict[str, list[str]] = {}
    counts: Counter[tuple[str, bool]] = Counter()
    while todo:
        path = todo.popleft()
        name = name_of(path)
        kind = (name, "?" in path)
        if not name or counts[kind] >= (MANY if name in UNLIKE and "?" not in path else 1):
            continue
        counts[kind] += 1
        answer = request.get(site + path, max_redirects=0)
        if answer.status != 200 or "text/html" not in answer.headers["content-type"]:
            continue
        pages.setdefault(name, []).append(path)
        links = [link.replace("&amp;", "&") for link in LINK.findall(answer.text())]
        if name in BESIDE:
            links.append(urljoin(path, BESIDE[name]))
        todo.extend(link for link in dict.fromkeys(links) if link not in seen)
        seen.update(links)
    return pages


def name_of(path: str) -> str:
    try:
        return resolve(path.partition("?")[0]).url_name or ""
    except Resolver404:
        return ""


def admin_names(request: HttpRequest) -> set[str]:
    """The names of all addresses under /admin/ but those of acts that ``request.user`` may not do."""
    patterns = get_resolver().url_patterns
    own = next(each for each in patterns if isinstance(each, URLResolver) and each.namespace == "admin")
    refused = set()
    for model, its in admin.site._registry.items():
        prefix = f"{model._meta.app_label}_{model._meta.model_name}"
        if not its.get_model_perms(request):  # it stands in no list
            refused |= {f"{prefix}_{act}" for act in ("changelist", "add", "change", "delete", "history")}
        if not its.has_add_permission(request):
            refused.add(f"{prefix}_add")
        if not its.has_delete_permission(request):
            refused.add(f"{prefix}_delete")
        if getattr(its, "has_history", True) is False:
            refused.add(f"{prefix}_history")
    return set(_names(own)) - refused


def _names(resolver: URLResolver) -> Iterator[str]:
    for each in resolver.url_patterns:
        if isinstance(each, URLResolver):
            yield from _names(each)
        elif each.name:
            yield each.name
