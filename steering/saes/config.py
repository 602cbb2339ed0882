"""The configuration of an SAE, in one form for all formats."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, fields
from typing import Literal

from inference.interventions import Site
from steering.saes.errors import InvalidSAEError

Normalization = Literal["none", "constant_norm_rescale", "layer_norm"]

MAX_D_IN = 1 << 17
MAX_D_SAE = 1 << 24

# Newer fields enter the checksum only if they are set, so that the checksums of older SAEs do not change.
_FIRST_FIELDS = frozenset(
    {
        "architecture",
        "d_in",
        "d_sae",
        "k",
        "normalization",
        "scaling_factor",
        "apply_b_dec_to_input",
        "rescale_acts_by_decoder_norm",
    }
)


@dataclass(frozen=True, slots=True)
class SAEMath:
    """Everything apart from the weights that determines the computed numbers.

    ``scaling_factor`` multiplies the input (folded into the weights at load time). ``rescale_acts_by_decoder_norm``
    is the rule of SAELens for TopK: rank and report pre-activations times their decoder norm.

    ``layout`` names the layout of the file unless it is the one of SAELens, because the same bytes have another meaning
    in another layout. ``threshold`` is one number for all features, if the configuration holds it.
    ``gate_by_decoder_norm`` is the rule of OpenMOSS: pre-activations times their decoder norm are ranked, or compared
    to the threshold, and reported without that factor. ``output_factor`` divides the output, if it differs from
    ``scaling_factor``. With ``scales_by_weights`` a tensor of the file holds the scaling of the input. ``d_out`` is the
    width of the output, if it differs from ``d_in``.
    """

    architecture: str
    d_in: int
    d_sae: int
    k: int | None = None
    normalization: Normalization = "none"
    scaling_factor: float = 1.0
    apply_b_dec_to_input: bool = True
    rescale_acts_by_decoder_norm: bool = False
    layout: str = ""
    threshold: float | None = None
    gate_by_decoder_norm: bool = False
    output_factor: float | None = None
    scales_by_weights: bool = False
    d_out: int | None = None
    has_skip: bool = False

    def __post_init__(self) -> None:
        for name in ("d_in", "d_out"):
            width = getattr(self, name)
            if width is not None and not 0 < width <= MAX_D_IN:
                raise InvalidSAEError(f"{name} must be between 1 and {MAX_D_IN}, got {width}.")
        if not 0 < self.d_sae <= MAX_D_SAE:
            raise InvalidSAEError(f"d_sae must be between 1 and {MAX_D_SAE}, got {self.d_sae}.")
        if self.k is not None and not 0 < self.k <= self.d_sae:
            raise InvalidSAEError(f"k must be between 1 and d_sae ({self.d_sae}), got {self.k}.")

    @property
    def width_out(self) -> int:
        """Width of the output."""
        return self.d_in if self.d_out is None else self.d_out

    def checksum(self, weights_sha256: str) -> str:
        """Return the checksum that identifies the SAE: SHA-256 over these fields and the SHA-256 of the weights."""
        defaults = {field.name: field.default for field in fields(self)}
        values = {
            name: value for name, value in asdict(self).items() if name in _FIRST_FIELDS or value != defaults[name]
        }
        text = json.dumps(values, sort_keys=True, allow_nan=False) + "\n" + weights_sha256
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class SAEConfig:
    """A configuration read from disk. ``site`` is where the SAE writes, None if no hook is named.

    ``input_hook`` is the name of the hook that a transcoder reads.
    """

    format: str
    math: SAEMath
    weights_file: str
    hook_name: str = ""
    site: Site | None = None
    model_name: str = ""
    prepend_bos: bool | None = None
    input_hook: str = ""
