"""Diagnose an SAE that fits badly: try likely faults on a few texts and report those that explain it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, get_args

import torch
from torch.nn.functional import cosine_similarity

from inference.interventions import Site, SiteKind
from steering.measuring.accumulators import ReconstructionMeter, SinkFinder
from steering.measuring.document import TokenisedDocument
from steering.measuring.measurement import Measurement, ResidualReader
from steering.saes.architectures import ARCHITECTURES
from steering.saes.config import Normalization, SAEMath

if TYPE_CHECKING:
    from torch import Tensor

    from steering.saes.sae import SAEWeights, SparseAutoencoder

Reconstruct = Callable[["Tensor"], "Tensor"]

GOOD_FVU = 0.5  # causes are searched only above this FVU
_GAIN = 0.6  # a change that leaves less than this share of the FVU explains the fault
_NUM_DOCUMENTS = 8
_MAX_TOKENS = 128
_UNRELATED = 0.05  # cosine of encoder column and decoder row of a feature; trained SAEs lie far above


@dataclass(frozen=True, slots=True)
class Suspect:
    """A possible fault. ``cause`` completes the sentence "Only 8% would remain unexplained ..."."""

    cause: str
    site: Site
    reconstruct: Reconstruct


@torch.inference_mode()
def find_causes(
    sae: SparseAutoencoder,
    site: Site,
    num_layers: int,
    measurement: Measurement,
    documents: Sequence[TokenisedDocument],
    reader: ResidualReader,
) -> tuple[str, ...]:
    """Return causes as sentences, the most likely first. Empty if the SAE fits, and if no change helps."""
    fvu = measurement.reconstruction.fvu
    if fvu is None or fvu < GOOD_FVU:
        return ()
    suspects = [*_other_sites(sae, site, num_layers), *_other_maths(sae, site)]
    if (norm := measurement.reconstruction.mean_norm) and sae.math.normalization == "none":
        suspects.append(_rescaled(sae, site, sae.d_in**0.5 / norm))
    found = _try(suspects, documents[:_NUM_DOCUMENTS], reader)
    helping = sorted((left, suspect.cause) for suspect, left in found if left < min(1.0, _GAIN * fvu))
    sentences = [f"Only {left:.0%} would remain unexplained {cause}." for left, cause in helping[:3]]
    return (*sentences, *_unrelated_directions(sae))


def _try(
    suspects: Sequence[Suspect], documents: Sequence[TokenisedDocument], reader: ResidualReader
) -> Iterator[tuple[Suspect, float]]:
    """Yield each suspect with its FVU."""
    meters = [ReconstructionMeter() for _ in suspects]
    sites = tuple(sorted({suspect.site for suspect in suspects}))
    sinks = {site: SinkFinder() for site in sites}
    for document in documents:
        residuals = reader.read(document.token_ids[:_MAX_TOKENS], sites)
        is_ordinary = torch.tensor(document.is_ordinary[:_MAX_TOKENS])
        ordinary = {site: sinks[site].ordinary(residuals[site], is_ordinary) for site in sites}
        for suspect, meter in zip(suspects, meters, strict=True):
            h = residuals[suspect.site][ordinary[suspect.site]]
            meter.add(h, suspect.reconstruct(h))
    for suspect, meter in zip(suspects, meters, strict=True):
        if meter.fvu is not None:
            yield suspect, meter.fvu


def _other_sites(sae: SparseAutoencoder, site: Site, num_layers: int) -> Iterator[Suspect]:
    """Yield the same SAE at every other layer, and at the other sites of its layer with the same width."""
    kinds: tuple[SiteKind, ...] = ("resid_pre", "resid_post", "mlp_raw", "mlp_out") if site.kind != "attn_out" else ()
    places = {Site(layer, site.kind) for layer in range(num_layers)} | {Site(site.layer, kind) for kind in kinds}
    for place in sorted(places - {site}):
        yield Suspect(f"at {place.label}: check the layer and site of the registration", place, _plain(sae))


def _other_maths(sae: SparseAutoencoder, site: Site) -> Iterator[Suspect]:
    """Yield the same weights with another activation, bias rule or normalisation."""
    math, weights = sae.math, sae.weights
    if math.architecture != "standard" and math.d_out is None:
        plain = replace(math, architecture="standard", k=None, rescale_acts_by_decoder_norm=False)
        other = _variant(plain, replace(weights, threshold=None, rank_scale=None))
        yield Suspect("with relu as its activation: check its architecture", site, _plain(other))
    flipped = replace(math, apply_b_dec_to_input=not math.apply_b_dec_to_input)
    rule = "subtracted from" if flipped.apply_b_dec_to_input else "left out of"
    yield Suspect(f"with b_dec {rule} the input", site, _plain(_variant(flipped, weights)))
    for normalization in get_args(Normalization):
        if normalization != math.normalization:
            other = _variant(replace(math, normalization=normalization), weights)
            yield Suspect(f"with the normalisation {normalization}: check how its input is scaled", site, _plain(other))


def _rescaled(sae: SparseAutoencoder, site: Site, factor: float) -> Suspect:
    """Return the SAE as if the factor of expected_average_only_in had not been folded in."""

    def reconstruct(h: Tensor) -> Tensor:
        return sae.decode(sae.encode(h * factor), h * factor) / factor

    return Suspect("with its input scaled to the norm sqrt(d_in): check its normalisation", site, reconstruct)


def _plain(sae: SparseAutoencoder) -> Reconstruct:
    return lambda h: sae.decode(sae.encode(h), h)


def _variant(math: SAEMath, weights: SAEWeights) -> SparseAutoencoder:
    return ARCHITECTURES[math.architecture]("", math, weights)


def _unrelated_directions(sae: SparseAutoencoder) -> Iterator[str]:
    """Yield a cause if encoder and decoder are unrelated; in trained SAEs they are similar."""
    weights = sae.weights
    alike = float(cosine_similarity(weights.encoder, weights.W_dec, dim=-1).mean())
    if abs(alike) < _UNRELATED:
        yield "Its encoder and decoder are unrelated; its weights may be transposed."
