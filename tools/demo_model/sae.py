"""The TopK sparse autoencoder of the demo, and its files in the SAELens v6 layout."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor


@dataclass(slots=True)
class TopKSae:
    """a = scatter(relu(topk((x - b_dec) W_enc + b_enc, k))), xhat = a W_dec + b_dec; all float32.

    Shapes: W_enc [d_in, d_sae], b_enc [d_sae], W_dec [d_sae, d_in] with rows of length 1, b_dec [d_in].
    """

    W_enc: Tensor
    b_enc: Tensor
    W_dec: Tensor
    b_dec: Tensor
    k: int

    def pre_activations(self, x: Tensor) -> Tensor:
        """Return pre-activations [n, d_sae] for [n, d_in]."""
        return (x - self.b_dec) @ self.W_enc + self.b_enc

    def encode(self, x: Tensor) -> Tensor:
        """Return activations [n, d_sae] for [n, d_in], at most k above zero in each row."""
        return keep_top(self.pre_activations(x), self.k)

    def decode(self, a: Tensor) -> Tensor:
        """Return reconstructions [n, d_in] for [n, d_sae]."""
        return a @ self.W_dec + self.b_dec


def keep_top(pre: Tensor, k: int) -> Tensor:
    """Return the relu of the k largest of each row, zero elsewhere; [n, d] -> [n, d]."""
    top = pre.topk(k, dim=-1)
    return torch.zeros_like(pre).scatter(-1, top.indices, top.values.relu())


def chunks(x: Tensor, size: int = 8192) -> Iterator[Tensor]:
    """Yield x in pieces of `size` rows, so that [n, d_sae] need not be held at once."""
    return (x[start : start + size] for start in range(0, len(x), size))


def save_sae(sae: TopKSae, folder: Path, *, layer: int, model_name: str, context_size: int) -> None:
    """Write `cfg.json` and `sae_weights.safetensors` in the format of SAELens 6."""
    folder.mkdir(parents=True, exist_ok=True)
    d_in, d_sae = sae.W_enc.shape
    config = {
        "architecture": "topk",
        "d_in": d_in,
        "d_sae": d_sae,
        "k": sae.k,
        "dtype": "float32",
        "device": "cpu",
        "apply_b_dec_to_input": True,
        "normalize_activations": "none",
        "reshape_activations": "none",
        "rescale_acts_by_decoder_norm": False,
        "metadata": {
            "model_name": model_name,
            "hook_name": f"blocks.{layer}.hook_resid_post",
            "hf_hook_name": f"model.layers.{layer}.output",
            "prepend_bos": True,
            "context_size": context_size,
            "exclude_special_tokens": True,
            "dataset_path": "steering.demo.corpus",
            "sae_lens_version": "6.54.0",
            "sae_lens_training_version": None,
        },
    }
    (folder / "cfg.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    save_file(
        {name: getattr(sae, name).contiguous() for name in ("W_enc", "b_enc", "W_dec", "b_dec")},
        folder / "sae_weights.safetensors",
    )


def load_sae(folder: Path) -> TopKSae:
    """Read the files of `save_sae`. Raise ValueError for any other architecture."""
    config = json.loads((folder / "cfg.json").read_text(encoding="utf-8"))
    if config["architecture"] != "topk":
        raise ValueError(f"the demo only reads the architecture topk, got {config['architecture']!r} in {folder}")
    return TopKSae(**load_file(folder / "sae_weights.safetensors"), k=config["k"])
