"""The arguments of attention kernels on an accelerator."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class AttentionParams:
    """Attention parameters of a layer. ``window`` 0: all tokens. ``softcap`` 0: none.

    ``sinks`` float32 ``[heads]``: scores that take part in the softmax without a value.
    """

    scale: float
    window: int = 0
    softcap: float = 0.0
    sinks: Tensor | None = None


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """Consecutive segments of a step that one call processes; ``tokens`` and ``segments`` are their ranges.

    ``num_queries``: tokens per segment. ``max_keys``: an upper bound of the keys of the longest segment.
    """

    tokens: slice
    segments: slice
    ends: Tensor  # [segments + 1] int32: start and end of each segment's queries, from 0
    lengths: Tensor  # [segments] int32: keys of its last query
    num_queries: tuple[int, ...]
    max_keys: int

    @property
    def max_queries(self) -> int:
        return max(self.num_queries)


@dataclass(frozen=True, slots=True)
class Places:
    """The cache of one layer, and the places of segments in it."""

    keys: Tensor  # [blocks, block_size, kv_heads, head_dim]
    values: Tensor
    table: Tensor  # [segments, width] int32
    starts: Tensor | None = None  # [segments + 1] int32: start of each segment that lies in one block; the last is 0
