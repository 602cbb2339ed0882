"""Files of ``torch.save``: zip archives around a pickle, of which only tensors are rebuilt.

``torch.load(weights_only=True)`` runs none of the calls that a pickle may ask for, apart from those that make tensors.
The archive is looked at first: torch stores tensors as they are, so that nothing can grow when it is read.
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
_WRAPPERS = ("sae", "state_dict", "model_state_dict")  # under which training code puts the tensors


class TorchFile(TensorFile):
    """Tensors by name, of a flat dictionary or of one inside a known wrapper."""

    def __init__(self, path: Path, name: str) -> None:
        _check_archive(path, name)
        mapped = _named_tensors(_load(path, name, mmap=True), name)  # whose values are not looked at
        super().__init__(path, name, {key: _header(key, tensor, name) for key, tensor in mapped.items()})
        self._tensors: Mapping[str, Tensor] | None = None

    def _tensor(self, name: str) -> Tensor:
        """Read, not mapped: what somebody cuts off a mapped file ends the process with SIGBUS."""
        if self._tensors is None:
            self._tensors = _named_tensors(_load(self.path, self.name, mmap=False), self.name)
        return self._tensors[name]


def _check_archive(path: Path, name: str) -> None:
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
    except (zipfile.BadZipFile, OSError, EOFError, ValueError, NotImplementedError, RuntimeError) as error:
        raise InvalidSAEError(
            f"{name} is not a zip file of torch.save: {error}. Older pickles are not read; save it again."
        ) from error
    if len(entries) > _MAX_ENTRIES or sum(entry.file_size for entry in entries) > path.stat().st_size:
        raise InvalidSAEError(f"{name} would grow when it is unpacked; files of torch.save do not do that.")
    for entry in entries:
        if entry.filename.endswith("data.pkl") and entry.file_size > _MAX_PICKLE_BYTES:
            raise InvalidSAEError(f"The pickle in {name} has {entry.file_size} bytes; it is no list of tensors.")


def _load(path: Path, name: str, *, mmap: bool) -> object:
    import torch

    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=mmap)
    except pickle.UnpicklingError as error:
        raise InvalidSAEError(
            f"{name} is a pickle that holds more than tensors, which can run code when it is opened."
        ) from error
    except (RuntimeError, ValueError, OSError, TypeError, KeyError, IndexError, AttributeError, EOFError) as error:
        first_line = str(error).partition("\n")[0]
        raise InvalidSAEError(f"{name} is not an intact file of torch.save: {first_line}.") from error


def _named_tensors(value: object, name: str) -> Mapping[str, Tensor]:
    import torch

    if isinstance(value, dict):
        for wrapper in _WRAPPERS:
            if isinstance(value.get(wrapper), dict):
                value = value[wrapper]
                break
    if not isinstance(value, dict) or not value:
        raise InvalidSAEError(f"{name} does not hold tensors by name.")
    for key, tensor in value.items():
        if not isinstance(key, str) or not isinstance(tensor, torch.Tensor):
            raise InvalidSAEError(f"{name} holds {key!r}, which is no tensor.")
    return value


def _header(key: str, tensor: Tensor, name: str) -> Header:
    """A tensor can be a view that repeats one number; its values must all be in the file."""
    if str(tensor.layout) != "torch.strided" or tensor.is_quantized:
        raise InvalidSAEError(f"{key} in {name} is no plain tensor.")
    if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
        raise InvalidSAEError(f"{key} in {name} claims the shape {list(tensor.shape)}, which the file has not.")
    is_integer = not tensor.is_floating_point() and not tensor.is_complex() and str(tensor.dtype) != "torch.bool"
    return Header(tuple(tensor.shape), str(tensor.dtype), tensor.is_floating_point(), is_integer)
