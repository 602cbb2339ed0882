"""torch's flash kernel for packed sequences on the CPU: the formula, and what the CUDA kernel checks and reads.

After ``mha_varlen_fwd`` of torch 2.13 (aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp): lengths come
from ``seqused_k``, places from ``cum_seq_k`` or from a block table; a mask is aligned at the last query and key.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

HALVES = (torch.bfloat16, torch.float16)


@contextmanager
def flash_on_cpu(*, dtypes: tuple[torch.dtype, ...] = HALVES, page_multiple: int = 256) -> Iterator[list[int]]:
    """While it lasts, ``aten::_flash_attention_forward`` runs on the CPU; gives the ``max_q`` of each call.

    ``page_multiple`` 0 is a torch whose kernel knows no block tables.
    """
    calls: list[int] = []

    def forward(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        cum_seq_q: Tensor,
        cum_seq_k: Tensor,
        max_q: int,
        max_k: int,
        dropout_p: float,
        is_causal: bool,
        return_debug_mask: bool,
        *,
        scale: float | None = None,
        window_size_left: int | None = None,
        window_size_right: int | None = None,
        seqused_k: Tensor | None = None,
        alibi_slopes: Tensor | None = None,
        block_table: Tensor | None = None,
        num_splits: int | None = None,
    ) -> tuple[Tensor, ...]:
        assert alibi_slopes is None
        assert not return_debug_mask
        assert dropout_p == 0.0
        assert num_splits is None
        assert scale is not None
        assert seqused_k is not None
        if query.dtype not in dtypes:
            raise RuntimeError("FlashAttention only support fp16 and bf16 data type")
        if block_table is not None and not page_multiple:
            raise RuntimeError("_flash_attention_forward() got an unexpected keyword argument 'block_table'")
        if block_table is not None and key.shape[1] % page_multiple:
            raise RuntimeError(f"Paged KV cache block size must be divisible by {page_multiple}")
        batch = len(cum_seq_q) - 1
        _check(batch, query, key, value, cum_seq_q, cum_seq_k, seqused_k, block_table)
        calls.append(max_q)
        out = torch.empty_like(query)
        for i in range(batch):
            first, last, length = int(cum_seq_q[i]), int(cum_seq_q[i + 1]), int(seqused_k[i])
            assert 0 < last - first <= max_q
            assert length <= max_k
            if block_table is None:
                begin = int(cum_seq_k[i])
                k, v = key[begin : begin + length], value[begin : begin + length]
            else:
                k, v = (pool[block_table[i].long()].flatten(0, 1)[:length] for pool in (key, value))
            left = -1 if window_size_left is None else window_size_left
            right = 0 if is_causal else -1 if window_size_right is None else window_size_right
            out[first:last] = _formula(query[first:last], k, v, scale, left, right)
        nothing = torch.empty(0)
        return out, nothing, nothing, nothing, nothing

    library = torch.library.Library("aten", "IMPL")
    library.impl("_flash_attention_forward", forward, "CPU")
    try:
        yield calls
    finally:
        library._destroy()


def _check(
    batch: int,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cum_seq_q: Tensor,
    cum_seq_k: Tensor,
    seqused_k: Tensor,
    block_table: Tensor | None,
) -> None:
    assert query.dtype == key.dtype == value.dtype
    assert query.stride(-1) == key.stride(-1) == value.stride(-1) == 1
    assert query.dim() == 3
    assert key.shape == value.shape
    assert key.shape[-1] == query.shape[-1] <= 256
    for tensor, size in ((cum_seq_q, batch + 1), (cum_seq_k, batch + 1), (seqused_k, batch)):
        assert tensor.dtype == torch.int32
        assert tensor.is_contiguous()
        assert tensor.shape == (size,)
    if block_table is None:
        assert key.dim() == 3
    else:
        assert key.dim() == 4
        assert block_table.dtype == torch.int32
        assert block_table.shape[0] == batch
        assert block_table.stride(-1) == 1


def _formula(query: Tensor, keys: Tensor, values: Tensor, scale: float, left: int, right: int) -> Tensor:
    group = query.shape[1] // keys.shape[1]
    k, v = (t.float().repeat_interleave(group, 1) for t in (keys, values))
    scores = torch.einsum("qhd,khd->hqk", query.float(), k) * scale
    distance = (torch.arange(len(query)) + len(keys) - len(query)).unsqueeze(1) - torch.arange(len(keys))
    hidden = torch.zeros_like(distance, dtype=torch.bool)
    if right >= 0:
        hidden |= distance < -right
    if left >= 0:
        hidden |= distance > left
    weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
    return torch.einsum("hqk,khd->qhd", weights, v).to(query.dtype)
