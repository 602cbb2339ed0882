"""Whose connection it is, asked anew for as long as it lasts."""

from __future__ import annotations

from importlib import import_module

from django.conf import settings
from django.contrib import auth
from django.contrib.auth.models import User
from django.http import HttpRequest


def visitor(session_key: str | None) -> User | None:
    """The member of the staff whose session it is; None once it has ended, or they may not come in any more."""
    if not session_key:
        return None
    request = HttpRequest()
    request.session = import_module(settings.SESSION_ENGINE).SessionStore(session_key)
    user = auth.get_user(request)
    return user if isinstance(user, User) and user.is_active and user.is_staff else None
