"""One connection: enforces the limits on requests, and answers what it refuses instead of just closing."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from daphne.ws_protocol import WebSocketFactory, WebSocketProtocol
from twisted.web import http

from millm_site.http.refusal import (
    Refusal,
    disk_full,
    header_too_large,
    malformed,
    refusal,
    too_large,
    too_many_connections,
    too_slow,
)
from millm_site.http.spool import has_room
from millm_site.server.limits import ServerLimits, ServerState
from openai_api.http.file_uploads import accepts_files, body_limit, upload_refusal
from openai_api.responses.websocket import PATHS

if TYPE_CHECKING:
    from core.errors import MillmError

MAX_MESSAGE_BYTES = 4_096  # the console's pages send only short messages
HANDSHAKE_S = 5
PING_ANSWER_S = 30
GOING_AWAY = 1001


class WebSocket(WebSocketProtocol):
    channel: Channel | None = None  # the HTTP connection; Twisted still notifies it of back-pressure
    is_of_api = False  # ends by itself when the server stops, after the response in progress

    def onConnect(self, request: Any) -> Any:
        """Accept messages as large as the bodies of the same path."""
        path = request.path
        if path in PATHS:
            self.is_of_api = True
            self.maxMessagePayloadSize = self.maxFramePayloadSize = body_limit(path)
        return super().onConnect(request)

    async def writable(self) -> None:
        """Wait until the client has read enough. Return at once if it has disconnected."""
        if self.channel is not None:
            await self.channel.writable()

    def close_for_shutdown(self) -> None:
        if self.is_of_api:
            return
        if self.state == self.STATE_OPEN:
            self.sendCloseFrame(code=GOING_AWAY)  # sendClose accepts only codes for applications
        elif hasattr(self, "handshake_deferred"):
            self.serverReject()

    def connectionLost(self, reason: object) -> None:
        if self.channel is not None:
            self.channel.socket_lost()
        super().connectionLost(reason)


def socket_factory(server: Any) -> WebSocketFactory:
    factory = WebSocketFactory(server, server="")
    factory.protocol = WebSocket
    factory.setProtocolOptions(
        autoPingTimeout=PING_ANSWER_S,
        allowNullOrigin=False,
        failByDrop=False,  # on a protocol error, send a close frame with the reason
        openHandshakeTimeout=HANDSHAKE_S,
        maxMessagePayloadSize=MAX_MESSAGE_BYTES,
        maxFramePayloadSize=MAX_MESSAGE_BYTES,
    )
    return factory


LINGER_S = 2.0
_ABSOLUTE_TARGET = re.compile(rb"https?://(?P<authority>[^/?#]+)(?P<path>[/?].*)?", re.IGNORECASE)
MAX_REFUSALS = 64  # connections above the limit that get an answer; further ones are dropped without one


class Channel(http.HTTPChannel):
    """Twisted's HTTP/1.1 connection, with our server as ``factory.server``.

    Twisted answers invalid requests with an empty 400 or not at all, and waits for incomplete ones without a limit.
    """

    _path: bytes  # set by Twisted

    def __init__(self) -> None:
        super().__init__()
        self.is_refusing = False
        self._deadline: Any = None  # timer of the request that is being received
        self._stall: Any = None  # timer of a client that does not read
        self._address: str | None = None  # address under which the connection is counted
        self._writable = asyncio.Event()
        self._writable.set()

    @property
    def server(self) -> ServerState:
        server: ServerState = self.factory.server
        return server

    @property
    def limits(self) -> ServerLimits:
        return self.server.limits

    @property
    def body_limit(self) -> int:
        """Maximum body size of the request that is being received."""
        return body_limit(self._request_path)

    @property
    def _request_path(self) -> str:
        return unquote(self._path.partition(b"?")[0].decode("latin-1"))

    # Receiving

    def connectionMade(self) -> None:
        self.totalHeadersSize = self.MAX_LENGTH = self.limits.max_header_bytes
        self._address = self.transport.getPeer().host
        is_over_limit = not self.server.has_room_for(self._address)
        self.server.channels.add(self)
        self.server.count_address(self._address, 1)
        super().connectionMade()
        if is_over_limit:
            self._refuse_connection()

    def _refuse_connection(self) -> None:
        """Refuse the connection with an answer, or drop it without one if too many are being refused."""
        if self.server.num_connections > self.limits.max_connections + MAX_REFUSALS > MAX_REFUSALS:
            self.transport.abortConnection()
        else:
            self.refuse(too_many_connections())

    def dataReceived(self, data: bytes) -> None:
        if self.is_refusing:
            return
        if self._deadline is None and not self._handlingRequest:
            self._expect_within(self.limits.header_timeout_s)
        super().dataReceived(data)

    def lineReceived(self, line: bytes) -> None:
        if self.is_refusing:
            return
        if self._receivedHeaderSize + len(line) > self.limits.max_header_bytes:
            self.refuse(header_too_large(self.limits.max_header_bytes))
        else:
            super().lineReceived(line)

    def lineLengthExceeded(self, line: bytes) -> None:
        self.refuse(header_too_large(self.limits.max_header_bytes))

    def headerReceived(self, line: bytes) -> bool:
        if self._receivedHeaderCount >= self.limits.max_header_lines:
            self.refuse(header_too_large(self.limits.max_header_bytes))
            return False
        try:
            return bool(super().headerReceived(line))
        except ValueError:  # a Content-Length of thousands of digits
            self.refuse(malformed())
            return False

    def allHeadersReceived(self) -> None:
        """Refuse a body that is too large before a client that sent Expect: 100-continue is allowed to send it."""
        if not self._has_target():
            self.refuse(malformed())
            return
        self._path = self.factory.prefix + self._path
        limit = self.body_limit
        if self.length is not None and self.length > limit:
            self.refuse(too_large(limit))
        elif not has_room(self.length or 0):
            self.refuse(disk_full())
        elif (error := self._file_refusal()) is not None:
            self.refuse(refusal(error))
        elif not self.is_refusing:
            self._expect_within(self.limits.request_timeout_s)
            super().allHeadersReceived()

    def _file_refusal(self) -> MillmError | None:
        """Return the error if the request sends a file that is not accepted."""
        if not accepts_files(self._request_path) or self._command != b"POST":
            return None
        headers = self.requests[-1].requestHeaders.getAllRawHeaders()
        lines = [(name, value) for name, values in headers for value in values]
        return upload_refusal(lines, self.transport.getPeer().host, self._request_path)

    def _has_target(self) -> bool:
        """Return whether the request target is a path or an absolute URL (RFC 9112, 3.2).

        An absolute URL is replaced by its path, and its authority replaces the Host header.
        """
        if self._path.startswith(b"/"):
            return bool(self._command != b"CONNECT")
        found = _ABSOLUTE_TARGET.fullmatch(self._path)
        if found is None:
            return False
        self._path = b"/" + (found["path"] or b"").removeprefix(b"/")
        self.requests[-1].requestHeaders.setRawHeaders(b"host", [found["authority"]])
        return True

    def rawDataReceived(self, data: bytes) -> None:
        if self.is_refusing:
            return
        super().rawDataReceived(data)
        announced = getattr(self._transferDecoder, "length", None)  # size of the chunk that is being received
        if announced is not None and announced > self.body_limit:
            self.refuse(too_large(self.body_limit))

    def checkPersistence(self, request: http.Request, version: bytes) -> bool:
        """Find ``close`` in every Connection header: Twisted reads only the first one and does not split at commas."""
        lines = request.requestHeaders.getRawHeaders(b"connection", [])
        if any(option.strip().lower() == b"close" for line in lines for option in line.split(b",")):
            request.requestHeaders.setRawHeaders(b"connection", [b"close"])
        return bool(super().checkPersistence(request, version))

    def allContentReceived(self) -> None:
        if not self.is_refusing:
            self._stop_expecting()
            super().allContentReceived()

    def _expect_within(self, seconds: float) -> None:
        self._stop_expecting()
        self._deadline = self.callLater(seconds, self._refuse_slow_request, seconds)

    def _stop_expecting(self) -> None:
        if self._deadline is not None and self._deadline.active():
            self._deadline.cancel()
        self._deadline = None

    def _refuse_slow_request(self, seconds: float) -> None:
        self.refuse(too_slow(seconds))

    def timeoutConnection(self) -> None:
        """Handle an idle connection: an error within a request, normal between two requests."""
        if self._deadline is not None:
            self._refuse_slow_request(self.limits.idle_timeout_s)
        else:
            super().timeoutConnection()

    # Refusing

    def refuse(self, refusal: Refusal) -> None:
        """Answer and close the connection.

        What the client still sends is read and dropped for a moment. With unread bytes the kernel would reset the
        connection, and the client might lose the answer.
        """
        if self.is_refusing:
            return
        self.is_refusing = True
        self._stop_expecting()
        self.setTimeout(None)
        self.transport.write(refusal.as_bytes())
        self._networkProducer.resumeProducing()
        self._networkProducer.unregisterProducer()
        self.transport.loseWriteConnection()
        self._abortingCall = self.callLater(LINGER_S, self.forceAbortClient)

    def _respondToBadRequestAndDisconnect(self) -> None:
        self.refuse(malformed())

    def close(self) -> None:
        """Close the connection: at once within a response, otherwise when everything has been written."""
        if self._handlingRequest and self.requests:
            self.transport.abortConnection()
        else:
            self.loseConnection()

    def retire(self) -> None:
        """Close the connection after the request that it receives or answers; at once if there is none."""
        if self._handlingRequest or self._deadline is not None:
            self.persistent = False
        else:
            self.loseConnection()

    # Upgrading to a WebSocket

    def hand_over(self) -> None:
        """Hand the connection over to the WebSocket's protocol. Back-pressure still arrives here, see ``writable``."""
        socket = self.transport.protocol
        if isinstance(socket, WebSocket):
            socket.channel = self
            self._stop_expecting()
            self.server.channels.discard(self)

    def socket_lost(self) -> None:
        """Handle the loss of a connection that was handed over to a WebSocket."""
        self._uncount()
        self._resume_writing()

    # Writing

    async def writable(self) -> None:
        """Wait until the client has read enough of the data written."""
        await self._writable.wait()

    def pauseProducing(self) -> None:
        super().pauseProducing()
        self._writable.clear()
        if self._stall is None:
            self._stall = self.callLater(self.limits.idle_timeout_s, self.transport.abortConnection)

    def resumeProducing(self) -> None:
        super().resumeProducing()
        self._resume_writing()

    def connectionLost(self, reason: object) -> None:
        self._stop_expecting()
        self._resume_writing()
        self.server.channels.discard(self)
        self._uncount()
        super().connectionLost(reason)

    def _uncount(self) -> None:
        """Stop counting the connection. Called when it is lost; idempotent."""
        address, self._address = self._address, None
        if address is not None:
            self.server.count_address(address, -1)

    def _resume_writing(self) -> None:
        self._writable.set()
        if self._stall is not None and self._stall.active():
            self._stall.cancel()
        self._stall = None
