"""The supported architectures by name."""

from __future__ import annotations

from steering.saes.gated import GatedSAE
from steering.saes.jumprelu import JumpReLUSAE
from steering.saes.sae import SparseAutoencoder
from steering.saes.standard import StandardSAE
from steering.saes.topk import TopKSAE
from steering.saes.transcoder import JumpReLUTranscoder, ReLUTranscoder, TopKTranscoder

ARCHITECTURES: dict[str, type[SparseAutoencoder]] = {
    "standard": StandardSAE,
    "jumprelu": JumpReLUSAE,
    "topk": TopKSAE,
    "gated": GatedSAE,
    "transcoder": ReLUTranscoder,
    "jumprelu_transcoder": JumpReLUTranscoder,
    "topk_transcoder": TopKTranscoder,
}
