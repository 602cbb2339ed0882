"""Delete log rows past their retention, and texts before them, in batches; and the job that does it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.db import transaction
from django.db.models import Q, QuerySet
from django.utils import timezone

from openai_api.models import ApiKey, LogAccess, RequestLog
from openai_api.request_log.access import record_access
from openai_api.request_log.entry import bare_parameters, quotes_client
from openai_api.request_log.refusals import NOWHERE

if TYPE_CHECKING:
    from jobs.running_job import RunningJob

BATCH = 2_000
AT_ONCE = 100  # of rows whose parameters are in memory: they may hold what was known of each token
HAS_TEXT = ~Q(prompt="", completion="")
REFUSED = Q(api_key=None) & (Q(status=401) | Q(status__in=(404, 405), endpoint=NOWHERE))  # as refusals.is_refusal
Tell = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Retention:
    """Retention in days; 0 keeps forever."""

    days: int
    text_days: int
    refusal_days: int = 0

    @classmethod
    def from_settings(cls) -> Retention:
        return cls(
            settings.MILLM_LOG_RETENTION_DAYS,
            settings.MILLM_LOG_TEXT_RETENTION_DAYS,
            settings.MILLM_REFUSAL_RETENTION_DAYS,
        )

    def old_rows(self, now: datetime) -> Iterator[QuerySet[RequestLog]]:
        """Yield rows past the general retention, then refusals, then rows of keys with a shorter retention."""
        if self.days:
            yield RequestLog.objects.filter(created_at__lt=now - timedelta(days=self.days))
        if self.refusal_days:
            yield RequestLog.objects.filter(REFUSED, created_at__lt=now - timedelta(days=self.refusal_days))
        for pk, days in ApiKey.objects.exclude(log_retention_days=None).values_list("pk", "log_retention_days"):
            yield RequestLog.objects.filter(api_key=pk, created_at__lt=now - timedelta(days=days or 0))

    def old_texts(self, now: datetime) -> Iterator[QuerySet[RequestLog]]:
        if self.text_days:
            yield RequestLog.objects.filter(HAS_TEXT, created_at__lt=now - timedelta(days=self.text_days))


@dataclass(frozen=True, slots=True)
class Pruned:
    rows: int
    texts: int


def is_anything_old(retention: Retention, now: datetime) -> bool:
    return any(rows.exists() for rows in (*retention.old_rows(now), *retention.old_texts(now)))


def prune_log(*, retention: Retention, now: datetime | None = None, tell: Tell = lambda count: None) -> Pruned:
    """Prune the log. ``tell`` receives the number of rows after each batch, and may raise to stop."""
    now = now or timezone.now()
    deleted = cleared = 0
    for rows in retention.old_rows(now):
        for count in _by_batch(rows, _delete):
            deleted += count
            tell(deleted)
    for rows in retention.old_texts(now):
        for count in _by_batch(rows, _clear):
            cleared += count
            tell(deleted + cleared)
    return Pruned(deleted, cleared)


def _by_batch(rows: QuerySet[RequestLog], act: Callable[[list[str]], None]) -> Iterator[int]:
    while pks := list(rows.order_by("created_at").values_list("pk", flat=True)[:BATCH]):
        act(pks)
        yield len(pks)


def _delete(pks: list[str]) -> None:
    # Rows that refer to requests go with them, for which Django reads the rows: without their texts.
    RequestLog.objects.filter(pk__in=pks).only("pk").delete()


@transaction.atomic
def _clear(pks: list[str]) -> None:
    for start in range(0, len(pks), AT_ONCE):
        _clear_some(pks[start : start + AT_ONCE])


def _clear_some(pks: list[str]) -> None:
    """Remove texts but keep numbers, as if texts had never been stored."""
    rows = list(RequestLog.objects.filter(pk__in=pks).only("pk", "status", "parameters", "error_message"))
    for row in rows:
        row.prompt = row.completion = ""
        row.parameters = bare_parameters(row.parameters)
        if quotes_client(row.status):
            row.error_message = ""
    RequestLog.objects.bulk_update(rows, ("prompt", "completion", "parameters", "error_message"))


def is_due() -> bool:
    return is_anything_old(Retention.from_settings(), timezone.now())


def run_prune(job: RunningJob) -> dict[str, Any]:
    pruned = prune_log(
        retention=Retention.from_settings(),
        tell=lambda count: job.progress(count, 0, f"{count:,} rows"),
    )
    record_access(act=LogAccess.Act.PRUNE, user=None, num_rows=pruned.rows, detail=asdict(pruned))
    return asdict(pruned)
