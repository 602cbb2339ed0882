"""The edits at one site, as tensors for the kernels."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from torch import Tensor

from inference.interventions import Normalization

ACTS, HAS_VECTOR, KEEPS_NORM = 1, 2, 4  # a row's flags; src/steering.h has the same
NORMALIZATIONS: tuple[Normalization, ...] = ("none", "constant_norm_rescale", "layer_norm")


class Number(IntEnum):
    """Columns of ``numbers``, as in src/steering.h. A gate is open if its activation exceeds FLOOR.

    An entry has no effect on a residual whose norm exceeds NORM_LIMIT.
    """

    BIAS = 0
    THRESHOLD = 1
    GAIN_LESS_ONE = 2
    OFFSET = 3
    LOWER = 4
    UPPER = 5
    FLOOR = 6
    NORM_LIMIT = 7


class Code(IntEnum):
    """Columns of ``codes``, as in src/steering.h. An entry without a gate is its own gate with the floor -inf."""

    ROW = 0
    GATE = 1
    IS_GIVEN = 2
    NORMALIZATION = 3


@dataclass(frozen=True, slots=True)
class SteeringTensors:
    """Rows of one site, and the entries (edited features and directions) that they own; all on one device.

    ``normalizations``: those of the entries, except "none".
    """

    flags: Tensor  # [rows] uint8
    vectors: Tensor  # [rows, d] float32
    norm_limits: Tensor  # [rows] float32: the vector is not added to a residual with a larger norm
    counts: Tensor  # [rows] int32: entries of the row
    slots: Tensor  # [rows, width] int32: the entries of the row
    read: Tensor  # [entries, d] float32
    write: Tensor  # [entries, d] float32
    numbers: Tensor  # [entries, len(Number)] float32
    codes: Tensor  # [entries, len(Code)] int32
    normalizations: tuple[Normalization, ...] = ("none",)

    def all(self) -> tuple[Tensor, ...]:
        """Return the tensors in the order of the kernel's arguments."""
        return (
            self.flags, self.vectors, self.norm_limits, self.counts, self.slots, self.read, self.write, self.numbers,
            self.codes,
        )  # fmt: skip
