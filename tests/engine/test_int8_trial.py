"""int8 products of a GPU's kind, tried out on the CPU."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from inference.engine.kernels.int8_trial import TRIED_ROWS, int8_problem, measured_rows
from inference.engine.kernels.linear_kinds import GpuInt8Linear, PlainLinear

CPU = torch.device("cpu")
SIZE = 128


@pytest.mark.parametrize("few_rows", [0, 4])
@pytest.mark.parametrize("bias", [False, True])
def test_the_product_is_its_own_dequantised_weight(few_rows, bias):
    torch.manual_seed(0)
    plain = nn.Linear(SIZE, 77, bias).requires_grad_(False)
    linear = GpuInt8Linear(plain.weight, plain.bias, few_rows)
    for rows in (1, 4, 5, 70):
        x = torch.randn(1, rows, SIZE)
        exact = functional.linear(x.double(), linear.dequantised().double(), plain.bias.double() if bias else None)
        assert (linear(x) - exact).abs().max() <= 1e-4 * exact.abs().max()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_int8_can_be_used_where_products_agree(dtype):
    assert int8_problem(CPU, dtype, SIZE) == ""


def test_a_type_without_products_is_named():
    assert "float64" in int8_problem(CPU, torch.float64, SIZE)


@pytest.mark.parametrize(("faster_up_to", "expected"), [(0, 0), (2, 2), (4, 4), (99, max(TRIED_ROWS))])
def test_the_packed_kernel_serves_rows_up_to_which_it_is_faster(faster_up_to, expected):
    calls = 0

    def clock(act) -> float:
        nonlocal calls
        rows, is_packed = len(act()), calls % 2 == 0
        calls += 1
        return float(is_packed == (rows > faster_up_to))

    assert measured_rows(CPU, torch.float32, clock, SIZE) == expected


def test_a_kernel_that_is_not_there_serves_none():
    """torch's own on the CPU wants scales in the rows' type, which these are not."""
    assert measured_rows(CPU, torch.bfloat16, lambda act: 0.0 if len(act()) else 1.0, SIZE) == 0


def test_a_joined_product_is_a_plain_one():
    plain = nn.Linear(SIZE, 77).requires_grad_(False)
    x = torch.randn(2, SIZE)
    assert torch.equal(PlainLinear(plain.weight, plain.bias)(x), plain(x))
