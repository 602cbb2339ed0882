"""Runs: when sequences are submitted, what their readers get, and which ends raise."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

import pytest

from inference.client import (
    EmbeddingRequest,
    FailedEvent,
    FinishedEvent,
    GenerationRequest,
    QueueFullError,
    SamplingParams,
    SteeringReceipt,
)
from inference.runs import Run, SequenceFailedError
from inference.steering_refs import SteeringRef, SteeringSpec
from tests.openai_api.fakes import FakeEngine, FakeStream, failing, finished, silent


class BusyEngine(FakeEngine):
    """Refuses some submissions, and those of more than ``room`` sequences."""

    def __init__(self, refused: Collection[int] = (), room: int = 100) -> None:
        super().__init__()
        self._refused = refused
        self._room = room
        self.num_submissions = 0

    async def submit(self, requests) -> FakeStream:
        self.num_submissions += 1
        if self.num_submissions in self._refused or len(requests) > self._room:
            raise QueueFullError("full", 0.01)
        return await super().submit(requests)


REQUESTS = [GenerationRequest(str(i), "tiny", (1,), SamplingParams(max_tokens=1), index=i) for i in range(5)]
STEERED = GenerationRequest("r", "tiny", (1,), SamplingParams(max_tokens=1), SteeringRef("print", SteeringSpec(())))


async def test_nothing_is_submitted_before_the_start():
    engine = FakeEngine()
    run = Run(engine, REQUESTS)
    assert engine.streams == []
    await run.start()
    assert engine.requests == REQUESTS
    assert len(engine.streams) == 1


async def test_later_groups_wait_for_room():
    engine = BusyEngine(refused={2, 3, 5})
    async with Run(engine, REQUESTS, group_size=2) as run:
        events = [event async for event in run]
    assert [request.index for request in engine.requests] == [0, 1, 2, 3, 4]
    assert [event.index for event in events] == [0, 1, 0, 1, 2, 3, 2, 3, 4, 4]
    assert engine.num_submissions == 6


async def test_the_first_group_may_be_refused():
    with pytest.raises(QueueFullError):
        await Run(BusyEngine(refused={1}), REQUESTS, group_size=2).start()


async def test_a_run_that_waits_is_not_refused():
    engine = BusyEngine(refused={1, 2})
    collected = await Run(engine, REQUESTS, waits=True).collect()
    assert [[event.index for event in events] for events in collected] == [[i, i] for i in range(5)]
    assert engine.num_submissions == 3


async def test_a_group_is_halved_until_it_finds_room():
    engine = BusyEngine(room=2)
    collected = await Run(engine, REQUESTS, waits=True, halves=True).collect()
    assert [[event.index for event in events] for events in collected] == [[i, i] for i in range(5)]
    assert [len(stream._open) for stream in engine.streams] == [0, 0, 0]


async def test_nothing_is_submitted_after_the_end():
    engine = BusyEngine()
    run = Run(engine, REQUESTS, group_size=2)
    await run.start()
    await anext(run)
    run.close()
    assert [event.index async for event in run] == [1, 0, 1]
    assert engine.num_submissions == 1
    assert engine.streams[0].num_closes == 1


async def test_no_requests_are_no_events():
    engine = BusyEngine()
    assert await Run(engine, []).collect() == []
    assert engine.num_submissions == 0


async def test_texts_to_embed():
    engine = FakeEngine()
    requests = [EmbeddingRequest(str(i), "tiny", (1,) * (i + 1), i) for i in range(3)]
    collected = await Run(engine, requests, group_size=2).collect()
    assert [len(events) for events in collected] == [2, 2, 2]
    assert engine.embedded == requests


async def test_a_failure_raises_and_closes():
    engine = FakeEngine()
    engine.script = failing("out_of_memory", after="a")
    noted = []
    with pytest.raises(SequenceFailedError, match="It failed") as caught:
        await Run(engine, REQUESTS[:1], observe=noted.append).collect()
    assert caught.value.code == "out_of_memory"
    assert isinstance(noted[-1], FailedEvent)
    assert engine.streams[0].num_closes == 1


async def test_a_tolerated_failure_is_an_event():
    engine = FakeEngine()
    engine.script = failing("steering_unstable")
    ((event,),) = await Run(engine, REQUESTS[:1], tolerated={"steering_unstable"}).collect()
    assert isinstance(event, FailedEvent)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"reason": "cancelled"}, "engine_shutdown"),
        ({"receipt": None}, "steering_not_applied"),
        ({"receipt": SteeringReceipt("print", 2, 1)}, "steering_not_applied"),
        ({"receipt": SteeringReceipt("other", 1, 1)}, "steering_not_applied"),
    ],
)
async def test_an_end_that_breaks_the_rules(changes, code):
    engine = FakeEngine()
    engine.script = lambda request: [finished(request, 0, **changes)]
    noted = []
    with pytest.raises(SequenceFailedError) as caught:
        await Run(engine, [STEERED], observe=noted.append).collect()
    assert caught.value.code == code
    assert [type(event) for event in noted] == [FinishedEvent]


async def test_an_engine_that_ends_early():
    engine = FakeEngine()
    engine.script = silent
    run = Run(engine, REQUESTS[:1])
    await run.start()
    engine.streams[0].close()
    with pytest.raises(SequenceFailedError, match="ended the request early"):
        await anext(run)


async def test_a_timeout_leaves_the_run_usable():
    engine = FakeEngine()
    engine.script = silent
    run = Run(engine, REQUESTS[:1])
    await run.start()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await anext(run)
    engine.streams[0].push(finished(REQUESTS[0], 0))
    assert [event.index async for event in run] == [0]
