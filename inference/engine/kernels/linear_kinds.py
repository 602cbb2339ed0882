"""Linears that compute ``x W^T + b`` faster or smaller than ``nn.Linear``, each from the weight ``[out, in]``."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from inference.engine.kernels import native
from inference.engine.kernels.layouts import INTERLEAVED, interleaved, is_interleaved, row_major, sizes_of
from inference.engine.kernels.row_tiles import by_tiles

FEW_ROWS = 192  # up to here our 16-bit products are faster than F.linear, which repacks the weight at each call
FEW_WIDENED_ROWS = 384  # likewise if weights are widened, compared with a weight widened as a whole
FEW_INT8_ROWS = 192  # up to here int8 products are faster than converting the weight to bfloat16
INT8PACK_MULTIPLE = 64  # torch 2.13's bfloat16 kernel reads past the end of rows of other lengths and may crash
ALL_ROWS = 1 << 30
FEW_UNWIDENED_ROWS = 4  # up to here, without our kernels, widening a weight costs more than it gains
WIDENED_AT_ONCE = 2048  # weight rows, so that they fit the processor's cache
DEQUANTISED_AT_ONCE = 16384  # weight rows converted to floats at a time for many activations


@dataclass(frozen=True, slots=True)
class Operands:
    """Arguments of the C++ products of at most ``most_rows`` rows: weight (int8: with scales and sums) and bias.

    ``rounded``: activations are rounded to 8 bits.
    """

    weight: list[Tensor]
    bias: Tensor | None
    most_rows: int
    rounded: bool = False


class FastLinear(nn.Module):
    """A linear with the sizes and bias of ``nn.Linear``, and the weight in another form.

    The kernels have no autograd, so an input that requires a gradient takes :class:`_WithInputGradient`.
    """

    bias: Tensor | None

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.out_features, self.in_features = sizes_of(weight)
        self.register_buffer("bias", None if bias is None else bias.detach(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return _WithInputGradient.apply(x, self) if x.requires_grad else self.multiply(x)  # type: ignore[no-untyped-call]

    @abstractmethod
    def multiply(self, x: Tensor) -> Tensor:
        """Return ``x W^T + b`` for ``[..., in]``."""

    @abstractmethod
    def weight_parts(self) -> Iterator[Tensor]:
        """Yield the weight as float32, some rows ``[n, in]`` at a time."""

    def operands(self) -> Operands | None:
        """Return the arguments of our products; None if they do not support this kind of weight."""
        return None

    def tail(self, start: int) -> Self:
        """Return the product of outputs ``start`` and later, for kinds that have operands.

        It has the same memory, unless an interleaved weight cannot be cut there.
        """

        def cut(buffer: Tensor | None) -> Tensor | None:
            if buffer is None or not is_interleaved(buffer):
                return None if buffer is None else buffer[start:]
            whole_blocks = start % INTERLEAVED == 0
            return buffer[start // INTERLEAVED :] if whole_blocks else row_major(buffer)[start:].contiguous()

        part = copy(self)
        part._buffers = {name: cut(buffer) for name, buffer in self._buffers.items()}
        part.out_features = self.out_features - start
        return part

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"


class _WithInputGradient(torch.autograd.Function):
    """The product of a :class:`FastLinear`, differentiable with respect to its input. The weight is frozen."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, linear: FastLinear) -> Tensor:
        ctx.linear = linear
        return linear.multiply(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        """Return ``grad W``, computed in float32 and rounded once."""
        wide, end = grads[0].float(), 0
        found = wide.new_zeros(*wide.shape[:-1], ctx.linear.in_features)
        for part in ctx.linear.weight_parts():
            start, end = end, end + len(part)
            found += wide[..., start:end] @ part
        return found.to(grads[0].dtype), None


def _float_parts(weight: Tensor) -> Iterator[Tensor]:
    return (part.float() for part in torch.split(weight, WIDENED_AT_ONCE))


class PackedLinear(FastLinear):
    """Packs the weight for oneDNN once. ``nn.Linear`` does it at each call, which dominates with few rows."""

    packed: Tensor

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__(weight, bias)
        packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), PACKED_FOR_ROWS)
        self.register_buffer("packed", packed, persistent=False)

    def multiply(self, x: Tensor) -> Tensor:
        out: Tensor = torch.ops.mkldnn._linear_pointwise.default(x, self.packed, self.bias, "none", [], "")
        return out

    def weight_parts(self) -> Iterator[Tensor]:
        return _float_parts(self.packed.to_dense())


PACKED_FOR_ROWS = 16  # a hint to oneDNN; the layout works for any number


def can_pack(dtype: torch.dtype) -> bool:
    """Return whether this torch has oneDNN and it supports the dtype on this processor."""
    if not (torch._C._has_mkldnn and hasattr(torch.ops.mkldnn, "_linear_pointwise")):
        return False
    return dtype in {torch.float32, torch.bfloat16} and is_computed(dtype)


class RowsLinear(FastLinear):
    """16-bit weights, row-major or :func:`interleaved`, read by our own kernels.

    Row-major ones are faster than oneDNN's layout up to about 20 rows, interleaved ones for any number.
    Beyond ``_most_rows`` oneDNN multiplies, which converts the layout at each call. On a processor that does not
    compute in the dtype, where oneDNN would be eight times slower than in float32, the weight is widened part by part
    instead. The weight may be shared (tied embeddings).
    """

    weight: Tensor

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__(weight, bias)
        self.register_buffer("weight", weight, persistent=False)
        self._is_computed = is_computed(weight.dtype)
        self._few_rows = _most_rows(weight.dtype) if self._is_computed else FEW_WIDENED_ROWS

    def multiply(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, self.in_features)
        return self._product(rows).view(*x.shape[:-1], self.out_features)

    def weight_parts(self) -> Iterator[Tensor]:
        return _float_parts(row_major(self.weight))

    def operands(self) -> Operands | None:
        return Operands([self.weight], self.bias, self._few_rows) if native.active().has_products else None

    def _product(self, rows: Tensor) -> Tensor:
        if len(rows) <= self._few_rows and native.active().has_products:
            out: Tensor = torch.ops.millm_native.linear_rows.default(rows, self.weight, self.bias)
            return out
        weight = row_major(self.weight)
        if self._is_computed or len(rows) <= FEW_UNWIDENED_ROWS:
            return functional.linear(rows, weight, self.bias)
        return widened_product(rows, weight, self.bias)


def _most_rows(dtype: torch.dtype) -> int:
    """Return up to how many rows our products with weights of the dtype are faster than oneDNN's.

    Those with dot products of bfloat16 and bytes are faster for any number. So are those of bytes as 16-bit integers,
    compared with float32.
    """
    kernels = native.active()
    if dtype is torch.int8:
        return ALL_ROWS if kernels.has_int16 or kernels.has_int8 else FEW_INT8_ROWS
    return ALL_ROWS if dtype is torch.bfloat16 and kernels.has_bf16 else FEW_ROWS


def is_computed(dtype: torch.dtype) -> bool:
    """Return whether oneDNN multiplies in this dtype natively on this processor."""
    if dtype is torch.float32:
        return True
    if not torch._C._has_mkldnn:
        return False
    supported = torch.ops.mkldnn
    return bool(
        supported._is_mkldnn_bf16_supported() if dtype is torch.bfloat16 else supported._is_mkldnn_fp16_supported()
    )


def can_read_rows(dtype: torch.dtype) -> bool:
    """Return whether weights of the dtype should stay unpacked: our kernels read them, or oneDNN is slow with them."""
    return dtype in {torch.bfloat16, torch.float16} and (native.active().has_products or not is_computed(dtype))


def widened_product(rows: Tensor, weight: Tensor, bias: Tensor | None, scales: Tensor | None = None) -> Tensor:
    """Return ``rows W^T + b``, computed in float32 and rounded once to the rows' dtype; ``scales`` ``[out]`` multiply
    the weight's rows.

    At most WIDENED_AT_ONCE rows of the weight ``[out, in]`` exist as float32 at a time.
    """
    wide, out = rows.float(), rows.new_empty(len(rows), len(weight))
    for start in range(0, len(weight), WIDENED_AT_ONCE):
        part = slice(start, start + WIDENED_AT_ONCE)
        product = functional.linear(wide, weight[part].float())
        if scales is not None:
            product.mul_(scales[part])
        out[:, part] = product if bias is None else product.add_(bias[part])
    return out


class PlainLinear(FastLinear):
    """The unchanged weight, but not a parameter. For products of several linears on a GPU."""

    weight: Tensor

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__(weight, bias)
        self.register_buffer("weight", weight.detach(), persistent=False)

    def multiply(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.weight, self.bias)

    def weight_parts(self) -> Iterator[Tensor]:
        return _float_parts(self.weight)


class Int8Linear(FastLinear):
    """int8 weights, row-major or :func:`interleaved`, with a scale per output. Activations keep their dtype (16-bit
    integers in the C++ kernels).
    """

    weight: Tensor
    scales: Tensor
    sums: Tensor

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__(weight, bias)
        rounded, scales = quantise(weight.detach())
        sums = [part.sum(1, dtype=torch.int32) for part in torch.split(rounded, WIDENED_AT_ONCE)]
        self.register_buffer("weight", self._laid_out(rounded), persistent=False)
        self.register_buffer("scales", scales, persistent=False)
        self.register_buffer("sums", torch.cat(sums), persistent=False)
        self._few_rows = _most_rows(torch.int8)

    def multiply(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, self.in_features)
        return self._product(rows).view(*x.shape[:-1], self.out_features)

    def weight_parts(self) -> Iterator[Tensor]:
        scales = torch.split(self.scales.unsqueeze(1), WIDENED_AT_ONCE)
        return (part * scale for part, scale in zip(_float_parts(row_major(self.weight)), scales, strict=True))

    def operands(self) -> Operands | None:
        has_kernel = native.active().has_products
        return Operands([self.weight, self.scales, self.sums], self.bias, self._few_rows) if has_kernel else None

    def _laid_out(self, weight: Tensor) -> Tensor:
        return interleaved(weight, in_place=True)

    def dequantised(self) -> Tensor:
        """Return the dequantised weight, ``[out, in]`` float32."""
        return row_major(self.weight).float() * self.scales.unsqueeze(1)

    def _product(self, rows: Tensor) -> Tensor:
        if len(rows) > self._few_rows:
            return self._whole_product(rows)
        if native.active().has_products:
            out: Tensor = torch.ops.millm_native.linear_int8.default(
                rows, self.weight, self.scales, self.sums, self.bias
            )
            return out
        if self.in_features % INT8PACK_MULTIPLE:
            return self._whole_product(rows)
        out = torch.ops.aten._weight_int8pack_mm(rows.contiguous(), row_major(self.weight), self.scales.to(rows.dtype))
        return out if self.bias is None else out + self.bias

    def _whole_product(self, rows: Tensor) -> Tensor:
        """Compute with dequantised weights. int8 values are exact in all float dtypes; only the result is rounded."""
        if not is_computed(rows.dtype):
            return widened_product(rows, row_major(self.weight), self.bias, self.scales)
        parts = [
            functional.linear(rows, part.to(rows.dtype)).mul_(scales)
            for part, scales in zip(
                torch.split(row_major(self.weight), DEQUANTISED_AT_ONCE),
                torch.split(self.scales, DEQUANTISED_AT_ONCE),
                strict=True,
            )
        ]
        out = parts[0] if len(parts) == 1 else torch.cat(parts, -1)
        return out if self.bias is None else out + self.bias


class RoundedInt8Linear(Int8Linear):
    """int8 weights, and activations that are rounded to 8 bits with a scale per token. Needs dot products of bytes.

    Products of bytes are exact, so results do not depend on the number of rows.
    """

    def operands(self) -> Operands | None:
        return Operands([self.weight, self.scales, self.sums], self.bias, ALL_ROWS, rounded=True)

    def _product(self, rows: Tensor) -> Tensor:
        out: Tensor = torch.ops.millm_native.linear_int8.default(
            rows, self.weight, self.scales, self.sums, self.bias, rounded=True
        )
        return out


class OrderedLinear(FastLinear):
    """A weight of floats, row-major or :func:`interleaved`, for batch invariance on a CPU.

    The order in which the products of a result are added does not depend on the number of rows. The weight may be
    shared (tied embeddings).
    """

    weight: Tensor

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__(weight, bias)
        self.register_buffer("weight", weight, persistent=False)

    def multiply(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, self.in_features)
        return self._product(rows).view(*x.shape[:-1], self.out_features)

    def weight_parts(self) -> Iterator[Tensor]:
        return _float_parts(row_major(self.weight))

    def operands(self) -> Operands | None:
        return Operands([self.weight], self.bias, ALL_ROWS) if native.active().has_products else None

    def _product(self, rows: Tensor) -> Tensor:
        if native.active().has_products:
            out: Tensor = torch.ops.millm_native.linear_rows.default(rows, self.weight, self.bias, ordered=True)
            return out
        return tiled_product(rows, row_major(self.weight), self.bias)


class OrderedInt8Linear(Int8Linear):
    """int8 weights for batch invariance on a CPU."""

    def operands(self) -> Operands | None:
        if not native.active().has_products:
            return None
        return Operands([self.weight, self.scales, self.sums], self.bias, ALL_ROWS)

    def _product(self, rows: Tensor) -> Tensor:
        if native.active().has_products:
            out: Tensor = torch.ops.millm_native.linear_int8.default(
                rows, self.weight, self.scales, self.sums, self.bias, ordered=True
            )
            return out
        return tiled_product(rows, row_major(self.weight), self.bias, self.scales)


def tiled_product(rows: Tensor, weight: Tensor, bias: Tensor | None, scales: Tensor | None = None) -> Tensor:
    """Return :func:`widened_product`, computed in tiles of one shape. Each part of the weight is widened once."""
    wide, out = rows.float(), rows.new_empty(len(rows), len(weight))
    for start in range(0, len(weight), WIDENED_AT_ONCE):
        part = slice(start, start + WIDENED_AT_ONCE)
        product = by_tiles(partial(functional.linear, weight=weight[part].float()), wide)
        if scales is not None:
            product.mul_(scales[part])
        out[:, part] = product if bias is None else product.add_(bias[part])
    return out


class GpuInt8Linear(Int8Linear):
    """int8 weights on a GPU: up to ``few_rows`` with torch's kernel, which returns float32 in some versions."""

    def __init__(self, weight: Tensor, bias: Tensor | None, few_rows: int) -> None:
        super().__init__(weight, bias)
        self.few_rows = few_rows

    def _laid_out(self, weight: Tensor) -> Tensor:
        return weight

    def operands(self) -> Operands | None:
        return None

    def _product(self, rows: Tensor) -> Tensor:
        if len(rows) > self.few_rows:
            return self._whole_product(rows)
        out: Tensor = torch.ops.aten._weight_int8pack_mm(rows.contiguous(), self.weight, self.scales).to(rows.dtype)
        return out if self.bias is None else out + self.bias


def quantise(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Quantise ``[out, in]`` to int8 with float32 scales ``[out]``. The largest value of a row becomes 127."""
    rounded, scales = torch.empty_like(weight, dtype=torch.int8), weight.new_empty(len(weight), dtype=torch.float32)
    for start in range(0, len(weight), WIDENED_AT_ONCE):
        part = slice(start, start + WIDENED_AT_ONCE)
        exact = weight[part].float()
        scales[part] = exact.abs().amax(1).clamp_min(torch.finfo(torch.float32).tiny) / 127
        rounded[part] = (exact / scales[part].unsqueeze(1)).round_()
    return rounded, scales
