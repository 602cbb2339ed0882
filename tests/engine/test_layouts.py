"""Interleaved weights, and the products with them."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from inference.engine.kernels import native
from inference.engine.kernels.layouts import (
    InterleavedEmbedding,
    can_interleave,
    interleaved,
    is_interleaved,
    needs_only_rows,
    row_major,
    sizes_of,
)
from inference.engine.kernels.linear_kinds import (
    Int8Linear,
    OrderedInt8Linear,
    OrderedLinear,
    RoundedInt8Linear,
    RowsLinear,
    quantise,
)
from inference.engine.kernels.linears import bytes_of, prepare_linears
from inference.engine.kernels.pages import HUGE_PAGE, in_huge_pages

DTYPES = (torch.bfloat16, torch.int8)


@pytest.fixture(autouse=True)
def kernels():
    native.activate()
    if not can_interleave(torch.empty(16, 4, dtype=torch.bfloat16)):
        pytest.skip(f"no interleaved weights here: {native.active()}")


@pytest.fixture
def row_major_int8(monkeypatch):
    """Let int8 linears keep the row-major layout."""

    def make(kind, weight, bias):
        with monkeypatch.context() as patch:
            patch.setattr(kind, "_laid_out", lambda self, rounded: rounded)
            return kind(weight, bias)

    return make


def numbers(*shape, seed=0, dtype=torch.bfloat16):
    drawn = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return quantise(drawn)[0] if dtype is torch.int8 else drawn.to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("out_features", "in_features"), [(16, 4), (48, 1000), (2048, 1024), (160, 6)])
def test_every_number_has_its_place(dtype, out_features, in_features):
    weight = numbers(out_features, in_features, dtype=dtype)
    laid_out = interleaved(weight)
    if in_features * weight.element_size() % 4:
        assert torch.equal(laid_out, weight)
        return
    assert is_interleaved(laid_out)
    assert sizes_of(laid_out) == (out_features, in_features)
    assert torch.equal(row_major(laid_out), weight)
    per_word = 4 // weight.element_size()
    assert laid_out[-1, -1, 3, 1] == weight[out_features - 16 + 3, in_features - per_word + 1]


@pytest.mark.parametrize("shape", [(17, 64), (16, 63), (15, 64), (1, 2)])
def test_others_stay_row_major(shape):
    assert not is_interleaved(interleaved(numbers(*shape)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_dtypes_without_dot_products_stay_row_major(dtype):
    assert not is_interleaved(interleaved(numbers(16, 64, dtype=dtype)))


@settings(max_examples=60, deadline=None)
@given(
    rows=st.one_of(st.integers(1, 48), st.sampled_from([57, 64, 99, 130, 999, 1010])),
    blocks=st.integers(1, 9),
    words=st.sampled_from([1, 3, 16, 33, 200, 512]),
    has_bias=st.booleans(),
)
def test_a_product_has_the_sums_of_its_row(rows, blocks, words, has_bias):
    """Groups of rows, the last of which is small, and numbers of blocks that fill no tile."""
    weight, x = numbers(16 * blocks, 2 * words), numbers(rows, 2 * words, seed=1)
    bias = numbers(16 * blocks, seed=2) if has_bias else None
    fast, plain, unordered = (
        kind(layout, bias)
        for kind, layout in (
            (OrderedLinear, interleaved(weight)),
            (OrderedLinear, weight),
            (RowsLinear, interleaved(weight)),
        )
    )
    got = fast(x)
    assert torch.equal(got, plain(x)) or native.active().has_tiles  # which add words in another order
    for row in {0, rows // 2, rows - 1}:
        assert torch.equal(fast(x[row : row + 1]), got[row : row + 1])
    assert torch.equal(fast(x[rows // 3 :]), got[rows // 3 :])
    exact = functional.linear(x.double(), weight.double(), None if bias is None else bias.double())
    for product in (got, unordered(x)):
        assert (product.double() - exact).abs().max() <= 1e-2 * exact.abs().max()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", [Int8Linear, RoundedInt8Linear])
@pytest.mark.parametrize("in_features", [4, 68, 1000])
def test_int8_products_are_those_of_row_major_weights(dtype, kind, in_features, row_major_int8):
    if not native.active().has_int8:
        pytest.skip("no dot products of bytes")
    weight, bias = numbers(112, in_features, dtype=torch.float32), numbers(112, seed=2, dtype=dtype)
    fast, plain = kind(weight, bias), row_major_int8(kind, weight, bias)
    assert not is_interleaved(plain.weight)
    for rows in (1, 2, 3, 7, 8, 9, 15, 16, 37, 57, 130, 505):
        x = numbers(rows, in_features, seed=rows, dtype=dtype)
        assert torch.equal(fast(x), plain(x)), rows
    assert torch.equal(fast.dequantised(), plain.dequantised())


@pytest.mark.parametrize("kind", [OrderedLinear, OrderedInt8Linear])
@pytest.mark.parametrize(
    ("rows", "blocks", "in_features"), [(700, 96, 128), (700, 95, 132), (300, 3, 5300), (1300, 2, 64)]
)
def test_many_rows_have_the_results_of_each_alone(kind, rows, blocks, in_features):
    """Results of more than 2 MB, columns that fill no pair of blocks, rows that no cache holds, and many short ones."""
    weight, x = numbers(16 * blocks, in_features, dtype=torch.float32), numbers(rows, in_features, seed=1)
    product = kind(interleaved(weight.bfloat16()) if kind is OrderedLinear else weight, None)
    got = product(x)
    for row in (0, 1, rows // 2, rows - 2, rows - 1):
        assert torch.equal(product(x[row : row + 1]), got[row : row + 1])
    exact = functional.linear(x.double(), weight.double())
    assert (got.double() - exact).abs().max() <= 2e-2 * exact.abs().max()


@pytest.mark.parametrize("rows", [1, 4, 5, 40])
def test_rows_that_begin_anywhere(rows):
    """Slices whose rows are an odd number of numbers apart, or begin within a word, and a transposed input."""
    weight, wide = numbers(48, 64), numbers(rows, 67, seed=1)
    fast = OrderedLinear(interleaved(weight), None)
    for x in (wide[:, :64], wide[:, 3:], numbers(rows, 70, seed=2)[:, 5:69], numbers(64, rows, seed=3).T):
        exact = functional.linear(x.double(), weight.double())
        assert (fast(x).double() - exact).abs().max() <= 1e-2 * exact.abs().max()
        assert torch.equal(fast(x), fast(x.contiguous()))
    assert fast(numbers(0, 64)).shape == (0, 48)
    assert fast(numbers(2, 3, 64)).shape == (2, 3, 48)


def test_numbers_that_are_not_finite_stay_in_their_row():
    fast = OrderedLinear(interleaved(numbers(32, 64)), None)
    x = numbers(20, 64, seed=1)
    expected = fast(x)
    x[7, 5], x[9, 60] = torch.nan, torch.inf
    got = fast(x)
    others = [row for row in range(20) if row not in {7, 9}]
    assert torch.equal(got[others], expected[others])
    assert not got[[7, 9]].isfinite().any()


@pytest.mark.parametrize("start", [0, 16, 40, 64])
def test_a_tail(start):
    weight, bias, x = numbers(80, 64), numbers(80, seed=1), numbers(9, 64, seed=2)
    fast = RowsLinear(interleaved(weight), bias)
    part = fast.tail(start)
    assert part.out_features == 80 - start
    product = functional.linear(x.double(), weight.double(), bias.double())[:, start:]
    assert (part(x).double() - product).abs().max() <= 1e-2 * product.abs().max()
    shares_memory = part.weight.untyped_storage().data_ptr() == fast.weight.untyped_storage().data_ptr()
    assert shares_memory == (start % 16 == 0)


def test_gradients_are_those_of_the_weight():
    weight = numbers(48, 64)
    x = numbers(5, 64, seed=1).requires_grad_()
    grad = numbers(5, 48, seed=2)
    RowsLinear(interleaved(weight), None)(x).backward(grad)
    assert torch.allclose(x.grad.float(), grad.float() @ weight.float(), rtol=1e-2, atol=1e-2)


def test_without_kernels_the_product_is_torchs(monkeypatch):
    weight, x = numbers(48, 64), numbers(5, 64, seed=1)
    fast = RowsLinear(interleaved(weight), None)
    without = native.ActiveKernels(is_native=False, reason="a test")
    monkeypatch.setattr(native, "active", lambda: without)
    exact = functional.linear(x.double(), weight.double())
    assert (fast(x).double() - exact).abs().max() <= 1e-2 * exact.abs().max()


def test_the_operators_refuse_what_does_not_fit():
    ops, weight = torch.ops.millm_native, interleaved(numbers(32, 64))
    with pytest.raises(RuntimeError, match="shapes"):
        ops.linear_rows(numbers(3, 62), weight, None)
    with pytest.raises(RuntimeError, match="shapes"):
        ops.linear_rows(numbers(3, 64), weight.transpose(1, 2), None)
    with pytest.raises(RuntimeError, match="shapes"):
        ops.linear_rows(numbers(3, 64), weight.view(4, 32, 8, 2), None)
    with pytest.raises(RuntimeError, match="bias"):
        ops.linear_rows(numbers(3, 64), weight, numbers(31))
    with pytest.raises(RuntimeError, match="one type"):
        ops.linear_rows(torch.randn(3, 64), weight, None)
    for unfit in (numbers(33, 64), numbers(32, 63)):
        with pytest.raises(RuntimeError, match="sizes"):
            ops.interleave(unfit)
    for unfit in (torch.randn(32, 64), weight, numbers(32, 65)[:, :64], numbers(33 * 64)[1:2049].view(32, 64)):
        with pytest.raises(RuntimeError, match="an aligned matrix"):
            ops.interleave(unfit)


@pytest.mark.parametrize("shape", [(48, 64), (2048, 1024)])
def test_a_weight_is_rearranged_in_place_only_on_request(shape):
    weight = in_huge_pages(numbers(*shape))
    before = weight.clone()
    kept = interleaved(weight)
    assert torch.equal(weight, before)
    taken = interleaved(weight, in_place=True)
    assert torch.equal(taken, kept)
    is_large = weight.numel() * 2 >= HUGE_PAGE
    assert (taken.data_ptr() == weight.data_ptr()) == is_large


def test_weights_that_modules_share_are_not_changed_twice():
    weight = nn.Parameter(in_huge_pages(numbers(2048, 1024)), requires_grad=False)
    modules = nn.ModuleDict({name: nn.Linear(1024, 2048, bias=False) for name in "ab"})
    for linear in modules.values():
        linear.weight = weight
    x = numbers(3, 1024, seed=1)
    expected = modules["a"](x)
    prepare_linears(modules, weights="native", quantise_head=False, batch_invariant=True)
    for linear in modules.values():
        assert is_interleaved(linear.weight)
        assert (linear(x) - expected).abs().max() <= 1e-2 * expected.abs().max()


# Embeddings


class Scaled(nn.Embedding):
    def forward(self, ids):
        return super().forward(ids) * 1.5


class Reads(nn.Embedding):
    """Its rows depend on the whole weight."""

    def forward(self, ids):
        return super().forward(ids) - self.weight.mean(0)


class Model(nn.Module):
    def __init__(self, kind) -> None:
        super().__init__()
        self.embed, self.head = kind(160, 64), nn.Linear(64, 160, bias=False)
        self.head.weight = self.embed.weight
        self.bfloat16().requires_grad_(False)

    def get_input_embeddings(self):
        return self.embed

    def set_input_embeddings(self, embeddings):
        self.embed = embeddings

    def get_output_embeddings(self):
        return self.head

    def set_output_embeddings(self, head):
        self.head = head


@pytest.mark.parametrize("ids", [[[0, 159, 17, 17]], [5], [[1, 2], [3, 4]], [[]]])
@pytest.mark.parametrize("kind", [nn.Embedding, Scaled])
def test_embeddings_of_a_tied_head(kind, ids):
    model = Model(kind)
    ids, x = torch.tensor(ids, dtype=torch.long), numbers(6, 64)
    rows, product, before = model.embed(ids), model.head(x), bytes_of(model)
    prepare_linears(model, weights="native", quantise_head=False, batch_invariant=True)
    assert isinstance(model.embed, InterleavedEmbedding)
    assert torch.equal(model.embed(ids), rows)
    assert (model.head(x) - product).abs().max() <= 1e-2 * product.abs().max()
    assert model.head.weight is model.embed.weight
    assert bytes_of(model) == before


def test_embeddings_that_need_their_weight_keep_it():
    model = Model(Reads)
    assert not needs_only_rows(model.embed)
    rows = model.embed(torch.arange(160))
    prepare_linears(model, weights="native", quantise_head=False, batch_invariant=True)
    assert isinstance(model.embed, Reads)
    assert torch.equal(model.embed(torch.arange(160)), rows)
    assert model.head.weight.data_ptr() == model.embed.weight.data_ptr()


def test_ids_out_of_range_are_refused():
    weight = numbers(32, 64)
    embeddings = InterleavedEmbedding(interleaved(weight), nn.Embedding(32, 64))
    with pytest.raises(IndexError):
        embeddings(torch.tensor([32]))
