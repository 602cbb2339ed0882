"""Tensors of an untrusted file: what its header says, and exactly those that are expected.

Headers are compared before anything is allocated. Three kinds of files are read: safetensors, npz, and torch's zip
files, the last without running anything that they hold.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from steering.saes.errors import InvalidSAEError

if TYPE_CHECKING:
    from torch import Tensor

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Header:
    """``dtype`` is the file's own word for it, ``is_float`` and ``is_integer`` are what it means."""

    shape: Shape
    dtype: str
    is_float: bool
    is_integer: bool = False


class TensorFile(ABC):
    """``headers`` are those of all tensors in the file; ``name`` is how it is called, wherever ``path`` leads."""

    def __init__(self, path: Path, name: str, headers: Mapping[str, Header]) -> None:
        self.path = path
        self.name = name
        self.headers = headers

    def read(
        self, shapes: Mapping[str, Shape], *, integers: Collection[str] = (), ignored: Collection[str] = ()
    ) -> dict[str, Tensor]:
        """Exactly the named tensors, in float32 on the CPU, all finite; InvalidSAEError otherwise.

        ``ignored`` may be in the file and are not read.
        """
        self._check_names(set(shapes), set(ignored))
        for name, shape in shapes.items():
            self._check_header(name, self.headers[name], shape, is_integer=name in integers)
        return {name: self._finite(name, self._tensor(name)) for name in shapes}

    @abstractmethod
    def _tensor(self, name: str) -> Tensor:
        """A tensor whose header was checked, in memory of its own: a view of the file would change and end with it."""

    def _check_names(self, expected: set[str], ignored: set[str]) -> None:
        found = set(self.headers)
        if missing := expected - found:
            raise InvalidSAEError(f"{self.name} lacks {_listed(missing)}; it holds {_listed(found)}.")
        if extra := found - expected - ignored:
            raise InvalidSAEError(
                f"{self.name} holds {_listed(extra)}, which this architecture does not have;"
                " the configuration may belong to another SAE."
            )

    def _check_header(self, name: str, header: Header, shape: Shape, *, is_integer: bool) -> None:
        if header.shape != shape:
            raise InvalidSAEError(
                f"{name} in {self.name} has the shape {list(header.shape)}, expected is {list(shape)}."
            )
        if not (header.is_integer if is_integer else header.is_float):
            wanted = "integers" if is_integer else "floating-point numbers"
            raise InvalidSAEError(f"{name} in {self.name} holds {header.dtype} values, expected are {wanted}.")

    def _finite(self, name: str, tensor: Tensor) -> Tensor:
        import torch

        value = tensor.to(torch.float32)
        if not is_finite(value):
            raise InvalidSAEError(f"{name} in {self.name} holds values that are not finite (NaN or infinite).")
        return value


def is_finite(tensor: Tensor) -> bool:
    """Whether no value is NaN or infinite; needs no memory, other than ``torch.isfinite``."""
    return tensor.numel() == 0 or all(math.isfinite(value) for value in tensor.aminmax())


def _listed(names: Collection[str]) -> str:
    some = sorted(names)[:20]
    return ", ".join(some) + (", …" if len(names) > len(some) else "") if names else "nothing"
