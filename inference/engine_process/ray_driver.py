"""``python -m inference.engine_process.ray_driver FD``: have Ray run one engine process, and wait until it ends.

A program of its own for each, so that no failure of Ray reaches the server: Ray ends processes that are connected to a
cluster which is gone. It talks to :class:`inference.engine_process.ray_launcher.RayLauncher` in lines of JSON over a
socket. When the server or this program ends, Ray ends the engine process.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import ray


class EngineActor:
    """An engine process that Ray has placed. Sent by value, so it imports our code only once it runs."""

    def prepare(self, root: str, environment: Mapping[str, str]) -> dict[str, str | int]:
        """Set the environment, which our code reads when it is imported. Return where the process runs.

        ``root``: the folder of our code, the same as on the server.
        """
        os.environ.update(environment)
        node = socket.gethostname()
        if not os.path.isdir(root):
            raise RuntimeError(f"{root} does not exist on {node}: install miLLM there as on the server")
        os.chdir(root)
        sys.path.insert(0, root)
        return {"node": node, "pid": os.getpid(), "gpus": os.environ.get("CUDA_VISIBLE_DEVICES", "")}

    def serve(self, program: str, host: str, port: int, name: bytes, key: bytes) -> None:
        """Run the engine until the server closes the connection."""
        import_module("django").setup()
        handshake = import_module("inference.engine_process.handshake")
        import_module(program).serve(handshake.connect(handshake.Ticket(host, port, name, key)))


def main(descriptor: int) -> None:
    control = socket.socket(fileno=descriptor)
    lines = control.makefile("r")

    def tell(**message: object) -> None:
        control.sendall((json.dumps(message) + "\n").encode())

    try:
        _run(json.loads(lines.readline()), lines, tell)
    except Exception as error:  # noqa: BLE001 - the server reports it
        tell(end=(str(error).strip() or type(error).__name__).splitlines()[0])
    os._exit(0)  # Ray may wait for a cluster that is gone


def _run(options: dict[str, Any], lines: Any, tell: Any) -> None:
    ray.init(address=options["address"], configure_logging=False)
    tell(host=str(ray.util.get_node_ip_address()))
    ticket = json.loads(lines.readline())
    threading.Thread(target=_end_with_server, args=(lines,), daemon=True).start()
    remote = ray.remote(EngineActor).options(
        num_cpus=options["cpus"], num_gpus=options["gpus"], max_restarts=0, max_concurrency=1
    )
    actor = remote.remote()
    tell(**ray.get(actor.prepare.remote(options["root"], options["environment"])))
    name, key = bytes.fromhex(ticket["name"]), bytes.fromhex(ticket["key"])
    ray.get(actor.serve.remote(options["program"], ticket["host"], ticket["port"], name, key))
    tell(end="")


def _end_with_server(lines: Any) -> None:
    lines.read()
    os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]))
