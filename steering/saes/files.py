"""Safe access to the files of an SAE folder: regular files inside the folder, of bounded size."""

from __future__ import annotations

import hashlib
import json
import stat
from pathlib import Path

import yaml

from steering.saes.errors import InvalidSAEError

MAX_JSON_BYTES = 1 << 20
_BLOCK_BYTES = 1 << 20


def sae_folder(root: Path, subfolder: str = "") -> Path:
    """Return the real path of ``root / subfolder``, which must be a folder inside ``root``."""
    check_subfolder(subfolder)
    real_root = root.resolve()
    folder = (real_root / subfolder).resolve()
    if not folder.is_relative_to(real_root):
        raise InvalidSAEError(f"The sub-folder {subfolder!r} is outside {root}.")
    if not folder.is_dir():
        raise InvalidSAEError(f"{root / subfolder} is not a folder.")
    return folder


def check_subfolder(subfolder: str) -> None:
    """Raise InvalidSAEError if the text of the path is absolute or leads out of its parent."""
    if Path(subfolder).is_absolute() or ".." in Path(subfolder).parts or "\0" in subfolder:
        raise InvalidSAEError(f'The sub-folder {subfolder!r} must be a relative path without "..".')


def has_file(folder: Path, name: str) -> bool:
    """Return whether ``name`` exists in ``folder``, as a file of any kind."""
    path = folder / name
    return path.is_symlink() or path.exists()


def regular_file(folder: Path, name: str) -> Path:
    """Return the real path of a regular file inside ``folder``, with symbolic links resolved."""
    path = folder / name
    if not has_file(folder, name):
        raise InvalidSAEError(f"{name} is missing in {folder}.")
    try:
        real = path.resolve(strict=True)
        mode = real.stat().st_mode
    except (OSError, RuntimeError) as error:
        raise InvalidSAEError(f"{name} in {folder} is a broken link.") from error
    if not any(real.is_relative_to(allowed) for allowed in _allowed_folders(folder.resolve())):
        raise InvalidSAEError(f"{name} in {folder} links to a file outside that folder; copy the file there.")
    if not stat.S_ISREG(mode):
        raise InvalidSAEError(f"{name} in {folder} is not a regular file.")
    return real


def _allowed_folders(folder: Path) -> list[Path]:
    """Return the folder, and for a snapshot in the Hub cache the folder of blobs that its files link to."""
    blobs = [path.parent.parent / "blobs" for path in (folder, *folder.parents) if path.parent.name == "snapshots"]
    return [folder, *blobs]


def read_json_object(folder: Path, name: str) -> dict[str, object]:
    """Return the JSON object of a small file."""
    data = _small_file(folder, name)
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise InvalidSAEError(f"{name} is not valid JSON.") from error
    if not isinstance(value, dict):
        raise InvalidSAEError(f"{name} must contain a JSON object, got {type(value).__name__}.")
    return value


def read_yaml_object(folder: Path, name: str) -> dict[str, object]:
    """Return the mapping of a small YAML file with plain values only."""
    data = _small_file(folder, name)
    try:
        value = yaml.safe_load(data)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InvalidSAEError(f"{name} is not valid YAML.") from error
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise InvalidSAEError(f"{name} must contain a mapping.")
    return value


def _small_file(folder: Path, name: str) -> bytes:
    path = regular_file(folder, name)
    size = path.stat().st_size
    if size > MAX_JSON_BYTES:
        raise InvalidSAEError(f"{name} has {size} bytes; the limit is {MAX_JSON_BYTES}.")
    return path.read_bytes()


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()
