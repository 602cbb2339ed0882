"""Import labels of an SAE in one transaction."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from django.db import transaction
from django.db.models import F

from audit.models import AuditEvent
from audit.record import record
from steering.features.labels import FeatureExample, FeatureLabel, LabelSet, top_tokens
from steering.models import SAE, Feature, FeatureExplanation
from steering.profiles.snapshot import registered_saes

IMPORTED = "imported"
_BATCH = 1000
_LAYER = re.compile(r"[^/]+/(\d{1,4})-")


@dataclass(frozen=True, slots=True)
class ImportReport:
    """Counts of an import. ``doubts`` are warnings that the user should check."""

    num_features: int
    num_labels: int
    num_examples: int
    doubts: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.num_features} features: {self.num_labels} labels, {self.num_examples} examples."


@transaction.atomic
def import_labels(*, sae: SAE, found: LabelSet) -> ImportReport:
    """Write labels to features. Given fields replace the old values; fields that are not given do not change.

    Labels that are replaced become explanations.
    """
    SAE.objects.select_for_update().get(pk=sae.pk)  # serialises imports
    _keep_labels(sae, {label.index: label.label for label in found.labels if label.label})
    for fields, rows in _by_given_fields(sae, found.labels).items():
        Feature.objects.bulk_create(
            rows, update_conflicts=True, unique_fields=["sae", "index"], update_fields=fields, batch_size=_BATCH
        )
    FeatureExplanation.objects.filter(feature__sae=sae, text=F("feature__label")).delete()
    report = ImportReport(
        num_features=sum(bool(given_fields(label)) for label in found.labels),
        num_labels=sum(bool(label.label) for label in found.labels),
        num_examples=sum(len(label.examples) for label in found.labels),
        doubts=tuple(_doubts(sae, found)),
    )
    registered_saes.invalidate()
    record(AuditEvent.Action.IMPORT, sae, model=sae.model.name, detail=f"labels of {report}")
    return report


def _keep_labels(sae: SAE, labels: Mapping[int, str]) -> None:
    """Keep the labels that others replace as explanations, as ``keep_label`` does for one feature."""
    labelled = Feature.objects.filter(sae=sae).exclude(label="")
    indices = list(labels) if labelled.exists() else []
    for start in range(0, len(indices), _BATCH):
        old = labelled.filter(index__in=indices[start : start + _BATCH])
        rows = old.only("index", "label", "label_source", "label_score")
        replaced = [feature for feature in rows if feature.label != labels[feature.index]]
        FeatureExplanation.objects.bulk_create(map(FeatureExplanation.of_label, replaced), ignore_conflicts=True)
        Feature.objects.filter(pk__in=[feature.pk for feature in replaced]).update(label_score=None)


def fill_feature(feature: Feature, label: FeatureLabel) -> Feature:
    """Set the fields of a feature from a label, without saving it."""
    feature.label, feature.description, feature.label_source = label.label, label.description, label.source
    feature.max_activation, feature.density = label.max_activation, label.density
    feature.max_activation_source = "" if label.max_activation is None else Feature.Source.IMPORT
    feature.top_tokens = list(label.top_tokens or top_tokens(label.examples))
    feature.examples = [example_json(example) for example in label.examples]
    feature.examples_source = IMPORTED if label.examples else ""
    return feature


def given_fields(label: FeatureLabel) -> tuple[str, ...]:
    """Return the names of the columns that the label sets. A new label also replaces the old description."""
    given = {
        "label": label.label,
        "description": label.label or label.description,
        "label_source": label.label or label.source,
        "max_activation": label.max_activation is not None,
        "max_activation_source": label.max_activation is not None,
        "density": label.density is not None,
        "top_tokens": label.top_tokens or label.examples,
        "examples": label.examples,
        "examples_source": label.examples,
    }
    return tuple(name for name, is_given in given.items() if is_given)


def _by_given_fields(sae: SAE, labels: Iterable[FeatureLabel]) -> dict[tuple[str, ...], list[Feature]]:
    groups: dict[tuple[str, ...], list[Feature]] = defaultdict(list)
    for label in labels:
        if fields := given_fields(label):
            groups[fields].append(fill_feature(Feature(sae=sae, index=label.index), label))
    return groups


def example_json(example: FeatureExample) -> dict[str, object]:
    return {"tokens": list(example.tokens), "values": list(example.values)}


def _doubts(sae: SAE, found: LabelSet) -> Iterable[str]:
    match = _LAYER.match(found.origin)
    if match is not None and int(match[1]) != sae.layer:
        yield f"The labels are for {found.origin}, but the SAE is at layer {sae.layer}. They may belong to another SAE."
    if found.num_left_out:
        yield f"{found.num_left_out} further explanations were left out, because the descriptions would be too long."
