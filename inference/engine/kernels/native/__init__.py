"""Kernels for the CPU: C++ compiled on this machine, or plain torch if that is not possible.

``activate`` is called when a model is loaded, off the engine thread. Before that, and on other devices, the torch
versions run. Tests compare both with each other and with the formulas.
"""

from __future__ import annotations

import logging
import os
import threading
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from inference.engine.kernels.library_cache import SWITCH, default_folder
from inference.engine.kernels.native import fallback
from inference.engine.kernels.native.build import BuildError, build
from inference.engine.kernels.native.steering_tensors import SteeringTensors

__all__ = [
    "ActiveKernels",
    "SteeringTensors",
    "activate",
    "active",
    "deactivate",
    "decode_attention",
    "prompt_attention",
    "steer",
    "write_kv",
]

logger = logging.getLogger(__name__)

VECTOR_LANES = 8


@dataclass(frozen=True, slots=True)
class ActiveKernels:
    """Which kernels run, and why. ``str()`` is for the log line at startup.

    ``lanes``: float32 values per vector. ``has_bf16`` and ``has_int8``: the processor has dot products of bfloat16 and
    of bytes (extensions of AVX-512); otherwise weights are widened, bytes to 16 bits with ``has_int16``, all others to
    float32. ``has_tiles``: products of many rows of bfloat16 and bytes use matrix instructions (AMX).
    """

    is_native: bool
    reason: str
    lanes: int = 1
    has_bf16: bool = False
    has_int8: bool = False
    has_int16: bool = False
    has_tiles: bool = False

    @property
    def has_products(self) -> bool:
        """Whether our products are used for a few rows of 16-bit and int8 weights. They need vectors."""
        return self.is_native and self.lanes >= VECTOR_LANES

    def __str__(self) -> str:
        return f"{'native' if self.is_native else 'torch'}: {self.reason}"


_FLOATS = frozenset({torch.float32, torch.bfloat16, torch.float16})

_lock = threading.Lock()
_active = ActiveKernels(is_native=False, reason="not built yet")


def active() -> ActiveKernels:
    return _active


def activate(folder: Path | None = None) -> ActiveKernels:
    """Build or find the C++ kernels in ``folder`` and use them from now on.

    The default folder is in the virtual environment, or else in the user's cache. Takes about 15 seconds the
    first time on a machine. Never raises: without a compiler the torch versions are used.
    """
    global _active
    with _lock:
        if not _active.is_native:
            _active = _load(folder or default_folder())
            logger.info("CPU kernels: %s", _active)
        return _active


def deactivate() -> None:
    """Use the torch versions again."""
    global _active
    with _lock:
        _active = ActiveKernels(is_native=False, reason="switched off")


def decode_attention(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    block_table: Tensor,
    lengths: Tensor,
    scale: float,
    window: int,
    softcap: float,
    sinks: Tensor | None = None,
    *,
    ordered: bool = False,
) -> Tensor:
    """Compute attention of one new token of each of ``n`` sequences over all its tokens, itself included.

    ``query`` ``[n, heads, head_dim]``; ``keys``, ``values`` ``[blocks, block_size, kv_heads, head_dim]`` with stride 1
    in the last dimension; ``block_table`` int32 ``[n, max_blocks]`` and ``lengths`` int32 ``[n]`` on the CPU. A
    ``window`` of 0 means all tokens, otherwise the last ``window`` ones; ``softcap`` 0 means none. ``sinks`` float32
    ``[heads]`` are scores that take part in the softmax without a value. Sums are float32; with bfloat16 dot products,
    attention weights are rounded to bfloat16 before they are multiplied by the values.
    With ``ordered``, the order of a query's sums depends only on its position, so the result has the same bits whatever
    the other sequences, the blocks and the number of threads are, and in :func:`prompt_attention`.
    Returns ``[n, heads, head_dim]`` in the query's dtype. Fastest if the tokens of a head in a block are adjacent:
    ``torch.empty(blocks, kv_heads, block_size, head_dim).transpose(1, 2)``.
    """
    if _active.is_native and query.device.type == "cpu" and keys.shape == values.shape:
        out: Tensor = torch.ops.millm_native.decode_attention(
            query, keys, values, block_table, lengths, scale, window, softcap, sinks, ordered
        )
        return out
    if ordered:
        starts, counts = lengths - 1, torch.ones_like(lengths)
        return fallback.ordered_attention(
            query, keys, values, block_table, starts, counts, scale, window, softcap, sinks
        )
    return fallback.decode_attention(query, keys, values, block_table, lengths, scale, window, softcap, sinks)


def prompt_attention(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    block_table: Tensor,
    starts: Tensor,
    counts: Tensor,
    scale: float,
    window: int,
    softcap: float,
    sinks: Tensor | None = None,
    *,
    ordered: bool = False,
) -> Tensor:
    """Compute causal attention of chunks of prompts, each over all tokens of its sequence so far.

    ``query`` ``[tokens, heads, head_dim]`` holds the chunks one after the other; chunk ``i`` has ``counts[i]`` tokens,
    the first at position ``starts[i]`` of its sequence (both int32 ``[n]`` on the CPU). The other arguments and the
    result are as in :func:`decode_attention`.
    """
    if _active.is_native and _attends_prompts(query, keys, values, ordered=ordered):
        out: Tensor = torch.ops.millm_native.prompt_attention(
            query, keys, values, block_table, starts, counts, scale, window, softcap, sinks, ordered
        )
        return out
    if ordered:
        return fallback.ordered_attention(
            query, keys, values, block_table, starts, counts, scale, window, softcap, sinks
        )
    return fallback.prompt_attention(query, keys, values, block_table, starts, counts, scale, window, softcap, sinks)


def write_kv(keys: Tensor, values: Tensor, key: Tensor, value: Tensor, slot_mapping: Tensor) -> None:
    """Store ``key`` and ``value`` ``[tokens, kv_heads, head_dim]`` at places ``block * block_size + offset``, int64."""
    if _active.is_native and keys.device.type == "cpu":
        torch.ops.millm_native.write_kv(keys, values, key, value, slot_mapping)
    else:
        fallback.write_kv(keys, values, key, value, slot_mapping)


def steer(
    hidden: Tensor, rows: Tensor, tables: SteeringTensors, given: Tensor | None = None, *, ordered: bool = False
) -> tuple[Tensor, Tensor]:
    """Apply the edits of each token's row (``rows`` int64 ``[tokens]``) to ``hidden`` ``[tokens, d]``. Returns a new
    tensor.

    The second result is the relative change of each token, ``|h' - h| / |h|``, float32 ``[tokens]``, 0 if unchanged.
    Tokens whose row does not act stay bitwise the same. Changes are computed in float32 and cast once. ``given``
    ``[tokens, entries]`` holds the activations of entries that are marked as given. With ``ordered``, a token's result
    has the same bits whatever the other tokens and rows are.
    """
    if _active.is_native and hidden.device.type == "cpu" and hidden.dtype in _FLOATS and hidden.stride(-1) == 1:
        out: tuple[Tensor, Tensor] = torch.ops.millm_native.steer.default(hidden, rows, *tables.all(), given)
        return out
    return (fallback.steer_each if ordered else fallback.steer)(hidden, rows, tables, given)


def _attends_prompts(query: Tensor, keys: Tensor, values: Tensor, *, ordered: bool) -> bool:
    fits = keys.shape == values.shape and (ordered or query.shape[-1] % _active.lanes == 0)
    return query.dtype in _FLOATS and fits and query.device.type == "cpu"


def _load(folder: Path) -> ActiveKernels:
    if os.environ.get(SWITCH) == "torch":
        return ActiveKernels(is_native=False, reason=f"{SWITCH}=torch")
    try:
        torch.ops.load_library(build(folder))  # type: ignore[no-untyped-call]
        vector_bytes, has_bf16, has_int8, has_int16, has_tiles = torch.ops.millm_native.features()
    except (BuildError, OSError) as error:
        return ActiveKernels(is_native=False, reason=str(error))
    dots = [name for name, has in (("bf16", has_bf16), ("int8", has_int8)) if has]
    reason = f"{vector_bytes * 8}-bit vectors" + (f", {' and '.join(dots)} dot products" if dots else "")
    reason += ", tiles" if has_tiles else ""
    return ActiveKernels(
        is_native=True,
        reason=reason,
        lanes=vector_bytes // 4,
        has_bf16=has_bf16,
        has_int8=has_int8,
        has_int16=has_int16,
        has_tiles=has_tiles,
    )
