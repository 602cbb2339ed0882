"""Writes SAEs in SAELens' layout, and says in numpy what they compute."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file

D_IN = 12
D_SAE = 40
Array = NDArray[np.float64]
Weights = dict[str, Array]


def random_weights(seed: int = 0, *, d_in: int = D_IN, d_sae: int = D_SAE) -> Weights:
    rng = np.random.default_rng(seed)
    weights = {
        "W_enc": rng.normal(size=(d_in, d_sae)) / np.sqrt(d_in),
        "b_enc": 0.1 * rng.normal(size=d_sae),
        "W_dec": rng.normal(size=(d_sae, d_in)) / np.sqrt(d_in),
        "b_dec": 0.3 * rng.normal(size=d_in),
        "threshold": 0.2 + 0.5 * rng.random(d_sae),
    }
    # What the file holds, not what was drawn, is compared with.
    return {name: value.astype(np.float32).astype(np.float64) for name, value in weights.items()}


def sae_config(
    architecture: str = "jumprelu", *, d_in: int = D_IN, d_sae: int = D_SAE, **overrides: Any
) -> dict[str, Any]:
    config = {
        "architecture": architecture,
        "d_in": d_in,
        "d_sae": d_sae,
        "dtype": "float32",
        "device": "cpu",
        "apply_b_dec_to_input": True,
        "normalize_activations": "none",
        "reshape_activations": "none",
        "metadata": {"sae_lens_version": "6.54.0", "hook_name": "blocks.1.hook_resid_post", "model_name": "tiny"},
    }
    if architecture == "topk":
        config |= {"k": 5, "rescale_acts_by_decoder_norm": False}
    return config | overrides


def write_sae(
    folder: Path,
    config: dict[str, Any] | None = None,
    weights: Weights | None = None,
    dtype: torch.dtype = torch.float32,
) -> Path:
    """A folder with ``cfg.json`` and ``sae_weights.safetensors``."""
    config = sae_config() if config is None else config
    weights = random_weights() if weights is None else weights
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cfg.json").write_text(json.dumps(config))
    names = set(weights) if config.get("architecture") == "jumprelu" else set(weights) - {"threshold"}
    tensors = {name: torch.tensor(weights[name]).to(dtype).contiguous() for name in sorted(names)}
    save_file(tensors, folder / "sae_weights.safetensors")
    return folder


class NumpySAE:
    """The published formulas in float64, one line each."""

    def __init__(self, config: dict[str, Any], weights: Weights, scaling_factor: float = 1.0) -> None:
        self.config = config
        self.weights = dict(weights)
        self.weights["W_enc"] = weights["W_enc"] * scaling_factor
        self.weights["W_dec"] = weights["W_dec"] / scaling_factor
        self.weights["b_dec"] = weights["b_dec"] / scaling_factor

    def encode(self, h: Array) -> Array:
        x = self._normalize(h)[0] - self.weights["b_dec"] * self.config["apply_b_dec_to_input"]
        pre: Array = x @ self.weights["W_enc"] + self.weights["b_enc"]
        match self.config["architecture"]:
            case "standard":
                relu: Array = np.maximum(pre, 0)
                return relu
            case "jumprelu":
                jumped: Array = np.maximum(pre, 0) * (pre > self.weights["threshold"])
                return jumped
            case _:
                return self._top_k(pre)

    def decode(self, a: Array, h: Array) -> Array:
        _, scale, shift = self._normalize(h)
        if self.config.get("rescale_acts_by_decoder_norm"):
            a = a / self._norms()
        return (a @ self.weights["W_dec"] + self.weights["b_dec"]) * scale + shift

    def _top_k(self, pre: Array) -> Array:
        if self.config.get("rescale_acts_by_decoder_norm"):
            pre = pre * self._norms()
        kept = np.argsort(-pre, axis=-1)[:, : self.config["k"]]
        result = np.zeros_like(pre)
        np.put_along_axis(result, kept, np.maximum(np.take_along_axis(pre, kept, -1), 0), -1)
        return result

    def _norms(self) -> Array:
        norms: Array = np.linalg.norm(self.weights["W_dec"], axis=-1)
        return norms

    def _normalize(self, h: Array) -> tuple[Array, Array, Array]:
        one, zero = np.ones((len(h), 1)), np.zeros((len(h), 1))
        match self.config["normalize_activations"]:
            case "constant_norm_rescale":
                coefficient = np.sqrt(h.shape[-1]) / np.linalg.norm(h, axis=-1, keepdims=True)
                return h * coefficient, 1 / coefficient, zero
            case "layer_norm":
                mu = h.mean(-1, keepdims=True)
                std = (h - mu).std(-1, ddof=1, keepdims=True)
                return (h - mu) / (std + 1e-5), std, mu
            case _:
                return h, one, zero


def residuals(tokens: int = 50, *, d_in: int = D_IN, seed: int = 1) -> Array:
    h = 2 * np.random.default_rng(seed).normal(size=(tokens, d_in))
    return h.astype(np.float32).astype(np.float64)


def as_tensor(array: Array) -> torch.Tensor:
    return torch.tensor(array, dtype=torch.float32)
