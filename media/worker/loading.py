"""Load media models from safetensors files, and describe them."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import torch

from core.errors import MillmError
from media.messages import ModelFacts

WORD_START = "\u2581"  # in names of tokens of sentencepiece
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


class UnsupportedModelError(MillmError):
    """The worker cannot run the model."""

    code = "model_load_failed"
    status = 503


def load_pretrained(kind: Any, path: Path, dtype: str, device: str) -> Any:
    """Return a model of transformers in evaluation mode. On a CPU ``auto`` means float32, for convolutions."""
    chosen = DTYPES.get(dtype) or (torch.float32 if device == "cpu" else "auto")
    model = kind.from_pretrained(path, dtype=chosen, use_safetensors=True, local_files_only=True)
    return model.to(device).eval()


def load_pipeline(kind: Any, path: Path, dtype: str, device: str, *, has_tiles: bool = False) -> Any:
    """Return a pipeline of diffusers without progress bars. ``auto`` means float32 on a CPU, bfloat16 on a GPU.

    ``has_tiles``: decode in tiles, with less memory.
    """
    chosen = DTYPES.get(dtype) or (torch.float32 if device == "cpu" else torch.bfloat16)
    pipeline = kind.from_pretrained(path, dtype=chosen, use_safetensors=True, local_files_only=True).to(device)
    if "callback_on_step_end" not in inspect.signature(type(pipeline).__call__).parameters:
        raise UnsupportedModelError(f"{type(pipeline).__name__} is not supported: it cannot be stopped between steps.")
    pipeline.set_progress_bar_config(disable=True)
    if has_tiles:
        if not hasattr(pipeline.vae, "enable_tiling"):
            raise UnsupportedModelError(f"{type(pipeline.vae).__name__} does not support vae_tiling.")
        pipeline.vae.enable_tiling()
    return pipeline


def model_facts(model: Any, *others: Any, **facts: Any) -> ModelFacts:
    """Describe a model of transformers; ``others`` belong to it."""
    parameter = next(model.parameters())
    parameters = [each for module in (model, *others) for each in module.parameters()]
    sizes = [(each.numel(), each.numel() * each.element_size()) for each in parameters]
    return ModelFacts(
        architecture=type(model).__name__,
        device=str(parameter.device),
        dtype=str(parameter.dtype).removeprefix("torch."),
        memory_bytes=sum(size for _, size in sizes),
        num_parameters=sum(count for count, _ in sizes),
        **facts,
    )


def pipeline_facts(pipeline: Any, device: str, **facts: Any) -> ModelFacts:
    """Describe a pipeline of diffusers."""
    modules = [module for module in pipeline.components.values() if isinstance(module, torch.nn.Module)]
    parameters = {id(each): each for module in modules for each in module.parameters()}.values()
    return ModelFacts(
        architecture=type(pipeline).__name__,
        device=device,
        dtype=str(pipeline.dtype).removeprefix("torch."),
        memory_bytes=sum(each.numel() * each.element_size() for each in parameters),
        num_parameters=sum(each.numel() for each in parameters),
        **facts,
    )
