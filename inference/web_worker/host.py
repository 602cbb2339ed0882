"""The main process's side of a web worker: its requests to the engine and to the registry."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from inference.client import EngineClient, EventStream
from inference.engine.messages import TERMINAL_EVENTS, Event, Request
from inference.engine_process.channel import Call, CancelStream, Events, Message
from inference.event_stream import STREAM_FACTORY, RelayedStream
from inference.models import LanguageModel
from inference.registry.memory_plan import MemoryPlan
from inference.registry.model_card import Card
from inference.registry.registry import ModelRegistry
from inference.steering_refs import loaded_saes
from inference.web_worker.link import Link

Act = Callable[..., object]


class EngineRelay:
    """Answers the calls of one worker. Submissions run on ``loop``, what takes long in ``pool``.

    ``on_change`` is called when sequences have ended: the next report will differ.
    """

    def __init__(
        self,
        link: Link,
        loop: asyncio.AbstractEventLoop,
        pool: Executor,
        client: EngineClient,
        registry: ModelRegistry,
        on_change: Callable[[], None],
    ) -> None:
        self._link = link
        self._loop = loop
        self._pool = pool
        self._client = client
        self._registry = registry
        self._on_change = on_change
        self._is_open = True
        self._streams: dict[str, EventStream] = {}  # by the worker's id
        self._unfinished: dict[str, set[int]] = {}  # sequences of these streams
        self._submissions: dict[str, asyncio.Task[None]] = {}  # and waiting for loads, by the worker's id
        self._batch: list[tuple[str, Event]] = []  # of this turn of the loop
        self._awaited: dict[str, Callable[..., Any]] = {
            "submit": self._submit,
            "compile": client.compile,
            "ready": self._ready,
        }
        self._slow: dict[str, Act] = {
            "loaded_card": self._loaded_card,
            "memory_plan": self._memory_plan,
            "load_sae": lambda source: loaded_saes().load_sae(source),
            "loaded_bytes": lambda checksum: loaded_saes().loaded_bytes(checksum),
        }
        self._quick: dict[str, Act] = {
            "use": registry.loaded_card,
            "load_status": registry.load_status,
            "replace_processes": client.replace_processes,
        }
        self._started: dict[str, Callable[..., Future[Any]]] = {"load": registry.load, "unload": self._unload}

    def handle(self, message: Message) -> bool:
        """Handle a message. Return False if it is not for the engine or the registry."""
        if isinstance(message, CancelStream):
            self._loop.call_soon_threadsafe(self._cancel, message.stream_id)
        elif not isinstance(message, Call):
            return False
        elif message.method in self._awaited:
            self._loop.call_soon_threadsafe(self._begin, message)
        elif message.method in self._slow:
            self._pool.submit(self._link.answer, message, self._slow[message.method])
        elif message.method in self._quick:
            self._link.answer(message, self._quick[message.method])
        elif message.method in self._started:
            self._start(message)
        else:
            return False
        return True

    def close(self) -> None:
        """Cancel everything that the worker has submitted. Callable from any thread."""
        self._loop.call_soon_threadsafe(self._close)

    # On the loop

    def _begin(self, call: Call) -> None:
        task = self._loop.create_task(self._awaited[call.method](*call.arguments))
        if call.method in ("submit", "ready"):
            worker_id = call.arguments[1]
            self._submissions[worker_id] = task
            task.add_done_callback(lambda done: self._submissions.pop(worker_id, None))
        task.add_done_callback(lambda done: self._link.answer_when(call, _settled(done)))

    async def _submit(self, requests: Sequence[Request], worker_id: str) -> None:
        STREAM_FACTORY.set(partial(RelayedStream, relay=partial(self._relay, worker_id)))  # in the context of this task
        self._unfinished[worker_id] = {request.index for request in requests}
        try:
            stream = await self._client.submit(requests)
        except BaseException:
            self._unfinished.pop(worker_id, None)
            raise
        if not self._is_open:
            stream.close()
        elif worker_id in self._unfinished:
            self._streams[worker_id] = stream

    async def _ready(self, name: str, worker_id: str) -> None:
        await self._registry.ready_card(name)

    def _relay(self, worker_id: str, events: list[Event]) -> None:
        if not self._batch:
            self._loop.call_soon(self._flush)
        self._batch += [(worker_id, event) for event in events]
        ended = {event.index for event in events if isinstance(event, TERMINAL_EVENTS)}
        if ended:
            self._on_change()
            unfinished = self._unfinished.get(worker_id, set())
            unfinished -= ended
            if not unfinished:
                self._unfinished.pop(worker_id, None)
                self._streams.pop(worker_id, None)

    def _flush(self) -> None:
        batch, self._batch = self._batch, []
        self._link.send(Events(batch))

    def _cancel(self, worker_id: str) -> None:
        submission = self._submissions.get(worker_id)
        if submission is not None:
            submission.cancel()
        stream = self._streams.get(worker_id)
        if stream is not None:
            self._client.cancel(stream.id)  # the worker sees its terminal event

    def _close(self) -> None:
        self._is_open = False
        for submission in self._submissions.values():
            submission.cancel()
        for stream in self._streams.values():
            stream.close()
        self._streams.clear()

    # Of the registry

    def _start(self, call: Call) -> None:
        try:
            done = self._started[call.method](*call.arguments)
        except Exception as error:  # noqa: BLE001 - the worker raises it
            self._link.refuse(call, error)
            return
        done.add_done_callback(lambda ended: self._link.answer_when(call, ended))

    def _unload(self, name: str, now: bool) -> Future[None]:  # noqa: FBT001 - from the wire
        return self._registry.unload(name, now=now)

    def _loaded_card(self, name: str) -> tuple[int | None, Card | None]:
        card = self._registry.loaded_card(name)
        return (None, None) if card is None else (self._registry.loads().get(card.record.name), card)

    def _memory_plan(self, pk: int, path: Path) -> MemoryPlan:
        """Return a plan without the loaded models, which do not leave this process."""
        plan = self._registry.memory_plan(LanguageModel.objects.get(pk=pk), path)
        return replace(plan, unpinned=())


def _settled(task: asyncio.Task[Any]) -> Future[Any]:
    """Return the outcome of a task that has ended."""
    done: Future[Any] = Future()
    if task.cancelled():
        done.cancel()
    elif (error := task.exception()) is not None:
        done.set_exception(error)
    else:
        done.set_result(task.result())
    return done
