"""What a client may take of the server."""

from __future__ import annotations

import logging
import resource
from dataclasses import dataclass
from typing import Any, Protocol

from django.conf import settings

logger = logging.getLogger(__name__)
OTHER_FILES = 256  # what the process opens besides connections: models, the database, files that are sent


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Sizes in bytes, times in seconds.

    ``header_timeout_s``: from a request's first byte to the end of its header. ``request_timeout_s``: from there to
    the end of its body. ``idle_timeout_s``: without a byte between requests or in a body, or without the client
    reading. ``response_timeout_s``: from the complete request to the beginning of the response; how long a response
    then lasts is not limited. ``drain_s``: how long running responses may take after the server was asked to stop.

    ``max_connections`` are open at once, ``max_address_connections`` of them from one address that is no trusted proxy,
    ``max_sockets`` of them WebSockets of the console; 0: no such limit.
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
            # The application has limits of its own for loading and generating; this is for what slips through them.
            response_timeout_s=settings.MILLM_REQUEST_TIMEOUT + settings.MILLM_LOAD_TIMEOUT + 10,
            drain_s=settings.MILLM_DRAIN_SECONDS,
            max_connections=open_files_allow(settings.MILLM_MAX_CONNECTIONS),
            max_address_connections=settings.MILLM_MAX_ADDRESS_CONNECTIONS,
            max_sockets=settings.MILLM_MAX_SOCKETS,
        )


class ServerState(Protocol):
    """What a connection needs of the server that it belongs to."""

    limits: ServerLimits
    channels: set[Any]

    @property
    def num_connections(self) -> int: ...

    def has_room_for(self, address: str) -> bool: ...

    def count_address(self, address: str, change: int) -> None: ...


def open_files_allow(wanted: int) -> int:
    """As many connections as the system lets this process open, at most ``wanted`` (0: as many as it can).

    The soft limit of open files is raised to the hard one: 1,024, which is usual, is less than the server can answer.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard == resource.RLIM_INFINITY:
        return wanted
    possible = max(1, hard - OTHER_FILES)
    if wanted > possible:
        logger.warning("Only %d of %d connections are possible: raise the limit of open files.", possible, wanted)
    return min(wanted or possible, possible)
