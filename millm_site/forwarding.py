"""What a reverse proxy tells about the client's side of a request.

The client's address is found by openai_api.http.client_address, from the same MILLM_TRUSTED_PROXIES.
"""

from __future__ import annotations

import ipaddress
from typing import Any

from openai_api.http.client_address import is_trusted_proxy


def with_forwarded_scheme(scope: dict[str, Any]) -> dict[str, Any]:
    """https where a trusted proxy says so: without it every page behind TLS would redirect to itself."""
    forwarded = next((value for name, value in scope["headers"] if name == b"x-forwarded-proto"), None)
    if forwarded not in {b"http", b"https"} or not comes_from_proxy(scope):
        return scope
    return {**scope, "scheme": forwarded.decode()}


def comes_from_proxy(scope: dict[str, Any]) -> bool:
    return is_proxy((scope.get("client") or [""])[0])


def is_proxy(address: str) -> bool:
    try:
        return is_trusted_proxy(ipaddress.ip_address(address))
    except ValueError:
        return False
