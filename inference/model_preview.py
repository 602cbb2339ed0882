"""What a model is, told from its configuration alone, before it is downloaded or loaded."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from typing import Any

from inference.architectures import architecture_problem
from inference.model_kind import SENTENCE_TRANSFORMERS, kind_of_config
from inference.model_repository import LocalRepository, ModelRepository, hub_repository
from inference.sources import PICKLE_PATTERNS, ModelSource, SourceError, local_directory

SAFETENSORS = "*.safetensors"
PARAMETER_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


@dataclass(frozen=True, slots=True)
class ModelPreview:
    """``problems`` keep it from being served; ``doubts`` do not. 0 and "" where the files do not say."""

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


def preview_model(source: ModelSource, repository: ModelRepository | None = None) -> ModelPreview:
    """Reads small files only; SourceError where there is nothing, or it may not be read."""
    files = repository or repository_of(source)
    config = _json(files, "config.json")
    text = config.get("text_config")
    core: Mapping[str, Any] = text if isinstance(text, dict) else config
    dtype = str(config.get("dtype") or config.get("torch_dtype") or core.get("torch_dtype") or core.get("dtype") or "")
    size = _weight_bytes(files, source)
    return ModelPreview(
        kind=kind_of_config(config, has_pipeline=SENTENCE_TRANSFORMERS in files.sizes) or "",
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
        raise SourceError(f"There is no {name}; it is not a model in the Hugging Face layout.")
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SourceError(f"{name} is not valid JSON: {error}.") from error
    if not isinstance(found, dict):
        raise SourceError(f"{name} does not hold a JSON object.")
    return found


def _architecture(config: Mapping[str, Any]) -> str:
    names = config.get("architectures")
    return ", ".join(map(str, names))[:200] if isinstance(names, list) else ""


def _number(config: Mapping[str, Any], name: str) -> int:
    value = config.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**31 else 0


def _weight_bytes(files: ModelRepository, source: ModelSource) -> int:
    """Of the files that would be downloaded."""
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
    kind = kind_of_config(config, has_pipeline=SENTENCE_TRANSFORMERS in files.sizes)
    if kind is None:
        yield "It is neither a causal language model nor one for embeddings or classification, so it cannot be served."
    elif kind == "generation" and (problem := architecture_problem(config)):
        yield problem
    if "tokenizer.json" not in files.sizes:
        yield "It has no tokenizer.json; a fast tokenizer is needed."
    has_safe = any(fnmatch(name, SAFETENSORS) for name in files.sizes)
    has_pickles = any(fnmatch(name, PICKLE_PATTERNS[0]) for name in files.sizes)
    if not has_safe and not has_pickles:
        yield "It has no weights that can be read (*.safetensors)."
    elif not has_safe and not source.allow_pickle:
        yield "It has pickled weights only, which can run code; it is loaded only where “allow pickle” is set."
    if config.get("auto_map") and not source.trust_remote_code:
        yield "It brings its own code; it is loaded only where “trust remote code” is set."


def _doubts(files: ModelRepository, config: Mapping[str, Any]) -> Iterator[str]:
    if files.gate:
        yield (
            f"It is gated ({files.gate}): its terms have to be accepted on the Hub, and HF_TOKEN in the server's "
            "environment must be a token that may read it."
        )
    if not files.licence:
        yield "Its files name no licence; look whether you may use it."
    if "quantization_config" in config:
        yield "Its weights are quantised by its makers; whether this server can load them shows when it is loaded."
