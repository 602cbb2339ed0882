"""The engine's process: run the engine for the server at the other end of a socket.

The process loads models and compiles steering, because it has the weights. It ends with the connection, and when the
engine is lost, which is better than serving on with half of its memory.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from django.conf import settings

from core.errors import MillmError
from inference.client import compiled, with_weights
from inference.engine.config import EngineConfig
from inference.engine.errors import EngineDownError
from inference.engine.loop import EngineLoop
from inference.engine.messages import Event, FailedEvent, FinishedEvent, Request
from inference.engine.models.facts import LoadedFacts, ModelSpec
from inference.engine.models.loader import LoadedModel
from inference.engine.watchdog import Watchdog
from inference.engine_process.channel import Call, CancelStream, Channel, Events, Refusal, Reply, Status
from inference.registry.loading import ModelLoading, load_from_directory
from inference.registry.memory_plan import measure_device
from inference.steering_refs import SteeringRef, SteeringSpec, loaded_saes
from inference.text.plain_tokenizer import PlainTokenizer

logger = logging.getLogger(__name__)
STATUS_S, CHANGE_S = 0.5, 0.05  # seconds between reports, at most and at least
CALL_THREADS = 4  # loads take long, and pages ask for estimates meanwhile
FLUSH_S = 5.0
LOST = 70  # exit code


class EngineHost:
    """The engine, its models, and the calls of the server."""

    def __init__(self, channel: Channel, config: EngineConfig, stall_s: float) -> None:
        self._channel = channel
        self._loop = EngineLoop(config, self._publish)
        self._watchdog = Watchdog(self._loop, stall_s=stall_s, on_failure=self._give_up)
        self._loading = ModelLoading()
        self._loaded: dict[str, LoadedModel] = {}
        self._pool = ThreadPoolExecutor(CALL_THREADS, thread_name_prefix="engine-calls")
        self._events = asyncio.new_event_loop()  # runs what may wait for weights, without a thread per request
        self._has_changed = threading.Event()  # what the next report will say
        self._pending: dict[str, asyncio.Task[None]] = {}  # submissions by the id of their stream
        self._methods: dict[str, Callable[..., object]] = {
            "load": self.load,
            "release": self.release,
            "attach": self.attach,
            "detach": self.detach,
            "estimate": self._loading.estimate,
            "device_of": self._loading.device_of,
            "free_unused": self._loading.free_unused,
            "measure": measure_device,
            "load_sae": lambda source: loaded_saes().load_sae(source),
            "unload_sae": lambda checksum: loaded_saes().unload_sae(checksum),
            "loaded_bytes": lambda checksum: loaded_saes().loaded_bytes(checksum),
            "stop": self._loop.stop,
        }

    def run(self) -> None:
        """Serve until the server closes the connection."""
        threading.Thread(target=self._events.run_forever, name="engine-submissions", daemon=True).start()
        self._loop.start()
        self._watchdog.start()
        threading.Thread(target=self._report, name="engine-status", daemon=True).start()
        while True:
            try:
                message = self._channel.receive()
            except EOFError:
                return
            match message:
                case CancelStream():
                    self._events.call_soon_threadsafe(self._cancel, message.stream_id)
                case Call(method="submit" | "compile"):
                    self._events.call_soon_threadsafe(self._begin, message)
                case Call():
                    self._pool.submit(self._answer, message)

    def load(self, spec: ModelSpec) -> LoadedFacts:
        """Load a model, and return what the server needs of it."""
        loaded = load_from_directory(spec)
        try:
            facts = facts_of(loaded)
        except BaseException:
            self._loading.release(loaded)
            raise
        self._loaded[spec.name] = loaded
        return facts

    def release(self, name: str) -> None:
        """Free a model that is not attached. Nothing happens if it is not loaded."""
        loaded = self._loaded.pop(name, None)
        if loaded is not None:
            self._loading.release(loaded)

    def attach(self, name: str, kv_bytes: int) -> None:
        self._loop.attach(self._loaded[name], kv_bytes).result()
        self._channel.send(Status(self._loop.stats()))

    def detach(self, name: str) -> None:
        self._loop.detach(name).result()  # the last reference: its memory is freed here
        self._channel.send(Status(self._loop.stats()))

    def _answer(self, call: Call) -> None:
        try:
            value = self._methods[call.method](*call.arguments)
            self._channel.send(Reply(call.id, value))
        except BaseException as error:  # noqa: BLE001 - the server raises it
            self._refuse(call, error)

    def _begin(self, call: Call) -> None:
        """Start a submission or a compilation on the event loop."""
        if call.method == "compile":
            self._answer_after(call, self._compile(*call.arguments))
            return
        requests, stream_id = call.arguments
        task = self._answer_after(call, self._submit(requests, stream_id))
        self._pending[stream_id] = task
        task.add_done_callback(lambda done: self._pending.pop(stream_id, None))

    def _answer_after(self, call: Call, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run ``work``, and answer when it ends, also if it is cancelled before it begins."""
        task = self._events.create_task(work)
        task.add_done_callback(lambda done: self._answer_with(call, done))
        return task

    def _answer_with(self, call: Call, done: asyncio.Task[Any]) -> None:
        if done.cancelled():
            self._channel.send(Refusal.of(call.id, EngineDownError("The submission was cancelled.")))
            return
        try:
            self._channel.send(Reply(call.id, done.result()))
        except Exception as error:  # noqa: BLE001 - the server raises it
            self._refuse(call, error)

    async def _submit(self, requests: Sequence[Request], stream_id: str) -> None:
        self._loop.submit([await with_weights(request) for request in requests], stream_id)
        self._has_changed.set()

    async def _compile(self, spec: SteeringSpec) -> SteeringRef:
        return (await compiled(spec)).ref

    def _cancel(self, stream_id: str) -> None:
        task = self._pending.get(stream_id)
        if task is not None:
            task.cancel()
        self._loop.cancel(stream_id)

    def _refuse(self, call: Call, error: BaseException) -> None:
        if not isinstance(error, MillmError):
            logger.error("The call %s failed.", call.method, exc_info=error)
        self._channel.send(Refusal.of(call.id, error))

    def _publish(self, deliveries: list[tuple[object, Event]]) -> None:
        """Send a step's events. Called on the engine thread, or on the watchdog's if the engine has failed."""
        if any(isinstance(event, FailedEvent) for _, event in deliveries):
            self._channel.send(Status(self._loop.stats()))  # before clients see the failure
        elif any(isinstance(event, FinishedEvent) for _, event in deliveries):
            self._has_changed.set()
        self._channel.send(Events(deliveries))  # type: ignore[arg-type] # our sinks are the ids of streams

    def _report(self) -> None:
        while True:
            self._channel.send(Status(self._loop.stats()))
            time.sleep(CHANGE_S)
            self._has_changed.wait(STATUS_S - CHANGE_S)
            self._has_changed.clear()

    def _give_up(self, error: str) -> None:
        """End the process, so that the server starts another one. Called by the watchdog."""
        self._channel.send(Status(self._loop.stats()))
        self._channel.flush(FLUSH_S)
        logging.shutdown()
        os._exit(LOST)


def facts_of(loaded: LoadedModel) -> LoadedFacts:
    return LoadedFacts(
        name=loaded.name,
        tokenizer=PlainTokenizer.of(loaded.tokenizer),
        max_model_len=loaded.max_model_len,
        vocab_size=loaded.vocab_size,
        memory_bytes=loaded.memory_bytes,
        hidden_size=loaded.hidden_size,
        device=loaded.device,
        grammars=loaded.grammars,
        batch_invariant=loaded.batch_invariant,
        labels=loaded.labels,
        sites=loaded.sites,
    )


def serve(connection: socket.socket) -> None:
    """Serve the connection until it ends."""
    gc.freeze()  # as in the server: a full collection would stop all streams
    config = EngineConfig(**settings.MILLM_ENGINE_OPTIONS)
    EngineHost(Channel(connection), config, settings.MILLM_ENGINE_STALL_SECONDS).run()


def main(descriptor: int) -> None:
    """Serve the connection until it ends, and end the process."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # they are for the server, which closes the connection
    serve(socket.socket(fileno=descriptor))
    logging.shutdown()
    os._exit(0)  # the engine may still compute for nobody
