"""Which host names and forwarded headers the server accepts."""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Iterable, Sequence
from typing import Any
from urllib.parse import urlsplit

import psutil
from django.conf import settings
from django.http.request import validate_host

from millm_site.env import Environment
from openai_api.http.client_address import is_trusted_proxy

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")
MAX_PORT = 65_535
_HOST = re.compile(r"(?P<name>[a-z0-9.-]+|\[[a-f0-9:.]+\])(?::(?P<port>[0-9]{1,5}))?", re.IGNORECASE)
WILDCARD_ADDRESSES = frozenset({"0.0.0.0", "::", ""})  # noqa: S104 - named, not bound


def allowed_hosts(env: Environment) -> list[str]:
    """Return MILLM_ALLOWED_HOSTS; if it is empty, the loopback names and the address that the server listens on.

    The host of MILLM_PUBLIC_URL is always one of them.
    """
    public = [bracketed(urlsplit(env.public_url).hostname or "")] if env.public_url else []
    if env.allowed_hosts:
        return list(dict.fromkeys([*env.allowed_hosts, *public]))
    listening = own_names() if env.host in WILDCARD_ADDRESSES else [bracketed(env.host)]
    return list(dict.fromkeys([*LOOPBACK_NAMES, *listening, *public]))


def own_names() -> list[str]:
    """Return this machine's name and addresses. Any other name could be a DNS rebinding attack."""
    addresses = (address for interface in psutil.net_if_addrs().values() for address in interface)
    numbers = [a.address.partition("%")[0] for a in addresses if a.family in {socket.AF_INET, socket.AF_INET6}]
    return [socket.gethostname().lower(), *map(bracketed, numbers)]


def bracketed(host: str) -> str:
    """Return an IPv6 address in the form of a Host header."""
    return f"[{host}]" if ":" in host else host


def host_problem(headers: Iterable[tuple[bytes, bytes]], http_version: str) -> str:
    """Return an error message if the request's Host header is not valid or not allowed, otherwise "".

    ``headers`` are those of an ASGI scope, with lower-case names. HTTP/1.1 requires exactly one Host header (RFC 9112,
    3.2). HTTP/1.0 requires none; Django then uses the address that the server listens on.
    """
    values = [value.decode("latin-1") for name, value in headers if name == b"host"]
    if not values and http_version == "1.0":
        return ""
    if len(values) != 1:
        return f"An HTTP/1.1 request needs exactly one Host header, got {len(values)}."
    return _value_problem(values[0], settings.ALLOWED_HOSTS)


def _value_problem(value: str, allowed: Sequence[str]) -> str:
    found = _HOST.fullmatch(value)
    if found is None or int(found["port"] or 0) > MAX_PORT:
        return f"The Host header `{value[:100]}` is not a host name or address with an optional port."
    if not validate_host(found["name"].lower().removesuffix("."), allowed):
        return f"The Host header `{value[:100]}` is not allowed. Add the name to MILLM_ALLOWED_HOSTS."
    return ""


def with_forwarded_scheme(scope: dict[str, Any]) -> dict[str, Any]:
    """Set the scheme that a trusted proxy reports. Without it, every page behind TLS would redirect to itself."""
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
