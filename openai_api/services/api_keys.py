"""Writing API keys: created once, changed and revoked with every process told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone

from openai_api.keys import PREFIX_LENGTH, digest_of, new_key, snapshot
from openai_api.models import ApiKey


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
def save_new_api_key(*, api_key: ApiKey) -> CreatedKey:
    """Give an unsaved key its secret and save it. Raises ValidationError."""
    plain = new_key()
    api_key.prefix = plain[:PREFIX_LENGTH]
    api_key.digest = digest_of(plain)
    api_key.full_clean()
    api_key.save(force_insert=True)
    snapshot.invalidate()
    return CreatedKey(api_key, plain)


@transaction.atomic
def change_api_key(*, api_key: ApiKey) -> None:
    api_key.save()
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
