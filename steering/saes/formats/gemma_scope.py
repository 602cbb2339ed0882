"""Gemma Scope 1: ``params.npz`` in ``layer_20/width_16k/average_l0_71/`` of ``google/gemma-scope-2b-pt-res``.

There is no configuration file: site and model follow from the names of repository and folder.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from inference.interventions import Site, SiteKind
from steering.saes.config import SAEConfig, SAEMath
from steering.saes.errors import InvalidSAEError
from steering.saes.formats.format import Layout, SAEFormat, shape_of
from steering.saes.place import SAEPlace
from steering.saes.tensor_files.base import Header

if TYPE_CHECKING:
    from torch import Tensor

    from steering.saes.sae import SAEWeights

_WEIGHTS_FILE = "params.npz"
_KINDS: dict[str, SiteKind] = {"res": "resid_post", "mlp": "mlp_out", "att": "attn_out", "transcoders": "mlp_out"}
_HIDDEN_SIZES = {"2b": 2304, "9b": 3584, "27b": 4608}
_HEADS_SIZES = {"2b": 2048, "9b": 4096, "27b": 4096}
_WIDTHS = {"k": 1 << 10, "m": 1 << 20}


class GemmaScope(SAEFormat):
    """JumpReLU without a bias on the input, trained with a BOS token."""

    name = "gemma-scope"
    title = "Gemma Scope"
    weights_pattern = r"params\.npz"

    def recognises(self, place: SAEPlace) -> bool:
        return place.has(_WEIGHTS_FILE)

    def weights_file(self, place: SAEPlace) -> str:
        return _WEIGHTS_FILE

    def needs_header(self, place: SAEPlace) -> bool:
        return _sizes_by_name(place) is None

    def preview(self, place: SAEPlace) -> SAEConfig:
        if place.find(r"/embedding(?=/|$)"):
            raise InvalidSAEError("Gemma Scope's SAEs of the embedding are not supported.")
        kind, layer = _kind(place), place.find(r"(?:^|/)layer_(\d{1,3})(?=/|$)")
        is_transcoder = kind == "transcoders"
        d_in, d_sae = self._sizes(place)
        return SAEConfig(
            format=self.name,
            math=SAEMath(
                architecture="jumprelu_transcoder" if is_transcoder else "jumprelu",
                d_in=d_in,
                d_sae=d_sae,
                apply_b_dec_to_input=False,
                layout=self.name,
            ),
            weights_file=_WEIGHTS_FILE,
            site=Site(int(layer[1]), _KINDS[kind]) if layer and kind else None,
            model_name=_model_name(place),
            prepend_bos=True,
            input_hook=f"blocks.{layer[1]}.ln2.hook_normalized" if layer and is_transcoder else "",
        )

    def layout(self, config: SAEConfig, headers: Mapping[str, Header]) -> Layout:
        d_in, d_sae = config.math.d_in, config.math.d_sae
        encoder, decoder = ("w_enc", "w_dec") if "w_enc" in headers else ("W_enc", "W_dec")
        biases = {"b_enc": (d_sae,), "b_dec": (d_in,), "threshold": (d_sae,)}
        return Layout({encoder: (d_in, d_sae), decoder: (d_sae, d_in), **biases})

    def convert(self, tensors: dict[str, Tensor], config: SAEConfig) -> SAEWeights:
        from steering.saes.sae import SAEWeights

        encoder, decoder = ("w_enc", "w_dec") if "w_enc" in tensors else ("W_enc", "W_dec")
        return SAEWeights(
            encoder=tensors.pop(encoder).T.contiguous(),
            b_enc=tensors["b_enc"],
            W_dec=tensors[decoder],
            b_dec=tensors["b_dec"],
            threshold=tensors["threshold"],
        )

    def _sizes(self, place: SAEPlace) -> tuple[int, int]:
        """Return d_in and d_sae, from the file if it is on this machine, otherwise from the names."""
        named = None if place.is_here(_WEIGHTS_FILE) else _sizes_by_name(place)
        if named is not None:
            return named
        headers = self.headers(place)
        d_in, d_sae = shape_of(headers, "w_enc" if "w_enc" in headers else "W_enc", 2)
        return d_in, d_sae


def _kind(place: SAEPlace) -> str:
    match = place.find(r"gemma-scope-\d+b-[pi]t-(res|mlp|att|transcoders)")
    return match[1] if match else ""


def _model_name(place: SAEPlace) -> str:
    match = place.find(r"gemma-scope-(\d+b)-(pt|it)-")
    return "" if match is None else f"gemma-2-{match[1]}" + ("-it" if match[2] == "it" else "")


def _sizes_by_name(place: SAEPlace) -> tuple[int, int] | None:
    size, width = place.find(r"gemma-scope-(\d+b)-"), place.find(r"/width_(\d{1,4})([km])(?=/|$)")
    widths = _HEADS_SIZES if _kind(place) == "att" else _HIDDEN_SIZES
    if size is None or width is None or size[1] not in widths:
        return None
    return widths[size[1]], int(width[1]) * _WIDTHS[width[2]]
