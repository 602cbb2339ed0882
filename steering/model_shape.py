"""The shape of a model that an SAE or a vector must fit, read from its configuration without loading it."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from inference.files.sources import fetch
from inference.interventions import Site
from inference.models import LanguageModel
from steering.errors import IncompatibleSAEError

_HIDDEN_SIZE = ("hidden_size", "n_embd", "d_model")
_NUM_LAYERS = ("num_hidden_layers", "n_layer", "num_layers")
_NUM_HEADS = ("num_attention_heads", "n_head", "num_heads")


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Widths, number of layers, and names of a model.

    ``attention_width`` is the number of heads times the head size, the width of ``attn_out``. ``bos_token_id`` is None
    if the model has no BOS token.
    """

    hidden_size: int
    num_layers: int
    attention_width: int
    names: tuple[str, ...] = ()
    bos_token_id: int | None = None

    def width(self, site: Site) -> int:
        return self.attention_width if site.kind == "attn_out" else self.hidden_size

    def check(self, site: Site, d_in: int) -> None:
        """Raise IncompatibleSAEError unless an SAE of this width fits at the site."""
        if not 0 <= site.layer < self.num_layers:
            raise IncompatibleSAEError(f"The model has layers 0 to {self.num_layers - 1}, got layer {site.layer}.")
        if self.width(site) != d_in:
            raise IncompatibleSAEError(
                f"The SAE is {d_in} wide (d_in), but the model is {self.width(site)} wide at {site.label}."
            )

    def doubts(self, trained_on: str, *, prepends_bos: bool | None) -> tuple[str, ...]:
        """Return warnings about an SAE of the right size that may be trained for another model or on other texts."""
        doubts = []
        if trained_on and not any(_is_same_model(trained_on, name) for name in self.names):
            doubts.append(f"The SAE was trained on {trained_on}; this model is {' or '.join(self.names) or 'unnamed'}.")
        if prepends_bos and self.bos_token_id is None:
            doubts.append("The SAE was trained on texts that begin with a BOS token, which this model does not have.")
        return tuple(doubts)


def read_model_shape(model: LanguageModel) -> ModelShape:
    """Read the shape from the config.json of a model, downloading it if necessary."""
    folder = fetch(model.source, revision=model.revision, allow_patterns=["config.json"])
    config = _text_config(folder / "config.json")
    names = (model.name, Path(model.source).name, str(config.get("_name_or_path") or ""))
    bos = config.get("bos_token_id")
    return replace(
        _shape(config, model.name),
        names=tuple(dict.fromkeys(name for name in names if name)),
        bos_token_id=bos if isinstance(bos, int) else None,
    )


def _text_config(path: Path) -> dict[str, Any]:
    try:
        config = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise IncompatibleSAEError(f"The model's {path.name} could not be read: {error}.") from error
    if not isinstance(config, dict):
        raise IncompatibleSAEError(f"The model's {path.name} must contain a JSON object.")
    nested = config.get("text_config")  # multimodal models nest the configuration of the language model
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
    raise IncompatibleSAEError(f"The configuration of the model {model} has no `{names[0]}`.")


def _is_same_model(one: str, other: str) -> bool:
    """Compare names without organisation, case and punctuation; one may lack a suffix such as -it or -base."""
    first, second = (re.sub(r"[^a-z0-9]", "", name.rpartition("/")[2].lower()) for name in (one, other))
    return bool(first and second) and (first in second or second in first)
