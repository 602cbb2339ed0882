"""The base class of all SAEs; architectures add their activation function.

::

    x    = normalize(h) - (b_dec if apply_b_dec_to_input else 0)
    pre  = x W_enc + b_enc
    a    = activation(pre)
    hhat = denormalize(a W_dec + b_dec)

Everything is computed in float32. Satisfies :class:`inference.interventions.FeatureReader`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, ClassVar

import torch
from torch.nn.functional import linear

from inference.interventions import FeatureColumns, Site, SiteKind
from steering.saes.config import SAEMath
from steering.saes.normalization import NORMALIZERS, Normalized

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class SAEWeights:
    """Float32. ``encoder`` is W_enc transposed, ``[d_sae, d_in]``, so that one feature is one contiguous row.

    ``rank_scale`` multiplies the pre-activations for the ranking of TopK. Transcoders write ``d_out`` numbers, all
    others ``d_in``.
    """

    encoder: Tensor  # [d_sae, d_in]
    b_enc: Tensor  # [d_sae]
    W_dec: Tensor  # [d_sae, d_out]
    b_dec: Tensor  # [d_out]
    threshold: Tensor | None = None  # [d_sae]
    rank_scale: Tensor | None = None  # [d_sae]
    W_skip: Tensor | None = None  # [d_out, d_in]

    @property
    def num_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors().values())

    def to(self, device: torch.device) -> SAEWeights:
        return SAEWeights(**{name: tensor.to(device) for name, tensor in self.tensors().items()})

    def tensors(self) -> dict[str, Tensor]:
        """Return all tensors that are not None, by name."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if value is not None}


class SparseAutoencoder(ABC):
    """Encodes residuals and decodes activations. ``key`` identifies weights and configuration.

    ``reads_its_site`` is False for transcoders: they read at the site :attr:`input_kind` of the layer where they write.
    """

    reads_its_site: ClassVar[bool] = True

    def __init__(self, key: str, math: SAEMath, weights: SAEWeights) -> None:
        self.key = key
        self.d_in = math.d_in
        self.d_sae = math.d_sae
        self.math = math
        self.input_kind: SiteKind = "mlp_in"  # of transcoders
        self._placed = {torch.device("cpu"): weights}
        self._normalize = NORMALIZERS[math.normalization]

    def read_site(self, site: Site) -> Site:
        """Return where it reads, if ``site`` is where it writes."""
        return site if self.reads_its_site else Site(site.layer, self.input_kind)

    @property
    def is_normalized(self) -> bool:
        """Whether the size of a step in the residual depends on the token, so that additions cannot be folded."""
        return self.math.normalization != "none"

    @property
    def num_bytes(self) -> int:
        """Memory of the weights on all devices."""
        return sum(weights.num_bytes for weights in self._placed.values())

    @property
    def weights(self) -> SAEWeights:
        """The weights on the CPU."""
        return self._on(torch.device("cpu"))

    def encode(self, h: Tensor) -> Tensor:
        """Return the activations of all features ``[tokens, d_sae]`` for residuals ``[tokens, d_in]``."""
        weights = self._on(h.device)
        x = self._encoder_input(h.float(), weights)
        return self._activate(linear(x, weights.encoder, weights.b_enc), weights.threshold)

    def decode(self, activations: Tensor, h: Tensor) -> Tensor:
        """Return the reconstruction ``[tokens, d_in]`` of activations ``[tokens, d_sae]``, normalised as for ``h``."""
        weights = self._on(h.device)
        return self._normalize(h.float()).restore(activations @ weights.W_dec + weights.b_dec)

    def activations(self, h: Tensor, features: Tensor) -> Tensor:
        """Return the columns ``[tokens, m]`` of :meth:`encode` for feature indices ``[m]``."""
        return self.encode(h)[:, features]

    def delta(self, change: Tensor, features: Tensor, h: Tensor) -> Tensor:
        """Return the change of the residual ``[tokens, d_in]`` for changes of activations ``[tokens, m]``."""
        step: Tensor = change.float() @ self._on(h.device).W_dec[features]
        return self._normalize(h.float()).restore_step(step) if self.is_normalized else step

    def columns(self, features: Tensor) -> FeatureColumns:
        """Return the columns of feature indices ``[m]``, on the CPU. Only decoder rows, if activations depend on other
        features.
        """
        write = self._on(torch.device("cpu")).W_dec[features.cpu()]
        return FeatureColumns(write, normalization=self.math.normalization)

    def decoder_row(self, feature: int) -> Tensor:
        """Return the decoder row ``[d_in]`` of a feature, on the CPU."""
        return self._on(torch.device("cpu")).W_dec[feature]

    def decoder_norms(self) -> Tensor:
        """Return the L2 norms of the decoder rows ``[d_sae]``, on the CPU."""
        norms: Tensor = self._on(torch.device("cpu")).W_dec.norm(dim=-1)
        return norms

    def decoder_bias(self) -> Tensor:
        """Return the decoder bias ``[d_in]``, on the CPU."""
        return self._on(torch.device("cpu")).b_dec

    @abstractmethod
    def _activate(self, pre: Tensor, threshold: Tensor | None) -> Tensor:
        """Return activations of pre-activations ``[tokens, d_sae]``; ``threshold`` is ``[d_sae]`` or None."""

    def _encoder_input(self, h: Tensor, weights: SAEWeights) -> Tensor:
        normalized: Normalized = self._normalize(h)
        return normalized.x - weights.b_dec if self.math.apply_b_dec_to_input else normalized.x

    def _on(self, device: torch.device) -> SAEWeights:
        """Return the weights on ``device``, copied there once."""
        if device not in self._placed:
            with torch.inference_mode(mode=False):  # as in load_sae
                self._placed[device] = self._placed[torch.device("cpu")].to(device)
        return self._placed[device]
