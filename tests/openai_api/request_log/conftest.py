"""People who look at the log, and rows for it."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client

SEES_ROWS = ("view_requestlog",)
SEES_TEXT = (*SEES_ROWS, "view_prompt_text")
LOG = "/admin/openai_api/requestlog/"


def staff(name: str, *permissions: str) -> User:
    user = User.objects.create_user(name, is_staff=True)
    found = Permission.objects.filter(codename__in=permissions)
    assert len(found) == len(permissions), "a permission is missing"
    user.user_permissions.set(found)
    return user


def client_of(user: Any) -> Client:
    client = Client()
    client.force_login(user)
    return client


@pytest.fixture
def auditor(db: None) -> Client:
    """May see texts."""
    return client_of(staff("auditor", *SEES_TEXT))


@pytest.fixture
def watcher(db: None) -> Client:
    """May see the log, but no texts."""
    return client_of(staff("watcher", *SEES_ROWS))
