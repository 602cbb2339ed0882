"""Many prompts read in the engine, beside what else runs there: for jobs, each of which has a thread of its own.

``asyncio.run(read_prompts(get_client(), model="demo", prompts=ids, reads=(Read(site=Site(1), pooling="mean"),)))``
gives a :class:`PromptReading` for each prompt. A read of the last token's residual is ``pooling="last"``.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from inference.captures import Read, Reading
from inference.client import (
    CaptureEvent,
    EngineClient,
    EngineError,
    EventStream,
    FailedEvent,
    FinishedEvent,
    GenerationRequest,
    QueueFullError,
    SamplingParams,
)
from inference.interventions import Intervention

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

AT_ONCE = 8  # prompts: a job leaves room for requests
MAX_PAUSE_S = 1.0


class PromptNotReadError(EngineError):
    """A prompt failed in the engine. ``code`` is the engine's."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class PromptReading:
    """What was read of one prompt, in the order in which it came."""

    readings: tuple[Reading, ...]

    def of(self, number: int) -> tuple[Reading, ...]:
        """Those of one of the reads, by its place among them."""
        return tuple(reading for reading in self.readings if reading.number == number)

    def values(self, number: int) -> NDArray[np.float32]:
        """``[tokens, m]`` of one read, of a pooled one ``[1, m]``; ``[0, 0]`` where no token was to be read."""
        import numpy as np

        found = [reading.values for reading in self.of(number)]
        return np.concatenate(found) if found else np.zeros((0, 0), np.float32)

    def places(self, number: int) -> tuple[int, ...]:
        """Of the rows of :meth:`values`; empty for a pooled read."""
        return tuple(place for reading in self.of(number) for place in reading.places or ())


async def read_prompts(
    client: EngineClient,
    *,
    model: str,
    prompts: Sequence[Sequence[int]],
    reads: tuple[Read, ...],
    intervention: Intervention | None = None,
    priority: int = 0,
) -> list[PromptReading]:
    """All at once in memory. PromptNotReadError, or EngineDownError and its like, for the first that fails."""
    stream = iter_prompt_readings(
        client, model=model, prompts=prompts, reads=reads, intervention=intervention, priority=priority
    )
    async with aclosing(stream):
        return [reading async for reading in stream]


async def iter_prompt_readings(
    client: EngineClient,
    *,
    model: str,
    prompts: Sequence[Sequence[int]],
    reads: tuple[Read, ...],
    intervention: Intervention | None = None,
    priority: int = 0,
) -> AsyncGenerator[PromptReading, None]:
    """One after the other, in the prompts' order; a few of them run at once."""
    sampling = SamplingParams(max_tokens=0)
    requests = [
        GenerationRequest(f"read/{number}", model, tuple(ids), sampling, intervention, number, priority, reads)
        for number, ids in enumerate(prompts)
    ]
    while requests:
        stream, num_taken = await _submit(client, requests[:AT_ONCE])
        try:
            found = await _collect(stream)
        finally:
            stream.close()
        for request in requests[:num_taken]:
            yield PromptReading(tuple(found.get(request.index, ())))
        requests = requests[num_taken:]


async def _submit(client: EngineClient, wave: Sequence[GenerationRequest]) -> tuple[EventStream, int]:
    """As many as there is room for, and as soon as there is any."""
    num_taken = len(wave)
    while True:
        try:
            return client.submit(wave[:num_taken]), num_taken
        except QueueFullError as error:
            if num_taken == 1:
                await asyncio.sleep(min(error.retry_after_s, MAX_PAUSE_S))
            num_taken = max(1, num_taken // 2)


async def _collect(stream: EventStream) -> dict[int, list[Reading]]:
    found: dict[int, list[Reading]] = {}
    async for event in stream:
        match event:
            case CaptureEvent():
                found.setdefault(event.index, []).extend(event.readings)
            case FailedEvent():
                raise PromptNotReadError(event.code, event.message)
            case FinishedEvent(reason="cancelled"):
                raise PromptNotReadError("engine_shutdown", "The engine cancelled the reading.")
    return found
