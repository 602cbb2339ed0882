"""The layout that SAELens writes: ``cfg.json`` beside ``sae_weights.safetensors``.

Version 6 nests what describes the training in ``metadata``; earlier versions keep one flat object with older names.
"""

from __future__ import annotations

from pathlib import Path

from inference.interventions import Site
from steering.saes.config import Normalization, SAEConfig, SAEMath
from steering.saes.errors import InvalidSAEError
from steering.saes.fields import Config, read_bool, read_int, read_object, read_positive, read_text
from steering.saes.files import has_file, read_json_object
from steering.saes.hooks import parse_hook_name

CONFIG_FILE = "cfg.json"
WEIGHTS_FILE = "sae_weights.safetensors"
SCALER_FILE = "activation_scaler.json"

ARCHITECTURES = ("standard", "jumprelu", "topk")
_OLD_NAMES = {
    "hook_point": "hook_name",
    "hook_point_head_index": "hook_head_index",
    "activation_fn_str": "activation_fn",
}


def is_version_6(config: Config) -> bool:
    return isinstance(config.get("architecture"), str) and isinstance(config.get("metadata"), dict)


def is_flat(config: Config) -> bool:
    hook = config.get("hook_name", config.get("hook_point"))
    return isinstance(hook, str) and "d_in" in config and "d_sae" in config and "metadata" not in config


def parse_version_6(config: Config, folder: Path) -> SAEConfig:
    """``folder`` may hold the scaling factor that SAELens keeps beside unfinished checkpoints."""
    metadata = read_object(config, "metadata")
    _refuse_activation(config, allowed=("relu",))
    hook_name = read_text(metadata, "hook_name") or read_text(metadata, "hf_hook_name")
    return SAEConfig(
        format="saelens",
        math=_read_math(config, read_text(config, "architecture"), config, folder),
        weights_file=WEIGHTS_FILE,
        hook_name=hook_name,
        site=_read_site(metadata),
        model_name=read_text(metadata, "model_name"),
        prepend_bos=read_bool(metadata, "prepend_bos", default=True) if "prepend_bos" in metadata else None,
    )


def parse_flat(config: Config, folder: Path) -> SAEConfig:
    """SAELens before version 6."""
    config = {_OLD_NAMES.get(name, name): value for name, value in config.items()}
    _refuse_activation(config, allowed=("relu", "topk"))
    architecture = read_text(config, "architecture", "standard")
    activation = read_object(config, "activation_fn_kwargs") if config.get("activation_fn") == "topk" else {}
    if activation or config.get("activation_fn") == "topk":
        architecture = "topk"
    if isinstance(config.get("normalize_activations"), bool):
        old = "expected_average_only_in" if config["normalize_activations"] else "none"
        config = {**config, "normalize_activations": old}
    return SAEConfig(
        format="saelens-5",
        math=_read_math(config, architecture, activation, folder),
        weights_file=WEIGHTS_FILE,
        hook_name=read_text(config, "hook_name"),
        site=_read_site(config),
        model_name=read_text(config, "model_name"),
        prepend_bos=read_bool(config, "prepend_bos", default=True),
    )


def _read_math(config: Config, architecture: str, activation: Config, folder: Path) -> SAEMath:
    _refuse_unsupported(config, architecture)
    normalization, scaling_factor = _read_normalization(config, folder)
    return SAEMath(
        architecture=architecture,
        d_in=read_int(config, "d_in"),
        d_sae=read_int(config, "d_sae"),
        k=read_int(activation, "k") if architecture == "topk" else None,
        normalization=normalization,
        scaling_factor=scaling_factor,
        apply_b_dec_to_input=read_bool(config, "apply_b_dec_to_input", default=True),
        rescale_acts_by_decoder_norm=read_bool(config, "rescale_acts_by_decoder_norm", default=False),
    )


def _refuse_unsupported(config: Config, architecture: str) -> None:
    if architecture not in ARCHITECTURES:
        raise InvalidSAEError(
            f"The architecture {architecture!r} is not supported; supported are {', '.join(ARCHITECTURES)}"
            " (BatchTopK and Matryoshka SAEs are saved as jumprelu for inference)."
        )
    if architecture != "topk" and config.get("rescale_acts_by_decoder_norm"):
        raise InvalidSAEError(f"rescale_acts_by_decoder_norm is defined for topk only, not for {architecture}.")
    if config.get("finetuning_scaling_factor"):
        raise InvalidSAEError("finetuning_scaling_factor is not supported; fold it into W_dec first.")
    reshape = config.get("reshape_activations", "none")
    if reshape not in ("none", "hook_z", None):
        raise InvalidSAEError(f"reshape_activations {reshape!r} is not supported; known are none and hook_z.")


def _refuse_activation(config: Config, allowed: tuple[str, ...]) -> None:
    activation = config.get("activation_fn") or "relu"
    if activation not in allowed:
        raise InvalidSAEError(
            f"The activation function {activation!r} is not supported; known are {', '.join(allowed)}."
        )


def _read_normalization(config: Config, folder: Path) -> tuple[Normalization, float]:
    match config.get("normalize_activations"):
        case None | "none":
            return "none", 1.0
        case "constant_norm_rescale":
            return "constant_norm_rescale", 1.0
        case "layer_norm":
            return "layer_norm", 1.0
        case "expected_average_only_in":
            return "none", _read_scaling_factor(folder)
        case other:
            raise InvalidSAEError(f"The normalisation {other!r} is not supported; save the SAE with it folded in.")


def _read_scaling_factor(folder: Path) -> float:
    if not has_file(folder, SCALER_FILE):
        raise InvalidSAEError(
            f"The normalisation expected_average_only_in needs its factor, and there is no {SCALER_FILE};"
            " save the SAE with the factor folded in."
        )
    return read_positive(read_json_object(folder, SCALER_FILE), "scaling_factor")


def _read_site(metadata: Config) -> Site | None:
    if metadata.get("hook_head_index") is not None:
        raise InvalidSAEError("The SAE reads a single attention head (hook_head_index), which is not supported.")
    names = [name for field in ("hook_name", "hf_hook_name") if (name := read_text(metadata, field))]
    output = read_text(metadata, "hook_name_out")
    if output and output not in names:
        raise InvalidSAEError(
            f"The SAE writes to another hook ({output}) than it reads; transcoders are not supported."
        )
    sites = {parse_hook_name(name) for name in names}
    if len(sites) > 1:
        raise InvalidSAEError(f"The hook names {' and '.join(names)} mean different places.")
    return sites.pop() if sites else None
