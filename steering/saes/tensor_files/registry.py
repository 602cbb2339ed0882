"""Open a file of tensors by its suffix."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path, PurePosixPath

from steering.saes.errors import InvalidSAEError
from steering.saes.tensor_files.base import TensorFile
from steering.saes.tensor_files.npz import NpzFile
from steering.saes.tensor_files.safetensors_file import SafetensorsFile
from steering.saes.tensor_files.torch_file import TorchFile

_KINDS: dict[str, Callable[[Path, str], TensorFile]] = {
    ".safetensors": SafetensorsFile,
    ".npz": NpzFile,
    ".pt": TorchFile,
    ".pth": TorchFile,
}


def open_tensors(path: Path, name: str) -> TensorFile:
    """Open a file and read its headers. ``name`` is its name, ``path`` its real path.

    Raise InvalidSAEError for files that are damaged or dangerous.
    """
    kind = _KINDS.get(PurePosixPath(name).suffix)
    if kind is None:
        raise InvalidSAEError(f"The file type of {name} is not supported. Supported: {', '.join(_KINDS)}.")
    return kind(path, name)
