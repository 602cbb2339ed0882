"""Limits on connections and requests."""

from __future__ import annotations

import logging
import resource
from dataclasses import dataclass
from typing import Any, Protocol

from django.conf import settings

logger = logging.getLogger(__name__)
OTHER_FILES = 256  # files that the process opens besides connections: models, database connections, downloads


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Limits of the server: sizes in bytes, times in seconds.

    ``header_timeout_s``: from a request's first byte to the end of its header. ``request_timeout_s``: from there to
    the end of its body. ``idle_timeout_s``: without a byte between requests or in a body, or without the client
    reading. ``response_timeout_s``: from the complete request to the start of the response; the duration of the
    response itself is not limited. ``drain_s``: how long running responses may take after the server was asked to stop.

    ``max_connections``: open connections in total; ``max_address_connections``: from one address, trusted proxies
    excepted; ``max_sockets``: WebSockets. 0: no limit.
    """

    max_header_bytes: int = 32 * 2**10
    max_header_lines: int = 200
    header_timeout_s: float = 15.0
    request_timeout_s: float = 300.0
    idle_timeout_s: float = 60.0
    response_timeout_s: float = 420.0
    drain_s: float = 20.0
    max_connections: int = 4_096
    max_address_connections: int = 1_024
    max_sockets: int = 256

    @classmethod
    def from_settings(cls) -> ServerLimits:
        return cls(
            header_timeout_s=settings.MILLM_HEADER_TIMEOUT,
            request_timeout_s=settings.MILLM_REQUEST_TIMEOUT,
            idle_timeout_s=settings.MILLM_IDLE_TIMEOUT,
            # The application limits loading and generation itself; this is the fallback for everything else.
            response_timeout_s=settings.MILLM_REQUEST_TIMEOUT + settings.MILLM_LOAD_TIMEOUT + 10,
            drain_s=settings.MILLM_DRAIN_SECONDS,
            max_connections=possible_connections(settings.MILLM_MAX_CONNECTIONS),
            max_address_connections=settings.MILLM_MAX_ADDRESS_CONNECTIONS,
            max_sockets=settings.MILLM_MAX_SOCKETS,
        )


class ServerState(Protocol):
    """The part of the server that a connection uses."""

    limits: ServerLimits
    channels: set[Any]

    @property
    def num_connections(self) -> int: ...

    def has_room_for(self, address: str) -> bool: ...

    def count_address(self, address: str, change: int) -> None: ...


def possible_connections(limit: int) -> int:
    """Return how many connections the system allows this process to open, at most ``limit`` (0: no limit).

    Raises the soft limit of open files to the hard one: the usual 1,024 is less than the server can handle.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard == resource.RLIM_INFINITY:
        return limit
    possible = max(1, hard - OTHER_FILES)
    if limit > possible:
        logger.warning("Only %d of %d connections are possible. Raise the limit of open files.", possible, limit)
    return min(limit or possible, possible)
