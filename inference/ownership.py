"""Who sees what belongs to somebody: its owner, the groups it is shared with, and those who may see all of its kind.

What belongs to nobody (made by a command, or by a user who was deleted) is the server's, and everybody's to see.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from django.contrib.auth.models import AnonymousUser, Group, User
from django.db.models import Model, Q, QuerySet

if TYPE_CHECKING:
    from django.contrib.auth.base_user import AbstractBaseUser

M = TypeVar("M", bound=Model)
Viewer = User | AnonymousUser


def seen_by(rows: QuerySet[M], user: Viewer, *, owner: str, see_all: str, is_shared: bool = True) -> QuerySet[M]:
    """The rows that the user may see. ``owner`` is the field, ``see_all`` the permission to see everybody's.

    Says nothing about the permission to look at rows of the kind at all.
    """
    if user.has_perm(see_all):
        return rows
    found = Q(**{owner: None})
    if user.pk is not None:
        found |= Q(**{owner: user.pk})
    if is_shared and user.pk is not None:  # a sub-query: a join would find rows once for each group
        shared = rows.model._default_manager.filter(shared_with__user=user.pk)
        found |= Q(pk__in=shared.order_by().values("pk"))
    return rows.filter(found)


def may_share(user: Viewer, owner: AbstractBaseUser | None, *, see_all: str) -> bool:
    """Its owner, or who may see everybody's, says with whom something is shared."""
    return user.has_perm(see_all) or (user.pk is not None and owner is not None and owner.pk == user.pk)


def groups_to_share_with(user: Viewer, *, see_all: str) -> QuerySet[Group]:
    """One's own groups: the names of others are nobody's business but of those who may see everything."""
    groups = Group.objects.order_by("name")
    return groups if user.has_perm(see_all) else groups.filter(user=user.pk)
