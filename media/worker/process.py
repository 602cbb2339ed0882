"""``python -m media.worker.process FD``: run media models for the server at the other end of a socket.

The main thread reads requests. Each lane is a thread with a queue: loads; audio; images and videos, with a lower
priority, so that text and audio do not wait for them. A task's exception becomes its :class:`Failed` event. The process
ends with the connection, at once, whatever its lanes do.

A lane uses at most as many threads of torch as the process may use cores; ``OMP_NUM_THREADS`` lowers that. Both lanes
and the engine of the server may run at the same time: then the kernel shares the cores by niceness, which the threads
that torch starts for a lane inherit. Text comes first, then audio, and diffusion gets what they leave; decision 37 has
the figures.
"""

from __future__ import annotations

import gc
import logging
import os
import queue
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch

from core.errors import MillmError
from media.messages import (
    Cancel,
    Chunk,
    Done,
    Failed,
    GenerateImages,
    GenerateVideo,
    Load,
    Progress,
    Request,
    Speak,
    Transcribe,
    Unload,
)
from media.worker.loading import UnsupportedModelError
from media.worker.models import Models

logger = logging.getLogger(__name__)
NICENESS, DIFFUSION_NICENESS = 5, 19
OUT_OF_MEMORY = ("out of memory", "not enough memory", "can't allocate memory")  # in messages of torch
LANES: dict[type, str] = {
    Load: "loads",
    Unload: "loads",
    Transcribe: "audio",
    Speak: "audio",
    GenerateImages: "diffusion",
    GenerateVideo: "diffusion",
}
Emit = Callable[[Any], None]


class CancelledTaskError(MillmError):
    """The task was cancelled by the server."""

    code = "cancelled"


class Worker:
    """The loaded models, and the lanes that run tasks on them."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._send_lock = threading.Lock()
        self._models = Models()
        self._open: set[str] = set()
        self._cancelled: set[str] = set()
        self._lanes: dict[str, queue.SimpleQueue[Any]] = {name: queue.SimpleQueue() for name in set(LANES.values())}

    def run(self) -> None:
        """Serve until the server closes the connection."""
        for name in self._lanes:
            threading.Thread(target=self._work, args=(name,), name=f"media-{name}", daemon=True).start()
        while True:
            try:
                request: Request = self._connection.recv()
            except (EOFError, ConnectionError):
                return
            if isinstance(request, Cancel):
                if request.task in self._open:
                    self._cancelled.add(request.task)
            else:
                self._open.add(request.task)
                self._lanes[LANES[type(request)]].put(request)

    def _work(self, lane: str) -> None:
        if lane == "diffusion":
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), DIFFUSION_NICENESS)
        while True:
            request = self._lanes[lane].get()
            self._emit(self._result(request))
            self._open.discard(request.task)
            self._cancelled.discard(request.task)

    def _result(self, request: Any) -> Done | Failed:
        """Run the task and return its last event."""
        try:
            self._check(request.task)
            began = time.monotonic()
            result = self._run(request)
            return Done(request.task, result, time.monotonic() - began)
        except MillmError as error:
            return Failed(request.task, error.code or "server_error", error.message, error.status, error.param)
        except Exception as error:
            if not is_out_of_memory(error):
                logger.exception("The task %s failed.", request.task)
                if isinstance(request, Load):
                    message = f"The model cannot be loaded: {type(error).__name__}: {error}"
                    return Failed(request.task, UnsupportedModelError.code, message, UnsupportedModelError.status)
                return Failed(request.task, "server_error", "The server failed to process this request.", 500)
            logger.warning("The task %s ran out of memory: %s", request.task, error)
        release_memory()  # here, where no traceback holds the task's tensors any more
        return Failed(request.task, "out_of_memory", "The server ran out of memory for this request.", 503)

    def _run(self, request: Any) -> Any:
        match request:
            case Load():
                return self._models.add(request.spec)
            case Unload():
                return self._models.remove(request.model)
            case Transcribe():
                return self._transcribe(request)
            case Speak():
                return self._speak(request)
            case GenerateImages():
                self._models[request.model].generate(request, self._emit, lambda: self._check(request.task))
                return None
            case GenerateVideo():
                return self._models[request.model].generate(request, self._emit, lambda: self._check(request.task))

    def _transcribe(self, request: Transcribe) -> dict[str, Any]:
        from transformers.models.whisper.tokenization_whisper import LANGUAGES

        from media.decoder.process import decoded_audio

        def check() -> None:
            self._check(request.task)

        model = self._models[request.model]
        with decoded_audio(request.file, max_seconds=request.max_seconds, check=check) as audio:
            language = ""
            for found in model.transcribe(audio, request, check):
                if isinstance(found, str):
                    language = found
                    continue
                self._emit(found)
                self._emit(Progress(request.task, found.end, audio.seconds))
            return {"language": LANGUAGES.get(language, language), "seconds": audio.seconds}

    def _speak(self, request: Speak) -> dict[str, Any]:
        from media.worker.encoding import AudioEncoder, encode_audio
        from media.worker.speech import speak

        voice = self._models[request.model]
        spoken = speak(voice, request, lambda: self._check(request.task))
        if request.streams:
            encoder, num_samples = AudioEncoder(request.audio_format, voice.sample_rate), 0
            for samples in spoken:
                num_samples += len(samples)
                self._emit(Chunk(request.task, encoder.encode(samples)))
            self._emit(Chunk(request.task, encoder.finish()))
        else:
            sound = np.concatenate(list(spoken) or [np.zeros(0, dtype=np.float32)])
            num_samples = len(sound)
            self._emit(Chunk(request.task, encode_audio(sound, voice.sample_rate, request.audio_format)))
        return {"seconds": num_samples / voice.sample_rate, "sample_rate": voice.sample_rate}

    def _check(self, task: str) -> None:
        if task in self._cancelled:
            raise CancelledTaskError("The request was cancelled.")

    def _emit(self, event: Any) -> None:
        with self._send_lock:
            try:
                self._connection.send(event)
            except (OSError, ValueError):  # the server is gone; the main thread ends the process
                logger.debug("An event could not be sent.")


def is_out_of_memory(error: Exception) -> bool:
    """Return whether memory could not be allocated. torch raises RuntimeError for CPUs and a subclass for GPUs."""
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(words in str(error) for words in OUT_OF_MEMORY)
    )


def release_memory() -> None:
    """Free what torch keeps of a task that ran out of memory."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def main(descriptor: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server, which closes the connection
    os.nice(NICENESS)  # text is the server's main job; all threads inherit it
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s media worker: %(message)s")
    warnings.simplefilter("ignore")  # libraries warn about how they are called
    torch.set_num_threads(min(torch.get_num_threads(), len(os.sched_getaffinity(0))))
    Worker(Connection(descriptor)).run()
    logging.shutdown()
    os._exit(0)  # lanes may still compute


if __name__ == "__main__":
    main(int(sys.argv[1]))
