"""Keys and values of running sequences, contiguous per slot.

A slot belongs to one sequence at a time. Its tensors grow geometrically, so memory follows what sequences use and
not ``max_seq_len``. Layers may differ in the number of heads and in head size: shapes are taken from the first write.
"""

from __future__ import annotations

import torch
from torch import Tensor

INITIAL_CAPACITY = 128


class LayerKV:
    """One layer's keys and values of one slot: two tensors ``[kv_heads, capacity, head_dim]``."""

    __slots__ = ("keys", "values")

    def __init__(self, keys: Tensor, values: Tensor, capacity: int) -> None:
        heads, _, head_dim = keys.shape
        self.keys = keys.new_empty(heads, capacity, head_dim)
        self.values = values.new_empty(heads, capacity, values.shape[-1])

    def grow(self, used: int, capacity: int) -> None:
        self.keys = _grown(self.keys, used, capacity)
        self.values = _grown(self.values, used, capacity)


class ContiguousCache:
    """Slots for up to ``num_slots`` sequences of at most ``max_seq_len`` tokens."""

    def __init__(self, num_slots: int, max_seq_len: int) -> None:
        self.num_slots = num_slots
        self.max_seq_len = max_seq_len
        self._free = list(range(num_slots - 1, -1, -1))
        self._layers: list[dict[int, LayerKV]] = [{} for _ in range(num_slots)]

    @property
    def num_free(self) -> int:
        return len(self._free)

    def allocate(self) -> int:
        """Take a free slot; IndexError when there is none."""
        return self._free.pop()

    def release(self, slot: int) -> None:
        """Give a slot back and free its memory."""
        if slot in self._free:
            raise ValueError(f"Slot {slot} is free already.")
        self._layers[slot].clear()
        self._free.append(slot)

    def write(self, layer: int, slot: int, start: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Store ``[kv_heads, n, head_dim]`` at positions ``start..start+n``; returns views of all up to there."""
        end = start + keys.shape[1]
        kv = self._room(layer, slot, start, end, keys, values)
        kv.keys[:, start:end] = keys
        kv.values[:, start:end] = values
        return kv.keys[:, :end], kv.values[:, :end]

    def num_bytes(self) -> int:
        return sum(
            t.numel() * t.element_size() for slot in self._layers for kv in slot.values() for t in (kv.keys, kv.values)
        )

    def check_integrity(self, used_slots: set[int]) -> None:
        """Raise AssertionError unless exactly ``used_slots`` are taken."""
        free = set(self._free)
        assert len(free) == len(self._free), "a slot is free twice"
        assert free.isdisjoint(used_slots), "a used slot is free"
        assert len(free) + len(used_slots) == self.num_slots, "a slot leaked"
        assert all(not self._layers[slot] for slot in free), "a free slot holds memory"

    def _room(self, layer: int, slot: int, used: int, end: int, keys: Tensor, values: Tensor) -> LayerKV:
        layers = self._layers[slot]
        kv = layers.get(layer)
        if kv is None:
            layers[layer] = kv = LayerKV(keys, values, self._capacity(end))
        elif kv.keys.shape[1] < end:
            kv.grow(used, self._capacity(end))
        return kv

    def _capacity(self, needed: int) -> int:
        if needed > self.max_seq_len:
            raise ValueError(f"{needed} tokens do not fit into a slot of {self.max_seq_len}.")
        capacity = INITIAL_CAPACITY
        while capacity < needed:
            capacity *= 2
        return min(capacity, self.max_seq_len)


def _grown(old: Tensor, used: int, capacity: int) -> Tensor:
    new = torch.empty(old.shape[0], capacity, old.shape[2], dtype=old.dtype, device=old.device)
    new[:, :used] = old[:, :used]
    return new
