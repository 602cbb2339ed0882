"""Measure a registered SAE on a corpus and save the results."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any, cast

from django.db import transaction
from django.utils import timezone

from inference.interventions import Site, SiteKind
from steering.corpora.corpus import DEFAULT_TOKENS, Corpus, tokenise
from steering.features.label_import import IMPORTED, example_json
from steering.features.labels import FeatureExample, top_tokens
from steering.features.traffic_examples import lock_examples, store_traffic_examples
from steering.models import SAE, Feature
from steering.profiles.compilation import get_compiler
from steering.profiles.snapshot import registered_saes, source_of

if TYPE_CHECKING:
    from inference.text.model_text import ModelText
    from steering.measuring.accumulators import Excerpt
    from steering.measuring.document import TokenisedDocument
    from steering.measuring.loss import LossReader, SplicedLoss
    from steering.measuring.measurement import ActivationBand, Cofiring, FeatureFacts, Measurement, Progress

_BATCH = 1000
_FAR = 4.0  # imported maxima that differ from measured ones by more than this factor are probably of another SAE
_ENOUGH = 20  # the number of features needed for that warning
_WRITTEN = (
    "max_activation",
    "max_activation_source",
    "density",
    "top_tokens",
    "examples",
    "examples_source",
    "histogram",
    "example_bands",
    "cofiring",
)


@dataclass(frozen=True, slots=True)
class MeasureParams:
    """The corpus and its size. With ``replaces_imports``, measured numbers and examples replace imported ones."""

    corpus: Corpus
    num_tokens: int = DEFAULT_TOKENS
    replaces_imports: bool = False


@dataclass(frozen=True, slots=True)
class MeasuredSAE:
    """The result of :func:`measure`, saved by :func:`save_check`."""

    params: MeasureParams
    measurement: Measurement
    documents: Sequence[TokenisedDocument]
    text: ModelText
    causes: tuple[str, ...]
    loss: SplicedLoss | None

    def examples(self, facts: FeatureFacts) -> tuple[FeatureExample, ...]:
        return tuple(map(self.example, facts.excerpts))

    def example(self, excerpt: Excerpt) -> FeatureExample:
        return FeatureExample(
            tuple(self._texts(excerpt.document, excerpt.start, len(excerpt.values))),
            tuple(round(value, 4) for value in excerpt.values),
        )

    def examples_of(self, index: int) -> tuple[FeatureExample, ...]:
        return self.examples(self.measurement.feature(index))

    def _texts(self, document: int, start: int, length: int) -> Iterator[str]:
        for token_id in self.documents[document].token_ids[start : start + length]:
            yield self.text.token_bytes(token_id).decode("utf-8", "replace").replace("\0", "�")


def check_sae(*, sae: SAE, reader: LossReader, params: MeasureParams, progress: Progress | None = None) -> SAE:
    """Measure an SAE and save the results. Raise InvalidSAEError, CorpusError or SourceError."""
    return save_check(sae=sae, checked=measure(sae, reader, params, progress))


def measure(sae: SAE, reader: LossReader, params: MeasureParams, progress: Progress | None = None) -> MeasuredSAE:
    """Measure an SAE without using the database. Slow."""
    from steering.measuring.diagnosis import find_causes  # imports torch
    from steering.measuring.loss import measure_loss
    from steering.measuring.measurement import measure_sae

    report: Progress = progress or (lambda done, total: None)
    source = source_of(sae)
    weights = get_compiler().sae(source)
    site = Site(sae.layer, cast("SiteKind", sae.site))
    documents = tokenise(params.corpus, reader.text, params.num_tokens)
    measurement = measure_sae(weights, site, documents, reader, report)
    _ = measurement.cofiring  # computed here, outside the transaction that stores it
    causes = find_causes(weights, site, reader.num_layers, measurement, documents, reader)
    num = len(documents)
    loss = measure_loss(weights, source, site, documents, measurement, reader, lambda done, total: report(num, num))
    return MeasuredSAE(params, measurement, documents, reader.text, causes, loss)


@transaction.atomic
def save_check(*, sae: SAE, checked: MeasuredSAE) -> SAE:
    """Save the figures of the SAE and its features. Imported numbers stay unless ``replaces_imports`` is set."""
    sae = SAE.objects.select_for_update().get(pk=sae.pk)
    if checked.params.corpus.is_private:
        store_traffic_examples(sae=sae, corpus=checked.params.corpus, examples=checked.examples_of)
        return sae
    lock_examples()
    ratios: list[float] = []
    for rows in _batches(sae):
        for row in rows:
            facts = checked.measurement.feature(row.index)
            if row.max_activation_source == Feature.Source.IMPORT and row.max_activation and facts.max_activation:
                ratios.append(row.max_activation / facts.max_activation)
            _fill(row, facts, checked)
        Feature.objects.bulk_create(rows, update_conflicts=True, unique_fields=["sae", "index"], update_fields=_WRITTEN)
    measurement = checked.measurement
    sae.l0, sae.fvu = measurement.l0, measurement.reconstruction.fvu
    sae.mean_resid_norm, sae.dead_share = measurement.reconstruction.mean_norm, measurement.dead_share
    sae.median_resid_norm, sae.measured_sinks = measurement.sinks.median, measurement.sinks.num_sinks
    loss = checked.loss
    sae.model_loss, sae.spliced_loss = (loss.model, loss.spliced) if loss else (None, None)
    sae.zero_loss, sae.mean_loss = (loss.zero, loss.mean) if loss else (None, None)
    sae.measured_at, sae.measured_tokens = timezone.now(), measurement.num_tokens
    sae.corpus, sae.causes = checked.params.corpus.label, [*checked.causes, *_import_doubts(ratios)]
    sae.save()
    registered_saes.invalidate()
    return sae


def _batches(sae: SAE) -> Iterator[list[Feature]]:
    for first in range(0, sae.d_sae, _BATCH):
        rows = Feature.objects.filter(sae=sae, index__gte=first, index__lt=first + _BATCH).order_by("index")
        yield [_copy(row) for row in rows.only("index", "sae_id", *_WRITTEN)]


def _copy(row: Feature) -> Feature:
    """Return a row for an upsert, with only the columns that are written."""
    return Feature(sae_id=row.sae_id, index=row.index, **{name: getattr(row, name) for name in _WRITTEN})


def _fill(row: Feature, facts: FeatureFacts, checked: MeasuredSAE) -> None:
    replaces = checked.params.replaces_imports
    if replaces or row.max_activation_source != Feature.Source.IMPORT:
        row.max_activation, row.density = facts.max_activation or None, facts.density
        row.max_activation_source = Feature.Source.MEASURED
    row.example_bands = [band_json(band, map(checked.example, band.excerpts)) for band in facts.bands]
    row.cofiring = cofiring_json(checked.measurement.cofiring, row.index)
    row.histogram = {"width": facts.histogram.width, "counts": list(facts.histogram.counts)}
    if replaces or row.examples_source != IMPORTED:
        examples = checked.examples(facts)
        row.examples, row.examples_source = [example_json(one) for one in examples], checked.params.corpus.label
        row.top_tokens = row.top_tokens or list(top_tokens(examples))


def band_json(band: ActivationBand, examples: Iterable[FeatureExample]) -> dict[str, Any]:
    rows = [example_json(one) for one in examples]
    return {"low": band.low, "high": band.high, "num_texts": band.num_documents, "examples": rows}


def cofiring_json(cofiring: Cofiring, index: int) -> dict[str, Any]:
    rows = [[one.index, round(one.phi, 4), one.tokens] for one in cofiring.features[index]]
    return {"num_tokens": cofiring.num_tokens, "features": rows}


def _import_doubts(ratios: Sequence[float]) -> Iterator[str]:
    """Yield a warning if imported max activations have another scale than the measured ones."""
    if len(ratios) < _ENOUGH:
        return
    typical = median(ratios)
    if not 1 / _FAR < typical < _FAR:
        yield (
            f"The imported max activations are typically {typical:.2g} times the measured ones, so they may be for "
            'another SAE or scale. Measure with "Replace imported statistics and examples" to use the measured ones.'
        )
