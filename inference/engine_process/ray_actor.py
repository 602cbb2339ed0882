"""What Ray runs: an engine process that connects to the server. Sent by value, so it imports our code when it runs."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Any


class EngineActor:
    """An engine process that Ray has placed. Ray's own messages only start it; all others go to the server directly."""

    def prepare(self, root: str, environment: Mapping[str, str]) -> tuple[str, int, str]:
        """Set the environment, which our code reads when it is imported. Return the node, the process id and the GPUs.

        ``root``: the folder of our code on this machine, the same as the server's.
        """
        os.environ.update(environment)
        if not os.path.isdir(root):
            raise RuntimeError(f"{root} does not exist on {socket.gethostname()}: install miLLM there as on the server")
        os.chdir(root)
        sys.path.insert(0, root)
        return socket.gethostname(), os.getpid(), os.environ.get("CUDA_VISIBLE_DEVICES", "")

    def serve(self, program: str, ticket: tuple[Any, ...]) -> None:
        """Run the engine until the server closes the connection."""
        import_module("django").setup()
        handshake = import_module("inference.engine_process.handshake")
        import_module(program).serve(handshake.connect(handshake.Ticket(*ticket)))
