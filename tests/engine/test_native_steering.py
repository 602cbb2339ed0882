"""Steering at one site: C++ == plain torch == the formula in numpy, whatever the rows, entries and gates."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.engine.kernels import native
from inference.engine.kernels.native import fallback
from inference.engine.kernels.native.steering_tensors import (
    ACTS,
    HAS_VECTOR,
    KEEPS_NORM,
    NORMALIZATIONS,
    Code,
    Number,
    SteeringTensors,
)

DTYPES = {"float32": 2e-5, "bfloat16": 1e-2, "float16": 2e-3}  # largest difference from the formula, per unit of norm
INF = float("inf")
STEERS = (native.steer, fallback.steer, fallback.steer_each)


@pytest.fixture(scope="module", autouse=True)
def built():
    if not native.activate().is_native:
        pytest.skip(f"no C++ kernels here: {native.active()}")


@st.composite
def cases(draw) -> dict[str, Any]:
    return {
        "dtype": draw(st.sampled_from(sorted(DTYPES))),
        "width": draw(st.sampled_from([2, 7, 16, 33, 64, 200])),
        "tokens": draw(st.integers(1, 9)),
        "rows": draw(st.integers(1, 5)),
        "normalizations": draw(st.lists(st.sampled_from(NORMALIZATIONS), min_size=1, max_size=3, unique=True)),
        "has_given": draw(st.booleans()),
        "seed": draw(st.integers(0, 2**16)),
    }


def build_case(case) -> tuple[torch.Tensor, torch.Tensor, SteeringTensors, torch.Tensor | None]:
    """Row 0 does nothing; each other owns up to 4 entries in slots that are mixed up, and a slot is nobody's."""
    rng, d = np.random.default_rng(case["seed"]), case["width"]
    per_row = [int(n) for n in rng.integers(0, 5, case["rows"])]
    num_rows, num_entries = case["rows"] + 1, sum(per_row) + 1
    slots_of = np.split(rng.permutation(num_entries)[: sum(per_row)], np.cumsum(per_row)[:-1])
    numbers = np.zeros((num_entries, len(Number)), np.float32)
    codes = np.zeros((num_entries, len(Code)), np.int32)
    numbers[:, Number.BIAS] = 0.1 * rng.normal(size=num_entries)
    numbers[:, Number.THRESHOLD] = rng.choice([-INF, 0.0, 0.3], num_entries)
    numbers[:, Number.GAIN_LESS_ONE] = rng.choice([0.0, -1.0, 1.5], num_entries)
    numbers[:, Number.OFFSET] = rng.choice([0.0, 2.0, -1.0], num_entries)
    numbers[:, Number.LOWER] = rng.choice([-INF, 0.1], num_entries)
    numbers[:, Number.UPPER] = rng.choice([INF, 0.5], num_entries)
    numbers[:, Number.FLOOR] = -INF
    typical = np.sqrt(d)
    numbers[:, Number.NORM_LIMIT] = rng.choice([INF, 1.1 * typical, 0.9 * typical], num_entries)
    kinds = [NORMALIZATIONS.index(kind) for kind in case["normalizations"]]
    codes[:, Code.NORMALIZATION] = rng.choice(kinds, num_entries)
    codes[:, Code.GATE] = np.arange(num_entries)
    codes[:, Code.IS_GIVEN] = rng.integers(0, 2, num_entries) if case["has_given"] else 0
    slots, counts = np.zeros((num_rows, 4), np.int32), np.zeros(num_rows, np.int32)
    flags = np.zeros(num_rows, np.uint8)
    for row, mine in enumerate(slots_of, start=1):
        counts[row], slots[row, : len(mine)] = len(mine), mine
        codes[mine, Code.ROW] = row
        flags[row] = ACTS | rng.choice([0, HAS_VECTOR]) | rng.choice([0, KEEPS_NORM])
        for slot in mine[rng.random(len(mine)) < 0.5]:
            codes[slot, Code.GATE], numbers[slot, Number.FLOOR] = rng.choice(mine), 0.2
    vectors = rng.normal(size=(num_rows, d)).astype(np.float32) * (flags[:, None] & HAS_VECTOR > 0)
    read, write = ((rng.normal(size=(num_entries, d)) / np.sqrt(d)).astype(np.float32) for _ in range(2))
    kinds_present = tuple(kind for kind in NORMALIZATIONS if kind in case["normalizations"])
    tables = SteeringTensors(
        flags=torch.from_numpy(flags),
        vectors=torch.from_numpy(vectors),
        norm_limits=torch.from_numpy(rng.choice([INF, typical], num_rows).astype(np.float32)),
        counts=torch.from_numpy(counts),
        slots=torch.from_numpy(slots),
        read=torch.from_numpy(read),
        write=torch.from_numpy(write),
        numbers=torch.from_numpy(numbers),
        codes=torch.from_numpy(codes),
        normalizations=kinds_present,
    )
    hidden = torch.from_numpy(rng.normal(size=(case["tokens"], 2 * d))).to(getattr(torch, case["dtype"]))[:, :d]
    rows = torch.from_numpy(rng.integers(0, num_rows, case["tokens"]))
    given = torch.from_numpy(rng.random((case["tokens"], num_entries)).astype(np.float32))
    return hidden, rows, tables, given if case["has_given"] else None


def formula(hidden, rows, tables, given):
    """In float64, one token, one entry and one gate after the other. None where a gate or threshold is too near."""
    numbers, codes = tables.numbers.double().numpy(), tables.codes.numpy()
    out = hidden.double().numpy().copy()
    for t, row in enumerate(rows.tolist()):
        flags, mine = int(tables.flags[row]), tables.slots[row, : tables.counts[row]].tolist()
        if not flags & ACTS:
            continue
        h = hidden[t].double().numpy()
        views = {0: (h, 1.0), 1: constant_norm(h), 2: layer_norm(h)}
        a = {}
        for e in mine:
            pre = views[codes[e, Code.NORMALIZATION]][0] @ tables.read[e].double().numpy() + numbers[e, Number.BIAS]
            if abs(pre - numbers[e, Number.THRESHOLD]) < 1e-5:
                return None
            a[e] = float(given[t, e]) if codes[e, Code.IS_GIVEN] else pre * (pre > numbers[e, Number.THRESHOLD])
        norm = np.linalg.norm(h)
        if (np.abs(norm - [float(tables.norm_limits[row]), *numbers[mine, Number.NORM_LIMIT]]) < 1e-3).any():
            return None
        total = h + tables.vectors[row].double().numpy() * (norm <= tables.norm_limits[row].item())
        for e in mine:
            chain = [e, int(codes[e, Code.GATE])]
            if any(abs(a[int(codes[g, Code.GATE])] - numbers[g, Number.FLOOR]) < 1e-5 for g in chain):
                return None
            if not all(a[int(codes[g, Code.GATE])] > numbers[g, Number.FLOOR] for g in chain):
                continue
            wanted = numbers[e, Number.GAIN_LESS_ONE] * a[e] + numbers[e, Number.OFFSET]
            change = min(max(wanted, numbers[e, Number.LOWER] - a[e]), numbers[e, Number.UPPER] - a[e])
            change *= norm <= numbers[e, Number.NORM_LIMIT]
            total = total + change * views[codes[e, Code.NORMALIZATION]][1] * tables.write[e].double().numpy()
        if flags & KEEPS_NORM:
            total = total * np.linalg.norm(h) / np.linalg.norm(total)
        out[t] = total
    return out


def constant_norm(h):
    scale = np.linalg.norm(h) / np.sqrt(len(h))
    return h / scale, scale


def layer_norm(h):
    scale = h.std(ddof=1)
    return (h - h.mean()) / (scale + 1e-5), scale


@settings(max_examples=150, deadline=None)
@given(case=cases())
def test_native_equals_torch_and_the_formula(case):
    hidden, rows, tables, given = build_case(case)
    expected = formula(hidden, rows, tables, given)
    if expected is None:
        return
    bound = DTYPES[case["dtype"]] * (1 + np.linalg.norm(expected, axis=-1, keepdims=True))
    h = hidden.double().numpy()
    for steer in STEERS:
        got, changes = steer(hidden, rows, tables, given)
        assert got.dtype is hidden.dtype
        assert (np.abs(got.double().numpy() - expected) <= bound).all(), steer
        moved = np.linalg.norm(got.double().numpy() - h, axis=-1)
        np.testing.assert_allclose(changes.numpy(), moved / np.linalg.norm(h, axis=-1), rtol=1e-3, atol=1e-6)
        assert ((changes != 0).numpy() == (moved != 0)).all()


def test_what_rounding_swallows_is_no_change():
    """A step of a thousandth of a bfloat16 leaves it as it was: the receipt must not call that steering."""
    hidden, rows, tables, _ = build_case(EXAMPLE)
    hidden, rows = hidden.bfloat16() + 4, torch.ones_like(rows)
    one = tables.flags.clone().fill_(ACTS | HAS_VECTOR)
    small = replace(
        tables, flags=one, vectors=torch.full_like(tables.vectors, 1e-5), counts=torch.zeros_like(tables.counts),
        norm_limits=torch.full_like(tables.norm_limits, INF),
    )  # fmt: skip
    for steer in STEERS:
        got, changes = steer(hidden, rows, small, None)
        assert torch.equal(got, hidden)
        assert changes.tolist() == [0.0] * len(hidden)
        _, changes = steer(hidden.float(), rows, small, None)
        assert (changes > 0).all()


def test_the_change_of_a_residual_of_zeros_is_whole():
    hidden, rows, tables, _ = build_case(EXAMPLE)
    adds = replace(
        tables, flags=tables.flags.clone().fill_(ACTS | HAS_VECTOR), vectors=torch.ones_like(tables.vectors),
        counts=torch.zeros_like(tables.counts), norm_limits=torch.full_like(tables.norm_limits, INF),
        codes=torch.zeros_like(tables.codes),
    )  # fmt: skip
    for steer in STEERS:
        _, changes = steer(torch.zeros_like(hidden), torch.ones_like(rows), adds, None)
        assert changes.tolist() == [1.0] * len(hidden)


@settings(max_examples=60, deadline=None)
@given(case=cases())
def test_tokens_of_rows_that_do_not_act_keep_their_bits_beside_poison(case):
    hidden, rows, tables, given = build_case(case)
    hidden[0, 0] = -0.0
    hidden[rows > 0] = INF
    tables = replace(tables, vectors=tables.vectors * INF, write=tables.write * 1e30)
    for steer in STEERS:
        got, changes = steer(hidden, rows, tables, given)
        assert not changes[rows == 0].any()
        assert torch.equal(got[rows == 0].view(torch.uint8), hidden[rows == 0].contiguous().view(torch.uint8))


@settings(max_examples=60, deadline=None)
@given(case=cases())
def test_a_token_does_not_depend_on_the_others(case):
    """Bit by bit in C++, and in torch with batch invariance, where each token is computed by itself."""
    hidden, rows, tables, given = build_case(case)
    for steer in (native.steer, fallback.steer_each):
        together, changes = steer(hidden, rows, tables, given)
        for t in range(len(hidden)):
            alone = steer(hidden[t : t + 1], rows[t : t + 1], tables, None if given is None else given[t : t + 1])
            assert torch.equal(alone[0][0], together[t])
            assert torch.equal(alone[1][0], changes[t])


def test_a_row_that_does_not_exist_is_an_error():
    hidden, _, tables, _ = build_case({**EXAMPLE, "rows": 2})
    with pytest.raises(RuntimeError, match="there is no row 3"):
        native.steer(hidden, torch.full((len(hidden),), 3), tables)


def test_each_token_needs_a_row():
    hidden, rows, tables, _ = build_case(EXAMPLE)
    with pytest.raises(RuntimeError, match="one row per token"):
        native.steer(hidden, rows[1:], tables)


EXAMPLE = {
    "dtype": "float32", "width": 16, "tokens": 4, "rows": 3, "normalizations": ["none"], "has_given": False, "seed": 1,
}  # fmt: skip
