"""The thread of a serving process that stores the load per minute and hour, and computes the current load."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from django.conf import settings
from django.db import Error, close_old_connections, connection, transaction

from console.load.load import Load
from console.load.totals import Totals, load_between, read_totals
from console.models import COUNTED, HOUR_S, MINUTE_S, LoadSample
from core.runtime import Service, runtime
from openai_api.request_log.metrics import Use, recent_use

MINUTES_KEPT = timedelta(hours=25)


def record_load(*, process: uuid.UUID, minutes: dict[datetime, Load], hours: dict[datetime, Load]) -> None:
    """Write the loads of spans in one transaction. An existing row is replaced, because its span has grown."""
    with transaction.atomic():
        for span_s, loads in ((MINUTE_S, minutes), (HOUR_S, hours)):
            for begins_at, load in loads.items():
                values = {name: _storable(getattr(load, name)) for name in COUNTED}
                LoadSample.objects.update_or_create(
                    process=process, span_s=span_s, begins_at=begins_at, defaults=values
                )


def delete_old_load(*, now: datetime, retention: timedelta) -> int:
    """Delete minutes after a day and hours after ``retention``. Return the number of deleted rows."""
    minutes = LoadSample.objects.filter(span_s=MINUTE_S, begins_at__lt=now - MINUTES_KEPT)
    hours = LoadSample.objects.filter(span_s=HOUR_S, begins_at__lt=now - retention)
    return minutes.delete()[0] + hours.delete()[0]


def _storable(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value


logger = logging.getLogger(__name__)
TICK_S = 2.0
LIVE_TICKS = 6  # number of ticks over which live rates are averaged
MAX_PENDING = 120  # unwritten minutes kept while the database is down


@dataclass(frozen=True, slots=True)
class LiveLoad:
    """The load of the last seconds."""

    requests_per_s: float = 0.0
    tokens_per_s: float = 0.0
    running: int = 0
    waiting: int = 0
    kv: float = 0.0


class SpanSums:
    """Unwritten loads of minutes and hours, and of the current hour."""

    def __init__(self) -> None:
        self.minutes: dict[datetime, Load] = {}
        self.hours: dict[datetime, Load] = {}

    def add(self, load: Load, at: datetime) -> None:
        minute = at.replace(second=0, microsecond=0)
        hour = minute.replace(minute=0)
        self.minutes[minute] = self.minutes.get(minute, Load()) + load
        self.hours[hour] = self.hours.get(hour, Load()) + load
        while len(self.minutes) > MAX_PENDING:
            del self.minutes[min(self.minutes)]

    def ended_minutes(self, now: datetime) -> dict[datetime, Load]:
        return {minute: load for minute, load in self.minutes.items() if minute + timedelta(minutes=1) <= now}

    def drop_written(self, minutes: dict[datetime, Load], now: datetime) -> None:
        """Drop written spans except the current hour."""
        for minute in minutes:
            del self.minutes[minute]
        for hour in [hour for hour in self.hours if hour + timedelta(hours=1) <= now]:
            del self.hours[hour]


class LoadSampler:
    """Samples the load. ``tick`` is called by the thread and by tests."""

    def __init__(
        self,
        *,
        retention: timedelta,
        read: Callable[[], Totals] = read_totals,
        take_use: Callable[[], Use] = recent_use.take,
        record: Callable[..., None] = record_load,
    ) -> None:
        self.process = uuid.uuid4()
        self.sums = SpanSums()
        self._retention = retention
        self._read = read
        self._take_use = take_use
        self._record = record
        self._before = read()
        self._recent: deque[tuple[float, Totals]] = deque([(time.monotonic(), self._before)], LIVE_TICKS + 1)
        self._forgot_hour: datetime | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="load-sampler", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_s: float = 5.0) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def live(self) -> LiveLoad:
        (first_at, first), (last_at, last) = self._recent[0], self._recent[-1]
        span = last_at - first_at
        if span <= 0:
            return LiveLoad(running=last.running, waiting=last.waiting, kv=last.kv)
        return LiveLoad(
            requests_per_s=round((last.requests - first.requests) / span, 2),
            tokens_per_s=round((last.streamed - first.streamed) / span, 1),
            running=last.running,
            waiting=last.waiting,
            kv=round(last.kv, 3),
        )

    def tick(self, now: datetime, monotonic_s: float) -> None:
        totals = self._read()
        self.sums.add(load_between(self._before, totals, self._take_use()), now)
        self._before = totals
        self._recent.append((monotonic_s, totals))
        self._write(self.sums.ended_minutes(now), now)

    def write_rest(self, now: datetime) -> None:
        """Write all spans at shutdown, including the current minute."""
        self._write(dict(self.sums.minutes), now)

    def _write(self, minutes: dict[datetime, Load], now: datetime) -> None:
        if not minutes:
            return
        try:
            close_old_connections()
            self._record(process=self.process, minutes=minutes, hours=self.sums.hours)
            self._delete_old(now)
        except Error as error:
            logger.warning("The load of %d minute(s) could not be written yet: %s", len(minutes), error)
            return
        finally:
            connection.close()
        self.sums.drop_written(minutes, now)

    def _delete_old(self, now: datetime) -> None:
        """Delete old rows once an hour."""
        hour = now.replace(minute=0, second=0, microsecond=0)
        if hour != self._forgot_hour:
            delete_old_load(now=now, retention=self._retention)
            self._forgot_hour = hour

    def _run(self) -> None:
        while not self._stop.wait(TICK_S):
            self._survive(lambda: self.tick(datetime.now(UTC), time.monotonic()))
        self._survive(lambda: self.write_rest(datetime.now(UTC)))

    def _survive(self, act: Callable[[], None]) -> None:
        try:
            act()
        except Exception:  # losing a sample is acceptable, losing the thread is not
            logger.exception("A load sample was lost.")


_sampler: LoadSampler | None = None
_starting = threading.Lock()


def start_sampling() -> None:
    """Start the sampler. Idempotent; only for serving processes."""
    global _sampler
    with _starting:
        if _sampler is None:
            _sampler = LoadSampler(retention=timedelta(days=settings.MILLM_LOAD_RETENTION_DAYS))
            _sampler.start()


def stop_sampling() -> None:
    global _sampler
    with _starting:
        sampler, _sampler = _sampler, None
    if sampler is not None:
        sampler.stop()


LIVE_LOAD: Service[Callable[[], LiveLoad]] = Service(lambda: own_live_load)  # a web worker installs the main process's


def live_load() -> LiveLoad:
    """Return the live load of the server, empty if it is not sampled."""
    return runtime.get(LIVE_LOAD)()


def own_live_load() -> LiveLoad:
    """Return the live load that this process samples."""
    sampler = _sampler
    return sampler.live() if sampler is not None else LiveLoad()
