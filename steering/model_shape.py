"""The numbers of a model's configuration that an SAE must fit; read without loading the model."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inference.interventions import Site
from inference.models import LanguageModel
from inference.sources import fetch
from steering.errors import IncompatibleSAEError

_HIDDEN_SIZE = ("hidden_size", "n_embd", "d_model")
_NUM_LAYERS = ("num_hidden_layers", "n_layer", "num_layers")
_NUM_HEADS = ("num_attention_heads", "n_head", "num_heads")


@dataclass(frozen=True, slots=True)
class ModelShape:
    """``attention_width`` is heads times head size, the width of ``attn_out``."""

    hidden_size: int
    num_layers: int
    attention_width: int

    def width(self, site: Site) -> int:
        return self.attention_width if site.kind == "attn_out" else self.hidden_size

    def check(self, site: Site, d_in: int) -> None:
        """IncompatibleSAEError unless an SAE of that width fits at the site."""
        if not 0 <= site.layer < self.num_layers:
            raise IncompatibleSAEError(f"The model has layers 0 to {self.num_layers - 1}, not {site.layer}.")
        if self.width(site) != d_in:
            raise IncompatibleSAEError(f"{site} is {self.width(site)} wide in this model, the SAE reads {d_in} (d_in).")


def read_model_shape(model: LanguageModel) -> ModelShape:
    """From the model's config.json, downloaded if need be."""
    folder = fetch(model.source, revision=model.revision, allow_patterns=["config.json"])
    return _shape(_text_config(folder / "config.json"), model.name)


def _text_config(path: Path) -> dict[str, Any]:
    try:
        config = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise IncompatibleSAEError(f"The model's {path.name} cannot be read: {error}.") from error
    if not isinstance(config, dict):
        raise IncompatibleSAEError(f"The model's {path.name} does not hold an object.")
    nested = config.get("text_config")  # models that also see or hear keep their language part there
    return nested if isinstance(nested, dict) else config


def _shape(config: dict[str, Any], name: str) -> ModelShape:
    hidden_size = _number(config, _HIDDEN_SIZE, name)
    heads = _number(config, _NUM_HEADS, name)
    head_dim = config.get("head_dim") or hidden_size // heads
    return ModelShape(hidden_size, _number(config, _NUM_LAYERS, name), heads * int(head_dim))


def _number(config: dict[str, Any], names: tuple[str, ...], model: str) -> int:
    for name in names:
        if isinstance(config.get(name), int):
            return int(config[name])
    raise IncompatibleSAEError(f"The configuration of the model {model} has no {names[0]}.")
