"""Write a trained SAE in the layout of SAELens 6: ``cfg.json`` and ``sae_weights.safetensors``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save

from inference.interventions import Site
from steering.saes.hooks import hook_name
from steering.training.recipe import TrainingRecipe
from steering.training.store import replace_file

if TYPE_CHECKING:
    from steering.saes.sae import SAEWeights

CONFIG, WEIGHTS, HEALTH = "cfg.json", "sae_weights.safetensors", "health.json"
SAELENS = "6.54.0"


def write_sae(
    folder: Path,
    weights: SAEWeights,
    recipe: TrainingRecipe,
    site: Site,
    *,
    model_name: str,
    corpus: str,
    context_size: int,
    half: bool = True,
) -> None:
    """Write the SAE. ``half`` stores the weights as float16, half the size; readers compute in float32 either way."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {"W_enc": weights.encoder.T, "b_enc": weights.b_enc, "W_dec": weights.W_dec, "b_dec": weights.b_dec}
    if weights.threshold is not None:
        tensors["threshold"] = weights.threshold
    dtype = torch.float16 if half else torch.float32
    data = save({name: tensor.to(dtype).contiguous() for name, tensor in tensors.items()})
    replace_file(folder / WEIGHTS, data)
    config = _config(weights, recipe, site, model_name=model_name, corpus=corpus, context_size=context_size)
    replace_file(folder / CONFIG, (json.dumps(config, indent=2) + "\n").encode())


def _config(
    weights: SAEWeights, recipe: TrainingRecipe, site: Site, *, model_name: str, corpus: str, context_size: int
) -> dict[str, Any]:
    d_sae, d_in = weights.encoder.shape
    activation = {"k": recipe.k, "rescale_acts_by_decoder_norm": False} if recipe.architecture == "topk" else {}
    return {
        "architecture": recipe.architecture,
        "d_in": d_in,
        "d_sae": d_sae,
        **activation,
        "dtype": "float32",
        "device": "cpu",
        "apply_b_dec_to_input": True,
        "normalize_activations": "none",
        "reshape_activations": "hook_z" if site.kind == "attn_out" else "none",
        "metadata": {
            "model_name": model_name,
            "hook_name": hook_name(site),
            "prepend_bos": False,
            "context_size": context_size,
            "exclude_special_tokens": True,
            "dataset_path": corpus,
            "sae_lens_version": SAELENS,
            "sae_lens_training_version": None,
            "millm_recipe": recipe.as_json(),
        },
    }
