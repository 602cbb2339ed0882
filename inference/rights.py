"""Which rights a user has over another user's account: nobody hands out, or takes over, more than they have."""

from __future__ import annotations

from django.contrib.auth.models import AbstractBaseUser, AnonymousUser, Group, Permission, User
from django.core.exceptions import PermissionDenied
from django.db.models import Q, QuerySet

Account = AbstractBaseUser | AnonymousUser
CHANGE_USERS = "auth.change_user"


class FieldDenied(PermissionDenied):
    """The user may change the object, but not this field of it."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.param = field


def is_superuser(user: Account) -> bool:
    return bool(user.is_active and getattr(user, "is_superuser", False))


def grantable_permissions(user: Account) -> QuerySet[Permission]:
    """Return the permissions that ``user`` has, and may therefore give to others."""
    rows = Permission.objects.select_related("content_type")
    if is_superuser(user):
        return rows
    if not user.is_active or user.pk is None:
        return rows.none()
    return rows.filter(pk__in=_stored_permissions(user))


def grantable_groups(user: Account) -> QuerySet[Group]:
    """Return the groups none of whose permissions ``user`` lacks."""
    if is_superuser(user):
        return Group.objects.all()
    beyond = Permission.objects.exclude(pk__in=grantable_permissions(user).values("pk"))
    return Group.objects.exclude(permissions__in=beyond)


def has_rights_of(user: Account, other: User) -> bool:
    """Return whether ``other`` can do nothing that ``user`` cannot; an inactive account counts as if it were active."""
    if is_superuser(user):
        return True
    if other.is_superuser:
        return False
    return not _stored_permissions(other).exclude(pk__in=grantable_permissions(user).values("pk")).exists()


def may_act_as(user: User, other: User) -> bool:
    """Return whether ``user`` may hold a credential of ``other``: who may set that account's password could log in."""
    return user.pk == other.pk or (user.has_perm(CHANGE_USERS) and has_rights_of(user, other))


def _stored_permissions(user: Account) -> QuerySet[Permission]:
    """From the tables: Django's own answer is cached on the object, and empty for an inactive account."""
    return Permission.objects.filter(Q(group__user=user.pk) | Q(user=user.pk)).distinct()
