"""EleutherAI's sparsify: a folder ``layers.5`` or ``layers.5.mlp`` with ``cfg.json`` and ``sae.safetensors``.

TopK. An SAE subtracts ``b_dec`` from its input, a transcoder does not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from inference.interventions import Site, SiteKind
from steering.saes.config import SAEConfig, SAEMath
from steering.saes.config_fields import read_bool, read_choice, read_int, read_size
from steering.saes.errors import InvalidSAEError
from steering.saes.formats.format import Layout, SAEFormat
from steering.saes.place import SAEPlace
from steering.saes.tensor_files.base import Header, Shape

if TYPE_CHECKING:
    from torch import Tensor

    from steering.saes.sae import SAEWeights

_CONFIG_FILE = "cfg.json"
_WEIGHTS_FILE = "sae.safetensors"
_KINDS: dict[str | None, SiteKind] = {None: "resid_post", "mlp": "mlp_raw"}


class Sparsify(SAEFormat):
    """SAEs of sparsify, read as its own code does. SAELens reads these files with the decoder transposed."""

    name = "sparsify"
    title = "EleutherAI sparsify"
    weights_pattern = r"sae\.safetensors"
    config_files = (_CONFIG_FILE,)
    required_files = (_CONFIG_FILE,)

    def recognises(self, place: SAEPlace) -> bool:
        return place.has(_WEIGHTS_FILE) and place.is_here(_CONFIG_FILE)

    def weights_file(self, place: SAEPlace) -> str:
        return _WEIGHTS_FILE

    def preview(self, place: SAEPlace) -> SAEConfig:
        config = place.json(_CONFIG_FILE)
        read_choice(config, "activation", {"topk": ""}, "topk")
        if read_bool(config, "signed", default=False):
            raise InvalidSAEError("signed is not supported: activations would be negative.")
        is_transcoder = read_bool(config, "transcode", default=False)
        has_skip = read_bool(config, "skip_connection", default=False)
        if has_skip and not is_transcoder:
            raise InvalidSAEError("skip_connection is only supported for transcoders.")
        d_in = read_int(config, "d_in")
        site, hook = _site(place, is_transcoder=is_transcoder)
        return SAEConfig(
            format=self.name,
            math=SAEMath(
                architecture="topk_transcoder" if is_transcoder else "topk",
                d_in=d_in,
                d_sae=read_size(config, "num_latents", d_in, "expansion_factor"),
                k=read_int(config, "k"),
                apply_b_dec_to_input=not is_transcoder,
                layout=self.name,
                has_skip=has_skip,
            ),
            weights_file=_WEIGHTS_FILE,
            hook_name=hook,
            site=site,
            input_hook=f"{hook}.input" if is_transcoder else "",
        )

    def layout(self, config: SAEConfig, headers: Mapping[str, Header]) -> Layout:
        d_in, d_sae = config.math.d_in, config.math.d_sae
        shapes: dict[str, Shape] = {
            "encoder.weight": (d_sae, d_in),
            "encoder.bias": (d_sae,),
            "W_dec": (d_sae, d_in),
            "b_dec": (d_in,),
        }
        if config.math.has_skip:
            shapes["W_skip"] = (d_in, d_in)
        return Layout(shapes)

    def convert(self, tensors: dict[str, Tensor], config: SAEConfig) -> SAEWeights:
        from steering.saes.sae import SAEWeights

        return SAEWeights(
            encoder=tensors["encoder.weight"],
            b_enc=tensors["encoder.bias"],
            W_dec=tensors["W_dec"],
            b_dec=tensors["b_dec"],
            W_skip=tensors.get("W_skip"),
        )


def _site(place: SAEPlace, *, is_transcoder: bool) -> tuple[Site | None, str]:
    """Return the site and the hook from the name of the folder. The site is None for modules that are not sites."""
    match = place.find(r"(?:^|[/.])((?:layers|h)[._](\d{1,4})(?:\.([a-z_]+))?)$")
    if match is None or match[3] not in _KINDS or (is_transcoder and match[3] is None):
        return None, "" if match is None else match[1]
    return Site(int(match[2]), _KINDS[match[3]]), match[1]
