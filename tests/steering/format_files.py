"""Writes SAEs as the projects that publish them do, and says in numpy what those projects compute with them.

The formulas are written once more here, from each project's own code, in its own terms.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from safetensors.torch import save_file

from inference.interventions import Site
from tests.steering.sae_files import D_IN, D_SAE, Array, Weights, random_weights

K = 5
QWEN_D_SAE = 1024


def relu(x: Array) -> Array:
    return np.maximum(x, 0)


def jump(pre: Array, threshold: Array | float) -> Array:
    return np.where(pre > threshold, relu(pre), 0)


def top_k(pre: Array, ranked: Array | None = None, k: int = K) -> Array:
    kept = np.argsort(-(pre if ranked is None else ranked), axis=-1)[:, :k]
    result = np.zeros_like(pre)
    np.put_along_axis(result, kept, relu(np.take_along_axis(pre, kept, -1)), -1)
    return result


def norms(W_dec: Array) -> Array:
    return np.linalg.norm(W_dec, axis=-1)


@dataclass(frozen=True)
class Written:
    """``path`` is what the loader is given. ``decode`` gets the input as well, for skip connections and scales."""

    path: Path
    encode: Callable[[Array], Array]
    decode: Callable[[Array, Array], Array]
    d_in: int = D_IN


def f32(**arrays: Array) -> dict[str, torch.Tensor]:
    return {name: torch.tensor(np.asarray(value), dtype=torch.float32).contiguous() for name, value in arrays.items()}


def save_safetensors(path: Path, tensors: dict[str, torch.Tensor]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(tensors, path)
    return path


def save_torch(path: Path, value: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(value, path)
    return path


def save_json(path: Path, value: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))
    return path


def extra(seed: int = 3) -> Weights:
    """Further tensors that some architectures have."""
    rng = np.random.default_rng(seed)
    values = {
        "b_gate": 0.3 * rng.normal(size=D_SAE),
        "b_mag": 0.3 * rng.normal(size=D_SAE),
        "r_mag": 0.3 * rng.normal(size=D_SAE),
        "W_skip": rng.normal(size=(D_IN, D_IN)) / np.sqrt(D_IN),
    }
    return {name: value.astype(np.float32).astype(np.float64) for name, value in values.items()}


def saelens_config(architecture: str, **overrides: Any) -> dict[str, Any]:
    config: dict[str, Any] = {
        "architecture": architecture,
        "d_in": D_IN,
        "d_sae": D_SAE,
        "dtype": "float32",
        "device": "cpu",
        "apply_b_dec_to_input": "transcoder" not in architecture,
        "normalize_activations": "none",
        "reshape_activations": "none",
        "metadata": {"hook_name": "blocks.1.hook_resid_post", "model_name": "tiny", "sae_lens_version": "6.54.12"},
    }
    if "transcoder" in architecture:
        hooks = {"hook_name": "blocks.1.ln2.hook_normalized", "hook_name_out": "blocks.1.hook_mlp_out"}
        config |= {"d_out": D_IN, "metadata": config["metadata"] | hooks}
    return config | overrides


def saelens_gated(folder: Path, **overrides: Any) -> Written:
    w, g = random_weights(), extra()
    save_json(folder / "cfg.json", saelens_config("gated", **overrides))
    tensors = f32(**{name: w[name] for name in ("W_enc", "W_dec", "b_dec")}, **_without(g, "W_skip"))
    save_safetensors(folder / "sae_weights.safetensors", tensors)

    def encode(h: Array) -> Array:
        x = h - w["b_dec"]
        active = (x @ w["W_enc"] + g["b_gate"]) > 0
        result: Array = active * relu(x @ (w["W_enc"] * np.exp(g["r_mag"])) + g["b_mag"])
        return result

    return Written(folder, encode, lambda a, h: a @ w["W_dec"] + w["b_dec"])


def saelens_transcoder(folder: Path, architecture: str = "transcoder") -> Written:
    w, skip = random_weights(), extra()["W_skip"]
    save_json(folder / "cfg.json", saelens_config(architecture))
    has_threshold, has_skip = "jumprelu" in architecture, "skip" in architecture
    tensors = f32(**(w if has_threshold else _without(w, "threshold")), **({"W_skip": skip} if has_skip else {}))
    save_safetensors(folder / "sae_weights.safetensors", tensors)
    threshold = w["threshold"] if has_threshold else 0.0
    return Written(
        folder,
        lambda h: jump(h @ w["W_enc"] + w["b_enc"], threshold),
        lambda a, h: a @ w["W_dec"] + w["b_dec"] + (h @ skip.T if has_skip else 0),
    )


def saelens_finetuned(folder: Path) -> Written:
    """Before version 6: each feature may write a multiple of its decoder row."""
    w, factor = random_weights(), 1 + np.arange(D_SAE) / D_SAE
    config = {
        "d_in": D_IN, "d_sae": D_SAE, "hook_name": "blocks.1.hook_resid_post", "dtype": "float32",
        "architecture": "standard", "activation_fn_str": "relu", "finetuning_scaling_factor": True,
    }  # fmt: skip
    save_json(folder / "cfg.json", config)
    tensors = f32(**_without(w, "threshold"), scaling_factor=factor)
    save_safetensors(folder / "sae_weights.safetensors", tensors)
    return Written(
        folder,
        lambda h: relu((h - w["b_dec"]) @ w["W_enc"] + w["b_enc"]),
        lambda a, h: (a * factor.astype(np.float32)) @ w["W_dec"] + w["b_dec"],
    )


def gemma_scope(
    folder: Path, *, repository: str = "google--gemma-scope-2b-pt-res", compressed: bool = False
) -> Written:
    w = random_weights()
    place = folder / repository / "layer_7" / "width_16k" / "average_l0_71"
    place.mkdir(parents=True)
    save = np.savez_compressed if compressed else np.savez
    arrays: dict[str, Any] = {name: value.astype(np.float32) for name, value in w.items()}
    save(place / "params.npz", **arrays)
    return Written(
        place,
        lambda h: jump(h @ w["W_enc"] + w["b_enc"], w["threshold"]),
        lambda a, h: a @ w["W_dec"] + w["b_dec"],
    )


def gemma_scope_2(folder: Path, *, kind: str = "sae", affine: bool = False, **overrides: Any) -> Written:
    w, skip = random_weights(), extra()["W_skip"]
    layer = "model.layers.7"
    is_transcoder = kind == "transcoder"
    config = {
        "hf_hook_point_in": f"{layer}.pre_feedforward_layernorm.output" if is_transcoder else f"{layer}.output",
        "hf_hook_point_out": f"{layer}.post_feedforward_layernorm.output" if is_transcoder else f"{layer}.output",
        "width": D_SAE, "model_name": "gemma-3-1b-pt", "architecture": "jump_relu", "l0": 7, "type": kind,
        "affine_connection": affine,
    } | overrides  # fmt: skip
    save_json(folder / "config.json", config)
    tensors = f32(
        w_enc=w["W_enc"], w_dec=w["W_dec"], b_enc=w["b_enc"], b_dec=w["b_dec"], threshold=w["threshold"],
        **({"affine_skip_connection": skip} if affine else {}),
    )  # fmt: skip
    save_safetensors(folder / "params.safetensors", tensors)
    return Written(
        folder,
        lambda h: jump(h @ w["W_enc"] + w["b_enc"], w["threshold"]),
        lambda a, h: a @ w["W_dec"] + w["b_dec"] + (h @ skip if affine else 0),
    )


def linear_layers(w: Weights, encoder: str = "encoder", decoder: str = "decoder") -> dict[str, torch.Tensor]:
    """As torch's linear layers keep them: ``[out, in]``."""
    return f32(
        **{
            f"{encoder}.weight": w["W_enc"].T,
            f"{encoder}.bias": w["b_enc"],
            f"{decoder}.weight": w["W_dec"].T,
            f"{decoder}.bias": w["b_dec"],
        }
    )


def with_unit_rows(w: Weights) -> Weights:
    unit = (w["W_dec"] / norms(w["W_dec"])[:, None]).astype(np.float32).astype(np.float64)
    return w | {"W_dec": unit}


AVERAGE_NORM = 2.25


def llama_scope(folder: Path, *, unit: bool = True, **overrides: Any) -> Written:
    w = with_unit_rows(random_weights()) if unit else random_weights()
    config = {
        "d_model": D_IN, "d_sae": D_SAE, "use_decoder_bias": True, "apply_decoder_bias_to_pre_encoder": False,
        "act_fn": "jumprelu", "jump_relu_threshold": 0.2021484375, "norm_activation": "dataset-wise",
        "dataset_average_activation_norm": {"in": AVERAGE_NORM, "out": AVERAGE_NORM}, "top_k": 50,
        "sparsity_include_decoder_norm": True, "hook_point_in": "blocks.8.hook_resid_post",
        "hook_point_out": "blocks.8.hook_resid_post", "use_glu_encoder": False, "expansion_factor": 8,
    } | overrides  # fmt: skip
    save_json(folder / "hyperparams.json", config)
    save_safetensors(folder / "checkpoints" / "final.safetensors", linear_layers(w))
    factor = np.sqrt(D_IN) / AVERAGE_NORM
    scale = norms(w["W_dec"]) if config["sparsity_include_decoder_norm"] else 1.0

    def encode(h: Array) -> Array:
        pre = (h * factor) @ w["W_enc"] + w["b_enc"]
        return np.where(pre * scale > config["jump_relu_threshold"] * factor, pre, 0)

    return Written(folder, encode, lambda a, h: (a @ w["W_dec"] + w["b_dec"]) / factor)


def openmoss(folder: Path, *, tensors: dict[str, torch.Tensor] | None = None, **overrides: Any) -> Written:
    """The older class. ``overrides`` may say another activation, normalisation and gating."""
    w = random_weights()
    config = {
        "d_model": D_IN, "expansion_factor": D_SAE / D_IN, "hook_point_in": "blocks.2.hook_resid_post",
        "hook_point_out": "blocks.2.hook_resid_post", "act_fn": "jumprelu", "norm_activation": "inference",
        "sparsity_include_decoder_norm": True, "top_k": K, "d_sae": D_SAE, "use_decoder_bias": True,
    } | overrides  # fmt: skip
    save_json(folder / "config.json", config)
    written = dict(linear_layers(w) if tensors is None else tensors)
    log_threshold = np.log(w["threshold"]).astype(np.float32).astype(np.float64)
    if config["act_fn"] == "jumprelu":
        written |= f32(log_jumprelu_threshold=log_threshold)
    # Written in any case; where nothing is scaled by them, whatever was in the memory.
    used = config["norm_activation"] == "dataset-wise"
    written["dataset_average_activation_norm.blocks.2.hook_resid_post"] = torch.tensor(
        AVERAGE_NORM if used else float("nan")
    )
    save_safetensors(folder / "sae_weights.safetensors", written)

    def factor(h: Array) -> Any:
        match config["norm_activation"]:
            case "dataset-wise":
                return np.sqrt(D_IN) / AVERAGE_NORM
            case "token-wise":
                return np.sqrt(D_IN) / np.linalg.norm(h, axis=-1, keepdims=True)
            case _:
                return 1.0

    def encode(h: Array) -> Array:
        pre = (h * factor(h)) @ w["W_enc"] + w["b_enc"]
        scores = pre * norms(w["W_dec"]) if config["sparsity_include_decoder_norm"] else pre
        match config["act_fn"]:
            case "jumprelu":
                return np.where(scores > np.exp(log_threshold), pre, 0)
            case "topk":
                return top_k(pre, scores)
            case _:
                return relu(pre)

    return Written(folder, encode, lambda a, h: (a @ w["W_dec"] + w["b_dec"]) / factor(h))


def llamascopium(folder: Path, **overrides: Any) -> Written:
    w = random_weights()
    tensors = f32(W_E=w["W_enc"], b_E=w["b_enc"], W_D=w["W_dec"], b_D=w["b_dec"])
    return openmoss(folder, tensors=tensors, **({"sae_type": "sae", "model_name": "tiny"} | overrides))


def sparsify(folder: Path, *, transcode: bool = False, skip: bool = False, **overrides: Any) -> Written:
    w, W_skip = random_weights(), extra()["W_skip"]
    place = folder / "sae-tiny-32x" / ("layers.1.mlp" if transcode else "layers.1")
    config = {
        "activation": "topk", "expansion_factor": 32, "normalize_decoder": True, "num_latents": D_SAE, "k": K,
        "multi_topk": False, "skip_connection": skip, "transcode": transcode, "d_in": D_IN,
    } | overrides  # fmt: skip
    save_json(place / "cfg.json", config)
    tensors = f32(**{"encoder.weight": w["W_enc"].T, "encoder.bias": w["b_enc"]}, W_dec=w["W_dec"], b_dec=w["b_dec"])
    save_safetensors(place / "sae.safetensors", tensors | (f32(W_skip=W_skip) if skip else {}))
    return Written(
        place,
        lambda h: top_k((h if transcode else h - w["b_dec"]) @ w["W_enc"] + w["b_enc"]),
        lambda a, h: a @ w["W_dec"] + w["b_dec"] + (h @ W_skip.T if skip else 0),
    )


def goodfire(folder: Path, *, suffix: str = ".pth", linear: str = "_linear") -> Written:
    w = random_weights()
    path = folder / f"Llama-3.1-8B-Instruct-SAE-l19{suffix}"
    save_torch(path, linear_layers(w, f"encoder{linear}", f"decoder{linear}"))
    return Written(path, lambda h: relu(h @ w["W_enc"] + w["b_enc"]), lambda a, h: a @ w["W_dec"] + w["b_dec"])


SCALAR_THRESHOLD = 0.375


def dictionary_config(dict_class: str, **overrides: Any) -> dict[str, Any]:
    trainer = {
        "dict_class": dict_class, "activation_dim": D_IN, "dict_size": D_SAE, "layer": 1, "lm_name": "org/tiny",
        "submodule_name": "resid_post_layer_1", "k": K,
    } | overrides  # fmt: skip
    return {"trainer": trainer, "buffer": {"ctx_len": 128}}


def dictionary_learning(folder: Path, dict_class: str, **overrides: Any) -> Written:
    w, g = random_weights(), extra()
    linear = linear_layers(w)
    encoder = {name: linear[name] for name in ("encoder.weight", "encoder.bias", "decoder.weight")}
    counts = {"k": torch.tensor(K, dtype=torch.int)}
    b_dec = f32(b_dec=w["b_dec"])
    scale = norms(w["W_dec"])

    def decode(a: Array, h: Array) -> Array:
        result: Array = a @ w["W_dec"] + w["b_dec"]
        return result

    def unscaled(a: Array, h: Array) -> Array:
        return decode(a / scale, h)

    def pre(h: Array) -> Array:
        result: Array = (h - w["b_dec"]) @ w["W_enc"] + w["b_enc"]
        return result

    def gated(h: Array) -> Array:
        x = (h - w["b_dec"]) @ w["W_enc"]
        result: Array = ((x + g["b_gate"]) > 0) * relu(np.exp(g["r_mag"]) * x + g["b_mag"])
        return result

    threshold = {"threshold": torch.tensor(SCALAR_THRESHOLD)}
    plain = f32(**{name: w[name] for name in ("W_enc", "b_enc", "W_dec", "b_dec")})
    tensors, encode, back = {
        "AutoEncoder": (encoder | f32(bias=w["b_dec"]), lambda h: relu(pre(h)) * scale, unscaled),
        "AutoEncoderNew": (linear, lambda h: relu(h @ w["W_enc"] + w["b_enc"]), decode),
        "GatedAutoEncoder": (
            {name: encoder[name] for name in ("encoder.weight", "decoder.weight")}
            | f32(decoder_bias=w["b_dec"], r_mag=g["r_mag"], gate_bias=g["b_gate"], mag_bias=g["b_mag"]),
            gated,
            decode,
        ),
        "JumpReluAutoEncoder": (
            plain | f32(threshold=w["threshold"]),
            lambda h: jump(h @ w["W_enc"] + w["b_enc"], w["threshold"]),
            decode,
        ),
        "AutoEncoderTopK": (encoder | b_dec | counts | threshold, lambda h: top_k(pre(h)), decode),
        "BatchTopKSAE": (encoder | b_dec | counts | threshold, lambda h: jump(pre(h), SCALAR_THRESHOLD), decode),
        "MatryoshkaBatchTopKSAE": (
            plain | counts | threshold | {"group_sizes": torch.tensor([10, D_SAE - 10])},
            lambda h: jump(pre(h), SCALAR_THRESHOLD),
            decode,
        ),
    }[dict_class]
    save_json(folder / "config.json", dictionary_config(dict_class, **overrides))
    save_torch(folder / "ae.pt", tensors)
    return Written(folder, encode, back)


def qwen_scope(folder: Path, *, repository: str = "Qwen--SAE-Res-Qwen3-1.7B-Base-W1K-L0_5") -> Written:
    w = random_weights(d_sae=QWEN_D_SAE)
    path = folder / repository / "layer7.sae.pt"
    tensors = f32(W_enc=w["W_enc"].T, W_dec=w["W_dec"].T, b_enc=w["b_enc"], b_dec=w["b_dec"])
    save_torch(path, tensors)
    return Written(path, lambda h: top_k(h @ w["W_enc"] + w["b_enc"]), lambda a, h: a @ w["W_dec"] + w["b_dec"])


def circuit_tracer(folder: Path, *, activation: str = "relu", skip: bool = False, **overrides: Any) -> Written:
    w, W_skip = random_weights(), extra()["W_skip"]
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "model_name": "org/tiny", "model_kind": "transcoder_set", "feature_input_hook": "mlp.hook_in",
        "feature_output_hook": "hook_mlp_out", "scan": "tiny",
    } | ({"activation": "topk", "k": K} if activation == "topk" else {}) | overrides  # fmt: skip
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    tensors = f32(W_enc=w["W_enc"].T, b_enc=w["b_enc"], W_dec=w["W_dec"], b_dec=w["b_dec"])
    tensors |= f32(W_skip=W_skip) if skip else {}
    tensors |= f32(**{"activation_function.threshold": w["threshold"]}) if activation == "jump_relu" else {}
    for layer in range(3):
        save_safetensors(folder / f"layer_{layer}.safetensors", tensors)
    act: dict[str, Callable[[Array], Array]] = {
        "relu": relu, "topk": top_k, "jump_relu": lambda pre: jump(pre, w["threshold"])
    }  # fmt: skip
    return Written(
        folder / "layer_1.safetensors",
        lambda h: act[activation](h @ w["W_enc"] + w["b_enc"]),
        lambda a, h: a @ w["W_dec"] + w["b_dec"] + (h @ W_skip.T if skip else 0),
    )


def _without(weights: Weights, *names: str) -> Weights:
    return {name: value for name, value in weights.items() if name not in names}


@dataclass(frozen=True)
class Case:
    """A format as it is published, and what its preview must say."""

    write: Callable[[Path], Written]
    format: str
    architecture: str
    site: Site | None
    model_name: str = ""


DICTIONARY_CLASSES = {
    "AutoEncoder": "standard",
    "AutoEncoderNew": "standard",
    "GatedAutoEncoder": "gated",
    "JumpReluAutoEncoder": "jumprelu",
    "AutoEncoderTopK": "topk",
    "BatchTopKSAE": "jumprelu",
    "MatryoshkaBatchTopKSAE": "jumprelu",
}
_OUT, _RAW = Site(1, "mlp_out"), Site(1, "mlp_raw")
CASES: dict[str, Case] = {
    "saelens-gated": Case(saelens_gated, "saelens", "gated", Site(1), "tiny"),
    "saelens-transcoder": Case(saelens_transcoder, "saelens", "transcoder", _OUT, "tiny"),
    "saelens-skip": Case(lambda f: saelens_transcoder(f, "skip_transcoder"), "saelens", "transcoder", _OUT, "tiny"),
    "saelens-jump-transcoder": Case(
        lambda f: saelens_transcoder(f, "jumprelu_transcoder"), "saelens", "jumprelu_transcoder", _OUT, "tiny"
    ),
    "saelens-jump-skip": Case(
        lambda f: saelens_transcoder(f, "jumprelu_skip_transcoder"), "saelens", "jumprelu_transcoder", _OUT, "tiny"
    ),
    "saelens-5-finetuned": Case(saelens_finetuned, "saelens-5", "standard", Site(1)),
    "gemma-scope-res": Case(gemma_scope, "gemma-scope", "jumprelu", Site(7), "gemma-2-2b"),
    "gemma-scope-mlp-it": Case(
        lambda f: gemma_scope(f, repository="google--gemma-scope-9b-it-mlp", compressed=True),
        "gemma-scope", "jumprelu", Site(7, "mlp_out"), "gemma-2-9b-it",
    ),
    "gemma-scope-att": Case(
        lambda f: gemma_scope(f, repository="google--gemma-scope-9b-pt-att"),
        "gemma-scope", "jumprelu", Site(7, "attn_out"), "gemma-2-9b",
    ),
    "gemma-scope-transcoder": Case(
        lambda f: gemma_scope(f, repository="google--gemma-scope-2b-pt-transcoders"),
        "gemma-scope", "jumprelu_transcoder", Site(7, "mlp_out"), "gemma-2-2b",
    ),
    "gemma-scope-elsewhere": Case(lambda f: gemma_scope(f, repository="mine"), "gemma-scope", "jumprelu", None),
    "gemma-scope-2": Case(gemma_scope_2, "gemma-scope-2", "jumprelu", Site(7), "gemma-3-1b-pt"),
    "gemma-scope-2-transcoder": Case(
        lambda f: gemma_scope_2(f, kind="transcoder", affine=True),
        "gemma-scope-2", "jumprelu_transcoder", Site(7, "mlp_out"), "gemma-3-1b-pt",
    ),
    "llama-scope": Case(llama_scope, "llama-scope", "jumprelu", Site(8)),
    "llama-scope-own-norms": Case(lambda f: llama_scope(f, unit=False), "llama-scope", "jumprelu", Site(8)),
    "llama-scope-ungated": Case(
        lambda f: llama_scope(f, unit=False, sparsity_include_decoder_norm=False), "llama-scope", "jumprelu", Site(8)
    ),
    "openmoss": Case(openmoss, "openmoss", "jumprelu", Site(2)),
    "openmoss-dataset-wise": Case(
        lambda f: openmoss(f, norm_activation="dataset-wise"), "openmoss", "jumprelu", Site(2)
    ),
    "openmoss-token-wise": Case(lambda f: openmoss(f, norm_activation="token-wise"), "openmoss", "jumprelu", Site(2)),
    "openmoss-relu": Case(lambda f: openmoss(f, act_fn="relu"), "openmoss", "standard", Site(2)),
    "llamascopium-jumprelu": Case(llamascopium, "llamascopium", "jumprelu", Site(2), "tiny"),
    "llamascopium-topk": Case(
        lambda f: llamascopium(f, act_fn="topk", norm_activation="dataset-wise"),
        "llamascopium", "topk", Site(2), "tiny",
    ),
    "llamascopium-topk-ungated": Case(
        lambda f: llamascopium(f, act_fn="topk", sparsity_include_decoder_norm=False),
        "llamascopium", "topk", Site(2), "tiny",
    ),
    "sparsify": Case(sparsify, "sparsify", "topk", Site(1)),
    "sparsify-expansion": Case(
        lambda f: sparsify(f, num_latents=0, expansion_factor=D_SAE / D_IN), "sparsify", "topk", Site(1)
    ),
    "sparsify-transcoder": Case(lambda f: sparsify(f, transcode=True), "sparsify", "topk_transcoder", _RAW),
    "sparsify-skip": Case(lambda f: sparsify(f, transcode=True, skip=True), "sparsify", "topk_transcoder", _RAW),
    "goodfire": Case(goodfire, "goodfire", "standard", Site(19), "Llama-3.1-8B-Instruct"),
    "goodfire-pt": Case(
        lambda f: goodfire(f, suffix=".pt", linear=""), "goodfire", "standard", Site(19), "Llama-3.1-8B-Instruct"
    ),
    **{
        kind: Case(
            lambda f, kind=kind: dictionary_learning(f, kind),  # type: ignore[misc]
            "dictionary-learning", architecture, Site(1), "org/tiny",
        )
        for kind, architecture in DICTIONARY_CLASSES.items()
    },
    "qwen-scope": Case(qwen_scope, "qwen-scope", "topk", Site(7), "Qwen/Qwen3-1.7B-Base"),
    "circuit-tracer": Case(circuit_tracer, "circuit-tracer", "transcoder", _OUT, "org/tiny"),
    "circuit-tracer-qwen3": Case(
        lambda f: circuit_tracer(f, feature_output_hook="mlp.hook_out"),
        "circuit-tracer", "transcoder", _RAW, "org/tiny",
    ),
    "circuit-tracer-skip": Case(
        lambda f: circuit_tracer(f, skip=True), "circuit-tracer", "transcoder", _OUT, "org/tiny"
    ),
    "circuit-tracer-topk": Case(
        lambda f: circuit_tracer(f, activation="topk"), "circuit-tracer", "topk_transcoder", _OUT, "org/tiny"
    ),
    "circuit-tracer-jumprelu": Case(
        lambda f: circuit_tracer(f, activation="jump_relu"),
        "circuit-tracer", "jumprelu_transcoder", _OUT, "org/tiny",
    ),
}  # fmt: skip
