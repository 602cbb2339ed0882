"""Locate and download the files of an SAE, and check them against the registered checksum."""

from __future__ import annotations

import glob
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from inference.files.sources import Download, fetch, local_directory
from inference.steering_refs import SAESource
from steering.models import SAE
from steering.sae_registry.hub import hub_files, safetensors_headers
from steering.saes.errors import InvalidSAEError
from steering.saes.files import check_subfolder
from steering.saes.formats.registry import CONFIG_FILES
from steering.saes.place import SAEPlace, sae_place
from steering.saes.preview import preview_sae, recognise, sae_checksum

if TYPE_CHECKING:
    from steering.saes.sae import SparseAutoencoder


def locate_sae(
    source: str,
    *,
    revision: str = "",
    subfolder: str = "",
    with_weights: bool = True,
    download: Download | None = None,
) -> SAEPlace:
    """Return the place of an SAE on this machine, downloading its files from the Hub if necessary.

    Without ``with_weights`` only the configuration is downloaded. A complete download needs no network later. Raise
    InvalidSAEError or :class:`inference.files.sources.SourceError`.
    """
    check_subfolder(subfolder)
    local = local_directory(source)
    if local is not None:
        return sae_place(local, subfolder)
    root = fetch(source, revision=revision, allow_patterns=())
    here = _downloaded(root, subfolder)
    return here or _Repository(source, revision, root, download).locate(
        subfolder.rstrip("/"), with_weights=with_weights
    )


def installed_place(sae: SAE) -> SAEPlace:
    """Return the place of a registered SAE. Raise InvalidSAEError if its files have changed since."""
    place = locate_sae(sae.source, revision=sae.revision, subfolder=sae.subfolder)
    if place_checksum(place) != sae.checksum:
        raise InvalidSAEError(changed_since_registered(sae.name, f" in {place}"))
    return place


def changed_since_registered(name: str, where: str = "") -> str:
    """Return the error message for an SAE whose checksum has changed."""
    return (
        f"The files of the SAE {name}{where} have changed since it was registered, or this version of miLLM reads "
        "their format differently; add the SAE again."
    )


def load_source(source: SAESource) -> SparseAutoencoder:
    """Load the weights of a registered SAE. Slow."""
    from steering.saes.loader import load_sae  # imports torch

    return load_sae(locate_sae(source.source, revision=source.revision, subfolder=source.subfolder))


def place_checksum(place: SAEPlace) -> str:
    """Return the checksum of the SAE in a place. Unchanged weights are not read again."""
    config = preview_sae(place)
    status = place.path(config.weights_file).stat()
    return _checksum(place, config_text=repr(config), written_at=status.st_mtime_ns, num_bytes=status.st_size)


@lru_cache(maxsize=256)
def _checksum(place: SAEPlace, *, config_text: str, written_at: int, num_bytes: int) -> str:
    """Return the checksum; the keyword arguments are the cache key for this version of the files."""
    return sae_checksum(place, preview_sae(place))


def _downloaded(root: Path, subfolder: str) -> SAEPlace | None:
    """Return the place of an SAE whose weights are downloaded already, or None.

    None for a folder that may hold several SAEs, because others may not be downloaded yet.
    """
    try:
        place = sae_place(root, subfolder)
        converter = recognise(place)
        if converter.is_single_file and not place.file:
            return None
        return place if place.is_here(converter.weights_file(place)) else None
    except InvalidSAEError:
        return None


@dataclass(frozen=True, slots=True)
class _Repository:
    """A repository of the Hub, downloaded to ``root``."""

    source: str
    revision: str
    root: Path
    download: Download | None

    def locate(self, subfolder: str, *, with_weights: bool) -> SAEPlace:
        """Return the place of an SAE. Lists file names first, so that only its own files are downloaded."""
        files = hub_files(self.source, revision=self.revision, folder=subfolder)
        folder, name = (subfolder, "") if set(files) - {subfolder} else _split(subfolder)
        if name:
            files = hub_files(self.source, revision=self.revision, folder=folder)
        prefix = f"{folder}/" if folder else ""
        names = frozenset(path.removeprefix(prefix) for path in files)
        if name and name not in names:
            raise InvalidSAEError(f"{self.source} contains neither a folder nor a file {subfolder!r}.")
        self._fetch([prefix + config for config in CONFIG_FILES if config in names])
        (self.root / folder).mkdir(parents=True, exist_ok=True)
        place = sae_place(self.root, subfolder, names)
        converter = recognise(place)
        if not with_weights and not converter.needs_header(place):
            return place
        weights = prefix + converter.weights_file(place)
        if not with_weights and weights.endswith(".safetensors"):
            return replace(place, remote=safetensors_headers(self.source, weights, revision=self.revision))
        self._fetch([weights])
        return place

    def _fetch(self, names: list[str]) -> None:
        if names:
            patterns = [glob.escape(name) for name in names]
            fetch(self.source, revision=self.revision, allow_patterns=patterns, download=self.download)


def _split(subfolder: str) -> tuple[str, str]:
    folder, _, name = subfolder.rpartition("/")
    return folder, name
