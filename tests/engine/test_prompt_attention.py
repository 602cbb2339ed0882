"""Attention of prompts' chunks: C++ == plain torch == the formula in numpy, whatever the layout and the lengths."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.engine.kernels import native
from inference.engine.kernels.native import fallback

DTYPES = {"float32": 2e-5, "bfloat16": 3e-2, "float16": 5e-3}  # largest difference from the formula


@pytest.fixture(scope="module", autouse=True)
def built():
    if not native.activate().is_native:
        pytest.skip(f"no C++ kernels here: {native.active()}")


@st.composite
def cases(draw):
    chunk = st.tuples(st.sampled_from([0, 0, 1, 31, 150]), st.integers(1, 120))
    return {
        "dtype": draw(st.sampled_from(sorted(DTYPES))),
        "kv_heads": draw(st.integers(1, 3)),
        "group": draw(st.sampled_from([1, 2, 3, 7, 40])),
        "head_dim": draw(st.sampled_from([8, 24, 64, 80, 128, 256])),
        "block_size": draw(st.sampled_from([1, 16, 32, 48, 512])),
        "chunks": draw(st.lists(chunk, min_size=1, max_size=4)),
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
    size, kv_heads, head_dim, chunks = case["block_size"], case["kv_heads"], case["head_dim"], case["chunks"]
    blocks_each = -(-max(start + count for start, count in chunks) // size)
    total = len(chunks) * blocks_each + 1  # block 0 is nobody's, and poisoned
    table = (torch.randperm(len(chunks) * blocks_each, generator=generator) + 1).view(len(chunks), -1).int()
    pools = []
    for _ in range(2):
        shape = (total, kv_heads, size, head_dim) if case["heads_first"] else (total, size, kv_heads, head_dim)
        pool = torch.randn(shape, generator=generator).to(dtype)
        pool[0] = float("nan")
        pools.append(pool.transpose(1, 2) if case["heads_first"] else pool)
    num_tokens = sum(count for _, count in chunks)
    heads_then_tokens = torch.randn(kv_heads * case["group"], num_tokens, head_dim, generator=generator).to(dtype)
    starts, counts = (torch.tensor(column, dtype=torch.int32) for column in zip(*chunks, strict=True))
    return heads_then_tokens.transpose(0, 1), *pools, table, starts, counts


def formula(query, keys, values, table, starts, counts, scale, window, softcap, sinks=None):
    """softmax(q k^T) v in float64, one head of one chunk after the other."""
    query, keys, values = (t.double().numpy() for t in (query, keys, values))
    size, group = keys.shape[1], query.shape[1] // keys.shape[2]
    out, first = np.zeros(query.shape), 0
    for i, (start, count) in enumerate(zip(starts.tolist(), counts.tolist(), strict=True)):
        places = np.arange(start + count)
        k = keys[table[i].numpy()[places // size], places % size]
        v = values[table[i].numpy()[places // size], places % size]
        positions = np.arange(start, start + count)[:, None]
        hidden = (places > positions) | ((places <= positions - window) if window else False)
        for head in range(query.shape[1]):
            scores = query[first : first + count, head] @ k[:, head // group].T * scale
            if softcap:
                scores = softcap * np.tanh(scores / softcap)
            scores[hidden] = -np.inf
            sink = -np.inf if sinks is None else float(sinks[head])
            top = np.maximum(scores.max(1, keepdims=True), sink)
            weights = np.exp(scores - top)
            total = weights.sum(1, keepdims=True) + np.exp(sink - top)
            out[first : first + count, head] = weights / total @ v[:, head // group]
        first += count
    return out


@settings(max_examples=60, deadline=None)
@given(cases())
def test_native_and_fallback_follow_the_formula(case):
    tensors = build_case(case)
    how = (case["head_dim"] ** -0.5, case["window"], case["softcap"], sinks_of(case, case["kv_heads"] * case["group"]))
    expected = formula(*tensors, *how)
    for attention in (native.prompt_attention, fallback.prompt_attention):
        got = attention(*tensors, *how)
        assert got.dtype is tensors[0].dtype
        np.testing.assert_allclose(got.double().numpy(), expected, atol=DTYPES[case["dtype"]], rtol=0)


def case_of(**changed):
    case = {"dtype": "float32", "kv_heads": 2, "group": 2, "head_dim": 64, "block_size": 32, "heads_first": True}
    return case | {"chunks": [(0, 300), (500, 3), (40, 70)], "seed": 1} | changed


@pytest.mark.parametrize("threads", [1, 2, 3, 5])
def test_the_number_of_threads_changes_nothing(threads):
    tensors, before = build_case(case_of()), torch.get_num_threads()
    alone = native.prompt_attention(*tensors, 0.125, 0, 0.0)
    try:
        torch.set_num_threads(threads)
        assert torch.equal(native.prompt_attention(*tensors, 0.125, 0, 0.0), alone)
    finally:
        torch.set_num_threads(before)


def test_a_chunk_is_the_same_alone_and_beside_others():
    query, keys, values, table, starts, counts = build_case(case_of())
    whole = native.prompt_attention(query, keys, values, table, starts, counts, 0.125, 0, 0.0)
    last = native.prompt_attention(
        query[-70:], keys, values, table[-1:], starts[-1:].contiguous(), counts[-1:].contiguous(), 0.125, 0, 0.0
    )
    assert torch.equal(whole[-70:], last)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_large_scores_do_not_overflow(dtype):
    tensors = build_case(case_of(chunks=[(10, 150)], dtype=dtype))
    tensors = (tensors[0] * 1000, *tensors[1:])
    got = native.prompt_attention(*tensors, 1.0, 0, 0.0)
    np.testing.assert_allclose(got.double().numpy(), formula(*tensors, 1.0, 0, 0.0), atol=max(1e-2, DTYPES[dtype]))


def test_counts_that_do_not_add_up_are_refused():
    query, keys, values, table, starts, counts = build_case(case_of())
    with pytest.raises(RuntimeError, match="do not add up"):
        native.prompt_attention(query[:-1], keys, values, table, starts, counts, 0.125, 0, 0.0)
