"""Look-ups of features and SAEs for API requests: search by label, and details by SAE and index."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from django.db import close_old_connections, connection
from django.db.models import F

from inference.files.sources import ModelSource
from inference.steering_refs import SAESource
from steering.errors import EffectNotMeasuredError, SAENotMeasuredError, SteeringError, UnknownSAEError
from steering.features.explanations import by_votes
from steering.features.labels import FeatureExample
from steering.features.logit_lens import LensBusyError, LensTarget, LensUnavailableError, LogitLens, get_lens_worker
from steering.features.neighbours import CofiringFeatures, NeighbourFeature, find_cofiring, find_neighbours
from steering.features.ranked_search import FeatureSearch, Sort, search_features
from steering.features.semantic_search import LabelsNotEmbeddedError, QueryEmbedding
from steering.measuring.quantiles import ActivationQuantiles
from steering.models import SAE, Feature, FeatureEffect
from steering.sae_registry.loaded_sae import LoadedSAE, find_loaded_sae, labels_of

__all__ = ["FeatureCatalog", "LabelsNotEmbeddedError", "LensBusyError", "LensUnavailableError", "QueryEmbedding"]

T = TypeVar("T")
_MAX_CONCURRENT = 4  # database connections for look-ups


class FeatureNotFoundError(SteeringError):
    status = 404
    code = "feature_not_found"
    param = "index"


@dataclass(frozen=True, slots=True)
class FeatureRecord:
    """A row of :class:`steering.models.Feature`. ``density`` is a share of tokens, 0 to 1.

    ``relevance`` is that of a search; ``steers_well`` is None where the effect was not measured.
    """

    sae: str
    model: str
    index: int
    label: str
    description: str
    source: str
    max_activation: float | None
    density: float | None
    top_tokens: tuple[str, ...]
    output_tokens: tuple[tuple[str, float], ...] = ()
    label_score: float | None = None
    relevance: float | None = None
    steers_well: float | None = None


@dataclass(frozen=True, slots=True)
class SAERecord:
    """A row of :class:`steering.models.SAE`. ``model`` is the registered name of its model."""

    pk: int
    name: str
    model: str
    layer: int
    site: str
    d_sae: int
    files: SAESource
    model_files: ModelSource


@dataclass(frozen=True, slots=True)
class Histogram:
    """A histogram: ``counts[i]`` activations lie in ``(i * width, (i + 1) * width]``."""

    width: float
    counts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ExampleBand:
    """Examples whose largest activation is above ``low`` and at most ``high`` times that of the feature.

    ``num_texts``: how many texts of the corpus are in the band.
    """

    low: float
    high: float
    num_texts: int
    examples: tuple[FeatureExample, ...]


@dataclass(frozen=True, slots=True)
class FeatureDetail:
    """A feature with its examples and statistics.

    ``max_activation_source`` is "import", "measured" or empty, ``examples_source`` the corpus or "imported".
    ``histogram``, ``quantiles`` and ``bands`` were measured on ``corpus``. ``explanations`` are texts beside the label
    with their sources, those with most votes first.
    """

    feature: FeatureRecord
    decoder_norm: float | None
    examples: tuple[FeatureExample, ...]
    max_activation_source: str = ""
    examples_source: str = ""
    histogram: Histogram | None = None
    quantiles: ActivationQuantiles | None = None
    corpus: str = ""
    bands: tuple[ExampleBand, ...] = ()
    explanations: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class EffectRecord:
    """A row of :class:`steering.models.FeatureEffect`.

    ``curve`` has pairs of a raw strength and its divergence; ``samples`` have a prompt, and answers before and after.
    """

    strength: float
    strength_in_max_act: float | None
    kl: float
    push: float
    is_capped: bool
    output_score: float | None
    base_output_score: float | None
    steered_activation: float | None
    base_activation: float | None
    fluency: float | None
    steers_well: float
    curve: tuple[tuple[float, float], ...]
    samples: tuple[tuple[str, str, str], ...]
    measured_at: str


@dataclass(frozen=True, slots=True)
class FeatureQuery:
    """A search among the features of ``models``; ``saes`` restricts it to SAEs of these names.

    With ``meaning`` (the query embedded by a registered model) or ``by_tokens`` (by the token embeddings of the SAE's
    own model), labels with a similar meaning are found too.
    """

    text: str
    models: frozenset[str]
    saes: frozenset[str] | None
    limit: int
    offset: int = 0
    meaning: QueryEmbedding | None = None
    sort: Sort = "relevance"
    by_tokens: bool = False


class FeatureCatalog:
    """Async look-ups, each on a thread with its own database connection, at most four at once."""

    def __init__(self) -> None:
        self._turns = asyncio.Semaphore(_MAX_CONCURRENT)

    async def search(self, query: FeatureQuery) -> tuple[FeatureRecord, ...]:
        """Return matching features, the best first."""
        return await self._run(lambda: _search(query))

    async def sae(self, name: str) -> SAERecord:
        """Return the SAE. Raise UnknownSAEError for an unknown name."""
        return await self._run(lambda: _sae(name))

    async def saes(self, model: str) -> tuple[SAERecord, ...]:
        """Return the SAEs of a model, given its registered name, by name."""
        return await self._run(lambda: _saes(model))

    async def records(self, sae: SAERecord, indices: Iterable[int]) -> dict[int, FeatureRecord]:
        """Return the known features among ``indices``, by index."""
        return await self._run(lambda: _records(sae, indices))

    async def detail(self, sae: SAERecord, index: int) -> FeatureDetail:
        """Return one feature. Raise FeatureNotFoundError if the index is out of range."""
        return await self._run(lambda: _detail(sae, index))

    async def neighbours(self, sae: SAERecord, index: int, count: int) -> list[NeighbourFeature]:
        """Return features with similar decoder rows, see :func:`steering.features.neighbours.find_neighbours`."""
        return await self._run(lambda: _neighbours(sae, index, count))

    async def cofiring(self, sae: SAERecord, index: int) -> CofiringFeatures:
        """Return features that are active on the same tokens. Raise FeatureNotFoundError or SAENotMeasuredError."""
        return await self._run(lambda: _cofiring(sae, index))

    async def effect(self, sae: SAERecord, index: int) -> EffectRecord:
        """Return the measured effect of a feature. Raise FeatureNotFoundError or EffectNotMeasuredError."""
        return await self._run(lambda: _effect(sae, index))

    async def readable(self, model: str, name: str | None) -> LoadedSAE:
        """Return an SAE with its weights, see :func:`steering.sae_registry.loaded_sae.find_loaded_sae`."""
        return await self._run(lambda: find_loaded_sae(model, name))

    async def labels(self, sae: int, indices: Iterable[int]) -> dict[int, str]:
        """Return known labels by index, see :func:`steering.sae_registry.loaded_sae.labels_of`."""
        return await self._run(lambda: labels_of(sae, indices))

    async def lens(self, sae: SAERecord, index: int) -> LogitLens:
        """Return the logit lens. Raise LensUnavailableError, or LensBusyError if too many requests wait."""
        is_in_residual = sae.site not in SAE.OUTSIDE_RESIDUAL
        return await get_lens_worker().look(LensTarget(sae.model_files, sae.files, index, is_in_residual))

    async def _run(self, read: Callable[[], T]) -> T:
        async with self._turns:
            return await asyncio.to_thread(_with_own_connection, read)


def _search(query: FeatureQuery) -> tuple[FeatureRecord, ...]:
    rows = Feature.objects.filter(sae__model__name__in=query.models).select_related("sae__model")
    if query.saes is not None:
        rows = rows.filter(sae__name__in=query.saes)
    search = FeatureSearch(query.text, query.limit, query.offset, query.sort, query.meaning, query.by_tokens)
    found = search_features(rows, search)
    return tuple(_record(one.feature, relevance=one.relevance, steers_well=one.steers_well) for one in found)


def _sae(name: str) -> SAERecord:
    row = SAE.objects.filter(name=name).select_related("model").first() if "\0" not in name else None
    if row is None:
        raise UnknownSAEError(f"The SAE `{name[:100]}` does not exist on this server.")
    return _sae_record(row)


def _saes(model: str) -> tuple[SAERecord, ...]:
    rows = SAE.objects.filter(model__name=model).select_related("model").order_by("name")
    return tuple(_sae_record(row) for row in rows)


def _sae_record(row: SAE) -> SAERecord:
    files = SAESource(row.name, row.checksum, row.source, row.revision, row.subfolder)
    return SAERecord(row.pk, row.name, row.model.name, row.layer, row.site, row.d_sae, files, row.model.model_source)


def _records(sae: SAERecord, indices: Iterable[int]) -> dict[int, FeatureRecord]:
    rows = Feature.objects.filter(sae_id=sae.pk, index__in=set(indices)).select_related("sae__model")
    rows = rows.annotate(steers_well=F("effect__steers_well")).defer("examples", "traffic_examples", "histogram")
    return {row.index: _record(row, steers_well=row.steers_well) for row in rows}


def _detail(sae: SAERecord, index: int) -> FeatureDetail:
    rows = Feature.objects.filter(sae_id=sae.pk, index=index).annotate(steers_well=F("effect__steers_well"))
    row = rows.select_related("sae__model").first()
    if row is None:
        raise _not_found(sae, index)
    return FeatureDetail(
        _record(row, steers_well=row.steers_well),
        row.decoder_norm,
        tuple(_examples(row.examples)),
        row.max_activation_source,
        row.examples_source,
        Histogram(row.histogram["width"], tuple(row.histogram["counts"])) if row.histogram else None,
        row.quantiles,
        row.sae.corpus,
        tuple(_band(band) for band in row.example_bands),
        tuple(by_votes(row).values_list("text", "source")),
    )


def _neighbours(sae: SAERecord, index: int, count: int) -> list[NeighbourFeature]:
    if index >= sae.d_sae:
        raise _not_found(sae, index)
    return find_neighbours(sae.pk, sae.files, index, count)


def _cofiring(sae: SAERecord, index: int) -> CofiringFeatures:
    row = Feature.objects.filter(sae_id=sae.pk, index=index).only("sae_id", "index", "cofiring").first()
    if row is None:
        raise _not_found(sae, index)
    if (found := find_cofiring(row)) is None:
        raise SAENotMeasuredError(
            f"The features that are active together were not measured for `{sae.name}`; measure the SAE again."
        )
    return found


def _effect(sae: SAERecord, index: int) -> EffectRecord:
    if index >= sae.d_sae:
        raise _not_found(sae, index)
    row = FeatureEffect.objects.filter(sae_id=sae.pk, feature__index=index).select_related("feature").first()
    if row is None:
        raise EffectNotMeasuredError(f"The effect of feature {index} of `{sae.name}` was not measured.")
    return EffectRecord(
        strength=row.strength,
        strength_in_max_act=row.in_max_act,
        kl=row.kl,
        push=row.push,
        is_capped=row.is_capped,
        output_score=row.output_score,
        base_output_score=row.base_output_score,
        steered_activation=row.steered_activation,
        base_activation=row.base_activation,
        fluency=row.fluency,
        steers_well=row.steers_well,
        curve=tuple((point[0], point[1]) for point in row.curve),
        samples=tuple((one["prompt"], one["before"], one["after"]) for one in row.samples),
        measured_at=row.measured_at.isoformat(),
    )


def _not_found(sae: SAERecord, index: int) -> FeatureNotFoundError:
    return FeatureNotFoundError(f"The SAE `{sae.name}` has features 0 to {sae.d_sae - 1}, got {index}.")


def _record(row: Feature, *, relevance: float | None = None, steers_well: float | None = None) -> FeatureRecord:
    return FeatureRecord(
        sae=row.sae.name,
        model=row.sae.model.name,
        index=row.index,
        label=row.label,
        description=row.description,
        source=row.label_source,
        max_activation=row.max_activation,
        density=row.density,
        top_tokens=tuple(row.top_tokens),
        output_tokens=tuple((text, part) for text, part in row.output_tokens),
        label_score=row.label_score,
        relevance=relevance,
        steers_well=steers_well,
    )


def _examples(stored: Sequence[Mapping[str, Any]]) -> list[FeatureExample]:
    return [FeatureExample(tuple(item["tokens"]), tuple(item["values"])) for item in stored]


def _band(stored: Mapping[str, Any]) -> ExampleBand:
    return ExampleBand(stored["low"], stored["high"], stored["num_texts"], tuple(_examples(stored["examples"])))


def _with_own_connection(read: Callable[[], T]) -> T:
    close_old_connections()
    try:
        return read()
    finally:
        connection.close()
