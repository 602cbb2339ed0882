"""Decode attention: C++ == plain torch == the formula in numpy, whatever the layout and the lengths."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.engine.kernels import native
from inference.engine.kernels.native import fallback

DTYPES = {"float32": 2e-5, "bfloat16": 2e-2, "float16": 3e-3}  # largest difference from the formula


@pytest.fixture(scope="module", autouse=True)
def built():
    if not native.activate().is_native:
        pytest.skip(f"no C++ kernels here: {native.active()}")


@st.composite
def cases(draw):
    kv_heads, group = draw(st.integers(1, 3)), draw(st.sampled_from([1, 2, 3, 4, 7]))
    lengths = draw(st.lists(st.integers(1, 300), min_size=1, max_size=5))
    return {
        "dtype": draw(st.sampled_from(sorted(DTYPES))),
        "kv_heads": kv_heads,
        "heads": kv_heads * group,
        "head_dim": draw(st.sampled_from([8, 24, 64, 80, 128, 256])),
        "block_size": draw(st.sampled_from([1, 16, 32, 48, 512])),
        "lengths": lengths,
        "window": draw(st.sampled_from([0, 0, 1, 7, 64, 1000])),
        "softcap": draw(st.sampled_from([0.0, 0.0, 5.0, 50.0])),
        "heads_first": draw(st.booleans()),
        "has_sinks": draw(st.booleans()),
        "first_sink": draw(st.sampled_from([float("-inf"), -80.0, 0.0, 80.0])),
        "seed": draw(st.integers(0, 2**16)),
    }


def sinks_of(case, heads):
    """A score for each head, from one that takes nothing to one that takes nearly everything; None without sinks."""
    if not case.get("has_sinks"):
        return None
    sinks = torch.randn(heads, generator=torch.Generator().manual_seed(case["seed"])) * 3
    sinks[0] = case["first_sink"]
    return sinks


def build_case(case):
    generator = torch.Generator().manual_seed(case["seed"])
    dtype = getattr(torch, case["dtype"])
    n, size, kv_heads, head_dim = len(case["lengths"]), case["block_size"], case["kv_heads"], case["head_dim"]
    blocks_each = -(-max(case["lengths"]) // size)
    total = n * blocks_each + 1  # block 0 is nobody's, and poisoned
    table = (torch.randperm(n * blocks_each, generator=generator) + 1).view(n, blocks_each).int()
    pools = []
    for _ in range(2):
        shape = (total, kv_heads, size, head_dim) if case["heads_first"] else (total, size, kv_heads, head_dim)
        pool = torch.randn(shape, generator=generator).to(dtype)
        pool[0] = float("nan")
        pools.append(pool.transpose(1, 2) if case["heads_first"] else pool)
    query = torch.randn(n, 2, case["heads"], head_dim, generator=generator).to(dtype)[:, 0]  # strided
    return query, *pools, table, torch.tensor(case["lengths"], dtype=torch.int32)


def formula(query, keys, values, table, lengths, scale, window, softcap, sinks=None):
    """softmax(q k^T) v in float64, one head and one sequence after the other."""
    query, keys, values = (t.double().numpy() for t in (query, keys, values))
    size, group = keys.shape[1], query.shape[1] // keys.shape[2]
    out = np.zeros(query.shape)
    for i, length in enumerate(lengths.tolist()):
        places = [t for t in range(length) if not window or t > length - 1 - window]
        rows = [(int(table[i, t // size]), t % size) for t in places]
        for head in range(query.shape[1]):
            scores = np.array([query[i, head] @ keys[b, o, head // group] for b, o in rows]) * scale
            if softcap:
                scores = softcap * np.tanh(scores / softcap)
            sink = -np.inf if sinks is None else float(sinks[head])
            weights = np.exp(scores - max(scores.max(), sink))
            weights /= weights.sum() + np.exp(sink - max(scores.max(), sink))
            out[i, head] = sum(w * values[b, o, head // group] for w, (b, o) in zip(weights, rows, strict=True))
    return out


@settings(max_examples=60, deadline=None)
@given(cases())
def test_native_and_fallback_follow_the_formula(case):
    tensors = build_case(case)
    how = (case["head_dim"] ** -0.5, case["window"], case["softcap"], sinks_of(case, case["heads"]))
    expected = formula(*tensors, *how)
    for attention in (native.decode_attention, fallback.decode_attention):
        got = attention(*tensors, *how)
        assert got.dtype is tensors[0].dtype
        np.testing.assert_allclose(got.double().numpy(), expected, atol=DTYPES[case["dtype"]], rtol=0)


@pytest.mark.parametrize("threads", [1, 2, 3, 5])
def test_a_long_sequence_is_shared_by_threads(threads):
    case = {"dtype": "float32", "kv_heads": 2, "heads": 4, "head_dim": 64, "block_size": 32, "lengths": [1000, 3, 700]}
    case |= {"window": 0, "softcap": 0.0, "heads_first": True, "seed": 1}
    tensors, before = build_case(case), torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        got = native.decode_attention(*tensors, 0.125, 0, 0.0)
    finally:
        torch.set_num_threads(before)
    np.testing.assert_allclose(got.numpy(), formula(*tensors, 0.125, 0, 0.0), atol=2e-5)


def test_large_scores_do_not_overflow():
    query, keys, values, table, lengths = build_case(
        {"dtype": "float32", "kv_heads": 1, "heads": 2, "head_dim": 64, "block_size": 32, "lengths": [90]}
        | {"window": 0, "softcap": 0.0, "heads_first": True, "seed": 2}
    )
    got = native.decode_attention(query * 1000, keys, values, table, lengths, 1.0, 0, 0.0)
    np.testing.assert_allclose(got.numpy(), formula(query * 1000, keys, values, table, lengths, 1.0, 0, 0.0), atol=1e-4)


@pytest.mark.parametrize("heads_first", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_write_kv(dtype, heads_first):
    generator = torch.Generator().manual_seed(3)
    slots = torch.randperm(5 * 16, generator=generator)[:37]
    key, value = (torch.randn(37, 6, 2, 24, generator=generator).to(dtype)[:, 1:4:2].transpose(1, 2) for _ in range(2))
    key, value = key.transpose(1, 2), value.transpose(1, 2)
    results = []
    for write in (native.write_kv, fallback.write_kv):
        shape = (5, 2, 16, 24) if heads_first else (5, 16, 2, 24)
        pools = [torch.zeros(shape, dtype=dtype) for _ in range(2)]
        pools = [p.transpose(1, 2) if heads_first else p for p in pools]
        write(*pools, key[:, :2, 0], value[:, :2, 1], slots)
        results.append(pools)
    for pool, other, rows in zip(*results, (key[:, :2, 0], value[:, :2, 1]), strict=True):
        assert torch.equal(pool, other)
        assert torch.equal(pool[slots // 16, slots % 16], rows)
        assert pool.count_nonzero() == rows.count_nonzero()


def test_wrong_arguments_are_refused():
    query, keys = torch.zeros(1, 3, 8), torch.zeros(2, 4, 2, 8)
    table, lengths = torch.zeros(1, 2, dtype=torch.int32), torch.ones(1, dtype=torch.int32)
    with pytest.raises(RuntimeError, match="heads"):
        native.decode_attention(query, keys, keys, table, lengths, 1.0, 0, 0.0)
    with pytest.raises(RuntimeError, match="int32"):
        native.decode_attention(query[:, :2], keys, keys, table, lengths.long(), 1.0, 0, 0.0)
    with pytest.raises(RuntimeError, match="fit"):
        native.write_kv(keys, keys, torch.zeros(1, 2, 9), torch.zeros(1, 2, 9), torch.zeros(1, dtype=torch.int64))
