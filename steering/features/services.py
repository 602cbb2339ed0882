"""Writes of features: labelling one, and adding one to a draft."""

from __future__ import annotations

from django.contrib.auth.models import User
from django.db import transaction

from audit.record import record_saved, stored_fields
from steering.errors import InvalidProfileError
from steering.models import Feature, FeatureExplanation, SteeringProfile
from steering.profiles.drafts import draft_edits, draft_words, feature_target, record_draft, rows_of
from steering.profiles.snapshot import registered_saes
from steering.services import create_profile
from steering.spec.checks import check_conflicts
from steering.spec.edit import EditSpec, Operation
from steering.spec.errors import InvalidSpecError
from steering.spec.units import Unit


def default_unit(feature: Feature) -> Unit:
    return "max_act" if feature.max_activation else "raw"


@transaction.atomic
def steer_with_feature(
    *,
    feature: Feature,
    profile: SteeringProfile | None = None,
    new_name: str = "",
    operation: Operation = "add",
    strength: float = 1.0,
    unit: Unit | None = None,
    owner: User | None = None,
) -> SteeringProfile:
    """Add the feature to the draft of a profile, or to a new profile of its model.

    The unit is the max activation by default, or raw if that number is not known. Raise InvalidProfileError for a
    profile of another model and for contradictory edits, and ValidationError for a name that is taken.
    """
    if profile is None:
        profile = create_profile(name=new_name, model=feature.sae.model, owner=owner)
    elif profile.model_id != feature.sae.model_id:
        raise InvalidProfileError(f"{feature} belongs to the model {feature.sae.model}, not to {profile.model}.")
    before = draft_words(profile)
    try:
        edit = EditSpec(feature_target(feature), operation, strength, unit or default_unit(feature))
        for row in rows_of(profile, [edit]):
            row.save()
        check_conflicts(draft_edits(profile))
    except InvalidSpecError as error:
        raise InvalidProfileError.from_spec(error) from error
    profile.save(update_fields=["updated_at"])
    record_draft(profile=profile, before=before, user=owner)
    return profile


@transaction.atomic
def label_feature(*, feature: Feature, user: User | None = None, score: float | None = None) -> Feature:
    """Save the label and the description of a feature. ``score`` is that of a new label.

    The label that it replaces becomes an explanation.
    """
    before = stored_fields(feature)
    replaced = Feature(**before) if before else None
    if replaced is None or replaced.label != feature.label:
        feature.label_score = score
    if replaced is not None:
        keep_label(replaced, feature.label)
    feature.save(update_fields=["label", "description", "label_source", "label_score"])
    record_saved(feature, before=before, user=user, model=feature.sae.model.name)
    registered_saes.invalidate()
    return feature


def keep_label(feature: Feature, label: str) -> None:
    """Keep a feature's label as an explanation, where another ``label`` replaces it and is no explanation any more."""
    if label == feature.label:
        return
    feature.explanations.filter(text=label).delete()
    if feature.label:
        FeatureExplanation.objects.bulk_create([FeatureExplanation.of_label(feature)], ignore_conflicts=True)
