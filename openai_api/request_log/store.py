"""Write log entries to Postgres: rows are cleaned, so that their content never makes the write fail."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import fields, replace
from datetime import UTC, date, datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import DataError, InterfaceError, OperationalError, connection, transaction
from django.db.models import Q
from django.utils import timezone

from core.text import clean_json, clean_text
from openai_api.models import ApiKey, KeyDay, RequestLog
from openai_api.request_log.entry import TOKENS, LogEntry, bare_parameters, quotes_client, stricter
from steering.watch.services import prune_events, record_matches
from steering.watch.watcher import WatchMatch

LAST_USED_EVERY = timedelta(minutes=1)
FORGET_EVERY = timedelta(hours=1)
LOCK_TIMEOUT = "10s"
LIMIT_EXCEEDED = "54"  # class of SQLSTATE
ADD_USE = f"""
    INSERT INTO {KeyDay._meta.db_table} AS known (api_key_id, day, requests, tokens, media) VALUES (%s, %s, %s, %s, %s)
    ON CONFLICT (api_key_id, day) DO UPDATE
    SET requests = known.requests + excluded.requests, tokens = known.tokens + excluded.tokens, media = (
        SELECT coalesce(jsonb_object_agg(unit, total), '{{}}')
        FROM (
            SELECT unit, sum(amount::numeric) AS total
            FROM (
                SELECT * FROM jsonb_each_text(known.media) UNION ALL SELECT * FROM jsonb_each_text(excluded.media)
            ) AS both_days (unit, amount)
            GROUP BY unit
        ) AS totals
    )
"""  # noqa: S608 - the table's own name


class LogStore:
    """Write log entries to Postgres; used by one thread."""

    def __init__(self) -> None:
        self._last_used: dict[int, datetime] = {}
        self._forgot_at = datetime.min.replace(tzinfo=UTC)

    def insert(self, entries: Sequence[LogEntry]) -> None:
        """Insert all entries or none. Idempotent: an entry that has a row stays as it is.

        Raise DataError for values beyond Postgres's limits, for which psycopg has an OperationalError: the database is
        not down, and another attempt would fail too.
        """
        try:
            with transaction.atomic():
                RequestLog.objects.bulk_create(self._rows(entries), ignore_conflicts=True)
                record_matches([found for entry in entries for found in findings_of(entry)])
                meter(entries)
        except OperationalError as error:
            if (getattr(error.__cause__, "sqlstate", None) or "").startswith(LIMIT_EXCEEDED):
                raise DataError(str(error)) from error
            raise
        for entry in entries:
            entry.is_metered = False
        self._forget_old_events()

    def missing(self, entries: Sequence[LogEntry]) -> list[LogEntry]:
        """Return the entries without a row. Clients may repeat ids, so the time is compared too."""
        ids = [entry.id for entry in entries]
        renamed = Q(*(Q(pk__startswith=f"{found}~") for found in ids), _connector=Q.OR)
        rows = RequestLog.objects.filter(Q(pk__in=ids) | renamed).values_list("pk", "created_at")
        known = {(pk.partition("~")[0], created_at) for pk, created_at in rows}
        return [entry for entry in entries if (entry.id, entry.created_at) not in known]

    def mark_keys_used(self, entries: Sequence[LogEntry]) -> None:
        """Set ``last_used_at``, at most once a minute for each key."""
        for entry in entries:
            pk, now = entry.api_key_id, entry.created_at
            if pk is None or now - self._last_used.get(pk, datetime.min.replace(tzinfo=now.tzinfo)) < LAST_USED_EVERY:
                continue
            stale = Q(last_used_at=None) | Q(last_used_at__lt=now - LAST_USED_EVERY)
            ApiKey.objects.filter(stale, pk=pk).update(last_used_at=now)
            self._last_used[pk] = now

    def refresh_connection(self) -> None:
        """Reconnect. A lock that another transaction holds is reported, and not waited for in silence."""
        self.close()
        with connection.cursor() as cursor:
            cursor.execute("SELECT set_config('lock_timeout', %s, false)", [LOCK_TIMEOUT])

    def close(self) -> None:
        """Return the connection to the pool, without the time limit for locks."""
        if connection.connection is not None:
            with suppress(OperationalError, InterfaceError), connection.cursor() as cursor:  # it may be broken
                cursor.execute("RESET lock_timeout")
        connection.close()

    def _forget_old_events(self) -> None:
        """Delete old events of watch rules, once an hour."""
        now = timezone.now()
        if now - self._forgot_at >= FORGET_EVERY:
            self._forgot_at = now
            prune_events(before=now - timedelta(days=settings.MILLM_WATCH_RETENTION_DAYS))

    def _rows(self, entries: Sequence[LogEntry]) -> list[RequestLog]:
        rename_repeated(entries)
        return [row_of(entry, settings.MILLM_LOG_CONTENT) for entry in entries]


def meter(entries: Sequence[LogEntry]) -> None:
    """Add usage to the keys' days. Call inside the transaction that writes the entries."""
    totals: dict[tuple[int, date], tuple[int, int]] = {}
    media: dict[tuple[int, date], Counter[str]] = defaultdict(Counter)
    for entry in entries:
        if entry.is_metered and entry.api_key_id is not None:
            place = (entry.api_key_id, entry.created_at.astimezone(UTC).date())
            requests, tokens = totals.get(place, (0, 0))
            totals[place] = (requests + (not entry.is_counted), tokens + entry.prompt_tokens + entry.completion_tokens)
            media[place].update(entry.media)
    with connection.cursor() as cursor:
        for place, use in sorted(totals.items()):  # the same order everywhere prevents deadlocks
            cursor.execute(ADD_USE, [*place, *use, json.dumps(media[place])])


def rename_repeated(entries: Sequence[LogEntry]) -> None:
    """Make ids unique: a later request with the same id gets a suffix; a retried entry does not."""
    ids = [entry.id for entry in entries if not entry.id.startswith("req_")]
    if not ids:
        return
    taken = dict(RequestLog.objects.filter(pk__in=ids).values_list("pk", "created_at"))
    for entry in entries:
        if not entry.id.startswith("req_") and taken.setdefault(entry.id, entry.created_at) != entry.created_at:
            entry.id = f"{entry.id}~{uuid.uuid4().hex[:12]}"


def findings_of(entry: LogEntry) -> list[WatchMatch]:
    """Return the findings of watch rules, with the entry's details."""
    model, profile = clean_text(entry.model, 200), clean_text(entry.profile, 250)
    return [replace(found, model=model, profile=profile, request_id=entry.id) for found in entry.findings]


def row_of(entry: LogEntry, content: str) -> RequestLog:
    """Return the row of ``entry``; ``content`` is `full`, `hash` or `none`: what is kept of texts."""
    values: dict[str, Any] = {field.name: getattr(entry, field.name) for field in fields(entry)}
    for name in (
        "prompt_size",
        "findings",
        "tokens",
        "is_metered",
        "is_counted",
        "log_content",
        "journal_number",
        "is_written",
    ):
        del values[name]
    kept = stricter(content, entry.log_content)
    lengths = {field.attname: getattr(field, "max_length", None) for field in RequestLog._meta.concrete_fields}
    for name, value in values.items():
        if isinstance(value, str) and name not in {"prompt", "completion"}:
            values[name] = clean_text(value, lengths.get(name))
    values["parameters"] = clean_json(entry.parameters)
    if kept == "full" and entry.tokens:
        values["parameters"] |= {TOKENS: clean_json([record.body() for record in entry.tokens])}
    if kept != "full":
        values["parameters"] = bare_parameters(values["parameters"])
        values["error_message"] = "" if quotes_client(entry.status) else values["error_message"]
    prompt = entry.prompt if isinstance(entry.prompt, str) else json.dumps(entry.prompt, ensure_ascii=False)
    values["prompt"] = stored_text(prompt, kept)
    values["completion"] = stored_text(entry.completion, kept)
    return RequestLog(**values)


def stored_text(text: str, content: str) -> str:
    if content == "none" or not text:
        return ""
    if content == "hash":
        return "sha256:" + hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    return clean_text(text)
