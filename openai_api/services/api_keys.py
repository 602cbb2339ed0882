"""Writing API keys: created once, changed and revoked with every process told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone

from audit.models import AuditEvent
from audit.trail import record
from openai_api.keys import PREFIX_LENGTH, digest_of, new_key, snapshot
from openai_api.models import ApiKey

STEERING_RIGHTS = ("default_profile", "allowed_profiles", "may_steer_inline", "min_intensity", "max_intensity")


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
    plain = new_key()
    api_key.prefix = plain[:PREFIX_LENGTH]
    api_key.digest = digest_of(plain)
    api_key.full_clean()
    api_key.save(force_insert=True)
    unset = ApiKey()  # what a key may that nobody said anything about
    _record(api_key, {name: getattr(unset, name) for name in STEERING_RIGHTS}, user)
    snapshot.invalidate()
    return CreatedKey(api_key, plain)


@transaction.atomic
def change_api_key(*, api_key: ApiKey, user: User | None = None) -> None:
    """``user`` is who does it, for the audit trail."""
    before = ApiKey.objects.values(*STEERING_RIGHTS).get(pk=api_key.pk)
    api_key.save()
    _record(api_key, before, user)
    snapshot.invalidate()


@transaction.atomic
def revoke_api_keys(*, keys: QuerySet[ApiKey]) -> int:
    """Refuse these keys from now on; returns how many were not revoked before."""
    count = keys.filter(revoked_at__isnull=True).update(revoked_at=timezone.now())
    snapshot.invalidate()
    return count


@transaction.atomic
def delete_api_keys(*, keys: QuerySet[ApiKey]) -> None:
    """Their log rows stay, without the key."""
    keys.delete()
    snapshot.invalidate()


def _record(api_key: ApiKey, before: Mapping[str, Any], user: User | None) -> None:
    """What changed of what the key's requests may be steered by; the audit trail has nothing where nothing did."""
    changed = [
        f"{name}: {_shown(before[name])} → {_shown(getattr(api_key, name))}"
        for name in STEERING_RIGHTS
        if before[name] != getattr(api_key, name)
    ]
    if changed:
        record(AuditEvent.Action.KEY, f"key {api_key}", user=user, detail="; ".join(changed))


def _shown(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(value) or "all"  # what an empty list of allowed things means
    return str(value) or "none"
