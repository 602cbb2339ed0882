"""Permissions of users: the groups of the console and /api, the rights that may be granted, and the visible objects.

docs/roles.md describes the groups. They are written after every ``migrate``, which restores permissions that were
removed from them; create another group for other combinations. Permissions are strings, because those of the layers
above are granted too. Names that do not exist yet are skipped until the migration that creates them.
"""

from __future__ import annotations

from typing import Any, TypeVar

from django.apps import AppConfig, apps
from django.contrib.auth.models import AbstractBaseUser, AnonymousUser, Group, Permission, User
from django.core.exceptions import PermissionDenied
from django.db import DEFAULT_DB_ALIAS, transaction
from django.db.models import Model, Q, QuerySet

from audit.origin import as_the_program

NOTES = (
    "console.view_comment",
    "console.add_comment",
    *(f"console.{action}_savedlist" for action in ("view", "add", "change")),
)
RESEARCHERS = (
    "inference.view_languagemodel",
    "media.view_voice",
    "console.view_loadsample",
    "console.use_playground",
    *NOTES,
    "console.view_sharedpage",
    "console.add_sharedpage",
    *(
        f"steering.{action}_{model}"
        for model in ("sae", "feature", "steeringprofile", "featureedit", "vectorset")
        for action in ("view", "add", "change", "delete")
    ),
    "steering.view_profileversion",
    "steering.view_plainvector",
    "steering.view_evaluation",
    "steering.publish_steeringprofile",
    "steering.archive_steeringprofile",
    "steering.review_steeringprofile",
    "jobs.view_job",
    "jobs.change_job",
    "steering.view_watchrule",
    "steering.view_watchevent",
    "openai_api.view_apikey",
)
AUDITORS = (
    "inference.view_languagemodel",
    "media.view_voice",
    "console.view_loadsample",
    *NOTES,
    "console.view_sharedpage",
    "openai_api.view_requestlog",
    "openai_api.view_prompt_text",
    "openai_api.view_requestscore",
    "openai_api.add_requestscore",
    "openai_api.export_requestlog",
    "openai_api.view_logaccess",
    "openai_api.view_apikey",
    "audit.view_auditevent",
    "openai_api.view_keyday",
    "openai_api.see_all_apikeys",
    *(
        f"steering.view_{model}"
        for model in (
            "evaluation",
            "feature",
            "featureedit",
            "plainvector",
            "profileversion",
            "sae",
            "steeringpolicy",
            "steeringprofile",
            "vectorset",
            "watchevent",
            "watchrule",
        )
    ),
    "steering.see_all_steeringprofiles",
    "steering.see_all_vectorsets",
    "media.view_video",
    "responses.view_storedresponse",
    "responses.view_conversation",
    "stored_chats.view_storedchat",
)
GROUPS: dict[str, tuple[str, ...] | None] = {
    "Researchers": RESEARCHERS,
    "Auditors": AUDITORS,
    "Admins": None,
}  # None: all


@transaction.atomic
def ensure_groups() -> None:
    """Create the groups and add the permissions that they lack. Idempotent."""
    from django.contrib.auth.models import Group, Permission

    permissions = {
        f"{permission.content_type.app_label}.{permission.codename}": permission
        for permission in Permission.objects.select_related("content_type")
    }
    with as_the_program():
        for name, codenames in GROUPS.items():
            group, _ = Group.objects.get_or_create(name=name)
            group.permissions.add(*(permissions[key] for key in (codenames or permissions) if key in permissions))


def grant_after_migrate(sender: AppConfig, *, using: str, **_: Any) -> None:
    """Create the groups after ``post_migrate``. Django sends it once per app; all permissions exist at the last one."""
    if using == DEFAULT_DB_ALIAS and sender is _last_app():
        ensure_groups()


def _last_app() -> AppConfig:
    return [config for config in apps.get_app_configs() if config.models_module is not None][-1]


Account = AbstractBaseUser | AnonymousUser
CHANGE_USERS = "auth.change_user"


class FieldDenied(PermissionDenied):
    """The user may change the object, but not this field."""

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
    """Query the tables, because Django caches its answer on the object and returns nothing for inactive accounts."""
    return Permission.objects.filter(Q(group__user=user.pk) | Q(user=user.pk)).distinct()


M = TypeVar("M", bound=Model)
Viewer = User | AnonymousUser


def seen_by(rows: QuerySet[M], user: Viewer, *, owner: str, see_all: str, is_shared: bool = True) -> QuerySet[M]:
    """Return the rows that the user may see. ``owner``: the field; ``see_all``: the permission to see all rows.

    Does not check the permission to view the model at all.
    """
    if user.has_perm(see_all):
        return rows
    found = Q(**{owner: None})
    if user.pk is not None:
        found |= Q(**{owner: user.pk})
    if is_shared and user.pk is not None:  # a subquery, because a join would return a row per group
        shared = rows.model._default_manager.filter(shared_with__user=user.pk)
        found |= Q(pk__in=shared.order_by().values("pk"))
    return rows.filter(found)


def may_share(user: Viewer, owner: AbstractBaseUser | None, *, see_all: str) -> bool:
    """Return whether the user may share the object: its owner, or a user who may see all objects."""
    return user.has_perm(see_all) or (user.pk is not None and owner is not None and owner.pk == user.pk)


def groups_to_share_with(user: Viewer, *, see_all: str) -> QuerySet[Group]:
    """Return the groups that the user may share with: their own, or all with the permission ``see_all``."""
    groups = Group.objects.order_by("name")
    return groups if user.has_perm(see_all) else groups.filter(user=user.pk)
