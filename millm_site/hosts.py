"""Which Host headers the site answers to."""

from __future__ import annotations

import socket

import psutil

from millm_site.env import Environment

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")
WILDCARD_ADDRESSES = frozenset({"0.0.0.0", "::", ""})  # noqa: S104 - named, not bound


def allowed_hosts(env: Environment) -> list[str]:
    """MILLM_ALLOWED_HOSTS, or the loopback names and what the server listens on."""
    if env.allowed_hosts:
        return list(env.allowed_hosts)
    listening = own_names() if env.host in WILDCARD_ADDRESSES else [bracketed(env.host)]
    return list(dict.fromkeys([*LOOPBACK_NAMES, *listening]))


def own_names() -> list[str]:
    """This machine's name and addresses: what a neighbour types. Any other name may be a DNS rebinding."""
    addresses = (address for interface in psutil.net_if_addrs().values() for address in interface)
    numbers = [a.address.partition("%")[0] for a in addresses if a.family in {socket.AF_INET, socket.AF_INET6}]
    return [socket.gethostname().lower(), *map(bracketed, numbers)]


def bracketed(host: str) -> str:
    """An IPv6 address in the form of a Host header."""
    return f"[{host}]" if ":" in host else host
