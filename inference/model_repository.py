"""What a model's source says of itself before anything large is read: names and sizes of files, small files, terms."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from inference.sources import MAX_CONFIG_BYTES, SourceError, download_problem

CARD = "README.md"


class ModelRepository(Protocol):
    """``sizes`` are bytes by file name, of files at the top only."""

    @property
    def sizes(self) -> Mapping[str, int]: ...

    @property
    def licence(self) -> str: ...

    @property
    def gate(self) -> str:
        """How access is asked for; empty where everybody may read it."""

    def text(self, name: str) -> str | None:
        """A small file's content; None where there is none of that name. SourceError for one that is too large."""


@dataclass(frozen=True, slots=True)
class LocalRepository:
    """A directory of this machine."""

    root: Path
    sizes: Mapping[str, int] = field(init=False)
    gate: str = ""

    def __post_init__(self) -> None:
        files = (path for path in self.root.iterdir() if path.is_file())
        object.__setattr__(self, "sizes", {path.name: path.stat().st_size for path in files})

    @property
    def licence(self) -> str:
        """As the model card's header says."""
        return _card_licence(self.text(CARD) or "")

    def text(self, name: str) -> str | None:
        if name not in self.sizes:
            return None
        _check_size(name, self.sizes[name])
        return (self.root / name).read_text("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class HubRepository:
    """Of the Hugging Face Hub; asks for a list of files, and downloads small ones to a place that is gone again."""

    source: str
    revision: str
    sizes: Mapping[str, int]
    licence: str
    gate: str

    def text(self, name: str) -> str | None:
        if name not in self.sizes:
            return None
        _check_size(name, self.sizes[name])
        from huggingface_hub import hf_hub_download

        with tempfile.TemporaryDirectory() as folder:
            try:
                path = hf_hub_download(self.source, name, revision=self.revision or None, local_dir=folder)
            except Exception as error:
                raise SourceError(download_problem(self.source, self.revision, error)) from error
            return Path(path).read_text("utf-8", "replace")


def hub_repository(source: str, revision: str = "") -> HubRepository:
    """SourceError where there is no such repository, or it may not be seen."""
    from huggingface_hub import HfApi

    try:
        found = HfApi().model_info(source, revision=revision or None, files_metadata=True)
    except Exception as error:
        raise SourceError(download_problem(source, revision, error)) from error
    files = {file.rfilename: int(file.size or 0) for file in found.siblings or ()}
    card = found.card_data.to_dict() if found.card_data is not None else {}
    return HubRepository(
        source=source,
        revision=revision,
        sizes={name: size for name, size in files.items() if "/" not in name},
        licence=_licence(card),
        gate=str(found.gated) if found.gated else "",
    )


def _check_size(name: str, size: int) -> None:
    if size > MAX_CONFIG_BYTES:
        raise SourceError(f"{name} has {size} bytes; no model needs more than {MAX_CONFIG_BYTES}.")


def _card_licence(card: str) -> str:
    """From the YAML between the first two lines of dashes."""
    import yaml

    parts = card.split("---", 2)
    if len(parts) < 3 or parts[0].strip():
        return ""
    try:
        header = yaml.safe_load(parts[1])
    except (yaml.YAMLError, RecursionError):
        return ""
    return _licence(header) if isinstance(header, dict) else ""


def _licence(card: Mapping[str, Any]) -> str:
    """The name of one that is “other” tells more."""
    found = card.get("license_name") or card.get("license") or ""
    return ", ".join(map(str, found))[:200] if isinstance(found, list) else str(found)[:200]
