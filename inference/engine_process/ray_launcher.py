"""Have Ray place the engine's processes, as actors that connect to this server. The server itself does not use Ray."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from inference.engine_process.channel import Channel
from inference.engine_process.handshake import Listener, Ticket
from inference.engine_process.launcher import ROOT, LaunchError, describe_exit

DRIVER = (sys.executable, "-m", "inference.engine_process.ray_driver")
PROGRAM = "inference.engine_process.host"  # its ``serve`` runs in the actor
POLL_S = 0.2
JOIN_S = 60.0  # to connect to the cluster
PLACE_S = 120.0  # that Ray has to find a place; then the launch fails, and is tried again later
CONNECT_S = 120.0  # for the actor to import the engine and connect
LAST_LINE_S = 2.0
SENT_VARIABLES: tuple[str, ...] = ("MILLM_", "DJANGO_SETTINGS_MODULE", "HF_", "TRANSFORMERS_", "TORCH")
SECRET_ENDS = ("_SECRET", "_PASSWORD", "_KEY", "_TOKEN", "_DATABASE_URL")


@dataclass(frozen=True, slots=True)
class RayOptions:
    """The address of the cluster, as Ray names it, and what Ray reserves for each engine process."""

    address: str
    cpus: float = 1.0
    gpus: float = 0.0


class ActorPort:
    """Where the actors of all replicas connect: opened by the first launch. Thread-safe."""

    def __init__(self, host: str = "", port: int = 0) -> None:
        self._host, self._port = host, port
        self._lock = threading.Lock()
        self._listener: Listener | None = None

    def listener(self, default_host: str) -> Listener:
        """Listen, on ``default_host`` if no host was chosen. Raise LaunchError."""
        with self._lock:
            if self._listener is None:
                host = self._host or default_host
                try:
                    self._listener = Listener(host, self._port)
                except OSError as error:
                    raise LaunchError(f"no connection: {host}:{self._port} cannot be listened on: {error}") from error
            return self._listener

    def close(self) -> None:
        """Close it. A later launch opens it again."""
        with self._lock:
            if self._listener is not None:
                self._listener.close()
                self._listener = None


class RayLauncher:
    """Starts an engine process as a Ray actor, through a program that waits for it, the ``driver``."""

    def __init__(self, options: RayOptions, port: ActorPort, driver: tuple[str, ...] = DRIVER) -> None:
        self._options = options
        self._port = port
        self._driver = driver
        self._is_closed = threading.Event()

    def launch(self) -> RayProcess:
        driver = _Driver(self._driver)
        try:
            return self._launch(driver)
        except BaseException:
            driver.kill()
            raise

    def close(self) -> None:
        self._is_closed.set()

    def _launch(self, driver: _Driver) -> RayProcess:
        options = self._options
        driver.tell(
            address=options.address,
            cpus=options.cpus,
            gpus=options.gpus,
            root=str(ROOT),
            environment=sent_variables(os.environ),
            program=PROGRAM,
        )
        joined = self._await(driver.poll, JOIN_S, f"no connection to Ray at {options.address}")
        listener = self._port.listener(joined["host"])
        ticket = listener.expect()
        try:
            driver.tell(host=ticket.host, port=ticket.port, name=ticket.name.hex(), key=ticket.key.hex())
            place = self._await(driver.poll, PLACE_S, "Ray found no place for it")
            connection = self._await(
                lambda: self._connection(driver, listener, ticket),
                CONNECT_S,
                f"it did not connect to {ticket.host}:{ticket.port}",
            )
        finally:
            listener.forget(ticket)
        return RayProcess(driver, Channel(connection), place)

    def _connection(self, driver: _Driver, listener: Listener, ticket: Ticket) -> socket.socket | None:
        connection = listener.take(ticket, POLL_S)
        if connection is None:
            driver.poll(0.0)  # raises if the actor has ended
        return connection

    def _await(self, poll: Callable[[], Any], timeout_s: float, failure: str) -> Any:
        """Return what ``poll`` returns, once it is something."""
        deadline = time.monotonic() + timeout_s
        while not (found := poll()):
            if self._is_closed.is_set():
                raise LaunchError("the server's end")
            if time.monotonic() > deadline:
                raise LaunchError(f"no start: {failure} within {timeout_s:g} s")
        return found


class _Driver:
    """The program that has Ray run one engine process, and the lines that it writes."""

    def __init__(self, command: tuple[str, ...]) -> None:
        self._control, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(  # noqa: S603 - ourselves
                [*command, str(theirs.fileno())],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                process_group=0,  # Ctrl-C is for the server
            )
        self._received = b""

    def tell(self, **message: object) -> None:
        try:
            self._control.sendall((json.dumps(message) + "\n").encode())
        except OSError as error:
            raise LaunchError(f"the end of its Ray driver: {error}") from error

    def poll(self, timeout_s: float = POLL_S) -> dict[str, Any] | None:
        """Return the next line, or None if there is none yet. Raise LaunchError if it is the last one."""
        while b"\n" not in self._received:
            self._control.settimeout(max(timeout_s, 0.001))
            try:
                data = self._control.recv(2**16)
            except TimeoutError:
                return None
            except OSError:
                data = b""
            if not data:
                raise LaunchError(f"the end of its Ray driver: {describe_exit(self.process.wait())}")
            self._received += data
        line, _, self._received = self._received.partition(b"\n")
        message: dict[str, Any] = json.loads(line)
        if "end" in message:
            raise LaunchError(message["end"])
        return message

    def kill(self) -> None:
        """End the program, and with it the actor."""
        self.process.kill()
        self.process.wait()
        self._control.close()


class RayProcess:
    """An engine process that runs as a Ray actor."""

    def __init__(self, driver: _Driver, channel: Channel, place: Mapping[str, Any]) -> None:
        self._driver = driver
        self.channel = channel
        self.pid: int = place["pid"]
        self.device: tuple[str, str] = (place["node"], place["gpus"])
        self.place = f"{place['node']}, process {self.pid}" + (f", GPU {place['gpus']}" if place["gpus"] else "")

    def wait(self, timeout_s: float | None) -> str | None:
        try:
            code = self._driver.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None
        try:
            self._driver.poll(LAST_LINE_S)
        except LaunchError as end:
            return str(end)
        finally:
            self._driver.kill()
        return describe_exit(code)

    def kill(self) -> None:
        self._driver.process.kill()


def sent_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that the engine's process reads, without secrets: it needs none."""
    return {
        name: value
        for name, value in environment.items()
        if name.startswith(SENT_VARIABLES) and not name.endswith(SECRET_ENDS)
    }
