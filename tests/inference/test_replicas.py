"""Several engine processes behind one server: started here, and as actors of a Ray cluster that the test starts."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from inference.client import (
    EngineDownError,
    Event,
    FailedEvent,
    FinishedEvent,
    GenerationRequest,
    ModelNotAttachedError,
    QueueFullError,
    SamplingParams,
)
from inference.engine.config import EngineConfig
from inference.engine.errors import LoadError
from inference.engine.models.facts import LoadedFacts, ModelSpec
from inference.engine_process import ray_launcher
from inference.engine_process.client import ProcessEngineClient, ProcessModels
from inference.engine_process.launcher import (
    ROOT,
    Launcher,
    LaunchError,
    LocalLauncher,
    describe_exit,
    share_of_machine,
)
from inference.engine_process.ray_launcher import DRIVER, ActorPort, RayLauncher, RayOptions, sent_variables
from inference.engine_process.replicas import Replica, ReplicaSet
from inference.event_stream import LocalEventStream
from inference.registry.memory_plan import MemoryBudget
from millm_site.env import ENGINE_OPTIONS, Environment
from tests import combinations, live
from tests.builders import build_model
from tests.inference.launchers import forking_launcher
from tests.inference.test_engine_process import eventually
from tests.ray_cluster import RayNode

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("replicas")]
BATCH = 4  # sequences at once on one replica
QUEUE = 4
SLOW = (sys.executable, "-m", "tests.platform.faulty_engine")
STEP_S = 0.02
LONG = 3000  # tokens: such a stream runs until the test ends it, however slow the machine is
ENVIRONMENT = {"MILLM_MAX_BATCH_SIZE": str(BATCH), "MILLM_MAX_WAITING_REQUESTS": str(QUEUE), "OMP_NUM_THREADS": "1"}
RAY = pytest.param("ray", marks=pytest.mark.skipif(not find_spec("ray"), reason="needs the extra `ray`"))


class Engines:
    """Replicas with a tiny model, without a registry."""

    def __init__(self, launcher: Callable[[int], Launcher], model_dir: Path, **options: Any) -> None:
        self.replicas = ReplicaSet(launcher, **{"stall_s": 60.0} | options)
        self.client = ProcessEngineClient(self.replicas, EngineConfig())
        self.models = ProcessModels(self.replicas)
        self.lost: list[frozenset[str]] = []
        self.spec = ModelSpec("tiny", model_dir, dtype="float32", device="cpu")
        self.replicas.listen(self.lost.append)
        self.client.start()

    def load(self, spec: ModelSpec | None = None) -> LoadedFacts:
        facts = self.models.loading.load(spec or self.spec)
        assert isinstance(facts, LoadedFacts)
        self.models.attach(facts, 0).result()
        return facts

    @property
    def having(self) -> list[Replica]:
        return [each for each in self.replicas.all if "tiny" in each.attached]

    def wait_for(self, count: int) -> None:
        """Wait until that many replicas have the model and have reported it, and there are no others."""
        assert eventually(
            lambda: (
                len(self.having) == len(self.replicas.all) == count
                and all(each.capacity("tiny") == BATCH for each in self.having)
            )
        ), self.client.stats()


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_model(tmp_path_factory.mktemp("replicas") / "tiny", max_position_embeddings=2 * LONG)


@pytest.fixture(scope="module", params=["local", RAY])
def launcher(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[int], Launcher]]:
    environment = {
        **ENVIRONMENT,
        "FAULT": "slow",
        "FAULT_STEP_S": str(STEP_S),
        "MILLM_HOME": str(tmp_path_factory.mktemp("home")),
    }
    if request.param == "local":
        yield lambda number: forking_launcher(SLOW, environment)
        return
    node: RayNode = request.getfixturevalue("ray_node")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        patch.setattr(ray_launcher, "PROGRAM", "tests.platform.faulty_engine")
        patch.setattr(ray_launcher, "SENT_VARIABLES", (*ray_launcher.SENT_VARIABLES, "FAULT"))
        port = ActorPort()
        yield lambda number: RayLauncher(RayOptions(node.address), port)
        port.close()


@pytest.fixture
def rarely_with_ray(request: pytest.FixtureRequest) -> None:
    """Leave cases with Ray, whose processes take seconds each to start, to ``make test-all``: all but ``least=2``."""
    params = request.node.callspec.params
    if params["launcher"] == "ray" and params.get("least") != 2 and not combinations.ALL:
        pytest.skip("local processes are replaced and lost in the same way: `make test-all`")


@pytest.fixture(scope="module")
def engines(launcher: Callable[[int], Launcher], model_dir: Path) -> Iterator[Engines]:
    engines = Engines(launcher, model_dir, least=3, most=3)
    engines.load()
    yield engines
    engines.client.stop(0)


def sampled(count: int = 1, **fields: Any) -> list[GenerationRequest]:
    params = SamplingParams(**{"max_tokens": 12, "ignore_eos": True} | fields)
    return [GenerationRequest("r", "tiny", (5, 6, 7), params, index=index) for index in range(count)]


def ends_of(events: list[Event]) -> list[Event]:
    return [event for event in events if isinstance(event, FinishedEvent | FailedEvent)]


def text_of(events: list[Event]) -> str:
    return "".join(event.text for event in events if hasattr(event, "text"))


async def answer(engines: Engines, **fields: Any) -> list[Event]:
    return [event async for event in await engines.client.submit(sampled(**fields))]


async def cancelled(engines: Engines, stream: LocalEventStream) -> list[Event]:
    """Cancel a stream, and return the events that it still has."""
    engines.client.cancel(stream.id)
    return [event async for event in stream]


async def test_requests_are_spread_and_their_results_are_those_of_one_engine(engines: Engines) -> None:
    engines.wait_for(3)
    streams = [await engines.client.submit(sampled(max_tokens=LONG)) for _ in range(9)]
    assert [each.num_sequences for each in engines.replicas.all] == [3, 3, 3]
    for stream in streams:
        await cancelled(engines, stream)
    assert [each.num_sequences for each in engines.replicas.all] == [0, 0, 0]
    answers = await asyncio.gather(*(answer(engines, seed=11, max_tokens=60) for _ in range(9)))
    assert len({text_of(events) for events in answers}) == 1


async def test_what_is_refused_is_refused_by_all(engines: Engines) -> None:
    with pytest.raises(ModelNotAttachedError):
        await engines.client.submit([GenerationRequest("r", "other", (1,))])
    with pytest.raises(QueueFullError) as caught:
        await engines.client.submit(sampled(BATCH + QUEUE + 1))
    assert caught.value.retry_after_s >= 1
    assert not engines.client.is_busy("tiny")


async def test_a_full_queue_sends_requests_to_another_replica(engines: Engines) -> None:
    engines.wait_for(3)
    as_many_as_fit = sampled(BATCH + QUEUE, max_tokens=LONG)
    streams, owners = [], []
    for _ in range(3):
        streams.append(await engines.client.submit(as_many_as_fit))
        owners += [each.number for each in engines.replicas.all if streams[-1].id in each.streams]
    assert sorted(owners) == [0, 1, 2]
    with pytest.raises(QueueFullError):
        await engines.client.submit(as_many_as_fit)
    for stream in streams:
        stream.close()
    assert await asyncio.to_thread(eventually, lambda: not engines.client.is_busy("tiny"))
    assert isinstance((await answer(engines))[-1], FinishedEvent)


async def test_a_stream_is_cancelled_by_its_id_wherever_it_runs(engines: Engines) -> None:
    streams = [await engines.client.submit(sampled(max_tokens=LONG)) for _ in range(3)]
    engines.client.cancel("unknown")
    for stream in streams:
        (end,) = ends_of(await cancelled(engines, stream))
        assert isinstance(end, FinishedEvent)
        assert end.reason == "cancelled"


def test_models_are_loaded_and_unloaded_everywhere_and_one_that_cannot_be_loaded_nowhere(
    engines: Engines, tmp_path: Path
) -> None:
    engines.wait_for(3)
    other = ModelSpec("other", engines.spec.path, dtype="float32", device="cpu")
    facts = engines.load(other)
    assert [each.attached for each in engines.replicas.all] == 3 * [frozenset({"tiny", "other"})]
    stats = {model.name: model for model in engines.client.stats().by_model}
    assert (stats["other"].replicas, stats["other"].limits.max_batch_size) == (3, BATCH)
    engines.models.detach("other").result()
    engines.models.loading.release(facts)
    assert [each.attached for each in engines.replicas.all] == 3 * [frozenset({"tiny"})]
    with pytest.raises(LoadError, match=r"config\.json"):
        engines.models.loading.load(ModelSpec("none", tmp_path))
    one = engines.replicas.all[0].supervisor.call("measure", "cpu").result()
    assert engines.models.measure("cpu").total == one.total // 3, "they share the machine"
    budget = MemoryBudget(900, engines.models.measure, engines.replicas.num_sharing)
    assert budget.available("cpu", reserved_bytes=100) == 200


def models_by_replica(engines: Engines) -> list[set[str]]:
    return [set(each.attached) for each in engines.replicas.all]


async def test_a_model_for_some_replicas_is_loaded_where_most_memory_is_free(engines: Engines) -> None:
    await asyncio.to_thread(engines.wait_for, 3)
    loading = engines.models.loading
    one, two, big = (
        ModelSpec(name, engines.spec.path, dtype="float32", device="cpu", replicas=count)
        for name, count in (("one", 1), ("two", 2), ("big", 3))
    )
    loaded = [await asyncio.to_thread(engines.load, spec) for spec in (one, two, big)]
    assert models_by_replica(engines) == [{"tiny", "one", "big"}, {"tiny", "two", "big"}, {"tiny", "two", "big"}]
    assert {model.name: model.replicas for model in engines.client.stats().by_model} == {
        "tiny": 3, "one": 1, "two": 2, "big": 3,
    }  # fmt: skip
    places = loading.places(replace(one, name="other"))
    assert [each.elsewhere for each in places] == [{"two"}], "the first of those with least"
    assert [each.elsewhere for each in loading.places(engines.spec)] == [{"two"}, {"one"}, {"one"}]
    for _ in range(4):
        requests = [GenerationRequest("r", "one", (5, 6, 7), SamplingParams(max_tokens=LONG, ignore_eos=True))]
        stream = await engines.client.submit(requests)
        assert stream.id in engines.replicas.all[0].streams
        assert isinstance((await cancelled(engines, stream))[-1], FinishedEvent)

    second = engines.replicas.all[1]
    pid = second.supervisor.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    assert await asyncio.to_thread(
        eventually, lambda: second.supervisor.pid != pid and second.attached == {"tiny", "two", "big"}
    )
    assert models_by_replica(engines)[0] == {"tiny", "one", "big"}, "others do not load what it had"
    for facts in loaded:
        engines.models.detach(facts.name).result()
        loading.release(facts)
    assert models_by_replica(engines) == 3 * [{"tiny"}]


async def test_when_one_is_killed_only_its_streams_end_and_new_requests_go_elsewhere_at_once(engines: Engines) -> None:
    engines.wait_for(3)
    engines.lost.clear()  # of other tests
    victim = min(engines.replicas.all, key=lambda each: each.supervisor.restarts)  # it starts again soonest
    restarts, own_restarts = engines.client.stats().restarts, victim.supervisor.restarts
    streams = [await engines.client.submit(sampled(max_tokens=LONG)) for _ in range(6)]
    owned = [stream.id in victim.streams for stream in streams]
    assert sum(owned) == 2
    firsts = [await stream.__anext__() for stream in streams]
    assert victim.supervisor.pid is not None
    os.kill(victim.supervisor.pid, signal.SIGKILL)
    for _ in range(3):
        assert isinstance((await answer(engines))[-1], FinishedEvent)
    assert "tiny" not in victim.attached, "they did not wait for it"
    for stream, first, is_owned in zip(streams, firsts, owned, strict=True):
        events = [event async for event in stream] if is_owned else await cancelled(engines, stream)
        (end,) = ends_of([first, *events])
        assert isinstance(end, FailedEvent if is_owned else FinishedEvent)
        if isinstance(end, FailedEvent):
            assert (end.code, end.message) == ("server_error", "The engine failed.")
    assert not engines.lost, "the others still have the model"
    assert engines.client.stats().is_up
    await asyncio.to_thread(engines.wait_for, 3)
    stats = engines.client.stats()
    assert stats.restarts == restarts + 1
    assert stats.replicas[victim.number].restarts == own_restarts + 1
    streams = [await engines.client.submit(sampled(max_tokens=LONG)) for _ in range(9)]
    assert sum(stream.id in victim.streams for stream in streams) == 3, "it gets its share again"
    for stream in streams:
        assert isinstance((await cancelled(engines, stream))[-1], FinishedEvent)


async def test_requests_that_arrive_while_one_is_killed_are_all_answered(engines: Engines) -> None:
    """Those that it has not accepted yet go to another replica."""
    await asyncio.to_thread(engines.wait_for, 3)
    victim = engines.replicas.all[1]
    assert victim.supervisor.pid is not None
    os.kill(victim.supervisor.pid, signal.SIGSTOP)
    submissions = [asyncio.ensure_future(engines.client.submit(sampled())) for _ in range(6)]
    await asyncio.sleep(0.1)
    assert victim.num_sequences == 2
    os.kill(victim.supervisor.pid, signal.SIGKILL)
    for submission in submissions:
        (end,) = ends_of([event async for event in await submission])
        assert isinstance(end, FinishedEvent)


async def test_those_that_wait_in_a_replica_that_is_killed_are_answered_by_another(engines: Engines) -> None:
    await asyncio.to_thread(engines.wait_for, 3)
    victim = min(engines.replicas.all, key=lambda each: each.supervisor.restarts)
    expected = text_of(await answer(engines, seed=11))
    running = [await engines.client.submit(sampled(max_tokens=LONG)) for _ in range(3 * BATCH)]
    firsts = {stream.id: await stream.__anext__() for stream in running}
    theirs = [stream.id for stream in running if stream.id in victim.streams]
    assert len(theirs) == BATCH
    waiting = [await engines.client.submit(sampled(seed=11)) for _ in range(6)]
    assert sum(stream.id in victim.streams for stream in waiting) == 2
    closed = next(stream for stream in waiting if stream.id in victim.streams)
    assert victim.supervisor.pid is not None
    os.kill(victim.supervisor.pid, signal.SIGKILL)
    closed.close()
    for stream in running:
        events = [event async for event in stream] if stream.id in theirs else await cancelled(engines, stream)
        (end,) = ends_of([firsts[stream.id], *events])
        assert isinstance(end, FailedEvent if stream.id in theirs else FinishedEvent)
    for stream in waiting:
        if stream is not closed:
            assert text_of([event async for event in stream]) == expected
    assert await asyncio.to_thread(eventually, lambda: not engines.client.is_busy("tiny"))


async def test_one_that_hangs_gets_no_new_requests(engines: Engines) -> None:
    await asyncio.to_thread(engines.wait_for, 3)
    victim = engines.replicas.all[0]
    assert victim.supervisor.pid is not None
    os.kill(victim.supervisor.pid, signal.SIGSTOP)
    try:
        assert await asyncio.to_thread(eventually, lambda: victim.supervisor.is_silent)
        for _ in range(4):
            assert isinstance((await answer(engines))[-1], FinishedEvent)
        assert victim.num_sequences == 0
    finally:
        os.kill(victim.supervisor.pid, signal.SIGCONT)
    assert await asyncio.to_thread(eventually, lambda: not victim.supervisor.is_silent)


@pytest.mark.usefixtures("rarely_with_ray")
async def test_if_all_are_killed_the_model_is_lost_and_can_be_loaded_again(engines: Engines) -> None:
    await asyncio.to_thread(engines.wait_for, 3)
    for each in engines.replicas.all:
        assert each.supervisor.pid is not None
        os.kill(each.supervisor.pid, signal.SIGKILL)
    assert await asyncio.to_thread(eventually, lambda: engines.lost == [frozenset({"tiny"})])
    assert await asyncio.to_thread(eventually, lambda: not engines.replicas.up)
    with pytest.raises(EngineDownError):
        await engines.client.submit(sampled())
    await asyncio.to_thread(engines.load)
    assert isinstance((await answer(engines))[-1], FinishedEvent)
    await asyncio.to_thread(engines.wait_for, 3)


async def test_models_of_a_replica_that_leaves_go_to_another(engines: Engines) -> None:
    await asyncio.to_thread(engines.wait_for, 3)
    spec = replace(engines.spec, name="two", replicas=2)
    facts = await asyncio.to_thread(engines.load, spec)
    (staying,) = (each for each in engines.replicas.all if "two" not in each.attached)
    leaving = next(each for each in engines.replicas.all if "two" in each.attached)
    leaving.is_draining = True
    assert await asyncio.to_thread(eventually, lambda: leaving not in engines.replicas.all)
    assert await asyncio.to_thread(eventually, lambda: sum("two" in each for each in models_by_replica(engines)) == 2)
    assert "two" in staying.attached, "it was up, when its successor was not"
    assert [each.number for each in engines.replicas.all] == sorted(each.number for each in engines.replicas.all)
    await asyncio.to_thread(engines.wait_for, 3)
    engines.models.detach("two").result()
    engines.models.loading.release(facts)


async def test_only_a_load_waits_for_replicas_that_start(engines: Engines) -> None:
    """Pages that show whether a model fits do not."""
    await asyncio.to_thread(engines.wait_for, 3)
    victim, spec = engines.replicas.all[0], replace(engines.spec, name="two", replicas=2)
    assert victim.supervisor.pid is not None
    os.kill(victim.supervisor.pid, signal.SIGKILL)
    assert await asyncio.to_thread(eventually, lambda: not victim.is_up)
    assert len(await asyncio.to_thread(engines.models.loading.places, spec)) == 2
    assert not victim.is_up
    await asyncio.to_thread(engines.models.loading.wait_for_places, spec)
    assert victim.is_up


async def test_from_one_to_three_and_back_without_a_failed_request(
    launcher: Callable[[int], Launcher], model_dir: Path
) -> None:
    engines = Engines(launcher, model_dir, least=1, most=3, patience_s=0.5)
    failures: list[Event] = []
    is_loud = True

    async def client(number: int) -> None:
        """Clients 0 and 1 ask all the time, the others only while it is loud."""
        while is_loud or (number < 2 and len(engines.replicas.all) > 1):
            try:
                events = await answer(engines, max_tokens=20)
            except QueueFullError:  # the queue of one replica has QUEUE places
                await asyncio.sleep(0.02)
                continue
            failures.extend(event for event in events if isinstance(event, FailedEvent))
            await asyncio.sleep(0)

    try:
        await asyncio.to_thread(engines.load)
        clients = [asyncio.ensure_future(client(number)) for number in range(3 * (BATCH + QUEUE))]
        await asyncio.to_thread(engines.wait_for, 3)
        is_loud = False
        await asyncio.gather(*clients)
        engines.wait_for(1)
        assert not failures
        assert isinstance((await answer(engines))[-1], FinishedEvent)
        assert engines.client.stats().restarts == 0
    finally:
        await asyncio.to_thread(engines.client.stop, 0)


@pytest.mark.usefixtures("rarely_with_ray")
@pytest.mark.parametrize("least", [1, 2])
async def test_all_are_replaced_without_a_failed_request(
    launcher: Callable[[int], Launcher], model_dir: Path, least: int
) -> None:
    engines = Engines(launcher, model_dir, least=least, most=2, patience_s=60.0)
    failures: list[Event] = []
    is_over = False

    async def client() -> None:
        while not is_over:
            failures.extend(event for event in await answer(engines, max_tokens=20) if isinstance(event, FailedEvent))

    try:
        await asyncio.to_thread(engines.load)
        await asyncio.to_thread(engines.wait_for, least)
        before = {each.supervisor.pid for each in engines.replicas.all}
        clients = [asyncio.ensure_future(client()) for _ in range(3)]
        assert engines.client.replace_processes() == least
        assert await asyncio.to_thread(
            eventually,
            lambda: (
                len(engines.having) >= least and not before & {each.supervisor.pid for each in engines.replicas.all}
            ),
        )
        is_over = True
        await asyncio.gather(*clients)
        assert not failures
        assert not any(each.is_outdated or each.is_draining for each in engines.replicas.all)
        assert engines.client.stats().restarts == 0
        assert not engines.lost
    finally:
        await asyncio.to_thread(engines.client.stop, 0)


@pytest.mark.usefixtures("rarely_with_ray")
@pytest.mark.parametrize("most", [2, 3])
async def test_replicas_that_alone_have_a_model_are_replaced_where_one_more_is_allowed(
    launcher: Callable[[int], Launcher], model_dir: Path, most: int
) -> None:
    engines = Engines(launcher, model_dir, least=2, most=most, patience_s=60.0)
    try:
        for name in ("tiny", "other"):
            await asyncio.to_thread(engines.load, replace(engines.spec, name=name, replicas=1))
        assert models_by_replica(engines) == [{"tiny"}, {"other"}]
        before = {each.supervisor.pid for each in engines.replicas.all}
        assert engines.client.replace_processes() == 2
        assert await asyncio.to_thread(eventually, lambda: not any(each.is_outdated for each in engines.replicas.all))
        after = {each.supervisor.pid for each in engines.replicas.all}
        assert (after == before) is (most == 2)
        assert sorted(name for models in models_by_replica(engines) for name in models) == ["other", "tiny"]
        assert isinstance((await answer(engines))[-1], FinishedEvent)
        assert not engines.lost
    finally:
        await asyncio.to_thread(engines.client.stop, 0)


def test_a_single_process_is_not_replaced(model_dir: Path) -> None:
    replicas = ReplicaSet(lambda number: LocalLauncher(), stall_s=60.0)
    assert replicas.replace_all() == 0


def test_stopping_ends_all_processes(launcher: Callable[[int], Launcher], model_dir: Path) -> None:
    engines = Engines(launcher, model_dir, least=2, most=2)
    engines.load()
    pids = [each.supervisor.pid for each in engines.replicas.all]
    engines.client.stop(5)
    engines.client.stop(5)
    assert engines.client.stats().state == "stopped"
    for pid in pids:
        assert pid is not None
        assert live.ended(pid)


class TestRay:
    @pytest.mark.skipif(not find_spec("ray"), reason="needs the extra `ray`")
    def test_a_cluster_that_is_not_there_is_reported(self) -> None:
        with pytest.raises(LaunchError, match=r"no connection to Ray at 127\.0\.0\.1:1: .*refused"):
            RayLauncher(RayOptions("127.0.0.1:1"), ActorPort()).launch()

    @pytest.mark.skipif(not find_spec("ray"), reason="needs the extra `ray`")
    def test_a_driver_ends_with_its_server_while_it_waits_for_a_cluster(self) -> None:
        """A port that accepts connections and never answers."""
        with socket.create_server(("127.0.0.1", 0)) as silent:
            ours, theirs = socket.socketpair()
            with theirs:
                driver = subprocess.Popen([*DRIVER, str(theirs.fileno())], pass_fds=(theirs.fileno(),), cwd=ROOT)
            options = {"address": f"127.0.0.1:{silent.getsockname()[1]}"}
            ours.sendall((json.dumps(options) + "\n").encode())
            silent.accept()[0].close()
            ours.close()
            assert live.ended(driver.pid)
            assert driver.wait() == 0

    def test_a_driver_that_cannot_run_is_reported(self) -> None:
        broken = (sys.executable, "-c", "raise SystemExit(3)")
        with pytest.raises(LaunchError, match="Ray driver"):
            RayLauncher(RayOptions("auto"), ActorPort(), broken).launch()

    def test_stopping_ends_a_launch_that_waits(self) -> None:
        """As for a place in a full cluster."""
        launcher = RayLauncher(RayOptions("auto"), ActorPort(), (sys.executable, "-c", "import time; time.sleep(600)"))
        launcher.close()
        with pytest.raises(LaunchError, match="the server's end"):
            launcher.launch()

    def test_no_secrets_are_sent(self) -> None:
        everything = {f"MILLM_{name.upper()}": "x" for name in Environment.model_fields} | {"HF_TOKEN": "x"}
        secrets = {
            f"MILLM_{name.upper()}" for name, field in Environment.model_fields.items() if field.annotation is SecretStr
        }
        sent = sent_variables(everything)
        assert secrets
        assert not secrets & sent.keys()
        assert "HF_TOKEN" not in sent
        assert {f"MILLM_{name.upper()}" for name in ENGINE_OPTIONS} <= sent.keys()


class TestShares:
    def test_several_processes_share_the_gpus_and_processors(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7")
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
        shares = [share_of_machine(number, 4) for number in range(4)]
        assert [each["CUDA_VISIBLE_DEVICES"] for each in shares] == ["4", "7", "4", "7"]
        assert all(int(each["OMP_NUM_THREADS"]) >= 1 for each in shares)
        assert share_of_machine(0, 1) == {}

    def test_the_operator_s_threads_are_kept(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("OMP_NUM_THREADS", "5")
        assert "OMP_NUM_THREADS" not in share_of_machine(0, 2)


def test_exit_codes_are_described() -> None:
    assert describe_exit(3) == "exit code 3"
    assert describe_exit(-15) == "SIGTERM"
