"""Fuse the norms, attentions, MLPs and decoder layers of a model on a GPU, without a class per architecture.

As on the CPU, a module of transformers is recognised by its submodules, and the fused form replaces it only if both
give the same result for the same random input. A layer with fused parts runs as six of our kernels and four products.
A layer with a hook inside, which its fused form would skip, runs its fused parts one by one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from inference.engine.kernels import attention
from inference.engine.kernels.attention import PackedBatch
from inference.engine.kernels.attention_calls import AttentionParams
from inference.engine.kernels.fused_modules import (
    PROBE_ROWS,
    Forward,
    FusedNorm,
    agree,
    head_norms,
    hooks_inside,
    layer_norms,
    packed_implementation,
    probed_attention,
    random_input,
    rotates_whole_heads,
)
from inference.engine.kernels.gpu.layers import ACTIVATIONS, add_rms_norm, gate_mul, rotate_and_write
from inference.engine.kernels.linears import GroupMember


@dataclass(frozen=True, slots=True)
class GpuAttention:
    """An attention module with optional norms of heads, and rotary positions.

    ``qkv``: the joined product. ``norms``: the weights of the queries' and the keys' norm, their eps and offset.
    ``constants``: the keyword arguments with which the original module calls transformers' attention functions.
    """

    module: Any
    original: Forward
    qkv: nn.Module
    norms: tuple[Tensor | None, Tensor | None, float, float]
    constants: dict[str, Any]
    look: AttentionParams

    def __call__(
        self,
        hidden_states: Tensor,
        position_embeddings: tuple[Tensor, Tensor] | None = None,
        attention_mask: Tensor | None = None,
        past_key_values: Any = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        name = packed_implementation(self.module, hidden_states, position_embeddings, past_key_values)
        if name is None:
            return self.original(
                hidden_states=hidden_states,
                position_embeddings=position_embeddings,
                attention_mask=attention_mask,
                past_key_values=past_key_values,
                **kwargs,
            )
        assert position_embeddings is not None, "the rotary embedding covers whole heads"
        cos, sin = position_embeddings[0][0], position_embeddings[1][0]
        batch = attention.batch_of(kwargs.get("packed_batch"))
        if name == attention.NAME and isinstance(batch, PackedBatch) and batch.varlen is not None:
            return self.attend(hidden_states[0], cos, sin, batch).unsqueeze(0), None
        m, tokens = self.module, hidden_states.shape[1]
        kv_heads = m.k_proj.out_features // m.head_dim
        keys, values = (hidden_states.new_empty(1, tokens, kv_heads, m.head_dim) for _ in range(2))
        slots = torch.arange(tokens, device=hidden_states.device)
        query = self._rotated(hidden_states[0], cos, sin, keys, values, slots)
        q, k, v = (x.transpose(0, 1).unsqueeze(0) for x in (query, keys[0], values[0]))
        mixed, weights = ALL_ATTENTION_FUNCTIONS[name](m, q, k, v, attention_mask, **self.constants, **kwargs)
        return m.o_proj(mixed.reshape(1, tokens, -1)), weights

    def attend(self, x: Tensor, cos: Tensor, sin: Tensor, batch: PackedBatch) -> Tensor:
        """Return the result for the tokens of a step, ``[tokens, width]`` like ``x``, and write to the cache."""
        layer, pool = int(self.module.layer_idx), batch.pool
        group = pool.group_of_layer[layer]
        keys, values = pool.keys[layer], pool.values[layer]
        query = self._rotated(x, cos, sin, keys, values, batch.places[group].slot_mapping)
        assert batch.varlen is not None, "a step on a GPU has its attention"
        mixed = batch.varlen.attend(query, keys, values, group, self.look)
        return self.module.o_proj(mixed.flatten(1))

    def _rotated(self, x: Tensor, cos: Tensor, sin: Tensor, keys: Tensor, values: Tensor, slots: Tensor) -> Tensor:
        heads = self.module.q_proj.out_features // self.module.head_dim
        return rotate_and_write(self.qkv(x), heads, self.norms, cos, sin, keys, values, slots)


@dataclass(frozen=True, slots=True)
class GpuMlp:
    """``down(activation(gate(x)) * up(x))``. ``gate_up``: the joined product."""

    module: Any
    gate_up: nn.Module
    activation: str
    original: Forward

    def __call__(self, x: Tensor) -> Tensor:
        if x.requires_grad:
            return self.original(x)
        return self.run(x.flatten(0, -2)).view(*x.shape[:-1], -1)

    def run(self, x: Tensor) -> Tensor:
        """Return the result for ``[rows, width]``."""
        return self.module.down_proj(gate_mul(self.gate_up(x), self.activation))


@dataclass(frozen=True, slots=True)
class GpuLayer:
    """A fused layer. Output norms exist if a result is normed before it is added. ``hooks``: those of all modules
    inside the layer.
    """

    original: Forward
    attention: GpuAttention
    mlp: GpuMlp
    norms: tuple[FusedNorm, FusedNorm | None, FusedNorm, FusedNorm | None]
    hooks: tuple[Mapping[int, Any], ...]

    def __call__(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        batch, positions = kwargs.get("packed_batch"), kwargs.get("position_embeddings")
        if (
            args
            or not isinstance(batch, PackedBatch)
            or batch.varlen is None
            or hidden_states.requires_grad
            or any(self.hooks)
            or not rotates_whole_heads(positions, self.attention.module.head_dim)
        ):
            return self.original(hidden_states, *args, **kwargs)
        before, after, before_mlp, after_mlp = self.norms
        x = hidden_states[0]
        cos, sin = positions  # type: ignore[misc]
        mixed = self.attention.attend(before(x), cos[0], sin[0], batch)
        if after is not None:
            mixed = after(mixed)
        x, normed = add_rms_norm(mixed, x, before_mlp.weight, before_mlp.eps, before_mlp.offset)
        made = self.mlp.run(normed)
        if after_mlp is not None:
            made = after_mlp(made)
        return (x + made).unsqueeze(0)


def mlp_forward(child: Any, dtype: torch.dtype, device: torch.device) -> Forward | None:
    gate, up, down = (getattr(child, name, None) for name in ("gate_proj", "up_proj", "down_proj"))
    if not isinstance(gate, GroupMember) or not isinstance(up, GroupMember) or not isinstance(down, nn.Module):
        return None
    if gate.out_features != up.out_features:
        return None
    x = random_input(1, PROBE_ROWS, gate.in_features, dtype=dtype).to(device)
    candidates = (GpuMlp(child, gate.joined, activation, child.forward) for activation in ACTIVATIONS)
    return next((mlp for mlp in candidates if agree(partial(child.forward, x), partial(mlp, x))), None)


def attention_forward(child: Any, dtype: torch.dtype, device: torch.device) -> Forward | None:
    members = [getattr(child, name, None) for name in ("q_proj", "k_proj", "v_proj")]
    if not all(isinstance(member, GroupMember) for member in members) or not hasattr(child, "o_proj"):
        return None
    size = getattr(child, "head_dim", None)
    if not isinstance(size, int) or size % 2 or members[1].out_features != members[2].out_features:  # type: ignore[union-attr]
        return None
    norms = head_norms(child)
    kinds = {(norm.eps, norm.offset) for norm in norms or () if norm is not None} or {(0.0, 0.0)}
    if norms is None or len(kinds) != 1:
        return None
    query, key = (None if norm is None else norm.weight for norm in norms)
    weights, qkv = (query, key, *kinds.pop()), members[0].joined  # type: ignore[union-attr]

    def build(constants: dict[str, Any]) -> GpuAttention:
        return GpuAttention(child, child.forward, qkv, weights, constants, attention.params_of(size, **constants))

    return probed_attention(child, build, dtype, device)


def layer_forward(layer: nn.Module) -> Forward | None:
    """Return the fused layer, if attention and MLP are fused, with a norm before and possibly after each.

    The load compares the logits of the whole model with those of transformers, so the layer is not probed by itself.
    """
    fused, mlp = (getattr(getattr(layer, name, None), "forward", None) for name in ("self_attn", "mlp"))
    if not isinstance(fused, GpuAttention) or not isinstance(mlp, GpuMlp):
        return None
    norms = layer_norms(layer)
    if norms is None:
        return None
    before, after, before_mlp, after_mlp = norms
    assert before is not None, "layer_norms found the norms before"
    assert before_mlp is not None, "layer_norms found the norms before"
    return GpuLayer(layer.forward, fused, mlp, (before, after, before_mlp, after_mlp), hooks_inside(layer))
