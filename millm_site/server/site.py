"""The server of this site."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from typing import Any

from millm_site.server.server import Server  # first: installs the reactor  # isort: skip

from django.conf import settings
from django.utils.module_loading import import_string

from millm_site.http.failures import OLLAMA
from millm_site.server.limits import ServerLimits
from millm_site.serving import serving

ActionLogger = Callable[[str, str, dict[str, Any]], None]


def site_server(
    listener: socket.socket,
    action_logger: ActionLogger | None = None,
    *,
    ollama: socket.socket | None = None,
    shares_listeners: bool = False,
) -> Server:
    """Return a server for ASGI_APPLICATION. Starts the engine. ``action_logger`` is called after each response.

    ``ollama``: the socket on which Ollama's API is at the root. ``shares_listeners``: other processes accept from the
    same sockets.
    """
    return Server(
        import_string(settings.ASGI_APPLICATION),
        listener,
        limits=ServerLimits.from_settings(),
        on_drain=serving.announce_stop,
        stop_engine=serving.stop_engine,
        action_logger=action_logger,
        mounts={} if ollama is None else {OLLAMA: ollama},
        shares_listeners=shares_listeners,
    )


def worker_server(listeners: Mapping[str, socket.socket]) -> Server:
    """Return the server of a web worker, for sockets by the prefix of their paths that it shares with others."""
    return site_server(listeners[""], ollama=listeners.get(OLLAMA), shares_listeners=True)
