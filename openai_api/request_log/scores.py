"""People's scores of logged requests: saved, shown in the list and exported."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from django import forms
from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.db import transaction

from audit.record import record_deleted, record_saved, stored_fields
from openai_api.models import RequestLog, RequestScore

VIEW, ADD = "openai_api.view_requestscore", "openai_api.add_requestscore"
NOTE = forms.CharField(max_length=1_000, required=False)  # refuses what the database would not store either
NAME = forms.CharField(max_length=60, required=False)
MAX_SCORES = 50  # of one person for a request
NOT_A_SCORE = "A score is a number from 0 to 1."


@transaction.atomic
def save_score(*, row: RequestLog, value: float, note: str, user: User, name: str = "") -> RequestScore:
    """Save or replace a user's score of a name. Raise ValidationError.

    The audit trail gets no notes, which may quote texts.
    """
    if not 0 <= value <= 1:  # false for NaN too
        raise ValidationError(NOT_A_SCORE)
    RequestLog.objects.select_for_update().only("pk").get(pk=row.pk)
    own = RequestScore.objects.filter(request=row, user=user)
    name = NAME.clean(name)
    score = own.filter(name=name).first()
    if score is None:
        if own.count() >= MAX_SCORES:
            raise ValidationError(f"You have {MAX_SCORES} scores of this request already.")
        score = RequestScore(request=row, user=user, name=name)
    before = stored_fields(score)
    score.username, score.value, score.note = user.get_username(), value, NOTE.clean(note)
    score.save()
    record_saved(score, before=before, user=user, model=row.model, leave_out=("note", "updated_at"))
    return score


@transaction.atomic
def delete_score(*, row: RequestLog, user: User, name: str = "") -> None:
    """Delete the user's score of a name, if there is one."""
    score = RequestScore.objects.filter(request=row, user=user, name=name.replace("\0", "")).first()
    if score is not None:
        record_deleted(score, user=user, model=row.model)
        score.delete()


def mean_scores(ids: Sequence[str], name: str = "") -> dict[str, float]:
    """Return the mean score of a name of each request that has one. One query."""
    found = defaultdict(list)
    for pk, value in RequestScore.objects.filter(request__in=ids, name=name).values_list("request", "value"):
        found[pk].append(value)
    return {pk: math.fsum(values) / len(values) for pk, values in found.items()}


def exported_scores(ids: Sequence[str], *, with_notes: bool) -> dict[str, list[dict[str, Any]]]:
    """Return the scores of each request for an export. Notes may quote texts. One query."""
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for score in RequestScore.objects.filter(request__in=ids):
        exported = {"user": score.username, "name": score.name, "value": score.value}
        found[score.request_id].append({**exported, "note": score.note} if with_notes else exported)
    return found


def may_score(user: Any) -> bool:
    """Return whether a user may score requests, which requires to see them and their scores."""
    return bool(user.has_perms(("openai_api.view_requestlog", VIEW, ADD)))
