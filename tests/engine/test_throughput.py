from __future__ import annotations

from inference.engine.outbox import CompletionRate


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_retry_follows_the_measured_rate():
    clock = Clock()
    rate = CompletionRate(clock)
    for _ in range(20):
        rate.note(1)
        clock.now += 0.5
    assert 4.5 < rate.seconds_for(10) < 5.5


def test_without_completions_a_second_and_never_more_than_a_minute():
    clock = Clock()
    rate = CompletionRate(clock)
    assert rate.seconds_for(5) == 1.0
    rate.note(1)
    clock.now += 29
    assert rate.seconds_for(1000) == 60.0
    clock.now += 100
    assert rate.seconds_for(1000) == 1.0
