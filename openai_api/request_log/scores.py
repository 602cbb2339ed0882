"""People's scores of logged requests: written on the request's page, shown in the list and exported."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, cast

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.utils import quote, unquote
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied, ValidationError
from django.db import transaction
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.urls import path, reverse

from audit.record import record_deleted, record_saved, stored_fields
from openai_api.models import RequestLog, RequestScore
from openai_api.request_log.access import may_see_text

VIEW, ADD = "openai_api.view_requestscore", "openai_api.add_requestscore"
NOTE = forms.CharField(max_length=1_000, required=False)  # refuses what the database would not store either
NOT_A_SCORE = "A score is a number from 0 to 1."


@transaction.atomic
def save_score(*, row: RequestLog, value: float, note: str, user: User) -> RequestScore:
    """Save or replace a user's score. Raise ValidationError. The audit trail gets no notes, which may quote texts."""
    if not 0 <= value <= 1:  # false for NaN too
        raise ValidationError(NOT_A_SCORE)
    RequestLog.objects.select_for_update().only("pk").get(pk=row.pk)
    score = RequestScore.objects.filter(request=row, user=user).first() or RequestScore(request=row, user=user)
    before = stored_fields(score)
    score.username, score.value, score.note = user.get_username(), value, NOTE.clean(note)
    score.save()
    record_saved(score, before=before, user=user, model=row.model, leave_out=("note", "updated_at"))
    return score


@transaction.atomic
def delete_score(*, row: RequestLog, user: User) -> None:
    """Delete the user's score, if there is one."""
    score = RequestScore.objects.filter(request=row, user=user).first()
    if score is not None:
        record_deleted(score, user=user, model=row.model)
        score.delete()


def mean_scores(ids: Sequence[str]) -> dict[str, float]:
    """Return the mean score of each request that has one. One query."""
    found = defaultdict(list)
    for pk, value in RequestScore.objects.filter(request__in=ids).values_list("request", "value"):
        found[pk].append(value)
    return {pk: math.fsum(values) / len(values) for pk, values in found.items()}


def exported_scores(ids: Sequence[str], *, with_notes: bool) -> dict[str, list[dict[str, Any]]]:
    """Return the scores of each request for an export. Notes may quote texts. One query."""
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for score in RequestScore.objects.filter(request__in=ids):
        exported = {"user": score.username, "value": score.value}
        found[score.request_id].append({**exported, "note": score.note} if with_notes else exported)
    return found


def scores_context(user: Any, row: RequestLog) -> dict[str, Any]:
    """Return the scores of a request for its page; nothing without permission."""
    if not user.has_perm(VIEW):
        return {}
    scores = list(RequestScore.objects.filter(request=row))
    own = next((score for score in scores if score.user_id == user.pk), None)
    return {"scores": scores, "own_score": own, "sees_scores": True, "may_score": user.has_perm(ADD)}


class ScorePages(admin.ModelAdmin):  # type: ignore[type-arg]  # it takes none at run time
    """The view that the form of a request's page is sent to."""

    def get_urls(self) -> list[Any]:
        view = self.admin_site.admin_view(self.score_view)
        return [path("<path:object_id>/score/", view, name="openai_api_requestlog_score"), *super().get_urls()]

    def score_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Save the score of the user; an empty value deletes it."""
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        row = RequestLog.objects.only("pk", "model").filter(pk=unquote(object_id).replace("\0", "")).first()
        if row is None:
            raise Http404
        user, note = cast("User", request.user), request.POST.get("note", "")
        may_score = self.has_view_permission(request) and user.has_perm(VIEW) and user.has_perm(ADD)
        if not may_score or (note and not may_see_text(user)):
            raise PermissionDenied
        value = request.POST.get("value", "").strip()
        try:
            if value:
                save_score(row=row, value=_number(value), note=note, user=user)
            else:
                delete_score(row=row, user=user)
        except ValidationError as error:
            self.message_user(request, f"The score was not saved. {' '.join(error.messages)}", messages.ERROR)
        else:
            self.message_user(request, "Saved the score." if value else "Deleted the score.", messages.SUCCESS)
        return HttpResponseRedirect(reverse("admin:openai_api_requestlog_change", args=[quote(row.pk)]))


def _number(value: str) -> float:
    try:
        return float(value)
    except ValueError as error:
        raise ValidationError(NOT_A_SCORE) from error
