"""Load a model that embeds texts: an encoder such as BERT, or a decoder such as Qwen3-Embedding.

Token states are pooled into one vector as the model's sentence-transformers pipeline specifies.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AutoModel, PreTrainedTokenizerBase

from inference.engine.embedding.encoder import LoadedEncoder, check_tokenizer, check_weights, facts_of
from inference.engine.errors import LoadError
from inference.engine.models.adaptations import freeze_long_rope
from inference.engine.models.facts import ModelSpec
from inference.engine.models.load_faults import enough_memory, readable_files
from inference.engine.models.loader import check_dtype, from_pretrained, resolve_device
from inference.torch_threads import borrowed_workers

PoolingMode = Literal["mean", "cls", "lasttoken"]
MODES: dict[str, PoolingMode] = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_lasttoken": "lasttoken",
}


@dataclass(frozen=True, slots=True)
class Pooling:
    mode: PoolingMode
    is_normalized: bool = True

    def __call__(self, states: Tensor, mask: Tensor) -> Tensor:
        """Pool ``[texts, tokens, hidden]`` to ``[texts, hidden]``, float32. ``mask``: ``[texts, tokens]``; texts start
        at 0.

        mean: the average of a text's tokens; cls: the first token; lasttoken: the last token. Normalised: length 1.
        """
        states = states.float()
        if self.mode == "mean":
            weights = mask.unsqueeze(-1).float()
            pooled = (states * weights).sum(1) / weights.sum(1).clamp(min=1e-9)
        else:
            places = mask.sum(1) - 1 if self.mode == "lasttoken" else torch.zeros_like(mask[:, 0])
            pooled = states[torch.arange(len(states), device=states.device), places]
        return functional.normalize(pooled, dim=-1) if self.is_normalized else pooled


def read_pooling(path: Path, *, is_decoder: bool) -> Pooling:
    """Return the pooling of ``modules.json`` and its pooling module. Raise LoadError if it is not supported.

    Without a pipeline: mean for encoders, last token for decoders, normalised.
    """
    file = path / "modules.json"
    if not file.is_file():
        return Pooling("lasttoken" if is_decoder else "mean")
    try:
        modules = [
            (str(module["type"]).rpartition(".")[2], str(module["path"])) for module in json.loads(file.read_text())
        ]
        folders = dict(modules)
        if unknown := folders.keys() - {"Transformer", "Pooling", "Normalize"}:
            raise LoadError(f"{path} uses the module {', '.join(sorted(unknown))}, which is not supported.")
        if "Pooling" not in folders:
            raise LoadError(f"{file} names no Pooling module.")
        mode = _mode(json.loads(_inside(path, folders["Pooling"]).read_text()))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise LoadError(
            f"The embedding pipeline in {path} could not be read: {type(error).__name__}: {error}"
        ) from error
    return Pooling(mode, is_normalized="Normalize" in folders)


def _inside(path: Path, folder: str) -> Path:
    file = (path / folder / "config.json").resolve()
    if not file.is_relative_to(path.resolve()):
        raise LoadError(f"{path} refers to a pooling folder outside itself ({folder}).")
    return file


def _mode(config: dict[str, Any]) -> PoolingMode:
    """Return the pooling mode. Older files have a flag per mode, newer ones a name."""
    named = config.get("pooling_mode")
    if isinstance(named, str):
        chosen = [named]
    else:
        chosen = [MODES.get(key, key) for key, value in config.items() if key.startswith("pooling_mode_") and value]
    if len(chosen) != 1 or chosen[0] not in MODES.values():
        raise LoadError(
            f"The pooling {' + '.join(map(str, chosen)) or 'none'} is not supported. Supported: mean, cls, lasttoken."
        )
    return chosen[0]  # type: ignore[return-value]  # it is one of MODES' values


@dataclass(frozen=True, slots=True)
class LoadedEmbedder(LoadedEncoder):
    """A loaded embedding model. ``hidden_size`` is the dimension of the vectors."""

    pooling: Pooling

    def vectors(self, ids: Tensor, mask: Tensor, types: Tensor) -> Tensor:
        states = self.module(input_ids=ids, attention_mask=mask).last_hidden_state
        return self.pooling(states, mask)


def load_embedder(spec: ModelSpec) -> LoadedEmbedder:
    """Load weights and tokenizer, and embed one token as a test. Raise LoadError."""
    device = resolve_device(spec.device)
    check_dtype(spec.dtype)
    check_weights(spec)
    with borrowed_workers(), enough_memory(spec.name), readable_files(spec.name, spec.path):
        module, tokenizer = from_pretrained(spec, device, AutoModel)
        check_tokenizer(spec, tokenizer)
        module.config.use_cache = False  # no tokens follow that would need keys and values
        loaded = _describe(spec, module, tokenizer, device)
        freeze_long_rope(module, loaded.max_model_len)
        _try(loaded)
    return loaded


def _describe(
    spec: ModelSpec, module: nn.Module, tokenizer: PreTrainedTokenizerBase, device: torch.device
) -> LoadedEmbedder:
    config = module.config.get_text_config()  # type: ignore[union-attr, operator]
    return LoadedEmbedder(
        **facts_of(spec, module, tokenizer, device),
        pad_token_id=tokenizer.pad_token_id or 0,
        pooling=read_pooling(spec.path, is_decoder=is_decoder(config)),
    )


def is_decoder(config: Any) -> bool:
    """Return whether the model is a decoder: it has the architecture of a causal language model."""
    return any(name.endswith("ForCausalLM") for name in config.architectures or ())


@torch.inference_mode()
def _try(loaded: LoadedEmbedder) -> None:
    ids = torch.zeros(1, 1, dtype=torch.long, device=loaded.device)
    states = loaded.module(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state
    if states.shape != (1, 1, loaded.hidden_size):
        raise ValueError(f"its states have the shape {tuple(states.shape)}, not (1, 1, {loaded.hidden_size})")
