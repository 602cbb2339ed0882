"""Fetching by URL: what is refused before a connection is made, and servers that do not behave."""

from __future__ import annotations

import ipaddress
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest

from core.outbound import OutboundError, OutboundRules, is_public, is_public_or_private
from media.fetch import fetch
from tests.http_server import QuietHandler, serving_http


@dataclass
class Site:
    """A server on loopback, under a name that only the test's resolver knows."""

    port: int
    answers: dict[str, Callable[[BaseHTTPRequestHandler], None]] = field(default_factory=dict)
    seen: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    names: dict[str, list[str]] = field(default_factory=lambda: {"pictures.test": ["127.0.0.1"]})
    lookups: list[str] = field(default_factory=list)

    def url(self, path: str, host: str = "pictures.test") -> str:
        return f"http://{host}:{self.port}{path}"

    def rules(self, **fields: Any) -> OutboundRules:
        allowed = ipaddress.ip_address("127.0.0.1")
        return OutboundRules(self.resolve, lambda address: address == allowed, None, **fields)

    def resolve(self, host: str, port: int) -> list[str]:
        self.lookups.append(host)
        if host in self.names:
            return self.names[host]
        raise OSError("unknown")

    def get(self, path: str, *, max_bytes: int = 1_000, **fields: Any) -> bytes:
        found: list[bytes] = []
        url = path if ":" in path else self.url(path)
        fetch(url, found.append, max_bytes=max_bytes, rules=self.rules(**fields))
        return b"".join(found)


@pytest.fixture
def site() -> Iterator[Site]:
    class Handler(QuietHandler):
        def do_GET(self) -> None:
            found.seen.append((self.path, dict(self.headers)))
            found.answers[self.path](self)

    with serving_http(Handler) as url:
        found = Site(int(url.rpartition(":")[2]))
        yield found


def answer(
    content: bytes = b"image", status: int = 200, length: int | None = -1, **headers: str
) -> Callable[[BaseHTTPRequestHandler], None]:
    def write(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        if length is not None:
            handler.send_header("Content-Length", str(len(content) if length < 0 else length))
        handler.end_headers()
        handler.wfile.write(content)

    return write


def test_a_file_is_fetched_from_the_checked_address(site: Site) -> None:
    site.answers["/a%20b?c=d&e=%C3%A9"] = answer(b"x" * 1_000)
    assert site.get("/a%20b?c=d&e=%C3%A9") == b"x" * 1_000
    path, headers = site.seen[0]
    assert path == "/a%20b?c=d&e=%C3%A9"
    assert headers["Host"] == f"pictures.test:{site.port}"
    assert headers["Accept-Encoding"] == "identity"
    assert "Authorization" not in headers
    assert "Cookie" not in headers
    assert site.lookups == ["pictures.test"]  # once: what is checked is what is used


def test_a_host_with_one_private_address_is_refused(site: Site) -> None:
    site.names["rebinding.test"] = ["127.0.0.1", "10.0.0.1"]
    with pytest.raises(OutboundError, match="public"):
        site.get(site.url("/", host="rebinding.test"))
    assert site.seen == []


def test_redirects_are_followed_and_checked(site: Site) -> None:
    site.answers["/a"] = answer(b"", 302, Location="/b")
    site.answers["/b"] = answer(b"", 307, Location=site.url("/c"))
    site.answers["/c"] = answer(b"", 301, Location="/d")
    site.answers["/d"] = answer(b"there")
    assert site.get("/a") == b"there"
    site.answers["/d"] = answer(b"", 308, Location="/e")
    with pytest.raises(OutboundError, match="redirects"):
        site.get("/a")


@pytest.mark.parametrize(
    "location",
    [
        "http://inside.test/latest/meta-data/",
        "http://unknown.test/",
        "file:///etc/passwd",
        "gopher://pictures.test/",
        "http://user:password@pictures.test/",
        "//inside.test/",
        "",
    ],
)
def test_redirects_lead_nowhere_else(site: Site, location: str) -> None:
    site.names["inside.test"] = ["169.254.169.254"]
    site.answers["/a"] = answer(b"", 302, Location=location)
    with pytest.raises(OutboundError):
        site.get("/a")
    assert {path for path, _ in site.seen} == {"/a"}


@pytest.mark.parametrize(
    "url",
    [
        "ftp://pictures.test/",
        "http://",
        "http:///x",
        "http://pictures.test:99999/",
        "http://pictures.test:x/",
        "http://user@pictures.test/",
        "http://user:password@pictures.test/",
        "http://good.test\\@pictures.test/",
        "http://pictures.test/\r\nX-Injected: 1",
        "http://pictures.test/ x",
        "http://pictures.test/\0",
        "http://[::1/",
        "http://unknown.test/",
        "http://" + "a" * 300 + ".test/",
        "http://pictures.test/" + "a" * 9_000,
    ],
)
def test_urls_that_are_refused(site: Site, url: str) -> None:
    with pytest.raises(OutboundError):
        site.get(url)
    assert site.seen == []


def test_other_ports_are_refused(site: Site) -> None:
    rules = OutboundRules(site.resolve, lambda address: True)
    with pytest.raises(OutboundError, match="ports 80, 443"):
        fetch(site.url("/"), lambda block: None, max_bytes=10, rules=rules)
    assert site.lookups == []


def test_large_files_end(site: Site) -> None:
    site.answers["/said"] = answer(b"x" * 2_000)
    site.answers["/silent"] = answer(b"x" * 2_000, length=None)
    for path in ("/said", "/silent"):
        with pytest.raises(OutboundError, match="more than 1000 bytes"):
            site.get(path)


@pytest.mark.parametrize(
    "reply",
    [
        answer(status=404),
        answer(status=500),
        answer(Content_Encoding="gzip"),
        answer(Content_Encoding="br"),
        answer(b"half", length=100),
        lambda handler: handler.wfile.write(b"no http"),
        lambda handler: handler.wfile.write(b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 1_000),
        lambda handler: None,
    ],
)
def test_bad_answers(site: Site, reply: Callable[[BaseHTTPRequestHandler], None]) -> None:
    site.answers["/"] = reply
    with pytest.raises(OutboundError):
        site.get("/")


@pytest.mark.parametrize("length", [None, 100])
def test_a_server_that_never_ends_is_left(site: Site, length: int | None) -> None:
    is_over = threading.Event()

    def drip(handler: BaseHTTPRequestHandler) -> None:
        answer(b"x", length=length)(handler)
        handler.wfile.flush()
        while not is_over.wait(0.02):
            try:
                handler.wfile.write(b"x")
            except OSError:
                return

    site.answers["/"] = drip
    try:
        with pytest.raises(OutboundError):
            site.get("/", max_bytes=10**9, timeout_s=0.3)
    finally:
        is_over.set()


@pytest.mark.parametrize(
    "address",
    [
        "0.0.0.0",  # noqa: S104 - refused
        "10.1.2.3",
        "100.64.0.1",
        "100.100.100.200",
        "127.0.0.1",
        "127.1.2.3",
        "168.63.129.16",
        "169.254.169.254",
        "172.16.0.1",
        "192.0.0.192",
        "192.168.1.1",
        "198.18.0.1",
        "224.0.0.1",
        "240.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "::127.0.0.1",
        "::ffff:8.8.8.8",
        "::ffff:127.0.0.1",
        "64:ff9b::7f00:1",
        "64:ff9b:1::1",
        "2001:db8::1",
        "2002:7f00:1::",
        "fc00::1",
        "fd00:ec2::254",
        "fe80::1",
        "fe80::1%eth0",
        "fec0::1",
        "ff02::1",
    ],
)
def test_addresses_that_are_not_public(address: str) -> None:
    assert not is_public(ipaddress.ip_address(address))


@pytest.mark.parametrize("address", ["8.8.8.8", "93.184.215.14", "2606:4700:4700::1111"])
def test_public_addresses(address: str) -> None:
    assert is_public(ipaddress.ip_address(address))


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]", "2130706433", "0x7f000001", "0177.0.0.1", "localhost"])
def test_names_of_this_machine_are_refused(host: str) -> None:
    with pytest.raises(OutboundError):
        fetch(f"http://{host}/", lambda block: None, max_bytes=10, rules=OutboundRules())


@pytest.mark.parametrize("address", ["8.8.8.8", "10.1.2.3", "192.168.1.1", "127.0.0.1", "::1", "fc00::1"])
def test_addresses_of_private_networks_can_be_allowed(address: str) -> None:
    assert is_public_or_private(ipaddress.ip_address(address))


@pytest.mark.parametrize(
    "address",
    [
        *("0.0.0.0", "169.254.169.254", "224.0.0.1", "255.255.255.255", "168.63.129.16", "100.100.100.200"),  # noqa: S104
        *("::", "fe80::1", "fd00:ec2::254", "::ffff:169.254.169.254", "::ffff:127.0.0.1"),
    ],
)
def test_addresses_that_are_never_allowed(address: str) -> None:
    assert not is_public_or_private(ipaddress.ip_address(address))
