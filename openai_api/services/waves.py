"""Many sequences as one event stream: submitted in groups, so that a batch of prompts does not need the whole queue."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Self

from inference.client import EngineClient, Event, EventStream, GenerationRequest, QueueFullError

MAX_PAUSE_S = 1.0  # between attempts to place a later group


class Waves:
    """An event stream. The first group is submitted at once and may be refused; later ones wait for room."""

    def __init__(self, client: EngineClient, requests: Sequence[GenerationRequest], *, size: int) -> None:
        self._client = client
        self._groups = [requests[start : start + size] for start in range(0, len(requests), size)]
        self._current: EventStream = client.submit(self._groups.pop(0))
        self._is_open = True

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        while True:
            try:
                return await anext(self._current)
            except StopAsyncIteration:
                if not (self._groups and self._is_open):
                    raise
            await self._submit_next()

    def close(self) -> None:
        self._is_open = False
        self._current.close()

    async def _submit_next(self) -> None:
        while self._is_open:
            try:
                self._current = self._client.submit(self._groups[0])
            except QueueFullError as error:
                await asyncio.sleep(min(error.retry_after_s, MAX_PAUSE_S))
            else:
                del self._groups[0]
                return
