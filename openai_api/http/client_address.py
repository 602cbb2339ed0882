"""The address of the client, directly or behind proxies."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

from django.conf import settings
from django.http import HttpRequest

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
# Prefixes of headers that proxies, load balancers, tunnels and CDNs add.
FORWARDING_HEADERS = ("X-Forwarded", "Forwarded", "X-Real-Ip", "Via")
CDN_HEADERS = (
    *("Akamai-", "X-Akamai-", "Cdn-Loop", "Cf-", "Cloudfront-", "X-Amz-Cf-", "Fastly-", "Fly-", "Incap-", "X-Sucuri-"),
    *("X-Appengine-", "X-Azure-", "X-Vercel-", "X-Nf-", "Do-Connecting-Ip", "Ngrok-", "Tailscale-", "X-Envoy-"),
    *("X-Original-For", "X-Original-Host", "X-Original-Proto", "X-Original-Forwarded-For", "X-Original-Url"),
    *("Client-Ip", "True-Client-Ip", "X-Client-Ip", "X-Cluster-Client-Ip", "X-Remote-Ip", "X-Remote-Addr"),
    *("Proxy-Client-Ip", "Wl-Proxy-Client-Ip", "X-Proxyuser-Ip", "X-Host", "X-Scheme", "X-Arr-"),
)


def client_address(request: HttpRequest) -> str | None:
    """Return the nearest address that is not a trusted proxy. Headers from untrusted peers are ignored."""
    address = _parse(request.META.get("REMOTE_ADDR", ""))
    hops = [part.strip() for part in request.headers.get("X-Forwarded-For", "").split(",") if part.strip()]
    while address is not None and hops and is_trusted_proxy(address):
        address = _parse(hops.pop())
    return str(address) if address else None


def client_network(address: str | None) -> str:
    """Return the network used for limits by address: an IPv6 client can choose from a whole /64."""
    found = _parse(address or "")
    if isinstance(found, ipaddress.IPv6Address):
        return str(ipaddress.ip_network(f"{found}/64", strict=False))
    return str(found or "")


def is_loopback(request: HttpRequest) -> bool:
    """Return whether the request comes from this machine, and not from another site's page in a local browser.

    A loopback peer that forwards requests is a proxy. It is accepted only if it is trusted and all forwarded addresses
    are loopback, since a client may have sent some of them. Requests through a CDN never count.
    """
    peer = _parse(request.META.get("REMOTE_ADDR", ""))
    names = [name.title() for name in request.headers]
    if peer is None or not peer.is_loopback or is_cross_site(request) or _any_begins(names, CDN_HEADERS):
        return False
    if not _any_begins(names, FORWARDING_HEADERS):
        return True
    named = f"{request.headers.get('X-Forwarded-For', '')},{request.headers.get('X-Real-Ip', '')}".strip(",")
    addresses = [_parse(part) for part in named.split(",")]
    return is_trusted_proxy(peer) and all(address is not None and address.is_loopback for address in addresses)


def is_cross_site(request: HttpRequest) -> bool:
    """Return whether a browser declares the request cross-origin. Pages cannot change these headers."""
    origin = request.headers.get("Origin")
    if origin is not None and origin.partition("://")[2].lower() != request.headers.get("Host", "").lower():
        return True
    return request.headers.get("Sec-Fetch-Site", "none") not in {"none", "same-origin"}


def is_trusted_proxy(address: Address) -> bool:
    return any(address in network for network in _networks(settings.MILLM_TRUSTED_PROXIES))


def _any_begins(names: Iterable[str], beginnings: tuple[str, ...]) -> bool:
    return any(name.startswith(beginnings) for name in names)


def _networks(proxies: Iterable[str]) -> Iterable[ipaddress.IPv4Network | ipaddress.IPv6Network]:
    return (ipaddress.ip_network(proxy, strict=False) for proxy in proxies)


def _parse(text: str) -> Address | None:
    try:
        address = ipaddress.ip_address(text.strip().strip("[]").partition("%")[0])  # Postgres' inet has no zone
    except ValueError:
        return None
    mapped = getattr(address, "ipv4_mapped", None)
    return mapped or address
