"""Every sequence comes to an end: no pool, window, length, rank, mode or cancellation makes one wait for ever."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inference.engine.cache.contiguous import ContiguousCache
from inference.engine.cache.paged import PagedCache, window_blocks
from inference.engine.cache.policy import CachePolicy, Growth
from inference.engine.cache.prefix_keys import PREFIX_BLOCK
from inference.engine.config import EngineConfig
from inference.engine.errors import LoadError
from inference.engine.messages import BACKGROUND_PRIORITY, Scoring
from inference.engine.model_engine import ModelEngine
from inference.engine.models.facts import ModelSpec
from inference.engine.models.loader import LoadedModel, load_model
from inference.engine.models.memory_estimate import estimate_memory
from inference.engine.scheduling.admission import ContinuousAdmission, StaticAdmission
from inference.engine.scheduling.scheduler import BURST_STEPS, OLDEST_SHARE, Scheduler
from inference.engine.scheduling.sequence import Sequence, SequenceFault, SequenceState
from tests import combinations
from tests.builders import build_model
from tests.engine.harness import EngineHarness, reference_tokens
from tests.engine.sequences import build_sequence, compute

pytestmark = pytest.mark.slow

WINDOW = 100
BACKENDS = ("contiguous", "paged")


@pytest.fixture(scope="module")
def windowed(tmp_path_factory) -> LoadedModel:
    """Two of four layers see 100 tokens."""
    path = build_model(tmp_path_factory.mktemp("model"), "gemma3", sliding_window=WINDOW, max_position_embeddings=4096)
    return load_model(ModelSpec("tiny", path, dtype="float32", device="cpu"))


def prompt_of(count: int) -> tuple[int, ...]:
    return tuple(3 + (7 * i) % 300 for i in range(count))


# Pools of layers with a window (number 1)


def test_the_smallest_pool_runs_a_prompt_longer_than_window_and_chunk(windowed):
    with pytest.raises(LoadError) as refusal:
        EngineHarness(windowed, kv_cache_backend="paged", kv_cache_bytes=79 * 1024, max_prefill_tokens=64)
    least = int(str(refusal.value).split("at least ")[1].split()[0])
    assert str(79 * 1024) in str(refusal.value)
    assert "MILLM_KV_CACHE_BYTES" in str(refusal.value)
    with pytest.raises(LoadError):
        EngineHarness(windowed, kv_cache_backend="paged", kv_cache_bytes=least - 1, max_prefill_tokens=64)

    harness = EngineHarness(windowed, kv_cache_backend="paged", kv_cache_bytes=least, max_prefill_tokens=64)
    length = harness.engine.max_seq_len
    prompt = prompt_of(length - 4)
    assert harness.generate(prompt=prompt, max_tokens=4).token_ids == reference_tokens(windowed, prompt, 4)

    larger = EngineHarness(windowed, kv_cache_backend="paged", kv_cache_bytes=3 * least, max_prefill_tokens=64)
    prompts = [prompt_of(300)[i:] for i in range(3)]
    got = [larger.add(prompt=prompt, max_tokens=40) for prompt in prompts]
    larger.run()
    assert [t.token_ids for t in got] == [reference_tokens(windowed, prompt, 40) for prompt in prompts]


def test_what_is_estimated_for_a_model_with_a_long_window_suffices_to_attach_it(tmp_path):
    """A model whose layers all see the last 6000 tokens, more than the conversation that is planned for."""
    path = build_model(tmp_path, "gemma3", sliding_window=6000, max_position_embeddings=20_000)
    spec = ModelSpec("m", path, dtype="float32", device="cpu")
    kv_bytes = estimate_memory(spec, max_tokens=512, max_rows=16).kv
    engine = ModelEngine(load_model(spec), EngineConfig(kv_cache_bytes=kv_bytes, kv_cache_backend="paged"))
    assert engine.max_seq_len >= 4096
    engine.close()


@settings(max_examples=150, deadline=None)
@given(
    window=st.integers(1, 200),
    chunk=st.integers(1, 100),
    size=st.sampled_from((32, 64, 256)),
    length=st.integers(1, 600),
)
def test_one_sequence_never_needs_more_blocks_of_a_window_than_it_is_promised(window, chunk, size, length):
    cache = PagedCache(
        1, 768, (window,), (window_blocks(window, chunk, size),), prefixes=True, block_size=size, max_chunk=chunk
    )
    sequence = build_sequence(length)
    assert cache.begin(sequence, 0)
    while sequence.num_pending_tokens:
        count = min(chunk, sequence.num_pending_tokens)
        assert cache.extend(sequence, count)
        sequence.num_computed += count
        cache.note_computed(sequence)


# Requests that can never begin (number 2)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_prompt_as_long_as_the_memory_runs_and_does_not_block_the_queue(llama, backend):
    harness = EngineHarness(llama, kv_cache_backend=backend, kv_cache_bytes=64 * 1024)
    length = harness.engine.max_seq_len
    assert length < llama.max_model_len, "memory is the limit"
    whole = harness.add(prompt=prompt_of(length), max_tokens=0)
    scored = harness.add(prompt=prompt_of(length - 9), max_tokens=0, scoring=Scoring(prompt_of(9)))
    behind = harness.add(prompt=prompt_of(length - 1), max_tokens=1)
    harness.run()
    assert whole.finished.usage.prompt_tokens == length
    assert scored.finished.reason == "length"
    assert len(behind.token_ids) == 1


@pytest.mark.parametrize("mode", ["continuous", "static"])
def test_a_head_that_can_never_begin_fails_and_those_behind_it_run(llama, mode, monkeypatch):
    harness = EngineHarness(llama, batching_mode=mode, batch_wait_timeout_s=0.0)
    begin = harness.engine._cache.begin
    monkeypatch.setattr(harness.engine._cache, "begin", lambda s, headroom: s.num_prompt != 99 and begin(s, headroom))
    never, behind = harness.add(prompt=prompt_of(99)), harness.add(prompt=prompt_of(5))
    harness.run()
    assert never.failed.code == "out_of_memory"
    assert "99 tokens" in never.failed.message
    assert behind.finished


# Whatever raises outside the forward pass (number 1)


def raising_for(guilty: int, act: Any) -> Any:
    """``act`` of a sequence, but for one whose prompt has ``guilty`` tokens."""

    def acts(sequence: Sequence, *rest: Any) -> Any:
        if sequence.num_prompt == guilty:
            raise ValueError("a defect")
        return act(sequence, *rest)

    return acts


@pytest.mark.parametrize("name", ["begin", "extend", "note_computed"])
def test_a_defect_in_one_sequence_s_books_fails_it_alone(llama, name, monkeypatch):
    harness = EngineHarness(llama)
    cache = harness.engine._cache
    monkeypatch.setattr(cache, name, raising_for(7, getattr(cache, name)))
    others = [harness.add(prompt=prompt_of(n)) for n in (5, 6)]
    guilty = harness.add(prompt=prompt_of(7))
    others += [harness.add(prompt=prompt_of(n)) for n in (8, 9)]
    harness.run()
    assert guilty.failed.code == "server_error"
    assert [t.token_ids for t in others] == [reference_tokens(llama, prompt_of(n), 8) for n in (5, 6, 8, 9)]


@pytest.mark.parametrize("name", ["_check_steering", "_advance", "_finish"])
def test_a_defect_in_one_sequence_s_output_fails_it_alone(llama, name, monkeypatch):
    harness = EngineHarness(llama)
    ours = getattr(harness.engine, name)

    def acts(sequence: Sequence, *rest: Any, **named: Any) -> Any:
        if sequence.num_prompt == 7:
            raise ValueError("a defect")
        return ours(sequence, *rest, **named)

    monkeypatch.setattr(harness.engine, name, acts)
    guilty, other = harness.add(prompt=prompt_of(7)), harness.add(prompt=prompt_of(5))
    harness.run()
    assert guilty.failed.code == "server_error"
    assert other.token_ids == reference_tokens(llama, prompt_of(5), 8)


class Incompletable:
    """A detokenizer that fails at the end of the text."""

    def __init__(self, detokenizer: Any) -> None:
        self._detokenizer = detokenizer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._detokenizer, name)

    def finish(self) -> None:
        raise ValueError("a defect")


def test_text_that_cannot_be_completed_still_ends_its_sequence(llama, monkeypatch):
    """It ended without a terminal event: the sequence was gone before its text was asked for."""
    harness = EngineHarness(llama)
    guilty, cancelled, other = (harness.add(prompt=prompt_of(n)) for n in (7, 7, 5))
    for sequence in harness.engine._scheduler.sequences():
        if sequence.num_prompt == 7:
            monkeypatch.setattr(sequence, "detokenizer", Incompletable(sequence.detokenizer))
    harness.step()
    harness.cancel(cancelled)
    harness.run()
    assert guilty.failed.code == cancelled.failed.code == "server_error"
    assert other.finished


@pytest.mark.parametrize("name", ["schedule", "note_step"])
def test_a_defect_that_nobody_causes_ends_those_that_run_and_nobody_else(llama, name, monkeypatch):
    harness = EngineHarness(llama, max_batch_size=1)
    scheduler = harness.engine._scheduler
    ours, is_broken = getattr(scheduler, name), [True]

    def acts(*rest: Any) -> Any:
        if is_broken.pop() if is_broken else False:
            raise ValueError("a defect")
        return ours(*rest)

    running, waiting = harness.add(prompt=prompt_of(4)), harness.add(prompt=prompt_of(5))
    is_broken.clear()
    harness.step()
    is_broken.append(True)
    monkeypatch.setattr(scheduler, name, acts)
    harness.run()
    assert running.failed.code == "server_error"
    assert waiting.token_ids == reference_tokens(llama, prompt_of(5), 8)


def test_a_request_that_cannot_be_prepared_fails_alone(llama, monkeypatch):
    harness = EngineHarness(llama)
    monkeypatch.setattr(harness.engine._intake, "build_sequence", lambda *_: 1 / 0)
    assert harness.add().failed.code == "server_error"


# Random histories


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@st.composite
def sizes(draw: st.DrawFn) -> Any:
    """A cache, its scheduler's settings and a clock."""
    windows = draw(st.sampled_from(((0,), (0, 48), (48,), (0, 33, 90))))
    rows, chunk = draw(st.integers(1, 4)), draw(st.sampled_from((1, 5, 16, 40, 96)))
    length = draw(st.integers(1, 8)) * PREFIX_BLOCK
    prefixes = draw(st.booleans())
    cache: PagedCache | ContiguousCache
    if draw(st.booleans()):
        size = draw(st.sampled_from((PREFIX_BLOCK, 2 * PREFIX_BLOCK)))
        blocks = tuple(
            draw(st.integers(min(window_blocks(w, chunk, size), -(-length // size)) if w else 1, 12)) for w in windows
        )
        cache = PagedCache(rows, length, windows, blocks, prefixes=prefixes, block_size=size, max_chunk=chunk)
    else:
        count = draw(st.integers(1, 20)) * PREFIX_BLOCK + draw(st.integers(0, 31))
        ones = (1,) * len(windows)
        cache = ContiguousCache(rows, length, windows, ones, count * len(ones), prefixes=prefixes)
    config = EngineConfig(
        max_batch_size=draw(st.integers(rows, rows + 2)),
        max_prefill_tokens=chunk,
        batching_mode=draw(st.sampled_from(("continuous", "static"))),
        batch_wait_timeout_s=1.0,
        scheduler_policy=draw(st.sampled_from(("fcfs", "priority"))),
        prefix_cache=prefixes,
        speculative_method=draw(st.sampled_from(("none", "prompt_lookup"))),
        min_speculative_gain=0.0,
        prompt_lookup_min=1,
    )
    return cache, config


class History:
    """A scheduler's turns, with what ended."""

    def __init__(self, cache: CachePolicy, config: EngineConfig, data: st.DataObject) -> None:
        self.cache, self.config, self.data = cache, config, data
        self.clock = Clock()
        static = config.batching_mode == "static"
        admission = StaticAdmission(1.0, config.max_batch_size, self.clock) if static else ContinuousAdmission()
        self.scheduler = Scheduler(config, cache, admission)
        self.submitted: set[Sequence] = set()
        self.ended: set[Sequence] = set()
        self.growth = Growth.FREE
        self.least_unwritten = 1.0

    def submit(self) -> None:
        longest = self.cache.max_seq_len
        num_prompt = self.data.draw(st.one_of(st.integers(1, longest), st.just(longest)))
        family = self.data.draw(st.sampled_from((0, 0, 500)))
        sequence = build_sequence(
            tuple(family + i % 3 for i in range(num_prompt)),
            priority=self.data.draw(st.sampled_from((0, 0, 5, BACKGROUND_PRIORITY))),
            submitted_at=self.clock.now,
        )
        sequence.max_tokens = self.data.draw(st.integers(0, longest - num_prompt))
        self.submitted.add(sequence)
        self.scheduler.add(sequence)

    def cancel(self) -> None:
        self.end(self.data.draw(st.sampled_from(list(self.scheduler.sequences()))))

    def end(self, sequence: Sequence) -> None:
        assert sequence not in self.ended, "two terminal events"
        self.ended.add(sequence)
        self.scheduler.remove(sequence)
        sequence.state = SequenceState.FINISHED

    def turn(self) -> None:
        try:
            chunks = self.scheduler.schedule()
        except SequenceFault as fault:
            if self.growth is not Growth.HELD:
                raise AssertionError(f"{fault.sequence.num_tokens} tokens fit: {fault}") from fault
            self.end(fault.sequence)
            return
        if not chunks:
            assert not self.scheduler.num_running, "a step without progress"
            assert self.scheduler.seconds_to_wait() > 0, "a step without progress"
            self.clock.now += self.scheduler.seconds_to_wait()
            return
        of_prompts = sum(c.num_tokens for c in chunks if c.sequence.state is SequenceState.PREFILL)
        assert of_prompts <= self.config.max_prefill_tokens
        sampling = [chunk.sequence for chunk in chunks if chunk.samples]
        compute(chunks)
        self.check_growth()  # a sequence that ends in this step gives back what it took
        assert not self.scheduler.note_step(chunks, 0.01)
        for sequence in sampling:
            if sequence.num_generated >= sequence.max_tokens:
                self.end(sequence)

    def toggle(self) -> None:
        """Memory runs short, or there is enough again."""
        self.growth = self.data.draw(st.sampled_from(Growth))
        self.scheduler.limit_growth(self.growth)

    def check_growth(self) -> None:
        """Check that nothing grows while growth is held.

        The contiguous policy may take again what it gave back since the limit began, also what a sequence took alone.
        """
        unwritten = self.cache.unwritten_ratio
        if self.growth is Growth.HELD:
            assert unwritten >= self.least_unwritten
        self.least_unwritten = unwritten if self.growth is Growth.FREE else min(self.least_unwritten, unwritten)

    @property
    def has_work(self) -> bool:
        return bool(self.scheduler.num_running or self.scheduler.num_waiting)


@settings(max_examples=6000 if combinations.ALL else 1500, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data(), made=sizes())
def test_every_sequence_ends_once_and_no_iteration_is_without_progress(data, made):
    cache, config = made
    history = History(cache, config, data)
    for _ in range(data.draw(st.integers(1, 25))):
        acts = (history.submit, history.submit, history.turn, history.turn, history.cancel, history.toggle)
        act = data.draw(st.sampled_from(acts))
        if act in {history.submit, history.toggle} or history.has_work:
            act()
        history.check_growth()
        cache.check_integrity(history.scheduler.running)
    for _ in range(20_000):
        if not history.has_work:
            break
        history.turn()
        cache.check_integrity(history.scheduler.running)
    assert history.ended == history.submitted
    assert (cache.used_ratio, cache.num_free_rows) == (0.0, len(cache.tables[0]))


# Prompts that share a step (number 5)


def scheduler_of(**config: Any) -> Scheduler:
    settings = EngineConfig(**{"max_batch_size": 4, "max_prefill_tokens": 64, "prefix_cache": False, **config})
    cache = PagedCache(settings.max_batch_size, 4096, (0,), (400,), prefixes=settings.prefix_cache)
    return Scheduler(settings, cache, ContinuousAdmission())


def run(scheduler: Scheduler) -> dict[Sequence, int]:
    """A step; returns the tokens that each sequence got."""
    chunks = scheduler.schedule()
    compute(chunks)
    scheduler.note_step(chunks, 0.0)
    return {chunk.sequence: chunk.num_tokens for chunk in chunks}


def test_a_short_prompt_does_not_wait_for_all_of_a_long_one():
    scheduler = scheduler_of()
    long, short = build_sequence(2000), build_sequence(20)
    scheduler.add(long)
    run(scheduler)
    scheduler.add(short)
    got = run(scheduler)
    assert got == {long: 44, short: 20}
    assert short.state is SequenceState.DECODE


def test_a_long_prompt_is_not_starved_by_short_ones_that_keep_coming():
    scheduler = scheduler_of()
    long = build_sequence(640)
    scheduler.add(long)
    num_steps = 0
    while long.state is not SequenceState.DECODE:
        while scheduler.num_waiting + scheduler.num_running < 4:
            scheduler.add(build_sequence(64))
        run(scheduler)
        for sequence in scheduler.running:
            if sequence.state is SequenceState.DECODE and sequence is not long:
                scheduler.remove(sequence)
        num_steps += 1
    assert num_steps <= 640 // (64 // OLDEST_SHARE)


def test_a_prompt_in_the_background_comes_after_all_others_however_short_it_is():
    scheduler = scheduler_of()
    behind, long = build_sequence(10, priority=BACKGROUND_PRIORITY), build_sequence(200)
    scheduler.add(behind)
    scheduler.add(long)
    assert [run(scheduler) for _ in range(3)] == [{long: 64}] * 3
    assert run(scheduler) == {long: 8, behind: 10}


def test_a_prompt_whose_beginning_another_computes_waits_for_it_and_nobody_behind_it_does():
    scheduler = scheduler_of(prefix_cache=True)
    shared = tuple(range(5000, 5000 + 128))
    first, second, other = build_sequence((*shared, 1)), build_sequence((*shared, 2)), build_sequence(20)
    for sequence in (first, second, other):
        scheduler.add(sequence)
    assert run(scheduler) == {first: 44, other: 20}
    assert run(scheduler) == {first: 64, other: 1}
    assert run(scheduler) == {first: 21, other: 1}
    assert run(scheduler) == {first: 1, other: 1, second: 1}
    assert second.num_cached == 128


def test_a_prompt_of_another_salt_neither_waits_for_a_beginning_nor_takes_it_over():
    scheduler = scheduler_of(prefix_cache=True, max_prefill_tokens=300)
    shared = tuple(range(7000, 7000 + 128))
    first, second = (build_sequence((*shared, n), cache_salt=salt) for n, salt in ((1, "ann"), (2, "bob")))
    scheduler.add(first)
    scheduler.add(second)
    assert run(scheduler) == {first: 129, second: 129}
    assert (first.num_cached, second.num_cached) == (0, 0)


@pytest.mark.parametrize("blocks", [400, 6])
def test_the_stall_factor_counts_only_those_that_can_be_admitted(blocks):
    """While one decodes and one prompt is computed, any number of requests that wait leaves the step short."""
    settings = EngineConfig(max_batch_size=2, max_prefill_tokens=512, prefix_cache=False)
    scheduler = Scheduler(settings, PagedCache(2, 4096, (0,), (blocks,), prefixes=False), ContinuousAdmission())
    first = build_sequence(8)
    scheduler.add(first)
    for seconds in (0.1, *[0.01] * (BURST_STEPS + 1)):  # a prompt's, then so many steps that its answer is not held up
        chunks = scheduler.schedule()
        compute(chunks)
        scheduler.note_step(chunks, seconds)
    for _ in range(50):
        scheduler.add(build_sequence(100))
    chunks = scheduler.schedule()
    assert [chunk.num_tokens for chunk in chunks] == [1, 16]


# Batches (number 3)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_member_of_a_static_batch_does_not_wait_behind_a_request_of_higher_rank(llama, backend):
    harness = EngineHarness(
        llama,
        batching_mode="static",
        batch_wait_timeout_s=0.0,
        kv_cache_backend=backend,
        kv_cache_bytes=64 * 1024,
        scheduler_policy="priority",
        prefix_cache=False,
    )
    members = [harness.add(prompt=prompt_of(80)[i:]) for i in range(2)]  # memory takes one at a time
    harness.step()
    urgent = harness.add(prompt=prompt_of(5), priority=9)
    harness.run()
    assert [t.finished.reason for t in (*members, urgent)] == ["length"] * 3


# Memory that runs out while sequences run (number 34)


@pytest.mark.parametrize("backend", BACKENDS)
def test_while_memory_is_short_sequences_share_what_was_taken_before(llama, backend):
    harness = EngineHarness(llama, kv_cache_backend=backend, max_batch_size=8)
    prompts = [prompt_of(40)[i:] for i in range(6)]
    for prompt in prompts[:2]:
        harness.generate(prompt=prompt, max_tokens=30)
    taken = harness.engine.stats().kv_unwritten_bytes
    harness.engine.limit_growth(Growth.HELD)
    got = [harness.add(prompt=prompt, max_tokens=30) for prompt in prompts]
    too_long = harness.add(prompt=prompt_of(200), max_tokens=4)
    harness.run()
    assert [t.token_ids for t in got] == [reference_tokens(llama, prompt, 30) for prompt in prompts]
    assert too_long.failed.code == "out_of_memory"
    assert harness.engine.stats().kv_unwritten_bytes >= taken

    harness.engine.limit_growth(Growth.ALONE)
    got = [harness.add(prompt=prompt, max_tokens=30) for prompt in (prompt_of(200), *prompts)]
    harness.run()
    references = [reference_tokens(llama, prompt, 30) for prompt in (prompt_of(200), *prompts)]
    assert [t.token_ids for t in got] == references
