"""Both cache policies against an oracle that remembers what was written to every place of the pool."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inference.engine.cache.contiguous import ContiguousCache
from inference.engine.cache.paged import PagedCache
from inference.engine.cache.policy import BlockCopy, CachePolicy
from inference.engine.cache.prefix_keys import PREFIX_BLOCK, Programs
from inference.engine.scheduling.sequence import Sequence
from tests.engine.sequences import build_sequence

ROWS, LENGTH = 4, 8 * PREFIX_BLOCK
WINDOWS = (0, 48)


def paged(blocks: int = 24, windows: tuple[int, ...] = (0,), *, prefixes: bool = True) -> PagedCache:
    return PagedCache(ROWS, LENGTH, windows, tuple(blocks for _ in windows), prefixes=prefixes)


def large_paged(blocks: int = 24, windows: tuple[int, ...] = (0,), *, prefixes: bool = True) -> PagedCache:
    """Blocks of two keys each, as a GPU's have eight."""
    counts = tuple(-(-blocks // 2) for _ in windows)
    return PagedCache(ROWS, LENGTH, windows, counts, prefixes=prefixes, block_size=2 * PREFIX_BLOCK)


def contiguous(blocks: int = 24, windows: tuple[int, ...] = (0,), *, prefixes: bool = True) -> ContiguousCache:
    size = blocks * PREFIX_BLOCK * len(windows)
    return ContiguousCache(ROWS, LENGTH, windows, (1,) * len(windows), size, prefixes=prefixes)


@pytest.fixture(params=[paged, contiguous])
def make(request) -> Callable[..., CachePolicy]:
    return request.param


class Pool:
    """What is written where. Content is told by all tokens up to it and the program that steered each."""

    def __init__(self, cache: CachePolicy, windows: tuple[int, ...]) -> None:
        self.cache, self.windows = cache, windows
        self.content: dict[tuple[int, int, int], object] = {}

    def run(self, sequence: Sequence, num_tokens: int) -> None:
        """Compute tokens as the runner does: cache operations first, then write, then read what the last token sees."""
        self.obey()
        for position in range(sequence.num_computed, sequence.num_computed + num_tokens):
            for g in range(len(self.windows)):
                self.content[self.place(sequence, g, position)] = meaning(sequence, position)
        self.read(sequence, sequence.num_computed)
        sequence.num_computed += num_tokens
        self.cache.note_computed(sequence)

    def read(self, sequence: Sequence, position: int) -> None:
        for g, window in enumerate(self.windows):
            first = max(0, position - window + 1) if window else 0
            for seen in range(first, position):
                assert self.content[self.place(sequence, g, seen)] == meaning(sequence, seen)

    def obey(self) -> None:
        for order in self.cache.cache_ops():
            if isinstance(order, BlockCopy):
                for i in range(order.num_tokens):
                    if (order.group, order.source, i) in self.content:
                        self.content[order.group, order.target, i] = self.content[order.group, order.source, i]
            else:
                for i in range(order.start, order.end):
                    self.content.pop((order.group, order.block, i), None)

    def place(self, sequence: Sequence, group: int, position: int) -> tuple[int, int, int]:
        size = self.cache.block_size
        return group, int(self.cache.tables[group][sequence.slot, position // size]), position % size


def meaning(sequence: Sequence, position: int) -> object:
    """What keys and values of a position depend on."""
    programs, prompt = sequence.prefix_keys.programs, sequence.num_prompt
    steered_by = tuple(programs.prompt if i < prompt else programs.generation for i in range(position + 1))
    return tuple(sequence.token_ids[: position + 1]), steered_by


def ran(cache: CachePolicy, pool: Pool, sequence: Sequence) -> Sequence:
    """Begun, and computed as far as its tokens go."""
    assert cache.begin(sequence, 0)
    num_tokens = sequence.num_pending_tokens
    assert cache.extend(sequence, num_tokens)
    pool.run(sequence, num_tokens)
    return sequence


PROMPT = tuple(range(100, 200))
LONG = tuple(range(100, 100 + 4 * PREFIX_BLOCK))


@pytest.mark.parametrize("ended", [True, False])
def test_a_known_prefix_is_not_computed_again(make, ended):
    cache = make()
    pool = Pool(cache, (0,))
    first = ran(cache, pool, build_sequence(PROMPT))
    if ended:
        cache.end(first)
    second = ran(cache, pool, build_sequence((*PROMPT, 7, 8)))
    assert cache.counts.found == 3 * PREFIX_BLOCK
    assert cache.counts.looked_up == 100 + 102
    cache.check_integrity([second] if ended else [first, second])


def test_one_token_of_a_known_prompt_is_left_to_run(make):
    cache = make()
    pool = Pool(cache, (0,))
    cache.end(ran(cache, pool, build_sequence(PROMPT[:64])))
    again = build_sequence(PROMPT[:64])
    cache.begin(again, 0)
    assert again.num_computed == 32


def test_a_prompt_whose_logprobs_are_asked_is_computed_whole(make):
    cache = make()
    cache.end(ran(cache, Pool(cache, (0,)), build_sequence(PROMPT)))
    again = build_sequence(PROMPT, prompt_logprobs=1)
    cache.begin(again, 0)
    assert again.num_computed == 0


def test_steering_of_the_prompt_keeps_prefixes_apart_and_of_generated_tokens_does_not(make):
    cache = make()
    pool = Pool(cache, (0,))
    cache.end(ran(cache, pool, build_sequence(PROMPT)))
    for programs, found in [(Programs("a", "a"), 0), (Programs("", "a"), 96), (Programs("a", ""), 96)]:
        before = cache.counts.found
        cache.end(ran(cache, pool, build_sequence(PROMPT, programs=programs)))
        assert cache.counts.found - before == found


@pytest.mark.parametrize("ended", [True, False])
def test_a_beginning_is_shared_only_with_the_same_salt(make, ended):
    cache = make()
    pool = Pool(cache, (0,))
    first = ran(cache, pool, build_sequence(PROMPT, cache_salt="ann"))
    if ended:
        cache.end(first)
    for salt, found in [("", 0), ("bob", 0), ("ann", 96)]:
        again = build_sequence(PROMPT, cache_salt=salt)
        assert cache.begin(again, 0)
        assert again.num_computed == found
        cache.end(again)


def test_without_prefix_cache_nothing_is_found(make):
    cache = make(prefixes=False)
    pool = Pool(cache, (0,))
    cache.end(ran(cache, pool, build_sequence(PROMPT)))
    cache.end(ran(cache, pool, build_sequence(PROMPT)))
    assert cache.counts.found == 0
    assert cache.used_ratio == 0


def test_large_blocks_are_shared_as_a_whole():
    cache = large_paged()
    pool = Pool(cache, (0,))
    cache.end(ran(cache, pool, build_sequence(PROMPT)))
    ran(cache, pool, build_sequence((*PROMPT, 7)))
    assert cache.counts.found == 2 * PREFIX_BLOCK


def test_a_block_holds_whole_keys():
    with pytest.raises(ValueError, match="not a multiple"):
        PagedCache(ROWS, LENGTH, (0,), (24,), prefixes=True, block_size=PREFIX_BLOCK + 1)


def test_rows_are_limited(make):
    cache = make()
    sequences = [ran(cache, Pool(cache, (0,)), build_sequence(4)) for _ in range(ROWS)]
    assert cache.num_free_rows == 0
    late = build_sequence(4)
    assert not cache.begin(late, 0)
    cache.end(sequences[0])
    assert cache.begin(late, 0)


def test_memory_is_limited_and_the_alone_always_fits(make):
    cache = make(blocks=4)
    pool = Pool(cache, (0,))
    assert cache.max_seq_len == 4 * PREFIX_BLOCK
    big = ran(cache, pool, build_sequence(3 * PREFIX_BLOCK))
    assert not cache.begin(build_sequence(2 * PREFIX_BLOCK), 0)
    small = ran(cache, pool, build_sequence(PREFIX_BLOCK - 2))
    assert not cache.extend(big, PREFIX_BLOCK + 1)
    cache.check_integrity([big, small])
    cache.end(small)
    big.token_ids.extend(range(PREFIX_BLOCK))
    assert cache.extend(big, PREFIX_BLOCK)
    pool.run(big, PREFIX_BLOCK)
    assert cache.used_ratio == pytest.approx(1.0)


def test_memory_counts_as_unwritten_until_it_was_written(make):
    cache = make(blocks=8)
    assert cache.unwritten_ratio == 1
    sequence = ran(cache, Pool(cache, (0,)), build_sequence(2 * PREFIX_BLOCK))
    assert cache.unwritten_ratio == pytest.approx(6 / 8)
    cache.end(sequence)
    assert cache.unwritten_ratio == pytest.approx(6 / 8), "it is kept for who begins alike"


def test_headroom_is_kept_for_those_who_run(make):
    cache = make(blocks=4)
    ran(cache, Pool(cache, (0,)), build_sequence(PREFIX_BLOCK))
    late = build_sequence(2 * PREFIX_BLOCK - 1)
    assert not cache.begin(late, 2 * PREFIX_BLOCK)
    assert cache.begin(late, 0)


def test_a_paged_window_gives_back_the_blocks_that_it_passed():
    cache = paged(windows=WINDOWS)
    pool = Pool(cache, WINDOWS)
    sequence = ran(cache, pool, build_sequence(200))
    used = [manager.num_used for manager in cache._managers]
    assert used == [7, 3]  # 200 tokens, and blocks that hold positions 152 to 199
    for token in range(20):
        sequence.token_ids.append(token)
        assert cache.extend(sequence, 1)
        pool.run(sequence, 1)
    cache.end(sequence)
    cache.check_integrity([])


def test_a_prefix_without_its_window_is_not_known():
    """Blocks of the window that were evicted make the prefix useless beyond the last whole window."""
    cache = PagedCache(ROWS, LENGTH, WINDOWS, (24, 4), prefixes=True)
    pool = Pool(cache, WINDOWS)
    cache.end(ran(cache, pool, build_sequence(PROMPT)))
    other = ran(cache, pool, build_sequence(100))
    cache.end(other)
    again = build_sequence((*PROMPT, 5))
    assert cache.begin(again, 0)
    pool.obey()
    pool.read(again, again.num_computed)


@pytest.mark.parametrize(("blocks", "has_other"), [(7, False), (8, True)])
def test_a_beginning_is_not_copied_from_a_slot_that_is_emptied_for_the_copy(blocks, has_other):
    """Memory is too short for a copy beside all that is kept: the source was emptied first, and zeros were copied."""
    cache = contiguous(blocks=blocks)
    pool = Pool(cache, (0,))
    cache.end(ran(cache, pool, build_sequence(LONG)))
    running = ran(cache, pool, build_sequence(PREFIX_BLOCK if has_other else 2 * PREFIX_BLOCK))
    if has_other:
        cache.end(ran(cache, pool, build_sequence(2 * PREFIX_BLOCK)))
    again = ran(cache, pool, build_sequence((*LONG[: 2 * PREFIX_BLOCK], 5, 6, 7)))
    assert cache.counts.found == 2 * PREFIX_BLOCK
    cache.check_integrity([running, again])


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    data=st.data(),
    kind=st.sampled_from([paged, large_paged, contiguous]),
    windows=st.sampled_from([(0,), WINDOWS, (48,)]),
)
def test_every_token_sees_what_its_own_sequence_would_have_written(data, kind, windows):
    """Random sequences of few beginnings and programs come, grow, are sent away and come back."""
    cache = kind(blocks=data.draw(st.integers(9, 30)), windows=windows)
    pool = Pool(cache, windows)
    running: list[Sequence] = []
    for _ in range(data.draw(st.integers(1, 40))):
        action = data.draw(st.sampled_from(["begin", "begin", "grow", "grow", "grow", "end"]))
        if action == "begin":
            length = data.draw(st.integers(1, 150))
            family = data.draw(st.integers(0, 1))
            prompt = tuple(i if i < data.draw(st.sampled_from([64, 200])) else family + 500 for i in range(length))
            programs = Programs(data.draw(st.sampled_from(["", "p"])), data.draw(st.sampled_from(["", "p"])))
            sequence = build_sequence(prompt, programs=programs)
            if cache.begin(sequence, 0):
                running.append(sequence)
        elif running:
            sequence = data.draw(st.sampled_from(running))
            if action == "end":
                running.remove(sequence)
                cache.end(sequence)
            else:
                if not sequence.num_pending_tokens:
                    sequence.token_ids.append(data.draw(st.integers(0, 2)))
                num_tokens = data.draw(st.integers(1, sequence.num_pending_tokens))
                fits = sequence.num_computed + num_tokens <= LENGTH
                if fits and cache.extend(sequence, num_tokens):
                    pool.run(sequence, num_tokens)
        cache.check_integrity(running)


@pytest.mark.parametrize("change", ["a sequence ends", "a running one computes the prefix", "less headroom", "growth"])
def test_a_sequence_without_room_starts_as_soon_as_there_is_room(change):
    cache = paged(blocks=7)
    pool = Pool(cache, (0,))
    other, running = build_sequence(3 * PREFIX_BLOCK), build_sequence(LONG)
    assert cache.begin(other, 0)
    assert cache.begin(running, 0)
    assert cache.extend(other, 3 * PREFIX_BLOCK)
    assert cache.extend(running, 2 * PREFIX_BLOCK)
    pool.run(other, 3 * PREFIX_BLOCK)
    cache.hold_growth(held=change == "growth")
    needs_prefix = change == "a running one computes the prefix"
    num_blocks = 3 if change == "a sequence ends" else 2
    waiting = build_sequence(LONG[: 4 * PREFIX_BLOCK - 1] if needs_prefix else num_blocks * PREFIX_BLOCK - 1)
    headroom = PREFIX_BLOCK if change == "less headroom" else 0
    for _ in range(3):
        assert not cache.begin(waiting, headroom)
    if change == "a sequence ends":
        cache.end(other)
    elif needs_prefix:
        pool.run(running, 2 * PREFIX_BLOCK)
    elif change == "growth":
        cache.hold_growth(held=False)
    assert cache.begin(waiting, 0)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_remembered_refusal_decides_as_a_new_search_does(data):
    """The same history on two caches, of which one forgets each refusal."""
    caches = paged(blocks=12), paged(blocks=12)
    prompts = st.tuples(st.integers(0, 1), st.integers(1, 7 * PREFIX_BLOCK))
    waiting: tuple[Sequence, Sequence] | None = None
    running: list[tuple[Sequence, Sequence]] = []
    for _ in range(data.draw(st.integers(5, 40))):
        action = data.draw(st.sampled_from(("begin", "begin", "compute", "compute", "end")))
        if action == "begin":
            if waiting is None or data.draw(st.booleans()):
                start, length = data.draw(prompts)
                tokens = tuple(range(1000 * start, 1000 * start + length))
                waiting = build_sequence(tokens), build_sequence(tokens)
            headroom = data.draw(st.integers(0, 2 * PREFIX_BLOCK))
            caches[1]._refusal = None
            decided = [cache.begin(sequence, headroom) for cache, sequence in zip(caches, waiting, strict=True)]
            assert decided[0] == decided[1]
            assert waiting[0].num_computed == waiting[1].num_computed
            if decided[0]:
                running.append(waiting)
                waiting = None
        elif running:
            pair = data.draw(st.sampled_from(running))
            if action == "end":
                running.remove(pair)
            count = min(pair[0].num_pending_tokens, data.draw(st.integers(1, 2 * PREFIX_BLOCK)))
            for cache, sequence in zip(caches, pair, strict=True):
                if action == "end":
                    cache.end(sequence)
                elif cache.extend(sequence, count):
                    sequence.num_computed += count
                    cache.note_computed(sequence)
