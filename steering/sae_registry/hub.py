"""List the SAEs of a Hugging Face Hub repository or a local folder, without downloading files."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from inference.files.sources import SourceError, download_problem, local_directory
from steering.saes.files import check_subfolder
from steering.saes.formats.format import SAEFormat
from steering.saes.formats.registry import FORMATS
from steering.saes.place import natural_order
from steering.saes.tensor_files.base import Header
from steering.saes.tensor_files.safetensors_file import header_of

_MAX_FILES = 100_000


@dataclass(frozen=True, slots=True)
class SAEListing:
    """An SAE in a listing. There can be several possible formats, because some share the name of the weights file."""

    subfolder: str
    formats: tuple[str, ...]
    num_bytes: int


def list_saes(source: str, *, revision: str = "", subfolder: str = "") -> list[SAEListing]:
    """Return the SAEs of a local directory or a Hub repository, found by file names only.

    Raise SourceError if the source does not exist.
    """
    check_subfolder(subfolder)
    folder = subfolder.rstrip("/")
    local = local_directory(source)
    if local is None:
        files = hub_files(source, revision=revision, folder=folder)
    else:
        files = {path: size for path, size in _local_files(local).items() if _is_in(path, folder)}
    return sorted(_saes_among(files), key=lambda found: natural_order(found.subfolder))


def hub_files(source: str, *, revision: str = "", folder: str = "") -> dict[str, int]:
    """Return the file names and sizes of a repository, or of one folder. Empty if the folder does not exist.

    Raise SourceError if the repository cannot be read.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.hf_api import RepoFile

    try:
        tree = HfApi().list_repo_tree(source, folder or None, recursive=True, revision=revision or None)
        files: dict[str, int] = {}
        for entry in tree:
            if isinstance(entry, RepoFile):
                files[entry.path] = int(entry.size)
            if len(files) > _MAX_FILES:
                raise SourceError(f"{source} contains more than {_MAX_FILES} files; give a sub-folder.")
    except SourceError:
        raise
    except Exception as error:
        if "EntryNotFoundError" in {kind.__name__ for kind in type(error).__mro__}:
            return {}
        raise SourceError(download_problem(source, revision, error)) from error
    return files


def safetensors_headers(source: str, name: str, *, revision: str = "") -> tuple[tuple[str, Header], ...]:
    """Return the tensor headers of a file on the Hub by reading only its first bytes."""
    from huggingface_hub import HfApi

    try:
        found = HfApi().parse_safetensors_file_metadata(source, name, revision=revision or None)
    except Exception as error:
        raise SourceError(download_problem(source, revision, error)) from error
    return tuple((name, header_of(tuple(info.shape), info.dtype)) for name, info in found.tensors.items())


def _saes_among(files: Mapping[str, int]) -> Iterator[SAEListing]:
    formats: dict[str, list[str]] = {}
    sizes: dict[str, int] = {}
    for path, num_bytes in files.items():
        for known in FORMATS:
            place = known.place_of(path)
            if place is not None and _has_required(files, place, known):
                formats.setdefault(place, []).append(known.name)
                sizes[place] = num_bytes
    for place, names in formats.items():
        yield SAEListing(place, tuple(names), sizes[place])


def _has_required(files: Mapping[str, int], place: str, known: SAEFormat) -> bool:
    folder = place.rpartition("/")[0] if known.is_single_file else place
    prefix = f"{folder}/" if folder else ""
    return all(prefix + name in files for name in known.required_files)


def _is_in(path: str, folder: str) -> bool:
    return not folder or path.startswith(f"{folder}/")


def _local_files(root: Path) -> dict[str, int]:
    files: dict[str, int] = {}
    num_entries = 0
    for folder, names, file_names in os.walk(root):
        num_entries += len(names) + len(file_names)  # a tree of empty directories also takes time
        if num_entries > _MAX_FILES:
            raise SourceError(f"{root} contains more than {_MAX_FILES} files; give a sub-folder.")
        for name in file_names:
            path = Path(folder, name)
            if path.is_file() and not path.is_symlink():
                files[path.relative_to(root).as_posix()] = path.stat().st_size
    return files
