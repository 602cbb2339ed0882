"""``python -m tests.platform.faulty_engine FD``: an engine process. The first one has the fault that FAULT names."""

from __future__ import annotations

import os
import socket
import sys
from importlib import import_module
from pathlib import Path

import django

from tests.platform.faulty_server import install


def prepare() -> None:
    """Install the fault, once for all engine processes of the server; steps of all of them are slow."""
    marker = Path(os.environ["MILLM_HOME"]) / "has_failed"
    try:
        marker.touch(exist_ok=os.environ["FAULT"] == "slow")
    except FileExistsError:
        return
    install(os.environ["FAULT"])


def serve(connection: socket.socket) -> None:
    """Serve like the real program. Called in an actor of Ray."""
    prepare()
    import_module("inference.engine_process.host").serve(connection)


if __name__ == "__main__":
    django.setup()
    prepare()
    import_module("inference.engine_process.host").main(int(sys.argv[1]))
