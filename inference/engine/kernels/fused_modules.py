"""Norms, MLPs and attention modules whose small operations run as one kernel each.

A transformers module is recognised by its submodules. The fused form replaces it only if both give the same result for
the same random input. Inputs that require a gradient take the original, because the kernels have no autograd.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AttentionInterface
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from inference.engine.kernels import attention, gpu

PROBE_ROWS = 3
TOLERANCES = {torch.float32: 1e-4, torch.bfloat16: 4e-2, torch.float16: 1e-2}  # of the largest value

Forward = Callable[..., Any]


def random_input(*shape: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)


def agree(original: Callable[[], Tensor], fused: Callable[[], Tensor]) -> bool:
    with torch.inference_mode():
        try:
            return is_close(fused(), original())
        except (RuntimeError, TypeError, ValueError):
            return False  # another signature or other sizes


def is_close(got: Tensor, expected: Tensor) -> bool:
    if got.shape != expected.shape or got.dtype is not expected.dtype:
        return False
    worst = (got.float() - expected.float()).abs().max()
    return bool(worst <= TOLERANCES[got.dtype] * expected.float().abs().max())


@dataclass(frozen=True, slots=True)
class FusedNorm:
    """Weight and constants of an RMS norm. ``offset`` is 1 if the weight is relative to one (Gemma)."""

    weight: Tensor
    eps: float
    offset: float

    def __call__(self, x: Tensor) -> Tensor:
        if gpu.can_run(x.device):
            from inference.engine.kernels.gpu.layers import rms_norm  # requires Triton

            return rms_norm(x, self.weight, self.eps, self.offset)
        if x.device.type != "cpu":
            return functional.rms_norm(x, self.weight.shape, self.weight, self.eps)
        out: Tensor = torch.ops.millm_native.rms_norm.default(x, self.weight, self.eps, self.offset)
        return out


def norm_forward(child: nn.Module) -> Forward | None:
    norm = recognise_norm(child)
    return None if norm is None else partial(_run_norm, norm, child.forward)


def _run_norm(norm: FusedNorm, original: Forward, hidden_states: Tensor) -> Tensor:
    is_like_weight = hidden_states.dtype is norm.weight.dtype and hidden_states.stride(-1) == 1
    if hidden_states.requires_grad or not is_like_weight:
        return original(hidden_states)  # type: ignore[no-any-return]
    return norm(hidden_states)


def recognise_norm(child: nn.Module | None) -> FusedNorm | None:
    weight = getattr(child, "weight", None)
    eps = getattr(child, "variance_epsilon", getattr(child, "eps", None))
    if child is None or not isinstance(weight, Tensor) or weight.dim() != 1 or not isinstance(eps, float):
        return None
    if "RMSNorm" not in type(child).__name__ or weight.dtype not in TOLERANCES:
        return None
    x = random_input(PROBE_ROWS, weight.shape[0], dtype=weight.dtype).to(weight.device)
    # torch's kernel on a GPU, without Triton, cannot represent 1 + w exactly in 16 bits.
    offsets = (0.0, 1.0) if weight.device.type == "cpu" or gpu.can_run(weight.device) else (0.0,)
    norms = (FusedNorm(weight, eps, offset) for offset in offsets)
    return next((norm for norm in norms if agree(partial(child, x), partial(norm, x))), None)


ACTIVATIONS = ("silu", "gelu_tanh")


@dataclass(frozen=True, slots=True)
class FusedMlp:
    """``down(activation(gate(x)) * up(x))``. ``activation``: a name that the kernel supports."""

    module: Any
    activation: str
    original: Forward

    def __call__(self, x: Tensor) -> Tensor:
        if x.requires_grad:
            return self.original(x)  # type: ignore[no-any-return]
        gate, up = self.module.gate_proj(x), self.module.up_proj(x)
        mixed = torch.ops.millm_native.gate_mul.default(gate.flatten(0, -2), up.flatten(0, -2), self.activation)
        out: Tensor = self.module.down_proj(mixed.view(*gate.shape[:-1], -1))
        return out


def mlp_forward(child: Any, dtype: torch.dtype) -> Forward | None:
    parts = [getattr(child, name, None) for name in ("gate_proj", "up_proj", "down_proj")]
    if not all(isinstance(p, nn.Module) and hasattr(p, "in_features") for p in parts):
        return None
    x = random_input(1, PROBE_ROWS, child.gate_proj.in_features, dtype=dtype)
    candidates = (FusedMlp(child, activation, child.forward) for activation in ACTIVATIONS)
    return next((mlp for mlp in candidates if agree(partial(child.forward, x), partial(mlp, x))), None)


PROBE = "millm_probe"


@dataclass(frozen=True, slots=True)
class FusedAttention:
    """An attention module with optional norms of heads, and rotary positions.

    ``constants``: the keyword arguments with which the original module calls transformers' attention functions.
    """

    module: nn.Module
    original: Forward
    query_norm: FusedNorm | None
    key_norm: FusedNorm | None
    constants: dict[str, Any]

    def __call__(
        self,
        hidden_states: Tensor,
        position_embeddings: tuple[Tensor, Tensor] | None,
        attention_mask: Tensor | None = None,
        past_key_values: Any = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        name = packed_implementation(self.module, hidden_states, position_embeddings, past_key_values)
        if name is None:
            return self.original(  # type: ignore[no-any-return]
                hidden_states=hidden_states,
                position_embeddings=position_embeddings,
                attention_mask=attention_mask,
                past_key_values=past_key_values,
                **kwargs,
            )
        m: Any = self.module
        shape = (hidden_states.shape[1], -1, m.head_dim)
        assert position_embeddings is not None, "the rotary embedding covers whole heads"
        cos, sin = position_embeddings[0][0], position_embeddings[1][0]
        query = _rotated(m.q_proj(hidden_states).view(shape), self.query_norm, cos, sin)
        key = _rotated(m.k_proj(hidden_states).view(shape), self.key_norm, cos, sin)
        value = m.v_proj(hidden_states).view(shape).transpose(0, 1).unsqueeze(0)
        mixed, weights = ALL_ATTENTION_FUNCTIONS[name](m, query, key, value, attention_mask, **self.constants, **kwargs)
        return m.o_proj(mixed.reshape(1, shape[0], -1)), weights


def packed_implementation(
    module: Any, hidden_states: Tensor, position_embeddings: Any, past_key_values: Any
) -> str | None:
    """Return the name of the attention function; None if the fused form of the module does not support the call."""
    is_supported = (
        past_key_values is None
        and hidden_states.shape[0] == 1
        and not hidden_states.requires_grad
        and rotates_whole_heads(position_embeddings, module.head_dim)
    )
    if not is_supported:
        return None
    name: str = module.config._attn_implementation  # read once: transformers takes a dozen calls for it
    return name if name in {attention.NAME, PROBE} else None


def rotates_whole_heads(position_embeddings: Any, head_dim: Any) -> bool:
    """Return whether whole heads are rotated. Some models rotate a part (GLM, Nemotron) or nothing."""
    return position_embeddings is not None and position_embeddings[0].shape[-1] == head_dim


def _rotated(x: Tensor, norm: FusedNorm | None, cos: Tensor, sin: Tensor) -> Tensor:
    """Reshape ``[tokens, heads, head_dim]`` to ``[1, heads, tokens, head_dim]``."""
    weight, eps, offset = (None, 0.0, 0.0) if norm is None else (norm.weight, norm.eps, norm.offset)
    out: Tensor = torch.ops.millm_native.norm_rotary.default(x, weight, eps, offset, cos, sin)
    return out.transpose(0, 1).unsqueeze(0)


def recognised(plain: Sequence[nn.Module | None]) -> list[FusedNorm | None] | None:
    """Return the norms of modules, None where there is no module; None altogether if one is not a known norm."""
    norms = [recognise_norm(module) for module in plain]
    return None if any((norm is None) != (module is None) for norm, module in zip(norms, plain, strict=True)) else norms


def head_norms(child: nn.Module) -> list[FusedNorm | None] | None:
    """Return the norms of queries and keys, as :func:`recognised` does."""
    return recognised([getattr(child, name, None) for name in ("q_norm", "k_norm")])


def layer_norms(layer: nn.Module) -> list[FusedNorm | None] | None:
    """Return the norms before and after attention, and before and after the MLP, as :func:`recognised` does.

    They are named as in Llama, which has none after, or as in Gemma 2 and 3. None altogether without those before.
    """
    found = [getattr(layer, name, None) for name in ("input_layernorm", "post_attention_layernorm")]
    around = [getattr(layer, name, None) for name in ("pre_feedforward_layernorm", "post_feedforward_layernorm")]
    norms = recognised([found[0], None, found[1], None] if around == [None, None] else [*found, *around])
    return None if norms is None or norms[0] is None or norms[2] is None else norms


def hooks_inside(layer: nn.Module) -> tuple[Mapping[int, Any], ...]:
    """Return the hooks of all modules inside a layer, which its fused form would skip."""
    inside = [module for module in layer.modules() if module is not layer]
    return tuple(hooks for module in inside for hooks in (module._forward_hooks, module._forward_pre_hooks))


def attention_forward(child: nn.Module, dtype: torch.dtype) -> Forward | None:
    projections = [getattr(child, name, None) for name in ("q_proj", "k_proj", "v_proj", "o_proj")]
    if not all(isinstance(p, nn.Module) and hasattr(p, "in_features") for p in projections):
        return None
    if not isinstance(getattr(child, "head_dim", None), int):
        return None
    norms = head_norms(child)
    if norms is None:
        return None
    query_norm, key_norm = norms

    def build(constants: dict[str, Any]) -> FusedAttention:
        return FusedAttention(child, child.forward, query_norm, key_norm, constants)

    return probed_attention(child, build, dtype)


def probed_attention(
    child: Any, build: Callable[[dict[str, Any]], Forward], dtype: torch.dtype, device: torch.device | str = "cpu"
) -> Forward | None:
    """Return what ``build`` makes of the constants of an attention module, if it gives the same for a random input."""
    angles = random_input(1, PROBE_ROWS, child.head_dim // 2, dtype=torch.float32).repeat(1, 1, 2)
    inputs: dict[str, Any] = {
        "hidden_states": random_input(1, PROBE_ROWS, child.q_proj.in_features, dtype=dtype).to(device),
        "position_embeddings": (angles.cos().to(device, dtype), angles.sin().to(device, dtype)),
        "attention_mask": None,
    }
    calls: list[dict[str, Any]] = []
    before = child.config._attn_implementation
    AttentionInterface.register(PROBE, partial(_probe, calls))
    child.config._attn_implementation = PROBE
    try:
        with torch.inference_mode():
            expected = child.forward(**inputs)[0]
            fused = build(calls[0])
            return fused if is_close(fused(**inputs)[0], expected) else None
    except (RuntimeError, TypeError, ValueError, AttributeError, IndexError, KeyError):
        return None  # another signature or other sizes: not a known attention
    finally:
        child.config._attn_implementation = before


def _probe(
    calls: list[dict[str, Any]],
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **constants: Any,
) -> tuple[Tensor, None]:
    """Return a result that depends on every query, key and value, to compare modules without computing attention."""
    calls.append(constants)
    group = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
    return (query + 2 * key.roll(1, -1) + 4 * value).transpose(1, 2), None
