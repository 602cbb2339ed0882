"""The scores on a request's page, and the view that their form is sent to."""

from __future__ import annotations

from typing import Any, cast
from urllib.parse import urlencode

from django.contrib import admin, messages
from django.contrib.admin.utils import quote, unquote
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied, ValidationError
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect, QueryDict
from django.urls import path, reverse

from openai_api.models import RequestLog, RequestScore
from openai_api.request_log.access import may_see_text
from openai_api.request_log.pages.detail import neighbours
from openai_api.request_log.pages.search import FILTERS, LIST
from openai_api.request_log.scores import NOT_A_SCORE, VIEW, delete_score, may_score, save_score
from openai_api.request_log.search import NOT_SCORED
from openai_api.request_log.search_form import SearchForm

CHANGE = "admin:openai_api_requestlog_change"


def scores_context(user: Any, row: RequestLog) -> dict[str, Any]:
    """Return the scores of a request for its page; nothing without permission."""
    if not user.has_perm(VIEW):
        return {}
    scores = list(RequestScore.objects.filter(request=row))
    own = next((score for score in scores if score.user_id == user.pk and not score.name), None)
    return {"scores": scores, "own_score": own, "sees_scores": True, "may_score": may_score(user)}


class ScorePages(admin.ModelAdmin):  # type: ignore[type-arg]  # it takes none at run time
    """The view that the form of a request's page is sent to."""

    def get_urls(self) -> list[Any]:
        view = self.admin_site.admin_view(self.score_view)
        return [path("<path:object_id>/score/", view, name="openai_api_requestlog_score"), *super().get_urls()]

    def score_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Save the score of the user; an empty value deletes it."""
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        row = (
            RequestLog.objects.only("pk", "model", "created_at").filter(pk=unquote(object_id).replace("\0", "")).first()
        )
        if row is None:
            raise Http404
        user, note = cast("User", request.user), request.POST.get("note", "")
        if not may_score(user) or (note and not may_see_text(user)):
            raise PermissionDenied
        value, name = request.POST.get("value", "").strip(), request.POST.get("name", "")
        try:
            if value:
                save_score(row=row, value=_number(value), note=note, user=user, name=name)
            else:
                delete_score(row=row, user=user, name=name)
        except ValidationError as error:
            self.message_user(request, f"The score was not saved. {' '.join(error.messages)}", messages.ERROR)
        else:
            self.message_user(request, "Saved the score." if value else "Deleted the score.", messages.SUCCESS)
        return HttpResponseRedirect(self._following(request, row))

    def _following(self, request: HttpRequest, row: RequestLog) -> str:
        """Return the address to go on at: the request, or in a search for requests without a score the next one."""
        conditions = request.POST.get("conditions", "")
        kept = f"?{urlencode({FILTERS: conditions})}" if conditions else ""
        form = SearchForm(QueryDict(conditions), sees_text=may_see_text(request.user))
        if not form.is_valid() or form.cleaned_data["score"] != NOT_SCORED:
            return f"{reverse(CHANGE, args=[quote(row.pk)])}{kept}"
        newer, older = neighbours(row, form.search().rows())
        following = older or newer
        if following is None:
            self.message_user(request, "Every request of this search has a score.", messages.SUCCESS)
            return f"{reverse(LIST)}?{urlencode(form.conditions)}"
        return f"{reverse(CHANGE, args=[quote(following)])}{kept}"


def _number(value: str) -> float:
    try:
        return float(value)
    except ValueError as error:
        raise ValidationError(NOT_A_SCORE) from error
