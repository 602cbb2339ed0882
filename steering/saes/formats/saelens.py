"""SAELens: ``cfg.json`` beside ``sae_weights.safetensors``.

Version 6 nests the description of the training in ``metadata``; earlier versions have one flat object with other names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from inference.interventions import Site
from steering.saes.config import Normalization, SAEConfig, SAEMath
from steering.saes.config_fields import (
    Config,
    read_bool,
    read_int,
    read_object,
    read_optional_bool,
    read_positive,
    read_text,
    shown,
)
from steering.saes.errors import InvalidSAEError
from steering.saes.formats.format import Layout, SAEFormat
from steering.saes.hooks import same_place, transcoder_site
from steering.saes.place import SAEPlace
from steering.saes.tensor_files.base import Header, Shape

if TYPE_CHECKING:
    from torch import Tensor

    from steering.saes.sae import SAEWeights

CONFIG_FILE = "cfg.json"
WEIGHTS_FILE = "sae_weights.safetensors"
SCALER_FILE = "activation_scaler.json"

# Their name: our name, and whether there is a skip connection.
_ARCHITECTURES = {
    "standard": ("standard", False),
    "jumprelu": ("jumprelu", False),
    "topk": ("topk", False),
    "gated": ("gated", False),
    "transcoder": ("transcoder", False),
    "skip_transcoder": ("transcoder", True),
    "jumprelu_transcoder": ("jumprelu_transcoder", False),
    "jumprelu_skip_transcoder": ("jumprelu_transcoder", True),
}
_OLD_NAMES = {
    "hook_point": "hook_name",
    "hook_point_head_index": "hook_head_index",
    "activation_fn_str": "activation_fn",
}
_FINETUNED = "scaling_factor"
_FINETUNED_LAYOUT = "saelens-finetuned"


class _SAELensLayout(SAEFormat):
    """Reads the weights file, which is the same in all versions."""

    weights_pattern = r"sae_weights\.safetensors"
    config_files = (CONFIG_FILE, SCALER_FILE)
    required_files = (CONFIG_FILE,)

    def weights_file(self, place: SAEPlace) -> str:
        return WEIGHTS_FILE

    def layout(self, config: SAEConfig, headers: Mapping[str, Header]) -> Layout:
        math = config.math
        shapes: dict[str, Shape] = {
            "W_enc": (math.d_in, math.d_sae),
            "W_dec": (math.d_sae, math.width_out),
            "b_dec": (math.width_out,),
        }
        names = ("b_gate", "b_mag", "r_mag") if math.architecture == "gated" else ("b_enc",)
        shapes |= dict.fromkeys(names, (math.d_sae,))
        if math.architecture.startswith("jumprelu"):
            shapes["threshold"] = (math.d_sae,)
        if math.has_skip:
            shapes["W_skip"] = (math.width_out, math.d_in)
        return Layout(shapes)

    def convert(self, tensors: dict[str, Tensor], config: SAEConfig) -> SAEWeights:
        from steering.saes.architectures import gated_weights
        from steering.saes.sae import SAEWeights

        encoder = tensors.pop("W_enc").T.contiguous()
        if config.math.architecture == "gated":
            names = ("b_gate", "b_mag", "r_mag", "W_dec", "b_dec")
            return gated_weights(encoder=encoder, **{name: tensors[name] for name in names})
        return SAEWeights(
            encoder=encoder,
            b_enc=tensors["b_enc"],
            W_dec=tensors["W_dec"],
            b_dec=tensors["b_dec"],
            threshold=tensors.get("threshold"),
            W_skip=tensors.get("W_skip"),
        )


class SAELens6(_SAELensLayout):
    """SAELens 6. The folder may also hold the scaling factor of an unfinished checkpoint."""

    name = "saelens"
    title = "SAELens"

    def recognises(self, place: SAEPlace) -> bool:
        if not place.is_here(CONFIG_FILE):
            return False
        config = place.json(CONFIG_FILE)
        return isinstance(config.get("architecture"), str) and isinstance(config.get("metadata"), dict)

    def preview(self, place: SAEPlace) -> SAEConfig:
        config = place.json(CONFIG_FILE)
        metadata = read_object(config, "metadata")
        _refuse_activation(config, allowed=("relu",))
        if config.get("finetuning_scaling_factor"):
            raise InvalidSAEError("finetuning_scaling_factor is not supported; fold it into W_dec first.")
        return SAEConfig(
            format=self.name,
            math=_read_math(config, read_text(config, "architecture"), config, place),
            weights_file=WEIGHTS_FILE,
            hook_name=read_text(metadata, "hook_name") or read_text(metadata, "hf_hook_name"),
            site=_read_site(metadata, is_transcoder="transcoder" in read_text(config, "architecture")),
            model_name=read_text(metadata, "model_name"),
            prepend_bos=read_optional_bool(metadata, "prepend_bos"),
            input_hook=read_text(metadata, "hook_name") if metadata.get("hook_name_out") else "",
        )


class SAELens5(_SAELensLayout):
    """SAELens before version 6."""

    name = "saelens-5"
    title = "SAELens before version 6"

    def recognises(self, place: SAEPlace) -> bool:
        if not place.is_here(CONFIG_FILE):
            return False
        config = place.json(CONFIG_FILE)
        hook = config.get("hook_name", config.get("hook_point"))
        return isinstance(hook, str) and "d_in" in config and "d_sae" in config and "metadata" not in config

    def preview(self, place: SAEPlace) -> SAEConfig:
        config: Config = {_OLD_NAMES.get(name, name): value for name, value in place.json(CONFIG_FILE).items()}
        _refuse_activation(config, allowed=("relu", "topk"))
        architecture = read_text(config, "architecture", "standard")
        activation = read_object(config, "activation_fn_kwargs") if config.get("activation_fn") == "topk" else {}
        if config.get("activation_fn") == "topk":
            architecture = "topk"
        if isinstance(config.get("normalize_activations"), bool):
            old = "expected_average_only_in" if config["normalize_activations"] else "none"
            config = {**config, "normalize_activations": old}
        math = _read_math(config, architecture, activation, place)
        if read_bool(config, "finetuning_scaling_factor", default=False):
            math = replace(math, layout=_FINETUNED_LAYOUT)
        return SAEConfig(
            format=self.name,
            math=math,
            weights_file=WEIGHTS_FILE,
            hook_name=read_text(config, "hook_name"),
            site=_read_site(config, is_transcoder="transcoder" in architecture),
            model_name=read_text(config, "model_name"),
            prepend_bos=read_bool(config, "prepend_bos", default=True),
        )

    def layout(self, config: SAEConfig, headers: Mapping[str, Header]) -> Layout:
        """Return the layout. Some versions wrote the scaling of finetuned SAEs even for SAEs without one."""
        layout = super().layout(config, headers)
        if _FINETUNED not in headers:
            return layout
        return replace(layout, shapes={**layout.shapes, _FINETUNED: (config.math.d_sae,)})

    def convert(self, tensors: dict[str, Tensor], config: SAEConfig) -> SAEWeights:
        """Return the weights; a finetuned feature writes ``scaling_factor`` times its decoder row."""
        weights = super().convert(tensors, config)
        factor = tensors.get(_FINETUNED)
        if factor is None or bool((factor == 1).all()):
            return weights
        if config.math.layout != _FINETUNED_LAYOUT:
            raise InvalidSAEError(f"{_FINETUNED} is not 1, and finetuning_scaling_factor is not set.")
        return replace(weights, W_dec=weights.W_dec * factor[:, None])


def _read_math(config: Config, architecture: str, activation: Config, place: SAEPlace) -> SAEMath:
    _refuse_unsupported(config, architecture)
    normalization, scaling_factor = _read_normalization(config, place)
    ours, has_skip = _ARCHITECTURES[architecture]
    is_transcoder = "transcoder" in ours
    if is_transcoder and (normalization != "none" or scaling_factor != 1.0):
        raise InvalidSAEError("A transcoder with normalize_activations is not supported; fold it into its weights.")
    d_in = read_int(config, "d_in")
    d_out = read_int(config, "d_out") if is_transcoder else d_in
    return SAEMath(
        architecture=ours,
        d_in=d_in,
        d_sae=read_int(config, "d_sae"),
        k=read_int(activation, "k") if architecture == "topk" else None,
        normalization=normalization,
        scaling_factor=scaling_factor,
        apply_b_dec_to_input=not is_transcoder and read_bool(config, "apply_b_dec_to_input", default=True),
        rescale_acts_by_decoder_norm=read_bool(config, "rescale_acts_by_decoder_norm", default=False),
        d_out=None if d_out == d_in else d_out,
        has_skip=has_skip,
    )


def _refuse_unsupported(config: Config, architecture: str) -> None:
    if architecture not in _ARCHITECTURES:
        raise InvalidSAEError(
            f"The architecture {shown(architecture)} is not supported. Supported: {', '.join(_ARCHITECTURES)} "
            "(BatchTopK and Matryoshka SAEs are saved as jumprelu for inference)."
        )
    if architecture != "topk" and config.get("rescale_acts_by_decoder_norm"):
        raise InvalidSAEError(f"rescale_acts_by_decoder_norm is only supported for topk, got {architecture}.")
    if "transcoder" in architecture and config.get("apply_b_dec_to_input"):
        raise InvalidSAEError(
            "apply_b_dec_to_input is not supported for transcoders, whose b_dec belongs to the output."
        )
    reshape = config.get("reshape_activations", "none")
    if reshape not in ("none", "hook_z", None):
        raise InvalidSAEError(f"reshape_activations {shown(reshape)} is not supported. Supported: none, hook_z.")


def _refuse_activation(config: Config, allowed: tuple[str, ...]) -> None:
    activation = config.get("activation_fn") or "relu"
    if activation not in allowed:
        raise InvalidSAEError(
            f"The activation function {shown(activation)} is not supported. Supported: {', '.join(allowed)}."
        )


def _read_normalization(config: Config, place: SAEPlace) -> tuple[Normalization, float]:
    match config.get("normalize_activations"):
        case None | "none":
            return "none", 1.0
        case "constant_norm_rescale":
            return "constant_norm_rescale", 1.0
        case "layer_norm":
            return "layer_norm", 1.0
        case "expected_average_only_in":
            return "none", _read_scaling_factor(place)
        case other:
            raise InvalidSAEError(
                f"The normalisation {shown(other)} is not supported; fold it into the SAE's weights before saving."
            )


def _read_scaling_factor(place: SAEPlace) -> float:
    if not place.is_here(SCALER_FILE):
        raise InvalidSAEError(
            f"The normalisation expected_average_only_in needs its factor, but {SCALER_FILE} is missing; save the SAE "
            "with the factor folded in."
        )
    return read_positive(place.json(SCALER_FILE), "scaling_factor")


def _read_site(metadata: Config, *, is_transcoder: bool) -> Site | None:
    if metadata.get("hook_head_index") is not None:
        raise InvalidSAEError("SAEs of a single attention head (hook_head_index) are not supported.")
    if is_transcoder:
        return _read_output_site(metadata)
    names = [name for field in ("hook_name", "hf_hook_name") if (name := read_text(metadata, field))]
    output = read_text(metadata, "hook_name_out")
    if output and output not in names:
        raise InvalidSAEError(f"The SAE writes to another hook ({output}) than it reads, but is not a transcoder.")
    return same_place(names) if names else None


def _read_output_site(metadata: Config) -> Site | None:
    """Return the output site of a transcoder: the MLP output of the layer whose MLP it reads."""
    source, target = read_text(metadata, "hook_name"), read_text(metadata, "hook_name_out")
    if not source and not target:
        return None
    return transcoder_site(source, target)
