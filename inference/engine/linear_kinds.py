"""Linears that compute ``x W^T + b`` faster or smaller than ``nn.Linear``, each from the weight ``[out, in]``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from inference.engine import native

Weights = Literal["native", "int8"]

FEW_ROWS = 32  # up to here our bfloat16 products beat F.linear, which lays the weight out at each call
FEW_INT8_ROWS = 64  # up to here int8 products beat making the weight bfloat16 first
INT8PACK_MULTIPLE = 64  # torch 2.13's kernel reads behind rows of other lengths in bfloat16, down to a crash
DEQUANTISED_AT_ONCE = 16384  # weight rows that many activations see as floats at a time


@dataclass(frozen=True, slots=True)
class Operands:
    """What the C++ products of up to ``most_rows`` rows take: the weight (int8: with scales and sums) and the bias."""

    weight: list[Tensor]
    bias: Tensor | None
    most_rows: int


class FastLinear(nn.Module):
    """Has ``nn.Linear``'s sizes and bias, and keeps the weight in a form of its own."""

    bias: Tensor | None

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.register_buffer("bias", None if bias is None else bias.detach(), persistent=False)

    def operands(self) -> Operands | None:
        """None where no product of ours takes this kind of weight."""
        return None

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"


class PackedLinear(FastLinear):
    """The weight laid out for oneDNN once; ``nn.Linear`` does that at each call, which at few rows is most of it."""

    packed: Tensor

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__(weight, bias)
        packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), PACKED_FOR_ROWS)
        self.register_buffer("packed", packed, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = torch.ops.mkldnn._linear_pointwise.default(x, self.packed, self.bias, "none", [], "")
        return out


PACKED_FOR_ROWS = 16  # a hint to oneDNN; the layout serves any number


def can_pack(dtype: torch.dtype) -> bool:
    """Whether oneDNN is in this torch, and computes in the dtype on this processor."""
    if not (torch._C._has_mkldnn and hasattr(torch.ops.mkldnn, "_linear_pointwise")):
        return False
    return dtype is torch.float32 or (dtype is torch.bfloat16 and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported()))


class RowsLinear(FastLinear):
    """bfloat16 weights as they lie, read by a kernel of ours: faster than oneDNN's layout up to about 20 rows.

    At a few hundred rows it is some 5 % slower, being laid out at each call. The weight may be somebody else's too
    (tied embeddings).
    """

    weight: Tensor

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__(weight, bias)
        self.register_buffer("weight", weight, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, self.in_features)
        if len(rows) > FEW_ROWS:
            return functional.linear(x, self.weight, self.bias)
        out: Tensor = torch.ops.millm_native.linear_bf16.default(rows, self.weight, self.bias)
        return out.view(*x.shape[:-1], self.out_features)

    def operands(self) -> Operands | None:
        return Operands([self.weight], self.bias, FEW_ROWS)


class PlainLinear(FastLinear):
    """The weight as it is, without being a parameter: for products of several linears on a GPU."""

    weight: Tensor

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__(weight, bias)
        self.register_buffer("weight", weight.detach(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.weight, self.bias)


class Int8Linear(FastLinear):
    """int8 weights with a scale a row; activations keep their dtype (16-bit integers inside the C++ kernel)."""

    weight: Tensor
    scales: Tensor
    sums: Tensor

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__(weight, bias)
        rounded, scales = quantise(weight.detach())
        self.register_buffer("weight", native.in_huge_pages(rounded), persistent=False)
        self.register_buffer("scales", scales, persistent=False)
        self.register_buffer("sums", rounded.sum(1, dtype=torch.int32), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, self.in_features)
        return self._product(rows).view(*x.shape[:-1], self.out_features)

    def operands(self) -> Operands | None:
        has_kernel = native.active().has_int8
        return Operands([self.weight, self.scales, self.sums], self.bias, FEW_INT8_ROWS) if has_kernel else None

    def dequantised(self) -> Tensor:
        """The weight that this computes with, ``[out, in]`` float32."""
        return self.weight.float() * self.scales.unsqueeze(1)

    def _product(self, rows: Tensor) -> Tensor:
        if len(rows) > FEW_INT8_ROWS:
            return self._whole_product(rows)
        if native.active().has_int8:
            out: Tensor = torch.ops.millm_native.linear_int8.default(
                rows, self.weight, self.scales, self.sums, self.bias
            )
            return out
        if self.in_features % INT8PACK_MULTIPLE:
            return self._whole_product(rows)
        out = torch.ops.aten._weight_int8pack_mm(rows.contiguous(), self.weight, self.scales.to(rows.dtype))
        return out if self.bias is None else out + self.bias

    def _whole_product(self, rows: Tensor) -> Tensor:
        """int8 values are exact in all float dtypes: only the result is rounded, as ever."""
        parts = [
            functional.linear(rows, part.to(rows.dtype)).mul_(scales)
            for part, scales in zip(
                torch.split(self.weight, DEQUANTISED_AT_ONCE),
                torch.split(self.scales, DEQUANTISED_AT_ONCE),
                strict=True,
            )
        ]
        out = parts[0] if len(parts) == 1 else torch.cat(parts, -1)
        return out if self.bias is None else out + self.bias


class GpuInt8Linear(Int8Linear):
    """The same on a GPU: up to ``few_rows`` by torch's kernel, which some versions let return float32."""

    def __init__(self, weight: Tensor, bias: Tensor | None, few_rows: int) -> None:
        super().__init__(weight, bias)
        self.few_rows = few_rows

    def operands(self) -> Operands | None:
        return None

    def _product(self, rows: Tensor) -> Tensor:
        if len(rows) > self.few_rows:
            return self._whole_product(rows)
        out: Tensor = torch.ops.aten._weight_int8pack_mm(rows.contiguous(), self.weight, self.scales).to(rows.dtype)
        return out if self.bias is None else out + self.bias


def quantise(weight: Tensor) -> tuple[Tensor, Tensor]:
    """``[out, in]`` to int8 and float32 scales ``[out]``: the largest value of a row becomes 127."""
    exact = weight.float()
    scales = exact.abs().amax(1).clamp_min(torch.finfo(torch.float32).tiny) / 127
    return (exact / scales.unsqueeze(1)).round_().to(torch.int8), scales
