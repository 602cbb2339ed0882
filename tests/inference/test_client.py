"""Events travel from the engine thread to the event loop that asked, in order, once, and never to a closed one."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from dataclasses import replace

import numpy as np
import pytest
import torch

from core.errors import MillmError
from core.runtime import runtime
from inference.captures import AllFeatures, CaptureSpec, FeatureValues, Residuals, TopFeatures
from inference.client import (
    ENGINE_CLIENT,
    MAX_EVENTS,
    SPARE_EVENTS,
    EngineDownError,
    Event,
    FailedEvent,
    GenerationRequest,
    LocalEngineClient,
    QueueFullError,
    SamplingParams,
    Timings,
    Usage,
    get_client,
)
from inference.interventions import Intervention, Site, VectorEdit
from inference.steering_refs import STEERING_COMPILER, PublishedVersion, SAERef, SAESource, SteeringRef, SteeringSpec
from tests.engine.readers import top_k_reader
from tests.inference.fakes import FakeCompiler, FakeLoop, finished, in_thread, kinds, tokens
from tests.inference.pickling import PicklingClient


@pytest.fixture
def loop_and_client():
    loop = FakeLoop()

    def make_loop(publish):
        loop.publish = publish
        return loop

    return loop, LocalEngineClient(make_loop)


def requests(count: int = 1, max_tokens: int = 8) -> list[GenerationRequest]:
    return [GenerationRequest("r", "m", (1,), SamplingParams(max_tokens=max_tokens), index=i) for i in range(count)]


async def read(stream):
    return [event async for event in stream]


async def test_events_of_all_sequences_arrive_in_order_and_end(loop_and_client):
    loop, client = loop_and_client
    stream = await client.submit(requests(2))
    in_thread(loop.publish, [(stream.id, tokens(0)), (stream.id, tokens(1)), (stream.id, finished(1))])
    in_thread(loop.publish, [(stream.id, tokens(0)), (stream.id, finished(0))])

    events = await asyncio.wait_for(read(stream), 5)

    assert kinds(events) == [
        ("TokensEvent", 0),
        ("TokensEvent", 1),
        ("FinishedEvent", 1),
        ("TokensEvent", 0),
        ("FinishedEvent", 0),
    ]
    assert loop.cancelled == []


async def test_a_waiting_reader_is_woken(loop_and_client):
    loop, client = loop_and_client
    stream = await client.submit(requests())
    reader = asyncio.create_task(stream.__anext__())
    await asyncio.sleep(0.01)
    in_thread(loop.publish, [(stream.id, tokens(0))])

    assert (await asyncio.wait_for(reader, 60)).index == 0


async def test_the_sink_exists_before_the_engine_knows_the_request():
    """An engine that answers within submit loses nothing."""

    class EagerLoop(FakeLoop):
        def submit(self, requests, sink):
            in_thread(self.publish, [(sink, tokens(0)), (sink, finished(0))])

    loop = EagerLoop()

    def make_loop(publish):
        loop.publish = publish
        return loop

    assert len(await asyncio.wait_for(read(await LocalEngineClient(make_loop).submit(requests())), 5)) == 2


def test_one_wake_up_per_event_loop_and_step(loop_and_client):
    _, client = loop_and_client

    class CountingLoop(asyncio.SelectorEventLoop):
        calls = 0

        def call_soon_threadsafe(self, callback, *args, context=None):
            self.calls += 1
            return super().call_soon_threadsafe(callback, *args, context=context)

    counting = CountingLoop()
    streams = [counting.run_until_complete(client.submit(requests())) for _ in range(20)]
    counting.calls = 0
    client.publish([(stream.id, tokens(0)) for stream in streams])

    assert counting.calls == 1
    counting.close()


async def test_every_stream_wakes_its_own_event_loop(loop_and_client):
    """Two event loops in two threads: no callback goes to the wrong one."""
    loop, client = loop_and_client
    here = await client.submit(requests())
    there: dict[str, object] = {}
    ready = threading.Event()
    result: list[tuple[Event, threading.Thread]] = []

    async def elsewhere():
        there["stream"] = await client.submit(requests())
        ready.set()
        events = await read(there["stream"])
        result.extend((event, threading.current_thread()) for event in events)

    thread = threading.Thread(target=asyncio.run, args=(elsewhere(),))
    thread.start()
    assert await asyncio.to_thread(ready.wait, 5)
    in_thread(
        loop.publish, [(here.id, finished(0)), (there["stream"].id, tokens(0)), (there["stream"].id, finished(0))]
    )
    await asyncio.to_thread(thread.join, 5)

    assert len(await asyncio.wait_for(read(here), 5)) == 1
    assert [owner for _, owner in result] == [thread, thread]


def test_a_closed_event_loop_does_not_break_the_engine_thread(loop_and_client):
    loop, client = loop_and_client

    async def leave():
        return await client.submit(requests())

    gone = asyncio.run(leave())

    async def stay():
        stream = await client.submit(requests())
        in_thread(loop.publish, [(gone.id, tokens(0)), (stream.id, finished(0))])
        return await asyncio.wait_for(read(stream), 5)

    assert len(asyncio.run(stay())) == 1
    assert loop.cancelled == [gone.id]


def test_closing_after_the_event_loop_ended_is_harmless(loop_and_client):
    loop, client = loop_and_client

    async def leave():
        return await client.submit(requests())

    gone = asyncio.run(leave())
    gone.close()

    assert loop.cancelled == [gone.id]


async def test_close_cancels_once_and_ends_a_waiting_reader(loop_and_client):
    loop, client = loop_and_client
    stream = await client.submit(requests())
    reader = asyncio.create_task(read(stream))
    await asyncio.sleep(0.01)
    for _ in range(3):
        await asyncio.to_thread(stream.close)

    assert await asyncio.wait_for(reader, 60) == []
    assert loop.cancelled == [stream.id]


async def test_events_after_close_are_dropped(loop_and_client):
    loop, client = loop_and_client
    stream = await client.submit(requests())
    stream.close()
    in_thread(loop.publish, [(stream.id, tokens(0)), (stream.id, finished(0))])

    assert await asyncio.wait_for(read(stream), 5) == []


async def test_closing_a_finished_stream_cancels_nothing(loop_and_client):
    loop, client = loop_and_client
    stream = await client.submit(requests())
    in_thread(loop.publish, [(stream.id, finished(0))])
    await read(stream)
    stream.close()

    assert loop.cancelled == []


async def test_a_finished_stream_stays_finished(loop_and_client):
    loop, client = loop_and_client
    stream = await client.submit(requests())
    in_thread(loop.publish, [(stream.id, finished(0))])
    await read(stream)

    assert await read(stream) == []


async def test_a_reader_that_falls_behind_is_cut(loop_and_client):
    loop, client = loop_and_client
    stream = await client.submit(requests(2, max_tokens=5))
    limit = 10 + SPARE_EVENTS
    for _ in range(limit + 50):
        in_thread(loop.publish, [(stream.id, tokens(0))])

    events = await asyncio.wait_for(read(stream), 5)

    assert len(events) == limit + 2
    assert [event.code for event in events if isinstance(event, FailedEvent)] == ["slow_reader", "slow_reader"]
    assert loop.cancelled == [stream.id]


async def test_no_request_may_buffer_without_limit(loop_and_client):
    _, client = loop_and_client
    stream = await client.submit(requests(max_tokens=10**9))

    assert stream._max_events == MAX_EVENTS


async def test_all_waiters_fail_when_the_engine_dies(loop_and_client):
    loop, client = loop_and_client
    streams = [await client.submit(requests()) for _ in range(5)]
    readers = [asyncio.create_task(read(stream)) for stream in streams]
    await asyncio.sleep(0.01)
    failure = FailedEvent(0, "server_error", "The engine failed.", Usage(), Timings())
    in_thread(loop.publish, [(stream.id, failure) for stream in streams])

    ends = await asyncio.wait_for(asyncio.gather(*readers), 5)

    assert ends == [[failure]] * 5


@pytest.mark.parametrize("refusal", [EngineDownError("down"), QueueFullError("full", 3.0)])
async def test_a_refusal_reaches_the_caller_and_leaves_nothing(loop_and_client, refusal):
    loop, client = loop_and_client
    loop.refusal = refusal

    with pytest.raises(type(refusal)):
        await client.submit(requests(3))

    assert not client.is_busy("m")


async def test_a_model_is_busy_until_its_last_sequence_ends(loop_and_client):
    loop, client = loop_and_client
    stream = await client.submit(requests(2))
    assert client.is_busy("m")
    in_thread(loop.publish, [(stream.id, finished(0))])
    assert client.is_busy("m")
    stream.close()
    in_thread(loop.publish, [(stream.id, finished(1))])

    assert not client.is_busy("m")


async def test_a_second_reader_is_refused(loop_and_client):
    _, client = loop_and_client
    stream = await client.submit(requests())
    first = asyncio.create_task(stream.__anext__())
    await asyncio.sleep(0.01)

    with pytest.raises(RuntimeError, match="one reader"):
        await stream.__anext__()
    stream.close()
    with pytest.raises(StopAsyncIteration):
        await first


async def test_a_reader_that_gives_up_leaves_the_stream_usable(loop_and_client):
    loop, client = loop_and_client
    stream = await client.submit(requests())
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(stream.__anext__(), 0.01)
    in_thread(loop.publish, [(stream.id, finished(0))])

    assert len(await asyncio.wait_for(read(stream), 5)) == 1


async def test_finished_streams_are_freed(loop_and_client):
    loop, client = loop_and_client
    stream = await client.submit(requests())
    in_thread(loop.publish, [(stream.id, finished(0))])
    await read(stream)
    loop.submitted.clear()
    kept = weakref.ref(stream)
    del stream
    gc.collect()

    assert kept() is None


def test_start_stop_and_stats_go_to_the_loop(loop_and_client):
    loop, client = loop_and_client
    client.start()
    client.stop(3.0)

    assert loop.started
    assert loop.drained == 3.0
    assert client.stats().is_up


def test_without_a_serving_process_there_is_no_client(loop_and_client):
    _, client = loop_and_client
    runtime.install(ENGINE_CLIENT, client)
    try:
        assert get_client() is client
    finally:
        runtime.remove(ENGINE_CLIENT)
    with pytest.raises(EngineDownError, match="start the server"):
        get_client()


VERSION = PublishedVersion("gloomy", 1, "print", [], ())
SPEC = SteeringSpec((VERSION,))
SAE = SAERef(SAESource("sae", "topk", "", "", ""), 48)


@pytest.fixture
def compiler():
    reader = top_k_reader()
    compiler = FakeCompiler(on_disk={reader.key: reader})
    runtime.install(STEERING_COMPILER, compiler)
    yield compiler
    runtime.remove(STEERING_COMPILER)


async def test_the_engines_side_has_the_weights_that_requests_name(loop_and_client, compiler):
    loop, client = loop_and_client
    remote = PicklingClient(client)
    steering = await remote.compile(SPEC)
    probes = (Residuals(), FeatureValues(SAE, (3, 4)), TopFeatures(SAE, 2))
    captures = tuple(CaptureSpec(site=Site(1), probe=probe) for probe in probes)
    for _ in range(2):
        await remote.submit([replace(request, steering=steering, captures=captures) for request in requests(2)])

    assert compiler.waits == [SPEC, SAE], "each once"
    reader = compiler.loaded["topk"]
    for submitted, _ in loop.submitted:
        for request in submitted:
            assert request.intervention is compiler.compiled["print"]
            assert [capture.probe for capture in request.captures] == [
                Residuals(),
                FeatureValues(reader, (3, 4)),
                TopFeatures(reader, 2),
            ]


async def test_steering_that_the_engines_side_has_dropped_is_compiled_again(loop_and_client, compiler):
    loop, client = loop_and_client
    steering = await client.compile(SPEC)
    compiler.compiled.clear()
    await client.submit([replace(request, steering=steering) for request in requests()])

    (((request,), _),) = loop.submitted
    assert (request.intervention.fingerprint, request.fingerprint) == ("print", "print")
    assert compiler.waits == [SPEC, SPEC]


async def test_weights_that_are_missing_refuse_the_requests(loop_and_client, compiler):
    loop, client = loop_and_client
    steering = SteeringRef("print", SPEC)
    captures = (CaptureSpec(site=Site(1), probe=AllFeatures(SAE), pooling="mean"),)
    compiler.failure = MillmError("gone", status=409)
    for fields in ({"steering": steering}, {"captures": captures}):
        with pytest.raises(MillmError, match="gone"):
            await client.submit([replace(request, **fields) for request in requests()])
    with pytest.raises(MillmError, match="gone"):
        await client.compile(SPEC)
    assert not loop.submitted
    assert not client.is_busy("m")


@pytest.mark.parametrize(
    "fields",
    [
        {"intervention": Intervention("print", ())},
        {"intervention": Intervention("print", (VectorEdit(Site(1), torch.ones(4)),))},
        {"captures": (CaptureSpec(site=Site(1), probe=TopFeatures(top_k_reader(), 2)),)},
        {"sampling": torch.ones(4)},
        {"sampling": torch.nn.Linear(2, 2)},
        {"prompt_token_ids": np.ones(4)},
    ],
)
async def test_no_request_carries_weights(loop_and_client, fields):
    _, client = loop_and_client
    with pytest.raises(AssertionError, match="carries a"):
        await PicklingClient(client).submit([replace(request, **fields) for request in requests()])
