"""A connection to Django's ASGI handler."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

from django.core.handlers.asgi import ASGIHandler


class Connection:
    """One request driven through Django's own handler, with a client that may leave.

    ``stalls_at``: the client reads nothing more after a message with these bytes.
    """

    def __init__(
        self,
        body: dict[str, Any],
        path: str = "/v1/chat/completions",
        *,
        method: str = "POST",
        address: str = "127.0.0.1",
        headers: dict[str, str] | None = None,
        stalls_at: bytes | None = None,
    ) -> None:
        payload = json.dumps(body).encode()
        self.scope = {
            "type": "http",
            "method": method,
            "path": path,
            "query_string": b"",
            "headers": [
                (b"host", b"localhost"),
                (b"content-type", b"application/json"),
                (b"content-length", str(len(payload)).encode()),
                *((name.lower().encode(), value.encode()) for name, value in (headers or {}).items()),
            ],
            "client": (address, 1),
            "server": ("127.0.0.1", 8000),
            "scheme": "http",
        }
        self._incoming: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._incoming.put_nowait({"type": "http.request", "body": payload, "more_body": False})
        self.sent: list[Mapping[str, Any]] = []
        self._stalls_at = stalls_at
        self._has_sent = asyncio.Event()
        self.task = asyncio.ensure_future(ASGIHandler()(self.scope, self._incoming.get, self._send))

    async def _send(self, message: Mapping[str, Any]) -> None:
        self.sent.append(message)
        self._has_sent.set()
        if self._stalls_at is not None and self._stalls_at in message.get("body", b""):
            await asyncio.Event().wait()

    async def leave(self) -> None:
        self._incoming.put_nowait({"type": "http.disconnect"})
        await asyncio.wait_for(self.task, 60)

    async def wait_for(self, text: bytes) -> None:
        while text not in b"".join(message.get("body", b"") for message in self.sent):
            self._has_sent.clear()
            await asyncio.wait_for(self._has_sent.wait(), 5)

    async def status(self) -> int:
        await asyncio.wait_for(self.task, 60)
        status: int = self.sent[0]["status"]
        return status
