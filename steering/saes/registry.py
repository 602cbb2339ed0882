"""The supported architectures by name."""

from __future__ import annotations

from steering.saes.jumprelu import JumpReLUSAE
from steering.saes.sae import SparseAutoencoder
from steering.saes.standard import StandardSAE
from steering.saes.topk import TopKSAE

ARCHITECTURES: dict[str, type[SparseAutoencoder]] = {
    "standard": StandardSAE,
    "jumprelu": JumpReLUSAE,
    "topk": TopKSAE,
}
