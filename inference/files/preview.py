"""Preview a model from its configuration, before it is downloaded or loaded.

A :class:`ModelRepository` is a directory or a repository of the Hub. Only file names, file sizes and small files are
read.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Protocol

from inference.files.architectures import (
    MEDIA_KINDS,
    PIPELINE_INDEX,
    SENTENCE_TRANSFORMERS,
    architecture_problem,
    kind_from_config,
)
from inference.files.sources import (
    MAX_CONFIG_BYTES,
    PICKLE_PATTERNS,
    ModelSource,
    SourceError,
    download_problem,
    local_directory,
)

CARD = "README.md"


class ModelRepository(Protocol):
    """The files of a model. ``sizes``: bytes by file name: top-level files, and those of a pipeline's parts."""

    @property
    def sizes(self) -> Mapping[str, int]: ...

    @property
    def licence(self) -> str: ...

    @property
    def gate(self) -> str:
        """Return how access is granted; empty if the repository is public."""

    def text(self, name: str) -> str | None:
        """Return the content of a small file; None if there is none. Raise SourceError if it is too large."""


@dataclass(frozen=True, slots=True)
class LocalRepository:
    """A local directory."""

    root: Path
    sizes: Mapping[str, int] = field(init=False)
    gate: str = ""

    def __post_init__(self) -> None:
        is_pipeline = (self.root / PIPELINE_INDEX).is_file()
        paths = [*self.root.iterdir(), *(self.root.glob("*/*") if is_pipeline else ())]
        sizes = {str(path.relative_to(self.root)): path.stat().st_size for path in paths if path.is_file()}
        object.__setattr__(self, "sizes", sizes)

    @property
    def licence(self) -> str:
        """Return the licence that the model card names."""
        return _card_licence(self.text(CARD) or "")

    def text(self, name: str) -> str | None:
        if name not in self.sizes:
            return None
        _check_size(name, self.sizes[name])
        return (self.root / name).read_text("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class HubRepository:
    """A repository of the Hugging Face Hub. Small files are downloaded to a temporary directory."""

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
    """Return the repository. Raise SourceError if it does not exist or is not accessible."""
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
        sizes={name: size for name, size in files.items() if name.count("/") <= int(PIPELINE_INDEX in files)},
        licence=_licence(card),
        gate=str(found.gated) if found.gated else "",
    )


def _check_size(name: str, size: int) -> None:
    if size > MAX_CONFIG_BYTES:
        raise SourceError(f"{name} has {size} bytes; the limit is {MAX_CONFIG_BYTES}.")


def _card_licence(card: str) -> str:
    """Return the licence from the YAML header of a model card."""
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
    """Return the licence, or its name if the licence is "other"."""
    found = card.get("license_name") or card.get("license") or ""
    return ", ".join(map(str, found))[:200] if isinstance(found, list) else str(found)[:200]


SAFETENSORS = "*.safetensors"
PARAMETER_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


@dataclass(frozen=True, slots=True)
class ModelPreview:
    """The preview of a model. ``problems`` prevent serving, ``doubts`` do not. Unknown values are 0 or empty."""

    kind: str
    architecture: str
    dtype: str
    weight_bytes: int
    num_parameters: int
    context_length: int
    num_layers: int
    width: int
    licence: str
    gate: str
    has_chat_template: bool
    problems: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()

    @property
    def parameters_text(self) -> str:
        """Return the number of parameters with three significant digits, as in "3.48 million"."""
        for size, unit in ((10**9, " billion"), (10**6, " million")):
            if self.num_parameters >= size * 0.9995:  # what rounds to it
                return f"{self.num_parameters / size:#.3g}".removesuffix(".") + unit
        return f"{self.num_parameters:,}"


def preview_model(source: ModelSource, repository: ModelRepository | None = None) -> ModelPreview:
    """Return the preview. Reads small files only. Raise SourceError if the model is missing or not accessible."""
    files = repository or repository_of(source)
    config = _json(files, PIPELINE_INDEX if PIPELINE_INDEX in files.sizes else "config.json")
    text = config.get("text_config")
    core: Mapping[str, Any] = text if isinstance(text, dict) else config
    dtype = str(config.get("dtype") or config.get("torch_dtype") or core.get("torch_dtype") or core.get("dtype") or "")
    size = _weight_bytes(files, source)
    return ModelPreview(
        kind=kind_from_config(config, has_pipeline=SENTENCE_TRANSFORMERS in files.sizes) or "",
        architecture=_architecture(config),
        dtype=dtype[:40],
        weight_bytes=size,
        num_parameters=size // PARAMETER_BYTES[dtype]
        if dtype in PARAMETER_BYTES and "quantization_config" not in config
        else 0,
        context_length=_number(core, "max_position_embeddings"),
        num_layers=_number(core, "num_hidden_layers"),
        width=_number(core, "hidden_size"),
        licence=files.licence,
        gate=files.gate,
        has_chat_template=_has_chat_template(files),
        problems=tuple(_problems(files, config, source)),
        doubts=tuple(_doubts(files, config)),
    )


def repository_of(source: ModelSource) -> ModelRepository:
    local = local_directory(source.source)
    return hub_repository(source.source, source.revision) if local is None else LocalRepository(local)


def _json(files: ModelRepository, name: str) -> Mapping[str, Any]:
    text = files.text(name)
    if text is None:
        raise SourceError(f"{name} is missing; this is not a model in the Hugging Face layout.")
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SourceError(f"{name} is not valid JSON: {error}.") from error
    if not isinstance(found, dict):
        raise SourceError(f"{name} must contain a JSON object.")
    return found


def _architecture(config: Mapping[str, Any]) -> str:
    names = [config["_class_name"]] if "_class_name" in config else config.get("architectures")
    return ", ".join(map(str, names))[:200] if isinstance(names, list) else ""


def _number(config: Mapping[str, Any], name: str) -> int:
    value = config.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**31 else 0


def _weight_bytes(files: ModelRepository, source: ModelSource) -> int:
    """Return the size of the weight files that would be downloaded."""
    safe = sum(size for name, size in files.sizes.items() if fnmatch(name, SAFETENSORS))
    return safe or sum(size for name, size in files.sizes.items() if fnmatch(name, PICKLE_PATTERNS[0]))


def _has_chat_template(files: ModelRepository) -> bool:
    if "chat_template.jinja" in files.sizes:
        return True
    try:
        text = files.text("tokenizer_config.json")
    except SourceError:
        return False
    return text is not None and '"chat_template"' in text


def _problems(files: ModelRepository, config: Mapping[str, Any], source: ModelSource) -> Iterator[str]:
    kind = kind_from_config(config, has_pipeline=SENTENCE_TRANSFORMERS in files.sizes)
    if kind is None:
        yield "It is of a kind that cannot be served; see docs/models.md for the kinds."
    elif kind == "generation" and (problem := architecture_problem(config)):
        yield problem
    if kind not in MEDIA_KINDS and "tokenizer.json" not in files.sizes:
        yield "It has no tokenizer.json; a fast tokenizer is required."
    has_safe = any(fnmatch(name, SAFETENSORS) for name in files.sizes)
    has_pickles = any(fnmatch(name, PICKLE_PATTERNS[0]) for name in files.sizes)
    if not has_safe and not has_pickles:
        yield "It has no weights in a supported format (*.safetensors)."
    elif not has_safe and not source.allow_pickle:
        yield 'It only has pickled weights, which can run code; set "allow pickle" to load them.'
    if config.get("auto_map") and not source.trust_remote_code:
        yield 'It needs its own code; set "trust remote code" to load it.'


def _doubts(files: ModelRepository, config: Mapping[str, Any]) -> Iterator[str]:
    if files.gate:
        yield (
            f"It is gated ({files.gate}): accept its terms on the Hub, and set HF_TOKEN in the server's environment to "
            "a token with access."
        )
    if not files.licence:
        yield "It does not name a licence; check whether you may use it."
    if "quantization_config" in config:
        yield "Its weights are quantised. Whether the format is supported is checked when the model is loaded."
