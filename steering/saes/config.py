"""What a configuration says about an SAE, in one normal form for all formats."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Literal

from inference.interventions import Site
from steering.saes.errors import InvalidSAEError

Normalization = Literal["none", "constant_norm_rescale", "layer_norm"]

MAX_D_IN = 1 << 17
MAX_D_SAE = 1 << 24


@dataclass(frozen=True, slots=True)
class SAEMath:
    """All that decides the numbers, apart from the weights.

    ``scaling_factor`` multiplies the input (folded into the weights at load time). ``rescale_acts_by_decoder_norm``
    is SAELens' rule for TopK: rank pre-activations times their decoder norm.
    """

    architecture: str
    d_in: int
    d_sae: int
    k: int | None = None
    normalization: Normalization = "none"
    scaling_factor: float = 1.0
    apply_b_dec_to_input: bool = True
    rescale_acts_by_decoder_norm: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.d_in <= MAX_D_IN:
            raise InvalidSAEError(f"d_in is {self.d_in}; it must lie between 1 and {MAX_D_IN}.")
        if not 0 < self.d_sae <= MAX_D_SAE:
            raise InvalidSAEError(f"d_sae is {self.d_sae}; it must lie between 1 and {MAX_D_SAE}.")
        if self.k is not None and not 0 < self.k <= self.d_sae:
            raise InvalidSAEError(f"k is {self.k}; it must lie between 1 and d_sae, which is {self.d_sae}.")

    def checksum(self, weights_sha256: str) -> str:
        """Identifies the SAE: SHA-256 over these fields and the weights' SHA-256."""
        text = json.dumps(asdict(self), sort_keys=True, allow_nan=False) + "\n" + weights_sha256
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class SAEConfig:
    """A configuration read from disk. ``site`` is None when it names no hook."""

    format: str
    math: SAEMath
    weights_file: str
    hook_name: str = ""
    site: Site | None = None
    model_name: str = ""
    prepend_bos: bool | None = None
