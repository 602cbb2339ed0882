"""Loads and unloads run one after the other, and repeated requests do not pile up."""

from __future__ import annotations

import threading

import pytest

from inference.client import EngineDownError, EngineError
from inference.registry.loader_thread import LoaderThread

pytestmark = pytest.mark.django_db(transaction=True)


class Jobs:
    """What ran, in order; the first job waits for ``gate``."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.gate = threading.Event()
        self.began = threading.Event()

    def named(self, name: str):
        return lambda: self.ran.append(name)

    def hold(self) -> None:
        self.began.set()
        assert self.gate.wait(60)


@pytest.fixture
def jobs():
    return Jobs()


@pytest.fixture
def loader(jobs):
    """Busy with a job that waits for the gate."""
    loader = LoaderThread(lambda: None)
    loader.submit("load", "first", jobs.hold)
    assert jobs.began.wait(60)
    yield loader
    jobs.gate.set()
    loader.stop(lambda: None, 5)


def test_a_wish_that_is_repeated_is_one_job(loader, jobs):
    futures = {loader.submit("unload", "a", jobs.named(f"unload a {n}")) for n in range(1000)}
    assert (len(futures), loader.num_queued) == (1, 1)
    jobs.gate.set()
    futures.pop().result(5)

    assert jobs.ran == ["unload a 0"]


def test_the_last_of_different_wishes_wins(loader, jobs):
    for verb in ("unload", "load", "unload"):
        last = loader.submit(verb, "a", jobs.named(verb))
    jobs.gate.set()
    last.result(5)

    assert jobs.ran == ["unload", "load", "unload"]


def test_wishes_for_other_models_are_other_jobs(loader, jobs):
    first, second = (loader.submit("unload", name, jobs.named(name)) for name in "ab")
    assert loader.submit("unload", "a", jobs.named("again")) is first
    jobs.gate.set()
    second.result(5)

    assert jobs.ran == ["a", "b"]


def test_a_wish_after_the_job_has_begun_is_a_job_of_its_own(loader, jobs):
    again = loader.submit("load", "first", jobs.named("again"))
    jobs.gate.set()
    again.result(5)

    assert jobs.ran == ["again"]


def test_who_gives_up_a_queued_job_does_not_harm_the_thread(loader, jobs):
    given_up = loader.submit("unload", "a", jobs.named("given up"))
    assert given_up.cancel()
    kept = loader.submit("unload", "b", jobs.named("kept"))
    jobs.gate.set()
    kept.result(5)

    assert jobs.ran == ["kept"]


def test_a_job_that_raises_fails_alone(loader, jobs):
    guilty = loader.submit("load", "a", lambda: 1 / 0)
    after = loader.submit("load", "b", jobs.named("b"))
    jobs.gate.set()
    after.result(5)

    assert isinstance(guilty.exception(), ZeroDivisionError)


def test_an_exit_in_a_job_fails_that_job_and_not_the_thread(loader, jobs):
    def leave() -> None:
        raise SystemExit(3)

    failing, after = loader.submit("load", "a", leave), loader.submit("load", "b", jobs.named("b"))
    jobs.gate.set()
    with pytest.raises(EngineError, match="SystemExit"):
        failing.result(60)
    after.result(60)
    assert jobs.ran == ["b"]


def test_stopping_cancels_what_has_not_begun_and_refuses_more(loader, jobs):
    queued = loader.submit("unload", "a", jobs.named("a"))
    ended = threading.Event()
    loader.stop(ended.set, 0)
    jobs.gate.set()
    assert ended.wait(60)

    assert queued.cancelled()
    assert jobs.ran == []
    with pytest.raises(EngineDownError):
        loader.submit("unload", "a", jobs.named("late")).result(0)
