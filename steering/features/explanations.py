"""Explanations of a feature beside its label: of people, and labels that were replaced. Users vote for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django import forms
from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import F, QuerySet, Sum
from django.db.models.functions import Coalesce

from audit.record import record_deleted, record_saved
from core.ids import key_in
from steering.features.services import label_feature
from steering.models import ExplanationVote, Feature, FeatureExplanation

MAX_EXPLANATIONS = 50  # of one feature
TEXT = forms.CharField(max_length=500)  # refuses what the database would not store either
VOTES = (-1, 0, 1)


@transaction.atomic
def add_explanation(
    *, feature: Feature, text: str, user: User, source: str = "", score: float | None = None
) -> FeatureExplanation:
    """Add an explanation: the user's own with their vote for it, or that of a method, the ``source``. Raise
    ValidationError.

    One that exists already is not added again, and the label is refused.
    """
    text = TEXT.clean(text)
    Feature.objects.select_for_update().only("pk").get(pk=feature.pk)
    if text == feature.label:
        raise ValidationError("This is the label.")
    explanation = feature.explanations.filter(text=text).first()
    if explanation is None:
        if feature.explanations.count() >= MAX_EXPLANATIONS:
            raise ValidationError(f"The feature has {MAX_EXPLANATIONS} explanations already.")
        explanation = FeatureExplanation(
            feature=feature, text=text, source=source or user.get_username(), score=score, author=user
        )
        explanation.save()
        record_saved(explanation, before=None, user=user, model=feature.sae.model.name)
    if not source:
        vote(explanation=explanation, value=1, user=user)
    return explanation


@transaction.atomic
def vote(*, explanation: FeatureExplanation, value: int, user: User) -> None:
    """Set the user's vote: 1, -1, or 0 for none. Raise ValidationError."""
    if value not in VOTES:
        raise ValidationError("A vote is 1, -1 or 0.")
    FeatureExplanation.objects.select_for_update().only("pk").get(pk=explanation.pk)
    own = ExplanationVote.objects.filter(explanation=explanation, user=user)
    if not value:
        own.delete()
    elif not own.update(value=value):
        ExplanationVote.objects.create(explanation=explanation, user=user, value=value)


@transaction.atomic
def use_as_label(*, explanation: FeatureExplanation, user: User) -> Feature:
    """Make an explanation the label. The label before it becomes an explanation."""
    feature = (
        Feature.objects.select_for_update(of=("self",)).select_related("sae__model").get(pk=explanation.feature_id)
    )
    feature.label, feature.label_source = explanation.text, explanation.source
    return label_feature(feature=feature, user=user, score=explanation.score)


@transaction.atomic
def delete_explanation(*, explanation: FeatureExplanation, user: User) -> None:
    record_deleted(explanation, user=user, model=explanation.feature.sae.model.name)
    explanation.delete()


def change_explanations(feature: Feature, given: Mapping[str, str], user: User) -> None:
    """Do what a form of the feature's page says: add a text, or vote for, use or delete an explanation.

    Raise ValidationError, also for an explanation that is gone.
    """
    if "text" in given:
        add_explanation(feature=feature, text=given["text"], user=user)
        return
    explanation = feature.explanations.filter(pk=key_in(given.get("explanation", ""))).first()
    if explanation is None:
        raise ValidationError("The explanation does not exist any more.")
    match given.get("act"):
        case "up" | "down" as way:
            value = 1 if way == "up" else -1
            has_it = ExplanationVote.objects.filter(explanation=explanation, user=user, value=value).exists()
            vote(explanation=explanation, value=0 if has_it else value, user=user)
        case "use":
            use_as_label(explanation=explanation, user=user)
        case "delete":
            delete_explanation(explanation=explanation, user=user)
        case _:
            raise ValidationError("Choose what to do with the explanation.")


@dataclass(frozen=True, slots=True)
class ShownExplanation:
    """An explanation, the sum of its votes, and the user's vote."""

    row: FeatureExplanation
    num_votes: int
    own_vote: int


def by_votes(feature: Feature) -> QuerySet[Any]:
    """Return the explanations of a feature with ``num_votes``, those with most votes first."""
    rows = feature.explanations.annotate(num_votes=Coalesce(Sum("votes__value"), 0))
    return rows.order_by(F("num_votes").desc(), F("score").desc(nulls_last=True), "pk")


def explanations_of(feature: Feature, user: Any) -> list[ShownExplanation]:
    """Return the explanations of a feature as ``user`` sees them, those with most votes first."""
    votes = ExplanationVote.objects.filter(explanation__feature=feature, user=user.pk)
    own = dict(votes.values_list("explanation", "value"))
    return [ShownExplanation(row, row.num_votes, own.get(row.pk, 0)) for row in by_votes(feature)]
