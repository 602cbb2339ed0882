"""The engine in a process of its own: what crosses the socket, and what happens when the process ends."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import MillmError
from inference.captures import ActivationCapture, CaptureSpec, Residuals
from inference.client import (
    CaptureEvent,
    EngineDownError,
    Event,
    FailedEvent,
    FinishedEvent,
    GenerationRequest,
    LocalEngineClient,
    ModelNotAttachedError,
    QueueFullError,
    SamplingParams,
    SteeringReceipt,
    Timings,
    TokenLogprob,
    TokensEvent,
    Usage,
)
from inference.engine.config import EngineConfig
from inference.engine.errors import LoadError, NotEnoughMemoryError
from inference.engine.loop import EngineLoop
from inference.engine.models.facts import LoadedFacts, ModelSpec
from inference.engine.models.loader import load_model
from inference.engine.stats import EngineStats
from inference.engine_process.channel import Call, Events, Refusal, Reply, Status, packed, unpacked
from inference.engine_process.client import ProcessEngineClient, ProcessModels
from inference.engine_process.launcher import COMMAND, LocalLauncher
from inference.engine_process.replica_streams import ReplicaStreams
from inference.engine_process.replicas import ReplicaSet
from inference.engine_process.supervisor import EngineSupervisor
from inference.event_stream import OpenStreams
from inference.interventions import Site
from inference.text.model_text import ModelText, PromptTooLongError
from tests import live
from tests.inference.fakes import in_thread, kinds, tokens
from tests.inference.launchers import forking_launcher

CONFIG = EngineConfig()
HEX = "0123456789abcdef0123456789abcdef"
token_ids = st.integers(0, 2**20)
logprobs = st.builds(
    TokenLogprob,
    token_ids,
    st.floats(max_value=0.0, allow_nan=False),
    st.lists(st.tuples(token_ids, st.floats(max_value=0.0, allow_nan=False)), max_size=3).map(tuple),
    st.integers(0, 2**20),
)
events_of_tokens = st.builds(
    TokensEvent,
    st.integers(0, 2**16),
    st.lists(token_ids, max_size=5).map(tuple),
    st.text(st.characters(exclude_categories=())),  # lone surrogates too
    st.lists(logprobs, max_size=3).map(tuple),
)
ends = st.builds(
    FinishedEvent,
    st.integers(0, 2**16),
    st.sampled_from(["stop", "length", "cancelled"]),
    st.builds(Usage, st.integers(0, 2**40), st.integers(0, 2**40), st.integers(0, 2**40)),
    st.builds(Timings, st.floats(0, 1e6), st.none() | st.floats(0, 1e6), st.floats(0, 1e6)),
    st.none() | st.builds(SteeringReceipt, st.text(), st.integers(0), st.integers(0)),
    st.text(),
)


class TestMessages:
    @given(st.lists(st.tuples(st.just(HEX), events_of_tokens | ends), max_size=8))
    def test_events_arrive_as_they_were(self, deliveries: list[tuple[str, Event]]) -> None:
        assert unpacked(packed(Events(deliveries))) == Events(deliveries)

    def test_arrays_arrive_with_their_bits(self) -> None:
        values = np.array([[np.inf, -0.0, 1e-40], [np.nan, 1.5, -2.0]], dtype=np.float32)
        event = CaptureEvent(3, (ActivationCapture(0, 2, values),))
        copy = unpacked(packed(Events([(HEX, event)])))
        assert isinstance(copy, Events)
        ((_, arrived),) = copy.deliveries
        assert isinstance(arrived, CaptureEvent)
        assert arrived.captures[0].values.tobytes() == values.tobytes()

    def test_calls_answers_and_reports_arrive_as_they_were(self) -> None:
        request = GenerationRequest("r", "m", tuple(range(5000)), SamplingParams(seed=2**64 - 1))
        for message in (Call(7, "submit", ((request,), HEX)), Reply(7, None), Status(EngineStats(state="idle"))):
            assert unpacked(packed(message)) == message

    @pytest.mark.parametrize(
        "error",
        [
            QueueFullError("Too many.", 2.5),
            NotEnoughMemoryError("Too large."),
            PromptTooLongError(10, 5, 2),
            MillmError("Bad.", status=418, code="teapot", param="tea", can_retry=False, headers={"a": "b"}),
            OSError(28, "No space left on device"),
        ],
    )
    def test_errors_arrive_with_their_class_and_everything_that_clients_see(self, error: Exception) -> None:
        refusal = unpacked(packed(Refusal.of(1, error)))
        assert isinstance(refusal, Refusal)
        copy = refusal.error()
        assert (type(copy), str(copy), vars(copy)) == (type(error), str(error), vars(error))

    def test_an_error_that_cannot_be_pickled_keeps_its_message(self) -> None:
        class LocalError(Exception):
            pass

        error = Refusal.of(1, LocalError("what happened")).error()
        assert isinstance(error, MillmError)
        assert str(error) == "LocalError: what happened"


async def test_all_open_sequences_fail_once_and_those_that_ended_do_not() -> None:
    streams = OpenStreams(lambda stream_id: None)
    requests = [GenerationRequest("r", "m", (1, 2), index=index) for index in range(3)]
    stream, refused = streams.open(requests), streams.open(requests[:1])
    streams.forget(refused)
    in_thread(streams.publish, [(stream.id, FinishedEvent(1, "stop", Usage(), Timings())), (stream.id, tokens(2))])
    in_thread(streams.fail_all, "server_error", "The engine failed.")
    in_thread(streams.fail_all, "server_error", "Again.")
    events = [event async for event in stream]
    assert kinds(events) == [("FinishedEvent", 1), ("TokensEvent", 2), ("FailedEvent", 0), ("FailedEvent", 2)]
    assert {event.usage.prompt_tokens for event in events if isinstance(event, FailedEvent)} == {2}
    assert not streams.is_busy("m")


async def test_streams_that_have_not_begun_are_handed_back_once_when_their_replica_ends() -> None:
    requests = [GenerationRequest("r", "m", (1, 2), index=index) for index in range(2)]
    streams, others = ReplicaStreams(lambda stream_id: None), ReplicaStreams(lambda stream_id: None)
    asked, waits, runs, was_early = (streams.open(requests) for _ in range(4))
    in_thread(streams.publish, [(was_early.id, tokens(1))])  # the reply to its submission comes after it
    for stream in (waits, runs, was_early):
        in_thread(partial(streams.note_accepted, stream, was_moved=False))
    in_thread(streams.publish, [(runs.id, tokens(0))])
    assert streams.waiting == [waits.id]

    (moved,) = streams.end()
    assert (moved.stream, list(moved.requests)) == (waits, requests)
    assert streams.ids() == [asked.id], "the call fails for who asked"
    assert streams.num_sequences == 2
    assert kinds([await anext(runs) for _ in range(3)]) == [("TokensEvent", 0), ("FailedEvent", 0), ("FailedEvent", 1)]
    assert streams.end() == []

    others.adopt(moved)
    in_thread(partial(others.note_accepted, waits, was_moved=True))
    assert others.waiting == [waits.id]
    assert others.end() == []
    assert kinds([event async for event in waits]) == [("FailedEvent", 0), ("FailedEvent", 1)]
    assert (others.num_sequences, others.ids(), others.waiting) == (0, [], [])


class Engine:
    """An engine process with a tiny model, without a registry."""

    def __init__(self, model_dir: Path, **options: Any) -> None:
        self.replicas = ReplicaSet(lambda number: forking_launcher(COMMAND, {}), **{"stall_s": 60.0} | options)
        self.client = ProcessEngineClient(self.replicas, CONFIG)
        self.models = ProcessModels(self.replicas)
        self.lost: list[frozenset[str]] = []
        self.spec = ModelSpec("tiny", model_dir, dtype="float32", device="cpu")
        self.replicas.listen(self.lost.append)
        self.client.start()

    @property
    def supervisor(self) -> EngineSupervisor:
        return self.replicas.all[0].supervisor

    def load(self) -> LoadedFacts:
        facts = self.models.loading.load(self.spec)
        assert isinstance(facts, LoadedFacts)
        self.models.attach(facts, 0).result()
        return facts


@pytest.fixture(scope="module")
def engine(model_dir: Path) -> Iterator[Engine]:
    engine = Engine(model_dir)
    engine.load()
    yield engine
    engine.client.stop(0)


def sampled(count: int = 1, **fields: Any) -> list[GenerationRequest]:
    params = SamplingParams(**{"max_tokens": 12, "ignore_eos": True} | fields)
    return [GenerationRequest("r", "tiny", (5, 6, 7), params, index=index) for index in range(count)]


def eventually(holds: Callable[[], bool], timeout_s: float = live.PATIENCE_S) -> bool:
    deadline = time.monotonic() + timeout_s
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


@pytest.mark.slow
class TestProcess:
    async def test_its_results_are_those_of_a_thread_bit_by_bit(self, engine: Engine) -> None:
        local = LocalEngineClient(lambda publish: EngineLoop(CONFIG, publish))
        local.start()
        local.engine.attach(load_model(engine.spec)).result()
        capture = CaptureSpec(site=Site(1), probe=Residuals())
        greedy = GenerationRequest("r", "tiny", (9, 8), sampled(temperature=0.0)[0].sampling, captures=(capture,))
        try:
            for requests in (sampled(3, seed=11, logprobs=2, prompt_logprobs=1), [greedy]):
                theirs, ours = [[event async for event in await c.submit(requests)] for c in (engine.client, local)]
                assert packed_without_times(theirs) == packed_without_times(ours)
        finally:
            local.stop(0)

    async def test_refusals_keep_their_class(self, engine: Engine) -> None:
        with pytest.raises(ModelNotAttachedError):
            await engine.client.submit([GenerationRequest("r", "other", (1,))])
        with pytest.raises(QueueFullError) as caught:
            await engine.client.submit(sampled(CONFIG.max_batch_size + CONFIG.max_waiting_requests + 1))
        assert caught.value.retry_after_s >= 1
        assert not engine.client.is_busy("tiny")

    async def test_a_submission_that_is_given_up_leaves_nothing_behind(self, engine: Engine) -> None:
        before = engine.client.stats().steps
        for _ in range(50):  # some are cancelled before they begin there
            submission = asyncio.ensure_future(engine.client.submit(sampled(8, max_tokens=200)))
            await asyncio.sleep(0)
            submission.cancel()
            with pytest.raises(asyncio.CancelledError):
                await submission
        assert not engine.client.is_busy("tiny")
        assert await asyncio.to_thread(eventually, lambda: engine.client.stats().running == 0)
        assert await asyncio.to_thread(eventually, lambda: not engine.supervisor.num_calls)
        assert engine.client.stats().steps - before < 200

    def test_what_a_load_needs_and_raises_is_that_of_the_engine(self, engine: Engine, tmp_path: Path) -> None:
        loading = engine.models.loading
        assert loading.device_of(engine.spec) == "cpu"
        assert loading.estimate(engine.spec).weights > 0
        assert 0 < engine.models.measure("cpu").free <= engine.models.measure("cpu").total
        with pytest.raises(LoadError, match=r"config\.json"):
            loading.load(ModelSpec("none", tmp_path))

    def test_its_tokenizer_is_the_model_s(self, engine: Engine) -> None:
        facts, loaded = engine.load(), load_model(engine.spec)
        ours, theirs = (ModelText(each.tokenizer, max_model_len=256) for each in (loaded, facts))
        chat = [{"role": "user", "content": "Tell me a <|im_end|> story."}]
        assert theirs.render_chat(chat) == ours.render_chat(chat)
        assert theirs.tokenizer == ours.tokenizer
        assert (facts.sites, facts.vocab_size) == (loaded.sites, loaded.vocab_size)

    async def test_when_it_is_killed_each_sequence_fails_once_and_it_starts_again(self, engine: Engine) -> None:
        streams = [await engine.client.submit(sampled(2, max_tokens=240)) for _ in range(3)]
        pid, restarts = engine.supervisor.pid, engine.client.stats().restarts
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        for stream in streams:
            events = [event async for event in stream]
            failures = [event for event in events if isinstance(event, FailedEvent)]
            assert sorted(event.index for event in failures) == [0, 1]
            assert {event.code for event in failures} == {"server_error"}
        assert await asyncio.to_thread(eventually, lambda: engine.lost[-1:] == [frozenset({"tiny"})])
        with pytest.raises(EngineDownError, match=r"SIGKILL .* and starts again"):
            await engine.client.submit(sampled())
        assert not engine.client.is_busy("tiny")
        await asyncio.to_thread(engine.load)
        assert engine.client.stats().restarts == restarts + 1
        events = [event async for event in await engine.client.submit(sampled())]
        assert isinstance(events[-1], FinishedEvent)

    def test_one_that_hangs_as_a_whole_is_replaced(self, model_dir: Path) -> None:
        engine = Engine(model_dir, stall_s=1.0)
        try:
            engine.load()
            pid = engine.supervisor.pid
            assert pid is not None
            os.kill(pid, signal.SIGSTOP)
            assert eventually(lambda: engine.supervisor.pid not in (None, pid))
            assert live.ended(pid)
            engine.load()
        finally:
            engine.client.stop(0)

    async def test_stopping_lets_sequences_finish_and_ends_the_process(self, model_dir: Path) -> None:
        engine = Engine(model_dir)
        await asyncio.to_thread(engine.load)
        pid = engine.supervisor.pid
        stream = await engine.client.submit(sampled(max_tokens=100))
        await asyncio.to_thread(engine.client.stop, 60.0)
        events = [event async for event in stream]
        assert isinstance(events[-1], FinishedEvent)
        assert engine.client.stats().state == "stopped"
        assert pid is not None
        assert live.ended(pid)
        with pytest.raises(EngineDownError, match="stopped"):
            await engine.client.submit(sampled())

    def test_it_ends_with_the_server(self) -> None:
        program = """
            import time
            from inference.engine_process.supervisor import EngineSupervisor
            supervisor = EngineSupervisor(stall_s=60)
            supervisor.start()
            supervisor.call_when_up("measure", "cpu")
            print(supervisor.pid, flush=True)
            time.sleep(600)
        """
        command = [sys.executable, "-c", textwrap.dedent(program)]
        environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "millm_site.settings"}
        with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=live.PROJECT_DIR, env=environment) as server:
            assert server.stdout is not None
            pid = int(server.stdout.readline())
            server.kill()
        assert live.ended(pid)


def test_one_that_cannot_start_is_tried_again_and_loads_do_not_wait_for_it() -> None:
    supervisor = EngineSupervisor(LocalLauncher((sys.executable, "-c", "raise SystemExit(3)")), stall_s=60)
    supervisor.start()
    try:
        with pytest.raises(EngineDownError, match="The engine process ended with exit code 3 and starts again"):
            supervisor.call_when_up("measure", "cpu")
        assert eventually(lambda: supervisor.stats().restarts >= 2)
        assert supervisor.stats().state == "starting"
    finally:
        supervisor.stop(0)
    assert supervisor.stats().state == "stopped"


def test_one_whose_messages_cannot_be_read_is_replaced() -> None:
    program = "import sys, time; from multiprocessing.connection import Connection as C; "
    program += "C(int(sys.argv[1])).send_bytes(b'O' + bytes(9)); time.sleep(600)"
    supervisor = EngineSupervisor(LocalLauncher((sys.executable, "-c", program)), stall_s=60)
    supervisor.start()
    try:
        assert eventually(lambda: supervisor.stats().restarts >= 1)
        assert "SIGKILL" in supervisor.stats().error
    finally:
        supervisor.stop(0)


def packed_without_times(events: list[Event]) -> list[tuple[Any, ...]]:
    """The bits of the events in order of the sequences; times differ from run to run."""
    seen: dict[int, list[Any]] = {}
    for event in events:
        if isinstance(event, FinishedEvent):
            value: Any = (event.reason, event.usage, event.receipt)
        elif isinstance(event, CaptureEvent):
            value = [(each.places, each.values.tobytes()) for each in event.captures]
        else:
            value = event
        seen.setdefault(event.index, []).append(value)
    return sorted(seen.items())
