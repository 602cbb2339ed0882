"""The base class of tensor files. Files are untrusted: headers are checked before any memory is allocated."""

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
    """Shape and type of a tensor. ``dtype`` is the name of the type in the file."""

    shape: Shape
    dtype: str
    is_float: bool
    is_integer: bool = False


class TensorFile(ABC):
    """A file of tensors with the headers of all of them. ``name`` is the name of the file, ``path`` its real path."""

    def __init__(self, path: Path, name: str, headers: Mapping[str, Header]) -> None:
        self.path = path
        self.name = name
        self.headers = headers

    def read(
        self, shapes: Mapping[str, Shape], *, integers: Collection[str] = (), ignored: Collection[str] = ()
    ) -> dict[str, Tensor]:
        """Return the named tensors in float32 on the CPU. Raise InvalidSAEError unless they are exactly those of the
        file.

        Tensors in ``ignored`` are optional and are not read. All values must be finite.
        """
        self._check_names(set(shapes), set(ignored))
        for name, shape in shapes.items():
            self._check_header(name, self.headers[name], shape, is_integer=name in integers)
        return {name: self._finite(name, self._tensor(name)) for name in shapes}

    @abstractmethod
    def _tensor(self, name: str) -> Tensor:
        """Return a tensor whose header was checked. It must be a copy: a view would change with the file."""

    def _check_names(self, expected: set[str], ignored: set[str]) -> None:
        found = set(self.headers)
        if missing := expected - found:
            raise InvalidSAEError(f"{self.name} lacks {_listed(missing)}; it contains {_listed(found)}.")
        if extra := found - expected - ignored:
            raise InvalidSAEError(
                f"{self.name} contains {_listed(extra)}, which this architecture does not have; the configuration may "
                "belong to another SAE."
            )

    def _check_header(self, name: str, header: Header, shape: Shape, *, is_integer: bool) -> None:
        if header.shape != shape:
            raise InvalidSAEError(f"{name} in {self.name} must have the shape {list(shape)}, got {list(header.shape)}.")
        if not (header.is_integer if is_integer else header.is_float):
            expected = "integers" if is_integer else "floating-point numbers"
            raise InvalidSAEError(f"{name} in {self.name} must contain {expected}, got {header.dtype}.")

    def _finite(self, name: str, tensor: Tensor) -> Tensor:
        import torch

        value = tensor.to(torch.float32)
        if not is_finite(value):
            raise InvalidSAEError(f"{name} in {self.name} contains values that are not finite (NaN or infinite).")
        return value


def is_finite(tensor: Tensor) -> bool:
    """Return whether no value is NaN or infinite. Unlike ``torch.isfinite``, allocates no mask."""
    return tensor.numel() == 0 or all(math.isfinite(value) for value in tensor.aminmax())


def _listed(names: Collection[str]) -> str:
    some = sorted(names)[:20]
    return ", ".join(some) + (", …" if len(names) > len(some) else "") if names else "nothing"
