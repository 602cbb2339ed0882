"""Attention of whole steps: plain torch == the formula, and the flash kernel is called as it wants to be."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from inference.engine.cache.layout import LayerLayout
from inference.engine.kernels.attention_calls import AttentionCall, AttentionParams, Places
from inference.engine.kernels.varlen_attention import (
    PAGE_TOKENS,
    VarlenAttention,
    best_page,
    choose_attention,
    flash_attention,
    flash_attention_of_copies,
    torch_attention,
)
from tests.engine.flash import flash_on_cpu

CPU = torch.device("cpu")
LAYOUT = LayerLayout(2, 16, 16, torch.bfloat16)
WINDOWED = LayerLayout(2, 16, 16, torch.bfloat16, window=100)


@st.composite
def cases(draw):
    """Sequences ``(queries, keys)`` of singles or of chunks, in blocks of some size; 0 is one block each."""
    is_single = draw(st.booleans())
    sizes = draw(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 70)), min_size=1, max_size=4))
    queries = tuple(1 if is_single else q for q, _ in sizes)
    return {
        "queries": queries,
        "lengths": [q + seen for q, (_, seen) in zip(queries, sizes, strict=True)],
        "kv_heads": draw(st.integers(1, 3)),
        "group": draw(st.sampled_from([1, 2, 3])),
        "page": draw(st.sampled_from([0, 8, 32])),
        "window": draw(st.sampled_from([0, 0, 1, 7, 1000])),
        "softcap": draw(st.sampled_from([0.0, 0.0, 5.0])),
        "sink": draw(st.sampled_from([None, float("-inf"), 0.0, 30.0])),
        "slack": draw(st.sampled_from([0, 5])),
        "seed": draw(st.integers(0, 2**16)),
    }


def build_case(case, dtype=torch.float32) -> tuple[Tensor, Places, AttentionCall, AttentionParams]:
    """What lies in the cache and belongs to nobody is not a number."""
    generator = torch.Generator().manual_seed(case["seed"])
    lengths, queries = case["lengths"], case["queries"]
    size = case["page"] or max(lengths) + 3
    width = -(-max(lengths) // size)
    table = (torch.randperm(len(lengths) * width, generator=generator) + 1).view(len(lengths), width).int()
    pools = [torch.randn(table.numel() + 1, size, case["kv_heads"], 8, generator=generator) for _ in range(2)]
    for pool in pools:
        pool[0] = float("nan")
        for row, length in zip(table, lengths, strict=True):
            for block, begin in zip(row, range(0, width * size, size), strict=True):
                pool[block, max(0, length - begin) :] = float("nan")
    query = torch.randn(sum(queries), case["kv_heads"] * case["group"], 8, generator=generator)
    starts = None if case["page"] else torch.cat([table[:, 0] * size, torch.zeros(1, dtype=torch.int32)]).int()
    part = AttentionCall(
        slice(0, sum(queries)),
        slice(0, len(queries)),
        torch.tensor([0, *queries]).cumsum(0).int(),
        torch.tensor(lengths, dtype=torch.int32),
        queries,
        max(lengths) if case["page"] else min(size, max(lengths) + case["slack"]),
    )
    places = Places(pools[0].to(dtype), pools[1].to(dtype), table, starts)
    sinks = None if case.get("sink") is None else torch.randn(query.shape[1], generator=generator) + case["sink"]
    return query.to(dtype), places, part, AttentionParams(8**-0.5, case["window"], case["softcap"], sinks)


def formula(query: Tensor, places: Places, part: AttentionCall, look: AttentionParams) -> Tensor:
    """One query and one head at a time, in Python's own numbers."""
    size, group, out, token = places.keys.shape[1], query.shape[1] // places.keys.shape[2], query.double().clone(), 0
    for i, count in enumerate(part.num_queries):
        length = int(part.lengths[i])
        for position in range(length - count, length):
            seen = [p for p in range(position + 1) if not look.window or p > position - look.window]
            places_of = [(int(places.table[i, p // size]), p % size) for p in seen]
            for head in range(query.shape[1]):
                k = torch.stack([places.keys[b, o, head // group] for b, o in places_of]).double()
                v = torch.stack([places.values[b, o, head // group] for b, o in places_of]).double()
                scores = k @ query[token, head].double() * look.scale
                if look.softcap:
                    scores = look.softcap * torch.tanh(scores / look.softcap)
                sink = -math.inf if look.sinks is None else float(look.sinks[head])
                top = max(float(scores.max()), sink)
                out[token, head] = torch.tensor([math.exp(s - top) for s in scores.tolist()]).double() @ v
                out[token, head] /= sum(math.exp(s - top) for s in [*scores.tolist(), sink])
            token += 1
    return out


@settings(max_examples=30, deadline=None)
@given(cases())
def test_plain_torch_is_the_formula(case):
    step = build_case(case)
    assert torch.allclose(torch_attention(*step).double(), formula(*step), atol=1e-5)


@settings(max_examples=30, deadline=None)
@given(cases(), st.booleans())
def test_the_flash_kernel_is_asked_for_the_same(case, has_copies):
    query, places, part, look = build_case(case)
    look = AttentionParams(look.scale, look.window)
    flash = flash_attention_of_copies if has_copies and case["page"] else flash_attention
    with flash_on_cpu(dtypes=(torch.float32,), page_multiple=8):
        got = flash(query, places, part, look)
    assert torch.allclose(got, torch_attention(query, places, part, look), atol=1e-5)


def test_parts_of_a_step_are_their_own_calls():
    singles, chunks = (
        build_case(case | {"seed": 1})
        for case in (
            {"queries": (1, 1), "lengths": [5, 31], **SHAPE},
            {"queries": (3, 6), "lengths": [3, 30], **SHAPE},
        )
    )
    query = torch.cat([singles[0], chunks[0]])
    pools = [torch.cat([getattr(s, name) for s in (singles[1], chunks[1])]) for name in ("keys", "values")]
    moved = torch.cat([singles[1].table, chunks[1].table + len(singles[1].keys)])
    second = AttentionCall(
        slice(2, 11), slice(2, 4), chunks[2].ends, chunks[2].lengths, chunks[2].num_queries, chunks[2].max_keys
    )
    with flash_on_cpu(dtypes=(torch.float32,), page_multiple=8) as calls:
        attention = VarlenAttention(flash_attention, "here")
        got = attention.attend(query, Places(*pools, moved), (singles[2], second), singles[3])
    assert calls == [1, 6]
    expected = torch.cat([torch_attention(*step) for step in (singles, chunks)])
    assert torch.allclose(got, expected, atol=1e-5)


SHAPE = {"kv_heads": 2, "group": 2, "page": 32, "window": 0, "softcap": 0.0, "slack": 0}


def test_softcapped_layers_are_left_to_torch():
    step = build_case({"queries": (1,), "lengths": [9], **SHAPE, "softcap": 2.0, "seed": 3})
    with flash_on_cpu() as calls:
        got = VarlenAttention(flash_attention, "here").attend(step[0], step[1], (step[2],), step[3])
    assert not calls
    assert torch.equal(got, torch_attention(*step))


@pytest.mark.parametrize(
    ("page_multiple", "page", "reason"),
    [
        (256, PAGE_TOKENS, "a paged cache"),
        (256, 32, "copies of a paged cache"),
        (0, PAGE_TOKENS, "copies of a paged cache"),
        (0, 0, "a contiguous cache"),
    ],
)
def test_the_kernel_is_taken_where_it_agrees(page_multiple, page, reason):
    with flash_on_cpu(page_multiple=page_multiple):
        found = choose_attention([LAYOUT, WINDOWED, LAYOUT], 6, CPU, page=page)
        assert best_page([LAYOUT], 6, CPU, 32) == (PAGE_TOKENS if page_multiple else 0)
    assert str(found) == f"flash: {reason}"


def test_a_machine_without_the_kernel_says_so():
    found = choose_attention([LAYOUT], 6, CPU, page=32)
    assert found.kernel is None
    assert "_flash_attention_forward" in found.reason


@pytest.mark.parametrize(
    ("layout", "reason"),
    [
        (LayerLayout(2, 16, 16, torch.float32), "does not support float32"),
        (LayerLayout(2, 16, 24, torch.bfloat16), "different sizes"),
    ],
)
def test_layers_that_it_cannot_serve_are_named(layout, reason):
    with flash_on_cpu():
        found = choose_attention([LAYOUT, layout], 6, CPU, page=0)
    assert found.kernel is None
    assert reason in found.reason


def test_a_kernel_that_is_wrong_is_not_taken():
    def off_by_one(query, places, part, look):
        return torch_attention(query, places, part, AttentionParams(look.scale, 2))

    found = choose_attention([LAYOUT], 6, CPU, page=32, ways={"a window too narrow": off_by_one})
    assert found.kernel is None
    assert "differs from torch's attention" in found.reason


def test_a_kernel_that_gives_no_numbers_is_not_taken():
    found = choose_attention([LAYOUT], 6, CPU, page=32, ways={"nan": lambda *s: torch_attention(*s) * float("nan")})
    assert found.kernel is None
