"""The static key: the setting MILLM_ADMIN_API_KEY, accepted by the processes that have it.

It has a row, so that the request log, batches and limits treat it as any other key. Instead of a digest of the secret,
the row holds a mark that no presented key has: without the setting, nothing in the database makes the key valid.
"""

from __future__ import annotations

from dataclasses import replace

from django.conf import settings
from django.contrib.auth.models import User
from django.db import transaction
from django.utils.crypto import constant_time_compare, salted_hmac

from audit.record import record_saved
from openai_api.keys.record import STATIC_PREFIX, STATIC_PREFIX_LENGTH, KeyRecord, digest_of
from openai_api.keys.scopes import Scope
from openai_api.models import ApiKey

MARK = "static:"  # digests of presented keys are hexadecimal
NAME = "Static key (MILLM_ADMIN_API_KEY)"
NOTE = "From the setting MILLM_ADMIN_API_KEY of the server. Without the setting it is not valid."


def mark_of(plain: str) -> str:
    """Return what identifies a static key in the database: an HMAC other than the one that requests are checked by."""
    return MARK + salted_hmac("openai_api.static_key", plain, algorithm="sha256").hexdigest()[: 64 - len(MARK)]


def is_static(digest: str) -> bool:
    return digest.startswith(MARK)


def is_current(digest: str) -> bool:
    """Return whether the digest of a row is that of this process's static key."""
    plain: str = settings.MILLM_ADMIN_API_KEY
    return bool(plain) and constant_time_compare(digest, mark_of(plain))


def with_static_secret(record: KeyRecord) -> KeyRecord:
    """Return the record with the digest of the setting if it is this process's static key, otherwise unchanged."""
    return replace(record, digest=digest_of(settings.MILLM_ADMIN_API_KEY)) if is_current(record.digest) else record


def ensure_static_key() -> str:
    """Create the row of this process's static key if there is none. Return why the key is not accepted, or ""."""
    plain: str = settings.MILLM_ADMIN_API_KEY
    if not plain:
        return ""
    key = ApiKey.objects.select_related("owner").filter(digest=mark_of(plain)).first() or _create(plain)
    if key is None:
        return (
            "MILLM_ADMIN_API_KEY is not accepted: there is no active superuser to own the key. Create one with "
            "`manage.py createsuperuser`, or start the server with --setup."
        )
    if not key.is_usable:
        return (
            f"MILLM_ADMIN_API_KEY is not accepted: the key {key} was revoked, has expired, or its owner is inactive. "
            "Set the variable to another key, or change the key in the console."
        )
    return ""


@transaction.atomic
def _create(plain: str) -> ApiKey | None:
    owner = User.objects.filter(is_superuser=True, is_active=True).order_by("pk").first()
    if owner is None:
        return None
    fields = {
        "name": NAME,
        "note": NOTE,
        "prefix": (STATIC_PREFIX + plain)[:STATIC_PREFIX_LENGTH],
        "owner": owner,
        "scopes": list(Scope.values),
        "may_steer_inline": True,
    }
    key, is_new = ApiKey.objects.get_or_create(digest=mark_of(plain), defaults=fields)
    if is_new:
        record_saved(key, before=None, leave_out=frozenset({"digest", "prefix"}))
    return key
