"""Read and check an SAE before it is registered, and describe it; does not write to the database."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

from inference.interventions import Site, SiteKind
from inference.models import LanguageModel
from inference.services import absolute_source
from steering.errors import IncompatibleSAEError
from steering.features.label_import import fill_feature
from steering.features.labels import FeatureLabel
from steering.model_shape import read_model_shape
from steering.models import SAE, Feature
from steering.sae_registry.files import locate_sae
from steering.sae_registry.hub import SAEListing
from steering.saes.config import SAEConfig
from steering.saes.errors import InvalidSAEError
from steering.saes.files import read_json_object
from steering.saes.place import SAEPlace
from steering.saes.preview import preview_sae, recognise


@dataclass(frozen=True, slots=True)
class SAELocation:
    """A local directory or Hub repository, and the subfolder of the SAE."""

    source: str
    revision: str = ""
    subfolder: str = ""

    def locate(self, *, with_weights: bool) -> SAEPlace:
        """Return the place on this machine, see :func:`steering.sae_registry.files.locate_sae`."""
        return locate_sae(self.source, revision=self.revision, subfolder=self.subfolder, with_weights=with_weights)


@dataclass(frozen=True, slots=True)
class SAEHealth:
    """Figures measured on a corpus; None if unknown."""

    l0: float | None = None
    fvu: float | None = None
    mean_resid_norm: float | None = None
    dead_share: float | None = None
    model_loss: float | None = None
    spliced_loss: float | None = None
    zero_loss: float | None = None
    mean_loss: float | None = None

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if value is not None and (not math.isfinite(value) or value < 0):
                raise InvalidSAEError(f"{name} must be a finite number of at least 0, got {value!r}.")


@dataclass(frozen=True, slots=True)
class SAECandidate:
    """An SAE whose configuration fits the model at ``site``; its weights are not read yet.

    ``doubts`` are warnings that the user should check.
    """

    location: SAELocation
    config: SAEConfig
    site: Site
    doubts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PreparedSAE:
    """A checked SAE that is not saved yet, with one decoder norm per feature."""

    sae: SAE
    decoder_norms: Sequence[float]
    labels: Sequence[FeatureLabel]

    def features(self) -> Iterator[Feature]:
        """Yield unsaved rows of all features. Save the SAE before them."""
        by_index: Mapping[int, FeatureLabel] = {label.index: label for label in self.labels}
        for index, norm in enumerate(self.decoder_norms):
            feature = Feature(sae=self.sae, index=index, decoder_norm=norm)
            yield fill_feature(feature, by_index.get(index, FeatureLabel(index)))


def inspect_sae(
    location: SAELocation, model: LanguageModel, *, layer: int | None = None, site: SiteKind | None = None
) -> SAECandidate:
    """Read the configurations of SAE and model. ``layer`` and ``site`` override those of the SAE.

    Raise InvalidSAEError, IncompatibleSAEError or :class:`inference.files.sources.SourceError`.
    """
    config = preview_sae(location.locate(with_weights=False))
    place = _place(config, layer, site)
    shape = read_model_shape(model)
    shape.check(place, config.math.width_out)
    return SAECandidate(location, config, place, shape.doubts(config.model_name, prepends_bos=config.prepend_bos))


def prepare_sae(
    name: str,
    model: LanguageModel,
    candidate: SAECandidate,
    *,
    labels: Sequence[FeatureLabel] = (),
    health: SAEHealth | None = None,
) -> PreparedSAE:
    """Read and check the weights. Raise InvalidSAEError, or ValidationError for a duplicate name or SAE."""
    from steering.saes.loader import load_sae  # imports torch

    place = candidate.location.locate(with_weights=True)
    location = replace(candidate.location, subfolder=_own_subfolder(candidate, place))
    weights = load_sae(place)
    math = weights.math
    sae = SAE(
        name=name,
        model=model,
        source=absolute_source(location.source),
        revision=location.revision,
        subfolder=location.subfolder,
        format=candidate.config.format,
        architecture=math.architecture,
        normalization=math.normalization,
        layer=candidate.site.layer,
        site=candidate.site.kind,
        d_in=math.width_out,
        d_sae=math.d_sae,
        checksum=weights.key,
        **asdict(health or SAEHealth()),
    )
    sae.full_clean()
    return PreparedSAE(sae, weights.decoder_norms().tolist(), labels)


def _own_subfolder(candidate: SAECandidate, place: SAEPlace) -> str:
    """Return the subfolder, with the file name if the folder can hold several SAEs, so that it stays unambiguous."""
    subfolder, file = candidate.location.subfolder.rstrip("/"), candidate.config.weights_file
    if place.file or not recognise(place).is_single_file:
        return subfolder
    return f"{subfolder}/{file}" if subfolder else file


def read_health(path: Path) -> SAEHealth:
    """Read the figures of :class:`SAEHealth` from a JSON object; other fields are ignored."""
    value = read_json_object(path.parent, path.name)
    return SAEHealth(**{field.name: _optional_float(value, field.name) for field in fields(SAEHealth)})


def _place(config: SAEConfig, layer: int | None, kind: SiteKind | None) -> Site:
    if config.site is not None:
        return Site(config.site.layer if layer is None else layer, kind or config.site.kind)
    if layer is None or kind is None:
        raise IncompatibleSAEError("The SAE's configuration does not name a hook; give the layer and the site.")
    return Site(layer, kind)


def _optional_float(value: Mapping[str, object], name: str) -> float | None:
    number = value.get(name)
    if number is None:
        return None
    if isinstance(number, bool) or not isinstance(number, int | float):
        raise InvalidSAEError(f"{name} must be a number, got {number!r}.")
    return float(number)


def listing_line(found: SAEListing) -> str:
    """Return one line of a listing."""
    return f"{found.subfolder or '(top)'}  {' or '.join(found.formats)}, {found.num_bytes / 1e6:.1f} MB"


def describe(candidate: SAECandidate, model: LanguageModel) -> str:
    """Describe the configuration in one paragraph."""
    config = candidate.config
    math = config.math
    trained = f", trained on {config.model_name}" if config.model_name else ""
    normalised = f" It normalises its input ({math.normalization})." if math.normalization != "none" else ""
    reads = f" It reads {config.input_hook}." if config.input_hook else ""
    return (
        f"{config.format}: {math.architecture} with {math.d_sae} features of width {math.width_out}"
        f"{trained}. It fits {model} at {candidate.site.label}.{normalised}{reads}"
    )


def estimated_bytes(d_in: int, d_sae: int) -> int:
    """Return the size of the weights in float32: encoder, decoder, biases and thresholds."""
    return 4 * (2 * d_in * d_sae + 2 * d_sae + d_in)
