"""A WebSocket over a plain socket, for what no browser would send."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tests.platform.wire import connected, read_until

TEXT, CLOSE, PING, PONG = 1, 8, 9, 10
MASK = b"mask"


@dataclass
class Line:
    """``status`` of the handshake; after 101, frames."""

    connection: socket.socket
    status: int
    rest: bytes

    def say(self, message: Any) -> None:
        self.send(TEXT, json.dumps(message).encode())

    def send(self, opcode: int, data: bytes) -> None:
        """One masked frame."""
        size = bytes([0x80 | len(data)]) if len(data) < 126 else b"\xfe" + struct.pack(">H", len(data))
        masked = bytes(byte ^ MASK[i % 4] for i, byte in enumerate(data))
        self.connection.sendall(bytes([0x80 | opcode]) + size + MASK + masked)

    def hear(self) -> Any:
        """The next message; pings are answered."""
        while True:
            opcode, data = self.frame()
            if opcode == TEXT:
                return json.loads(data)
            assert opcode == PING, (opcode, data)
            self.send(PONG, data)

    def close_code(self) -> int:
        """Of the close frame that comes next; messages before it are passed over."""
        while True:
            opcode, data = self.frame()
            if opcode == CLOSE:
                return int(struct.unpack(">H", data[:2])[0])

    def frame(self) -> tuple[int, bytes]:
        first, second = self._take(2)
        size = second & 0x7F
        if size == 126:
            (size,) = struct.unpack(">H", self._take(2))
        return first & 0x0F, self._take(size)

    def _take(self, count: int) -> bytes:
        while len(self.rest) < count:
            block = self.connection.recv(65_536)
            assert block, "closed in the middle of a frame"
            self.rest += block
        taken, self.rest = self.rest[:count], self.rest[count:]
        return taken


@contextmanager
def web_socket(url: str, path: str, *, cookie: str = "", origin: str = "", body: bytes = b"") -> Iterator[Line]:
    host = url.removeprefix("http://")
    lines = [
        f"GET {path} HTTP/1.1",
        f"Host: {host}",
        "Connection: Upgrade",
        "Upgrade: websocket",
        "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
        f"Origin: {origin or url}",
        f"Cookie: {cookie}",
        *([f"Content-Length: {len(body)}"] if body else []),
    ]
    with connected(url) as connection:
        connection.sendall("\r\n".join([*lines, "", ""]).encode() + body)
        top, _, rest = read_until(connection, b"\r\n\r\n").partition(b"\r\n\r\n")
        yield Line(connection, int(top.split()[1]), rest)
