"""Daily quotas of keys: requests and tokens per day in UTC.

Counted in this process, starting from the value in Postgres when this process first saw the key that day, and written
back by the log's thread. A restart loses nothing that was written, and no request waits for a query.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta

from django.utils import timezone

from openai_api.http.errors import insufficient_quota
from openai_api.keys.record import KeyRecord

NOTHING: Mapping[str, float] = {}


@dataclass(slots=True)
class _Day:
    """``tokens`` includes those reserved by running requests."""

    day: date
    requests: int
    tokens: int
    media: dict[str, float] = field(default_factory=dict)


class Quotas:
    """Thread-safe: responses are closed in threads."""

    def __init__(self, now: Callable[[], datetime] = timezone.now) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._days: dict[int, _Day] = {}

    def admit(self, key: KeyRecord, *, is_counted: bool = False) -> Draw:
        """Count one request of ``key``, unless it was counted already. Raises MillmError 429."""
        draw = Draw(self, key, self._now().date(), requests=0 if is_counted else 1)
        if draw.is_limited:
            self._admit(key, draw.day, draw.requests)
        else:
            self._days.pop(key.pk, None)  # if it is limited again, start from Postgres
        return draw

    def reserve(self, key: KeyRecord, day: date, amount: int) -> None:
        with self._lock:
            found = self._day(key, day)
            limit = key.tokens_per_day
            if limit is not None and amount > limit:
                message = (
                    f"This request may need {amount} tokens; the daily quota of this API key is {limit}. Send less "
                    "text, request fewer tokens, or ask the key's owner to raise it."
                )
                raise insufficient_quota(message, retry_after_s=None)
            if limit is not None and found.tokens + amount > limit:
                left = max(0, limit - found.tokens)
                raise self._exhausted(
                    f"Daily quota of this API key exceeded: {left} of {limit} tokens are left; this request may need "
                    f"{amount}."
                )
            found.tokens += amount

    def reserve_media(self, key: KeyRecord, day: date, unit: str, amount: float) -> None:
        """Take ``amount`` of a unit; 0 only checks that some is left. Raises MillmError 429."""
        limit = key.media_per_day.get(unit)
        with self._lock:
            found = self._day(key, day)
            used = found.media.get(unit, 0.0)
            if limit is not None and (used >= limit or used + amount > limit):
                name = unit.replace("_", " ")
                raise self._exhausted(
                    f"Daily quota of this API key exceeded: {max(0.0, limit - used):g} of {limit} {name} are left."
                )
            found.media[unit] = used + amount

    def add_media(self, key: KeyRecord, day: date, amounts: Mapping[str, float]) -> None:
        """Count media, negative amounts for what was reserved and not used."""
        with self._lock:
            found = self._days.get(key.pk)
            if found is not None and found.day == day:
                for unit, amount in amounts.items():
                    found.media[unit] = found.media.get(unit, 0.0) + amount

    def give_back(self, key: KeyRecord, day: date, *, requests: int = 0, tokens: int = 0) -> None:
        """Return unused tokens; negative ``tokens``: more were used than reserved."""
        with self._lock:
            found = self._days.get(key.pk)
            if found is not None and found.day == day:
                found.requests -= requests
                found.tokens -= tokens

    def _admit(self, key: KeyRecord, day: date, requests: int) -> None:
        with self._lock:
            found = self._day(key, day)
            if key.requests_per_day is not None and found.requests + requests > key.requests_per_day:
                raise self._exhausted(f"Daily quota of this API key exceeded: {key.requests_per_day} requests.")
            if key.tokens_per_day is not None and found.tokens >= key.tokens_per_day:
                raise self._exhausted(f"Daily quota of this API key exceeded: {key.tokens_per_day} tokens.")
            found.requests += requests

    def _day(self, key: KeyRecord, day: date) -> _Day:
        found = self._days.get(key.pk)
        if found is None or found.day < day:
            used = key.used if key.used is not None and key.used.day == day else None
            found = _Day(day, used.requests, used.tokens, dict(used.media)) if used else _Day(day, 0, 0)
            self._days[key.pk] = found
        return found

    def _exhausted(self, reason: str) -> Exception:
        now = self._now()
        return insufficient_quota(
            f"{reason} The quota resets at midnight UTC. Ask the key's owner to raise it.",
            retry_after_s=(end_of_day(now) - now).total_seconds(),
        )


def end_of_day(now: datetime) -> datetime:
    """Return when all quotas reset; ``now`` is in UTC."""
    return datetime.combine(now.date() + timedelta(days=1), time(), tzinfo=now.tzinfo)


class Draw:
    """What one request takes of its key's quotas; nothing where the key has none."""

    def __init__(self, quotas: Quotas, key: KeyRecord, day: date, *, requests: int = 1) -> None:
        self.day = day
        self.requests = requests
        self._quotas = quotas
        self._key = key
        self._reserved = 0
        self._reserved_media: dict[str, float] = {}

    @property
    def is_limited(self) -> bool:
        key = self._key
        return key.requests_per_day is not None or key.tokens_per_day is not None or bool(key.media_per_day)

    def reserve_media(self, unit: str, amount: float) -> None:
        """Reserve media of the quota. Raises MillmError 429."""
        if self.is_limited:
            self._quotas.reserve_media(self._key, self.day, unit, amount)
            self._reserved_media[unit] = self._reserved_media.get(unit, 0.0) + amount

    def reserve_tokens(self, amount: int) -> None:
        """Reserve tokens of the quota. Raises MillmError 429."""
        if self.is_limited:
            self._quotas.reserve(self._key, self.day, amount)
            self._reserved += amount

    def settle(self, used_tokens: int, used_media: Mapping[str, float] = NOTHING) -> None:
        """Return what was not used."""
        if self.is_limited:
            self._quotas.give_back(self._key, self.day, tokens=self._reserved - used_tokens)
            units = used_media.keys() | self._reserved_media.keys()
            unsettled = {unit: used_media.get(unit, 0.0) - self._reserved_media.get(unit, 0.0) for unit in units}
            self._quotas.add_media(self._key, self.day, unsettled)

    def withdraw(self) -> None:
        """Undo the count of a request that was refused for another reason."""
        if self.is_limited:
            self._quotas.give_back(self._key, self.day, requests=self.requests)
