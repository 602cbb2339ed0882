"""The loaded models of the worker, by name. Models with the same files share their weights."""

from __future__ import annotations

import gc
import json
from pathlib import Path
from typing import Any

from media.messages import ModelFacts, ModelSpec
from media.worker.loading import UnsupportedModelError

WHISPER = "WhisperForConditionalGeneration"


def load(spec: ModelSpec) -> Any:
    """Load a model of any kind. Raise UnsupportedModelError."""
    if spec.kind == "image":
        from media.worker.images import Images

        return Images(spec.path, spec.dtype, spec.device, has_tiles=has_tiles(spec))
    if spec.kind == "video":
        from media.worker.videos import Videos

        return Videos(spec.path, spec.dtype, spec.device, has_tiles=has_tiles(spec))
    architecture = architecture_of(spec.path)
    if spec.kind == "speech":
        from media.worker.speech import CLASSES

        if architecture not in CLASSES:
            raise UnsupportedModelError(
                f"The architecture {architecture} is not supported. Supported: {', '.join(CLASSES)}."
            )
        return CLASSES[architecture](spec.path, spec.dtype, spec.device)
    if architecture == WHISPER:
        from media.worker.whisper import Whisper

        return Whisper(spec.path, spec.dtype, spec.device)
    from media.worker.recognition import Recognizer

    return Recognizer(spec.path, architecture, spec.dtype, spec.device)


def has_tiles(spec: ModelSpec) -> bool:
    """Return whether the model's images are decoded in tiles."""
    return bool(spec.options.get("vae_tiling"))


def architecture_of(path: Path) -> str:
    """Return the class that config.json names first."""
    names = json.loads((path / "config.json").read_text()).get("architectures") or [""]
    return str(names[0])


class Models:
    """The loaded models. Changed by one thread; readable by others."""

    def __init__(self) -> None:
        self._by_name: dict[str, Any] = {}
        self._keys: dict[str, tuple[object, ...]] = {}

    def __getitem__(self, name: str) -> Any:
        """Return the model. Raise UnsupportedModelError if it was unloaded meanwhile."""
        try:
            return self._by_name[name]
        except KeyError:
            raise UnsupportedModelError(f"The model `{name}` was unloaded.", code="model_unloaded") from None

    def add(self, spec: ModelSpec) -> ModelFacts:
        """Load a model, or share the weights of a loaded one with the same files, dtype and device."""
        key = (str(spec.path), spec.dtype, spec.device, spec.kind, has_tiles(spec))
        shared = next((name for name, other in self._keys.items() if other == key), None)
        model = load(spec) if shared is None else self._by_name[shared]
        self._by_name[spec.name], self._keys[spec.name] = model, key
        facts: ModelFacts = model.facts
        return facts

    def remove(self, name: str) -> None:
        self._by_name.pop(name, None)
        self._keys.pop(name, None)
        gc.collect()
