"""An engine thread that dies or hangs: nobody waits for it, and the process knows."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from inference.engine.config import EngineConfig
from inference.engine.errors import EngineDownError
from inference.engine.lifecycle import MAX_RESTARTS, RESTART_WINDOW_S, EngineLifecycle
from inference.engine.loop import EngineLoop
from inference.engine.messages import GenerationRequest
from inference.engine.watchdog import Watchdog
from tests.builders import build_request
from tests.engine.harness import reference_tokens
from tests.engine.test_loop import Mailbox, streaming, wait_until

pytestmark = pytest.mark.slow


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@dataclass
class FakeLoop:
    """What a watchdog sees and does."""

    heartbeat: int = 0
    turns: int = 0
    has_pending_work: bool = True
    has_died: bool = False
    error: str = ""
    can_restart: bool = True
    given_up: list[str] = field(default_factory=list)
    num_restarts: int = 0
    num_broken_off: int = 0

    def break_off(self) -> None:
        self.num_broken_off += 1
        self.has_died, self.error = True, "The engine thread crashed: StuckError."

    def abandon(self, error: str) -> None:
        self.given_up.append(error)

    def restart(self) -> bool:
        if self.can_restart:
            self.has_died, self.can_restart = False, False
            self.num_restarts += 1
            return True
        return False


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def failures() -> list[str]:
    return []


@pytest.fixture
def watched(clock, failures) -> tuple[FakeLoop, Watchdog]:
    loop = FakeLoop()
    return loop, Watchdog(loop, stall_s=60, on_failure=failures.append, poll_s=1, clock=clock)


def pass_time(watchdog: Watchdog, clock: Clock, seconds: int) -> None:
    for _ in range(seconds):
        clock.now += 1
        watchdog.look()


def test_silence_with_work_is_a_hung_thread(watched, clock, failures):
    loop, watchdog = watched
    pass_time(watchdog, clock, 60)
    assert not loop.given_up
    pass_time(watchdog, clock, 2)
    assert loop.given_up == failures
    assert "not responded for 60 s" in failures[0]
    assert loop.num_restarts == 0, "a thread that may wake up again owns its models"


def test_signs_of_life_and_silence_without_work_are_fine(watched, clock, failures):
    loop, watchdog = watched
    for _ in range(10):
        pass_time(watchdog, clock, 50)
        loop.heartbeat += 1
    loop.has_pending_work = False
    pass_time(watchdog, clock, 1000)
    assert not failures


def test_a_loop_that_turns_without_doing_anything_is_ended_and_replaced(watched, clock, failures):
    loop, watchdog = watched
    for _ in range(60):
        loop.turns += 50
        pass_time(watchdog, clock, 1)
    assert not loop.num_broken_off
    for _ in range(3):
        loop.turns += 50
        pass_time(watchdog, clock, 1)
    assert (loop.num_broken_off, loop.num_restarts, failures) == (1, 1, [])


def test_a_process_that_was_stopped_itself_blames_nobody(watched, clock, failures):
    _, watchdog = watched
    clock.now += 3600
    watchdog.look()
    assert not failures


def test_a_dead_thread_is_replaced_until_the_loop_refuses(watched, failures):
    loop, watchdog = watched
    loop.has_died, loop.error = True, "The engine thread crashed: ValueError."
    watchdog.look()
    assert (loop.num_restarts, failures) == (1, [])
    loop.has_died = True
    watchdog.look()
    assert (loop.num_restarts, failures) == (1, ["The engine thread crashed: ValueError."])


# With the real engine


@pytest.fixture
def mailbox() -> Mailbox:
    return Mailbox()


@dataclass
class Guarded:
    loop: EngineLoop
    failures: list[str]


@pytest.fixture
def guarded(llama, mailbox) -> Iterator[Guarded]:
    """An engine under a watchdog that gives up after 0.3 s of silence."""
    loop, failures = EngineLoop(EngineConfig(), mailbox.publish), list[str]()
    loop.start()
    loop.attach(llama).result(10)
    watchdog = Watchdog(loop, stall_s=0.3, on_failure=failures.append, poll_s=0.02)
    watchdog.start()
    yield Guarded(loop, failures)
    loop.stop(0)
    watchdog.stop()


@contextmanager
def hooked(module: Any, hook: Any) -> Iterator[None]:
    handle = module.model.layers[1].register_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()


def raising(error: BaseException) -> Any:
    """At every step but those of a single token: attaching a model, also to a new thread, runs one."""

    def hook(_: object, __: object, output: Any) -> None:
        hidden = output[0] if isinstance(output, tuple) else output
        if hidden.shape[1] > 1:
            raise error

    return hook


def test_a_thread_that_dies_fails_everyone_at_once_and_its_models_serve_on(llama, mailbox, guarded):
    for sink in "abc":
        guarded.loop.submit([build_request(max_tokens=200)], sink)
    with hooked(llama.module, raising(SystemExit("gone"))):
        began_at = time.monotonic()
        assert {mailbox.ended(sink).failed.code for sink in "abc"} == {"server_error"}
        assert time.monotonic() - began_at < 1
        wait_until(lambda: guarded.loop.stats().restarts == 1)
    wait_until(lambda: guarded.loop.stats().is_up)
    guarded.loop.submit([build_request()], "next")
    assert mailbox.ended("next").token_ids == reference_tokens(llama, (5, 6, 7), 8)
    stats = guarded.loop.stats()
    assert (stats.error, stats.models, stats.free_slots) == ("", ("tiny",), 16)
    assert not guarded.failures
    assert sum(thread.name == "engine" for thread in threading.enumerate()) == 1


def test_a_thread_that_dies_too_often_within_an_hour_stays_dead_and_says_so(llama, mailbox, guarded):
    with hooked(llama.module, raising(SystemExit("gone"))):
        for number in range(MAX_RESTARTS + 1):
            wait_until(lambda: guarded.loop.stats().is_up)
            guarded.loop.submit([build_request()], str(number))
            mailbox.ended(str(number))
        wait_until(lambda: guarded.failures)
    assert guarded.loop.stats().restarts == MAX_RESTARTS
    assert guarded.failures == ["The engine thread crashed: SystemExit."]
    with pytest.raises(EngineDownError, match="crashed: SystemExit"):
        guarded.loop.submit([build_request()], "late")


def test_restarts_count_for_an_hour(clock):
    life = EngineLifecycle(clock)
    life.begin()
    assert [life.may_restart() for _ in range(MAX_RESTARTS + 1)] == [True] * MAX_RESTARTS + [False]
    clock.now += RESTART_WINDOW_S
    assert life.may_restart()
    assert life.restarts == MAX_RESTARTS + 1


class IdleModel:
    """Has work, and never does any."""

    request_type, has_work, is_in_background = GenerationRequest, True, False
    num_running, num_waiting, num_free_slots = 0, 1, 0

    def __init__(self) -> None:
        self.num_steps = 0

    def seconds_to_wait(self) -> float:
        return 0.0

    def add(self, *_: object) -> list[Any]:
        return []

    def step(self) -> None:
        self.num_steps += 1

    def fail_all(self, *_: object) -> list[Any]:
        return []

    def limit_growth(self, *_: object) -> None: ...

    def use_idle_time(self) -> bool:  # the thread may be about to ask the model that this one replaces
        return False

    def check_integrity(self) -> None: ...

    def close(self) -> None: ...


def test_a_loop_that_does_nothing_is_replaced_and_everyone_is_told(llama, mailbox, guarded, monkeypatch):
    stuck = IdleModel()
    monkeypatch.setattr(guarded.loop._models, "_engines", {"tiny": stuck})
    guarded.loop.submit([build_request()], "a")
    assert mailbox.ended("a").failed.code == "server_error"
    assert 0 < stuck.num_steps < 500, "it does not spin"
    wait_until(lambda: guarded.loop.stats().restarts == 1 and guarded.loop.stats().is_up)
    guarded.loop.submit([build_request()], "next")
    assert mailbox.ended("next").token_ids == reference_tokens(llama, (5, 6, 7), 8)
    assert not guarded.failures


def test_a_batch_that_fills_is_not_a_stuck_loop(llama, mailbox):
    loop = EngineLoop(EngineConfig(batching_mode="static", batch_wait_timeout_s=3600), mailbox.publish)
    loop.accept_requests()
    loop.attach(llama)
    loop.turn()
    loop.submit([build_request()], "a")
    loop.turn()
    heartbeat, steps = loop.heartbeat, loop.stats().steps
    for _ in range(3):
        loop.turn()
    assert (loop.heartbeat - heartbeat, loop.stats().steps) == (3, steps)
    loop.stop(0)
    loop.run()


def test_a_lost_device_is_not_tried_again(llama, mailbox, guarded):
    with hooked(llama.module, raising(torch.AcceleratorError("device-side assert triggered"))):
        guarded.loop.submit([build_request()], "a")
        mailbox.ended("a")
        wait_until(lambda: guarded.failures)
    assert guarded.failures == ["The engine thread crashed: AcceleratorError."]
    assert guarded.loop.stats().restarts == 0


def test_a_thread_that_hangs_is_given_up_and_its_late_events_go_nowhere(llama, mailbox, guarded):
    may_go_on, hangs = threading.Event(), threading.Event()
    loop = guarded.loop
    loop.submit([build_request(max_tokens=200)], "running")
    streaming(mailbox, "running")

    def hang(*_: object) -> None:
        hangs.set()
        may_go_on.wait(60)

    with hooked(llama.module, hang):
        assert hangs.wait(60)  # else the thread might still take the next message
        detached = loop.detach("tiny")
        began_at = time.monotonic()
        assert mailbox.ended("running").failed.code == "server_error"
        assert time.monotonic() - began_at < 1.3
        with pytest.raises(EngineDownError):
            detached.result(5)
        assert "not responded" in loop.stats().error
        assert (loop.stats().is_up, loop.stats().restarts) == (False, 0)
        with pytest.raises(EngineDownError, match="not responded"):
            loop.submit([build_request()], "late")
        wait_until(lambda: guarded.failures)
        began_at = time.monotonic()
        loop.stop(30)
        assert time.monotonic() - began_at < 1, "a hung thread is not waited for"
        num_events = len(mailbox.of("running").events)
        may_go_on.set()
        wait_until(lambda: all(thread.name != "engine" for thread in threading.enumerate()))
    assert len(mailbox.of("running").events) == num_events
    assert mailbox.ended("running").failed
    assert loop.stats().state == "failed"


def test_taking_in_a_model_may_last(llama, mailbox, guarded):
    """The tables and caches of a large model take their time, and requests may wait meanwhile."""

    class SlowTokenizer:
        @property
        def backend_tokenizer(self) -> Any:
            time.sleep(1)
            return llama.tokenizer.backend_tokenizer

    from dataclasses import replace

    attached = guarded.loop.attach(replace(llama, name="large", tokenizer=SlowTokenizer()))
    guarded.loop.submit([build_request()], "a")
    attached.result(10)
    assert mailbox.ended("a").finished
    assert not guarded.failures


def test_a_command_in_which_the_thread_hangs_is_answered_when_it_is_given_up(llama, monkeypatch):
    """The registry waits without a limit of its own: it must not be forgotten."""
    hangs, release = threading.Event(), threading.Event()

    def hang(self: Any, message: Any) -> None:
        hangs.set()
        release.wait(30)

    monkeypatch.setattr("inference.engine.loop.ATTACH_S", 0.0)
    monkeypatch.setattr("inference.engine.attached_models.AttachedModels.attach", hang)
    loop = EngineLoop(EngineConfig(), Mailbox().publish)
    loop.start()
    taken_in = loop.attach(llama)
    waiting = loop.detach("tiny")
    assert hangs.wait(10)
    wait_until(lambda: loop.has_pending_work)
    loop.abandon("The engine thread has not responded.")
    for command in (taken_in, waiting):
        with pytest.raises(EngineDownError):
            command.result(10)
    release.set()
    wait_until(lambda: not loop._thread.is_alive())
