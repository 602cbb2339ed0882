"""``python -m tests.media.stub_worker FD``: a media worker without models, whose behaviour the requests choose.

A prompt says what happens: ``answer``, ``wait`` (until cancelled), ``die``, ``refuse``. The files of a video hold its
prompt and format.
"""

from __future__ import annotations

import os
import signal
import sys
from multiprocessing.connection import Connection
from typing import Any

from media.messages import Cancel, Done, Failed, Load, ModelFacts, Progress, Unload


def answer(connection: Connection, request: Any) -> None:
    match request:
        case Load() if request.spec.name == "broken":
            connection.send(Failed(request.task, "model_load_failed", "The model is broken.", 503))
        case Load():
            connection.send(Done(request.task, ModelFacts("Stub", "cpu", "float32", os.getpid(), 0)))
        case Cancel():
            connection.send(Failed(request.task, "cancelled", "The request was cancelled."))
        case Unload():
            connection.send(Done(request.task))
        case _:
            generate(connection, request)


def generate(connection: Connection, request: Any) -> None:
    match request.prompt:
        case "answer":
            connection.send(Progress(request.task, 1, 2))
            for name, path in getattr(request, "outputs", {}).items():
                path.write_text(f"{request.prompt} as {name}")
            connection.send(Done(request.task, {"pid": os.getpid()}))
        case "die":
            os.kill(os.getpid(), signal.SIGKILL)
        case "refuse":
            connection.send(Failed(request.task, "invalid_value", "`size` is wrong.", 400, "size"))
        case "wait":
            connection.send(Progress(request.task, 0, 2))


def main(connection: Connection) -> None:
    while True:
        try:
            request = connection.recv()
        except (EOFError, OSError):
            return
        answer(connection, request)


if __name__ == "__main__":
    main(Connection(int(sys.argv[1])))
