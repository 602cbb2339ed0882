"""Limits of a key: concurrent requests, token buckets for requests and tokens per minute, and daily quotas.

Counted in one process: web workers ask the main process (:mod:`millm_site.workers.limits`). Several servers each grant
the whole limit. Times are from a monotonic clock.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from core.errors import MillmError
from core.runtime import Service, runtime
from openai_api.http.errors import rate_limited
from openai_api.keys.quotas import NOTHING, Draw, Quotas
from openai_api.keys.record import KeyRecord

WINDOW_S = 60.0
CONCURRENCY_RETRY_S = 1.0


class TokenBucket:
    """Hold at most ``capacity``, refilled within a minute; negative when more was used than reserved."""

    def __init__(self, capacity: int, now: float) -> None:
        self.capacity = capacity
        self._level = float(capacity)
        self._read_at = now

    def level(self, now: float) -> float:
        refilled = self._level + (now - self._read_at) * self.capacity / WINDOW_S
        self._level = min(float(self.capacity), refilled)
        self._read_at = now
        return self._level

    def take(self, amount: float, now: float) -> None:
        self._level = self.level(now) - amount

    def wait_s(self, amount: float, now: float) -> float:
        """Return the seconds until ``amount`` is available."""
        return max(0.0, (amount - self.level(now)) * WINDOW_S / self.capacity) if self.capacity else WINDOW_S

    def full_in_s(self, now: float) -> float:
        return self.wait_s(self.capacity, now)

    def resize(self, capacity: int, now: float) -> None:
        self._level = self.level(now) + capacity - self.capacity
        self.capacity = capacity


@dataclass
class KeyUsage:
    """Current usage of one key."""

    running: int = 0
    buckets: dict[str, TokenBucket] = field(default_factory=dict)

    def bucket(self, kind: str, capacity: int | None, now: float) -> TokenBucket | None:
        if capacity is None:
            self.buckets.pop(kind, None)
            return None
        bucket = self.buckets.setdefault(kind, TokenBucket(capacity, now))
        if bucket.capacity != capacity:
            bucket.resize(capacity, now)
        return bucket


class Limits:
    """Usage of all keys. Thread-safe: responses are closed in threads."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, quotas: Quotas | None = None) -> None:
        self.clock = clock
        self.quotas = quotas or Quotas()
        self._lock = threading.Lock()
        self._usage: dict[int, KeyUsage] = {}

    def admit(self, key: KeyRecord, *, is_counted: bool = False) -> Lease:
        """Count one request of ``key``, or only that it runs if it was counted already. Raises MillmError 429."""
        draw = self.quotas.admit(key, is_counted=is_counted)
        try:
            self._admit(key, is_counted=is_counted)
        except MillmError:
            draw.withdraw()
            raise
        return Lease(self, key, draw)

    async def aadmit(self, key: KeyRecord, *, is_counted: bool = False) -> Lease:
        """Like :meth:`admit`. See :class:`KeyLimits`."""
        return self.admit(key, is_counted=is_counted)

    def current_headers(self, key: KeyRecord) -> dict[str, str]:
        """Like :meth:`headers`. See :class:`KeyLimits`."""
        return self.headers(key)

    def _admit(self, key: KeyRecord, *, is_counted: bool) -> None:
        with self._lock:
            usage, now = self._usage.setdefault(key.pk, KeyUsage()), self.clock()
            if key.max_concurrent_requests is not None and usage.running >= key.max_concurrent_requests:
                raise rate_limited(
                    f"Limit of this API key reached: {key.max_concurrent_requests} concurrent requests. "
                    "Wait for one to finish.",
                    retry_after_s=CONCURRENCY_RETRY_S,
                )
            bucket = None if is_counted else usage.bucket("requests", key.requests_per_minute, now)
            _take(bucket, 1, now, f"Rate limit of this API key reached: {key.requests_per_minute} requests per minute.")
            usage.running += 1

    def headers(self, key: KeyRecord) -> dict[str, str]:
        """Return the `x-ratelimit-*` headers for the limits of ``key``."""
        with self._lock:
            usage, now = self._usage.setdefault(key.pk, KeyUsage()), self.clock()
            headers: dict[str, str] = {}
            for kind, capacity in (("requests", key.requests_per_minute), ("tokens", key.tokens_per_minute)):
                bucket = usage.bucket(kind, capacity, now)
                if bucket is not None:
                    headers |= _bucket_headers(kind, bucket, now)
            return headers

    def reserve_tokens(self, key: KeyRecord, amount: int) -> int:
        """Take ``amount`` tokens, at most the whole bucket, and return how many were taken. Raises MillmError 429."""
        with self._lock:
            now = self.clock()
            bucket = self._usage[key.pk].bucket("tokens", key.tokens_per_minute, now)
            taken = min(amount, bucket.capacity) if bucket else 0
            limit = f"{key.tokens_per_minute} tokens per minute; this request needs {amount}"
            _take(bucket, taken, now, f"Rate limit of this API key reached: {limit}.")
            return taken

    def release(self, key: KeyRecord, *, unused_tokens: int) -> None:
        """End a request and return reserved tokens (negative: it used more)."""
        with self._lock:
            usage, now = self._usage[key.pk], self.clock()
            usage.running -= 1
            bucket = usage.buckets.get("tokens")
            if bucket is not None:
                bucket.take(-unused_tokens, now)


class Lease:
    """One admitted request of a key, closed once."""

    def __init__(self, limits: Limits, key: KeyRecord, draw: Draw) -> None:
        self._limits = limits
        self._key = key
        self._draw = draw
        self._reserved = 0
        self._is_open = True

    def reserve_tokens(self, amount: int) -> None:
        self._draw.reserve_tokens(amount)
        if self._key.tokens_per_minute is not None:
            self._reserved += self._limits.reserve_tokens(self._key, amount)

    def reserve_media(self, unit: str, amount: float) -> None:
        self._draw.reserve_media(unit, amount)

    async def areserve_tokens(self, amount: int) -> None:
        """Like :meth:`reserve_tokens`. See :class:`KeyLease`."""
        self.reserve_tokens(amount)

    async def areserve_media(self, unit: str, amount: float) -> None:
        """Like :meth:`reserve_media`. See :class:`KeyLease`."""
        self.reserve_media(unit, amount)

    def close(self, used_tokens: int, used_media: Mapping[str, float] = NOTHING) -> None:
        if self._is_open:
            self._is_open = False
            self._limits.release(self._key, unused_tokens=self._reserved - used_tokens)
            self._draw.settle(used_tokens, used_media)


def _take(bucket: TokenBucket | None, amount: int, now: float, message: str) -> None:
    if bucket is None:
        return
    wait_s = bucket.wait_s(amount, now)
    if wait_s > 0 or bucket.capacity == 0:
        raise rate_limited(f"{message} Try again in {wait_s:.0f} s.", retry_after_s=wait_s)
    bucket.take(amount, now)


def _bucket_headers(kind: str, bucket: TokenBucket, now: float) -> dict[str, str]:
    return {
        f"x-ratelimit-limit-{kind}": str(bucket.capacity),
        f"x-ratelimit-remaining-{kind}": str(max(0, int(bucket.level(now)))),
        f"x-ratelimit-reset-{kind}": _duration(bucket.full_in_s(now)),
    }


def _duration(seconds: float) -> str:
    """Format a duration as OpenAI does: ``350ms``, ``1.5s``, ``2m3s``."""
    if seconds < 1:
        return f"{round(seconds * 1000)}ms"
    minutes, rest = divmod(seconds, 60)
    return f"{int(minutes)}m{rest:.0f}s" if minutes else f"{rest:.3g}s"


class KeyLease(Protocol):
    """One admitted request of a key. The reservations raise MillmError 429."""

    async def areserve_tokens(self, amount: int) -> None: ...

    async def areserve_media(self, unit: str, amount: float) -> None: ...

    def close(self, used_tokens: int, used_media: Mapping[str, float] = NOTHING) -> None:
        """End the request. Idempotent, callable from any thread."""


class KeyLimits(Protocol):
    """The limits as requests use them, wherever they are counted."""

    async def aadmit(self, key: KeyRecord, *, is_counted: bool = False) -> KeyLease:
        """Count one request of ``key``, or only that it runs if it was counted already. Raise MillmError 429."""

    def headers(self, key: KeyRecord) -> dict[str, str]:
        """Return the `x-ratelimit-*` headers for the limits of ``key``, at once."""

    def current_headers(self, key: KeyRecord) -> dict[str, str]:
        """Return the headers of a key without a request. For threads: it may wait."""


RATE_LIMITS: Service[KeyLimits] = Service(lambda: Limits())


def get_limits() -> KeyLimits:
    """Return the limits of keys."""
    return runtime.get(RATE_LIMITS)
