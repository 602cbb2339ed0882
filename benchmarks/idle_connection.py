"""A connection that stays open and idle between two requests."""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

REQUEST = b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"
READ_S = 60.0


class IdleConnection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, url: str) -> IdleConnection:
        """Open a connection and use it once. Raise RuntimeError if the response is not 200."""
        place = urlsplit(url)
        connection = cls(*await asyncio.open_connection(place.hostname, place.port))
        if (first := await connection.ask()) != b"HTTP/1.1 200 OK":
            raise RuntimeError(f"A new connection must get 200, got {first!r}.")
        return connection

    async def ask(self) -> bytes:
        """Send a request, read the whole response and return its first line."""
        self._writer.write(REQUEST)
        async with asyncio.timeout(READ_S):
            head = await self._reader.readuntil(b"\r\n\r\n")
            first, *lines = head.split(b"\r\n")
            length = next(int(line.split(b":")[1]) for line in lines if line.lower().startswith(b"content-length:"))
            await self._reader.readexactly(length)
        return first

    def close(self) -> None:
        self._writer.close()
