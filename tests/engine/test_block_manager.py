from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from inference.engine.cache.block_manager import BlockManager, OutOfBlocksError


def test_too_many_blocks_are_refused_and_nothing_is_taken():
    manager = BlockManager(3, 16)
    manager.allocate(2)
    with pytest.raises(OutOfBlocksError, match="2 blocks are needed, but only 1 are free"):
        manager.allocate(2)
    assert manager.num_free == 1


def test_named_blocks_are_found_after_release_until_they_are_needed():
    manager = BlockManager(2, 16)
    a, b = manager.allocate(2)
    manager.name(a, b"a")
    manager.name(b, b"b")
    manager.release([b, a])  # b is the older one now
    assert (manager.find(b"a"), manager.find(b"b")) == (a, b)
    assert manager.allocate(1) == [b]
    assert (manager.find(b"a"), manager.find(b"b")) == (a, None)


def test_sharing_keeps_a_block_until_its_last_user_leaves():
    manager = BlockManager(1, 16)
    [block] = manager.allocate(1)
    manager.name(block, b"k")
    manager.share([block])
    manager.release([block])
    assert manager.num_free == 0
    manager.release([block])
    assert manager.num_free == 1
    manager.share([block])  # taken up again
    assert manager.num_free == 0


def test_of_equal_contents_the_first_keeps_the_name():
    manager = BlockManager(2, 16)
    a, b = manager.allocate(2)
    manager.name(a, b"k")
    manager.name(b, b"k")
    assert manager.find(b"k") == a
    manager.release([a, b])
    manager.check_integrity([])


def test_double_release_and_naming_of_free_blocks_are_errors():
    manager = BlockManager(1, 16)
    [block] = manager.allocate(1)
    manager.release([block])
    with pytest.raises(ValueError, match="already free"):
        manager.release([block])
    with pytest.raises(ValueError, match="not in use"):
        manager.name(block, b"k")


@pytest.mark.parametrize("sizes", [(0, 16), (4, 0)])
def test_empty_pools_are_refused(sizes):
    with pytest.raises(ValueError, match="must be at least 1"):
        BlockManager(*sizes)


class Blocks(RuleBasedStateMachine):
    """Against a plain account of who holds what."""

    def __init__(self) -> None:
        super().__init__()
        self.manager = BlockManager(6, 4)
        self.held: Counter[int] = Counter()

    @rule(count=st.integers(0, 7))
    def allocate(self, count: int) -> None:
        if count > self.manager.num_free:
            with pytest.raises(OutOfBlocksError):
                self.manager.allocate(count)
            return
        blocks = self.manager.allocate(count)
        assert not any(self.held[block] for block in blocks)
        self.held.update(blocks)

    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        if +self.held:
            block = data.draw(st.sampled_from(sorted(+self.held)))
            self.manager.release([block])
            self.held[block] -= 1

    @rule(data=st.data(), key=st.sampled_from([b"a", b"b", b"c"]))
    def name(self, data: st.DataObject, key: bytes) -> None:
        if +self.held:
            self.manager.name(data.draw(st.sampled_from(sorted(+self.held))), key)

    @rule(key=st.sampled_from([b"a", b"b", b"c"]))
    def share(self, key: bytes) -> None:
        block = self.manager.find(key)
        if block is not None:
            self.manager.share([block])
            self.held[block] += 1

    @invariant()
    def adds_up(self) -> None:
        self.manager.check_integrity((+self.held).elements())
        assert self.manager.num_used == len(+self.held)


TestBlocks = Blocks.TestCase
TestBlocks.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_touched_blocks_are_counted_once_and_for_ever():
    manager = BlockManager(10, 4)
    manager.release(manager.allocate(3))
    assert manager.num_touched == 3
    manager.allocate(2)
    assert manager.num_touched == 3, "used blocks are taken again first"
    manager.allocate(4)
    assert manager.num_touched == 6


def test_while_growth_is_held_only_blocks_of_before_are_given():
    manager = BlockManager(8, 32)
    first = manager.allocate(3)
    manager.name(first[0], b"a")
    manager.release(first)
    manager.hold_growth(held=True)
    assert manager.num_free == 3
    assert manager.num_used == 0
    with pytest.raises(OutOfBlocksError):
        manager.allocate(4)
    assert sorted(manager.allocate(3)) == sorted(first)
    assert manager.find(b"a") is None
    assert manager.num_free == 0
    manager.hold_growth(held=False)
    assert len(manager.allocate(5)) == 5
    manager.check_integrity(range(8))
