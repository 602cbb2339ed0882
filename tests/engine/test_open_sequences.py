"""Exactly one terminal event of each accepted sequence goes through, whoever sends it."""

from __future__ import annotations

import threading

import pytest

from inference.engine.messages import (
    BACKGROUND_PRIORITY,
    Counts,
    FailedEvent,
    FinishedEvent,
    Timings,
    TokensEvent,
    Usage,
)
from inference.engine.outbox import OpenSequences
from tests.builders import build_request


def finished(index: int = 0) -> FinishedEvent:
    return FinishedEvent(index, "stop", Usage(), Timings())


@pytest.fixture
def sequences() -> OpenSequences:
    sequences = OpenSequences()
    sequences.add([build_request(index=i) for i in range(2)], "sink")
    return sequences


def test_a_second_terminal_event_and_what_follows_it_is_held_back(sequences):
    token = TokensEvent(0, (5,), "a")
    assert sequences.filter_open([("sink", token), ("sink", finished())]) == (
        [("sink", token), ("sink", finished())],
        1,
    )
    assert sequences.filter_open([("sink", finished()), ("sink", token)]) == ([], 0)
    assert len(sequences) == 1


def test_events_of_unknown_readers_are_held_back(sequences):
    assert sequences.filter_open([("other", finished())]) == ([], 0)


def test_everyone_who_waits_can_be_failed(sequences):
    sequences.filter_open([("sink", finished(1))])
    sequences.add([build_request()], "late")
    failures = sequences.failures("server_error", "It failed.")
    assert [(sink, event.index) for sink, event in failures] == [("sink", 0), ("late", 0)]
    assert all(isinstance(event, FailedEvent) and event.usage.prompt_tokens == 3 for _, event in failures)
    assert sequences.filter_open(failures)[1] == 2
    assert len(sequences) == 0


def test_a_sink_may_come_again_after_its_end_but_not_before(sequences):
    with pytest.raises(ValueError, match="different indices"):
        sequences.add([build_request(index=1)], "sink")
    with pytest.raises(ValueError, match="different indices"):
        sequences.add([build_request(index=3)] * 2, "other")
    assert len(sequences) == 2
    sequences.filter_open([("sink", finished(1))])
    sequences.add([build_request(index=1)], "sink")
    assert len(sequences) == 2


def test_sequences_of_the_lowest_priority_are_counted_apart(sequences):
    assert sequences.counts() == Counts(2, 0)
    sequences.add([build_request(index=i, priority=BACKGROUND_PRIORITY) for i in range(2)], "batch")
    assert sequences.counts() == Counts(4, 2)
    sequences.filter_open([("sink", finished()), ("batch", finished())])
    sequences.filter_open([("batch", finished())])
    assert sequences.counts() == Counts(2, 1)
    sequences.filter_open(sequences.failures("server_error", "It failed."))
    assert sequences.counts() == Counts()


def test_two_threads_that_end_the_same_sequences_end_each_once():
    sequences = OpenSequences()
    for number in range(500):
        sequences.add([build_request()], number)
    ended: list[int] = []

    def end_all() -> None:
        ended.extend(sequences.filter_open([(number, finished())])[1] for number in range(500))

    threads = [threading.Thread(target=end_all) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(ended) == 500
