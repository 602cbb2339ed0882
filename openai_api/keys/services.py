"""Create, change, rotate and revoke API keys, and notify every process."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.core.management.base import CommandError, CommandParser
from django.db import transaction
from django.db.models import Q, QuerySet
from django.utils import timezone

from audit.models import AuditEvent
from audit.record import record, record_deleted, record_saved, stored_fields
from inference.permissions import CHANGE_USERS, FieldDenied, Viewer, may_act_as, seen_by
from openai_api.keys.authentication import snapshot
from openai_api.keys.record import PREFIX_LENGTH, digest_of, new_key
from openai_api.keys.scopes import Scope
from openai_api.keys.static_key import is_static
from openai_api.models import ApiKey, KeyDay
from steering.features.traffic_examples import delete_traffic_examples

NO_GRACE = timedelta()
MAX_GRACE = timedelta(days=90)
NO_OLD = (None, "", None)
SECRETS = frozenset({"digest", "prefix", "old_digest", "old_prefix", "old_valid_until"})
NOT_EDITED = SECRETS | {"revoked_at", "revoked_reason", "rotated_at", "last_used_at", "created_at"}


@dataclass(frozen=True, slots=True)
class CreatedKey:
    """A key with its secret; ``plain`` is stored nowhere else."""

    api_key: ApiKey
    plain: str


@transaction.atomic
def create_api_key(*, name: str, owner: User, **fields: Any) -> CreatedKey:
    """Create a key of ``owner``; ``fields`` are those of :class:`ApiKey`. Raises ValidationError."""
    return save_new_api_key(api_key=ApiKey(name=name, owner=owner, **fields))


@transaction.atomic
def save_new_api_key(*, api_key: ApiKey, user: User | None = None) -> CreatedKey:
    """Generate the secret of an unsaved key and save it.

    Raises ValidationError, and PermissionDenied when the user may not act as the key's owner.
    """
    check_may_act_as(api_key.owner, user)
    plain = _give_secret(api_key)
    api_key.full_clean()
    api_key.save(force_insert=True)
    record_saved(api_key, before=None, user=user, leave_out=SECRETS)
    snapshot.invalidate([api_key.pk])
    return CreatedKey(api_key, plain)


@transaction.atomic
def change_api_key(*, api_key: ApiKey, user: User | None = None) -> None:
    """Change a key; ``user`` is recorded in the audit trail. Fields with actions of their own are unchanged.

    Withdrawing a key's consent to share texts deletes all such examples, since they are not attributed to keys.
    """
    ApiKey.objects.select_for_update().filter(pk=api_key.pk).first()  # the row is locked until it is written
    before = stored_fields(api_key)
    if before is None or before["owner_id"] != api_key.owner_id or Scope.MANAGE in api_key.scopes:
        check_may_act_as(api_key.owner, user)  # the old owner knows the secret
    names = {field.name for field in api_key._meta.concrete_fields if not field.primary_key}
    api_key.save(update_fields=names - NOT_EDITED)
    record_saved(api_key, before=before, user=user, leave_out=NOT_EDITED)
    if before is not None and before["shares_examples"] and not api_key.shares_examples:
        delete_traffic_examples()
    snapshot.invalidate([api_key.pk])


@transaction.atomic
def rotate_api_key(*, api_key: ApiKey, grace: timedelta = NO_GRACE, user: User | None = None) -> CreatedKey:
    """Give the key a new secret. The old one stays valid for ``grace``; an even older one becomes invalid.

    Raises ValidationError for a revoked or static key and for an invalid grace period.
    """
    if not NO_GRACE <= grace <= MAX_GRACE:
        raise ValidationError(f"The old secret can stay valid for 0 to {MAX_GRACE.days} days, got {grace}.")
    row = ApiKey.objects.select_for_update(of=("self",)).select_related("owner").get(pk=api_key.pk)
    if row.revoked_at is not None:
        raise ValidationError(f"The key {row} is revoked; create a new one.")
    if is_static(row.digest):
        raise ValidationError(f"The secret of {row} is the setting MILLM_ADMIN_API_KEY; change it there.")
    check_may_act_as(row.owner, user)
    now = timezone.now()
    row.old_digest, row.old_prefix, row.old_valid_until = (row.digest, row.prefix, now + grace) if grace else NO_OLD
    row.rotated_at = now
    before = str(row)
    plain = _give_secret(row)
    row.save(update_fields=["digest", "prefix", "old_digest", "old_prefix", "old_valid_until", "rotated_at"])
    until = f"until {row.old_valid_until:%Y-%m-%d %H:%M} UTC" if row.old_valid_until else "no longer"
    record(AuditEvent.Action.ROTATE, row, user=user, detail=f"the secret of {before} is valid {until}")
    snapshot.invalidate([row.pk])
    return CreatedKey(row, plain)


@transaction.atomic
def revoke_api_keys(*, keys: QuerySet[ApiKey], reason: str = "", user: User | None = None) -> int:
    """Revoke these keys, old secrets included, and return how many were not revoked before."""
    rows = list(keys.filter(revoked_at__isnull=True).select_for_update(of=("self",)))
    for row in rows:
        row.revoked_at, row.revoked_reason = timezone.now(), reason[:300]
        row.old_digest, row.old_prefix, row.old_valid_until = NO_OLD
        row.save(update_fields=["revoked_at", "revoked_reason", "old_digest", "old_prefix", "old_valid_until"])
        record(AuditEvent.Action.REVOKE, row, user=user, detail=reason)
    snapshot.invalidate([row.pk for row in rows])
    return len(rows)


@transaction.atomic
def delete_api_keys(*, keys: QuerySet[ApiKey], user: User | None = None) -> None:
    """Delete keys. Their log rows stay without the key; examples are deleted if one of them shared its texts."""
    rows = list(keys.select_for_update(of=("self",)))
    if any(row.shares_examples for row in rows):
        delete_traffic_examples()
    pks = [row.pk for row in rows]
    for row in rows:
        record_deleted(row, user=user)
    ApiKey.objects.filter(pk__in=pks).delete()
    snapshot.invalidate(pks)


def check_may_act_as(owner: User, user: User | None) -> None:
    """Raise FieldDenied unless ``user`` may act as ``owner``. None is an operator at the shell.

    A key reads its owner's files, responses and chats; with the scope "manage" it does all that its owner may.
    """
    if user is not None and not may_act_as(user, owner):
        raise FieldDenied(
            "owner",
            f"You have no right to act as {owner}, so you cannot make or move keys in that name: it takes "
            f"{CHANGE_USERS} and every permission that {owner} has.",
        )


def _give_secret(api_key: ApiKey) -> str:
    plain = new_key()
    api_key.prefix = plain[:PREFIX_LENGTH]
    api_key.digest = digest_of(plain)
    return plain


SEE_ALL_KEYS = "openai_api.see_all_apikeys"


def visible_keys(user: Viewer, rows: QuerySet[ApiKey] | None = None) -> QuerySet[ApiKey]:
    found = ApiKey.objects.all() if rows is None else rows
    return seen_by(found, user, owner="owner", see_all=SEE_ALL_KEYS, is_shared=False)


def visible_days(user: Viewer, rows: QuerySet[KeyDay] | None = None) -> QuerySet[KeyDay]:
    found = KeyDay.objects.all() if rows is None else rows
    return found if user.has_perm(SEE_ALL_KEYS) else found.filter(api_key__in=visible_keys(user).values("pk"))


def add_key_argument(parser: CommandParser) -> None:
    parser.add_argument("key", help="Its name, its number, or the beginning of it that the admin shows.")


def chosen_key(text: str) -> ApiKey:
    """Return the key of that name. Raises CommandError unless there is exactly one."""
    text = text.replace("\0", "")
    condition = Q(name=text) | Q(prefix=text.rstrip("…"))
    if text.isdecimal() and len(text) < 19:
        condition |= Q(pk=int(text))
    found = list(ApiKey.objects.filter(condition).order_by("pk"))
    if not found:
        raise CommandError(f"The API key {text!r} does not exist.")
    if len(found) > 1:
        listed = ", ".join(f"{row.pk} ({row.prefix}… of {row.owner})" for row in found)
        raise CommandError(f"There are {len(found)} API keys {text!r}; give the number of one: {listed}.")
    return found[0]
