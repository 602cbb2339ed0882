"""Registered SAEs with loaded weights, for requests that encode residuals."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from inference.interventions import Site
from inference.steering_refs import SAERef, SAESource
from steering.errors import SAEChoiceError, UnknownSAEError
from steering.models import SAE, Feature
from steering.profiles.compilation import get_compiler
from steering.profiles.snapshot import source_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from steering.saes.sae import SparseAutoencoder

MAX_NAMED = 5


@dataclass(frozen=True, slots=True)
class LoadedSAE:
    """A registered SAE with its weights in memory."""

    pk: int
    name: str
    site: Site
    encoder: SparseAutoencoder
    source: SAESource

    @property
    def read_site(self) -> Site:
        """Where it reads: its own site, or of a transcoder one before the MLP."""
        return self.encoder.read_site(self.site)

    @property
    def ref(self) -> SAERef:
        """The SAE's identity in captures."""
        return SAERef(self.source, self.encoder.d_sae)

    def decoder_norms(self) -> NDArray[np.float32]:
        """Return the norms of the decoder rows ``[d_sae]``."""
        norms: NDArray[np.float32] = self.encoder.decoder_norms().numpy()
        return norms


def load_registered_sae(row: SAE) -> LoadedSAE:
    """Load an SAE; slow if it is not cached.

    Raise SAEUnavailableError if the weights are missing or changed.
    """
    source = source_of(row)
    encoder = get_compiler().load_reader(source)
    return LoadedSAE(row.pk, row.name, Site(row.layer, row.site), encoder, source)  # type: ignore[arg-type]  # the row's choices


def find_loaded_sae(model: str, name: str | None) -> LoadedSAE:
    """Return the SAE of a model by name, or its only one. ``model`` is the registered name of the model."""
    rows = SAE.objects.filter(model__name=model).order_by("name")
    if name is not None and "\0" in name:
        rows = rows.none()
    elif name is not None:
        rows = rows.filter(name=name)
    found = list(rows[: MAX_NAMED + 1])
    if len(found) == 1:
        return load_registered_sae(found[0])
    if name is not None:
        raise UnknownSAEError(f"The model `{model}` has no SAE `{name[:100]}`.")
    if not found:
        raise SAEChoiceError(f"The model `{model}` has no SAE that can read activations.")
    some = ", ".join(row.name for row in found[:MAX_NAMED])
    raise SAEChoiceError(f"The model `{model}` has several SAEs; set `sae` to one of them, for example {some}.")


def labels_of(sae: int, indices: Iterable[int]) -> dict[int, str]:
    """Return known labels by index; ``sae`` is a primary key."""
    rows = Feature.objects.filter(sae_id=sae, index__in=set(indices)).exclude(label="")
    return dict(rows.values_list("index", "label"))
