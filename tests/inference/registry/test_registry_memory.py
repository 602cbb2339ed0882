"""Models share one memory budget: who goes, who stays, who waits, and who is refused."""

from __future__ import annotations

import asyncio

import pytest

from inference.client import EngineDownError, NotEnoughMemoryError
from inference.engine.errors import LoadError
from inference.models import LanguageModel
from inference.registry.memory_plan import MemoryBudget, Place
from inference.registry.model_card import ModelLoadFailedError, ModelNotReadyError
from inference.registry.registry import ModelRegistry
from tests.database import in_thread
from tests.inference.fakes import FakeDevice
from tests.inference.rows import amake, row, until

pytestmark = pytest.mark.django_db(transaction=True)
State = LanguageModel.State


@pytest.fixture
def device():
    return FakeDevice(10_000)


@pytest.fixture
def registry(parts, device):
    """A budget of 30 for models of 10 each."""
    registry = ModelRegistry(
        parts.engine,
        is_busy=parts.busy.__contains__,
        kv_unwritten=lambda name: parts.unwritten.get(name, 0),
        locate=parts.located,
        loading=parts.loader.parts(),
        budget=MemoryBudget(30, device),
        clock=parts.clock,
        load_timeout_s=60,
    )
    yield registry
    parts.loader.gate.set()
    registry.stop()


async def load(registry, parts, *names):
    """In this order, a minute apart."""
    for name in names:
        await registry.ready(name)
        parts.clock.now += 60


async def test_the_least_recently_used_model_makes_room(registry, parts):
    for name in "abcd":
        await amake(name)
    await load(registry, parts, "a", "b", "c", "a", "d")

    assert set(parts.engine.attached) == {"a", "c", "d"}
    assert parts.loader.released == ["b"]
    assert ((await row("b")).state, (await row("d")).state) == (State.UNLOADED, State.LOADED)


async def test_the_first_model_leaves_room_for_the_second_although_its_cache_could_take_all(registry, parts):
    """Of 30, 10 are its least: it gets 10 of the 20 that are spare, and the second one fits beside it."""
    await amake("first", pinned=True)
    await amake("second")
    parts.loader.caches |= {"first": (4, 1000), "second": (4, 1000)}
    await load(registry, parts, "first", "second")

    assert set(parts.engine.attached) == {"first", "second"}
    assert parts.engine.kv_bytes == {"first": 4 + 20 // 2, "second": 4}
    assert parts.loader.released == []


async def test_what_a_model_got_for_keys_and_values_is_in_the_account(registry, parts):
    """Three are expected: the first gets 10 and a third of the 20 that are spare, the second 10 and half of the 4 that
    are spare then. What is left is too little for the third, and the oldest goes.
    """
    for name in ("first", "second", "third"):
        await amake(name)
        parts.loader.caches[name] = (4, 1000)
    await load(registry, parts, "first", "second")
    assert parts.engine.kv_bytes == {"first": 4 + 20 // 3, "second": 4 + 4 // 2}
    await load(registry, parts, "third")

    assert set(parts.engine.attached) == {"second", "third"}
    assert parts.loader.released == ["first"]


async def test_a_set_size_is_what_each_model_gets(registry, parts, settings):
    settings.MILLM_ENGINE_OPTIONS = settings.MILLM_ENGINE_OPTIONS | {"kv_cache_bytes": 6}
    await amake("a")
    await amake("b")
    parts.loader.caches |= {"a": (6, 1000), "b": (6, 1000)}
    await load(registry, parts, "a", "b")

    assert parts.engine.kv_bytes == {"a": 6, "b": 6}


async def test_pinned_and_busy_models_stay(registry, parts):
    await amake("pinned", pinned=True)
    for name in ("busy", "idle", "new"):
        await amake(name)
    await load(registry, parts, "pinned", "busy", "idle")
    parts.busy.add("busy")
    await registry.ready("new")

    assert set(parts.engine.attached) == {"pinned", "busy", "new"}


async def test_a_model_that_cannot_fit_is_refused_with_both_numbers_and_nobody_goes(registry, parts):
    await amake("a")
    await amake("huge")
    parts.loader.sizes["huge"] = 3 * 2**30
    await load(registry, parts, "a")
    with pytest.raises(ModelLoadFailedError) as caught:
        await registry.ready("huge")

    message = str(caught.value)
    assert "huge needs about 3.00 GiB of memory on cpu, but at most 0.00 MiB can be made available" in message
    assert caught.value.code == "model_load_failed"
    assert ((await row("huge")).state, (await row("huge")).error) == (State.FAILED, message)
    assert [spec.name for spec in parts.loader.specs] == ["a"], "nothing was loaded"
    assert registry.is_loaded("a")


async def test_models_elsewhere_need_no_memory_here_and_the_fullest_place_counts(registry, parts):
    """The budget of each place is 30 for models of 10. The first place has a, b and c, the second one only c."""
    for name in "abcde":
        await amake(name)
    await load(registry, parts, "a", "b", "c")
    first, second = Place(), Place(elsewhere=frozenset("ab"))

    parts.loader.places = [second]
    await load(registry, parts, "d")
    assert set(parts.engine.attached) == {"a", "b", "c", "d"}

    parts.loader.places = [second, first]  # "d" is in both
    await load(registry, parts, "e")
    assert set(parts.engine.attached) == {"c", "d", "e"}


async def test_memory_that_others_took_counts(registry, parts, device):
    await amake("a")
    device.free = 5

    with pytest.raises(ModelLoadFailedError):
        await registry.ready("a")


async def test_memory_that_a_cache_has_not_taken_yet_is_not_free(registry, parts, device):
    """The device has 25 free, of which 20 are promised to the first model's keys and values."""
    await amake("first", pinned=True)
    await amake("second")
    await load(registry, parts, "first")
    device.free, parts.unwritten["first"] = 25, 20

    with pytest.raises(ModelLoadFailedError):
        await registry.ready("second")


async def test_a_load_waits_for_a_busy_model_and_holds_up_no_other_load(registry, parts):
    await amake("busy")
    await amake("small")
    await amake("large")
    parts.loader.sizes |= {"large": 25, "small": 1}
    await load(registry, parts, "busy")
    parts.busy.add("busy")
    waiting = asyncio.create_task(registry.ready("large"))
    await until(lambda: registry.find("large").state == State.LOADING)
    await registry.ready("small")
    parts.clock.now += 4
    assert not waiting.done()
    parts.busy.clear()

    assert (await waiting).record.name == "large"
    assert set(parts.engine.attached) == {"small", "large"}


async def test_a_load_that_waited_too_long_for_room_fails_and_says_for_whom(registry, parts):
    await amake("busy")
    await amake("large")
    parts.loader.sizes["large"] = 25
    await load(registry, parts, "busy")
    parts.busy.add("busy")
    waiting = asyncio.create_task(registry.ready("large"))
    await until(lambda: registry.find("large").state == State.LOADING)
    parts.clock.now += 61

    with pytest.raises(ModelLoadFailedError, match="if these busy models were unloaded: busy"):
        await waiting
    assert registry.is_loaded("busy")


async def test_a_model_that_a_request_has_just_got_is_not_idle(registry, parts):
    await amake("a")
    await amake("large")
    parts.loader.sizes["large"] = 25
    await registry.ready("a")
    waiting = asyncio.create_task(registry.ready("large"))
    await until(lambda: registry.find("large").state == State.LOADING)
    await asyncio.sleep(0.1)
    assert registry.is_loaded("a")
    parts.clock.now += 2

    assert (await waiting).record.name == "large"


async def test_a_load_that_waits_for_room_is_given_up_when_its_model_is_unloaded(registry, parts):
    await amake("busy")
    await amake("large")
    parts.loader.sizes["large"] = 25
    await load(registry, parts, "busy")
    parts.busy.add("busy")
    waiting = asyncio.create_task(registry.ready("large"))
    await until(lambda: registry.find("large").state == State.LOADING)
    await asyncio.wrap_future(registry.unload("large"))

    with pytest.raises(ModelNotReadyError, match="large was unloaded in the meantime"):
        await waiting
    parts.busy.clear()
    parts.clock.now += 2
    assert (await row("large")).state == State.UNLOADED
    assert (await registry.ready("large")).record.name == "large", "the next request loads it again"


async def test_stopping_releases_those_who_wait_for_room(registry, parts):
    await amake("busy")
    await amake("large")
    parts.loader.sizes["large"] = 25
    await load(registry, parts, "busy")
    parts.busy.add("busy")
    waiting = asyncio.create_task(registry.ready("large"))
    await until(lambda: registry.find("large").state == State.LOADING)
    await asyncio.to_thread(registry.stop)

    with pytest.raises(EngineDownError):
        await waiting


async def test_those_who_wait_for_loads_are_bounded(registry, parts, settings):
    settings.MILLM_MAX_WAITING_REQUESTS = 3
    await amake("a")
    parts.loader.gate.clear()
    waiting = [asyncio.create_task(registry.ready("a")) for _ in range(3)]
    await asyncio.to_thread(parts.loader.began.wait, 5)
    with pytest.raises(ModelNotReadyError, match="3 requests are already waiting") as caught:
        await registry.ready("a")
    assert caught.value.code == "model_not_ready"
    parts.loader.gate.set()
    await asyncio.gather(*waiting)

    assert (await registry.ready("a")).record.name == "a"


async def test_an_unloaded_model_s_memory_is_given_back(registry, parts):
    await amake("a")
    await registry.ready("a")
    await asyncio.wrap_future(registry.unload("a"))

    assert parts.loader.released == ["a"]


async def test_so_is_that_of_a_model_that_the_engine_does_not_take(registry, parts):
    await amake("a")
    parts.engine.refusal = EngineDownError("The engine is stopped.")
    with pytest.raises(ModelLoadFailedError):
        await registry.ready("a")

    assert parts.loader.released == ["a"]


async def test_a_load_that_memory_runs_out_for_is_told_and_what_it_took_is_freed(registry, parts):
    await amake("a")
    await amake("large")
    await registry.ready("a")
    parts.loader.failure = NotEnoughMemoryError("large could not be loaded: out of memory.")
    with pytest.raises(ModelLoadFailedError, match="out of memory"):
        await registry.ready("large")
    assert ((await row("large")).state, parts.loader.released) == (State.FAILED, ["unused"])
    assert registry.is_loaded("a")
    parts.loader.failure = None
    await asyncio.wrap_future(registry.load("large"))

    assert set(parts.engine.attached) == {"a", "large"}


async def test_other_faults_cost_no_collection(registry, parts):
    """It would hold the engine thread up."""
    await amake("broken")
    parts.loader.failure = LoadError("broken could not be loaded: what a pity.")
    with pytest.raises(ModelLoadFailedError):
        await registry.ready("broken")

    assert parts.loader.released == []


async def test_the_server_s_keep_alive_is_for_models_without_their_own(registry, parts, settings):
    settings.MILLM_MODEL_KEEP_ALIVE = 60
    await amake("server's")
    await amake("own", keep_alive_s=1000)
    await amake("for ever", keep_alive_s=0)
    for name in ("server's", "own", "for ever"):
        await registry.ready(name)
    parts.clock.now += 61
    await in_thread(registry.housekeep)

    assert set(parts.engine.attached) == {"own", "for ever"}
