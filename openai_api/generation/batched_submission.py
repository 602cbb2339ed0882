"""Submit many sequences as one event stream, in groups, so that one request cannot fill the whole queue."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Self, TypeVar

from inference.client import Event, EventStream, QueueFullError

MAX_PAUSE_S = 1.0  # between attempts to submit a later group
R = TypeVar("R")


class BatchedSubmission:
    """An event stream. The first group is submitted at once and may be refused; later ones wait for space."""

    def __init__(self, submit: Callable[[Sequence[R]], EventStream], requests: Sequence[R], *, size: int) -> None:
        groups = [requests[start : start + size] for start in range(0, len(requests), size)]
        self._later = deque(partial(submit, group) for group in groups[1:])
        self._current = submit(groups[0])
        self._is_open = True

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        while True:
            try:
                return await anext(self._current)
            except StopAsyncIteration:
                if not (self._later and self._is_open):
                    raise
            await self._submit_next()

    def close(self) -> None:
        self._is_open = False
        self._current.close()

    async def _submit_next(self) -> None:
        while self._is_open:
            try:
                self._current = self._later[0]()
            except QueueFullError as error:
                await asyncio.sleep(min(error.retry_after_s, MAX_PAUSE_S))
            else:
                self._later.popleft()
                return
