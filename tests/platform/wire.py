"""HTTP over a plain socket, for what no client library would send."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def error(self) -> dict[str, Any]:
        error: dict[str, Any] = json.loads(self.body)["error"]
        return error


@contextmanager
def connected(url: str, timeout_s: float = 20) -> Iterator[socket.socket]:
    parts = urlsplit(url)
    with socket.create_connection((parts.hostname, parts.port), timeout=timeout_s) as connection:
        yield connection


def head(method: str, path: str, *lines: str) -> bytes:
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: localhost", *lines, "", ""]).encode()


def read_all(connection: socket.socket) -> bytes:
    """Everything until the server closes; a reset counts as the end of what came before it."""
    received = b""
    try:
        while block := connection.recv(65_536):
            received += block
    except ConnectionResetError:
        received += b"(reset)"
    return received


def read_until(connection: socket.socket, mark: bytes) -> bytes:
    received = b""
    while mark not in received:
        block = connection.recv(65_536)
        assert block, f"closed before {mark!r}: {received!r}"
        received += block
    return received


def answer(received: bytes) -> Answer:
    """The one answer in ``received``."""
    top, _, body = received.partition(b"\r\n\r\n")
    first, *lines = top.decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return Answer(int(first.split()[1]), headers, body)


def ask(url: str, request: bytes) -> Answer:
    """Send ``request`` and read until the server closes."""
    with connected(url) as connection:
        connection.sendall(request)
        return answer(read_all(connection))


def get(url: str, path: str, *lines: str) -> Answer:
    return ask(url, head("GET", path, "Connection: close", *lines))
