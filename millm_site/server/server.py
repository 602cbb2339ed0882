"""The server: daphne's, with limits, back-pressure and graceful shutdown."""

from __future__ import annotations

# daphne.server installs Twisted's asyncio reactor, so it must be imported before anything else of Twisted.
from daphne import server as daphne_server  # isort: skip

import asyncio
import logging
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any

from daphne.http_protocol import HTTPFactory
from twisted.internet import reactor, tcp
from twisted.logger import STDLibLogObserver, globalLogBeginner
from twisted.web import http

from millm_site.http.hosts import is_proxy
from millm_site.http.spool import SCOPE_KEY
from millm_site.server.channel import Channel, WebSocket, socket_factory
from millm_site.server.limits import ServerLimits
from millm_site.server.request import Request

logger = logging.getLogger(__name__)
POLL_S = 0.02
CLOSE_TIMEOUT_S = 2.0  # for responses to end after the engine has stopped, and for their bytes to be sent


class Factory(HTTPFactory):
    """Makes the connections of one port. ``prefix`` is put before the path of their requests."""

    protocol = Channel

    def __init__(self, server: Server, *, prefix: str = "") -> None:
        super().__init__(server)
        self.prefix = prefix.encode()

    def log(self, request: Request) -> None:
        """Do nothing: Twisted would format a line that nobody reads. Requests are logged in the database."""

    def buildProtocol(self, addr: object) -> Channel:
        channel: Channel = http.HTTPFactory.buildProtocol(self, addr)
        channel.requestFactory = Request
        return channel


class SharingPort(tcp.Port):
    """Accepts one connection in a turn of the loop. Twisted's takes up to as many as wait, and its other turns wait."""

    numberAccepts = property(lambda self: 1, lambda self, number: None)


class Server(daphne_server.Server):
    """Serves ``application`` on ``listener``, a bound socket, until it is stopped.

    ``stop_engine(drain_s)`` is called in a thread when the running responses have ended or the drain time has passed;
    requests that are still generating then end with an error that their clients see. ``on_drain`` is called when the
    server begins to stop, ``action_logger(protocol, action, details)`` after each response.
    """

    def __init__(
        self,
        application: Callable[..., Awaitable[None]],
        listener: socket.socket,
        *,
        limits: ServerLimits,
        on_drain: Callable[[], None],
        stop_engine: Callable[[float], None],
        action_logger: Callable[[str, str, dict[str, Any]], None] | None = None,
        mounts: Mapping[str, socket.socket] | None = None,
        shares_listeners: bool = False,
    ) -> None:
        """Prepare the server.

        ``mounts``: sockets on which only the paths with a prefix are served, without it. ``shares_listeners``: other
        processes accept from the same sockets, so that this one must not take all connections that wait.
        """
        super().__init__(application, endpoints=[listener], server_name="", action_logger=action_logger)
        self.limits = limits
        self.channels: set[Channel] = set()
        self.connections: dict[Request | WebSocket, dict[str, Any]] = {}
        self._by_address: Counter[str] = Counter()
        self.is_draining = False
        self.stopped = threading.Event()
        self._listeners = {"": listener, **(mounts or {})}
        self._shares_listeners = shares_listeners
        self._ports: list[Any] = []
        self._on_drain = on_drain
        self._stop_engine = stop_engine
        self._is_forced = False
        self._draining: asyncio.Task[None] | None = None

    def run(self, *, with_signals: bool, on_ready: Callable[[], None]) -> None:
        """Serve until stopped. ``with_signals`` (main thread only): stop on SIGTERM or SIGINT, at once on the second.

        ``on_ready`` is called when signals are handled and connections are queued.
        """
        globalLogBeginner.beginLoggingTo([STDLibLogObserver("twisted")], redirectStandardIO=False, discardBuffer=True)
        asyncio.set_event_loop(reactor._asyncioEventloop)
        self.ws_factory = socket_factory(self)
        for prefix, listener in self._listeners.items():
            factory = Factory(self, prefix=prefix)
            factory.timeOut = self.limits.idle_timeout_s
            port = reactor.adoptStreamPort(listener.fileno(), listener.family, factory)
            if self._shares_listeners:
                port.__class__ = SharingPort
            self._ports.append(port)
            listener.close()  # the reactor has its own descriptor of it
        reactor.callLater(1, self.application_checker)
        reactor.callLater(2, self.timeout_checker)
        if with_signals:
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, lambda *_: self.stop_soon())
        on_ready()
        try:
            reactor.run(installSignalHandlers=False)
        finally:
            self.stopped.set()

    @property
    def num_connections(self) -> int:
        """Number of open connections, including WebSockets."""
        return self._by_address.total()

    def has_room_for(self, address: str) -> bool:
        """Return whether one more connection from ``address``, not counted yet, is within the limits."""
        limits = self.limits
        if limits.max_connections and self.num_connections >= limits.max_connections:
            return False
        most = limits.max_address_connections
        return not most or self._by_address[address] < most or is_proxy(address)

    def count_address(self, address: str, change: int) -> None:
        self._by_address[address] += change
        if self._by_address[address] <= 0:
            del self._by_address[address]

    def has_room_for_socket(self) -> bool:
        most = self.limits.max_sockets
        return not most or sum(isinstance(connection, WebSocket) for connection in self.connections) < most

    def stop_soon(self, drain_s: float | None = None) -> None:
        """Begin to stop, from any thread or signal handler. A second call cancels what is still running."""
        reactor.callFromThread(self._stop, self.limits.drain_s if drain_s is None else drain_s)

    def retire_soon(self) -> None:
        """Begin to hand over to another process that accepts from the same sockets, from any thread.

        No request is refused: connections are closed after their response, and those without one at once.
        """
        reactor.callFromThread(self._begin_to_retire)

    def _begin_to_retire(self) -> None:
        self._draining = asyncio.ensure_future(self._retire())

    async def _retire(self) -> None:
        for port in self._ports:
            port.stopListening()
        for channel in list(self.channels):
            channel.retire()
        deadline = time.monotonic() + self.limits.drain_s
        await self._until(lambda: self.is_draining or not self.channels, deadline)
        if not self.is_draining:
            self._stop(max(0.0, deadline - time.monotonic()))

    def _stop(self, drain_s: float) -> None:
        if self.is_draining:
            self._is_forced = True
            return
        self.is_draining = True
        self._on_drain()
        for protocol in list(self.connections):
            if isinstance(protocol, WebSocket):
                protocol.close_for_shutdown()  # the page will reconnect to the next server
        self._draining = asyncio.ensure_future(self._drain(drain_s))

    async def _drain(self, drain_s: float) -> None:
        """Wait for the running responses, then stop the engine, close the connections and stop the reactor.

        New requests are refused meanwhile, see request.py.
        """
        try:
            running = len(list(self._running()))
            logger.info("Stopping: %d request(s) may finish within %g s.", running, drain_s)
            deadline = time.monotonic() + drain_s
            await self._until(lambda: not any(self._running()), deadline)
            left_s = 0.0 if self._is_forced else max(0.0, deadline - time.monotonic())
            await asyncio.to_thread(self._stop_engine, left_s)
            await self._until(lambda: not any(self._running()), time.monotonic() + CLOSE_TIMEOUT_S)
            await self._close_channels()
            await self._cancel_all()
        finally:
            reactor.stop()

    async def _until(self, condition: Callable[[], bool], deadline: float) -> None:
        """Wait until ``condition`` holds, the deadline has passed or a second signal has arrived."""
        while not condition() and not self._is_forced and time.monotonic() < deadline:  # noqa: ASYNC110 - no event to wait for
            await asyncio.sleep(POLL_S)

    async def _close_channels(self) -> None:
        """Close connections whose responses have ended when their bytes are written, and all others at once."""
        for channel in list(self.channels):
            channel.close()
        await self._until(lambda: not self.channels, time.monotonic() + CLOSE_TIMEOUT_S)
        for channel in list(self.channels):
            channel.transport.abortConnection()
        for protocol in list(self.connections):
            if isinstance(protocol, WebSocket):
                protocol.transport.abortConnection()

    async def _cancel_all(self) -> None:
        """Cancel the applications that still run. The disconnect has already ended Django's views.

        They must not be cancelled before that: Django's handler would leave the tasks of its views running.
        """
        deadline = time.monotonic() + CLOSE_TIMEOUT_S
        while any(self._running()) and time.monotonic() < deadline:  # noqa: ASYNC110 - no event to wait for
            await asyncio.sleep(POLL_S)
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        if rest:
            await asyncio.wait(rest, timeout=CLOSE_TIMEOUT_S)

    def _running(self) -> Iterator[asyncio.Future[None]]:
        for details in self.connections.values():
            application = details.get("application_instance")
            if application is not None and not application.done():
                yield application

    def create_application(self, protocol: Request | WebSocket, scope: dict[str, Any]) -> asyncio.Queue[Any] | None:
        extra = {SCOPE_KEY: protocol.body} if isinstance(protocol, Request) else {}
        queue: asyncio.Queue[Any] | None = super().create_application(protocol, {**scope, **extra})
        return queue

    async def handle_reply(self, protocol: Request | WebSocket, message: dict[str, Any]) -> None:
        """Forward a message of the application to the client. Return when the client can receive more."""
        await super().handle_reply(protocol, message)
        await protocol.writable()
