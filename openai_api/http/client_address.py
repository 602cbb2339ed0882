"""Who is at the other end of a request, behind proxies or not."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

from django.conf import settings
from django.http import HttpRequest

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
# What proxies, load balancers, tunnels and CDNs add to what they pass on, by how the header's name begins.
FORWARDING_HEADERS = ("X-Forwarded", "Forwarded", "X-Real-Ip", "Via")
CDN_HEADERS = (
    *("Akamai-", "X-Akamai-", "Cdn-Loop", "Cf-", "Cloudfront-", "X-Amz-Cf-", "Fastly-", "Fly-", "Incap-", "X-Sucuri-"),
    *("X-Appengine-", "X-Azure-", "X-Vercel-", "X-Nf-", "Do-Connecting-Ip", "Ngrok-", "Tailscale-", "X-Envoy-"),
    *("X-Original-For", "X-Original-Host", "X-Original-Proto", "X-Original-Forwarded-For", "X-Original-Url"),
    *("Client-Ip", "True-Client-Ip", "X-Client-Ip", "X-Cluster-Client-Ip", "X-Remote-Ip", "X-Remote-Addr"),
    *("Proxy-Client-Ip", "Wl-Proxy-Client-Ip", "X-Proxyuser-Ip", "X-Host", "X-Scheme", "X-Arr-"),
)


def client_address(request: HttpRequest) -> str | None:
    """The nearest address that is not one of our proxies; what an untrusted peer forwards counts for nothing."""
    address = _parse(request.META.get("REMOTE_ADDR", ""))
    hops = [part.strip() for part in request.headers.get("X-Forwarded-For", "").split(",") if part.strip()]
    while address is not None and hops and is_trusted_proxy(address):
        address = _parse(hops.pop())
    return str(address) if address else None


def client_network(address: str | None) -> str:
    """What limits by address count by: an IPv6 client has a whole /64 to choose from."""
    found = _parse(address or "")
    if isinstance(found, ipaddress.IPv6Address):
        return str(ipaddress.ip_network(f"{found}/64", strict=False))
    return str(found or "")


def is_loopback(request: HttpRequest) -> bool:
    """Whether the request was made on this machine, and not by a page of another site that is open here in a browser.

    A loopback peer that forwards for somebody is a proxy. It is believed only when it is a trusted one, and then all
    addresses that it names must be loopback: a client may have sent some of them. A CDN's requests never are.
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
    """Whether a browser says that a page of another origin makes the request. Browsers let no page change that."""
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
        address = ipaddress.ip_address(text.strip().strip("[]").partition("%")[0])  # a zone is no part of an inet
    except ValueError:
        return None
    mapped = getattr(address, "ipv4_mapped", None)
    return mapped or address
