"""``python -m inference.engine_process.ray_driver FD``: have Ray run one engine process, and wait until it ends.

A program of its own for each, so that no failure of Ray reaches the server: Ray ends processes that are connected to a
cluster which is gone. It talks to :class:`inference.engine_process.ray_launcher.RayLauncher` in lines of JSON over a
socket. When the server or this program ends, Ray ends the engine process.
"""

from __future__ import annotations

import json
import os
import queue
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import ray

CONNECT_S = 10.0


class NoClusterError(Exception):
    """There is no Ray cluster at the address."""


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
    messages: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(control, messages), daemon=True).start()

    def tell(**message: object) -> None:
        control.sendall((json.dumps(message) + "\n").encode())

    try:
        _run(messages, tell)
    except NoClusterError as error:
        tell(end=str(error))
    except Exception as error:  # noqa: BLE001 - the server reports it
        tell(end=f"the end of its Ray actor: {_first_line(error)}")
    os._exit(0)  # Ray may wait for a cluster that is gone


def _read(control: socket.socket, messages: queue.SimpleQueue[dict[str, Any]]) -> None:
    """Pass on the server's messages, and end with the server."""
    for line in control.makefile("r"):
        messages.put(json.loads(line))
    os._exit(0)


def _run(messages: queue.SimpleQueue[dict[str, Any]], tell: Callable[..., None]) -> None:
    options = messages.get()
    _connect(options["address"])
    tell(host=str(ray.util.get_node_ip_address()))
    ticket = messages.get()
    remote = ray.remote(EngineActor).options(
        num_cpus=options["cpus"], num_gpus=options["gpus"], max_restarts=0, max_concurrency=1
    )
    actor = remote.remote()
    tell(**ray.get(actor.prepare.remote(options["root"], options["environment"])))
    name, key = bytes.fromhex(ticket["name"]), bytes.fromhex(ticket["key"])
    ray.get(actor.serve.remote(options["program"], ticket["host"], ticket["port"], name, key))
    tell(end="the end of its Ray actor")


def _connect(address: str) -> None:
    """Connect to the cluster. Raise NoClusterError, at once if nothing listens there: Ray tries for a minute."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        if port.isdigit():
            socket.create_connection((host, int(port)), CONNECT_S).close()
        ray.init(address=address, configure_logging=False)
    except (OSError, RuntimeError) as error:  # Ray's ConnectionError is an OSError
        raise NoClusterError(f"no connection to Ray at {address}: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


if __name__ == "__main__":
    main(int(sys.argv[1]))
