"""circuit-tracer's transcoders: ``config.yaml`` beside ``layer_0.safetensors``, ``layer_1.safetensors`` and so on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from steering.saes.config import SAEConfig, SAEMath
from steering.saes.config_fields import Config, read_choice, read_int, read_text
from steering.saes.errors import InvalidSAEError
from steering.saes.formats.format import Layout, SAEFormat, shape_of
from steering.saes.hooks import transcoder_site
from steering.saes.place import SAEPlace
from steering.saes.tensor_files.base import Header, Shape

if TYPE_CHECKING:
    from torch import Tensor

    from steering.saes.sae import SAEWeights

_CONFIG_FILE = "config.yaml"
_NAME = r"layer_(\d{1,3})\.safetensors"
_THRESHOLD = "activation_function.threshold"
_ACTIVATIONS = {"": "", "relu": "transcoder", "topk": "topk_transcoder", "jump_relu": "jumprelu_transcoder"}


class CircuitTracer(SAEFormat):
    """Transcoders of circuit-tracer: JumpReLU if the file has a threshold, TopK if it has k, otherwise ReLU."""

    name = "circuit-tracer"
    title = "circuit-tracer"
    weights_pattern = _NAME
    config_files = (_CONFIG_FILE,)
    required_files = (_CONFIG_FILE,)
    is_single_file = True

    def recognises(self, place: SAEPlace) -> bool:
        return place.is_here(_CONFIG_FILE) and bool(place.matching(_NAME))

    def weights_file(self, place: SAEPlace) -> str:
        return place.only(_NAME, "transcoders")

    def needs_header(self, place: SAEPlace) -> bool:
        return True

    def preview(self, place: SAEPlace) -> SAEConfig:
        config, headers, file = place.yaml(_CONFIG_FILE), self.headers(place), self.weights_file(place)
        read_choice(config, "model_kind", {"transcoder_set": ""}, "transcoder_set")
        layer = file.removeprefix("layer_").removesuffix(".safetensors")
        source, target = (
            f"blocks.{layer}.{read_text(config, name)}" for name in ("feature_input_hook", "feature_output_hook")
        )
        (d_sae, d_in), (_, d_out) = shape_of(headers, "W_enc", 2), shape_of(headers, "W_dec", 2)
        architecture = _architecture(config, headers)
        return SAEConfig(
            format=self.name,
            math=SAEMath(
                architecture=architecture,
                d_in=d_in,
                d_sae=d_sae,
                k=read_int(config, "k") if architecture == "topk_transcoder" else None,
                apply_b_dec_to_input=False,
                layout=self.name,
                d_out=None if d_out == d_in else d_out,
                has_skip="W_skip" in headers,
            ),
            weights_file=file,
            hook_name=target,
            site=transcoder_site(source, target),
            model_name=read_text(config, "model_name"),
            input_hook=source,
        )

    def layout(self, config: SAEConfig, headers: Mapping[str, Header]) -> Layout:
        math = config.math
        shapes: dict[str, Shape] = {
            "W_enc": (math.d_sae, math.d_in),
            "b_enc": (math.d_sae,),
            "W_dec": (math.d_sae, math.width_out),
            "b_dec": (math.width_out,),
        }
        if math.architecture == "jumprelu_transcoder":
            shapes[_THRESHOLD] = (math.d_sae,)
        if math.has_skip:
            shapes["W_skip"] = (math.width_out, math.d_in)
        integers = frozenset({"k"} & set(headers))
        return Layout(shapes | dict.fromkeys(integers, ()), integers=integers)

    def convert(self, tensors: dict[str, Tensor], config: SAEConfig) -> SAEWeights:
        from steering.saes.sae import SAEWeights

        if "k" in tensors and int(tensors["k"]) != config.math.k:
            raise InvalidSAEError(f"k is {int(tensors['k'])} in the file, but {config.math.k} in {_CONFIG_FILE}.")
        return SAEWeights(
            encoder=tensors.pop("W_enc").contiguous(),
            b_enc=tensors["b_enc"],
            W_dec=tensors["W_dec"],
            b_dec=tensors["b_dec"],
            threshold=tensors.get(_THRESHOLD),
            W_skip=tensors.get("W_skip"),
        )


def _architecture(config: Config, headers: Mapping[str, Header]) -> str:
    """Return the architecture. Raise InvalidSAEError if the file contradicts the configuration."""
    named = read_choice(config, "activation", _ACTIVATIONS)
    found = (
        "jumprelu_transcoder"
        if _THRESHOLD in headers
        else "topk_transcoder"
        if "k" in headers or config.get("k") is not None
        else named or "transcoder"
    )
    if named and named != found:
        raise InvalidSAEError(f"activation is {config['activation']!r}, but the file is of a {found}.")
    return found
