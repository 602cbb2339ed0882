"""Capture activations of many prompts in the engine, a few prompts at once.

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
    """The captured activations of one prompt, in order of arrival."""

    captures: tuple[ActivationCapture, ...]

    def of(self, number: int) -> tuple[ActivationCapture, ...]:
        """Return the activations of one spec, by its index among the specs."""
        return tuple(capture for capture in self.captures if capture.number == number)

    def values(self, number: int) -> NDArray[np.float32]:
        """Return the values of one spec: ``[tokens, m]``, ``[1, m]`` if pooled, ``[0, 0]`` if it selects no token."""
        import numpy as np

        found = [capture.values for capture in self.of(number)]
        return np.concatenate(found) if found else np.zeros((0, 0), np.float32)

    def places(self, number: int) -> tuple[int, ...]:
        """Return the token positions of the rows of :meth:`values`; empty if pooled."""
        return tuple(place for capture in self.of(number) for place in capture.places or ())


async def capture_prompts(
    client: EngineClient,
    *,
    model: str,
    prompts: Sequence[Sequence[int]],
    captures: tuple[CaptureSpec, ...],
    intervention: Intervention | None = None,
    priority: int = 0,
) -> list[PromptCapture]:
    """Run the prompts, a few at once; return the captures of each. Raise SequenceFailedError or EngineDownError."""
    sampling = SamplingParams(max_tokens=0)
    requests = [
        GenerationRequest(
            f"capture/{number}",
            model,
            tuple(ids),
            sampling,
            index=number,
            priority=priority,
            captures=captures,
            intervention=intervention,
        )
        for number, ids in enumerate(prompts)
    ]
    run = Run(client, requests, group_size=AT_ONCE, waits=True, halves=True)
    return [
        PromptCapture(
            tuple(capture for event in events if isinstance(event, CaptureEvent) for capture in event.captures)
        )
        for events in await run.collect()
    ]
