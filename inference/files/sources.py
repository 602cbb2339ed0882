"""Resolve a ``source`` (a local directory or a Hugging Face Hub id) to a checked local directory.

Only the necessary files of a model are downloaded: safetensors weights, configuration, tokenizer. Before loading, a
directory is checked: regular files inside it, a supported kind of model, a fast tokenizer, an accepted weight format.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from django.conf import settings

from core.errors import MillmError
from inference.files.architectures import (
    MEDIA_KINDS,
    PIPELINE_INDEX,
    ModelKind,
    architecture_problem,
    detect_kind,
)

DEFAULT_LABELS = 2  # of a classifier whose config has none, as in transformers
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
SAFE_PATTERNS = (
    "*.safetensors",
    "*.safetensors.index.json",
    "*.json",
    "*.jinja",
    "*.model",
    "*.npz",
    "*.txt",
)
PICKLE_PATTERNS = ("*.bin", "*.bin.index.json")
CODE_PATTERNS = ("*.py",)
UNREACHABLE = frozenset(
    {
        "LocalEntryNotFoundError",
        "OfflineModeIsEnabled",
        "ConnectionError",
        "ConnectError",
        "TimeoutError",
        "TimeoutException",
    }
)
MAX_CONFIG_BYTES = 1_000_000
MAX_MODEL_FILES = 20_000
OUTSIDE_ROOTS = (
    "Local sources must be inside the server's MILLM_MODEL_ROOTS. Move the files there, give a Hub id such as "
    "org/model, or register the model with a manage.py command."
)
ALLOW_CODE_HINT = "The operator can allow it with MILLM_ALLOW_REMOTE_CODE=true."
DOWNLOADED = ".downloaded.json"  # the patterns of completely downloaded files


class SourceError(MillmError):
    """The source cannot be used. The message says why and what to do."""

    code = "invalid_source"
    param = "source"
    names_files = True


@dataclass(frozen=True, slots=True)
class ModelSource:
    """The origin of a model, as in its row."""

    source: str
    revision: str = ""
    trust_remote_code: bool = False
    allow_pickle: bool = False


Download = Callable[..., object]


def resolve_source(source: ModelSource, *, download: Download | None = None, downloads_dir: Path | None = None) -> Path:
    """Return the checked local directory of a model, downloading it if necessary. Raise SourceError."""
    path = fetch(
        source.source,
        revision=source.revision,
        allow_patterns=_patterns(source),
        download=download,
        downloads_dir=downloads_dir,
    )
    check_directory(path, source)
    return path


def locate_model(source: ModelSource, download: Download) -> Path:
    """Call :func:`resolve_source` with the download function that the registry watches."""
    return resolve_source(source, download=download)


def fetch(
    source: str,
    *,
    revision: str = "",
    allow_patterns: Sequence[str],
    download: Download | None = None,
    downloads_dir: Path | None = None,
) -> Path:
    """Return the local directory of a model or an SAE. A complete earlier download is used without network access.

    ``download`` has the signature of ``huggingface_hub.snapshot_download``, the default. The default ``downloads_dir``
    is ``MILLM_HOME/models``. Raise SourceError.
    """
    local = local_directory(source)
    if local is not None:
        return local
    target = (downloads_dir or Path(settings.MILLM_HOME) / "models") / _directory_name(source, revision)
    done = _downloaded_patterns(target)
    if not all(any(fnmatch(requested, pattern) for pattern in done) for requested in allow_patterns):
        _download(source, revision, target, allow_patterns, download or _hub_download())
        (target / DOWNLOADED).write_text(json.dumps(sorted({*done, *allow_patterns})))
    return target


def present_directory(source: ModelSource) -> Path | None:
    """Return the model's directory, or None if it must be downloaded. Raise SourceError for a malformed source."""
    local = local_directory(source.source)
    if local is not None:
        return local
    target = Path(settings.MILLM_HOME) / "models" / _directory_name(source.source, source.revision)
    return target if _downloaded_patterns(target) else None


def is_local(source: str) -> bool:
    """Return whether ``source`` is written as a path. A Hub id stays one even if a directory has the same name."""
    return source.startswith(("/", ".", "~"))


def source_at_shell(source: str) -> str:
    """Return the source as an operator enters it in a shell: the bare name of an existing directory is a path."""
    return os.path.abspath(source) if source and not is_local(source) and os.path.isdir(source) else source


def check_within_roots(source: str) -> None:
    """Raise SourceError for a path from the network that lies outside MILLM_MODEL_ROOTS.

    The error is the same whether the path exists or not, and nothing outside the roots is accessed.
    """
    if not is_local(source):
        return
    roots: Sequence[Path] = settings.MILLM_MODEL_ROOTS
    real_roots = [os.path.realpath(root) for root in roots]
    named = os.path.abspath(os.path.expanduser(source))
    is_named_inside = any(_is_below(named, root) for root in (*map(os.path.abspath, roots), *real_roots))
    if "\0" in source or not is_named_inside or not any(_is_below(os.path.realpath(named), r) for r in real_roots):
        raise SourceError(OUTSIDE_ROOTS)


def _is_below(path: str, root: str) -> bool:
    return path == root or path.startswith(root.rstrip("/") + "/")


def local_directory(source: str) -> Path | None:
    """Return the real path of a local source, or None for a Hub id. Raise SourceError for anything else."""
    if is_local(source):
        path = Path(source).expanduser().resolve()
        if not path.is_dir():
            raise SourceError(
                f"The directory {source!r} does not exist; give a directory or a Hub id such as org/model."
            )
        return path
    if not HUB_ID.fullmatch(source) or ".." in source or "--" in source:
        raise SourceError(f"{source[:200]!r} is neither a directory nor a Hub id such as org/model.")
    return None


def check_directory(path: Path, source: ModelSource) -> None:
    """Raise SourceError unless the directory contains a model that can be served."""
    config = _read_config(path)  # first, so that a directory without a model is not searched
    for number, file in enumerate(_files(path)):
        if number >= MAX_MODEL_FILES:
            raise SourceError(f"{path} contains more than {MAX_MODEL_FILES} files; give the model's own directory.")
        _check_file(file, path)
    kind = kind_of_directory(path)
    if kind == "generation" and (problem := architecture_problem(config)):
        raise SourceError(problem)
    _check_code(config, source)
    if kind not in MEDIA_KINDS and not (path / "tokenizer.json").is_file():
        raise SourceError(
            f"{path} has no tokenizer.json; a fast tokenizer is required. Save one with the tokenizers library."
        )
    _check_weights(path, source)


def kind_of_directory(path: Path) -> ModelKind:
    """Return the kind of the model. Raise SourceError if it cannot be served."""
    config = _read_config(path)
    kind = detect_kind(path, config)
    if kind is None:
        raise SourceError(
            f"{path} is not a model that can be served (architectures in config.json: "
            f"{_listed(config.get('architectures'))}). Supported are language models, models for embeddings, "
            "classification, transcription and speech, and pipelines of diffusers; see docs/models.md."
        )
    return kind


def own_context_length(path: Path) -> int:
    """Return the context length from the config of the model in this directory; 0 if the config has none."""
    config = _read_config(path)
    text = config.get("text_config")
    length = (text if isinstance(text, dict) else config).get("max_position_embeddings")
    return length if isinstance(length, int) and 0 < length < 2**31 else 0


def num_labels(path: Path) -> int:
    """Return the number of labels of a classifier (1 for a reranker); 0 for other models."""
    config = _read_config(path)
    if detect_kind(path, config) != "classification":
        return 0
    labels = config.get("id2label")
    count = config.get("num_labels", len(labels) if isinstance(labels, dict) else DEFAULT_LABELS)
    return count if isinstance(count, int) and 0 < count < 2**31 else 0


def _patterns(source: ModelSource) -> list[str]:
    pickles = PICKLE_PATTERNS if source.allow_pickle else ()
    code = CODE_PATTERNS if source.trust_remote_code else ()
    return [*SAFE_PATTERNS, *pickles, *code]


def _directory_name(source: str, revision: str) -> str:
    """Return the directory name. Slashes become ``--``, which Hub ids cannot contain."""
    return "@".join(part.replace("/", "--") for part in (source, revision) if part)


def _downloaded_patterns(target: Path) -> set[str]:
    try:
        return set(json.loads((target / DOWNLOADED).read_text()))
    except (OSError, ValueError):  # missing, or its writing was interrupted: ask the Hub again
        return set()


def _download(source: str, revision: str, target: Path, patterns: Sequence[str], download: Download) -> None:
    """Download the files that are missing. The Hub library reads HF_TOKEN itself."""
    try:
        download(repo_id=source, revision=revision or None, local_dir=str(target), allow_patterns=list(patterns))
    except Exception as error:
        raise SourceError(download_problem(source, revision, error)) from error
    target.mkdir(parents=True, exist_ok=True)


def _hub_download() -> Download:
    from huggingface_hub import snapshot_download

    download: Download = snapshot_download
    return download


def download_problem(name: str, revision: str, error: Exception) -> str:
    """Return a sentence for an error of huggingface_hub. Compares class names, so that it need not be imported."""
    kinds = {kind.__name__ for kind in type(error).__mro__}
    if "GatedRepoError" in kinds:
        return f"{name} is gated: accept its terms on the Hub, and set HF_TOKEN to a token with access."
    if "RepositoryNotFoundError" in kinds:
        return f"{name} does not exist on the Hub, or it is private: check the id, or set HF_TOKEN."
    if "RevisionNotFoundError" in kinds:
        return f"{name} has no revision {revision!r} on the Hub."
    if kinds & UNREACHABLE:
        return f"{name} is not on this machine and the Hub is not reachable: connect, or give a local directory."
    return f"{name} could not be downloaded: {type(error).__name__}: {error}"


def _files(path: Path) -> Iterator[Path]:
    for folder, _, names in os.walk(path):
        for name in names:
            yield Path(folder, name)


def _check_file(file: Path, root: Path) -> None:
    """Raise SourceError unless the file is regular and inside the directory (or a blob of the Hub's cache)."""
    try:
        real = file.resolve(strict=True)
    except OSError as error:
        raise SourceError(f"{file} could not be read: {error.strerror or error}.") from error
    allowed = [root]
    if root.parent.name == "snapshots":
        allowed.append(root.parent.parent / "blobs")
    if not any(real.is_relative_to(folder) for folder in allowed):
        raise SourceError(f"{file} links to a file outside the model's directory; copy the file there.")
    if not stat.S_ISREG(real.stat().st_mode):
        raise SourceError(f"{file} is not a regular file.")


def _read_config(path: Path) -> dict[str, Any]:
    """Return the content of config.json, or of the model_index.json of a pipeline of diffusers."""
    index, file = path / PIPELINE_INDEX, path / "config.json"
    file = index if index.is_file() else file
    if not file.is_file():
        raise SourceError(f"{path} has no config.json; it is not a model in the Hugging Face layout.")
    if file.stat().st_size > MAX_CONFIG_BYTES:
        raise SourceError(f"{file} has {file.stat().st_size} bytes; the limit is {MAX_CONFIG_BYTES}.")
    try:
        config = json.loads(file.read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        raise SourceError(f"{file} is not valid JSON: {error}.") from error
    if not isinstance(config, dict):
        raise SourceError(f"{file} must contain a JSON object.")
    return config


def _check_code(config: dict[str, Any], source: ModelSource) -> None:
    if config.get("auto_map") and not source.trust_remote_code:
        raise SourceError(
            f"{source.source} needs its own code; if you trust it, allow that with --trust-remote-code and "
            "MILLM_ALLOW_REMOTE_CODE=true."
        )


def _listed(names: Any) -> str:
    return ", ".join(map(str, names)) if isinstance(names, list) and names else "none"


def _check_weights(path: Path, source: ModelSource) -> None:
    if any(path.glob("*.safetensors")) or ((path / PIPELINE_INDEX).is_file() and any(path.glob("*/*.safetensors"))):
        return
    if not any(path.glob("*.bin")):
        raise SourceError(f"{path} has no weights (*.safetensors).")
    if not source.allow_pickle:
        raise SourceError(
            f"{path} only has pickled weights, which can run code; allow that with --allow-pickle and "
            "MILLM_ALLOW_REMOTE_CODE=true."
        )
