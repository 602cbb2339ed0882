"""Files of ``torch.save``: zip archives with a pickle, from which only tensors are restored.

``torch.load(weights_only=True)`` runs no calls of the pickle except those that build tensors. The archive is checked
first: torch stores tensors uncompressed, so that an entry that grows is rejected.
"""

from __future__ import annotations

import pickle
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from steering.saes.errors import InvalidSAEError
from steering.saes.tensor_files.base import Header, TensorFile

if TYPE_CHECKING:
    from torch import Tensor

_MAX_ENTRIES = 10_000
_MAX_PICKLE_BYTES = 1 << 22
_WRAPPERS = ("sae", "state_dict", "model_state_dict")  # keys under which training code stores the tensors


class TorchFile(TensorFile):
    """A file of ``torch.save`` with tensors by name, in a flat dictionary or inside a known wrapper."""

    def __init__(self, path: Path, name: str) -> None:
        _check_archive(path, name)
        mapped = _named_tensors(_load(path, name, mmap=True), name)  # only the headers are used
        super().__init__(path, name, {key: _header(key, tensor, name) for key, tensor in mapped.items()})
        self._tensors: Mapping[str, Tensor] | None = None

    def _tensor(self, name: str) -> Tensor:
        """Return a tensor. Read, not memory-mapped: truncating a mapped file would kill the process with SIGBUS."""
        if self._tensors is None:
            self._tensors = _named_tensors(_load(self.path, self.name, mmap=False), self.name)
        return self._tensors[name]


def _check_archive(path: Path, name: str) -> None:
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
    except (zipfile.BadZipFile, OSError, EOFError, ValueError, NotImplementedError, RuntimeError) as error:
        raise InvalidSAEError(
            f"{name} is not a zip file written by torch.save: {error}. Older pickles are not supported; save it again."
        ) from error
    if len(entries) > _MAX_ENTRIES or sum(entry.file_size for entry in entries) > path.stat().st_size:
        raise InvalidSAEError(
            f"{name} would grow when unpacked, which is not plausible for a file written by torch.save."
        )
    for entry in entries:
        if entry.filename.endswith("data.pkl") and entry.file_size > _MAX_PICKLE_BYTES:
            raise InvalidSAEError(
                f"The pickle in {name} has {entry.file_size} bytes, which is not plausible for a list of tensors."
            )


def _load(path: Path, name: str, *, mmap: bool) -> object:
    import torch

    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=mmap)
    except pickle.UnpicklingError as error:
        raise InvalidSAEError(
            f"{name} is a pickle that contains more than tensors, which can run code when it is opened."
        ) from error
    except (RuntimeError, ValueError, OSError, TypeError, KeyError, IndexError, AttributeError, EOFError) as error:
        first_line = str(error).partition("\n")[0]
        raise InvalidSAEError(f"{name} is not a valid torch.save file: {first_line}.") from error


def _named_tensors(value: object, name: str) -> Mapping[str, Tensor]:
    import torch

    if isinstance(value, dict):
        for wrapper in _WRAPPERS:
            if isinstance(value.get(wrapper), dict):
                value = value[wrapper]
                break
    if not isinstance(value, dict) or not value:
        raise InvalidSAEError(f"{name} does not contain named tensors.")
    for key, tensor in value.items():
        if not isinstance(key, str) or not isinstance(tensor, torch.Tensor):
            raise InvalidSAEError(f"{name} contains {key!r}, which is not a tensor.")
    return value


def _header(key: str, tensor: Tensor, name: str) -> Header:
    """Return the header of a tensor. Views that repeat values are rejected: all values must be in the file."""
    if str(tensor.layout) != "torch.strided" or tensor.is_quantized:
        raise InvalidSAEError(f"{key} in {name} is not a plain tensor.")
    if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
        raise InvalidSAEError(f"{key} in {name} declares the shape {list(tensor.shape)}, which exceeds its data.")
    is_integer = not tensor.is_floating_point() and not tensor.is_complex() and str(tensor.dtype) != "torch.bool"
    return Header(tuple(tensor.shape), str(tensor.dtype), tensor.is_floating_point(), is_integer)
