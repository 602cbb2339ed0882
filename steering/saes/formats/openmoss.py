"""OpenMOSS' Language-Model-SAEs: ``config.json`` beside ``sae_weights.safetensors``.

::

    x    = h * sqrt(d) / norm                       norm: of the token, or the data set's average
    pre  = x W_enc + b_enc
    a    = pre where pre * |W_dec| passes           passes: > 0, > exp(log_jumprelu_threshold), among the k largest

Of the two classes the older one calls its tensors ``encoder.weight``, the newer one (llamascopium, with ``sae_type`` in
its configuration) ``W_E``. Llama Scope's first release has a configuration of its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from steering.saes.config import Normalization, SAEConfig, SAEMath
from steering.saes.config_fields import Config, read_bool, read_choice, read_int, read_size, read_text, shown
from steering.saes.errors import InvalidSAEError
from steering.saes.formats.format import Layout, SAEFormat
from steering.saes.hooks import parse_hook_name
from steering.saes.place import SAEPlace
from steering.saes.tensor_files.base import Header, Shape

if TYPE_CHECKING:
    from torch import Tensor

    from steering.saes.sae import SAEWeights

_CONFIG_FILE = "config.json"
_WEIGHTS_FILE = "sae_weights.safetensors"
_ARCHITECTURES = {"relu": "standard", "jumprelu": "jumprelu", "topk": "topk"}
_NORM = "dataset_average_activation_norm."
_THRESHOLD = "log_jumprelu_threshold"
DATASET_WISE = "dataset-wise"
_NORMALIZATIONS: dict[str, Normalization] = {
    "inference": "none",
    DATASET_WISE: "none",
    "token-wise": "constant_norm_rescale",
}

# Their names for the encoder's and decoder's matrices and biases; whether the matrices are ours transposed.
_OLD_NAMES = ("encoder.weight", "encoder.bias", "decoder.weight", "decoder.bias")
_NEW_NAMES = ("W_E", "b_E", "W_D", "b_D")


class OpenMOSS(SAEFormat):
    """The older class, used by Llama Scope R1-Distill."""

    name = "openmoss"
    title = "OpenMOSS"
    weights_pattern = r"sae_weights\.safetensors"
    config_files = (_CONFIG_FILE,)
    required_files = (_CONFIG_FILE,)

    def recognises(self, place: SAEPlace) -> bool:
        return _is_openmoss(place) and "sae_type" not in place.json(_CONFIG_FILE)

    def weights_file(self, place: SAEPlace) -> str:
        return _WEIGHTS_FILE

    def preview(self, place: SAEPlace) -> SAEConfig:
        config = place.json(_CONFIG_FILE)
        return openmoss_config(self.name, _WEIGHTS_FILE, config, openmoss_math(self.name, config))

    def layout(self, config: SAEConfig, headers: Mapping[str, Header]) -> Layout:
        d_in, d_sae = config.math.d_in, config.math.d_sae
        names, is_new = (_NEW_NAMES, True) if "W_E" in headers else (_OLD_NAMES, False)
        encoder, decoder = ((d_in, d_sae), (d_sae, d_in)) if is_new else ((d_sae, d_in), (d_in, d_sae))
        shapes: dict[str, Shape] = dict(zip(names, (encoder, (d_sae,), decoder, (d_in,)), strict=True))
        if names[3] not in headers:  # use_decoder_bias is false
            del shapes[names[3]]
        if config.math.architecture == "jumprelu" and config.math.threshold is None:
            shapes[_threshold_name(headers)] = (d_sae,)
        norms = [name for name in headers if name.startswith(_NORM)]
        if config.math.scales_by_weights:
            shapes[_NORM + config.hook_name] = ()
        return Layout(shapes, ignored=frozenset(norms) - set(shapes))

    def convert(self, tensors: dict[str, Tensor], config: SAEConfig) -> SAEWeights:
        import torch

        from steering.saes.folding import gated_by_decoder_norm, scaled
        from steering.saes.sae import SAEWeights

        is_new = "W_E" in tensors
        encoder, b_enc, decoder, b_dec = (tensors.get(name) for name in (_NEW_NAMES if is_new else _OLD_NAMES))
        assert encoder is not None
        assert b_enc is not None
        assert decoder is not None
        weights = SAEWeights(
            encoder=encoder.T.contiguous() if is_new else encoder,
            b_enc=b_enc,
            W_dec=decoder if is_new else decoder.T.contiguous(),
            b_dec=torch.zeros(config.math.d_in) if b_dec is None else b_dec,
            threshold=_threshold(tensors, config),
        )
        if config.math.gate_by_decoder_norm:
            weights = gated_by_decoder_norm(weights)
        if config.math.scales_by_weights:
            weights = scaled(weights, dataset_factor(float(tensors[_NORM + config.hook_name]), config.math.d_in))
        return weights


class Llamascopium(OpenMOSS):
    """The newer class of OpenMOSS."""

    name = "llamascopium"
    title = "OpenMOSS llamascopium"

    def recognises(self, place: SAEPlace) -> bool:
        return _is_openmoss(place) and "sae_type" in place.json(_CONFIG_FILE)

    def preview(self, place: SAEPlace) -> SAEConfig:
        kind = read_text(place.json(_CONFIG_FILE), "sae_type")
        if kind != "sae":
            raise InvalidSAEError(f"sae_type {shown(kind)} is not supported. Supported: sae.")
        return super().preview(place)


def openmoss_config(name: str, weights_file: str, config: Config, sae_math: SAEMath) -> SAEConfig:
    """Return the configuration. Both hooks in ``config`` must be the same."""
    source, target = read_text(config, "hook_point_in"), read_text(config, "hook_point_out")
    if target and target != source:
        raise InvalidSAEError(
            f"It reads {source} and writes {target} (hook_point_out); transcoders are not supported in this format."
        )
    return SAEConfig(
        format=name,
        math=sae_math,
        weights_file=weights_file,
        hook_name=source,
        site=parse_hook_name(source),
        model_name=read_text(config, "model_name"),
        prepend_bos=True,
    )


def openmoss_math(name: str, config: Config, **more: object) -> SAEMath:
    """Return the maths of an OpenMOSS SAE; ``more`` are further fields of the result."""
    if config.get("use_glu_encoder"):
        raise InvalidSAEError("use_glu_encoder is not supported.")
    normalization = read_choice(config, "norm_activation", {name: name for name in _NORMALIZATIONS}, "inference")
    architecture = read_choice(config, "act_fn", _ARCHITECTURES, "jumprelu")
    d_in = read_int(config, "d_model")
    fields: dict[str, object] = {
        "architecture": architecture,
        "d_in": d_in,
        "d_sae": read_size(config, "d_sae", d_in, "expansion_factor"),
        "k": read_int(config, "top_k") if architecture == "topk" else None,
        "normalization": _NORMALIZATIONS[normalization],
        "apply_b_dec_to_input": read_bool(config, "apply_decoder_bias_to_pre_encoder", default=False),
        "gate_by_decoder_norm": architecture != "standard"
        and read_bool(config, "sparsity_include_decoder_norm", default=False),
        "scales_by_weights": normalization == DATASET_WISE,
        "layout": name,
    }
    return SAEMath(**(fields | more))  # type: ignore[arg-type]


def dataset_factor(average_norm: float, d_in: int) -> float:
    """Return the factor that scales vectors of this norm to sqrt(d_in)."""
    if not average_norm > 0:
        raise InvalidSAEError(f"dataset_average_activation_norm must be above 0, got {average_norm}.")
    return math.sqrt(d_in) / average_norm


def _is_openmoss(place: SAEPlace) -> bool:
    if not place.is_here(_CONFIG_FILE) or not place.has(_WEIGHTS_FILE):
        return False
    config = place.json(_CONFIG_FILE)
    return "d_model" in config and "hook_point_in" in config


def _threshold_name(headers: Mapping[str, Header]) -> str:
    """Return the name of the threshold, which newer versions nest in a module."""
    nested = f"activation_function.{_THRESHOLD}"
    return nested if nested in headers else _THRESHOLD


def _threshold(tensors: Mapping[str, Tensor], config: SAEConfig) -> Tensor | None:
    import torch

    if config.math.threshold is not None:
        return torch.full((config.math.d_sae,), config.math.threshold)
    log = next((tensor for name, tensor in tensors.items() if name.endswith(_THRESHOLD)), None)
    return None if log is None else log.double().exp().float()
