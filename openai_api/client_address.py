"""Who is at the other end of a request, behind proxies or not."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

from django.conf import settings
from django.http import HttpRequest

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
FORWARDING_HEADERS = ("X-Forwarded-For", "Forwarded", "X-Real-Ip", "X-Forwarded-Host", "Via")


def client_address(request: HttpRequest) -> str | None:
    """The nearest address that is not one of our proxies; what an untrusted peer forwards counts for nothing."""
    address = _parse(request.META.get("REMOTE_ADDR", ""))
    hops = [part.strip() for part in request.headers.get("X-Forwarded-For", "").split(",") if part.strip()]
    while address is not None and hops and is_trusted_proxy(address):
        address = _parse(hops.pop())
    return str(address) if address else None


def is_loopback(request: HttpRequest) -> bool:
    """Whether the request was made on this machine.

    A loopback peer that forwards for somebody is a proxy. It is believed only when it is a trusted one, and then all
    addresses that it names must be loopback: a client may have sent some of them.
    """
    peer = _parse(request.META.get("REMOTE_ADDR", ""))
    if peer is None or not peer.is_loopback:
        return False
    if not any(header in request.headers for header in FORWARDING_HEADERS):
        return True
    named = f"{request.headers.get('X-Forwarded-For', '')},{request.headers.get('X-Real-Ip', '')}".strip(",")
    addresses = [_parse(part) for part in named.split(",")]
    return is_trusted_proxy(peer) and all(address is not None and address.is_loopback for address in addresses)


def is_trusted_proxy(address: Address) -> bool:
    return any(address in network for network in _networks(settings.MILLM_TRUSTED_PROXIES))


def _networks(proxies: Iterable[str]) -> Iterable[ipaddress.IPv4Network | ipaddress.IPv6Network]:
    return (ipaddress.ip_network(proxy, strict=False) for proxy in proxies)


def _parse(text: str) -> Address | None:
    try:
        address = ipaddress.ip_address(text.strip().strip("[]").partition("%")[0])  # a zone is no part of an inet
    except ValueError:
        return None
    mapped = getattr(address, "ipv4_mapped", None)
    return mapped or address
