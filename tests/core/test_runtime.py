"""Long-lived objects: made once, replaced, and forgotten."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from core.runtime import Runtime, Service


def test_an_object_is_made_on_first_use_and_once():
    made = []
    release = threading.Event()

    def make() -> object:
        release.wait(60)
        made.append(object())
        return made[-1]

    runtime, service = Runtime(), Service(make)
    assert runtime.find(service) is None
    with ThreadPoolExecutor(4) as pool:
        found = [pool.submit(runtime.get, service) for _ in range(4)]
        release.set()
        objects = {id(one.result(60)) for one in found}
    assert objects == {id(made[0])}
    assert len(made) == 1
    assert runtime.find(service) is made[0]


def test_an_installed_object_is_used_until_it_is_removed():
    runtime, service = Runtime(), Service(lambda: "made")
    runtime.install(service, "installed")
    assert runtime.get(service) == "installed"
    assert runtime.remove(service) == "installed"
    assert runtime.remove(service) is None
    assert runtime.get(service) == "made"


def test_services_are_apart_and_so_are_runtimes():
    first, second = Service(lambda: 1), Service(lambda: 1)
    runtime = Runtime()
    runtime.install(first, 5)
    assert (runtime.get(first), runtime.get(second), Runtime().get(first)) == (5, 1, 1)


def test_a_service_may_need_another_one():
    runtime, inner = Runtime(), Service(lambda: 1)
    outer = Service(lambda: runtime.get(inner) + 1)
    assert runtime.get(outer) == 2


def test_what_cannot_be_made_raises_each_time():
    def make() -> object:
        raise LookupError("none here")

    runtime, service = Runtime(), Service(make)
    for _ in range(2):
        with pytest.raises(LookupError, match="none here"):
            runtime.get(service)
