"""The views that the forms of comments and saved lists are sent to, and what the pages of objects show of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from django.contrib import messages
from django.contrib.admin.utils import quote
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied, ValidationError
from django.db.models import Prefetch, QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse

from console.annotations import services
from console.annotations.services import subject_field
from console.models import Comment, SavedItem, SavedList, Subject
from console.pages import Endpoint, register_endpoint
from core.ids import key_in
from core.times import utc_text
from inference.permissions import Viewer
from openai_api.models import LogAccess, RequestLog
from openai_api.request_log.access import may_see_text, record_access
from openai_api.request_log.pages.messages import Excerpt, fetch_excerpts
from openai_api.request_log.summary import visible_text
from steering.features.admin import feature_url
from steering.models import Feature, VectorSet
from steering.visibility import visible_vector_sets

VIEW_COMMENTS, ADD_COMMENTS, DELETE_COMMENTS = (f"console.{act}_comment" for act in ("view", "add", "delete"))
VIEW_LISTS, ADD_LISTS, CHANGE_LISTS = (f"console.{act}_savedlist" for act in ("view", "add", "change"))
MAX_OFFERED = 200


def find_subject(user: Viewer, kind: str, key: str) -> Subject:
    """Return an object that the user may see. Raise Http404, also for objects of others."""
    found: Subject | None = None
    if kind == "feature" and user.has_perm("steering.view_feature"):
        found = Feature.objects.select_related("sae__model").filter(pk=key_in(key)).first()
    elif kind == "vector_set" and user.has_perm("steering.view_vectorset"):
        found = visible_vector_sets(user).select_related("model").filter(pk=key_in(key)).first()
    elif kind == "request" and user.has_perm("openai_api.view_requestlog"):
        found = RequestLog.objects.only("pk", "model").filter(pk=key[:64].replace("\0", "")).first()
    if found is None:
        raise Http404
    return found


def subject_url(subject: Subject) -> str:
    match subject:
        case Feature():
            return feature_url(subject)
        case VectorSet():
            return reverse("admin:steering_vectorset_change", args=[subject.pk])
        case RequestLog():
            return reverse("admin:openai_api_requestlog_change", args=[quote(subject.pk)])


def may_read_notes(user: Viewer, subject: Subject) -> bool:
    """Return whether the user may see what people wrote about an object. Of a request, it may quote texts."""
    return not isinstance(subject, RequestLog) or may_see_text(user)


def comments_context(user: Viewer, subject: Subject) -> dict[str, Any]:
    """Return what an object's page shows of its comments; nothing without permission."""
    if not (user.has_perm(VIEW_COMMENTS) and may_read_notes(user, subject)):
        return {"may_view": False}
    moderates = user.has_perm(DELETE_COMMENTS)
    rows = Comment.objects.filter(**{subject_field(subject): subject})
    comments = [(row, moderates or (row.author_id is not None and row.author_id == user.pk)) for row in rows]
    return {
        "may_view": True,
        "comments": comments,
        "may_add": user.has_perm(ADD_COMMENTS),
        "kind": subject_field(subject),
        "key": subject.pk,
    }


def saved_context(user: Viewer, subject: Subject) -> dict[str, Any]:
    """Return the lists that an object is in, and those that it can be added to; nothing without permission."""
    if not user.has_perm(VIEW_LISTS):
        return {"may_view": False}
    items = SavedItem.objects.filter(**{subject_field(subject): subject}).select_related("saved_list")
    return {
        "may_view": True,
        "items": items.order_by("saved_list__name"),
        "may_change": user.has_perm(CHANGE_LISTS),
        "may_create": user.has_perm(ADD_LISTS),
        "lists": SavedList.objects.all()[:MAX_OFFERED],
        "reads_notes": may_read_notes(user, subject),
        "kind": subject_field(subject),
        "key": subject.pk,
    }


def visible_items(user: Viewer, saved_list: SavedList) -> QuerySet[SavedItem]:
    """Return the entries of a list whose objects the user may see."""
    requests = RequestLog.objects.only("pk", "created_at", "model", "profile")
    rows = saved_list.items.select_related("feature__sae", "vector_set", "added_by")
    rows = rows.prefetch_related(Prefetch("request", requests))
    if not user.has_perm("steering.view_feature"):
        rows = rows.filter(feature=None)
    if not user.has_perm("openai_api.view_requestlog"):
        rows = rows.filter(request=None)
    if not user.has_perm("steering.view_vectorset"):
        return rows.filter(vector_set=None)
    seen = visible_vector_sets(user).order_by().values("pk")
    return rows.filter(vector_set=None) | rows.filter(vector_set__in=seen)


@dataclass(frozen=True, slots=True)
class ListedItem:
    """An entry as its list shows it: a request by the beginning of what was asked, if the user may see texts."""

    item: SavedItem
    name: str
    detail: str
    url: str
    note: str


def listed_items(user: User, items: Sequence[SavedItem]) -> list[ListedItem]:
    """Return the entries for their page. That excerpts were shown is recorded."""
    excerpts: dict[str, Excerpt] = {}
    ids = [item.request_id for item in items if item.request_id is not None]
    if ids and may_see_text(user) and (excerpts := fetch_excerpts(ids)):
        record_access(act=LogAccess.Act.LIST, user=user, detail={"requests": list(excerpts)}, num_rows=len(excerpts))
    return [_listed(user, item, excerpts) for item in items]


def _listed(user: User, item: SavedItem, excerpts: Mapping[str, Excerpt]) -> ListedItem:
    subject = item.subject
    match subject:
        case Feature():
            name, detail = str(subject), "feature"
        case VectorSet():
            name, detail = str(subject), "vector"
        case RequestLog():
            excerpt = excerpts.get(subject.pk)
            name = excerpt.prompt if excerpt and excerpt.prompt else visible_text(subject.pk)
            parts = ("request", subject.model, subject.profile, f"{utc_text(subject.created_at)} UTC")
            detail = visible_text(", ".join(part for part in parts if part))
    return ListedItem(item, name, detail, subject_url(subject), item.note if may_read_notes(user, subject) else "")


def _user(request: HttpRequest) -> User:
    return cast("User", request.user)


def _back(subject: Subject, part: str) -> HttpResponse:
    return HttpResponseRedirect(f"{subject_url(subject)}{part}")


def _subject(request: HttpRequest) -> Subject:
    return find_subject(request.user, request.POST.get("kind", ""), request.POST.get("key", ""))


def comment(request: HttpRequest) -> HttpResponse:
    subject = _subject(request)
    if not may_read_notes(request.user, subject):
        raise PermissionDenied
    try:
        services.add_comment(subject=subject, text=request.POST.get("text", ""), user=_user(request))
    except ValidationError as error:
        messages.error(request, f"The comment was not saved. {' '.join(error.messages)}")
    return _back(subject, "#comments")


def delete_comment(request: HttpRequest, pk: int) -> HttpResponse:
    """Delete a comment: its author, or with the permission for all."""
    found = Comment.objects.filter(pk=pk).first()
    if found is None:
        raise Http404
    kind = subject_field(found.subject)
    subject = find_subject(request.user, kind, str(found.subject.pk))
    if found.author_id != request.user.pk and not request.user.has_perm(DELETE_COMMENTS):
        raise PermissionDenied
    services.delete_comment(comment=found, user=_user(request))
    return _back(subject, "#comments")


def save(request: HttpRequest) -> HttpResponse:
    """Add an object to a list, or to a new one of the name that was given."""
    subject = _subject(request)
    chosen, note = request.POST.get("list", ""), request.POST.get("note", "")
    if note and not may_read_notes(request.user, subject):
        raise PermissionDenied
    try:
        saved_list = _chosen_list(request, chosen)
        services.save_to_list(saved_list=saved_list, subject=subject, note=note, user=_user(request))
    except ValidationError as error:
        messages.error(request, f"Not saved. {' '.join(error.messages)}")
    else:
        messages.success(request, f'Saved to "{saved_list}".')
    return _back(subject, "")


def _chosen_list(request: HttpRequest, chosen: str) -> SavedList:
    if chosen:
        found = SavedList.objects.filter(pk=key_in(chosen)).first()
        if found is None:
            raise ValidationError("The list does not exist any more.")
        return found
    if not request.user.has_perm(ADD_LISTS):
        raise PermissionDenied
    return services.create_list(name=request.POST.get("name", ""), user=_user(request))


def remove(request: HttpRequest, pk: int) -> HttpResponse:
    """Remove an entry, and return to the page that it was removed on: the object's or the list's."""
    item = SavedItem.objects.select_related("saved_list").filter(pk=pk).first()
    if item is None:
        raise Http404
    subject = find_subject(request.user, subject_field(item.subject), str(item.subject.pk))
    services.remove_from_list(item=item, user=_user(request))
    messages.success(request, f'Removed from "{item.saved_list}".')
    if request.POST.get("from") == "list":
        return HttpResponseRedirect(reverse("admin:console_savedlist_change", args=[item.saved_list_id]))
    return _back(subject, "")


def _endpoint(name: str, route: str, view: Callable[..., HttpResponse], *permissions: str) -> None:
    register_endpoint(Endpoint(name=name, route=f"annotations/{route}", view=view, permissions=permissions))


_endpoint("comment", "comment/", comment, VIEW_COMMENTS, ADD_COMMENTS)
_endpoint("delete_comment", "comments/<int:pk>/delete/", delete_comment, VIEW_COMMENTS)
_endpoint("save", "save/", save, VIEW_LISTS, CHANGE_LISTS)
_endpoint("unsave", "items/<int:pk>/remove/", remove, VIEW_LISTS, CHANGE_LISTS)
