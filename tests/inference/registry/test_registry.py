"""Models are found by name, loaded once for all who ask, and never hold up anything else."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import Future

import pytest
from django.db import OperationalError

from core.runtime import runtime
from core.snapshots import Snapshot
from inference.client import EngineDownError
from inference.files.sources import SourceError
from inference.models import LanguageModel
from inference.registry.loads import LoadProgress, LoadStatus
from inference.registry.model_card import ModelNotReadyError
from inference.registry.records import ModelNotFoundError, ModelTable, model_record
from inference.registry.registry import MEMORY_POLL_S, MODEL_REGISTRY, ModelRegistry, get_registry
from tests.database import in_thread
from tests.inference.fakes import down
from tests.inference.rows import amake, make, row, until

pytestmark = pytest.mark.django_db(transaction=True)
State = LanguageModel.State


@pytest.fixture
def registry(parts):
    registry = ModelRegistry(
        parts.engine,
        is_busy=parts.busy.__contains__,
        locate=parts.located,
        loading=parts.loader.parts(),
        clock=parts.clock,
        load_timeout_s=60,
    )
    yield registry
    parts.loader.gate.set()
    registry.stop()


async def test_a_model_is_loaded_on_the_first_request(registry, parts):
    await amake(aliases=["tiny"], context_length=64, dtype="float32")
    ready = await registry.ready("org/tiny")

    assert (ready.max_model_len, ready.vocab_size) == (256, 505)
    assert ready.record.name == "org/tiny"
    assert ready.text.encode("The cat")
    assert list(parts.engine.attached) == ["org/tiny"]
    spec = parts.loader.specs[0]
    assert (spec.name, spec.path, spec.dtype, spec.max_seq_len) == ("org/tiny", parts.located.path, "float32", 64)
    loaded = await row()
    assert (loaded.state, loaded.memory_bytes, loaded.error) == (State.LOADED, 1234, "")
    assert loaded.loaded_at is not None
    assert registry.find("org/tiny").state == State.LOADED


async def test_a_loaded_model_is_ready_without_the_database(registry, django_db_blocker):
    await amake()
    await registry.ready("org/tiny")
    records = registry.records()

    with django_db_blocker.block():
        await registry.ready("org/tiny")
        assert registry.find("org/tiny") in records
        assert registry.records() == records


async def test_an_alias_means_its_model(registry, parts):
    await amake(aliases=["tiny", "a/b/c"])
    ready = await registry.ready("a/b/c")

    assert ready.record.name == "org/tiny"
    assert registry.find("tiny").pk == ready.record.pk
    await registry.ready("tiny")
    assert len(parts.loader.specs) == 1


@pytest.mark.parametrize(
    "name",
    ["", "nobody", "../../etc/passwd", "/etc/passwd", "https://example.com/x", "x" * 10**6, "org/tiny/", "ORG/tiny"],
)
async def test_unknown_names_reach_neither_files_nor_the_hub(registry, parts, name):
    await amake()
    with pytest.raises(ModelNotFoundError) as caught:
        await registry.ready(name)
    for act in (registry.find, registry.load, registry.unload):
        with pytest.raises(ModelNotFoundError):
            act(name)

    assert parts.located.asked == []
    assert parts.loader.specs == []
    assert len(str(caught.value)) < 400


async def test_concurrent_requests_share_one_load(registry, parts):
    await amake()
    parts.loader.gate.clear()
    waiting = [asyncio.create_task(registry.ready("org/tiny")) for _ in range(20)]
    await asyncio.to_thread(parts.loader.began.wait, 5)
    assert registry.find("org/tiny").state == State.LOADING
    parts.loader.gate.set()
    ready = await asyncio.gather(*waiting)

    assert len(ready) == 20
    assert len(parts.loader.specs) == 1


async def test_a_load_does_not_block_the_event_loop(registry, parts):
    await amake()
    parts.loader.gate.clear()
    waiting = asyncio.create_task(registry.ready("org/tiny"))
    turns = 0
    while not parts.loader.began.is_set() or turns < 20:
        await asyncio.sleep(0.001)
        turns += 1
    parts.loader.gate.set()
    await waiting


async def test_one_who_leaves_does_not_stop_the_load_of_the_others(registry, parts):
    await amake()
    parts.loader.gate.clear()
    leaver, stayer = (asyncio.create_task(registry.ready("org/tiny")) for _ in range(2))
    await asyncio.to_thread(parts.loader.began.wait, 5)
    leaver.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaver
    parts.loader.gate.set()

    assert (await stayer).record.name == "org/tiny"


async def test_a_load_that_takes_too_long_is_a_503_and_goes_on(parts):
    await amake()
    registry = ModelRegistry(
        parts.engine, locate=parts.located, loading=parts.loader.parts(), load_timeout_s=0.05, clock=parts.clock
    )
    parts.loader.gate.clear()
    with pytest.raises(ModelNotReadyError, match="still loading") as caught:
        await registry.ready("org/tiny")
    assert 0 < caught.value.retry_after_s <= 120
    parts.loader.gate.set()
    await until(lambda: registry.is_loaded("org/tiny"))

    assert (await registry.ready("org/tiny")).record.name == "org/tiny"
    await asyncio.to_thread(registry.stop)


@pytest.mark.parametrize(
    ("failure", "told"),
    [
        (SourceError("The directory '/x' does not exist."), "The directory '/x' does not exist"),
        (RuntimeError("secret path /root/x"), "RuntimeError"),
        (SystemExit("secret"), "SystemExit"),
    ],
)
async def test_a_failed_load_is_readable_and_retried_after_a_while(registry, parts, failure, told):
    await amake()
    parts.loader.failure = failure
    with pytest.raises(ModelNotReadyError, match=told) as caught:
        await registry.ready("org/tiny")
    failed = await row()
    assert failed.state == State.FAILED
    assert told in failed.error
    assert "secret" not in failed.error
    assert caught.value.retry_after_s == 10
    assert caught.value.code == "model_load_failed"

    parts.loader.failure = None
    with pytest.raises(ModelNotReadyError, match=told):
        await registry.ready("org/tiny")
    assert len(parts.loader.specs) == 1, "not tried again at once"
    parts.clock.now += 11

    assert (await registry.ready("org/tiny")).record.name == "org/tiny"
    assert (await row()).error == ""


async def test_an_explicit_load_does_not_wait_for_the_retry(registry, parts):
    await amake()
    parts.loader.failure = SourceError("gone")
    with pytest.raises(ModelNotReadyError):
        await registry.ready("org/tiny")
    parts.loader.failure = None
    await asyncio.wrap_future(registry.load("org/tiny"))

    assert registry.is_loaded("org/tiny")


async def test_a_failed_load_leaves_the_other_models_serving(registry, parts):
    await amake("good")
    await amake("bad")
    await registry.ready("good")
    parts.loader.failure = SourceError("gone")
    with pytest.raises(ModelNotReadyError):
        await registry.ready("bad")

    assert (await registry.ready("good")).record.name == "good"
    assert list(parts.engine.attached) == ["good"]


async def test_a_bad_chat_template_fails_the_load_with_its_reason(registry):
    await amake(chat_template="{{ 'x' * 10**9 }}")

    with pytest.raises(ModelNotReadyError, match="chat template was stopped"):
        await registry.ready("org/tiny")


async def test_unload_and_load_again(registry, parts):
    await amake()
    await registry.ready("org/tiny")
    await asyncio.wrap_future(registry.unload("org/tiny"))
    unloaded = await row()
    assert (unloaded.state, unloaded.memory_bytes, unloaded.loaded_at) == (State.UNLOADED, 0, None)
    assert parts.engine.attached == {}
    await registry.ready("org/tiny")

    assert len(parts.loader.specs) == 2


async def test_unloading_returns_at_once_while_another_model_loads(registry, parts):
    await amake("one")
    await amake("two")
    await registry.ready("one")
    parts.loader.gate.clear()
    parts.loader.began.clear()
    registry.load("two")
    await asyncio.to_thread(parts.loader.began.wait, 5)
    started = time.monotonic()
    unloaded = registry.unload("one")

    assert time.monotonic() - started < 0.5
    parts.loader.gate.set()
    await asyncio.wrap_future(unloaded)
    assert list(parts.engine.attached) == ["two"]


async def test_unloads_and_loads_that_are_repeated_are_done_once(registry, parts):
    """A client that repeats itself while a load takes its time must not fill the loader's queue."""
    await amake("one")
    await amake("two")
    await registry.ready("one")
    parts.loader.gate.clear()
    parts.loader.began.clear()
    registry.load("two")
    await asyncio.to_thread(parts.loader.began.wait, 5)
    unloads = {registry.unload("one") for _ in range(500)}
    loads = {registry.load("two") for _ in range(500)}
    assert (len(unloads), len(loads)) == (1, 1)
    parts.loader.gate.set()
    await asyncio.wrap_future(unloads.pop())
    await asyncio.wrap_future(registry.unload("one"))  # it is gone already

    assert list(parts.engine.attached) == ["two"]
    assert [spec.name for spec in parts.loader.specs] == ["one", "two"]
    assert (await row("one")).state == State.UNLOADED


async def test_unloading_lets_requests_end_first(registry, parts):
    await amake()
    await registry.ready("org/tiny")
    parts.busy.add("org/tiny")
    unloaded = registry.unload("org/tiny")
    assert registry.unload("org/tiny") is unloaded, "who asks again waits for the same one"
    await asyncio.sleep(4 * MEMORY_POLL_S)
    assert list(parts.engine.attached) == ["org/tiny"], "what runs, runs on"
    assert not registry.is_loaded("org/tiny"), "and nothing is added"
    assert not unloaded.done()
    parts.busy.clear()
    await asyncio.wrap_future(unloaded)
    assert parts.engine.attached == {}
    assert (await row()).state == State.UNLOADED


async def test_unloading_now_ends_a_wait_for_requests(registry, parts):
    await amake()
    await registry.ready("org/tiny")
    parts.busy.add("org/tiny")
    patient = registry.unload("org/tiny")
    await asyncio.sleep(2 * MEMORY_POLL_S)
    await asyncio.wrap_future(registry.unload("org/tiny", now=True))
    assert parts.engine.attached == {}
    assert patient.done()
    parts.busy.clear()
    await registry.ready("org/tiny")
    assert list(parts.engine.attached) == ["org/tiny"]


async def test_a_request_behind_an_unload_loads_the_model_again(registry, parts):
    await amake()
    await registry.ready("org/tiny")
    parts.busy.add("org/tiny")
    unloaded = registry.unload("org/tiny")
    await asyncio.sleep(2 * MEMORY_POLL_S)
    waiting = asyncio.ensure_future(registry.ready("org/tiny"))
    await asyncio.sleep(2 * MEMORY_POLL_S)
    assert not waiting.done()
    parts.busy.clear()
    await waiting
    assert unloaded.done()
    assert len(parts.loader.specs) == 2
    assert list(parts.engine.attached) == ["org/tiny"]


async def test_another_model_is_loaded_while_one_waits_for_its_requests(registry, parts):
    await amake("one")
    await amake("two")
    await registry.ready("one")
    parts.busy.add("one")
    unloaded = registry.unload("one")
    await registry.ready("two")
    assert sorted(parts.engine.attached) == ["one", "two"]
    parts.busy.clear()
    await asyncio.wrap_future(unloaded)
    assert list(parts.engine.attached) == ["two"]


async def test_an_unload_that_waits_ends_with_the_server(registry, parts):
    await amake()
    await registry.ready("org/tiny")
    parts.busy.add("org/tiny")
    unloaded = registry.unload("org/tiny")
    await asyncio.sleep(2 * MEMORY_POLL_S)
    await asyncio.to_thread(registry.stop)
    with pytest.raises((asyncio.CancelledError, EngineDownError)):
        await asyncio.wait_for(asyncio.wrap_future(unloaded), 5)


async def test_a_slow_engine_and_the_registry_agree_which_models_there_are(registry, parts, monkeypatch):
    """The registry used to give up after a minute, while the message stayed in the engine's queue."""
    monkeypatch.setattr("inference.registry.registry.ATTACH_TIMEOUT_S", 0.05, raising=False)
    await amake()
    late: Future[None] = Future()
    take_in = parts.engine.attach

    def attach_later(loaded, kv_bytes):
        threading.Timer(0.3, lambda: (take_in(loaded, kv_bytes), late.set_result(None))).start()
        return late

    monkeypatch.setattr(parts.engine, "attach", attach_later)
    await registry.ready("org/tiny")
    assert registry.is_loaded("org/tiny")
    assert list(parts.engine.attached) == ["org/tiny"]

    gone: Future[None] = Future()
    let_go = parts.engine.detach
    monkeypatch.setattr(
        parts.engine,
        "detach",
        lambda name: (threading.Timer(0.3, lambda: (let_go(name), gone.set_result(None))).start(), gone)[1],
    )
    await asyncio.wrap_future(registry.unload("org/tiny"))
    assert not registry.is_loaded("org/tiny")
    assert parts.engine.attached == {}
    assert (await row()).state == State.UNLOADED


async def test_a_model_that_the_engine_did_not_let_go_is_still_there_for_the_registry(registry, parts):
    """As when the engine's thread died just then: the one that takes over has the model."""
    await amake()
    await registry.ready("org/tiny")
    parts.engine.refusal = EngineDownError("The engine died.")
    with pytest.raises(EngineDownError):
        await asyncio.wrap_future(registry.unload("org/tiny"))
    assert registry.is_loaded("org/tiny")
    assert list(parts.engine.attached) == ["org/tiny"]
    parts.engine.refusal = None
    await asyncio.wrap_future(registry.unload("org/tiny"))
    assert parts.engine.attached == {}


async def test_the_start_resets_rows_of_a_dead_process_and_loads_what_shall_be_loaded(registry, parts):
    await amake("was loaded", state=State.LOADED, memory_bytes=5)
    await amake("was loading", state=State.LOADING)
    await amake("had failed", state=State.FAILED, error="why")
    await amake("auto", autoload=True)
    await asyncio.wrap_future(registry.start())
    await until(lambda: registry.is_loaded("auto"))

    states = {record.name: (record.state, record.error) for record in registry.records()}
    assert states["was loaded"] == states["was loading"] == (State.UNLOADED, "")
    assert states["had failed"] == (State.FAILED, "why")
    await until(lambda: registry.find("auto").state == State.LOADED)
    assert list(parts.engine.attached) == ["auto"]


async def test_models_that_the_start_names_are_loaded_too(registry, parts):
    await amake("auto", autoload=True)
    await amake("named")
    await amake("other")
    await asyncio.wrap_future(registry.start(["named", "auto", "deleted meanwhile"]))
    await until(lambda: registry.is_loaded("auto") and registry.is_loaded("named"))
    assert sorted(parts.engine.attached) == ["auto", "named"]


async def test_an_idle_model_is_unloaded_after_its_keep_alive(registry, parts):
    await amake("idle", keep_alive_s=60)
    await amake("busy", keep_alive_s=60)
    await amake("pinned", keep_alive_s=60, pinned=True)
    await amake("forever")
    for record in registry.records():
        await registry.ready(record.name)
    parts.busy.add("busy")
    parts.clock.now += 59
    await in_thread(registry.housekeep)
    assert registry.is_loaded("idle")
    parts.clock.now += 2
    await in_thread(registry.housekeep)

    assert not registry.is_loaded("idle")
    assert set(parts.engine.attached) == {"busy", "pinned", "forever"}
    assert (await row("idle")).state == State.UNLOADED


async def test_keep_alive_counts_from_the_end_of_the_work(registry, parts):
    await amake("m", keep_alive_s=60)
    await registry.ready("m")
    parts.busy.add("m")
    parts.clock.now += 1000
    await in_thread(registry.housekeep)
    parts.busy.clear()
    parts.clock.now += 59
    await in_thread(registry.housekeep)

    assert registry.is_loaded("m")


async def test_a_model_whose_row_is_gone_leaves_the_engine(registry, parts):
    model = await amake()
    await registry.ready("org/tiny")
    await in_thread(model.delete)
    await in_thread(registry._table.refresh)
    await in_thread(registry.housekeep)

    assert parts.engine.attached == {}


async def test_a_renamed_model_is_loaded_under_its_new_name(registry, parts):
    model = await amake()
    await registry.ready("org/tiny")
    model.name = "renamed"
    await in_thread(lambda: model.save(update_fields=["name"]))
    await in_thread(registry._table.refresh)
    await in_thread(registry.housekeep)
    assert (await row("renamed")).state == State.UNLOADED
    assert parts.engine.attached == {}

    assert (await registry.ready("renamed")).record.name == "renamed"


async def test_a_start_without_the_database_is_tried_again(parts):
    await amake("auto", autoload=True)
    answers = iter([OperationalError("gone")])

    def load():
        for error in answers:
            raise error
        return ModelTable(tuple(model_record(model) for model in LanguageModel.objects.all()))

    registry = ModelRegistry(
        parts.engine,
        locate=parts.located,
        loading=parts.loader.parts(),
        table=Snapshot("test_boot", load),
        load_timeout_s=60,
    )
    with pytest.raises(OperationalError):
        await asyncio.wrap_future(registry.start())

    await until(lambda: registry.is_loaded("auto"))
    await asyncio.to_thread(registry.stop)


async def test_an_engine_that_is_down_fails_the_load_readably(registry, parts):
    await amake()
    parts.engine.refusal = down()

    with pytest.raises(ModelNotReadyError, match="engine is stopped"):
        await registry.ready("org/tiny")


async def test_stopping_writes_the_states_and_releases_those_who_wait(parts):
    await amake("one")
    await amake("two")
    await amake("three")
    registry = ModelRegistry(parts.engine, locate=parts.located, loading=parts.loader.parts(), load_timeout_s=60)
    await registry.ready("one")
    parts.loader.gate.clear()
    parts.loader.began.clear()
    loading = asyncio.create_task(registry.ready("two"))
    await asyncio.to_thread(parts.loader.began.wait, 5)
    queued = asyncio.create_task(registry.ready("three"))
    await asyncio.sleep(0.01)
    threading.Timer(0.1, parts.loader.gate.set).start()
    await asyncio.to_thread(registry.stop)

    assert (await loading).record.name == "two"
    with pytest.raises(EngineDownError):
        await queued
    with pytest.raises(EngineDownError):
        await asyncio.wrap_future(registry.unload("one"))
    assert {(await row(name)).state for name in ("one", "two", "three")} == {State.UNLOADED}


async def test_outside_a_serving_process_models_are_found_but_not_loaded():
    await amake()
    runtime.remove(MODEL_REGISTRY)
    registry = get_registry()

    assert registry is get_registry()
    assert registry.find("org/tiny").state == State.UNLOADED
    for act in (registry.load, registry.unload):
        with pytest.raises(EngineDownError, match="No engine runs in this process"):
            act("org/tiny")
    with pytest.raises(EngineDownError):
        await registry.ready("org/tiny")


def test_records_carry_what_requests_need():
    record = model_record(
        make(
            aliases=["a"],
            default_profile="joyful@2",
            default_sampling={"temperature": 0.5},
            is_default=True,
            context_length=7,
        )
    )

    assert record.aliases == ("a",)
    assert record.default_profile == "joyful@2"
    assert record.default_sampling == {"temperature": 0.5}
    assert record.is_default
    assert record.max_model_len == 7
    assert abs(record.created - time.time()) < 3600


def test_a_name_wins_over_an_alias():
    table = ModelTable((model_record(make("b", aliases=["a"])), model_record(make("a"))))

    assert table.find("a").name == "a"


async def test_the_length_of_a_model_is_known_once_it_was_loaded_and_stays_known(registry, parts):
    await amake(name="m")
    assert registry.max_model_len("m") is None
    await registry.ready("m")
    await asyncio.wrap_future(registry.unload("m"))
    assert registry.find("m").max_model_len == 512


async def test_a_load_says_how_far_it_is_while_it_runs(parts):
    await amake()
    seen: list[LoadStatus] = []

    def locate(source, download):
        download.note(5, 20)
        seen.append(registry.load_status("org/tiny"))
        return parts.located.path

    registry = ModelRegistry(
        parts.engine, locate=locate, loading=parts.loader.parts(), clock=parts.clock, load_timeout_s=5
    )
    await registry.ready("org/tiny")

    assert seen == [LoadStatus(LoadProgress("finding files", 0.0, 5, 20))]
    assert registry.load_status("org/tiny") == LoadStatus()
    registry.stop()


async def test_a_load_that_failed_says_when_it_is_tried_again(parts):
    await amake()

    def locate(source, download):
        raise SourceError("There is none.")

    registry = ModelRegistry(
        parts.engine, locate=locate, loading=parts.loader.parts(), clock=parts.clock, load_timeout_s=5
    )
    with pytest.raises(ModelNotReadyError, match="There is none"):
        await registry.ready("org/tiny")

    assert registry.load_status("org/tiny") == LoadStatus(retry_in_s=10.0)
    registry.stop()
