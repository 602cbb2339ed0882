"""The demo at the press of a button, for an install that began without it."""

from __future__ import annotations

from django.contrib import messages
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponseRedirect
from django.urls import reverse

from console.pages import Endpoint, register_endpoint
from steering.demo.install import DemoError, install_demo


def install(request: HttpRequest) -> HttpResponseRedirect:
    """Where it is installed already, nothing happens; either way the dashboard says so."""
    owner = request.user if isinstance(request.user, User) else None
    try:
        demo = install_demo(measures=True, owner=owner)
    except DemoError as error:
        messages.error(request, f"The demo was not installed. {error}")
    else:
        published = f", profiles {', '.join(demo.published)}" if demo.published else ""
        messages.success(request, f"The demo is installed: model {demo.model}, SAE {demo.sae}{published}.")
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
