"""The ASGI application under any server: bodies, lifespan, WebSockets."""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import Any

import pytest
from pytest_django.fixtures import Settings

from millm_site.http.asgi_handler import BodyTooLargeError, SiteHandler, declared_length, limited, live, with_length


class Wire:
    """Both ends of an ASGI call: what is received, what was sent."""

    def __init__(self, messages: Iterable[dict[str, Any]]) -> None:
        self._messages = iter(messages)
        self.sent: list[Any] = []

    async def receive(self) -> dict[str, Any]:
        return next(self._messages)

    async def send(self, message: Any) -> None:
        self.sent.append(message)


def part(body: bytes, *, more: bool = True) -> dict[str, Any]:
    return {"type": "http.request", "body": body, "more_body": more}


def http(*headers: tuple[bytes, bytes]) -> dict[str, Any]:
    return {
        "type": "http",
        "method": "POST",
        "path": "/v1/x",
        "scheme": "http",
        "client": None,
        "headers": list(headers),
    }


@pytest.mark.parametrize(("value", "length"), [(b"12", 12), (b"-1", 0), (b"x", 0), (b"9" * 5_000, 0), (b"", 0)])
def test_declared_length_is_a_number_or_nothing(value: bytes, length: int) -> None:
    assert declared_length(http((b"content-length", value))) == length


def test_length_is_added_to_a_body_without_one() -> None:
    body = io.BytesIO(b"four")
    assert (b"content-length", b"4") in with_length(http(), body)["headers"]
    assert body.read() == b"four"
    assert with_length(http(), io.BytesIO())["headers"] == []
    declared = http((b"content-length", b"4"))
    assert with_length(declared, io.BytesIO(b"four")) is declared


async def test_reading_stops_at_the_limit() -> None:
    wire = Wire([part(b"123"), part(b"45"), part(b"6")])
    receive = limited(wire.receive, 5)
    await receive()
    await receive()
    with pytest.raises(BodyTooLargeError):
        await receive()


@pytest.mark.parametrize(
    ("headers", "messages"),
    [([(b"content-length", b"6000")], []), ([], [part(bytes(3_000)), part(bytes(3_000))])],
    ids=["declared", "chunked"],
)
async def test_large_body_is_413_under_any_server(
    settings: Settings, headers: list[tuple[bytes, bytes]], messages: list[dict[str, Any]]
) -> None:
    settings.MILLM_MAX_BODY_BYTES = 5_000
    wire = Wire(messages)
    await SiteHandler()(http((b"host", b"localhost"), *headers), wire.receive, wire.send)
    start, body = wire.sent
    assert start["status"] == 413
    assert b"request_too_large" in body["body"]


async def test_lifespan_is_spoken() -> None:
    wire = Wire([{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}])
    await live(wire.receive, wire.send)
    assert [message["type"] for message in wire.sent] == ["lifespan.startup.complete", "lifespan.shutdown.complete"]


async def test_unknown_websocket_is_closed() -> None:
    wire = Wire([{"type": "websocket.connect"}])
    await SiteHandler()({"type": "websocket", "path": "/v1/realtime"}, wire.receive, wire.send)
    assert wire.sent == [{"type": "websocket.close"}]
