"""Detect the format of an SAE and read its configuration, without reading weights or importing torch.

For formats without a configuration file, only the header of the weights is read.
"""

from __future__ import annotations

from pathlib import Path

from steering.saes.config import SAEConfig
from steering.saes.errors import InvalidSAEError
from steering.saes.files import file_sha256
from steering.saes.formats.format import SAEFormat
from steering.saes.formats.registry import FORMATS
from steering.saes.place import SAEPlace, sae_place

_PICKLE_SUFFIXES = frozenset({".pt", ".pth", ".bin", ".pkl", ".pickle", ".ckpt"})


def as_place(path: Path | SAEPlace) -> SAEPlace:
    """Return the place of a folder, or of a weights file in a folder that holds several SAEs."""
    if isinstance(path, SAEPlace):
        return path
    return sae_place(path.parent, path.name) if path.is_file() else sae_place(path)


def preview_sae(path: Path | SAEPlace) -> SAEConfig:
    """Return the configuration. Raise InvalidSAEError if the format is unknown or not supported."""
    place = as_place(path)
    return recognise(place).preview(place)


def recognise(place: SAEPlace) -> SAEFormat:
    """Return the format of the files. Raise InvalidSAEError if no known format matches, or more than one."""
    found = [known for known in FORMATS if known.recognises(place)]
    if len(found) > 1:
        titles = " and ".join(known.title for known in found)
        raise InvalidSAEError(f"{place} matches several formats ({titles}); keep each SAE in its own folder.")
    if not found:
        raise InvalidSAEError(_unknown_format(place))
    return found[0]


def sae_checksum(path: Path | SAEPlace, config: SAEConfig) -> str:
    """Return the checksum that identifies the SAE; reads the weights once."""
    return config.math.checksum(file_sha256(as_place(path).path(config.weights_file)))


def _unknown_format(place: SAEPlace) -> str:
    expected = f"supported formats: {', '.join(known.title for known in FORMATS)}"
    pickles = [name for name in place.matching(".*") if Path(name).suffix in _PICKLE_SUFFIXES]
    if pickles:
        return (
            f"{pickles[0]} is a pickle of an unknown layout. Pickles can run code when they are opened, so they are "
            f"only read if their layout is known; {expected}."
        )
    return f"No SAE was recognised in {place}; {expected}. If the SAE is in a sub-folder, name it."
