"""Have Ray place the engine's processes, as actors that connect to this server. Imports Ray, an extra."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from typing import Any

import ray
from ray import cloudpickle

from inference.engine_process import ray_actor
from inference.engine_process.channel import Channel
from inference.engine_process.handshake import Listener, Ticket
from inference.engine_process.launcher import ROOT, LaunchError

logger = logging.getLogger(__name__)
PROGRAM = "inference.engine_process.host"  # its ``serve`` runs in the actor
POLL_S = 0.2
PLACE_S = 120.0  # that Ray has to find a place; then the launch fails, and is tried again later
CONNECT_S = 120.0  # for the actor to import the engine and connect
SENT_VARIABLES = ("MILLM_", "DJANGO_SETTINGS_MODULE", "HF_", "TRANSFORMERS_", "TORCH")
SECRET_ENDS = ("_SECRET", "_PASSWORD", "_KEY", "_TOKEN", "_DATABASE_URL")


@dataclass(frozen=True, slots=True)
class ActorResources:
    """What Ray reserves for each engine process."""

    cpus: float = 1.0
    gpus: float = 0.0


class RayCluster:
    """The connection to a Ray cluster, made by the first launch, and the listener to which actors connect."""

    def __init__(self, address: str, host: str = "", port: int = 0) -> None:
        self._address = address
        self._host, self._port = host, port
        self._lock = threading.Lock()
        self._listener: Listener | None = None

    def listener(self) -> Listener:
        """Connect to Ray and listen, unless this was done. Raise LaunchError."""
        with self._lock:
            if self._listener is None:
                self._listener = self._connect()
            return self._listener

    def _connect(self) -> Listener:
        try:
            if not ray.is_initialized():
                # Not on the main thread, so that Ray does not replace the server's handler of SIGTERM.
                ray.init(address=self._address, configure_logging=False, log_to_driver=True)
            host = self._host or str(ray.util.get_node_ip_address())
            cloudpickle.register_pickle_by_value(ray_actor)
            return Listener(host, self._port)
        except Exception as error:
            raise LaunchError(f"no connection to Ray at {self._address}: {_first_line(error)}") from error


class RayLauncher:
    """Starts an engine process as a Ray actor."""

    def __init__(self, cluster: RayCluster, resources: ActorResources) -> None:
        self._cluster = cluster
        self._resources = resources
        self._is_closed = threading.Event()

    def launch(self) -> RayProcess:
        listener = self._cluster.listener()
        ticket = listener.expect()
        try:
            return self._launch(listener, ticket)
        finally:
            listener.forget(ticket)

    def close(self) -> None:
        self._is_closed.set()

    def _launch(self, listener: Listener, ticket: Ticket) -> RayProcess:
        options: dict[str, Any] = {"num_cpus": self._resources.cpus, "num_gpus": self._resources.gpus}
        actor = ray.remote(ray_actor.EngineActor).options(**options, max_restarts=0, max_concurrency=1).remote()
        try:
            placed = actor.prepare.remote(str(ROOT), sent_variables(os.environ))
            self._wait(lambda: bool(ray.wait([placed], timeout=POLL_S)[0]), PLACE_S, "Ray found no place for it")
            node, pid, gpus = ray.get(placed)
            done = actor.serve.remote(PROGRAM, astuple(ticket))
            connection = None

            def has_come() -> bool:
                nonlocal connection
                connection = listener.take(ticket, POLL_S)
                return connection is not None or bool(ray.wait([done], timeout=0)[0])

            self._wait(has_come, CONNECT_S, f"it did not connect to {ticket.host}:{ticket.port}")
            if connection is None:
                ray.get(done)
                raise LaunchError("the end of its actor")
        except BaseException as error:
            ray.kill(actor)
            if isinstance(error, LaunchError) or not isinstance(error, Exception):
                raise
            raise LaunchError(_first_line(error)) from error
        return RayProcess(actor, done, Channel(connection), node, pid, gpus)

    def _wait(self, holds: Any, timeout_s: float, failure: str) -> None:
        deadline = time.monotonic() + timeout_s
        while not holds():
            if self._is_closed.is_set():
                raise LaunchError("the server's end")
            if time.monotonic() > deadline:
                raise LaunchError(f"no start: {failure} within {timeout_s:g} s")


class RayProcess:
    """An engine process that runs as a Ray actor."""

    def __init__(self, actor: Any, done: Any, channel: Channel, node: str, pid: int, gpus: str) -> None:
        self._actor = actor
        self._done = done
        self.channel = channel
        self.pid = pid
        self.device = (node, gpus)
        self.place = f"{node}, process {pid}" + (f", GPU {gpus}" if gpus else "")

    def wait(self, timeout_s: float | None) -> str | None:
        try:
            ray.get(self._done, timeout=timeout_s)
        except ray.exceptions.GetTimeoutError:
            return None
        except Exception as error:  # noqa: BLE001 - whatever ended it
            return f"the end of its Ray actor: {_first_line(error)}"
        self.kill()  # the actor waits for more calls
        return "the end of its Ray actor"

    def kill(self) -> None:
        ray.kill(self._actor)


def sent_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that the engine's process reads, without secrets: it needs none."""
    return {
        name: value
        for name, value in environment.items()
        if name.startswith(SENT_VARIABLES) and not name.endswith(SECRET_ENDS)
    }


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
