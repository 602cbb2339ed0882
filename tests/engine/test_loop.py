"""The engine thread: every accepted request ends with exactly one terminal event, whatever happens."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from inference.engine.config import EngineConfig
from inference.engine.errors import EngineDownError, ModelNotAttachedError, QueueFullError
from inference.engine.loop import COMMANDS_PER_TURN, EngineLoop
from inference.engine.messages import BACKGROUND_PRIORITY, TERMINAL_EVENTS, Delivery
from inference.interventions import Intervention, Site, VectorEdit
from tests.builders import build_request
from tests.engine.harness import Transcript, reference_tokens

LONG = {"max_tokens": 240}


class Mailbox:
    """Collects events by sink, and lets a test wait for them."""

    def __init__(self) -> None:
        self._transcripts: dict[object, Transcript] = {}
        self._changed = threading.Condition()
        self.fail_next = False

    def publish(self, deliveries: list[Delivery]) -> None:
        with self._changed:
            for sink, event in deliveries:
                self.of(sink).events.append(event)
            self._changed.notify_all()
        if self.fail_next:
            self.fail_next = False
            raise RuntimeError("a reader is broken")

    def of(self, sink: object) -> Transcript:
        return self._transcripts.setdefault(sink, Transcript())

    def wait(self, condition, timeout: float = 20.0) -> None:
        with self._changed:
            assert self._changed.wait_for(condition, timeout), "nothing came in time"

    def ended(self, sink: object, count: int = 1) -> Transcript:
        def is_ended() -> bool:
            return sum(isinstance(e, TERMINAL_EVENTS) for e in self.of(sink).events) == count

        self.wait(is_ended)
        return self.of(sink)


@pytest.fixture
def mailbox() -> Mailbox:
    return Mailbox()


@pytest.fixture
def start(llama, mailbox) -> Iterator:
    """Starts an engine with the tiny Llama attached."""
    loops = []

    def started(**config) -> EngineLoop:
        loop = EngineLoop(EngineConfig(**config), mailbox.publish)
        loops.append(loop)
        loop.start()
        loop.attach(llama).result(10)
        return loop

    yield started
    for loop in loops:
        loop.stop(0)


def streaming(mailbox: Mailbox, sink: object) -> None:
    mailbox.wait(lambda: len(mailbox.of(sink).token_ids) > 2)


def wait_until(condition, timeout: float = 10.0) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, "it did not become true in time"
        time.sleep(0.005)


def test_requests_of_several_threads_all_end_with_their_own_tokens(llama, mailbox, start):
    loop = start(max_batch_size=4, max_prefill_tokens=8)
    prompts = {i: tuple(range(3 + i, 9 + 2 * i)) for i in range(12)}
    expected = {i: reference_tokens(llama, p, 10) for i, p in prompts.items()}
    threads = [
        threading.Thread(target=loop.submit, args=([build_request(p, max_tokens=10)], i)) for i, p in prompts.items()
    ]
    for t in threads:
        t.start()
    assert {i: mailbox.ended(i).token_ids for i in prompts} == expected
    wait_until(lambda: loop.stats().state == "idle")
    stats = loop.stats()
    assert (stats.running, stats.waiting, stats.free_slots) == (0, 0, 4)


def test_several_sequences_come_to_one_sink_by_index(mailbox, start):
    loop = start()
    loop.submit([build_request(index=i, max_tokens=3 + i) for i in range(3)], "sink")
    events = mailbox.ended("sink", count=3).events
    ends = {e.index: e for e in events if isinstance(e, TERMINAL_EVENTS)}
    assert {i: e.usage.completion_tokens for i, e in ends.items()} == {0: 3, 1: 4, 2: 5}


def test_a_cancelled_request_frees_its_slot_and_its_neighbour_goes_on(llama, mailbox, start):
    loop = start(max_batch_size=2)
    loop.submit([build_request(**LONG)], "leaves")
    loop.submit([build_request((9, 8), **LONG)], "stays")
    streaming(mailbox, "leaves")
    loop.cancel("leaves")
    loop.cancel("leaves")
    assert mailbox.ended("leaves").finished.reason == "cancelled"
    assert mailbox.ended("stays").token_ids == reference_tokens(llama, (9, 8), 240)
    wait_until(lambda: loop.stats().free_slots == 2)


def test_stats_tell_the_lowest_priority_apart(mailbox, start):
    loop = start(max_batch_size=2)
    loop.submit([build_request(**LONG)], "client")
    loop.submit([build_request((9, 8), priority=BACKGROUND_PRIORITY, **LONG)], "line")
    streaming(mailbox, "line")
    for sink, priority in (("late client", 0), ("late line", BACKGROUND_PRIORITY)):
        loop.submit([build_request(priority=priority)], sink)
    stats = loop.stats()
    assert (stats.running, stats.background_running) == (2, 1)
    assert (stats.waiting, stats.background_waiting) == (2, 1)
    for sink in ("client", "line", "late client", "late line"):
        loop.cancel(sink)
        mailbox.ended(sink)
    wait_until(lambda: loop.stats().free_slots == 2)
    assert loop.stats().background_running == loop.stats().background_waiting == 0


def test_a_queued_request_that_is_cancelled_never_runs(mailbox, start):
    loop = start(max_batch_size=1)
    loop.submit([build_request(**LONG)], "first")
    loop.submit([build_request()], "second")
    loop.cancel("second")
    end = mailbox.ended("second").finished
    assert (end.reason, end.usage.completion_tokens) == ("cancelled", 0)


def test_a_full_queue_refuses_all_of_a_submission(mailbox, start):
    loop = start(max_batch_size=1, max_waiting_requests=2)
    loop.submit([build_request(**LONG)], "a")
    loop.submit([build_request(**LONG)], "b")
    with pytest.raises(QueueFullError) as refusal:
        loop.submit([build_request(), build_request(index=1)], "c")
    assert 1 <= refusal.value.retry_after_s <= 60
    loop.submit([build_request(**LONG)], "d")
    for sink in "abd":
        loop.cancel(sink)
        mailbox.ended(sink)
    assert not mailbox.of("c").events
    loop.submit([build_request(), build_request(index=1)], "c")
    mailbox.ended("c", count=2)


def test_an_unknown_model_is_refused(start):
    with pytest.raises(ModelNotAttachedError, match="`other` is not loaded"):
        start().submit([build_request(model="other")], "x")


def test_a_step_that_raises_fails_its_requests_and_the_engine_goes_on(llama, mailbox, start):
    loop = start()
    handle = llama.module.model.layers[2].register_forward_hook(_explode_on(token_count=1))
    try:
        loop.submit([build_request()], "guilty")
        failure = mailbox.ended("guilty").failed
    finally:
        handle.remove()
    assert failure.code == "server_error"
    assert "secret" not in failure.message
    loop.submit([build_request()], "next")
    assert mailbox.ended("next").token_ids == reference_tokens(llama, (5, 6, 7), 8)
    assert loop.stats().free_slots == 16


def test_out_of_memory_has_its_own_code(llama, mailbox, start):
    loop = start()
    handle = llama.module.model.layers[0].register_forward_hook(_raise(torch.OutOfMemoryError("no room")))
    try:
        loop.submit([build_request()], "big")
        assert mailbox.ended("big").failed.code == "out_of_memory"
    finally:
        handle.remove()


def test_a_reader_that_breaks_does_not_stop_the_others(mailbox, start):
    loop = start()
    mailbox.fail_next = True
    loop.submit([build_request()], "a")
    mailbox.ended("a")
    loop.submit([build_request()], "b")
    assert mailbox.ended("b").finished


def test_unloading_fails_what_the_model_runs_and_waits(llama, mailbox, start):
    loop = start(max_batch_size=1)
    loop.submit([build_request(**LONG)], "running")
    loop.submit([build_request(**LONG)], "waiting")
    streaming(mailbox, "running")
    loop.detach("tiny").result(10)
    assert mailbox.ended("running").failed.code == "model_unloaded"
    assert mailbox.ended("waiting").failed.code == "model_unloaded"
    loop.detach("tiny").result(10)
    loop.attach(llama).result(10)
    loop.submit([build_request()], "again")
    assert mailbox.ended("again").finished


def test_unloading_takes_the_steering_hooks_away(llama, mailbox, start):
    loop = start()
    hooks = llama.module.model.layers[1]._forward_hooks
    before = len(hooks)
    edit = VectorEdit(Site(1), torch.ones(32))
    loop.submit([build_request(intervention=Intervention("f", (edit,)), **LONG)], "a")
    streaming(mailbox, "a")
    assert len(hooks) == before + 1
    loop.detach("tiny").result(10)
    assert len(hooks) == before


def test_stop_drains_and_refuses(mailbox, start):
    loop = start()
    loop.submit([build_request(**LONG)], "running")
    stopper = threading.Thread(target=loop.stop, args=(20,))
    stopper.start()
    wait_until(lambda: loop.stats().state in {"draining", "stopped"})
    with pytest.raises(EngineDownError):
        loop.submit([build_request()], "late")
    with pytest.raises(EngineDownError):
        loop.detach("tiny").result(10)
    stopper.join(20)
    assert mailbox.ended("running").finished.usage.completion_tokens == 240
    assert loop.stats().state == "stopped"


def test_stop_without_time_fails_what_runs_and_waits(mailbox, start):
    loop = start(max_batch_size=1)
    for sink in "abc":
        loop.submit([build_request(**LONG)], sink)
    loop.stop(0)
    assert {mailbox.ended(sink).failed.code for sink in "abc"} == {"engine_shutdown"}


def test_a_dead_thread_fails_everyone_at_once_and_says_so(llama, mailbox, start):
    loop = start()
    handle = llama.module.model.layers[2].register_forward_hook(_raise(SystemExit("gone")))
    try:
        loop.submit([build_request(index=i) for i in range(3)], "a")
        mailbox.ended("a", count=3)
    finally:
        handle.remove()
    wait_until(lambda: loop.stats().state == "failed")
    assert "SystemExit" in loop.stats().error
    assert not loop.stats().is_up
    with pytest.raises(EngineDownError, match="crashed: SystemExit"):
        loop.submit([build_request()], "late")


def test_a_model_gets_the_memory_for_keys_and_values_that_it_is_attached_with(llama, mailbox, start):
    loop = start(kv_cache_backend="contiguous")
    loop.attach(_renamed(llama, "small"), kv_bytes=2**16).result(10)
    limits = {stats.name: stats.limits for stats in loop.stats().by_model}
    assert limits["small"].kv_bytes == 2**16
    assert limits["small"].kv_tokens * 512 == 2**16  # 2 * 4 layers * 2 heads * 8 dimensions * 4 bytes
    assert limits["tiny"].kv_bytes > 2**16
    loop.submit([build_request(tuple(range(3, 153)), model="small")], "too long")
    assert mailbox.ended("too long").failed.code == "context_length_exceeded"


def test_two_models_take_turns(loaded_models, mailbox, start):
    loop = start()
    other = loaded_models["qwen3"]
    loop.attach(_renamed(other, "other")).result(10)
    loop.submit([build_request(max_tokens=40)], "llama")
    loop.submit([build_request(model="other", max_tokens=40)], "qwen3")
    mailbox.ended("qwen3")
    assert mailbox.ended("llama").token_ids == reference_tokens(loaded_models["llama"], (5, 6, 7), 40)
    assert mailbox.ended("qwen3").token_ids == reference_tokens(other, (5, 6, 7), 40)
    assert loop.stats().models == ("tiny", "other")


def _renamed(loaded, name: str):
    from dataclasses import replace

    return replace(loaded, name=name)


def _raise(error: BaseException):
    def hook(*_):
        raise error

    return hook


def _explode_on(token_count: int):
    def hook(_, __, output):
        hidden = output[0] if isinstance(output, tuple) else output
        if hidden.shape[1] == token_count:
            raise RuntimeError("secret detail")

    return hook


def test_a_model_that_waits_for_its_batch_does_not_keep_others_from_their_turns(llama, mailbox):
    """It cost nothing to step it, so it always had the next turn, and the thread spun."""
    loop = EngineLoop(
        EngineConfig(batching_mode="static", batch_wait_timeout_s=3600, max_batch_size=2), mailbox.publish
    )
    loop.accept_requests()
    for name in ("tiny", "other"):
        loop.attach(replace(llama, name=name))
    loop.turn()
    loop.submit([build_request(model="tiny")], "waits")
    loop.submit([build_request(model="other", index=i) for i in range(2)], "runs")
    for _ in range(8):
        loop.turn()
    assert loop.stats().steps == 8
    assert mailbox.of("runs").events
    assert not mailbox.of("waits").events
    loop.stop(0)
    loop.run()


def test_a_burst_of_commands_does_not_hold_up_running_sequences(llama, mailbox):
    loop = EngineLoop(EngineConfig(max_batch_size=1, max_waiting_requests=500), mailbox.publish)
    loop.accept_requests()
    loop.attach(llama)
    loop.turn()
    loop.submit([build_request(**LONG)], "runs")
    loop.turn()
    burst = [f"waits {number}" for number in range(3 * COMMANDS_PER_TURN)]
    for sink in burst:
        loop.submit([build_request(**LONG)], sink)
    for sink in burst:
        loop.cancel(sink)
    before = len(mailbox.of("runs").token_ids)
    for _ in range(6):
        loop.turn()
    assert len(mailbox.of("runs").token_ids) == before + 6
    assert [mailbox.of(sink).finished.reason for sink in burst] == ["cancelled"] * len(burst)
    loop.check_integrity()
    loop.stop(0)
    loop.run()


def test_a_model_without_work_costs_a_turn_nothing_and_works_when_it_is_asked(llama, mailbox):
    loop = EngineLoop(EngineConfig(), mailbox.publish)
    loop.accept_requests()
    for name in ("one", "other"):
        loop.attach(replace(llama, name=name))
    loop.turn()
    for sink, name in enumerate(("one", "other", "one")):
        loop.submit([replace(build_request(max_tokens=3), model=name)], sink)
        for _ in range(6):
            loop.turn()
        assert len(mailbox.of(sink).token_ids) == 3
        assert not loop._models._with_work
    loop.stop(0)
    loop.run()
