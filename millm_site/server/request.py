"""One request between Twisted and the ASGI application."""

from __future__ import annotations

import time
from http import HTTPStatus
from io import BytesIO
from typing import TYPE_CHECKING, Any

from daphne.http_protocol import WebRequest

from console.live.connection import LIVE_PATH
from millm_site.http.refusal import disk_full, draining, no_answer, too_large, too_many_connections
from millm_site.http.spool import CHECK_EVERY, has_room, new_spool
from openai_api.responses.websocket import PATHS

if TYPE_CHECKING:
    from millm_site.server.channel import Channel

PHRASES = {status.value: status.phrase.encode() for status in HTTPStatus}
SOCKET_PATHS = frozenset(path.encode() for path in (LIVE_PATH, *PATHS))
PROBES = b"/health/"  # answered even while the server is stopping


class Request(WebRequest):
    def __init__(self, channel: Channel, *args: Any) -> None:
        super().__init__(channel, *args)
        self._connection = channel  # Twisted deletes its reference when the response ends
        self._parsePOSTFormSubmission = False  # the application parses bodies; Twisted would do it too, in memory
        self._received = 0
        self._complete_at: float | None = None

    def gotLength(self, length: int | None) -> None:
        self.content = new_spool()

    def handleContentChunk(self, data: bytes) -> None:
        """Check the size before storing the chunk: the length of a chunked body is only known at its end."""
        if self._connection.is_refusing:
            return
        self._received += len(data)
        limit = self._connection.body_limit
        if self._received > limit:
            self._connection.refuse(too_large(limit))
        elif not self._store(data):
            self._connection.refuse(disk_full())

    def _store(self, data: bytes) -> bool:
        """Write the chunk to the spool. Return False if the disk is full."""
        if self._received % CHECK_EVERY < len(data) and not has_room(CHECK_EVERY):
            return False
        try:
            super().handleContentChunk(data)
        except OSError:
            return False
        return True

    def setResponseCode(self, code: int, message: bytes | None = None) -> None:
        """Set the code with its reason phrase: Twisted has none for codes newer than HTTP/1.1, such as 429."""
        super().setResponseCode(code, message or PHRASES.get(code))

    def process(self) -> object:
        """Pass the complete request to the application. Only paths of WebSockets take the Upgrade header."""
        self._complete_at = time.monotonic()
        is_socket = self.path in SOCKET_PATHS and self._asks_for_websocket()
        if not is_socket:
            self.requestHeaders.removeHeader(b"upgrade")
        if self.server.is_draining and not self.path.startswith(PROBES):
            self._connection.refuse(draining())
            return None
        if is_socket and not self.server.has_room_for_socket():
            self._connection.refuse(too_many_connections())
            return None
        self.body, self.content = self.content, BytesIO()  # daphne would read the whole body into its queue
        self.body.seek(0)
        outcome = super().process()
        if is_socket:
            self._connection.hand_over()
        return outcome

    def _asks_for_websocket(self) -> bool:
        values = self.requestHeaders.getRawHeaders(b"upgrade", [])
        return self.method == b"GET" and [value.lower() for value in values] == [b"websocket"]

    def handle_reply(self, message: dict[str, Any]) -> None:
        if not self._connection.is_refusing:
            super().handle_reply(message)

    def check_timeouts(self) -> None:
        """Refuse the request if its response has not started in time. The duration of a stream is not limited."""
        limit = self.server.limits.response_timeout_s
        if self._complete_at is None or self._response_started or self._connection.is_refusing:
            return
        if time.monotonic() - self._complete_at > limit:
            self._connection.refuse(no_answer(limit))
            self.send_disconnect()

    async def writable(self) -> None:
        """Wait until the client has read enough. Return at once if it has disconnected."""
        await self._connection.writable()
