"""Adaptations of models whose code departs from transformers' conventions.

Some have their own attention, or layers that drop unknown keyword arguments. LongRoPE (Phi-3.5, Phi-4-mini) has two
sets of frequencies: one for texts up to the original context length, one for longer texts. transformers chooses by the
largest position in a forward pass, so the keys of a text would depend on other texts and on chunking, and the cache
would mix both. Here one set is chosen at load, by the longest text that is served, for texts of every length.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.gpt_neo.modeling_gpt_neo import GPTNeoSelfAttention

from inference.engine.kernels.attention import drop_batch, keep_batch

logger = logging.getLogger(__name__)
LONG_ROPE = "longrope"
SCALES = ("short_mscale", "long_mscale")  # of PhiMoE, which scales cosines by one of them


@dataclass(frozen=True, slots=True)
class _GPTNeoAttention:
    """Attention of GPT-Neo: scores are not scaled, and local layers have a sliding window."""

    module: Any
    window: int | None

    def __call__(self, hidden_states: Tensor, **_: Any) -> tuple[Tensor, Tensor | None]:
        m = self.module
        shape = (*hidden_states.shape[:-1], m.num_heads, m.head_dim)
        query, key, value = (p(hidden_states).view(shape).transpose(1, 2) for p in (m.q_proj, m.k_proj, m.v_proj))
        attend = ALL_ATTENTION_FUNCTIONS[m.config._attn_implementation]
        mixed, weights = attend(m, query, key, value, None, scaling=1.0, sliding_window=self.window)
        return m.out_proj(mixed.reshape(hidden_states.shape)), weights


def adapt_attention(module: nn.Module) -> None:
    """Make known attention modules use transformers' attention interface, as others do.

    Replaces their original forward.
    """
    for child in module.modules():
        if type(child) is GPTNeoSelfAttention:
            config: Any = child.config
            window = int(config.window_size) if child.attention_type == "local" else None
            child.layer_idx = child.layer_id
            child.bias = torch.ones(1, 1, 1, 1, dtype=torch.bool)  # replaces a mask of all positions by all positions
            child.forward = _GPTNeoAttention(child, window)
    module.register_forward_pre_hook(keep_batch, with_kwargs=True)
    module.register_forward_hook(drop_batch, always_call=True)


@torch.no_grad()
def freeze_long_rope(module: nn.Module, max_length: int) -> bool:
    """Fix the frequencies of LongRoPE modules to those for texts of up to ``max_length``. Returns whether any exist."""
    found = False
    for child in module.modules():
        for layer_type, parameters in _long_ropes(child):
            found = True
            _freeze(child, layer_type, parameters, is_long=_is_long(parameters, max_length))
    return found


def _is_long(parameters: dict[str, Any], max_length: int) -> bool:
    original = int(parameters["original_max_position_embeddings"])
    is_long = max_length > original
    logger.info(
        "LongRoPE: all texts use the frequencies for %s than %d tokens, because up to %d are served.",
        "more" if is_long else "no more",
        original,
        max_length,
    )
    return is_long


def _long_ropes(child: nn.Module) -> Iterator[tuple[str | None, dict[str, Any]]]:
    """Yield the layer type (None for all layers) and the parameters of each LongRoPE in a rotary module."""
    rope_type, config = getattr(child, "rope_type", None), getattr(child, "config", None)
    parameters = getattr(config, "rope_parameters", None)
    if not isinstance(parameters, dict):
        return
    if rope_type == LONG_ROPE:
        yield None, parameters
    elif isinstance(rope_type, dict):
        yield from ((name, parameters[name]) for name, kind in rope_type.items() if kind == LONG_ROPE)


def _freeze(child: Any, layer_type: str | None, parameters: dict[str, Any], *, is_long: bool) -> None:
    """Set both sets of frequencies to the chosen one."""
    prefix = f"{layer_type}_" if layer_type else ""
    inv_freq: Tensor = getattr(child, f"{prefix}inv_freq")
    original = int(parameters["original_max_position_embeddings"])
    length = original + 1 if is_long else None
    chosen, _ = ROPE_INIT_FUNCTIONS[LONG_ROPE](child.config, inv_freq.device, seq_len=length, layer_type=layer_type)
    for name in ("inv_freq", "original_inv_freq"):
        getattr(child, prefix + name).copy_(chosen)
    setattr(child, f"{prefix}long_inv_freq", chosen.clone())
    if all(name in parameters for name in SCALES):
        parameters.update(dict.fromkeys(SCALES, parameters[SCALES[is_long]]))
