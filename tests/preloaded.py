"""Python programs as forks of a process that has imported the large libraries: seconds of CPU for each new process.

:class:`PreloadedProcess` is used like :class:`subprocess.Popen`. The process behind it runs this file: it imports third
parties' packages, none of ours and no settings, and forks for each program that it is sent.
"""

from __future__ import annotations

import atexit
import fcntl
import gc
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

PROJECT_DIR = Path(__file__).resolve().parent.parent
PACKAGES = (
    "torch", "torch.distributed.tensor", "torch.export", "torch._dynamo", "sympy", "numpy", "pydantic", "jsonschema",
    "psycopg", "psycopg_pool", "django.core.management", "transformers.modeling_utils", "transformers.generation",
    "transformers.models.llama.modeling_llama", "transformers.models.auto.modeling_auto", "tokenizers", "llguidance",
    "daphne.http_protocol", "twisted.internet.asyncioreactor", "autobahn.twisted.websocket", "jinja2.sandbox",
    "PIL.Image", "prometheus_client", "pydantic_settings", "httpx2", "yaml",
    "django.db.models", "django.db.migrations.executor", "django.db.backends.postgresql.base",
    "django.contrib.postgres.search", "django.contrib.postgres.indexes", "django.forms", "django.template.loader",
    "django.template.defaulttags", "django.template.backends.django", "django.urls", "django.views.generic",
    "django.views.decorators.csrf", "django.core.cache", "django.core.handlers.asgi",
    "django.core.servers.basehttp", "django.middleware.csrf", "django.middleware.common",
    "django.contrib.messages.middleware", "django.contrib.admin.utils", "django.core.management.commands.migrate",
    "django.core.serializers.json", "django.core.mail", "django.db.models.sql.compiler", "corsheaders.middleware",
    "pgvector.django", "sqlparse", "django_stubs_ext.patch",
    "xml.etree.ElementTree", "defusedxml.ElementTree", "django.contrib.staticfiles.finders",
    "whitenoise.middleware", "PIL.ImageOps",
)  # fmt: skip
BEFORE_TORCH = {"LRU_CACHE_CAPACITY": "128"}  # as inference.engine sets it
MESSAGE_BYTES = 1 << 20
ABOVE = 512  # a descriptor that no program's is above
_turn = threading.Lock()


class PreloadedProcess:
    """A running program: ``arguments`` are those of Python, a script's path, ``-m`` or ``-c`` first.

    Its standard output and error go to the given file descriptors; it has ``inherited`` under the same number.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        stdout: int,
        stderr: int,
        inherited: int | None = None,
    ) -> None:
        self.args = [sys.executable, *arguments]
        self.returncode: int | None = None
        self._status, status = os.pipe()
        given = {1: stdout, 2: stderr} | ({} if inherited is None else {inherited: inherited})  # by their numbers there
        request = {"arguments": list(arguments), "environment": dict(environment), "targets": list(given)}
        with _turn:
            parent = _parent()
            socket.send_fds(parent, [json.dumps(request).encode()], [*given.values(), status])
            self.pid = int(parent.recv(32))
        os.close(status)

    def poll(self) -> int | None:
        return self._read(0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._read(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _read(self, timeout: float | None) -> int | None:
        if self.returncode is None:
            with selectors.DefaultSelector() as selector:
                selector.register(self._status, selectors.EVENT_READ)
                if not selector.select(timeout):
                    return None
            self.returncode = int(os.read(self._status, 32))
            os.close(self._status)
        return self.returncode


@cache
def _parent() -> socket.socket:
    """Start the process that forks, once for each process of tests."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MESSAGE_BYTES)
    process = subprocess.Popen(
        [sys.executable, "-P", __file__, str(theirs.fileno())],
        cwd=PROJECT_DIR,
        env={**os.environ, **BEFORE_TORCH},
        pass_fds=[theirs.fileno()],
        stdin=subprocess.DEVNULL,
    )
    theirs.close()

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return ours


def _fork_for(requests: socket.socket) -> list[str]:
    """Fork for each request until the socket is closed; return the arguments in the child."""
    running: dict[int, int] = {}
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    selector = selectors.DefaultSelector()
    selector.register(requests, selectors.EVENT_READ)
    selector.register(reader, selectors.EVENT_READ)
    while True:
        ready = {key.fileobj for key, _ in selector.select()}
        if reader in ready:
            os.read(reader, 4096)
            _report_ended(running)
        if requests not in ready:
            continue
        message, descriptors, _, _ = socket.recv_fds(requests, MESSAGE_BYTES, 4)
        if not message:
            sys.exit(0)
        *given, status = descriptors
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            selector.close()
            for descriptor in (reader, writer, status, requests.detach(), *running.values()):
                os.close(descriptor)
            request = json.loads(message)
            _become(request["environment"], dict(zip(request["targets"], given, strict=True)))
            arguments: list[str] = request["arguments"]
            return arguments
        running[pid] = status
        for descriptor in given:
            os.close(descriptor)
        requests.send(str(pid).encode())


def _report_ended(running: dict[int, int]) -> None:
    with suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            if (descriptor := running.pop(pid, None)) is not None:
                with suppress(BrokenPipeError):
                    os.write(descriptor, str(os.waitstatus_to_exitcode(status)).encode())
                os.close(descriptor)


def _become(environment: dict[str, str], descriptors: dict[int, int]) -> None:
    """Take the environment, and the descriptors under their new numbers."""
    copies = {target: fcntl.fcntl(given, fcntl.F_DUPFD, ABOVE) for target, given in descriptors.items()}
    for given in descriptors.values():
        os.close(given)
    for target, copy in copies.items():
        os.dup2(copy, target)
        os.close(copy)
    os.environ.clear()
    os.environ.update(environment)
    is_unbuffered = "PYTHONUNBUFFERED" in environment
    sys.stdout.reconfigure(write_through=is_unbuffered, line_buffering=False)  # type: ignore[union-attr]
    sys.path.insert(0, str(PROJECT_DIR))
    gc.enable()


def _run(arguments: list[str]) -> None:
    import runpy

    first, *others = arguments
    if first == "-m":
        sys.argv = others
        runpy.run_module(others[0], run_name="__main__", alter_sys=True)
    elif first == "-c":
        sys.argv = ["-c", *others[1:]]
        exec(compile(others[0], "<string>", "exec"), {"__name__": "__main__"})  # noqa: S102
    else:
        sys.argv = arguments
        runpy.run_path(first, run_name="__main__")


if __name__ == "__main__":
    import importlib

    gc.disable()
    for _name in PACKAGES:
        importlib.import_module(_name)
    gc.freeze()
    _run(_fork_for(socket.socket(fileno=int(sys.argv[1]))))
