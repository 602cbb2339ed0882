"""The socket that a server listens on."""

from __future__ import annotations

import errno
import socket


class PortError(Exception):
    """The address cannot be listened on; the message says why and what to do."""


def listen(host: str, port: int) -> socket.socket:
    """A listening socket on ``host`` and ``port`` (0: a free one)."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=1_024)
    except OSError as error:
        raise PortError(_explain(error, host, port)) from error
    listener.setblocking(False)  # noqa: FBT003 - the standard library's signature
    return listener


def url_of(listener: socket.socket) -> str:
    """Where a browser on this machine finds ``listener``."""
    host, port = listener.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - compared, not bound
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _explain(error: OSError, host: str, port: int) -> str:
    if error.errno == errno.EADDRINUSE:
        return (
            f"Port {port} of {host} is in use, perhaps by another miLLM. Stop that, or choose another: PORT={port + 1}."
        )
    if error.errno == errno.EACCES:
        return f"Port {port} needs root's rights. Choose one above 1023, for example PORT=8000."
    return f"Cannot listen on {host}, port {port}: {error.strerror or error}. Set HOST to an address of this machine."
