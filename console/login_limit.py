"""Limits of failed logins to the console, by address and by user."""

from __future__ import annotations

import logging
import math
import threading
import unicodedata
from collections import OrderedDict
from collections.abc import Callable
from time import monotonic
from typing import Any, Protocol

from django.conf import settings
from django.contrib.admin.forms import AdminAuthenticationForm
from django.core.exceptions import ValidationError

from core.runtime import Service, runtime
from openai_api.http.attempts import MAX_NAMES, Attempts
from openai_api.http.client_address import client_address, client_network

logger = logging.getLogger(__name__)

WINDOW_S = 900.0
PER_USER = 5  # times the limit of one address, because a user can be attacked from many
TOO_MANY = "too_many_logins"


class LoginLimit:
    """Counts attempts before the password is checked, so that concurrent attempts cannot exceed the limit.

    An address from which a user has logged in before is not affected by attempts from other addresses.
    """

    def __init__(self, limit: int, clock: Callable[[], float] = monotonic) -> None:
        self._by_address = Attempts(limit, WINDOW_S, clock=clock)
        self._by_user = Attempts(PER_USER * limit, WINDOW_S, clock=clock)
        self._lock = threading.Lock()
        self._known: OrderedDict[tuple[str, str], None] = OrderedDict()

    def take(self, address: str, user: str) -> float:
        """Count an attempt and return 0, or return the seconds to wait."""
        wait_s = self._by_address.take(address)
        if not wait_s and (user, address) not in self._known:
            wait_s = self._by_user.take(user)
        return wait_s

    def succeeded(self, address: str, user: str) -> None:
        """Remove the last attempt from the count, because it succeeded."""
        self._by_address.give_back(address)
        self._by_user.give_back(user)
        with self._lock:
            self._known[user, address] = None
            while len(self._known) > MAX_NAMES:
                self._known.popitem(last=False)


class LimitedLoginForm(AdminAuthenticationForm):
    """The login form. Refuses without checking the password after too many failures."""

    wait_s = 0.0

    def clean(self) -> dict[str, Any]:
        name, password = self.cleaned_data.get("username"), self.cleaned_data.get("password")
        if not name or not password:  # no password is checked
            return super().clean()
        assert self.request is not None
        address, user = client_network(client_address(self.request)), _normal(name)
        self.wait_s = get_login_limit().take(address, user)
        if self.wait_s:
            logger.warning("Refused a login from %s after too many failed logins.", address)
            minutes = math.ceil(self.wait_s / 60)
            message = f"Too many failed logins. Try again in {minutes} minute{'s' if minutes > 1 else ''}."
            raise ValidationError(message, code=TOO_MANY)
        cleaned = super().clean()
        get_login_limit().succeeded(address, user)
        return cleaned


def _normal(name: str) -> str:
    return unicodedata.normalize("NFKC", name).casefold()


class Logins(Protocol):
    """The part of :class:`LoginLimit` that the form uses, wherever logins are counted."""

    def take(self, address: str, user: str) -> float: ...

    def succeeded(self, address: str, user: str) -> None: ...


LOGIN_LIMIT: Service[Logins] = Service(lambda: LoginLimit(settings.MILLM_LOGIN_ATTEMPTS))


def get_login_limit() -> Logins:
    """Return the counts of the server."""
    return runtime.get(LOGIN_LIMIT)
