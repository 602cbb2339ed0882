"""npz files: zip archives of numpy arrays, read entry by entry after checking their sizes."""

from __future__ import annotations

import math
import zipfile
import zlib
from pathlib import Path
from typing import IO, TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from steering.saes.errors import InvalidSAEError
from steering.saes.tensor_files.base import Header, TensorFile

if TYPE_CHECKING:
    from torch import Tensor

_ENDING = ".npy"
_MAX_ENTRIES = 1000
_MAX_HEADER_BYTES = 1 << 14
# Weights hardly compress. An archive that grows by more than this factor is a decompression bomb.
_MAX_GROWTH = 16
_FREE_BYTES = 1 << 20
_DAMAGES = (zipfile.BadZipFile, zlib.error, OSError, EOFError, ValueError, NotImplementedError, RuntimeError)


class NpzFile(TensorFile):
    """An npz file. Arrays of objects are rejected, because they are pickles."""

    def __init__(self, path: Path, name: str) -> None:
        try:
            with zipfile.ZipFile(path) as archive:
                headers = {_name(entry): _entry_header(archive, entry) for entry in _entries(archive, path, name)}
        except InvalidSAEError:
            raise
        except _DAMAGES as error:
            raise _damaged(name, error) from error
        super().__init__(path, name, headers)

    def _tensor(self, name: str) -> Tensor:
        import torch

        try:
            with zipfile.ZipFile(self.path) as archive, archive.open(name + _ENDING) as file:
                shape, fortran, dtype = _npy_header(file)
                data = file.read(math.prod(shape) * dtype.itemsize)
        except _DAMAGES as error:
            raise _damaged(self.name, error) from error
        values = np.frombuffer(data, dtype).reshape(shape, order="F" if fortran else "C")
        return torch.from_numpy(_native(values))


def _entries(archive: zipfile.ZipFile, path: Path, name: str) -> list[zipfile.ZipInfo]:
    entries = archive.infolist()
    if len(entries) > _MAX_ENTRIES:
        raise InvalidSAEError(f"{name} contains {len(entries)} arrays; the limit is {_MAX_ENTRIES}.")
    unpacked, packed = sum(entry.file_size for entry in entries), path.stat().st_size
    if unpacked > packed * _MAX_GROWTH + _FREE_BYTES:
        raise InvalidSAEError(
            f"{name} would grow from {packed} to {unpacked} bytes when unpacked, which is not plausible for weights."
        )
    for entry in entries:
        if not entry.filename.endswith(_ENDING) or "/" in entry.filename:
            raise InvalidSAEError(f"{name} contains {entry.filename!r}, which is not an array.")
    return entries


def _name(entry: zipfile.ZipInfo) -> str:
    return entry.filename.removesuffix(_ENDING)


def _entry_header(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> Header:
    with archive.open(entry) as file:
        shape, _, dtype = _npy_header(file)
        claimed, there = math.prod(shape) * dtype.itemsize, entry.file_size - file.tell()
    if dtype.hasobject:
        raise InvalidSAEError(f"{_name(entry)} contains Python objects, which can run code when they are read.")
    if claimed != there:
        raise InvalidSAEError(f"{_name(entry)} declares {claimed} bytes for the shape {list(shape)}, but has {there}.")
    return Header(shape, str(dtype), dtype.kind == "f", dtype.kind in "iu")


def _npy_header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[np.generic]]:
    """Return the shape, whether the order is Fortran's, and the dtype. numpy bounds the header and parses it as a
    literal.
    """
    version = np.lib.format.read_magic(file)
    read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}.get(version)
    if read is None:
        raise ValueError(f"version {version} of the npy format is not supported")
    shape, fortran, dtype = read(file, max_header_size=_MAX_HEADER_BYTES)
    if any(size < 0 for size in shape):
        raise ValueError(f"the shape {shape} has a negative size")
    return shape, fortran, dtype


def _native(values: NDArray[np.generic]) -> NDArray[np.generic]:
    """Return a writable copy in native byte order, of a type that torch supports."""
    if values.dtype.kind == "u" or values.dtype.itemsize > 8:
        return values.astype(np.int64 if values.dtype.kind == "u" else np.float64)
    return np.array(values, dtype=values.dtype.newbyteorder("="))


def _damaged(name: str, error: Exception) -> InvalidSAEError:
    return InvalidSAEError(f"{name} is not a valid npz file: {error}.")
