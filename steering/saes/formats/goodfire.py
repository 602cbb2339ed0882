"""Goodfire's SAEs: one file such as ``Llama-3.1-8B-Instruct-SAE-l19.pth``.

ReLU without a bias on the input. An SAE of the R1 distillation of DeepSeek has such a name too; the names of its
tensors have no ``_linear``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from inference.interventions import Site
from steering.saes.config import SAEConfig, SAEMath
from steering.saes.formats.format import Layout, SAEFormat, shape_of
from steering.saes.place import SAEPlace
from steering.saes.tensor_files.base import Header

if TYPE_CHECKING:
    from torch import Tensor

    from steering.saes.sae import SAEWeights

_NAME = r"([\w.-]+)-SAE-l(\d{1,3})\.pth?"


class Goodfire(SAEFormat):
    """SAEs of Goodfire. Layer and model follow from the name of the file."""

    name = "goodfire"
    title = "Goodfire"
    weights_pattern = _NAME
    is_single_file = True

    def recognises(self, place: SAEPlace) -> bool:
        return bool(place.matching(_NAME))

    def weights_file(self, place: SAEPlace) -> str:
        return place.only(_NAME, "SAEs")

    def needs_header(self, place: SAEPlace) -> bool:
        return True

    def preview(self, place: SAEPlace) -> SAEConfig:
        file = self.weights_file(place)
        headers = self.headers(place)
        d_sae, d_in = shape_of(headers, f"{_prefix(headers, 'encoder')}.weight", 2)
        model, _, layer = file.rpartition(".")[0].rpartition("-SAE-l")
        return SAEConfig(
            format=self.name,
            math=SAEMath("standard", d_in, d_sae, apply_b_dec_to_input=False, layout=self.name),
            weights_file=file,
            site=Site(int(layer), "resid_post"),
            model_name=model,
            prepend_bos=True,
        )

    def layout(self, config: SAEConfig, headers: Mapping[str, Header]) -> Layout:
        d_in, d_sae = config.math.d_in, config.math.d_sae
        encoder, decoder = _prefix(headers, "encoder"), _prefix(headers, "decoder")
        return Layout(
            {
                f"{encoder}.weight": (d_sae, d_in),
                f"{encoder}.bias": (d_sae,),
                f"{decoder}.weight": (d_in, d_sae),
                f"{decoder}.bias": (d_in,),
            }
        )

    def convert(self, tensors: dict[str, Tensor], config: SAEConfig) -> SAEWeights:
        from steering.saes.sae import SAEWeights

        suffix = "" if "encoder.weight" in tensors else "_linear"
        return SAEWeights(
            encoder=tensors.pop(f"encoder{suffix}.weight").contiguous(),
            b_enc=tensors[f"encoder{suffix}.bias"],
            W_dec=tensors.pop(f"decoder{suffix}.weight").T.contiguous(),
            b_dec=tensors[f"decoder{suffix}.bias"],
        )


def _prefix(headers: Mapping[str, Header], role: str) -> str:
    return role if f"{role}.weight" in headers else f"{role}_linear"
