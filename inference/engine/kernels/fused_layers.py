"""Fuse the decoder layers of a model, without a class per architecture.

Norms, attentions and MLPs are fused first (:mod:`~inference.engine.kernels.fused_modules`). A layer with only
fused parts then runs steps of single tokens as one kernel, because with few rows the calls cost more than the small
operations. So do several layers that follow one another (:mod:`~inference.engine.kernels.decoder_stack`).
Steps with prompts, and layers with a hook inside, run the original forward. A GPU has fusions of its own
(:mod:`~inference.engine.kernels.gpu.fusion`); without Triton only norms are fused there, by torch's kernel.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from inference.engine.cache.pool import KVPool
from inference.engine.kernels import gpu, native
from inference.engine.kernels.attention import GroupPlaces, PackedBatch, TokenSpan, params_of, single_tokens
from inference.engine.kernels.decoder_stack import DecoderStack, LayerNorms, LayerParts, LayerProducts, stacks_of
from inference.engine.kernels.fused_modules import (
    PROBE_ROWS,
    TOLERANCES,
    Forward,
    FusedAttention,
    FusedMlp,
    attention_forward,
    hooks_inside,
    is_close,
    layer_norms,
    mlp_forward,
    norm_forward,
    random_input,
    rotates_whole_heads,
)
from inference.engine.kernels.linear_kinds import FastLinear, Operands
from inference.engine.kernels.linears import GroupMember

PROBE_TOKENS = 40  # per sequence in the probe's cache


@dataclass(frozen=True, slots=True)
class FusedLayer:
    """A fused layer, and its ``place`` in its ``stack``. ``key_value``: the product of keys and values; None if other
    layers follow.
    """

    original: Forward
    parts: LayerParts
    key_value: FastLinear | None
    stack: DecoderStack
    place: int = 0

    def __call__(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        if self.stack.has_computed(self.place, hidden_states):
            return hidden_states
        batch = kwargs.get("packed_batch")
        if args or not isinstance(batch, PackedBatch) or batch.varlen is not None or any(self.parts.hooks):
            return self.original(hidden_states, *args, **kwargs)
        if not rotates_whole_heads(kwargs.get("position_embeddings"), self.parts.head_dim):
            return self.original(hidden_states, *args, **kwargs)
        cos, sin = kwargs["position_embeddings"]
        if batch.num_single == len(batch.segments) <= self.parts.products.most_rows:
            return self.stack.run(self.place, hidden_states[0], cos[0], sin[0], batch)
        if self._leaves_out(batch):
            return self._run_needed(hidden_states[0], cos[0], sin[0], batch)
        return self.original(hidden_states, *args, **kwargs)

    def _leaves_out(self, batch: PackedBatch) -> bool:
        if self.key_value is None or batch.outputs is None or self.parts.output_hooks:
            return False
        return len(batch.outputs) <= self.parts.products.most_rows

    def _run_needed(self, x: Tensor, cos: Tensor, sin: Tensor, batch: PackedBatch) -> Tensor:
        """Write keys and values of all tokens, and compute the layer for those whose output is needed.

        Return ``[1, tokens, hidden]``, which is 0 for the others.
        """
        assert batch.outputs is not None, "some outputs are not needed"
        assert self.key_value is not None, "no layer follows"
        norms, layer = self.parts.norms, self.parts.layer
        normed = torch.ops.millm_native.rms_norm.default(x, norms.attention, norms.eps, norms.offset)
        key, value = self.key_value(normed).view(len(x), 2, -1, self.parts.head_dim).unbind(1)
        key = torch.ops.millm_native.norm_rotary.default(key, norms.key, norms.eps, norms.offset, cos, sin)
        slots = batch.places[batch.pool.group_of_layer[layer]].slot_mapping
        native.write_kv(batch.pool.keys[layer], batch.pool.values[layer], key, value, slots)
        places = batch.outputs
        out = torch.zeros_like(x).unsqueeze(0)
        out[:, places] = self.stack.run(self.place, x[places], cos[places], sin[places], single_tokens(batch, places))
        return out

    def all_needed(
        self, x: Tensor, attention_mask: None, position_embeddings: tuple[Tensor, Tensor], packed_batch: PackedBatch
    ) -> Tensor:
        """Compute a step of single tokens in the way of a last layer in which some outputs are needed."""
        cos, sin = position_embeddings
        batch = replace(packed_batch, outputs=torch.arange(x.shape[1]))
        return self._run_needed(x[0], cos[0], sin[0], batch)


def layer_forward(layer: nn.Module, dtype: torch.dtype) -> FusedLayer | None:
    """Return the fused layer, if attention and MLP are fused, with a norm before and possibly after each."""
    attention, mlp = (getattr(getattr(layer, name, None), "forward", None) for name in ("self_attn", "mlp"))
    if not isinstance(attention, FusedAttention) or not isinstance(mlp, FusedMlp):
        return None
    norms, products = _norms(layer, attention), _products(attention.module, mlp.module)
    if norms is None or products is None or norms.attention.dtype is not dtype:
        return None
    head_dim = int(cast("Any", attention.module).head_dim)
    params = params_of(head_dim, **attention.constants)
    if params.sinks is not None:  # the kernel does not support them
        return None
    parts = LayerParts(
        layer=int(cast("Any", attention.module).layer_idx),
        head_dim=head_dim,
        norms=norms,
        products=products,
        look=(params.scale, params.window, params.softcap),
        activation=mlp.activation,
        hooks=hooks_inside(layer),
        pre_hooks=layer._forward_pre_hooks,
        output_hooks=layer._forward_hooks,
    )
    fused = FusedLayer(layer.forward, parts, _key_value(attention.module), DecoderStack([parts]))
    return fused if _agrees(fused, attention.module, dtype) else None


def _norms(layer: nn.Module, attention: FusedAttention) -> LayerNorms | None:
    """Return the norms; None if one is not known, or if they differ in kind."""
    norms = layer_norms(layer)
    if norms is None:
        return None
    norms += [attention.query_norm, attention.key_norm]
    kinds = {(norm.eps, norm.offset) for norm in norms if norm is not None}
    if len(kinds) != 1:
        return None
    before, after, before_mlp, after_mlp, query, key = (None if norm is None else norm.weight for norm in norms)
    eps, offset = kinds.pop()
    return LayerNorms(cast("Tensor", before), after, cast("Tensor", before_mlp), after_mlp, query, key, eps, offset)


def _products(attention: Any, mlp: Any) -> LayerProducts | None:
    linears = [_joined(attention.q_proj), attention.o_proj, _joined(mlp.gate_proj), mlp.down_proj]
    operands = [linear.operands() if isinstance(linear, FastLinear) else None for linear in linears]
    if None in operands:
        return None
    found = LayerProducts(*cast("list[Operands]", operands))
    return found if len({o.rounded for o in found.all}) == 1 else None


def _key_value(attention: Any) -> FastLinear | None:
    """Return the product of keys and values of the last layer; None for other layers."""
    joined = _joined(attention.q_proj)
    if attention.layer_idx + 1 < attention.config.num_hidden_layers or not isinstance(joined, FastLinear):
        return None
    return joined.tail(attention.q_proj.out_features)


def _joined(member: nn.Module) -> nn.Module:
    return member.joined if isinstance(member, GroupMember) else member


# Probing


@dataclass(frozen=True, slots=True)
class _ProbePool:
    """The keys and values of one layer, in place of a pool."""

    keys: dict[int, Tensor]
    values: dict[int, Tensor]
    group_of_layer: dict[int, int]


def _agrees(fused: FusedLayer, attention: Any, dtype: torch.dtype) -> bool:
    """Return whether the original layer gives the same output for a few tokens, and writes the same to the cache."""
    x = random_input(1, PROBE_ROWS, fused.parts.norms.attention.shape[0], dtype=dtype)
    angles = random_input(1, PROBE_ROWS, attention.head_dim // 2, dtype=torch.float32).repeat(1, 1, 2)
    kv_heads = attention.k_proj.out_features // attention.head_dim
    forwards: list[Forward] = (
        [fused, fused.original] if fused.key_value is None else [fused, fused.original, fused.all_needed]
    )
    seen: list[tuple[Any, Tensor, Tensor]] = []
    try:
        for forward in forwards:
            batch = _probe_batch(fused.parts.layer, (kv_heads, attention.head_dim), dtype)
            with torch.inference_mode():
                y = forward(
                    x.clone(),
                    attention_mask=None,
                    position_embeddings=(angles.cos().to(dtype), angles.sin().to(dtype)),
                    packed_batch=batch,
                )
            seen.append((y, batch.pool.keys[fused.parts.layer], batch.pool.values[fused.parts.layer]))
        pairs = (pair for others in seen[1:] for pair in zip(seen[0], others, strict=True))
        return all(isinstance(a, Tensor) and is_close(a, b) for a, b in pairs)
    except (RuntimeError, TypeError, ValueError, AttributeError, IndexError, KeyError):
        return False  # another signature or other sizes: not a known layer


def _probe_batch(layer: int, kv_shape: tuple[int, int], dtype: torch.dtype) -> PackedBatch:
    """Return a batch in which each row continues another sequence, of different length."""
    pools = [random_input(PROBE_ROWS, PROBE_TOKENS, *kv_shape, dtype=dtype) for _ in range(2)]
    starts = [PROBE_TOKENS - 1 - 7 * row for row in range(PROBE_ROWS)]
    rows = torch.arange(PROBE_ROWS)
    return PackedBatch(
        segments=tuple(TokenSpan(start, 1) for start in starts),
        num_single=PROBE_ROWS,
        lengths=torch.tensor([start + 1 for start in starts], dtype=torch.int32),
        starts=torch.empty(0, dtype=torch.int32),
        counts=torch.empty(0, dtype=torch.int32),
        places=(GroupPlaces(rows * PROBE_TOKENS + torch.tensor(starts), rows.int().unsqueeze(1)),),
        pool=cast("KVPool", _ProbePool({layer: pools[0]}, {layer: pools[1]}, {layer: 0})),
    )


@dataclass(frozen=True, slots=True)
class FusionReport:
    """The number of fused modules of each kind."""

    norms: int
    attentions: int
    mlps: int
    layers: int

    def __str__(self) -> str:
        return f"{self.norms} norms, {self.attentions} attentions, {self.mlps} MLPs, {self.layers} layers fused"


def fuse(module: nn.Module) -> FusionReport:
    """Fuse modules, then layers. On the CPU nothing is fused without the C++ kernels."""
    children, (dtype, device) = list(module.modules()), next((p.dtype, p.device) for p in module.parameters())
    if dtype not in TOLERANCES or (device.type == "cpu" and not native.active().is_native):
        return FusionReport(0, 0, 0, 0)
    if gpu.can_run(device):
        return _fuse_on_gpu(children, dtype, device)
    if device.type != "cpu":
        return FusionReport(sum(_replace(child, norm_forward(child)) for child in children), 0, 0, 0)
    # Attentions first: they inspect the unfused norms inside.
    attentions = sum(_replace(child, attention_forward(child, dtype)) for child in children)
    norms = sum(_replace(child, norm_forward(child)) for child in children)
    mlps = sum(_replace(child, mlp_forward(child, dtype)) for child in children)
    layers = {child: layer for child in children if (layer := layer_forward(child, dtype)) is not None}
    for child, layer in layers.items():
        _replace(child, layer)
    for child, (stack, place) in stacks_of(module, {child: layer.parts for child, layer in layers.items()}).items():
        _replace(child, replace(layers[child], stack=stack, place=place))
    return FusionReport(norms, attentions, mlps, len(layers))


def _fuse_on_gpu(children: list[nn.Module], dtype: torch.dtype, device: torch.device) -> FusionReport:
    from inference.engine.kernels.gpu import fusion  # requires Triton

    attentions = sum(_replace(child, fusion.attention_forward(child, dtype, device)) for child in children)
    norms = sum(_replace(child, norm_forward(child)) for child in children)
    mlps = sum(_replace(child, fusion.mlp_forward(child, dtype, device)) for child in children)
    layers = sum(_replace(child, fusion.layer_forward(child)) for child in children)
    return FusionReport(norms, attentions, mlps, layers)


def _replace(child: nn.Module, fused: Forward | None) -> bool:
    if fused is None:
        return False
    child.forward = fused
    return True
