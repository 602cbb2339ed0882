"""Run steps of single tokens through fused decoder layers with one call.

Between two kernels, Python runs with cold caches, because a layer's weights have just passed through them: about 80 µs
for each layer. So the first layer of a stack computes all of them, and the others return what they are given.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from inference.engine.kernels.attention import LayoutProbe, PackedBatch
from inference.engine.kernels.linear_kinds import Operands

Hooks = Mapping[int, Any]


@dataclass(frozen=True, slots=True)
class LayerNorms:
    """The norms of a layer, with the same ``eps`` and ``offset``. Output norms exist if a result is normed before it is
    added.
    """

    attention: Tensor
    attention_out: Tensor | None
    mlp: Tensor
    mlp_out: Tensor | None
    query: Tensor | None
    key: Tensor | None
    eps: float
    offset: float


@dataclass(frozen=True, slots=True)
class LayerProducts:
    qkv: Operands
    out: Operands
    gate_up: Operands
    down: Operands

    @property
    def all(self) -> tuple[Operands, ...]:
        return self.qkv, self.out, self.gate_up, self.down

    @property
    def most_rows(self) -> int:
        return min(o.most_rows for o in self.all)


@dataclass(frozen=True, slots=True)
class LayerParts:
    """What a stack needs of a layer. ``look``: scale, window and softcap of the attention.

    ``hooks``: those of all modules inside the layer, which the kernel skips; ``pre_hooks`` and ``output_hooks`` are
    those of the layer itself.
    """

    layer: int
    head_dim: int
    norms: LayerNorms
    products: LayerProducts
    look: tuple[float, int, float]
    activation: str
    hooks: tuple[Hooks, ...]
    pre_hooks: Hooks
    output_hooks: Hooks


@dataclass(frozen=True, slots=True)
class _Operands:
    """The parameters of some layers of a stack, in the order of the operator."""

    layers: tuple[int, ...]
    norms: list[Tensor]
    weights: list[Tensor]
    biases: list[Tensor]
    looks: Tensor


@dataclass
class DecoderStack:
    """One fused layer, or several of which each gets the output of the one before and the same rotary embeddings.

    Not thread-safe, like the model.
    """

    layers: Sequence[LayerParts]
    _computed: tuple[Tensor, int] | None = field(default=None, init=False)  # an output, and the place of its layer
    _operands: dict[tuple[int, int, tuple[int, ...]], _Operands] = field(default_factory=dict, init=False)

    def run(self, place: int, x: Tensor, cos: Tensor, sin: Tensor, batch: PackedBatch) -> Tensor:
        """Compute the layer at ``place`` and those after it up to the next hook. Return ``[1, tokens, hidden]``."""
        last = self._last(place)
        layer, pool = self.layers[place], batch.pool
        groups = tuple([pool.group_of_layer[each.layer] for each in self.layers[place : last + 1]])
        operands = self._operands_of(place, last, groups)
        result: Tensor = torch.ops.millm_native.decoder_stack.default(
            x,
            operands.norms,
            layer.norms.eps,
            layer.norms.offset,
            operands.weights,
            operands.biases,
            cos,
            sin,
            [pool.keys[number] for number in operands.layers],
            [pool.values[number] for number in operands.layers],
            [places.slot_mapping for places in batch.places],
            [places.block_table for places in batch.places],
            batch.lengths,
            operands.looks,
            layer.activation,
            layer.products.down.rounded,
            batch.batch_invariant,
        )
        output = result.unsqueeze(0)
        self._computed = (output, last) if last > place else None
        return output

    def has_computed(self, place: int, hidden_states: Tensor) -> bool:
        """Return whether the input of the layer at ``place`` is already its output."""
        if self._computed is None or self._computed[0] is not hidden_states:
            return False
        if place == self._computed[1]:
            self._computed = None
        return True

    def _last(self, place: int) -> int:
        if not any(self._all_hooks):
            return len(self.layers) - 1
        last = place
        while last + 1 < len(self.layers) and not self.layers[last].output_hooks:
            if self.layers[last + 1].pre_hooks or any(self.layers[last + 1].hooks):
                break
            last += 1
        return last

    @cached_property
    def _all_hooks(self) -> tuple[Hooks, ...]:
        return tuple(hooks for layer in self.layers for hooks in (*layer.hooks, layer.pre_hooks, layer.output_hooks))

    def _operands_of(self, first: int, last: int, groups: tuple[int, ...]) -> _Operands:
        if (first, last, groups) not in self._operands:
            layers = self.layers[first : last + 1]
            nothing = torch.empty(0)
            norms = [
                nothing if norm is None else norm
                for n in (layer.norms for layer in layers)
                for norm in (n.attention, n.attention_out, n.mlp, n.mlp_out, n.query, n.key)
            ]
            products = [product for layer in layers for product in layer.products.all]
            self._operands[first, last, groups] = _Operands(
                layers=tuple(layer.layer for layer in layers),
                norms=norms,
                weights=[part for product in products for part in product.weight],
                biases=[nothing if product.bias is None else product.bias for product in products],
                looks=torch.tensor(
                    [(*layer.look, group) for layer, group in zip(layers, groups, strict=True)], dtype=torch.float64
                ),
            )
        return self._operands[first, last, groups]


@dataclass(frozen=True, slots=True)
class _Call:
    """One call of a layer in a forward pass."""

    module: nn.Module
    given: Any
    returned: Any
    rotary: Any


def stacks_of(module: nn.Module, fused: Mapping[nn.Module, LayerParts]) -> dict[nn.Module, tuple[DecoderStack, int]]:
    """Return the stack of each fused layer that has one of several layers, and its place there.

    A forward pass of one token shows which layers follow one another with nothing between.
    """
    runs: list[list[_Call]] = []
    for call in _calls(module, list(fused)) if len(fused) > 1 else ():
        before = runs[-1][-1] if runs else None
        if before is not None and _continues(before, call, fused):
            runs[-1].append(call)
        else:
            runs.append([call])
    found: dict[nn.Module, tuple[DecoderStack, int]] = {}
    for run in runs:
        if len(run) > 1:
            stack = DecoderStack([fused[call.module] for call in run])
            found.update((call.module, (stack, place)) for place, call in enumerate(run))
    return found


def _continues(before: _Call, call: _Call, fused: Mapping[nn.Module, LayerParts]) -> bool:
    if call.given is not before.returned or call.rotary is None or call.rotary is not before.rotary:
        return False
    return _kind(fused[call.module]) == _kind(fused[before.module])


def _kind(layer: LayerParts) -> tuple[Any, ...]:
    """Return what the layers of a stack have in common."""
    norms, products = layer.norms, layer.products
    parts = tuple(len(product.weight) for product in products.all)
    return (
        layer.head_dim,
        norms.eps,
        norms.offset,
        layer.activation,
        products.down.rounded,
        products.most_rows,
        parts,
    )


@torch.inference_mode()
def _calls(module: nn.Module, layers: Sequence[nn.Module]) -> list[_Call]:
    """Return the calls of these layers in a forward pass of one token, in their order."""
    calls: list[_Call] = []

    def note(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        calls.append(_Call(layer, args[0] if args else None, output, kwargs.get("position_embeddings")))

    handles = [layer.register_forward_hook(note, with_kwargs=True) for layer in layers]
    token = torch.zeros(1, 1, dtype=torch.long)
    try:
        module(input_ids=token, position_ids=token, use_cache=False, packed_batch=LayoutProbe())
    except (RuntimeError, TypeError, ValueError, AttributeError, IndexError, KeyError):
        return []  # a module that is not a language model
    finally:
        for handle in handles:
            handle.remove()
    return calls
