"""A web worker's engine and models, over a real socket pair, with a fake engine in the main process."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from core.errors import MillmError
from inference.client import (
    EngineDownError,
    EngineStats,
    GenerationRequest,
    LocalEngineClient,
    QueueFullError,
    SamplingParams,
)
from inference.registry.model_card import ModelLoadFailedError, ModelNotReadyError
from inference.registry.records import ModelNotFoundError
from inference.registry.registry import ModelRegistry
from inference.web_worker.client import SILENCE_S, WorkerEngine, WorkerEngineClient, WorkerRegistry
from inference.web_worker.host import EngineRelay
from inference.web_worker.link import Call, Link, Message
from tests.inference.fakes import Clock, FakeLoop, finished, in_thread, kinds, tokens
from tests.inference.rows import amake, until

PATIENCE_S = 60.0


class Pair:
    """Both ends: ``main`` has the fake engine, ``worker`` its client."""

    def __init__(self, registry: Any = None) -> None:
        self.engine = FakeLoop()
        self.local: LocalEngineClient[Any] = LocalEngineClient(self._make)
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()
        self.pool = ThreadPoolExecutor(2)
        self.main, self.worker = (Link(end) for end in socket.socketpair())
        self.changes = 0
        self.relay = EngineRelay(
            self.main, self.loop, self.pool, self.local, registry or ModelRegistry(), self._note_change
        )
        self.clock = Clock()
        self.remote = WorkerEngine(self.worker, self.clock)
        self.client = WorkerEngineClient(self.remote)
        self.others: list[Message] = []
        threading.Thread(target=self.main.run, args=(self._of_worker,), daemon=True).start()
        self.reader = threading.Thread(target=self.worker.run, args=(self._of_main,), daemon=True)
        self.reader.start()

    def close(self) -> None:
        self.worker.close()
        self.main.close()
        self.pool.shutdown()

    def _make(self, publish: Any) -> Any:
        self.engine.publish = publish
        return self.engine

    def _note_change(self) -> None:
        self.changes += 1

    def _of_worker(self, message: Message) -> None:
        if not self.relay.handle(message):
            self.others.append(message)

    def _of_main(self, message: Message) -> None:
        if not self.client.take(message):
            self.others.append(message)


@pytest.fixture
def pair() -> Iterator[Pair]:
    pair = Pair()
    yield pair
    pair.close()


def requests(count: int = 1) -> list[GenerationRequest]:
    return [GenerationRequest("r", "m", (1,), SamplingParams(max_tokens=8), index=i) for i in range(count)]


class TestEngine:
    async def test_events_arrive_in_order_and_end(self, pair: Pair) -> None:
        stream = await pair.client.submit(requests(2))
        ((_, sink),) = pair.engine.submitted
        in_thread(pair.engine.publish, [(sink, tokens(0)), (sink, tokens(1)), (sink, finished(1))])
        in_thread(pair.engine.publish, [(sink, tokens(0)), (sink, finished(0))])
        events = [event async for event in stream]
        assert [kind for kind in kinds(events) if kind[1] == 0] == [
            ("TokensEvent", 0),
            ("TokensEvent", 0),
            ("FinishedEvent", 0),
        ]
        assert [kind for kind in kinds(events) if kind[1] == 1] == [("TokensEvent", 1), ("FinishedEvent", 1)]
        assert pair.engine.cancelled == []
        assert not pair.local.is_busy("m")
        assert pair.changes == 2

    async def test_a_worker_asks_for_new_processes(self, pair: Pair) -> None:
        assert await asyncio.to_thread(pair.client.replace_processes) == 0, "a thread cannot be replaced"

    async def test_the_main_process_keeps_no_events_of_its_own(self, pair: Pair) -> None:
        """A worker's reader may be slow: what it has not read waits there, within that stream's limit."""
        stream = await pair.client.submit(requests())
        ((_, sink),) = pair.engine.submitted
        for _ in range(200):
            in_thread(pair.engine.publish, [(sink, tokens(0))])
        await until(lambda: pair.engine.cancelled)
        events = [event async for event in stream]
        assert kinds(events)[-1] == ("FailedEvent", 0)

    async def test_refusals_keep_their_class(self, pair: Pair) -> None:
        pair.engine.refusal = QueueFullError("Too many.", 2.5)
        with pytest.raises(QueueFullError) as caught:
            await pair.client.submit(requests())
        assert caught.value.retry_after_s == 2.5
        assert not pair.client.is_busy("m")
        assert not pair.local.is_busy("m")

    async def test_closing_a_stream_cancels_its_sequences(self, pair: Pair) -> None:
        stream = await pair.client.submit(requests())
        ((_, sink),) = pair.engine.submitted
        stream.close()
        await until(lambda: pair.engine.cancelled == [sink])
        in_thread(pair.engine.publish, [(sink, finished(0))])
        await until(lambda: not pair.client.is_busy("m"))
        pair.client.cancel("unknown")

    async def test_a_cancelled_submission_leaves_nothing_behind(self, pair: Pair) -> None:
        for _ in range(20):
            submission = asyncio.ensure_future(pair.client.submit(requests()))
            await asyncio.sleep(0)
            submission.cancel()
            with pytest.raises(asyncio.CancelledError):
                await submission
        await until(lambda: len(pair.engine.cancelled) == len(pair.engine.submitted))
        for _, sink in pair.engine.submitted:
            in_thread(pair.engine.publish, [(sink, finished(0))])
        await until(lambda: not pair.local.is_busy("m"))
        assert not pair.client.is_busy("m")

    async def test_streams_of_a_dead_worker_are_cancelled_and_others_are_not(self, pair: Pair) -> None:
        other = await pair.local.submit(requests())
        await pair.client.submit(requests())
        await pair.client.submit(requests())
        pair.relay.close()
        mine = {sink for _, sink in pair.engine.submitted if sink != other.id}
        await until(lambda: set(pair.engine.cancelled) == mine)

    async def test_when_the_main_process_ends_everything_fails(self, pair: Pair) -> None:
        stream = await pair.client.submit(requests(2))
        pair.main.close()
        await asyncio.to_thread(pair.reader.join, PATIENCE_S)
        pair.client.note_death()
        assert kinds([event async for event in stream]) == [("FailedEvent", 0), ("FailedEvent", 1)]
        with pytest.raises(EngineDownError):
            await pair.client.submit(requests())

    async def test_a_worker_that_stops_fails_what_still_runs(self, pair: Pair) -> None:
        stream = await pair.client.submit(requests())
        pair.client.stop(0)
        assert kinds([event async for event in stream]) == [("FailedEvent", 0)]
        with pytest.raises(EngineDownError, match="shutting down"):
            await pair.client.submit(requests())
        await until(lambda: pair.engine.cancelled)
        assert pair.client.stats().state == "stopped"

    async def test_a_main_process_that_says_nothing_counts_as_failed(self, pair: Pair) -> None:
        pair.main.report(EngineStats("idle"))
        await until(lambda: pair.client.stats().state == "idle")
        pair.clock.now += SILENCE_S + 1
        assert "has not reported for 16 s" in pair.client.stats().error

    async def test_what_cannot_be_sent_is_refused_and_an_unknown_failure_has_its_message(self, pair: Pair) -> None:
        with pytest.raises(Exception, match="pickle"):
            pair.worker.call("load", threading.Lock())
        with pytest.raises(TypeError):
            pair.worker.call("load_status", "none", "too many").result(PATIENCE_S)
        call = pair.worker.call("not for the engine")
        await until(lambda: pair.others)
        message = pair.others[0]
        assert isinstance(message, Call)
        pair.main.answer(message, lambda: 1 / 0)
        with pytest.raises(Exception, match="division"):
            call.result(PATIENCE_S)


@pytest.mark.django_db(transaction=True)
class TestRegistry:
    @pytest.fixture
    def registry(self, parts: Any) -> Iterator[ModelRegistry]:
        registry = ModelRegistry(
            parts.engine,
            is_busy=parts.busy.__contains__,
            locate=parts.located,
            loading=parts.loader.parts(),
            clock=parts.clock,
            load_timeout_s=60,
        )
        yield registry
        parts.loader.gate.set()
        registry.stop()

    @pytest.fixture
    def pair(self, registry: ModelRegistry) -> Iterator[Pair]:
        pair = Pair(registry)
        yield pair
        pair.close()

    @pytest.fixture
    def models(self, pair: Pair, parts: Any) -> WorkerRegistry:
        return WorkerRegistry(pair.worker, clock=parts.clock)

    async def test_a_request_loads_the_model_there_and_gets_its_card(
        self, models: WorkerRegistry, registry: ModelRegistry, parts: Any
    ) -> None:
        await amake(aliases=["tiny"])
        cards = await asyncio.gather(*(models.ready("tiny") for _ in range(20)))
        expected = await registry.ready("org/tiny")
        # Reports from before the load, of which several may be on their way on a slow machine, drop a copy each.
        assert len({id(card.text) for card in cards}) <= 5, "not a copy for each request"
        assert len(parts.loader.specs) == 1
        assert cards[0].text.encode("The cat") == expected.text.encode("The cat")
        assert (cards[0].record.pk, cards[0].max_model_len) == (expected.record.pk, expected.max_model_len)

    async def test_what_pages_ask_is_known_without_waiting_once_it_was_reported(
        self, models: WorkerRegistry, registry: ModelRegistry
    ) -> None:
        await amake()
        assert (models.is_loaded("org/tiny"), models.layers_and_width("org/tiny")) == (False, None)
        await asyncio.wrap_future(models.load("org/tiny"))
        models.note_loads(registry.loads())
        assert models.is_loaded("org/tiny")
        await until(lambda: models.loaded_card("org/tiny"))
        assert models.max_model_len("org/tiny") == registry.max_model_len("org/tiny") == 256
        assert models.media_facts("org/tiny") is None
        assert (await asyncio.to_thread(models.load_status, "org/tiny")) == registry.load_status("org/tiny")

    async def test_a_model_that_was_loaded_again_has_another_card(
        self, models: WorkerRegistry, registry: ModelRegistry
    ) -> None:
        await amake()
        first = await models.ready("org/tiny")
        models.note_loads(registry.loads())
        assert (await models.ready("org/tiny")).text is first.text
        await asyncio.wrap_future(models.unload("org/tiny", now=True))
        models.note_loads(registry.loads())
        assert models.loaded_card("org/tiny") is None
        second = await models.ready("org/tiny")
        assert second.text is not first.text

    async def test_use_by_a_worker_keeps_a_model_loaded(
        self, models: WorkerRegistry, registry: ModelRegistry, parts: Any
    ) -> None:
        await amake(keep_alive_s=10)
        await models.ready("org/tiny")
        models.note_loads(registry.loads())
        (entry,) = registry._loaded_models.all()
        parts.clock.now += 8
        await models.ready("org/tiny")
        await until(lambda: registry._loaded_models.idle_s(entry) == 0)
        parts.clock.now += 8
        await asyncio.to_thread(registry.housekeep)
        assert registry.is_loaded("org/tiny")
        parts.clock.now += 8
        await asyncio.to_thread(registry.housekeep)
        assert not registry.is_loaded("org/tiny")

    async def test_errors_of_loads_are_those_of_the_registry(self, models: WorkerRegistry, parts: Any) -> None:
        await amake()
        with pytest.raises(ModelNotFoundError):
            await models.ready("none")
        parts.loader.failure = MillmError("Broken weights.")
        with pytest.raises(ModelLoadFailedError, match="Broken weights") as caught:
            await models.ready("org/tiny")
        assert caught.value.retry_after_s > 0

    async def test_a_client_that_leaves_waits_no_more(self, models: WorkerRegistry, pair: Pair, parts: Any) -> None:
        await amake()
        parts.loader.gate.clear()
        waiting = asyncio.create_task(models.ready("org/tiny"))
        await until(lambda: pair.relay._submissions)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await until(lambda: not pair.relay._submissions)
        parts.loader.gate.set()
        assert (await models.ready("org/tiny")).max_model_len == 256

    async def test_a_model_that_is_unloaded_again_and_again(self, models: WorkerRegistry, pair: Pair) -> None:
        await amake()
        pair.relay._awaited["ready"] = _at_once
        pair.relay._slow["loaded_card"] = lambda name: (None, None)
        with pytest.raises(ModelNotReadyError, match="unloaded in the meantime"):
            await models.ready("org/tiny")


async def _at_once(name: str, call_id: str) -> None:
    """A load after which the model is unloaded at once."""
