"""The socket that a server listens on."""

from __future__ import annotations

import errno
import socket

from django.conf import settings


class PortError(Exception):
    """The server cannot listen on the address. The message says why and what to do."""


def listen(host: str, port: int, *, variable: str = "PORT") -> socket.socket:
    """Return a socket that listens on ``host`` and ``port`` (0: any free port).

    ``variable`` is what users set to choose another port. Raises PortError.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=1_024)
    except OSError as error:
        raise PortError(_explain(error, host, port, variable)) from error
    listener.setblocking(False)  # noqa: FBT003 - the standard library's signature
    return listener


def listen_for_ollama() -> socket.socket | None:
    """Return a socket for MILLM_OLLAMA_PORT, if it is set. Raises PortError."""
    port = settings.MILLM_OLLAMA_PORT
    return None if port is None else listen(settings.MILLM_HOST, port, variable="MILLM_OLLAMA_PORT")


def url_of(listener: socket.socket) -> str:
    """Return the URL under which a browser on this machine reaches ``listener``."""
    host, port = listener.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - compared, not bound
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _explain(error: OSError, host: str, port: int, variable: str) -> str:
    if error.errno == errno.EADDRINUSE:
        other = "another miLLM server" if variable == "PORT" else "Ollama itself"
        return (
            f"Port {port} of {host} is already in use, perhaps by {other}. Stop it, or choose another "
            f"port: {_setting(variable, port + 1)}."
        )
    if error.errno == errno.EACCES:
        example = _setting(variable, 8000)
        return f"Port {port} requires root privileges. Choose a port above 1023, for example {example}."
    return (
        f"Cannot listen on {host}, port {port}: {error.strerror or error}. Set --host (MILLM_HOST) to an address of "
        "this machine."
    )


def _setting(variable: str, port: int) -> str:
    return f"--port {port} (PORT={port} with make)" if variable == "PORT" else f"{variable}={port}"
