"""Choose how a model runs on an accelerator, when it is attached, by testing what works on the device."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

import torch

from inference.engine.cache.layout import num_heads
from inference.engine.cache.plan import ModelCache
from inference.engine.config import EngineConfig
from inference.engine.kernels.step_graphs import Capture, CudaCapture
from inference.engine.kernels.varlen_attention import VarlenAttention, choose_attention
from inference.engine.models.loader import LoadedModel

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Accelerator:
    """How a model runs on an accelerator. ``capture`` is None if decode steps run without CUDA graphs.

    ``prepares``: whether graphs are captured when the model is attached, and not in traffic.
    """

    attention: VarlenAttention
    capture: Capture | None = None
    prepares: bool = False


Accelerate = Callable[[LoadedModel, ModelCache, EngineConfig], Accelerator | None]


def accelerate(loaded: LoadedModel, cache: ModelCache, config: EngineConfig) -> Accelerator | None:
    """Return the choice for a model; None on the CPU, which has its own kernels."""
    device = torch.device(loaded.device)
    if device.type == "cpu":
        return None
    attention = attention_of(loaded, cache, config)
    capture = CudaCapture(device) if device.type == "cuda" and config.cuda_graphs == "auto" else None
    graphs = "on" if capture else "off"
    logger.info("%s on %s: attention by %s; CUDA graphs %s.", loaded.name, device, attention, graphs)
    return Accelerator(attention, capture, prepares=True)


def attention_of(loaded: LoadedModel, cache: ModelCache, config: EngineConfig) -> VarlenAttention:
    if config.attention_kernel == "torch":
        return VarlenAttention(None, "attention_kernel=torch")
    page = cache.policy.block_size if cache.policy.tables[0].shape[1] > 1 else 0
    return choose_attention(cache.pool.layouts, num_heads(loaded.module), torch.device(loaded.device), page=page)
