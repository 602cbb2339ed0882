"""Authenticate requests by API key, from an in-process snapshot without a database query."""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable, Collection, Mapping

from django.conf import settings
from django.contrib.auth.models import User
from django.http import HttpRequest
from django.utils import timezone
from django.utils.crypto import constant_time_compare

from core.snapshots import Snapshot, is_listening
from openai_api.http.client_address import is_loopback
from openai_api.http.errors import unavailable, wrong_key
from openai_api.keys.record import KEY_START, MANAGE_MODELS, MAX_KEY_LENGTH, PREFIX_LENGTH, KeyRecord, digest_of

logger = logging.getLogger(__name__)

SHAPE = re.compile(rf"{KEY_START}[\w-]{{43}}", re.ASCII)
# Sent by clients that require some key for servers without keys; on loopback they count as no key.
PLACEHOLDERS = frozenset(
    {"", "anonymous", "dummy", "dummy_key", "dummy-key", "empty", "no-key", "none", "not-needed", "ollama"}
    | {"placeholder", "sk-no-key-required", "sk-none", "unused"}
)


KeySource = Callable[[], Awaitable[Mapping[str, KeyRecord]]]  # active keys by digest


async def authenticate(request: HttpRequest, keys: KeySource) -> KeyRecord | None:
    """Return the request's key, or None for an anonymous request on loopback. Raises MillmError 401 otherwise."""
    return None if needs_no_key(request) else require_key(request, await keys())


def needs_no_key(request: HttpRequest) -> bool:
    key = presented_key(request)
    return settings.MILLM_AUTH == "loopback" and (key is None or key.lower() in PLACEHOLDERS) and is_loopback(request)


def require_key(request: HttpRequest, records: Mapping[str, KeyRecord]) -> KeyRecord:
    """Return the request's key. Raises MillmError 401."""
    record = find_key(presented_key(request) or "", records)
    if record is None:
        raise wrong_key()
    return record


def presented_key(request: HttpRequest) -> str | None:
    """Return the key from any of its headers; None if there is no such header."""
    authorization = request.headers.get("Authorization")
    if authorization is not None:
        scheme, _, token = authorization.partition(" ")
        return (
            token.strip() if scheme.lower() == "bearer" else "\0"
        )  # another scheme counts as a wrong key, not as none
    for header in ("api-key", "x-api-key"):
        if header in request.headers:
            return request.headers[header].strip()
    return None


def prefix_of(key: str) -> str:
    """Return the prefix of a refused key for the log, empty for strings that are not keys of this server."""
    return key[:PREFIX_LENGTH] if SHAPE.fullmatch(key) else ""


def find_key(key: str, records: Mapping[str, KeyRecord]) -> KeyRecord | None:
    """Return the record of ``key``, or None. Every refusal takes the same path: one digest, one lookup."""
    digest = digest_of(key[:MAX_KEY_LENGTH])
    record = records.get(digest)
    if record is None or not constant_time_compare(record.digest, digest) or len(key) > MAX_KEY_LENGTH:
        return None
    return None if record.expires_at is not None and record.expires_at <= timezone.now() else record


def load_keys(ids: Collection[int] | None = None) -> dict[str, KeyRecord]:
    """Return the active keys by digest, all or those with these ids: not revoked, of active owners.

    A rotated key is also there under its old digest until that expires, and the static key under the digest of its
    setting. Takes three queries, whatever the number of keys, and one more with a static key.
    """
    from openai_api.keys.static_key import ensure_static_key, with_static_secret
    from openai_api.models import ApiKey, KeyDay

    problem = ensure_static_key() if ids is None else ""
    if problem and is_listening():  # not while --setup is about to create the superuser
        logger.error(problem)
    use = KeyDay.objects.filter(day=timezone.now().date())
    usable = ApiKey.objects.filter(revoked_at__isnull=True, owner__is_active=True)
    managers = User.objects.with_perm(MANAGE_MODELS, backend="django.contrib.auth.backends.ModelBackend")
    if ids is not None:
        use, usable = use.filter(api_key__in=ids), usable.filter(pk__in=ids)
        managers = managers.filter(api_keys__in=ids)
    days = {day.api_key_id: day.use() for day in use}
    owners = set(managers.values_list("pk", flat=True))
    records: list[KeyRecord] = []
    for row in usable:
        used, is_manager = days.get(row.pk), row.owner_id in owners
        records.append(row.record(used, is_manager=is_manager))
        if row.has_old_secret:
            records.append(row.old_record(used, is_manager=is_manager))
    return {record.digest: record for record in map(with_static_secret, records)}


def load_changed_keys(known: dict[str, KeyRecord], ids: frozenset[int]) -> dict[str, KeyRecord]:
    return {digest: record for digest, record in known.items() if record.pk not in ids} | load_keys(ids)


snapshot: Snapshot[dict[str, KeyRecord]] = Snapshot("millm_api_keys", load_keys, load_changed_keys)


def current_keys() -> dict[str, KeyRecord]:
    """Return the active keys by digest. Raises MillmError 503 when the snapshot is too old to be trusted."""
    keys = snapshot.get()
    _check_age()
    return keys


async def acurrent_keys() -> dict[str, KeyRecord]:
    """Like :func:`current_keys`, for async code."""
    keys = await snapshot.aget()
    _check_age()
    return keys


def _check_age() -> None:
    """Raise MillmError 503 for a stale snapshot. Processes that do not listen (commands) always read the keys."""
    if is_listening() and snapshot.age_s > settings.MILLM_KEY_MAX_AGE:
        message = "API keys cannot be verified, because the database has been unavailable for too long."
        raise unavailable(message, code="database_unavailable")
