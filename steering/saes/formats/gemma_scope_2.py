"""Gemma Scope 2: ``config.json`` beside ``params.safetensors``, SAEs and transcoders of Gemma 3."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from steering.saes.config import SAEConfig, SAEMath
from steering.saes.config_fields import read_bool, read_text, shown
from steering.saes.errors import InvalidSAEError
from steering.saes.formats.format import Layout, SAEFormat, shape_of
from steering.saes.hooks import parse_hook_name, transcoder_site
from steering.saes.place import SAEPlace
from steering.saes.tensor_files.base import Header, Shape

if TYPE_CHECKING:
    from torch import Tensor

    from steering.saes.sae import SAEWeights

_CONFIG_FILE = "config.json"
_WEIGHTS_FILE = "params.safetensors"
_SKIP = "affine_skip_connection"


class GemmaScope2(SAEFormat):
    """JumpReLU without a bias on the input."""

    name = "gemma-scope-2"
    title = "Gemma Scope 2"
    weights_pattern = r"params\.safetensors"
    config_files = (_CONFIG_FILE,)
    required_files = (_CONFIG_FILE,)

    def recognises(self, place: SAEPlace) -> bool:
        return place.has(_WEIGHTS_FILE) and place.is_here(_CONFIG_FILE)

    def weights_file(self, place: SAEPlace) -> str:
        return _WEIGHTS_FILE

    def needs_header(self, place: SAEPlace) -> bool:
        return True

    def preview(self, place: SAEPlace) -> SAEConfig:
        config = place.json(_CONFIG_FILE)
        if config.get("architecture") != "jump_relu":
            raise InvalidSAEError(
                f"architecture must be jump_relu for Gemma Scope 2, got {shown(config.get('architecture'))}."
            )
        if config.get("type") not in (None, "sae", "transcoder"):
            raise InvalidSAEError(f"type {shown(config['type'])} is not supported. Supported: sae, transcoder.")
        source, target = read_text(config, "hf_hook_point_in"), read_text(config, "hf_hook_point_out")
        is_transcoder = bool(target) and target != source
        headers = self.headers(place)
        (d_in, d_sae), (_, d_out) = shape_of(headers, "w_enc", 2), shape_of(headers, "w_dec", 2)
        site = transcoder_site(source, target) if is_transcoder else parse_hook_name(source)
        return SAEConfig(
            format=self.name,
            math=SAEMath(
                architecture="jumprelu_transcoder" if is_transcoder else "jumprelu",
                d_in=d_in,
                d_sae=d_sae,
                apply_b_dec_to_input=False,
                layout=self.name,
                d_out=d_out if is_transcoder and d_out != d_in else None,
                has_skip=is_transcoder and read_bool(config, "affine_connection", default=False),
            ),
            weights_file=_WEIGHTS_FILE,
            hook_name=source,
            site=site,
            model_name=read_text(config, "model_name"),
            prepend_bos=True,
            input_hook=source if is_transcoder else "",
        )

    def layout(self, config: SAEConfig, headers: Mapping[str, Header]) -> Layout:
        math = config.math
        shapes: dict[str, Shape] = {
            "w_enc": (math.d_in, math.d_sae),
            "b_enc": (math.d_sae,),
            "w_dec": (math.d_sae, math.width_out),
            "b_dec": (math.width_out,),
            "threshold": (math.d_sae,),
        }
        if math.has_skip:
            shapes[_SKIP] = (math.d_in, math.width_out)
        return Layout(shapes)

    def convert(self, tensors: dict[str, Tensor], config: SAEConfig) -> SAEWeights:
        from steering.saes.sae import SAEWeights

        return SAEWeights(
            encoder=tensors.pop("w_enc").T.contiguous(),
            b_enc=tensors["b_enc"],
            W_dec=tensors["w_dec"],
            b_dec=tensors["b_dec"],
            threshold=tensors["threshold"],
            W_skip=tensors[_SKIP].T.contiguous() if config.math.has_skip else None,
        )
