"""Replaced linears compute what the plain ones did."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from inference.engine.kernels import native
from inference.engine.kernels.linear_kinds import (
    FEW_INT8_ROWS,
    FEW_ROWS,
    FEW_WIDENED_ROWS,
    Int8Linear,
    PackedLinear,
    RoundedInt8Linear,
    RowsLinear,
    can_read_rows,
    quantise,
    widened_product,
)
from inference.engine.kernels.linears import GroupMember, bytes_of, prepare_linears

ROWS = [1, 2, 3, 4, 5, 7, 12, 16, 31, 48, 130, FEW_ROWS, FEW_ROWS + 1, FEW_INT8_ROWS, FEW_INT8_ROWS + 1]
ROWS.append(FEW_WIDENED_ROWS + 2)
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1e-2}  # relative to the largest result


class Block(nn.Module):
    def __init__(self, *, bias: bool) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj = (
            nn.Linear(70, 96, bias),
            nn.Linear(70, 32, bias),
            nn.Linear(70, 33, bias),
        )
        self.o_proj = nn.Linear(96, 70, bias)

    def forward(self, x):
        return self.q_proj(x), self.k_proj(x), self.v_proj(x)


class Model(nn.Module):
    """Embeddings, one block and a head, tied or not."""

    def __init__(self, *, bias: bool = False, tied: bool = False) -> None:
        super().__init__()
        self.embed, self.block, self.head = nn.Embedding(131, 70), Block(bias=bias), nn.Linear(70, 131, bias=False)
        if tied:
            self.head.weight = self.embed.weight

    def get_input_embeddings(self):
        return self.embed

    def get_output_embeddings(self):
        return self.head

    def set_output_embeddings(self, head):
        self.head = head


@pytest.fixture(autouse=True)
def kernels():
    native.activate()


@pytest.fixture(params=["native", "torch"])
def either_kernels(request, monkeypatch):
    if request.param == "torch":
        without = native.ActiveKernels(is_native=False, reason="a test")
        monkeypatch.setattr(native, "active", lambda: without)
    elif not native.active().has_products:
        pytest.skip(f"no products of ours here: {native.active()}")


def close(got, expected, tolerance):
    assert got.shape == expected.shape
    assert (got.double() - expected.double()).abs().max() <= tolerance * expected.double().abs().max()


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.usefixtures("either_kernels")
def test_native_weights_change_nothing(dtype, bias):
    torch.manual_seed(0)
    model = Model(bias=bias).to(dtype).requires_grad_(False)
    inputs = [torch.randn(1, rows, 70).to(dtype) for rows in ROWS]
    expected = [(*model.block(x), model.block.o_proj(x[..., :1].expand(-1, -1, 96)), model.head(x)) for x in inputs]
    report = prepare_linears(model, weights="native", quantise_head=False)
    head = "RowsLinear" if can_read_rows(dtype) else "PackedLinear"
    assert (report.num_linears, report.num_groups, report.head) == (5, 1, head)
    assert not any(isinstance(m, nn.Linear) for m in model.modules())
    for x, outputs in zip(inputs, expected, strict=True):
        got = (*model.block(x), model.block.o_proj(x[..., :1].expand(-1, -1, 96)), model.head(x))
        for a, b in zip(got, outputs, strict=True):
            assert a.dtype is dtype
            close(a, b, TOLERANCE[dtype])


@pytest.mark.parametrize("in_features", [131, 192])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.usefixtures("either_kernels")
def test_int8_is_its_own_dequantised_weight(dtype, bias, in_features):
    torch.manual_seed(1)
    plain = nn.Linear(in_features, 77, bias).to(dtype).requires_grad_(False)
    fast = Int8Linear(plain.weight, plain.bias)
    for rows in ROWS:
        x = torch.randn(rows, in_features).to(dtype)
        exact = functional.linear(x.double(), fast.dequantised().double(), None if not bias else plain.bias.double())
        close(fast(x), exact, 2e-4 if dtype is torch.float32 else 1e-2)
    assert fast(x[None]).shape == (1, rows, 77)


@pytest.mark.parametrize("rows", [5, 15, 16, 47, 130, 256])
@pytest.mark.parametrize("kind", [RowsLinear, Int8Linear, RoundedInt8Linear])
def test_many_rows_of_many_numbers(kind, rows):
    if not native.active().has_products or (kind is RoundedInt8Linear and not native.active().has_int8):
        pytest.skip(f"no such products of ours here: {native.active()}")
    torch.manual_seed(3)
    plain = nn.Linear(4101, 147).bfloat16().requires_grad_(False)
    x = torch.randn(rows, 4101).bfloat16()
    fast = kind(plain.weight, plain.bias)
    weight = plain.weight if kind is RowsLinear else fast.dequantised()
    exact = functional.linear(x.double(), weight.double(), plain.bias.double())
    close(fast(x), exact, 3e-2 if kind is RoundedInt8Linear else 1e-2)
    if kind is not RowsLinear and native.active().has_int8:  # exact sums of integers, so neighbours change nothing
        assert torch.equal(fast(x)[-7:], fast(x[-7:]))


@pytest.mark.parametrize("rows", [48, 55, 56, 63, 130])
@pytest.mark.parametrize("in_features", [1, 15, 255, 256, 257, 1025])
def test_int8_products_of_many_rows(in_features, rows):
    """Panels of rows, full and not, an odd number of them, and blocks of numbers."""
    torch.manual_seed(4)
    for out_features in (1, 49, 96):
        plain = nn.Linear(in_features, out_features).requires_grad_(False)
        fast = Int8Linear(plain.weight, plain.bias)
        x = torch.randn(rows, in_features) * torch.logspace(-3, 3, rows).unsqueeze(1)
        exact = functional.linear(x.double(), fast.dequantised().double(), plain.bias.double())
        close(fast(x), exact, 2e-4)
        worst = torch.full_like(x, 1000.0)  # the largest sums of integers
        exact = functional.linear(worst.double(), fast.dequantised().double(), plain.bias.double())
        close(fast(worst), exact, 2e-4)
        fast.weight.fill_(127)
        fast.sums.fill_(127 * in_features)
        exact = functional.linear(worst.double(), fast.dequantised().double(), plain.bias.double())
        close(fast(worst), exact, 2e-4)


@pytest.mark.parametrize("in_features", [1, 63, 131, 192, 1024])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_rounded_activations_are_integers_of_8_bits(dtype, bias, in_features):
    if not native.active().has_int8:
        pytest.skip(f"no dot products of bytes here: {native.active()}")
    torch.manual_seed(2)
    plain = nn.Linear(in_features, 77, bias).to(dtype).requires_grad_(False)
    fast = RoundedInt8Linear(plain.weight, plain.bias)
    whole = torch.randint(-127, 128, (max(ROWS), in_features))
    whole[:, 0] = 127  # so that one step of the rounding is 1
    x = whole.to(dtype)
    x[3] = 0
    exact = functional.linear(x.double(), fast.dequantised().double(), None if not bias else plain.bias.double())
    for rows in ROWS:
        close(fast(x[:rows]), exact[:rows], 1e-5 if dtype is torch.float32 else 1e-2)
    if dtype is torch.float32:  # 16 bits cannot hold what is rounded off
        moved = (x + torch.rand(x.shape).sub(0.5).mul(0.9)).clamp(-127, 127)
        x[:, 0] = moved[:, 0] = 127
        assert torch.equal(fast(moved), fast(x))


def test_rows_of_rounded_activations_do_not_depend_on_each_other():
    if not native.active().has_int8:
        pytest.skip(f"no dot products of bytes here: {native.active()}")
    torch.manual_seed(3)
    fast = RoundedInt8Linear(torch.randn(70, 200), None)
    x = torch.randn(40, 200) * torch.logspace(-6, 6, 40).unsqueeze(1)
    whole = fast(x)
    for count in (1, 2, 5, 6, 7, 12, 23):
        assert torch.equal(fast(x[:count]), whole[:count])


def test_quantisation_is_half_a_step_off_at_most():
    weight = torch.randn(50, 64) * torch.logspace(-6, 6, 50).unsqueeze(1)
    weight[7] = 0
    rounded, scales = quantise(weight)
    assert rounded.abs().max() == 127
    assert ((rounded * scales.unsqueeze(1) - weight).abs() <= scales.unsqueeze(1) * 0.5001).all()
    assert not rounded[7].any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("in_features", [1, 31, 64, 65, 127, 128, 200, 1024, 3000])
def test_rows_of_any_length(in_features, dtype):
    if not native.active().has_products:
        pytest.skip(f"no products of ours here: {native.active()}")
    torch.manual_seed(in_features)
    for out_features in (1, 4, 6, 67):
        weight, bias = torch.randn(out_features, in_features).to(dtype), torch.randn(out_features).to(dtype)
        for rows in (1, 2, 3, 4, 6, 9, 13):
            x = torch.randn(rows, in_features + 5).to(dtype)[:, :in_features]  # strided
            close(RowsLinear(weight, bias)(x), functional.linear(x.double(), weight.double(), bias.double()), 1e-2)
            quantised = Int8Linear(weight, bias)
            exact = functional.linear(x.double(), quantised.dequantised().double(), bias.double())
            close(quantised(x), exact, 1e-2)


@pytest.mark.parametrize("rows", [1, 2, 3, 7, 150])
@pytest.mark.parametrize("in_features", [512, 4096, 4097, 40_000])
def test_the_largest_int8_sums_overflow_nowhere(in_features, rows):
    linear = Int8Linear(torch.tensor([[1.0], [-1.0]]).expand(2, in_features).contiguous(), None)
    got = linear(torch.full((rows, in_features), 2.0))
    assert torch.allclose(got, torch.tensor([2.0, -2.0]).mul(in_features).expand(rows, 2), rtol=1e-4)


@pytest.mark.parametrize("rows", [2, 5, 80])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.usefixtures("either_kernels")
def test_a_row_that_is_no_number_spoils_no_other(rows, bad):
    torch.manual_seed(2)
    linear = Int8Linear(torch.randn(9, 128), None)
    x = torch.randn(rows, 128)
    expected = linear(x)
    x[1, 3] = bad
    got = linear(x)
    assert not got[1].isfinite().any()
    close(got[[0, *range(2, rows)]], expected[[0, *range(2, rows)]], 1e-5)


@pytest.mark.parametrize("rows", [1, 70])
def test_widened_products_round_once(rows):
    weight, bias, x = torch.randn(2100, 33).bfloat16(), torch.randn(2100).bfloat16(), torch.randn(rows, 33).bfloat16()
    exact = functional.linear(x.double(), weight.double(), bias.double())
    assert (widened_product(x, weight, bias).double() - exact).abs().max() <= exact.abs().max() * 2**-8
    scales = torch.rand(2100)
    scaled = functional.linear(x.double(), weight.double() * scales.double().unsqueeze(1), bias.double())
    assert (widened_product(x, weight, bias, scales).double() - scaled).abs().max() <= scaled.abs().max() * 2**-8


def test_extreme_activations_in_int8():
    fast = Int8Linear(torch.randn(16, 4096), None)
    x = torch.zeros(3, 4096)
    x[1, 5], x[2] = 1e30, 1e-30
    got = fast(x)
    assert torch.equal(got[0], torch.zeros(16))
    close(got[1:], x[1:].double() @ fast.dequantised().double().T, 1e-3)


@pytest.mark.usefixtures("either_kernels")
def test_a_tied_head_keeps_the_embeddings():
    model = Model(tied=True).bfloat16().requires_grad_(False)
    ids, x = torch.arange(131), torch.randn(3, 70).bfloat16()
    rows, expected, before = model.embed(ids), model.head(x), bytes_of(model)
    report = prepare_linears(model, weights="native", quantise_head=False)
    assert torch.equal(model.embed(ids), rows)
    close(model.head(x), expected, 1e-2)
    assert report.bytes_before == before
    if can_read_rows(torch.bfloat16):
        assert report.head == "RowsLinear"
        assert report.bytes_after == before
        assert model.head.weight.data_ptr() == model.embed.weight.data_ptr()


def test_int8_bytes_and_head():
    def prepared(**how):
        return prepare_linears(Model(tied=True).bfloat16().requires_grad_(False), weights="int8", **how)

    kept, all_of_it = prepared(quantise_head=False), prepared(quantise_head=True)
    assert kept.head != "Int8Linear"
    assert all_of_it.head == "Int8Linear"
    embeddings, linears = 131 * 70, 70 * (96 + 32 + 33) + 96 * 70
    assert kept.bytes_before == 2 * (embeddings + linears)
    outputs = 96 + 32 + 33 + 70
    assert all_of_it.bytes_after == 2 * embeddings + embeddings + linears + 8 * (outputs + 131)


def test_a_group_computes_once_per_input_and_never_serves_a_stale_one():
    model = Model().requires_grad_(False)
    block, plain = model.block, Model().requires_grad_(False).block
    plain.load_state_dict(block.state_dict())
    prepare_linears(model, weights="native", quantise_head=False)
    assert all(isinstance(m, GroupMember) for m in (block.q_proj, block.k_proj, block.v_proj))
    calls = []
    block.q_proj.product.register_forward_hook(lambda *_: calls.append(1))
    x, other = torch.randn(2, 70), torch.randn(2, 70)
    block(x)
    assert len(calls) == 1
    block(x)
    assert len(calls) == 2
    for member, name, value in [(0, "q_proj", x), (0, "q_proj", other), (1, "k_proj", x), (1, "k_proj", x)]:
        close(getattr(block, name)(value), getattr(plain, name)(value), 1e-5)
        assert getattr(block, name).in_features == 70, member
    close(block.v_proj(x), plain.v_proj(x), 1e-5)


def test_other_linears_are_left_alone():
    class Own(nn.Linear):
        pass

    module = nn.ModuleDict({"own": Own(8, 8), "doubles": nn.Linear(8, 8).double(), "plain": nn.Linear(8, 8)})
    report = prepare_linears(module.requires_grad_(False), weights="native", quantise_head=False)
    assert report.num_linears == 1
    assert type(module["own"]) is Own
    assert type(module["doubles"]) is nn.Linear
    assert isinstance(module["plain"], PackedLinear)
