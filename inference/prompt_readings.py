"""Many prompts read in the engine, beside what else runs there.

``asyncio.run(read_prompts(get_client(), model="demo", prompts=ids, reads=(Read(site=Site(1), pooling="mean"),)))``
gives a :class:`PromptReading` for each prompt. A read of the last token's residual is ``pooling="last"``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from inference.captures import Read, Reading
from inference.client import CaptureEvent, EngineClient, GenerationRequest, SamplingParams
from inference.interventions import Intervention
from inference.runs import Run

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

AT_ONCE = 8  # prompts: a job leaves room for requests


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
    """Run the prompts, a few at once; return what was read of each. Raise SequenceFailedError or EngineDownError."""
    sampling = SamplingParams(max_tokens=0)
    requests = [
        GenerationRequest(f"read/{number}", model, tuple(ids), sampling, intervention, number, priority, reads)
        for number, ids in enumerate(prompts)
    ]
    run = Run(client, requests, group_size=AT_ONCE, waits=True, halves=True)
    return [
        PromptReading(
            tuple(reading for event in events if isinstance(event, CaptureEvent) for reading in event.readings)
        )
        for events in await run.collect()
    ]
