"""Limits that are counted in the main process, for all web workers."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping
from typing import Any

from console.login_limit import get_login_limit
from core.errors import MillmError
from inference.web_worker.link import Call, Link
from openai_api.keys.limits import KeyLease, Lease, Limits, get_limits
from openai_api.keys.quotas import NOTHING
from openai_api.keys.record import KeyRecord

ANSWER_S = 30.0  # for threads that wait for the main process
SETTLE_S = 0.05  # in which the end of a request reaches the main process
Headers = dict[str, str]
Answer = tuple[Headers, MillmError | None]  # what is left of the key's limits, and the refusal


class KeyLedger:
    """In the main process: the open requests of one worker whose keys have limits, by the worker's numbers.

    Called on the thread that reads the worker's messages, so that they count in order.
    """

    def __init__(self, link: Link) -> None:
        limits = get_limits()
        assert isinstance(limits, Limits), "the main process counts itself"
        self._limits = limits
        self._link = link
        self._open: dict[int, tuple[KeyRecord, Lease]] = {}

    def handle(self, call: Call) -> bool:
        """Handle a call. Return False if it is not about limits."""
        match call.method, call.arguments:
            case "admit", (number, key, is_counted):
                self._answer(call, key, lambda: self._admit(number, key, is_counted=is_counted))
            case "reserve_tokens", (number, amount):
                key, lease = self._open[number]
                self._answer(call, key, lambda: lease.reserve_tokens(amount))
            case "reserve_media", (number, unit, amount):
                key, lease = self._open[number]
                self._answer(call, key, lambda: lease.reserve_media(unit, amount))
            case "close_lease", (number, tokens, media):
                self._close(number, tokens, media)
            case "limit_headers", _:
                self._link.answer(call, self._limits.headers)
            case "take_login", _:
                self._link.answer(call, get_login_limit().take)
            case "login_succeeded", _:
                self._link.answer(call, get_login_limit().succeeded)
            case _:
                return False
        return True

    def close(self) -> None:
        """End the requests of a worker that has ended: nothing more was used."""
        for number in list(self._open):
            self._close(number, 0, NOTHING)

    def _admit(self, number: int, key: KeyRecord, *, is_counted: bool) -> None:
        self._open[number] = key, self._limits.admit(key, is_counted=is_counted)

    def _close(self, number: int, tokens: int, media: Mapping[str, float]) -> None:
        found = self._open.pop(number, None)
        if found is not None:  # otherwise it was refused
            found[1].close(tokens, media)

    def _answer(self, call: Call, key: KeyRecord, act: Callable[[], None]) -> None:
        refusal: MillmError | None = None
        try:
            act()
        except MillmError as error:
            refusal = error
        self._link.reply(call, (self._limits.headers(key), refusal))


class WorkerLimits:
    """Implements :class:`openai_api.keys.limits.KeyLimits` in a worker. Only keys with limits ask the main process."""

    def __init__(self, link: Link, *, settle_s: float = SETTLE_S) -> None:
        self._link = link
        self._settle_s = settle_s
        self._numbers = itertools.count()
        self._headers: dict[int, Headers] = {}  # by key, as the main process last told

    async def aadmit(self, key: KeyRecord, *, is_counted: bool = False) -> KeyLease:
        if not has_limits(key):
            self._headers.pop(key.pk, None)
            return NO_LEASE
        lease = WorkerLease(self, key, next(self._numbers))
        try:
            await self.ask(key, "admit", lease.number, key, is_counted)
        except BaseException:  # also when the client disconnects meanwhile
            lease.close(0)
            raise
        return lease

    def headers(self, key: KeyRecord) -> Headers:
        return self._headers.get(key.pk, {})

    def current_headers(self, key: KeyRecord) -> Headers:
        headers: Headers = self._link.call("limit_headers", key).result(ANSWER_S)
        return headers

    async def ask(self, key: KeyRecord, method: str, *arguments: object) -> None:
        """Call the main process. Raise its refusal, unless it agrees a moment later: a request that has just ended
        through another worker may still be counted.
        """
        refusal = await self._ask(key, method, *arguments)
        if refusal is not None:
            await asyncio.sleep(self._settle_s)
            refusal = await self._ask(key, method, *arguments)
        if refusal is not None:
            raise refusal

    async def _ask(self, key: KeyRecord, method: str, *arguments: object) -> MillmError | None:
        answer: Answer = await asyncio.wrap_future(self._link.call(method, *arguments))
        self._headers[key.pk], refusal = answer
        return refusal

    def close(self, number: int, used_tokens: int, used_media: Mapping[str, float]) -> None:
        self._link.notify("close_lease", number, used_tokens, dict(used_media))


class WorkerLease:
    """One request whose key has limits. The main process knows it by its ``number``."""

    def __init__(self, limits: WorkerLimits, key: KeyRecord, number: int) -> None:
        self.number = number
        self._limits = limits
        self._key = key
        self._is_open = True

    async def areserve_tokens(self, amount: int) -> None:
        await self._limits.ask(self._key, "reserve_tokens", self.number, amount)

    async def areserve_media(self, unit: str, amount: float) -> None:
        await self._limits.ask(self._key, "reserve_media", self.number, unit, amount)

    def close(self, used_tokens: int, used_media: Mapping[str, float] = NOTHING) -> None:
        if self._is_open:
            self._is_open = False
            self._limits.close(self.number, used_tokens, used_media)


class NoLease:
    """The request of a key without limits."""

    async def areserve_tokens(self, amount: int) -> None:
        """Do nothing: there is no limit."""

    async def areserve_media(self, unit: str, amount: float) -> None:
        """Do nothing: there is no limit."""

    def close(self, used_tokens: int, used_media: Mapping[str, float] = NOTHING) -> None:
        """Do nothing: nothing was counted."""


NO_LEASE = NoLease()


def has_limits(key: KeyRecord) -> bool:
    limits: tuple[Any, ...] = (
        key.max_concurrent_requests,
        key.requests_per_minute,
        key.tokens_per_minute,
        key.requests_per_day,
        key.tokens_per_day,
    )
    return any(limit is not None for limit in limits) or bool(key.media_per_day)


class WorkerLogins:
    """The failed logins of all workers. For threads: each call waits for the main process."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def take(self, address: str, user: str) -> float:
        wait_s: float = self._link.call("take_login", address, user).result(ANSWER_S)
        return wait_s

    def succeeded(self, address: str, user: str) -> None:
        self._link.call("login_succeeded", address, user).result(ANSWER_S)
