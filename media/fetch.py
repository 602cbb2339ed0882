"""Fetch a file from a URL that a client sent, from public addresses only.

The host is resolved once, all its addresses are checked, and the connection goes to a checked one, so that a name that
changes its address cannot lead inside. Each redirect is checked in the same way. Proxies of the environment are not
used: they would resolve the name themselves.
"""

from __future__ import annotations

import contextlib
import http.client
import ipaddress
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from urllib.parse import SplitResult, quote, urljoin, urlsplit

from core.errors import MillmError
from core.runtime import Service

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
BLOCK = 2**16
HEADERS = {"Accept": "image/*", "Accept-Encoding": "identity", "User-Agent": "miLLM", "Connection": "close"}
TIMEOUT_S = 30.0
MAX_REDIRECTS = 3
MAX_URL = 8_192  # characters
PORTS = frozenset({80, 443})
REDIRECTS = frozenset({301, 302, 303, 307, 308})
_SAFE = "%/:=&~+!$,;'()*@"
# Networks that count as global in some versions of Python: those of protocols and documents, NAT64 and 6to4, which hold
# IPv4 addresses, site-local addresses, and the address at which Azure answers its guests.
_REFUSED = tuple(
    map(
        ipaddress.ip_network,
        (
            *("192.0.0.0/24", "192.88.99.0/24", "168.63.129.16/32", "64:ff9b::/96", "64:ff9b:1::/48", "2001::/23"),
            *("2002::/16", "3fff::/20", "5f00::/16", "fec0::/10"),
        ),
    )
)


class FetchError(MillmError):
    """The URL may not be fetched, or the fetch failed."""

    code = "invalid_url"


def resolve(host: str, port: int) -> list[str]:
    """Return the addresses of a host. Raise OSError."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


def is_public(address: Address) -> bool:
    """Return whether the address is one of the public internet, and of a single host."""
    if isinstance(address, ipaddress.IPv6Address) and (address.ipv4_mapped is not None or address.scope_id):
        return False
    if address.is_multicast or address.is_reserved or address.is_unspecified or not address.is_global:
        return False
    return not any(address in network for network in _REFUSED)


@dataclass(frozen=True, slots=True)
class FetchRules:
    """What may be fetched. Tests allow their own server."""

    resolve: Callable[[str, int], list[str]] = resolve
    is_allowed: Callable[[Address], bool] = is_public
    ports: frozenset[int] | None = PORTS  # None: any
    timeout_s: float = TIMEOUT_S


FETCH_RULES = Service(lambda: FetchRules())


def fetch(url: str, write: Callable[[bytes], object], *, max_bytes: int, rules: FetchRules) -> None:
    """Pass the file at the URL to ``write`` in blocks. Raise FetchError. Blocks, so not for the event loop."""
    deadline = time.monotonic() + rules.timeout_s
    for _ in range(MAX_REDIRECTS + 1):
        with _response(_checked(url), rules, deadline) as response:
            if response.status not in REDIRECTS:
                _copy(response, write, max_bytes)
                return
            url = urljoin(url, response.headers.get("Location", ""))
    raise FetchError(f"The URL redirects more than {MAX_REDIRECTS} times.")


def _checked(url: str) -> SplitResult:
    """Return the parts of a URL. Raise FetchError for one that may not be fetched, whatever its host's address is."""
    if len(url) > MAX_URL or any(character <= " " or character in "\\\x7f" for character in url):
        raise FetchError("The URL is too long, or contains spaces, backslashes or control characters.")
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018 - raises for an invalid port
    except ValueError:
        raise FetchError("The URL is not valid.") from None
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise FetchError("The URL must start with http:// or https:// and name a host.")
    if "@" in parts.netloc:
        raise FetchError("The URL must not contain a user name or password.")
    return parts


@contextlib.contextmanager
def _response(parts: SplitResult, rules: FetchRules, deadline: float) -> Iterator[http.client.HTTPResponse]:
    """Send a GET request and provide the response. Raise FetchError."""
    host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    if rules.ports is not None and port not in rules.ports:
        raise FetchError(f"The URL must use one of the ports {', '.join(map(str, sorted(rules.ports)))}.")
    connection = _Connection(host, port, _address(host, port, rules), is_secure=parts.scheme == "https")
    connection.timeout = max(0.1, deadline - time.monotonic())
    alarm = threading.Timer(connection.timeout, connection.abort)  # a timeout of the socket is one of each read
    alarm.start()
    try:
        with _failing():
            connection.request("GET", _target(parts), headers=HEADERS)
            response = connection.getresponse()
        yield response
        if connection.is_aborted:  # what was read may be incomplete
            raise FetchError(f"The URL cannot be fetched within {rules.timeout_s:g} s.")
    finally:
        alarm.cancel()
        connection.close()


@contextlib.contextmanager
def _failing() -> Iterator[None]:
    """Raise errors of the connection as FetchError."""
    try:
        yield
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise FetchError(f"The URL cannot be fetched: {type(error).__name__}.") from None


def _target(parts: SplitResult) -> str:
    query = f"?{quote(parts.query, safe=_SAFE + '?[]|')}" if parts.query else ""
    return quote(parts.path or "/", safe=_SAFE) + query


def _address(host: str, port: int, rules: FetchRules) -> str:
    """Return an address of the host. Raise FetchError if one of them may not be contacted."""
    try:
        found = rules.resolve(host.encode("idna").decode("ascii"), port)
        addresses = [ipaddress.ip_address(each) for each in found]
    except (OSError, ValueError):
        raise FetchError("The host of the URL is not known.") from None
    if not addresses or not all(map(rules.is_allowed, addresses)):
        raise FetchError("The host of the URL is not a public one.")
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


def _copy(response: http.client.HTTPResponse, write: Callable[[bytes], object], max_bytes: int) -> None:
    if response.status != http.HTTPStatus.OK:
        raise FetchError(f"The URL was answered with the status {response.status}.")
    if response.headers.get("Content-Encoding", "identity").strip().lower() not in {"", "identity"}:
        raise FetchError("The URL was answered with compressed content.")
    num_bytes, length = 0, response.length
    too_large = FetchError(f"The file at the URL has more than {max_bytes} bytes.")
    if length is not None and length > max_bytes:
        raise too_large
    while True:
        with _failing():
            block = response.read1(BLOCK)
        if not block:
            break
        num_bytes += len(block)
        if num_bytes > max_bytes:
            raise too_large
        write(block)
    if length is not None and num_bytes < length:
        raise FetchError("The connection of the URL's server ended too early, or took too long.")
