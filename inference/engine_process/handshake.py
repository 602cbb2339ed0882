"""Connections from engine processes on other machines: both ends prove that they have the key of this connection.

Messages are pickled, so nothing is read from a peer before its proof but a few bytes of fixed length. Each key is used
once. The bytes are not encrypted: like Ray's own, the network between the machines must be private.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import secrets
import socket
import threading
from contextlib import suppress
from dataclasses import dataclass, field

logger = logging.getLogger(__name__)
NAME_BYTES, NONCE_BYTES, KEY_BYTES = 16, 32, 32
TIMEOUT_S = 10.0  # for one connection to prove itself
MAX_STRANGERS = 64  # connections without a proof yet; further ones are closed
KEEPALIVE = {
    "TCP_KEEPIDLE": 10,
    "TCP_KEEPINTVL": 5,
    "TCP_KEEPCNT": 4,
    "TCP_USER_TIMEOUT": 30_000,
}  # a host that is gone


class HandshakeError(Exception):
    """The other end has no valid key, or sent none in time."""


@dataclass(frozen=True, slots=True)
class Ticket:
    """What an engine process needs to connect. ``name`` identifies the connection, and the secret ``key`` proves it."""

    host: str
    port: int
    name: bytes
    key: bytes = field(repr=False)


class Listener:
    """Accepts connections of engine processes on an address of this machine. Thread-safe."""

    def __init__(self, host: str, port: int = 0) -> None:
        self._socket = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
        self._host = host
        self._lock = threading.Lock()
        self._expected: dict[bytes, _Expected] = {}
        self._strangers = threading.Semaphore(MAX_STRANGERS)
        threading.Thread(target=self._accept, name="engine-listener", daemon=True).start()

    @property
    def port(self) -> int:
        port: int = self._socket.getsockname()[1]
        return port

    def expect(self) -> Ticket:
        """Return the ticket of a connection that may come once."""
        ticket = Ticket(self._host, self.port, secrets.token_bytes(NAME_BYTES), secrets.token_bytes(KEY_BYTES))
        with self._lock:
            self._expected[ticket.name] = _Expected(ticket.key)
        return ticket

    def take(self, ticket: Ticket, timeout_s: float) -> socket.socket | None:
        """Wait for the connection of a ticket, and return None if it has not come by then."""
        expected = self._expected[ticket.name]
        if not expected.has_come.wait(timeout_s):
            return None
        self.forget(ticket)
        return expected.connection

    def forget(self, ticket: Ticket) -> None:
        """Accept the ticket no more."""
        with self._lock:
            self._expected.pop(ticket.name, None)

    def close(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, address = self._socket.accept()
            except OSError:  # closed
                return
            if not self._strangers.acquire(blocking=False):
                connection.close()
                continue
            threading.Thread(target=self._admit, args=(connection, address), name="engine-hello", daemon=True).start()

    def _admit(self, connection: socket.socket, address: object) -> None:
        try:
            self._check(connection)
        except (HandshakeError, OSError) as error:
            logger.warning("A connection from %s for an engine process was refused: %s", address, error)
            connection.close()
        finally:
            self._strangers.release()

    def _check(self, connection: socket.socket) -> None:
        connection.settimeout(TIMEOUT_S)
        name, theirs = _received(connection, NAME_BYTES), _received(connection, NONCE_BYTES)
        ours = secrets.token_bytes(NONCE_BYTES)
        connection.sendall(ours)
        proof = _received(connection, hashlib.sha256().digest_size)
        with self._lock:
            expected = self._expected.get(name)
            key = secrets.token_bytes(KEY_BYTES) if expected is None else expected.key
            is_valid = hmac.compare_digest(proof, _proof(key, b"engine", name, theirs, ours))
            if not is_valid or expected is None or expected.is_used:
                raise HandshakeError("its key is not valid.")
            expected.is_used = True
        connection.sendall(_proof(key, b"server", name, theirs, ours))
        _prepare(connection)
        expected.connection = connection
        expected.has_come.set()


@dataclass(slots=True)
class _Expected:
    key: bytes
    is_used: bool = False
    connection: socket.socket | None = None
    has_come: threading.Event = field(default_factory=threading.Event)


def connect(ticket: Ticket) -> socket.socket:
    """Connect to the server that made the ticket. Raise HandshakeError or OSError."""
    connection = socket.create_connection((ticket.host, ticket.port), timeout=TIMEOUT_S)
    try:
        ours = secrets.token_bytes(NONCE_BYTES)
        connection.sendall(ticket.name + ours)
        theirs = _received(connection, NONCE_BYTES)
        connection.sendall(_proof(ticket.key, b"engine", ticket.name, ours, theirs))
        proof = _received(connection, hashlib.sha256().digest_size)
        if not hmac.compare_digest(proof, _proof(ticket.key, b"server", ticket.name, ours, theirs)):
            raise HandshakeError("The server has not proved that it has the key.")
        _prepare(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _proof(key: bytes, role: bytes, name: bytes, of_engine: bytes, of_server: bytes) -> bytes:
    """The role keeps a proof of one end from being sent back as that of the other."""
    return hmac.digest(key, role + name + of_engine + of_server, "sha256")


def _received(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        chunk = connection.recv(size - len(data))
        if not chunk:
            raise HandshakeError("it was closed early.")
        data += chunk
    return data


def _prepare(connection: socket.socket) -> None:
    """Block without a limit from now on, send small messages at once, and notice a machine that is gone."""
    connection.settimeout(None)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEPALIVE.items():
        if hasattr(socket, name):  # not all systems have all of them
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
