"""Many sequences in groups."""

from __future__ import annotations

import pytest

from inference.client import GenerationRequest, QueueFullError, SamplingParams
from openai_api.generation.batched_submission import BatchedSubmission
from tests.openai_api.fakes import FakeEngine, FakeStream


class BusyEngine(FakeEngine):
    """Refuses some submissions."""

    def __init__(self, refused: set[int]) -> None:
        super().__init__()
        self._refused = refused
        self.num_submissions = 0

    def submit(self, requests) -> FakeStream:
        self.num_submissions += 1
        if self.num_submissions in self._refused:
            raise QueueFullError("full", 0.01)
        return super().submit(requests)


REQUESTS = [GenerationRequest(str(i), "tiny", (1,), SamplingParams(max_tokens=1), index=i) for i in range(5)]


async def test_later_groups_wait_for_room():
    engine = BusyEngine(refused={2, 3, 5})
    events = [event async for event in BatchedSubmission(engine.submit, REQUESTS, size=2)]
    assert [request.index for request in engine.requests] == [0, 1, 2, 3, 4]
    assert [event.index for event in events] == [0, 1, 0, 1, 2, 3, 2, 3, 4, 4]
    assert engine.num_submissions == 6


async def test_the_first_group_may_be_refused():
    with pytest.raises(QueueFullError):
        BatchedSubmission(BusyEngine(refused={1}).submit, REQUESTS, size=2)


async def test_nothing_is_submitted_after_the_end():
    engine = BusyEngine(refused=set())
    submission = BatchedSubmission(engine.submit, REQUESTS, size=2)
    await anext(submission)
    submission.close()
    assert [event.index async for event in submission] == [1, 0, 1]
    assert engine.num_submissions == 1
    assert engine.streams[0].num_closes == 1
