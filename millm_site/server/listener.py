"""The socket that a server listens on."""

from __future__ import annotations

import errno
import socket


class PortError(Exception):
    """The server cannot listen on the address. The message says why and what to do."""


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens on ``host`` and ``port`` (0: any free port)."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=1_024)
    except OSError as error:
        raise PortError(_explain(error, host, port)) from error
    listener.setblocking(False)  # noqa: FBT003 - the standard library's signature
    return listener


def url_of(listener: socket.socket) -> str:
    """Return the URL under which a browser on this machine reaches ``listener``."""
    host, port = listener.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - compared, not bound
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _explain(error: OSError, host: str, port: int) -> str:
    if error.errno == errno.EADDRINUSE:
        return (
            f"Port {port} of {host} is already in use, perhaps by another miLLM server. Stop it, or choose another "
            f"port: --port {port + 1} (PORT={port + 1} with make)."
        )
    if error.errno == errno.EACCES:
        return f"Port {port} requires root privileges. Choose a port above 1023, for example --port 8000."
    return (
        f"Cannot listen on {host}, port {port}: {error.strerror or error}. Set --host (MILLM_HOST) to an address of "
        "this machine."
    )
