"""Writing API keys: created once, changed and revoked with every process told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied, ValidationError
from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone

from audit.models import AuditEvent
from audit.trail import record
from openai_api.keys import PREFIX_LENGTH, digest_of, new_key, snapshot
from openai_api.models import ApiKey
from openai_api.scopes import Scope
from steering.feature_services import forget_traffic_examples

RIGHTS = (
    "default_profile",
    "allowed_profiles",
    "may_steer_inline",
    "scopes",
    "min_intensity",
    "max_intensity",
)


@dataclass(frozen=True, slots=True)
class CreatedKey:
    """``plain`` exists here and nowhere else."""

    api_key: ApiKey
    plain: str


@transaction.atomic
def create_api_key(*, name: str, owner: User, **fields: Any) -> CreatedKey:
    """A new key of ``owner``; ``fields`` are those of :class:`ApiKey`. Raises ValidationError."""
    return save_new_api_key(api_key=ApiKey(name=name, owner=owner, **fields))


@transaction.atomic
def save_new_api_key(*, api_key: ApiKey, user: User | None = None) -> CreatedKey:
    """Give an unsaved key its secret and save it. Raises ValidationError."""
    check_may_give(api_key=api_key, user=user)
    plain = new_key()
    api_key.prefix = plain[:PREFIX_LENGTH]
    api_key.digest = digest_of(plain)
    api_key.full_clean()
    api_key.save(force_insert=True)
    unset = ApiKey()  # what a key may that nobody said anything about
    _record(api_key, {name: getattr(unset, name) for name in RIGHTS}, user)
    snapshot.invalidate()
    return CreatedKey(api_key, plain)


@transaction.atomic
def change_api_key(*, api_key: ApiKey, user: User | None = None) -> None:
    """``user`` is who does it, for the audit trail.

    A key that shares its texts as examples no more takes all such examples with it: nobody knows whose each one was.
    """
    check_may_give(api_key=api_key, user=user)
    before = ApiKey.objects.values("shares_examples", *RIGHTS).get(pk=api_key.pk)
    api_key.save()
    _record(api_key, before, user)
    if before["shares_examples"] and not api_key.shares_examples:
        forget_traffic_examples()
    snapshot.invalidate()


@transaction.atomic
def rotate_api_key(*, api_key: ApiKey, user: User | None = None) -> CreatedKey:
    """The key with a new secret; the old one is refused from now on. ValidationError for one that is revoked."""
    key = ApiKey.objects.select_for_update().get(pk=api_key.pk)
    if key.revoked_at is not None:
        raise ValidationError(f"The key {key} is revoked; make a new one.")
    check_may_give(api_key=key, user=user)
    before = key.prefix
    plain = new_key()
    key.prefix, key.digest = plain[:PREFIX_LENGTH], digest_of(plain)
    key.save(update_fields=["prefix", "digest"])
    record(AuditEvent.Action.KEY, f"key {key}", user=user, detail=f"rotated: {before}… → {key.prefix}…")
    snapshot.invalidate()
    return CreatedKey(key, plain)


@transaction.atomic
def revoke_api_keys(*, keys: QuerySet[ApiKey]) -> int:
    """Refuse these keys from now on; returns how many were not revoked before."""
    count = keys.filter(revoked_at__isnull=True).update(revoked_at=timezone.now())
    snapshot.invalidate()
    return count


@transaction.atomic
def delete_api_keys(*, keys: QuerySet[ApiKey]) -> None:
    """Their log rows stay, without the key; examples of features do not stay if one of them shared its texts."""
    if keys.filter(shares_examples=True).exists():
        forget_traffic_examples()
    keys.delete()
    snapshot.invalidate()


def check_may_give(*, api_key: ApiKey, user: User | None) -> None:
    """PermissionDenied for a managing key of somebody who may do more than ``user``, who would get these rights."""
    if user is None or Scope.MANAGE not in api_key.scopes or api_key.owner_id == user.pk:
        return
    if not user.is_superuser and (api_key.owner.is_superuser or _has_more_rights(api_key.owner, user)):
        raise PermissionDenied(f"{api_key.owner} may do things that you may not, so you cannot make keys that act so.")


def _has_more_rights(owner: User, user: User) -> bool:
    return not owner.get_all_permissions() <= user.get_all_permissions()


def _record(api_key: ApiKey, before: Mapping[str, Any], user: User | None) -> None:
    """What changed of the key's rights; the audit trail has nothing where nothing did."""
    changed = [
        f"{name}: {_shown(before[name])} → {_shown(getattr(api_key, name))}"
        for name in RIGHTS
        if before[name] != getattr(api_key, name)
    ]
    if changed:
        record(AuditEvent.Action.KEY, f"key {api_key}", user=user, detail="; ".join(changed))


def _shown(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(value) or "all"  # what an empty list of allowed things means
    return str(value) or "none"
