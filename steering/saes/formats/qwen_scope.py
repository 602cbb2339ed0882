"""Qwen-Scope: files ``layer7.sae.pt`` in ``Qwen/SAE-Res-Qwen3-8B-Base-W64K-L0_50``.

TopK without a bias on the input. k follows from the name of the repository.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from inference.interventions import Site
from steering.saes.config import SAEConfig, SAEMath
from steering.saes.errors import InvalidSAEError
from steering.saes.formats.format import Layout, SAEFormat, shape_of
from steering.saes.place import SAEPlace
from steering.saes.tensor_files.base import Header

if TYPE_CHECKING:
    from torch import Tensor

    from steering.saes.sae import SAEWeights

_NAME = r"layer(\d{1,3})\.sae\.pt"


class QwenScope(SAEFormat):
    """SAEs of Qwen-Scope. Both matrices are transposed."""

    name = "qwen-scope"
    title = "Qwen-Scope"
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
        match = place.find(r"SAE-Res-([\w.-]+?)-W(\d{1,5})K-L0_(\d{1,5})(?=[@/]|$)")
        if match is None:
            raise InvalidSAEError(
                "The number of active features (k) is only given by the repository's name: keep the file in a folder "
                "with that name, SAE-Res-MODEL-W…K-L0_k."
            )
        d_sae, d_in = shape_of(self.headers(place), "W_enc", 2)
        if d_sae != int(match[2]) << 10:
            raise InvalidSAEError(f"W_enc has {d_sae} features, but the name says W{match[2]}K.")
        layer = re.fullmatch(_NAME, file)
        assert layer is not None
        return SAEConfig(
            format=self.name,
            math=SAEMath("topk", d_in, d_sae, k=int(match[3]), apply_b_dec_to_input=False, layout=self.name),
            weights_file=file,
            site=Site(int(layer[1]), "resid_post"),
            model_name=f"Qwen/{match[1]}",
            prepend_bos=None,
        )

    def layout(self, config: SAEConfig, headers: Mapping[str, Header]) -> Layout:
        d_in, d_sae = config.math.d_in, config.math.d_sae
        return Layout({"W_enc": (d_sae, d_in), "b_enc": (d_sae,), "W_dec": (d_in, d_sae), "b_dec": (d_in,)})

    def convert(self, tensors: dict[str, Tensor], config: SAEConfig) -> SAEWeights:
        from steering.saes.sae import SAEWeights

        return SAEWeights(
            encoder=tensors.pop("W_enc").contiguous(),
            b_enc=tensors["b_enc"],
            W_dec=tensors.pop("W_dec").T.contiguous(),
            b_dec=tensors["b_dec"],
        )
