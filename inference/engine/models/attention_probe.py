"""Probe a model's attention, layer by layer, with a forward pass of a few tokens.

Architectures differ in their code, not in their configuration. The arguments of each layer's attention call, and the
mask that transformers would pass to it, show what the layer attends to, at any length. Models that the packed attention
cannot compute are refused here with a reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import eager_mask

from inference.engine.errors import UnsupportedModelError
from inference.engine.models.sites import decoder_layers

PROBE = "millm_attention_probe"
NUM_TOKENS = 4
NUM_QUERIES = 6  # positions at which masks are compared, from the first to the last
MAX_LISTED = 4
UNKNOWN_ARGUMENTS = ("position_bias",)  # biases of the scores, by their name in transformers

Mask = Callable[[Any, Any, Any, Any], Any]


@contextmanager
def attention_implementation(module: nn.Module, name: str) -> Iterator[None]:
    """Use another attention function in the block, then the original one."""
    assert isinstance(module, PreTrainedModel)
    before = module.config._attn_implementation or "eager"
    use_attention(module, name)
    try:
        yield
    finally:
        use_attention(module, before)


def use_attention(module: PreTrainedModel, name: str) -> None:
    """Set the attention implementation, also of submodules that have their own configuration."""
    if module._can_set_attn_implementation():
        module.set_attn_implementation(name)
    else:
        module.config._attn_implementation = name


@torch.inference_mode()
def check_attention(module: nn.Module, max_length: int) -> None:
    """Raise UnsupportedModelError unless every layer attends once, through transformers' attention function, over all
    previous tokens or a window of them, in texts of up to ``max_length`` tokens.
    """
    probe = _Probe(max_length)
    AttentionInterface.register(PROBE, probe.attend)
    AttentionMaskInterface.register(PROBE, probe.make_mask)
    tokens = torch.arange(NUM_TOKENS, device=next(module.parameters()).device).unsqueeze(0)
    with attention_implementation(module, PROBE):
        module(input_ids=tokens, position_ids=tokens, use_cache=False)
    probe.check(len(decoder_layers(module)))


class _Probe:
    """Records each layer's attention calls while the module runs."""

    def __init__(self, max_length: int) -> None:
        self._max_length = max_length
        self._masks: list[tuple[Tensor, Mask]] = []
        self._verdicts: dict[tuple[Mask, int], bool] = {}  # most layers share a mask
        self._seen: set[int] = set()
        self._problems: dict[str, list[int]] = {}

    def check(self, num_layers: int) -> None:
        for problem, layers in self._problems.items():
            raise UnsupportedModelError(f"{_named(layers)} {problem}")
        missing = sorted(set(range(num_layers)) - self._seen)
        if len(missing) == num_layers:
            raise UnsupportedModelError(
                "it has its own attention code and does not use transformers' attention interface"
            )
        if missing:
            raise UnsupportedModelError(
                f"{_named(missing)} of {num_layers} do not use attention: their state of earlier tokens (recurrent or "
                "convolutional) cannot be stored in the KV cache"
            )

    def make_mask(self, *args: Any, mask_function: Mask, **kwargs: Any) -> Tensor:
        kwargs["allow_is_bidirectional_skip"] = False
        mask: Tensor = eager_mask(*args, mask_function=mask_function, **kwargs)
        self._masks.append((mask, mask_function))
        return mask

    def attend(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        *,
        sliding_window: int | None = None,
        **arguments: Any,
    ) -> tuple[Tensor, None]:
        layer = getattr(module, "layer_idx", None)
        if not isinstance(layer, int):
            raise UnsupportedModelError("its attention modules have no layer index (layer_idx)")
        problem = self._problem(layer, query, key, attention_mask, sliding_window or 0, arguments)
        if problem:
            self._problems.setdefault(problem, []).append(layer)
        self._seen.add(layer)
        return query.new_zeros(query.shape[0], query.shape[2], query.shape[1], value.shape[3]), None

    def _problem(
        self, layer: int, query: Tensor, key: Tensor, mask: Tensor | None, window: int, arguments: dict[str, Any]
    ) -> str:
        if layer in self._seen:
            return "call attention several times per token"
        unknown = [name for name in UNKNOWN_ARGUMENTS if arguments.get(name) is not None]
        if unknown:
            return f"use {' and '.join(unknown)} in attention, which is not supported"
        if query.shape[2] != NUM_TOKENS or key.shape[2] != NUM_TOKENS or query.shape[0] != 1:
            return "attend to more than the text's own tokens (memory tokens, an encoder, split texts)"
        if mask is not None and not self._is_plain(mask, window):
            return "use an attention mask that is neither causal nor a causal sliding window"
        return ""

    def _is_plain(self, mask: Tensor, window: int) -> bool:
        """Return whether the mask hides exactly later tokens and those outside the window."""
        made = next((function for known, function in self._masks if known.data_ptr() == mask.data_ptr()), None)
        if made is None:
            return bool((mask == eager_causal(mask, window)).all()) if mask.is_floating_point() else False
        if (made, window) not in self._verdicts:
            self._verdicts[made, window] = all(self._sees_window(made, query, window) for query in self._queries())
        return self._verdicts[made, window]

    def _queries(self) -> list[int]:
        last = self._max_length - 1
        return sorted({last * i // (NUM_QUERIES - 1) for i in range(NUM_QUERIES)} | {0, min(1, last)})

    def _sees_window(self, function: Mask, query: int, window: int) -> bool:
        keys = torch.arange(self._max_length)
        try:
            seen = torch.as_tensor(function(0, 0, torch.tensor(query), keys))
        except (RuntimeError, TypeError, ValueError, IndexError):  # it depends on the padding or blocks of this text
            return False
        expected = (keys <= query) & (keys > query - (window or len(keys)))
        return bool((seen.expand_as(expected) == expected).all())


def eager_causal(mask: Tensor, window: int) -> Tensor:
    """Return the plain causal mask of a few tokens, in the dtype and shape of another mask."""
    queries, keys = torch.arange(mask.shape[-2]).unsqueeze(1), torch.arange(mask.shape[-1])
    hidden = (keys > queries) | (keys <= queries - (window or len(keys)))
    plain = torch.zeros(hidden.shape, dtype=mask.dtype).masked_fill(hidden, torch.finfo(mask.dtype).min)
    return plain.to(mask.device).expand_as(mask)


def _named(layers: list[int]) -> str:
    """Return text like ``layer 3``, or ``layers 0, 2, 4, 6 and 12 more``."""
    shown, rest = ", ".join(map(str, layers[:MAX_LISTED])), len(layers) - MAX_LISTED
    return f"layer{'s' if len(layers) > 1 else ''} {shown}" + (f" and {rest} more" if rest > 0 else "")
