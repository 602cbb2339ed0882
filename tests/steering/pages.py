"""Who looks at the admin's pages, and what these say."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.models import Permission, User
from django.contrib.messages import get_messages
from django.test import Client
from django.urls import reverse

GATE_DEFAULTS = {
    "gate_unit": "max_act",
    "gate_measure": "projection",
    "gate_side": "above",
    "gate_scope": "token",
}
"""The choices that a browser sends for a gate that nobody touched."""


def login(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


def staff(*codenames: str) -> Client:
    user = User.objects.create_user("staff", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(content_type__app_label="steering", codename__in=codenames))
    return login(user)


def page(client: Client, name: str, *args: object, status: int = 200) -> str:
    response = client.get(reverse(name, args=args))
    assert response.status_code == status
    return response.content.decode()


def said(response: Any) -> str:
    return " ".join(str(message) for message in get_messages(response.wsgi_request))
