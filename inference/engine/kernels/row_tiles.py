"""Row-wise computations whose results have the same bits whatever the number of rows is.

torch's libraries choose the order of a sum by the shape of the whole product. With batch invariance, and where no
kernel of ours computes it, a product is therefore computed in tiles of one shape.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

TILE_ROWS = 16

RowFunction = Callable[[Tensor], Tensor]
"""A function of ``[n, d]`` that computes each row of its result from one row."""


def by_tiles(compute: RowFunction, rows: Tensor) -> Tensor:
    """Return ``compute(rows)`` for ``[n, d]``, called with tiles of TILE_ROWS rows; zeros fill the last one.

    ``compute`` must treat each row alone, and equal rows of a tile equally wherever they lie, as MKL and oneDNN do.
    """
    count = len(rows)
    num_tiles = max(1, -(-count // TILE_ROWS))
    padded = rows.new_zeros(num_tiles * TILE_ROWS, *rows.shape[1:])
    padded[:count] = rows
    parts = [compute(tile) for tile in torch.split(padded, TILE_ROWS)]
    return torch.cat(parts)[:count]
