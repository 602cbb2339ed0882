"""A server on loopback that receives webhooks, and misbehaves as a test asks."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any

from openai import OpenAI

from jobs.webhooks.models import WebhookEndpoint
from jobs.webhooks.services import create_endpoint
from tests.http_server import QuietHandler, serving_http

Reply = Callable[[BaseHTTPRequestHandler], None]


@dataclass(frozen=True)
class Received:
    path: str
    headers: dict[str, str]
    body: bytes
    at: float

    def unwrap(self, secret: str) -> Any:
        """What the official client makes of it; raises when the signature is wrong."""
        client = OpenAI(api_key="none", webhook_secret=secret)
        return client.webhooks.unwrap(self.body, self.headers)


@dataclass
class Receiver:
    """``replies`` by path; other paths are answered with 200."""

    url: str
    replies: dict[str, Reply] = field(default_factory=dict)
    received: list[Received] = field(default_factory=list)
    is_over: threading.Event = field(default_factory=threading.Event)

    def at(self, path: str) -> list[Received]:
        return [each for each in self.received if each.path == path]


@contextmanager
def receiving() -> Iterator[Receiver]:
    class Handler(QuietHandler):
        def do_POST(self) -> None:
            body = self.read_body()
            receiver.received.append(Received(self.path, dict(self.headers), body, time.monotonic()))
            receiver.replies.get(self.path, status(200))(self)

        do_GET = do_POST

    with serving_http(Handler) as url:
        receiver = Receiver(url)
        try:
            yield receiver
        finally:
            receiver.is_over.set()


def status(code: int, **headers: str) -> Reply:
    def write(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(code)
        for name, value in {"Content-Length": "0", **headers}.items():
            handler.send_header(name, value)
        handler.end_headers()

    return write


def hang(receiver: Receiver) -> Reply:
    def wait(handler: BaseHTTPRequestHandler) -> None:
        receiver.is_over.wait()

    return wait


def endless_body(receiver: Receiver) -> Reply:
    def write(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        try:
            while not receiver.is_over.is_set():
                handler.wfile.write(b"x" * 2**16)
        except OSError:
            return

    return write


def endless_headers(receiver: Receiver) -> Reply:
    def write(handler: BaseHTTPRequestHandler) -> None:
        try:
            handler.wfile.write(b"HTTP/1.1 200 OK\r\n")
            while not receiver.is_over.wait(0.02):
                handler.wfile.write(b"x")
        except OSError:
            return

    return write


def reset(handler: BaseHTTPRequestHandler) -> None:
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    handler.connection.close()


def no_http(handler: BaseHTTPRequestHandler) -> None:
    handler.wfile.write(b"hello\r\n\r\n")


def register_webhook(users: Any, *event_types: str) -> WebhookEndpoint:
    """An endpoint for everybody's events of these types."""
    owner = users.objects.create_superuser("hook")
    row = WebhookEndpoint(
        name="all", url="https://example.com/", event_types=list(event_types), owner=owner, receives_all=True
    )
    return create_endpoint(endpoint=row).endpoint
