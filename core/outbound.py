"""HTTP requests to URLs that clients and users name, to addresses that are allowed only.

The host is resolved once, all its addresses are checked, and the connection goes to a checked one, so that a name that
changes its address cannot lead inside. Redirects are not followed. Proxies of the environment are not used: they would
resolve the name themselves.
"""

from __future__ import annotations

import contextlib
import http.client
import ipaddress
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from urllib.parse import SplitResult, quote, urlsplit

from core.errors import MillmError

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
MAX_URL = 8_192  # characters
PORTS = frozenset({80, 443})
_SAFE = "%/:=&~+!$,;'()*@"
# Networks that count as global in some versions of Python: those of protocols and documents, NAT64 and 6to4, which hold
# IPv4 addresses, site-local addresses, and the addresses at which Azure, AWS and Alibaba answer their guests.
_REFUSED = tuple(
    map(
        ipaddress.ip_network,
        (
            *("192.0.0.0/24", "192.88.99.0/24", "168.63.129.16/32", "64:ff9b::/96", "64:ff9b:1::/48", "2001::/23"),
            *("2002::/16", "3fff::/20", "5f00::/16", "fec0::/10", "fd00:ec2::254/128", "100.100.100.200/32"),
        ),
    )
)


class OutboundError(MillmError):
    """The URL may not be requested, or the request failed."""

    code = "invalid_url"


def resolve(host: str, port: int) -> list[str]:
    """Return the addresses of a host. Raise OSError."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


def is_public(address: Address) -> bool:
    """Return whether the address is one of the public internet, and of a single host."""
    return address.is_global and not _is_special(address)


def is_public_or_private(address: Address) -> bool:
    """Return whether the address is of a single host: public, private or this machine's, but not link-local.

    Clouds answer the machine's own credentials at a link-local address.
    """
    return address.is_loopback or not (address.is_link_local or _is_special(address))


def _is_special(address: Address) -> bool:
    if isinstance(address, ipaddress.IPv6Address) and (address.ipv4_mapped is not None or address.scope_id):
        return True
    if address.is_multicast or address.is_reserved or address.is_unspecified:
        return True
    return any(address in network for network in _REFUSED)


@dataclass(frozen=True, slots=True)
class OutboundRules:
    """What may be requested. Tests allow their own server."""

    resolve: Callable[[str, int], list[str]] = resolve
    is_allowed: Callable[[Address], bool] = is_public
    ports: frozenset[int] | None = PORTS  # None: any
    timeout_s: float = 30.0


def parse_url(url: str) -> SplitResult:
    """Return the parts of a URL. Raise OutboundError for one that may not be requested, whatever its host's address."""
    if len(url) > MAX_URL or any(character <= " " or character in "\\\x7f" for character in url):
        raise OutboundError("The URL is too long, or contains spaces, backslashes or control characters.")
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018 - raises for an invalid port
    except ValueError:
        raise OutboundError("The URL is not valid.") from None
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise OutboundError("The URL must start with http:// or https:// and name a host.")
    if "@" in parts.netloc:
        raise OutboundError("The URL must not contain a user name or password.")
    return parts


@contextlib.contextmanager
def open_url(
    method: str,
    parts: SplitResult,
    rules: OutboundRules,
    *,
    headers: Mapping[str, str],
    body: bytes | None = None,
    deadline: float | None = None,
) -> Iterator[http.client.HTTPResponse]:
    """Send a request and provide the response. Raise OutboundError. Blocks, so not for the event loop.

    ``deadline``: of ``time.monotonic()``, for the whole block; by default ``rules.timeout_s`` from now.
    """
    deadline = time.monotonic() + rules.timeout_s if deadline is None else deadline
    host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    connection = _Connection(host, port, checked_address(host, port, rules), is_secure=parts.scheme == "https")
    connection.timeout = max(0.1, deadline - time.monotonic())
    alarm = threading.Timer(connection.timeout, connection.abort)  # a timeout of the socket is one of each read
    alarm.start()
    too_slow = OutboundError(f"The URL did not answer within {rules.timeout_s:g} s.")
    try:
        try:
            connection.request(method, _target(parts), body, headers=dict(headers))
            response = connection.getresponse()
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise too_slow if connection.is_aborted or isinstance(error, TimeoutError) else _failure(error) from None
        if connection.is_aborted:  # the headers may be incomplete
            raise too_slow
        yield response
        if connection.is_aborted:  # what was read may be incomplete
            raise too_slow
    finally:
        alarm.cancel()
        connection.close()


@contextlib.contextmanager
def failing() -> Iterator[None]:
    """Raise errors of the connection as OutboundError."""
    try:
        yield
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise _failure(error) from None


def _failure(error: Exception) -> OutboundError:
    return OutboundError(f"The request to the URL failed: {type(error).__name__}.")


def _target(parts: SplitResult) -> str:
    query = f"?{quote(parts.query, safe=_SAFE + '?[]|')}" if parts.query else ""
    return quote(parts.path or "/", safe=_SAFE) + query


def checked_address(host: str, port: int, rules: OutboundRules) -> str:
    """Return an address of the host. Raise OutboundError if one of them, or the port, may not be contacted. Blocks."""
    if rules.ports is not None and port not in rules.ports:
        raise OutboundError(f"The URL must use one of the ports {', '.join(map(str, sorted(rules.ports)))}.")
    try:
        found = rules.resolve(host.encode("idna").decode("ascii"), port)
        addresses = [ipaddress.ip_address(each) for each in found]
    except (OSError, ValueError):
        raise OutboundError("The host of the URL is not known.") from None
    if not addresses or not all(map(rules.is_allowed, addresses)):
        raise OutboundError("The host of the URL is not a public one.")
    return str(addresses[0])


class _Connection(http.client.HTTPConnection):
    """A connection to one address, with the host's name in the request and in TLS."""

    def __init__(self, host: str, port: int, address: str, *, is_secure: bool) -> None:
        super().__init__(host, port)
        self.default_port = 443 if is_secure else 80  # not repeated in the header
        self._address = address
        self._is_secure = is_secure
        self._socket: socket.socket | None = None  # http.client forgets it once the response has begun
        self.is_aborted = False

    def connect(self) -> None:
        plain = socket.create_connection((self._address, self.port), self.timeout)
        self.sock = self._socket = plain
        if self._is_secure:
            self.sock = self._socket = ssl.create_default_context().wrap_socket(plain, server_hostname=self.host)
        if self.is_aborted:
            raise TimeoutError

    def abort(self) -> None:
        """End whatever waits for the server. Callable from another thread."""
        self.is_aborted = True
        if self._socket is not None:
            with contextlib.suppress(OSError):
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)  # below TLS, which another thread reads
