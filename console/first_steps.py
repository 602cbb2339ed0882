"""The first steps of a user, by role, shown on the dashboard until they are done or hidden."""

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

from console.models import UserPreferences
from console.pages import Endpoint, register_endpoint
from console.playground.answers import PERMISSION as USE_PLAYGROUND
from inference.models import LanguageModel
from openai_api.models import ApiKey, LogAccess, RequestLog
from steering.demo.install import default_demo, install_demo
from steering.demo.packaged_model import DemoError
from steering.models import Evaluation, ProfileVersion, SteeringProfile

RECENT = 5_000  # accesses of the log that are looked through


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
    """Return the steps of the user's role, or none if all are done or the user hid them. Uses only cheap queries."""
    steps = _steps(user, site_url)
    is_hidden = UserPreferences.objects.filter(user=user, hides_first_steps=True).exists()
    return [] if is_hidden or all(step.is_done for step in steps) else steps


def _steps(user: User, site_url: str) -> list[Step]:
    if user.has_perms((*INSTALL.permissions, "openai_api.add_apikey", "steering.change_steeringprofile")):
        return [_model(), _key(user), _request(site_url), _profile(user)]
    if user.has_perms((USE_PLAYGROUND, "steering.add_steeringprofile", "steering.publish_steeringprofile")):
        return [_draft(user), _profile(user), _evaluation(user)]
    if user.has_perms(("openai_api.view_requestlog", "openai_api.view_prompt_text")):
        return [_log(user, LogAccess.Act.SEARCH), _log(user, LogAccess.Act.READ)]
    return []


def hide(request: HttpRequest) -> HttpResponseRedirect:
    """Hide the first steps from the user."""
    user: Any = request.user
    UserPreferences.objects.update_or_create(user=user, defaults={"hides_first_steps": True})
    return HttpResponseRedirect(reverse("admin:index"))


HIDE = register_endpoint(Endpoint(name="hide_first_steps", route="hide-first-steps/", view=hide))


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


def _key(user: User) -> Step:
    needed = (
        "Requests from this machine don't need one."
        if settings.MILLM_AUTH == "loopback"
        else "Every request needs one."
    )
    return Step(
        "Create an API key",
        f"A key identifies a client and limits what it can do. It is shown once. {needed}",
        ApiKey.objects.filter(owner=user).exists(),
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


def _draft(user: User) -> Step:
    return Step(
        "Steer in the studio",
        "Search for a feature, add it, move its strength and compare the answers. Save the edits as a draft.",
        SteeringProfile.objects.filter(owner=user).exists(),
        reverse("admin:console_studio"),
        "Open studio",
    )


def _profile(user: User) -> Step:
    return Step(
        "Publish a profile",
        "In the studio, find features, compare answers with and without them, save a draft and publish it. "
        "Requests can then name the profile.",
        ProfileVersion.objects.filter(published_by=user).exists(),
        reverse("admin:console_studio"),
        "Open studio",
    )


def _evaluation(user: User) -> Step:
    return Step(
        "Measure it",
        "A sweep on the profile's page shows what it changes at several strengths, beside random controls.",
        Evaluation.objects.filter(created_by=user).exists(),
        reverse("admin:steering_steeringprofile_changelist"),
        "View profiles",
    )


_LOG_STEPS = {
    LogAccess.Act.SEARCH: (
        "Find a request",
        "Search the request log for words of a prompt or an answer. Who searched for what is recorded.",
    ),
    LogAccess.Act.READ: (
        "Read a request",
        "Its page shows the conversation, the profile's edits and the timing, and can run it again.",
    ),
}


def _log(user: User, act: LogAccess.Act) -> Step:
    recent = LogAccess.objects.order_by("-at").values("pk")[:RECENT]
    done = LogAccess.objects.filter(pk__in=recent, username=user.get_username(), act=act)
    return Step(*_LOG_STEPS[act], done.exists(), reverse("admin:openai_api_requestlog_changelist"), "Open request log")
