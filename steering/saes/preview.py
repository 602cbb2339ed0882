"""Recognises the format of an SAE's folder and reads its configuration; needs neither weights nor torch."""

from __future__ import annotations

from pathlib import Path

from steering.saes import saelens
from steering.saes.config import SAEConfig
from steering.saes.errors import InvalidSAEError
from steering.saes.files import file_sha256, has_file, read_json_object, regular_file

# Formats that are recognised by a file only they have, to be refused by name rather than misread.
_OTHER_FORMATS = (
    ("params.npz", "Gemma Scope"),
    ("params.safetensors", "Gemma Scope 2"),
    ("sae.safetensors", "EleutherAI sparsify"),
    ("hyperparams.json", "Llama Scope"),
    ("ae.pt", "dictionary_learning"),
    ("sae_weights.pt", "a pickle"),
)
_PICKLE_SUFFIXES = frozenset({".pt", ".pth", ".bin", ".pkl", ".pickle", ".ckpt"})


def preview_sae(folder: Path) -> SAEConfig:
    """What the configuration says; InvalidSAEError when the format is unknown or not supported."""
    if has_file(folder, saelens.CONFIG_FILE):
        config = read_json_object(folder, saelens.CONFIG_FILE)
        if saelens.is_version_6(config):
            return saelens.parse_version_6(config, folder)
        if saelens.is_flat(config):
            return saelens.parse_flat(config, folder)
    raise InvalidSAEError(_unknown_format(folder))


def sae_checksum(folder: Path, config: SAEConfig) -> str:
    """The SAE's identity, from its files; reads the weights once."""
    return config.math.checksum(file_sha256(regular_file(folder, config.weights_file)))


def _unknown_format(folder: Path) -> str:
    expected = f"expected is SAELens' layout, {saelens.CONFIG_FILE} beside {saelens.WEIGHTS_FILE}"
    for name, label in _OTHER_FORMATS:
        if has_file(folder, name):
            return f"{folder} looks like {label} ({name}), which is not supported; {expected}."
    pickles = sorted(path.name for path in folder.iterdir() if path.suffix in _PICKLE_SUFFIXES)
    if pickles:
        return f"{pickles[0]} is a pickle, which can run code when opened and is never read; {expected}."
    return f"No SAE was recognised in {folder}; {expected}. Name the sub-folder if it lies in one."
