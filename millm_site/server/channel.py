"""One connection: reads requests within limits, refuses with an answer instead of silence."""

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

if TYPE_CHECKING:
    from core.errors import MillmError

MAX_MESSAGE_BYTES = 4_096  # what pages say is short
HANDSHAKE_S = 5
PING_ANSWER_S = 30
GOING_AWAY = 1001


class WebSocket(WebSocketProtocol):
    channel: Channel | None = None  # the connection as it was; Twisted still tells it when the client does not read

    async def writable(self) -> None:
        """Wait until the client has read enough; at once when it is gone."""
        if self.channel is not None:
            await self.channel.writable()

    def say_goodbye(self) -> None:
        if self.state == self.STATE_OPEN:
            self.sendCloseFrame(code=GOING_AWAY)  # sendClose takes only the codes of applications
        elif hasattr(self, "handshake_deferred"):
            self.serverReject()

    def connectionLost(self, reason: object) -> None:
        if self.channel is not None:
            self.channel.let_go()
        super().connectionLost(reason)


def socket_factory(server: Any) -> WebSocketFactory:
    factory = WebSocketFactory(server, server="")
    factory.protocol = WebSocket
    factory.setProtocolOptions(
        autoPingTimeout=PING_ANSWER_S,
        allowNullOrigin=False,
        failByDrop=False,  # who breaks a rule hears which
        openHandshakeTimeout=HANDSHAKE_S,
        maxMessagePayloadSize=MAX_MESSAGE_BYTES,
        maxFramePayloadSize=MAX_MESSAGE_BYTES,
    )
    return factory


LINGER_S = 2.0
_ABSOLUTE_TARGET = re.compile(rb"https?://(?P<authority>[^/?#]+)(?P<path>[/?].*)?", re.IGNORECASE)
MAX_TOLD = 64  # refused connections that are answered at once


class Channel(http.HTTPChannel):
    """Twisted's HTTP/1.1 connection; ``factory.server`` is ours.

    Twisted answers what it dislikes with an empty 400, or not at all, and trusts clients to finish what they begin.
    """

    _path: bytes  # Twisted's

    def __init__(self) -> None:
        super().__init__()
        self.is_refusing = False
        self._deadline: Any = None  # of the request that is being received
        self._stall: Any = None  # of the client that does not read
        self._address: str | None = None  # under which the connection is counted
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
        """Of the request that is being received."""
        return body_limit(self._request_path)

    @property
    def _request_path(self) -> str:
        return unquote(self._path.partition(b"?")[0].decode("latin-1"))

    # Receiving

    def connectionMade(self) -> None:
        self.totalHeadersSize = self.MAX_LENGTH = self.limits.max_header_bytes
        self._address = self.transport.getPeer().host
        is_one_too_many = not self.server.has_room_for(self._address)
        self.server.channels.add(self)
        self.server.count_address(self._address, 1)
        super().connectionMade()
        if is_one_too_many:
            self._refuse_connection()

    def _refuse_connection(self) -> None:
        """With an answer, while few others are told too; in a flood without."""
        if self.server.num_connections > self.limits.max_connections + MAX_TOLD > MAX_TOLD:
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
        """Refuse a body before a client that asked (Expect: 100-continue) gets the permission to send it."""
        if not self._has_target():
            self.refuse(malformed())
            return
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
        """Why a file is not received, if it is one."""
        if not accepts_files(self._request_path) or self._command != b"POST":
            return None
        headers = self.requests[-1].requestHeaders.getAllRawHeaders()
        lines = [(name, value) for name, values in headers for value in values]
        return upload_refusal(lines, self.transport.getPeer().host)

    def _has_target(self) -> bool:
        """Whether the request's target is one that a server takes (RFC 9112, 3.2): a path, or a whole URL.

        A URL is replaced by its path, and its authority takes the place of the Host header.
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
        announced = getattr(self._transferDecoder, "length", None)  # of the chunk that is being received
        if announced is not None and announced > self.body_limit:
            self.refuse(too_large(self.body_limit))

    def checkPersistence(self, request: http.Request, version: bytes) -> bool:
        """Twisted reads the first Connection line only, and no commas."""
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
        self._deadline = self.callLater(seconds, self._give_up, seconds)

    def _stop_expecting(self) -> None:
        if self._deadline is not None and self._deadline.active():
            self._deadline.cancel()
        self._deadline = None

    def _give_up(self, seconds: float) -> None:
        self.refuse(too_slow(seconds))

    def timeoutConnection(self) -> None:
        """No byte for a while: in the middle of a request that is an error, between two it is normal."""
        if self._deadline is not None:
            self._give_up(self.limits.idle_timeout_s)
        else:
            super().timeoutConnection()

    # Refusing

    def refuse(self, refusal: Refusal) -> None:
        """Answer and close. What the client still sends is read and dropped for a moment: with unread bytes the kernel
        would reset the connection, and the client might lose the answer."""
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
        """End the connection: in the middle of a response at once, else when everything is written."""
        if self._handlingRequest and self.requests:
            self.transport.abortConnection()
        else:
            self.loseConnection()

    # A WebSocket takes the connection over

    def hand_over(self) -> None:
        """Bytes go to the WebSocket's protocol from now on. Back-pressure still comes here: see ``writable``."""
        socket = self.transport.protocol
        if isinstance(socket, WebSocket):
            socket.channel = self
            self._stop_expecting()
            self.server.channels.discard(self)

    def let_go(self) -> None:
        """The WebSocket has lost the connection."""
        self._uncount()
        self._let_write()

    # Writing

    async def writable(self) -> None:
        """Wait until the client has read enough of what was written."""
        await self._writable.wait()

    def pauseProducing(self) -> None:
        super().pauseProducing()
        self._writable.clear()
        if self._stall is None:
            self._stall = self.callLater(self.limits.idle_timeout_s, self.transport.abortConnection)

    def resumeProducing(self) -> None:
        super().resumeProducing()
        self._let_write()

    def connectionLost(self, reason: object) -> None:
        self._stop_expecting()
        self._let_write()
        self.server.channels.discard(self)
        self._uncount()
        super().connectionLost(reason)

    def _uncount(self) -> None:
        """Called once, when the connection is lost; a WebSocket's protocol is notified from here."""
        address, self._address = self._address, None
        if address is not None:
            self.server.count_address(address, -1)

    def _let_write(self) -> None:
        self._writable.set()
        if self._stall is not None and self._stall.active():
            self._stall.cancel()
        self._stall = None
