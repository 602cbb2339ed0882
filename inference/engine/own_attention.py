"""Models whose code leaves transformers' ways: attention of their own, or layers that drop unknown arguments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.gpt_neo.modeling_gpt_neo import GPTNeoSelfAttention

from inference.engine.attention import drop_batch, keep_batch


@dataclass(frozen=True, slots=True)
class _GPTNeoAttention:
    """GPT-Neo's: scores are not scaled, and local layers see a window of the last tokens."""

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
    """Let the attention modules that are known here use transformers' attention interface, as others do.

    The forward that they came with is gone then.
    """
    for child in module.modules():
        if type(child) is GPTNeoSelfAttention:
            config: Any = child.config
            window = int(config.window_size) if child.attention_type == "local" else None
            child.layer_idx = child.layer_id
            child.bias = torch.ones(1, 1, 1, 1, dtype=torch.bool)  # a mask of all positions by all positions
            child.forward = _GPTNeoAttention(child, window)
    module.register_forward_pre_hook(keep_batch, with_kwargs=True)
    module.register_forward_hook(drop_batch, always_call=True)
