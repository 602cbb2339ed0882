"""A WebSocket of the console: daphne's, with limits, back-pressure and an orderly end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from daphne.ws_protocol import WebSocketFactory, WebSocketProtocol

if TYPE_CHECKING:
    from millm_site.server.channel import Channel

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
