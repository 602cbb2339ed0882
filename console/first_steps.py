"""The first steps on a fresh install, shown on the dashboard: install the demo, create a key, send a request."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.contrib import messages
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponseRedirect
from django.urls import reverse

from console.pages import Endpoint, register_endpoint
from inference.models import LanguageModel
from openai_api.models import ApiKey, RequestLog
from steering.demo.install import default_demo, install_demo
from steering.demo.packaged_model import DemoError
from steering.models import ProfileVersion


def install(request: HttpRequest) -> HttpResponseRedirect:
    """Install the demo if it is not installed yet. The dashboard shows the outcome."""
    owner = request.user if isinstance(request.user, User) else None
    try:
        demo = install_demo(default_demo(), measures=True, owner=owner)
    except DemoError as error:
        messages.error(request, f"Could not install the demo. {error}")
    else:
        published = f", profiles {', '.join(demo.published)}" if demo.published else ""
        messages.success(request, f"Installed the demo: {demo}{published}.")
    return HttpResponseRedirect(reverse("admin:index"))


INSTALL = register_endpoint(
    Endpoint(
        name="install_demo",
        route="install-demo/",
        view=install,
        permissions=(
            "inference.view_languagemodel",
            "inference.add_languagemodel",
            "steering.add_sae",
            "steering.publish_steeringprofile",
        ),
    )
)


def curl(url: str, **extra: Any) -> str:
    """Return a curl command that sends the demo's prompt, without streaming so that the answer is readable."""
    demo = default_demo()
    messages = [{"role": "user", "content": demo.prompt}]
    body = json.dumps({"model": demo.model, **extra, "messages": messages}, separators=(",", ":"))
    words = ["curl", f"{url}/v1/chat/completions", "-H", "Content-Type: application/json", "-d", body]
    key = ' -H "Authorization: Bearer $MILLM_API_KEY"' if settings.MILLM_AUTH == "required" else ""
    return shlex.join(words) + key


@dataclass(frozen=True, slots=True)
class Step:
    title: str
    text: str
    is_done: bool
    url: str = ""
    verb: str = ""
    command: str = ""
    act: str = ""  # URL to which the button posts; act_verb is its label
    act_verb: str = ""


def first_steps(user: User, site_url: str) -> list[Step]:
    """Return the steps, or none if the user lacks a permission or all are done. Uses only cheap queries."""
    needed = (*INSTALL.permissions, "openai_api.add_apikey", "steering.change_steeringprofile")
    if not user.has_perms(needed):
        return []
    steps = [_model(), _key(), _request(site_url), _profile()]
    return [] if all(step.is_done for step in steps) else steps


def _model() -> Step:
    return Step(
        "Add a model",
        default_demo().description,
        LanguageModel.objects.exists(),
        reverse("admin:inference_languagemodel_preview"),
        "Add your own model",
        act=reverse(INSTALL.url_name),
        act_verb="Install the demo",
    )


def _key() -> Step:
    needed = (
        "Requests from this machine don't need one."
        if settings.MILLM_AUTH == "loopback"
        else "Every request needs one."
    )
    return Step(
        "Create an API key",
        f"A key identifies a client and limits what it can do. It is shown once. {needed}",
        ApiKey.objects.exists(),
        reverse("admin:openai_api_apikey_add"),
        "Create API key",
    )


def _request(site_url: str) -> Step:
    return Step(
        "Send a request",
        "Run this in a terminal: the profile changes the story. The playground compares both side by side.",
        RequestLog.objects.filter(status=200, endpoint="/v1/chat/completions").order_by("-created_at")[:1].exists(),
        reverse("admin:console_playground"),
        "Open playground",
        command=curl(site_url, profile=default_demo().profile),
    )


def _profile() -> Step:
    return Step(
        "Create a profile",
        'Find a feature, select "Steer with this" on its page and publish the draft. Requests can then '
        "name the profile.",
        ProfileVersion.objects.exclude(published_by=None).exists(),
        reverse("admin:steering_feature_changelist"),
        "Browse features",
    )
