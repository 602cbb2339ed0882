"""Activations on disk, and batches of them in random order."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from steering.training.errors import NoSpaceError, TrainingError

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

_ROWS = "activations.f16"
_META = "activations.json"
_BLOCK_ROWS = 64  # consecutive rows, of one or two texts, that are read together
_BUFFER_BYTES = 128 << 20
_RESERVE_BYTES = 256 << 20  # left free on the disk


@dataclass(frozen=True, slots=True)
class StoreMeta:
    """What the store holds: ``rows`` activations ``[d_in]`` of the first ``documents`` documents, divided by ``unit``.

    ``norms`` is the sum of their norms before the division. ``corpus`` identifies documents and site.
    """

    corpus: str
    d_in: int = 0
    unit: float = 0.0
    rows: int = 0
    documents: int = 0
    norms: float = 0.0
    is_complete: bool = False


class ActivationStore:
    """A file of float16 rows. Rows count only after :meth:`flush`, so that a crash loses at most the last ones."""

    def __init__(self, folder: Path, corpus: str) -> None:
        """Open or create the store. Raise TrainingError if it holds activations of another corpus or site."""
        self._rows, self._meta = folder / _ROWS, folder / _META
        folder.mkdir(parents=True, exist_ok=True)
        self.meta = StoreMeta(corpus)
        if self._meta.is_file():
            self.meta = StoreMeta(**json.loads(self._meta.read_text("utf-8")))
        if self.meta.corpus != corpus:
            raise TrainingError(
                f"{folder} holds activations of another corpus or site. Choose an empty folder.", param="folder"
            )
        with self._rows.open("ab") as file:
            file.truncate(self.meta.rows * self.meta.d_in * 2)

    def add(self, activations: Tensor) -> None:
        """Append rows ``[tokens, d_in]``. The first ones set the unit: their mean norm becomes sqrt(d_in)."""
        if not len(activations):
            return
        norms = activations.norm(dim=1)
        if not self.meta.d_in:
            unit = float(norms.mean()) / activations.shape[1] ** 0.5
            self.meta = replace(self.meta, d_in=activations.shape[1], unit=unit or 1.0)
        with self._rows.open("ab") as file:
            file.write((activations / self.meta.unit).half().numpy().tobytes())
        self.meta = replace(
            self.meta, rows=self.meta.rows + len(activations), norms=self.meta.norms + float(norms.double().sum())
        )

    def flush(self, documents: int, *, is_complete: bool = False) -> None:
        """Write down that the rows so far are those of the first ``documents`` documents."""
        with self._rows.open("ab") as file:
            os.fsync(file.fileno())
        self.meta = replace(self.meta, documents=documents, is_complete=is_complete)
        replace_file(self._meta, json.dumps(asdict(self.meta)).encode())

    @property
    def scale(self) -> float:
        """The factor by which stored rows are to be divided, so that their mean norm is sqrt(d_in)."""
        return float(self.meta.norms / self.meta.rows / self.meta.unit / self.meta.d_in**0.5)

    def rows(self) -> NDArray[np.float16]:
        """Return all rows ``[rows, d_in]``, mapped from the file."""
        return np.memmap(self._rows, np.float16, "r", shape=(self.meta.rows, self.meta.d_in))

    def remove_rows(self) -> None:
        self._rows.unlink(missing_ok=True)
        self._meta.unlink(missing_ok=True)


def replace_file(path: Path, data: bytes) -> None:
    """Write a file so that a crash leaves either the old content or the new one."""
    partial = path.with_name(path.name + ".partial")
    with partial.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def check_space(folder: Path, num_bytes: int) -> None:
    """Raise NoSpaceError if the disk of ``folder`` has too little space."""
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(existing).free
    if free < num_bytes + _RESERVE_BYTES:
        raise NoSpaceError(
            f"The training needs {num_bytes / 1e9:.1f} GB in {folder}, which has {free / 1e9:.1f} GB free. Lower "
            "`max_activations`, or choose another folder.",
            param="max_activations",
        )


class BatchSampler:
    """Batches of rows in random order: each epoch uses almost every row once, up to the rest of a batch.

    Blocks of consecutive rows are read in random order into a buffer of bounded size, whose rows are shuffled. Batch
    ``n`` only depends on the seed and ``n``, so that a resumed training continues with the same batches.
    """

    def __init__(self, rows: NDArray[np.float16], batch: int, seed: int, *, buffer_bytes: int = _BUFFER_BYTES) -> None:
        if len(rows) < batch:
            raise TrainingError(
                f"The corpus has {len(rows)} tokens to train on, fewer than one batch ({batch}). Use a larger corpus.",
                param="corpus",
            )
        self._rows, self._batch, self._seed = rows, batch, seed
        blocks = -(-len(rows) // _BLOCK_ROWS)
        fitting = max(buffer_bytes // (2 * rows.shape[1] * _BLOCK_ROWS), -(-batch // _BLOCK_ROWS) + 1)
        self._num_buffers = max(1, blocks // fitting)
        self._batches = [self._buffer_rows(number) // batch for number in range(self._num_buffers)]
        self._current: tuple[int, NDArray[np.float16]] = (-1, rows[:0])

    def batch(self, number: int) -> Tensor:
        """Return batch ``number`` ``[batch, d_in]`` as float32."""
        epoch, left = divmod(number, sum(self._batches))
        buffer = 0
        while left >= self._batches[buffer]:
            left -= self._batches[buffer]
            buffer += 1
        rows = self._buffer(epoch, buffer)
        return torch.from_numpy(rows[left * self._batch : (left + 1) * self._batch].astype(np.float32))

    def _buffer(self, epoch: int, buffer: int) -> NDArray[np.float16]:
        """Return the shuffled rows of a buffer; the last one is kept."""
        number = epoch * self._num_buffers + buffer
        if self._current[0] != number:
            self._current = (-1, self._rows[:0])  # freed before the next one is read
            order = np.random.default_rng((self._seed, epoch)).permutation(self._whole_blocks())
            blocks = np.sort(np.array_split(order, self._num_buffers)[buffer])
            rows = np.concatenate([self._rows[block * _BLOCK_ROWS : (block + 1) * _BLOCK_ROWS] for block in blocks])
            self._current = (number, np.random.default_rng((self._seed, epoch, buffer)).permutation(rows))
        return self._current[1]

    def _whole_blocks(self) -> int:
        """Return the number of whole blocks, or 1: a short last block would make buffers of unequal length."""
        return max(1, len(self._rows) // _BLOCK_ROWS)

    def _buffer_rows(self, buffer: int) -> int:
        blocks = len(np.array_split(np.arange(self._whole_blocks()), self._num_buffers)[buffer])
        return min(blocks * _BLOCK_ROWS, len(self._rows))
