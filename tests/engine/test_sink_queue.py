"""The queue of texts and analyses."""

from __future__ import annotations

from dataclasses import dataclass

from inference.engine.scheduling.sink_queue import SinkQueue


@dataclass(eq=False)
class Item:
    sink: str


def queue_of(sinks: str) -> tuple[SinkQueue[Item], list[Item]]:
    queue: SinkQueue[Item] = SinkQueue()
    items = [Item(sink) for sink in sinks]
    for item in items:
        queue.append(item)
    return queue, items


def test_items_leave_in_the_order_of_their_arrival():
    queue, items = queue_of("aba")
    assert queue.first is items[0]
    assert [queue.popleft() for _ in items] == items
    assert not queue
    assert queue.take_of("a") == []


def test_a_sink_takes_its_own_items_only():
    queue, (a1, b1, a2, c1) = queue_of("abac")
    assert queue.popleft() is a1
    assert queue.take_of("a") == [a2]
    assert queue.take_of("a") == []
    assert list(queue) == [b1, c1]
    assert len(queue) == 2


def test_all_items_can_be_taken_and_the_queue_used_again():
    queue, items = queue_of("ab")
    assert queue.take_all() == items
    assert queue.take_of("b") == []
    queue.append(items[1])
    assert queue.take_of("b") == [items[1]]
