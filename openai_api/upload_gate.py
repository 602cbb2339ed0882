"""Whose files are received at all: those with a key that is right.

Views look at keys when a body is complete. Files are large, so for their routes it is done before the first byte of
one is kept.
"""

from __future__ import annotations

from collections.abc import Iterable

from django.db import InterfaceError, OperationalError
from django.http import HttpRequest

from openai_api.errors import ApiError, unavailable
from openai_api.keys import current_keys, needs_no_key, require_key

Header = tuple[bytes, bytes]


def upload_refusal(headers: Iterable[Header], peer: str) -> ApiError | None:
    """What a request is told that may not send a file; ``peer`` is the address at the other end of the connection."""
    request = _request(headers, peer)
    try:
        if not needs_no_key(request):
            require_key(request, current_keys())
    except ApiError as refusal:
        return refusal
    except (OperationalError, InterfaceError):
        return unavailable("The database is not reachable.", code="database_unavailable")
    return None


def _request(headers: Iterable[Header], peer: str) -> HttpRequest:
    """As much of it as keys are found by. Of repeated headers all count, as in the view."""
    request = HttpRequest()
    request.META["REMOTE_ADDR"] = peer
    for name, value in headers:
        key = f"HTTP_{name.decode('latin-1').upper().replace('-', '_')}"
        text = value.decode("latin-1")
        request.META[key] = f"{request.META[key]},{text}" if key in request.META else text
    return request
