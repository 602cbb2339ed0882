"""Searches of the log that people keep for themselves or share."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlencode

from django import forms
from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import Q

from openai_api.models import SavedSearch
from openai_api.request_log.access import may_see_text

MAX_OWN = 100
MAX_NAME = 100
MAX_SHOWN = 200


@dataclass(frozen=True, slots=True)
class ShownSearch:
    """``owner`` is "" for one's own."""

    pk: int
    name: str
    query: str
    owner: str
    is_shared: bool


@transaction.atomic
def save_search(*, owner: User, name: str, conditions: dict[str, str], is_shared: bool = False) -> SavedSearch:
    """One of the same name is replaced. Raises ValidationError."""
    if not conditions:
        raise ValidationError("It has no conditions.")
    name = forms.CharField(max_length=MAX_NAME).clean(name)  # before the database is asked for it
    User.objects.select_for_update().get(pk=owner.pk)  # two at once would pass the bound together
    others = SavedSearch.objects.filter(owner=owner).exclude(name=name)
    if others.count() >= MAX_OWN:
        raise ValidationError(f"You have {MAX_OWN} saved searches; delete one first.")
    search = SavedSearch.objects.filter(owner=owner, name=name).first() or SavedSearch(owner=owner, name=name)
    search.conditions, search.is_shared = conditions, is_shared
    search.full_clean()
    search.save()
    return search


def delete_search(*, owner: User, pk: int) -> bool:
    """False where there is none of theirs."""
    return SavedSearch.objects.filter(owner=owner, pk=pk).delete()[0] > 0


def visible_searches(user: User) -> list[ShownSearch]:
    """One's own, and what others share. The words of a search are shown to those only who may see texts."""
    found = SavedSearch.objects.filter(Q(owner=user) | Q(is_shared=True)).select_related("owner")
    if not may_see_text(user):
        found = found.exclude(conditions__has_key="text")
    return [_shown(search, user) for search in found[:MAX_SHOWN]]


def _shown(search: SavedSearch, user: User) -> ShownSearch:
    owner = "" if search.owner_id == user.pk else search.owner.get_username()
    return ShownSearch(search.pk, search.name, urlencode(search.conditions), owner, search.is_shared)
