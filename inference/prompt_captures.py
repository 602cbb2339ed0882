"""Many prompts read in the engine, beside what else runs there.

``await capture_prompts(client, model="demo", prompts=ids, captures=(CaptureSpec(site=Site(1), pooling="mean"),))``
returns a :class:`PromptCapture` for each prompt. ``pooling="last"`` captures the last token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from inference.captures import ActivationCapture, CaptureSpec
from inference.client import CaptureEvent, EngineClient, GenerationRequest, SamplingParams
from inference.interventions import Intervention
from inference.runs import Run

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

AT_ONCE = 8  # prompts: a job leaves room for requests


@dataclass(frozen=True, slots=True)
class PromptCapture:
    """What was read of one prompt, in the order in which it came."""

    captures: tuple[ActivationCapture, ...]

    def of(self, number: int) -> tuple[ActivationCapture, ...]:
        """Those of one of the captures, by its place among them."""
        return tuple(reading for reading in self.captures if reading.number == number)

    def values(self, number: int) -> NDArray[np.float32]:
        """``[tokens, m]`` of one read, of a pooled one ``[1, m]``; ``[0, 0]`` where no token was to be read."""
        import numpy as np

        found = [reading.values for reading in self.of(number)]
        return np.concatenate(found) if found else np.zeros((0, 0), np.float32)

    def places(self, number: int) -> tuple[int, ...]:
        """Of the rows of :meth:`values`; empty for a pooled read."""
        return tuple(place for reading in self.of(number) for place in reading.places or ())


async def capture_prompts(
    client: EngineClient,
    *,
    model: str,
    prompts: Sequence[Sequence[int]],
    captures: tuple[CaptureSpec, ...],
    intervention: Intervention | None = None,
    priority: int = 0,
) -> list[PromptCapture]:
    """Run the prompts, a few at once; return what was read of each. Raise SequenceFailedError or EngineDownError."""
    sampling = SamplingParams(max_tokens=0)
    requests = [
        GenerationRequest(f"read/{number}", model, tuple(ids), sampling, intervention, number, priority, captures)
        for number, ids in enumerate(prompts)
    ]
    run = Run(client, requests, group_size=AT_ONCE, waits=True, halves=True)
    return [
        PromptCapture(
            tuple(reading for event in events if isinstance(event, CaptureEvent) for reading in event.captures)
        )
        for events in await run.collect()
    ]
