"""Controls of a sweep: random directions and features that push as hard as the profile, and a system prompt.

The profile's edits are grouped by site, tokens and conditions. A control replaces each group by one addition whose step
is as long as that of the group's edits together, at the same site, on the same tokens and under the same conditions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from inference.steering_refs import PublishedVersion, SAESource
from steering.evaluation.arms import Arm
from steering.evaluation.params import Controls
from steering.evaluation.runner import EvaluatedVersion, Speaker
from steering.models import SAE, Feature
from steering.profiles.compilation import get_compiler
from steering.profiles.drafts import feature_target
from steering.profiles.snapshot import source_of
from steering.spec.edit import EditSpec, FeatureTarget, GateSpec, SiteTarget, VectorTarget
from steering.spec.factor import combined_pushes, largest_push, with_factor
from steering.spec.rendering import edits_to_json, fingerprint
from steering.spec.units import Scales
from steering.spec.wording import describe_edit

if TYPE_CHECKING:
    from steering.saes.sae import SparseAutoencoder

SEED = 16
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Push:
    """The step of a group of edits: its length at a site of ``width``, and an edit ``like`` those of the group."""

    like: EditSpec
    length: float
    width: int


def control_arms(subject: EvaluatedVersion, controls: Controls, factor: float, seed: int) -> Iterator[Arm]:
    """Yield the control arms at ``factor`` times the profile's strengths. Arms that cannot be built are left out: all
    of equal size if the size of the profile's edits is unknown, and random features where no SAE is registered.
    """
    pushes = pushes_of(subject, factor)
    if pushes:
        for number in range(controls.random_directions):
            rngs = [np.random.default_rng((SEED, seed, number, place)) for place in range(len(pushes))]
            edits = tuple(_random_edit(push, rng, number) for push, rng in zip(pushes, rngs, strict=True))
            yield _arm(subject, "random_direction", f"random direction {number + 1}", edits, factor)
    for number in range(controls.random_features):
        features = [_random_feature(subject, push, (SEED, seed, number, place)) for place, push in enumerate(pushes)]
        found = [feature for feature in features if feature is not None]
        if found:
            name = "random feature: " + ", ".join(str(feature) for feature, _ in found)
            saes = tuple(source_of(feature.sae) for feature, _ in found)
            yield _arm(subject, "random_feature", name, tuple(edit for _, edit in found), factor, saes)
    if controls.system_prompt:
        yield Arm("system_prompt", "system prompt", Speaker(system=controls.system_prompt))


def pushes_of(subject: EvaluatedVersion, factor: float) -> list[Push]:
    """Return the steps of the profile's edits at ``factor`` times their strength, those of unknown size left out."""
    groups: dict[str, tuple[EditSpec, list[Floats], list[float]]] = {}
    for edit in (with_factor(edit, factor) for edit in subject.edits):
        if isinstance(edit.target, SiteTarget):
            continue
        like = _conditions(subject, edit)
        _, vectors, lengths = groups.setdefault(fingerprint([like]), (like, [], []))
        direction = _direction(subject, edit)
        if edit.operation == "add":
            vectors.append(edit.raw * direction)
        elif edit.push is not None:
            lengths.append(edit.push * (like.target.scales.reference_norm or 0.0))
    pushes = []
    for like, vectors, lengths in groups.values():
        joint = float(np.linalg.norm(np.sum(vectors, axis=0))) if vectors else 0.0
        length = joint + sum(lengths)
        if length > 0:
            pushes.append(Push(like, length, _width(subject, like)))
    return pushes


def _conditions(subject: EvaluatedVersion, edit: EditSpec) -> EditSpec:
    """Return an edit with the site, tokens and gate of this one, and nothing else of it."""
    gate = edit.gate
    if edit.only_if_active and gate is None and isinstance(edit.target, FeatureTarget):
        gate = GateSpec(edit.target)
    known = edit.target.scales
    is_normalized = isinstance(edit.target, FeatureTarget) and _sae(subject, edit.target).is_normalized
    scales = Scales(None, None, known.typical_norm if is_normalized else known.reference_norm, known.typical_norm)
    return replace(
        edit,
        target=SiteTarget(edit.target.site, scales),
        operation="norm_preserving",
        strength=1.0,
        unit="raw",
        lower=None,
        gate=gate,
        only_if_active=False,
    )


def _direction(subject: EvaluatedVersion, edit: EditSpec) -> Floats:
    """Return what 1 raw adds to a residual of typical norm."""
    target = edit.target
    if isinstance(target, VectorTarget):
        return np.array(target.values, np.float64)
    assert isinstance(target, FeatureTarget), "a site has no direction"
    sae = _sae(subject, target)
    row: Floats = sae.decoder_row(target.index).double().numpy()
    return row * _rescaling(target.scales, is_normalized=sae.is_normalized)


def _sae(subject: EvaluatedVersion, target: FeatureTarget) -> SparseAutoencoder:
    return get_compiler().sae(subject.source(target.sae.checksum))


def _rescaling(scales: Scales, *, is_normalized: bool) -> float:
    """Return by what an SAE that normalises its input multiplies a step on a residual of typical norm."""
    if not is_normalized or not scales.typical_norm or not scales.reference_norm:
        return 1.0
    return scales.typical_norm / scales.reference_norm


def _width(subject: EvaluatedVersion, like: EditSpec) -> int:
    targets = (edit.target for edit in subject.edits if edit.target.site == like.target.site)
    target = next(target for target in targets if not isinstance(target, SiteTarget))
    return len(target.values) if isinstance(target, VectorTarget) else target.sae.d_in


def _random_edit(push: Push, rng: np.random.Generator, number: int) -> EditSpec:
    """Return the addition of a random direction, uniform over all directions, as long as the push."""
    values = rng.standard_normal(push.width)
    values *= push.length / np.linalg.norm(values)
    scales = replace(push.like.target.scales, direction_norm=push.length)
    target = VectorTarget(push.like.target.site, tuple(values.tolist()), scales, f"random direction {number + 1}")
    return replace(push.like, target=target, operation="add", strength=1.0, unit="raw")


def _random_feature(subject: EvaluatedVersion, push: Push, seed: Sequence[int]) -> tuple[Feature, EditSpec] | None:
    """Return a random live feature at the site, as an addition as long as the push; None without an SAE there."""
    site, edited = push.like.target.site, {e.target.index for e in subject.edits if isinstance(e.target, FeatureTarget)}
    names = {edit.target.sae.checksum for edit in subject.edits if isinstance(edit.target, FeatureTarget)}
    saes = SAE.objects.filter(model__name=subject.model, layer=site.layer, site=site.kind)
    sae = saes.filter(checksum__in=names).order_by("pk").first() or saes.order_by("pk").first()
    if sae is None:
        return None
    live = sae.features.filter(decoder_norm__gt=0, density__gt=0).exclude(index__in=edited).order_by("index")
    if not (count := live.count()):
        return None
    feature = live.select_related("sae")[int(np.random.default_rng(seed).integers(count))]
    target = feature_target(feature)
    step = (feature.decoder_norm or 0.0) * _rescaling(target.scales, is_normalized=sae.normalization != "none")
    edit = replace(push.like, target=target, operation="add", strength=push.length / step, unit="raw")
    return feature, edit


def _arm(
    subject: EvaluatedVersion,
    kind: Literal["random_direction", "random_feature"],
    name: str,
    edits: tuple[EditSpec, ...],
    factor: float,
    saes: tuple[SAESource, ...] = (),
) -> Arm:
    edits += tuple(edit for edit in subject.edits if isinstance(edit.target, SiteTarget))
    sources = {source.checksum: source for source in (*subject.published.saes, *saes)}
    needed = sorted({identity.checksum for edit in edits for identity in edit.saes})
    version = PublishedVersion(
        name, 0, fingerprint(edits), edits_to_json(edits), tuple(sources[checksum] for checksum in needed)
    )
    pushes = {str(site): push for site, push in combined_pushes(edits).items()}
    return Arm(
        kind, name, Speaker(version), factor, [describe_edit(edit) for edit in edits], largest_push(edits), pushes
    )
