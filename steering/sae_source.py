"""Where an SAE's files lie, and whether they are still those that were registered."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from inference.sources import fetch
from steering.models import SAE
from steering.published import SAESource
from steering.saes import saelens
from steering.saes.errors import InvalidSAEError
from steering.saes.files import regular_file, sae_folder
from steering.saes.preview import preview_sae, sae_checksum

if TYPE_CHECKING:
    from steering.saes.sae import SparseAutoencoder

CONFIG_FILES = (saelens.CONFIG_FILE, saelens.SCALER_FILE)
ALL_FILES = (*CONFIG_FILES, saelens.WEIGHTS_FILE)


def locate_sae(source: str, *, revision: str = "", subfolder: str = "", files: Sequence[str] = ALL_FILES) -> Path:
    """The SAE's folder on this machine; of a Hub repository exactly these files are downloaded first.

    InvalidSAEError or :class:`inference.sources.SourceError` when there is none.
    """
    prefix = f"{subfolder.strip('/')}/" if subfolder else ""
    root = fetch(source, revision=revision, allow_patterns=[prefix + name for name in files])
    return sae_folder(root, subfolder)


def installed_folder(sae: SAE) -> Path:
    """The folder of a registered SAE; InvalidSAEError when its files are not the registered ones any more."""
    folder = locate_sae(sae.source, revision=sae.revision, subfolder=sae.subfolder)
    if folder_checksum(folder) != sae.checksum:
        raise InvalidSAEError(f"The files of the SAE {sae.name} in {folder} have changed since it was registered.")
    return folder


def load_source(source: SAESource) -> SparseAutoencoder:
    """The weights of a registered SAE; slow."""
    from steering.saes.loader import load_sae  # imports torch

    return load_sae(locate_sae(source.source, revision=source.revision, subfolder=source.subfolder))


def folder_checksum(folder: Path) -> str:
    """The checksum of the SAE in ``folder``; weights that did not change are not read twice."""
    config = preview_sae(folder)
    status = regular_file(folder, config.weights_file).stat()
    return _checksum(folder, config_text=repr(config), written_at=status.st_mtime_ns, num_bytes=status.st_size)


@lru_cache(maxsize=256)
def _checksum(folder: Path, *, config_text: str, written_at: int, num_bytes: int) -> str:
    """The keyword arguments are there to tell versions of the files apart."""
    return sae_checksum(folder, preview_sae(folder))
